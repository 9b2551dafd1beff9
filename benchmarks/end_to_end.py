"""The time of an output token in published serving runs, beside what is predicted: nothing is fitted to these rows.

    pip install -e ".[calibration]"
    python benchmarks/end_to_end.py                  # about twenty seconds
    python benchmarks/end_to_end.py --rows rows.csv   # and every row with its prediction

The rows are `systems/silicon_sample.csv` of aiconfigurator-core: a framework served a model on one to eight GPUs to so
many clients at once. Predicted is a decode step at the mean length of the cache, and what the prefills of the other
requests add to it at steady state. As many sequences are resident as weights and cache leave room for. On several GPUs
products, heads and experts are divided as Megatron does, and two sums over them follow in every layer.
"""
import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lm_predictor import analyze
from lm_predictor.timing.kernels.calibrated import DENSE, LAUNCH_S, ROUTED, calibration, chosen, in_attention, in_step, interval_of, launches, step_times, usual
from lm_predictor.timing.hardware import HardwareError, load_hardware
from lm_predictor.timing.laws import fitted
from lm_predictor.timing.laws.attention import Attention
from lm_predictor.timing.laws.collective import AllReduce
from lm_predictor.timing.laws.experts import Grouped
from lm_predictor.timing.laws.law import Chip
from lm_predictor.timing.laws.product import Product
from lm_predictor.timing.laws.stream import Stream
from lm_predictor.timing.kernels.roofline import kernel_time

DEVICES = {"h100_sxm": "nvidia_h100_sxm", "h200_sxm": "nvidia_h200_sxm", "b200_sxm": "nvidia_b200",
           "b300_sxm": "nvidia_b300", "gb200": "nvidia_gb200", "gb300": "nvidia_gb300"}
MODELS = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
          "meta-llama/Llama-3.1-70B": "llama-3.1-70b", "Qwen/Qwen3-32B": "qwen3-32b", "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
          "openai/gpt-oss-120b": "gpt-oss-120b", "deepseek-ai/DeepSeek-R1": "deepseek-r1", "deepseek-ai/DeepSeek-V3": "deepseek-v3",
          "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1", "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3", "zhipuai/GLM-5": "glm-5",
          "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5", "moonshotai/Kimi-K2.5": "kimi-k2.5", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
          "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b"}
FAMILY = {"llama": "Llama 3.1", "qwen3-32b": "Qwen3 32B", "gpt-oss": "GPT-OSS", "deepseek": "DeepSeek V3", "glm": "GLM-5",
          "minimax": "MiniMax M2", "kimi": "Kimi K2", "qwen3-235b": "Qwen3 MoE", "qwen3.5": "Qwen3.5"}
# bits of a weight; a device's type of products; types of the tables' products and experts
TYPES = {"bf16": (16, "bf16", "bfloat16", "bfloat16"), "fp8": (8, "fp8", "fp8", "fp8"), "fp4": (4, "fp4", "nvfp4", "nvfp4"),
         "int4": (4, "bf16", "bfloat16", "int4_wo")}
MULTIPLIED = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp8"}  # the others multiply 16 bits
SIZE = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}
# published in 8 bits with a scale for each block of 128 by 128 (weight_block_size of their quantization_config)
BLOCKS = ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3", "zhipuai/GLM-5", "MiniMaxAI/MiniMax-M2.5",
          "Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3.5-397B-A17B")
USED = 0.9  # of a device's memory, the default of vLLM's gpu_memory_utilization
PULL = 0.2  # towards no factor and no constant, in the fit of the two
CACHED = 1.0  # what the cache is faster than the memory, for kernels that only go over their numbers and fit half of it
LOCAL = ("q_a_proj", "kv_a_proj", "indexer", ".gate", "router")  # weights that every GPU has whole
INPUT = ("o_proj", "down_proj", "out_proj")  # products whose inputs are divided, and not their results


