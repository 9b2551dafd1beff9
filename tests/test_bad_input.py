"Wrong input: one clear line on stderr, exit status 1, or 2 where the line is not understood; nothing on stdout, nothing written."
import copy
import json

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.records.storage.database import shipped_directory
from lm_predictor.records.storage.files import model_path, model_paths, read_json

CONFIGS = {
    "nojson.json": ("{nope", "is not JSON at line 1 column 2"), "list.json": ("[1]", "holds a JSON list"),
    "notype.json": ('{"hidden_size": 3}', "has no model_type"), "empty.json": ("", "is not JSON"),
    "negative.json": ('{"model_type": "llama", "hidden_size": -4}', "hidden_size must be a positive integer"),
    "text.json": ('{"model_type": "llama", "hidden_size": "big"}', "hidden_size must be a positive integer"),
    "huge.json": (json.dumps({"model_type": "llama", "hidden_size": 10**200}), "hidden_size must be a positive integer"),
    "window.json": ('{"model_type": "llama", "sliding_window": [1, 2]}', "sliding_window must be a positive integer"),
    "odd.json": ('{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 31}', "not divisible by num_attention_heads 31"),
    "float.json": ('{"model_type": "llama", "hidden_size": 4096.0}', "hidden_size must be a positive integer"),
    "zero.json": ('{"model_type": "llama", "num_hidden_layers": 0}', "num_hidden_layers must be a positive integer"),
    "deep.json": ('{"model_type": "llama", "num_hidden_layers": 1000000000}', "num_hidden_layers must be a positive integer (at most 10**5)"),
    "rope.json": ('{"model_type": "llama", "rope_scaling": "yes"}', "rope_scaling must be an object or null"),
    "experts.json": ('{"model_type": "mixtral", "num_experts_per_tok": 9, "num_local_experts": 8}', "num_experts_per_tok 9 is more than num_local_experts 8"),
    "routed.json": ('{"model_type": "mixtral", "num_experts_per_tok": 9}', "num_experts_per_tok 9 is more than num_local_experts 8"),  # 8 is the default
    "layers.json": ('{"model_type": "qwen2", "num_hidden_layers": 4, "layer_types": ["full_attention"]}', "layer_types has 1 entries, num_hidden_layers is 4"),
    "act.json": ('{"model_type": "llama", "hidden_act": "nope"}', "hidden_act is 'nope', which llama does not know"),
    "nested.json": ('{"model_type": "llama", "text_config": {"hidden_size": -1}}', "hidden_size must be a positive integer"),
    "causal.json": ('{"model_type": "vit"}', "model_type 'vit' is not a causal language model"),
    "unknown.json": ('{"model_type": "lama"}', "model_type 'lama' is no model_type of the installed transformers; near: llama"),
    "path.json": ('{"model_type": "../../llama"}', "model_type '../../llama' is no model_type of the installed transformers"),
    "code.json": ('{"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}', "(modeling_own.Own) is run only with --trust-remote-code"),
    "chunk.json": ('{"model_type": "mamba2", "chunk_size": 0}', "chunk_size must be a positive integer (at most 10**12), got '0'"),
    "chunks.json": ('{"model_type": "bamba", "mamba_chunk_size": -64}', "mamba_chunk_size must be a positive integer (at most 10**12), got '-64'"),
    "groups.json": ('{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}', "not divisible by num_key_value_heads 5"),
}
COMMANDS = {
    "analyze lama-2-7b": "unknown model 'lama-2-7b'; near: llama-2-7b", "analyze " + "x" * 5000: "unknown model 'xxx",
    "analyze gpt2 --hardware a6001": "unknown hardware 'a6001'; near: ", "analyze gpt2 --batch-size 0": "batch_size must be an integer of at least 1, got 0",
    "analyze gpt2 --batch-size -3": "batch_size must be an integer of at least 1, got -3", "analyze gpt2 --seq-len 0": "seq_len must be an integer of at least 1, got 0",
    "analyze gpt2 --seq-len 1.5": "argument --seq-len: takes a whole number in the digits 0 to 9, got '1.5'; write 1 or 2", "analyze gpt2 --cache-len -1": "cache_len must be an integer of at least 0, got -1",
    "analyze gpt2 --w-bits 3": "w_bits must be one of 4, 8, 16, 32, got 3", "analyze gpt2 --kv-bits 0": "kv_bits must be one of 4, 8, 16, 32, got 0",
    "analyze gpt2 --seq-len 2048": "openai-community/gpt2 has 1024 learned positions", "analyze mixtral-8x7b --active-experts 9": "active_experts 9 is more than the 8 experts of a layer",
    "module torch.nn.Linaer": "no analysis of 'torch.nn.Linaer'; near: Linear", "module LlamaMLP --model gpt2": "LlamaMLP is not part of gpt2-",
    "expand LlamaMLP --case sometimes": "unknown case 'sometimes'; it is one of", "expand LlamaMLP --case prefill_b1 --set batch_size=8": "case prefill_b1 has batch_size 1, not 8; take case prefill",
    "expand MistralAttention --case decode_b1_past --set batch_size=4": "case decode_b1_past has batch_size 1, not 4; take case decode_past",
    "expand Linear --set in_features=exp(3)": "only min, max, ceil, floor may be called", "expand Linear --set in_features": "--set takes NAME=VALUE",
    "analyze gpt2 --plot x.jpg": "a picture is written as .png, .svg, .pdf, by the end of its name; 'x.jpg' ends in .jpg",
    "analyze gpt2 --plot picture": "a picture is written as .png, .svg, .pdf, by the end of its name; 'picture' ends in none of them",
    "analyze gpt2 --plot nowhere/x.png": "--plot: there is no folder nowhere", "analyze gpt2 --plot .": "--plot: . is a folder; give a file in it",
    "verify": "verify takes a CLASS or MODEL, or --all", "hardware nothing": "unknown hardware 'nothing'", "": "the following arguments are required: COMMAND",
}


