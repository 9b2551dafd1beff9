"`db build`: the same bytes however it runs; and records of the user's own are cached by the source they were traced from."
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lm_predictor.records.storage.database import Database
from lm_predictor.records.storage.files import model_id, model_paths
from lm_predictor.obtain.build import build, build_items
from lm_predictor.obtain.find import find_record
from lm_predictor.models.matching import outdated, stored_records

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["openai-community/gpt2", "openai-community/gpt2-medium", "meta-llama/Llama-2-7b-hf", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"]  # of three kinds
SHELL = "import sys; from lm_predictor.app.cli.main import main; sys.exit(main(sys.argv[1:]))"


def start(directory: Path, *argv) -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([sys.executable, "-c", SHELL, "db", "build", "--into", str(directory), *argv], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def built(directory: Path, *argv) -> str:
    process = start(directory, *argv)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def contents(directory: Path) -> dict:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def wait_for_records(directory: Path, count: int, process) -> list:
    until = time.monotonic() + 120
    while len(model_paths(directory, "[a-z]*")) < count:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    return model_paths(directory, "[a-z]*")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    "Built in one go, one after the other"
    directory = tmp_path_factory.mktemp("whole")
    assert built(directory, "--jobs", "1", *NAMES).startswith("3 traced, 1 already there, 0 failed in ")
    return directory


def test_interrupted_and_killed(whole, tmp_path):
    "Begun in another order, stopped by Ctrl-C after one record, killed after two, gone on with: the same files, byte by byte"
    process = start(tmp_path, "--jobs", "1", *reversed(NAMES))
    kept = {p: p.stat().st_mtime_ns for p in wait_for_records(tmp_path, 1, process)}
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert [line for line in err.splitlines() if not line.startswith("[")] == ["lm-predictor: interrupted; what was stored is kept"]
    process = start(tmp_path, "--jobs", "2", *reversed(NAMES))
    wait_for_records(tmp_path, 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / f".{process.pid}-leftover.tmp").write_text("{")
    (tmp_path / "models" / f".{process.pid}-leftover.tmp").write_text("{")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:  # and by the worker of an executor
        assert {o.status for o in build(build_items(NAMES), tmp_path, executor=executor)} == {"made", "kept"}
    assert contents(tmp_path) == contents(whole)
    assert all(p.stat().st_mtime_ns == t for p, t in kept.items())  # what was there was not made again


def test_second_build(whole):
    "Nothing to do, and nothing changes"
    before, start_time = contents(whole), time.monotonic()
    assert built(whole, *NAMES).startswith("0 traced, 4 already there")
    assert contents(whole) == before and time.monotonic() - start_time < 20


def test_failures_are_reported(tmp_path):
    "A model that is late is named at the end with the reason; status 2"
    process = start(tmp_path, "--timeout", "1", "--jobs", "2", "gpt2")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and out.startswith("0 traced, 0 already there, 1 failed")
    assert err.splitlines()[-1] == "lm-predictor: openai-community/gpt2: not done after 1 s (--timeout)"


def test_records_of_a_build_fit(whole):
    "Every class names the models that use it, most used variant first; every record is current"
    db = Database(whole, whole)
    linear, attention = db.get("torch.nn.modules.linear.Linear"), db.get("transformers.models.llama.modeling_llama.LlamaAttention")
    assert [len(v.models) for v in linear.variants] == [3] and [len(v.models) for v in attention.variants] == [1, 1]
    assert [p.name for p in attention.parameters][:3] == ["batch_size", "seq_len", "cache_len"]
    for path in model_paths(whole):
        record = next(r for p, r in stored_records(model_id(path).rpartition("-")[0], db) if p == path)
        assert outdated(record, db) == "" and record.verification["status"] == "verified"


def test_overlay_is_cached_by_source(whole, tmp_path):
    "A record of the user's own is used while its source is the installed one, and traced again when it is not"
    db, cases = Database(whole, tmp_path), []
    find_record({"model_type": "gpt2"}, db, cases.append)
    assert cases == []
    path = whole / "transformers.models.gpt2.modeling_gpt2.GPT2Attention.json"
    before = path.read_bytes()
    data = json.loads(before)
    data["source"]["sha256"] = "0" * 64
    path.write_text(json.dumps(data))
    try:
        record = find_record({"model_type": "gpt2"}, db, cases.append)
        assert cases and outdated(record, db) == "" and path.read_bytes() == before
        path.unlink()
        assert outdated(record, db) == "transformers.models.gpt2.modeling_gpt2.GPT2Attention has no record"
    finally:
        path.write_bytes(before)


def test_checking_the_source_is_cheap(whole, tmp_path):
    "Without torch or transformers imported, in some milliseconds"
    code = f"""
import sys, time
from lm_predictor.models.matching import outdated, stored_records
from lm_predictor.obtain.analyze import analyze
from lm_predictor.records.storage.database import Database
db = Database({str(whole)!r}, {str(tmp_path)!r})
assert analyze({{"model_type": "gpt2"}}, db).at(batch_size=1, seq_len=16).totals.flops > 0
assert not {{"torch", "transformers"}} & set(sys.modules)
record = next(r for _, r in stored_records("gpt2", db))
start = time.perf_counter()
assert outdated(record, db) == ""
print(time.perf_counter() - start)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and float(done.stdout) < 0.1, done.stderr
