"The shipped devices, the errors of hardware.py and the arithmetic of roofline.py"
import json
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from importlib.resources import files
from pathlib import Path

import pytest

from lm_predictor.timing.hardware import (
    Hardware, HardwareError, compute_dtype, hardware_from_dict, hardware_names, load_hardware)
from lm_predictor.timing.kernels.roofline import KernelTime, arithmetic_intensity, bound, kernel_time, ridge_point, roofline

FOLDER = files("lm_predictor") / "hardware"
NAMES = hardware_names()


def content(name): return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def numbers(value, path=""):
    "Every number of a JSON value, with its path"
    if isinstance(value, dict):
        for key, item in value.items(): yield from numbers(item, f"{path}.{key}" if path else key)
    elif isinstance(value, (int, float)): yield path, value


def message(f, *args):
    with pytest.raises(ValueError) as caught: f(*args)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 600
    return text


def test_at_least_the_promised_devices():
    assert {"nvidia_rtx_a6000", "nvidia_a100_pcie_40gb", "nvidia_a100_pcie_80gb", "nvidia_a100_sxm_40gb", "nvidia_a100_sxm_80gb",
            "nvidia_h100_pcie", "nvidia_h100_sxm", "nvidia_h200_sxm", "nvidia_b200", "nvidia_l4", "nvidia_l40s", "nvidia_t4",
            "nvidia_v100_sxm_16gb", "nvidia_v100_sxm_32gb", "nvidia_v100_pcie_16gb", "nvidia_rtx_4090", "amd_mi300x",
            "google_tpu_v5e", "generic_cpu", "nvidia_h20", "nvidia_h800_sxm", "nvidia_gh200_96gb", "nvidia_gh200_144gb", "nvidia_b300",
            "nvidia_gb200", "nvidia_gb300", "nvidia_l20", "nvidia_l40", "nvidia_a40", "nvidia_rtx_3090", "nvidia_rtx_6000_ada",
            "nvidia_rtx_pro_6000_blackwell_server", "amd_mi250x", "amd_mi325x", "amd_mi355x", "intel_gaudi3", "google_tpu_v5p",
            "aws_trainium2", "apple_m1_max", "apple_m2", "intel_xeon_8480", "amd_epyc_9654"} <= set(NAMES)
    assert NAMES == sorted(f.name[:-5] for f in FOLDER.iterdir() if f.name.endswith(".json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_a_whole_number_with_a_source(name):
    data, device = content(name), load_hardware(name)
    assert data["name"] == device.name == name
    assert dict(numbers(data)) == dict(device.figures())
    assert all(type(value) is int for _, value in numbers(data))
    assert set(data["sources"]) == set(dict(device.figures()))
    assert all(", https://" in source for source in data["sources"].values())


UNLIKE = {  # the types that a device does not multiply at twice the rate of the next wider one
    ("nvidia_rtx_3090", "int8"), ("nvidia_rtx_4090", "int8"),    # 16-bit products at half rate, with fp32 accumulation
    ("nvidia_b300", "int8"), ("nvidia_gb300", "int8"),           # few int8 units
    ("nvidia_b300", "fp4"), ("nvidia_gb300", "fp4"),             # three times fp8
    ("amd_mi250x", "int8"), ("intel_gaudi3", "fp16"), ("intel_gaudi3", "fp8"), ("aws_trainium2", "fp16")}


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_in_range(name):
    d = load_hardware(name)
    assert 8e9 <= d.memory_bytes <= 1e12 and 50e9 <= d.memory_bandwidth <= 20e12
    assert d.l2_cache_bytes is None or 2**20 <= d.l2_cache_bytes <= 2**28
    assert all(1e12 <= value <= 20e15 for _, value in d.peaks) and all(1e12 <= value <= 400e12 for _, value in d.vector_peaks)
    have = dict(d.peaks)
    order = [t for t in ("fp32", "tf32", "fp16", "fp8", "fp4") if t in have]
    assert [have[t] for t in order] == sorted(have[t] for t in order)  # narrower is never slower
    if "bf16" in have and "fp16" in have: assert have["bf16"] == have["fp16"] or name == "intel_gaudi3"
    assert all(value <= have.get(t, value) for t, value in d.vector_peaks)
    for wide, narrow in (("tf32", "fp16"), ("fp16", "fp8"), ("bf16", "int8"), ("fp8", "fp4")):  # sparse figures would be 4, rounded ones 2
        if wide in have and narrow in have: assert 1.9 < have[narrow] / have[wide] < 2.1 or (name, narrow) in UNLIKE
    assert 5 < ridge_point(d, compute_dtype(16, 16, d)) < 500


@pytest.mark.parametrize("name, dtype, units, per_cycle, ghz", [  # multiprocessors, compute units, matrix engines, cores
    ("nvidia_a40", "fp16", 84, 1024, 1.74), ("nvidia_rtx_3090", "fp16", 82, 512, 1.695), ("nvidia_l40", "fp16", 142, 512, 2.49),
    ("nvidia_rtx_6000_ada", "fp16", 142, 1024, 2.505), ("nvidia_l20", "fp16", 92, 512, 2.52), ("nvidia_gh200_96gb", "fp16", 132, 4096, 1.83),
    ("nvidia_h800_sxm", "fp16", 132, 4096, 1.83), ("nvidia_rtx_pro_6000_blackwell_server", "tf32", 188, 512, 2.43),
    ("amd_mi250x", "fp16", 220, 1024, 1.7), ("amd_mi325x", "fp16", 304, 2048, 2.1), ("amd_mi355x", "fp16", 256, 4096, 2.4),
    ("amd_mi355x", "fp32", 256, 256, 2.4), ("intel_gaudi3", "bf16", 8, 2 * 256 * 256, 1.75), ("google_tpu_v5p", "bf16", 8, 2 * 128 * 128, 1.75),
    ("intel_xeon_8480", "bf16", 56, 1024, 2.0), ("amd_epyc_9654", "fp32", 96, 32, 2.4)])
def test_a_peak_is_units_times_their_rate(name, dtype, units, per_cycle, ghz):
    assert load_hardware(name).peak(dtype) == pytest.approx(units * per_cycle * ghz * 1e9, rel=0.01)


def test_an_alias_names_one_device():
    def plain(text): return "".join(c for c in text.lower() if c not in "-_ ")
    owner = {}
    for name in NAMES:
        d = load_hardware(name)
        for text in {plain(t) for t in (d.name, d.title, *d.aliases)}: assert owner.setdefault(text, name) == name, text
        for text in (d.name, d.title, *d.aliases): assert load_hardware(text) is load_hardware(text.upper()) is d


@pytest.mark.parametrize("reported, name", [  # torch.cuda.get_device_name()
    ("NVIDIA A100-SXM4-80GB", "nvidia_a100_sxm_80gb"), ("NVIDIA A100-SXM4-40GB", "nvidia_a100_sxm_40gb"),
    ("NVIDIA A100-PCIE-40GB", "nvidia_a100_pcie_40gb"), ("NVIDIA A100 80GB PCIe", "nvidia_a100_pcie_80gb"),
    ("NVIDIA H100 80GB HBM3", "nvidia_h100_sxm"), ("NVIDIA H100 PCIe", "nvidia_h100_pcie"), ("NVIDIA H200", "nvidia_h200_sxm"),
    ("NVIDIA B200", "nvidia_b200"), ("NVIDIA L4", "nvidia_l4"), ("NVIDIA L40S", "nvidia_l40s"), ("Tesla T4", "nvidia_t4"),
    ("Tesla V100-SXM2-16GB", "nvidia_v100_sxm_16gb"), ("Tesla V100-SXM2-32GB", "nvidia_v100_sxm_32gb"),
    ("Tesla V100-PCIE-16GB", "nvidia_v100_pcie_16gb"), ("NVIDIA GeForce RTX 4090", "nvidia_rtx_4090"),
    ("NVIDIA RTX A6000", "nvidia_rtx_a6000"), ("AMD Instinct MI300X", "amd_mi300x"), ("NVIDIA H20", "nvidia_h20"),
    ("NVIDIA H800", "nvidia_h800_sxm"), ("NVIDIA H800 PCIe", "nvidia_h800_pcie"), ("NVIDIA GH200 480GB", "nvidia_gh200_96gb"),
    ("NVIDIA GH200 144G HBM3e", "nvidia_gh200_144gb"), ("NVIDIA B300 SXM6 AC", "nvidia_b300"), ("NVIDIA GB200", "nvidia_gb200"),
    ("NVIDIA GB300", "nvidia_gb300"), ("NVIDIA L20", "nvidia_l20"), ("NVIDIA L40", "nvidia_l40"), ("NVIDIA A40", "nvidia_a40"),
    ("NVIDIA GeForce RTX 3090", "nvidia_rtx_3090"), ("NVIDIA RTX 6000 Ada Generation", "nvidia_rtx_6000_ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "nvidia_rtx_pro_6000_blackwell_server"),
    ("AMD Instinct MI325X", "amd_mi325x"), ("AMD Instinct MI355X", "amd_mi355x")])
def test_the_name_that_the_driver_reports(reported, name): assert load_hardware(reported).name == name


def test_a_device_is_a_value(tmp_path):
    d = load_hardware("a100")
    assert d.name == "nvidia_a100_sxm_80gb" and d == pickle.loads(pickle.dumps(d)) and len({d, replace(d)}) == 1
    assert replace(d, memory_bandwidth=2 * d.memory_bandwidth).memory_bandwidth == 2 * d.memory_bandwidth
    with pytest.raises(FrozenInstanceError): d.name = "other"
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(content(d.name)), encoding="utf-8-sig")  # with a byte order mark, as some editors write
    assert load_hardware(path) == load_hardware(str(path)) == d
    assert "| `memory_bandwidth_bytes_per_s` | 2,039 GB/s | [" in d._repr_markdown_()


def test_unknown_names():
    assert message(load_hardware, "a6001").startswith("unknown hardware 'a6001'; near: nvidia_rtx_a6000")
    assert "near: nvidia_h100_" in message(load_hardware, "nvidia_h100_nvl")
    assert message(load_hardware, "") == f"unknown hardware ''; `lm-predictor hardware` lists the {len(NAMES)} that are known"
    assert message(load_hardware, "x" * 10**6).startswith("unknown hardware 'xxxx")
    assert message(load_hardware, 7) == "hardware is given by a name or a path, not 7"


def test_unknown_types():
    d = load_hardware("a100")
    assert message(d.peak, "fp8") == "nvidia_a100_sxm_80gb has no fp8 peak; it has fp32, tf32, bf16, fp16, int8"
    assert message(d.vector_peak, "fp8") == "nvidia_a100_sxm_80gb has no vector fp8 peak; it has fp32, bf16, fp16"
    assert message(compute_dtype, 0, 16, d) == "w_bits is 0; it must be a whole number from 1 to 32"
    assert message(compute_dtype, 16, True, d) == "a_bits is True; it must be a whole number from 1 to 32"


LEAST = {"name": "mine", "memory_bytes": 24e9, "memory_bandwidth_bytes_per_s": 1e12,
         "peak_flops_per_s": {"fp16": 2e14}, "vector_flops_per_s": {"fp32": 5e13}}


@pytest.mark.parametrize("change, text", [
    ({"memory_bytes": None}, "memory_bytes must be a whole number from 1 to 1e18, not None"),
    ({"memory_bytes": 0.5}, "memory_bytes must be a whole number from 1 to 1e18, not 0.5"),
    ({"memory_bytes": float("inf")}, "memory_bytes must be a whole number from 1 to 1e18, not inf"),
    ({"l2_cache_bytes": 0}, "l2_cache_bytes must be a whole number from 1 to 1e18, not 0"),
    ({"peak_flops_per_s": 1}, "peak_flops_per_s must be an object, not 1"),
    ({"peak_flops_per_s": {"fp16": "1"}}, "peak_flops_per_s.fp16 must be a whole number from 1 to 1e18, not '1'"),
    ({"vector_flops_per_s": {}}, "vector_flops_per_s.fp32 is missing"),
    ({"title": 1}, "title must be text, not 1"),
    ({"sources": {"memory_bytes": 1}}, "sources.memory_bytes must be text, not 1"),
    ({"memory_bandwidth": 1}, "unknown key 'memory_bandwidth'; did you mean memory_bandwidth_bytes_per_s?")])
def test_broken_files(tmp_path, change, text):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**LEAST, **change}))
    assert message(load_hardware, path) == f"{path}: {text}"
    with pytest.raises(HardwareError): hardware_from_dict({**LEAST, **change})


