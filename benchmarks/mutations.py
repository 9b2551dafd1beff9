"""Does verification notice when any one formula of any record is changed?

    python benchmarks/mutations.py --count 1000 --seed 0

Evidence is collected once per model record, as `lm-predictor verify` does. Then, as often as asked, a kind of formula is drawn, a
formula of that kind, and a change: a factor 2, a half, one more, one less, another symbol, a sign, a dropped term, an exponent. A
change that leaves the formula the same everywhere its record applies is no mutation and is drawn again. The changed record goes
through the checks of `verify`; the share that fails is printed, and each survivor.

    python benchmarks/mutations.py --rules

changes the rules of the operators table instead, and asks which road notices: see rule_mutations.py.
"""
import argparse
import copy
import json
import logging
import random
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

AIM = 0.995


@dataclass(frozen=True)
class Site:
    "One formula in one file"
    kind: str  # "operator cost", "node reads", ...
    owner: str  # class name or model record id
    path: tuple  # keys into the record's JSON
    case: str = ""  # of a model record's graph
    argument: tuple = ()  # (which reference, which of its arguments) for a reference argument
    variant: int = 0  # of a class


@dataclass
class Mutant:
    site: Site
    change: str  # "half", "symbol", ...
    old: str
    new: str
    caught: str = ""  # the check that failed
    where: dict = field(default_factory=dict)  # numbers at which the two formulas differ


# ---- every formula of the records

def class_sites(data: dict):
    "The formulas of a class record"
    name = data["class_name"]
    variants = [((), data["kernels"]), *((("variants", i), v["kernels"]) for i, v in enumerate(data.get("variants", ())))]
    for v, (root, kernels) in enumerate(variants):
        for i, kernel in enumerate(kernels):
            at = (*root, "kernels", i)
            yield from _cost_sites("kernel cost", name, at, kernel, v)
            for j, operator in enumerate(kernel.get("operators", ())):
                yield from _cost_sites("operator cost", name, (*at, "operators", j), operator, v)
            if "repeat" in kernel:
                yield Site("kernel repeat", name, (*at, "repeat"), variant=v)
            for j in range(len(kernel.get("when", ()))):
                yield Site("kernel when", name, (*at, "when", j), variant=v)


def _cost_sites(kind: str, name: str, at: tuple, data: dict, variant: int):
    from lm_predictor.formula.language import parse
    for path in (("flops",), ("matmul_flops",), ("memory_access", "read"), ("memory_access", "write")):
        text = follow(data, path)
        yield Site(kind, name, (*at, *path), variant=variant)
        for r, ref in enumerate(parse(text).references):
            for a in range(len(ref.kwargs)):
                yield Site("reference argument", name, (*at, *path), argument=(r, a), variant=variant)


def model_sites(data: dict):
    "The formulas of a model record"
    name = data["id"]
    yield Site("parameters", name, ("parameters",))
    yield Site("weight_bytes", name, ("weight_bytes",))
    for i in range(len(data["modules"])):
        for j in (2, 3):
            yield Site("module row", name, ("modules", i, j))
    for case, graph in data["cases"].items():
        at = ("cases", case)
        yield Site("kv_cache_bytes", name, (*at, "kv_cache_bytes"), case)
        for i in range(len(graph["tensors"])):
            for j in (0, 1):
                yield Site("tensor", name, (*at, "tensors", i, j), case)
        for i in range(len(graph["calls"])):
            yield Site("call repeat", name, (*at, "calls", i, 3), case)
        for i, node in enumerate(graph["nodes"]):
            for key in ("flops", "matmul_flops", "extent", "scores", "pairs"):
                if key in node:
                    yield Site(f"node {key}", name, (*at, "nodes", i, key), case)
            for key in ("reads", "writes"):
                for j in range(len(node[key])):
                    yield Site(f"node {key}", name, (*at, "nodes", i, key, j, 1), case)


def follow(data, path: tuple):
    for key in path:
        data = data[key]
    return data


