"Nonsense of any size is answered, or refused in one sentence, at once."
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.records.database import shipped_directory

ROOT = Path(__file__).resolve().parent.parent


def timed(argv, seconds, **env) -> subprocess.CompletedProcess:
    "A command in a process of its own, which may take so many seconds beyond those of the start of Python"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "lm_predictor", *argv], env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
                          capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert time.monotonic() - start < seconds + 20  # of a machine that does much else
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def chain(tmp_path, monkeypatch):
    "40 classes, each of which calls the next five times"
    for i in range(40):
        refer = f"${{mine.chain.Link{i + 1}}}(batch_size, seq_len)"
        access = lambda f: {"flops": f, "memory_access": {"read": f, "write": f}}
        calls = [{"kernel_type": "composite", "operation": "call", "line": n + 1, **access(refer)} for n in range(5)]
        leaf = [{"kernel_type": "basic", "operation": "mul", "line": 1, **access("3*batch_size*seq_len")}]
        data = {"class_name": f"mine.chain.Link{i}", "kernels": calls if i < 39 else leaf,
                "parameters": [{"name": n, "meaning": "", "origin": ""} for n in ("batch_size", "seq_len")]}
        (tmp_path / f"mine.chain.Link{i}.json").write_text(json.dumps(data))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    return tmp_path


def test_shared_calls_are_expanded_once(chain, capsys):
    "In Python and in the shell: in much less than the 5**39 steps that a tree has, with the exact total"
    from lm_predictor import compute_flops
    start = time.process_time()
    assert compute_flops("mine.chain.Link0", batch_size=2, seq_len=7) == 5**39 * 3 * 2 * 7
    assert main(["expand", "mine.chain.Link0"]) == 0
    out = capsys.readouterr().out
    assert f"FLOPs {3 * 5**39}*batch_size*seq_len" in out and "more than the 10,000 that are listed" in out
    assert main(["expand", "mine.chain.Link0", "--format", "json"]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and "more than the 10,000 that are listed" in err
    assert main(["expand", "mine.chain.Link36"]) == 0 and capsys.readouterr().out.count("call mine.chain.Link39") == 5**3
    assert time.process_time() - start < 5
    assert timed(["expand", "mine.chain.Link0"], 1).returncode == 0