# sweeps of github.com/SemiAnalysisAI/InferenceX whose steps make several tokens: (model, framework, device, precision,
# release, day that they ran), and the pull request of `perf-changelog.yaml` that names the config `...-mtp`
SPECULATIVE = {("deepseek-ai/DeepSeek-R1", "trtllm", "", "", "1.1.0rc2.post2", "2026-01-14"): 392,
               ("deepseek-ai/DeepSeek-R1", "trtllm", "b200_sxm", "fp8", "1.2.0rc6.post3", "2026-02-05"): 632,
               ("deepseek-ai/DeepSeek-R1", "trtllm", "b200_sxm", "fp4", "1.2.0rc6.post3", "2026-02-06"): 642,
               ("deepseek-ai/DeepSeek-R1", "sglang", "b200_sxm", "fp8", "0.5.9", "2026-03-25"): 626,
               ("Qwen/Qwen3.5-397B-A17B", "sglang", "b200_sxm", "fp8", "0.5.9", "2026-03-20"): 898}


def run_of(rows):
    "What tells a run from others, in every dump: one of the dumps has its times to a hundredth of a millisecond"
    return rows[["backend", "system"]].join(rows[["silicon_tpot_ms", "silicon_ttft_ms"]].round(2))


def speculative(rows):
    """Which rows are of a sweep of `SPECULATIVE`, in whatever dump.

    626 ran on one day with the same config without speculation, whose rows the dump of the database has as well.
    """
    day = rows.silicon_data_source.str.extract(r"measured=([0-9-]+)")[0]
    found = pd.Series(False, index=rows.index)
    for model, *same, measured in SPECULATIVE:
        columns = zip(("backend", "system", "precision", "backend_version"), same)
        found |= np.logical_and.reduce([rows.model_path == model, day == measured, *(rows[c] == v for c, v in columns if v)])
    run = pd.MultiIndex.from_frame(run_of(rows))
    plain = rows.silicon_data_source.str.startswith("db-dump").to_numpy()
    return run.isin(run[found]) & ~run.isin(run[plain])


def family_of(path):
    "The family of a model, by its name in the table"
    return next(f for name, f in FAMILY.items() if MODELS[path].startswith(name))


SWEEP = ["backend", "model_path", "system", "precision", "gemm_quant_mode", "moe_quant_mode", "tp_size", "moe_tp", "moe_ep",
         "isl", "osl", "backend_version"]


def disturbed(rows):
    "Which rows are of a sweep where a step of more sequences takes less than four fifths of one of fewer"
    least = rows.sort_values("batch_size", ascending=False).groupby(SWEEP).silicon_tpot_ms.cummin()
    late = rows.assign(falls=least.reindex(rows.index) < 0.8 * rows.silicon_tpot_ms)
    return late.groupby(SWEEP).falls.transform("any")


def comparable(rows):
    "The rows that aggregate prefill and decode, of a model that we answer; and why the others are not"
    why = Counter()

    def keep(chosen, reason):
        nonlocal rows
        why[reason] += int((~chosen).sum())
        rows = rows[chosen]

    keep(rows["mode"] == "agg", "prefill and decode on different devices")
    keep((rows.pp_size == 1) & (rows.attention_dp_size.fillna(1) <= 1), "pipelines, or attention divided by requests")
    keep(rows.tp_size.isin((1, 2, 4, 8)), "more than eight GPUs")
    parts = rows.moe_tp_size.fillna(1).clip(1) * rows.moe_ep_size.fillna(1).clip(1)
    keep((parts == rows.tp_size) | (parts == 1), "experts on other GPUs than attention")
    rows = rows.assign(precision=rows.precision.fillna("bf16"), moe_tp=rows.moe_tp_size.fillna(1).clip(1),
                       moe_ep=rows.moe_ep_size.fillna(1).clip(1))
    keep(rows.model_path.isin(MODELS), "model")
    keep(~speculative(rows), "several tokens in a step, by InferenceX's own log")
    rows = rows.fillna({c: "" for c in ("backend_version", "gemm_quant_mode", "moe_quant_mode")})
    family = rows.model_path.map(family_of)  # one run stands under the names of V3 and of R1
    keep(~run_of(rows).assign(family=family, clients=rows.batch_size).duplicated(), "the same run in another dump")
    merged = rows.groupby([*SWEEP, "batch_size"], as_index=False)[["silicon_tpot_ms", "silicon_ttft_ms"]].median()
    why["repeats merged"], rows = len(rows) - len(merged), merged
    keep(~disturbed(rows), "sweeps in which more sequences took less time")
    return rows, why


