"Times by measured kernels: what a user asks for, what comes out, and what is refused"
import json
from importlib import resources
from itertools import product

import pytest

from lm_predictor import analyze
from lm_predictor.app.cli.main import main
from lm_predictor.timing.calibrated import FRAMEWORKS, calibration, calibration_from_dict, kernel_times, law
from lm_predictor.timing.hardware import HardwareError, hardware_names, load_hardware

COST = analyze("llama-3.1-8b")
CALIBRATED = [name for name in hardware_names() if calibration(name)]


def test_every_file_is_of_a_device_that_ships():
    files = [f.name.removesuffix(".json") for f in (resources.files("lm_predictor") / "hardware/calibrated").iterdir()]
    assert sorted(files) == CALIBRATED and len(CALIBRATED) >= 5


@pytest.mark.parametrize("name", CALIBRATED)
def test_fits_beat_the_roofline_on_shapes_they_have_not_seen(name):
    for fit in calibration(name).fits:
        assert fit.held_out["mape"] < fit.roofline["mape"] and fit.held_out_rows > fit.fitted_rows / 2
        assert fit.framework in FRAMEWORKS and 0 < fit.compute <= 1.01 and 0 < fit.memory < 1.5 and fit.launch_s < 1e-4


def test_the_law_between_its_limits():
    "No overlap adds up, full overlap takes the longer, and twice the work takes at most twice as long"
    assert law(0, 1, 1, 1, 3.0, 4.0) == 7.0 and law(0, 1, 1, 2, 3.0, 4.0) == 5.0
    assert law(0, 1, 1, 300, 3.0, 4.0) == pytest.approx(4.0, rel=1e-3)
    assert law(1e-6, 0.5, 0.5, 2, 2.0, 0.0) == pytest.approx(4.0 + 1e-6)


@pytest.mark.parametrize(("device", "framework"), list(product(("h100", "b200", "l4"), FRAMEWORKS)))
def test_a_step_takes_longer_than_its_roofline_and_the_parts_are_the_whole(device, framework):
    run, least = COST.at(batch_size=16, cache_len=4096), COST.at(batch_size=16, cache_len=4096).on(device)
    timed = run.on(device, framework)
    assert timed.least_s == pytest.approx(least.time_s) and timed.time_s > least.time_s
    assert timed.time_s == pytest.approx(timed.host_s + sum(k.count * k.time_s for k in timed.kernels))
    assert all(k.least_s == before.time_s for k, before in zip(timed.kernels, least.kernels))
    assert {k.bound for k in timed.kernels} <= {"launch", "compute", "memory"}
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


def test_experts_pay_for_their_call_once():
    "The two grouped products of a layer have one launch between them, and what stands between them has none"
    run = analyze("mixtral-8x7b").at(batch_size=16, cache_len=1024).on("h100", "sglang")
    fit = kernel_times(load_hardware("h100"), "sglang").fit("experts")
    grouped = [k for k in run.kernels if "grouped_mm" in k.operation]
    assert len(grouped) == 2
    free = sum(k.time_s for k in grouped) - fit.launch_s
    moved = sum(k.least_s for k in grouped)
    assert moved < free < 2 * moved
    inside = [k for k in run.kernels if k.path.endswith("mlp.experts.act_fn")]
    assert inside and all(k.time_s < fit.launch_s / 4 for k in inside)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--framework", "vllm"], "--framework times the kernels of a device; give it with --hardware"),
    (["--framework", "pytorch", "--hardware", "h100"], "unknown framework 'pytorch'; known: sglang, tensorrt-llm, vllm"),
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


def test_the_command_prints_time_host_and_roofline(capsys):
    assert main(["analyze", "llama-3.1-8b", "--batch-size", "16", "--cache-len", "4096", "--hardware", "h100", "--framework", "trtllm"]) == 0
    said = capsys.readouterr().out
    assert "by measured kernels of tensorrt-llm, 700 us of it the host's; roofline 7.09 ms" in said and "launch" in said


@pytest.mark.parametrize("name", ("launch_s", "compute", "memory", "power"))
@pytest.mark.parametrize("value", (0, -1, "fast", None, True, float("nan")))
def test_a_damaged_calibration_is_refused(name, value):
    entry = vars(calibration("h100").fits[0]) | {name: value}
    with pytest.raises(HardwareError, match=f"{name} of product must be a positive number"):
        calibration_from_dict({"device": "mine", "fits": [entry]})


def test_a_device_calibrated_for_other_frameworks_names_them(monkeypatch):
    found = calibration("h100")
    import lm_predictor.timing.calibrated as module
    kept = type(found)(found.device, tuple(f for f in found.fits if f.framework == "vllm"))
    monkeypatch.setattr(module, "calibration", lambda device: kept)
    module.kernel_times.cache_clear() if hasattr(module.kernel_times, "cache_clear") else None
    with pytest.raises(HardwareError, match="is not calibrated for sglang; it is for vllm"):
        getattr(module.kernel_times, "__wrapped__", module.kernel_times)(load_hardware("h100"), "sglang")


def test_files_are_plain_json():
    for name in CALIBRATED:
        text = (resources.files("lm_predictor") / f"hardware/calibrated/{name}.json").read_text(encoding="utf-8")
        assert json.loads(text)["command"] == "python benchmarks/fit_kernels.py --write"
