"""Which published configs does the light install answer, how fast, and with how many parameters?

    python benchmarks/served_configs.py DIRECTORY [--built] [--json FILE]

Every `*config.json` of a directory (those of `aiconfigurator-core`: `pip download --no-deps aiconfigurator-core`, unpack the
wheel, `aiconfigurator_core/model_configs`) is analyzed as if neither torch nor transformers were installed. A row says how many
parameters it has and in how many seconds, or why it is refused. Where a preset of the same name gives the published number, with its
source, the two are compared; with --built, so is what transformers builds on the meta device (of a model with parts: its language model).
The exit status is 2 where any number differs.
"""
import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

HEAVY = ("torch", "transformers", "sympy", "numpy")


class Row(NamedTuple):
    name: str  # organization/model
    model_type: str
    parameters: int | None  # None: refused
    seconds: float
    said: str  # the reason of a refusal, or the first note
    wrong: str  # what another count says


def model_name(path: Path) -> str:
    "`Qwen--Qwen3-8B_config.json` is Qwen/Qwen3-8B; a plain config.json has its folder's name"
    stem = path.name.removesuffix("config.json").rstrip("_") or path.parent.name
    return stem.replace("--", "/")


def light_row(path: Path, published: dict) -> Row:
    "What the light road answers to one config"
    from lm_predictor.models.config.validation import ModelError
    from lm_predictor.obtain.analyze import analyze
    kind, start = json.loads(path.read_text(encoding="utf-8")).get("model_type", ""), time.perf_counter()
    name = model_name(path)
    try:
        cost = analyze(str(path), trace=False)
        cost.at(batch_size=1, seq_len=128).totals
    except ModelError as e:
        return Row(name, kind, None, time.perf_counter() - start, str(e), "")
    seconds, known = time.perf_counter() - start, published.get(name.lower())
    wrong = f"published: {known:,}" if known not in (None, cost.parameters) else ""
    return Row(name, kind, cost.parameters, seconds, next(iter(cost.notes), ""), wrong)


def built(path: Path) -> int | None:
    "The parameters that transformers builds of a config's language model; None where it cannot"
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.models.parts import language_part
    from lm_predictor.models.config.validation import ModelError
    from lm_predictor.obtain.confirm import built_parameters
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    config = language_part(json.loads(path.read_text(encoding="utf-8")))[0]
    try:
        return built_parameters(full_config({k: v for k, v in config.items() if k != "quantization_config"}))
    except ModelError:
        return None


def with_built(rows: list[Row], paths: list[Path]) -> list[Row]:
    "The rows, with what transformers builds of those that are answered"
    for name in HEAVY:
        sys.modules.pop(name, None)
    counts = [built(path) if row.parameters else None for row, path in zip(rows, paths)]
    differ = lambda row, n: f"{row.wrong} transformers: {n:,}".strip() if n not in (None, row.parameters) else row.wrong
    return [row._replace(wrong=differ(row, n)) for row, n in zip(rows, counts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--built", action="store_true", help="compare with what transformers builds")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    paths = sorted(p for p in args.directory.rglob("*config.json") if "quant_config" not in p.name)
    if not paths:
        parser.error(f"{args.directory} has no *config.json")
    sys.modules.update(dict.fromkeys(HEAVY))  # as if they were not installed
    from lm_predictor.models.sources.hub import presets
    published = {n.lower(): p["published_parameters"] for n, p in presets().items()}
    rows = [light_row(path, published) for path in paths]
    rows = with_built(rows, paths) if args.built else rows
    for row in rows:
        figure = f"{row.parameters:,}" if row.parameters else "refused"
        print(f"{row.name:52} {row.model_type:16} {figure:>21} {row.seconds:6.2f} s  {row.wrong or row.said[:150]}")
    answered, wrong = [row for row in rows if row.parameters], [row for row in rows if row.wrong]
    compared = sum(row.name.lower() in published for row in answered)
    print(f"\n{len(answered)} of {len(rows)} answered, {len(wrong)} with another number of parameters than "
          f"{'transformers builds or ' * args.built}was published ({compared} have a published number); "
          f"the slowest in {max((row.seconds for row in answered), default=0):.2f} s")
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n", encoding="utf-8")
    return 2 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