def put(data, path: tuple, value):
    "A copy of JSON with one value replaced; what is beside the path is shared"
    if not path:
        return value
    twin = copy.copy(data)
    twin[path[0]] = put(data[path[0]], path[1:], value)
    return twin


# ---- changes

def texts(formula) -> list:
    "(path, subformula) of everything in a formula, arguments of references included"
    return [((), formula), *(((i, *path), f) for i, part in enumerate(formula.operands) for path, f in texts(part))]


def rebuilt(formula, path: tuple, new: str) -> str:
    "The text of a formula with the subformula at a path replaced by other text"
    if not path:
        return f"({new})"
    parts = [rebuilt(p, path[1:], new) if i == path[0] else f"({p})" for i, p in enumerate(formula.operands)]
    if formula.op == "reference":
        ref = formula.args[0]
        return f"${{{ref.class_name}}}({', '.join([*parts[:len(ref.args)], *(f'{n}={p}' for (n, _), p in zip(ref.kwargs, parts[len(ref.args):]))])})"
    if formula.op == "**":
        return f"({parts[0]})**{formula.args[1]}"
    return f"{formula.op}({', '.join(parts)})" if formula.op in ("min", "max", "ceil", "floor") else f" {formula.op} ".join(parts)


def changes(formula, symbols: list, rng: random.Random):
    "A random change of a formula: (what was done, new text)"
    spots = [(path, f) for path, f in texts(formula) if f.op != "reference" and not (path and _exponent(formula, path))]
    what = rng.choice(["double", "half", "plus", "minus", "symbol", "sign", "drop", "exponent"])
    fits = {"symbol": lambda f: f.op == "name", "sign": lambda f: f.op == "+", "drop": lambda f: f.op == "+" and len(f.args) > 1,
            "exponent": lambda f: f.op in ("name", "**")}.get(what, lambda f: True)
    spots = [s for s in spots if fits(s[1])]
    if not spots:
        return None
    path, f = rng.choice(spots)
    if what == "symbol":
        new = rng.choice([s for s in symbols if s != str(f)] or [str(f)])
    elif what in ("sign", "drop"):
        i = rng.randrange(len(f.args))
        new = " + ".join(f"-({a})" if j == i and what == "sign" else f"({a})" for j, a in enumerate(f.args) if j != i or what == "sign")
    elif what == "exponent":
        new = f"({f.args[0]})**{int(str(f.args[1])) + rng.choice([-1, 1])}" if f.op == "**" else f"({f})**2"
    else:
        new = {"double": f"2*({f})", "half": f"({f})/2", "plus": f"({f}) + 1", "minus": f"({f}) - 1"}[what]
    return what, rebuilt(formula, path, new)


def _exponent(formula, path: tuple) -> bool:
    "Whether a path ends at the exponent of a power"
    for key in path[:-1]:
        formula = formula.operands[key]
    return formula.op == "**" and path[-1] == 1


def mutate(text: str, site: Site, symbols: list, rng: random.Random) -> tuple | None:
    "A changed formula or condition: (what was done, new text); None where the change does not apply or gives the same text"
    from lm_predictor.formula.tree import FormulaError
    from lm_predictor.formula.language import parse, parse_condition
    try:
        if site.kind == "kernel when":
            condition = parse_condition(text)
            side = rng.choice(["left", "right"])
            done = changes(getattr(condition, side), symbols, rng)
            new = done and str(parse_condition(f"{done[1]} {condition.relation} {condition.right}" if side == "left" else f"{condition.left} {condition.relation} {done[1]}"))
        elif site.argument:
            ref = parse(text).references[site.argument[0]]
            name, value = ref.kwargs[site.argument[1]]
            done = changes(value, symbols, rng)
            new = done and str(parse(text.replace(str(ref), str(ref).replace(f"{name}={value}", f"{name}={parse(done[1])}"))))
        else:
            done = changes(parse(text), symbols, rng)
            new = done and str(parse(done[1]))
    except FormulaError:  # a division by zero, an exponent that is none
        return None
    return (done[0], new) if done and new != text else None


