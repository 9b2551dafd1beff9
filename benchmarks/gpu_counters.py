"""What do the counters of a GPU say of bytes and FLOPs, beside the formulas?

    python benchmarks/gpu_counters.py --out counters.json     # needs a CUDA device and Nsight Compute (ncu)

Eleven kernels, and the layers of two models, each run once under `ncu`: bytes that DRAM reads and writes, and floating-point
operations of the matrix unit and of the lanes. The caches are emptied before each kernel. What the program runs is divided
by a kernel that does nothing but wait.
"""
import argparse
import csv
import io
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import gpu
from common import say

MARK = "spin_kernel"  # of `torch.cuda._sleep`, between two things that are measured
BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")
LANES = {"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1, "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
         "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2}  # instructions -> FLOPs of each
TENSOR = ("sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
          "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off.sum")  # one of these, as the chip has it
TOKENS, WIDTH, INNER, HEADS, HEAD, PAST = 2048, 4096, 14336, 32, 128, 4096


def kernels() -> dict:
    "Name -> call of each of the eleven"
    made = lambda *shape: torch.randn(shape, device="cuda").to(torch.bfloat16)
    x, one, weight = made(8192, WIDTH), made(16, WIDTH), made(INNER, WIDTH)
    q, k = made(HEADS, TOKENS, HEAD), made(HEADS, HEAD, TOKENS)
    scores, wide, other = made(1, HEADS, TOKENS, TOKENS), made(8192, INNER), made(8192, INNER)
    table, ids = made(128256, WIDTH), torch.randint(0, 128256, (8192,), device="cuda")
    past, new = made(16, 8, PAST, HEAD), made(16, 8, 1, HEAD)
    full, taps, single = made(1, HEADS, PAST, HEAD), made(8192, 1, 4), x.float()
    return {"product, 8192 rows": lambda: F.linear(x, weight), "product, 16 rows": lambda: F.linear(one, weight),
            "batched product": lambda: torch.bmm(q, k),
            "softmax in float32": lambda: F.softmax(scores, dim=-1, dtype=torch.float32),
            "silu": lambda: F.silu(wide), "multiplication": lambda: wide * other,
            "mean of squares": lambda: single.pow(2).mean(-1, keepdim=True),
            "embedding": lambda: F.embedding(ids, table), "append to a cache": lambda: torch.cat([past, new], dim=2),
            "flash attention": lambda: F.scaled_dot_product_attention(full, full, full, is_causal=True),
            "causal convolution": lambda: F.conv1d(past.reshape(1, 8192, -1)[..., :4096].contiguous(), taps, groups=8192, padding=3)}


COUNTED = ("read_bytes", "write_bytes", "lane_flops", "matrix_flops")
LAYERS = ("meta-llama/Llama-3.1-8B|16|1|2048", "Qwen/Qwen3-30B-A3B|16|1|2048", "meta-llama/Llama-3.1-8B|1|2048|0",
          "Qwen/Qwen3-30B-A3B|1|2048|0")  # model, sequences, new and cached tokens


def run_layer(group: str) -> None:
    "A forward of a model with one layer, once before, and once while ncu looks at the layer"
    from lm_predictor.measurement.model import Measurable, again, shortened
    from lm_predictor.models.sources.loading import load_config
    name, *sizes = group.split("|")
    batch, new, old = map(int, sizes)
    model = Measurable.of(shortened(name, load_config(name)[1], 1)[1], torch.device("cuda"))
    layer, filled = model.model.model.layers[0], model.cache(batch, old)
    model.forward(batch, new, again(filled, old), cache_len=old)
    torch.cuda.synchronize()
    begin = lambda *_: (torch.cuda.synchronize(), torch.cuda.profiler.start(), torch.cuda._sleep(1))
    layer.register_forward_pre_hook(lambda *_: begin() and None)
    layer.register_forward_hook(lambda *_: (torch.cuda._sleep(1), torch.cuda.synchronize(), torch.cuda.profiler.stop()) and None)
    print(f"CALL {group}", flush=True)
    model.forward(batch, new, again(filled, old), cache_len=old)


def run(group: str) -> None:
    "What is run under ncu: everything once before, and once while it looks"
    with torch.no_grad():
        if group in LAYERS:
            return run_layer(group)
        calls = kernels()
        for call in calls.values():
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        for name, call in calls.items():
            print(f"CALL {name}", flush=True)
            torch.cuda._sleep(1)
            call()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def metrics() -> list:
    "The names of the counters that this GPU has"
    said = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True).stdout
    known = {line.split()[0] for line in said.splitlines() if line.strip()}
    tensor = [m for m in TENSOR if m.removesuffix(".sum") in known][:1]
    if not tensor:
        say("no counter of the matrix unit in bfloat16; there are " + ", ".join(sorted(n for n in known if "path_tensor" in n))[:3000])
    return [*BYTES, *LANES, *tensor]


def read(text: str) -> list:
    "The kernels of a report, in order: name, and counters by their names"
    lines = text[text.index('"ID"'):]
    rows = list(csv.DictReader(io.StringIO(lines)))
    number = lambda s: float(s.replace(",", ""))
    return [(r["Kernel Name"], {k: number(v) for k, v in r.items() if k and k.endswith(".sum") and v}) for r in rows if r["ID"]]


def divided(rows: list) -> list:
    "The kernels between two marks"
    parts = []
    for name, counters in rows:
        if MARK in name:
            parts.append([])
        elif parts:
            parts[-1].append((name, counters))
    return parts


def of_kernel(name: str, counters: dict, tensor: list) -> dict:
    "What was counted of a kernel, and its seconds with the caches empty"
    of = lambda metric: counters.get(metric, 0)
    return {"name": name[:120], "read_bytes": of(BYTES[0]), "write_bytes": of(BYTES[1]), "seconds": of("gpu__time_duration.sum") * 1e-9,
            "lane_flops": sum(of(m) * f for m, f in LANES.items()), "matrix_flops": sum(map(of, tensor))}


def counted(group: str, wanted: list, seconds: float) -> list:
    "What ncu counts of a group of calls; raises subprocess.TimeoutExpired"
    command = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
               "--metrics", ",".join(wanted), sys.executable, __file__, "--run", group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        say(done.stdout[-2000:] + done.stderr[-2000:])
        return []
    names = [line[5:] for line in done.stdout.splitlines() if line.startswith("CALL ")]
    parts, out = divided(read(done.stdout)), []
    for name in names:
        took = parts.pop(0)
        kernels = [of_kernel(n, c, wanted[5:]) for n, c in took]
        out.append({"name": name, **{of: sum(k[of] for k in kernels) for of in COUNTED}, "kernels": kernels})
        say(f"{name}: {len(took)} kernels, {out[-1]['read_bytes']:.4g} read, {out[-1]['write_bytes']:.4g} written, "
            f"{out[-1]['lane_flops']:.4g} + {out[-1]['matrix_flops']:.4g} FLOPs")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON of the counters")
    parser.add_argument("--seconds", type=float, default=600, help="after which a group is given up")
    parser.add_argument("--only", nargs="*", help="`kernels`, or layers as LAYERS names them")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        return run(args.run)
    start, wanted, calls = time.perf_counter(), metrics(), []
    for group in args.only or ("kernels", *LAYERS):
        say(f"{group}, after {time.perf_counter() - start:.0f} s")
        try:
            calls += counted(group, wanted, args.seconds)
        except subprocess.TimeoutExpired as e:
            say(f"{group}: given up after {args.seconds:.0f} s: {(e.stdout or b'').decode()[-1500:]}")
        gpu.write(args.out, gpu.head(gpu.command()), calls)
    say(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
