"""How long do the kernels of Mamba take: the SSD scan, the selective scan and the update of a state?

    git clone https://github.com/state-spaces/mamba && git -C mamba checkout e9594ce
    python benchmarks/gpu_recurrent.py --mamba mamba --out recurrent.json    # needs a CUDA device, Triton and nvcc

The scan and the update are Triton's, and run as they are. The selective scan is CUDA: its forward is compiled for numbers
of 16 bits, with B, C and a gate that differ from token to token, as models have them; the other cases are left out, so
that it takes a minute. Times are those of the device alone, a replayed graph.
"""
import argparse
import itertools
import re
import sys
import time
import types
from pathlib import Path

import torch
import triton

import gpu
from common import say
from lm_predictor.measurement.machine import kernel_seconds

GPU = torch.device("cuda")
WIDTH, STATE_1 = (1536, 3072, 5120, 8192), 16  # channels and states of Mamba's sizes
SSD = ((64, 64, 1, 64, 256), (112, 64, 2, 64, 256), (128, 64, 8, 128, 128), (112, 64, 8, 128, 128), (64, 64, 8, 128, 128),
       (80, 64, 1, 128, 256), (48, 64, 1, 128, 256), (24, 64, 1, 128, 256))  # heads ... chunk
TOKENS, PROMPTS, SEQUENCES = (512, 1024, 2048, 4096, 8192), (1, 4), (1, 4, 16, 64, 256)


def _forward_only(source: str) -> str:
    "The C++ file of the selective scan without its backward, for bfloat16 and real numbers"
    start = source.index("void set_ssm_params_bwd"), source.index("std::vector<at::Tensor>\nselective_scan_bwd")
    forward = source.index("std::vector<at::Tensor>\nselective_scan_fwd")
    cut = source[:start[0]] + source[forward:start[1]]
    cut = re.sub(r"DISPATCH_ITYPE_FLOAT_AND_HALF_AND_BF16\(u\.scalar_type\(\), \"selective_scan_fwd\", \[&\] \{.*?\n    \}\);",
                 "selective_scan_fwd_cuda<at::BFloat16, float>(params, stream);", cut, flags=re.DOTALL)
    return cut + '\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fwd", &selective_scan_fwd); }\n'


def build_scan(mamba: Path, work: Path):
    "The compiled forward of the selective scan"
    from torch.utils.cpp_extension import load
    source, made = mamba / "csrc" / "selective_scan", work / "selective_scan"
    made.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.*h"):
        (made / path.name).write_text(path.read_text())
    (made / "scan.cpp").write_text(_forward_only((source / "selective_scan.cpp").read_text()))
    switch = made / "static_switch.h"
    switch.write_text(switch.read_text() + "\n#define ALWAYS(COND, NAME, ...) [&] { constexpr bool NAME = true; return __VA_ARGS__(); }()\n")
    kernel = made / "selective_scan_fwd_kernel.cuh"
    kernel.write_text(re.sub(r"BOOL_SWITCH\((params\.(?:is_variable_[BC]|z_ptr))", r"ALWAYS(\1", kernel.read_text()))
    only = "template void selective_scan_fwd_cuda<at::BFloat16, float>(SSMParamsBase &params, cudaStream_t stream);\n"
    (made / "scan.cu").write_text('#include "selective_scan_fwd_kernel.cuh"\n' + only)
    flags = ["-O3", "-std=c++17", "--use_fast_math", "--expt-relaxed-constexpr", "--expt-extended-lambda",
             "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_BFLOAT16_OPERATORS__",
             "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-U__CUDA_NO_BFLOAT162_OPERATORS__"]
    return load("selective_scan_forward", [str(made / "scan.cpp"), str(made / "scan.cu")], build_directory=str(made),
                extra_cuda_cflags=flags, extra_include_paths=[str(made)])


def load_triton(mamba: Path) -> None:
    "Make the Triton files of a checkout importable, without what the package imports besides"
    package = types.ModuleType("mamba_ssm")
    package.__path__ = [str(mamba / "mamba_ssm")]
    sys.modules["mamba_ssm"] = package


def normal(*shape, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=GPU).to(dtype)


def ssd_call(b, t, h, p, g, n, c):
    from mamba_ssm.ops.triton.ssd_combined import _mamba_chunk_scan_combined_fwd as scan
    x, dt, a = normal(b, t, h, p), normal(b, t, h), -torch.rand(h, device=GPU)
    B, C, d, bias = normal(b, t, g, n), normal(b, t, g, n), normal(h, dtype=torch.float32), normal(h, dtype=torch.float32)
    return lambda _: scan(x, dt, a, B, C, c, D=d, dt_bias=bias, dt_softplus=True)


