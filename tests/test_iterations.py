"What is run of a loop over tokens stands for all of it: Qwen4-exp's indexer, against each of its iterations."
import contextlib

import pytest
import torch
from transformers import AutoConfig

from lm_predictor.models.matching import misfits
from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.records.cases import Case
from lm_predictor.records.model import record_from_json
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_paths, read_record
from lm_predictor.tracing.recording.iterations import few_iterations
from lm_predictor.tracing.recording.loops import fold_run, held
from lm_predictor.tracing.roads.beyond import totals
from lm_predictor.tracing.roads.symbolic import copied, given_by, with_all_logits
from lm_predictor.tracing.runtime.building import build, defaults
from lm_predictor.tracing.runtime.forward import Runnable
from lm_predictor.verification.prove import prove, subjects

RATIOS = {"indexer_compress_ratio": 16, "indexer_budget": 2048}, {"indexer_compress_ratio": 5, "indexer_budget": 30}
SIZES = (2, 40, 0), (3, 21, 30), (1, 70, 13), (2, 1, 64), (4, 2, 3)


@pytest.fixture(scope="module", params=RATIOS, ids=lambda row: f"{row['indexer_budget']} tokens picked")
def indexer(request):
    config = type_config("qwen4_exp_text") | request.param
    with torch.device("meta"), defaults():
        return Runnable(build(AutoConfig.for_model(config.pop("model_type"), **config)), apart=False).warm_up()


def run(model, sizes):
    with torch.device("meta"), defaults():
        found = model.run(*sizes)
    many = sum(1 for _ in found.root.walk())
    fold_run(found, model.names, loops=True)
    return totals(found), many


def recurrent():
    "RecurrentGemma with a window of 64 tokens"
    config = type_config("recurrent_gemma") | {"attention_window_size": 64}
    with torch.device("meta"), defaults():
        return Runnable(build(AutoConfig.for_model(config.pop("model_type"), **config)), apart=False).warm_up()


def test_a_state_is_carried_through_a_loop():
    "RecurrentGemma's recurrence over a prompt, longer than its window, and what it leaves cached"
    model, found = recurrent(), []
    for way in (lambda: few_iterations(model.model), contextlib.nullcontext):
        model.few = way
        ours, many = run(model, (2, 90, 5))
        found.append((ours, many))
    assert found[0][0] == found[1][0] and found[0][1] < found[1][1] - 300


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_is_run_of_a_loop_stands_for_all_of_it(indexer, sizes, monkeypatch):
    ours, few = run(indexer, sizes)
    monkeypatch.setattr(indexer, "few", contextlib.nullcontext)
    whole, many = run(indexer, sizes)
    assert ours == whole
    assert few < many or sizes[1] * sizes[0] < 9


def test_whole_numbers_in_a_cache_are_no_content(indexer):
    "Qwen4-exp's cache holds where tokens are, too: neither the tracer nor what it is compared with counts that"
    with torch.device("meta"), defaults():
        found = indexer.run(2, 40, 0)
    fold_run(found, indexer.names, loops=True)
    kind = {s.id: s.dtype.is_floating_point for s in found.storages.values()}
    assert {kind[t] for t, _ in found.cache} == {True, False} and {kind[t] for t, *_ in held(found)} == {True}


def test_a_forward_of_all_logits_knows_what_loops_carried():
    "It takes over the layers of the usual forward, and is held against one of its own"
    model = recurrent()
    with torch.device("meta"), defaults():
        cache = model.filled_cache(2, 5)
        with given_by(model.model.base_model) as given:
            usual = model.run(2, 90, 5, cache=cache)
        ours = with_all_logits(model, usual, copied(usual.root), given, 2, 90, 5)
        whole = model.run(2, 90, 5, all_logits=True)
    for found in (ours, whole):
        fold_run(found, model.names, loops=True)
    assert totals(ours) == totals(whole)
    touched = lambda found: {t for op, _ in found.root.walk() for t, *_ in (*op.reads, *op.writes)}
    cached = lambda found: sorted((str(n), t in touched(found)) for t, n in found.cache)
    assert cached(ours) == cached(whole)


def test_a_record_of_all_logits_caches_what_that_of_the_last_does():
    paths = [p for p in model_paths(shipped_directory()) if p.name.startswith(("recurrent_gemma-", "qwen4_exp_text-"))]
    assert len(paths) == 5
    for record in (record_from_json(read_record(path)) for path in paths):
        cases = [case for case in map(Case.parse, record.cases) if case.all_logits]
        usual = [record.graph(case.without("all_logits").name).kv_cache_bytes for case in cases]
        assert [record.graph(case.name).kv_cache_bytes for case in cases] == usual and len(usual) == 10


@pytest.mark.parametrize("window", (420, 2048, 3000))
def test_a_window_is_a_symbol_though_tokens_are_numbers(window):
    "RecurrentGemma with another window, on both sides of it, against torch's counter"
    config = type_config("recurrent_gemma") | {"attention_window_size": window, "num_hidden_layers": 3, "hidden_size": 640}
    db, kind = Database(), config["model_type"]
    path = next(s.path for s in subjects(db, kind) if not [*misfits(s.record, config)])
    outcome = prove(path, db.overlay, db.shipped, "another window", config, counting=True)
    assert len(outcome.checks) >= 3 and all(c.ok for c in outcome.checks)
    assert any(f"{window + 9} cached" in c.detail for c in outcome.checks), outcome.checks
