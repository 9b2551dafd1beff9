"""Does a counter that shares no code with this package count the same bytes?

    python benchmarks/third_road.py                  # every family below; those of TRACED are traced first
    python benchmarks/third_road.py llama gpt2       # some of them
    python benchmarks/third_road.py --shipped        # those whose records ship

A small model of each family is built from its config with random weights, in bfloat16 and with eager attention, and
runs on the CPU. `byte_counter.ByteCounter` sees every ATen operator with its real tensors and counts the bytes of
memory that it touches. They are compared with the package's eager figures of the same config, operator by operator, in the
order in which they run. Where the two differ, rules of the table RULES must give the difference to the byte. What no
rule gives is unexplained, and the exit status is then 2.
"""
import argparse
import contextlib
import inspect
import itertools
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch

from byte_counter import GATHERS, ByteCounter, Row
from common import preset

# ---- a real run

def model_of(config: dict):
    "A causal language model of a config on the CPU: random weights, bfloat16, eager attention"
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    full = AutoConfig.for_model(**config)
    return AutoModelForCausalLM.from_config(full, attn_implementation="eager", dtype=torch.bfloat16).eval()


def layers_of(model) -> tuple[list, list]:
    "The decoder layers of a model, and what tells their kinds apart: their modules and the config's lists by layer"
    config, count = model.config, model.config.num_hidden_layers
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)
    stated = [v for v in vars(config).values() if isinstance(v, (list, tuple)) and len(v) == count]
    return list(layers), [(str(layer), *(str(v[i]) for v in stated)) for i, layer in enumerate(layers)]


