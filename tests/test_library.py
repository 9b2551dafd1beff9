"Formulas as a library: generated programs of shipped classes against our own evaluation"
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from lm_predictor.app.cli.main import main
from lm_predictor.cost.tree.registry import compute, parameters
from lm_predictor.formula.language import parse
from lm_predictor.library.generate import files_of, generate
from lm_predictor.library.languages.modules import units_of
from lm_predictor.library.languages.printers import PRINTERS
from lm_predictor.obtain.analyze import analyze
from lm_predictor.records.analysis import AMBIENT
from lm_predictor.records.storage.database import Database

DB = Database()
FIGURES = ("flops", "matmul_flops", "read_bytes", "write_bytes")
SIZES = (1, 2, 4, 8, 3, 6, 12, 24, 48, 16, 32, 96)


def needs(tool: str) -> None:
    "Skip without a tool, and fail where CI must have it"
    if shutil.which(tool) is None:
        assert "CI" not in os.environ, f"CI must have {tool}: the printers are checked by running what they print"
        pytest.skip(f"{tool} is not installed")


def model_of(name: str) -> str:
    return next(iter(DB.get(name).variants[0].models), "")


def random_sizes(unit, rng) -> dict:
    large = {"batch_size": (2, 3, 7), "seq_len": (5, 7, 300), "cache_len": (0, 9, 513)}
    return {a.name: rng.choice(large.get(a.name, SIZES)) if a.least else rng.choice((0, 1, 17) if a.name == "cache_len" else (0, 1))
            for a in unit.arguments}


def accepted(module, unit, rng, widths: dict):
    "Sizes that a generated class takes, and its object; None where chance finds none"
    for _ in range(400 if unit.class_name not in map(DB.resolve, SOME) else 20_000):
        sizes = random_sizes(unit, rng)
        try:
            return sizes, getattr(module, unit.name)(**sizes, **widths)
        except ValueError:
            continue
    return None


