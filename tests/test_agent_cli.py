"`lm-predictor agent` and `module --compare`, from a shell's point of view."
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.formula.caches import reset
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.agent.conversation.journal import alone
from lm_predictor.models.config.validation import NeedsTrace
from messages_api import KEY, Api
from test_agent import EVIL, LAYERS, LINEAR, MLP, NORM, NOTES, ROOT, answer_of, layers, package_with, put, recorded, turn

ATTENTION = "transformers.models.llama.modeling_llama.LlamaAttention"

pytest.importorskip("anthropic")
pty = pytest.importorskip("pty")


@pytest.fixture
def shell(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it: tables would be as wide as its terminal
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def run(line):
        status = main(line.split())
        return status, *capsys.readouterr()
    run.db = tmp_path / "db"
    return run


def wrong(shell, line):
    status, out, err = shell(line)
    told, helped, _ = err.partition(" (see `lm-predictor ")  # of a line that is not understood
    assert status == (2 if helped else 1) and out == "" and err.count("\n") == 1 and "Traceback" not in err and len(err) < 400, (status, out, err)
    return told.removeprefix("lm-predictor: ").strip()


def test_good(shell):
    "A class from key to comparison"
    with Api({NORM: recorded(NORM)}) as api:
        status, out, err = shell(f"agent LlamaRMSNorm --base-url {api.url} --force --price 3,15")
    assert status == 0 and out.startswith(f"{NORM}: verified, 4 turns, 4,800 tokens, cost 0.024\n") and err == ""
    assert sorted(p.name for p in (shell.db / "agent").iterdir()) == [f"{NORM}.json", f"{NORM}.jsonl", f"{NORM}.md"]
    status, out, _ = shell("module LlamaRMSNorm --compare")
    assert status == 0 and out.count("same") == 4 and "variance = hidden_states.pow(2)" in out
    assert shell("agent LlamaRMSNorm")[:2][0] == 0 and shell("module LlamaRMSNorm")[0] == 0


def test_difference_is_explained(shell, monkeypatch):
    "A stored analysis with another convention: the comparison names it"
    with Api({NORM: recorded(NORM)}) as api:
        shell(f"agent LlamaRMSNorm --base-url {api.url} --force")
    path = shell.db / "agent" / f"{NORM}.json"
    data = json.loads(path.read_text())
    data["kernels"][1]["flops"] = "batch_size*seq_len*hidden_size"
    data["kernels"][0]["memory_access"]["read"] = "0"
    path.write_text(json.dumps(data))
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = shell("module LlamaRMSNorm --compare")
    assert "counts elementwise as 0, here it is 1 (as matmul_only)" in out and "read: without _to_copy" in out


def test_failure_is_status_2(shell):
    data = answer_of(NORM)
    data["kernels"][0]["flops"] = "1"
    with Api({NORM: [turn(NOTES, put(data)), turn()]}) as api:
        status, out, err = shell(f"agent LlamaRMSNorm --base-url {api.url} --force --max-repairs 1")
    assert status == 2 and "failed, 3 turns" in out and "still wrong after 1 repairs" in out and not (shell.db / "agent" / f"{NORM}.json").exists()


def test_model(shell):
    "What a model needs; everything verified: nothing is asked"
    with Api({}) as api:
        status, out, _ = shell(f"agent --model llama-2-7b --base-url {api.url}")
        assert status == 0 and out.count("nothing to do") >= 8 and MLP in out and LINEAR in out and not api.requests


def doubted(monkeypatch, place, *names):
    "Records that ship as they do, but for some classes, which are not verified"
    place.mkdir()
    for path in shipped_directory().iterdir():
        (place / path.name).symlink_to(path)
    for name in names:
        data = json.loads((shipped_directory() / f"{name}.json").read_text())
        (place / f"{name}.json").unlink()
        (place / f"{name}.json").write_text(json.dumps(data | {"verification": {"status": "unverified"}}))
    monkeypatch.setattr("lm_predictor.records.storage.database.shipped_directory", lambda: place)
    monkeypatch.setenv("SHIPPED", str(place))  # for a process of its own, see on_a_terminal


def test_model_needs_some(shell, monkeypatch, tmp_path):
    "Of what a model needs, what is not verified is analyzed, several at once; the rest comes from the database, and the next time all of it does"
    needed = (NORM, MLP, ATTENTION)
    doubted(monkeypatch, tmp_path / "shipped", *needed)
    with Api({n: recorded(n) for n in needed}, together=2) as api:
        line = f"agent --model llama-2-7b --base-url {api.url}"
        status, out, _ = shell(line)
        assert status == 0 and all(f"{n}: verified, {len(recorded(n))} turns" in out for n in needed), out
        asked = {re.search(r"Analyze `([\w.]+)`", r["messages"][0]["content"])[1] for r in api.requests}
        assert asked == set(needed) and api.peak == 2  # the first alone, then the others
        assert out.count("nothing to do") >= 5 and f"{LINEAR}: verified on" in out
        before = len(api.requests)
        status, out, _ = shell(line)
        assert status == 0 and len(api.requests) == before and all(f"{n}: verified on" in out and "nothing to do" in out for n in needed)


def test_model_with_force(shell, monkeypatch):
    "With --force what is verified is analyzed again; classes that the server has nothing good for fail, each in one line"
    monkeypatch.setattr("lm_predictor.app.cli.database.agent.needed_by", lambda model, db: ([NORM, LINEAR, MLP], False))
    with Api({NORM: recorded(NORM), LINEAR: [turn(stop="refusal")], MLP: recorded(MLP)}) as api:
        status, out, _ = shell(f"agent --model llama-2-7b --force --base-url {api.url}")
    assert status == 2 and f"{NORM}: verified" in out and f"{MLP}: verified" in out and f"{LINEAR}: failed, 1 turns, 1,200 tokens; the model refused\n" in out


def test_model_that_cannot_be_traced(shell, monkeypatch):
    "It is read from its own class on; what that refers to comes from the database"
    root = "transformers.models.llama.modeling_llama.LlamaForCausalLM"

    def untraceable(*_):
        raise NeedsTrace("llama: it needs the package kernels: pip install kernels") from ImportError("kernels")
    monkeypatch.setattr("lm_predictor.app.cli.database.agent.find_record", untraceable)
    with Api({root: [turn(("write", {"path": "work/analysis.md", "content": "STOP: this is a test"})), turn()]}) as api:
        status, out, err = shell(f"agent --model llama-2-7b --force --base-url {api.url}")
        assert status == 2 and out.startswith(f"{root}: failed, 2 turns") and "the agent stopped: this is a test" in out
        assert err == f"llama: it needs the package kernels: pip install kernels; starting from {root}\n"
    assert "not divisible" in wrong_config(shell)


def wrong_config(shell):
    path = shell.db.parent / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 7}))
    return wrong(shell, f"agent --model {path}")


