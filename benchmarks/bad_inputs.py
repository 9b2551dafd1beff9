"""Does any wrong input end in a traceback, a hang, a written file or a wrong exit status?

    python benchmarks/bad_inputs.py                      # 2,000 random inputs over all commands, seed 0
    python benchmarks/bad_inputs.py --number 200 --seed 7
    python benchmarks/bad_inputs.py --only 1234 --keep DIR   # one input again, and its files for the command that is printed

Every input is a command that works but for one thing: an option, a number, a choice or a name that cannot be, a config, device
file, record or code of a model that is broken, or a terminal and home that are not as usual. The options are those that the
commands have, read from their parsers. Each runs in a process, home and folder of its own. It must be refused with exit status
1 or 2 and one line on stderr, within 10 seconds, and write nothing. In an odd terminal or home a right command may also be
answered; what must never be seen there is a traceback.
"""
import argparse
import collections
import contextlib
import functools
import gc
import io
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SECONDS = 10
LONGEST = 600  # characters of the line
COPIES = f"{tempfile.gettempdir()}/bad_inputs_hf"  # where transformers copies the code of models that is to be run

# What each positional argument is in a command that works.
GIVEN = {"MODEL": "gpt2", "CLASS": "LlamaMLP", "CLASS|MODEL": "gpt2", "NAME": "a100", "ACTION": "list"}
BAD_NUMBERS = ("1,2,4,8", "1_000", "+8", "1e3", "0x10", "", "  ", "nan", "inf", "-inf", "٣", "½", "१२", "8k", "None", "true", "[1]", "-1", "-7",
               "9" * 40, "9" * 5000, "1 000", "\x1b[31m8", "8;", "1/2", "1..2", "--", "1-2", "🙂", "1,5", "'8'", "0b1", "1.5.2", "--8")
SETTINGS = ("x", "=3", "hidden_size=", "hidden_size=)(", "hidden_size=__import__('os')", "hidden_size=1/0", "hidden_size=9**9**9", "hidden_size=exp(3)",
            "hidden_size=" + "(" * 20_000, "hidden_size=-1", "hidden_size=1,2", "hiden_size=3=4", "hidden_size=\x1b[2J", "hidden_size=" + "9" * 5000, "=", "")
