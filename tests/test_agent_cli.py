"`lm-predictor agent` and `module --compare`, from a shell's point of view."
import json
import socket

import pytest

from lm_predictor.cli import main
from messages_api import KEY, Api
from test_agent import LINEAR, MLP, NORM, NOTES, answer_of, put, recorded, turn

pytest.importorskip("anthropic")


@pytest.fixture
def shell(monkeypatch, tmp_path, capsys):
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
    assert status == 1 and out == "" and err.count("\n") == 1 and "Traceback" not in err and len(err) < 400, (status, out, err)
    return err.removeprefix("lm-predictor: ").strip()


def test_good(shell):
    "A class from key to comparison"
    with Api({NORM: recorded(NORM)}) as api:
        status, out, err = shell(f"agent LlamaRMSNorm --base-url {api.url} --force --price 3,15")
    assert status == 0 and out.startswith(f"{NORM}: verified, 4 turns, 4,800 tokens, cost 0.024\n") and err == ""
    assert sorted(p.name for p in (shell.db / "agent").iterdir()) == [f"{NORM}.json", f"{NORM}.jsonl", f"{NORM}.md"]
    status, out, _ = shell("module LlamaRMSNorm --compare")
    assert status == 0 and out.count("same") == 4 and "variance = hidden_states.pow(2)" in out
    assert shell("agent LlamaRMSNorm")[:2][0] == 0 and shell("db check")[0] == 0 and shell("module LlamaRMSNorm")[0] == 0


def test_difference_is_explained(shell):
    "A stored analysis with another convention: the comparison names it"
    with Api({NORM: recorded(NORM)}) as api:
        shell(f"agent LlamaRMSNorm --base-url {api.url} --force")
    path = shell.db / "agent" / f"{NORM}.json"
    data = json.loads(path.read_text())
    data["kernels"][1]["flops"] = "batch_size*seq_len*hidden_size"
    data["kernels"][0]["memory_access"]["read"] = "0"
    path.write_text(json.dumps(data))
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
        monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong")
        assert wrong(shell, at) == "the API key is not accepted (401): invalid x-api-key"
    port = closed_port()
    assert wrong(shell, f"agent LlamaRMSNorm --force --base-url http://127.0.0.1:{port}") == f"nobody answers at http://127.0.0.1:{port} after 5 attempts"
    assert wrong(shell, "agent LlamaRMSNorm --force --base-url example.org").startswith("--base-url must begin with http:// or https://, got 'example.org'")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert wrong(shell, "agent LlamaRMSNorm --force").startswith("the agent needs ANTHROPIC_API_KEY in the environment")
    assert wrong(shell, "agent transformers.models.llama.modeling_llama.LlamaMPL").startswith("no class 'LlamaMPL' in transformers.models.llama.modeling_llama; near: LlamaMLP")
    assert wrong(shell, "agent Nothing").startswith("no analysis of 'Nothing'")
    assert wrong(shell, "agent nopackage.x.Y").startswith("package 'nopackage' is not installed")
    for name in ("turns", "tokens", "seconds", "cost"):
        price = " --price 1,2" if name == "cost" else ""
        assert wrong(shell, f"agent LlamaRMSNorm --max-{name} 0{price}") == f"a budget of 0 for {name} leaves nothing to spend; it must be above 0"
    assert wrong(shell, "agent LlamaRMSNorm --max-cost 3") == "a limit of cost needs the prices of input and output tokens (--price INPUT,OUTPUT per million tokens)"
    assert wrong(shell, "agent LlamaRMSNorm --price cheap").startswith("--price takes two amounts such as 3,15, got 'cheap'")
    assert wrong(shell, "agent LlamaRMSNorm --jobs 0") == "--jobs must be at least 1, got 0"
    assert wrong(shell, "agent LlamaRMSNorm --model gpt2") == wrong(shell, "agent") == "agent takes a CLASS, or --model MODEL for what a model needs"

