"A user's own records beside those that ship: they add, they never replace or taint, and they can be taken away again."
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from lm_predictor.app.cli.main import main
from lm_predictor.records.storage.database import shipped_directory
from lm_predictor.records.storage.files import model_id, model_paths, read_json, write_json
from lm_predictor.records.storage.turns import PATIENCE
from lm_predictor.records.storage.summaries import SUMMARIES, summary_of

SHIPPED = shipped_directory()
CONFIG = {"model_type": "olmo2", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 320, "attention_bias": True, "max_position_embeddings": 512, "eos_token_id": 7}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    "A database of a user who traced a model that does not ship, and after it a class that it shares with those that do"
    place = tmp_path_factory.mktemp("user")
    (place / "config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_PREDICTOR_DB", str(place / "db"))
        assert main(["trace", str(place / "config.json")]) == 0
        assert main(["trace", "torch.nn.Linear"]) == 0
    return place


@pytest.fixture
def user(traced, tmp_path, monkeypatch):
    "A copy of it to work on"
    shutil.copytree(traced / "db", tmp_path / "db")
    shutil.copy(traced / "config.json", tmp_path)
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    monkeypatch.setenv("COLUMNS", "200")  # a narrow list has several lines for each record
    return tmp_path


def said(capsys, *argv, status=0) -> str:
    capsys.readouterr()
    assert main(list(argv)) == status
    return capsys.readouterr().out


def unverify(directory) -> None:
    for path in [*directory.glob("*.json"), *model_paths(directory)]:
        write_json(path, read_json(path) | {"verification": {"status": "unverified"}})


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt2"])
def test_a_trace_changes_no_report_of_what_ships(model, user, capsys, monkeypatch, tmp_path):
    mine = said(capsys, "analyze", model)
    unverify(user / "db")
    assert said(capsys, "analyze", model) == mine
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "nothing"))
    assert said(capsys, "analyze", model) == mine and "verified" not in mine and "stale" not in mine


def test_ones_own_copy_of_a_shipped_model_changes_nothing(capsys, monkeypatch, tmp_path):
    "The same model from the same source, of which nothing was verified"
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    before = [said(capsys, *command.split()) for command in ("analyze gpt2", "module GPT2MLP", "expand GPT2MLP --model gpt2")]
    [path] = model_paths(SHIPPED, "gpt2-*")
    (tmp_path / "db" / "models").mkdir(parents=True)
    shutil.copy(path, tmp_path / "db" / "models")
    for name in {call[1] for graph in read_json(path)["cases"].values() for call in graph["calls"]}:
        shutil.copy(SHIPPED / f"{name}.json", tmp_path / "db")
    unverify(tmp_path / "db")
    assert [said(capsys, *command.split()) for command in ("analyze gpt2", "module GPT2MLP", "expand GPT2MLP --model gpt2")] == before


def test_a_class_traced_later_breaks_no_model(user, capsys):
    config = str(user / "config.json")
    assert said(capsys, "expand", "Olmo2MLP", "--model", config).endswith("seq_len*a_bytes\n")
    out = said(capsys, "analyze", config)
    assert "stale" not in out and "unverified" not in out
    assert said(capsys, "verify", config).endswith("11 records: 11 verified\n")


def test_ones_own_doubts_are_ones_own(user, capsys):
    "Of two models that share a class, one is not verified: only its own report says so"
    config, linear = str(user / "config.json"), user / "db" / "torch.nn.modules.linear.Linear.json"
    data = json.loads(linear.read_text())
    other = {"status": "unverified", "doubted": ["llama-0000000a"]}
    linear.write_text(json.dumps(data | {"verification": other}))
    assert "unverified" not in said(capsys, "analyze", config)
    linear.write_text(json.dumps(data | {"verification": {"status": "unverified"}}))
    assert "unverified: Linear (unverified)" in said(capsys, "analyze", config)


