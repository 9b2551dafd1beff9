"Wrong input: one clear line on stderr, exit status 1, nothing on stdout, nothing written."
import json

import pytest

from lm_predictor.cli import main

CONFIGS = {
    "nojson.json": ("{nope", "is not JSON at line 1 column 2"), "list.json": ("[1]", "holds a JSON list"),
    "notype.json": ('{"hidden_size": 3}', "has no model_type"), "empty.json": ("", "is not JSON"),
    "negative.json": ('{"model_type": "llama", "hidden_size": -4}', "hidden_size must be a positive integer"),
    "text.json": ('{"model_type": "llama", "hidden_size": "big"}', "hidden_size must be a positive integer"),
    "huge.json": (json.dumps({"model_type": "llama", "hidden_size": 10**200}), "hidden_size must be a positive integer"),
    "window.json": ('{"model_type": "llama", "sliding_window": [1, 2]}', "sliding_window must be a positive integer"),
    "odd.json": ('{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 31}', "not divisible by num_attention_heads 31"),
    "groups.json": ('{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}', "not divisible by num_key_value_heads 5"),
}
COMMANDS = {
    "analyze lama-2-7b": "unknown model 'lama-2-7b'; near: llama-2-7b", "analyze " + "x" * 5000: "unknown model 'xxx",
    "analyze gpt2 --hardware a6001": "unknown hardware 'a6001'; near: ", "analyze gpt2 --batch-size 0": "batch_size must be an integer of at least 1, got 0",
    "analyze gpt2 --batch-size -3": "batch_size must be an integer of at least 1, got -3", "analyze gpt2 --seq-len 0": "seq_len must be an integer of at least 1, got 0",
    "analyze gpt2 --seq-len 1.5": "argument --seq-len: must be a whole number, got '1.5'", "analyze gpt2 --cache-len -1": "cache_len must be an integer of at least 0, got -1",
    "analyze gpt2 --w-bits 3": "w_bits must be one of 4, 8, 16, 32, got 3", "analyze gpt2 --kv-bits 0": "kv_bits must be one of 4, 8, 16, 32, got 0",
    "analyze gpt2 --seq-len 2048": "openai-community/gpt2 has 1024 learned positions", "analyze mistral-7b-v0.1 --seq-len 8192": "mistralai/Mistral-7B-v0.1: its formulas assume",
    "module torch.nn.Linaer": "no analysis of 'torch.nn.Linaer'; near: Linear", "module LlamaMLP --model gpt2": "LlamaMLP is not part of gpt2-",
    "expand LlamaMLP --case sometimes": "unknown case 'sometimes'; it is one of", "expand LlamaMLP --case prefill_b1 --set batch_size=8": "case prefill_b1 has batch_size 1, not 8",
    "expand Linear --set in_features=exp(3)": "only min, max, ceil, floor may be called", "expand Linear --set in_features": "--set takes NAME=VALUE",
    "verify": "verify takes a CLASS or MODEL, or --all", "hardware nothing": "unknown hardware 'nothing'", "": "the following arguments are required: COMMAND",
}


def wrong(argv, capsys, monkeypatch, tmp_path) -> str:
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err and len(err) < 500
    assert not (tmp_path / "db").exists()
    return err.removeprefix("lm-predictor: ")


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line[:40])
def test_command(line, capsys, monkeypatch, tmp_path):
    assert wrong(line.split(), capsys, monkeypatch, tmp_path).startswith(COMMANDS[line])


@pytest.mark.parametrize("name", CONFIGS)
def test_config(name, capsys, monkeypatch, tmp_path):
    path = tmp_path / name
    path.write_text(CONFIGS[name][0])
    assert CONFIGS[name][1] in wrong(["analyze", str(path)], capsys, monkeypatch, tmp_path)


def test_damaged_user_record(capsys, monkeypatch, tmp_path):
    "A truncated file in the user's database is named; other models go on working"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama-771c8f35.json").write_text('{"format": 1, "id": "lla')
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    assert main(["analyze", "llama-2-7b"]) == 1
    err = capsys.readouterr().err
    assert "llama-771c8f35.json is not valid JSON" in err and err.count("\n") == 1
    assert main(["analyze", "gpt2"]) == 0
