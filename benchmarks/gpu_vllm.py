"""How long do the steps of vLLM take on a GPU, beside what is predicted?

    pip install vllm==0.24.0
    python benchmarks/gpu_vllm.py --out vllm.json     # needs a CUDA device; about five minutes

Models of real shapes with random weights in bfloat16, served by vLLM's engine as it starts by default: compiled, with CUDA
graphs, and a scheduler in a process of its own. Of each model: the first token of one prompt at an idle engine, from the
request to the token; the time between the tokens of a batch whose prompts are done; and of some steps every kernel, by
PyTorch's profiler. All engines start side by side, which takes the longest, and are measured one after the other.
"""
import argparse
import glob
import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import gpu
from common import say
from lm_predictor.measurement.model import shortened
from lm_predictor.models.sources.loading import load_config

# model -> layers that are built (all where None), GB of cache
MODELS = {"meta-llama/Llama-3.1-8B": (None, 9.8), "Qwen/Qwen3-0.6B": (None, 8.4), "Qwen/Qwen3-30B-A3B": (16, 2.5),
          "deepseek-ai/DeepSeek-V2-Lite": (14, 1.3)}
PROMPTS = (128, 512, 2048, 8192)                                           # tokens
DECODE = ((1, 1024), (8, 1024), (16, 1024), (32, 1024), (64, 1024), (16, 4096))  # sequences, tokens of each prompt
IN_PARTS = {(1, 1024), (64, 1024), (16, 4096)}                             # of which every kernel is timed
# no network, and no sampler of FlashInfer's, which greedy tokens do not ask for
ALONE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
STEPS, REPEATS, AT_ONCE = 64, 7, 8192                                      # tokens, prompts, tokens of a step


def named(asked: str) -> tuple[str, dict, bool]:
    "What is asked for, NAME[=LAYERS][+in-turns]: the label of the model, its config, and whether host and device take turns"
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as classes
    name, in_turns, _ = asked.partition("+in-turns")
    name, _, layers = name.partition("=")
    label, config = shortened(name, load_config(name)[1], int(layers) if layers else MODELS[name][0])
    return label, config | {"architectures": [classes[config["model_type"]]], "torch_dtype": "bfloat16"}, bool(in_turns)


def drawn(model) -> None:
    "Weights as at the start of a training, so that tokens choose different experts; vLLM's own are all close to zero"
    import torch
    with torch.inference_mode():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.02)
            else:
                p.fill_(1 if "norm" in name else 0)


class Engine:
    "vLLM's engine over a model of random weights"

    def __init__(self, config: dict, gigabytes: float, folder: Path, ahead: bool):
        from vllm import LLM
        (folder / "config.json").write_text(json.dumps(config))
        self.traces, self.vocabulary, self.asked = folder / "traces", config["vocab_size"], 0
        self.served = LLM(
            str(folder), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=AT_ONCE + 512,
            max_num_seqs=256, max_num_batched_tokens=AT_ONCE, enable_prefix_caching=False, gpu_memory_utilization=0.05,
            kv_cache_memory_bytes=int(gigabytes * 1e9), async_scheduling=ahead,
            profiler_config={"profiler": "torch", "torch_profiler_dir": str(self.traces), "torch_profiler_with_stack": False,
                             "torch_profiler_dump_cuda_time_total": False})
        self.served.apply_model(drawn)
        self.engine = self.served.llm_engine

    def prompts(self, batch: int, tokens: int) -> list:
        return [[random.randrange(10, self.vocabulary - 10) for _ in range(tokens)] for _ in range(batch)]

    def ask(self, prompts: list, new: int) -> dict:
        "New requests; what each has got so far"
        from vllm import SamplingParams
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        got = {}
        for prompt in prompts:
            self.asked += 1
            name = str(self.asked)
            self.engine.add_request(name, {"type": "token", "prompt_token_ids": prompt}, params)
            got[name] = 0
        return got

    def step(self, got: dict) -> float:
        "The next tokens, and when they came"
        for said in self.engine.step():
            got[said.request_id] = len(said.outputs[0].token_ids)
        return time.perf_counter()

    def finish(self, got: dict) -> None:
        while self.engine.has_unfinished_requests():
            self.step(got)

    def first_token(self, tokens: int) -> float:
        "Seconds from a request at an idle engine to its first token"
        prompts = self.prompts(1, tokens)
        start = time.perf_counter()
        got = self.ask(prompts, 1)
        while not all(got.values()):
            end = self.step(got)
        self.finish(got)
        return end - start

    def steps(self, batch: int, tokens: int) -> tuple[list[float], float]:
        "Seconds between the tokens of a batch, and the mean length of its cache"
        got = self.ask(self.prompts(batch, tokens), STEPS)
        times, lengths, last = [], [], None
        while self.engine.has_unfinished_requests():
            now, counts = self.step(got), got.values()
            whole = len(counts) == batch and min(counts) >= 3 and max(counts) < STEPS
            if whole and last is not None:
                times.append(now - last)
                lengths.append(tokens + statistics.mean(counts) - 1)
            last = now if whole else None
        return times, statistics.mean(lengths)

    def kernels(self, batch: int, tokens: int, new: int) -> dict:
        "What the device ran in a few steps (of one prompt where there is one new token)"
        before = set(glob.glob(f"{self.traces}/*"))
        got = {} if new == 1 else self.ask(self.prompts(batch, tokens), new)
        while got and min(got.values()) < 3:
            self.step(got)
        self.engine.start_profile()
        if new == 1:
            got = self.ask(self.prompts(batch, tokens), new)
            self.finish(got)
        else:
            for _ in range(12):
                self.step(got)
        self.engine.stop_profile()
        at = tokens + statistics.mean(got.values())
        self.engine.abort_request(list(got))
        self.finish({})
        found = max((f for f in set(glob.glob(f"{self.traces}/*")) - before if "json" in f), key=os.path.getsize)
        return {"cache_at_end": at} | summary(json.loads((gzip.open(found) if found.endswith("gz") else open(found, "rb")).read()))


