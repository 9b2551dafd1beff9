"The command line as its user meets it: numbers, phases, layouts, mistakes. Each test failed before its finding was mended."
import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lm_predictor
from lm_predictor import analyze
from lm_predictor.app.cli.main import main

TYPED = {  # what is typed for a number -> the nearest right answer
    "1,2,4,8": "one number at a time, write 1", "1,000": "write 1000", "1_000": "write 1000", "+8": "write 8", "1e3": "write 1000",
    "\u0661\u0662\u0663": "write 123", "\uff18": "write 8", "1.5": "write 1 or 2", "": "write a number such as 8",
    "eight": "write a number such as 8", "9" * 40: "write fewer digits",
}
OPTIONS = {
    "analyze gpt2": ("batch-size", "seq-len", "cache-len", "w-bits", "a-bits", "kv-bits"), "explore": ("port",),
    "verify gpt2": ("jobs",), "agent LlamaMLP": ("jobs", "max-turns", "max-tokens", "max-repairs"),
}


@pytest.mark.parametrize("typed", TYPED, ids=lambda t: ascii(t)[:12])
def test_number(typed, capsys):
    "Every option that takes a whole number refuses what is not its digits, and says what to write"
    for command, options in OPTIONS.items():
        for option in options:
            assert main([*command.split(), f"--{option}", typed]) in (1, 2)
            out, err = capsys.readouterr()
            got = "nothing" if not typed else f"'{typed[:37]}..." if len(typed) > 39 else repr(typed)
            said = f"argument --{option}: takes a whole number in the digits 0 to 9, got {got}"
            assert out == "" and said in err and TYPED[typed] in err and "Traceback" not in err


