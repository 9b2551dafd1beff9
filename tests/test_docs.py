"The documentation site: each kind of fault is found on a page that has it; the sidebar names every page once."
import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))

import docs  # noqa: E402

SOUND = """Before [a heading](#the-rule-2mkn), [another page](concepts/two.ipynb#a-name-of-x.y), [its output](/concepts/two.html),
[an address](https://example.org/x), `[no link](nowhere.ipynb)` and ![a picture](shot.png).

## The *rule*: `2MKN`

<a href="concepts/two.ipynb">HTML</a> <img src="data:image/png;base64,AA==">

```
[no link](nowhere.ipynb)
```
"""


def write(stage: Path, path: str, *texts: str, title="One", question="Why?", outputs=()) -> None:
    "A page as nbdev leaves it in the processed stage"
    front = "".join(f"{k}: {v}\n" for k, v in (("title", title), ("description", question), ("output-file", Path(path).stem + ".html")) if v)
    cells = [{"cell_type": "raw", "source": f"---\n{front}\n---\n"}, *({"cell_type": "markdown", "source": [t]} for t in texts)]
    cells += [{"cell_type": "code", "source": "1", "outputs": [{"data": data}]} for data in outputs]
    (stage / path).parent.mkdir(parents=True, exist_ok=True)
    (stage / path).write_text(json.dumps({"cells": cells}))


@pytest.fixture
def stage(tmp_path):
    "A site of two pages without a fault"
    write(tmp_path, "index.ipynb", SOUND)
    write(tmp_path, "concepts/two.ipynb", "## A _name_ of `x.y`", "[back](../index.ipynb), [`a`](/concepts/two.html#a-name-of-x.y)")
    (tmp_path / "shot.png").write_bytes(b"")
    (tmp_path / "_quarto.yml").write_text("project: {}")
    (tmp_path / "sidebar.yml").write_text("website: {sidebar: {contents: [index.ipynb, {section: Concepts, contents: [concepts/two.ipynb]}]}}")
    return tmp_path


def faults(stage):
    return docs.faults(docs.read_site(stage))


def test_no_fault(stage):
    assert faults(stage) == []


@pytest.mark.parametrize("text, said", [
    ("[x](concepts/tow.ipynb)", "index.ipynb, cell 1: link to concepts/tow.ipynb: no such page or file on the site; did you mean concepts/two.ipynb?"),
    ("[x](two.html)", "index.ipynb, cell 1: link to two.html: no such page or file on the site"),
    ("[x](concepts/two.ipynb#a-name-of)", "index.ipynb, cell 1: link to concepts/two.ipynb#a-name-of: concepts/two.ipynb has no such heading; did you mean a-name-of-x.y?"),
    ("[x](#the-rule)", "index.ipynb, cell 1: link to #the-rule: index.ipynb has no such heading"),
    ("[x](concepts)", "index.ipynb, cell 1: link to concepts: a folder, not a page"),
    ("[x](../README.md)", "index.ipynb, cell 1: link to ../README.md: it is outside of the site"),
    ("[x](sidebar.yml)", "index.ipynb, cell 1: link to sidebar.yml: no such page or file on the site"),
    ("[x](file:///tmp/x)", "index.ipynb, cell 1: link to file:///tmp/x: neither a page of the site nor an https address"),
    ("<a href='gone.ipynb'>x</a>", "index.ipynb, cell 1: link to gone.ipynb: no such page or file on the site"),
    ("| a |\n|---|\n| [x](gone.ipynb) |", "index.ipynb, cell 1: link to gone.ipynb: no such page or file on the site"),
    ("![x](shots.png)", "index.ipynb, cell 1: image shots.png: no such file on the site; did you mean shot.png?"),
    ("<img src='gone.svg'>", "index.ipynb, cell 1: image gone.svg: no such file on the site"),
    ("![x](attachment:a.png)", "index.ipynb, cell 1: image attachment:a.png: no such file on the site"),
])
def test_broken(stage, text, said):
    write(stage, "index.ipynb", text)
    [found] = faults(stage)
    assert found.startswith(said)


