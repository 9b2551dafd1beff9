"""Fit what was measured on a GPU of our own: PyTorch's kernels, and the kernels of Mamba.

    python benchmarks/fit_gpu.py --measure kernels.json   # on a machine with a CUDA device, a minute
    python benchmarks/fit_gpu.py                          # held-out errors of benchmarks/measured
    python benchmarks/fit_gpu.py --write                  # and writes them into hardware/calibrated

The files in benchmarks/measured say on which device, with which versions and by which command each was made. Products and
operators that go straight over their numbers are fitted to half of their shapes. Copies into another order, numbers that
become wider, operands of unlike shapes and reductions were not measured by themselves there: they take the launch of the
straight ones, and the part of the bandwidth that they reach in one layer of one model, by the counters of the device;
their errors are those of the lines of other models that have some of the kind, and no product. The kernels of Mamba are
fitted by every second width, and are those of all frameworks; an H100 takes the same laws at its own peaks.
"""
import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np

from lm_predictor import analyze
from lm_predictor.measurement.fit import NAMES, errors
from lm_predictor.measurement.tables import Measured, fitted, state_spaces
from lm_predictor.timing.hardware import load_hardware
from lm_predictor.timing.kernels.calibrated import (
    COPY, POINTWISE, PYTORCH, REDUCTION, UNLIKE, WIDENING, calibration, kind_of, law, usual
)
from lm_predictor.timing.laws.law import Chip
from lm_predictor.timing.laws.product import PRODUCT, Product

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
DEVICE, UNITS, LIKE = "nvidia_h200_sxm", 132, "nvidia_h100_sxm"
STARTS = ({}, {"launch_s": 0.3}, {"launch_s": 3})


def read(name: str) -> dict:
    return json.loads((MEASURED / name).read_text())


def measure(path: Path) -> None:
    "Measure the kernels that `lm-predictor calibrate` measures, and keep each time"
    import torch
    from lm_predictor.measurement.device import measure_device
    found = measure_device(torch.device("cuda"))
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "bandwidth": found.bandwidth,
            "host_kernel_s": found.launch_s}
    path.write_text(json.dumps(head | {"rows": [[p.kind, p.dtype, p.shape, s] for p, s in found.rows]}) + "\n")


def of_kernels() -> tuple[list, float]:
    "Entries of the kinds that were measured by themselves, and the host's seconds for each kernel"
    from lm_predictor.measurement.device import Measured as Kernels, Probe, entries
    data, device = read("h200_kernels.json"), load_hardware(DEVICE)
    rows = tuple((Probe(kind, dtype, tuple(shape)), s) for kind, dtype, shape, s in data["rows"])
    found = entries(Kernels(rows, data["bandwidth"], data["host_kernel_s"]), dict(device.peaks), device.memory_bandwidth)
    return [e | {"version": data["torch"]} for e in found], data["host_kernel_s"]


def counted_layer() -> dict:
    "The layer whose kernels were counted"
    return next(r for r in read("h200_counters.json")["rows"] if "|" in r["name"])


def of_a_layer() -> list:
    "(our kernel, the seconds of the device's) of that layer, in the order in which they run"
    counted = counted_layer()
    name, batch, new, old = counted["name"].split("|")
    run = analyze(name).at(batch_size=int(batch), seq_len=int(new), cache_len=int(old), execution="eager")
    ours = [k for k in run.kernels if k.path.startswith("model.layers.")]
    assert len(ours) == len(counted["kernels"]), (len(ours), len(counted["kernels"]))
    return [(k, c["seconds"]) for k, c in zip(ours, counted["kernels"])]


def lines() -> list:
    "(our kernels of a line, its measured seconds) of the models whose lines were timed with all layers, but for that layer's"
    out, seen = [], counted_layer()["name"].partition("|")[0]
    for r in (r for r in read("h200_models.json")["rows"] if "lines" in r and "," not in r["model"] and r["model"] != seen):
        run, by = analyze(r["model"]).at(execution="eager", **{n: r[n] for n in ("batch_size", "seq_len", "cache_len")}), defaultdict(list)
        for k in run.kernels:
            by[k.path, k.source].append(k)
        out += [(by[path, source], s) for path, source, s in r["lines"] if by[path, source]]
    return out


