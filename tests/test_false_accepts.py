"What an adversary of the agent's check tries: analyses that are wrong where nothing was compared; and one that is right."
import copy
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lm_predictor.agent.analyze import _checks, agent_record, analyze_class, checker_of
from lm_predictor.agent.conversation.client import Budget, replay_send
from lm_predictor.agent.conversation.journal import read_rows
from lm_predictor.formula.language import parse, parse_condition
from lm_predictor.records.analysis import Analysis, analysis_to_json
from lm_predictor.records.storage.database import Database
from lm_predictor.records.source import locate

pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[1]
LLAMA = "transformers.models.llama.modeling_llama.Llama"
NORM, MLP, ATTENTION, LINEAR = f"{LLAMA}RMSNorm", f"{LLAMA}MLP", f"{LLAMA}Attention", "torch.nn.modules.linear.Linear"
MISTRAL = "transformers.models.mistral.modeling_mistral.MistralAttention"
DOCUMENT = "Lines " + " ".join(map(str, range(1, 1500)))
FIGURES = ("flops", "matmul_flops")


def right(name: str) -> dict:
    "What the agent of a committed journal wrote in the end"
    rows, _ = read_rows(ROOT / "journals" / f"{name}.jsonl")
    blocks = [b for row in rows if "assistant" in row for b in row["assistant"]["content"] if b["type"] == "tool_use"]
    return json.loads([b["input"]["content"] for b in blocks if b["input"].get("path") == "work/analysis.json"][-1])


def as_written(analysis: Analysis) -> dict:
    "A record as an agent would write it"
    def plain(kernels):
        rows = [{k: v for k, v in row.items() if k != "operators"} for row in kernels]
        return [{"analysis": "as the trace"} | row for row in rows]
    whole = analysis_to_json(analysis)
    rows = {k: whole[k] for k in ("class_name", "parameters", "assumptions") if k in whole}
    variants = [{"assumptions": v["assumptions"], "kernels": plain(v["kernels"])} for v in whole.get("variants", ())]
    return rows | {"kernels": plain(whole["kernels"]), "variants": variants}


