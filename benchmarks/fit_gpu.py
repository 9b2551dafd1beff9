"""Fit what was measured on GPUs of our own: PyTorch's kernels, and the kernels of Mamba.

    python benchmarks/fit_gpu.py --measure kernels.json   # on a machine with a CUDA device, a minute
    python benchmarks/fit_gpu.py                          # held-out errors of benchmarks/measured
    python benchmarks/fit_gpu.py --write                  # and writes them into hardware/calibrated

The files in benchmarks/measured say on which device, with which versions and by which command each was made. Each kind of
kernel is fitted to half of its shapes. Two kinds were measured by themselves only in a way that models do not run them:
copies of keys for the heads that share them, and products of one row with keys that lie transposed. They reach the part of
the bandwidth that they reach in one layer of one model, by the counters of the device; their errors are those of the lines
of other models that have some. On the H200 fewer kinds were measured. The others take as long there as on the H100, which has the same
multiprocessors: they are bound by these, not by the memory; the errors are those of the H200's lines. The kernels of Mamba are fitted by every second width, and are those
of all frameworks.
"""
import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import gpu
from lm_predictor import analyze
from lm_predictor.measurement.device import Measured as Kernels, Probe, entries
from lm_predictor.measurement.fit import HIGH, errors
from lm_predictor.measurement.tables import Measured, fitted, state_spaces
from lm_predictor.models.sources.loading import load_config
from lm_predictor.timing.hardware import load_hardware
from lm_predictor.timing.kernels.calibrated import (
    ALIKE, BATCHED, COPY, EXPANSION, PYTORCH, ROW, calibration, kind_of, law, usual
)
from lm_predictor.timing.laws.law import Chip
from lm_predictor.timing.laws.product import PRODUCT, Product

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
H100, H200 = "nvidia_h100_sxm", "nvidia_h200_sxm"
FILES, UNITS = {H100: "h100", H200: "h200"}, 132  # device -> how its files begin; multiprocessors of both
LAYER = "meta-llama/Llama-3.1-8B|16|1|2048"       # model, sequences, new and cached tokens of a layer whose kernels were counted
LARGE = 20e6                                      # bytes that only a layer's larger kernels move
CACHED = 1.4  # times the bandwidth that a fit may say: no further than the H200's go of themselves
STARTS = ({}, {"launch_s": 0.3}, {"launch_s": 3})


def read(device: str, name: str) -> dict:
    return json.loads((MEASURED / f"{FILES[device]}_{name}.json").read_text())


def measure(path: Path) -> None:
    "Measure the kernels that `lm-predictor calibrate` measures, and keep each time"
    import torch
    from lm_predictor.measurement.device import measure_device
    found = measure_device(torch.device("cuda"))
    about = gpu.head(gpu.command(), bandwidth=found.bandwidth, host_kernel_s=found.launch_s)
    gpu.write(path, about, [[p.kind, p.dtype, list(p.shape), s] for p, s in found.rows])


def of_kernels(device: str) -> list:
    "Entries of the kinds that were measured by themselves"
    data, chip = read(device, "kernels"), load_hardware(device)
    kind = lambda kind, shape: ROW if kind == BATCHED and shape[1] == 1 else kind
    rows = tuple((Probe(kind(k, shape), dtype, tuple(shape)), s) for k, dtype, shape, s in data["rows"])
    found = entries(Kernels(rows, data["bandwidth"], data["host_kernel_s"]), dict(chip.peaks), chip.memory_bandwidth, (*HIGH[:2], CACHED, HIGH[3]))
    return [e | {"version": data["torch"]} for e in found]


def of_a_layer() -> list:
    "(our kernel, the seconds of the device's) of the larger kernels of that layer, in the order in which they run"
    name, batch, new, old = LAYER.split("|")
    counted = next(r for r in read(H100, "counters")["rows"] if r["name"] == LAYER)["kernels"]
    run = analyze(name).at(batch_size=int(batch), seq_len=int(new), cache_len=int(old), execution="eager")
    ours = [k for k in run.kernels if k.path.startswith("model.layers.") and k.read_bytes + k.write_bytes > LARGE]
    theirs = [c for c in counted if c["read_bytes"] + c["write_bytes"] > LARGE]
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    return [(k, c["seconds"]) for k, c in zip(ours, theirs)]


