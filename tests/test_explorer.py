"The explorer: in a browser, what the page shows after a drag is what `analyze` says; what cannot be shown is one sentence."
import csv
import io
import os
import shlex
import socket
import subprocess
import sys

import pytest

from browser import ROOT, RUN, chromium, opened
from lm_predictor import analyze
from lm_predictor.app.cli.main import main, parser
from lm_predictor.app.explorer.page import missing


def run_of(command: str):
    "The run that a command line asks for, computed here"
    a = parser().parse_args(shlex.split(command)[1:])
    return analyze(a.model).at(batch_size=a.batch_size, seq_len=a.seq_len, cache_len=a.cache_len, execution=a.execution,
                               w_bits=a.w_bits, a_bits=a.a_bits, kv_bits=a.kv_bits).on(a.hardware)


def same(page) -> bool:
    "Whether every number on the page is that of its command"
    run = run_of(page.command())
    t = run.totals
    exact = {"time": f"{run.time_s} s", "rate": f"{run.workload.batch_size * run.workload.seq_len / run.time_s} tokens/s", "flops": f"{t.flops:,} FLOPs",
             "bytes": f"{t.read_bytes + t.write_bytes:,} bytes", "need": f"{t.weight_bytes + t.kv_cache_bytes:,} bytes"}
    return {name: page.number(name)[1] for name in exact} == exact


notebook_extra = pytest.mark.skipif(bool(missing()), reason="needs the notebook extra")


@pytest.fixture(scope="module")
def page():
    lacks = missing() or missing(("playwright",)) or ("" if chromium() else "no chromium is installed here")
    if lacks:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no browser test: {lacks}")
    with opened("llama-2-7b", "--hardware", "a100") as page:
        yield page


def test_first_view(page):
    assert page.command() == "lm-predictor analyze meta-llama/Llama-2-7b-hf --batch-size 1 --seq-len 2048 --cache-len 0 --execution flash --hardware nvidia_a100_sxm_80gb"
    assert same(page) and page.page.locator(".lmp-spots circle").count() > 3 and page.page.locator(".lmp-bars tr").count() == 10
    assert not page.errors and {url.split("/")[2] for url in page.answered if url.startswith("http")} == {page.address.split("/")[2]}  # nothing from elsewhere


def test_dragging(page):
    "The numbers follow while the mouse is still down, and end at those of the values where it was let go"
    for label, part in (("batch", 0.4), ("cached tokens", 0.7), ("new tokens", 0.0)):
        before = page.command()
        seen = page.drag(label, part)
        assert len(set(seen)) > 3, seen  # they changed on the way
        assert page.command() != before and same(page)
    assert "--seq-len 1 " in page.command() and page.number("bound")[0] == "memory"


def test_keys_and_lists(page):
    assert page.step("batch", "ArrowRight") > 0 and same(page)
    for label, option, word in (("hardware", "NVIDIA H100 SXM 80GB", "nvidia_h100_sxm"), ("model", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"), ("execution", "eager", "--execution eager "),
                                ("weights", "8 bits", "--w-bits 8"), ("KV cache", "4 bits", "--kv-bits 4")):
        page.choose(label, option, word)
        assert same(page)


def test_exports(page, tmp_path, capsys):
    run = run_of(page.command())
    name, data = page.save("CSV")
    assert name.startswith("Qwen3-8B-nvidia_h100_sxm-eager-") and name.endswith(".csv") and data.decode() == run.to_csv()
    assert [row["path"] for row in csv.DictReader(io.StringIO(data.decode()))] == [k.path for k in run.kernels]
    assert main([*shlex.split(page.command())[1:], "--format", "csv"]) == 0 and capsys.readouterr().out == data.decode()
    name, data = page.save("Table")
    assert name.endswith(".md") and data.decode().count("\n") == 3 + len(run.kernels) and page.page.locator(".lmp-table tr").count() == 2 + len(run.kernels)
    name, data = page.save("PNG")
    assert name.endswith(".png") and data.startswith(b"\x89PNG\r\n") and 20_000 < len(data) < 600_000


def test_what_does_not_hold(page):
    page.choose("model", "openai-community/gpt2", "openai-community/gpt2 ")
    page.control("cached tokens").locator(".noUi-handle").focus()
    page.page.keyboard.press("End")
    page.settled("--cache-len 1048576 ")
    assert page.says() == "openai-community/gpt2 has 1024 learned positions; 1048576 cached and 1 new tokens do not fit"
    assert page.page.locator(".lmp-time, .lmp-spots circle").count() == 0 and page.page.get_by_role("button", name="CSV").is_disabled()
    page.choose("model", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3 ")
    assert "does not fit: weights and KV cache need " in page.says() and same(page)  # and still shown
    assert "Traceback" not in page.page.content() and not page.errors


@notebook_extra
@pytest.mark.parametrize("argv, said", [
    (["lama-2-7b"], "unknown model 'lama-2-7b'; near: llama-2-7b"), (["gpt2", "--hardware", "a1000"], "unknown hardware 'a1000'; near: "),
    (["--port", "0"], "--port must be from 1 to 65535, got 0"), (["--port", "many"], "argument --port: must be a whole number, got 'many'"),
])
def test_wrong_arguments(argv, said, capsys):
    assert main(["explore", "--no-browser", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"lm-predictor: {said}") and err.count("\n") == 1


@notebook_extra
def test_port_taken(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["explore", "gpt2", "--port", str(port)]) == 1
    assert f"port {port} cannot be listened on: it is taken" in capsys.readouterr().err


def test_without_the_notebook_extra():
    "A Python that sees none of the installed packages"
    bare = lambda *argv: subprocess.run([sys.executable, "-S", *argv], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    done = bare("-c", RUN, "explore")
    assert done.returncode == 1 and done.stderr == 'lm-predictor: the explorer needs voila, ipywidgets, matplotlib, ipykernel: pip install "lm-predictor[notebook]"\n'
    assert bare("-c", "import lm_predictor.app.explorer.widget").stderr.endswith('ImportError: the explorer needs ipywidgets: pip install "lm-predictor[notebook]"\n')
