"""Trace every causal language model type of the installed transformers, and check each against torch's counter.

    python benchmarks/coverage.py [TYPE ...] [--verify] [--jobs 2] [--timeout 300] [--rows coverage.jsonl] [--table benchmarks/coverage.md]

One row per type: the default config of its class (with what module_db/types.json adds where the defaults do not run) is
traced for prefill, decode and extend, and the matrix products of all layers are compared with `FlopCounterMode` on a
separate meta-device run. With --verify every class of it goes through the checks of `lm-predictor verify` too. Rows already in the .jsonl file are kept, so an interrupted run goes on where it stopped.
"""
import argparse
import contextlib
import functools
import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
CASES = ("prefill", "decode", "extend")


class Late(BaseException):
    "A type took too long; no Exception, so that no fallback swallows it"


@contextlib.contextmanager
def within(timeout: int):
    "Within it nothing is said, and Late is raised after so many seconds"
    def late(*_):
        raise Late(f"not done after {timeout} s")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    signal.alarm(timeout)
    try:
        yield
    finally:
        signal.alarm(0)


def at_fault(error: BaseException) -> str:
    "The innermost line of a model's code that an error came through"
    lines = [f for f in traceback.extract_tb(error.__traceback__) if "/transformers/models/" in f.filename]
    return f" (at {lines[-1].filename.rpartition('/')[2]}:{lines[-1].lineno}, `{lines[-1].line}`)" if lines else ""


