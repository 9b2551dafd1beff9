"""The documentation site: its sidebar, and all that can be checked of it without quarto.

    python tools/docs.py sidebar [--write]   nbs/sidebar.yml names every page once, in order: compare, or write it
    python tools/docs.py reports             nbs/reports/*.html, the pages with sliders that reports/index.ipynb links to; git ignores them
    python tools/docs.py check [--built]     write these, build nbdev's processed stage in _proc, then check every page of it: front matter,
                                             arithmetic in prose, directives, links, anchors, images, sidebar
                                             (--built: check _proc as it is)

`nbdev_docs` (it needs quarto) renders the same stage to HTML in _docs; `python tools/docs.py reports` comes before it.
"""
import argparse
import contextlib
import difflib
import io
import json
import os
import posixpath
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
NBS, STAGE = ROOT / "nbs", ROOT / "_proc"
PAGES = (".ipynb", ".qmd", ".md")
REPORTS = {  # page of nbs/reports -> its model
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B", "llama-2-7b": "meta-llama/Llama-2-7b-hf", "mistral-7b": "mistralai/Mistral-7B-v0.1", "qwen3-8b": "Qwen/Qwen3-8B",
    "gemma-3-27b": "google/gemma-3-27b-it", "gpt2": "openai-community/gpt2", "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B", "deepseek-v3": "deepseek-ai/DeepSeek-V3", "mamba2-2.7b": "AntonV/mamba2-2.7b-hf"}
LARGEST_REPORT = 1_000_000  # bytes
SETTINGS = {"_quarto.yml", "nbdev.yml", "sidebar.yml"}  # read by quarto, not published

# -- the sidebar -----------------------------------------------------------------------------------------------------------------

START = ("index", "getting_started")
ORDER = {  # pages of a folder in the order in which they are read; those that are not named here follow by name
    "concepts": ("one_cost", "flops", "bytes", "roofline", "conventions", "how_a_number_is_made",
                 "how_a_model_is_traced"),
    "tutorials": ("analyze", "decode", "flash", "attention_kinds", "mixture_of_experts", "choosing_a_gpu", "cost_as_a_test", "own_module", "agent"),
}
REFERENCE = ("devices", "how_far", "on_gpu", "in_vllm", "coverage", "limits", "benchmarks")
MODULES = {  # packages in the order in which they import one another, with their titles
    "formula": "Formulas", "records": "Records", "models": "Models", "cost": "Cost", "timing": "Time", "tracing": "Tracing",
    "verification": "Verification", "obtain": "Obtaining a record", "measurement": "Measurement", "agent": "The agent", "library": "Formulas as a library",
    "app": "The application"}

TITLES = {"cli": "Command line", "own": "Your own modules", "fused": "Fused kernels", "fresh": "New records", "config": "Configs", "views": "How a run is shown"}

NAMES = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3-MoE", "mixtral": "Mixtral", "deepseek_v3": "DeepSeek-V3", "gemma3": "Gemma 3", "gpt2": "GPT-2",
         "mamba2": "Mamba-2"}  # packages of transformers as people call them, in the order in which their audits are listed


def sidebar(nbs: Path) -> dict:
    "What sidebar.yml holds: every notebook below `nbs` once; folders and modules without notebooks are left out"
    top = sorted(p.name for p in nbs.glob("*.ipynb"))
    known = [f"{n}.ipynb" for n in (*START, *REFERENCE)]
    contents = [f"{n}.ipynb" for n in START if f"{n}.ipynb" in top]
    contents += ["reports/index.ipynb"] * (nbs / "reports/index.ipynb").is_file()
    contents += [_section(f.capitalize(), _folder(nbs, f, ORDER[f])) for f in ORDER]
    contents += [_section("Reference", [f"{n}.ipynb" for n in REFERENCE if f"{n}.ipynb" in top] + [n for n in top if n not in known])]
    contents += [_section("Modules", [_package(nbs, folder, title) for folder, title in MODULES.items()])]
    contents += [_audits(nbs)]
    return {"website": {"sidebar": {"collapse-level": 1, "contents": _filled(contents)}}}


def _section(title: str, contents: list, **more) -> dict:
    return {"section": title, **more, "contents": contents}


