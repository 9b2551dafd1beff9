"What the measurements on a GPU share: the files that they are kept in"
import json
import subprocess
import sys
import time
from pathlib import Path


def head(command: str, **more) -> dict:
    "Which device, with which versions, and by which command"
    import torch
    said = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    return {"device": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "driver": said.stdout.split("\n")[0],
            "torch": torch.__version__, **more, "command": command}


def rounded(value):
    "Seconds and bytes to five digits: what is measured has no more"
    if isinstance(value, float):
        return float(f"{value:.5g}") if value < 1 else value
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def write(path: Path, about: dict, rows: list) -> None:
    "A row for each line, so that a difference can be read"
    lines = ",\n".join(" " + json.dumps(rounded(r) if isinstance(r, list) else {k: rounded(v) for k, v in r.items()}) for r in rows)
    path.write_text(json.dumps(about)[:-1] + f', "rows": [\n{lines}\n]}}\n')


def command() -> str:
    "The command that runs, without the folders of this machine"
    script, *rest = sys.argv
    return " ".join(["python", f"benchmarks/{Path(script).name}", *("FILE" if "/" in a and a.endswith(".json") else a for a in rest)])
