"""Configs that ask for another activation, or for biases, than any record was traced with."""
import random

import pytest

from lm_predictor import analyze
from lm_predictor.models.config.validation import ModelError
from lm_predictor.models.exchanges import activations, exchanged
from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.records.model import record_from_json
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_paths, read_json

DB = Database(shipped_directory(), shipped_directory())
PATHS = list(model_paths(shipped_directory()))

OTHER = {  # a model type -> in what its defaults are asked otherwise
    "llama": {"hidden_act": "gelu_new", "attention_bias": True, "mlp_bias": True},
    "gemma": {"hidden_act": "relu", "attention_bias": True},
    "granite": {"hidden_act": "gelu", "mlp_bias": True},
    "mixtral": {"hidden_act": "gelu_pytorch_tanh"},
    "qwen2_moe": {"hidden_act": "gelu_fast", "qkv_bias": False},
    "gpt2": {"activation_function": "relu2"},
}


def answered(kind: str, **more):
    "The cost of a type's defaults with other entries"
    return analyze(type_config(kind) | more, db=DB, trace=False)


@pytest.mark.parametrize("kind", OTHER)
def test_another_activation_and_biases_are_what_transformers_builds(kind):
    "As many weights as the built model, and a run with numbers that does the same, operator by operator"
    pytest.importorskip("transformers")
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.obtain.confirm import built_parameters
    from lm_predictor.obtain.fresh.ladder import against_numbers, record_values
    cost, full = answered(kind, **OTHER[kind]), full_config(type_config(kind) | OTHER[kind])
    assert cost.parameters == built_parameters(full) and not cost.doubts
    assert against_numbers(cost.record, full, record_values(cost.record, full)) == ""
    assert all(any(name in note for note in cost.notes) for name in OTHER[kind])


def test_an_exchange_is_said_and_moves_no_product():
    "Llama 2 7B: `gelu_new` is eight operators for one in each of 32 layers; its products are what they were"
    usual, other = answered("llama"), answered("llama", hidden_act="gelu_new")
    assert "hidden_act is 'gelu_new': the operators of that activation stand in the place of those of 'silu'" in other.notes
    assert usual.parameters == other.parameters
    before, after = (c.at(batch_size=2, seq_len=10, execution="eager") for c in (usual, other))
    assert before.totals.matmul_flops == after.totals.matmul_flops
    assert after.totals.flops - before.totals.flops == 32 * 7 * 20 * 11008
    named = {row.class_name for row in other.record.graph("prefill").calls}
    assert "transformers.activations.NewGELUActivation" in named
    assert "transformers.activations.SiLUActivation" not in named


def test_biases_are_weights_and_are_stored_in_16_bits_beside_four_bit_weights():
    "Four vectors of 4,096 numbers in each of 32 layers"
    four = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}}
    plain, biased = answered("llama"), answered("llama", attention_bias=True)
    assert biased.parameters - plain.parameters == 32 * 4 * 4096
    sizes = [answered("llama", **four, **more).at(seq_len=2).totals.weight_bytes for more in ({}, {"attention_bias": True})]
    assert sizes[1] - sizes[0] == 32 * 4 * 4096 * 2


@pytest.mark.parametrize("asked", [
    {"hidden_act": "gelu_neww"}, {"hidden_act": None}, {"attention_bias": "yes"}, {"hidden_act": ["silu"]}
])
def test_what_is_no_activation_is_refused(asked):
    with pytest.raises(ModelError, match=next(iter(asked))):
        answered("llama", **asked)


def test_what_can_be_exchanged_is_not_why_a_config_is_refused():
    "Biases could be added; it is the activation, or the rotation, that no record has"
    with pytest.raises(ModelError, match=r"fits this config \(hidden_act is 'gelu_neww', traced with 'silu'\)"):
        answered("llama", attention_bias=True, hidden_act="gelu_neww")
    rope = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    with pytest.raises(ModelError, match=r"fits this config \(rope is 'dynamic', traced with 'static'\)"):
        answered("llama", attention_bias=True, **rope)


def places(record):
    "Setting -> another value, of those that a record exchanges"
    names = {n: about for n, about in record.settings.items() if "exchange" in about}
    text = lambda old: "gelu" if old != "gelu" else "silu"
    return {n: not a["value"] if "bias" in a["exchange"] else text(a["value"]) for n, a in names.items()}


@pytest.mark.parametrize("path", random.Random(0).sample(PATHS, 40), ids=lambda p: p.name.partition(".")[0])
def test_what_a_record_says_follows_a_setting_is_there(path):
    "Each is in the graph of every case, and is what the setting says stands there"
    from lm_predictor.models.exchanges import _changed, _places
    record = record_from_json(read_json(path), str(path))
    for name, new in places(record).items():
        about = record.settings[name]
        [(what, paths)] = about["exchange"].items()
        assert what in ("activation", "bias") and paths and (what == "bias" or about["value"] in activations())
        for case in record.cases:
            before, after = record.graph(case), _changed(record.graph(case), ((what, paths, about["value"], new),))
            products = [[str(n.matmul_flops) for n in g.nodes if n.kind == "matmul"] for g in (before, after)]
            ran = _places(before, [p.rpartition(".")[0] for p in paths])  # what runs on images alone stays as it is
            assert products[0] == products[1] and (before.nodes != after.nodes) == bool(ran)
            assert len(after.calls) == len(before.calls) and after.kv_cache_bytes == before.kv_cache_bytes


def test_a_record_that_fits_is_left_alone():
    record = answered("llama").record
    assert exchanged(record, type_config("llama")) == (record, "")


@pytest.mark.slow
def test_biases_are_as_many_weights_as_transformers_builds():
    "One record of each type and set of biases: all of them turned at once, beside the model on the meta device"
    pytest.importorskip("transformers")
    from lm_predictor.models.config.attributes import stating
    from lm_predictor.models.matching import symbol_values
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.obtain.confirm import built_parameters
    from lm_predictor.verification.prove import subjects
    seen, wrong = set(), []
    for subject in subjects(DB):
        record, config = subject.record, subject.configs[0][1]
        turned = {n: not a["value"] for n, a in record.settings.items() if "bias" in a.get("exchange", {})}
        if not turned or (key := (record.model_type, *sorted(turned.items()))) in seen:
            continue
        seen.add(key)
        for name, value in turned.items():
            config = stating(config, name, value)
        made, told = exchanged(record, config)
        if told and made.parameters.evaluate(symbol_values(made, config)) != built_parameters(full_config(config)):
            wrong.append(record.id)
    assert len(seen) > 100 and wrong == []
