"The logits of all tokens cost what they cost, also where a model's body cuts tokens itself (finding E)"
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lm_predictor.models.sources.hub import quiet
from lm_predictor.models.sources.loading import full_config
from lm_predictor.obtain.fresh.ladder import attempts_of, record_values
from lm_predictor.tracing.runtime.windows import cases_of
from lm_predictor.verification.runs.counter import matmul_flops

GEMMA4 = {  # two layers of its own, and two that take the keys and values of these: those run for the tokens kept alone
    "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64, "vocab_size": 320,
    "vocab_size_per_layer_input": 320, "hidden_size_per_layer_input": 8, "max_position_embeddings": 512
}


@pytest.mark.slow
def test_gemma4():
    "FLOPs in matrix products of a prompt of 7 tokens, of the last logits and of all, equal a real forward's"
    from transformers import AutoModelForCausalLM
    with quiet():
        full = full_config(GEMMA4)
        model = AutoModelForCausalLM.from_config(full, attn_implementation="eager").eval()
        cases = tuple(c for c in cases_of(full) if c.name in ("prefill", "prefill_all"))
        record = attempts_of(full, cases=cases)[-1].record
    at = record_values(record, full) | {"batch_size": 2, "seq_len": 7, "cache_len": 0}
    for name, kept in (("prefill", 1), ("prefill_all", 0)):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(input_ids=torch.zeros((2, 7), dtype=torch.long), logits_to_keep=kept)
        assert matmul_flops(record.graph(name), at) == counter.get_total_flops()
