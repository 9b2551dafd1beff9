"""Write the audits that the repository holds: one notebook for each class that some usual models execute, and an index of them.

    python tools/audits.py            write those that are missing or whose template changed, then run them and save the outputs
    python tools/audits.py --check    write nothing; fail where a notebook is missing or is not what the template makes
    python tools/audits.py --all      write nothing; fail where a verified class, of any model, cannot be audited (two minutes)

`python tools/notebooks.py check nbs/audits` runs them and compares what their cells print with what is saved.
"""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import notebooks  # noqa: E402

from lm_predictor.app.audit.markdown import table  # noqa: E402
from lm_predictor.app.audit.notebook import audit_notebook  # noqa: E402
from lm_predictor.app.audit.sections import calls, operators, parameters, source  # noqa: E402
from lm_predictor.app.audit.subject import audit, usual  # noqa: E402
from lm_predictor.records.storage.database import Database, shipped_directory  # noqa: E402
from lm_predictor.cost.workload import Workload
from lm_predictor.obtain.analyze import analyze
from lm_predictor.verification.prove import subjects  # noqa: E402

MODELS = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3-MoE", "mixtral": "Mixtral", "deepseek_v3": "DeepSeek-V3", "gemma3_text": "Gemma 3", "gpt2": "GPT-2",
          "mamba2": "Mamba-2"}  # model type to the name that people know
AUDITS = ROOT / "nbs" / "audits"


def classes(db: Database) -> list[str]:
    "The classes that models of these types execute"
    return sorted({name for t in MODELS for s in subjects(db, t) for name in s.record.called_classes})


def conversation(name: str) -> str:
    "The recorded conversation about a class, as its audit sees it; empty where there is none"
    return f"../../journals/{name}.jsonl" if (ROOT / "journals" / f"{name}.jsonl").exists() else ""


def template(notebook: dict) -> list:
    "What the template decides of a notebook: its cells without outputs"
    return [(c["cell_type"], "".join(c["source"])) for c in notebook["cells"]]


def link(name: str) -> str:
    "A class as a link to its audit, from the index beside it"
    return f"[{name.rpartition('.')[2]}]({name}.ipynb)"


def model_section(model_type: str, db: Database) -> str:
    "The classes of one model in the order in which they are called, and what the model spends in each class's own lines"
    _, (preset, _) = usual(subjects(db, model_type))
    cost = analyze(preset, db)
    tokens = min(2048, cost.values["max_position_embeddings"] if "max_position_embeddings" in cost.record.parameters.names else 2048)
    case, values, _ = cost.case_at(Workload(1, tokens))
    graph, run = cost.record.graph(case), cost.at(batch_size=1, seq_len=tokens, execution="eager")
    rows = []
    for name in dict.fromkeys((*cost.record.called_classes, *(n for s in subjects(db, model_type) for n in s.record.called_classes))):
        calls = sum(graph.repeat(i).evaluate(values) for i, c in enumerate(graph.calls) if c.class_name == name)
        own = [k for k in run.kernels if k.class_name == name]
        flops, moved = sum(k.flops * k.count for k in own), sum((k.read_bytes + k.write_bytes) * k.count for k in own)
        rows.append((link(name), calls or "in another setting", f"{flops:,}" if calls else "", f"{flops / run.totals.flops:.2%}" if calls else "", f"{moved / 1e6:,.1f}" if calls else ""))
    rows.append(("all", "", f"{run.totals.flops:,}", "", f"{(run.totals.read_bytes + run.totals.write_bytes) / 1e6:,.1f}"))
    head = f"## {MODELS[model_type]}\n\n`{preset}`, one sequence of {tokens:,} tokens, 16-bit, every operator a kernel of its own."
    return f"{head}\n\n" + table(("class", "calls:", "FLOPs of its own lines:", "share:", "MB moved by them:"), rows)


def class_section(names: list[str], db: Database) -> str:
    "All classes by name: where the source is, how many kinds of models execute it, whether it is verified"
    rows = []
    for name in sorted(names, key=lambda n: (n.rpartition(".")[2].lower(), n)):
        analysis = db.get(name)
        source = analysis.source
        rows.append((link(name), f"{source['file'].rpartition('/')[2]}, lines {source['line_start']}-{source['line_end']}", sum(len(v.models) for v in analysis.variants), analysis.verification.get("status", "unverified")))
    return "## By class\n\nAll of them by name; how many kinds of models in the database execute a class, and what its record says about its checks.\n\n" + table(("class", "source", "kinds of models:", "status"), rows)


def index_notebook(db: Database) -> dict:
    "The index of the audits, by model and by class, as a notebook"
    names = classes(db)
    opening = (f"{len(names)} classes: those that {', '.join(MODELS.values())} execute. An audit shows each line of a class's source with its cost, the branches with what decided them, "
               "where each parameter comes from, every operator, what moves, what is called, and the checks, run again by its own cells. "
               "One of any other class: `lm-predictor audit CLASS`.\n\nThis page is made by `python tools/audits.py` from the records.")
    texts = ["# Audits\n\n> Which classes can be read line by line, and which models execute them?", opening, *(model_section(t, db) for t in MODELS), class_section(names, db)]
    cells = [{"cell_type": "markdown", "id": f"index-{i}", "metadata": {}, "source": text.splitlines(keepends=True)} for i, text in enumerate(texts)]
    return {"cells": cells, "metadata": {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}


def unreadable(db: Database) -> list[str]:
    "Each verified class that cannot be audited, with the reason"
    found = []
    for name in (n for n in db.names() if db.get(n).verification.get("status") == "verified"):
        try:
            page = audit(name, db=db)
            for section in (source, parameters, operators, calls):
                section(page)
        except (ValueError, LookupError, TypeError) as e:
            found.append(f"{name}: {type(e).__name__}: {e}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    db, changed = Database(shipped_directory(), shipped_directory()), []
    if args.all:
        found = unreadable(db)
        print("\n".join(found) or f"{len(db.names())} classes: each one that is verified can be audited")
        return int(bool(found))
    wanted = {AUDITS / f"{name}.ipynb": audit_notebook(name, db=db, journal=conversation(name)) for name in classes(db)} | {AUDITS / "index.ipynb": index_notebook(db)}
    for path, notebook in wanted.items():
        if not path.is_file() or template(json.loads(path.read_text(encoding="utf-8"))) != template(notebook):
            changed.append(path)
    left = sorted(set(AUDITS.glob("*.ipynb")) - set(wanted))
    if args.check:
        print("\n".join([*(f"{p.name} is not what the template makes" for p in changed), *(f"{p.name} is of no class of {', '.join(MODELS)}" for p in left)]) or f"{len(wanted) - 1} audits and their index")
        return int(bool(changed or left))
    for path in left:
        path.unlink()
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted[path], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return notebooks.run(notebooks.find([str(p) for p in changed]), write=True, jobs=args.jobs) if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