CASES = ("", "sometimes", "prefill_", "PREFILL", "decode_b2", "prefill_b1_b1", "\x1b[2J", "x" * 3000, "_", "decode past")
PLOTS = ("x.jpg", "picture", "nowhere/x.png", ".", "", "/proc/x.png", "x.png/y.png", "..", "/dev/null/x.svg", "x." + "p" * 300)
FOLDERS = ("/proc/nothing", "/dev/null", "/dev/null/x", "a_file", "a_file/x")
SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "n_embd", "n_layer", "n_head")
BAD_SIZES = (None, "big", "4096", -4, 0, 4096.5, [4096], {}, 10**200, 1e300, True, float("nan"), float("inf"), "", [], -(10**30))
CONFIGS = ("meta-llama/Llama-2-7b-hf", "openai-community/gpt2", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-8B", "google/gemma-3-27b-it")


@dataclass
class Input:
    "One command with its files, and how it is run"
    argv: list
    what: str                                    # kind of input, for the summary
    files: dict = field(default_factory=dict)    # path below the folder -> content, or a function that makes it there
    env: dict = field(default_factory=dict)
    redirect: str = ""                           # of the shell; then it runs in a shell
    refused: bool = True                         # else it may be answered


# ---- what may be wrong in a command line

@functools.cache
def commands() -> dict:
    "The parsers of all commands and actions, by what is typed for them"
    from lm_predictor.app.cli.main import COMMANDS, command
    from lm_predictor.app.cli.options import Parser
    found = {}
    for name, *_ in COMMANDS:
        parser = Parser(prog=name, allow_abbrev=False)
        command(name).add_to(parser)
        found[(name,)] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {(name, word): sub for word, sub in action.choices.items()}
    return found


def positionals(parser) -> list[str]:
    return [GIVEN.get(str(a.metavar), "x") for a in parser._actions if not a.option_strings and a.nargs not in ("*", argparse.PARSER)]


def options(parser) -> list:
    return [a for a in parser._actions if a.option_strings and a.option_strings != ["-h", "--help"]]


def with_type(parser) -> list:
    "The options that take a number"
    return [a for a in options(parser) if a.type is not None]


def line(r: random.Random, wanted=lambda parser: True) -> tuple[list, object]:
    "A command that works, and its parser"
    words, parser = r.choice([item for item in commands().items() if wanted(item[1])])
    return [*words, *positionals(parser)], parser


def misspelt(r, word: str) -> str:
    "A word with one letter left out, doubled or changed"
    at = r.randrange(len(word))
    return word[:at] + r.choice(("", word[at] * 2, r.choice("qxzj7-_é"))) + word[at + 1:]


def nonsense(r) -> str:
    "Text that names nothing"
    letters = r.choice(("abcdefghij-_.", "ÄÖÜßéñ漢字かな🙂", "\x1b[31m\x07\t ", "/.-~", "%s{}$`'\"\\", "0123456789"))
    return "".join(r.choice(letters) for _ in range(r.choice((1, 3, 8, 40, 3000)))) + r.choice(("zq", "", "!", "?"))


def bad_option(r) -> Input:
    words, parser = line(r, options)
    known = {o for a in parser._actions for o in a.option_strings}
    option = r.choice(sorted(o for o in known if o.startswith("--")))
    bad = r.choice((f"--{misspelt(r, option[2:])}", option[:-1], option.upper(), f"--{nonsense(r).strip('-') or 'zq'}", f"-{option[2]}z", f"{option}={option}=", "---"))
    if bad.split("=")[0] in known and "=" not in bad or not bad.strip("-") and bad == "--":
        bad = "--zq"
    return Input([*words, bad], "unknown option")


def bad_number(r) -> Input:
    words, parser = line(r, with_type)
    option = r.choice(with_type(parser)).option_strings[-1]
    bad = r.choice(BAD_NUMBERS)
    return Input([*words, *r.choice(([option, bad], [f"{option}={bad}"]))], "number")


def bad_workload(r) -> Input:
    name, values = r.choice((("--batch-size", (0, -1, 10**9 + 1, 10**17)), ("--seq-len", (0, -5, 10**9 + 1, 1025, 2048)), ("--cache-len", (-1, 10**10, 1024)),
                             *((f"--{x}-bits", (0, 1, 3, 5, 12, 64, -8)) for x in ("w", "a", "kv")), ("--active-experts", (0, -1, 8.5, 10**9))))
    model = "mixtral-8x7b" if name == "--active-experts" else "gpt2"
    return Input(["analyze", model, name, str(r.choice(values)), *r.choice(([], ["--format", "json"], ["--layers"], ["--hardware", "h100"]))], "workload")


def bad_choice(r) -> Input:
    chosen = lambda parser: [a for a in options(parser) if a.choices]
    words, parser = line(r, chosen)
    action = r.choice(chosen(parser))
    bad = r.choice((misspelt(r, str(r.choice(list(action.choices)))), nonsense(r), "", str(next(iter(action.choices))).upper()))
    return Input([*words, action.option_strings[-1], "zq" if bad in action.choices or bad.startswith("-") else bad], "choice")


def bad_count(r) -> Input:
    "Too few or too many words"
    words, parser = line(r)
    takes = [a for a in options(parser) if a.nargs is None and not isinstance(a, argparse._StoreTrueAction)]
    many = [*words, *(nonsense(r) for _ in range(r.choice((1, 2, 5)))), "zq"]
    if any(a.nargs == "*" for a in parser._actions) or words[0] == "db" and len(words) == 1:
        many = [*words, "--zq"]
    few = [words[0]] if positionals(parser) and words[0] not in ("explore", "hardware", "db") else ["nothing"]
    return Input(r.choice((many, few, [*words, r.choice(takes).option_strings[-1]] if takes else many)), "number of words")


def bad_command(r) -> Input:
    from lm_predictor.app.cli.main import COMMANDS
    names = {name for name, *_ in COMMANDS}
    bad = r.choice((misspelt(r, r.choice(sorted(names))), nonsense(r), "", "help", "--verison", "Analyze"))
    return Input([bad if bad not in names and bad not in ("-h", "--") else "zq", *r.choice(([], ["gpt2"], ["--help-me"]))], "command")


def bad_name(r) -> Input:
    from lm_predictor.models.sources.hub import known_names
    known = known_names()
    bad = r.choice((misspelt(r, r.choice(sorted(known))), nonsense(r), "someone/" + nonsense(r), "../gpt2", "/", "..", "", "a/b/c/d", "nowhere.json", "nowhere/config.json", "x" * 5000, "gpt2\n", "http://x/y"))
    if bad.lower() in known or bad.startswith("-"):
        bad = "zq"
    words = r.choice((["analyze"], ["inspect"], ["trace"], ["verify"], ["explore", "--no-browser"], ["module", "LlamaMLP", "--model"], ["expand", "LlamaMLP", "--model"],
                      ["audit", "LlamaMLP", "--model"], ["agent", "--model"], ["db", "build", "--into", "out"]))
    if not bad and words[-1] == "--model":
        bad = "zq"
    return Input([*words, bad], "name of a model", {"out/.keep": b""} if "build" in words else {})


def bad_class(r) -> Input:
    full = "transformers.models.llama.modeling_llama.LlamaMLP"
    bad = r.choice(("torch.nn.Linaer", "torch.nn.", ".LlamaMLP", "LlamaMPL", "os.path", "os.system", "json.JSONDecoder", "torch.nn", "torch.nn.functional.linear", "a.b.c", "..",
                    misspelt(r, full), misspelt(r, full) + "x", "transformers.models.llama.configuration_llama.LlamaConfig", "transformers.models.nope.Nope", nonsense(r), "1.2", "x" * 3000 + ".y"))
    words = r.choice((["module"], ["expand"], ["audit"], ["trace"], ["verify"], ["agent"]))
    return Input([*words, "zq.zq" if bad.startswith("-") or bad == full else bad], "name of a class")


def bad_device(r) -> Input:
    bad = r.choice(("a1000", "h10", "", nonsense(r), "nowhere.json", "/", "x" * 4000, "A100,H100", ".json"))
    bad = "zq" if bad.startswith("-") else bad
    return Input(r.choice((["analyze", "gpt2", "--hardware", bad], ["hardware", bad or "zq"], ["explore", "gpt2", "--no-browser", "--hardware", bad or "zq"])), "name of a device")


def bad_setting(r) -> Input:
    words = r.choice((["expand", "LlamaMLP"], ["expand", "LlamaForCausalLM", "--case", "decode_b1_past"], ["module", "LlamaMLP", "--compare"]))
    return Input([*words, *r.choice((["--set", r.choice(SETTINGS)], ["--case", r.choice(CASES)]))], "setting or case")


def bad_output(r) -> Input:
    files = {"a_file": b"what was there"}
    if r.random() < 0.6:
        return Input(["analyze", "gpt2", *r.choice(([], ["--hardware", "a100"])), "--plot", r.choice(PLOTS)], "output", files)
    return Input([*r.choice((["audit", "LlamaMLP"], ["db", "build", "gpt2"])), "--into", r.choice(FOLDERS)], "output", files)


def bad_agent(r) -> Input:
    words = r.choice((["--price", r.choice(("3", "a,b", "1,2,3", "-1,2", "nan,1", "", ",", "1,2,3,4,5"))], ["--model", "gpt2"], ["--jobs", "0"], ["--max-cost", "1"], ["--base-url", nonsense(r)],
                      *([f"--max-{what}", r.choice(BAD_NUMBERS)] for what in ("turns", "tokens", "repairs", "seconds", "cost"))))
    return Input(["agent", "LlamaMLP", *words, *(["--zq"] if words[0] in ("--base-url", "--max-cost") else [])], "agent")


# ---- what may be wrong in a file

def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as s:
        s.bind(path.name)


def make_sparse(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(8 * 2**30)


def linked(target: str):
    return lambda path: path.symlink_to(target)


SPECIAL = (make_fifo, make_socket, make_sparse, Path.mkdir, linked("/dev/zero"), linked("/dev/random"), linked("nowhere"), linked("config.json"), linked("/proc/self/mem"), linked("/dev/tty"))


def broken_text(r, text: str):
    "JSON that is no JSON, or no object"
    return r.choice((b"", b" ", b"{", b"[]", b"null", b"3", b'"llama"', b"NaN", b"\x00" * 100, b"\xff\xfe\x81", bytes(r.randrange(256) for _ in range(200)),
                     text.encode("utf-16"), text[:r.randrange(1, len(text) - 1)].encode(), text.replace(":", "=", 1).encode(), text.replace('"', "'").encode(),
                     (text + text).encode(), b"[" * 100_000, b'{"model_type":' * 50_000, ("[" * 2000 + "]" * 2000).encode(), b"{nope", text.replace("{", "{,", 1).encode(),
                     b"9" * 100_000, f"/* {text}".encode(), *SPECIAL))


def broken_config(r):
    "A config.json that is wrong in one way"
    from lm_predictor.models.sources.hub import presets
    config = dict(presets()[r.choice(CONFIGS)]["config"])
    way = r.choice(("text", "size", "size", "size", "type", "heads", "layers", "deep", "act"))
    if way == "text":
        return broken_text(r, json.dumps(config))
    if way == "size":
        config[r.choice([key for key in SIZES if key in config])] = r.choice(BAD_SIZES)
    elif way == "type":
        config["model_type"] = r.choice((None, 3, [], {}, "", "lama", "../../llama", "vit", "x" * 3000, "\x1b[2J", "LLAMA", True))
    elif way == "heads":
        config |= {"model_type": "llama", "hidden_size": 4096} | r.choice(({"num_attention_heads": 31}, {"num_attention_heads": 32, "num_key_value_heads": 5}, {"num_attention_heads": 32, "num_key_value_heads": 64}))
    elif way == "layers":
        config |= {"model_type": "qwen2", "num_hidden_layers": 4, "layer_types": r.choice((["full_attention"], ["full_attention"] * 5, "full_attention", [1, 2, 3, 4], {}))}
    elif way == "deep":
        return (json.dumps(config)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}").encode()
    else:
        config = {"model_type": "llama", "hidden_act": r.choice(("nope", 3, [], "", "\x07"))}
    return json.dumps(config).encode()


def config_file(r) -> Input:
    content = broken_config(r)
    place, words = r.choice((("config.json", "config.json"), ("model/config.json", "model"), ("model/config.json", "model/config.json")))
    command = r.choice((["analyze"], ["analyze"], ["inspect"], ["trace"], ["verify"], ["explore", "--no-browser"], ["module", "LlamaMLP", "--model"], ["agent", "--model"]))
    if "agent" in command and b'"hidden_act": ' in (b"" if callable(content) else content):
        command = ["analyze"]  # the agent reads a class whose model cannot be traced
    return Input([*command, words], "config file", {place: content})


def broken_device(r):
    "A device file that is wrong in one way"
    device = json.loads((ROOT / "hardware" / "nvidia_a100_sxm_80gb.json").read_text())
    if r.random() < 0.3:
        return broken_text(r, json.dumps(device))
    key = r.choice([k for k in device if k not in ("notes", "sources", "aliases", "vendor", "l2_cache_bytes")])
    bad = r.choice((None, "big", -4, [], 10**400, float("nan"), True, 0, "", {"bf16": -1}, {"bf16": "x"}, {"bf17": 1}, {"bf16": 0}, "\x1b[2J", 3))
    if key in ("name", "title") and isinstance(bad, str):
        bad = None
    r.choice((lambda: device.update({key: bad}), lambda: device.pop("name" if key == "title" else key), lambda: device.update({key + "z": device.pop(key)}), lambda: device.update({"zq": 3})))()
    return json.dumps(device).encode()


def device_file(r) -> Input:
    words = r.choice((["analyze", "gpt2", "--hardware", "device.json"], ["hardware", "device.json"], ["explore", "gpt2", "--no-browser", "--hardware", "device.json"]))
    return Input(words, "device file", {"device.json": broken_device(r)})


def broken_record(r, path: Path):
    "A stored record that is wrong in one way"
    from lm_predictor.records.storage.files import read_json
    record = read_json(path)
    if r.random() < 0.4:
        return broken_text(r, json.dumps(record))
    key = r.choice(sorted(record))
    r.choice((lambda: record.pop(key), lambda: record.update({key: r.choice((None, 3, [], {}, "x", -1, [None], {"x": None}))})))()
    if "kernels" in record and record["kernels"] and isinstance(record["kernels"], list) and r.random() < 0.5:
        kernel = record["kernels"][0] = dict(record["kernels"][0] or {})
        kernel[r.choice(("flops", "reads", "writes", "line", "code"))] = r.choice(("2 * hiden_size", "__import__('os')", "(" * 5000, -4, None, "1/0", "9**9**9**9", "${a.B}()", "\x1b[2J", []))
    return json.dumps(record).encode()


def record_file(r) -> Input:
    "A record of the user's own; whoever does not ask for it gets his answer"
    from lm_predictor.records.storage.database import shipped_directory
    from lm_predictor.records.storage.files import model_paths
    name = "transformers.models.llama.modeling_llama.LlamaMLP.json"
    model = r.choice([p.name for p in model_paths(shipped_directory(), "llama-*")])
    place = r.choice((name, f"models/{model}"))
    command = r.choice((["module", "LlamaMLP"], ["expand", "LlamaForCausalLM"], ["analyze", "llama-2-7b"], ["db", "list"], ["inspect", "llama-2-7b"], ["module", "LlamaMLP", "--format", "json"]))
    return Input(command, "record file", {f"home/db/{place}": broken_record(r, shipped_directory() / place)}, refused=False)


def code_file(r) -> Input:
    "A model's own code that cannot be run; the folder is that of the model"
    code = r.choice((None, "", "def", "raise RuntimeError('mine')", "import sys; sys.exit(3)", "import os; os._exit", "1/0", "Own = 3", "class Own: pass", "import nothing_like_this", "\x00", "raise SystemExit",
                     "class Own:\n    def __init__(self, config): 1/0", "from . import missing", "def f(): return f()\nf()", "class C(type): pass\nOwn = C('Own', (), {})"))
    config = {"model_type": "own", "hidden_size": 64, "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": r.choice(("modeling_own.Own", "modeling_own", "../x.Own", "a.b.c", "", "modeling_own."))}}
    files = {"model/config.json": json.dumps(config).encode()} | ({} if code is None else {"model/modeling_own.py": code.encode()})
    return Input([r.choice(("analyze", "trace", "verify")), "model", "--trust-remote-code"], "code of a model", files)


# ---- what may be odd around a command

WORKING = ("analyze gpt2", "analyze gpt2 --hardware a100", "analyze gpt2 --layers", "analyze gpt2 --format json", "module LlamaMLP", "expand LlamaMLP", "inspect gpt2", "models", "hardware", "hardware a100", "db list", "db", "--help", "analyze --help", "--version")


def odd_terminal(r) -> Input:
    columns = {"COLUMNS": r.choice(("0", "1", "2", "7", "-5", "abc", "", "99999999"))}
    env, redirect = r.choice(((columns, ""), (columns, ""), ({"PYTHONIOENCODING": "ascii"}, ""), ({"LC_ALL": "C", "PYTHONUTF8": "0"}, ""), ({"TERM": nonsense(r).replace("\0", "")}, ""), ({}, ">&-"), ({}, "2>&-"),
                              ({}, ">&- 2>&-"), ({}, "<&-"), ({}, ">/dev/full"), ({}, "| head -c 1 >/dev/null")))
    return Input(shlex.split(r.choice(WORKING)), "terminal", {}, env, redirect or "</dev/null", refused=redirect == ">/dev/full")


def odd_home(r) -> Input:
    place = r.choice(("/proc/nothing", "/dev/null/x", "a_file", "", "/", "\x1b[2J", "x" * 300, "~nobody/x"))
    env = r.choice(({"LM_PREDICTOR_DB": place}, {"HOME": place, "LM_PREDICTOR_DB": None}, {"TMPDIR": "/proc/nothing"}, {"XDG_CACHE_HOME": "/proc/nothing"}))
    return Input(shlex.split(r.choice(WORKING)), "home", {"a_file": b"what was there"}, env, refused=False)


def unwritable(r) -> Input:
    "What must be stored and cannot be"
    return Input(["trace", r.choice(("torch.nn.Linear", "torch.nn.SiLU"))], "unwritable database", {"a_file": b""}, {"LM_PREDICTOR_DB": r.choice(FOLDERS[:1] + FOLDERS[2:])})


MAKERS = ((bad_option, 10), (bad_number, 14), (bad_workload, 8), (bad_choice, 6), (bad_count, 6), (bad_command, 3), (bad_name, 10), (bad_class, 8), (bad_device, 4), (bad_setting, 7), (bad_output, 5),
          (bad_agent, 5), (config_file, 18), (device_file, 7), (record_file, 8), (code_file, 4), (odd_terminal, 6), (odd_home, 4), (unwritable, 1))


def made(seed: int, i: int) -> Input:
    "The input of a number"
    r = random.Random(f"{seed}/{i}")
    maker = r.choices([m for m, _ in MAKERS], [weight for _, weight in MAKERS])[0]
    found = maker(r)
    found.argv = [word.replace("\0", "") for word in found.argv]
    return found


# ---- running one

def prepare(place: Path, given: Input) -> None:
    "Make the files of an input below a folder"
    for name in ("home", "tmp", "cwd"):
        (place / name).mkdir(parents=True)
    for name, content in given.files.items():
        path = place / name if name.startswith("home/") else place / "cwd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content(path) if callable(content) else path.write_bytes(content)


def environment(place: Path, given: Input) -> dict:
    "The environment of an input: a home, a database and a place for temporary files below its folder"
    own = {"HOME": f"{place}/home", "TMPDIR": f"{place}/tmp", "LM_PREDICTOR_DB": f"{place}/home/db", "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
           "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
    return {k: v for k, v in (own | given.env).items() if v is not None}


def seen(place: Path) -> dict:
    "What lies below a folder: kind, size and time of every entry"
    found = {}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            s = os.lstat(os.path.join(folder, name))
            found[os.path.relpath(os.path.join(folder, name), place)] = (s.st_mode, 0 if stat.S_ISDIR(s.st_mode) else s.st_size, 0 if stat.S_ISDIR(s.st_mode) else s.st_mtime_ns)
    return found


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def watch(log: int, folder: str) -> None:
    "Have every file outside of a folder that this process would write, make, move or remove named in a log"
    def hook(event, args):
        if event == "open" and isinstance(args[0], (str, bytes)) and isinstance(args[2], int) and args[2] & WRITES:
            path = os.fsdecode(args[0])
        elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree") and isinstance(args[0], (str, bytes)):
            path = os.fsdecode(args[0])
        else:
            return
        if not os.path.abspath(path).startswith((folder, COPIES, "/dev/", "/proc/")):
            os.write(log, f"{os.path.abspath(path)}\n".encode())
    sys.addaudithook(hook)


def child(given: Input, place: Path, env: dict) -> None:
    "Run the command in this process, which is a fork, as a new one would; does not return"
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(place / "cwd")
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        for fd, name in ((0, "/dev/null"), (1, place / "out"), (2, place / "err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), fd)
        sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(fd, mode, closefd=False), encoding="utf-8", errors="strict" if fd < 2 else "backslashreplace", write_through=fd == 2)
                                             for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
        sys.dont_write_bytecode = True
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
        from lm_predictor.app.cli.main import main
        from lm_predictor.formula.caches import reset
        reset()
        watch(log, str(place))
        status = main(list(given.argv))
        sys.stdout.flush()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 1)


def ended(pid: int, seconds: float) -> int | None:
    "The exit status of a process, negative for a signal; None where it had to be killed"
    watched = os.pidfd_open(pid)
    in_time = select.select([watched], [], [], seconds)[0]
    os.close(watched)
    if not in_time:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if in_time else None


def shell(given: Input, place: Path) -> str:
    "The command line that reproduces an input in its folder"
    words = " ".join(f"{k}={shlex.quote(v)}" for k, v in environment(place, given).items() if k not in ("PATH", "LANG", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS"))
    return f"cd {shlex.quote(str(place / 'cwd'))} && env {words} {shlex.join([sys.executable, '-m', 'lm_predictor', *given.argv])} {given.redirect}".rstrip()


def start(given: Input, place: Path, env: dict) -> int:
    "Start the command in a process of its own; gives its id"
    if given.redirect:
        run = f"({shlex.join([sys.executable, '-m', 'lm_predictor', *given.argv])}) {given.redirect}"
        with open(place / "out", "wb") as out, open(place / "err", "wb") as err:
            return subprocess.Popen(["bash", "-c", run], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=place / "cwd", start_new_session=True).pid
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child(given, place, env)
    return pid


def faults(given: Input, place: Path) -> list[str]:
    "Run an input below a folder; gives what is wrong with how it ended"
    prepare(place, given)
    env, began = environment(place, given), time.time()
    before = {name: it for name, it in seen(place).items() if not name.startswith("tmp")}
    status = ended(start(given, place, env), SECONDS)
    read = lambda name: (place / name).read_text(errors="replace") if (place / name).exists() else ""
    out, err, log = read("out"), read("err"), read("log")
    after = {name: it for name, it in seen(place).items() if not name.startswith("tmp") and name not in ("out", "err", "log")}
    found = [f"no end within {SECONDS} s"] if status is None else []
    if "Traceback (most recent call last)" in err + out:
        found.append(f"traceback: {err.strip().splitlines()[-1][:200]}")
    written = [name for name in log.splitlines() if os.path.exists(name) and os.stat(name).st_mtime >= began]
    written += sorted(name for name in {*after, *before} if after.get(name) != before.get(name))
    found += [f"written: {written[:3]}"] if written else []
    allowed = (1, 2) if given.refused else (0, 1, 2)
    if status is not None and status not in allowed:
        found.append(f"exit status {status}, not {' or '.join(map(str, allowed))}")
    if given.refused and status in (1, 2) and not found:
        found += unclear(out, err)
    if "COLUMNS" in given.env and status == 0 and len(out.splitlines()) < 3 and "--version" not in given.argv:
        found.append(f"{len(out.splitlines())} lines are printed")
    return found


def unclear(out: str, err: str) -> list[str]:
    "What is wrong with the words of a refusal"
    lines = err.splitlines()
    found = [f"prints {out[:60]!r}"] if out else []
    if len(lines) != 1 or not err.startswith("lm-predictor"):
        found.append(f"{len(lines)} lines on stderr: {err[:200]!r}")
    elif len(err) > LONGEST:
        found.append(f"a line of {len(err)} characters: {err[:80]!r}")
    odd = re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]|\[Errno|object at 0x|NoneType|KeyError|Error\(", err)
    return [*found, *([f"{odd[0]!r} in the line: {err[:200]!r}"] if odd else [])]


def preload() -> None:
    "Load what commands load, so that each fork has it"
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", HF_HOME=COPIES)
    commands()
    for name in ("torch", "transformers", "lm_predictor.tracing.lowering.classes", "lm_predictor.verification.verify", "lm_predictor.app.plots.roofline", "lm_predictor.app.explorer.page", "rich.table", "jsonschema"):
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.collect()
    gc.freeze()


def failures(seed: int, numbers, keep: Path | None = None, progress=lambda done: None) -> tuple[dict, collections.Counter]:
    "Run inputs by their numbers; gives the faults of those that have some, with their command lines, and how many of each kind ran"
    preload()
    found, kinds = {}, collections.Counter()
    base = keep or Path(tempfile.mkdtemp(prefix="bad_inputs_"))
    for i in numbers:
        given, place = made(seed, i), base / f"{seed}_{i}"
        shutil.rmtree(place, ignore_errors=True)
        wrong = faults(given, place)
        if wrong and wrong[0].startswith("no end"):  # the machine may have been busy: once more
            shutil.rmtree(place)
            wrong = faults(given, place)
        kinds[given.what] += 1
        if wrong:
            found[i] = (given.what, wrong, shell(given, place))
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)
        progress(len(found))
    if keep is None:
        shutil.rmtree(base, ignore_errors=True)
    return found, kinds


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--number", type=int, default=2000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--only", type=int, nargs="*", help="the inputs of these numbers alone")
    p.add_argument("--keep", type=Path, help="leave the folders of the inputs below this one")
    a = p.parse_args()
    began, numbers = time.perf_counter(), a.only if a.only is not None else range(a.number)
    found, kinds = failures(a.seed, numbers, a.keep and a.keep.resolve())
    for i, (what, wrong, line) in found.items():
        print(f"{i} ({what}): {'; '.join(wrong)}\n    {line[:1500]}\n    python benchmarks/bad_inputs.py --seed {a.seed} --only {i} --keep DIR")
    for what, n in kinds.most_common():
        print(f"{what:20} {n:5} inputs, {sum(w == what for w, *_ in found.values())} failures")
    print(f"{sum(kinds.values())} inputs in {time.perf_counter() - began:.0f} s: {len(found)} failures")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
