"""Is every config answered for what it says, or refused?

    python benchmarks/every_key.py                       # every key of one preset of every shipped type
    python benchmarks/every_key.py qwen3_moe falcon      # some types
    python benchmarks/every_key.py --sample 60 --seed 1  # so many of the answered changes, drawn by chance
    python benchmarks/every_key.py --orders 10           # so many pairs of refused changes, each traced in both orders

Each key of a preset's config is changed: doubled, halved, plus one, flipped, set to null, a list's element moved,
given under another name that its class has for it, left out. What the shipped record says of the changed config must be
what transformers makes of it: the parameters of the model built on the meta device, FLOPs in matrix products by torch's
FlopCounterMode (a prefill and a decode), and every operator of a prefill with its bytes. Or the record refuses it, naming
the key. A config that transformers itself refuses may be refused or not. The exit status is 2 when a figure is another one.

A config that the shipped record refuses is traced, and its record is kept. `--orders` asks whether what is kept answers
the next config wrongly: two changed configs of one type are analyzed one after the other in an empty database, then the
other way round in another one, and each of the four answers must be what transformers makes of its config.
"""
import argparse
import contextlib
import json
import logging
import random
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from lm_predictor.models.sources.hub import presets
from lm_predictor.models.matching import symbol_values, unknown_names, with_layers_of
from lm_predictor.models.config.settings import bookkeeping
from lm_predictor.models.config.validation import ModelError, check_numbers
from lm_predictor.obtain import find
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.tracing.recording.patches import patched

SKIPPED = {"model_type", "quantization_config", "auto_map", "architectures"}
ACTIVATIONS = ("silu", "gelu", "relu")