@contextlib.contextmanager
def named_layers(model, counter: ByteCounter):
    "Within it, the counter knows which decoder layer runs"
    hooks = []
    for i, layer in enumerate(layers_of(model)[0]):
        hooks.append(layer.register_forward_pre_hook(lambda *_, i=i: setattr(counter, "layer", i)))
        hooks.append(layer.register_forward_hook(lambda *_: setattr(counter, "layer", None)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def measured(model, batch: int, new: int, cached: int) -> list[Row]:
    "What each operator of one forward reads and writes; logits of the last token only, where the model can do that"
    from transformers.cache_utils import DynamicCache
    known, counter = inspect.signature(model.forward).parameters, ByteCounter()
    ids = torch.randint(3, 100, (batch, cached + new), generator=torch.Generator().manual_seed(1))
    last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
    name = next((n for n in ("past_key_values", "cache_params", "state") if n in known), None)
    cache = {name: DynamicCache(config=model.config)} if name not in ("state", None) else {}
    if name is None:  # it keeps none, and reads all tokens again
        cached = 0
    with torch.no_grad():
        model(input_ids=ids[:, :2], use_cache=True)  # some models change in their first forward
        if cached:
            out = model(input_ids=ids[:, :cached], use_cache=True, **cache)
            cache = {name: out[name] if out.get(name) is not None else cache[name]}
        with named_layers(model, counter), counter:
            model(input_ids=ids[:, cached:], use_cache=True, **last, **cache)
    for row in counter.rows:
        row.tokens = batch * new
    return counter.rows


def in_record_order(rows: list[Row], kinds: list) -> list[list[Row]]:
    "Rows in blocks, one for each layer: those of one kind after each other, kinds in the order of their first layer"
    blocks, place, placed = [list(g) for _, g in itertools.groupby(rows, lambda r: r.layer)], -1, []
    for i, block in enumerate(blocks):
        layer = block[0].layer
        place = kinds.index(kinds[layer]) if layer is not None else len(kinds) if i == len(blocks) - 1 else place
        placed.append(place)
    return [block for _, block in sorted(zip(placed, blocks), key=lambda pair: pair[0])]


# ---- the package's figures

@dataclass
class Figure:
    "What the package says of one operator"
    op: str
    read: Fraction | int
    write: Fraction | int


def figures(cost, batch: int, new: int, cached: int) -> list[Figure]:
    "The eager figures of a ModelCost, every execution of every operator in order"
    from lm_predictor import Workload
    case, values, _ = cost.case_at(Workload(batch_size=batch, seq_len=new, cache_len=cached))
    graph = cost.record.graph(case).at(values)

    def executed(nodes, depth):
        for call, group in itertools.groupby(nodes, lambda n: (graph.chain(n.call)[depth:depth + 1] or [-1])[0]):
            group = list(group)
            for _ in range(graph.calls[call].repeat if call >= 0 else 1):
                yield from executed(group, depth + 1) if call >= 0 else group

    return [Figure(n.op, graph.cost(n).read, graph.cost(n).write) for n in executed(graph.nodes, 0)]


# ---- why the two differ

@dataclass(frozen=True)
class Rule:
    "A reason for which the package counts other bytes than the counter"
    sentence: str
    difference: Callable  # of a row: bytes that the package reads more, and writes more


RULES: dict[str, Rule] = {}


def rule(name: str):
    "Enter the decorated function, whose docstring is the sentence, into RULES"
    def enter(difference):
        RULES[name] = Rule(" ".join(difference.__doc__.split()), difference)
        return difference
    return enter


@rule("every gathered row")
def _every_row(row: Row) -> tuple:
    """A gather reads as many rows as it gathers, also where it gathers one twice: how many there are is shape, which
    of them are equal is data."""
    return (row.outs[0].bytes - row.chosen, 0) if row.op.split(".")[1] in GATHERS else (0, 0)


@rule("expected experts")
def _expected_experts(row: Row) -> tuple:
    """A grouped product reads the weights of as many experts as uniform routing is expected to reach,
    E (1 - (1 - k/E)^T) to a thousandth; the run reads those that its own router reached."""
    if row.op != "aten._grouped_mm":
        return 0, 0
    rows, weights = row.ins[0], row.ins[1]
    experts, each = weights.shape[0], rows.shape[0] // row.tokens
    reached = Fraction(round(1000 * experts * (1 - (1 - each / experts) ** row.tokens)), 1000)
    return reached * weights.shape[1] * weights.shape[2] * weights.item - row.chosen, 0


@rule("statistics in float32")
def _statistics(row: Row) -> tuple:
    """A layer norm keeps its mean and deviation in float32, as a GPU and the meta device do; the CPU keeps them in the
    type of its input."""
    return 0, sum(s.bytes // s.item * (4 - s.item) for s in row.outs[1:]) if row.op == "aten.native_layer_norm" else 0


@rule("each input for itself")
def _each_input(row: Row) -> tuple:
    "Each input counts its own distinct elements; the counter counts once what two views of one tensor share."
    return sum(s.bytes for s in row.ins) - row.read, 0


def explanation(figure: Figure, row: Row) -> tuple | None:
    "The names of the rules whose differences sum to that of a figure and a row; None where there are none"
    wanted, given = (figure.read - row.read, figure.write - row.write), {}
    for name, r in RULES.items():
        if any(delta := r.difference(row)):
            given[name] = delta
    for count in range(len(given) + 1):
        for names in itertools.combinations(given, count):
            if tuple(sum(given[n][i] for n in names) for i in (0, 1)) == wanted:
                return names
    return None


# ---- the comparison

@dataclass
class Outcome:
    "One phase of one family"
    operators: int  # that ran, or that a record has
    equal: int = 0
    explained: Counter = field(default_factory=Counter)  # names of rules -> operators
    unexplained: list = field(default_factory=list)  # sentences


def compared(ours: list[Figure], rows: list[Row], kinds: list) -> Outcome:
    "The package's figures against the counter's, operator by operator"
    rows = [row for block in in_record_order(rows, kinds) for row in block]
    result = Outcome(len(rows))
    if [f.op for f in ours] != [r.op for r in rows]:
        both = itertools.zip_longest((f.op for f in ours), (r.op for r in rows))
        at, (mine, its) = next((i, ops) for i, ops in enumerate(both) if ops[0] != ops[1])
        result.unexplained.append(f"operator {at} is {mine}, the run has {its}")
        return result
    for i, (figure, row) in enumerate(zip(ours, rows)):
        names = explanation(figure, row)
        if names is None:
            result.unexplained.append(f"operator {i} {figure.op} reads {figure.read} and writes {figure.write} bytes, "
                                      f"the counter says {row.read} and {row.write}")
        elif names:
            result.explained[" and ".join(names)] += 1
        else:
            result.equal += 1
    return result


# ---- the families

@dataclass(frozen=True)
class Family:
    "A preset, and the sizes that replace its own"
    preset: str
    sizes: dict


_WIDTHS = dict(hidden_size=96, num_attention_heads=6, num_key_value_heads=3, intermediate_size=56)
_SMALL = _WIDTHS | dict(vocab_size=101, max_position_embeddings=160)
_TWO = _SMALL | dict(num_hidden_layers=2)
_MOE = dict(num_experts_per_tok=3, moe_intermediate_size=40)
_GPT = dict(n_embd=96, n_head=6, n_layer=2, n_positions=160, vocab_size=101)

_LATENT = dict(num_key_value_heads=6, num_hidden_layers=3, n_routed_experts=12, kv_lora_rank=32, qk_nope_head_dim=16,
               v_head_dim=24)
_WINDOW = dict(head_dim=16, sliding_window=25)
_SSM = dict(mamba_n_heads=12, mamba_d_head=16, mamba_d_state=24, mamba_chunk_size=8)
_DELTA = dict(linear_key_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=24)

SHIPPED = {
    "llama": Family("meta-llama/Llama-3.2-1B", _TWO | dict(head_dim=16)),
    "gpt2": Family("openai-community/gpt2", _GPT),
    "gpt_neox": Family("EleutherAI/pythia-410m", dict(intermediate_size=56, vocab_size=101, num_hidden_layers=2)),
    "bloom": Family("bigscience/bloom-560m", dict(n_layer=2, vocab_size=101)),
    "opt": Family("facebook/opt-125m", dict(
        hidden_size=96, word_embed_proj_dim=96, num_attention_heads=6, ffn_dim=56, vocab_size=101,
        max_position_embeddings=160, num_hidden_layers=2)),
    "falcon": Family("tiiuae/falcon-7b", dict(
        hidden_size=96, num_attention_heads=6, num_hidden_layers=2, vocab_size=101, ffn_hidden_size=18176)),
    "qwen2": Family("Qwen/Qwen2.5-0.5B", _TWO),
    "qwen3_moe": Family("Qwen/Qwen3-30B-A3B", _TWO | _MOE | dict(head_dim=16)),
    "mixtral": Family("mistralai/Mixtral-8x7B-v0.1", _TWO | dict(num_experts_per_tok=3)),
    "gpt_oss": Family("openai/gpt-oss-20b", _SMALL | _WINDOW | dict(hidden_size=16, vocab_size=200003)),
    "gemma2": Family("google/gemma-2-27b", _SMALL | _WINDOW),
    "gemma3_text": Family("google/gemma-3-1b-it", _SMALL | _WINDOW | dict(num_key_value_heads=1)),
    "cohere2": Family("CohereLabs/c4ai-command-r7b-12-2024", _SMALL | _WINDOW),
    "lfm2": Family("LiquidAI/LFM2-1.2B", _SMALL | dict(hidden_size=24, intermediate_size=12288)),
    "starcoder2": Family("bigcode/starcoder2-3b", _TWO),
    "gpt_bigcode": Family("bigcode/starcoder", _GPT),
    "gpt_neo": Family("EleutherAI/gpt-neo-125m", dict(
        hidden_size=96, num_heads=6, vocab_size=101, max_position_embeddings=160)),
    "xglm": Family("facebook/xglm-564M", dict(
        d_model=96, attention_heads=6, ffn_dim=56, num_layers=2, vocab_size=101, max_position_embeddings=160)),
    "biogpt": Family("microsoft/biogpt", _TWO),
    "olmo": Family("allenai/OLMo-1B-hf", _TWO | dict(num_key_value_heads=6)),
    "granite": Family("ibm-granite/granite-3.0-8b-base", _TWO),
    "apertus": Family("swiss-ai/Apertus-8B-2509", _TWO),
    "mamba": Family("state-spaces/mamba-130m-hf", dict(num_hidden_layers=2, n_layer=2))}

TRACED = {  # their records hold for their own sizes only, or for none that is small
    "deepseek_v2": Family("deepseek-ai/DeepSeek-V2-Lite", _SMALL | _MOE | _LATENT),
    "deepseek_v3": Family("deepseek-ai/DeepSeek-V3", _SMALL | _MOE | _LATENT | dict(
        first_k_dense_replace=1, n_group=4, topk_group=2, q_lora_rank=24)),
    "mamba2": Family("AntonV/mamba2-2.7b-hf", dict(
        hidden_size=96, num_heads=12, head_dim=16, n_groups=2, state_size=24, chunk_size=8, num_hidden_layers=2,
        vocab_size=101)),
    "phi3": Family("microsoft/Phi-3-mini-4k-instruct", _WIDTHS | dict(
        vocab_size=101, num_hidden_layers=2, pad_token_id=0)),
    "jamba": Family("ai21labs/Jamba-v0.1", _SMALL | dict(
        num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, num_experts=5, mamba_d_state=8,
        mamba_dt_rank=12)),
    "qwen3_next": Family("Qwen/Qwen3-Next-80B-A3B-Instruct", _SMALL | _MOE | _DELTA | dict(
        num_hidden_layers=4, head_dim=16, num_experts=12, shared_expert_intermediate_size=24)),
    "llama4_text": Family("meta-llama/Llama-4-Scout-17B-16E-Instruct", _WIDTHS | dict(
        vocab_size=101, num_hidden_layers=4, head_dim=16, num_local_experts=4, intermediate_size_mlp=72,
        pad_token_id=0)),
    "rwkv": Family("RWKV/rwkv-4-169m-pile", dict(
        hidden_size=96, attention_hidden_size=96, intermediate_size=56, num_hidden_layers=2, vocab_size=101,
        context_length=160)),
    "falcon_mamba": Family("tiiuae/falcon-mamba-7b", dict(
        hidden_size=96, intermediate_size=192, state_size=8, time_step_rank=12, num_hidden_layers=2,
        vocab_size=101)),
    "nemotron_h": Family("nvidia/NVIDIA-Nemotron-Nano-9B-v2", _SMALL | dict(
        num_hidden_layers=4, hybrid_override_pattern="M-*M", head_dim=16, mamba_num_heads=12, mamba_head_dim=16,
        ssm_state_size=24, n_groups=2, chunk_size=8)),
    "granitemoehybrid": Family("ibm-granite/granite-4.0-h-small", _SMALL | _SSM | dict(
        num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], num_local_experts=12,
        num_experts_per_tok=3, pad_token_id=0, shared_intermediate_size=40)),
    "minimax_m2": Family("MiniMaxAI/MiniMax-M2", _TWO | dict(
        head_dim=16, rotary_dim=8, num_local_experts=12, num_experts_per_tok=3)),
    "glm4_moe": Family("zai-org/GLM-4.5-Air", _SMALL | _MOE | dict(
        num_hidden_layers=3, head_dim=16, n_routed_experts=12, pad_token_id=0)),
    "qwen2_moe": Family("Qwen/Qwen1.5-MoE-A2.7B", _TWO | _MOE | dict(
        num_experts=12, shared_expert_intermediate_size=24)),
    "gptj": Family("EleutherAI/gpt-j-6b", _GPT | dict(rotary_dim=8))}

FAMILIES = SHIPPED | TRACED
PHASES = {"prefill": (3, 17, 0), "extend": (3, 11, 33), "decode": (3, 1, 33), "decode, one sequence": (1, 1, 34)}


def config_of(family: Family) -> dict:
    "The config of a family's small model"
    return json.loads(preset(family.preset).read_text(encoding="utf-8"))["config"] | family.sizes


def outcomes(name: str, phases=tuple(PHASES)) -> dict[str, Outcome]:
    "What comes of each phase of a family"
    from lm_predictor import analyze
    family = FAMILIES[name]
    config = config_of(family)
    cost, model = analyze(config, trace=name in TRACED), model_of(config)
    kinds = layers_of(model)[1]
    found = {}
    for phase in phases:
        ours, rows = figures(cost, *PHASES[phase]), measured(model, *PHASES[phase])
        found[phase] = compared(ours, rows, kinds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--shipped", action="store_true", help="those whose records ship")
    args = parser.parse_args()
    os.environ.setdefault("LM_PREDICTOR_DB", tempfile.mkdtemp())  # what is traced is not kept
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    used, failed = Counter(), []
    print("| family | phase | operators | equal | explained | unexplained |\n|---|---|---:|---:|---|---:|")
    for name in args.families or (SHIPPED if args.shipped else FAMILIES):
        for phase, o in outcomes(name).items():
            explained = "; ".join(f"{names} {n}" for names, n in o.explained.items())
            print(f"| {name} | {phase} | {o.operators} | {o.equal} | {explained} | {len(o.unexplained)} |", flush=True)
            for names, n in o.explained.items():
                used.update({part: n for part in names.split(" and ")})
            failed += [f"{name}, {phase}: {text}" for text in o.unexplained]
    print("\n| rule | operators | what the package counts instead |\n|---|---:|---|")
    for name, r in RULES.items():
        print(f"| {name} | {used[name]} | {r.sentence} |")
    print("\n".join(["", f"{len(failed)} unexplained", *failed[:20]]))
    return 2 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    raise SystemExit(main())