def scan_call(extension, b, t, d, n):
    u, delta, z, B, C = normal(b, d, t), normal(b, d, t), normal(b, d, t), normal(b, 1, n, t), normal(b, 1, n, t)
    a, D, bias = -torch.rand(d, n, device=GPU), normal(d, dtype=torch.float32), normal(d, dtype=torch.float32)
    return lambda _: extension.fwd(u, delta, a, B, C, D, z, bias, True)


def update_call(b, h, p, g, n, tied):
    "tied: one step and decay for each head, as Mamba-2 has them, not for each channel"
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    states = [normal(b, h, p, n, dtype=torch.float32) for _ in range(max(1, min(8, 2**28 // (4 * b * h * p * n))))]
    x, z, B, C = normal(b, h, p), normal(b, h, p), normal(b, g, n), normal(b, g, n)
    made = lambda *shape: torch.rand(shape, device=GPU)
    if tied:
        dt = normal(b, h)[..., None].expand(b, h, p)
        a, bias, d = -made(h)[:, None, None].expand(h, p, n), made(h)[:, None].expand(h, p), made(h)[:, None].expand(h, p)
    else:
        dt, a, bias, d = normal(b, h, p), -made(h, p, n), made(h, p), made(h, p)
    return lambda i: selective_state_update(states[i % len(states)], x, dt, a, B, C, d, z=None if tied else z, dt_bias=bias,
                                            dt_softplus=True)


def cases(extension) -> list:
    "(function, sizes, what makes its call) of all that is measured"
    found = []
    if extension is not None:
        for b, t, d in itertools.product(PROMPTS, TOKENS, WIDTH):
            found.append(("selective_scan_fn", {"batch": b, "tokens": t, "channels": d, "state": STATE_1},
                          lambda b=b, t=t, d=d: scan_call(extension, b, t, d, STATE_1)))
    for b, d in itertools.product(SEQUENCES, WIDTH):
        found.append(("selective_state_update", {"batch": b, "heads": 1, "head_dim": d, "groups": 1, "state": STATE_1, "tied": False},
                      lambda b=b, d=d: update_call(b, 1, d, 1, STATE_1, False)))
    for b, (h, p, g, n, c) in itertools.product(SEQUENCES, SSD):
        found.append(("selective_state_update", {"batch": b, "heads": h, "head_dim": p, "groups": g, "state": n, "tied": True},
                      lambda b=b, h=h, p=p, g=g, n=n: update_call(b, h, p, g, n, True)))
    for (h, p, g, n, c), b, t in itertools.product(SSD, PROMPTS, TOKENS):
        found.append(("mamba_chunk_scan_combined",
                      {"batch": b, "tokens": t, "heads": h, "head_dim": p, "groups": g, "state": n, "chunk_size": c},
                      lambda b=b, t=t, s=(h, p, g, n, c): ssd_call(b, t, *s)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mamba", required=True, type=Path, help="a checkout of state-spaces/mamba")
    parser.add_argument("--out", required=True, type=Path, help="JSON of the times")
    parser.add_argument("--work", type=Path, default=Path("build"), help="where the scan is compiled")
    parser.add_argument("--seconds", type=float, default=100, help="after which nothing more is measured")
    parser.add_argument("--only", nargs="*", help="names of functions")
    args = parser.parse_args()
    load_triton(args.mamba)
    wanted = lambda name: not args.only or name in args.only
    try:
        extension = build_scan(args.mamba, args.work) if wanted("selective_scan_fn") else None
    except Exception as e:  # no compiler, or another one: the Triton kernels are measured all the same
        say(f"the selective scan is left out: {str(e)[-1500:]}")
        extension = None
    rows, end, every = [], time.perf_counter() + args.seconds, [c for c in cases(extension) if wanted(c[0])]
    for name, sizes, make in every:
        if time.perf_counter() > end:
            say(f"stopped after {len(rows)} of {len(every)}")
            break
        try:
            rows.append({"function": name, **sizes, "seconds": kernel_seconds(make(), GPU, 0.03)})
        except Exception as e:  # a case that this release of Triton does not compile
            say(f"{name} {sizes}: {str(e)[-300:]}")
        gpu.write(args.out, gpu.head(gpu.command(), triton=triton.__version__), rows)
    say(f"{len(rows)} kernels in {args.out}")


if __name__ == "__main__":
    main()
