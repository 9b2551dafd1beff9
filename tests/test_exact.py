"""Independent roads to each number: torch's FlopCounterMode, and a concrete trace without any symbol.

Both run the real transformers models on the meta device (shapes without data).
"""
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402

from lm_predictor.database import Database, shipped_directory  # noqa: E402
from lm_predictor.evidence import collect  # noqa: E402
from lm_predictor.model import Workload, analyze, presets, symbol_values  # noqa: E402
from lm_predictor.proof import subjects  # noqa: E402
from lm_predictor.sheet import sheet_of_graph  # noqa: E402
from lm_predictor.verify import class_checks, difference, model_checks  # noqa: E402

DB = Database(overlay=shipped_directory(), shipped=shipped_directory())
SUBJECTS = [s for s in subjects(DB) if s.configs]
RECORDED = {p.stem.rpartition("-")[0] for p in (shipped_directory() / "models").glob("*.json")}
PRESETS = {n: p for n, p in presets().items() if p["config"]["model_type"] in RECORDED}  # test_presets.py: the weights of all
WORKLOADS = [Workload(1, 131, 0, "last"), Workload(3, 17, 33, "all"), Workload(2, 1, 100, "last")]


def hf_config(name):
    config = dict(PRESETS[name]["config"])
    return AutoConfig.for_model(config.pop("model_type"), **config)


@pytest.mark.parametrize("name", PRESETS)
def test_matmul_flops_equal_torch(name):
    "Whole model, all layers, real sizes: equal to torch's counter to the integer"
    config, cost = hf_config(name), analyze(name)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # batched_mm: torch's counter has no rule for grouped_mm
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="batched_mm").eval()
    for w in WORKLOADS:
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), torch.device("meta"):
            if w.cache_len:
                for i, layer in enumerate(cache.layers or [None] * config.num_hidden_layers):
                    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
                    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
                    past = torch.zeros((w.batch_size, heads, w.cache_len, width), dtype=torch.bfloat16)
                    cache.update(past, past, i)
            with FlopCounterMode(display=False) as counter:
                model(input_ids=torch.zeros((w.batch_size, w.seq_len), dtype=torch.long), past_key_values=cache, use_cache=True,
                      logits_to_keep=1 if w.logits == "last" else 0)
        assert cost.at(w, "eager").totals.matmul_flops == counter.get_total_flops(), w


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda s: s.record.id)
def proven(request):
    "A model record and what runs without symbols show of its kind of model"
    name, config = request.param.configs[0]
    full = AutoConfig.for_model(**config)
    record = request.param.record
    return record, collect(record, full, symbol_values(record, full.to_dict()), seed=1)


def test_symbolic_equals_concrete(proven):
    "Each operator's figures, every tensor, every call, from formulas and from separate runs with plain integers"
    record, evidence = proven
    assert evidence.problems == [] and evidence.runs.keys() == record.cases.keys()
    for case, runs in evidence.runs.items():
        assert len(runs) >= 3
        for run in runs:
            assert len(run.nodes) > 30
            assert difference(sheet_of_graph(record.graph(case), run.values), run) == ""


def test_runs_tell_the_symbols_apart(proven):
    "Random sizes, all different and never what a format's bytes are; each case at several of them"
    record, evidence = proven
    for runs in evidence.runs.values():
        varied = {n for n in record.symbols if len({run.values[n] for run in runs}) > 1}
        fixed = {n for n in record.symbols if any(str(c) == f"{n} == {runs[0].values[n]}" for c in record.conditions)}
        assert record.symbols.keys() - varied - fixed <= {"num_layers", "tie_word_embeddings"}
        assert len({(run.values["batch_size"], run.values["seq_len"], run.values["cache_len"]) for run in runs}) >= 3


def test_decode_at_the_edges(proven):
    "After 1, 17 and 4095 cached tokens"
    record, evidence = proven
    cached = {run.values["cache_len"] for case, runs in evidence.runs.items() if case.startswith("decode") for run in runs}
    assert {1, 17} <= cached and (4095 in cached or "sliding_window" in record.symbols)


def test_every_check_holds(proven):
    record, evidence = proven
    failed = [c for c in model_checks(record, evidence, DB) if not c.ok] + [(n, c) for n, c in class_checks(record, evidence, DB) if not c.ok]
    assert failed == []
