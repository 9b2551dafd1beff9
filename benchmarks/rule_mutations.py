"""Which check notices that a cost rule itself is wrong? Run by `python benchmarks/mutations.py --rules`.

A rule of the operators table is changed, a small model is traced under it from its source, and four roads are asked:

symbols         what `verify` compares, torch's counter left out: the formulas with runs at numbers, the classes'
                records with the model's, the sums of the expansion; both sides take the changed rule
torch's counter `FlopCounterMode`, which has rules of its own for matrix products
third road      `byte_counter.ByteCounter` over real tensors, which has rules of its own for bytes
hand            the arithmetic in the cells of the notebook that states the rules
"""
import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import third_road

ROADS = ("symbols", "torch's counter", "third road", "hand")


@dataclass(frozen=True)
class RuleMutation:
    "A change of the rule of an operator and of those that share it, and a family that runs it"
    operator: str
    what: str
    change: Callable  # of (Cost, inputs, outputs) of one call
    family: str = "qwen3_moe"


# ---- changes of a Cost

def size(operand) -> object:
    from lm_predictor.cost.rules.operators import numel
    return numel(operand.shape)


def flops(count: Callable) -> Callable:
    "Other FLOPs, of the inputs and outputs; those of a matrix product stay what torch would count"
    return lambda cost, ins, outs: replace(cost, flops=cost.flops + count(ins, outs))


def product(factor) -> Callable:
    "The matrix product has a multiple of its FLOPs"
    more = factor - 1
    return lambda cost, ins, outs: replace(
        cost, flops=cost.flops + more * cost.matmul_flops, matmul_flops=factor * cost.matmul_flops)


def read(position: int, count: Callable) -> Callable:
    "Another number of elements is read of one input"
    return lambda cost, ins, outs: replace(cost, reads=cost.reads | {position: count(ins, outs)})


def written(count: Callable) -> Callable:
    "Another number of elements is written of the first output"
    return lambda cost, ins, outs: replace(cost, writes=cost.writes | {0: count(ins, outs)})


NONE, WHOLE = lambda ins, outs: 0, lambda ins, outs: size(ins[0])
PER_OUTPUT = lambda ins, outs: size(outs[0])
TWICE = lambda ins, outs: 2 * size(outs[0])

MUTATIONS = (
    RuleMutation("mm", "4 FLOPs for a multiply-accumulate", product(2)),
    RuleMutation("mm", "the weights are not read", read(1, NONE)),
    RuleMutation("mm", "the product is written twice", written(TWICE)),
    RuleMutation("bmm", "4 FLOPs for a multiply-accumulate", product(2)),
    RuleMutation("addmm", "the FLOPs of the bias are left out", flops(lambda ins, outs: -size(outs[0])), "gpt2"),
    RuleMutation("addmm", "the bias is not read", read(0, NONE), "gpt2"),
    RuleMutation("_grouped_mm", "a product for each of 2 experts", product(2)),
    RuleMutation("_grouped_mm", "all experts are read", read(1, lambda ins, outs: size(ins[1]))),
    RuleMutation("mul", "2 FLOPs an element", flops(PER_OUTPUT)),
    RuleMutation("mul", "the first input is not read", read(0, NONE)),
    RuleMutation("mul", "a broadcast input counts once for each result", read(1, PER_OUTPUT)),
    RuleMutation("div_", "what is divided in place is not read", read(0, NONE)),
    RuleMutation("where", "2 FLOPs an element", flops(PER_OUTPUT)),
    RuleMutation("_softmax", "4 FLOPs an element instead of 3", flops(PER_OUTPUT)),
    RuleMutation("_softmax", "written twice", written(TWICE)),
    RuleMutation("native_layer_norm", "6 FLOPs an element instead of 5", flops(PER_OUTPUT), "gpt2"),
    RuleMutation("native_layer_norm", "the input is not read", read(0, NONE), "gpt2"),
    RuleMutation("mean", "1 FLOP more for each result", flops(PER_OUTPUT)),
    RuleMutation("topk", "2 FLOPs an element", flops(WHOLE)),
    RuleMutation("cumsum", "2 FLOPs an element", flops(WHOLE)),
    RuleMutation("_to_copy", "a cast is a FLOP an element", flops(PER_OUTPUT)),
    RuleMutation("_to_copy", "what is cast is not read", read(0, NONE)),
    RuleMutation("cat", "the first part is not read", read(0, NONE)),
    RuleMutation("embedding", "the whole table is read", read(0, WHOLE)),
    RuleMutation("index", "the whole table is read", read(0, WHOLE)),
    RuleMutation("index_put_", "the whole tensor is written", written(PER_OUTPUT)),
    RuleMutation("index_put_", "what is overwritten is read", read(0, WHOLE)),
    RuleMutation("empty_like", "what is allocated is written", written(PER_OUTPUT)),
    RuleMutation("zeros", "what is created is not written", written(NONE)))


