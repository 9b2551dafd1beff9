"""Fit launch, efficiencies and overlap of kernels to the measured tables of aiconfigurator-core.

    pip install -e ".[calibration]"
    python benchmarks/fit_kernels.py            # every device: prints held-out errors
    python benchmarks/fit_kernels.py --write    # and writes hardware/calibrated/DEVICE.json

A fifth of the (N, K) pairs, or of the head configurations, is fitted; the errors are those of the others. Beside them
stands the plain roofline on the same rows. Latencies are per call, with the launches of a replayed CUDA graph.
"""
import argparse
import json
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lm_predictor.timing.calibrated import law
from lm_predictor.timing.hardware import load_hardware

ROOT = Path(__file__).parents[1]
DEVICES = {"a100_sxm": "nvidia_a100_sxm_80gb", "h100_sxm": "nvidia_h100_sxm", "h200_sxm": "nvidia_h200_sxm",
           "l40s": "nvidia_l40s", "b200_sxm": "nvidia_b200", "b300_sxm": "nvidia_b300", "gb200": "nvidia_gb200",
           "gb300": "nvidia_gb300", "rtx_pro_6000_server": "nvidia_rtx_pro_6000_blackwell_server",
           "h100_pcie": "nvidia_h100_pcie", "a100_pcie": "nvidia_a100_pcie_80gb", "l4": "nvidia_l4"}
FRAMEWORKS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_block": 1}
PEAK = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8"}
NAMES = ("launch_s", "compute", "memory", "power")
FEWEST = 200  # rows that a fit needs
LOW, HIGH = (2e-7, 0.02, 0.02, 1.0), (1e-4, 1.0, 1.5, 12.0)  # of launch, compute, memory and power


def products(t):
    "FLOPs, bytes, the group that is split by, the type of the numbers, and that of the cache, of each row of a table"
    size = t.gemm_dtype.map(BYTES).astype(float)
    return pd.DataFrame({
        "flops": 2.0 * t.m * t.n * t.k, "nbytes": size * (t.m * t.k + t.n * t.k) + 2.0 * t.m * t.n,
        "group": t.n.astype(str) + "x" + t.k.astype(str), "dtype": t.gemm_dtype, "cache": "", "latency": t.latency,
        "measured": t.m.astype(str) + "," + t.n.astype(str) + "," + t.k.astype(str)})


def _heads(t):
    kv = t.num_key_value_heads.where(t.num_key_value_heads > 0, t.num_heads)
    return kv, t.num_heads.astype(str) + "/" + kv.astype(str) + "x" + t.head_dim.astype(str)


def _window(t):
    "Tokens that a query sees at most, 0 for all; older tables have no such column"
    return t.window_size if "window_size" in t else pd.Series(0, index=t.index)


def context(t):
    "As `products`, of attention over a prompt without a cache before it; a window leaves out the pairs beyond it"
    kv, group = _heads(t)
    asked = _window(t)
    window = asked.where(asked > 0, t.isl).clip(upper=t.isl)
    pairs = window * (window + 1) / 2.0 + (t.isl - window) * window
    numbers = t.isl * t.head_dim * t.batch_size
    cached = t.kv_cache_dtype.map(BYTES).astype(float)
    return pd.DataFrame({
        "flops": 4.0 * t.batch_size * t.num_heads * t.head_dim * pairs,
        "nbytes": numbers * (4.0 * t.num_heads + 4.0 * kv + 2.0 * kv * cached), "group": group, "dtype": t.attn_dtype,
        "cache": t.kv_cache_dtype, "latency": t.latency,
        "measured": group + t.batch_size.astype(str) + "," + t.isl.astype(str) + "," + asked.astype(str)})


def decode(t):
    "As `products`, of attention of one new token over a cache"
    kv, group = _heads(t)
    length, asked = t.isl + t.step, _window(t)
    seen = length.where(asked <= 0, np.minimum(length, asked))
    cached = t.kv_cache_dtype.map(BYTES).astype(float)
    read = 2.0 * t.batch_size * seen * kv * t.head_dim * cached
    return pd.DataFrame({
        "flops": 4.0 * t.batch_size * t.num_heads * t.head_dim * seen,
        "nbytes": read + 4.0 * t.batch_size * t.num_heads * t.head_dim, "group": group, "dtype": t.attn_dtype,
        "cache": t.kv_cache_dtype, "latency": t.latency,
        "measured": group + t.batch_size.astype(str) + "," + t.step.astype(str) + "," + asked.astype(str)})


def experts(t):
    "As `products`, of both products of routed experts on one device: a token reaches topk of them, evenly spread"
    t = t[(t.distribution == "balanced") & (t.moe_ep_size == 1)]
    size, inter = t.moe_dtype.map(BYTES).astype(float), t.inter_size / t.moe_tp_size
    weights = 3.0 * t.hidden_size * inter
    reached = t.num_experts * (1 - (1 - t.topk / t.num_experts) ** t.num_tokens)
    return pd.DataFrame({
        "flops": 2.0 * t.num_tokens * t.topk * weights,
        "nbytes": reached * weights * size + 4.0 * t.num_tokens * t.hidden_size,
        "group": t.num_experts.astype(str) + "," + t.topk.astype(str) + "," + t.hidden_size.astype(str) + ","
                 + inter.astype(str), "dtype": t.moe_dtype, "cache": "", "latency": t.latency,
        "measured": t.num_tokens.astype(str)})


KINDS = {"product": ("gemm", "gemm_perf", products), "context attention": ("attention", "context_attention_perf", context),
         "decode attention": ("attention", "generation_attention_perf", decode), "experts": ("moe", "moe_perf", experts)}


NUMBERS = ("m", "n", "k", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "latency",
           "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")