@cache
def cost(model):
    return analyze(model)


@cache
def kernels(model, w_bits, kv_bits, batch_size, seq_len, cache_len):
    "The kernels of one forward on one GPU, with their sizes"
    run = cost(model).at(batch_size=batch_size, seq_len=seq_len, cache_len=cache_len, w_bits=w_bits, a_bits=16, kv_bits=kv_bits)
    return [(k, k.work()) for k in run.kernels]


def divided(k, work, tp, moe_tp, moe_ep):
    "(a kernel's FLOPs and bytes on one of several GPUs, its sizes there)"
    local = any(name in k.path for name in LOCAL)
    if isinstance(work, Attention):
        kv = max(work.kv_heads / tp, 1.0)
        work = replace(work, heads=work.heads / tp, kv_heads=kv, cache_bytes=work.cache_bytes * kv / work.kv_heads,
                       moved_bytes=work.moved_bytes / tp)
        return k.flops / tp, k.matmul_flops / tp, work.cache_bytes + work.moved_bytes, work
    if isinstance(work, Grouped):
        first = "index" in k.operation  # it gathers the rows that it multiplies
        work = replace(work, rows=work.rows / moe_ep, reached=work.reached / moe_ep, n=work.n / (moe_tp if first else 1),
                       k=work.k / (1 if first else moe_tp), choices=work.rows, experts=work.experts / moe_ep,
                       inner=work.inner / moe_tp)
        parts = moe_tp * moe_ep
    elif isinstance(work, Stream):  # of heads, or of channels
        work, parts = replace(work, flops=work.flops / tp, nbytes=work.nbytes / tp, blocks=work.blocks / tp), tp
    elif isinstance(work, Product) and not local:
        if work.batch >= tp and work.batch > 1:
            work = replace(work, batch=work.batch / tp)
        else:
            name = "k" if any(n in k.path for n in INPUT) else "n"
            work = replace(work, **{name: getattr(work, name) / tp})
        parts = tp
    else:
        parts = 1 if local or any(name in k.operation for name in ("rsqrt", "layer_norm", "topk")) else tp
    return k.flops / parts, k.matmul_flops / parts, (k.read_bytes + k.write_bytes) / parts, work


def step(row, device, framework, batch_size, seq_len, cache_len, types):
    "Seconds of one forward, (calibrated, roofline)"
    w_bits, peak, multiplied, moe, kv_bits, moe_sizes = types
    times, tp = step_times(device, framework), int(row.tp_size)
    peak = peak if peak in dict(device.peaks) else "bf16"
    held, least, layers = [times.host_s()], [], 0
    for k, work in kernels(MODELS[row.model_path], w_bits, kv_bits, batch_size, seq_len, cache_len):
        layers += k.count * ("o_proj" in k.path or "out_proj" in k.path)
        flops, matmul, nbytes, work = divided(k, work, tp, int(row.moe_tp), int(row.moe_ep))
        dtype = "bf16" if isinstance(work, Attention) or isinstance(work, Grouped) and moe == "bfloat16" else peak
        t = kernel_time(int(flops), int(matmul), int(nbytes), device, dtype)
        least.append(k.count * t.time_s)
        held_in_cache = work is None and nbytes < (device.l2_cache_bytes or 0) / 2
        seconds, fit = times.time(t.compute_s, t.memory_s / (CACHED if held_in_cache else 1))[0], None
        if work is not None and times.laws:
            if isinstance(work, Product):
                work = replace(work, item=SIZE[multiplied], weight_item=SIZE[multiplied])
                types = [(multiplied, "")]
            elif isinstance(work, Grouped):
                work = replace(work, item=moe_sizes[0], row_item=moe_sizes[1])
                types = [(moe, ""), ("fp8_block" if moe == "fp8" else moe, "")]
            elif isinstance(work, Stream):
                types = [("bfloat16", "")]
            else:
                types = [(q, kv) for q in ("bfloat16", "fp8") for kv in (["fp8"] if kv_bits == 8 else []) + ["bfloat16"]]
            fit = chosen(times.laws, work, types)
        if in_attention(framework, k.operation):
            seconds = 0.0
        elif fit:
            seconds = in_step(fit, work, times.chip(MULTIPLIED.get(fit.dtype, "bf16")))
        held.append(k.count * (seconds + LAUNCH_S * (launches(framework, k.operation) - 1)))
    if tp > 1:
        summed = sums(device, framework, tp, 2 * batch_size * seq_len * cost(MODELS[row.model_path]).values["hidden_size"])
        held.append(2 * layers * summed[0])
        least.append(2 * layers * summed[1])
    return sum(held), sum(least)