def test_verify_what_the_agent_made(shell, tmp_path, monkeypatch):
    "A class that cannot be traced stays unverified, for the reason that it has; a source that changed makes it stale"
    folder = package_with(tmp_path, monkeypatch, "clipkg", "layers", LAYERS)
    scale = layers("clipkg")[0]
    name = scale["class_name"]
    assert wrong(shell, f"verify {name}").startswith(f"no analysis of '{name}'")
    assert wrong(shell, f"trace {name}") == f"{name} cannot be traced: it needs the package package_that_is_not_there, which is not installed"
    with Api({name: [turn(NOTES, put(scale)), turn()]}) as api:
        status, out, _ = shell(f"agent {name} --base-url {api.url}")
    why = "numbers equal the trace's: tracing needs package_that_is_not_there"
    assert status == 0 and out.startswith(f"{name}: unverified, 2 turns, 2,400 tokens; {why}\n")
    before = (shell.db / "agent" / f"{name}.json").read_bytes()
    status, out, err = shell(f"verify {name}")
    assert status == 2 and out.startswith(f"{name}: unverified\n  ok   schema\n") and f"  FAIL {why}\n" in out and out.count("FAIL") == 1 and err == ""
    assert out.endswith("1 records: 1 unverified\n") and (shell.db / "agent" / f"{name}.json").read_bytes() == before
    (folder / "layers.py").write_text(LAYERS.replace("self.weight * x", "self.weight + x"))
    reset()
    status, out, _ = shell(f"verify {name}")
    assert status == 2 and out.startswith(f"{name}: stale\n") and "FAIL source unchanged" in out
    assert json.loads((shell.db / "agent" / f"{name}.json").read_text())["verification"]["status"] == "stale"


def test_class_of_another_package(shell, tmp_path, monkeypatch):
    "Its code runs here, but only code of torch and transformers is traced: it says so, and is not verified"
    package_with(tmp_path, monkeypatch, "plainpkg", "evil", EVIL)
    name, n = "plainpkg.evil.Evil", "batch_size*seq_len*width"
    kernel = {"kernel_type": "basic", "operation": "mul", "analysis": "one product per element", "line": 13, "code": "return self.weight * x", "flops": n, "matmul_flops": "0",
              "memory_access": {"read": f"{n}*a_bytes + width*w_bytes", "write": f"{n}*a_bytes"}}
    data = {"class_name": name, "parameters": [{"name": "width", "meaning": "width", "origin": "constructor argument width"}], "kernels": [kernel]}
    assert wrong(shell, f"trace {name}") == f"{name} cannot be traced, as only code of torch and transformers can; `lm-predictor agent {name}` has a language model read it"
    with Api({name: [turn(NOTES, put(data)), turn()]}) as api:
        _, out, _ = shell(f"agent {name} --base-url {api.url}")
    assert "unverified" in out and out.splitlines()[0].endswith("it cannot be traced, as only code of torch and transformers can")
    assert shell(f"verify {name}")[0] == 2 and Database(shell.db).get(name).verification["status"] == "unverified"
    assert wrong(shell, f"module {name} --compare") == f"{name} has no trace to compare with: it cannot be traced, as only code of torch and transformers can"


