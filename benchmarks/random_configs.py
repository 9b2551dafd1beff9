"""Are configs that nobody published answered, and rightly?

    python benchmarks/random_configs.py                        # 1,000 configs, drawn over every shipped type
    python benchmarks/random_configs.py qwen3_moe mamba2       # of some types
    python benchmarks/random_configs.py --configs 200 --seed 7 --json rows.json
    python benchmarks/random_configs.py --settings             # settings too: activations, biases, windows on or off

A config is drawn from a type's first preset, or from what its config class has by default: numbers of layers, heads, groups
and experts, head sizes, widths, windows, ranks, vocabulary, and the patterns that say which layer is of which kind. One that
transformers itself refuses, or builds and cannot run though it runs the type's own config, is drawn again. What the shipped records say of it, without a new trace, must be what transformers
makes of it: the parameters of the model built on the meta device, and FLOPs in matrix products by torch's FlopCounterMode (a
prefill and a decode). Or they refuse it, and the reasons are counted, by key. The exit status is 2 when a figure is another one.
"""
import argparse
import contextlib
import json
import logging
import random
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from every_key import answered
from lm_predictor.models.sources.hub import presets
from lm_predictor.models.config.overrides import of_full
from lm_predictor.models.config.settings import bookkeeping
from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_paths, read_json

SIZES = {"prefill": (2, 11, 0), "decode": (2, 1, 9)}
TRIES = 40  # draws of one config until transformers builds it


class Row(NamedTuple):
    kind: str
    changed: dict  # key -> value, where it is not the base's
    verdict: str  # equal, refused or wrong
    said: str


def named(config: dict) -> dict:
    "A config that says what its layers of full attention have otherwise by entries of their own, whichever layers these are"
    own = of_full(config)
    return {k: v for k, v in config.items() if k != "per_layer_config"} | own if own else config


def bases() -> dict[str, dict]:
    "The config that stands for each shipped type: its first preset, else what its config class has by default"
    from transformers import AutoConfig
    found = {}
    for p in presets().values():
        found.setdefault(p["config"]["model_type"], p["config"])
    for path in model_paths(shipped_directory()):
        kind = read_json(path)["model_type"]
        if kind not in found:
            given = type_config(kind)
            usual = AutoConfig.for_model(**given)
            if "text_config" in given:
                inner = usual.get_text_config().to_dict() | given["text_config"]
                found[kind] = given | {"text_config": named({k: v for k, v in inner.items() if not bookkeeping(k)})}
                continue
            found[kind] = named({k: v for k, v in usual.to_diff_dict().items() if not bookkeeping(k)} | given)
    return dict(sorted(found.items()))


LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "attention_heads")
KV = ("num_key_value_heads", "num_kv_heads")
WIDTH = ("hidden_size", "n_embd", "d_model")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk")
WIDTHS = re.compile(r"(intermediate_size|ffn_dim|n_inner|lru_width|hidden_size_per_layer_input|attention_hidden_size)")
RANKS = re.compile(r"(lora_rank|state_size|d_state|time_step_rank|dt_rank)$")
HEAD_SIZES = re.compile(r"(^head_dim|_head_dim|d_head)$")
WINDOWS = re.compile(r"^(sliding_window|attention_chunk_size|attention_window_size|window_size|index_topk)$")
GROUPED = re.compile(r"(linear_num_(key|value)_heads|index_n_heads|num_global_key_value_heads|n_shared_experts)$")