def wanted(name: str, sizes: dict, widths: dict) -> list:
    known = {p.name for p in parameters(DB.get(name))} | set(AMBIENT)
    of_other_variants = dict.fromkeys(known - set(sizes) - set(AMBIENT), 1)  # it asks for the parameters of all
    given = of_other_variants | {n: v for n, v in sizes.items() if n in known}
    return [f.evaluate({}) for f in compute(name, DB, model_of(name), **given, **widths)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "Python package and sizes of every thirty-second class, and of some by name"
    home, found = tmp_path_factory.mktemp("made"), {}
    sys.path.insert(0, str(home))
    for i, name in enumerate(sorted({*DB.names()[::32], *map(DB.resolve, SOME)})):
        generate(name, home / f"package_{i}", db=DB)
        unit, module, rng = units_of(name, DB)[-1], importlib.import_module(f"package_{i}"), random.Random(name)
        widths = {"w_bytes": rng.choice((2, 1, Fraction(1, 2))), "a_bytes": rng.choice((2, 4)), "kv_bytes": 1}
        found[name] = unit, widths, accepted(module, unit, rng, widths)
    yield found
    sys.path.remove(str(home))


def test_python_equals_compute(made):
    tried = 0
    for name, (unit, widths, row) in made.items():
        if row is None:
            continue
        sizes, module = row
        known = {p.name for p in parameters(DB.get(name))}
        if sizes.get("use") or sizes.get("cache_len") and "cache_len" not in known:
            continue  # `compute` prices the first way of using a class, and takes what that has
        assert [getattr(module, f)() for f in FIGURES] == wanted(name, sizes, widths), (name, sizes)
        assert sum(k.flops for k in module.kernels()) == module.flops()
        tried += 1
    assert tried > 40, tried


SOME = ["LlamaMLP", "LlamaForCausalLM", "GPT2LMHeadModel", "Mamba2Mixer", "GraniteMoeHybridMambaLayer", "MixtralExperts",
        "ApertusAttention", "Qwen3ForCausalLM", "Gemma3TextModel", "torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.Conv1d"]


def whole(x) -> int:
    return -(-x.numerator // x.denominator)


@pytest.mark.parametrize("short", SOME)
def test_c_and_javascript_equal_python(made, short, tmp_path):
    needs("cc"), needs("node")
    name = DB.resolve(short)
    unit, widths, row = made[name]
    assert row, f"no sizes found for {name}"
    sizes, module = row
    figures = [whole(getattr(module, f)()) for f in FIGURES]
    bits = {f"{w.removesuffix('_bytes')}_bits": int(8 * v) for w, v in widths.items()}
    assert c_figures(unit, files_of(name, "c", DB), sizes | bits, tmp_path) == figures
    assert javascript_figures(unit, files_of(name, "javascript", DB), sizes | bits, tmp_path) == figures


def c_figures(unit, files, sizes, folder) -> list:
    given = "".join(f"    s.{n} = {v};\n" for n, v in sizes.items())
    calls = "".join(f'    printf("%lld\\n", (long long){unit.stem}_{f}(&s));\n' for f in FIGURES)
    files = {**files, "main.c": f'#include <stdio.h>\n#include "{unit.stem}.h"\nint main(void) {{\n'
             f"    {unit.stem}_sizes s = {{{unit.stem}_USUAL}};\n{given}{calls}    return 0;\n}}\n"}
    for n, text in files.items():
        (folder / n).write_text(text)
    sources = [str(folder / n) for n in files if n.endswith(".c")]
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Werror", "-o", str(folder / "main"), *sources], check=True)
    return list(map(int, subprocess.run([str(folder / "main")], capture_output=True, text=True, check=True).stdout.split()))


def javascript_figures(unit, files, sizes, folder) -> list:
    [(n, text)] = files.items()
    (folder / n).write_text(text)
    calls = ", ".join(f"String(m.{f}())" for f in FIGURES)
    (folder / "main.mjs").write_text(f'import {{ {unit.name} }} from "./{n}";\nconst m = new {unit.name}({json.dumps(sizes)});\n'
                                     f"console.log(JSON.stringify([{calls}]));\n")
    done = subprocess.run(["node", str(folder / "main.mjs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(map(int, json.loads(done.stdout)))


def of_latex(text: str) -> str:
    "The formula that some LaTeX of ours typesets: letters are names here"
    def group(s, i):  # from an opening brace to behind its closing one
        depth = 0
        for j in range(i, len(s)):
            depth += (s[j] == "{") - (s[j] == "}")
            if depth == 0:
                return s[i + 1:j], j + 1
        raise AssertionError(s)
    text = re.sub(r"\\mathrm\{([^{}]*)\}", lambda m: m[1].replace("\\_", "_"), text)
    text = re.sub(r"([A-Za-z])_(\{[a-z]+\}|[a-z])", lambda m: f"{m[1]}_{m[2].strip('{}')}", text)
    while (at := text.find(r"\frac")) >= 0:
        over, i = group(text, at + 5)
        below, i = group(text, i)
        text = f"{text[:at]}(({over})/({below})){text[i:]}"
    text = re.sub(r"\^\{(\d+)\}", r"**\1", text)
    for old, new in ((r"\left\lfloor", "floor("), (r"\right\rfloor", ")"), (r"\left\lceil", "ceil("), (r"\right\rceil", ")"),
                     (r"\left(", "("), (r"\right)", ")"), (r"\min", "min"), (r"\max", "max"), (r"\bmod", "%"), (r"\,", "*")):
        text = text.replace(old, new)
    assert "\\" not in text, text
    return text


def test_latex_and_csv_say_the_same_formulas():
    from lm_predictor.formula.latex import LETTERS
    from lm_predictor.formula.latex import symbol
    rng, tried = random.Random(3), 0
    for name in DB.names()[::7]:
        for row in units_of(name, DB)[-1].lines:
            for f in row.cost:
                values = {n: rng.choice(SIZES) for n in f.names}
                letters = {re.sub(r"\{(\w+)\}", r"\1", LETTERS[n]) if n in LETTERS else n: v for n, v in values.items()}
                assert parse(of_latex(PRINTERS["latex"].figure(f))).evaluate(letters) == f.evaluate(values), (str(f), symbol)
                assert parse(PRINTERS["csv"].figure(f)) == f
                tried += 1
    assert tried > 300


@pytest.mark.parametrize("model, sizes", [("gpt2", {"seq_len": 100}), ("mistral-7b-v0.1", {"seq_len": 5000}), ("mistral-7b-v0.1", {"seq_len": 1, "cache_len": 6000}),
                                          ("gemma-3-1b", {"seq_len": 700, "cache_len": 3}), ("qwen3-8b", {"batch_size": 3, "seq_len": 9, "logits": "all"})])
def test_a_model_equals_analyze(model, sizes, tmp_path):
    "The package from the records of classes, and the record of the whole model"
    paths = generate(model, tmp_path / "made", db=DB)
    name = files_of(model, "csv", DB)
    stem = next(iter(name)).removesuffix(".csv")
    assert any(p.stem == stem for p in paths)
    cls = re.search(r"class (\w+)\(Module\)", (tmp_path / "made" / f"{stem}.py").read_text())[1]
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom made import {cls}\nm = {cls}(**{ {'batch_size': 1} | sizes!r})\n" \
           "print(m.flops(), m.matmul_flops(), m.read_bytes(), m.write_bytes())"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    t = analyze(model, DB).at(**sizes, execution="eager").totals
    assert done.stdout.split() == [str(getattr(t, f)) for f in FIGURES]


@pytest.mark.parametrize("arguments, said", [
    (["LlamaMLP", "-o", "{home}/file"], "is not a folder; give a new one"),
    (["LlamaMPL", "-o", "{home}/new"], "LlamaMPL"),
    (["LlamaMLP", "-o", "{home}"], "holds file, which is not replaced; give a new folder"),
    (["LlamaMLP", "-o", "/proc/made"], "/proc/made: "),
])
def test_bad_input(arguments, said, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["generate", *(a.format(home=tmp_path) for a in arguments)]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error
    assert (tmp_path / "file").read_text() == "mine" and [p.name for p in tmp_path.iterdir()] == ["file"]
    assert not Path("/proc/made").exists()


@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b", "mamba2-2.7b", "deepseek-v3", "gemma-3-1b", "gpt-oss-20b", "qwen3-8b"])
@pytest.mark.parametrize("execution", ["eager", "engine"])
def test_compiled_equals_at(model, execution):
    "Every kernel, the sums, the time, and who is refused: by the compiled formulas and by `at`"
    from lm_predictor.cost.workload import Workload
    from lm_predictor.library.sweeps.arrays import SUMS, totals
    from lm_predictor.library.sweeps.compiled import Compiled
    from lm_predictor.models.config.validation import ModelError
    cost, rng = analyze(model, DB), random.Random(5)
    widths = {"w_bits": rng.choice((None, 4, 8)), "a_bits": 16, "kv_bits": 8}
    fast = Compiled(cost, execution, "h100", **widths)
    rows = [(rng.choice((1, 5, 256)), rng.choice((1, 33, 512, 4096)), rng.choice((0, 130, 3968, 20_000))) for _ in range(25)]
    table = totals(fast, *map(list, zip(*rows)))
    for i, (b, s, c) in enumerate(rows):
        try:
            run = cost.at(Workload(b, s, c, a_bits=16, kv_bits=8), execution, w_bits=widths["w_bits"]).on("h100")
        except ModelError as refused:
            with pytest.raises(ModelError, match=re.escape(str(refused))):
                fast.totals(b, s, c)
            assert not table["ran"][i]
            continue
        found = [row for row in fast.kernels(b, s, c) if row[0]]
        assert found == [(k.count, k.flops, k.matmul_flops, k.read_bytes, k.write_bytes, k.inside_bytes) for k in run.kernels]
        assert fast.totals(b, s, c) == run.totals
        assert [int(table[n][i]) for n in SUMS] == [getattr(run.totals, n) for n in SUMS]
        assert table["time_s"][i] == pytest.approx(run.time_s, rel=1e-11)


SWEEP = ["sweep", "gpt2", "--batch-size", "1:700", "--seq-len", "1:1000", "--hardware", "h100"]  # 700,000 rows: three parts


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_killed_sweep_goes_on_with_the_same_bytes(form, tmp_path):
    import signal
    import time
    whole, again = tmp_path / f"whole.{form}", tmp_path / f"again.{form}"
    assert main([*SWEEP, "-o", str(whole)]) == 0
    running = subprocess.Popen([sys.executable, "-m", "lm_predictor", *SWEEP, "-o", str(again)], stderr=subprocess.DEVNULL)
    parts = tmp_path / f"{again.name}.parts"
    while not (parts / "000000000").exists() and running.poll() is None:
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, "it was done before it could be killed"
    assert not again.exists() and parts.is_dir()
    kept = (parts / "000000000").stat().st_mtime_ns
    assert main([*SWEEP, "-o", str(again)]) == 0
    assert again.read_bytes() == whole.read_bytes() and not parts.exists() and kept


def test_parquet_says_what_csv_says_and_holds_more_than_64_bits(tmp_path):
    import pyarrow.parquet
    from lm_predictor.library.sweeps.stream import write_sweep
    from lm_predictor.library.sweeps.sweep import sweep
    asked = {"batch_size": [1, 10**6], "seq_len": [7, 10**6], "hardware": "h100"}
    assert write_sweep(tmp_path / "out.parquet", "llama-2-7b", **asked) == 4
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    found = sweep("llama-2-7b", **asked)
    run = analyze("llama-2-7b", DB).at(batch_size=10**6, seq_len=10**6).on("h100")
    assert int(rows[-1]["flops"]) == run.totals.flops == list(found["flops"])[-1] > 2**63
    assert [int(r["read_bytes"]) for r in rows] == list(found["read_bytes"])
    assert rows[-1]["time_s"] == pytest.approx(run.time_s, rel=1e-12)


def test_workers_of_other_processes(tmp_path):
    from concurrent.futures import ProcessPoolExecutor
    from lm_predictor.library.sweeps.stream import write_sweep
    asked = {"batch_size": range(1, 601), "seq_len": range(1, 1001), "execution": "eager"}
    write_sweep(tmp_path / "one.csv", "gpt2", **asked)
    with ProcessPoolExecutor(2) as executor:
        assert write_sweep(tmp_path / "two.csv", "gpt2", **asked, executor=executor) == 600_000
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@pytest.mark.parametrize("arguments, said", [
    (["--seq-len", "9:3"], "seq_len 9:3 is empty: 3 is less than 9; turn it round: 3:9"),
    (["--seq-len", "1.5"], "seq_len takes whole numbers such as 8 or 1,8,64, or a range such as 128:32768:x2, got '1.5'"),
    (["--seq-len", ""], "seq_len takes whole numbers"),
    (["--seq-len", "2:8:x1"], "seq_len 2:8:x1 does not move; its step is at least x2"),
    (["--batch-size", "0"], "batch_size must be from 1 to 1000000000, got 0"),
    (["--cache-len", "9999999999"], "cache_len must be from 0 to 1000000000, got 9999999999"),
    (["--batch-size", "1:1000000", "--seq-len", "1:1000000"], "the sweep has 1,000,000,000,000 rows; more than 100,000 go into a file: add -o"),
    (["--batch-size", "1:1000000", "--seq-len", "1:1000000", "-o", "{home}/out.csv"], "the sweep has 1,000,000,000,000 rows, which need about 300,000 GB"),
    (["--hardware", "h1000"], "unknown hardware 'h1000'"),
    (["--execution", "engin"], "unknown execution 'engin'"),
    (["--precision", "w7"], "a precision is 4, 8, 16 or 32 bits of weights"),
    (["-o", "{home}/out.xls"], "out.xls must end in .csv or .parquet"),
    (["-o", "{home}/there.csv"], "exists already; give a new name, or remove it"),
    (["-o", "/proc/out.csv"], "/proc: "),
])
def test_bad_sweeps(arguments, said, tmp_path, capsys):
    (tmp_path / "there.csv").write_text("mine")
    assert main(["sweep", "gpt2", *(a.format(home=tmp_path) for a in arguments)]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error
    assert [p.name for p in tmp_path.iterdir()] == ["there.csv"] and (tmp_path / "there.csv").read_text() == "mine"


def test_memory_of_a_long_sweep_is_bounded(tmp_path):
    "Three million rows need no more memory than three hundred thousand, plus 100 MB"
    code = "import resource, sys\nfrom lm_predictor.library.sweeps.stream import write_sweep\n" \
           "write_sweep(sys.argv[1], 'gpt2', batch_size=range(1, int(sys.argv[2]) + 1), seq_len=range(1, 1001), execution='eager')\n" \
           "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    peak = [int(subprocess.run([sys.executable, "-c", code, str(tmp_path / f"{n}.csv"), str(n)], capture_output=True, text=True, check=True).stdout)
            for n in (300, 3000)]
    assert peak[1] < peak[0] + 100_000, peak
