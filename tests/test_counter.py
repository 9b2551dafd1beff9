"A fault of ours in the comparison with torch's counter is a fault, and never what the counter cannot do"
import pytest
from transformers import AutoConfig

from lm_predictor.obtain.ladder import traced_record
from lm_predictor.records.cases import CASES
from lm_predictor.verification import counter


def test_a_fault_of_ours_is_not_the_counters(monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(counter, "compare_counted", broken)
    config = AutoConfig.for_model("gpt2", n_layer=1, n_embd=96, n_head=4, vocab_size=1000)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        traced_record(config, cases=[c for c in CASES if c.name in ("prefill", "decode")])