# ---- the records, their evidence, and the checks of `verify`

class Bench:
    "Records, evidence about them, and mutants of them"

    def __init__(self, records: list | None = None, seed: int = 0, uniform: bool = False, say=lambda text: None):
        "`records`: ids or model types; default all that ship. `uniform`: every formula as likely, else every kind of formula"
        from transformers import AutoConfig
        from lm_predictor.records.storage.database import Database, shipped_directory
        from lm_predictor.records.storage.files import read_json
        from lm_predictor.verification.runs.reference_run import collect
        from lm_predictor.models.matching import symbol_values, with_layers_of
        from lm_predictor.verification.prove import default_config, subjects
        from lm_predictor.verification.runs.counter import counted, workloads_of
        self.rng, self.uniform, self.db = random.Random(seed), uniform, Database(shipped_directory(), shipped_directory())
        self.records, self.evidence, self.numbers, self.data = {}, {}, {}, {}
        types = sorted({re.sub(r"-[0-9a-f]{8}$", "", r) for r in records}) if records else [""]
        for s in (s for model_type in types for s in subjects(self.db, model_type)):
            if s.configs and not s.record.functions and (not records or s.record.id in records or s.record.model_type in records):
                # of a config with the layers that the record names: mutants are made of its text
                alike = lambda row: with_layers_of(s.record, AutoConfig.for_model(**row[1]).to_dict()) is s.record
                called, own = next(filter(alike, (*s.configs, *default_config(s.record))), s.configs[0])
                start, config = time.perf_counter(), AutoConfig.for_model(**own)
                values = symbol_values(s.record, config.to_dict())
                self.evidence[s.record.id] = collect(s.record, config, values)
                self.evidence[s.record.id].counted = [(called, counted(config, values, workloads_of(s.record, values)))]
                self.records[s.record.id], self.numbers[s.record.id], self.data[s.record.id] = s.record, values, read_json(s.path)
                say(f"{s.record.id}: evidence in {time.perf_counter() - start:.1f} s")
        self.sites: dict[str, list] = {}
        for site in self._all_sites():
            self.sites.setdefault(site.kind, []).append(site)
        self.every = [s for kind in sorted(self.sites) for s in self.sites[kind]]

    def _all_sites(self):
        for data in list(self.data.values()):
            yield from model_sites(data)
        graphs = [r.graph(case) for r in self.records.values() for case in r.cases]
        for name in sorted({call.class_name for g in graphs for call in g.calls}):
            data = json.loads(self.db.path(name).read_text())
            if any(m in self.records for v in self.db.get(name).variants for m in v.models):
                self.data[name] = data
                yield from (s for s in class_sites(data) if self._models(s))

    def _models(self, site: Site) -> list:
        "The models that a class's variant was traced in, of those with evidence"
        return [m for m in self.db.get(site.owner).variants[site.variant].models if m in self.records]

    def mutant(self) -> Mutant | None:
        "A random change of a random formula; None when it comes to nothing"
        site = self.rng.choice(self.every if self.uniform else self.sites[self.rng.choice(sorted(self.sites))])
        data = self.data[site.owner]
        old = str(follow(data, site.path))
        if site.owner in self.records:
            symbols = sorted([*self.records[site.owner].symbols, "batch_size", "seq_len", "cache_len", "w_bytes", "a_bytes", "kv_bytes"])
        else:
            symbols = sorted(p["name"] for p in data.get("parameters", ()))
        done = mutate(old, site, symbols, self.rng)
        return done and Mutant(site, done[0], old, done[1])

    # -- does it change anything?

    def differs(self, mutant: Mutant) -> bool:
        "Whether the two formulas differ anywhere that the record applies; notes where"
        from lm_predictor.formula.tree import FormulaError
        for values in self._points(mutant.site):
            try:
                old, new = (meaning(text, values, mutant.site.kind) for text in (mutant.old, mutant.new))
            except FormulaError:  # a division by zero: certainly another formula
                old, new = 0, 1
            if old != new:
                mutant.where = values
                return True
        return False

    def _points(self, site: Site):
        "Random numbers within the assumptions of a formula's record"
        from lm_predictor.verification.runs.numbers import config_sizes, workload_sizes
        from lm_predictor.verification.expansion import of_config
        widths = dict(zip(("w_bytes", "a_bytes", "kv_bytes"), self.rng.sample([17, 19, 23, 29, 31], 3)))
        if site.owner not in self.records and not of_config(self.db.get(site.owner)):
            for _ in range(60):  # a class built from numbers may be built from any
                flags = {p.name for p in self.db.get(site.owner).parameters if p.default in (0, 1)}
                yield widths | {n: self.rng.randrange(2) if n in flags else self.rng.randrange(1, 500) for n in sorted(self.db.get(site.owner).names() - widths.keys())}
            return
        models = [site.owner] if site.owner in self.records else self._models(site)
        uses = 0 if site.owner in self.records else max([0, *map(int, re.findall(r"\buse == (\d+)", json.dumps(self.data[site.owner])))])  # which call of the class it is
        phases = () if site.owner in self.records else follow(self.data[site.owner], site.path[:site.path.index("kernels") + 2]).get("phases", ())
        for _ in range(60):
            record = self.records[self.rng.choice(models)]
            case = site.case or self.rng.choice([c for c in record.cases if not phases or c in phases])
            values = config_sizes(record, self.numbers[record.id], self.rng, self.rng.choice([1, 97]))
            sizes = workload_sizes(record, case, values, self.rng, self.rng.choice([(1, 5), (2, 50), (100, 5000)]))
            if sizes:
                yield values | widths | {"tie_word_embeddings": self.rng.randrange(2), "use": self.rng.randrange(uses + 1)} | sizes

    # -- is it noticed?

    def catch(self, mutant: Mutant) -> str:
        "The first check of `verify` that fails for a mutant; empty when all hold"
        data = put(self.data[mutant.site.owner], mutant.site.path, mutant.new)
        return next(self._failed(mutant.site, data), "")

    def _failed(self, site: Site, data: dict):
        from lm_predictor.records.model import record_from_json
        from lm_predictor.records.analysis import analysis_from_json
        from lm_predictor.verification.verify import class_checks, model_checks
        from lm_predictor.verification.expansion import expansion
        if site.owner in self.records:
            base = self.records[site.owner]
            try:
                graphs = {case: data["cases"][case] if case == site.case else base.graph(case) for case in base.cases}
                record = record_from_json({**data, "cases": graphs})
                record.graph(site.case or next(iter(base.cases)))
            except ValueError:
                yield "schema"
                return
            checks = model_checks(record, self.evidence[record.id], self.db)
            yield from (c.what for c in checks if not c.ok)
            yield from (c.what for _, c in class_checks(record, self.evidence[record.id], self.db) if not c.ok)
            return
        try:
            db = Swapped(self.db, analysis_from_json(data))
        except ValueError:
            yield "schema"
            return
        for model in self._models(site):
            record, evidence = self.records[model], self.evidence[model]
            yield from (c.what for _, c in class_checks(record, evidence, db) if not c.ok)
            yield from (c.what for c in expansion(record, db) if not c.ok)

    def intact(self) -> list:
        "What fails without any mutation: must be empty, or the share means nothing"
        from lm_predictor.verification.verify import verify_model
        failed = []
        for model, record in self.records.items():
            own, classes = verify_model(record, self.evidence[model], self.db)
            failed += [f"{model}: {c.name}: {c.detail}" for c in own if not c.ok]
            failed += [f"{name}: {c.name}: {c.detail}" for name, checks in classes.items() for c in checks if not c.ok]
        return failed


