"A counter that shares no code with the package counts the same bytes: benchmarks/third_road.py on a few small models."
import ast
import dataclasses
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import byte_counter  # noqa: E402
import third_road  # noqa: E402
from lm_predictor import analyze  # noqa: E402

FEW = ("gpt2", "llama", "opt", "qwen2", "qwen3_moe", "mixtral", "falcon", "starcoder2", "xglm", "biogpt", "olmo",
       "apertus")
LAYERED = "gemma3_text"  # two kinds of layers, in turn


def counted(function, *args):
    "The one row that a function's operators leave, views and creation aside"
    with torch.no_grad(), byte_counter.ByteCounter() as counter:
        function(*args)
    assert len(counter.rows) == 1, [r.op for r in counter.rows]
    return counter.rows[0].read, counter.rows[0].write


# ---- the counter, by hand

X = torch.zeros(3, 7)  # float32: 84 bytes


def test_an_operator_reads_its_inputs_and_writes_what_is_new():
    assert counted(torch.add, X, X.clone()) == (168, 84)
    assert counted(torch.mm, X, torch.zeros(7, 16)) == (84 + 448, 192)


def test_a_byte_counts_once():
    row = torch.zeros(1, 7)
    assert counted(torch.add, X, row.expand(3, 7)) == (84 + 28, 84)  # an expanded input is seven elements
    assert counted(torch.add, X, X) == (84, 84)
    assert counted(torch.add, X[:, :5], X[:, 2:]) == (84, 60)  # the two views share three columns
    assert counted(torch.neg, torch.zeros(9).unfold(0, 3, 1)) == (36, 84)  # seven windows over nine elements


def test_views_cost_nothing_and_parts_count_as_parts():
    with byte_counter.ByteCounter() as counter:
        X.t()[1:].unsqueeze(0).expand(2, 6, 3)
    assert counter.rows == []
    assert counted(torch.neg, X.t()[1:]) == (72, 72)


def test_a_gather_reads_the_rows_that_it_gathers():
    at = torch.tensor([2, 0, 2])  # int64: 24 bytes
    assert counted(torch.nn.functional.embedding, at, X) == (56 + 24, 84)  # two different rows of 28 bytes
    assert counted(lambda: X[at]) == (56 + 24, 84)
    assert counted(torch.gather, X, 1, torch.tensor([[1], [1], [4]])) == (12 + 24, 12)


def test_in_place_operators():
    y, at = torch.zeros(3, 7), torch.tensor([1])
    assert counted(y.copy_, X) == (84, 84)
    assert counted(y.zero_) == (0, 84)
    assert counted(y.mul_, 2) == (84, 84)
    assert counted(y.index_copy_, 0, at, torch.ones(1, 7)) == (28 + 8, 28)
    assert counted(y.index_add_, 0, at, torch.ones(1, 7)) == (28 + 28 + 8, 28)  # reads what it adds to
    assert counted(y.scatter_, 1, torch.tensor([[0], [3], [3]]), 1.0) == (24, 12)
    assert counted(y.index_put_, (torch.tensor([True, False, True]),), torch.tensor(5.0)) == (3 + 4, 56)


def test_new_tensors():
    assert counted(torch.zeros_like, X) == (0, 84)
    assert counted(torch.empty_like, X) == (0, 0)
    assert counted(X.new_zeros, (2, 2)) == (0, 16)


def test_a_grouped_product_reads_the_experts_that_have_rows():
    rows, experts = torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(5, 8, 16, dtype=torch.bfloat16)
    ends = torch.tensor([0, 3, 3, 4, 4], dtype=torch.int32)  # the second has three rows, the fourth one
    assert counted(torch.ops.aten._grouped_mm, rows, experts, ends) == (64 + 2 * 256 + 20, 128)


def test_it_imports_nothing_of_the_package():
    tree = ast.parse(Path(byte_counter.__file__).read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {n.split(".")[0] for n in names} == {"dataclasses", "torch"}


# ---- the comparison

@pytest.mark.parametrize("name", FEW)
def test_every_byte_is_equal_or_explained(name):
    for phase, outcome in third_road.outcomes(name).items():
        assert not outcome.unexplained, (phase, outcome.unexplained[:3])
        assert outcome.equal > 0.75 * outcome.operators
        assert outcome.equal + sum(outcome.explained.values()) == outcome.operators


@pytest.mark.parametrize("preset, sizes", [
    ("EleutherAI/gpt-neo-125m", dict(hidden_size=96, num_heads=6, vocab_size=101, max_position_embeddings=32)),
    ("openai-community/openai-gpt", dict(n_embd=96, n_head=6, vocab_size=101, n_positions=32))])
@pytest.mark.slow
def test_at_the_full_context(preset, sizes):
    "Where the tokens fill all 32 positions, the mask is not cut, and the same operators move the same bytes"
    config = third_road.config_of(third_road.Family(preset, sizes))
    cost, model = analyze(config, trace=False), third_road.model_of(config)
    for at in ((3, 32, 0), (3, 16, 16), (3, 1, 31), (1, 1, 31)):
        outcome = third_road.compared(third_road.figures(cost, *at), third_road.measured(model, *at), third_road.layers_of(model)[1])
        assert not outcome.unexplained and outcome.equal > 250, (at, outcome.unexplained[:3])


def test_layers_of_two_kinds():
    (outcome,) = third_road.outcomes(LAYERED, ["decode"]).values()
    assert not outcome.unexplained and outcome.operators > 2000


def test_a_state_and_a_residual_that_change_their_type():
    "Mamba's are bfloat16 in the first pass of its loop and in its first layer, and float32 from then on"
    (outcome,) = third_road.outcomes("mamba", ["prefill"]).values()
    assert not outcome.unexplained and outcome.operators == 234


# ---- the comparison can fail

@pytest.fixture(scope="module")
def gpt2():
    config = third_road.config_of(third_road.FAMILIES["gpt2"])
    model, sizes = third_road.model_of(config), third_road.PHASES["decode"]
    cost = analyze(config, trace=False)
    return third_road.figures(cost, *sizes), third_road.measured(model, *sizes), third_road.layers_of(model)[1]


@pytest.mark.parametrize("op", ["aten.addmm", "aten._softmax", "aten.cat", "aten.native_layer_norm", "aten.embedding"])
@pytest.mark.parametrize("what, change", [("read", lambda n: 2 * n), ("read", lambda n: n - 2),
                                          ("write", lambda n: 2 * n), ("write", lambda n: 0)])
def test_a_changed_figure_is_unexplained(gpt2, op, what, change):
    ours, rows, kinds = gpt2
    at = next(i for i, f in enumerate(ours) if f.op == op)
    wrong = dataclasses.replace(ours[at], **{what: change(getattr(ours[at], what))})
    (text,) = third_road.compared([*ours[:at], wrong, *ours[at + 1:]], rows, kinds).unexplained
    assert text.startswith(f"operator {at} {op} reads")


def test_a_missing_operator_is_unexplained(gpt2):
    ours, rows, kinds = gpt2
    (text,) = third_road.compared(ours[:-1], rows, kinds).unexplained
    assert text == f"operator {len(ours) - 1} is None, the run has aten.mm"
