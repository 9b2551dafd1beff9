"Does a size that a config leaves to its class come out as the class makes it, at other numbers, too?"
import json
import random
import re

import pytest

from lm_predictor.models.config.attributes import flat
from lm_predictor.models.config.settings import bookkeeping, config_value
from lm_predictor.models.config.validation import ModelError
from lm_predictor.models.matching import fits, symbol_values
from lm_predictor.records.model import record_to_json
from lm_predictor.records.storage.database import Database, shipped_directory

DB = Database(shipped_directory(), shipped_directory())


def left_out(record, config: dict, names: list) -> dict:
    "A config that does not state a number"
    return {k: v for k, v in config.items() if record.aliases.get(k, k) not in names}


def used(record) -> set[str]:
    "The symbols of which something costs more"
    data = record_to_json(record)
    return set(re.findall(r"\w+", json.dumps([data[name] for name in ("cases", "parameters", "assumptions")])))


def wrong_sizes(record, config: dict) -> list[str]:
    """The numbers that a record takes for those of a config, and its class does not.

    Of the config each symbol's number is left out, alone, and each other number is doubled, alone.
    """
    from lm_predictor.models.sources.loading import full_config
    own = full_config(config).to_dict()
    entries = {k: v for k, v in {**own, **config}.items() if type(v) in (int, float) and v > 0 and not bookkeeping(k)}
    found = []
    for symbol in sorted(record.symbols.keys() & used(record)):
        about = record.symbols[symbol]
        bare = left_out(record, config, about["names"])
        changes = [{}, *({k: 2 * v} for k, v in entries.items() if record.aliases.get(k, k) not in about["names"])]
        for given in ({**bare, **change} for change in changes):
            try:
                usual = config_value(flat(full_config(given).to_dict()), about["names"])
            except ModelError:  # the class refuses it
                continue
            if type(usual) is int and usual > 0 and not fits(record, given):
                ours = symbol_values(record, given)[symbol]
                if ours != usual:
                    changed = {k: v for k, v in given.items() if config.get(k) != v}
                    found.append(f"{record.id}: {symbol} is {usual}, taken as {ours}, with {json.dumps(changed)}")
    return found


def one_change(config: dict) -> list[dict]:
    "A config's numbers, each twice, half or one more than it is, and its choices, each the other way; alone"
    from lm_predictor.models.sources.loading import full_config
    found = []
    for name, value in {**full_config(config).to_dict(), **config}.items():
        if bookkeeping(name) or name == "model_type":
            continue
        if type(value) is bool:
            found.append({name: not value})
        elif type(value) in (int, float) and value > 0:
            others = [2 * value] + [value + 1] * (value != 1) + [value // 2] * (value > 2 and value % 2 == 0)
            found += [{name: n} for n in (others if type(value) is int else others[:1])]
    return found


def read_otherwise(record, config: dict, rng: random.Random, trials: int = 0) -> list[str]:
    """The configs that a record takes as they are given, and not as their class completes them, or for other sizes.

    Each entry of the config is changed or left out, alone; and `trials` times a few of them are, at once.
    """
    from lm_predictor.models.sources.loading import full_config
    single, found = one_change(config), []
    several = [{k: v for c in rng.sample(single, min(len(single), rng.choice((2, 3, 5)))) for k, v in c.items()} for _ in range(trials)]
    without = [{name: None} for name in config if name != "model_type"]
    for change in [*single, *several, *without]:
        given = {k: v for k, v in {**config, **change}.items() if k not in change or v is not None}
        if fits(record, given):
            continue
        try:
            whole = full_config(given).to_dict()
        except ModelError:  # the class refuses it
            continue
        ours, of_class = symbol_values(record, given), {}
        why = fits(record, whole) or (of_class := symbol_values(record, whole)) and ""
        differs = {s: (ours[s], n) for s, n in of_class.items() if ours[s] != n and s in used(record)}
        if why or differs:
            found.append(f"{record.id}: {json.dumps(change)}: {why or differs}")
    return found


def subjects_of(kind: str) -> list:
    from lm_predictor.verification.prove import subjects
    return [s for s in subjects(DB, kind) if s.configs]


@pytest.mark.parametrize("kind", ["jamba", "modernbert-decoder", "jetmoe", "falcon_h1", "zamba", "granitemoehybrid", "minicpm3"])
def test_a_size_left_out_is_what_its_class_makes(kind):
    pytest.importorskip("transformers")
    assert [row for s in subjects_of(kind) for row in wrong_sizes(s.record, s.configs[0][1])] == []


@pytest.mark.slow
def test_no_record_takes_a_size_that_its_class_computes_for_the_usual_one():
    pytest.importorskip("transformers")
    assert [row for s in subjects_of("") for row in wrong_sizes(s.record, s.configs[0][1])] == []


def known(row: str) -> bool:
    "Of Gemma 3 to encode texts, whose class halves a window, rounds it up, and saves twice that: 4,096 for 4,097; both are 2,049"
    lists = "full_attn_idxs is"  # of LFM2, saved for so many layers, and for others made anew
    return '{"sliding_window": 4097}' in row and "(4097, 4096)" in row or lists in row


@pytest.mark.parametrize("kind", ["minimax_m2", "bailing_hybrid", "mistral4", "jamba", "gpt2", "llama", "deepseek_v3", "qwen2"])
def test_a_record_takes_a_config_as_its_class_completes_it(kind):
    pytest.importorskip("transformers")
    rows = [row for s in subjects_of(kind) for row in read_otherwise(s.record, s.configs[0][1], random.Random(0))]
    assert [row for row in rows if not known(row)] == []


@pytest.mark.slow
def test_every_record_takes_a_config_as_its_class_completes_it():
    pytest.importorskip("transformers")
    rows = [row for s in subjects_of("") for row in read_otherwise(s.record, s.configs[0][1], random.Random(s.record.id), 60)]
    assert [row for row in rows if not known(row)] == []