@pytest.mark.parametrize("typed", ["nan", "inf", "1e3", "6,5", "1_0", "+2", "", "\u0663"])
def test_fraction(typed, capsys):
    assert main(["analyze", "mixtral-8x7b", "--active-experts", typed]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and "argument --active-experts: takes a number in the digits 0 to 9 with a point, got " in err


@pytest.mark.parametrize("typed", ["1_000", "1,000", "+8", "1e3", "\u0661"])
def test_set(typed, capsys):
    assert main(["expand", "LlamaMLP", "--set", f"seq_len={typed}"]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and f"--set seq_len takes a whole number in the digits 0 to 9, got {typed!r}; write " in err


# ---- one rule for phases, in the shell and in Python

SMALL = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "biogpt", "openai-gpt", "gpt-neo-125m", "gpt-neo-1.3b")  # of few positions


def told(line: str, capsys) -> dict:
    "What a command prints with --format json"
    assert main([*line.split(), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("line, sizes", [("", {}), ("--cache-len 256", {"cache_len": 256}), ("--batch-size 4", {"batch_size": 4}),
                                         ("--cache-len 256 --seq-len 32", {"cache_len": 256, "seq_len": 32})])
@pytest.mark.parametrize("model", ["llama-2-7b", "gpt2", "openai-gpt"])
def test_phases(model, line, sizes, capsys):
    "What is not given is the same workload in the shell and in Python"
    shell, run = told(f"analyze {model} {line}", capsys), analyze(model).at(**sizes)
    assert shell == json.loads(json.dumps(run.to_json()))
    assert run.workload.seq_len == sizes.get("seq_len", 1 if "cache_len" in sizes else {"gpt2": 1024, "openai-gpt": 512}.get(model, 2048))
    assert run.workload.phase == ("decode" if run.workload.seq_len == 1 else "extend" if "cache_len" in sizes else "prefill")


@pytest.mark.parametrize("model", SMALL)
def test_few_positions(model, capsys):
    "The default is all positions of the model, with a note where these are fewer than 2048; one token more is refused"
    cost = analyze(model)
    most = cost.values["max_position_embeddings"]
    run = told(f"analyze {model}", capsys)
    assert run["workload"]["seq_len"] == min(2048, most) and run["totals"]["flops"] > 0
    note = f"the prompt is {most} tokens, all that the model has positions for, not the usual 2048"
    assert (note in run["notes"]) == (most < 2048)
    full = [cost.at(seq_len=most), cost.at(cache_len=most - 1), cost.at(seq_len=most // 2, cache_len=most - most // 2)]
    assert all(r.totals.flops > 0 for r in full)
    assert main(["analyze", model, "--seq-len", str(most + 1)]) == 1
    assert f"{most} learned positions" in capsys.readouterr().err


def test_beyond_the_positions(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main("analyze llama-2-7b --seq-len 4096".split()) == 0 and "note: " not in capsys.readouterr().out
    assert main("analyze llama-2-7b --cache-len 4096".split()) == 0
    assert capsys.readouterr().out.startswith("note: 4097 tokens are more than the 4096 positions of the config (max_position_embeddings)\n")


# ---- what a report says in each of its forms

def test_layers_keep_the_sums(capsys):
    "Weights, cache and `does not fit` stand below the tree as they do below the kernels"
    line = "analyze llama-3.1-70b --hardware a100 --batch-size 64".split()
    assert main(line) == 0
    kernels = capsys.readouterr().out.splitlines()
    assert main([*line, "--layers"]) == 0
    layers = capsys.readouterr().out.splitlines()
    assert kernels[-4:] == layers[-4:] and layers[-1].startswith("does not fit: weights and cache need ")


@pytest.mark.parametrize("layers", ["", " --layers"])
def test_json_and_csv(layers, capsys):
    line, rows = f"analyze mixtral-8x7b --hardware h100{layers}", "layers" if layers else "kernels"
    data, largest = told(line, capsys), told(f"{line} --sort cost", capsys)
    assert ("layers" in data, "kernels" in data) == (bool(layers), not layers)
    share = [row["share"] for row in data[rows]]
    assert share[0] == pytest.approx(1) if layers else sum(share) == pytest.approx(1)
    key = lambda row: json.dumps(row, sort_keys=True)
    assert data[rows] != largest[rows] and sorted(map(key, data[rows])) == sorted(map(key, largest[rows]))
    if not layers:
        assert [r["share"] for r in largest[rows]] == sorted(share, reverse=True)
    memory, totals = data["memory"], data["totals"]
    assert memory["needed_bytes"] == totals["weight_bytes"] + totals["kv_cache_bytes"] > memory["device_bytes"] and memory["fits"] is False
    assert data["tokens_per_s"] == pytest.approx(2048 / totals["time_s"])
    for sort, wanted in (("order", data), ("cost", largest)):
        assert main(f"{line} --sort {sort} --format csv".split()) == 0
        table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert [(row["path"], row["share"]) for row in table] == [(row["path"], str(row["share"])) for row in wanted[rows]]
    alone = told("analyze mixtral-8x7b", capsys)
    assert alone["memory"]["fits"] is alone["memory"]["device_bytes"] is alone["tokens_per_s"] is None


def test_two_amounts_that_differ_do_not_read_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    need = analyze("llama-2-7b").at().memory_bytes
    device = json.loads((Path(lm_predictor.__file__).parent / "hardware/nvidia_l4.json").read_text())
    for short in (1, 10**6, 10**8):
        (tmp_path / "own.json").write_text(json.dumps({**device, "memory_bytes": need - short}))
        assert main(["analyze", "llama-2-7b", "--hardware", str(tmp_path / "own.json")]) == 0
        needed, held = re.search(r"cache need (\S+) GB, .* has (\S+) GB$", capsys.readouterr().out, re.M).groups()
        assert float(needed) > float(held)


# ---- in a notebook

def test_reprs():
    cost = analyze("llama-2-7b")
    run = cost.at(cache_len=1024).on("h100")
    shown = run._repr_markdown_()
    for part in (run.model, "NVIDIA H100 SXM 80GB", "decode: batch 1, 1 new token, 1024 cached", f"{run.totals.flops:,}",
                 f"time at least {run.time_s:.4g} s", f"{run.totals.weight_bytes:,} B"):
        assert part in shown
    assert repr(cost) == "ModelCost('meta-llama/Llama-2-7b-hf': LlamaForCausalLM, 6,738,415,616 parameters; .at(...) gives numbers)"
    assert len(repr(run)) < 250 and {"analyze", "compute_flops", "compute_memory", "Workload"} <= set(dir(lm_predictor))


# ---- mistakes

MISTAKES = {  # a line that cannot be understood -> what is said of it; status 2
    "analize gpt2": "argument COMMAND: unknown 'analize'; did you mean analyze? (see `lm-predictor --help`)",
    "analyze gpt2 --bach-size 8": "unknown option --bach-size; did you mean --batch-size? (see `lm-predictor analyze --help`)",
    "analyze gpt2 --bach-size=8": "unknown option --bach-size; did you mean --batch-size? (see `lm-predictor analyze --help`)",
    "analyze gpt2 more": "unexpected 'more' (see `lm-predictor analyze --help`)",
    "analyze": "the following arguments are required: MODEL (see `lm-predictor analyze --help`)",
    "analyze gpt2 --execution flsh": "argument --execution: unknown 'flsh'; did you mean flash? (see `lm-predictor analyze --help`)",
    "analyze gpt2 --batch-size": "argument --batch-size: expected one argument (see `lm-predictor analyze --help`)",
    "db chek": "argument ACTION: unknown 'chek'; did you mean check? (see `lm-predictor db --help`)",
    "db chck --into x": "argument ACTION: unknown 'chck'; did you mean check? (see `lm-predictor db --help`)",
    "verify": "verify takes a CLASS or MODEL, or --all (see `lm-predictor verify --help`)",
    "agent": "agent takes a CLASS, or --model MODEL for what a model needs (see `lm-predictor agent --help`)",
    "expand LlamaMLP --set x": "--set takes NAME=VALUE, got 'x' (see `lm-predictor expand --help`)",
    "": "the following arguments are required: COMMAND (see `lm-predictor --help`)",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistake(line, capsys):
    assert main(line.split()) == 2
    assert capsys.readouterr() == ("", f"lm-predictor: {MISTAKES[line]}\n")


# ---- where the output goes

def shell(command: str, **environment):
    "What /bin/sh makes of a line in which `lm` is this program; as it is started by a user, with no terminal"
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | environment
    lm = f"{shlex.quote(sys.executable)} -m lm_predictor"
    return subprocess.run(["bash", "-c", f"set -o pipefail; lm() {{ {lm} \"$@\"; }}; {command}"], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("command", ["analyze gpt2", "analyze gpt2 --format json", "module LlamaMLP", "expand LlamaForCausalLM", "models"])
def test_closed_output(command):
    "A stdout that is closed, a reader that goes, a full disk: no traceback, and the status says whether something was lost"
    done = shell(f"lm {command} >&-")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr and done.returncode == 0
    done = shell(f"lm {command} | head -1")
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    done = shell(f"lm {command} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "lm-predictor: output: no space left on device\n")


def test_closed_errors():
    done = shell("lm analyze lama-2-7b 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


TABLES = ("analyze gpt2 --hardware a100", "analyze mixtral-8x7b --layers", "inspect mixtral-8x7b", "models", "hardware", "hardware a100",
          "module LlamaAttention --operators", "module torch.nn.Linear", "expand LlamaDecoderLayer")


@pytest.mark.parametrize("command", TABLES)
@pytest.mark.parametrize("columns", [120, 80, 40])
def test_layout(command, columns, capsys, monkeypatch):
    "No line is longer than the terminal, and no name is cut into fragments where it fits"
    monkeypatch.setenv("LM_PREDICTOR_DB", "none")
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(command.split()) == 0
    narrow = capsys.readouterr().out
    assert narrow.strip() and max(map(len, narrow.splitlines())) <= columns
    monkeypatch.setenv("COLUMNS", "9000")
    assert main(command.split()) == 0
    words = set(re.findall(r"[A-Za-z_]{3,}", capsys.readouterr().out))
    fragments = {w for w in re.findall(r"(?<![….A-Za-z0-9_-])[A-Za-z_]{3,}(?![…A-Za-z_])", narrow) if w not in words}
    assert not fragments


@pytest.mark.parametrize("columns", ["0", "-3", "wide", "1", "9" * 30])
@pytest.mark.parametrize("command", ["models", "hardware", "inspect gpt2", "analyze gpt2", "module LlamaMLP"])
def test_columns(command, columns, capsys, monkeypatch):
    "COLUMNS that is no width is none"
    monkeypatch.setenv("COLUMNS", columns)
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert out.count("\n") > 5
    if columns != "1":
        monkeypatch.delenv("COLUMNS")
        assert main(command.split()) == 0 and capsys.readouterr().out == out


# ---- classes

def test_expansion_is_read_once(capsys):
    "Each call is printed once, and like terms are one"
    assert main(["expand", "LlamaAttention"]) == 0
    out = capsys.readouterr().out
    assert out.count("call ") == 4 and out.count("243 call torch.nn.modules.linear.Linear\n") == 1 and "/2" not in out
    total = out.split("\ntotal\n")[1].replace("\n    ", " ")
    assert re.search(r"^  FLOPs 8\*batch_size\*hidden_size\*head_dim\*num_heads\*seq_len \+ 7\*batch_size\*head_dim\*num_heads\*seq_len ", total)


def test_module_names_attributes_that_exist(capsys):
    "Every config.attribute that is printed is one of the config class of a model that has the class"
    transformers = pytest.importorskip("transformers")
    for name, config in (("LlamaAttention", "LlamaConfig"), ("GPT2Attention", "GPT2Config"), ("OPTDecoderLayer", "OPTConfig"),
                         ("OPTAttention", "OPTConfig"), ("MixtralAttention", "MixtralConfig")):
        assert main(["module", name]) == 0
        attributes = re.findall(r"\(config\.(\w+)\)", capsys.readouterr().out)
        assert attributes and all(hasattr(getattr(transformers, config)(), a) for a in attributes), (name, attributes)


def test_module_names_a_few_models(capsys):
    assert main(["module", "torch.nn.Linear"]) == 0
    assert len(re.findall(r"\w+-[0-9a-f]{8}", capsys.readouterr().out)) == 3


# ---- what a name means

def test_short_names_of_classes(capsys):
    "What `module` knows, `trace` and `verify` know; a preset's name is a preset"
    pytest.importorskip("torch")
    assert main(["verify", "GPT2MLP"]) == 0
    out = capsys.readouterr().out
    assert "transformers.models.gpt2.modeling_gpt2.GPT2MLP: verified" in out and "Warning" not in out
    for command in ("verify", "trace"):
        assert main([command, "Nothing"]) == 1 and "unknown model 'Nothing'" in capsys.readouterr().err


def test_a_folder_called_like_a_preset(tmp_path, monkeypatch, capsys):
    "The preset is taken, and it is said; `./gpt2` is the folder"
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 3}')
    monkeypatch.chdir(tmp_path)
    said = "gpt2 is the preset openai-community/gpt2; `./gpt2` is the folder here"
    preset, folder = told("analyze gpt2", capsys), told("analyze ./gpt2", capsys)
    assert said in preset["notes"] and said not in folder["notes"] and preset["parameters"] > 2 * folder["parameters"] / 1.5
    assert analyze("gpt2").model == "openai-community/gpt2" and analyze(f"{tmp_path}/gpt2").parameters == folder["parameters"]


@pytest.mark.parametrize("command", ["module", "expand", "trace", "audit", "verify"])
@pytest.mark.parametrize("name", ["os.path.Foo", "mynet.Foo", "json.JSONDecoder", "torch.nn.Linaer", "transformers.models.llama.modeling_llama.LlamaMPL"])
def test_no_unsafe_advice(command, name, capsys, tmp_path):
    "Nobody is told to install what shares a name with a module, or to trace what cannot be traced"
    assert main([command, name]) == 1
    err = capsys.readouterr().err
    assert "pip install" not in err and "lm-predictor trace" not in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["torch.nn.Bilinear", "transformers.models.llama.modeling_llama.LlamaForSequenceClassification"])
def test_a_trace_is_advised_where_it_may_work(name, capsys):
    assert main(["module", name]) == 1 and f"`lm-predictor trace {name}` tries to make one" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["module LlamaMLP --model llama-2-7b", "expand LlamaMLP --model llama-2-7b"])
def test_trusted_code(command, capsys):
    assert main([*command.split(), "--trust-remote-code"]) == 0


def test_verify_says_nothing_of_others(tmp_path):
    "What transformers deprecates is no business of whoever verifies a record"
    pytest.importorskip("torch")
    done = shell("lm verify gpt2 --jobs 1", LM_PREDICTOR_DB=str(tmp_path), HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and done.stderr == "" and "records: " in done.stdout


def test_the_memory_that_the_driver_reports(capsys):
    "The H200's own 139.7 GiB are more than its nominal 141 GB: what fits there is not refused"
    run = told("analyze llama-3.1-70b --seq-len 8192 --hardware h200", capsys)
    assert 141e9 < run["memory"]["needed_bytes"] < run["memory"]["device_bytes"] == 150_021_734_400 and run["memory"]["fits"] is True