def drawn(base: dict, rng: random.Random, alike: bool = False) -> dict:
    "A config like another one, with other numbers and patterns; alike: numbers that are equal in that one are so in this one"
    if isinstance(base.get("text_config"), dict):
        return base | {"text_config": drawn(base["text_config"], rng, alike)}
    config, has = dict(base), lambda names: next((n for n in names if isinstance(base.get(n), int)), None)
    pick = lambda key, *values: config.update({key: rng.choice(values)}) if key else None
    pick(has(LAYERS), 2, 3, 4, 5, 6, 8)
    if (heads := has(HEADS)):
        kv = rng.choice((1, 2, 4, 8))
        config[heads] = kv * rng.choice((1, 2, 3, 4))
        if has(KV):
            config[has(KV)] = kv if base[has(KV)] != base[heads] else config[heads]
    width, size = has(WIDTH), rng.choice((32, 64, 128))
    if width:
        config[width] = config[heads] * size if heads else 64 * rng.randint(2, 12)
    for key, value in base.items():
        if not isinstance(value, int) or isinstance(value, bool) or bookkeeping(key):
            continue
        if WIDTHS.search(key):
            config[key] = 64 * rng.randint(2, 24)
        elif RANKS.search(key):
            pick(key, max(8, value // 2), value, 2 * value)
        elif HEAD_SIZES.search(key):
            config[key] = size if key == "head_dim" else rng.choice((value, max(16, value // 2)))
        elif WINDOWS.search(key):
            pick(key, 16, 512, 4096, value)
        elif GROUPED.search(key):
            pick(key, value, max(1, value // 2), 2 * value)
    if type(base.get("num_decoder_layers")) is int and has(LAYERS):  # of as many layers as its encoder, or of others
        config["num_decoder_layers"] = rng.choice((config[has(LAYERS)], rng.randint(2, 8)))
    _draw_states(base, config, width, rng)
    _draw_experts(base, config, rng)
    pick("vocab_size" if "vocab_size" in base else None, base.get("vocab_size"), 128 * rng.randint(100, 2000))
    pick("tie_word_embeddings" if "tie_word_embeddings" in base else None, True, False)
    config = _draw_patterns(base, config, has(LAYERS), rng)
    return config | _alike(base, config, width, heads, has(LAYERS)) if alike else config


def _alike(base: dict, config: dict, width: str | None, heads: str | None, layers: str | None) -> dict:
    "Numbers that were the width, twice the width, so many as layers, or what a head has of them, and are so again"
    found, wide = {}, "attention_hidden_size"
    for key, value in base.items():
        for other, times in ((width, (1, 2)), (layers, (1,))):
            if other and type(value) is int and key != other and value in [n * base[other] for n in times]:
                found[key] = value // base[other] * config[other]
    if heads and base.get("attention_head_dim") and base["attention_head_dim"] * base[heads] == base.get(wide):
        found["attention_head_dim"] = found.get(wide, config[wide]) // config[heads]
    return found


STATES = (("num_heads", "head_dim", "expand"), ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
          ("n_mamba_heads", "mamba_headdim", "mamba_expand"))


ACTIVATION = re.compile(r"^(hidden_act|hidden_activation|activation_function|activation|mlp_hidden_act)$")


def settings_drawn(base: dict, config: dict, rng: random.Random) -> dict:
    """A config with other settings: each kind of number of key heads alike, and by chance an activation, biases, a
    window that is on or off, kinds of layers of their own choice, a share of a head that is rotated, and a scaling."""
    if isinstance(base.get("text_config"), dict):
        return config | {"text_config": settings_drawn(base["text_config"], config["text_config"], rng)}
    has = lambda names: next((n for n in names if isinstance(base.get(n), int)), None)
    found, heads, kv, layers = dict(config), has(HEADS), has(KV), has(LAYERS)
    if heads and kv:
        found[kv] = rng.choice([1, config[heads], max(n for n in (1, 2, 4) if config[heads] % n == 0)])
    for key, value in base.items():
        if ACTIVATION.match(key) and rng.random() < 0.25:
            found[key] = rng.choice(("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2"))
        elif isinstance(value, bool) and ("bias" in key and rng.random() < 0.25 or key == "use_sliding_window"):
            found[key] = rng.random() < 0.5
    rows = base.get("layer_types")
    if layers and isinstance(rows, list) and rng.random() < 0.2:  # all of one kind
        found["layer_types"] = [rng.choice(sorted(set(map(str, rows))))] * config[layers]
    rope = base.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope and rng.random() < 0.25:
        more = {"partial_rotary_factor": rng.choice((0.25, 0.5, 1.0))} if "partial_rotary_factor" in rope else {}
        found["rope_parameters"] = rope | more | rng.choice(({}, {"rope_type": "linear", "factor": 4.0}))
    return found


def _draw_states(base: dict, config: dict, width: str | None, rng: random.Random) -> None:
    "Heads of a state space that make up its inner width, as its constructor asks"
    for heads, size, expand in STATES:
        if width and isinstance(base.get(heads), int) and isinstance(base.get(expand), int):
            config[size] = rng.choice((16, 32, 64)) if isinstance(base.get(size), int) else base.get(size)
            config[width] = 64 * rng.randint(2, 12)
            if isinstance(config[size], int):
                config[heads] = base[expand] * config[width] // config[size]
                if isinstance(base.get("mamba_d_ssm"), int):  # an inner width that is no multiple of the model's
                    config["mamba_d_ssm"] = config[heads] * config[size]


def _draw_experts(base: dict, config: dict, rng: random.Random) -> None:
    "Other numbers of experts, of groups of them, and of those that see a token"
    groups = rng.choice((1, 2, 4))
    for key in EXPERTS:
        if isinstance(base.get(key), int) and base[key] > 1:
            config[key] = 4 * groups * rng.choice((1, 2, 3, 8))
            for name in PER_TOKEN:
                if isinstance(base.get(name), int):
                    config[name] = rng.choice((1, 2, 4))
    if base.get("n_group"):
        config |= {"n_group": groups, "topk_group": rng.randint(1, groups)}


def _draw_patterns(base: dict, config: dict, layers: str | None, rng: random.Random) -> dict:
    "What says of which kind a layer is: lists of an entry for each layer, intervals, the first dense layers"
    if layers is None:
        return config
    old, new = base[layers], config[layers]
    for key, value in base.items():
        if isinstance(value, list) and len(value) == old and value:
            config[key] = [rng.choice(value) for _ in range(new)]
        elif isinstance(value, list) and value and all(type(v) is int for v in value) and max(value) < old and "cycles" not in key:
            config[key] = sorted({rng.randrange(new) for _ in value})
        elif isinstance(value, dict):
            lists = {k: rows for k, rows in value.items() if isinstance(rows, list)}
            if len(lists) == 2 and sorted(sum(lists.values(), [])) == [*range(1, old + 1)]:  # they share the layers out, from 1 on
                first = sorted(rng.sample(range(1, new + 1), rng.randint(0, new)))
                config[key] = value | dict(zip(lists, (first, [i for i in range(1, new + 1) if i not in first])))
    for key in ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"):
        if isinstance(base.get(key), int):
            config[key] = rng.randint(0, new)
    for key in ("full_attention_interval", "decoder_sparse_step", "sliding_window_pattern", "moe_layer_freq"):
        if isinstance(base.get(key), int) and base[key]:
            config[key] = rng.choice((1, 2, 3, 4))
    return config


def counts(full, runs: bool = False) -> tuple[int, list]:
    "Parameters and FLOPs in matrix products that transformers and torch count of a config; raises as they do; runs: whether they must"
    import torch
    from lm_predictor.tracing.runtime.building import build
    from lm_predictor.verification.runs.counter import CounterError, torch_matmul_flops
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(full).parameters())
    try:
        return parameters, list(torch_matmul_flops(full, list(SIZES.values())))
    except CounterError:
        if runs:
            raise
        return parameters, []


_runs: dict[str, bool] = {}  # a type -> whether torch's counter can run the config that stands for it


def runs_itself(kind: str, base: dict) -> bool:
    "Whether torch's counter can run the config that another one is drawn from; some code asks for data"
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.verification.runs.counter import CounterError, torch_matmul_flops
    if kind not in _runs:
        try:
            _runs[kind] = bool(torch_matmul_flops(full_config(base), list(SIZES.values())))
        except CounterError:
            _runs[kind] = False
    return _runs[kind]


def compared(record, values: dict, parameters: int, flops: list) -> str:
    "What is another figure; empty where none is"
    from lm_predictor.records.cases import Case
    from lm_predictor.verification.runs.counter import matmul_flops
    from lm_predictor.verification.runs.numbers import BYTES, case_of
    if (ours := record.parameters.evaluate(values)) != parameters:
        return f"{ours} parameters, transformers builds {parameters}"
    for (phase, sizes), n in zip(SIZES.items(), flops):
        at = values | dict(zip(("batch_size", "seq_len", "cache_len"), sizes))
        case = case_of(record, Case(phase), at)
        if case and (ours := matmul_flops(record.graph(case), at | BYTES)) != n:
            return f"{phase}: {ours} FLOPs in matrix products, FlopCounterMode counts {n}"
    return ""


def row(kind: str, base: dict, rng: random.Random, db: Database, settings: bool = False) -> Row | None:
    """A config that transformers builds, and what the shipped records say of it; None where none was drawn.

    settings: whether it has other settings, too.
    """
    from lm_predictor.models.sources.loading import full_config
    for n in range(TRIES):
        inner, alike = base.get("text_config"), n >= TRIES // 2  # a class that has images too has its sizes in a part
        whole = isinstance(inner, dict)
        config = {"model_type": kind, "text_config": drawn(inner, rng, alike)} if whole else drawn(base, rng, alike)
        config = settings_drawn(base, config, rng) if settings else config
        try:
            parameters, flops = counts(full_config(config), runs_itself(kind, base))
            break
        except Exception:  # a config class and a constructor refuse in many ways
            continue
    else:
        return None
    changed = {k: v for k, v in config.items() if base.get(k) != v}
    found = answered(config, db)
    if isinstance(found, str):
        return Row(kind, changed, "refused", found)
    said = compared(*found, parameters, flops)
    return Row(kind, changed, "wrong" if said else "equal", said or ("" if flops else "FLOPs were not counted"))


def report(rows: list[Row]) -> None:
    "A line for each type, and the reasons of refusals"
    by = defaultdict(list)
    for r in rows:
        by[r.kind].append(r)
    for kind, mine in by.items():
        n = Counter(r.verdict for r in mine)
        why = Counter(re.sub(r"\d+", "N", r.said)[:110] for r in mine if r.verdict == "refused").most_common(2)
        print(f"{kind:22} {n['equal']:4} equal {n['refused']:4} refused {n['wrong']:4} wrong   "
              + "; ".join(f"{c} x {text}" for text, c in why))
    for r in [r for r in rows if r.verdict == "wrong"][:20]:
        print(f"WRONG {r.kind}: {r.said}; changed: {json.dumps(r.changed)[:600]}")
    n, uncounted = Counter(r.verdict for r in rows), sum(r.verdict == "equal" and bool(r.said) for r in rows)
    print(f"\n{len(rows)} configs of {len(by)} types: {n['equal']} answered and equal ({uncounted} of them by parameters alone), "
          f"{n['refused']} refused, {n['wrong']} wrong; answered without a new trace: {(n['equal'] + n['wrong'])/max(1, len(rows)):.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="model types (default: every shipped one)")
    parser.add_argument("--configs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", action="store_true", help="draw settings too, not sizes and patterns alone")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    chosen = {k: c for k, c in bases().items() if not args.types or k in args.types}
    if not chosen:
        parser.error("no shipped type of these names")
    db, rows, start, bare = Database(), [], time.time(), set()
    for number in range(args.configs):
        kind = list(chosen)[number % len(chosen)]
        rng = random.Random(f"{args.seed} {kind} {number // len(chosen)}")
        with contextlib.redirect_stderr(None):
            found = row(kind, chosen[kind], rng, db, args.settings) if kind not in bare else None
        if found:
            rows.append(found)
        else:
            bare.add(kind)
        print(f"\r[{number + 1}/{args.configs}] {kind:24} {time.time() - start:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    report(rows)
    if bare:
        print(f"no config drawn that transformers builds: {', '.join(sorted(bare))}")
    if args.json:
        args.json.write_text(json.dumps([r._asdict() for r in rows], indent=1) + "\n", encoding="utf-8")
    return 2 if any(r.verdict == "wrong" for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
