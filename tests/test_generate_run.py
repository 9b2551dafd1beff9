"`verify` runs a model as its users do, with generate, and sees what the other roads share and get wrong."
from dataclasses import replace

import pytest

pytest.importorskip("transformers")

from lm_predictor.formula.language import parse
from lm_predictor.models.sources.hub import quiet
from lm_predictor.models.sources.loading import full_config
from lm_predictor.models.matching import symbol_values
from lm_predictor.obtain.fresh.ladder import traced_record
from lm_predictor.records.cases import Case
from lm_predictor.records.storage.database import read_json, shipped_directory
from lm_predictor.records.storage.files import model_paths
from lm_predictor.records.model import record_from_json
from lm_predictor.tracing.lowering import graphs; from lm_predictor.tracing.recording import loops
from lm_predictor.tracing.runtime import forward
from lm_predictor.verification.runs import reference_run
from lm_predictor.verification.compare import compare_case
from lm_predictor.verification.runs.counter import compare_counted, counted
from lm_predictor.verification.runs.generate_run import CACHE, FLOPS, compare_generated, generate_outcome
from lm_predictor.verification.runs.reference_run import Evidence, Twin

GRIFFIN = {  # two recurrent layers of one kind, and one of attention
    "model_type": "recurrent_gemma", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16,
    "lru_width": 96, "intermediate_size": 56, "vocab_size": 101, "num_hidden_layers": 3, "max_position_embeddings": 160,
}
RWKV = {  # one state for all three layers, of which the first is of another kind
    "model_type": "rwkv", "hidden_size": 96, "attention_hidden_size": 96, "intermediate_size": 56, "vocab_size": 101,
    "num_hidden_layers": 3, "context_length": 160,
}
SIZES = {"prefill": {"batch_size": 2, "seq_len": 17, "cache_len": 0}, "decode": {"batch_size": 2, "seq_len": 1, "cache_len": 17}}


def roads(config: dict) -> tuple[list, list]:
    "The checks of a freshly traced prefill and decode by the roads that run the model themselves, and those of generate"
    full = full_config(config)
    with quiet():
        _, record, _ = traced_record(full, cases=tuple(map(Case, SIZES)))
        values = symbol_values(record, config)
        twin = Twin(record, full, values)
        evidence = Evidence(runs={case: [twin.run(case, sizes)[1]] for case, sizes in SIZES.items()})
        rows = counted(full, values, [(case, tuple(sizes.values())) for case, sizes in SIZES.items()])
        own = [*(compare_case(record, case, evidence) for case in SIZES), *compare_counted(record, rows)]
        return own, compare_generated(record, generate_outcome(record, full, values))


def failed(checks: list) -> list:
    return [(c.what, c.part) for c in checks if not c.ok]


@pytest.mark.slow
@pytest.mark.parametrize("config", [GRIFFIN, RWKV], ids=lambda config: config["model_type"])
def test_as_they_are(config):
    own, ours = roads(config)
    assert failed(own) == failed(ours) == [] and len(ours) == 4, [c for c in ours if not c.ok]


@pytest.mark.slow
def test_decoding_with_an_empty_cache(monkeypatch):
    "Its former fault: the cache was looked for in what the model returns, which has none; all other roads go along"
    def former(self, batch_size, cache_len):
        cache = forward.empty_cache(self.model)
        if type(cache_len) is int and cache_len == 0:
            return cache
        out = forward.call(self.model, batch_size, cache_len, cache)
        return getattr(out, forward.cache_name(self.model), None)

    monkeypatch.setattr(forward.Runnable, "filled_cache", former)
    own, ours = roads(GRIFFIN)
    assert failed(own) == [] and failed(ours) == [(FLOPS, "decode"), (CACHE, "decode")]


@pytest.mark.parametrize("config, wrong", [(GRIFFIN, {"prefill"}), pytest.param(RWKV, {"decode"}, marks=pytest.mark.slow)], ids=["recurrent_gemma", "rwkv"])
def test_wrong_cache_formula(monkeypatch, config, wrong):
    """Other former faults: what a folded loop leaves cached was counted for one layer, and a state of all layers for each
    of those that are alike. The other roads fold in the same way."""
    def former(recorder):
        repeats = {t: [c.repeat for c in chain] for op, chain in recorder.root.walk() for t, *_ in (*op.reads, *op.writes)}
        return [(t, n, [repeats.get(t, ["1"])]) for t, n in recorder.cache]

    for module in (loops, graphs, reference_run):
        monkeypatch.setattr(module, "held", former)
    own, ours = roads(config)
    assert failed(own) == [] and {what for what, _ in failed(ours)} == {CACHE} and {phase for _, phase in failed(ours)} == wrong


def gpt2():
    [path] = model_paths(shipped_directory(), "gpt2-*")
    return record_from_json(read_json(path)), {"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 2, "n_positions": 160}


def test_records_that_are_wrong():
    "A wrong figure of one operator of a decode step, and a wrong cache formula, are named with both figures"
    record, config = gpt2()
    with quiet():
        outcome = generate_outcome(record, full_config(config), symbol_values(record, config))
    graph = record.graph("decode")
    i = next(i for i, n in enumerate(graph.nodes) if n.kind == "matmul")
    node = replace(graph.nodes[i], matmul_flops=graph.nodes[i].matmul_flops + parse("batch_size"))
    more = replace(graph, nodes=(*graph.nodes[:i], node, *graph.nodes[i + 1:]))
    half = replace(graph, kv_cache_bytes=graph.kv_cache_bytes * parse("1/2"))
    for wrong, what in ((more, FLOPS), (half, CACHE)):
        [check] = [c for c in compare_generated(replace(record, cases=record.cases | {"decode": wrong}), outcome) if not c.ok]
        assert (check.what, check.part) == (what, "decode") and "decode at batch 2, 1 new, 17 cached: " in check.detail


def test_nothing_is_shared(monkeypatch):
    "None of what runs models elsewhere in the package is called"
    record, config = gpt2()
    full = full_config(config)

    def never(*args, **kwargs):
        raise AssertionError("another road's step")

    for name in ("call", "empty_cache", "cached_tensors", "module_state", "cache_name"):
        monkeypatch.setattr(forward, name, never)
    for name in ("filled_cache", "run", "warm_up"):
        monkeypatch.setattr(forward.Runnable, name, never)
    monkeypatch.setattr("lm_predictor.tracing.runtime.building.build", never)
    monkeypatch.setattr(reference_run, "build", never)
    with quiet():
        outcome = generate_outcome(record, full, symbol_values(record, config))
    assert [c.ok for c in compare_generated(record, outcome)] == [True] * 4


def test_verify_names_it(tmp_path, monkeypatch, capsys):
    "As a user meets it: the checks of generate are among those of verify, and a model that it does not run says so"
    from lm_predictor.app.cli.main import main
    from lm_predictor.verification.runs import generate_run
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))

    def broken(*args):
        raise RuntimeError("its forward takes no cache")

    assert main(["verify", "openai-community/gpt2"]) == 0
    shown = capsys.readouterr().out
    assert f"ok   {FLOPS}: decode (decode at batch 2, 1 new, 17 cached: " in shown and f"ok   {CACHE}: prefill" in shown
    monkeypatch.setattr(generate_run, "generated", broken)
    assert main(["verify", "openai-community/gpt2"]) == 0
    shown = capsys.readouterr().out
    assert "generate cannot run it this way, because RuntimeError: its forward takes no cache" in shown and FLOPS not in shown