def test_verify_does_not_rewrite_what_ships(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    [path] = model_paths(SHIPPED, "gpt2-*")
    files = [path, *(SHIPPED / f"{c[1]}.json" for c in read_json(path)["cases"]["decode"]["calls"])]
    state = lambda: [(p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]
    before = state()
    monkeypatch.setattr("lm_predictor.verification.prove.packages", lambda: {"torch": "9.9"})  # so that the outcome is another one
    out = said(capsys, "verify", "transformers.models.gpt2.modeling_gpt2.GPT2MLP")
    assert "what ships is not rewritten" in out and state() == before and not list(tmp_path.rglob("*.json*"))


def listed(capsys, model: str) -> list[str]:
    return next(line for line in said(capsys, "db", "list").splitlines() if line.startswith(f"{model} ")).split()


def test_summaries_of_ones_own(user, capsys):
    "They are kept in step by a trace, a verification and a removal; one that is not counts for nothing"
    db, config = user / "db", str(user / "config.json")
    [path], file = model_paths(db), db / SUMMARIES
    line = lambda: [hashlib.sha256(path.read_bytes()).hexdigest()[:16], *vars(summary_of(read_json(path))).values()]
    kept = lambda: read_json(file)["records"]
    assert kept() == {model_id(path): line()} and listed(capsys, model_id(path))[1:5] == ["Olmo2ForCausalLM", "10", str(line()[3]), "verified"]
    write_json(path, read_json(path) | {"verification": {"status": "unverified"}})
    assert kept() != {model_id(path): line()} and listed(capsys, model_id(path))[4] == "unverified"
    said(capsys, "verify", config)
    assert kept() == {model_id(path): line()} and listed(capsys, model_id(path))[4] == "verified"
    path.write_bytes(path.read_bytes()[:-9])
    assert listed(capsys, model_id(path))[1] == "BROKEN:"
    said(capsys, "db", "rm", model_id(path))
    assert not file.exists()


def records(directory) -> set:
    return {str(p.relative_to(directory)) for p in directory.rglob("*.json*")}


def test_rm(user, capsys):
    "A typo is named, a dry run changes nothing, a model takes the variants of its classes along, what ships stays"
    db = user / "db"
    [model], before = map(model_id, model_paths(db)), records(db)
    capsys.readouterr()
    assert main(["db", "rm", "Olmo2MLQ"]) == 1
    near = "lm-predictor: 'Olmo2MLQ' is none of your own records; near: transformers.models.olmo2.modeling_olmo2.Olmo2MLP"
    assert capsys.readouterr().err.startswith(near)
    assert main(["db", "rm", "LlamaMLP", "Linear"]) == 1 and records(db) == before
    assert said(capsys, "db", "rm", model, "--dry-run") == f"would remove model {model}\n1 record would go; {db}\n" and records(db) == before
    assert said(capsys, "db", "rm", model) == f"removed model {model}\n1 record gone; {db}\n"
    assert records(db) == set()  # the variant of Linear traced by itself was that of the model
    assert "verified" not in said(capsys, "analyze", "llama-3.1-8b")


def test_prune_and_reset(user, capsys):
    "Pruned is what is broken or of another source; a reset leaves none of the records, and nothing else is touched"
    db = user / "db"
    assert said(capsys, "db", "prune") == f"nothing to remove; {db}\n"
    mlp = db / "transformers.models.olmo2.modeling_olmo2.Olmo2MLP.json"
    data = json.loads(mlp.read_text())
    mlp.write_text(json.dumps(data | {"source": data["source"] | {"sha256": "0" * 64}}))
    (db / "torch.x.Broken.json").write_text("{")
    (db / "notes.txt").write_text("mine")
    out = said(capsys, "db", "prune", "--dry-run")
    assert "would remove class torch.x.Broken: is not valid JSON" in out and "would remove model olmo2-" in out
    assert f"would remove class {mlp.stem}: the installed source of {mlp.stem} is not the one that was traced" in out
    assert said(capsys, "db", "prune") == out.replace("would remove", "removed").replace("would go", "gone") and not mlp.exists()
    said(capsys, "db", "reset")
    assert records(db) == set() and (db / "notes.txt").exists()


def test_a_class_that_executes_nothing_is_not_stored(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    assert main(["trace", "torch.nn.Sequential"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err == ("lm-predictor: torch.nn.modules.container.Sequential executes no operator by itself, "
                                 "so there is no cost to record; trace a model that uses it\n")
    assert not list(tmp_path.rglob("*.json*"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="no directory here refuses every file as not found")
def test_a_database_where_no_file_can_be_made(tmp_path):
    "One clear line at once, and no wait for a lock that nobody holds"
    argv = [sys.executable, "-m", "lm_predictor", "trace", "torch.nn.Linear"]
    environment = os.environ | {"LM_PREDICTOR_DB": "/proc/self/fdinfo"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE - 10)
    said = done.stderr.splitlines()
    assert done.returncode == 1 and len(said) == 1 and said[0].endswith("fdinfo: no such file or directory")


@pytest.mark.slow
def test_lists_that_a_class_makes_are_part_of_what_is_traced(tmp_path, monkeypatch):
    "Qwen2-MoE with three layers, the second without a window, by a rule that no record states: traced so, and stored"
    from lm_predictor import analyze
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.obtain.confirm import built_parameters
    from lm_predictor.records.storage.database import Database
    config = {"model_type": "qwen2_moe", "decoder_sparse_step": 2, "hidden_size": 128, "intermediate_size": 384,
              "moe_intermediate_size": 1216, "shared_expert_intermediate_size": 1024, "num_attention_heads": 4,
              "num_key_value_heads": 1, "num_experts": 32, "num_experts_per_tok": 2, "num_hidden_layers": 3,
              "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28, "vocab_size": 151936}
    traced = analyze(config, Database(tmp_path, SHIPPED))
    assert traced.parameters == built_parameters(full_config(config))
    from lm_predictor.obtain import find
    monkeypatch.setattr(find, "traced", None)  # it is not traced again
    again = analyze(config, Database(tmp_path, SHIPPED))
    assert again.record.id == traced.record.id and again.at(seq_len=5).totals == traced.at(seq_len=5).totals
