"What a model executes beside its layers is counted as often as a model with all of its layers executes it"
from collections import Counter

import pytest
import torch

from lm_predictor.formula.language import parse
from lm_predictor.models.sources.loading import full_config
from lm_predictor.tracing.recording.loops import fold_run
from lm_predictor.tracing.runtime.building import build, defaults
from lm_predictor.tracing.runtime.forward import Runnable

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 64, "num_attention_heads": 4}
CONFIGS = {
    "llama": SMALL | {"intermediate_size": 48, "num_key_value_heads": 2},
    "xlnet": {"d_model": 32, "n_layer": 3, "vocab_size": 64, "n_head": 4, "d_inner": 48},
    "xlstm": {"hidden_size": 128, "num_hidden_layers": 3, "num_heads": 4, "vocab_size": 64},
}


def counted(recorder, values: dict) -> Counter:
    "How often each operator of each line happens"
    found = Counter()
    for op, chain in recorder.root.walk():
        times = 1
        for call in chain:
            times *= parse(call.repeat).evaluate(values)
        found[op.file, op.line, op.name] += times
    return found


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("seq_len, cache_len", [(5, 0), (1, 7)])
def test_one_of_each_kind_stands_for_all(kind, seq_len, cache_len):
    config = {"model_type": kind} | CONFIGS[kind]
    with torch.device("meta"), defaults():
        whole = Runnable(build(full_config(config))).warm_up().run(2, seq_len, cache_len)
        kept = Runnable.kept(lambda: build(full_config(config)))
        assert len(kept.names) == 1 < 3
        cut = kept.run(2, seq_len, cache_len)
    fold_run(cut, kept.names, loops=False)
    assert counted(cut, {"num_layers": 3}) == counted(whole, {})
