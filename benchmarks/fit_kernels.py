"""Fit the laws of kernels to the measured tables of aiconfigurator-core.

    pip install -e ".[calibration]"
    python benchmarks/fit_kernels.py                           # every device: prints held-out errors; about an hour
    python benchmarks/fit_kernels.py --device h100_sxm --write  # writes hardware/calibrated/DEVICE.json
    python benchmarks/fit_kernels.py --show                    # what hardware/calibrated says, every fit; no tables needed
    python benchmarks/fit_kernels.py --apart                   # how far the same products are apart under two frameworks
    python benchmarks/fit_kernels.py --overview                # and the means of each device, framework and kind

A fifth of the (N, K) pairs, of the head configurations or of the expert sizes is fitted; the errors are those of the
others. Beside them stands the plain roofline on the same rows, and how far the same shapes are apart under two releases.
"""
import argparse
import json
import time
from pathlib import Path

import numpy as np

from lm_predictor.measurement.fit import HIGH, LOW, NAMES, errors, fit_law, fitted_groups
from lm_predictor.measurement.tables import FRAMEWORKS, TABLES, fitted, measured_rows, possible, releases, taken
from lm_predictor.timing.kernels.calibrated import calibration, law, usual
from lm_predictor.timing.hardware import load_hardware
from lm_predictor.timing.laws.law import Chip

ROOT = Path(__file__).parents[1]
TUNED = json.loads(Path(__file__).with_name("tuned_experts.json").read_text())  # of `tuned_experts.py`
SOURCE = "aiconfigurator-core 0.12.0 on PyPI (Apache-2.0), systems/data/"
# folder of the tables -> our device, and its multiprocessors: CUDA cores of the datasheet over those of one (64 in
# A100, 128 in the others)
DEVICES = {"a100_sxm": ("nvidia_a100_sxm_80gb", 108), "h100_sxm": ("nvidia_h100_sxm", 132),
           "h200_sxm": ("nvidia_h200_sxm", 132), "l40s": ("nvidia_l40s", 142), "b200_sxm": ("nvidia_b200", 148),
           "b300_sxm": ("nvidia_b300", 148), "gb200": ("nvidia_gb200", 148), "gb300": ("nvidia_gb300", 148),
           "rtx_pro_6000_server": ("nvidia_rtx_pro_6000_blackwell_server", 188),
           "h100_pcie": ("nvidia_h100_pcie", 114), "a100_pcie": ("nvidia_a100_pcie_80gb", 108), "l4": ("nvidia_l4", 58)}
PEAK = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "w4a16_mxfp4": "bf16",
        "w4a8_mxfp4_mxfp8": "fp8", "int4_wo": "bf16"}
# bytes per second from a device to the others, one way: half of the NVLink rate of its datasheet, PCIe 4 or 5 x16 else
LINKS = {"a100_sxm": 300e9, "h100_sxm": 450e9, "h200_sxm": 450e9, "b200_sxm": 900e9, "b300_sxm": 900e9, "gb200": 900e9,
         "gb300": 900e9, "l40s": 32e9, "rtx_pro_6000_server": 64e9, "h100_pcie": 64e9, "a100_pcie": 32e9, "l4": 32e9}
# how many times its start a parameter is where a fit begins, more than once where the law has more than one regime
STARTS = {"product": ({}, {"feed_bytes_per_flop": 5}, {"launch_s": 2, "feed_bytes_per_flop": 0.5},
                      {"l2_gain": 2, "result_part": 3, "input_part": 3}, {"l2_gain": 2, "result_part": 3, "input_part": 0.5}),
          "context attention": ({}, {"packed": 0.1, "launch_s": 0.3}, {"l2_gain": 3, "unskipped": 15}, {"uneven_s": 500},
                                {"window_tile_s": 20}, {"wide_rows": 0.64, "longest": 0.5},
                                {"wide_rows": 0.64, "l2_gain": 3, "unskipped": 20}),
          "decode attention": ({"launch_s": 0.3, "rows": 4}, {"most_parts": 0.5, "uneven_s": 500},
                               {"most_parts": 1 / 64, "window_parts": 1 / 16, "window_packed": 0.03, "l2_gain": 3},
                               {"split_blocks": 8, "window_split": 50, "key_s": 10},
                               {"window_reread": 20, "window_packed": 0.03, "window_parts": 1 / 16, "most_parts": 1 / 64,
                                "l2_gain": 3, "l2_part": 2}),
          "experts": ({}, {"launch_s": 0.3}, {"prologue_s": 5}, {"l2_gain": 3}, {"launch_s": 0.3, "step_s": 40, "reread": 8}),
          "stream": ({}, {"launch_s": 3, "block_s": 10}, {"l2_gain": 3}), "all-reduce": ({}, {"link": 2}, {"shared": 500})}


