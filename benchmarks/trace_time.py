"""How long does `lm-predictor trace` take from source, and how much memory?

    python benchmarks/trace_time.py --repeat 2

Wall time and peak resident memory of the whole process, with an empty database each time, for Llama-2-7B and for
one preset of every other model type.
"""
import argparse
import sys

from common import LLAMA, presets, product, say, timed

AIM_SECONDS = 20


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", action="append", help=f"preset to trace, repeatable (default: {LLAMA} and one of each other type)")
    p.add_argument("--repeat", type=int, default=2)
    args = p.parse_args()
    if args.repeat < 1:
        p.error("--repeat is at least 1")
    models = args.model or list({**presets(), "llama": LLAMA}.values())
    status, llama = 0, None
    print(f"{'model':28} {'min s':>7} {'max s':>7} {'peak MB':>8}")
    for model in models:
        runs = []
        for i in range(args.repeat):
            runs.append(run := timed([*product(), "trace", model]))
            say(f"[{i + 1}/{args.repeat}] {model}: {run.seconds:.1f} s" + (f", status {run.status}: {run.err.strip()[-500:]}" if run.status else ""))
        bad = next((f"  exit status {r.status}" for r in runs if r.status), "")
        seconds = [r.seconds for r in runs]
        print(f"{model:28} {min(seconds):7.1f} {max(seconds):7.1f} {max(r.peak_bytes for r in runs) / 1e6:8.0f}{bad}", flush=True)
        status, llama = status or int(bool(bad)), min(seconds) if model == LLAMA else llama
    if llama is not None:
        print(f"{LLAMA}: {llama:.1f} s, the aim of under {AIM_SECONDS} s is {'met' if llama < AIM_SECONDS else 'MISSED'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
