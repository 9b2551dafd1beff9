"""Is a process of the explorer left after its visitors have gone, and how much memory do they take meanwhile?

    python benchmarks/visits.py               # 200 visits in chromium, one after the other, in about 10 minutes
    python benchmarks/visits.py --visits 20
    python benchmarks/visits.py --visits 0 --rounds 3   # the memory of one page that shows every model and device, over and over

One visit in four closes its page, one loads it again first, one changes the view before, and one is of a browser that never
says that it goes: it asks for the page and does not connect. After the last one the processes under `lm-predictor explore` must
be those from before the first within 45 seconds: 35 until a page without a browser is noticed, and what it takes to end.
"""
import argparse
import sys
import time
import urllib.request
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from browser import ARGUMENTS, Page, chromium, pythons, served, until  # noqa: E402

KINDS = ("closed", "loaded again", "changed", "left")


def visit(browser, kind: str, address: str, server: int) -> None:
    "One visit of a kind, until it is over"
    if kind == "left":
        urllib.request.urlopen(address).read()
        return
    tab = browser.new_page()
    tab.set_default_timeout(120_000)  # the machine may be busy
    page = Page(tab, address, server)
    if kind == "loaded again":
        page.page.reload()
        page.shows()
    if kind == "changed":
        page.type("new tokens", "333")
        page.settled("--seq-len 333 ")
    page.page.close()


def megabytes(processes: list[int]) -> float:
    "What processes keep in memory for themselves alone"
    return sum(psutil.Process(p).memory_full_info().uss for p in processes if psutil.pid_exists(p)) / 1e6


def visited(visits: int) -> tuple[list[int], int, float]:
    "Visit so often; gives the processes that are left, and the most at a time with their memory in MB"
    from playwright.sync_api import sync_playwright
    most, memory = 0, 0.0
    with served("llama-2-7b", "--hardware", "a100") as (address, server), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        before = {p.pid for p in psutil.Process(server).children(recursive=True)}
        for i in range(visits):
            visit(browser, KINDS[i % len(KINDS)], address, server)
            open_ones = pythons(server)
            most, memory = max(most, len(open_ones)), max(memory, megabytes(open_ones))
            if (i + 1) % 20 == 0:
                print(f"{i + 1} visits: {len(open_ones)} processes of pages", flush=True)
        browser.close()
        left = lambda: {p.pid for p in psutil.Process(server).children(recursive=True)} - before
        until(lambda: not left(), 45)
        return sorted(left()), most, memory


def shown(rounds: int) -> None:
    "Print the memory of a widget in this process after each time that all models and devices were shown"
    from lm_predictor.app.explorer.widget import explore
    page, me = explore(), psutil.Process()
    print(f"one page: {megabytes([me.pid]):.0f} MB", flush=True)
    for i in range(rounds):
        for model in page.controls["model"].options:
            page.controls["model"].value = model
            for seq_len, cache_len in ((1, 2048), (2048, 0)):
                page.controls["seq_len"].value, page.controls["cache_len"].value = seq_len, cache_len
        for _, device in page.controls["hardware"].options:
            page.controls["hardware"].value = device
        print(f"after showing all models and devices {i + 1} times: {megabytes([me.pid]):.0f} MB", flush=True)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--visits", type=int, default=200)
    p.add_argument("--rounds", type=int, default=0, help="before them, show every model and device in one page so often")
    a, start = p.parse_args(), time.perf_counter()
    if a.rounds:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        shown(a.rounds)
    if not (visits := a.visits):
        return 0
    left, most, memory = visited(visits)
    print(f"{visits} visits in {time.perf_counter() - start:.0f} s; at most {most} processes of pages at a time, {memory:.0f} MB in all; "
          f"{len(left)} processes left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
