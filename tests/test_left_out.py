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