@cache
def sums(device, framework, gpus, nbytes):
    "Seconds of an all-reduce: (calibrated, at the rate of the links)"
    own = calibration(device)
    fit = usual(f for f in own.laws if f.framework == framework and (f.kind, f.dtype) == ("all-reduce", "bfloat16"))
    links = Chip(1.0, own.link_bytes_per_s, 1, 0.0)
    least = 2 * (gpus - 1) / gpus * nbytes / own.link_bytes_per_s
    return (fit.time(AllReduce(gpus, nbytes), links) if fit else LAUNCH_S + least), least


@cache
def memory(model, w_bits, kv_bits, length):
    "Bytes of the weights, and of the cache of one sequence"
    run = cost(model).at(batch_size=1, seq_len=1, cache_len=length, w_bits=w_bits, a_bits=16, kv_bits=kv_bits)
    return run.totals.weight_bytes, run.totals.kv_cache_bytes


def types_of(row, device):
    "Bits of a weight, the device's type of products, the tables' types, bits of the cache, bytes of experts' numbers"
    w_bits, peak, product, moe = TYPES[row.precision]
    narrow = row.precision in ("fp8", "fp4") and (row.backend == "trtllm" or row.model_path.startswith("nvidia/"))
    if row.precision == "fp8" and (row.model_path in BLOCKS or row.gemm_quant_mode == "fp8_block"):
        product = moe = "fp8_block"
    sizes = {"bfloat16": (2.0, 2.0), "fp8": (1.0, 1.0), "fp8_block": (1.0, 1.0), "nvfp4": (0.5625, 0.5625), "int4_wo": (0.515625, 2.0)}
    if row.model_path == "openai/gpt-oss-120b":  # its experts are in MXFP4, all else in 16 bits
        peak, product, wide = "bf16", "bfloat16", "fp4" not in dict(device.peaks)
        moe = "w4a16_mxfp4" if wide else "w4a8_mxfp4_mxfp8"
        return 4, peak, product, moe, 8 if narrow else 16, (0.53125, 2.0 if wide else 1.0)
    return w_bits, peak, product, moe, 8 if narrow else 16, sizes[moe]