def of_lines(known: list) -> list:
    "Entries of the kinds that were measured within a layer alone; known: those of the others"
    straight = next(e for e in known if (e["kind"], e["dtype"]) == (POINTWISE, "bfloat16"))
    device, launch = load_hardware(DEVICE), straight["launch_s"]
    memory_s = lambda k: (k.read_bytes + k.write_bytes) / device.memory_bandwidth
    layer, parts, many = of_a_layer(), {POINTWISE: straight["memory"]}, {}
    for kind in (kind for kind in (COPY, WIDENING, UNLIKE, REDUCTION) if kind not in {e["kind"] for e in known}):
        own = [(memory_s(k), s) for k, s in layer if kind_of(k) == kind and memory_s(k) > launch]
        parts[kind], many[kind] = float(f"{median(m / (s - launch) for m, s in own):.4g}"), len(own)
    time = lambda k: law(launch, straight["compute"], parts[kind_of(k)], straight["power"], 0.0, memory_s(k))
    others = [(ks, s) for ks, s in lines() if {kind_of(k) for k in ks} <= parts.keys()]
    out = []
    for kind, used in many.items():
        has = [(ks, s) for ks, s in others if kind in map(kind_of, ks)]
        said, least = (np.array([sum(k.count * f(k) for k in ks) for ks, _ in has]) for f in (time, memory_s))
        took = np.array([s for _, s in has])
        out.append(straight | {"kind": kind, "memory": parts[kind], "fitted_rows": used, "held_out_rows": len(has),
                               "held_out": errors(said, took), "roofline": errors(least, took)})
    return out


def products(kernels: list) -> Measured:
    "The products of weights in 16 bits, as the law of products takes them"
    some = [(shape, s) for kind, dtype, shape, s in kernels if (kind, dtype) == ("product", "bfloat16")]
    m, n, k = (np.array([shape[i] for shape, _ in some], float) for i in range(3))
    work, groups = Product(m, n, k, 2.0, 2.0), np.array([f"{b:.0f}x{c:.0f}" for b, c in zip(n, k)])
    return Measured(PRODUCT, "product", "torch.nn.functional.linear", "bfloat16", "", "", work, work.flops,
                    2 * (m * k + n * k + m * n), np.array([s for _, s in some]), groups)


def chip() -> Chip:
    "The device that was measured, as laws see it"
    device = load_hardware(DEVICE)
    return Chip(device.peak("bf16"), device.memory_bandwidth, UNITS, device.l2_cache_bytes or 0)


def of_products() -> dict:
    "The entry of PyTorch's products by the law of products, held out by the shape of the weight"
    data = read("h200_kernels.json")
    starts = ({}, {"feed_bytes_per_flop": 5}, {"launch_s": 2, "feed_bytes_per_flop": 0.5})
    return {"framework": PYTORCH, "version": data["torch"], **fitted(products(data["rows"]), chip(), starts), "releases_apart": None}


def others() -> None:
    "How far the laws that were fitted to the tables of others are off on the products that were measured here"
    m = products(read("h200_kernels.json")["rows"])
    for framework in ("sglang", "tensorrt-llm", "vllm"):
        fit = usual(f for f in calibration(DEVICE).laws if (f.kind, f.framework, f.dtype) == ("product", framework, "bfloat16"))
        off = errors(fit.time(m.work, chip()), m.seconds)
        print(f"products by the law of {framework}'s table: mean {off['mape']} %, median {off['median']}, 90th {off['p90']}")


def of_mamba(device_name: str) -> list:
    "Entries of the kernels of Mamba, fitted on the device that they were measured on"
    data = read("h200_state_spaces.json")
    version = f"mamba {data['mamba']}, Triton {data['triton']}" + ("" if device_name == DEVICE else ", measured on an H200")
    return [{"framework": "", "version": version, **fitted(m, chip(), STARTS), "releases_apart": None}
            for m in state_spaces(data["rows"])]


def write(name: str, pytorch: list, host: float, laws: list) -> None:
    "Put the entries into a device's file, in the place of those that it has of them"
    path = ROOT / "hardware" / "calibrated" / f"{name}.json"
    data, kinds = json.loads(path.read_text()), {e["kind"] for e in laws if not e["framework"]}
    fits = [e for e in data["fits"] if e["framework"] != PYTORCH] + pytorch
    laws = [e for e in data["laws"] if e["kind"] not in kinds and e["framework"] != PYTORCH] + laws
    data.pop("host_kernel_s", None)
    head = {k: v for k, v in data.items() if k not in ("fits", "laws")} | ({"host_kernel_s": {PYTORCH: host}} if pytorch else {})
    rows = lambda some: ",\n".join("  " + json.dumps(e) for e in some)
    path.write_text(json.dumps(head)[:-1] + f', "fits": [\n{rows(fits)}\n], "laws": [\n{rows(laws)}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure the kernels of this machine's CUDA device")
    parser.add_argument("--write", action="store_true", help="write hardware/calibrated")
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure)
    kernels, host = of_kernels()
    pytorch = kernels + of_lines(kernels)
    laws = [of_products(), *of_mamba(DEVICE)]
    for e in pytorch + laws:
        print(f"{e['kind']:18} {e['dtype']:9} fitted {e['fitted_rows']:4}, held out {e['held_out_rows']:4}: mean {e['held_out']['mape']:5.1f} %, "
              f"median {e['held_out']['median']:5.1f}, 90th {e['held_out']['p90']:5.1f}; roofline {e['roofline']['mape']:5.1f}")
    others()
    if args.write:
        write(DEVICE, pytorch, host, laws)
        write(LIKE, [], 0.0, of_mamba(LIKE))


if __name__ == "__main__":
    main()