@contextlib.contextmanager
def mutated(mutation: RuleMutation | None):
    "Within it, the operators table has the changed rule, for all operators that share it"
    from lm_predictor.cost.rules.operators import RULES, operator_cost
    before, changed = dict(RULES), mutation.operator if mutation else ""
    rule = before.get(changed, ("pointwise", None))

    def under(name):
        def cost(inputs, outputs, args):
            with replaced(RULES, before):
                true = operator_cost(name, inputs, outputs, args, pointwise=rule[1] is None)
            return mutation.change(true, inputs, outputs)
        return rule[0], cost

    names = [name for name, (_, function) in before.items() if function is rule[1]]
    with replaced(RULES, before | {name: under(name) for name in (names or [changed])} if changed else before):
        yield


@contextlib.contextmanager
def replaced(table: dict, content: dict):
    "Within it, a dictionary holds something else"
    before = dict(table)
    table.clear()
    table.update(content)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


# ---- the roads

class RuleBench:
    "Small models of families, and what the roads say of them under a changed rule"

    def __init__(self, phases=("prefill", "decode")):
        self.phases, self.families = phases, {}

    def family(self, name: str) -> tuple:
        "Config, transformers config, kinds of layers, and what the byte counter counts in each phase; made once"
        if name not in self.families:
            config = third_road.config_of(third_road.FAMILIES[name])
            model = third_road.model_of(config)
            rows = {phase: third_road.measured(model, *third_road.PHASES[phase]) for phase in self.phases}
            self.families[name] = config, model.config, third_road.layers_of(model)[1], rows
        return self.families[name]

    def caught(self, mutation: RuleMutation | None, family: str = "") -> dict[str, str]:
        "Road -> what it says against a changed rule; empty where it sees nothing"
        family = self.family(mutation.family if mutation else family)
        with mutated(mutation):
            record, classes, values = self.traced(*family[:2])
            failed = self.verified(record, classes, values, family[1])
            return {"symbols": next((what for what in failed if "FlopCounterMode" not in what), ""),
                    "torch's counter": next((what for what in failed if "FlopCounterMode" in what), ""),
                    "third road": self.third(record, values, *family[2:]), "hand": by_hand()}

    def traced(self, config: dict, full) -> tuple:
        "The records of a config, traced under the rules that now stand, and its numbers by symbol"
        from lm_predictor.models.matching import symbol_values
        from lm_predictor.records.cases import Case
        from lm_predictor.tracing.lowering.classes import ClassRecords
        from lm_predictor.tracing.lowering.graphs import model_record
        from lm_predictor.tracing.roads.symbolic import trace_model
        trace = trace_model(full, [Case(phase) for phase in self.phases])
        record = model_record(trace)
        return record, ClassRecords.of(trace, record.id).all(), symbol_values(record, full.to_dict())

    def verified(self, record, classes: dict, values: dict, full) -> list[str]:
        "The checks of `verify` that fail"
        from lm_predictor.records.storage.database import Database
        from lm_predictor.verification.runs.counter import counted, workloads_of
        from lm_predictor.verification.runs.reference_run import collect
        from lm_predictor.verification.verify import class_checks, model_checks
        evidence, db = collect(record, full, values), Database.of(classes)
        evidence.counted = [("", counted(full, values, workloads_of(record, values)))]
        checks = [*model_checks(record, evidence, db), *(check for _, check in class_checks(record, evidence, db))]
        return [f"{c.name}: {c.detail}" for c in checks if not c.ok]

    def third(self, record, values: dict, kinds: list, rows: dict) -> str:
        "The first operator whose bytes the byte counter cannot explain"
        from lm_predictor.timing.prediction import ModelCost
        for phase in self.phases:
            ours = third_road.figures(ModelCost("config", record, values), *third_road.PHASES[phase])
            for text in third_road.compared(ours, rows[phase], kinds).unexplained:
                return f"{phase}: {text}"
        return ""


def iter_tracebacks(traceback):
    "A traceback and those below it"
    while traceback:
        yield traceback
        traceback = traceback.tb_next


def by_hand() -> str:
    "The first cell of the operators notebook whose arithmetic fails under the rules that now stand"
    from lm_predictor.cost.rules import operators
    (path,) = (Path(__file__).resolve().parent.parent / "nbs").rglob("*_operators.ipynb")
    names = dict(vars(operators))
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and not text.startswith("#|"):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(text, names)
            except AssertionError as e:
                lines = [t.tb_lineno for t in iter_tracebacks(e.__traceback__) if t.tb_frame.f_globals is names]
                return text.splitlines()[lines[-1] - 1].strip()
    return ""


def report(bench: RuleBench, mutations=MUTATIONS) -> int:
    "Print which road notices which mutation; gives how many none does"
    for family in dict.fromkeys(m.family for m in mutations):
        wrong = {road: text for road, text in bench.caught(None, family).items() if text}
        if wrong:
            print(f"{family}: {wrong}\nthese fail without any mutation, so nothing can be said")
            return len(mutations)
    print(f"| operator | change of its rule | {' | '.join(ROADS)} |\n|---|---|{'---|' * len(ROADS)}")
    counts, missed = dict.fromkeys(ROADS, 0), 0
    for m in mutations:
        found = bench.caught(m)
        marks = " | ".join("caught" if found[road] else "" for road in ROADS)
        print(f"| `{m.operator}` | {m.what} | {marks} |", flush=True)
        counts = {road: n + bool(found[road]) for road, n in counts.items()}
        missed += not any(found.values())
    print(f"| {len(mutations)} rules | {missed} noticed by none | {' | '.join(map(str, counts.values()))} |")
    return missed
