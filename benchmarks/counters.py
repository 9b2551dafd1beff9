"""What the FLOP counters of the field say about one forward, each by its own convention.

    pip install '.[trace]' calflops fvcore ptflops thop accelerate torch==2.13.0
    python benchmarks/counters.py --json benchmarks/counters.json

Each counter runs in a process of its own, on a model without weights (the meta device), batch 1, logits of all positions.
The documentation page nbs/concepts/conventions.ipynb takes the figures of others from the file that this writes.
"""
import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common import preset, say, timed

HERE = Path(__file__).parent
MODELS = {"meta-llama/Llama-2-7b-hf": 2048, "openai-community/gpt2": 1024, "mistralai/Mixtral-8x7B-v0.1": 2048}  # to tokens
COUNTERS = {  # name: script and its last arguments
    "FlopCounterMode": ("count_torch.py",),
    "calflops, eager": ("count_calflops.py", "eager"),
    "calflops, sdpa": ("count_calflops.py", "sdpa"),
    "fvcore": ("count_fvcore.py",),
    "ptflops, aten": ("count_ptflops.py", "aten"),
    "ptflops, pytorch": ("count_ptflops.py", "pytorch"),
    "thop": ("count_thop.py",),
}
PACKAGES = ("torch", "transformers", "calflops", "fvcore", "ptflops", "thop")


def counted(model: str, tokens: int, script: str, *more: str) -> dict:
    "What a counter reports, or the last line that it failed with"
    done = timed([sys.executable, str(HERE / script), str(preset(model)), str(tokens), *more])
    if done.status:
        return {"error": (done.err.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.out.strip().splitlines()[-1])


def installed(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here; else print them")
    args = parser.parse_args()
    result = {"versions": {p: installed(p) for p in PACKAGES}, "models": {}}
    for model, tokens in MODELS.items():
        rows = result["models"][model] = {"tokens": tokens, "counters": {}}
        for name, command in COUNTERS.items():
            rows["counters"][name] = counted(model, tokens, *command)
            say(f"{model}, {name}: {json.dumps(rows['counters'][name])[:160]}")
    text = json.dumps(result, indent=1) + "\n"
    args.json.write_text(text, encoding="utf-8") if args.json else print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
