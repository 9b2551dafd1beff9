"""How long do whole models take on a GPU, beside what is predicted?

    lm-predictor calibrate -o mine.json                                          # a minute
    python benchmarks/gpu_models.py --hardware mine.json --out models.json       # needs a CUDA device

Models of real shapes with random weights in bfloat16, prompts and decode steps. Each is run three ways: as transformers
runs it with eager attention, which is what `eager` predicts; that with the attention of PyTorch (sdpa); and for decode
steps compiled, with CUDA graphs and a cache of fixed length. Of one prompt and one decode step each line of the source is
timed by itself.
"""
import argparse
import gc
import time
import traceback
from pathlib import Path

import numpy as np
import torch
import transformers

import gpu
from common import say
from lm_predictor.measurement import model as measuring
from lm_predictor.measurement.machine import wait_for
from lm_predictor.models.sources.loading import full_config, load_config
from lm_predictor.obtain.analyze import analyze
from lm_predictor.timing.kernels.calibrated import PYTORCH
from lm_predictor.tracing.runtime.building import build

# model -> layers that are built, all where None
MODELS = {"Qwen/Qwen3-0.6B": None, "meta-llama/Llama-3.1-8B": None, "Qwen/Qwen3-30B-A3B": 12, "google/gemma-3-4b-it": None,
          "deepseek-ai/DeepSeek-V2-Lite": 9, "openai-community/gpt2-xl": None, "state-spaces/mamba-2.8b-hf": None}
PROMPTS = ((1, 512), (1, 2048), (8, 512))                     # sequences, tokens
DECODE = ((1, 900), (16, 900), (64, 900), (16, 3900))         # sequences, cached tokens
IN_PARTS = {(1, 2048), (16, 900)}                             # of which every line is timed
COMPILED = {"meta-llama/Llama-3.1-8B": 4, "Qwen/Qwen3-0.6B": 8}  # compiling takes seconds a layer
STEPS = 64                                                    # decode steps that a compiled cache has room for


def workloads(name: str, config: dict) -> list:
    "(sequences, new tokens, cached tokens) that a model can take"
    most = config.get("max_position_embeddings") or config.get("n_positions") or 10**9
    loops = config["model_type"] == "mamba"  # its source goes over a prompt token by token
    prompts = [] if loops else [(b, t, 0) for b, t in PROMPTS if t <= most]
    return prompts + [(b, 1, 1 if loops else t) for b, t in DECODE if t < most and not (loops and t > 900)]


def of_times(how: str, label: str, sizes: dict, times: list) -> dict:
    "A row of what a step took"
    return {"how": how, "model": label, **sizes, "measured_s": float(np.median(times)),
            "measured_10_90_s": [float(np.quantile(times, q)) for q in (0.1, 0.9)], "repetitions": len(times)}


def eager(name: str, layers, hardware: str, seconds: float) -> list:
    "Rows of a model: what each workload takes, by the clock and as predicted"
    label, config = measuring.shortened(name, load_config(name)[1], layers)
    cost, device, rows = analyze(config), torch.device("cuda"), []
    found = measuring.Measurable.of(config, device)
    for batch, new, old in workloads(name, config):
        sizes = dict(batch_size=batch, seq_len=new, cache_len=old)
        run = cost.at(execution="eager", w_bits=16, a_bits=16, kv_bits=16, **sizes).on(hardware, PYTORCH)
        try:
            times = measuring._timed(found, run.workload, seconds)
            parts = ()
            if (batch, new) in IN_PARTS or (batch, old) in IN_PARTS:
                filled = found.cache(batch, old)
                parts = measuring.joined(run, measuring.timed_operators(found, batch, new, filled, old, times=1))
        except torch.OutOfMemoryError:
            say(f"{label} {sizes}: does not fit")
            continue
        rows.append(of_times("eager", label, sizes, times))
        if parts:
            rows[-1]["lines"] = [[r.path, r.source, r.measured_s] for r in parts if r.measured_s >= 2e-5]
        say(f"{label} {sizes}: {rows[-1]['measured_s'] * 1e3:.2f} ms, predicted {run.time_s * 1e3:.2f}, roofline {run.least_s * 1e3:.2f}")
    return rows


def timed(call, seconds: float, before=lambda: None) -> list[float]:
    "Seconds of calls, each after what comes before it untimed"
    device, times, end = torch.device("cuda"), [], time.perf_counter() + seconds
    while len(times) < 6 or time.perf_counter() < end:
        before()
        wait_for(device)
        start = time.perf_counter()
        call()
        wait_for(device)
        times.append(time.perf_counter() - start)
    return times[1:]


def fixed(name: str, layers, seconds: float, compiled: bool, keep) -> list:
    "Decode steps of a model with a cache of fixed length and PyTorch's attention, compiled or not"
    from transformers import StaticCache
    label, config = measuring.shortened(name, load_config(name)[1], layers)
    with torch.device("cuda"):
        model = build(full_config(config), dtype=torch.bfloat16, attn_implementation="sdpa")
    measuring._fill(model)
    rows = []
    forward = torch.compile(model.forward, mode="reduce-overhead") if compiled else model.forward
    for batch, old in DECODE[:3]:
        tokens = torch.randint(0, config["vocab_size"], (batch, old), device="cuda")
        cache = StaticCache(config=model.config, max_cache_len=old + STEPS)
        with torch.no_grad():
            model(input_ids=tokens, past_key_values=cache, logits_to_keep=1)
            one = tokens[:, :1].clone()
            step = lambda: forward(input_ids=one, past_key_values=cache, logits_to_keep=1)
            back = lambda: [layer.cumulative_length.fill_(old) for layer in cache.layers]
            for _ in range(4):
                back()
                step()
            times = timed(step, seconds, back)
        sizes = dict(batch_size=batch, seq_len=1, cache_len=old)
        how = "compiled, CUDA graphs" if compiled else "fixed cache, sdpa"
        rows.append(of_times(how, label, sizes, times))
        say(f"{label} {how} {sizes}: {rows[-1]['measured_s'] * 1e3:.2f} ms")
        keep(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", required=True, help="the file of `lm-predictor calibrate`")
    parser.add_argument("--out", required=True, type=Path, help="JSON of the times")
    parser.add_argument("--seconds", type=float, default=1.0, help="for which each is repeated")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--ways", nargs="*", default=["eager", "fixed", "compiled"])
    args = parser.parse_args()
    jobs = [("eager", n, x) for n, x in MODELS.items()] + [(w, n, x) for w in ("fixed", "compiled") for n, x in COMPILED.items()]
    rows = []

    def write(found: list) -> None:
        gpu.write(args.out, gpu.head(gpu.command(), transformers=transformers.__version__), found)

    for way, name, layers in jobs:
        if way not in args.ways or (args.only and name not in args.only):
            continue
        start = time.perf_counter()
        try:
            rows += (eager(name, layers, args.hardware, args.seconds) if way == "eager"
                     else fixed(name, layers, args.seconds, way == "compiled", lambda more: write(rows + more)))
        except Exception:
            say(f"{name}, {way}: {traceback.format_exc()[-1500:]}")
        gc.collect()
        torch.cuda.empty_cache()
        say(f"{name}, {way}: {time.perf_counter() - start:.0f} s")
        write(rows)


if __name__ == "__main__":
    main()
