"Times by measured kernels: what a user asks for, what comes out, and what is refused"
import json
from dataclasses import replace
from importlib import resources
from itertools import product
from pathlib import Path

import pytest

from lm_predictor import analyze
from lm_predictor.app.cli.main import main
from lm_predictor.timing.kernels.calibrated import FRAMEWORKS, INTERVALS, LAUNCH_S, PYTORCH, SIBLINGS, calibration, calibration_from_dict, law, step_times
from lm_predictor.timing.hardware import HardwareError, hardware_names, load_hardware

COST = analyze("llama-3.1-8b")
SERVED = [name for name in FRAMEWORKS if name != PYTORCH]
CALIBRATED = [name for name in hardware_names() if calibration(name)]
MEASURED = ["nvidia_h100_sxm", "nvidia_h200_sxm"]  # by us, with PyTorch


def test_every_file_is_of_a_device_that_ships():
    files = [f.name.removesuffix(".json") for f in (resources.files("lm_predictor") / "hardware/calibrated").iterdir()]
    assert sorted(files) == CALIBRATED and len(CALIBRATED) >= 5


@pytest.mark.parametrize("name", CALIBRATED)
def test_fits_beat_the_roofline_on_shapes_they_have_not_seen(name):
    "PyTorch's kernels were measured on two devices of our own, and repeated: what fits a cache is read faster than memory"
    for fit in calibration(name).fits:
        assert fit.held_out["mape"] < fit.roofline["mape"] and fit.held_out_rows > fit.fitted_rows / 2
        assert fit.framework in SERVED or fit.framework == PYTORCH and name in MEASURED
        assert 0 < fit.compute <= 1.01 and 0 < fit.memory < 1.5 and fit.launch_s < 1e-4


@pytest.mark.parametrize("name", MEASURED)
def test_a_host_ahead_of_its_device(name):
    "PyTorch's step takes as long as its kernels or as its host, whichever is longer"
    host = dict(calibration(name).host_kernel_s)[PYTORCH]
    for sizes in ({"batch_size": 1, "seq_len": 2048}, {"batch_size": 1, "cache_len": 900}):
        run = COST.at(execution="eager", **sizes).on(name, PYTORCH)
        busy, asked = sum(k.count * k.time_s for k in run.kernels), host * sum(k.count for k in run.kernels)
        assert run.time_s == pytest.approx(max(busy, asked)) and run.host_s == pytest.approx(max(0, asked - busy), abs=1e-12)
        assert run.time_s > run.least_s and run.interval is None


def test_a_device_that_was_not_measured_is_refused():
    for device in (name for name in hardware_names() if name not in MEASURED):  # calibrated for others, or for none
        with pytest.raises(HardwareError, match="not calibrated for pytorch; it is for (none|.*vllm.*); `lm-predictor calibrate`"):
            COST.at(seq_len=8).on(device, PYTORCH)


@pytest.mark.parametrize("name, steps, roofline", [("h100", 27, 0.6), ("h200", 29, 0.7)])
def test_measured_steps_of_a_gpu(name, steps, roofline):
    "Of the steps of whole models that a GPU took, nearly all are nearer than by the roofline, and 25 % off at most in the mean"
    rows = json.loads((Path(__file__).parents[1] / f"benchmarks/measured/{name}_models.json").read_text())["rows"]
    off, least = [], []
    for r in (r for r in rows if r["how"] == "eager" and "," not in r["model"]):  # of whole models
        run = analyze(r["model"]).at(execution="eager", **{n: r[n] for n in ("batch_size", "seq_len", "cache_len")}).on(name, PYTORCH)
        off.append(abs(run.time_s / r["measured_s"] - 1))
        least.append(abs(run.least_s / r["measured_s"] - 1))
    assert len(off) == steps and sum(off) / len(off) < 0.25 < roofline < sum(least) / len(least)
    assert sum(a < b for a, b in zip(off, least)) >= steps - 2


def test_kernels_of_mamba_take_laws_of_their_own():
    "On the device that they were measured on and on its like, at any framework; elsewhere they reach what products reach"
    cost = analyze("AntonV/mamba2-2.7b-hf")
    of = lambda run, name: next(k for k in run.kernels if k.operation == name)
    for device, times in (("h200", (3, 5)), ("h100", (2, 3)), ("b200", (1, 2.5))):
        scan = of(cost.at(seq_len=8192, execution="engine").on(device, "vllm"), "mamba_chunk_scan_combined")
        assert times[0] < scan.time_s / scan.least_s < times[1], device
    update = of(cost.at(batch_size=64, cache_len=1000, execution="kernels").on("h200", "sglang"), "selective_state_update")
    assert 1.3 < update.time_s / update.least_s < 1.7


