"""How fast are the formulas as a library, next to NumPy written by hand and to LLM-Viewer's method?

    python benchmarks/library.py --repeat 5 [--points 100000000]

Llama-2-7B, all in one process and in turns, so that a busy machine slows all of them. Warm evaluation: every kernel of one
workload. A million workloads: all totals, with and without times. By hand: the same totals and the same kernels as NumPy, their
coefficients as literals, no check of sizes and no choice of cases. LLM-Viewer's method is written here from what it publishes:
per layer and phase a row of operations and bytes, each through a roofline, then sums over the layers. It answers prefill and decode
in one call, so its time is halved for one workload.
"""
import argparse
import json
import platform
import resource
import sys
import time
from math import ceil
from statistics import median

import numpy as np

from lm_predictor.library.sweeps.arrays import SUMS, totals
from lm_predictor.library.sweeps.compiled import Compiled
from lm_predictor.library.sweeps.grid import Grid
from lm_predictor.library.sweeps.sweep import AT_ONCE, Sweep, rows_of
from lm_predictor.obtain.analyze import analyze

MODEL, DEVICE = "meta-llama/Llama-2-7b-hf", "nvidia_a100_sxm_80gb"
SIDE = 1000  # batch sizes and lengths of a million workloads
AIMS = {"warm_s": 50e-6, "million_s": 2.0, "by_hand": 3.0, "llm_viewer": 20.0}


# -- LLM-Viewer's method ------------------------------------------------------------------------------------------------------

SIZES = {"hidden": 4096, "inner": 11008, "heads": 32, "layers": 32, "vocab": 32000}
LINEARS = {"q_proj": (4096, 4096), "k_proj": (4096, 4096), "v_proj": (4096, 4096), "out_proj": (4096, 4096),
           "gate_proj": (4096, 11008), "up_proj": (4096, 11008), "down_proj": (11008, 4096)}


def roofline(ops: float, moved: float, bandwidth: float, peak: float) -> dict:
    "One row: what bounds it and how long it takes"
    intensity = ops / moved
    memory = intensity < peak / bandwidth
    performance = intensity * bandwidth if memory else peak
    return {"OPs": ops, "memory_access": moved, "arithmetic_intensity": intensity, "performance": performance,
            "bound": "memory" if memory else "compute", "inference_time": ops / performance}


def llm_viewer(seq: int, batch: int, bandwidth: float, peak: float, width: float = 2.0) -> dict:
    "Rows of a layer in both phases, and sums over all layers"
    head = SIZES["hidden"] // SIZES["heads"]
    found = {"decode": {}, "prefill": {}}
    for phase, tokens in (("decode", 1), ("prefill", seq)):
        row = lambda name, ops, *moved: found[phase].__setitem__(name, roofline(ops, sum(moved), bandwidth, peak))
        for name, (wide, high) in LINEARS.items():
            row(name, 2 * wide * high * batch * tokens, wide * high * width, wide * batch * tokens * width, high * batch * tokens * width)
        pairs = tokens * seq * SIZES["heads"] * batch
        cache = seq * head * SIZES["heads"] * batch * width
        row("qk_matmul", 2 * pairs * head, tokens * SIZES["hidden"] * batch * width, pairs * width, cache)
        row("sv_matmul", 2 * pairs * head, pairs * width, tokens * SIZES["hidden"] * batch * width, cache)
        row("softmax", 5 * pairs, pairs * width, pairs * width)
        state = batch * SIZES["hidden"] * tokens
        for name in ("attn_norm", "mlp_norm"):
            row(name, 7 * state, state * width, state * width)
        for name in ("attn_add", "mlp_add"):
            row(name, state, state * width, state * width)
        row("mlp_act", 2 * state, 2 * state * width, state * width)
    sums = {}
    for phase, rows in found.items():
        sums[phase] = {n: sum(r[n] for r in rows.values()) * SIZES["layers"] for n in ("OPs", "memory_access", "inference_time")}
        tokens = seq if phase == "prefill" else 1
        wide, high = SIZES["hidden"], SIZES["vocab"]
        last = roofline(2 * wide * high * batch * tokens, (wide * high + (wide + high) * batch * tokens) * width, bandwidth, peak)
        sums[phase] = {n: v + last[n] for n, v in sums[phase].items()}
    return {**found, "total_results": sums}


# -- by hand --------------------------------------------------------------------------------------------------------------------

def by_hand(fast: Compiled, timed: bool) -> str:
    "A NumPy function of the totals of prompts as somebody would write it, its coefficients as literals"
    piece = fast.piece(2, 2, 0)
    sums = [parts[0][0] for parts in piece._parts]
    monomials: dict = {}

    def text(p) -> str:
        assert p.denominator == 1, "the formulas of this model are whole"
        kept = [(n, "*".join({"batch_size": "b", "seq_len": "s"}[v] for v in m)) for m, n in p.terms if "cache_len" not in m]
        for _, m in kept:
            monomials.setdefault(m, f"m{len(monomials)}") if "*" in m else None
        return " + ".join(f"{int(n)}*{monomials.get(m, m)}" if m else str(int(n)) for n, m in kept) or "0"

    lines = [f"    {n} = {text(p)}" for n, p in zip(SUMS, sums)]
    if timed:
        vector, bandwidth = fast.hardware.vector_peak("fp32"), fast.hardware.memory_bandwidth
        lines.append("    time_s = 0.0")
        for (count, flops, products, read, write, _), peak in zip(piece.figures, fast.peaks(piece)):
            slowest = f"np.maximum(np.maximum(({text(products)})/{peak}, ({text(flops - products)})/{vector}), ({text(read + write)})/{bandwidth})"
            lines.append(f"    time_s = time_s + ({text(count)})*{slowest}")
    head = [f"    {name} = {m}" for m, name in monomials.items()]
    names = ", ".join([*SUMS, *(["time_s"] if timed else [])])
    return "\n".join(["def run(b, s):", *head, *lines, f"    return {names}"])


