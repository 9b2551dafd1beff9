"The command line as its user meets it: numbers, phases, layouts, mistakes. Each test failed before its finding was mended."
import csv
import io
import json
import re
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


def test_beyond_the_positions(capsys):
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


def test_two_amounts_that_differ_do_not_read_the_same(tmp_path, capsys):
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
