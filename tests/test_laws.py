"Laws of kernels: what ships of them, what more work costs, and what is refused"
import json
import math
from importlib import resources

import pytest

from lm_predictor import analyze
from lm_predictor.timing.kernels.calibrated import bound_of, calibration, in_step, kinds_of, runs, step_times, usual
from lm_predictor.timing.hardware import HardwareError, hardware_names, load_hardware
from lm_predictor.timing.laws.attention import plain_attention
from lm_predictor.timing.laws.collective import AllReduce
from lm_predictor.timing.laws.experts import spread_evenly
from lm_predictor.timing.laws.fitted import LAWS, law_fit
from lm_predictor.timing.laws.law import Chip
from lm_predictor.timing.laws.product import Product
from lm_predictor.timing.laws.stream import Stream

CALIBRATED = [name for name in hardware_names() if calibration(name)]
# mean error in percent on shapes that no fit has seen, of products of 16 bits: the aims, and what is reached where it is more
PRODUCTS = {"nvidia_h100_sxm": 7, "nvidia_h200_sxm": 8, "nvidia_a100_sxm_80gb": 9, "nvidia_b200": 9.5, "nvidia_b300": 9, "nvidia_gb200": 9,
            "nvidia_gb300": 9, "nvidia_l40s": 12.5, "nvidia_rtx_pro_6000_blackwell_server": 9.5}


def chip(name):
    device, own = load_hardware(name), calibration(name)
    return Chip(device.peak("bf16"), device.memory_bandwidth, own.units, device.l2_cache_bytes or 0)


@pytest.mark.parametrize("name", CALIBRATED)
def test_the_laws_of_a_device(name):
    laws = calibration(name).laws
    assert laws and calibration(name).units > 50 and calibration(name).link_bytes_per_s > 1e10
    for f in laws:
        known = LAWS[f.law]
        assert set(f.parameters) == {p.name for p in known.parameters} and f.held_out_rows >= 8
        for p in known.parameters:
            assert 0.99 * p.low <= f.parameters[p.name] <= 1.01 * p.high, (f.kind, f.kernel, p.name)
    for f in laws:
        if f.kind == "product" and f.dtype == "bfloat16":
            assert f.held_out["mape"] <= PRODUCTS[name] and f.roofline["mape"] > 30, (f.framework, f.held_out)


@pytest.mark.parametrize("framework", ("vllm", "sglang", "tensorrt-llm"))
def test_attention_of_hopper_by_implementation(framework):
    "That is run, of groups of heads, as nearly all models of today have them"
    for kind, shared, most in (("context attention", "2-16", 12.5), ("decode attention", "4-16", 16.5)):
        key = framework, kind, shared, "bfloat16", "bfloat16"
        f = usual(f for f in calibration("h100").laws if (f.framework, f.kind, f.heads, f.dtype, f.cache) == key)
        assert f.held_out["mape"] <= most < f.roofline["mape"] / 4, f.kernel


@pytest.mark.parametrize("name", [n for n in CALIBRATED if n != "nvidia_l40s"])
def test_groups_of_more_than_32_heads_are_another_kernel_of_tensorrt(name):
    "One law for both sides of that limit is off by 50 to 260 %; which side a model is on is a matter of its config"
    laws = {f.heads: f for f in calibration(name).laws if (f.framework, f.kind, f.dtype, f.cache) == (
        "tensorrt-llm", "decode attention", "bfloat16", "bfloat16")}
    few, many = (laws[h].time(plain_attention(64, 1, 2 * n, 2, 128, 1024), chip(name)) for h, n in (("17-32", 32), ("33+", 48)))
    assert laws["17-32"].held_out["mape"] < 20 and laws["33+"].held_out["mape"] < 20 and many > 3 * few


@pytest.mark.parametrize("name", CALIBRATED)
def test_twice_the_work_takes_longer_and_at_most_twice_as_long(name):
    "With some slack: a tile may fill better, a clock falls under load, and what outgrows the cache loses what that gains"
    laws, c = calibration(name).laws, chip(name)
    steps = {"product": [Product(2**e, 4096, 4096) for e in range(15)],
             "context attention": [plain_attention(1, 2**e, 32, 8, 128, 2**e) for e in range(7, 15)],
             "decode attention": [plain_attention(16, 1, 32, 8, 128, 2**e) for e in range(17)],
             "experts": [spread_evenly(2**e, 8, 128, 2048, 768) for e in range(14)],
             "all-reduce": [AllReduce(8, 2.0**e) for e in range(10, 30)],
             "convolution": [Stream(2.0**e, 2.0**e, 2**e / 4096) for e in range(12, 32)],
             **dict.fromkeys(("state update", "selective scan", "state space scan"), [Stream(2.0**e, 2.0**e, 0.0) for e in range(12, 32)])}
    for f in (f for f in laws if f.dtype == "bfloat16"):
        times = [f.time(work, c) for work in steps.get(f.kind, [])]
        grows = 4 if f.law == "context attention" else 2  # pairs
        for less, more in zip(times, times[1:]):
            most = 1.4 * grows * less * f.parameters.get("l2_gain", 1)
            assert 0.9 * less <= more <= most and math.isfinite(more), (f.kind, f.framework, f.kernel, less, more)


def test_a_step_takes_each_kernel_by_its_own_law():
    run = analyze("llama-3.1-8b").at(batch_size=16, cache_len=4096).on("h100", "vllm")
    times = step_times(load_hardware("h100"), "vllm")
    kinds = {}
    for k in run.kernels:
        work = k.work()
        if work:
            kinds.setdefault(kinds_of(work)[0], []).append(k)
            fit, chip = times.law_of(work, "bf16", 16), times.chip("bf16")
            assert k.time_s == in_step(fit, work, chip) and k.bound == bound_of(fit, work, chip)
    assert kinds.keys() == {("product", ""), ("decode attention", "4-16")} and len(kinds["product", ""]) == 5
    assert "work" not in run.to_json()["kernels"][0]