CALLED = {"call_s": 100}  # where a product begins beside the fit of the one before it


def simple(m, chip):
    "The four-parameter law of the same rows: what a step of several frameworks' kernels is composed of"
    chosen = fitted_groups(m.groups)
    compute, memory = m.flops / chip.peak, m.nbytes / chip.bandwidth
    if m.kind != "product" or chosen.sum() < 200:
        return None
    x = fit_law(compute[chosen], memory[chosen], m.seconds[chosen])
    held = errors(law(*x, compute[~chosen], memory[~chosen]), m.seconds[~chosen])
    return dict(zip(NAMES, (float(f"{v:.4g}") for v in x)), held_out=held)


def repeat(folder, table, framework):
    "By how many percent the same shapes are apart under the two newest releases, in the median; None with one release"
    files = releases(folder, table, framework)[:2]
    if len(files) < 2:
        return None
    known = [{(m.dtype, m.cache, m.heads, str(key)): s for m in measured_rows(f, table, TUNED)
              for key, s in zip(zip(m.groups, *(np.broadcast_to(getattr(m.work, n), m.seconds.shape) for n in vars(m.work))),
                                m.seconds)} for f in files]
    off = [abs(known[0][k] / known[1][k] - 1) for k in known[0].keys() & known[1].keys()]
    return round(100 * float(np.median(off)), 1) if len(off) > 100 else None


def newest(folder, table, framework):
    "Each implementation in the newest release that has its types: (release, its rows)"
    known = set()
    for path in releases(folder, table, framework):
        held = [m for m in measured_rows(path, table, TUNED) if (m.kind, m.dtype, m.cache, m.heads) not in known]
        sound = [m for m in held if len(set(m.groups)) > 1 and len(m.seconds) >= 30]
        known |= {(m.kind, m.dtype, m.cache, m.heads) for m in sound if len(m.seconds) >= 1000 or m.law.kind != "experts"}
        yield from ((path.parent.name, m) for m in sound)


def device_entries(folder, name, units, only):
    "Every implementation of the newest release of each framework: (its fit, its four-parameter fit)"
    device = load_hardware(name)
    for table in only:
        for ours, framework in FRAMEWORKS.items():
            again, begin = repeat(folder, table, ours), {}
            for version, m in newest(folder, table, ours):
                if PEAK[m.dtype] not in dict(device.peaks):
                    continue
                rate = LINKS[folder.name] if table == "all-reduce" else device.memory_bandwidth
                chip, t = Chip(device.peak(PEAK[m.dtype]), rate, units, device.l2_cache_bytes or 0), time.time()
                first = (begin[m.law.kind],) if m.law.kind in begin else ()
                starts = (*(first or STARTS["product"]), CALLED) if m.law.kind == "product" else (*first, *STARTS[m.law.kind])
                entry = fitted(m, chip, starts)
                if entry is None:
                    continue
                begin[m.law.kind] = {p.name: entry["parameters"][p.name] / p.start for p in m.law.parameters}
                entry = {"framework": framework, "version": version, **entry, "releases_apart": again}
                print(f"{folder.name:10} {entry['kind']:18} {framework:13} {m.dtype:9} {m.cache:9} {m.heads:5} {m.kernel[:34]:34}"
                      f" held out {entry['held_out']['mape']:5.1f} %  roofline {entry['roofline']['mape']:5.1f} %"
                      f"  {len(m.seconds):6} rows {time.time() - t:4.0f} s", flush=True)
                yield entry, simple(m, chip)


def sound(four):
    "Whether launch and memory are inside of their bounds; a fit at them has no physical meaning"
    return all(1.01 * LOW[i] < four[NAMES[i]] < 0.99 * HIGH[i] for i in (0, 2))