def test_unreadable_files(tmp_path):
    path = tmp_path / "mine.json"
    assert message(load_hardware, path) == f"{path}: no such file or directory"
    assert message(load_hardware, str(path)) == f"{path}: no such file or directory"
    for broken in ("", "{", "[1]", "7", "null", "[" * 10**5, '{"name": ' + "9" * 5000 + "}", '{"name": "\ud83d'.encode("utf-8", "surrogatepass")):
        path.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
        assert message(load_hardware, path).startswith(f"{path}: ")
    path.unlink(); path.mkdir()
    assert message(load_hardware, path).startswith(f"{path}: ")


@pytest.mark.parametrize("w_bits, a_bits, expected", [  # b200, h100, a100, t4, v100, generic_cpu, tpu
    (16, 16, "bf16 bf16 bf16 fp16 fp16 fp32 bf16"), (4, 16, "bf16 bf16 bf16 fp16 fp16 fp32 bf16"),
    (8, 8, "fp8 fp8 int8 int8 fp16 int8 int8"), (4, 8, "fp8 fp8 int8 int8 fp16 int8 int8"), (8, 4, "fp8 fp8 int8 int8 fp16 int8 int8"),
    (4, 4, "fp4 fp8 int8 int8 fp16 int8 int8"), (16, 8, "bf16 bf16 bf16 fp16 fp16 fp32 bf16")])
