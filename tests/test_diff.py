"`lm-predictor diff`: the lines of two costs add up to their sums, and every kind of side is compared"
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lm_predictor import analyze, diff
from lm_predictor.app.cli.main import main
from lm_predictor.cost.tree.registry import compute
from lm_predictor.library.comparison.diff import same_formula
from lm_predictor.library.comparison.snapshot import FIGURES, FORMULAS
from lm_predictor.library.comparison.target import records_of, snapshot
from lm_predictor.records.analysis import analysis_from_json, analysis_to_json
from lm_predictor.records.storage.database import Database

DB = Database()
MLP = "transformers.models.llama.modeling_llama.LlamaMLP"


def check_sums(found):
    "Each line of a side is in one row, and rows add up to the sums"
    for n in FIGURES:
        for side, which in ((found.a, "before"), (found.b, "after")):
            assert sum(getattr(r.figures[n], which) or 0 for r in found.lines if n in r.figures) == side.totals[n] == getattr(found.totals[n], which)


@pytest.mark.parametrize("a, b, at, execution", [
    ("llama-2-7b", "llama-3.1-8b", {"seq_len": 9}, None), ("llama-2-7b", "gemma-3-1b", {"seq_len": 9}, "eager"),
    ("gemma-3-1b", "gemma-3-27b", {"cache_len": 700}, "flash"), ("mixtral-8x7b", "qwen3-30b-a3b", {"batch_size": 2, "cache_len": 5}, None),
    ("deepseek-v3", "gpt2", {"seq_len": 5}, "fused"), ("mamba2-2.7b", "llama-3.1-8b", {"seq_len": 300}, None)])
def test_lines_of_two_models_add_up(a, b, at, execution):
    found = diff(a, b, at, execution, "h100")
    check_sums(found)
    assert not found.same and found.totals["time_s"].difference == pytest.approx(sum(r.figures["time_s"].difference for r in found.lines))
    for side, name in ((found.a, a), (found.b, b)):
        t = analyze(name, DB).at(**at, **({"execution": execution} if execution else {})).on("h100").totals
        assert {n: side.totals[n] for n in FORMULAS} == {n: getattr(t, n) for n in FORMULAS} and side.totals["time_s"] == t.time_s
        assert diff(name, name, at, execution).same


