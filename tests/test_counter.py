"A fault of ours in the comparison with torch's counter is a fault, and never what the counter cannot do"
import json
import shutil

import pytest
from transformers import AutoConfig

from lm_predictor.obtain.fresh.ladder import traced_record
from lm_predictor.records.cases import CASES
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.verification.runs import counter
from lm_predictor.verification.prove import prove, subjects

GPT2 = "transformers.models.gpt2.modeling_gpt2.GPT2"


def test_a_fault_of_ours_is_not_the_counters(monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(counter, "compare_counted", broken)
    config = AutoConfig.for_model("gpt2", n_layer=1, n_embd=96, n_head=4, vocab_size=1000)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        traced_record(config, cases=[c for c in CASES if c.name in ("prefill", "decode")])


def test_a_fault_of_ours_is_not_the_models(monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("lm_predictor.verification.verify.verify_model", broken)
    [subject] = subjects(Database(shipped_directory(), shipped_directory()), "gpt2")
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):  # and not "FAIL the model can be run"
        prove(subject.path, shipped_directory(), shipped_directory(), *subject.configs[0])


def test_a_damaged_class_record_is_an_outcome(tmp_path):
    own = tmp_path / "records"
    shutil.copytree(shipped_directory(), own)
    [subject] = subjects(Database(own, own), "gpt2")
    path = own / f"{GPT2}MLP.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kernels": [{"kernel_type": "basic"}]}))
    wrong = [c for c in prove(subject.path, own, own, *subject.configs[0]).checks if not c.ok]
    assert wrong and all(c.what != "the model can be built" for c in wrong) and "GPT2MLP" in wrong[0].detail
