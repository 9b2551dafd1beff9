"Measuring this machine and a model on it: what is written, what is printed, and what is refused; no time is judged"
import json

import pytest
import torch

from lm_predictor import analyze
from lm_predictor.app.cli.main import main
from lm_predictor.measurement.device import DTYPES, Measured, device_file, probes
from lm_predictor.measurement.model import measure
from lm_predictor.timing.kernels.calibrated import calibration, law
from lm_predictor.timing.hardware import HardwareError, hardware_from_dict, load_hardware

CPU = torch.device("cpu")
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 256, "rms_norm_eps": 1e-5}
KINDS = {
    "llama": LLAMA,
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 16, "layer_types": ["full_attention"] * 3},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 128},
}


def _time(p):
    "A machine of 1 TFLOP/s and 100 GB/s whose kernels follow the law"
    return law(2e-6, 0.9, 0.8, 4, p.flops / 1e12, p.nbytes / 100e9)


@pytest.fixture(scope="module")
def written():
    rows = tuple((p, _time(p)) for dtype in DTYPES for p in probes(dtype) if p.flops < 1e11)
    return device_file(Measured(rows, 100e9, 20e-6), CPU, "mine")


@pytest.fixture
def mine(written, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(written))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", ({"seq_len": 9}, {"seq_len": 1, "cache_len": 9, "batch_size": 2}), ids=("prompt", "step"))
def test_every_operator_is_on_both_sides(kind, sizes):
    "What is predicted of a line of a module was measured there, and nothing else was"
    found = measure(kind, KINDS[kind], "cpu", CPU, moment=0.02, **sizes)
    assert all(r.measured_s > 0 and r.count > 0 and r.predicted_s > 0 for r in found.rows), found.rows
    assert sum(r.predicted_s for r in found.rows) == pytest.approx(found.run.time_s)


def test_a_device_file_times_a_model_as_pytorch(mine, capsys):
    wanted = ["analyze", "llama-3.1-8b", "--hardware", str(mine), "--framework", "torch", "--seq-len", "16"]
    assert main([*wanted, "--execution", "eager", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kernels = sum(k["count"] for k in found["kernels"])
    assert found["framework"] == "pytorch" and found["interval_s"] is None
    assert found["totals"]["time_s"] > found["roofline_s"] + 20e-6 * kernels
    assert main([*wanted, "--format", "json"]) == 0
    assert "use --execution eager" in capsys.readouterr().out


def test_numbers_of_32_bits_have_fits_of_their_own(mine):
    device, cost = load_hardware(mine), analyze("smollm-135m")
    narrow, wide = (cost.at(seq_len=512, execution="eager", w_bits=b, a_bits=b, kv_bits=b).on(device, "pytorch")
                    for b in (16, 32))
    assert wide.time_s > narrow.time_s and {f.dtype for f in calibration(device).fits} == set(DTYPES)


def test_measured_beside_predicted(mine, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "vocab_size": 64_000}))  # the head takes long enough to be printed
    line = ["measure", str(config), "--hardware", str(mine), "--device", "cpu", "--layers", "2", "--seconds", "0.05"]
    assert main([*line, "--cache-len", "7"]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 layers" in said and "as pytorch" in said and "between the operators" in said and "lm_head" in said
    assert main([*line, "--seq-len", "5", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["repetitions"] >= 4 and found["predicted_s"] > found["roofline_s"] and found["workload"]["seq_len"] == 5


@pytest.mark.parametrize(("calibration", "said"), [
    ([], "calibration must be an object"), ("fast", "calibration must be an object"),
    ({"fits": [{}]}, "not the file of a calibration"), ({"no_fits": 1}, "not the file of a calibration"),
    ({"fits": [], "launch_s": {"pytorch": -1}}, "launch_s of pytorch must be a positive number"),
])
def test_a_damaged_calibration_is_refused(written, calibration, said):
    from lm_predictor.timing.kernels.calibrated import calibration as read
    if calibration == []:
        calibration = [1]
    with pytest.raises(HardwareError, match=said):
        read(hardware_from_dict({**written, "calibration": calibration}))


@pytest.mark.parametrize(("line", "said"), [
    ("calibrate", "-o/--output"), ("calibrate -o mine.txt", "ends in .json"),
    ("calibrate -o nowhere/mine.json", "there is no folder nowhere"),
    ("calibrate -o mine.json --seconds 0", "--seconds is from 1 to 3600, not 0"),
    ("calibrate -o mine.json --device tpu", "--device is cpu or cuda, not 'tpu'"),
    ("measure smollm-135m", "--hardware"), ("measure nothing-b --hardware cpu", "nothing-b"),
    ("measure smollm-135m --hardware abacus", "unknown hardware 'abacus'"),
    ("measure smollm-135m --hardware cpu --layers 31", "--layers is from 1 to 30"),
    ("measure smollm-135m --hardware cpu --layers 0", "at least 1"),
    ("measure llama-3.1-405b --hardware cpu --device cpu", "--layers N builds fewer layers"),
    ("measure smollm-135m --hardware cpu --device cpu --cache-len 4096 --layers 1 --seconds 0", "--seconds is at most"),
    ("analyze llama-3.1-8b --hardware b200 --framework pytorch", "`lm-predictor calibrate` measures"),
])
def test_bad_input_is_one_sentence(line, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) in (1, 2)
    found = capsys.readouterr().err
    assert said in found and "Traceback" not in found and found.count("\n") == 1 and not list(tmp_path.iterdir())


def test_without_a_gpu_cuda_is_refused(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["calibrate", "-o", str(tmp_path / "mine.json"), "--device", "cuda"]) == 1
    assert "this PyTorch finds no CUDA device" in capsys.readouterr().err