def test_a_class_equals_its_model():
    "The lines of the outermost class, and the whole model without any fusion"
    for model, name in (("llama-2-7b", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("qwen3-8b", "Qwen3ForCausalLM")):
        shot = snapshot(name, {"batch_size": 2, "seq_len": 7}, model=model)
        run = analyze(model, DB).at(batch_size=2, seq_len=7, execution="eager")
        assert {n: shot.totals[n] for n in FORMULAS} == {n: getattr(run.totals, n) for n in FORMULAS}
        assert shot.totals["kernels"] == sum(k.count for k in run.kernels)


def test_classes_equal_compute_and_show_their_formulas():
    sizes = {"batch_size": 2, "seq_len": 5, "cache_len": 3}
    for name, model in (("LlamaAttention", "llama-3.1-8b"), ("MixtralSparseMoeBlock", "mixtral-8x7b"), ("Gemma3Attention", "gemma-3-1b"),
                        ("Mamba2Mixer", "mamba2-2.7b"), ("Qwen3Attention", "qwen3-8b")):
        cost, analysis = analyze(model, DB), DB.get(DB.resolve(name))
        shot = snapshot(name, sizes, model=model)
        assert shot.totals["flops"] == sum(r.figures["flops"] for r in shot.lines) > 0
        named = {p.name: int(re.search(rf"\b{p.name}=(\d+)", shot.about)[1]) for p in analysis.parameters if f"{p.name}=" in shot.about}
        wanted = compute(name, DB, cost.record.id, **named)
        assert [shot.totals[n] for n in FORMULAS] == [f.evaluate({}) for f in wanted], name
        assert all(r.formulas for r in shot.lines), name


def edited(home: Path, change, name: str = MLP) -> Path:
    "A database with the record of a class, changed as text"
    data = json.loads(change(json.dumps(analysis_to_json(DB.get(name)))))
    DB.put(replace(analysis_from_json(data), naming=None), home)
    return home


def test_a_file_that_was_edited_above_a_line_is_the_same(tmp_path):
    moved = edited(tmp_path, lambda t: re.sub(r'"line": (\d+)', lambda m: f'"line": {int(m[1]) + 30}', t).replace('"5.23.0"', '"5.99.0"'))
    found = diff("LlamaMLP", db=("shipped", moved))
    assert found.same and found.b.packages == {"transformers": "5.99.0"} and found.a.packages == {"transformers": "5.23.0"}
    assert [(r.a.source[-4:], r.b.source[-4:]) for r in found.lines][-1] == (":164", ":194")


def test_a_formula_written_otherwise_is_the_same(tmp_path):
    other = edited(tmp_path, lambda t: t.replace('+ batch_size*intermediate_size*seq_len"', '+ seq_len*(batch_size*intermediate_size)"'))
    assert diff("LlamaMLP", db=("shipped", other)).same
    assert same_formula("a*(b+c)", "a*c + b*a") and not same_formula("a//2*2", "a") and not same_formula("a", "b")


def test_a_changed_formula_is_shown_both_ways_and_fails_where_that_is_asked(tmp_path, capsys):
    other = edited(tmp_path, lambda t: t.replace('+ batch_size*intermediate_size*seq_len"', '+ 3*batch_size*intermediate_size*seq_len"'))
    line = ["diff", "LlamaMLP", "--db", "shipped", "--db", str(other)]
    assert main(line) == 0
    assert "A batch_size*intermediate_size*seq_len\n    B 3*batch_size*intermediate_size*seq_len" in capsys.readouterr().out
    assert main([*line, "--fail-on", "change"]) == 2 and "(itself)" in capsys.readouterr().err
    numbers = [*line, "--model", "llama-2-7b", "--seq-len", "4"]
    for asked, status in ((["increase"], 2), (["change"], 2), (["increase", "--tolerance", "1%"], 0), (["change", "--tolerance", "0.01"], 0),
                          (["increase", "--tolerance", "1e-6"], 2)):
        assert main([*numbers, "--fail-on", *asked]) == status, asked
    assert "failed: flops is 1,082,306,560, was 1,082,218,496: +88,064 (+0.0%)" in capsys.readouterr().err
    back = ["diff", "LlamaMLP", "--db", str(other), "--db", "shipped", "--model", "llama-2-7b", "--seq-len", "4", "--fail-on"]
    assert main([*back, "increase"]) == 0 and main([*back, "change"]) == 2


def test_whole_models_of_two_databases(tmp_path):
    "The record of one model, as another version of the source might have given it"
    from lm_predictor.records.storage.files import model_path, read_json, write_json
    file = Path(analyze("gpt2", DB).record.where)
    data = read_json(file)
    data["packages"]["transformers"] = "5.99.0"
    graph = data["cases"]["prefill_b1"]
    graph["lines"] = [[*row[:1], row[1] + 7, *row[2:]] if isinstance(row[1], int) else row for row in graph["lines"]]
    write_json(model_path(tmp_path, data["id"]), data)
    found = diff("gpt2", at={"seq_len": 4}, db=(tmp_path, "shipped"))
    assert found.same and (found.a.packages["transformers"], found.b.packages["transformers"]) == ("5.99.0", "5.23.0")
    assert diff(str(model_path(tmp_path, data["id"])), "gpt2", {"seq_len": 4}, "eager").a.kind == "model"
    assert records_of(tmp_path).names() == []


def test_the_output_of_analyze_is_a_baseline(tmp_path, capsys):
    assert main(["analyze", "qwen3-8b", "--seq-len", "77", "--hardware", "h100", "--format", "json"]) == 0
    (tmp_path / "base.json").write_text(capsys.readouterr().out)
    assert main(["diff", str(tmp_path / "base.json"), "qwen3-8b", "--fail-on", "change", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["same"] and data["totals"]["time_s"]["difference"] == 0 and set(data["counts"]) == {"same", "changed", "only in A", "only in B"}
    assert main(["diff", str(tmp_path / "base.json"), "qwen3-8b", "--seq-len", "78"]) == 1
    assert "is stored with at" in capsys.readouterr().err


def test_two_revisions_of_code_of_ones_own(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from test_custom_code import H, I, L, MODELING, repository
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    old, new = repository(tmp_path / "old"), repository(tmp_path / "new", MODELING.replace(
        "        y = y * torch.sigmoid(y)\n", "        y = y * torch.sigmoid(y)\n        y = y * y\n"))
    asked = ["--trust-remote-code", "--seq-len", "16", "--execution", "eager", "--format", "json", "--fail-on", "increase"]
    assert main(["diff", str(old), str(new), *asked]) == 2
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    [line] = [r for r in data["lines"] if r["change"] != "same"]
    assert (line["change"], line["code"], line["figures"]["flops"]["difference"]) == ("only in B", "y = y * y", L * 16 * I)
    assert data["totals"]["flops"]["difference"] == L * 16 * I and data["totals"]["matmul_flops"]["difference"] == 0 and H
    assert "failed: flops is" in shown.err


@pytest.fixture
def files(tmp_path, monkeypatch):
    "A folder with what is broken"
    monkeypatch.chdir(tmp_path)
    record = analysis_to_json(DB.get(MLP))
    for name, data in {"some": {"a": 1}, "list": [1], "snap": {"lm_predictor": "snapshot", "format": 1}, "nothing": {"class_name": MLP}, "mlp": record,
                       "typo": {**record, "kernels": [{**record["kernels"][0], "flops": "2*hiden_size"}]}}.items():
        Path(f"{name}.json").write_text(json.dumps(data))
    Path("cut.json").write_text(json.dumps(record)[:99])
    Path("empty").mkdir()


@pytest.mark.parametrize("arguments, status, said", [
    ("llama-2-7x gpt2", 1, "unknown model 'llama-2-7x'; near: llama-2-7b"),
    ("LlamaMPL LlamaMLP", 1, "classes near it: LlamaMLP"),
    ("gpt2", 2, "diff takes two things to compare, A and B, or one with two databases"),
    ("gpt2 gpt2 gpt2", 2, "unexpected 'gpt2'"),
    ("LlamaMLP gpt2", 1, "LlamaMLP is a class and openai-community/gpt2 a model; compare two of a kind"),
    ("LlamaMLP Qwen3MLP --seq-len -5", 1, "seq_len must be an integer of at least 1, got -5"),
    ("gpt2 gpt2 --batch-size 0", 1, "batch_size must be an integer of at least 1, got 0"),
    ("gpt2 llama-2-7b --seq-len 1500", 1, "gpt2 has 1024 learned positions"),
    ("LlamaMLP --db empty", 1, "empty holds no records"),
    ("LlamaMLP --db nowhere", 1, "nowhere is no directory; records are in a directory, `shipped`, or `own`"),
    ("LlamaMLP --db a --db b --db c", 2, "--db is given for A and for B, not 3 times"),
    ("some.json gpt2", 1, "some.json is no snapshot, record or config"),
    ("list.json gpt2", 1, "list.json is no snapshot, record or config: it holds no object"),
    ("cut.json LlamaMLP", 1, "cut.json is not valid JSON"),
    ("typo.json LlamaMLP", 1, "typo.json: $.kernels[0].flops: unknown name 'hiden_size'"),
    ("nothing.json LlamaMLP", 1, "nothing.json: $: 'kernels' is a required property; restore or delete it"),
    ("snap.json gpt2", 1, "snap.json lacks name, kind"),
    ("missing.json gpt2", 1, "missing.json is not there"),
    ("mlp.json gpt2", 1, "mlp.json is a class and openai-community/gpt2 a model"),
    ("LlamaMLP Qwen3MLP --model gpt2", 1, "lacks intermediate_size; give numbers, or a model that has them"),
    ("LlamaMLP Qwen3MLP --set hiden_size=4", 1, "has no parameter hiden_size; did you mean hidden_size?"),
    ("LlamaMLP Qwen3MLP --set hidden_size=x", 2, "--set hidden_size takes a whole number here, got 'x'"),
    ("LlamaMLP Qwen3MLP --execution flash", 1, "its execution is eager, not flash"),
    ("LlamaMLP Qwen3MLP --hardware h100", 1, "times are of models"),
    ("gpt2 gpt2 --hardware h1000", 1, "unknown hardware 'h1000'"),
    ("gpt2 gpt2 --model gpt2", 1, "is a model already"),
    ("gpt2 gpt2 --w-bits 7", 1, "w_bits must be one of 4, 8, 16, 32, got 7"),
    ("gpt2 gpt2 --fail-on change --tolerance=-1", 2, "--tolerance takes a part of the whole such as 0.01 or 1%, got '-1'"),
    ("LlamaMLP Dropout --fail-on increase", 1, "is a question of numbers; give sizes, or a model that has them"),
    ("my.py:Block LlamaMLP", 1, "my.py:Block is source code, which is not run from its file"),
])
def test_nonsense_is_one_sentence(arguments, status, said, files, capsys):
    assert main(["diff", *arguments.split()]) == status
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and not shown.out, shown


def test_the_same_thing_twice_has_no_difference(capsys):
    assert main(["diff", "gpt2", "gpt2", "--fail-on", "change"]) == 0
    assert capsys.readouterr().out.endswith("no difference\n")