def test_comparison_at_any_size(shell):
    "Phases and numbers of one's choice; a convention for products that counts half is named"
    with Api({LINEAR: recorded(LINEAR)}) as api:
        shell(f"agent {LINEAR} --base-url {api.url} --force")
    _, out, _ = shell("module Linear --compare --case decode_b1 --set in_features=7 --set out_features=11 --set bias=0")
    assert "in case decode_b1, in numbers, at" in out and "in_features 7" in out and "seq_len 1" in out and "batch_size 1" in out
    assert re.search(r"\b154\b.*\b154\b", out) and "same" in out  # 2*1*1*7*11
    _, out, _ = shell("module Linear --compare --case prefill --set bias=1")
    assert "in case prefill" in out and "bias 1" in out and "same" in out
    path = shell.db / "agent" / f"{LINEAR}.json"
    data = json.loads(path.read_text())
    for k in data["kernels"]:
        k["flops"], k["matmul_flops"] = (k[f].replace("2*", "", 1) for f in ("flops", "matmul_flops"))
    path.write_text(json.dumps(data))
    _, out, _ = shell("module Linear --compare --set bias=0")
    assert "flops: counts mac as 1, here it is 2" in out and "matmul_flops: counts mac as 1, here" in out, out
    with Api({ATTENTION: recorded(ATTENTION)}) as api:
        shell(f"agent {ATTENTION} --base-url {api.url} --force")
    for heads, kv in ((8, 2), (8, 8)):  # each its own variant in both records
        status, out, _ = shell(f"module LlamaAttention --compare --case decode --set num_heads={heads} --set num_kv_heads={kv} --set head_dim=16")
        assert status == 0 and f"num_kv_heads {kv}" in out and out.count("same") >= 7, out
    assert wrong(shell, "module LlamaAttention --compare --set num_heads=8 --set num_kv_heads=3").startswith("no numbers fit num_heads=8, num_kv_heads=3 and the conditions of the trace: ")
    assert wrong(shell, "module Linear --compare --case evening").startswith("unknown case 'evening'; it is one of extend")
    assert wrong(shell, "module Linear --compare --set wide=3").startswith("--set wide: neither analysis has it; they have a_bytes, batch_size, bias")
    assert wrong(shell, "module Linear --compare --set in_features=x") == "--set in_features: a comparison takes a whole number, got 'x'"
    assert wrong(shell, "module Linear --compare --case decode --set seq_len=3") == "case decode has seq_len 1, not 3; take case extend"
    assert wrong(shell, "module Linear --case decode").startswith("--case and --set go with --compare")
    assert wrong(shell, "module Linear --compare --format json") == "--compare is a table; leave out --format json"


def test_in_another_process(shell):
    "One line while somebody else analyzes the class"
    with alone(shell.db / "agent" / f"{NORM}.jsonl"), Api({NORM: recorded(NORM)}) as api:
        assert wrong(shell, f"agent LlamaRMSNorm --force --base-url {api.url}") == f"{NORM} is being analyzed by another process; wait for it to end"
        assert not api.requests


