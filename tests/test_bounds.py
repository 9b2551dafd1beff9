"Nonsense of any size is answered, or refused in one sentence, at once."
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.records.storage.database import shipped_directory

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
    out = " ".join(capsys.readouterr().out.split())  # long lines break
    assert f"FLOPs {3 * 5**39}*batch_size*seq_len" in out and "more than the 10,000 that are listed" in out
    assert main(["expand", "mine.chain.Link0", "--format", "json"]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and "more than the 10,000 that are listed" in err
    assert main(["expand", "mine.chain.Link36"]) == 0 and capsys.readouterr().out.count("call mine.chain.Link39") == 5**3
    assert time.process_time() - start < 5
    assert timed(["expand", "mine.chain.Link0"], 1).returncode == 0


ESCAPE = "\x1b]0;mine\x07\x1b[2J"  # titles the window, rings, clears the screen


def test_control_characters_never_reach_the_terminal(tmp_path, capsys, monkeypatch):
    "In a record's code, operation, meaning, assumptions and broken formulas, in a device's title and notes"
    data = json.loads((shipped_directory() / "transformers.models.llama.modeling_llama.LlamaMLP.json").read_text())
    data |= {"class_name": "mine.modeling.Mlp", "models": [], "source": data["source"] | {"file": f"x{ESCAPE}.py"}}
    data["parameters"][0]["meaning"] += ESCAPE
    data["kernels"][0] |= {"code": f"x = {ESCAPE}", "operation": ESCAPE}
    (tmp_path / "mine.modeling.Mlp.json").write_text(json.dumps(data))
    (tmp_path / "mine.modeling.Bad.json").write_text(json.dumps(data | {"class_name": f"mine{ESCAPE}"}))
    device = {"name": "mine", "title": f"Mine {ESCAPE}", "memory_bytes": 10**9, "memory_bandwidth_bytes_per_s": 10**12,
              "peak_flops_per_s": {"bf16": 10**12}, "vector_flops_per_s": {"fp32": 10**11}, "notes": ESCAPE}
    (tmp_path / "device.json").write_text(json.dumps(device))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    for line in ("module mine.modeling.Mlp --operators", "expand mine.modeling.Mlp", "module mine.modeling.Bad",
                 f"hardware {tmp_path}/device.json", f"analyze gpt2 --seq-len 16 --hardware {tmp_path}/device.json", "db"):
        main(line.split())
        out, err = capsys.readouterr()
        assert not {"\x1b", "\x07", "\x9b"} & set(out + err), line
        assert "\\x1b" in out + err or line == "db", line


def test_nor_do_they_on_a_terminal(tmp_path):
    "On a pseudo-terminal, where this program's own colours are"
    pty = pytest.importorskip("pty")
    data = json.loads((shipped_directory() / "transformers.models.llama.modeling_llama.LlamaMLP.json").read_text())
    data |= {"class_name": "mine.modeling.Mlp", "models": []}
    data["kernels"][0] |= {"code": f"x = {ESCAPE}", "operation": ESCAPE}
    (tmp_path / "mine.modeling.Mlp.json").write_text(json.dumps(data))
    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {
        "PYTHONPATH": str(ROOT), "LM_PREDICTOR_DB": str(tmp_path), "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-m", "lm_predictor", "module", "mine.modeling.Mlp"], env=env, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # its other end is closed
        pass
    assert process.wait() == 0
    assert b"\x1b[1m" in shown and b"\x1b]0;" not in shown and b"\x07" not in shown and b"\x1b[2J" not in shown


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_special_files_are_refused_at_once(kind, tmp_path):
    "As a config, as a device file, as a record, and as a picture"
    def make(path):
        path.parent.mkdir(exist_ok=True)
        {"pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/zero"), "directory": Path.mkdir}[kind](path)
        return path
    said = {"pipe": "is a named pipe, not a file", "device": "is a device, not a file", "directory": "is a directory"}[kind]
    config, device, plot = (make(tmp_path / f"{name}") for name in ("config.json", "device.json", "x.png"))
    make(tmp_path / "db" / "mine.modeling.Mlp.json")
    bare = make(tmp_path / "bare")
    lines = [["analyze", str(config)], ["analyze", str(bare)], ["analyze", "gpt2", "--hardware", str(device)], ["module", "mine.modeling.Mlp"]]
    lines += [] if kind == "directory" else [["analyze", "gpt2", "--seq-len", "16", "--plot", str(plot)]]
    for line in lines:
        done = timed(line, 1, LM_PREDICTOR_DB=str(tmp_path / "db"))
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, (line, done)
        assert said in done.stderr or kind == "directory" and "is a folder without a config.json" in done.stderr, (line, done)
    assert kind != "pipe" or plot.is_fifo()


def limited():
    "No file of this process may have more than 2,000 bytes, as on a disk that is full"
    import resource
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_a_full_disk_leaves_no_cut_file(tmp_path):
    "Neither of a picture nor of an audit; the file that was there stays"
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    old = tmp_path / "old.svg"
    old.write_text("mine")
    for argv in (["analyze", "gpt2", "--seq-len", "16", "--plot", str(tmp_path / "new.png")],
                 ["analyze", "gpt2", "--seq-len", "16", "--plot", str(old)], ["audit", "LlamaMLP", "--into", str(tmp_path)]):
        env = os.environ | {"PYTHONPATH": str(ROOT), "LM_PREDICTOR_DB": str(tmp_path / "db"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-m", "lm_predictor", *argv], env=env, capture_output=True, text=True, preexec_fn=limited)
        assert done.returncode == 1 and done.stderr.endswith("file too large\n") and "Traceback" not in done.stderr, done
    assert [p.name for p in tmp_path.iterdir()] == ["old.svg"] and old.read_text() == "mine"


def test_an_executed_audit_is_not_overwritten(tmp_path, capsys):
    pytest.importorskip("torch")
    assert main(["audit", "LlamaMLP", "--into", str(tmp_path)]) == main(["audit", "LlamaMLP", "--into", str(tmp_path)]) == 0
    [path] = tmp_path.glob("*.ipynb")
    notebook = json.loads(path.read_text())
    notebook["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["mine"]}]
    path.write_text(json.dumps(notebook))
    capsys.readouterr()
    assert main(["audit", "LlamaMLP", "--into", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"lm-predictor: {path} is there already, with outputs or changes of its own; --force replaces it\n"
    assert "mine" in path.read_text()
    assert main(["audit", "LlamaMLP", "--into", str(tmp_path), "--force"]) == 0 and "mine" not in path.read_text()


def test_a_cost_that_cannot_be_stored_is_printed(tmp_path, capsys, monkeypatch):
    "Where no directory can be made, on a full disk: the figures, and a note; `trace`, which is to store, refuses at once"
    pytest.importorskip("torch")
    (tmp_path / "file").write_text("")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 96, "n_head": 4, "n_layer": 2, "vocab_size": 320,
                                  "scale_attn_by_inverse_layer_idx": True, "bos_token_id": 1, "eos_token_id": 1}))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "file" / "db"))
    start = time.process_time()
    assert main(["trace", str(config)]) == 1 and time.process_time() - start < 3
    assert capsys.readouterr().err == f"lm-predictor: {tmp_path}/file/db: not a directory\n"
    assert main(["analyze", str(config), "--seq-len", "16"]) == 0
    out = capsys.readouterr().out
    assert "note: its records could not be stored" in out and "FLOPs " in out and "no record" not in out
