"""Does the command line still answer what it answered before?

    python benchmarks/cli_outputs.py DIR [--checkout CHECKOUT]

Runs the same 40 commands each time and writes what each one answers into DIR/NN.txt: the command, its exit status,
stdout, stderr and the names of the files that it wrote. Those files themselves go into DIR/NN. `diff -r DIR1 DIR2`
then compares two checkouts, or two runs of one. The package of the checkout is copied and the copy runs, in a
temporary folder with a database of its own: a command that stores something leaves the checkout as it is. Nothing is
fetched and no key is used. Temporary paths, dates and seconds that a command took are replaced in what is written. The
hash seed is fixed, as `verify MODEL` lists the classes in an order that depends on it. The exit status is 1 where a
command ends with a traceback: two checkouts that are broken alike are not the same answer.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from configparser import ConfigParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600  # seconds that one command may take
GELU = "transformers.activations.FastGELUActivation"

# One command a line, as in a shell: variables of the environment first. They run in this order, in one folder.
COMMANDS = """
--help
COLUMNS=80 analyze --help
explore --help
models
hardware
hardware h100
analyze meta-llama/Llama-2-7b-hf
analyze llama-2-7b --logits all --execution eager --format json
analyze llama-2-7b --execution fused --hardware a100 --sort order --w-bits 8 --a-bits 8 --kv-bits 8
analyze gpt2 --execution eager --batch-size 8 --cache-len 511 --format csv
analyze qwen3-30b-a3b --batch-size 16 --cache-len 4096 --active-experts 64 --hardware h100
COLUMNS=90 analyze mixtral-8x7b --layers --hardware h200 --w-bits 4
analyze mamba2-2.7b --seq-len 4096 --execution fused --format json
analyze mistral-7b-v0.1 --seq-len 6000 --cache-len 1_000 --execution eager --logits all --format csv
analyze gemma-3-27b --batch-size 2 --cache-len 100,000 --hardware nvidia_l4
analyze deepseek-v3 --batch-size 4 --cache-len 32768 --hardware h200 --format json
PYTHONIOENCODING=ascii COLUMNS=72 analyze jamba-v0.1 --seq-len 300 --cache-len 1000 --hardware mi300x
analyze mistral.json --batch-size 3 --seq-len 5000 --plot roofline.png --hardware b200 --kv-bits 8
analyze gpt2 --plot bytes.svg --format json
inspect mixtral-8x7b
module LlamaAttention --operators
COLUMNS=100 module torch.nn.Linear --model gpt2
module MixtralExperts --format json
expand MistralAttention --case decode_past --set batch_size=4 --set cache_len=5000
expand MixtralDecoderLayer --case prefill_b1 --model mixtral-8x7b --set seq_len=128 --format json
analyze gpt2.json --seq-len 7 --cache-len 50 --execution eager --logits all
trace torch.nn.Linear
trace gpt2.json
LM_PREDICTOR_DB=altered verify transformers.activations.FastGELUActivation
verify gpt2.json
audit GPT2MLP --into audits
db build openai-community/gpt2 --into built --jobs 1
db
LM_PREDICTOR_DB=broken db check
analyze lama-2-7b --hardware h100
analyze odd.json
analyze gpt2 --seq-len 1.5
module LlamaMLP --compare
expand LlamaMLP --case prefill_b1 --set batch_size=8
agent LlamaRMSNorm --force
""".strip().splitlines()

CONFIGS = {  # one that fits a record that ships, one that fits none and is traced, one that contradicts itself
    "mistral.json": {"model_type": "mistral", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 8,
                     "num_key_value_heads": 4, "intermediate_size": 3000, "vocab_size": 50_000, "sliding_window": 1024},
    "gpt2.json": {"model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_layer": 2, "vocab_size": 101, "n_positions": 64,
                  "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True,
                  "bos_token_id": 100, "eos_token_id": 100},
    "odd.json": {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 31},
}
REPLACED = (  # what differs from one run to the next
    (r"\b20\d\d-\d\d-\d\d\b", "YYYY-MM-DD"),
    (r"(\bin |\bhold, |\()\d+(\.\d)? s\b", r"\1N s"),
    (r"Matplotlib is building the font cache; this may take a moment\.\n", ""),
)


class Answer(NamedTuple):
    status: str
    out: str
    err: str
    written: dict  # path of a file -> its bytes


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def program(checkout: Path, copy: Path) -> list[str]:
    "The console script of a checkout, run from a copy of its package"
    settings = ConfigParser(interpolation=None)
    settings.read(checkout / "settings.ini", encoding="utf-8")
    package = settings["DEFAULT"]["lib_path"]
    shutil.copytree(checkout / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    scripts = dict(line.split("=", 1) for line in settings["DEFAULT"]["console_scripts"].split())
    module, function = scripts["lm-predictor"].split(":")
    return [sys.executable, "-c", f"import sys; from {module} import {function}; sys.exit({function}())"]


def prepare(here: Path, checkout: Path) -> None:
    "The files that the commands read: configs, a record that cannot be read, and one with a wrong figure"
    for name in ("altered", "audits", "broken"):
        (here / name).mkdir(parents=True)
    for name, config in CONFIGS.items():
        (here / name).write_text(json.dumps(config), encoding="utf-8")
    (here / "broken" / f"{GELU}.json").write_text("{nope", encoding="utf-8")
    record = json.loads((checkout / "module_db" / f"{GELU}.json").read_text(encoding="utf-8"))
    record["kernels"][0]["flops"] = "8*batch_size*num_features*seq_len"  # the source executes 9 a number
    (here / "altered" / f"{GELU}.json").write_text(json.dumps(record), encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    "What every command finds: a home and a database of its own, no key, no network of Hugging Face, lines of 200"
    home, paths = str(folder / "home"), [str(folder / "checkout"), os.environ.get("PYTHONPATH", "")]
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {
        "HOME": home, "XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home, "HF_HOME": home,
        "MPLCONFIGDIR": home, "MPLBACKEND": "agg", "TMPDIR": home, "LM_PREDICTOR_DB": str(folder / "here" / "db"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "dumb"}


def files(here: Path) -> dict[Path, bytes]:
    return {p.relative_to(here): p.read_bytes() for p in sorted(here.rglob("*")) if p.is_file()}


def answer(line: str, command: list[str], env: dict[str, str], here: Path) -> Answer:
    "Run one line of the list"
    words, before = shlex.split(line), files(here)
    given = {}
    while re.match("[A-Z_]+=", words[0]):
        name, _, given[name] = words.pop(0).partition("=")
    child = subprocess.Popen([*command, *words], cwd=here, env=env | given, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = child.communicate(timeout=LIMIT)
        status = str(child.returncode)
    except subprocess.TimeoutExpired:
        out, err, status = b"", b"", f"none within {LIMIT} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    written = {path: data for path, data in files(here).items() if before.get(path) != data}
    return Answer(status, out.decode(errors="backslashreplace"), err.decode(errors="backslashreplace"), written)


def plain(text: str, folder: Path) -> str:
    "A text without what differs from one run or one machine to the next"
    places = {str(folder): "TMP", sysconfig.get_path("purelib"): "SITE-PACKAGES", sys.prefix: "PYTHON"}
    for place, name in places.items():
        text = text.replace(place, name)
    for pattern, instead in REPLACED:
        text = re.sub(pattern, instead, text)
    return text


def keep(number: int, line: str, found: Answer, into: Path, folder: Path) -> None:
    "Write an answer into NN.txt, and the files that the command wrote into NN"
    names = "".join(f"{path.as_posix()}\n" for path in found.written)
    parts = {"stdout": found.out, "stderr": found.err, "files written": names}
    text = f"$ {line}\nexit status {found.status}\n" + "".join(f"--- {what}\n{part}" for what, part in parts.items())
    (into / f"{number:02}.txt").write_text(plain(text, folder), encoding="utf-8")
    for path, data in found.written.items():
        target = into / f"{number:02}" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            data = plain(data.decode(), folder).encode()
        except UnicodeDecodeError:  # a picture
            pass
        target.write_bytes(data)


def left_out(overview: str) -> list[str]:
    "The subcommands in the program's --help that no line of the list runs"
    run = {word for line in COMMANDS for word in line.split()}
    return [name for name in re.findall(r"^    (\w+)  ", overview, re.MULTILINE) if name not in run]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("directory", metavar="DIR", type=Path, help="where the answers go; made, or empty")
    p.add_argument("--checkout", metavar="DIR", type=Path, default=ROOT, help="whose command runs (default: this one)")
    p.add_argument("--command", help="run this instead, such as 'lm-predictor' for the one that is installed")
    args = p.parse_args()
    if not (args.checkout / "settings.ini").is_file():
        p.error(f"{args.checkout} holds no settings.ini: --checkout takes the root of a checkout")
    args.directory.mkdir(parents=True, exist_ok=True)
    if any(args.directory.iterdir()):
        p.error(f"{args.directory} is not empty")
    broken = []
    with tempfile.TemporaryDirectory() as temporary:
        folder, checkout = Path(temporary).resolve(), args.checkout.resolve()
        (folder / "home").mkdir()
        prepare(folder / "here", checkout)
        command = shlex.split(args.command) if args.command else program(checkout, folder / "checkout")
        for number, line in enumerate(COMMANDS, 1):
            start = time.perf_counter()
            found = answer(line, command, environment(folder), folder / "here")
            say(f"[{number}/{len(COMMANDS)}] {line}: status {found.status}, {time.perf_counter() - start:.1f} s")
            keep(number, line, found, args.directory, folder)
            broken += [f"{number:02}.txt"] if "Traceback (most recent call last)" in found.err else []
    if missing := left_out((args.directory / "01.txt").read_text(encoding="utf-8")):
        say(f"no line of the list runs {', '.join(missing)}")
    if broken:
        say(f"ended with a traceback: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
