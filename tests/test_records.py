"The shipped database: it loads, expands, and both roads to a cost meet exactly, without torch."
import hashlib
import json
import random

import pytest

from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_id, model_paths, pack_classes, pack_models, read_json, read_record, write_json
from lm_predictor.records.storage.summaries import SUMMARIES, keep_summaries, summary
from lm_predictor.cost.tree.expand import cost_of, expand
from lm_predictor.records.cases import CaseError
from lm_predictor.records.model import broken_rule, record_from_json
from lm_predictor.models.matching import fits, symbol_values
from lm_predictor.models.sources.hub import presets
from lm_predictor.records.analysis import analysis_to_json, name_record
from lm_predictor.verification.runs.numbers import Sheet, samples
from lm_predictor.verification.expansion import compare_classes, expansion
from shipped import DB, IDS, every_record, subject_of

RECORDS = model_paths(shipped_directory())


@pytest.mark.parametrize("name", sorted(IDS))
def test_both_roads_meet(name):
    "For every case: the model's class expanded = operators traced, in sum; and every class at every call, line by line, at large numbers"
    subject = subject_of(name)
    record, (_, config) = subject.record, subject.configs[0]
    assert [c for c in expansion(record, DB) if not c.ok] == []
    numbers = samples(record, symbol_values(record, config), random.Random(0))
    for case in record.cases:
        problems, met = compare_classes(Sheet(record.graph(case).at(numbers[case][0]), numbers[case][0]), record.id, case, DB)
        assert not any(problems.values()), (case, {name: p for name, p in problems.items() if p})
        assert len(met) >= 5


def test_every_file_round_trips():
    for name in DB.names():
        analysis = DB.get(name)
        data = json.loads((shipped_directory() / f"{name}.json").read_text())
        assert analysis_to_json(analysis) == data
        assert data["naming"] == name_record(name) and data["source"]["sha256"]
        assert {p.name for p in analysis.parameters} == analysis.names()


def test_what_is_packed_says_the_same(tmp_path, capsys, monkeypatch):
    "Installed, class records are one file for each module, models' one for each type: each is read, listed and resolved as its own file; none is removed"
    from lm_predictor.app.cli.main import main
    from lm_predictor.obtain.analyze import analyze
    names = [n for n in DB.names() if n.startswith(("torch.", "transformers.activations.", "transformers.models.llama."))]
    for name in names:
        (tmp_path / f"{name}.json").write_bytes((shipped_directory() / f"{name}.json").read_bytes())
    models = [p for p in RECORDS if p.name.startswith(("afmoe-", "llama-"))]
    for path in models:
        write_json(tmp_path / "models" / path.name, read_json(path))
    keep_summaries(tmp_path)
    pack_classes(tmp_path)
    pack_models(tmp_path)
    assert not [*tmp_path.glob("*.*.json")] and not [*tmp_path.glob("models/*")]
    packed = Database(overlay=tmp_path / "own", shipped=tmp_path)
    for path, place in zip(models, model_paths(tmp_path), strict=True):
        assert read_json(place) == read_json(path) and packed.home(model_id(path)) == tmp_path
        assert record_from_json(read_record(place)).called_classes == record_from_json(read_json(path)).called_classes
    with monkeypatch.context() as within:  # a list reads what is kept of them
        within.setattr("lm_predictor.records.storage.summaries.summary_of", None)
        assert [summary(place).cases for place in model_paths(tmp_path)] == [len(read_json(p)["cases"]) for p in models]
    assert packed.names() == names and packed.resolve("LlamaMLP") == DB.resolve("LlamaMLP")
    assert all(packed.get(name) == DB.get(name) for name in names)
    answers = [analyze("meta-llama/Llama-2-7b-hf", db).at(seq_len=9) for db in (packed, DB)]
    assert answers[0].totals == answers[1].totals and answers[0].notes == answers[1].notes == ()
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "own"))
    monkeypatch.setattr("lm_predictor.records.storage.database.shipped_directory", lambda: tmp_path)
    for name in ("transformers.models.llama.modeling_llama.LlamaMLP", model_id(RECORDS[0])):
        assert main(["db", "rm", name]) == 1
        assert f"{name!r} ships with the package and stays" in capsys.readouterr().err


