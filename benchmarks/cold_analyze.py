"""How long does a first answer take, next to the two FLOP counters people use?

    python benchmarks/cold_analyze.py --repeat 5
    python benchmarks/cold_analyze.py --repeat 15 --other FOLDER   # and next to another checkout, before a change

Each figure is the wall time of a whole, freshly started process. The contestants take turns, so that a busy
machine slows all of them; the first round only warms the disk cache and is not counted.
"""
import argparse
import importlib.util
import json
import sys
from pathlib import Path
from statistics import median

from common import LLAMA, ROOT, checkout, preset, product, say, timed

HERE = Path(__file__).resolve().parent
AIM_SECONDS, AIM_RATIO = 0.15, 8


def contestants(model: str, seq_len: int, other: Path | None) -> dict[str, list[str]]:
    "Commands by name; each prints one JSON object, but `table` what people read and `pass` nothing"
    config, length = str(preset(model)), str(seq_len)
    run = lambda script, *more: [sys.executable, str(HERE / script), config, length, *more]
    plain = ["analyze", model, "--seq-len", length]
    full = [*plain, "--batch-size", "1", "--logits", "all", "--execution", "eager", "--format", "json"]
    found = {"lm-predictor": [*product(), *full], "table": [*product(), *plain], "FlopCounterMode": run("count_torch.py")}
    if other:
        found |= {"this checkout": [*checkout(ROOT), *full], "the other": [*checkout(other), *full]}
        found |= {"this, table": [*checkout(ROOT), *plain], "the other, table": [*checkout(other), *plain]}
    if importlib.util.find_spec("calflops"):
        found |= {"calflops": run("count_calflops.py", "eager"), "calflops, sdpa": run("count_calflops.py", "sdpa")}
    else:
        say("calflops is not installed and is left out: pip install calflops accelerate huggingface_hub torch==2.13.0")
    return found | {"python -c pass": [sys.executable, "-c", "pass"]}


def figures(text: str) -> dict:
    "What a contestant reports: matrix FLOPs (2 per multiply-accumulate), and FLOPs by its own convention"
    if not text.startswith("{"):
        return {}
    data = json.loads(text)
    if "totals" in data:
        return {"matmul": data["totals"]["matmul_flops"], "flops": data["totals"]["flops"]}
    return {"matmul": 2 * data["macs"], "flops": data["flops"]} if "macs" in data else {"matmul": data["flops"]}


def measure(commands: dict, repeat: int) -> tuple[dict, dict, dict]:
    "Seconds, processor seconds and reported figures by contestant; one that fails is named with what it said and dropped"
    seconds, cpu, reported, dropped = {n: [] for n in commands}, {n: [] for n in commands}, {}, set()
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
                cpu[name].append(run.cpu)
            reported[name] = figures(run.out)
    return {n: s for n, s in seconds.items() if n not in dropped}, cpu, reported


def table(seconds: dict, cpu: dict, reported: dict) -> None:
    "The table, and whether the aims are met"
    ours = seconds["lm-predictor"]
    cell = lambda n: f"{n:,}" if n else "-"
    print(f"{'':17} {'min s':>7} {'median s':>9} {'min CPU s':>9} {'min/ours':>9} {'median/ours':>12} {'matrix FLOPs':>22} {'FLOPs, own convention':>22}")
    for name, s in seconds.items():
        f = reported[name]
        print(f"{name:17} {min(s):7.3f} {median(s):9.3f} {min(cpu[name]):9.3f} {min(s) / min(ours):9.2f} {median(s) / median(ours):12.2f} "
              f"{cell(f.get('matmul')):>22} {cell(f.get('flops')):>22}")
    for name in seconds:
        if name in ("lm-predictor", "this checkout", "the other") or not reported[name]:
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
    p.add_argument("--other", type=Path, metavar="FOLDER", help="another checkout, to compare with")
    args = p.parse_args()
    if args.repeat < 1 or not preset(args.model).is_file():
        p.error("--repeat is at least 1 and --model is the Hugging Face id of a preset (`lm-predictor models`)")
    commands = contestants(args.model, args.seq_len, args.other)
    say(f"under test: {' '.join(commands['lm-predictor'][:1 + ('-c' in commands['lm-predictor'])])} ... {args.model}")
    seconds, cpu, reported = measure(commands, args.repeat)
    if "lm-predictor" not in seconds:
        return 1
    table(seconds, cpu, reported)
    return 0


if __name__ == "__main__":
    sys.exit(main())
