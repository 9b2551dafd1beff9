"""Is an entry that a published config leaves out what its class makes of it, and is one that is saved again the same?

Each entry of each preset is left out in turn. Where a record still answers, the number that it takes for each symbol is
that of the config as transformers completes it: LLaMA-65B of 2023 has no `num_key_value_heads`, and 64 of them.
"""
import copy
import json
import re

import pytest

from lm_predictor.models.config.settings import bookkeeping
from lm_predictor.models.config.validation import ModelError
from lm_predictor.models.matching import fits, stored_records, symbol_values
from lm_predictor.models.parts import language_part
from lm_predictor.models.sources.hub import presets, quiet
from lm_predictor.models.sources.loading import full_config
from lm_predictor.records.model import record_to_json
from lm_predictor.obtain.analyze import analyze
from lm_predictor.records.storage.database import Database, shipped_directory

TYPES = sorted({language_part(p["config"])[0]["model_type"] for p in presets().values()})


def _without_each(config: dict):
    "The name of each entry that a config can do without, and the config without it"
    place = "text_config" if isinstance(config.get("text_config"), dict) else ""
    for key in config[place] if place else config:
        if key not in ("model_type", "architectures") and not bookkeeping(key):
            left = copy.deepcopy(config)
            del (left[place] if place else left)[key]
            yield key, left


def _answering(records: list, config: dict):
    "The first record that fits a config; None without one"
    return next((record for record in records if not fits(record, config)), None)


def _counts(record, symbol: str) -> bool:
    "Whether a symbol is in a formula of a record, or in one of its conditions"
    said = {k: v for k, v in record_to_json(record).items() if k not in ("symbols", "settings", "keys", "aliases")}
    return re.search(rf"\b{symbol}\b", json.dumps(said)) is not None


@pytest.mark.parametrize("kind", TYPES)
def test_an_entry_that_is_left_out_is_what_its_class_makes_of_it(kind):
    records = [record for _, record in stored_records(kind, Database(shipped_directory(), shipped_directory()))]
    configs = {name: language_part(p["config"])[0] for name, p in presets().items()}
    wrong = {}
    for name, config in configs.items():
        for key, left in _without_each(config) if config["model_type"] == kind else ():
            try:
                with quiet():
                    whole = full_config(left).to_dict()
            except ModelError:  # its class cannot do without it
                continue
            if record := _answering(records, left):
                ours, made = symbol_values(record, left), symbol_values(record, whole)
                other = {s: (n, made[s]) for s, n in ours.items() if n != made[s]}
                wrong |= {(name, key): (s, row) for s, row in other.items() if _counts(record, s)}
    assert wrong == {}


@pytest.mark.parametrize("short", [True, False])
def test_a_config_that_transformers_saves_again_is_the_same(short, tmp_path):
    "What a fine-tune has in its folder: the class's defaults, infinities as objects, the ties of a part beside the whole's"
    from transformers import AutoConfig
    place, other = tmp_path / "config.json", {}
    for name, preset in presets().items():
        with quiet():
            saved = AutoConfig.for_model(**{k: v for k, v in preset["config"].items() if k != "custom_code"})
            place.write_text(saved.to_json_string(use_diff=short), encoding="utf-8")
            both = [analyze(model, trace=False).parameters for model in (str(place), name)]
        other |= {name: both} if both[0] != both[1] else {}
    assert other == {}


def test_the_first_llamas_have_as_many_heads_of_keys_as_of_queries():
    records = [r for _, r in stored_records("llama", Database(shipped_directory(), shipped_directory()))]
    config = {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 22016, "num_attention_heads": 64,
        "num_hidden_layers": 80, "vocab_size": 32000
    }
    record = _answering(records, config)
    assert record.parameters.evaluate(symbol_values(record, config)) == 65_285_660_672


def _parameters(config: dict) -> int:
    return analyze(config, Database(shipped_directory(), shipped_directory()), trace=False).parameters


@pytest.fixture
def light(monkeypatch):
    "Answers from what ships alone"
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)


def test_a_vocabulary_is_compared_with_the_padding_token_of_its_own_config(light):
    "Phi-4's record has another one, 100349, which Phi-3's vocabulary does not reach"
    phi = {"model_type": "phi3", "num_key_value_heads": 8, "vocab_size": 32064}
    assert _parameters(phi) == _parameters({**phi, "pad_token_id": 7}) > 3 * 10**9
    with pytest.raises(ModelError, match="pad_token_id is 32064, which must be below vocab_size 32064"):
        _parameters({**phi, "pad_token_id": 32064})


def test_what_a_whole_says_of_its_ties_counts_where_its_class_looks_there(light):
    "transformers 5 saves the default of the part's class, true, beside the false of the whole"
    part = {"model_type": "qwen3_vl_moe_text", "num_hidden_layers": 2, "tie_word_embeddings": True}
    whole = {"model_type": "qwen3_vl_moe", "text_config": part, "tie_word_embeddings": False}
    untied = _parameters({**whole, "text_config": {**part, "tie_word_embeddings": False}})
    assert _parameters(whole) == untied > _parameters({**whole, "tie_word_embeddings": True})


def test_a_width_of_heads_that_a_class_computes_is_not_taken_from_a_config(light):
    layers = {"num_hidden_layers": 8, "mlp_layer_types": ["dense", *["sparse"] * 7], "num_experts_per_tok": 6}
    part = {"hidden_size": 2048, "num_attention_heads": 16, "moe_intermediate_size": 896, **layers}
    reader = {"model_type": "deepseek_ocr2", "text_config": part}
    assert _parameters(reader) == _parameters({**reader, "text_config": {**part, "head_dim": 64}})


def test_the_width_that_a_decoder_looks_at_is_not_overlooked(light):
    with pytest.raises(ModelError, match="cross_attention_hidden_size is 448, traced without it"):
        _parameters({"model_type": "trocr", "cross_attention_hidden_size": 448})
