"""The shape of the notebooks: what is too long, which name is taken twice, and which public function is not shown.

    python tools/style.py [PATHS...]   notebooks or directories, by default all of nbs/ that exports; 1 when something is found

A line has at most 120 characters, a function 40 lines, a module 400 lines of code. An exported cell has at most 30 lines
(about 20 is right) unless it is one class. A module defines a function or class of a name once. A public function or class
is used in a cell before the next exported cell but one.
"""
import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINE, FUNCTION, CELL, MODULE = 120, 40, 30, 400


def source(cell: dict) -> str:
    return "".join(cell["source"])


def is_export(cell: dict) -> bool:
    return cell["cell_type"] == "code" and bool(re.search(r"^#\|\s*export[si]?\b", source(cell), re.M))


def code_lines(text: str) -> int:
    "Lines that are neither blank nor a comment"
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def functions(tree: ast.AST):
    return (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def long_parts(cell: dict, tree: ast.Module) -> list[str]:
    "What is too long in one cell"
    found = [f"line of {len(line)} characters: {line.strip()[:50]}..." for line in source(cell).splitlines() if len(line) > LINE]
    if not is_export(cell):
        return found
    found += [f"{f.name} has {f.end_lineno - f.lineno + 1} lines" for f in functions(tree) if f.end_lineno - f.lineno >= FUNCTION]
    one_class = any(isinstance(n, ast.ClassDef) for n in tree.body)
    if code_lines(source(cell)) > CELL and not one_class:
        found.append(f"exported cell of {code_lines(source(cell))} lines")
    return found


def public_names(tree: ast.Module) -> list[str]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]


def not_shown(cells: list[dict]) -> list[tuple]:
    "(cell number, name) of public functions that no cell between their own and the next but one exported cell uses"
    exports, found = [i for i, c in enumerate(cells) if is_export(c)], []
    for place, i in enumerate(exports):
        end = exports[place + 2] if place + 2 < len(exports) else len(cells)
        shown = "\n".join(source(c) for c in cells[i + 1:end] if c["cell_type"] == "code" and not is_export(c))
        names = public_names(ast.parse(source(cells[i])))
        found += [(i, name) for name in names if not re.search(rf"\b{name}\b", shown)]
    return found


def taken_twice(cells: list[dict]) -> list[tuple]:
    "(cell number, name) of functions and classes whose name an exported cell before has already: theirs is lost"
    seen, found = set(), []
    for i, cell in enumerate(cells):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names = [n.name for n in ast.parse(source(cell)).body if isinstance(n, kinds)] if is_export(cell) else []
        found += [(i, name) for name in names if name in seen or names.count(name) > 1]
        seen.update(names)
    return found


def faults(path: Path) -> list[str]:
    "What one notebook has too long or does not show"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found, total = [], 0
    for i, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        try:
            tree = ast.parse(source(cell))
        except SyntaxError:  # a magic
            continue
        found += [f"cell {i}: {what}" for what in long_parts(cell, tree)]
        total += code_lines(source(cell)) if is_export(cell) else 0
    found += [f"cell {i}: {name} is defined twice" for i, name in taken_twice(cells)]
    found += [f"cell {i}: {name} is not shown" for i, name in not_shown(cells)]
    return found + ([f"its module has {total} lines of code"] if total > MODULE else [])


def main() -> int:
    roots = [Path(p).resolve() for p in sys.argv[1:]] or [ROOT / "nbs"]
    files = [f for r in roots for f in ([r] if r.is_file() else sorted(r.rglob("*.ipynb")))]
    rows = 0
    for path in files:
        if "audits" in path.parts or any(part[0] in "._" for part in path.relative_to(ROOT).parts):
            continue
        for fault in faults(path):
            rows += 1
            print(f"{path.relative_to(ROOT)}: {fault}")
    print(f"{rows} faults in {len(files)} notebooks")
    return int(rows > 0)


if __name__ == "__main__":
    sys.exit(main())