def config_of(model: str) -> dict:
    "The config of a model that was timed, with as many layers as were built"
    name, _, built = model.partition(", ")
    return load_config(name)[1] | ({"num_hidden_layers": int(built.split()[0])} if built else {})


def lines(device: str) -> list:
    "(our kernels of a line, its measured seconds) of the models whose lines were timed, but for that layer's"
    out, seen = [], LAYER.partition("|")[0]
    for r in (r for r in read(device, "models")["rows"] if "lines" in r and r["model"] != seen):
        sizes = {n: r[n] for n in ("batch_size", "seq_len", "cache_len")}
        run, by = analyze(config_of(r["model"])).at(execution="eager", **sizes), defaultdict(list)
        for k in run.kernels:
            by[k.path, k.source].append(k)
        out += [(by[path, source], s) for path, source, s in r["lines"] if by[path, source]]
    return out


def time_of(k, fits: dict, device) -> float:
    "Seconds of a kernel by the fits of 16 bits"
    kind = kind_of(k)
    while kind not in fits:
        kind = ALIKE[kind]
    compute_s, memory_s = k.matmul_flops / device.peak("bf16"), (k.read_bytes + k.write_bytes) / device.memory_bandwidth
    return law(*(fits[kind][n] for n in ("launch_s", "compute", "memory", "power")), compute_s, memory_s)


def of_lines(device: str, entry: dict, fits: dict, some: list) -> dict:
    "An entry with the errors of the lines that have its kind"
    has, chip = [(ks, s) for ks, s in some if entry["kind"] in map(kind_of, ks)], load_hardware(device)
    took = np.array([s for _, s in has])
    said = np.array([sum(k.count * time_of(k, fits, chip) for k in ks) for ks, _ in has])
    least = np.array([sum(k.count * max(k.matmul_flops / chip.peak("bf16"), (k.read_bytes + k.write_bytes) / chip.memory_bandwidth)
                          for k in ks) for ks, _ in has])
    return entry | {"held_out_rows": len(has), "held_out": errors(said, took), "roofline": errors(least, took)}


def of_pytorch() -> dict:
    "Device -> entries of all kinds of PyTorch's kernels"
    own = {device: of_kernels(device) for device in FILES}
    chip, half = load_hardware(H100), lambda entries: {e["kind"]: e for e in entries if e["dtype"] == "bfloat16"}
    fits, layer, some = half(own[H100]), of_a_layer(), {device: lines(device) for device in FILES}
    for kind, like in ((EXPANSION, COPY), (ROW, ROW)):
        parts = [(k.read_bytes + k.write_bytes) / chip.memory_bandwidth / (s - fits[like]["launch_s"])
                 for k, s in layer if kind_of(k) == kind]
        fits[kind] = fits[like] | {"kind": kind, "memory": float(f"{median(parts):.4g}"), "fitted_rows": len(parts)}
    made = [of_lines(H100, fits[kind], fits, some[H100]) for kind in (EXPANSION, ROW)]
    first = [e for e in own[H100] if (e["kind"], e["dtype"]) != (ROW, "bfloat16")] + made
    has = {e["kind"] for e in own[H200]} - {ROW}
    slower = chip.memory_bandwidth / load_hardware(H200).memory_bandwidth  # the same multiprocessors before a faster memory
    second = [e for e in own[H200] if e["kind"] in has]
    lent = {k: e | {"memory": float(f"{e['memory'] * slower:.4g}")} for k, e in fits.items() if k not in has}
    fits = {**half(second), **lent}
    other = [of_lines(H200, e | {"version": f"{e['version']}, measured on an H100"}, fits, some[H200]) for e in lent.values()]
    return {H100: first, H200: second + other}