@pytest.mark.parametrize("text, near", [
    ("By hand 26*16 = 416, and 2*3.", "By hand 26*16 = 416, and 2*3."),
    ("| a |\n|---|\n| 2*B |", "2*B"),
    ("A product of B*S rows", "A product of B*S rows"),
    ("2*(3 + 4) and 2**24", "2*(3 + 4) and 2**24"),
    ("`B`*`S` rows", "`B`*`S` rows"),
    ("2*$S$ rows", "2*$S$ rows"),
])
def test_arithmetic_is_math_or_code(stage, text, near):
    "Markdown makes emphasis of the asterisks in 2*3 and 4*5, and the figure is false: 23 and 45"
    assert docs.eaten(text) == [near]
    write(stage, "index.ipynb", text)
    assert f"index.ipynb, cell 1: asterisks of arithmetic become emphasis in {near!r}; write it as math or code" in faults(stage)


@pytest.mark.parametrize("text", ["`2*3`, $2*3*4$ and $$\n2*3*4\n$$", "**184** of them, *all* of 2, *more than 3*, *4 at least*", "**`x`**, *$y$*", "2 * 3 * 4", "- a\n* b\n\n2\\*3", "```\n2*3*4\n```", "f(*args), **bold**."])
def test_what_is_no_eaten_arithmetic(text):
    assert docs.eaten(text) == []


def test_directives_and_warnings_are_not_shown(stage):
    write(stage, "index.ipynb", SOUND)
    page = json.loads((stage / "index.ipynb").read_text())
    page["cells"] += [{"cell_type": "code", "source": "#| code-fold: true\n\n#| output: asis\nx = 1"}, {"cell_type": "code", "source": "x = 1\n\n#| output: asis\nx"},
                      {"cell_type": "code", "source": "x", "outputs": [{"output_type": "stream", "name": "stderr", "text": ["[transformers] deprecated!"]}]}]
    (stage / "index.ipynb").write_text(json.dumps(page))
    assert faults(stage) == ["index.ipynb, cell 3: `#| output: asis` is shown as code; directives are a cell's first lines",
                             "index.ipynb, cell 4: shows what went to stderr: '[transformers] deprecated!'"]


def test_functions_have_a_docstring(stage):
    write(stage, "index.ipynb", SOUND, outputs=[{"text/markdown": ["### f\n", "\n", "*Call self as a function.*"]}])
    assert faults(stage) == ["index.ipynb, cell 2: a function without a docstring is said to 'Call self as a function.'"]


def test_outputs_are_read(stage):
    "What a cell printed as Markdown or HTML is part of the page: its headings can be linked to, its links must lead somewhere"
    write(stage, "index.ipynb", "[below](#printed)", outputs=[{"text/markdown": ["### Printed\n", "[x](gone.ipynb)"]}, {"text/html": ["<a href='#printed-1'>x</a>"]}])
    assert [f.split(": ")[1] for f in faults(stage)] == ["link to gone.ipynb", "link to #printed-1"]


@pytest.mark.parametrize("change, said", [
    ({"title": ""}, "index.ipynb: no title in its front matter; the first cell is `# title` and `> question`"),
    ({"question": ""}, "index.ipynb: no description in its front matter; the first cell is `# title` and `> question`"),
])
def test_front_matter(stage, change, said):
    write(stage, "index.ipynb", "text", **change)
    assert faults(stage) == [said]


def test_two_pages_of_one_name(stage):
    "nbdev takes the number off a name: 10_hardware.ipynb and hardware.ipynb would be the same file"
    write(stage, "01_Index.ipynb", "text")
    page = json.loads((stage / "01_Index.ipynb").read_text())
    page["cells"][0]["source"] = page["cells"][0]["source"].replace("01_Index.html", "index.html")
    (stage / "01_Index.ipynb").write_text(json.dumps(page))
    assert "index.ipynb: is written to index.html, as 01_Index.ipynb is" in faults(stage)