def wrong(argv, capsys, monkeypatch, tmp_path) -> str:
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    status = main(argv)
    out, err = capsys.readouterr()
    assert status == (2 if "--help`)" in err else 1)
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


def test_missing_language_part(capsys, monkeypatch, tmp_path):
    "A nested config without a part that is a language model"
    (tmp_path / "config.json").write_text('{"model_type": "gemma3n"}')
    said = "config: gemma3n keeps its language model in text_config, and this one has none\n"
    assert wrong(["analyze", str(tmp_path)], capsys, monkeypatch, tmp_path) == said


SHIPPED = shipped_directory()
MLP = "transformers.models.llama.modeling_llama.LlamaMLP"


def kernel(**change):
    "LlamaMLP's record with one thing of its first kernel changed"
    def apply(data):
        data["kernels"][0].update(change)
        return json.dumps(data)
    return apply


CLASS_FILES = {  # what is in the file -> what the line says
    "truncated": (lambda data: json.dumps(data)[:len(json.dumps(data)) // 2], "is not valid JSON (line 1"),
    "empty": (lambda data: "", "is not valid JSON"), "binary": (lambda data: b"\xff\xfe\x00\x81", "is not UTF-8 text"),
    "directory": (None, "cannot be read (is a directory)"), "list": (lambda data: "[]", "$: [] is not of type 'object'"),
    "deep": (lambda data: "[" * 100_000, "is nested too deep"), "other": (lambda data: json.dumps({**data, "class_name": "a.B"}), "$.class_name: is a.B"),
    "types": (lambda data: json.dumps({**data, "kernels": 3}), "$.kernels: 3 is not of type 'array'"),
    "line": (kernel(line=-4), "$.kernels[0].line: -4 is less than the minimum of 0"),
    "symbol": (kernel(flops="2 * hiden_size"), "unknown name 'hiden_size'"), "formula": (kernel(flops="2 * (hidden_size"), "$.kernels[0].flops"),
    "code": (kernel(flops="__import__('os')"), "$.kernels[0].flops"),
}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if content is None else path.write_bytes(content if isinstance(content, bytes) else content.encode())


MINE = "mine.modeling_mine.MineMLP"  # a class that does not ship


def mine(make):
    "The content of a broken record of MINE"
    return make and make(json.loads((SHIPPED / f"{MLP}.json").read_text()) | {"class_name": MINE})


@pytest.mark.parametrize("name", CLASS_FILES)
def test_class_record(name, capsys, monkeypatch, tmp_path):
    "A class record of the user's that is nonsense: its file, the rule, what to do; other classes and models go on working"
    make, reason = CLASS_FILES[name]
    path = tmp_path / f"{MINE}.json"
    put(path, mine(make))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    for command in ("module MineMLP", f"expand {MINE}"):
        assert main(command.split()) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and str(path) in err and reason in err and err.endswith("restore or delete it\n")
    assert main(["module", "GPT2MLP"]) == main(["analyze", "llama-2-7b"]) == 0
    assert name not in ("truncated", "types") or main(["db", "list"]) == 0  # which reads every record


@pytest.mark.parametrize("name", CLASS_FILES)
def test_a_broken_record_beside_a_shipped_one(name, capsys, monkeypatch, tmp_path):
    "What ships stands: nonsense of the user's under a shipped class's name changes no answer, and `db check` names it"
    path = tmp_path / f"{MLP}.json"
    put(path, CLASS_FILES[name][0] and CLASS_FILES[name][0](json.loads((SHIPPED / path.name).read_text())))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    assert main(["module", "LlamaMLP"]) == main(["expand", "LlamaForCausalLM"]) == main(["analyze", "llama-2-7b"]) == 0
    assert "note:" not in capsys.readouterr().out


@pytest.mark.parametrize("reference, reason", [("${torch.nn.modules.linear.Lineal}()", "no analysis of torch.nn.modules.linear.Lineal (called by"),
                                               ("${%s}(batch_size=1)" % MINE, "analyses refer to each other in a circle: ")])
def test_reference(reference, reason, capsys, monkeypatch, tmp_path):
    def refer(data):
        data["kernels"][0].update(kernel_type="composite", flops=reference)
        return json.dumps(data)
    put(tmp_path / f"{MINE}.json", mine(refer))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    assert main(["expand", "MineMLP"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"lm-predictor: {reason}") and MINE in err and err.count("\n") == 1
    assert main(["expand", "GPT2MLP"]) == 0


def case(change):
    "A model record with something of the case of `analyze --seq-len 16` changed"
    def apply(data):
        change(data["cases"]["prefill_b1"])
        return json.dumps(data)
    return apply


MODEL_FILES = {
    **{name: CLASS_FILES[name] for name in ("truncated", "empty", "binary", "directory", "deep")}, "list": (lambda data: "[]", "[] is not of type 'object'"),
    "missing": (lambda data: json.dumps({k: v for k, v in data.items() if k != "symbols"}), "'symbols' is a required property"),
    "types": (lambda data: json.dumps({**data, "symbols": [1]}), "$.symbols: [1] is not of type 'object'"),
    "names": (lambda data: json.dumps({**data, "symbols": {"hidden_size": 3}}), "$.symbols.hidden_size: 3 is not of type 'object'"),
    "assumes": (lambda data: json.dumps({**data, "assumptions": ["num_heads is big"]}), "num_heads is big"),
    "parameters": (lambda data: json.dumps({**data, "parameters": "hiden_size"}), "'hiden_size' has unknown names (hiden_size)"),
    "cases": (lambda data: json.dumps({**data, "cases": {n: 3 for n in data["cases"]}}), "is not of type 'object'"),
    "line": (case(lambda g: g["lines"][0].__setitem__(1, -7)), "$.cases.prefill_b1.lines[0][1]: -7 is less than the minimum of 1"),
    "symbol": (case(lambda g: g["nodes"][5].update(flops="2 * hiden_size")), "'2*hiden_size' has unknown names (hiden_size)"),
    "formula": (case(lambda g: g["nodes"][5].update(flops="2 * (")), "$.cases.prefill_b1: "),
    "index": (case(lambda g: g["nodes"][-1]["reads"][0].__setitem__(0, 10**6)), "] points at 1000000 of"),
    "circle": (case(lambda g: g["calls"][2].__setitem__(2, 2)), "calls[2] points at 2 of 2"),
    "nothing": (case(lambda g: g.update(nodes=[])), "$.cases.prefill_b1.nodes: [] should be non-empty"),
}


OWN = "gpt2-0000000a"  # the user's record of a kind of GPT-2 that does not ship


def own_record(directory, make):
    "Records of that kind: that of the model with a fault, those of its classes"
    data = read_json(model_paths(SHIPPED, "gpt2-*")[0])
    classes = {call[1] for graph in data["cases"].values() for call in graph["calls"]}
    for name in classes:
        record = json.loads((SHIPPED / f"{name}.json").read_text())
        variant = next(v for v in (record, *record.get("variants", ())) if data["id"] in v["models"])
        put(directory / f"{name}.json", json.dumps({**{k: v for k, v in record.items() if k != "variants"}, **variant, "models": [OWN]}))
    data["id"], data["settings"]["scale_attn_weights"]["value"] = OWN, False
    put(model_path(directory, OWN), make and make(data))
    return model_path(directory, OWN)


@pytest.mark.parametrize("name", MODEL_FILES)
def test_model_record(name, capsys, monkeypatch, tmp_path):
    "The same for the record of a model"
    make, reason = MODEL_FILES[name]
    path, config = own_record(tmp_path / "db", make), tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "scale_attn_weights": false}')
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    assert main(["analyze", str(config), "--seq-len", "16"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and str(path) in err and reason in err and err.endswith("restore or delete it\n")
    assert main(["analyze", "gpt2", "--seq-len", "16"]) == main(["module", "GPT2MLP"]) == 0
    assert name not in ("truncated", "types") or main(["db", "list"]) == 0


def nonsense(**change):
    "A record of the right schema that cannot be right"
    def apply(data):
        data["kernels"][0].update(change)
        return data
    return apply


NONSENSE = {  # what is wrong with the record of a class -> what the line says
    "Negative": (nonsense(flops="-5", matmul_flops="0"), "$.kernels[0].flops: is -5 at sizes that its conditions allow; a cost is not negative"),
    "Third": (nonsense(flops="batch_size/3", matmul_flops="0"), "a cost is a whole number"),
    "Other": (nonsense(flops="2*hidden_size + batch_size"), "a kernel costs what its operators do"),
    "Empty": (lambda data: data | {"kernels": []}, "$.kernels: there are none"),
    "Default": (lambda data: data | {"parameters": [p | {"default": -5} for p in data["parameters"]]}, "$.parameters[0].default: is -5"),
    "Missing": (nonsense(flops="${torch.nn.modules.linear.Lineal}()", kernel_type="composite"), "refers to torch.nn.modules.linear.Lineal, of which there is no analysis"),
}


@pytest.mark.slow
def test_check_names_every_broken_file(capsys, monkeypatch, tmp_path):
    "`db check` goes on after a broken file, and says what is wrong with each; status 2. What ships is in order"
    data, model = json.loads((SHIPPED / f"{MLP}.json").read_text()), read_json(model_paths(SHIPPED, "gpt2-*")[0])
    put(tmp_path / f"{MLP}.json", CLASS_FILES["symbol"][0](data))
    for i, name in enumerate(("truncated", "binary", "list")):
        put(tmp_path / f"torch.x.Broken{i}.json", CLASS_FILES[name][0](data))
    for name, (make, _) in NONSENSE.items():
        fresh = json.loads((SHIPPED / f"{MLP}.json").read_text()) | {"class_name": f"torch.x.{name}", "models": [], "variants": []}
        put(tmp_path / f"torch.x.{name}.json", json.dumps(make(fresh)))
    for i, name in enumerate(("line", "assumes", "directory")):
        put(model_path(tmp_path, f"gpt2-0000000{i}"), MODEL_FILES[name][0] and MODEL_FILES[name][0](copy.deepcopy(model)))
    parameters = model | {"id": "gpt2-00000009", "parameters": "-5"}
    put(model_path(tmp_path, "gpt2-00000009"), json.dumps(parameters))
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    assert main(["db", "check"]) == 2
    out, err = capsys.readouterr()
    assert out.endswith(" class records: 14 broken\n") and all(line.startswith((str(tmp_path), "... and ")) for line in err.splitlines())
    for name, (_, reason) in NONSENSE.items():
        assert any(f"torch.x.{name}.json: " in line and reason in line for line in err.splitlines()), name
    assert "gpt2-00000009.json.xz: $.parameters: is -5" in err