@pytest.fixture
def db(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    return Database(tmp_path / "db")


def problems(data: dict, db: Database, trace: Analysis | None = None) -> str:
    "What the check says of an analysis when the agent ends its work"
    name = data["class_name"]
    check = checker_of(name, locate(name).file, db, trace or db.get(name))
    return "\n".join(map(str, check(json.dumps(data), DOCUMENT, True)))


def in_all(kernel: dict, change) -> dict:
    "A kernel with `change` applied to each of its four figures"
    access = {k: change(v) for k, v in kernel["memory_access"].items()}
    return kernel | {f: change(kernel[f]) for f in FIGURES} | {"memory_access": access}


def times(kernel: dict, n: str) -> dict:
    "A kernel with every figure multiplied"
    return in_all(kernel, lambda text: f"({text})*({n})")


@pytest.mark.parametrize("name", [NORM, MLP, ATTENTION, LINEAR])
def test_what_is_right_passes(name, db):
    assert problems(right(name), db) == ""


# 1. equal at the sizes that are compared, wrong at others

@pytest.mark.parametrize("old, new", [
    ("a_bytes", "max(a_bytes, 4)"),  # float32 at least: twice the bytes of every 16-bit type
    ("w_bytes", "max(w_bytes, 3)"),
    ("seq_len", "min(seq_len, 50000)"),
    ("hidden_size", "max(hidden_size, 3)"),
])
def test_equal_at_the_compared_sizes_only(old, new, db):
    "a_bytes was never below 5 and no size above 900"
    data = right(NORM)
    read = data["kernels"][3]["memory_access"]["read"]
    data["kernels"][3]["memory_access"]["read"] = read.replace(old, f"({new})")
    assert old in read and "$.kernels[3].memory_access.read" in problems(data, db)


def test_fitted_to_every_size(db):
    "A term that is zero at the widths of all three sets of sizes, which depended on nothing that was written"
    data = right(NORM)
    data["kernels"][1]["memory_access"]["read"] += " + (w_bytes - 3)*(w_bytes - 12)*(w_bytes - 13)"
    assert "$.kernels[1].memory_access.read" in problems(data, db)


@pytest.mark.parametrize("condition", ["seq_len > 5000", "batch_size == 7", "w_bytes < 2"])
def test_kernel_behind_a_condition_that_never_held(condition, db):
    data = right(NORM)
    data["kernels"].append(times(data["kernels"][1], "10**6") | {"when": [condition]})
    assert "[4]" in problems(data, db)


def test_condition_that_always_held(db):
    "The kernel is missing beyond 5000 tokens"
    data = right(NORM)
    data["kernels"][1]["when"] = ["seq_len != 5001"]
    assert "$.kernels[1].when[0]: seq_len != 5001 holds at every compared point" in problems(data, db)


@pytest.mark.parametrize("old, new", [("head_dim", "8"), ("num_heads", "2*num_kv_heads")])
def test_sizes_that_were_always_alike(old, new, db):
    "A head was always 8 wide, and there were always twice as many heads as those of keys and values"
    data = right(ATTENTION)
    kernels = data["variants"][0]["kernels"]
    i = next(i for i, k in enumerate(kernels) if k["kernel_type"] == "basic" and "decode" in k.get("phases", ()))
    kernels[i] = in_all(kernels[i], lambda text: re.sub(rf"\b{old}\b", f"({new})", text))
    assert f"$.variants[0].kernels[{i}]" in problems(data, db)


def test_cases_that_only_the_other_kernels_run_in(db):
    "Of this class one kernel names its cases, all but decode; so no kernel was compared in decode"
    name = "transformers.models.bloom.modeling_bloom.BloomAttention"
    trace = db.get(name)
    trace = replace(trace, variants=tuple(v for v in trace.variants if not v.accelerated))  # the source as it is written
    data = as_written(trace)
    for kernels in (data["kernels"], *(v["kernels"] for v in data.get("variants", ()))):
        kernels.append(next(k for k in kernels if k["kernel_type"] == "basic" and k["flops"] != "0") | {"phases": ["decode"]})
    assert problems(as_written(trace), db) == "" and "decode" in problems(data, db)


# 2. cases that nothing was compared in

def test_case_that_the_trace_does_not_tell_apart(db):
    "What is added in one case only, or left out in one case only"
    data = right(NORM)
    data["kernels"].append(times(data["kernels"][1], "7") | {"phases": ["decode_b1", "extend_all_b1"]})
    assert "$.kernels[1] (with [4])" in problems(data, db)
    data = right(NORM)
    data["kernels"][1]["phases"] = ["prefill", "decode", "extend"]
    assert "no kernel for line 64" in problems(data, db)


def test_short_cases(db):
    "The trace tells `_short` apart; that it does was not looked at"
    name = "transformers.models.bamba.modeling_bamba.BambaMixer"
    trace = db.get(name)
    trace = replace(trace, variants=tuple(v for v in trace.variants if not v.accelerated))  # the source as it is written
    data = as_written(trace)
    for kernels in (data["kernels"], *(v["kernels"] for v in data.get("variants", ()))):
        for k in kernels:
            if all(p.endswith("_short") for p in k.get("phases", [""])):
                k.update(times(k, "2"))
    assert problems(as_written(trace), db) == "" and "_short" in problems(data, db)


# 3. variants and assumptions under which nothing was compared

def test_variant_that_was_never_compared(db):
    data = right(LINEAR)
    wrong = [times(k, "3") for k in copy.deepcopy(data["kernels"])]
    data["variants"] = [{"assumptions": ["in_features == 4096"], "kernels": wrong}]
    assert "$.variants[0]: was not compared" in problems(data, db)


def test_assumption_that_the_trace_does_not_make(db):
    data = right(NORM)
    data["assumptions"] = ["hidden_size == 7"]
    assert "$.assumptions[0]: hidden_size == 7 does not hold" in problems(data, db)


def test_kernels_of_another_use(db):
    "`use` tells special calls of a class apart; only the general use is compared"
    data = right(LINEAR)
    data["parameters"].append({"name": "use", "meaning": "which call", "origin": "where it is called", "default": 0})
    data["kernels"].append(times(data["kernels"][0], "9") | {"when": ["use == 1"]})
    assert "$.kernels[2]" in problems(data, db)


# 4. faults that cancel within one line

def test_kernels_that_cancel(db):
    "Minus a billion operations in one kernel, plus a billion in another of the same line"
    data = right(NORM)
    k = data["kernels"][1]
    data["kernels"][1] = k | {"flops": k["flops"] + " - 10**9*seq_len"}
    data["kernels"].append(k | {"flops": "10**9*seq_len", "memory_access": {"read": "0", "write": "0"}})
    assert "$.kernels[1].flops: is negative" in problems(data, db)


def test_calls_that_cancel(db):
    "One product too wide, one too narrow: the sum is that of two right ones at every size"
    data = right(MLP)
    first = "in_features=hidden_size, out_features=intermediate_size"

    def change(text):
        twice = next((t for t in text.split(" + ") if first in t), "")
        call = twice.removeprefix("2*")
        wide, narrow = (call.replace("=intermediate_size", f"=intermediate_size {sign} hidden_size/3") for sign in "+-")
        return text.replace(twice, f"{wide} + {narrow}") if twice else text
    data["kernels"][0] = in_all(data["kernels"][0], change)
    assert "the calls of torch.nn.modules.linear.Linear" in problems(data, db)


# 5. what is written of parameters, and calls whose cost is not known

@pytest.mark.parametrize("key, value, said", [
    ("origin", "last dimension of the input", "comes from the input; the trace has it from the constructor"),
    ("default", 4096, "has the default 4096; the trace has none"),
])
def test_parameter_that_contradicts_the_trace(key, value, said, db):
    data = right(NORM)
    i, row = next((i, p) for i, p in enumerate(data["parameters"]) if p["name"] == "hidden_size")
    row[key] = value
    assert f"$.parameters[{i}].{key}: hidden_size {said}" in problems(data, db)


def conversation(data: dict) -> list:
    "The turns of an agent that writes this, and says that it is done"
    files = {"work/analysis.md": DOCUMENT, "work/analysis.json": json.dumps(data)}
    calls = [
        {"type": "tool_use", "id": f"t{i}", "name": "write", "input": {"path": path, "content": text}}
        for i, (path, text) in enumerate(files.items())
    ]
    usage = {"input_tokens": 1, "output_tokens": 1}
    return [
        {"content": calls, "stop_reason": "tool_use", "usage": usage},
        {"content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn", "usage": usage}
    ]


def said_at_the_end(data: dict, db: Database) -> dict:
    "The verification of the record that a conversation comes to, in which the agent writes this"
    outcome = analyze_class(data["class_name"], replay_send(conversation(data)), db, Budget(), "a model", force=True)
    assert outcome.status != "failed", outcome.why
    return agent_record(data["class_name"], db).verification


def test_calls_whose_cost_is_not_known(db):
    "A class that is called has a record, but not all below it: arguments were not compared, and the verdict says so"
    trace, called = db.get(NORM), db.get(MLP)
    missing = replace(called.kernels[0], cost=called.kernels[0].cost.map(
        lambda f: parse(str(f).replace("torch.nn.modules.linear.Linear", "torch.nn.modules.linear.Bilinear"))))
    known = {MLP: replace(called, variants=(replace(called.variants[0], kernels=(missing,)),))}
    call = "${%s}(batch_size=batch_size, hidden_size=%s, intermediate_size=5, seq_len=seq_len)"
    k = trace.kernels[1]
    with_call = lambda passed: replace(
        k, kernel_type="composite", cost=k.cost.map(lambda f: f + parse(call % (MLP, passed))))
    of = lambda passed: replace(
        trace, variants=(replace(trace.variants[0], kernels=(trace.kernels[0], with_call(passed), *trace.kernels[2:])),))
    memory = Database.of(known | {NORM: of("hidden_size")})
    for passed in ("hidden_size", "7*hidden_size"):
        failed = [c for c in _checks(of(passed), of("hidden_size"), [], memory, "") if not c.ok]
        assert len(failed) == 1 and "the arguments of calls of LlamaMLP were not compared" in failed[0].detail


# the verdict

@pytest.mark.parametrize("name, said", [
    (NORM, "FLOPs, matmul FLOPs, bytes read and bytes written of 4 lines equal the trace's at "),
    (ATTENTION, " in 10 cases"),
])
def test_verdict_says_what_was_compared(name, said, db):
    found = said_at_the_end(right(name), db)
    assert found["status"] == "verified" and any(said in text for text in found["checks"]), found
    assert "not compared: what is said in words" in " ".join(found["checks"])


def test_journal_of_a_record_that_stays(db):
    "A forced run that fails leaves the record, and the record names the journal that it was made in"
    data = right(NORM)
    assert said_at_the_end(data, db)["status"] == "verified"
    refused = {"content": [], "stop_reason": "refusal", "usage": {"input_tokens": 1, "output_tokens": 1}}
    for _ in range(2):
        outcome = analyze_class(NORM, replay_send([refused]), db, Budget(), "a model", force=True)
        assert outcome.status == "failed"
        journal = agent_record(NORM, db).provenance["journal"]
        made_in = db.overlay / journal["file"]
        assert hashlib.sha256(made_in.read_bytes()).hexdigest() == journal["sha256"]


def test_audit_of_an_agent_that_uses_another_name(db):
    "Llama-2-7B has as many heads of keys as of queries, so its trace has no `num_kv_heads`; an analysis may say so instead"
    from lm_predictor.app.audit.sections import agent
    from lm_predictor.app.audit.subject import audit
    data = right(ATTENTION)
    for k in data["kernels"]:
        k["flops"] = re.sub(r"\bnum_heads\b", "num_kv_heads", k["flops"]) if k["kernel_type"] == "basic" else k["flops"]
    assert said_at_the_end(data, db)["status"] == "verified"
    assert agent(audit(ATTENTION, "llama-2-7b", seq_len=16, db=db)).count("| same |") > 4


# what is right is accepted

def test_right_beyond_a_window(db):
    """Where the cache keeps a window of W, an earlier token counts at most W - 1 times, however many there were.

    One formula for all cases is right everywhere, but `_over` was compared where its cache would have been full.
    """
    trace = replace(db.get(MISTRAL), variants=db.get(MISTRAL).variants[:1])
    data = as_written(trace)
    past = lambda phases: [f"{c}_past" for c in phases if c.startswith(("extend", "decode")) and not c.endswith("_over")]
    kept = [k for k in data["kernels"] if not all(c.endswith("_past") for c in k.get("phases", [""]))]
    for i, k in enumerate(kept):
        if "phases" in k:
            kept[i] = in_all(k, lambda text: text.replace("cache_len", "min(cache_len, sliding_window - 1)"))
            kept[i]["phases"] = k["phases"] + past(k["phases"])
    assert len(kept) < len(data["kernels"])
    assert problems(data | {"kernels": kept}, db, trace) == ""


def test_cases_are_compared_where_they_apply(db):
    "Every point of a case keeps the conditions that the model has in it"
    from lm_predictor.agent.answer.sizes import points
    trace = db.get(MISTRAL)
    conditions = {
        "extend_over": ("cache_len < sliding_window - 1", "cache_len + seq_len >= sliding_window"),
        "extend": ("cache_len + seq_len < sliding_window",), "decode_past": ("cache_len >= sliding_window - 1",)
    }
    seen = set()
    for at in points(trace.variants[0], trace, trace, db).taken:
        seen.add(at.case)
        assert all(parse_condition(c).holds(at.values) for c in conditions.get(at.case, ())), at
    assert seen >= conditions.keys()
