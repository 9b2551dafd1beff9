"What the benchmarks share: the command under test, and how a process is timed"
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PRESETS = ROOT / "lm_predictor" / "module_db" / "presets"
LLAMA = "meta-llama/Llama-2-7b-hf"


class Timed(NamedTuple):
    seconds: float  # wall time of the whole process
    cpu: float  # seconds of all its processors, which a busy machine stretches less
    peak_bytes: int  # its peak resident memory
    status: int
    out: str
    err: str
    stored: bool  # it wrote records to its database: the figures were traced from source


def product() -> list[str]:
    "The installed script of this interpreter's environment, else the checkout"
    script = shutil.which("lm-predictor", path=str(Path(sys.executable).parent))
    return [script] if script else checkout(ROOT)


def checkout(root: Path) -> list[str]:
    "The command line of a checkout"
    run = f"import sys; sys.path.insert(0, {str(root.resolve())!r}); from lm_predictor.app.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", run]


def timed(command: list[str]) -> Timed:
    "Run a command in a fresh process, with an empty database of its own and without the network of Hugging Face"
    with tempfile.TemporaryDirectory() as db, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        env = {**os.environ, "LM_PREDICTOR_DB": db, "HF_HUB_OFFLINE": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as they are where pip installed them
        start = time.perf_counter()
        child = Popen(command, stdout=out, stderr=err, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = [f.seek(0) or f.read() for f in (out, err)]
        stored = any(Path(db).iterdir())
    unit = 1 if sys.platform == "darwin" else 1024
    return Timed(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit, child.returncode, *texts, stored)


def preset(name: str) -> Path:
    "The file of a preset"
    return PRESETS / f"{name.replace('/', '--')}.json"


def presets() -> dict[str, str]:
    "The first preset, by name, of every model type"
    first = {}
    for path in sorted(PRESETS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        first.setdefault(data["config"]["model_type"], data["model"])
    return first


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
