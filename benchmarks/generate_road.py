"""Does a model cost what we say when it is used as its users use it: with `generate`, and the cache that this makes?

    python benchmarks/generate_road.py                       # every type of a shipped preset, and those of MORE
    python benchmarks/generate_road.py llama recurrent_gemma
    python benchmarks/generate_road.py --shipped             # those whose shipped records hold for small models

A small model of each type is built from its config with random weights and runs `model.generate` on the CPU, as `verify` runs the
models of stored records (`lm_predictor.verification.runs.generate_run`), here with small configs that are traced where no stored record holds
for them, with two prompts and four tokens. Where FLOPs or cache bytes are not ours, and KNOWN does not say why, the exit status is 2.
"""
import argparse
import json
import logging
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from common import preset, presets
from third_road import _SMALL, _TWO, _WINDOW, FAMILIES, SHIPPED, TRACED, Family

NEW = 4  # tokens
PROMPTS = (17, 40)  # the second is longer than the windows of the small models
BLOCKS = {"minimax": (16, 40)}  # the prompts of a type whose formulas hold for whole blocks

_SMALL_OF = {  # types that benchmarks/third_road.py does not have
    "cohere": Family("CohereLabs/c4ai-command-r-v01", _TWO | dict(num_key_value_heads=6)),
    "ernie4_5": Family("baidu/ERNIE-4.5-0.3B-PT", _TWO | dict(head_dim=16)),
    "exaone4": Family("LGAI-EXAONE/EXAONE-4.0-32B", _SMALL | dict(head_dim=16, sliding_window=25)),
    "gemma": Family("google/gemma-7b", _TWO | dict(head_dim=16, num_key_value_heads=6)),
    "glm": Family("zai-org/glm-4-9b-chat-hf", _TWO | dict(head_dim=16, pad_token_id=0)),
    "glm4": Family("zai-org/GLM-4-9B-0414", _TWO | dict(head_dim=16, pad_token_id=0)),
    "granitemoe": Family("ibm-granite/granite-3.0-1b-a400m-base", _TWO | dict(num_local_experts=12, num_experts_per_tok=3)),
    "mistral": Family("mistralai/Mistral-7B-v0.1", _TWO | dict(head_dim=16, sliding_window=25)),
    "olmo2": Family("allenai/OLMo-2-1124-7B", _TWO | dict(num_key_value_heads=6, pad_token_id=0)),
    "olmo3": Family("allenai/Olmo-3.1-32B-Instruct", _SMALL | dict(num_key_value_heads=6, sliding_window=25, pad_token_id=0)),
    "olmoe": Family("allenai/OLMoE-1B-7B-0924", _TWO | dict(num_key_value_heads=6, num_experts=12, num_experts_per_tok=3)),
    "openai-gpt": Family("openai-community/openai-gpt", dict(n_embd=96, n_head=6, n_layer=2, n_positions=160, vocab_size=101)),
    "phi": Family("microsoft/phi-2", _TWO | dict(num_key_value_heads=6)),
    "qwen3": Family("Qwen/Qwen3-8B", _TWO | dict(head_dim=16)),
    "recurrent_gemma": Family("google/recurrentgemma-2b", _SMALL | dict(
        num_hidden_layers=3, head_dim=16, num_key_value_heads=1, lru_width=96)),
    "seed_oss": Family("ByteDance-Seed/Seed-OSS-36B-Instruct", _TWO | dict(head_dim=16)),
    "smollm3": Family("HuggingFaceTB/SmolLM3-3B", _SMALL | dict(num_hidden_layers=4, pad_token_id=0)),
    "stablelm": Family("stabilityai/stablelm-3b-4e1t", _TWO | dict(num_key_value_heads=6)),
}
MORE = {  # kinds of model without a preset that once differed: config
    "gpt2 with cross-attention": {"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 2, "n_positions": 160, "vocab_size": 101,
                                  "add_cross_attention": True},
    "llama4 in small chunks": {"model_type": "llama4_text", **_SMALL, "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 4,
                               "num_experts_per_tok": 1, "intermediate_size_mlp": 72, "attention_chunk_size": 13},
    "minimax": {"model_type": "minimax", **_SMALL, "num_hidden_layers": 2, "head_dim": 16, "num_local_experts": 4,
                "num_experts_per_tok": 2, "block_size": 8, "layer_types": ["full_attention", "linear_attention"]},
    "gemma4_text": {"model_type": "gemma4_text", **_SMALL, "head_dim": 16, "global_head_dim": 16,
                    "sliding_window": 25, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
                    "layer_types": ["sliding_attention", "full_attention"] * 2},
}
KNOWN: dict[str, str] = {}