def steps(entries):
    "The efficiencies of a framework's products by the four-parameter law: for each type those of the kernel of most rows"
    rows = lambda pair: pair[0]["fitted_rows"] + pair[0]["held_out_rows"]
    for of_type in sorted({(e["framework"], e["dtype"]) for e, _ in entries if e["kind"] == "product"}):
        entry, four = max((p for p in entries if p[1] and (p[0]["framework"], p[0]["dtype"]) == of_type), key=rows)
        if sound(four):
            yield {k: entry[k] for k in ("kind", "framework", "version", "dtype", "cache", "roofline")} | four | {
                "fitted_rows": entry["fitted_rows"], "held_out_rows": entry["held_out_rows"]}


LINEAR = ("convolution", "recurrent state", "chunked scan")  # kinds of the three tables of linear attention,
THREE = ("delta rule", "mamba2", "kda")                      # which are fitted together: a file has no table of a fit


def write(name, folder, units, entries, only):
    "Write a device's file; what it has of tables that were not fitted now stays, and what `fit_gpu.py` wrote"
    path = ROOT / "hardware/calibrated" / f"{name}.json"
    kinds = {kind for t in only for kind in (LINEAR if t in THREE else (t,))}
    old = json.loads(path.read_text()) if path.exists() else {}
    mine = lambda e: e["framework"] not in FRAMEWORKS.values()
    four = (list(steps(entries)) or [e for e in old.get("fits", []) if not mine(e)]) + [e for e in old.get("fits", []) if mine(e)]
    laws = [e for e in old.get("laws", []) if e["kind"] not in kinds or mine(e)] + [e for e, _ in entries]
    host = f'"host_kernel_s": {json.dumps(old["host_kernel_s"])}, ' if "host_kernel_s" in old else ""
    rows = lambda some: ",\n".join("  " + json.dumps(e) for e in some)
    path.write_text(
        f'{{"device": "{name}", "source": "{SOURCE}{folder}", "command": "python benchmarks/fit_kernels.py --write", '
        f'"units": {units}, "link_bytes_per_s": {LINKS[folder]:.0f}, {host}"fits": [\n{rows(four)}\n], "laws": [\n{rows(laws)}\n]}}\n')


def show():
    "Held-out errors of every shipped fit: a row for each device and kind, an implementation of most rows each"
    print(f"{'device':38} {'kind':18} {'framework':13} {'type':9} {'cache':9} {'heads':5} {'kernel':34} "
          f"{'mean':>5} {'median':>6} {'p90':>5}  roofline  releases  rows")
    for path in sorted((ROOT / "hardware/calibrated").glob("*.json")):
        data = json.loads(path.read_text())
        for e in data.get("laws", ()):
            h = e["held_out"]
            print(f"{data['device']:38} {e['kind']:18} {e['framework']:13} {e['dtype']:9} {e['cache']:9} {e['heads']:5} "
                  f"{e['kernel'][:34]:34} {h['mape']:5.1f} {h['median']:6.1f} {h['p90']:5.1f}  {e['roofline']['mape']:8.1f}  "
                  f"{e['releases_apart'] or '':>8}  {e['held_out_rows']}")


def transfer(tables):
    "How far a device's laws are off on another device, of which they take the datasheet alone"
    print(f"{'from':12} {'to':20} {'kind':18} {'framework':13}  mean  median   90th")
    for source, target in (("h100_sxm", "h200_sxm"), ("b200_sxm", "b300_sxm"), ("a100_sxm", "h100_sxm"), ("h100_sxm", "b200_sxm"),
                           ("h100_sxm", "rtx_pro_6000_server"), ("h100_sxm", "l40s")):
        own, (name, units) = calibration(DEVICES[source][0]), DEVICES[target]
        device = load_hardware(name)
        chip = Chip(device.peak("bf16"), device.memory_bandwidth, units, device.l2_cache_bytes or 0)
        for kind in ("product", "context attention", "decode attention", "latent context", "latent decode"):
            for ours, framework in FRAMEWORKS.items():
                known = [f for f in own.laws if f.kind == kind and f.framework == framework]
                off = []
                for m in (m for path in releases(tables / target, kind, ours)[:1] for m in measured_rows(path, kind)):
                    same = [f for f in known if (f.dtype, f.cache, f.heads) == (m.dtype, m.cache, m.heads) and m.dtype == "bfloat16"]
                    if same and m.cache in ("", "bfloat16"):
                        rows = possible(m, chip)
                        said = usual(same).time(taken(m.work, rows), chip)
                        off.append(np.abs(said / m.seconds[rows] - 1))
                if off:
                    off = 100 * np.concatenate(off)
                    print(f"{source:12} {target:20} {kind:18} {framework:13} {off.mean():5.1f}  {np.median(off):6.1f}  {np.quantile(off, 0.9):5.1f}")