def row(model_type: str, verify: bool = False) -> dict:
    "Trace one type and compare; never raises"
    from lm_predictor.models.sources.type_configs import type_config
    from lm_predictor.models.config.attributes import canonical
    from lm_predictor.records.storage.database import Database
    from lm_predictor.verification.runs.reference_run import collect
    from lm_predictor.obtain.fresh.record import fit_own_config
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.tracing.lowering.classes import ClassRecords
    from lm_predictor.tracing.runtime.windows import cases_of
    from lm_predictor.records.status import PROOF
    from lm_predictor.verification.runs.counter import against_counter
    from lm_predictor.obtain.fresh.ladder import record_values, traced_record
    from lm_predictor.verification.verify import verify_model
    start, out = time.perf_counter(), {"type": model_type}
    try:
        given = type_config(model_type)
        config = full_config(given)
        trace, record, outcome = traced_record(config, cases=[c for c in cases_of(config) if not c.single and not c.all_logits])
        record = fit_own_config(record, given, config)  # `analyze` refuses a record that does not fit its own config
        out["trace_s"] = round(time.perf_counter() - start, 1)
        out |= {"class": record.class_name.rsplit(".", 1)[-1], "kinds": len(trace.kinds), "uncounted": record.uncounted, "notes": list(record.notes),
                "method": record.method, "window": any(name.endswith("_past") for name in record.cases),
                "symbols": sorted(canonical(n) for n, f in trace.symbols.relation.attributes.items() if not (len(f) == 1 and isinstance(f[0], int))),
                "classes": 0}
        classes = ClassRecords.of(trace, record.id).all()
        compared = outcome.result != "cannot run"
        checks = against_counter(record, config, record_values(record, config)).checks if compared else ()
        for case in CASES:
            mine = [c for c in checks if c.part == case]
            out[case] = next((c.detail for c in mine if not c.ok), f"exact ({len(mine)})" if mine else "not compared")
        if not verify:
            return out | {"classes": len(classes), "seconds": round(time.perf_counter() - start, 1), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
        values = record_values(record, config)
        whole, found = verify_model(record, collect(record, config, values), Database.of(classes))
        wrong = [f"{c.name}: {c.detail}"[:300] for c in whole if not c.ok]
        bad = {n.rsplit(".", 1)[-1]: f"{c.name}: {c.detail}"[:300] for n, rows in found.items() for c in rows if not c.ok and c.what != PROOF}
        out |= {"classes": len(found), "verified": 0 if wrong else len(found) - len(bad), "failed": wrong[:2] + [f"{n}: {t}" for n, t in bad.items()][:4]}
    except (Exception, Late) as e:
        out["error"] = f"{type(e).__name__}: {' '.join(str(e).split())[:240]}{at_fault(e)}"
    return out | {"seconds": round(time.perf_counter() - start, 1), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def table(rows: list) -> str:
    "The coverage table in Markdown"
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as every
    good = [r for r in rows if "error" not in r]
    exact = [r for r in good if all(r[c].startswith("exact") for c in CASES)]
    times = sorted(r["trace_s"] for r in good) or [0]
    peak = sorted(r["peak_mb"] for r in good) or [0]
    lines = ["# Coverage: causal language model types", "",
             f"Made by `python benchmarks/coverage.py` (torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}; default configs, "
             "with `module_db/types.json` where a class's defaults do not run).", "",
             f"{len(rows)} of the {len(every)} types were run. **{len(good)}** of them trace in all three phases, {sum(r['method'] == 'sampled' for r in good)} of these from runs with numbers; "
             f"**{len(exact)}** equal `FlopCounterMode` to the integer in all three, at the number of workloads in brackets (those of a windowed model lie on both sides of its window's edges); "
             f"{sum(not r['uncounted'] for r in good)} have no uncounted operator. Seconds from config to checked record, one type per process: "
             f"median {times[len(times) // 2]}, worst {times[-1]}; memory median {peak[len(peak) // 2]} MB, worst {peak[-1]} MB.", "",
             "| type | prefill | decode | extend | kinds of layers | classes | symbols of the config | seconds | uncounted | notes |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in sorted(rows, key=lambda r: r["type"]):
        if "error" in r:
            lines.append(f"| {r['type']} | not traced | | | | | | {r['seconds']} | | {r['error'].replace('|', '/')} |")
        else:
            symbols = "none: sampled" if r["method"] == "sampled" else ", ".join(r["symbols"]) or "none: workload only"
            classes = f"{r['verified']} of {r['classes']} verified" if "verified" in r else r["classes"]
            lines.append(f"| {r['type']} | {r['prefill']} | {r['decode']} | {r['extend']} | {r['kinds']} | {classes} | {symbols} | {r['trace_s']} | {', '.join(r['uncounted'])} | {'; '.join(r['notes'])} |")
    return "\n".join(lines).replace("||", "| |") + "\n"


def steps(model_type: str) -> dict:
    "The rungs on symbols that do not stand for the prompt of one type, and the statement of its source that speaks against each"
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.models.sources.type_configs import type_config
    from lm_predictor.obtain.fresh.ladder import attempt_row, attempts_of
    from lm_predictor.tracing.roads.sampled import EVERY_LAYER, RUNS
    from lm_predictor.tracing.runtime.windows import cases_of
    try:
        config = full_config(type_config(model_type))
        prompt = next(c for c in cases_of(config) if c.phase == "prefill" and not c.all_logits)
        attempts = attempts_of(config, cases=[prompt], until=(RUNS, EVERY_LAYER))
        return {"type": model_type, "steps": [attempt_row(a) for a in attempts if not a.stands]}
    except (Exception, Late) as e:
        return {"type": model_type, "steps": [("not built", f"{type(e).__name__}: {' '.join(str(e).split())[:240]}", "", "")]}


def limited(one, timeout: int, model_type: str) -> dict:
    "What a function says of a type, in so many seconds"
    with within(timeout):
        return one(model_type)


def numbers(rows: list) -> str:
    "What has to be a number in each type, and the statement of its source that forces it, in Markdown"
    clean = lambda text: " ".join(text.replace("|", "/").split())
    lines = ["# What has to be a number", "", f"Made by `python benchmarks/coverage.py --numbers benchmarks/numbers.md`: {len(rows)} types, the prompt of each.", "",
             "| type | rung | why it does not stand | where | statement |", "|---|---|---|---|---|"]
    for r in sorted(rows, key=lambda r: r["type"]):
        lines += [f"| {r['type']} | {rung} | {clean(why)} | {place} | {clean(code)} |" for rung, why, place, code in r["steps"]]
    return "\n".join(lines).replace("||", "| |") + "\n"


def said(r: dict) -> str:
    if "steps" in r:
        return "; ".join(why for _, why, *_ in r["steps"]) or "all integers are symbols"
    return f"{r.get('error') or ' '.join(f'{c} {r[c]}' for c in CASES)} ({r['seconds']} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--rows", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--numbers", type=Path, help="only say what has to be a number, and which line forces it, in this file")
    args = parser.parse_args()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as every
    if args.numbers:
        args.rows = args.numbers.with_suffix(".jsonl")
    rows = {r["type"]: r for r in map(json.loads, args.rows.read_text().splitlines())} if args.rows.exists() else {}
    todo = [t for t in args.types or every if args.types or t not in rows]
    one = functools.partial(limited, steps if args.numbers else functools.partial(row, verify=args.verify), args.timeout)
    context = multiprocessing.get_context("forkserver")  # a fresh process per type, with the imports done
    context.set_forkserver_preload(["torch", "transformers.modeling_utils", "lm_predictor.verification.verify", "lm_predictor.tracing.lowering.graphs", "lm_predictor.tracing.roads.sampled"])
    with context.Pool(args.jobs, maxtasksperchild=1) as pool:
        for i, r in enumerate(pool.imap_unordered(one, todo, chunksize=1)):
            rows[r["type"]] = r
            args.rows.write_text("".join(json.dumps(r) + "\n" for r in rows.values()))
            print(f"[{i + 1}/{len(todo)}] {r['type']}: {said(r)}", file=sys.stderr, flush=True)
    if args.numbers:
        args.numbers.write_text(numbers(list(rows.values())))
        args.rows.unlink()
    if args.table:
        args.table.write_text(table(list(rows.values())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
