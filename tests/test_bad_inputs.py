"Random wrong inputs over all commands (benchmarks/bad_inputs.py): refused with one line and exit status 1 or 2, in time, with nothing written."
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import bad_inputs

SEED, NUMBER = 16, 200


def test_random_inputs():
    "In a process of its own, since transformers keeps the home that it was imported with"
    ran = subprocess.run([sys.executable, bad_inputs.__file__, "--seed", str(SEED), "--number", str(NUMBER)], capture_output=True, text=True)
    assert ran.returncode == 0 and f"{NUMBER} inputs in" in ran.stdout, ran.stdout + ran.stderr
    kinds = re.findall(r"^.{20} +\d+ inputs, 0 failures$", ran.stdout, re.M)
    assert len(kinds) == len(bad_inputs.MAKERS), f"of {len(bad_inputs.MAKERS)} kinds of input these were tried: {kinds}"


def test_inputs_are_seeded():
    same = [(given.argv, given.what, sorted(given.files), given.env) for given in (bad_inputs.made(SEED, i) for i in range(40))]
    assert same == [(given.argv, given.what, sorted(given.files), given.env) for given in (bad_inputs.made(SEED, i) for i in range(40))]
    assert len({tuple(argv) for argv, *_ in same}) > 30


def test_faults_are_seen(tmp_path, monkeypatch):
    "What the test looks for is found where it is: a right command, a written file, a traceback, a hang"
    import matplotlib.font_manager  # writes its list of fonts into the home of whoever imports it first, here this process  # noqa: F401
    run = lambda *argv, **more: "; ".join(bad_inputs.faults(bad_inputs.Input(list(argv), "", **more), tmp_path / f"{len(list(tmp_path.iterdir()))}"))
    assert run("analyze", "gpt2") == "exit status 0, not 1 or 2" and run("analyze", "gpt3") == ""
    assert "written: ['cwd/x.png']" in run("analyze", "gpt2", "--plot", "x.png")
    monkeypatch.setattr("lm_predictor.app.cli.main.main", lambda argv: {}["key"])
    assert "traceback: KeyError: 'key'" in run("analyze")
    monkeypatch.setattr("lm_predictor.app.cli.main.main", lambda argv: print("a\nb", file=sys.stderr) or 1)
    assert run("analyze").startswith("2 lines on stderr")
    monkeypatch.setattr("lm_predictor.app.cli.main.main", lambda argv: __import__("time").sleep(60))
    monkeypatch.setattr(bad_inputs, "SECONDS", 0.5)
    assert run("analyze").startswith("no end within")