def _filled(contents: list) -> list:
    "Without the sections that have no page"
    kept = [{**c, "contents": _filled(c["contents"])} if isinstance(c, dict) else c for c in contents]
    return [c for c in kept if not isinstance(c, dict) or c["contents"]]


def _folder(nbs: Path, folder: str, order: tuple) -> list:
    names = sorted(p.stem for p in (nbs / folder).glob("*.ipynb"))
    return [f"{folder}/{n}.ipynb" for n in (*(n for n in order if n in names), *(n for n in names if n not in order))]


def _package(nbs: Path, folder: str, title: str) -> dict:
    "The notebooks of a package in the order of their numbers, those of its sub-packages in sections of their own"
    below = sorted(p.relative_to(nbs).as_posix() for p in (nbs / folder).iterdir() if p.is_dir() and p.name[0] not in "._") if (nbs / folder).is_dir() else []
    return _section(title, _folder(nbs, folder, ()) + [_package(nbs, name, name.rpartition("/")[2].capitalize()) for name in below])


def _audits(nbs: Path) -> dict:
    "The index, and below it one section per model: the package of transformers that a class is from"
    groups = {}
    for name in sorted(p.name for p in (nbs / "audits").glob("*.ipynb") if p.name != "index.ipynb"):
        found = re.match(r"transformers\.models\.(\w+)\.", name)
        groups.setdefault(found[1] if found else "", []).append(f"audits/{name}")
    index = {"href": "audits/index.ipynb"} if (nbs / "audits/index.ipynb").is_file() else {}
    title = lambda package: NAMES.get(package, package) or "Shared by models"
    place = lambda package: (list(NAMES).index(package) if package in NAMES else len(NAMES) + (not package), package)
    return _section("Audits", [_section(title(package), groups[package]) for package in sorted(groups, key=place)], **index)


def sidebar_text(nbs: Path) -> str:
    return "# Made by `python tools/docs.py sidebar --write`.\n" + yaml.safe_dump(sidebar(nbs), sort_keys=False, allow_unicode=True)


# -- a page of the processed stage ---------------------------------------------------------------------------------------------


@dataclass
class Page:
    "What links, and is linked to, on one page"
    path: str  # in the stage: audits/index.ipynb
    front: dict = field(default_factory=dict)
    ids: set = field(default_factory=set)  # what a link may name after #
    links: list = field(default_factory=list)  # (cell number, target)
    wrong: list = field(default_factory=list)  # (cell number, what is shown that is not meant to be)
    images: list = field(default_factory=list)  # (cell number, target)

    @property
    def output(self) -> str:
        "The file that quarto writes"
        name = self.front.get("output-file") or f"{posixpath.splitext(posixpath.basename(self.path))[0]}.html"
        return posixpath.join(posixpath.dirname(self.path), str(name))


def read_page(stage: Path, path: str) -> Page:
    "A processed notebook or Markdown file"
    page, text = Page(path), (stage / path).read_text(encoding="utf-8")
    if not path.endswith(".ipynb"):
        front, body = re.match(r"(?s)(?:---\n(.*?)\n---\n)?(.*)", text).groups()
        page.front = _yaml(front)
        _read_markdown(page, 0, body, set())
        return page
    cells = json.loads(text)["cells"]
    if cells and cells[0]["cell_type"] == "raw":
        page.front = _yaml("".join(cells[0]["source"]).strip().removeprefix("---").removesuffix("---"))
    for number, cell in enumerate(cells):
        attached = set(cell.get("attachments", ()))
        if cell["cell_type"] == "markdown":
            _read_markdown(page, number, "".join(cell["source"]), attached)
        if cell["cell_type"] == "code" and (line := leaked("".join(cell["source"]))):
            page.wrong.append((number, f"`{line}` is shown as code; directives are a cell's first lines"))
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                page.wrong.append((number, f"shows what went to stderr: {''.join(output['text'])[:60]!r}"))
            data = output.get("data", {})
            if "*Call self as a function.*" in "".join(data.get("text/markdown", ())):
                page.wrong.append((number, "a function without a docstring is said to 'Call self as a function.'"))
            if "text/markdown" in data:
                _read_markdown(page, number, "".join(data["text/markdown"]), attached)
            elif "text/html" in data:
                _read_html(page, number, "".join(data["text/html"]))
    return page


