"""Write the audits that the repository holds: one notebook for each class that some usual models execute.

    python tools/audits.py            write those that are missing or whose template changed, then run them and save the outputs
    python tools/audits.py --check    write nothing; fail where a notebook is missing or is not what the template makes

`python tools/notebooks.py check nbs/audits` runs them and compares what their cells print with what is saved.
"""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import notebooks  # noqa: E402

from lm_predictor.audit import audit_notebook  # noqa: E402
from lm_predictor.database import Database, shipped_directory  # noqa: E402
from lm_predictor.model import called_classes  # noqa: E402
from lm_predictor.proof import subjects  # noqa: E402

TYPES = ("llama", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3", "gemma3_text", "gpt2", "mamba2")
AUDITS = ROOT / "nbs" / "audits"


def classes(db: Database) -> list[str]:
    "The classes that models of these types execute"
    return sorted({name for t in TYPES for s in subjects(db, t) for name in called_classes(s.record)})


def template(notebook: dict) -> list:
    "What the template decides of a notebook: its cells without outputs"
    return [(c["cell_type"], "".join(c["source"])) for c in notebook["cells"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    db, changed = Database(shipped_directory(), shipped_directory()), []
    wanted = {AUDITS / f"{name}.ipynb": audit_notebook(name, db=db) for name in classes(db)}
    for path, notebook in wanted.items():
        if not path.is_file() or template(json.loads(path.read_text(encoding="utf-8"))) != template(notebook):
            changed.append(path)
    left = sorted(set(AUDITS.glob("*.ipynb")) - set(wanted))
    if args.check:
        print("\n".join([*(f"{p.name} is not what the template makes" for p in changed), *(f"{p.name} is of no class of {', '.join(TYPES)}" for p in left)]) or f"{len(wanted)} audits")
        return int(bool(changed or left))
    for path in left:
        path.unlink()
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted[path], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return notebooks.run([str(p) for p in changed], write=True, jobs=args.jobs) if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
