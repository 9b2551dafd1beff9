"""The quantization_config of published checkpoints, as a user meets it: through a config.json and the CLI.

The entries are those of the published config.json files (aiconfigurator-core 0.12 carries copies of most).
"""
import json

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.cost.checkpoint.quantized import quantized
from lm_predictor.models.sources.hub import presets
from lm_predictor.models.matching import fits, has_every_kind, symbol_values
from lm_predictor.models.weights.quantization import read_quantization
from shipped import records_of

FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
MXFP4 = {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
         "quant_method": "mxfp4"}
AWQ = {"bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm", "zero_point": True}
GPTQ = {"batch_size": 1, "bits": 4, "block_name_to_quantize": None, "damp_percent": 0.01, "desc_act": False, "group_size": 128,
        "modules_in_block_to_quantize": None, "quant_method": "gptq", "sym": True, "true_sequential": True}
NF4 = {"_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": "nf4",
       "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": None, "load_in_4bit": True, "load_in_8bit": False,
       "quant_method": "bitsandbytes"}
FP8_DYNAMIC = {
    "config_groups": {"group_0": {
        "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"},
        "targets": ["Linear"],
        "weights": {"dynamic": False, "num_bits": 8, "strategy": "channel", "symmetric": True, "type": "float"}}},
    "format": "float-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method": "compressed-tensors",
    "quantization_status": "compressed"}
W4A16 = {
    "config_groups": {"group_0": {
        "input_activations": None, "targets": ["Linear"],
        "weights": {"actorder": None, "dynamic": False, "group_size": 128, "num_bits": 4, "strategy": "group", "symmetric": True,
                    "type": "int"}}},
    "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"], "quant_method": "compressed-tensors"}
NVFP4 = {
    "config_groups": {"group_0": {
        "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"],
        "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}}},
    "ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn*"], "quant_algo": "NVFP4",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.35.0"}, "quant_method": "modelopt"}
SIZES = "--batch-size 16 --cache-len 8192".split()


@pytest.fixture
def run(tmp_path, capsys):
    "Analyze a preset with a quantization_config: what --format json prints"
    def analyzed(preset, quantization, *options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(presets()[preset]["config"] | {"quantization_config": quantization}), encoding="utf-8")
        assert main(["analyze", str(path), "--format", "json", *SIZES, *options]) == 0
        return json.loads(capsys.readouterr().out)
    return analyzed


@pytest.fixture
def refused(tmp_path, capsys):
    "What is said where a quantization_config is refused"
    def said(quantization):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(presets()["openai-community/gpt2"]["config"] | {"quantization_config": quantization}), encoding="utf-8")
        assert main(["analyze", str(path)]) == 1
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1
        return err
    return said


def layer(hidden, heads, kv, head, inner):
    "(outputs, inputs) of the matrices of a layer of Llama's kind"
    return [(heads * head, hidden), (kv * head, hidden), (kv * head, hidden), (hidden, heads * head),
            (inner, hidden), (inner, hidden), (hidden, inner)]


LLAMA = layer(4096, 32, 8, 128, 14336)  # Llama-3.1-8B, 32 layers
HELD = 8030261248 - 32 * sum(n * k for n, k in LLAMA)  # embeddings, head, norms


def weight_bytes(found):
    return found["totals"]["weight_bytes"]


def notes(found):
    return "\n".join(found["notes"])


def test_deepseek_v3_has_the_published_scales(run):
    """The hub's metadata: 684,531,386,000 numbers, of which 41,540,496 are scales. A layer of 256 experts, the multi-token-prediction
    layer's kind, has 702,264 of them: (experts and shared expert) / 128^2 = 688,128 + 2,688, and of attention 672 + 2304 + 56 * 5 + 1024 + 7168."""
    found = run("deepseek-ai/DeepSeek-V3", FP8)
    quantized, scales = 669_065_609_216, 41_540_496 - 702_264
    assert weight_bytes(found) == quantized + 2 * (671_026_404_352 - quantized) + 4 * scales
    assert f"{quantized:,} weights in fp8, a float32 scale per 128x128 block; left in 16 bits: lm_head, embeddings" in notes(found)
    before = run("deepseek-ai/DeepSeek-V3", FP8, "--w-bits", "16")
    assert weight_bytes(before) == 2 * 671_026_404_352 and found["totals"]["flops"] == before["totals"]["flops"]
    assert "all weights have the 16 bits given; quantization_config, fp8, is not applied" in notes(before)


