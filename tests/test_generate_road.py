"The road of a user: `generate`, with the cache that it makes, does what the formulas say."
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from transformers import AutoConfig

import generate_road
from lm_predictor.tracing.runtime.forward import Runnable, cached_tensors
from lm_predictor.verification.runs.generate_run import model_of


@pytest.fixture(autouse=True)
def own_database(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral"])
def test_shipped_records(name):
    "FLOPs of each forward of generate, and the bytes of its cache, within and beyond a window"
    rows, refused = generate_road.rows_of(name)
    assert len(rows) == 16 and refused == 0 and all(row.equal for row in rows), [r for r in rows if not r.equal]


@pytest.mark.parametrize("name", ["gpt2 with cross-attention", pytest.param("llama4 in small chunks", marks=pytest.mark.slow)])
def test_caches_within_caches_and_small_chunks(name):
    "Keys in a part of the cache, of which 0 bytes were counted; chunks of 13 tokens, which could not be traced"
    rows, refused = generate_road.rows_of(name)
    assert len(rows) == 16 and refused == 0 and all(row.equal for row in rows), [r for r in rows if not r.equal]


@pytest.mark.slow
def test_states_beside_the_layers_of_a_cache():
    "MiniMax keeps the states of its linear layers in the cache, but in none of its layers"
    rows, _ = generate_road.rows_of("minimax")
    assert any(row.what.startswith("cache bytes") for row in rows) and all(row.equal for row in rows), rows


def test_cache_that_a_model_fills_and_does_not_return():
    "RecurrentGemma's output has no cache; generate goes on with the one that it passed in"
    model = model_of(AutoConfig.for_model(**generate_road.config_of("recurrent_gemma")))
    assert [tuple(t.shape) for t in cached_tensors(Runnable(model).filled_cache(2, 9))] == [(2, 1, 9, 16)] * 2

