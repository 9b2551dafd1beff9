"""For which sizes of experts do frameworks ship a tile that somebody has tuned?

    pip download --no-deps sglang==0.5.14 vllm==0.24.0
    python benchmarks/tuned_experts.py sglang-*.whl vllm-*.whl

A wheel has a file for each number of experts, inner width, device and type for which the tiles of the Triton kernel of
experts were tuned; for all others the framework's default tile is run. The names are kept in
benchmarks/tuned_experts.json, which `fit_kernels.py` reads.
"""
import json
import re
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

TYPES = {"": "bfloat16", ",dtype=bf16": "bfloat16", ",dtype=fp8_w8a8": "fp8", ",dtype=fp8_w8a8,block_shape=[128,128]": "fp8_block"}
NAME = re.compile(r"E=(\d+),N=(\d+),device_name=([^,]+?)((?:,.*)?)\.json$")


def sizes(wheel: Path) -> dict:
    "Device -> type -> (experts, inner width) of the files of a wheel"
    found = defaultdict(lambda: defaultdict(set))
    for path in zipfile.ZipFile(wheel).namelist():
        if match := NAME.search(path):
            experts, inner, device, rest = match.groups()
            if (kind := TYPES.get(rest.replace(", ", ","))) and not device.endswith("_down"):
                found[device.replace("_", " ")][kind].add((int(experts), int(inner)))
    return {device: {kind: sorted(pairs) for kind, pairs in sorted(kinds.items())} for device, kinds in sorted(found.items())}


def main() -> None:
    wheels = [Path(name) for name in sys.argv[1:]]
    if not wheels or not all(w.suffix == ".whl" and w.exists() for w in wheels):
        sys.exit("tuned_experts.py takes the wheels of sglang and vllm: pip download --no-deps sglang==0.5.14 vllm==0.24.0")
    found = {w.name.split("-")[0]: {"version": w.name.split("-")[1], "sizes": sizes(w)} for w in wheels}
    path = Path(__file__).with_name("tuned_experts.json")
    path.write_text(re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", json.dumps(found, indent=1)) + "\n")
    print(f"{sum(len(p) for f in found.values() for k in f['sizes'].values() for p in k.values())} sizes in {path.name}")


if __name__ == "__main__":
    main()
