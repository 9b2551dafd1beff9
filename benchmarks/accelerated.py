"""Which types trace with their accelerated functions as operators, and on which rung of the ladder.

    python benchmarks/accelerated.py [TYPE ...]

The types are those whose source has such functions: every causal language model type of the installed transformers is
looked at. One line per type: the functions that its default config runs, the last rung, the integers of the config that had
to be numbers, what torch's counter says of the rest of the model, and the seconds it took.
"""
import logging
import sys
import time
import warnings

from lm_predictor.models.sources.hub import quiet
from lm_predictor.models.sources.loading import full_config
from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.obtain.build import model_types
from lm_predictor.obtain.fresh.ladder import attempts_of
from lm_predictor.records.cases import Case
from lm_predictor.tracing.runtime.functions import functions_of, replaced
from lm_predictor.tracing.roads.symbolic import ALL_SYMBOLIC

CASES = tuple(map(Case, ("prefill", "decode", "extend")))


def types_with_functions() -> list[str]:
    "The types whose source has accelerated functions"
    found = []
    for name in model_types():
        try:
            with quiet():
                found += [name] * bool(functions_of(full_config(type_config(name))))
        except Exception as e:  # a config class that needs more than its defaults
            print(f"{name}: {type(e).__name__}: {' '.join(str(e).split())[:100]}", file=sys.stderr)
    return found


def row(name: str) -> tuple[str, bool]:
    "What became of a type, in a line, and whether all its integers are symbols"
    start = time.perf_counter()
    with quiet():
        config = full_config(type_config(name))
        with replaced(config):
            last = attempts_of(config, cases=CASES)[-1]
    took = f"{time.perf_counter() - start:.0f} s"
    if last.error or last.record is None:
        return f"{name}: failed on {last.rung.name}: {last.why[:200]}, {took}", False
    ran = {n.op.rpartition(".")[2] for g in last.record.cases.values() for n in g.nodes if n.kind == "function"}
    numbers = ", ".join(sorted(last.rung.concrete)) or "none"
    said = f"{last.rung.name}; as numbers: {numbers}; counter: {last.outcome.result} {last.outcome.detail}".rstrip()
    return f"{name}: {' '.join(sorted(ran))}; {said}; {took}", last.rung.name == ALL_SYMBOLIC and last.stands


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    names = sys.argv[1:] or types_with_functions()
    symbolic = 0
    for name in names:
        line, whole = row(name)
        symbolic += whole
        print(line, flush=True)
    print(f"{symbolic} of {len(names)} types with all integers of their config as symbols")


if __name__ == "__main__":
    main()