def numeric(table):
    "The table with numbers in the columns that some releases write as text; what is no number becomes NaN"
    return table.assign(**{c: pd.to_numeric(table[c], errors="coerce") for c in NUMBERS if c in table})


def rows_of(path, reader):
    "A table's rows as FLOPs, bytes and seconds, repeats merged; rows without a time or of an unknown type are dropped"
    table = numeric(pd.read_parquet(path))
    rows = reader(table)
    rows = rows[rows.dtype.isin(BYTES) & np.isfinite(rows.nbytes) & (rows.latency > 0)]
    keys = ["dtype", "cache", "group", "measured"]
    merged = rows.groupby(keys, as_index=False).agg(flops=("flops", "first"), nbytes=("nbytes", "first"),
                                                    latency=("latency", "median"))
    return merged.assign(time=merged.latency * 1e-3), len(table) - len(rows)


def errors(predicted, time):
    "Mean, median and 90th percentile of the relative error"
    off = np.abs(predicted / time - 1)
    return {"mape": round(100 * off.mean(), 1), "median": round(100 * np.median(off), 1),
            "p90": round(100 * np.quantile(off, 0.9), 1)}


def fit(rows, peak, bandwidth):
    "Launch (s), efficiencies of compute and memory, and the power of their norm, by the logarithm of the time"
    compute, memory = rows.flops.to_numpy() / peak, rows.nbytes.to_numpy() / bandwidth
    log = np.log(rows.time.to_numpy())
    start = [np.log(rows.time.quantile(0.01)), np.log(0.8), np.log(0.8), np.log(3.0)]
    low, high = np.log(LOW), np.log(HIGH)
    off = lambda x: np.log(law(*np.exp(x), compute, memory)) - log
    found = least_squares(off, np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=0.1)
    return np.exp(found.x)


def split(rows):
    "Which rows are fitted: those of a fifth of the groups, chosen by the checksum of their names"
    return rows.group.map(lambda g: zlib.crc32(g.encode()) % 5 == 0).to_numpy()


def fitted(kind, framework, version, rows, device, seen):
    "One entry of a device's file for each type of numbers and of cache in a table, but those that are fitted already"
    for (dtype, cache), part in rows.groupby(["dtype", "cache"]):
        if PEAK[dtype] not in dict(device.peaks) or (kind, framework, dtype, cache) in seen:
            continue
        peak, bandwidth, chosen = device.peak(PEAK[dtype]), device.memory_bandwidth, split(part)
        if chosen.sum() < FEWEST or (~chosen).sum() < FEWEST:
            continue
        seen.add((kind, framework, dtype, cache))
        x = fit(part[chosen], peak, bandwidth)
        held = part[~chosen]
        compute, memory, time = held.flops / peak, held.nbytes / bandwidth, held.time
        yield {"kind": kind, "framework": framework, "version": version, "dtype": dtype, "cache": cache,
               **{n: float(f"{v:.4g}") for n, v in zip(NAMES, x)}, "fitted_rows": int(chosen.sum()),
               "held_out_rows": len(held), "held_out": errors(law(*x, compute, memory), time),
               "roofline": errors(np.maximum(compute, memory), time)}


def sound(entry):
    "Whether launch and memory are inside of their bounds; a fit at them has no physical meaning and is left out"
    return all(1.01 * LOW[i] < entry[NAMES[i]] < 0.99 * HIGH[i] for i in (0, 2))


def tables(root, folder):
    "Each framework's tables of each kind, the newest first: kind, framework, version, path, reader"
    for kind, (op, name, reader) in KINDS.items():
        for ours, framework in FRAMEWORKS.items():
            found = sorted((root / "systems/data" / folder / op / ours).glob(f"*/{name}.parquet"),
                           key=lambda p: [int(d) for d in "".join(c if c.isdigit() else " " for c in p.parent.name).split()])
            for path in reversed(found):
                yield kind, framework, path.parent.name, path, reader


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="the folder aiconfigurator_core; without it the installed package")
    parser.add_argument("--device", action="append", help="only this device's folder, such as h100_sxm")
    parser.add_argument("--write", action="store_true", help="write hardware/calibrated/DEVICE.json")
    args = parser.parse_args()
    if args.tables is None:
        import aiconfigurator_core
        args.tables = Path(aiconfigurator_core.__file__).parent
    for folder in args.device or DEVICES:
        try:
            device = load_hardware(DEVICES[folder])
        except ValueError as e:
            print(f"{folder}: {e}")
            continue
        entries, seen = [], set()
        for kind, framework, version, path, reader in tables(args.tables, folder):
            rows, dropped = rows_of(path, reader)
            for entry in fitted(kind, framework, version, rows, device, seen):
                entries += [entry | {"dropped_rows": dropped}] * sound(entry)
                print(f"{folder:10} {kind:18} {framework:13} {version:12} {entry['dtype']:10} {entry['cache']:9}"
                      f" held out {entry['held_out']['mape']:5.1f} %  roofline {entry['roofline']['mape']:5.1f} %  "
                      + "  ".join(f"{n} {entry[n]:.3g}" for n in NAMES) + "  LEFT OUT" * (not sound(entry)), flush=True)
        if args.write and entries:
            out = ROOT / "hardware/calibrated" / f"{device.name}.json"
            out.parent.mkdir(exist_ok=True)
            lines = ",\n".join("  " + json.dumps(e) for e in entries)
            source = "aiconfigurator-core 0.12.0 on PyPI (Apache-2.0), systems/data/" + folder
            out.write_text(f'{{"device": "{device.name}", "source": "{source}", '
                           f'"command": "python benchmarks/fit_kernels.py --write", "fits": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