def test_every_preset_has_its_record():
    records = every_record()
    assert not [r.id for r in records if r.verification["status"] != "verified"]
    for name, preset in presets().items():
        if preset["config"]["model_type"] not in {r.model_type for r in records}:
            continue  # test_presets.py counts its weights
        about = [r for r in records if r.model_type == preset["config"]["model_type"] and not fits(r, preset["config"])]
        values = {r.id: symbol_values(r, preset["config"]) for r in about}
        kind = [r for r in about if all(values[r.id][s] for s in r.symbols if s.startswith("num_layers_"))]
        assert [bool(r.functions) for r in kind] in ([False], [False, True], [True, False]), name
        # one of more kinds of layers than the preset has says the same
        assert {r.parameters.evaluate(values[r.id]) for r in about} == {preset["published_parameters"]}, name
        assert not any(r.uncounted for r in records)


def test_summaries_are_in_step():
    "What is kept of every record that ships is what it says, made from its file as it is: whoever changes one stores it by `store`, or runs keep_summaries"
    line = lambda r: [r.class_name.rpartition(".")[2], len(r.called_classes), len(r.cases), r.verification["status"], r.verification["date"]]
    lines = {model_id(p): [hashlib.sha256(p.read_bytes()).hexdigest()[:16], *line(r)] for p, r in zip(RECORDS, every_record(), strict=True)}
    kept = read_json(shipped_directory() / SUMMARIES)["records"]
    assert kept == lines, "python -c 'from lm_predictor.records.storage import database, summaries; summaries.keep_summaries(database.shipped_directory())'"


def test_a_list_reads_no_model(capsys, monkeypatch, tmp_path):
    "Some hundred records are listed without one of them being unpacked"
    from lm_predictor.app.cli.main import main
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    monkeypatch.setattr("lm_predictor.records.storage.summaries.summary_of", lambda record: pytest.fail("a record was read"))
    assert main(["db", "list"]) == 0
    assert f"{len(RECORDS)} model records" in capsys.readouterr().out


def test_analyze_says_first_what_is_not_verified(tmp_path):
    "A class without a verification, one whose source differs, one that is gone"
    from lm_predictor.obtain.analyze import analyze
    names = [f"transformers.models.llama.modeling_llama.{n}" for n in ("LlamaMLP", "LlamaAttention", "LlamaModel")]
    mlp, attention, model = (json.loads((shipped_directory() / f"{n}.json").read_text()) for n in names)
    good = {"status": "verified"}
    rows = {names[0]: mlp | {"verification": {}}, names[1]: attention | {"verification": good, "source": attention["source"] | {"sha256": "0" * 64}},
            names[2]: {}}
    db = Database(overlay=tmp_path / "mine", shipped=tmp_path)
    (tmp_path / "models").mkdir()
    for path in [*model_paths(shipped_directory(), "llama-*"), *shipped_directory().glob("*.json")]:
        (tmp_path / path.relative_to(shipped_directory())).symlink_to(path)
    assert not analyze("meta-llama/Llama-2-7b-hf", db).doubts
    for name, data in rows.items():
        (tmp_path / f"{name}.json").unlink()
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    note = analyze("meta-llama/Llama-2-7b-hf", db).at(seq_len=1).notes[0]
    assert note.startswith("unverified: ") and "LlamaMLP (unverified)" in note and "LlamaModel (unverified)" in note
    pytest.importorskip("transformers")  # without it nothing can be stale
    assert "LlamaAttention (stale: source of transformers " in note


