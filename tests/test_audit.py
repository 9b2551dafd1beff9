"Audits: what is asked for and is not there is one line; every class of the usual models has one."
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lm_predictor.app.audit.notebook import SECTIONS
from lm_predictor.app.audit.sections import calls, operators, source, traffic
from lm_predictor.app.audit.subject import audit
from lm_predictor.app.cli.main import main
from lm_predictor.models.config.validation import ModelError
from lm_predictor.records.storage.database import Database, shipped_directory

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("argv, said", [
    (["NoSuchClass"], "no analysis of 'NoSuchClass'; a class without a record is named in full, as torch.nn.Linear is"),
    (["LlamaMLP", "--model", "gpt2"], "LlamaMLP is not part of gpt2; it is part of llama-"),
    (["LlamaMLP", "--model", "lama-2-7b"], "unknown model 'lama-2-7b'; near: "),
])
def test_bad_input(argv, said, capsys, tmp_path):
    assert main(["audit", *argv, "--into", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"lm-predictor: {said}") and err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_outside_of_the_assumptions():
    "GPT-2 has 1024 learned positions: the rule is named"
    with pytest.raises(ModelError, match="has 1024 learned positions"):
        audit("GPT2Attention", "gpt2", seq_len=2000)


def test_written_notebook(tmp_path, capsys):
    assert main(["audit", "torch.nn.Linear", "--into", str(tmp_path / "new")]) == 0
    path = tmp_path / "new" / "torch.nn.modules.linear.Linear.ipynb"
    cells = json.loads(path.read_text())["cells"]
    assert str(path) in capsys.readouterr().out and [c["source"][0].strip() for c in cells if c["cell_type"] == "markdown"][2:] == [f"## {t}" for t, *_ in SECTIONS]


def test_numbers_of_a_line():
    "The gate of Llama-2-7B's MLP at 16 tokens: 2 * 16 * 4096 * 11008 FLOPs each for three products, and the activation and product of 16 * 11008"
    row = next(line for line in source(audit("LlamaMLP", "llama-2-7b", seq_len=16)).splitlines() if "gate&#95;proj" in line)
    silu = 16 * 11008
    assert f"{3 * 2 * 16 * 4096 * 11008 + silu + silu:,}" in row and r"$B\,I\,S$" in row


@pytest.mark.parametrize("name", ["GPTNeoAttention", "transformers.models.openai.modeling_openai.MLP"])
def test_as_many_tokens_as_the_formulas_allow(name, tmp_path, capsys):
    "These models' formulas do not hold at the last of their learned positions, where an audit began"
    assert main(["audit", name, "--into", str(tmp_path)]) == 0, capsys.readouterr().err


def test_every_class_of_the_database():
    "A sample of the verified records that changes with nothing; tools/audits.py --all goes through every one"
    db = Database(shipped_directory(), shipped_directory())
    done = [name for name in db.names()[::120] if db.get(name).verification.get("status") == "verified"]
    assert len(done) > 9
    for name in done:
        for section in (source, operators, traffic, calls):
            assert section(audit(name, db=db))


def test_committed_audits_are_of_the_template():
    done = subprocess.run([sys.executable, ROOT / "tools" / "audits.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