def config_of(name: str) -> dict:
    "The config of a type's small model"
    if name in MORE:
        return MORE[name]
    family = FAMILIES.get(name) or _SMALL_OF[name]
    return json.loads(preset(family.preset).read_text(encoding="utf-8"))["config"] | family.sizes


# ---- what the package says

@dataclass
class Row:
    "One figure of one type: what the run did, and what the package says of it"
    what: str  # FLOPs, prefill of 17; cache bytes, decode at 17
    run: int
    ours: int

    @property
    def equal(self) -> bool:
        return self.run == self.ours


def rows_of(name: str) -> tuple[list[Row], int]:
    "What comes of a type, at each prompt, and how many figures its formulas refuse"
    from transformers import AutoConfig
    from lm_predictor import analyze
    from lm_predictor.models.config.validation import ModelError
    from lm_predictor.verification.runs.generate_run import BATCH, generated, model_of
    config = config_of(name)
    cost, model, rows, refused = analyze(config, trace=True), model_of(AutoConfig.for_model(**config)), [], 0
    for prompt in BLOCKS.get(name, PROMPTS):
        for step in generated(model, prompt, NEW):
            where = f"decode at {step.cache_len}" if step.cache_len else f"prefill of {prompt}"
            try:
                ours = cost.at(batch_size=BATCH, seq_len=step.seq_len, cache_len=step.cache_len, execution="eager").totals
            except ModelError:  # outside of what its formulas assume
                refused += 2
                continue
            rows.append(Row(f"FLOPs, {where}", step.flops, ours.matmul_flops))
            rows.append(Row(f"cache bytes, {where}", step.cache_bytes, ours.kv_cache_bytes))
    return rows, refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="default: all")
    parser.add_argument("--shipped", action="store_true", help="those whose shipped records hold for small models")
    args = parser.parse_args()
    os.environ.setdefault("LM_PREDICTOR_DB", tempfile.mkdtemp())  # what is traced is not kept
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    wrong = []
    print("| type | figures | equal | refused | of those that differ: what, the run, ours |\n|---|---:|---:|---:|---|")
    for name in args.types or (SHIPPED if args.shipped else [*sorted(presets()), *MORE]):
        try:
            rows, refused = rows_of(name)
        except Exception as e:  # whatever a model's code raises
            print(f"| {name} | | | | not compared: {type(e).__name__}: {' '.join(str(e).split())[:160]} |", flush=True)
            wrong += [] if name in KNOWN else [name]
            continue
        differ = [r for r in rows if not r.equal]
        said = "; ".join(f"{r.what}: {r.run:,}, ours {r.ours:,}" for r in differ[:4]) + (" ..." if len(differ) > 4 else "")
        why = f" ({KNOWN[name]})" if differ and name in KNOWN else ""
        print(f"| {name} | {len(rows)} | {len(rows) - len(differ)} | {refused} | {said}{why} |", flush=True)
        wrong += [name] if differ and name not in KNOWN else []
    print(f"\n{len(wrong)} types differ for a reason that is not known" + (f": {', '.join(wrong)}" if wrong else ""))
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    raise SystemExit(main())