def test_compute_dtype(w_bits, a_bits, expected):
    devices = [load_hardware(n) for n in ("b200", "h100", "a100", "t4", "v100", "cpu", "v5e")]
    assert " ".join(compute_dtype(w_bits, a_bits, d) for d in devices) == expected
    assert {compute_dtype(32, a_bits, d) for d in devices[:-1]} == {"fp32"}


def test_a_matmul_on_an_a100():
    d = load_hardware("nvidia_a100_sxm_80gb")
    assert 2 * 4096**3 == 137_438_953_472
    assert roofline(2 * 4096**3, 6 * 4096**2, d) == 137_438_953_472 / 312e12 and bound(2 * 4096**3, 6 * 4096**2, d) == "compute"
    assert kernel_time(2 * 4096**3, 2 * 4096**3, 6 * 4096**2, d) == KernelTime(
        137_438_953_472 / 312e12, 137_438_953_472 / 312e12, 100_663_296 / 2039e9, "compute")


def test_llama_attention_on_an_a6000():
    d = load_hardware("nvidia_rtx_a6000")
    product, scores = 2 * 32 * 2048 * 2048 * 128, 32 * 2048 * 2048 * 2
    qk = sv = 2 * 16_777_216 + 268_435_456
    kernels = [(product, product, qk), (3 * 32 * 2048 * 2048, 0, 2 * scores), (product, product, sv)]
    assert [nbytes for _, _, nbytes in kernels] == [301_989_888, 536_870_912, 301_989_888]
    times = [kernel_time(*k, d) for k in kernels]
    assert {t.bound for t in times} == {"memory"}
    assert sum(t.time_s for t in times) == pytest.approx(1_140_850_688 / 768e9) == pytest.approx(1485.48e-6, rel=1e-5)