def summary(trace: dict) -> dict:
    "Kernels by name: calls and seconds; how many steps the profiler saw, how long the device was busy, from first to last"
    calls, seconds, spans, steps = Counter(), Counter(), [], []
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            calls[event["name"]] += 1
            seconds[event["name"]] += event["dur"] * 1e-6
            spans.append((event["ts"], event["ts"] + event["dur"]))
        elif event.get("cat") == "user_annotation" and str(event["name"]).startswith("execute_"):
            steps.append(event["name"])
    spans.sort()
    busy, end = 0.0, float("-inf")
    for first, last in spans:
        busy, end = busy + max(0.0, last - max(first, end)), max(end, last)
    return {"steps": steps, "busy_s": busy * 1e-6, "span_s": (end - spans[0][0]) * 1e-6,
            "kernels": [[name[:160], calls[name], seconds[name]] for name in sorted(calls, key=lambda n: -seconds[n])]}


def measure(asked: str, folder: Path) -> None:
    "One model: start, wait until the others have started, too, and write rows as they come"
    (label, config, in_turns), rows = named(asked), []
    gigabytes = MODELS[label.partition(", ")[0]][1]
    start = time.perf_counter()
    engine = Engine(config, gigabytes, folder, not in_turns)
    engine.first_token(AT_ONCE), engine.steps(4, 256)
    say(f"{label} started in {time.perf_counter() - start:.0f} s")
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.1)

    def keep(how: str, sizes: dict, **more) -> None:
        rows.append({"how": how, "model": label, **({"in_turns": True} if in_turns else {}), **sizes, **more})
        (folder / "rows.json").write_text(json.dumps(rows))

    def times(how: str, sizes: dict, found: list) -> None:
        keep(how, sizes, measured_s=statistics.median(found), repetitions=len(found),
             measured_10_90_s=[sorted(found)[int(q * (len(found) - 1) + 0.5)] for q in (0.1, 0.9)])
        say(f"{label} {how} {sizes}: {rows[-1]['measured_s'] * 1e3:.2f} ms")

    for tokens in PROMPTS:
        times("first token", {"batch_size": 1, "seq_len": tokens, "cache_len": 0},
              [engine.first_token(tokens) for _ in range(REPEATS + 1)][1:])
    for batch, tokens in DECODE:
        found, length = engine.steps(batch, tokens)
        times("token", {"batch_size": batch, "seq_len": 1, "cache_len": round(length)}, found)
    for batch, tokens, new in [(1, 512, 1), (1, 2048, 1), (1, 8192, 1), *((b, t, 400) for b, t in DECODE if (b, t) in IN_PARTS)]:
        try:
            found = engine.kernels(batch, tokens, new)
        except Exception:
            traceback.print_exc()
            continue
        at = round(found.pop("cache_at_end"))
        sizes = {"seq_len": tokens, "cache_len": 0} if new == 1 else {"seq_len": 1, "cache_len": at}
        keep("kernels", {"batch_size": batch, **sizes}, **found)
    (folder / "done").touch()


def stop(job: subprocess.Popen) -> None:
    "With the engine's own process"
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON of the times")
    parser.add_argument("--only", nargs="*", help="names of models, with =LAYERS and with +in-turns where the scheduler waits for the device")
    parser.add_argument("--wait", type=float, default=240, help="seconds that an engine may take to start")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # a model and its folder, in a process of its own
    args = parser.parse_args()
    if args.one:
        measure(args.one[0], Path(args.one[1]))
        time.sleep(60)  # until it is stopped with the engine's own process
    names, root = args.only or list(MODELS), Path(tempfile.mkdtemp())
    jobs = {}
    for name in names:
        folder = root / name.split("/")[1]
        folder.mkdir()
        with open(folder / "log", "w") as log:
            jobs[folder] = subprocess.Popen([sys.executable, __file__, "--one", name, str(folder)], stdout=log, stderr=log, start_new_session=True,
                                            env=os.environ | ALONE)
    end = time.time() + args.wait
    while time.time() < end and any(j.poll() is None and not (f / "ready").exists() for f, j in jobs.items()):
        time.sleep(0.5)
    rows = []
    for folder, job in jobs.items():
        if not (folder / "ready").exists():
            stop(job)
    for folder, job in jobs.items():
        if (folder / "ready").exists():
            (folder / "go").touch()
            while job.poll() is None and not (folder / "done").exists():
                time.sleep(0.2)
        stop(job)
        if (folder / "rows.json").exists():
            rows += json.loads((folder / "rows.json").read_text())
            gpu.write(args.out, gpu.head(gpu.command(), vllm=version("vllm")), rows)
        log = (folder / "log").read_text().splitlines()
        mine = [line for line in log if folder.name in line and " ms" in line or "started in" in line]
        say("\n".join(mine if (folder / "done").exists() else mine + [line for line in log if "Error" in line][-8:] + log[-3:]))


if __name__ == "__main__":
    main()
