"README.md says what is true: its output is what its first command prints, and its Python runs"
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = "import sys; from lm_predictor.app.cli.main import main; sys.exit(main(sys.argv[1:]))"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


def test_the_output_is_what_the_first_command_prints(tmp_path):
    [shown] = blocks("text")
    command = shlex.split(blocks("sh")[0].partition("lm-predictor ")[2])
    env = {**os.environ, "COLUMNS": "100", "LM_PREDICTOR_DB": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SHELL, *command], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.rstrip() == shown.rstrip()


def test_the_python_runs_and_its_comments_are_right():
    [code] = blocks("python")
    names = {}
    exec(code, names)
    [said] = re.findall(r"matmul_flops +# (\d+)", code)
    assert names["run"].totals.matmul_flops == int(said)
    assert names["run"].on("nvidia_a100_sxm_80gb").time_s > 0


def test_it_is_short_and_names_every_package():
    folders = {p.name for p in (ROOT / "lm_predictor").iterdir() if (p / "__init__.py").is_file()}
    assert folders and all(f"| [{name}](nbs/{name}/" in TEXT for name in folders)
    prose = re.sub(r"```text\n.*?```", "", TEXT, flags=re.S)
    assert len(prose.split()) < 1200