def _yaml(text: str | None) -> dict:
    try:
        found = yaml.safe_load(text or "")
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def leaked(source: str) -> str:
    "The first directive of a code cell that stands below code, where nobody reads it as one; empty where there is none"
    lines = [line for line in source.splitlines() if line.strip()]
    code = next((i for i, line in enumerate(lines) if not line.startswith("#|")), len(lines))
    return next((line for line in lines[code:] if line.startswith("#|")), "")


_MARKDOWN = MarkdownIt("commonmark").enable("table")
_MARKDOWN.validateLink = lambda url: True  # what must not be linked to is said below


_LITERAL = MarkdownIt("commonmark").enable("table").disable(["emphasis", "escape", "entity"])
_MATH = re.compile(r"(?s)\$\$.+?\$\$|(?<![\\$])\$(?!\s)[^$]+?(?<!\s)\$(?!\d)")
_STAR = re.compile(r"(?<=[\w)\]`$])\*{1,2}(?=[\w(\[`$])")


def eaten(text: str) -> list[str]:
    "Arithmetic of a Markdown text that is neither code nor math: asterisks between two figures or words become emphasis"
    kept = {"text": lambda c: c.content, "code_inline": lambda c: f"`{c.content.replace('*', '.')}`", "softbreak": lambda c: " ", "hardbreak": lambda c: " "}
    found = []
    for token in (t for t in _LITERAL.parse(text) if t.type == "inline"):
        prose = "".join(kept[c.type](c) for c in token.children if c.type in kept)
        prose = _MATH.sub(lambda m: m[0].replace("*", "."), prose)
        star = _STAR.search(prose)
        found += [prose[max(0, star.start() - 24):star.end() + 24].strip()] if star else []
    return found


def _read_markdown(page: Page, cell: int, text: str, attached: set) -> None:
    "Note headings, links, images and eaten arithmetic of a Markdown text"
    page.wrong += [(cell, f"asterisks of arithmetic become emphasis in {near!r}; write it as math or code") for near in eaten(text)]
    tokens = _MARKDOWN.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "html_block":
            _read_html(page, cell, token.content)
        if token.type == "heading_open":
            _add_heading(page, tokens[at + 1])
        children = token.children or []
        for child, after in zip(children, [*children[1:], None]):
            if child.type == "link_open":
                target = linked(page.path, child.attrGet("href") or "", after)
                page.links += [(cell, target)] * bool(target)
            elif child.type == "image" and not (child.attrGet("src") or "").startswith(("attachment:", "data:")):
                page.images.append((cell, child.attrGet("src") or ""))
            elif child.type == "image" and child.attrGet("src").startswith("attachment:") and child.attrGet("src")[11:] not in attached:
                page.images.append((cell, child.attrGet("src")))
            elif child.type == "html_inline":
                _read_html(page, cell, child.content)


def linked(path: str, target: str, word) -> str:
    "Where nbs/links.lua lets a link lead that nbdev made of a word in backticks: nowhere, where the word can mean something else"
    module = re.match(r"/(?:[\w.-]+/)*(\w+)\.html#", target)
    if module is None or word.type != "code_inline":
        return target
    here = re.sub(r"^\d+[a-z]*_", "", posixpath.splitext(posixpath.basename(path))[0])
    if module[1] != here and not re.search(r"[A-Z.(]", word.content):
        return ""
    return re.sub(r"(#\w+)\.\w+$", r"\1", target)


def _add_heading(page: Page, inline) -> None:
    "The identifier that pandoc gives a heading; a second one of the same words ends in -1"
    text = "".join(" " if c.type == "softbreak" else c.content for c in inline.children if c.type in ("text", "code_inline", "softbreak"))
    own = re.search(r"\s*\{[^}]*#([^\s}]+)[^}]*\}\s*$", text)
    name = own[1] if own else heading_id(re.sub(r"\s*\{[^}]*\}\s*$", "", text))
    page.ids.add(next(n for n in (name, *(f"{name}-{i}" for i in range(1, 1000))) if n not in page.ids))


def heading_id(text: str) -> str:
    "pandoc's auto_identifiers: letters, digits, _ - . in lower case, blanks as hyphens, from the first letter on"
    kept = re.sub(r"\s+", "-", re.sub(r"[^\w\s.\-]", "", text.lower()).strip())
    return re.sub(r"^[\W\d_]+", "", kept) or "section"


