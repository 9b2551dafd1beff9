"Sweeps by the workers of executors, among them a dask cluster of several processes of which one is killed; tests/test_build.py builds records so"
import multiprocessing
import os
import re
import signal
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.library.sweeps.stream import write_sweep
from lm_predictor.records.storage.executors import WorkerError

SIZES = {"batch_size": range(1, 601), "seq_len": range(1, 1001), "execution": "eager"}  # 600,000 rows: three parts
SPAWN = multiprocessing.get_context("spawn")  # dask has threads, of which a forked process would keep the locks


@pytest.fixture(scope="module")
def cluster():
    "Two worker processes, each started again when it dies"
    try:
        import distributed
    except ImportError:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("distributed is not installed here")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0,
                                  silence_logs="CRITICAL") as started:
        yield started


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("sweep") / "whole.csv"
    assert write_sweep(path, "gpt2", **SIZES) == 600_000
    return path.read_bytes()


def test_a_killed_worker_loses_nothing(cluster, whole, tmp_path):
    import distributed
    with distributed.Client(cluster, set_as_default=False) as client:
        first = client.run(os.getpid)
        begun = []

        def told(done: int, parts: int) -> None:
            begun.append(done)
            if done == 1:  # both workers are at another part
                os.kill(next(iter(first.values())), signal.SIGKILL)
        assert write_sweep(tmp_path / "out.csv", "gpt2", **SIZES, told=told, executor=client.get_executor()) == 600_000
        assert begun == list(range(4)) and not Path(f"/proc/{next(iter(first.values()))}").exists()
    assert (tmp_path / "out.csv").read_bytes() == whole


def test_a_cluster_from_the_shell(cluster, tmp_path, capsys):
    line = ["sweep", "gpt2", "--batch-size", "1,8", "--seq-len", "128:2048:x2", "--hardware", "h100,a100", "-o"]
    assert main([*line, str(tmp_path / "alone.csv")]) == 0
    assert main([*line, str(tmp_path / "out.csv"), "--scheduler", cluster.scheduler_address]) == 0, capsys.readouterr().err
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()
    assert main([*line, str(tmp_path / "two.csv"), "--scheduler", "head:port"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("lm-predictor: --scheduler head:port: no dask scheduler answers there (") and not (tmp_path / "two.csv").exists()


def leave_when_there(path: Path) -> None:
    "End the process from within: one that is killed while it hands over a result may hang the pool of Python 3.11"
    while not path.exists():
        time.sleep(0.02)
    os._exit(9)


class OneLeaves(ProcessPoolExecutor):
    "A worker ends instead of doing the third part, once there is a file"
    def __init__(self, there: Path):
        super().__init__(2, SPAWN)
        self.there, self.asked = there, 0

    def submit(self, function, *args):
        self.asked += 1
        return super().submit(leave_when_there, self.there) if self.asked == 3 else super().submit(function, *args)


def test_a_broken_executor_goes_on_where_it_was(whole, tmp_path):
    with OneLeaves(tmp_path / "one is done") as executor:
        def told(done: int, parts: int) -> None:
            if done == 1:
                executor.there.touch()
        with pytest.raises(WorkerError, match=re.escape("the executor has lost its workers (BrokenProcessPool); what is done is kept")):
            write_sweep(tmp_path / "out.csv", "gpt2", **SIZES, told=told, executor=executor)
    kept = sorted(p.name for p in (tmp_path / "out.csv.parts").iterdir())
    assert len(kept) >= 2 and kept[-1] == "sweep.json"
    assert not (tmp_path / "out.csv").exists()
    with ThreadPoolExecutor(2) as executor:
        write_sweep(tmp_path / "out.csv", "gpt2", **SIZES, executor=executor)
    assert (tmp_path / "out.csv").read_bytes() == whole


@pytest.mark.parametrize("line, said", [
    (["sweep", "gpt2", "--jobs", "2"], "--jobs is for a sweep that goes into a file: add -o FILE"),
    (["verify", "gpt2", "--scheduler", "tcp://127.0.0.1:9"], "--scheduler is for `verify --all`"),
    (["verify", "--all", "--jobs", "2", "--scheduler", "tcp://127.0.0.1:9"], "--jobs is the number of processes here, which --scheduler leaves idle"),
])
def test_bad_lines(line, said, capsys):
    assert main(line) == 2
    assert said in capsys.readouterr().err
