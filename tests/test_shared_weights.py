"Layers that use the weights of others are counted once, whatever their number: Zamba, against its built models."
import pytest

from lm_predictor.models.sources.loading import full_config
from lm_predictor.obtain.analyze import analyze
from lm_predictor.obtain.confirm import built_parameters

SIZES = {"model_type": "zamba", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
         "attention_head_dim": 128, "intermediate_size": 512, "vocab_size": 1000}
LAYERS = "lhh", "lhlh", "hlhll", "llhlhlh", "hhlhhl"


@pytest.mark.parametrize("tied", (True, False), ids=("tied", "untied"))
@pytest.mark.parametrize("layers", LAYERS)
def test_weights_that_layers_share_are_counted_once(layers, tied):
    kinds = {"l": "linear_attention", "h": "hybrid"}
    config = {**SIZES, "num_hidden_layers": len(layers), "layers_block_type": [kinds[n] for n in layers],
              "tie_word_embeddings": tied}
    assert analyze(config, trace=False).parameters == built_parameters(full_config(config))