class _Html(HTMLParser):
    def __init__(self, page: Page, cell: int):
        super().__init__()
        self.page, self.cell = page, cell

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if given.get("id"):
            self.page.ids.add(given["id"])
        if tag == "a" and given.get("href"):
            self.page.links.append((self.cell, given["href"]))
        if tag in ("img", "video", "source", "iframe") and not (given.get("src") or "data:").startswith("data:"):
            self.page.images.append((self.cell, given["src"]))

    handle_startendtag = handle_starttag


def _read_html(page: Page, cell: int, text: str) -> None:
    _Html(page, cell).feed(text)


# -- the checks ------------------------------------------------------------------------------------------------------------------


@dataclass
class Site:
    "The processed stage: its pages by path, and the other files that are published with them"
    pages: dict
    files: set
    menu: dict  # sidebar.yml

    @property
    def outputs(self) -> dict:
        return {p.output: p for p in self.pages.values()}


def read_site(stage: Path) -> Site:
    names = sorted(p.relative_to(stage).as_posix() for p in stage.rglob("*") if p.is_file())
    names = [n for n in names if not any(part[0] in "._" for part in n.split("/"))]
    pages = {n: read_page(stage, n) for n in names if n.endswith(PAGES)}
    menu = stage / "sidebar.yml"
    return Site(pages, {n for n in names if n not in pages and n not in SETTINGS}, _yaml(menu.read_text(encoding="utf-8")) if menu.is_file() else {})


def faults(site: Site) -> list[str]:
    "Everything that a reader of the site would stumble over, one sentence each"
    wrong = [f"{page.path}, cell {cell}: {what}" for page in site.pages.values() for cell, what in page.wrong]
    return [*_front_faults(site), *wrong, *_link_faults(site), *_menu_faults(site)]


def _front_faults(site: Site) -> list[str]:
    found, written = [], {}
    for page in site.pages.values():
        for key in ("title", "description"):
            if not isinstance(page.front.get(key), str) or not page.front[key].strip():
                found.append(f"{page.path}: no {key} in its front matter; the first cell is `# title` and `> question`")
        other = written.setdefault(page.output.lower(), page)
        if other is not page:
            found.append(f"{page.path}: is written to {page.output}, as {other.path} is")
    return found


def _link_faults(site: Site) -> list[str]:
    outputs, found, symbols = site.outputs, [], 0
    for page in site.pages.values():
        for cell, target in page.links:
            symbols += bool(re.match(r"/[\w/.-]+\.html#", target))
            wrong = _wrong_link(site, outputs, page, target)
            found += [f"{page.path}, cell {cell}: link to {target}: {wrong}"] * bool(wrong)
        for cell, target in page.images:
            path = _place(page, urlsplit(target).path)
            if not urlsplit(target).scheme.startswith("http") and path not in site.files:
                found.append(f"{page.path}, cell {cell}: image {target}: no such file on the site{_near(path, site.files)}")
    if not symbols:
        found.append("no name in backticks is linked to its page: is the package installed, with its entry point nbdev?")
    return found


def _wrong_link(site: Site, outputs: dict, page: Page, target: str) -> str:
    "Why a link leads nowhere; empty when it leads somewhere, or away from the site"
    url = urlsplit(target)
    if url.scheme in ("http", "https", "mailto"):
        return ""
    if url.scheme or url.netloc:
        return "neither a page of the site nor an https address"
    path = _place(page, url.path) if url.path else page.path
    if path.startswith(".."):
        return "it is outside of the site"
    goal = site.pages.get(path) or outputs.get(path)
    if goal is None and path in site.files:
        return ""
    if goal is None:
        folder = any(n.startswith(f"{path.rstrip('/')}/") for n in site.pages)
        return "a folder, not a page" if folder else f"no such page or file on the site{_near(path, [*site.pages, *site.files])}"
    if url.fragment and unquote(url.fragment) not in goal.ids:
        return f"{goal.path} has no such heading{_near(url.fragment, goal.ids)}"
    return ""


def _place(page: Page, path: str) -> str:
    "A target as a path in the stage"
    path = unquote(path)
    return posixpath.normpath(path[1:] if path.startswith("/") else posixpath.join(posixpath.dirname(page.path), path))