def test_the_law_between_its_limits():
    "No overlap adds up, full overlap takes the longer, and twice the work takes at most twice as long"
    assert law(0, 1, 1, 1, 3.0, 4.0) == 7.0 and law(0, 1, 1, 2, 3.0, 4.0) == 5.0
    assert law(0, 1, 1, 300, 3.0, 4.0) == pytest.approx(4.0, rel=1e-3)
    assert law(1e-6, 0.5, 0.5, 2, 2.0, 0.0) == pytest.approx(4.0 + 1e-6)


@pytest.mark.parametrize(("device", "framework"), list(product(("h100", "b200", "l4"), SERVED)))
def test_a_step_takes_longer_than_its_roofline_and_the_parts_are_the_whole(device, framework):
    run, least = COST.at(batch_size=16, cache_len=4096), COST.at(batch_size=16, cache_len=4096).on(device)
    timed = run.on(device, framework)
    assert timed.least_s == pytest.approx(least.time_s) and timed.time_s > least.time_s
    assert timed.time_s == pytest.approx(timed.host_s + sum(k.count * k.time_s for k in timed.kernels))
    assert all(k.least_s == before.time_s for k, before in zip(timed.kernels, least.kernels))
    within = {k.operation for k in timed.kernels if k.bound == "none"}  # of TensorRT-LLM's attention
    assert {k.bound for k in timed.kernels} <= {"launch", "latency", "compute", "memory", "none"}
    assert within == ({"4 mul + 2 neg + 2 cat + 2 add + 2 append"} if framework == "tensorrt-llm" and device != "l4" else set())
    estimate = any(note.startswith("an estimate") for note in timed.notes)
    assert estimate == (calibration(device) is None)


def test_more_work_never_takes_less_time():
    steps = [COST.at(batch_size=b, cache_len=n).on("h200", "vllm").time_s for n in (128, 1024, 8192) for b in (1, 8, 64)]
    assert all(steps[i] < steps[i + 1] for i in (0, 1, 3, 4, 6, 7)) and steps[0] < steps[3] < steps[6]


def test_without_a_framework_nothing_changes():
    data = COST.at(seq_len=128).on("h100").to_json()
    assert not {"framework", "host_s", "roofline_s"} & data.keys() and "least_s" not in data["kernels"][0]
    data = COST.at(seq_len=128).on("h100", "sglang").to_json()
    assert data["framework"] == "sglang" and data["roofline_s"] < data["totals"]["time_s"] and data["kernels"][0]["least_s"] > 0


def test_the_interval_is_around_the_time_and_only_with_a_framework():
    run = COST.at(batch_size=16, cache_len=1024).on("h100", "sglang")
    low, high = run.interval_s
    assert COST.at(batch_size=16, cache_len=1024).on("l4", "sglang").interval_s is None  # not calibrated
    assert low < run.time_s < high and COST.at(seq_len=8).on("h100").interval_s is None


def test_intervals_cover_published_steps_of_families_that_they_were_not_made_with():
    "Four fifths of all, and as good as that of every family and every device under a framework: `benchmarks/end_to_end.py`"
    data = json.loads((Path(__file__).parents[1] / "benchmarks/end_to_end.json").read_text(encoding="utf-8"))
    assert {tuple(k.split(" | ")): tuple(v) for k, v in data["intervals"].items()} == INTERVALS
    covered = {tuple(g["name"]): g["covered"] for g in data["groups"] if g["rows"] >= 20 and g["by"] in (
        [], ["family"], ["framework", "system"])}
    assert 75 <= covered.pop(()) <= 85 and len(covered) > 15
    assert all(65 <= part <= 95 for part in covered.values()), covered


def test_fp8_is_faster_where_the_device_multiplies_it():
    """As much faster as vLLM's table of an H100 says, quantization and all; the A100, without fp8, multiplies 16 bits.

    8192 tokens by the weights of a layer, in ms with 16 and with 8 bits: queries, keys and values (4096 to 6144) 0.536 and
    0.415, output (4096 to 4096) 0.347 and 0.299, gate and up (4096 to 28672) 7/3 of 1.080 and 0.745 (to 12288), down (14336
    to 4096) 7/6 of 1.094 and 0.707 (from 12288): 4.68 and 3.28 in all. Attention and the rest take 1.45 and 1.3 in both.
    """
    prompt = lambda device, bits: COST.at(seq_len=8192, w_bits=bits, a_bits=bits).on(device, "vllm").time_s
    assert prompt("h100", 16) / prompt("h100", 8) == pytest.approx((4.68 + 1.45) / (3.28 + 1.3), rel=0.06)
    assert prompt("a100", 16) / prompt("a100", 8) < 2.0


