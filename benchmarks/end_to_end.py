"""The time of an output token in published serving runs, beside what is predicted: nothing is fitted to these rows.

    pip install -e ".[calibration]"
    python benchmarks/end_to_end.py

The rows are `systems/silicon_sample.csv` of aiconfigurator-core: a framework served a model on one GPU to so many
clients at once. Predicted is a decode step at the mean length of the cache, and what the prefills of the other
requests add to it at steady state. As many sequences are resident as weights and cache leave room for.
"""
import argparse
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lm_predictor import analyze
from lm_predictor.timing.hardware import HardwareError, load_hardware

DEVICES = {"h100_sxm": "nvidia_h100_sxm", "h200_sxm": "nvidia_h200_sxm", "b200_sxm": "nvidia_b200",
           "b300_sxm": "nvidia_b300", "gb200": "nvidia_gb200", "gb300": "nvidia_gb300"}
MODELS = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
          "meta-llama/Llama-3.1-70B": "llama-3.1-70b", "Qwen/Qwen3-32B": "qwen3-32b",
          "openai/gpt-oss-120b": "gpt-oss-120b"}
BITS = {"bf16": 16, "fp8": 8}
USED = 0.9  # of a device's memory, the default of vLLM's gpu_memory_utilization


def comparable(rows):
    "The rows of one GPU that aggregate prefill and decode, of a type and model that we answer; and why the others are not"
    why = Counter()

    def keep(chosen, reason):
        nonlocal rows
        why[reason] += int((~chosen).sum())
        rows = rows[chosen]

    keep(rows["mode"] == "agg", "prefill and decode on different devices")
    keep((rows.tp_size == 1) & (rows.pp_size == 1) & (rows.attention_dp_size.fillna(1) <= 1), "more than one GPU")
    rows = rows.assign(precision=rows.precision.fillna("bf16"))
    keep(rows.precision.isin(BITS), "numbers of 4 bits")
    keep(rows.model_path.isin(MODELS), "model")
    keys = ["backend", "model_path", "system", "precision", "isl", "osl", "batch_size", "backend_version"]
    merged = rows.fillna({"backend_version": ""}).groupby(keys, as_index=False).silicon_tpot_ms.median()
    why["repeats merged"] = len(rows) - len(merged)
    return merged, why


@cache
def cost(model):
    return analyze(model)


@cache
def step(model, device, framework, widths, batch_size, seq_len, cache_len):
    "Seconds of one forward: the roofline's where there is no framework"
    w_bits, kv_bits = widths
    run = cost(model).at(batch_size=batch_size, seq_len=seq_len, cache_len=cache_len, w_bits=w_bits, a_bits=w_bits,
                         kv_bits=kv_bits)
    return run.on(device, framework).time_s


@cache
def resident(model, device, widths, length):
    "How many sequences of a length a device holds beside the weights; 0 where it does not hold the weights"
    run = cost(model).at(batch_size=1, seq_len=1, cache_len=length, w_bits=widths[0], a_bits=widths[0], kv_bits=widths[1])
    room = USED * load_hardware(device).memory_bytes - run.totals.weight_bytes
    return int(room // run.totals.kv_cache_bytes)


def token(row, framework):
    "Seconds of an output token, and how many sequences are resident"
    model, device = MODELS[row.model_path], DEVICES[row.system]
    narrow = row.precision == "fp8" and (row.backend == "trtllm" or row.model_path.startswith("nvidia/"))
    widths = BITS[row.precision], 8 if narrow else 16  # these checkpoints ask for a cache of 8 bits
    isl, osl = int(row.isl), int(row.osl)
    at_once = min(int(row.batch_size), resident(model, device, widths, isl + osl))
    if at_once < 1:
        return None
    decode = step(model, device, framework, widths, at_once, 1, isl + osl // 2)
    return decode + (at_once - 1) * step(model, device, framework, widths, 1, isl, 0) / osl


def report(name, rows):
    "Rows, mean and median of the absolute error and the bias, of both predictions"
    said = [f"{name:44} {len(rows):5}"]
    for column in ("calibrated", "roofline"):
        off = 100 * (rows[column] / rows.measured - 1)
        said.append(f"{off.abs().mean():7.1f} {off.abs().median():7.1f} {off.mean():+7.1f}")
    print("   ".join(said))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="the folder aiconfigurator_core; without it the installed package")
    parser.add_argument("--rows", type=Path, help="write the rows with both predictions to this CSV file")
    args = parser.parse_args()
    if args.tables is None:
        import aiconfigurator_core
        args.tables = Path(aiconfigurator_core.__file__).parent
    rows, why = comparable(pd.read_csv(args.tables / "systems/silicon_sample.csv"))
    found = []
    for row in rows.itertuples():
        framework = {"trtllm": "tensorrt-llm"}.get(row.backend, row.backend)
        try:
            calibrated, roofline = token(row, framework), token(row, None)
        except HardwareError as e:
            why[str(e)[:70]] += 1
            continue
        if calibrated is None:
            why["weights do not fit"] += 1
            continue
        found.append({**row._asdict(), "measured": row.silicon_tpot_ms / 1e3, "calibrated": calibrated,
                      "roofline": roofline, "framework": framework})
    found = pd.DataFrame(found)
    for reason, many in why.items():
        print(f"left out: {many:5}  {reason}")
    print(f"\n{'':44} {'rows':>5}   calibrated: mean, median, bias   roofline: mean, median, bias (%)")
    report("all", found)
    for names in (["model_path"], ["system"], ["framework"], ["precision"], ["framework", "system"]):
        for key, part in found.groupby(names):
            report(" ".join(map(str, key)), part)
    ratio = np.quantile(found.measured / found.calibrated, [0.1, 0.5, 0.9])
    print("measured / calibrated, 10th percentile, median, 90th:", *(f"{r:.3f}" for r in ratio))
    if args.rows:
        found.to_csv(args.rows, index=False)


if __name__ == "__main__":
    main()