def apart(tables):
    "How far the same products are apart in the tables of two frameworks, both of which call cuBLAS through PyTorch"
    print(f"{'device':20} {'':24}   mean  median  90th, % of the second")
    for folder in DEVICES:
        known = {}
        for framework in FRAMEWORKS:
            for m in (m for path in releases(tables / folder, "product", framework)[:1] for m in measured_rows(path, "product")):
                if m.dtype == "bfloat16":
                    known[framework] = dict(zip(zip(m.work.m, m.work.n, m.work.k), m.seconds))
        for one, other in (("sglang", "vllm"), ("trtllm", "vllm")):
            both = known.get(one, {}).keys() & known.get(other, {}).keys()
            if len(both) > 1000:
                off = 100 * np.abs(np.array([known[one][k] / known[other][k] for k in both]) - 1)
                print(f"{folder:20} {FRAMEWORKS[one]:12} {FRAMEWORKS[other]:12}  {off.mean():4.1f}    {np.median(off):4.1f}  {np.quantile(off, 0.9):4.1f}")


KINDS = ("product", "context attention", "decode attention", "latent context", "latent decode", "experts", "convolution",
         "recurrent state", "chunked scan", "all-reduce")


def overview():
    "Mean held-out errors in 16 bits, over all rows of a kind, law / roofline: a Markdown row for each device and framework"
    print("| device | framework |", " | ".join(KINDS), "|\n|---|---|" + "---:|" * len(KINDS))
    for path in sorted((ROOT / "hardware/calibrated").glob("*.json")):
        laws = [e for e in json.loads(path.read_text()).get("laws", ()) if (e["dtype"], e["cache"] or "bfloat16") == ("bfloat16",) * 2]
        for framework in sorted({e["framework"] for e in laws} & set(FRAMEWORKS.values())):
            cells = []
            for kind in KINDS:
                some = [e for e in laws if (e["framework"], e["kind"]) == (framework, kind)]
                rows = [e["held_out_rows"] for e in some]
                mean = lambda what: np.average([e[what]["mape"] for e in some], weights=rows)
                cells.append(f"{mean('held_out'):.1f} / {mean('roofline'):.0f}" if some else "")
            print(f"| {path.stem.removeprefix('nvidia_')} | {framework} |", " | ".join(cells), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="the folder aiconfigurator_core; without it the installed package")
    parser.add_argument("--device", action="append", help="only this device's folder, such as h100_sxm")
    parser.add_argument("--table", action="append", choices=TABLES, help="only this table; a file keeps its other kinds")
    parser.add_argument("--write", action="store_true", help="write hardware/calibrated/DEVICE.json")
    parser.add_argument("--transfer", action="store_true", help="print how far laws are off on a device that they were not fitted to")
    parser.add_argument("--apart", action="store_true", help="print how far products are apart in the tables of two frameworks")
    parser.add_argument("--overview", action="store_true", help="print the mean errors of each device, framework and kind")
    parser.add_argument("--show", action="store_true", help="print what hardware/calibrated says")
    args = parser.parse_args()
    if args.show or args.overview:
        return show() if args.show else overview()
    if args.tables is None:
        import aiconfigurator_core
        args.tables = Path(aiconfigurator_core.__file__).parent
    if args.transfer or args.apart:
        return (transfer if args.transfer else apart)(args.tables / "systems/data")
    for folder in args.device or DEVICES:
        name, units = DEVICES[folder]
        try:
            asked = args.table or list(TABLES)
            only = [t for t in TABLES if t in asked or t in THREE and {*asked} & {*THREE}]
            entries = list(device_entries(args.tables / "systems/data" / folder, name, units, only))
        except ValueError as e:
            print(f"{folder}: {e}")
            continue
        if args.write and entries:
            write(name, folder, units, entries, only)


if __name__ == "__main__":
    main()
