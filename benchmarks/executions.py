"""Does each execution move at most the bytes of the one before it, for every preset at six workloads?

    python benchmarks/executions.py [PRESET...]    by default all; 1 where a pair is neither in order nor explained

eager >= fused >= flash >= kernels >= engine, in bytes read and written, and matrix FLOPs of engine at most those of kernels.

And does a decode step in engine move at most 1.05 times what it must: each weight that is used once, what is cached once, the logits?
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lm_predictor import analyze
from lm_predictor.cost.execution import distinct_elements, outside
from lm_predictor.cost.rewrites.engine import REWRITES, engine_plan
from lm_predictor.models.sources.hub import presets
from lm_predictor.models.config.validation import ModelError

WORKLOADS = (
    dict(batch_size=1, seq_len=512), dict(batch_size=8, seq_len=100), dict(batch_size=1, seq_len=1, cache_len=500),
    dict(batch_size=16, seq_len=1, cache_len=900), dict(batch_size=1, seq_len=64, cache_len=300),
    dict(batch_size=4, seq_len=30, cache_len=400),
)
# (model type, phase, execution that moves more than the one before it) -> how much more at most, and why
MAMBA = "in one step, the kernel of the state reads A = -exp(A_log) in float32 from memory, which the source's own chain "\
        "of operators makes within one kernel; engine makes it when the model is loaded, and moves less than flash"
DELTA = "the recurrent kernel gives a new state, which the source copies over the cached one; engine updates it in place"
EXPLAINED = {
    **{(kind, "decode", "kernels"): (0.01, MAMBA) for kind in ("mamba", "falcon_mamba", "jamba")},
    ("qwen3_next", "decode", "kernels"): (0.05, DELTA), ("qwen3_5_text", "decode", "kernels"): (0.08, DELTA),
    ("qwen3_5_moe_text", "decode", "kernels"): (0.06, DELTA),
}

STEPS = (dict(batch_size=1, cache_len=1000), dict(batch_size=16, cache_len=1000))
MUST = 1.05
STATE = "a state is written as often as it is read, which this does not count as needed"
# model type -> how many times what a step must move it moves at most, and why
HEAVY = {
    "mamba": (1.25, STATE), "mamba2": (1.4, STATE), "falcon_mamba": (1.1, STATE), "nemotron_h": (1.15, STATE),
    "qwen3_5_text": (1.06, STATE), "rwkv": (1.9, STATE + "; its states are five vectors in float32, updated by several kernels"),
}


def must_move(cost, run) -> float:
    "Bytes of each weight that a step uses, and of each cached number, once, and of the logits"
    cost = cost.answering("engine")[0]
    case, values, _ = cost.case_at(run.workload)
    graph = cost.record.graph(case)
    plan, applied = engine_plan(graph, REWRITES.keys() - {r.name for r in run.rewrites})
    values = values | cost._chosen(graph, applied, run.workload, values)[0]
    number, used, whole = lambda f: f.evaluate(values), {}, {}
    for group in plan.groups:
        nodes = [plan.nodes[i] for i in group]
        times = number(plan.times.get(group[0], plan.graph.repeat(nodes[0].call)))
        for t, reads in outside(plan, nodes).items():
            tensor = plan.graph.tensors[t]
            if tensor.kind in ("weight", "buffer", "cache"):
                used[t] = used.get(t, 0) + times * number(distinct_elements(plan.graph, t, reads) * tensor.item)
                whole[t] = times * number(tensor.elements * tensor.item)
    logits = plan.graph.tensors[plan.graph.logits]
    return float(sum(min(n, whole[t]) for t, n in used.items()) + number(logits.elements * logits.item))


def too_much(name: str) -> list[tuple]:
    "(workload, how many times what it must move it moves, why) of a preset's decode steps above MUST"
    cost, found = analyze(name), []
    for sizes in STEPS:
        try:
            run = cost.at(execution="engine", **sizes)
        except ModelError:
            continue
        times = (run.totals.read_bytes + run.totals.write_bytes) / must_move(cost, run)
        limit, why = HEAVY.get(cost.record.model_type, (MUST, ""))
        if times > MUST:
            found.append((sizes, times, why if times <= limit else ""))
    return found


def out_of_order(name: str) -> list[tuple]:
    "(workload, execution before, execution, how much more it moves, why) of a preset, where an execution moves more"
    cost, found = analyze(name), []
    for sizes in WORKLOADS:
        try:
            runs = [cost.at(execution=e, **sizes) for e in cost.executions]
        except ModelError as e:
            found += [] if "positions" in str(e) else [(sizes, "", "", str(e), "")]
            continue
        moved = [run.totals.read_bytes + run.totals.write_bytes for run in runs]
        for before, run, had, has in zip(runs, runs[1:], moved, moved[1:]):
            if has > had:
                limit, why = EXPLAINED.get((cost.record.model_type, run.workload.phase, run.execution), (0, ""))
                found.append((sizes, before.execution, run.execution, has / had - 1, why if has <= had * (1 + limit) else ""))
        if runs[-1].totals.matmul_flops > runs[-2].totals.matmul_flops:
            found.append((sizes, runs[-2].execution, "engine", "more matrix FLOPs", ""))
        if moved[-1] > moved[cost.executions.index("flash")]:
            found.append((sizes, "flash", "engine", moved[-1] / moved[cost.executions.index("flash")] - 1, ""))
    return found


def main(names: list[str]) -> int:
    wrong = 0
    for name in names or sorted(presets()):
        for sizes, before, after, more, why in out_of_order(name):
            wrong += not why
            amount = f"{more:+.2%}" if isinstance(more, float) else more
            print(f"| {name} | {', '.join(f'{k}={v}' for k, v in sizes.items())} | {before} -> {after} | {amount} | {why or 'NOT EXPLAINED'} |",
                  flush=True)
        for sizes, times, why in too_much(name):
            wrong += not why
            print(f"| {name} | {', '.join(f'{k}={v}' for k, v in sizes.items())} | engine / must | {times:.2f} | {why or 'NOT EXPLAINED'} |",
                  flush=True)
    print(f"{len(names or presets())} presets, {len(WORKLOADS)} workloads: {wrong} not explained")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