@pytest.mark.parametrize("contents, said", [
    ("[index.ipynb]", "sidebar: concepts/two.ipynb is not in it; python tools/docs.py sidebar --write"),
    ("[index.ipynb, concepts/two.ipynb, {text: again, href: index.ipynb}]", "sidebar: index.ipynb is named 2 times"),
    ("[index.ipynb, concepts/two.ipynb, concepts/one.ipynb]", "sidebar: concepts/one.ipynb is no page of the site"),
    ("[index.ipynb, concepts/two.ipynb, {section: Empty}]", "sidebar: section 'Empty' of the sidebar is empty"),
])
def test_sidebar_faults(stage, contents, said):
    (stage / "sidebar.yml").write_text(f"website: {{sidebar: {{contents: {contents}}}}}")
    assert [f.partition("; did you")[0] for f in faults(stage)] == [said]


def test_cross_links_are_there(stage):
    "Without the package's entry point nbdev links no name to its page, and says nothing"
    write(stage, "concepts/two.ipynb", "## A _name_ of `x.y`")
    assert faults(stage) == ["no name in backticks is linked to its page: is the package installed, with its entry point nbdev?"]


@pytest.mark.parametrize("link, goal", [
    ("[`word`](/concepts/one.html#gone)", None), ("[`Word`](/concepts/one.html#gone)", "/concepts/one.html#gone"), ("[`word()`](/concepts/one.html#gone)", "/concepts/one.html#gone"),
    ("[`A.b`](/concepts/one.html#a.b)", "/concepts/one.html#a"), ("[`word`](/concepts/two.html#gone)", "/concepts/two.html#gone"), ("[a word](/concepts/one.html#a.b)", "/concepts/one.html#a.b")])
def test_automatic_links(stage, link, goal):
    "nbs/links.lua keeps what nbdev linked where it can mean nothing else and on the page of its own module; a method's link leads to its class"
    write(stage, "concepts/02_two.ipynb", link)
    assert [target for _, target in docs.read_page(stage, "concepts/02_two.ipynb").links] == [goal] * bool(goal)


def test_what_nbdev_drops(tmp_path):
    "Of the first cell only title, question and front matter reach the site"
    cell = lambda text: {"cells": [{"cell_type": "markdown", "source": [text]}]}
    (tmp_path / "kept.ipynb").write_text(json.dumps(cell("# Title\n\n> Question?\n\n- toc: false")))
    (tmp_path / "lost.ipynb").write_text(json.dumps(cell("# Title\n\n> Question?\n\nThe one equation.")))
    assert docs.dropped(tmp_path) == ["lost.ipynb: nbdev drops what follows title and question in the first cell ('The one equation.'...); give it a cell of its own"]


@pytest.mark.parametrize("heading, name", [("What a FLOP is here", "what-a-flop-is-here"), ("1. The line", "the-line"), ("ModelCost.at", "modelcost.at"),
                                           ("_private", "private"), ("2MKN", "mkn"), ("*", "section"), ("Prefill & decode", "prefill-decode")])
def test_heading_ids(heading, name):
    assert docs.heading_id(heading) == name


def test_every_notebook_is_in_the_committed_sidebar():
    committed = (ROOT / "nbs" / "sidebar.yml").read_text(encoding="utf-8")
    assert committed == docs.sidebar_text(ROOT / "nbs")
    for path in (ROOT / "nbs").rglob("*.ipynb"):
        name = path.relative_to(ROOT / "nbs").as_posix()
        if "/." not in f"/{name}":
            assert committed.count(f" {name}\n") == 1, name
    assert committed.index(" index.ipynb") < committed.index("getting_started") < committed.index("concepts/") < committed.index("formula/00_tree") < committed.index("audits/index")


def test_reports_are_those_that_are_linked():
    "Each page with sliders is linked once from their index, under the id of its model"
    text = "".join("".join(c["source"]) for c in json.loads((ROOT / "nbs" / "reports" / "index.ipynb").read_text(encoding="utf-8"))["cells"])
    assert re.findall(r"\[([^]]+)\]\(([^)]+)\.html\)", text) == [(model, name) for name, model in docs.REPORTS.items()]
