"""Independent roads to each number: torch's FlopCounterMode, and a concrete trace without any symbol.

Both run the real transformers models on the meta device (shapes without data).
"""
import os
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoConfig  # noqa: E402

from lm_predictor.models.config.kinds import count_symbol
from lm_predictor.verification.runs.reference_run import collect  # noqa: E402
from lm_predictor.formula.tree import FormulaError  # noqa: E402
from lm_predictor.records.cases import Case
from lm_predictor.tracing.runtime.layers import layer_count  # noqa: E402
from lm_predictor.cost.workload import Workload
from lm_predictor.obtain.analyze import analyze
from lm_predictor.models.sources.hub import presets
from lm_predictor.models.matching import symbol_values  # noqa: E402
from lm_predictor.tracing.lowering.graphs import model_record  # noqa: E402
from lm_predictor.tracing.roads.sampled import sample_model  # noqa: E402
from lm_predictor.tracing.runtime.building import build
from lm_predictor.tracing.runtime.forward import Runnable, call
from lm_predictor.tracing.runtime.windows import cases_of  # noqa: E402
from lm_predictor.verification.compare import difference
from lm_predictor.verification.runs.counter import against_counter
from lm_predictor.verification.verify import class_checks, model_checks
from lm_predictor.obtain.fresh.ladder import record_values  # noqa: E402
from lm_predictor.obtain.fresh.record import note_unkept, note_words  # noqa: E402
from lm_predictor.obtain.fresh.weights import weighed, weights_check  # noqa: E402
from lm_predictor.models.sources.loading import full_config  # noqa: E402
from shipped import DB, EVERY_ID, subject_of, subjects_of  # noqa: E402

KINDS = ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "mamba")  # what takes a minute or two; `lm-predictor verify --all` does the same for every record
EVERY = bool(os.environ.get("LM_PREDICTOR_TEST_EVERY_RECORD"))
# records with accelerated functions have tests of their own in test_kernels.py
TYPES = sorted({name.rpartition("-")[0] for name in EVERY_ID}) if EVERY else KINDS
SUBJECTS = [s for kind in TYPES for s in [s for s in subjects_of(kind) if s.configs and not s.record.functions][:None if EVERY else 1]]


def layers_of(config: dict) -> int:
    "Its number of layers, whatever the config calls it"
    return layer_count(AutoConfig.for_model(**config))


PRESETS = [[(name, config) for name, config in s.configs if name in presets()] for s in SUBJECTS]  # test_presets.py: the weights of all
RECORDED = dict(c for same in PRESETS for c in (same if EVERY else sorted(same, key=lambda c: layers_of(c[1]))[:1]))  # of each record the shallowest
WORKLOADS = [Workload(1, 131, 0, "last"), Workload(3, 17, 33, "all"), Workload(2, 1, 100, "last")]


