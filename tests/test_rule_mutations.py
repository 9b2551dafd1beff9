"A wrong cost rule is noticed, and by which road: a few of the changes that benchmarks/mutations.py --rules makes."
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import rule_mutations  # noqa: E402
from lm_predictor.cost.rules.operators import RULES  # noqa: E402
from rule_mutations import NONE, PER_OUTPUT, RuleMutation, flops, mutated, product, read  # noqa: E402


@pytest.fixture(scope="module")
def bench():
    return rule_mutations.RuleBench(phases=("decode",))


def roads(found: dict) -> set:
    return {road for road, text in found.items() if text}


def test_nothing_fails_without_a_mutation(bench):
    assert roads(bench.caught(None, "gpt2")) == set()


@pytest.mark.parametrize("operator, change, noticed", [
    ("addmm", product(2), {"torch's counter", "hand"}),
    ("addmm", read(0, NONE), {"third road"}),
    ("_softmax", flops(PER_OUTPUT), {"hand"})])
def test_which_road_notices(bench, operator, change, noticed):
    "The formulas and the runs take the same rules, so that comparing them shows none of these"
    assert roads(bench.caught(RuleMutation(operator, "", change, "gpt2"))) == noticed


def test_every_change_of_flops_fails_the_arithmetic_of_the_notebook():
    "No other road sees the FLOPs of what is no matrix product"
    about_flops = [m for m in rule_mutations.MUTATIONS if "FLOP" in m.what]
    assert len(about_flops) > 8
    for m in about_flops:
        with mutated(m):
            assert rule_mutations.by_hand(), m


def test_the_table_is_as_it_was():
    before = dict(RULES)
    for operator in ("_softmax", "tanh"):
        with mutated(RuleMutation(operator, "", flops(PER_OUTPUT))):
            assert RULES != before
    assert RULES == before and rule_mutations.by_hand() == ""
