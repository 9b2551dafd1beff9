"""Fit the laws of kernels to the measured tables of aiconfigurator-core.

    pip install -e ".[calibration]"
    python benchmarks/fit_kernels.py                           # every device: prints held-out errors; about an hour
    python benchmarks/fit_kernels.py --device h100_sxm --write  # writes hardware/calibrated/DEVICE.json
    python benchmarks/fit_kernels.py --show                    # what hardware/calibrated says, as a table; no tables needed

A fifth of the (N, K) pairs, of the head configurations or of the expert sizes is fitted; the errors are those of the
others. Beside them stands the plain roofline on the same rows, and how far the same shapes are apart under two releases.
"""
import argparse
import json
import time
from pathlib import Path

import numpy as np

from lm_predictor.measurement.fit import HIGH, LOW, NAMES, errors, fit_law, fitted_groups
from lm_predictor.measurement.tables import FRAMEWORKS, TABLES, fitted, measured_rows, releases
from lm_predictor.timing.calibrated import law
from lm_predictor.timing.hardware import load_hardware
from lm_predictor.timing.laws.law import Chip

ROOT = Path(__file__).parents[1]
SOURCE = "aiconfigurator-core 0.12.0 on PyPI (Apache-2.0), systems/data/"
# folder of the tables -> our device, and its multiprocessors: CUDA cores of the datasheet over those of one (64 in
# A100, 128 in the others)
DEVICES = {"a100_sxm": ("nvidia_a100_sxm_80gb", 108), "h100_sxm": ("nvidia_h100_sxm", 132),
           "h200_sxm": ("nvidia_h200_sxm", 132), "l40s": ("nvidia_l40s", 142), "b200_sxm": ("nvidia_b200", 148),
           "b300_sxm": ("nvidia_b300", 148), "gb200": ("nvidia_gb200", 148), "gb300": ("nvidia_gb300", 148),
           "rtx_pro_6000_server": ("nvidia_rtx_pro_6000_blackwell_server", 188),
           "h100_pcie": ("nvidia_h100_pcie", 114), "a100_pcie": ("nvidia_a100_pcie_80gb", 108), "l4": ("nvidia_l4", 58)}
PEAK = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8"}
STARTS = {"product": ({}, {"feed_bytes_per_flop": 5}, {"launch_s": 2, "feed_bytes_per_flop": 0.5}),
          "context attention": ({}, {"packed": 0.1, "launch_s": 0.3}), "decode attention": ({}, {"launch_s": 0.3, "rows": 4}),
          "experts": ({}, {"launch_s": 0.3}, {"prologue_s": 5}), "stream": ({}, {"launch_s": 3, "block_s": 10})}


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
    known = [{(m.dtype, m.cache, m.heads, str(key)): s for m in measured_rows(f, table)
              for key, s in zip(zip(m.groups, *(np.broadcast_to(getattr(m.work, n), m.seconds.shape) for n in vars(m.work))),
                                m.seconds)} for f in files]
    off = [abs(known[0][k] / known[1][k] - 1) for k in known[0].keys() & known[1].keys()]
    return round(100 * float(np.median(off)), 1) if len(off) > 100 else None


def device_entries(folder, name, units):
    "Every implementation of the newest release of each framework: (its fit, its four-parameter fit)"
    device = load_hardware(name)
    for table in TABLES:
        for ours, framework in FRAMEWORKS.items():
            files = releases(folder, table, ours)
            if not files:
                continue
            again, begin = repeat(folder, table, ours), {}
            for m in measured_rows(files[0], table):
                if PEAK[m.dtype] not in dict(device.peaks):
                    continue
                chip, t = Chip(device.peak(PEAK[m.dtype]), device.memory_bandwidth, units, device.l2_cache_bytes or 0), time.time()
                starts = (begin[m.law.kind],) if m.law.kind in begin else STARTS[m.law.kind]
                entry = fitted(m, chip, starts)
                if entry is None:
                    continue
                begin[m.law.kind] = {p.name: entry["parameters"][p.name] / p.start for p in m.law.parameters}
                entry = {"framework": framework, "version": files[0].parent.name, **entry, "releases_apart": again}
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


def write(name, folder, units, entries):
    rows = lambda some: ",\n".join("  " + json.dumps(e) for e in some)
    (ROOT / "hardware/calibrated" / f"{name}.json").write_text(
        f'{{"device": "{name}", "source": "{SOURCE}{folder}", "command": "python benchmarks/fit_kernels.py --write", '
        f'"units": {units}, "fits": [\n{rows(steps(entries))}\n], "laws": [\n{rows(e for e, _ in entries)}\n]}}\n')


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="the folder aiconfigurator_core; without it the installed package")
    parser.add_argument("--device", action="append", help="only this device's folder, such as h100_sxm")
    parser.add_argument("--write", action="store_true", help="write hardware/calibrated/DEVICE.json")
    parser.add_argument("--show", action="store_true", help="print what hardware/calibrated says")
    args = parser.parse_args()
    if args.show:
        return show()
    if args.tables is None:
        import aiconfigurator_core
        args.tables = Path(aiconfigurator_core.__file__).parent
    for folder in args.device or DEVICES:
        name, units = DEVICES[folder]
        try:
            entries = list(device_entries(args.tables / "systems/data" / folder, name, units))
        except ValueError as e:
            print(f"{folder}: {e}")
            continue
        if args.write:
            write(name, folder, units, entries)


if __name__ == "__main__":
    main()
