"Each row of tracing.runtime.quirks is still needed: without it, its type cannot be built or run, or runs another step."
import pytest
import torch
from transformers import AutoConfig

from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.tracing.runtime import quirks
from lm_predictor.tracing.runtime.building import build, defaults
from lm_predictor.tracing.runtime.forward import Runnable, call
from lm_predictor.tracing.recording.patches import patched
from lm_predictor.tracing.runtime.quirks import QUIRKS, Need, quirk

REFORMER = dict(
    is_decoder=True, num_buckets=4, attn_layers=["local", "lsh"], hidden_size=32, feed_forward_size=32,
    num_attention_heads=2, attention_head_size=16, axial_pos_embds_dim=[16, 16], axial_pos_shape=[16, 16],
    vocab_size=32, pad_token_id=0, eos_token_id=2)


def forward(model_type: str, new: int, cached: int) -> None:
    "Two sequences through a model of its type's usual config, on tensors without data"
    config = type_config(model_type)
    with torch.device("meta"), defaults():
        model = build(AutoConfig.for_model(config.pop("model_type"), **config))
        Runnable(model, apart=False).warm_up().run(2, new, cached)


def with_data(model_type: str) -> None:
    "A tiny Reformer on the CPU with weights: torch checks the types of its operands there only"
    with defaults(), torch.no_grad():
        build(AutoConfig.for_model(model_type, **REFORMER))(torch.ones((2, 3), dtype=torch.long))


def first_step(model_type: str) -> None:
    "A prompt of three tokens, and the first step on a canvas, on tensors without data"
    config = type_config(model_type)
    with torch.device("meta"), defaults(), torch.no_grad():
        model = build(AutoConfig.for_model(config.pop("model_type"), **config))
        with Runnable(model, apart=False).warm_up().values():
            tokens = call(model, 2, 3).logits.shape[1]
    assert tokens == model.config.canvas_length, f"{tokens} of {model.config.canvas_length} tokens"


def over_tokens(model_type: str, new: int) -> None:
    "Two sequences of so many tokens after 24 others; each token would add operators"
    config = type_config(model_type)
    with torch.device("meta"), defaults():
        model = build(AutoConfig.for_model(config.pop("model_type"), **config))
        found = Runnable(model, apart=False).warm_up().run(2, new, 24)
    many = sum(1 for _ in found.root.walk())
    assert many < 1000, f"{many} operators"


WITHOUT = {  # (type, need) -> how to run it, and what the code says without the row
    ("reformer", Need.FLOAT32): (lambda: with_data("reformer"), RuntimeError, "mixed dtype"),
    ("xlnet", Need.FLOAT32): (lambda: forward("xlnet", 3, 0), RuntimeError, "but found torch.float32"),
    ("musicgen", Need.INNER_CONFIG): (lambda: forward("musicgen", 3, 0), AttributeError, "has no attribute"),
    ("musicgen_melody", Need.INNER_CONFIG): (lambda: forward("musicgen_melody", 3, 0), AttributeError, "no attribute"),
    ("musicgen_decoder", Need.CODEBOOKS): (lambda: forward("musicgen", 3, 0), RuntimeError, "is invalid for input"),
    ("musicgen_melody_decoder", Need.CODEBOOKS): (
        lambda: forward("musicgen_melody", 3, 0), RuntimeError, "is invalid for input"),
    ("prophetnet", Need.NO_CACHE): (lambda: forward("prophetnet", 3, 4), AssertionError, "of length 1"),
    ("reformer", Need.NO_CACHE): (lambda: forward("reformer", 3, 4), RuntimeError, "broadcast"),
    ("blt", Need.NO_CACHE): (lambda: forward("blt", 3, 4), AttributeError, "num_hidden_layers"),
    ("idefics", Need.IMAGE): (lambda: forward("idefics", 3, 0), ValueError, "perceiver_embeddings has to be not-None"),
    ("pp_formulanet", Need.IMAGE): (
        lambda: forward("pp_formulanet", 3, 0), ValueError, "exactly one of encoder_outputs or pixel_values"),
    ("qwen4_exp_text", Need.FEW): (lambda: over_tokens("qwen4_exp_text", 40), AssertionError, "^[2-9][0-9]{3} op"),
    ("recurrent_gemma", Need.FEW): (lambda: over_tokens("recurrent_gemma", 300), AssertionError, "^[1-9][0-9]{3} op"),
    ("diffusion_gemma", Need.CANVAS): (lambda: first_step("diffusion_gemma"), AssertionError, "^1 of 256 tokens"),
    ("udop", Need.PLACES): (lambda: forward("udop", 3, 0), ValueError, "Bbox is required"),
    ("cpmant", Need.ALL_TOKENS): (lambda: forward("cpmant", 3, 4), RuntimeError, "broadcast"),
}


def test_every_row_is_tried():
    assert set(WITHOUT) == {(row.model_type, row.need) for row in QUIRKS}


@pytest.mark.parametrize("row", QUIRKS, ids=lambda row: f"{row.model_type}-{row.need.name}")
def test_row_is_needed(row):
    "With the row the type runs; without it, its own code fails, or a canvas is not there"
    run, error, text = WITHOUT[row.model_type, row.need]
    run()
    with patched((quirks, "QUIRKS", tuple(other for other in QUIRKS if other != row))):
        assert not quirk(row.model_type, row.need)
        with pytest.raises(error, match=text):
            run()
    assert quirk(row.model_type, row.need) == row.why
