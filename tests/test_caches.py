"What is kept for speed: one reset forgets all of it, and no cache is left out."
import ast
from pathlib import Path

import lm_predictor
from lm_predictor.formula.caches import reset
from lm_predictor.records.source import locate, package_root, source_file

SOURCES = sorted(Path(lm_predictor.__file__).parent.rglob("*.py"))
WIDE = "class Wide:\n    def forward(self, x):\n        return x\n"


def test_a_changed_source_is_seen_after_a_reset(tmp_path, monkeypatch):
    "A class that an editor moved by two lines is located where it is now; a file that running code is looked up in stands until the caches are reset"
    package = tmp_path / "first" / "rooms"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "hall.py").write_text(WIDE)
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    before, file = locate("rooms.hall.Wide"), str(package / "hall.py")
    assert (before.line_start, before.line_end) == (1, 3) and source_file(file).statement(1).code == "class Wide:"
    (package / "hall.py").write_text("import os\n\n" + WIDE)
    after = locate("rooms.hall.Wide")
    assert (after.line_start, after.line_end) == (3, 5) and after.sha256 == before.sha256
    assert source_file(file).statement(1).code == "class Wide:"
    reset()
    assert source_file(file).statement(1).code == "import os"


def test_a_package_that_moved_is_found_after_a_reset(tmp_path, monkeypatch):
    for place in ("old", "new"):
        (tmp_path / place / "attic").mkdir(parents=True)
        (tmp_path / place / "attic" / "__init__.py").write_text("")
    with monkeypatch.context() as first:
        first.syspath_prepend(str(tmp_path / "old"))
        assert package_root("attic") == tmp_path / "old"
    monkeypatch.syspath_prepend(str(tmp_path / "new"))
    assert package_root("attic") == tmp_path / "old"
    reset()
    assert package_root("attic") == tmp_path / "new"


def test_reset_empties_what_other_modules_keep():
    "Parsed files, lines of recorded stacks, arguments of references: all of them registered"
    from lm_predictor.formula import caches
    from lm_predictor.obtain import store
    from lm_predictor.tracing.recording import recorder
    from lm_predictor.verification import expansion

    source_file(__file__)
    for kept in (recorder._lines, expansion._bound, store._seen_proofs):
        kept["something"] = 3
        assert any(kept is cache for cache in caches._caches)
    reset()
    assert source_file.cache_info().currsize == 0
    assert not any((recorder._lines, expansion._bound, store._seen_proofs))


def kept_elsewhere(tree: ast.Module):
    "Lines of a module that use a cache of functools, or keep a private dictionary that no cache registered"
    for node in ast.walk(tree):
        made_here = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "functools"
        if made_here and node.attr in ("cache", "lru_cache"):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "functools":
            yield from (node.lineno for name in node.names if name.name in ("cache", "lru_cache"))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        empty = targets and isinstance(node.value, ast.Dict) and not node.value.keys
        if empty and all(isinstance(t, ast.Name) and t.id.startswith("_") for t in targets):
            yield node.lineno


def test_every_cache_is_registered():
    assert list(kept_elsewhere(ast.parse("from functools import cache\n_kept = {}"))) == [1, 2]
    assert list(kept_elsewhere(ast.parse("import functools\n@functools.lru_cache\ndef f(): ..."))) == [2]
    sources = [path for path in SOURCES if path.parts[-2:] != ("formula", "caches.py")]
    found = {path.name: list(kept_elsewhere(ast.parse(path.read_text(encoding="utf-8")))) for path in sources}
    assert len(sources) > 40 and not any(found.values()), found