def _near(name: str, known) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _menu_faults(site: Site) -> list[str]:
    named, found = [], []

    def walk(contents: list, where: str) -> None:
        for entry in contents:
            if isinstance(entry, str):
                named.append(entry)
                continue
            named.extend(entry[key] for key in ("href", "file") if key in entry)
            if "section" in entry:
                if not entry.get("contents"):
                    found.append(f"sidebar: section {entry['section']!r} of {where} is empty")
                walk(entry.get("contents") or [], entry["section"])

    walk(site.menu.get("website", {}).get("sidebar", {}).get("contents") or [], "the sidebar")
    for name in dict.fromkeys(named):
        if name not in site.pages:
            found.append(f"sidebar: {name} is no page of the site{_near(name, site.pages)}")
        if named.count(name) > 1:
            found.append(f"sidebar: {name} is named {named.count(name)} times")
    missing = [p for p in site.pages if p not in named]
    return found + [f"sidebar: {p} is not in it; python tools/docs.py sidebar --write" for p in missing]


def dropped(nbs: Path) -> list[str]:
    "What nbdev would drop: it makes front matter of the first cell, title, question and `- key: value` lines, and forgets the rest of it"
    found = []
    for path in sorted(nbs.rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        opening = next(("".join(c["source"]) for c in cells if c["cell_type"] == "markdown"), "")
        kept = (r"^#\s+\S.*$", r"^>\s+\S.*$")
        for pattern in kept:
            opening = re.sub(pattern, "", opening, count=1, flags=re.M)
        rest = re.sub(r"^-\s+\S.*:.*\S\s*$", "", opening, flags=re.M).strip()
        if rest:
            found.append(f"{path.relative_to(nbs).as_posix()}: nbdev drops what follows title and question in the first cell ({rest[:40]!r}...); give it a cell of its own")
    return found


def write_reports(directory: Path) -> list[str]:
    "Write the pages with sliders; gives what is wrong with them, one sentence each"
    sys.path[:0] = [str(ROOT)]
    from lm_predictor.library.report import report
    sizes = {name: report(model, directory / f"{name}.html") for name, model in REPORTS.items()}
    return [f"reports/{name}.html has {size:,} bytes, more than {LARGEST_REPORT:,}" for name, size in sizes.items() if size > LARGEST_REPORT]


# -- the commands ----------------------------------------------------------------------------------------------------------------


def build() -> None:
    "nbdev's processed stage of all of nbs/, in _proc: what `nbdev_docs` hands to quarto. In this process, where torch is imported once"
    from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml
    from nbdev.serve import proc_nbs
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(HF_HUB_OFFLINE="1", LM_PREDICTOR_DB=scratch)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        os.chdir(ROOT)
        refresh_quarto_yml()
        nbdev_sidebar.__wrapped__()
        with contextlib.redirect_stdout(io.StringIO()):
            proc_nbs(n_workers=0, force=True)


def check(built: bool) -> int:
    start, large = time.time(), []
    if not built:
        large = write_reports(NBS / "reports")
        build()
    site = read_site(STAGE)
    found = [*large, *dropped(NBS), *faults(site)]
    count = lambda name: sum(len(getattr(p, name)) for p in site.pages.values())
    print("\n".join(found), file=sys.stderr, end="\n" * bool(found))
    print(f"{len(site.pages)} pages, {count('ids')} headings, {count('links')} links, {count('images')} images: {len(found) or 'no'} fault{'s' * (len(found) != 1)}, {time.time() - start:.0f} s")
    return int(bool(found))


def write_sidebar(write: bool) -> int:
    path, new = NBS / "sidebar.yml", sidebar_text(NBS)
    if write:
        path.write_text(new, encoding="utf-8")
    same = path.is_file() and path.read_text(encoding="utf-8") == new
    print("nbs/sidebar.yml " + ("names every page" if same else "is not what the notebooks make; python tools/docs.py sidebar --write"))
    return int(not same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["sidebar", "reports", "check"])
    parser.add_argument("--write", action="store_true", help="sidebar: write it")
    parser.add_argument("--built", action="store_true", help="check: take _proc as it is")
    args = parser.parse_args()
    if args.command == "reports":
        wrong = write_reports(NBS / "reports")
        print("\n".join(wrong) or f"{len(REPORTS)} pages in nbs/reports")
        return int(bool(wrong))
    return write_sidebar(args.write) if args.command == "sidebar" else check(args.built)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # nbdev made a shell for every page; at a normal exit each collects garbage, 40 s in all