def other_values(value) -> dict:
    "Values to try in the place of one: what was done -> the new value"
    if isinstance(value, bool):
        return {"flipped": not value}
    if isinstance(value, int):
        return {"doubled": 2 * value, "halved": value // 2, "plus one": value + 1, "null": None}
    if isinstance(value, float):
        return {"doubled": 2 * value, "halved": value / 2, "null": None}
    if value is None:
        return {"given": 64, "true": True}
    if isinstance(value, str):
        return {"another": next(a for a in ACTIVATIONS if a != value)} if value in (*ACTIVATIONS, "gelu_new") else {}
    if isinstance(value, list) and len(value) > 1:
        return {"moved": [*value[1:], value[0]], "shorter": value[:-1], "alike": [value[0]] * len(value)}
    if isinstance(value, dict):
        return {
            f"{key} {what}": {**value, key: new} for key, inner in value.items() for what, new in other_values(inner).items()
        }
    return {}


def changes(config: dict, defaults: dict, aliases: dict):
    "(key, what was done, the changed config) for every key that a config gives or its class has"
    keys = {**{k: v for k, v in defaults.items() if not bookkeeping(k)}, **config}
    for key, value in sorted(keys.items()):
        if key in SKIPPED or bookkeeping(key):
            continue
        if key in config:
            yield key, "left out", {k: v for k, v in config.items() if k != key}
        for what, new in other_values(value).items():
            yield key, what, {**config, key: new}
        for alias, target in aliases.items():
            if target == key and isinstance(value, int) and not isinstance(value, bool):
                rest = {k: v for k, v in config.items() if k != key}
                yield alias, "doubled under this name", {**rest, alias: 2 * value}


def answered(config: dict, db: Database):
    "The shipped record that answers a config, by itself, and the config's sizes; or the sentence that refuses it"
    try:
        check_numbers(config)
        with patched((find, "confirmed", lambda *_: "")):  # what transformers makes of it is compared afterwards
            record = find.find(config, db, trace=False).record
        unknown_names(record, config)
        return record, symbol_values(record, config)
    except ModelError as e:
        return str(e)


def verdict(record, values: dict, config: dict) -> str:
    "`equal`, `transformers refuses it`, or what is another figure"
    import torch
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.records.cases import Case
    from lm_predictor.verification.compare import difference
    from lm_predictor.verification.runs.counter import CounterError, matmul_flops, torch_matmul_flops
    from lm_predictor.verification.runs.numbers import BYTES, case_of
    from lm_predictor.verification.runs.reference_run import Twin
    from lm_predictor.tracing.runtime.building import build
    try:
        full = full_config(config)
        with torch.device("meta"):
            theirs = sum(p.numel() for p in build(full).parameters())
    except Exception as e:  # a config class and a constructor refuse in many ways
        return f"transformers refuses it ({type(e).__name__})"
    ours = record.parameters.evaluate(values)
    if ours != theirs:
        return f"{ours} parameters, transformers builds {theirs}"
    sizes = {"prefill": (2, 11, 0), "decode": (2, 1, 9)}
    cases = {p: case_of(record, Case(p), values | dict(zip(("batch_size", "seq_len", "cache_len"), w))) for p, w in sizes.items()}
    cases = {p: c for p, c in cases.items() if c}
    with contextlib.suppress(CounterError):
        counted = torch_matmul_flops(full, [sizes[p] for p in cases])
        for (phase, case), n in zip(cases.items(), counted):
            at = values | BYTES | dict(zip(("batch_size", "seq_len", "cache_len"), sizes[phase]))
            if matmul_flops(record.graph(case), at) != n:
                return f"{phase}: {matmul_flops(record.graph(case), at)} FLOPs in matrix products, FlopCounterMode counts {n}"
    if "prefill" in cases and record.method == "symbolic":
        at = dict(zip(("batch_size", "seq_len", "cache_len"), sizes["prefill"]))
        try:
            run = Twin(record, full, values).run(cases["prefill"], at)[1].graph
        except Exception as e:
            return f"equal (its operators were not compared: {type(e).__name__})"
        found = difference(record.graph(cases["prefill"]).at(values | BYTES | at), run)
        if found:
            return f"prefill: {found}"
    return "equal"


def every_key(types, sample: int, seed: int, db: Database) -> int:
    from lm_predictor.tracing.config.reads import plain
    from transformers import AutoConfig
    rows, refused, first = [], Counter(), {}
    for name, p in presets().items():
        first.setdefault(p["config"]["model_type"], (name, p["config"]))
    for kind, (name, config) in sorted(first.items()):
        if types and kind not in types:
            continue
        cls = type(AutoConfig.for_model(kind))
        for key, what, changed in changes(config, plain(cls()), cls.attribute_map):
            found = answered(changed, db)
            if isinstance(found, str):
                refused[kind] += 1
            else:
                rows.append((kind, name, key, what, changed, *found))
    chosen = random.Random(seed).sample(rows, min(sample, len(rows))) if sample else rows
    print(f"{len(rows)} changed configs are answered, {sum(refused.values())} refused; {len(chosen)} answers are compared")
    ends, wrong = Counter(), 0
    for kind, name, key, what, changed, record, values in chosen:
        said = verdict(with_layers_of(record, changed), values, changed)
        ends[said.split(" (")[0] if said.startswith(("equal", "transformers")) else "another figure"] += 1
        if not said.startswith(("equal", "transformers")):
            wrong += 1
            print(f"WRONG {name}: {key} {what} ({json.dumps(changed.get(key))[:60]}): {said}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in sorted(ends.items())))
    return wrong


def both_orders(one: dict, other: dict) -> list[str]:
    "What is wrong with the answers for two configs, analyzed in either order in a database of one's own"
    from lm_predictor import analyze
    wrong = []
    for turn, configs in (("first", (one, other)), ("second", (other, one))):
        with tempfile.TemporaryDirectory() as home:
            db = Database(Path(home), shipped_directory())
            for config in configs:
                try:
                    cost = analyze(config, db)
                except ModelError:  # refused, which is no answer
                    continue
                said = verdict(cost.record, cost.values, config)
                if not said.startswith(("equal", "transformers")):
                    wrong.append(f"in the {turn} order, {cost.record.id}: {said}")
    return wrong


def orders(types, pairs: int, seed: int, db: Database) -> int:
    from lm_predictor.tracing.config.reads import plain
    from transformers import AutoConfig
    refused = {}
    for name, p in presets().items():
        kind, config = p["config"]["model_type"], p["config"]
        if kind in refused or types and kind not in types:
            continue
        cls = type(AutoConfig.for_model(kind))
        found = changes(config, plain(cls()), cls.attribute_map)
        refused[kind] = [(key, what, c) for key, what, c in found if isinstance(answered(c, db), str)]
    draw, wrong = random.Random(seed), 0
    for i in range(pairs):
        kind = draw.choice(sorted(k for k, rows in refused.items() if len(rows) > 1))
        (key, what, one), (key2, what2, other) = draw.sample(refused[kind], 2)
        found = both_orders(one, other)
        wrong += len(found)
        print(f"[{i + 1}/{pairs}] {kind}: {key} {what}, {key2} {what2}: {'; '.join(found) or 'equal'}", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--orders", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    db = Database(shipped_directory(), shipped_directory())
    run, count = (orders, given.orders) if given.orders else (every_key, given.sample)
    sys.exit(2 if run(given.types, count, given.seed, db) else 0)


if __name__ == "__main__":
    main()