@pytest.mark.parametrize("name", RECORDED)
def test_matmul_flops_equal_torch(name):
    "Whole model, all layers, real sizes: equal to torch's counter to the integer"
    cost = analyze(name)
    with torch.device("meta"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # batched_mm: torch's counter has no rule for grouped_mm
        model = build(AutoConfig.for_model(**RECORDED[name]), experts_implementation="batched_mm")
        for w in WORKLOADS:
            cache = Runnable(model).filled_cache(w.batch_size, w.cache_len)
            with FlopCounterMode(display=False) as counter:
                call(model, w.batch_size, w.seq_len, cache, w.logits == "all")
            assert cost.at(w, "eager").totals.matmul_flops == counter.get_total_flops(), w


def with_a_config(record_id: str):
    "A record and the first config that it is about"
    subject = subject_of(record_id)
    if not subject.configs:
        pytest.skip("no preset, default or variant is about it")
    return subject, subject.configs[0]


@pytest.mark.parametrize("record_id", EVERY_ID)
def test_weights_are_those_that_transformers_builds(record_id):
    "Of every record: their number and bytes in the whole model of its config, and in the one tied the other way"
    subject, (name, config) = with_a_config(record_id)
    rows = weighed(subject.record, full_config(config))
    if not rows:
        pytest.skip(f"transformers cannot build {name}")
    check = weights_check(subject.record, rows)
    assert check.ok, f"{name}: {check.detail}"


@pytest.mark.parametrize("record_id", EVERY_ID)
def test_entries_that_a_class_does_not_keep_are_read(record_id):
    "LFM2's `tie_embedding`, MiniMax-M3's `moe_layer_freq`: no record takes a config for its own that states another model"
    subject, (_, config) = with_a_config(record_id)
    assert note_unkept(subject.record, config) is note_words(subject.record, config) is subject.record


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
            assert len(run.graph.nodes) > 30
            assert difference(record.graph(case).at(run.values), run.graph) == ""


def test_runs_tell_the_symbols_apart(proven):
    "Random sizes, all different and never what a format's bytes are; each case at several of them"
    record, evidence = proven
    for runs in evidence.runs.values():
        varied = {n for n in record.symbols if len({run.values[n] for run in runs}) > 1}
        fixed = {n for n in record.symbols if any(str(c) == f"{n} == {runs[0].values[n]}" for c in record.conditions)}
        counts = {count_symbol(k) for k in range(len(record.layers.get("kinds", ())))}  # the config says how many
        assert record.symbols.keys() - varied - fixed <= {"num_layers", "tie_word_embeddings", *counts}
        assert len({(run.values["batch_size"], run.values["seq_len"], run.values["cache_len"]) for run in runs}) >= 3


def test_decode_at_the_edges(proven):
    "After 1, 17 and 4095 cached tokens"
    record, evidence = proven
    cached = {run.values["cache_len"] for case, runs in evidence.runs.items() if Case.parse(case).phase == "decode" for run in runs}
    assert {1, 17} <= cached and (4095 in cached or "sliding_window" in record.symbols)


def test_every_check_holds(proven):
    record, evidence = proven
    failed = [c for c in model_checks(record, evidence, DB) if not c.ok] + [(n, c) for n, c in class_checks(record, evidence, DB) if not c.ok]
    assert failed == []


@pytest.mark.slow
def test_a_compressed_cache_at_whole_multiples():
    "DeepSeek-V4, small: an entry for every 4 tokens and for every 128, of which 256 are picked. Steps are exact up to 1024 tokens and beyond, at multiples of 128"
    config = AutoConfig.for_model(
        "deepseek_v4", num_hidden_layers=2, layer_types=["compressed_sparse_attention", "heavily_compressed_attention"], hidden_size=64, num_attention_heads=4, head_dim=32,
        q_lora_rank=32, o_groups=2, o_lora_rank=16, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, num_hash_layers=0, index_topk=256, index_n_heads=4,
        index_head_dim=32, vocab_size=128)
    record = model_record(sample_model(config, [c for c in cases_of(config) if not c.single and not c.all_logits and c.phase == "decode"]))
    outcome = against_counter(record, config, record_values(record, config))
    assert outcome.result == "equal" and any("1 new, 1152 cached" in c.detail for c in outcome.checks)
    # keys that are values, 127 tokens in each layer; an entry for 4 tokens and one of the indexer, one for 128; of the last whole 4 tokens half of what they
    # gave (values and gates, twice); of the new token all that it gave, until it is one of a whole
    cache = record.graph("decode_past").kv_cache_bytes.evaluate({"batch_size": 1, "cache_len": 2048, "kv_bytes": 2})
    assert cache == 2 * (2 * 127 * 32 + 2048 // 4 * (32 + 32) + 2048 // 128 * 32 + 4 * (2 * 32 + 2 * 32) + (2 * 64 + 2 * 64 + 2 * 32))
    with pytest.raises(FormulaError, match="assume .*nearest: cache_len=896 or cache_len=1024"):
        record.case(Case("decode"), {"batch_size": 2, "seq_len": 1, "cache_len": 1000})
