"The page of formulas in a real browser: at random sizes its numbers are those of `analyze`"
import os
import random

import pytest

from browser import ARGUMENTS, chromium
from lm_predictor import analyze
from lm_predictor.app.cli.main import main
from lm_predictor.library.report import stops
from lm_predictor.models.config.validation import ModelError

NAMES = ("flops", "matmul_flops", "read_bytes", "write_bytes", "weight_bytes", "kv_cache_bytes")
SET = """([name, value]) => { const e = document.getElementById(name); e.value = value;
    e.dispatchEvent(new Event("input")); e.dispatchEvent(new Event("change")); }"""
ANSWERS = """(asked) => asked.map(([b, s, c, name]) => { const found = evaluate(b, s, c, DATA.devices.find((d) => d.name === name));
    return found && [...%s.map((n) => String(found.totals[n])), String(found.kernels.length), found.totals.time_s]; })""" % list(NAMES)


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api")
    if not chromium():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no chromium is installed here")
    with sync.sync_playwright() as p:
        started = p.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield started
        started.close()


def opened(browser, path, **options):
    page = browser.new_context(**options).new_page()
    page.errors, page.asked = [], []
    page.on("pageerror", lambda e: page.errors.append(str(e)))
    page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: page.asked.append(r.url))
    page.goto(f"file://{path}")
    return page


def settings(sizes: dict, rng) -> dict:
    return {n: rng.choice(stops) for n, stops in sizes.items()}


@pytest.mark.parametrize("model, execution", [("llama-2-7b", "engine"), ("mixtral-8x7b", "engine"), ("gpt2", "eager"), ("mamba2-2.7b", "engine")])
def test_every_number_is_that_of_analyze(browser, model, execution, tmp_path):
    "200 random stops of the sliders and devices in one go; at the first ten the sliders are moved, and the page is read"
    path = tmp_path / "report.html"
    assert main(["report", model, "-o", str(path), "--execution", execution]) == 0
    assert path.stat().st_size < 1_000_000
    page, cost, rng = opened(browser, path), analyze(model), random.Random(11)
    sizes, devices = stops(cost), page.evaluate("DATA.devices.map((d) => d.name)")
    asked = [settings(sizes, rng) for _ in range(200)]
    on = [rng.choice(devices) for _ in asked]
    found = page.evaluate(ANSWERS, [[*a.values(), d] for a, d in zip(asked, on)])
    compared = 0
    for i, (at, device, answer) in enumerate(zip(asked, on, found)):
        if i < 10:
            assert read(page, at, device, sizes) == answer, at
        try:
            run = cost.at(**at, execution=execution).on(device)
        except ModelError:
            assert answer is None, at
            continue
        assert [int(n) for n in answer[:-1]] == [*(getattr(run.totals, n) for n in NAMES), len(run.kernels)], at
        assert answer[-1] == pytest.approx(run.time_s, rel=1e-12)
        compared += 1
    assert compared > 60 and not page.errors and page.asked == [f"file://{path}"]


def read(page, at: dict, device: str, sizes: dict):
    "What the page shows once its sliders and its device are set; None where it shows no numbers"
    for name, value in at.items():
        page.evaluate(SET, [name, sizes[name].index(value)])
    page.select_option("#device", device)
    if not page.locator(".tile").count():
        assert page.text_content("#says")
        return None
    shown = [page.get_attribute(f"#{n}", "data-exact") for n in (*NAMES, "time_s")]
    return [*shown[:-1], str(page.locator("#kernels tr").count()), float(shown[-1])]


def test_typed_numbers_formulas_and_phones(browser, tmp_path):
    path = tmp_path / "report.html"
    assert main(["report", "llama-2-7b", "-o", str(path)]) == 0
    page = opened(browser, path, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.fill("#seq_len_typed", "777")
    page.press("#seq_len_typed", "Enter")
    run = analyze("llama-2-7b").at(seq_len=777).on(page.input_value("#device"))
    assert int(page.get_attribute("#flops", "data-exact")) == run.totals.flops
    page.fill("#seq_len_typed", "1.5")
    page.press("#seq_len_typed", "Enter")
    assert page.text_content("#says") == "new tokens: a whole number from 1 to 1000000000, please" and page.input_value("#seq_len_typed") == "777"
    page.locator("#kernels button").first.click()
    assert page.locator("#kernels math").count() == 3
    page.click("#all")
    assert page.locator("#kernels math").count() == 3 * len(run.kernels)
    page.click("#all")
    assert page.locator("#kernels math").count() == 0 and "hidden_size = 4,096" in page.text_content("#letters")
    widths = lambda bar: page.evaluate("(id) => [...document.getElementById(id).children].map((e) => parseFloat(e.style.width))", bar)
    timed = [k for k in run.kernels if k.time_s]
    assert widths("time_bar") == pytest.approx([100 * run.share(k) for k in timed], rel=1e-4)
    assert widths("memory_bar") == pytest.approx([100 * n / run.hardware.memory_bytes for n in (run.totals.weight_bytes, run.totals.kv_cache_bytes)], rel=1e-4)
    assert page.locator("#roofline circle").count() == sum(k.flops > 0 for k in timed)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
    page.reload()
    assert page.input_value("#batch_size_typed") == "1" and not page.errors


def test_bad_input(tmp_path, capsys):
    assert main(["report", "gpt2", "-o", "page.pdf"]) == 2
    assert "-o takes a name that ends in .html, got page.pdf" in capsys.readouterr().err
    assert main(["report", "gpt2", "-o", "/proc/page.html"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
