"""How long does a first answer take, next to the two FLOP counters people use?

    python benchmarks/cold_analyze.py --repeat 5

Each figure is the wall time of a whole, freshly started process. The contestants take turns, so that a busy
machine slows all of them; the first round only warms the disk cache and is not counted.
"""
import argparse
import importlib.util
import json
import sys
from pathlib import Path
from statistics import median

from common import LLAMA, preset, product, say, timed

HERE = Path(__file__).resolve().parent
AIM_SECONDS, AIM_RATIO = 0.5, 8


def contestants(model: str, seq_len: int) -> dict[str, list[str]]:
    "Commands by name; each prints one JSON object"
    config, length = str(preset(model)), str(seq_len)
    run = lambda script, *more: [sys.executable, str(HERE / script), config, length, *more]
    ours = [*product(), "analyze", model, "--batch-size", "1", "--seq-len", length, "--logits", "all", "--execution", "eager", "--format", "json"]
    found = {"lm-predictor": ours, "FlopCounterMode": run("count_torch.py")}
    if importlib.util.find_spec("calflops"):
        found |= {"calflops": run("count_calflops.py", "eager"), "calflops, sdpa": run("count_calflops.py", "sdpa")}
    else:
        say("calflops is not installed and is left out: pip install calflops accelerate huggingface_hub torch==2.13.0")
    return found | {"python -c pass": [sys.executable, "-c", "pass"]}


def figures(name: str, text: str) -> dict:
    "What a contestant reports: matrix FLOPs (2 per multiply-accumulate), and FLOPs by its own convention"
    if not text:
        return {}
    data = json.loads(text)
    if name == "lm-predictor":
        return {"matmul": data["totals"]["matmul_flops"], "flops": data["totals"]["flops"]}
    return {"matmul": 2 * data["macs"], "flops": data["flops"]} if "macs" in data else {"matmul": data["flops"]}


def measure(commands: dict, repeat: int) -> tuple[dict, dict]:
    "Seconds and reported figures by contestant; one that fails is named with what it said and dropped"
    seconds, reported, dropped = {n: [] for n in commands}, {}, set()
    for round_ in range(repeat + 1):
        for name in commands:
            if name in dropped:
                continue
            run = timed(commands[name])
            if run.status:
                say(f"{name} failed with status {run.status}, its last words:\n{run.err[-2000:]}")
                dropped.add(name)
                continue
            say(f"[{round_}/{repeat}] {name}: {run.seconds:.3f} s" + (" (warming up, not counted)" if round_ == 0 else ""))
            if run.stored and not round_:
                say(f"{name}: no record that ships fits this model, so each run traces it from source; build the database first")
            if round_:
                seconds[name].append(run.seconds)
            reported[name] = figures(name, run.out)
    return {n: s for n, s in seconds.items() if n not in dropped}, reported


def table(seconds: dict, reported: dict) -> None:
    "The table, and whether the aims are met"
    ours = seconds["lm-predictor"]
    cell = lambda n: f"{n:,}" if n else "-"
    print(f"{'':16} {'min s':>7} {'median s':>9} {'min/ours':>9} {'median/ours':>12} {'matrix FLOPs':>22} {'FLOPs, own convention':>22}")
    for name, s in seconds.items():
        f = reported[name]
        print(f"{name:16} {min(s):7.3f} {median(s):9.3f} {min(s) / min(ours):9.2f} {median(s) / median(ours):12.2f} "
              f"{cell(f.get('matmul')):>22} {cell(f.get('flops')):>22}")
    for name in seconds:
        if name == "lm-predictor" or not reported[name]:
            continue
        ratio = min(seconds[name]) / min(ours)
        same = reported[name]["matmul"] == reported["lm-predictor"]["matmul"]
        print(f"{name}: {ratio:.1f} times our time, the aim of {AIM_RATIO} is {'met' if ratio >= AIM_RATIO else 'MISSED'}; "
              f"matrix FLOPs {'equal' if same else 'DIFFERENT'}")
    print(f"lm-predictor: {min(ours):.3f} s, the aim of under {AIM_SECONDS} s is {'met' if min(ours) < AIM_SECONDS else 'MISSED'}")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default=LLAMA, help="a preset")
    p.add_argument("--seq-len", type=int, default=2048)
    p.add_argument("--repeat", type=int, default=5, help="counted rounds")
    args = p.parse_args()
    if args.repeat < 1 or not preset(args.model).is_file():
        p.error("--repeat is at least 1 and --model is the Hugging Face id of a preset (`lm-predictor models`)")
    commands = contestants(args.model, args.seq_len)
    say(f"under test: {' '.join(commands['lm-predictor'][:1 + ('-c' in commands['lm-predictor'])])} ... {args.model}")
    seconds, reported = measure(commands, args.repeat)
    if "lm-predictor" not in seconds:
        return 1
    table(seconds, reported)
    return 0


if __name__ == "__main__":
    sys.exit(main())
