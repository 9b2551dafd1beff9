"Configs as they are published: each is answered without torch, with the parameters of its language model, or refused in one sentence."
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm_predictor.models.sources.hub import presets
from lm_predictor.models.parts import architectures, language_part
from lm_predictor.models.config.validation import ModelError
from lm_predictor.obtain.analyze import analyze
from lm_predictor.records.storage.database import Database, shipped_directory

ROOT = Path(__file__).resolve().parent.parent
SERVED = json.loads((Path(__file__).parent / "served_configs.json").read_text(encoding="utf-8"))["configs"]
FOUND = json.loads((Path(__file__).parent / "found_configs.json").read_text(encoding="utf-8"))["configs"]
ANSWERED = [name for name, row in SERVED.items() if row["parameters"]]
DB = Database(overlay=shipped_directory(), shipped=shipped_directory())


def light(*words) -> subprocess.CompletedProcess:
    "A command in an installation with neither torch nor transformers"
    code = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers'))); from lm_predictor.app.cli.main import main; " \
           "sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, cwd=ROOT)


@pytest.mark.parametrize("name", ANSWERED)
def test_parameters(name, monkeypatch):
    "What transformers builds of the config, from the shipped record alone"
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)
    cost = analyze(SERVED[name]["config"], DB, trace=False)
    assert cost.parameters == SERVED[name]["parameters"]
    for workload in ({"seq_len": 128}, {"batch_size": 2, "seq_len": 1, "cache_len": 128}):
        totals = cost.at(**workload).totals
        assert 0 < totals.matmul_flops <= totals.flops and totals.read_bytes > 0
    assert ("text_config" in SERVED[name]["config"]) == any("the language model of " in note for note in cost.notes)


@pytest.mark.parametrize("name", [name for name, row in FOUND.items() if row["parameters"]])
def test_a_config_that_a_repository_has(name, monkeypatch):
    "Checkpoints that people run at home and elsewhere: the weights that transformers builds, and products in a decode of them"
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)
    cost = analyze(FOUND[name]["config"], DB, trace=False)
    assert cost.parameters == FOUND[name]["parameters"]
    assert 0 < cost.at(batch_size=4, seq_len=1, cache_len=128).totals.matmul_flops  # JetMoE deals its tokens out, four at least


@pytest.mark.parametrize("name", [name for name, row in FOUND.items() if not row["parameters"]])
def test_a_type_that_transformers_does_not_have(name, monkeypatch):
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)
    with pytest.raises(ModelError, match="no stored record fits this config|must be a positive integer"):
        analyze(FOUND[name]["config"], DB, trace=False)


@pytest.mark.parametrize("many", [5, 12, 31])
def test_gemma_4_of_another_number_of_layers(many, monkeypatch):
    """What its layers have otherwise is said by their kind, in a published config as in a saved one, and its last is full whatever a config says

    Without overrides it is another model; where each layer has an input of its own, tables grow with the layers, and a record is for their number.
    """
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.obtain.confirm import built_parameters
    own = presets()["google/gemma-4-26B-A4B"]["config"]
    config = own | {"num_hidden_layers": many, "layer_types": (["sliding_attention", "full_attention", "sliding_attention"] * many)[:many]}
    full = full_config(config)
    theirs = built_parameters(full)
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)
    for given in (config, full.to_dict()):
        assert analyze(given, DB, trace=False).parameters == theirs
    for other in (config | {"per_layer_config": None}, {"model_type": "gemma4_text", "num_hidden_layers": many}):
        with pytest.raises(ModelError):
            analyze(other, DB, trace=False)


def test_the_lists_of_kimi_linear_say_its_layers(monkeypatch):
    "Its config names the full and the linear layers, counted from one; a model of 27 layers has 7 full ones, where its class would take 6"
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)
    config = FOUND["moonshotai/Kimi-Linear-48B-A3B-Instruct"]["config"]
    lists = config["linear_attn_config"]
    assert lists["full_attn_layers"] == [4, 8, 12, 16, 20, 24, 27]
    cost = analyze(config, DB, trace=False)
    assert [cost.values[f"num_layers_{k}"] for k in (1, 2, 3)] == [1, 19, 7] and cost.parameters == 49_122_675_072
    other = lists | {"full_attn_layers": [4], "kda_layers": [*range(1, 4), *range(5, 28)]}
    assert analyze(config | {"linear_attn_config": other}, DB, trace=False).values["num_layers_3"] == 1
    with pytest.raises(ModelError, match="must name each of 27 layers once, counted from 1"):
        analyze(config | {"linear_attn_config": lists | {"kda_layers": [1, 2, 3]}}, DB, trace=False)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-Coder-480B-A35B-Instruct", "moonshotai/Kimi-K2.5", "Qwen/Qwen3-VL-2B-Instruct"])
def test_answered_without_torch(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SERVED[name]["config"]), encoding="utf-8")
    found = light("analyze", str(tmp_path), "--format", "json", "--seq-len", "128")
    assert found.returncode == 0 and json.loads(found.stdout)["totals"]["weight_bytes"] == 2 * SERVED[name]["parameters"], found.stderr


@pytest.mark.parametrize("experts, parameters", [(160, 480_154_875_392), (128, None), (64, None)])
def test_any_number_of_experts(experts, parameters):
    "Qwen3-Coder-480B was answered with 386.5 B parameters, from a record traced with 128 experts"
    config = SERVED["Qwen/Qwen3-Coder-480B-A35B-Instruct"]["config"] | {"num_experts": experts}
    rest = 480_154_875_392 - (160 - experts) * 62 * (3 * 6144 * 2560 + 6144)  # an expert has three matrices and a row of the router
    assert analyze(config, DB, trace=False).parameters == rest and parameters in (None, rest)


