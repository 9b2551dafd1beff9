"The explorer's page in a real browser: opened, dragged and read, for the tests, the benchmark and the screenshots."
import contextlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from lm_predictor.app.cli.main import main; sys.exit(main(sys.argv[1:]))"
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run")


def chromium() -> str:
    "The browser of this machine; empty when it has none"
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
FLAGS = {"batch": "--batch-size", "new tokens": "--seq-len", "cached tokens": "--cache-len"}


class Page:
    "The page of `lm-predictor explore`, as a user handles it"

    def __init__(self, page, address: str, server: int):
        self.page, self.address, self.server = page, address, server
        self.answered, self.errors = [], []  # addresses that something was loaded from, errors of scripts
        page.on("response", lambda response: self.answered.append(response.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address)
        page.wait_for_selector(".lmp-command code")

    def control(self, label: str):
        "The control that stands beside a label"
        return self.page.locator(".widget-inline-hbox").filter(has=self.page.get_by_text(label, exact=True))

    def settled(self, words: str) -> None:
        "Wait until the command holds these words; it is the last thing on the page to change"
        self.page.wait_for_function("words => `${document.querySelector('.lmp-command code').textContent} `.includes(words)", arg=words)

    def command(self) -> str:
        return self.page.text_content(".lmp-command code")

    def says(self) -> str:
        return self.page.text_content(".lmp-says")

    def number(self, name: str) -> tuple[str, str]:
        "A number as it is shown, and exactly: (`14.9 ms`, `0.0149... s`)"
        found = self.page.locator(f".lmp-{name}")
        return found.text_content(), found.get_attribute("title")

    def choose(self, label: str, option: str, words: str) -> None:
        "Choose in a list, or `execution` by its buttons, and wait until the command holds these words"
        if label == "execution":
            self.page.locator(".widget-toggle-button").get_by_text(option, exact=True).click()
        else:
            self.control(label).locator("select").select_option(label=option)
        self.settled(words)

    def drag(self, label: str, part: float) -> list[str]:
        "Drag a slider to a part of its way; gives the times that were shown on the way, before the mouse was let go"
        control, seen = self.control(label), []
        handle, way = control.locator(".noUi-handle").bounding_box(), control.locator(".noUi-base").bounding_box()
        x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        for i in range(1, 9):
            self.page.mouse.move(x + (way["x"] + part * way["width"] - x) * i / 8, y)
            self.page.wait_for_timeout(60)
            seen.append(self.number("time")[1] if self.page.locator(".lmp-time").count() else "")
        self.page.mouse.up()
        self.settled(f"{FLAGS[label]} {self.stop(label)} ")
        return seen

    def stop(self, label: str) -> int:
        "The number of the stop that a slider's handle is at in the browser"
        from lm_predictor.app.explorer.widget import SIZES, steps
        least, most = next((least, most) for _, text, least, most in SIZES if text == label)
        return steps(most, least)[round(float(self.control(label).locator(".noUi-handle").get_attribute("aria-valuenow")))]

    def move(self, label: str, value: int) -> None:
        "Move a slider to a value, by keys"
        handle = self.control(label).locator(".noUi-handle")
        handle.focus()
        steps = handle.evaluate("handle => Math.round(handle.ariaValueMax)") + 1
        key = "ArrowRight" if self.shown(label) < value else "ArrowLeft"
        for _ in range(int(steps)):
            if self.shown(label) == value:
                break
            before = self.shown(label)
            self.page.keyboard.press(key)
            self.page.wait_for_function("([box, before]) => box.value != before", arg=[self.box(label).element_handle(), str(before)])
        self.settled(f"{FLAGS[label]} {value} ")

    def box(self, label: str):
        "The box beside a slider, where its number stands and may be typed"
        return self.page.locator(".lmp-size").filter(has=self.page.get_by_text(label, exact=True)).locator("input")

    def type(self, label: str, text: str) -> None:
        "Type into the box beside a slider"
        self.box(label).fill(text)
        self.box(label).press("Enter")

    def shown(self, label: str) -> int:
        "The number that stands beside a slider"
        return int(self.box(label).input_value())

    def search(self, words: str) -> str:
        "What stands in the page's address from the question mark on, as soon as it holds these words"
        self.page.wait_for_function("words => location.search.includes(words)", arg=words)
        return self.page.evaluate("location.search")

    def shows(self) -> tuple:
        "All that a reader can see of a view, after it is loaded"
        self.page.wait_for_selector(".lmp-command code")
        return self.command(), self.says(), self.page.inner_html(".lmp-cards") if self.page.locator(".lmp-cards").count() else ""

    def step(self, label: str, key: str) -> float:
        "Move a slider by a key; gives the milliseconds until the page shows all of it; 0 at the slider's end"
        control, before = self.control(label), self.command()
        control.locator(".noUi-handle").focus()
        self.page.evaluate("""() => {const shown = document.querySelector('.lmp-command'); window.took = 0;
            document.addEventListener('keydown', () => {const start = performance.now();
                new MutationObserver((_, watch) => {watch.disconnect(); requestAnimationFrame(() => window.took = performance.now() - start)})
                    .observe(shown, {childList: true, subtree: true, characterData: true})}, {once: true, capture: true})}""")
        self.page.keyboard.press(key)
        with contextlib.suppress(Exception):
            self.page.wait_for_function("window.took > 0", timeout=3000)
        return self.page.evaluate("window.took") if self.command() != before else 0.0

    def save(self, what: str) -> tuple[str, bytes]:
        "Press an export button and the link that it gives; the file's name and content"
        self.page.get_by_role("button", name=what, exact=True).click()
        link = self.page.locator(f".lmp-export a[download$='.{ {'Table': 'md'}.get(what, what.lower()) }']")
        link.wait_for()
        with self.page.expect_download() as download:
            link.click()
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def pythons(server: int) -> list[int]:
    "The processes of the pages that a server of a process id has open"
    import psutil
    found = []
    for process in psutil.Process(server).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [process.pid] if "ipykernel_launcher" in process.cmdline() else []
    return found


def until(holds, seconds: float):
    "Ask again and again; gives the first answer that is true, or the last one when the time is over"
    end = time.monotonic() + seconds
    while not (answer := holds()) and time.monotonic() < end:
        time.sleep(0.2)
    return answer


@contextlib.contextmanager
def served(*arguments: str):
    "`lm-predictor explore` running; gives its address and process id"
    server = subprocess.Popen([sys.executable, "-c", RUN, "explore", *arguments, "--no-browser"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        line = server.stdout.readline()
        yield re.fullmatch(r"The explorer is at (http://127\.0\.0\.1:\d+/) until Ctrl-C\.\n", line)[1], server.pid
    finally:
        server.terminate()
        status = server.wait(20)
    assert status == 0, f"explore ended with status {status}"


@contextlib.contextmanager
def opened(*arguments: str, width: int = 1400, height: int = 820):
    "The page of `lm-predictor explore ARGUMENTS` in a browser"
    from playwright.sync_api import sync_playwright
    with served(*arguments) as (address, server), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        try:
            yield Page(browser.new_page(viewport={"width": width, "height": height}), address, server)
        finally:
            browser.close()
