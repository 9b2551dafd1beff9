"A changed formula must not pass verification: a fixed sample of what benchmarks/mutations.py does a thousand times."
import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

PATH = Path(__file__).resolve().parent.parent / "benchmarks" / "mutations.py"
spec = importlib.util.spec_from_file_location("mutations", PATH)
mutations = sys.modules["mutations"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutations)


@pytest.fixture(scope="module")
def bench():
    return mutations.Bench(["gpt2", "llama-b7940747"], seed=7)


def test_intact_records_pass(bench):
    assert bench.intact() == []


def test_every_mutation_is_caught(bench):
    "60 random changes over all kinds of formulas; each must fail a check"
    found, _ = mutations.sample(bench, 60)
    assert [m for m in found if not m.caught] == []
    assert len({m.site.kind for m in found}) > 12 and len({m.change for m in found}) > 5


@pytest.mark.parametrize("kind", ["kernel cost", "operator cost", "reference argument", "kernel repeat", "kernel when", "call repeat", "kv_cache_bytes",
                                  "module row", "node extent", "node flops", "node matmul_flops", "node pairs", "node reads", "node scores", "node writes",
                                  "parameters", "tensor", "weight_bytes"])
def test_each_kind_of_formula_is_bound(bench, kind):
    "Twice as much as there is: no kind of formula is out of sight"
    from lm_predictor.formula.language import parse
    for site in bench.sites[kind][::max(1, len(bench.sites[kind]) // 5)]:
        text = str(mutations.follow(bench.data[site.owner], site.path))
        if site.argument:
            ref = parse(text).references[site.argument[0]]
            name, value = ref.kwargs[site.argument[1]]
            new = text.replace(str(ref), str(ref).replace(f"{name}={value}", f"{name}={2 * value}"))
        elif kind == "kernel when":
            new = text.replace("== 0", "== 2").replace("== 1", "== 2")
        else:
            new = str(2 * parse(text) + (1 if text == "0" else 0))
        mutant = mutations.Mutant(site, "double", text, new)
        assert new != text and bench.catch(mutant), mutant


def test_a_formula_equal_everywhere_is_no_mutation(bench):
    site = next(s for s in bench.sites["node flops"] if s.owner.startswith("llama-b7940747") and s.case == "decode")
    same = mutations.Mutant(site, "symbol", "batch_size*seq_len", "batch_size")  # one token per sequence in this case
    other = mutations.Mutant(site, "symbol", "batch_size*hidden_size", "batch_size")
    assert not bench.differs(same) and bench.differs(other)


@pytest.fixture(scope="module")
def windowed():
    return mutations.Bench(["gemma2-353e6038", "phi-89d11cec"], seed=7)


_FREE = "max(0, min(seq_len, sliding_window - cache_len))"


@pytest.mark.slow
@pytest.mark.parametrize("owner, case, old, new", [
    ("gemma2-353e6038", "decode_b1_past", f"{_FREE}*({_FREE}", f"max(0, min(seq_len, sliding_window - cache_len + 1))*({_FREE}"),
    ("gemma2-353e6038", "extend_all_b1_past", f"{_FREE}*({_FREE}", f"max(0, 2*min(seq_len, sliding_window - cache_len))*({_FREE}"),
    ("phi-89d11cec", "prefill", "seq_len*cache_len", "seq_len*tie_word_embeddings")])
def test_what_once_survived_is_caught(windowed, owner, case, old, new):
    "Formulas that differ only beside a window's edge, or for a model that ties its embeddings"
    sites = [s for s in windowed.sites["node pairs"] if (s.owner, s.case) == (owner, case)]
    texts = {s: str(mutations.follow(windowed.data[owner], s.path)) for s in sites}
    site = next(s for s in sites if old in texts[s])
    assert windowed.catch(mutations.Mutant(site, "", texts[site], texts[site].replace(old, new, 1))).startswith("pairs under the mask")