def on_a_terminal(arguments, until, then=lambda child: None):
    "What the command shows on a terminal of 120 columns, without colours; `then` is called when a text is seen"
    main_end, other = pty.openpty()
    code = (
        "import os, sys, pathlib; from lm_predictor.app.cli.main import main; from lm_predictor.records.storage import database\n"
        "if os.environ.get('SHIPPED'): database.shipped_directory = lambda: pathlib.Path(os.environ['SHIPPED'])\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=other, stdout=other, stderr=other, close_fds=True,
                             env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"})
    os.close(other)
    shown, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        if select.select([main_end], [], [], 0.2)[0]:
            try:
                shown += os.read(main_end, 65536)
            except OSError:
                break
        if until and until.encode() in shown:
            then(child)
            until = ""
    return child.wait(10), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_progress_on_a_terminal(shell):
    "Turn, tool, tokens and cost while it runs; the outcome stays"
    with Api({NORM: recorded(NORM)}, delay=0.8) as api:
        status, text = on_a_terminal(["agent", "LlamaRMSNorm", "--force", "--base-url", api.url, "--price", "3,15"], "")
    assert status == 0 and re.search(r"class +turn +now +tokens +cost", text), text
    assert re.search(r"LlamaRMSNorm +0 +asking", text) and re.search(r"LlamaRMSNorm +1 +(read|asking) +1,200 +0.006", text) and re.search(r"LlamaRMSNorm +3 .* 3,600 +0.018", text)
    assert re.search(r"1 done +4 +1 verified +4,800 +0.024", text), text
    assert f"{NORM}: verified, 4 turns, 4,800 tokens, cost 0.024" in text and "Traceback" not in text


def test_interrupted_on_a_terminal(shell, monkeypatch, tmp_path):
    "Ctrl-C ends conversations side by side, in one line; what was said is kept"
    doubted(monkeypatch, tmp_path / "shipped", NORM, MLP, ATTENTION)
    with Api({n: recorded(n) for n in (NORM, MLP, ATTENTION)}, delay=1.0) as api:
        start = time.monotonic()
        status, text = on_a_terminal(["agent", "--model", "llama-2-7b", "--base-url", api.url], "LlamaMLP", lambda child: child.send_signal(signal.SIGINT))
    assert status == 130 and text.rstrip().endswith("lm-predictor: interrupted; what was stored is kept") and "Traceback" not in text and time.monotonic() - start < 60


def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_bad_input(shell, monkeypatch):
    "One line each"
    with Api({NORM: recorded(NORM)}, faults=[(402, "billing_error", "your credit balance is too low")]) as api:
        at = f"agent LlamaRMSNorm --force --base-url {api.url}"
        assert wrong(shell, at) == "the account has no credit (402): your credit balance is too low"
        assert wrong(shell, f"{at} --llm claude-nothing") == f"there is no model 'claude-nothing' at {api.url} (404): model: claude-nothing"
        assert wrong(shell, f"{at}/elsewhere") == f"{api.url}/elsewhere does not speak the Messages API (404)"
        monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong")
        assert wrong(shell, at) == "the API key is not accepted (401): invalid x-api-key"
    port = closed_port()
    assert wrong(shell, f"agent LlamaRMSNorm --force --base-url http://127.0.0.1:{port}") == f"nobody answers at http://127.0.0.1:{port} after 5 attempts"
    assert wrong(shell, "agent LlamaRMSNorm --force --base-url http://127.0.0.1:99999").startswith("--base-url")
    assert wrong(shell, "agent LlamaRMSNorm --force --base-url http://").startswith("--base-url")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "schl\u00fcssel\n")
    assert wrong(shell, f"agent LlamaRMSNorm --force --base-url http://127.0.0.1:{port}") == "ANTHROPIC_API_KEY holds characters that no key has; copy it again"
    assert wrong(shell, "agent LlamaRMSNorm --force --base-url example.org").startswith("--base-url must begin with http:// or https://, got 'example.org'")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert wrong(shell, "agent LlamaRMSNorm --force").startswith("the agent needs ANTHROPIC_API_KEY in the environment")
    assert wrong(shell, "agent transformers.models.llama.modeling_llama.LlamaMPL").startswith("no class 'LlamaMPL' in transformers.models.llama.modeling_llama; near: LlamaMLP")
    assert wrong(shell, "agent Nothing").startswith("no analysis of 'Nothing'")
    assert wrong(shell, "agent nopackage.x.Y").startswith("package 'nopackage' is not installed")
    for name in ("turns", "tokens", "seconds", "cost"):
        price = " --price 1,2" if name == "cost" else ""
        assert wrong(shell, f"agent LlamaRMSNorm --max-{name} 0{price}") == f"a budget of 0 for {name} leaves nothing to spend; it must be above 0"
    assert wrong(shell, "agent LlamaRMSNorm --max-seconds nan") == "argument --max-seconds: takes a number in the digits 0 to 9 with a point, got 'nan'; write a number such as 1.5"
    assert wrong(shell, "agent LlamaRMSNorm --max-repairs -1") == "the number of repairs must be at least 0, got -1"
    assert wrong(shell, "agent LlamaRMSNorm --price 3,15,1").startswith("--price takes two amounts such as 3,15, got '3,15,1'; two more are those of cached input")
    assert wrong(shell, "agent LlamaRMSNorm --max-cost 3") == "a limit of cost needs the prices of input and output tokens (--price INPUT,OUTPUT per million tokens)"
    assert wrong(shell, "agent LlamaRMSNorm --price cheap").startswith("--price takes two amounts such as 3,15, got 'cheap'")
    assert wrong(shell, "agent LlamaRMSNorm --jobs 0") == "--jobs must be at least 1, got 0"
    assert wrong(shell, "agent LlamaRMSNorm --model gpt2") == wrong(shell, "agent") == "agent takes a CLASS, or --model MODEL for what a model needs"