@pytest.mark.parametrize("model, sizes, kinds", [
    ("deepseek-v3", {"batch_size": 16, "cache_len": 8192}, {"product", "latent decode", "experts"}),
    ("deepseek-v3", {"seq_len": 512}, {"product", "latent context", "experts"}),
    ("qwen3-30b-a3b", {"seq_len": 512}, {"product", "context attention", "experts"}),
    ("gemma-3-27b-it", {"batch_size": 4, "cache_len": 4096}, {"product", "decode attention"}),
    ("mamba-2.8b", {"seq_len": 512}, {"product", "convolution", "selective scan"}),
    ("mamba2-2.7b", {"batch_size": 4, "cache_len": 512}, {"product", "convolution", "state update"}),
    ("qwen3-next-80b-a3b", {"seq_len": 512}, {"product", "context attention", "experts", "convolution", "chunked scan"}),
    ("qwen3-next-80b-a3b", {"cache_len": 512}, {"product", "decode attention", "experts", "convolution", "recurrent state"}),
])
def test_which_laws_a_model_needs(model, sizes, kinds):
    found = {kinds_of(work)[0][0] for k in analyze(model).at(**sizes).kernels if (work := k.work())}
    assert found == kinds


def test_mixers_take_the_laws_of_their_functions_where_a_table_has_them():
    "Qwen3-Next has 32 states of 128 by 128 numbers in 36 layers; TensorRT-LLM's convolutions go along a sequence"
    run = analyze("qwen3-next-80b-a3b").at(batch_size=16, cache_len=4096).on("h100", "sglang")
    mixers = {k.operation: k for k in run.kernels if isinstance(k.work(), Stream)}
    assert mixers.keys() == {"causal_conv1d_update", "fused_recurrent_gated_delta_rule"} and all(k.count == 36 for k in mixers.values())
    state = mixers["fused_recurrent_gated_delta_rule"]
    assert state.work().blocks == 16 * 32 and state.bound == "memory" and 2 * 16 * 32 * 128 * 128 * 4 < state.work().nbytes
    times = step_times(load_hardware("h100"), "sglang")
    assert times.law_of(state.work(), "bf16", 16).kernel == "fused_recurrent_gated_delta_rule_packed_decode"
    assert 1 < state.time_s / state.least_s < 2
    for f in calibration("h100").laws:
        if f.framework == "tensorrt-llm" and f.kernel == "causal_conv1d_fn":
            # the tables that have the same times for all numbers of channels are left out; its blocks go along a sequence
            assert f.law == "stream along" and f.held_out["mape"] < 12 < f.roofline["mape"]
            assert runs(f, Stream(0, 1e6, function="causal_conv1d_fn"))


def test_a_query_of_latents_is_as_wide_as_a_key():
    for name, heads in (("deepseek-v3", 128), ("kimi-k2.5", 64)):
        [work, *_] = {k.work() for k in analyze(name).at(batch_size=4, cache_len=4095).kernels if "attention" in k.operation}
        assert (work.width, work.heads, work.kv_heads, work.keys) == (512 + 64, heads, 1, 4096)
        assert work.cache_bytes == 4 * 4096 * 576 * 2 and work.pair_flops == 2 * (576 + 512)


def test_products_have_the_sizes_of_their_weights():
    "Llama 3.1 8B: queries, keys and values side by side, and the logits of the last token alone"
    sizes = {k.path.rpartition(".")[2]: k.work() for k in analyze("llama-3.1-8b").at(batch_size=3, seq_len=7).kernels if k.matmul_flops}
    assert (sizes["{q_proj,k_proj,v_proj}"].m, sizes["{q_proj,k_proj,v_proj}"].n, sizes["{q_proj,k_proj,v_proj}"].k) == (21, 6144, 4096)
    assert (sizes["down_proj"].m, sizes["down_proj"].n, sizes["down_proj"].k) == (21, 4096, 14336)
    assert (sizes["lm_head"].m, sizes["lm_head"].n) == (3, 128256)
    assert (sizes["self_attn"].heads, sizes["self_attn"].kv_heads, sizes["self_attn"].keys) == (32, 8, 4)


@pytest.mark.parametrize("change, said", [
    ({"law": "magic"}, "a fit is of one of the laws product, context attention, "),
    ({"parameters": {}}, "launch_s of product must be a positive number, not 'None'"),
    ({"speed": 3}, "not a fit of product: got an unexpected keyword argument 'speed'"),
])
def test_a_damaged_law_is_refused(change, said):
    entry = next(vars(f) for f in calibration("h100").laws if f.kind == "product") | change
    with pytest.raises(HardwareError) as caught:
        law_fit(entry, "mine.json")
    assert f"mine.json: {said}" in str(caught.value)


def test_the_usual_implementation_is_of_the_newest_release():
    found = usual(f for f in calibration("h100").laws if (f.kind, f.framework, f.dtype) == ("experts", "tensorrt-llm", "bfloat16"))
    assert found.kernel == "moe_torch_flow_cutlass"


def test_files_name_their_source():
    for name in CALIBRATED:
        data = json.loads((resources.files("lm_predictor") / f"hardware/calibrated/{name}.json").read_text(encoding="utf-8"))
        assert data["source"].startswith("aiconfigurator-core 0.12.0") and all(e["version"] for e in data["laws"])
