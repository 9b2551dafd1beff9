"""How large is a page of live formulas, and how long does a slider take to new numbers?

    python benchmarks/report_page.py [MODEL ...] --repeat 60     needs the dev extra and chromium

In headless chromium, from disk: a slider is moved, and the clock stops when everything that depends on it is drawn: tiles, bars, table and
roofline, with the layout computed. Both a desktop's window and a phone's.
"""
import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from browser import ARGUMENTS, chromium  # noqa: E402
from lm_predictor.library.report import report  # noqa: E402

MODELS = ("llama-2-7b", "mixtral-8x7b", "gemma-3-27b-it", "deepseek-v3", "gpt-oss-120b", "mamba2-2.7b")
WINDOWS = {"desktop": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 800}}
AIM_MS, AIM_BYTES = 16, 1_000_000
MOVES = """(times) => [...Array(times + 5).keys()].map((i) => { const e = document.getElementById("seq_len"), start = performance.now();
    e.value = i % (Number(e.max) + 1); e.dispatchEvent(new Event("input")); document.body.offsetHeight; return performance.now() - start; }).slice(5)"""


def measured(browser, path: Path, window: dict, repeat: int) -> tuple[list[float], float]:
    "Milliseconds of each move of a slider, and those of processor time of the page's thread, in the mean"
    page = browser.new_context(viewport=window).new_page()
    page.goto(path.as_uri())
    page.evaluate(MOVES, 5)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    busy = lambda: next(m["value"] for m in session.send("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")
    before = busy()
    found = page.evaluate(MOVES, repeat)
    cpu = 1000 * (busy() - before) / (repeat + 5)
    page.close()
    return found, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--repeat", type=int, default=60)
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright
    met = True
    print(f"{'':16} {'kB':>5} {'median ms':>18} {'95 % ms':>18} {'CPU ms':>18}\n{'':16} {'':5}" + f" {'desktop':>9} {'phone':>8}" * 3)
    with sync_playwright() as p, tempfile.TemporaryDirectory() as home:
        browser = p.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        for model in args.models:
            path = Path(home, "report.html")
            path.unlink(missing_ok=True)
            size = report(model, path)
            times = [measured(browser, path, window, args.repeat) for window in WINDOWS.values()]
            met &= size < AIM_BYTES and max(median(t) for t, _ in times) < AIM_MS
            pairs = [[f(t, cpu) for t, cpu in times] for f in (lambda t, _: median(t), lambda t, _: quantiles(t, n=20)[-1], lambda _, cpu: cpu)]
            print(f"{model:16} {size / 1000:5.0f}" + "".join(f" {desktop:9.1f} {phone:8.1f}" for desktop, phone in pairs))
        browser.close()
    print(f"the aim of under {AIM_MS} ms (median) and {AIM_BYTES:,} bytes is {'met' if met else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
