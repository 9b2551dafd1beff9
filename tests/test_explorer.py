"The explorer: in a browser, what the page shows after a drag is what `analyze` says; what cannot be shown is one sentence."
import csv
import io
import os
import shlex
import socket
import subprocess
import sys
import urllib.request

import pytest

from browser import ROOT, RUN, Page, chromium, opened, pythons, until
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
        for _ in range(2):  # visits that never connect, as those of a browser that is killed; test_visits looks after them
            assert urllib.request.urlopen(page.address).status == 200
        assert len(pythons(page.server)) == 3
        yield page


def test_first_view(page):
    assert page.command() == "lm-predictor analyze meta-llama/Llama-2-7b-hf --batch-size 1 --seq-len 2048 --cache-len 0 --execution engine --hardware nvidia_a100_sxm_80gb"
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


def test_typing(page):
    "A typed number counts exactly, though no stop of the slider is near; a bad one is refused, and the old one stays"
    for label, text, words in (("batch", "3", "--batch-size 3 "), ("new tokens", "3000", "--seq-len 3000 "), ("cached tokens", "1000003", "--cache-len 1000003 ")):
        page.type(label, text)
        page.settled(words)
        assert same(page) and page.shown(label) == int(text) and page.says().startswith("does not fit") == (label == "cached tokens")
    for text, said in (("1,2,4", "takes a whole number in the digits 0 to 9, got '1,2,4'; one number at a time, write 1"), ("abc", "got 'abc'"), ("0", "must be an integer of at least 1, got 0"), ("", "got nothing")):
        page.type("new tokens", text)
        page.page.wait_for_function("said => document.querySelector('.lmp-says').textContent.includes(said)", arg=said)
        assert page.shown("new tokens") == 3000 and "--seq-len 3000 " in page.command() and same(page)
    page.type("new tokens", "1")
    page.settled("--seq-len 1 ")
    assert "got" not in page.says()


def test_address(page):
    "A page that is loaded again, or whose address is given to somebody else, is the same page"
    for label, text in (("new tokens", "333"), ("cached tokens", "77")):
        page.type(label, text)
        page.settled(f" {text} ")
    page.choose("weights", "8 bits", "--w-bits 8")
    page.choose("execution", "fused", "--execution fused ")
    search, before = page.search("execution=fused"), page.shows()
    page.page.reload()
    assert page.shows() == before and same(page) and page.search("w_bits=8") == search
    other = Page(page.page.context.browser.new_page(), page.address + search, page.server)
    assert other.shows() == before
    other.page.goto(page.address + "?model=lama-2-7b&batch_size=1,2&seq_len=64&kv_bits=3")
    assert other.shows()[0] == "lm-predictor analyze meta-llama/Llama-2-7b-hf --batch-size 1 --seq-len 64 --cache-len 0 --execution engine --hardware nvidia_a100_sxm_80gb"
    for said in ("unknown model 'lama-2-7b'; near: llama-2-7b", "batch_size takes a whole number in the digits 0 to 9, got '1,2'", "kv_bits must be one of 4, 8, 16, 32, got 3"):
        assert f"in the address: {said}" in other.says()
    assert same(other) and not other.errors
    other.page.close()
    page.type("new tokens", "1")
    page.choose("execution", "flash", "--seq-len 1 --cache-len 77 --execution flash ")


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
    page.page.get_by_role("button", name="show 1 new tokens after 1,023 cached").click()
    page.settled("--cache-len 1023 ")
    assert page.says() == "" and same(page)
    page.type("new tokens", "49152")
    page.settled("--seq-len 49152 ")
    assert page.says() == "openai-community/gpt2 has 1024 learned positions; 1023 cached and 49152 new tokens do not fit"
    page.choose("model", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3 ")
    assert "does not fit: weights and KV cache need " in page.says() and same(page)  # and still shown
    assert "Traceback" not in page.page.content() and not page.errors


def test_visits(page):
    "A page that is closed, loaded again or left by a killed browser ends its Python; so many at a time and no more"
    assert until(lambda: len(pythons(page.server)) == 1, 50), pythons(page.server)  # those that nobody connected to are gone
    old, second = pythons(page.server), page.page.context.browser.new_page()
    second.goto(page.address)
    second.wait_for_selector(".lmp-command code")
    new = set(pythons(page.server)) - set(old)
    second.reload()
    second.wait_for_selector(".lmp-command code")
    assert len(new) == 1 and until(lambda: not new & set(pythons(page.server)), 20)
    second.close()
    assert until(lambda: pythons(page.server) == old, 20) and same(page)  # the page that is open goes on
    page.step("batch", "ArrowRight")
    assert same(page)


@notebook_extra
@pytest.mark.parametrize("argv, said", [
    (["lama-2-7b"], "unknown model 'lama-2-7b'; near: llama-2-7b"), (["gpt2", "--hardware", "a1000"], "unknown hardware 'a1000'; near: "),
    (["--port", "0"], "--port must be from 1 to 65535, got 0"), (["--port", "many"], "argument --port: takes a whole number in the digits 0 to 9, got 'many'"),
])
def test_wrong_arguments(argv, said, capsys):
    status = main(["explore", "--no-browser", *argv])
    out, err = capsys.readouterr()
    assert status == (2 if "--help`" in err else 1)
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