def made(code: str):
    held = {"np": np}
    exec(code, held)
    return held["run"]


# -- the run --------------------------------------------------------------------------------------------------------------------

def best(contestants: dict, repeat: int, times: int) -> dict:
    "Least and median seconds of one call, the contestants in turns"
    found: dict = {name: [] for name in contestants}
    for _ in range(repeat):
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(times):
                call()
            found[name].append((time.perf_counter() - start) / times)
    return {name: {"min_s": min(rows), "median_s": median(rows)} for name, rows in found.items()}


def check(fast: Compiled, timed: Compiled, hand, hand_timed) -> None:
    "All roads give the same figures, at 1000 of the million workloads, to the integer"
    rng = np.random.default_rng(0)
    b, s = rng.integers(2, SIDE, 1000), rng.integers(2, SIDE, 1000)
    ours, own, own_timed = totals(timed, b, s, 0), hand(b, s), hand_timed(b, s)
    for i, name in enumerate(SUMS):
        assert (ours[name] == own[i]).all() and (ours[name] == own_timed[i]).all(), name
    assert np.allclose(ours["time_s"], own_timed[-1], rtol=1e-12)
    run = fast.cost.at(batch_size=int(b[0]), seq_len=int(s[0])).on(DEVICE)
    assert [getattr(run.totals, n) for n in SUMS] == [int(ours[n][0]) for n in SUMS]


def blocks(call, columns, size: int = AT_ONCE):
    "A function of columns, in blocks that stay in the cache, as ours does"
    return lambda: [call(*(c[i:i + size] for c in columns)) for i in range(0, len(columns[0]), size)]


def long_sweep(points: int) -> dict:
    "A sweep of many workloads, part by part, as `lm-predictor sweep -o` computes it; what it holds"
    side = ceil(points ** 0.5)
    plan = Sweep.of(MODEL, range(1, side + 1), range(1, side + 1), 0, DEVICE)
    before, start, part = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), 1 << 18
    for first in range(0, plan.size, part):
        rows_of(plan, first, min(plan.size, first + part))
    return {"points": plan.size, "seconds": time.perf_counter() - start,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "peak_before_mb": before / 1024}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--points", type=int, default=0, help="also a sweep of so many workloads, in bounded memory")
    args = parser.parse_args()
    cost = analyze(MODEL)
    fast, timed = Compiled(cost), Compiled(cost, hardware=DEVICE)
    hand, hand_timed = made(by_hand(fast, False)), made(by_hand(timed, True))
    check(fast, timed, hand, hand_timed)
    bandwidth, peak = float(timed.hardware.memory_bandwidth), float(timed.hardware.peak("bf16"))
    warm = best({
        "at": lambda: cost.at(batch_size=3, seq_len=7, cache_len=16),
        "compiled kernels": lambda: fast.kernels(3, 7, 16), "compiled totals": lambda: fast.totals(3, 7, 16),
        "compiled time": lambda: timed.time_s(3, 7, 16),
        "LLM-Viewer's method, two workloads": lambda: llm_viewer(7, 3, bandwidth, peak),
    }, args.repeat, 200)
    columns = Grid.of(f"2:{SIDE + 1}", f"2:{SIDE + 1}").part(0, SIDE**2)  # all run the same case, the one written by hand
    mixed = Grid.of(f"1:{SIDE}", f"1:{SIDE}").part(0, SIDE**2)  # and these four
    million = best({
        "sweep of totals": blocks(lambda *c: totals(fast, *c), columns), "by hand": blocks(hand, columns[:2]),
        "by hand, whole arrays": lambda: hand(*columns[:2]),
        "sweep with times": blocks(lambda *c: totals(timed, *c), columns), "by hand with times": blocks(hand_timed, columns[:2]),
        "sweep with times, four cases": blocks(lambda *c: totals(timed, *c), mixed),
        "rows of a table, with times": lambda: rows_of(Sweep.of(cost, f"1:{SIDE}", f"1:{SIDE}", 0, DEVICE), 0, SIDE**2),
    }, args.repeat, 1)
    least = lambda rows, name: rows[name]["min_s"]
    viewer = 2 / least(warm, "LLM-Viewer's method, two workloads")
    found = {
        "machine": f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}",
        "kernels": len(fast.kernels(3, 7, 16)), "warm": warm, "million": million,
        "by hand / ours": {
            "totals": least(million, "sweep of totals") / least(million, "by hand"),
            "with times": least(million, "sweep with times") / least(million, "by hand with times")},
        "workloads per second": {"ours": 1e6 / least(million, "sweep with times"), "LLM-Viewer's method": viewer,
                                 "ratio": 1e6 / least(million, "sweep with times") / viewer},
    } | ({"long": long_sweep(args.points)} if args.points else {})
    met = (least(warm, "compiled kernels") <= AIMS["warm_s"] and least(million, "sweep with times") <= AIMS["million_s"]
           and max(found["by hand / ours"].values()) <= AIMS["by_hand"] and found["workloads per second"]["ratio"] >= AIMS["llm_viewer"])
    print(json.dumps(found | {"aims": AIMS, "met": met}, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