def test_a_number_given_under_two_names(monkeypatch):
    "nvidia/GLM-5.2-NVFP4 gives `num_experts` beside `n_routed_experts`, and the class takes the first for the second"
    monkeypatch.setattr("lm_predictor.obtain.confirm.can_trace", lambda: False)
    config = SERVED["zai-org/GLM-5.3"]["config"]
    experts = config["n_routed_experts"]
    twice, once = config | {"num_experts": experts}, {k: v for k, v in config.items() if k != "n_routed_experts"}
    for same in (twice, once | {"num_experts": experts}):
        assert analyze(same, DB, trace=False).parameters == SERVED["zai-org/GLM-5.3"]["parameters"]
    assert analyze(once | {"num_experts": 128}, DB, trace=False).parameters < SERVED["zai-org/GLM-5.3"]["parameters"]
    with pytest.raises(ModelError, match="num_experts 128 and n_routed_experts 256 are two names of one entry"):
        analyze(config | {"num_experts": 128}, DB, trace=False)


@pytest.mark.parametrize("width, parameters", [(4096, 641_858_304), (10_000, 1_044_511_488), (12_288, 1_170_340_608)])
def test_a_width_by_the_name_that_its_class_takes_for_it(width, parameters):
    "LFM2's class takes `block_ff_dim` for its `intermediate_size`, of which two thirds are a layer's; counted by transformers"
    config = presets()["LiquidAI/LFM2-1.2B"]["config"]
    assert analyze(config | {"block_ff_dim": width}, DB, trace=False).parameters == parameters


@pytest.mark.parametrize("name", [n for n in SERVED if n not in ANSWERED])
def test_what_nobody_has_is_refused_in_a_sentence(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SERVED[name]["config"]), encoding="utf-8")
    found = light("analyze", str(tmp_path))
    assert found.returncode == 1 and not found.stdout and found.stderr.count("\n") == 1, found.stderr


def test_a_nested_config_without_a_text_part():
    for kind in ("qwen3_vl", "gemma3", "kimi_k25", "mistral3"):
        with pytest.raises(ModelError, match="keeps its language model in text_config, and this one has none; it has vision_config"):
            language_part({"model_type": kind, "vision_config": {"hidden_size": 1152}})


def test_mistral3_as_published_is_mistral():
    "Mistral Small 3.1: its text_config says mistral"
    text = presets()["mistralai/Mistral-7B-v0.3"]["config"]
    cost = analyze({"model_type": "mistral3", "text_config": text, "vision_config": {"model_type": "pixtral"}}, DB, trace=False)
    assert cost.parameters == presets()["mistralai/Mistral-7B-v0.3"]["published_parameters"]
    assert cost.notes[0].startswith("the language model of mistral3 alone, without vision_config")


SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 128, "max_position_embeddings": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


QWEN_VL = {"vocab_size": 152064, "max_position_embeddings": 128000, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu",
           "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False}


@pytest.mark.parametrize("width, inner, layers, heads, kv, parameters", [
    (3584, 18944, 28, 28, 4, 7_615_616_512), (8192, 29568, 80, 64, 8, 72_706_203_648)])  # those of Qwen2.5-7B and -72B
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_a_flat_config_with_a_tower_is_answered(kind, width, inner, layers, heads, kv, parameters):
    "Qwen2-VL and Qwen2.5-VL are published with the entries of their language model at the top, beside the tower's"
    own = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv}
    tower = {"depth": 32, "embed_dim": 1280, "hidden_size": width, "patch_size": 14, "num_heads": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    cost = analyze({"model_type": kind, **QWEN_VL, **own, "vision_config": tower}, Database(shipped_directory(), shipped_directory()), trace=False)
    assert cost.record.parameters.evaluate(cost.values) == parameters


def model_of(config):
    "The model without a head of a config; Granite 4 Vision's language model is no model type of transformers by itself"
    import transformers
    if type(config) in transformers.models.auto.modeling_auto.MODEL_MAPPING:
        return transformers.AutoModel.from_config(config)
    module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    return getattr(module, type(config).__name__.replace("Config", "Model"))(config)


RENAMED = {  # types of parts that transformers has no class for -> the whole that has one inside, and what it is given
    "exaone4_5_text": ("exaone4_5", {"text_config": {"model_type": "exaone4_5_text"}}), "qwen3_asr_text": ("qwen3_asr", {})}


@pytest.mark.parametrize("kind", RENAMED)
def test_a_name_of_published_files_is_what_transformers_has_inside(kind):
    whole, given = RENAMED[kind]
    config = pytest.importorskip("transformers").AutoConfig.for_model(whole, **given)
    assert config.get_text_config().model_type == architectures()["names"][kind]["is"]


@pytest.mark.parametrize("kind", [k for k in architectures()["names"] if k.endswith("_text") and k not in RENAMED])
def test_a_name_of_transformers_is_the_same_model(kind):
    "The parameters by name and shape, and the products of a forward by torch's counter, of the class and of the one it is answered as"
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode
    found = []
    for name in (kind, architectures()["names"][kind]["is"]):
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        config = CONFIG_MAPPING[name](**SMALL, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]})
        config._attn_implementation = "eager"
        model = model_of(config).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(inputs_embeds=torch.zeros(1, 5, 64), use_cache=False)
        found.append(({n: tuple(p.shape) for n, p in model.named_parameters()}, counter.get_total_flops()))
    assert found[0][0] == found[1][0] and found[0][1] > 0 and found[0][1] == found[1][1]


def test_the_list_of_causal_types_is_that_of_transformers():
    pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as causal
    assert architectures()["causal"] == sorted(causal)