def test_two_units():
    d = Hardware("toy", "Toy", 10**9, 100, (("bf16", 1000),), (("fp32", 10),))
    assert kernel_time(1007, 1000, 48, d) == KernelTime(1.0, 1.0, 0.48, "compute")     # 7 others in 0.7 s hide
    assert kernel_time(1016, 1000, 48, d) == KernelTime(1.6, 1.6, 0.48, "compute")     # 16 others in 1.6 s do not
    assert kernel_time(1007, 1000, 300, d) == KernelTime(3.0, 1.0, 3.0, "memory")
    assert kernel_time(0, 0, 0, d) == KernelTime(0.0, 0.0, 0.0, "none")
    assert (ridge_point(d), arithmetic_intensity(48, 16), arithmetic_intensity(3, 0), arithmetic_intensity(0, 0)) == (10, 3, float("inf"), 0)
    assert (bound(10, 1, d), bound(9, 1, d), bound(0, 0, d)) == ("compute", "memory", "none")


def test_impossible_counts():
    d = load_hardware("a100")
    assert message(roofline, -3, 1, d) == "flops is -3; it must be a finite number, 0 or more"
    assert message(bound, 1, float("inf"), d) == "nbytes is inf; it must be a finite number, 0 or more"
    assert message(kernel_time, 3, 7, 1, d) == "matmul_flops is 7, more than flops, 3"
    assert message(kernel_time, 10**400, 7, 1, d).startswith("flops is 1000")
    assert message(kernel_time, 0, 0, 0, load_hardware("t4"), "bf16") == "nvidia_t4 has no bf16 peak; it has fp32, fp16, int8"


def test_imports_only_the_standard_library():
    code = "import sys, lm_predictor.timing.kernels.roofline; print(*sys.modules)"
    root = str(Path(sys.modules["lm_predictor"].__path__[0]).parent)
    loaded = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "sympy", "numpy", "fastcore", "anthropic", "matplotlib"} & set(loaded)