def test_gpt_oss_120b_has_the_published_size(run):
    "36 layers of 128 experts in 4.25 bits, the rest in 16: the files of the checkpoint hold 65.2 GB (60.8 GiB in its model card)"
    found, expert = run("openai/gpt-oss-120b", MXFP4), 3 * 2880 * 2880
    quantized = 36 * 128 * expert
    assert weight_bytes(found) == quantized * 17 // 32 + 2 * (116_829_156_672 - quantized) == 65_248_815_744
    assert not [k for k in found["kernels"] if "quantize" in k["operation"]]
    assert "dequantized inside the product, without a kernel" in notes(found)


@pytest.mark.parametrize("quantization, each", [
    (FP8_DYNAMIC, lambda n, k: n * k + 2 * n),
    (AWQ, lambda n, k: n * k // 2 + k // 128 * n * 5 // 2),
    (GPTQ, lambda n, k: n * k // 2 + k // 128 * n * 5 // 2 + 4 * k),
    (GPTQ | {"bits": 8, "group_size": -1}, lambda n, k: n * k + 3 * n + 4 * k),
    (NF4, lambda n, k: n * k // 2 + n * k // 64 + n * k // 64 // 256 * 4 + 1024 + 64),
    ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, lambda n, k: n * k + 4 * n),
    (FP8 | {"weight_block_size": None, "activation_scheme": "static"}, lambda n, k: n * k + 8),
    ({"quant_algo": "FP8", "exclude_modules": ["lm_head"], "quant_method": "modelopt"}, lambda n, k: n * k + 8),
], ids=["fp8 dynamic", "awq", "gptq", "gptq int8", "nf4", "int8", "fp8 static", "modelopt fp8"])
def test_llama_in_each_format(run, quantization, each):
    found = run("meta-llama/Llama-3.1-8B", quantization)
    assert weight_bytes(found) == 32 * sum(each(n, k) for n, k in LLAMA) + 2 * HELD
    assert "left in 16 bits: lm_head, embeddings, norms, routers, biases" in notes(found)


@pytest.mark.parametrize("preset", ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B"])
def test_mlx_has_a_scale_and_a_bias_per_group_also_of_its_table_of_words(tmp_path, capsys, preset):
    "4 bits in groups of 64 are 4 + 32 / 64 = 4.5 bits of a weight; norms stay in 16; both spellings say the same"
    own, said = presets()[preset]["config"], {"group_size": 64, "bits": 4}
    norms = (2 * own["num_hidden_layers"] + 1) * own["hidden_size"]
    bits = 4.5 * (presets()[preset]["published_parameters"] - norms) + 16 * norms
    for spelt in ({"quantization": said}, {"quantization": said, "quantization_config": said}):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(own | spelt), encoding="utf-8")
        assert main(["analyze", str(path), "--format", "json", *SIZES]) == 0
        found = json.loads(capsys.readouterr().out)
        assert weight_bytes(found) == bits / 8 and "int4 (mlx)" in notes(found)
        assert "not read: quantization" not in notes(found)


def test_what_is_ignored_stays_in_16_bits(run):
    found = run("meta-llama/Llama-3.1-8B", W4A16)
    block, attention = LLAMA[4:], sum(n * k for n, k in LLAMA[:4])
    assert weight_bytes(found) == 32 * (sum(n * k // 2 + n * k // 128 * 2 + 16 for n, k in block) + 2 * attention) + 2 * HELD
    assert "left in 16 bits: self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj, lm_head," in notes(found)


def test_layers_of_one_kind_may_differ(run):
    "The attention of the first two layers is left in 16 bits"
    found = run("meta-llama/Llama-3.1-8B", NVFP4)
    narrow = lambda rows: sum(n * k // 2 + n * k // 16 + 8 for n, k in rows)
    attention = 30 * narrow(LLAMA[:4]) + 2 * 2 * sum(n * k for n, k in LLAMA[:4])
    assert weight_bytes(found) == attention + 32 * narrow(LLAMA[4:]) + 2 * HELD
    assert "self_attn.q_proj (2 of 32), self_attn.k_proj (2 of 32)" in notes(found)
    assert "the checkpoint is for cached keys and values in fp8: --kv-bits 8 counts them so" in notes(found)


def test_inputs_are_quantized_by_kernels_of_their_own(run):
    """One token of each of 16 sequences: 4096 numbers of 2 bytes are read, 4096 of one byte and a float32 of each row are written;
    a layer has four such inputs, or one for each of its seven products where every linear layer is alone."""
    found = run("meta-llama/Llama-3.1-8B", FP8_DYNAMIC, "--hardware", "h100")
    kernels = [k for k in found["kernels"] if k["operation"] == "quantize_fp8"]
    assert sum(k["count"] for k in kernels) == 4 * 32 and {k["flops"] for k in kernels} == {0}
    assert [(k["read_bytes"], k["write_bytes"]) for k in kernels][:1] == [(2 * 16 * 4096, 16 * 4096 + 16 * 4)]
    product = next(k for k in found["kernels"] if k["path"].endswith("mlp.down_proj") and k["multiplies"])
    assert product["multiplies"] == "fp8" and product["write_bytes"] == 2 * 16 * 4096
    assert product["read_bytes"] == 4096 * 14336 + 2 * 4096 + 16 * 14336 + 16 * 4
    eager = run("meta-llama/Llama-3.1-8B", FP8_DYNAMIC, "--execution", "eager")
    assert sum(k["count"] for k in eager["kernels"] if k["operation"] == "quantize_fp8") == 7 * 32


def test_the_engine_quantizes_the_inputs_of_what_it_joins(run):
    "q, k and v are one product there, and gate and up: four inputs, four products"
    found = run("meta-llama/Llama-3.1-8B", FP8_DYNAMIC, "--execution", "engine")
    products = [k for k in found["kernels"] if k["multiplies"]]
    quantize = [k for k in found["kernels"] if k["operation"] == "quantize_fp8"]
    assert sum(k["count"] for k in products) == sum(k["count"] for k in quantize) == 4 * 32
    weights = 32 * sum(n * k + 2 * n for n, k in LLAMA)
    assert weights < sum(k["read_bytes"] * k["count"] for k in products) < weights * 1.01


def test_a_device_without_the_type_says_so(run):
    slow, fast = (run("meta-llama/Llama-3.1-8B", FP8_DYNAMIC, "--seq-len", "2048", "--hardware", d) for d in ("a100", "h100"))
    assert "multiplies no fp8: its products are timed at bf16" in notes(slow) and "multiplies no" not in notes(fast)


def test_experts_are_one_by_one_in_a_checkpoint(run):
    "gate and up of an expert of 1408 outputs have 11 rows of blocks each; of 768, which Qwen3-30B-A3B has, 6"
    found = run("Qwen/Qwen3-30B-A3B", FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})
    rows = layer(2048, 32, 4, 128, 0)[:4] + 128 * [(768, 2048), (768, 2048), (2048, 768)]
    blocks = sum(-(-n // 128) * -(-k // 128) for n, k in rows)
    assert weight_bytes(found) == 2 * 30_532_122_624 - 48 * sum(n * k for n, k in rows) + 4 * 48 * blocks


@pytest.mark.parametrize("quantization, said", [
    ({"quant_method": "gtpq", "bits": 4}, "quant_method 'gtpq' is not known here; near: gptq"),
    ({"quant_method": "hqq"}, "quant_method 'hqq' is not known here; it is one of fp8, mxfp8, fbgemm_fp8, compressed-tensors"),
    ({"bits": 4}, "it has no quant_method; known are fp8, mxfp8"),
    ([4], "quantization_config must be an object, got '[4]'"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP5"}, "modelopt's quant_algo 'NVFP5' is not known; near: NVFP4"),
    ({"quant_method": "gptq", "bits": "four"}, "bits must be one of 2, 3, 4, 8, got 'four'"),
    ({"quant_method": "awq", "group_size": 0}, "group_size must be a whole number of at least 1, got '0'"),
    ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list of names"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}, "ignore": ["re:(a+)+$"]},
     "'(a+)+$' repeats what repeats"),
])
def test_what_is_not_understood_is_refused(refused, quantization, said):
    assert said in refused(quantization)


def shapes_known():
    for name, preset in presets().items():
        config = preset["config"]
        fitting = [r for r in records_of(config["model_type"]) if not fits(r, config)]
        found = next((r for r in fitting if has_every_kind(r, config)), next(iter(fitting), None))
        if found:
            yield pytest.param(found, config, id=name)


@pytest.mark.parametrize("record, config", [*shapes_known()])
def test_the_shapes_of_every_preset_are_known(record, config):
    "Every linear layer and all experts are found with their matrices, the same in a prefill and in a decode step"
    every = read_quantization({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["none"]}})
    values = symbol_values(record, config) | {"w_bytes": 2, "a_bytes": 2, "kv_bytes": 2, "active_experts": 2, "batch_size": 2}
    found = {}
    for case, sizes in (("prefill", {"seq_len": 48, "cache_len": 0}), ("decode", {"seq_len": 1, "cache_len": 48})):
        _, weights = quantized(record, record.graph(case), every, values | sizes)
        found[case] = {s.path: 0 for s in weights.values()}
        for s in weights.values():
            found[case][s.path] += s.elements
    assert found["prefill"] == found["decode"]
    for path, name, _, parameters in record.modules:
        linear = name == "torch.nn.modules.linear.Linear" or path.endswith(".experts")
        tied = "." not in path and values.get("tie_word_embeddings")
        if linear and parameters.names <= set(values) and not tied and not path.endswith("dt_proj"):
            held, most = found["prefill"].get(path, 0), parameters.evaluate(values)
            assert most - held < most / 50 or held == most, path  # the bias is left


@pytest.fixture
def named(capsys, monkeypatch):
    "Analyze a model by its name, without a hub: what --format json prints"
    import lm_predictor.models.sources.hub as hub
    monkeypatch.setattr(hub, "_hub_reachable", lambda: False)

    def analyzed(model, *options):
        assert main(["analyze", model, "--format", "json", *SIZES, *options]) == 0
        return json.loads(capsys.readouterr().out)
    return analyzed


@pytest.mark.parametrize("model, preset", [
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"), ("unsloth/llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B"),
    ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B"), ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
    ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"), ("Qwen1.5-MoE-A2.7B-Chat", "Qwen/Qwen1.5-MoE-A2.7B"),
])
def test_how_a_model_was_trained_does_not_matter(named, model, preset):
    found, its = named(model), named(preset)
    assert found["totals"] == its["totals"] and found["model"] == model
    assert f"{model} is no preset: these are the sizes of {preset}, whose name differs only in how it was trained" in notes(found)


@pytest.mark.parametrize("model, each, said", [
    ("RedHatAI/Llama-3.1-8B-Instruct-FP8", lambda n, k: n * k + 4 * (n // 128) * (k // 128), "fp8 in its usual form (fp8, a float32 scale per 128x128"),
    ("nvidia/LLAMA-3.1-8B-instruct-nvfp4", lambda n, k: n * k // 2 + n * k // 16 + 8, "modelopt in its usual form (nvfp4, a 1-byte scale per 16 inputs)"),
    ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", lambda n, k: n * k // 2 + k // 128 * n * 5 // 2, "awq in its usual form (int4,"),
    ("someone/Llama-3.1-8B-GPTQ-Int8", lambda n, k: n * k + k // 128 * n * 3 + 4 * k, "gptq in its usual form (int8,"),
    ("unsloth/Llama-3.1-8B-Instruct-bnb-4bit", lambda n, k: n * k // 2 + n * k // 64 + 4 * (n * k // 64 // 256) + 1024 + 64,
     "bitsandbytes in its usual form (nf4,"),
])
def test_a_quantized_name_is_priced_as_it_says(named, model, each, said):
    found = named(model)
    assert weight_bytes(found) == 32 * sum(each(n, k) for n, k in LLAMA) + 2 * HELD
    assert said in notes(found) and "its own config.json was not compared" in notes(found)


def test_a_name_of_mlx_has_its_table_of_words_quantized_too(named):
    found = named("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit")
    norms = 65 * 4096
    assert weight_bytes(found) == 4.5 / 8 * (8_030_261_248 - norms) + 2 * norms
    assert "mlx in its usual form (int4, a 16-bit scale and bias per 64 inputs)" in notes(found)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B-Instruct-2507", "meta-llama/Llama-3.1-8B-FP8-AWQ", "meta-llama/Llama-3.1-9B-Instruct"])
def test_other_names_are_refused(capsys, monkeypatch, model):
    import lm_predictor.models.sources.hub as hub
    monkeypatch.setattr(hub, "_hub_reachable", lambda: False)
    assert main(["analyze", model]) == 1
    assert f"{model!r} is no preset" in capsys.readouterr().err


def test_inspect_says_whose_sizes_it_shows(capsys, monkeypatch):
    import lm_predictor.models.sources.hub as hub
    monkeypatch.setattr(hub, "_hub_reachable", lambda: False)
    assert main(["inspect", "meta-llama/Llama-3.1-8B-Instruct"]) == 0
    assert "these are the sizes of meta-llama/Llama-3.1-8B" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("preset, said", [
    ("deepseek-ai/DeepSeek-V3", "num_nextn_predict_layers is 1; a module has 11,610,067,968 parameters"),  # 11.6B, 14B in the files with copies
    ("zai-org/GLM-4.5-Air", "num_nextn_predict_layers is 1; a module has"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "a checkpoint of qwen3_next has 1; a module has"),
])
def test_prediction_modules_are_named(named, preset, said):
    found = notes(named(preset))
    assert said in found and "neither its weights nor its cost are in these figures" in found


def test_models_without_prediction_modules_say_nothing_of_them(named):
    assert "multi-token" not in notes(named("meta-llama/Llama-3.1-8B")) + notes(named("Qwen/Qwen3-30B-A3B"))


def test_deepseek_v3_as_an_engine_runs_it(run):
    "One token of each of 16 sequences: 3.40 TFLOP whatever the weights are; about half of the bytes that 16 bits move, 0.565 TB"
    fp8, wide = (run("deepseek-ai/DeepSeek-V3", FP8, "--execution", "engine", *w) for w in ([], ["--w-bits", "16"]))
    assert fp8["totals"]["matmul_flops"] == wide["totals"]["matmul_flops"] == 3_399_199_490_048
    moved = [t["read_bytes"] + t["write_bytes"] for t in (fp8["totals"], wide["totals"])]
    assert 0.287e12 < moved[0] < 0.292e12 and 0.55e12 < moved[1] < 0.58e12
    assert {"absorb", "experts"} <= {r["name"] for r in fp8["rewrites"]} == {r["name"] for r in wide["rewrites"]}


@pytest.mark.parametrize("execution", ["eager", "fused", "flash", "engine"])
@pytest.mark.parametrize("preset", [
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "ai21labs/Jamba-v0.1", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "openai/gpt-oss-20b",
    "mistralai/Mixtral-8x7B-v0.1", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "state-spaces/mamba-2.8b-hf",
])
def test_products_are_the_same_in_every_execution(preset, execution):
    "A quantization changes bytes, and no product; what a kernel reads of the quantized inputs was written before"
    from lm_predictor import analyze
    cost = analyze(presets()[preset]["config"] | {"quantization_config": FP8}, trace=False)
    narrow, wide = (cost.at(batch_size=4, seq_len=1, cache_len=64, execution=execution, w_bits=w).totals for w in (None, 16))
    assert narrow.matmul_flops == wide.matmul_flops and narrow.flops == wide.flops
    assert narrow.weight_bytes < 0.7 * wide.weight_bytes and narrow.read_bytes < wide.read_bytes


@pytest.mark.parametrize("preset", [name for name, p in presets().items() if "published_quantization" in p])
def test_a_preset_whose_checkpoint_is_quantized_says_so(named, preset):
    "Its name with the suffix has fewer bytes, and the same products"
    word = presets()[preset]["published_quantization"]
    found, narrow = named(preset), named(f"{preset}-{word}")
    assert f"the published checkpoint is quantized, these are figures of 16-bit weights; {preset}-{word} has its own" in notes(found)
    assert found["totals"]["matmul_flops"] == narrow["totals"]["matmul_flops"]
    assert weight_bytes(narrow) < {"FP8": 0.53, "MXFP4": 0.4}[word] * weight_bytes(found)


def test_hf_quant_config_beside_a_config_is_read(tmp_path, capsys):
    "The form of nvidia/Llama-3.1-70B-Instruct-FP8: config.json says nothing of it"
    config = presets()["meta-llama/Llama-3.1-8B"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}), encoding="utf-8")
    assert main(["analyze", str(tmp_path / "config.json"), "--format", "json", *SIZES]) == 0
    found = json.loads(capsys.readouterr().out)
    assert weight_bytes(found) == 32 * sum(n * k + 8 for n, k in LLAMA) + 2 * HELD and found["quantization"] == "fp8 (modelopt)"
    (tmp_path / "hf_quant_config.json").write_text("[1]", encoding="utf-8")
    assert main(["analyze", str(tmp_path / "config.json")]) == 1
    assert "hf_quant_config.json is no quantization of modelopt" in capsys.readouterr().err


def test_plots_are_of_the_quantized_weights():
    "The context that fits beside 8-bit weights is longer; the steps from eager to fused sum to what is moved; a title says it"
    pytest.importorskip("matplotlib")
    from lm_predictor import analyze
    from lm_predictor.app.plots.breakdown import traffic_steps
    from lm_predictor.app.plots.memory import longest_context
    from lm_predictor.app.plots.names import subject
    cost = analyze(presets()["meta-llama/Llama-3.1-8B"]["config"] | {"quantization_config": FP8}, trace=False)
    fits, wide = (longest_context(cost, "nvidia_l4", **w) for w in ({}, {"w_bits": 16}))
    assert fits - wide == pytest.approx((2 * 8030261248 - cost.at().totals.weight_bytes) / (32 * 2 * 8 * 128 * 2), abs=1)
    moved, steps = traffic_steps(cost, batch_size=4, seq_len=1, cache_len=512)
    assert moved["eager"] - sum(s.removed for s in steps["fused"]) == moved["fused"]
    assert not [s for s in steps["fused"] if "mm" in s.name.split(" ") and s.removed < 0]
    assert subject(cost.at(seq_len=64)).endswith("prefill of 64 tokens, fp8 weights, engine")


def test_the_waterfall_says_whose_figures_it_shows(capsys, monkeypatch):
    import lm_predictor.models.sources.hub as hub
    monkeypatch.setattr(hub, "_hub_reachable", lambda: False)
    assert main(["analyze", "Qwen/Qwen3-0.6B-FP8", "--waterfall", "--cache-len", "512"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "these are the sizes of Qwen/Qwen3-0.6B" in shown and "weights fp8, activations 16, KV 16 bit" in shown


def changed(value, rng, strange):
    "A config with one entry, at a random depth, replaced"
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value, key=str)) if isinstance(value, dict) else rng.randrange(len(value))
        other = dict(value) if isinstance(value, dict) else list(value)
        other[key] = changed(value[key], rng, strange)
        return other
    return rng.choice(strange)


def test_random_faults_are_read_or_refused_in_a_sentence():
    "2,000 configs with one entry replaced: a quantization, or a ModelError; never another error"
    import random

    from lm_predictor.models.weights.quantization import Quantization
    from lm_predictor.models.config.validation import ModelError
    rng, refused = random.Random(7), 0
    strange = [None, 0, -1, 4, 10**30, 1.5, True, "", "fp8", "x" * 5000, "re:(", "[", [], [1], [None], [["a"]], {}, {"a": 1}, [{"b": []}]]
    for _ in range(2000):
        whole = rng.choice([FP8, MXFP4, AWQ, GPTQ, NF4, FP8_DYNAMIC, W4A16, NVFP4, GPTQ | {"modules_in_block_to_quantize": [["a"], ["b"]]}])
        config = changed(whole, rng, strange)
        try:
            found = read_quantization({"quantization_config": config})
            if found is not None:
                assert isinstance(found, Quantization)
                for path in ("model.layers.3.mlp.up_proj", "model.layers.3.mlp.experts", "lm_head"):
                    stored = found.format_of(path, "torch.nn.modules.linear.Linear")
                    assert stored is None or stored.nbytes(256, 512) > 0
        except ModelError as e:
            refused += 1
            assert str(e).startswith("config: ") and "\n" not in str(e) and len(str(e)) < 400
    assert 400 < refused < 1800


@pytest.mark.parametrize("kind", ["zamba", "zamba2"])
def test_weights_that_layers_share_are_refused(kind, tmp_path, capsys):
    "One block's weights are those of several layers, so what a checkpoint stores is not what the layers read"
    config = {"model_type": kind, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["analyze", str(tmp_path / "config.json")]) != 0
    assert f"{kind}: its layers share weights" in capsys.readouterr().err