class Swapped:
    "A database with one analysis in place of the stored one"

    def __init__(self, db, analysis):
        self.db, self.analysis = db, analysis

    def get(self, class_name: str, model: str = ""):
        return self.analysis if class_name == self.analysis.class_name else self.db.get(class_name, model=model)

    def __contains__(self, class_name: str) -> bool:
        return class_name in self.db


def meaning(text: str, values: dict, kind: str):
    "What a formula or condition says at numbers: its own value and how often it refers to what, with which arguments"
    from lm_predictor.formula.language import parse_condition
    from lm_predictor.verification.expansion import split
    if kind == "kernel when":
        return parse_condition(text).holds(values)
    direct, references = split(text)
    calls = Counter()
    for ref, count in references:
        calls[ref.class_name, tuple((n, f.evaluate(values)) for n, f in ref.kwargs)] += count.evaluate(values)
    return direct.evaluate(values), {k: n for k, n in calls.items() if n}


def sample(bench: Bench, count: int, say=lambda text: None) -> tuple[list, list]:
    "`count` mutants that change something, each with the check that caught it; and the changes that came to nothing"
    found, same = [], []
    while len(found) < count:
        mutant = bench.mutant()
        if mutant is None:
            continue
        if not bench.differs(mutant):
            same.append(mutant)
            continue
        mutant.caught = bench.catch(mutant)
        found.append(mutant)
        if len(found) % 100 == 0:
            say(f"{len(found)} of {count}, {sum(bool(m.caught) for m in found)} caught")
    return found, same