def token(row):
    """(seconds of an output token, by the roofline, at least, of the first one alone); None where the weights do not fit.

    The prompts of the others come between a token and the next: all of them where requests are spread in time, and half
    where as many start at once, for then the first of them waits for all and the last for none.
    """
    device, framework = load_hardware(DEVICES[row.system]), {"trtllm": "tensorrt-llm"}.get(row.backend, row.backend)
    types, isl, osl = types_of(row, device), int(row.isl), int(row.osl)
    weights, held = memory(MODELS[row.model_path], types[0], types[4], isl + osl)
    tp = int(row.tp_size)
    at_once = min(int(row.batch_size), int((USED * device.memory_bytes * tp - weights) // held))
    if at_once < 1:
        return None
    decode = step(row, device, framework, at_once, 1, isl + osl // 2, types)
    first = step(row, device, framework, 1, isl, 0, types)
    between = [(at_once - 1) * f / osl for f in first]
    return [d + b for d, b in zip(decode, between)] + [decode[0] + between[0] / 2, first[0]]


def report(name, rows):
    "Rows, mean and median of the absolute error and the bias, of both predictions, and how many the interval covers"
    said = [f"{name:44} {len(rows):5}"]
    for column in ("calibrated", "roofline"):
        off = 100 * (rows[column] / rows.measured - 1)
        said.append(f"{off.abs().mean():7.1f} {off.abs().median():7.1f} {off.mean():+7.1f}")
    print("   ".join(said), f"  {100 * rows.covered.mean():5.0f}")


def summary(found, why):
    "The errors of each group, and in which part of the roofline's and of the calibrated time the measured ones are"
    out = {"left_out": dict(why), "intervals": {" | ".join(k): v for k, v in quantiles(found).items()}, "groups": []}
    for names in ([], ["kind"], ["family"], ["system"], ["framework"], ["kind", "framework"], ["framework", "system"]):
        for key, part in found.groupby(names) if names else [((), found)]:
            said = {"by": names, "name": list(key), "rows": len(part), "covered": round(100 * float(part.covered.mean()), 1)}
            for column in ("calibrated", "roofline"):
                off, at = 100 * (part[column] / part.measured - 1), np.quantile(part.measured / part[column], (0.1, 0.5, 0.9))
                said[column] = {"mape": round(off.abs().mean(), 1), "median": round(off.abs().median(), 1), "bias": round(off.mean(), 1),
                                "measured_over": [round(float(q), 3) for q in at]}
            out["groups"].append(said)
    return out


def left_out(found):
    "Which rows an interval covers that was made without their family: the shipped rule, on the other families' rows"
    covered = pd.Series(False, index=found.index)
    for family in found.family.unique():
        quantiles_of = quantiles(found[found.family != family])
        for index, row in found[found.family == family].iterrows():
            low, high = interval_of(quantiles_of, row.framework, row.steps)
            covered[index] = low * row.least <= row.measured <= high * row.calibrated
    return covered


ALONE = 0.2  # of a token's time: with less of prompts between, a row measures steps


def quantiles(rows):
    "Of everything and of each kind of steps: which parts of the predicted steps four fifths of the measured are between"
    out, rows = {}, rows[rows.calibrated - rows.least < ALONE / 2 * rows.calibrated]
    for key, part in [(("", ""), rows), *((("", k), p) for k, p in rows.groupby("steps"))]:
        ratio, alike = part.measured / part.calibrated, 1 / part.family.map(part.family.value_counts())
        at = np.quantile(ratio, (0.1, 0.9), weights=alike, method="inverted_cdf")  # each family counts alike
        out[key] = tuple(round(float(q), 3) for q in at)
    return out


def corrected(found):
    """Times with a factor and a constant for each framework and device, from the rows of other families.

    The logarithm of the time is fitted, each family counted alike, without much weight on the rows that are furthest
    off, and with a pull towards no factor and no constant: what one family of models teaches about another is little.
    """
    from scipy.optimize import least_squares
    said = pd.Series(np.nan, index=found.index)
    for (framework, system, family), own in found.groupby(["framework", "system", "family"]):
        others = found[(found.framework == framework) & (found.system == system) & (found.family != family)]
        if len(others) < 20:
            continue
        time, alike = others.calibrated.to_numpy(), 1 / others.groupby("family").family.transform("size").to_numpy()
        weight = np.sqrt(alike / alike.sum())

        def off(x):  # factor, and constant in ms
            told = np.maximum(x[0] * time + x[1] / 1e3, 1e-6)
            return np.concatenate([weight * np.log(told / others.measured.to_numpy()), [PULL * np.log(x[0]), PULL * x[1]]])

        factor, constant = least_squares(off, [1.0, 0.0], loss="soft_l1", f_scale=0.005, bounds=([0.5, -3], [2, 10])).x
        said[own.index] = factor * own.calibrated + constant / 1e3
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="the folder aiconfigurator_core; without it the installed package")
    parser.add_argument("--rows", type=Path, help="write the rows with both predictions to this CSV file")
    parser.add_argument("--summary", type=Path, help="write the errors of each group to this JSON file, for the page that draws them")
    parser.add_argument("--cached", type=float, default=1.0, metavar="GAIN",
                        help="how much faster what fits the cache moves that one kernel wrote and the next reads (a trial)")
    parser.add_argument("--warm", action="store_true",
                        help="with weights and cached keys in the cache, as where a kernel is measured again and again (a trial)")
    args = parser.parse_args()
    global CACHED
    CACHED = args.cached
    if args.warm:
        fitted.WARM = {f.kind for name in DEVICES.values() for f in calibration(name).laws}
    if args.tables is None:
        import aiconfigurator_core
        args.tables = Path(aiconfigurator_core.__file__).parent
    rows, why = comparable(pd.read_csv(args.tables / "systems/silicon_sample.csv"))
    found = []
    for n, row in enumerate(rows.itertuples(), 1):
        if sys.stderr.isatty():
            print(f"\r{n}/{len(rows)} rows", end="", file=sys.stderr)
        try:
            said = token(row)
        except HardwareError as e:
            why[str(e)[:70]] += 1
            continue
        if said is None:
            why["weights do not fit"] += 1
            continue
        model = MODELS[row.model_path]
        steps = ROUTED if cost(model).record.experts else DENSE
        kind = steps if steps == ROUTED else f"{DENSE}, one GPU" if row.tp_size == 1 else f"{DENSE}, several"
        found.append({**row._asdict(), "measured": row.silicon_tpot_ms / 1e3, "calibrated": said[0], "roofline": said[1],
                      "least": said[2], "first": said[3], "steps": steps, "framework": {"trtllm": "tensorrt-llm"}.get(row.backend, row.backend), "kind": kind,
                      "family": family_of(row.model_path)})
    found = pd.DataFrame(found)
    faster = found.measured < found.roofline
    why["faster than the peaks allow: prompts found in a cache of prefixes"] = int(faster.sum())
    every, found = found, found[~faster].copy()
    found["covered"] = left_out(found)
    for reason, many in why.items():
        print(f"left out: {many:5}  {reason}")
    print(f"\n{'':44} {'rows':>5}   calibrated: mean, median, bias   roofline: mean, median, bias (%)   within the interval (%)")
    report("with those faster than the peaks", every.assign(covered=np.nan))
    for kind, part in every.groupby("kind"):
        report(f"    {kind}", part.assign(covered=np.nan))
    report("all", found)
    for names in (["kind"], ["family"], ["system"], ["framework"], ["precision"], ["framework", "system"]):
        for key, part in found.groupby(names):
            report(" ".join(map(str, key)), part)
    print("\nintervals of all families:", json.dumps({" | ".join(k): v for k, v in quantiles(found).items()}))
    print("\nwith two constants for each framework and device, from the other families of models:")
    off = 100 * (corrected(found) / found.measured - 1).abs()
    for kind, part in off.dropna().groupby(found.kind):
        print(f"{kind:44} {len(part):5}   {part.mean():7.1f} {part.median():7.1f}")
    alone = found[found.batch_size <= 1]
    off = 100 * (alone["first"] / (alone.silicon_ttft_ms / 1e3) - 1)
    if len(alone):
        print(f"first token without load: {len(alone)} rows, mean error {off.abs().mean():.1f} %, median {off.abs().median():.1f} %")
    if args.rows:
        every.to_csv(args.rows, index=False)
    if args.summary:
        args.summary.write_text(json.dumps(summary(found, why), indent=1) + "\n")


if __name__ == "__main__":
    main()
