"The shipped database: it loads, expands, and both roads to a cost meet exactly, without torch."
import json

import pytest

from lm_predictor.database import Database, shipped_directory
from lm_predictor.expand import cost_of, expand
from lm_predictor.graph import record_from_json
from lm_predictor.model import fits, presets
from lm_predictor.schema import CASE_NAMES, analysis_to_json, name_record
from lm_predictor.verify import equal, subtree

DB = Database(overlay=shipped_directory(), shipped=shipped_directory())
RECORDS = sorted((shipped_directory() / "models").glob("*.json"))
FIXED = {name: ({"seq_len": 1} if name.startswith("decode") else {"cache_len": 0} if name.startswith("prefill") else {})
         | ({"batch_size": 1} if "_b1" in name else {}) for name in CASE_NAMES}


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_expansion_equals_trace(path):
    "For every class of a model and every case: record expanded = operators traced, for all four metrics"
    record = record_from_json(json.loads(path.read_text()))
    checked = 0
    for case in record.cases:
        graph = record.graph(case)
        for name in dict.fromkeys(c.class_name for c in graph.calls):
            call = next(i for i, c in enumerate(graph.calls) if c.class_name == name)
            analysis = DB.get(name)
            if record.id not in analysis.variant(record.id).models:
                raise AssertionError(f"{name} has no variant of {record.id}")
            numbers = any(p.origin.startswith("constructor") or p.origin.startswith("last dimension") for p in analysis.parameters)
            if numbers:
                continue  # reached below through the reference that calls it
            fixed = {k: v for k, v in FIXED[case].items() if k in analysis.names()}
            assert equal(cost_of(expand(name, DB, fixed, case, record.id)), subtree(graph, call), case), (case, name)
            checked += 1
    assert checked >= len(record.cases) * 5


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_children_equal_their_calls(path):
    "For every call of a class built from numbers: its record at the arguments of the reference = operators traced there"
    record = record_from_json(json.loads(path.read_text()))
    graph = record.graph("extend")
    parents = {}
    for name in dict.fromkeys(c.class_name for c in graph.calls):
        for k in expand(name, DB, None, "extend", record.id):
            for s in k.sub_kernels:
                if s.operation.startswith("call "):
                    parents.setdefault((name, k.line, s.operation.removeprefix("call ")), []).append(s)
    checked = 0
    for i, c in enumerate(graph.calls):
        if c.parent < 0:
            continue
        found = parents[graph.calls[c.parent].class_name, graph.lines[c.line].line, c.class_name]
        traced = subtree(graph, i)
        assert any(equal(cost_of(s.sub_kernels), traced, "extend") for s in found), (c.path, c.class_name)
        checked += 1
    assert checked > 10


def test_every_file_round_trips():
    for name in DB.names():
        analysis = DB.get(name)
        data = json.loads((shipped_directory() / f"{name}.json").read_text())
        assert analysis_to_json(analysis) == data
        assert data["naming"] == name_record(name) and data["source"]["sha256"]
        assert {p.name for p in analysis.parameters} == analysis.names()


def test_every_preset_has_its_record():
    records = [record_from_json(json.loads(p.read_text())) for p in RECORDS]
    for name, preset in presets().items():
        if preset["config"]["model_type"] not in {r.model_type for r in records}:
            continue  # test_presets.py counts its weights
        assert sum(not fits(r, preset["config"]) for r in records if r.model_type == preset["config"]["model_type"]) == 1, name
        assert not any(r.uncounted for r in records)


def test_analyze_says_first_what_is_not_verified(tmp_path):
    "A class without a verification, one whose source differs, one that is gone"
    from lm_predictor.model import analyze
    names = [f"transformers.models.llama.modeling_llama.{n}" for n in ("LlamaMLP", "LlamaAttention", "LlamaModel")]
    mlp, attention, model = (json.loads((shipped_directory() / f"{n}.json").read_text()) for n in names)
    good = {"status": "verified"}
    rows = {names[0]: mlp | {"verification": {}}, names[1]: attention | {"verification": good, "source": attention["source"] | {"sha256": "0" * 64}},
            names[2]: {}}
    db = Database(overlay=tmp_path, shipped=shipped_directory())
    assert not any("unverified" in n for n in analyze("meta-llama/Llama-2-7b-hf", db).record.notes)
    for name, data in rows.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    note = analyze("meta-llama/Llama-2-7b-hf", db).at(seq_len=1).notes[0]
    assert note.startswith("unverified: ") and "LlamaMLP (unverified)" in note and "LlamaModel (unverified)" in note
    pytest.importorskip("transformers")  # without it nothing can be stale
    assert "LlamaAttention (stale: source of transformers " in note


def test_every_shipped_record_is_verified():
    from lm_predictor.trust import untrusted
    for path in RECORDS:
        assert untrusted(record_from_json(json.loads(path.read_text())), DB) == [], path.stem