def explanation(mutant: Mutant) -> str:
    "Why a mutant may have survived, from its formula"
    text = f"{mutant.old} {mutant.new}"
    if any(word in text for word in ("min(", "max(", "ceil(", "floor(", "//", "%")):
        return "branch: the formulas differ only where a minimum, maximum or rounding turns, and no run was made there"
    return "unexplained"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--uniform", action="store_true", help="every formula as likely (default: every kind of formula)")
    parser.add_argument("--records", nargs="*", help="model record ids or types (default: all that ship)")
    parser.add_argument("--rules", action="store_true", help="change rules of the operators table, not formulas of records")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.rules:
        from rule_mutations import RuleBench, report as report_rules
        return 2 if report_rules(RuleBench()) else 0
    say = lambda text: print(text, file=sys.stderr, flush=True)
    start = time.perf_counter()
    bench = Bench(args.records, args.seed, args.uniform, say)
    broken = bench.intact()
    if broken:
        print("\n".join(broken))
        print("verification fails without any mutation, so nothing can be said")
        return 2
    collected = time.perf_counter() - start
    print(f"{sum(map(len, bench.sites.values())):,} formulas in {len(bench.data)} records; evidence of {len(bench.records)} models in {collected:.0f} s")
    start = time.perf_counter()
    mutants, same = sample(bench, args.count, say)
    report(mutants, same, bench, time.perf_counter() - start)
    return 0 if sum(bool(m.caught) for m in mutants) >= AIM * len(mutants) else 2


def report(mutants: list, same: list, bench: Bench, seconds: float) -> None:
    print("\n| kind of formula | formulas | mutants | caught |\n|---|---:|---:|---:|")
    for kind in sorted(bench.sites):
        of = [m for m in mutants if m.site.kind == kind]
        print(f"| {kind} | {len(bench.sites[kind]):,} | {len(of)} | {sum(bool(m.caught) for m in of)} |")
    print("\n| check that caught it first | mutants |\n|---|---:|")
    for what, n in Counter(m.caught for m in mutants if m.caught).most_common():
        print(f"| {what} | {n} |")
    caught = sum(bool(m.caught) for m in mutants)
    print(f"\n{caught} of {len(mutants)} mutants caught, {caught / len(mutants):.2%} (aim {AIM:.1%}), in {seconds:.0f} s; {len(same)} changes came to nothing and are not counted")
    for m in same:
        print(f"NO CHANGE {m.site.kind} ({m.change}, {m.site.case or 'class'}): {m.old[:120]} -> {m.new[:120]}")
    for m in mutants:
        if not m.caught:
            print(f"SURVIVED {m.site.kind} {m.site.owner} {'.'.join(map(str, m.site.path))} ({m.change}): {m.old} -> {m.new}\n  {explanation(m)}; e.g. {m.where}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    raise SystemExit(main())