@pytest.mark.parametrize(("arguments", "said"), [
    (["--framework", "vllm"], "--framework times the kernels of a device; give it with --hardware"),
    (["--framework", "mlx", "--hardware", "h100"], "unknown framework 'mlx'; known: pytorch, sglang, tensorrt-llm, vllm"),
    (["--framework", "", "--hardware", "h1000"], "unknown hardware 'h1000'"),
    (["--framework", "vllm", "--hardware", "h100", "--waterfall"], "leave out --layers, --sort, --without, --framework"),
])
def test_bad_input_is_one_sentence(capsys, arguments, said):
    try:
        status = main(["analyze", "llama-3.1-8b", *arguments])
    except SystemExit as e:
        status = e.code
    found = capsys.readouterr()
    assert status in (1, 2) and said in found.err and "Traceback" not in found.err


def test_the_command_prints_time_host_and_roofline(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["analyze", "llama-3.1-8b", "--batch-size", "16", "--cache-len", "4096", "--hardware", "h100", "--framework", "trtllm"]) == 0
    said = capsys.readouterr().out
    assert "as tensorrt-llm, 220 us of it beside the kernels; roofline 7.09 ms" in said and "80 % within" in said and "launch" in said


@pytest.mark.parametrize("name", ("launch_s", "compute", "memory", "power"))
@pytest.mark.parametrize("value", (0, -1, "fast", None, True, float("nan")))
def test_a_damaged_calibration_is_refused(name, value):
    entry = vars(calibration("h100").fits[0]) | {name: value}
    with pytest.raises(HardwareError, match=f"{name} of product must be a positive number"):
        calibration_from_dict({"device": "mine", "fits": [entry]})


def test_a_device_calibrated_for_other_frameworks_names_them(monkeypatch):
    import lm_predictor.timing.kernels.calibrated as module
    found = calibration("h100")
    kept = type(found)(found.device, tuple(f for f in found.fits if f.framework == "vllm"))
    monkeypatch.setattr(module, "_shipped", lambda: {found.device: kept})
    other = replace(load_hardware("h100"), notes="of which nothing is kept yet")
    with pytest.raises(HardwareError, match="is not calibrated for sglang; it is for vllm"):
        step_times(other, "sglang")


def test_a_law_that_another_framework_lends_is_named():
    "vLLM's tables have no latent decode; SGLang's stands for it, in decode steps alone"
    cost, lent = analyze("deepseek-ai/DeepSeek-V2-Lite"), "latent decode takes the law of sglang, which runs the same kernel"
    step, prompt = dict(batch_size=16, cache_len=1024), dict(seq_len=1024)
    assert lent in cost.at(**step).on("h200", "vllm").notes
    assert lent not in cost.at(**prompt).on("h200", "vllm").notes and lent not in cost.at(**step).on("h200", "sglang").notes
    times = [next(k.time_s for k in cost.at(**step).on("h200", f).kernels if k.operation == "attention") for f in ("vllm", "sglang")]
    assert times[0] == times[1]


def test_kernels_of_a_step_have_the_launch_of_a_graph():
    run = COST.at(batch_size=1, cache_len=16).on("h100", "vllm")
    assert all(k.time_s > LAUNCH_S for k in run.kernels) and min(k.time_s for k in run.kernels) < 1.1 * LAUNCH_S


def test_files_are_plain_json():
    for name in CALIBRATED:
        text = (resources.files("lm_predictor") / f"hardware/calibrated/{name}.json").read_text(encoding="utf-8")
        assert json.loads(text)["command"] == "python benchmarks/fit_kernels.py --write"


@pytest.mark.parametrize("name, sibling", [(name, base) for name, (base, _) in SIBLINGS.items()])
def test_a_device_of_a_calibrated_generation_takes_its_laws(name, sibling):
    "At its own peaks: no faster than they allow, labelled, with a wider interval"
    run, own = (COST.at(batch_size=16, cache_len=4096).on(device, "vllm") for device in (name, sibling))
    assert calibration(name) is None and run.time_s > run.least_s
    assert any(f"take the laws of {load_hardware(sibling).title}" in note for note in run.notes)
    wide, narrow = (r.interval_s[1] / r.interval_s[0] for r in (run, own))
    assert wide == pytest.approx(1.21 * narrow)