def test_a_class_that_moved_by_one_line_is_unchanged_for_everyone(tmp_path):
    "A user's own record whose classes stood one line higher: it is taken as it is, and neither stale nor to be traced or analyzed again"
    pytest.importorskip("transformers")
    from lm_predictor.agent.analyze import already
    from lm_predictor.models.matching import outdated
    from lm_predictor.obtain.find import find
    from lm_predictor.records.status import untrusted
    from lm_predictor.verification.verify import source_check
    [path] = model_paths(shipped_directory(), "gpt2-*")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / path.name).write_bytes(path.read_bytes())
    record, moved = record_from_json(read_json(path)), 0
    for name in {c.class_name for c in record.graph("decode").calls}:
        data = json.loads((shipped_directory() / f"{name}.json").read_text())
        for line in ("line_start", "line_end"):
            data["source"][line] -= 1
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
        moved += 1
    db = Database(overlay=tmp_path, shipped=tmp_path / "nothing")
    assert moved > 5 and outdated(record, db) == "" and untrusted(record, db) == []
    found = find(presets()["openai-community/gpt2"]["config"], db, trace=False)
    assert found.record.id == record.id and found.note == ""
    attention = next(name for name in db.names() if name.endswith("GPT2Attention"))
    assert source_check(db.get(attention)).ok and already(attention, db).startswith("verified on ")


@pytest.mark.slow
def test_every_record_has_a_config():
    "A preset, a type or a variant to run it with: what nobody can run nobody can verify"
    pytest.importorskip("transformers")
    from lm_predictor.verification.prove import subjects
    assert [s.record.id for s in subjects(DB) if not s.configs] == []


@pytest.mark.slow
def test_what_fits_a_record_as_given_fits_it_as_its_class_completes_it():
    "Every variant beside every record of its type: a list that a class makes of numbers is not taken for another one"
    pytest.importorskip("transformers")
    from lm_predictor.models.matching import fits
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.models.sources.type_configs import variant_configs
    records, wrong = {}, []
    for record in every_record():
        records.setdefault(record.model_type, []).append(record)
    for kind, mine in records.items():
        for name, config in variant_configs(kind).items():
            whole = full_config(config).to_dict()
            wrong += [(r.id, name) for r in mine if not fits(r, config) and fits(r, whole)]
    assert wrong == []


def test_every_shipped_record_is_verified():
    from lm_predictor.records.status import untrusted
    for record in every_record():
        assert not untrusted(record, DB), record.id


def test_reading_a_case_changes_nothing():
    "A case is read from its JSON when it is asked for, once; the record and what it was read from stay as they were"
    data = read_json(RECORDS[0])
    record, before = record_from_json(data), json.dumps(data)
    case = next(iter(record.cases))
    assert record.graph(case) is record.graph(case) is record.cases[case] and json.dumps(data) == before
    with pytest.raises(TypeError):
        record.cases[case] = None


def test_expand_refuses_sizes_that_its_case_does_not_have():
    "In Python as in the shell: four sequences are not priced with the formulas of one"
    name = DB.resolve("MistralAttention")
    with pytest.raises(CaseError, match="case decode_b1_past has batch_size 1, not 4; take case decode_past"):
        expand(name, DB, {"batch_size": 4}, "decode_b1_past")
    with pytest.raises(CaseError, match="case decode has seq_len 1, not 2[*]n; take case extend"):
        expand(name, DB, {"seq_len": "2*n"}, "decode")
    one, four = (cost_of(expand(name, DB, {"batch_size": n}, case)).flops for n, case in ((1, "decode_b1_past"), (4, "decode_past")))
    sizes = dict.fromkeys(one.names | four.names, 8) | {"seq_len": 1}
    assert four.evaluate(sizes) == 4 * one.evaluate(sizes)


@pytest.mark.parametrize("model_type", ["deepseek_v4", "glm_moe_dsa", "llama4_text", "nemotron_h"])
def test_layers_of_all_kinds_follow_the_schema(model_type):
    "What a record says of its layers is read without the schema, which `db check` asks"
    paths = [p for p in RECORDS if p.name.startswith(f"{model_type}-")]
    assert paths and not [broken for p in paths if (broken := broken_rule(read_json(p)))]