def products(kernels: list) -> Measured:
    "The products of weights in 16 bits, as the law of products takes them"
    some = [(shape, s) for kind, dtype, shape, s in kernels if (kind, dtype) == ("product", "bfloat16")]
    m, n, k = (np.array([shape[i] for shape, _ in some], float) for i in range(3))
    work, groups = Product(m, n, k, 2.0, 2.0), np.array([f"{b:.0f}x{c:.0f}" for b, c in zip(n, k)])
    return Measured(PRODUCT, "product", "torch.nn.functional.linear", "bfloat16", "", "", work, work.flops,
                    2 * (m * k + n * k + m * n), np.array([s for _, s in some]), groups)


def chip(device: str) -> Chip:
    "A device that was measured, as laws see it"
    found = load_hardware(device)
    return Chip(found.peak("bf16"), found.memory_bandwidth, UNITS, found.l2_cache_bytes or 0)


def of_products(device: str) -> dict:
    "The entry of PyTorch's products by the law of products, held out by the shape of the weight"
    data = read(device, "kernels")
    starts = ({}, {"feed_bytes_per_flop": 5}, {"launch_s": 2, "feed_bytes_per_flop": 0.5})
    return {"framework": PYTORCH, "version": data["torch"], **fitted(products(data["rows"]), chip(device), starts), "releases_apart": None}


def others(device: str) -> None:
    "How far the laws that were fitted to the tables of others are off on the products that were measured here"
    m = products(read(device, "kernels")["rows"])
    for framework in ("sglang", "tensorrt-llm", "vllm"):
        fit = usual(f for f in calibration(device).laws if (f.kind, f.framework, f.dtype) == ("product", framework, "bfloat16"))
        off = errors(fit.time(m.work, chip(device)), m.seconds)
        print(f"products by the law of {framework}'s table: mean {off['mape']} %, median {off['median']}, 90th {off['p90']}")


def begun(law, values: dict):
    "A law that stays at values where rows do not decide"
    return replace(law, parameters=tuple(replace(p, start=values[p.name]) for p in law.parameters))


def of_mamba(device: str) -> list:
    "Entries of the kernels of Mamba; the H200's begin at the H100's, of which more widths were measured"
    data, chosen = read(device, "state_spaces"), chip(device)
    version = f"mamba {data['mamba']}, Triton {data['triton']}"
    before = {} if device == H100 else {e["kind"]: e["parameters"] for e in of_mamba(H100)}
    rows = [replace(m, law=begun(m.law, before[m.kind])) if before else m for m in state_spaces(data["rows"])]
    return [{"framework": "", "version": version, **fitted(m, chosen, STARTS), "releases_apart": None} for m in rows]


def write(name: str, pytorch: list, host: float, laws: list) -> None:
    "Put the entries into a device's file, in the place of those that it has of them"
    path = ROOT / "hardware" / "calibrated" / f"{name}.json"
    data, kinds = json.loads(path.read_text()), {e["kind"] for e in laws if not e["framework"]}
    fits = [e for e in data["fits"] if e["framework"] != PYTORCH] + pytorch
    laws = [e for e in data["laws"] if e["kind"] not in kinds and e["framework"] != PYTORCH] + laws
    data.pop("host_kernel_s", None)
    head = {k: v for k, v in data.items() if k not in ("fits", "laws")} | {"host_kernel_s": {PYTORCH: host}}
    rows = lambda some: ",\n".join("  " + json.dumps(e) for e in some)
    path.write_text(json.dumps(head)[:-1] + f', "fits": [\n{rows(fits)}\n], "laws": [\n{rows(laws)}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure the kernels of this machine's CUDA device")
    parser.add_argument("--write", action="store_true", help="write hardware/calibrated")
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure)
    for device, pytorch in of_pytorch().items():
        print(f"\n{device}")
        laws = [of_products(device), *of_mamba(device)]
        for e in pytorch + laws:
            print(f"{e['kind']:24} {e['dtype']:9} fitted {e['fitted_rows']:4}, held out {e['held_out_rows']:4}: mean {e['held_out']['mape']:5.1f} %, "
                  f"median {e['held_out']['median']:5.1f}, 90th {e['held_out']['p90']:5.1f}; roofline {e['roofline']['mape']:5.1f}")
        if args.write:
            write(device, pytorch, read(device, "kernels")["host_kernel_s"], laws)
    for device in of_pytorch():
        print(f"\n{device}")
        others(device)


if __name__ == "__main__":
    main()
