"What `analyze` shows: the table at any width, into pipes and files; the pictures of --plot."
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from lm_predictor import analyze
from lm_predictor.app.cli.main import main

SHELL = [sys.executable, "-c", "import sys; from lm_predictor.app.cli.main import main; sys.exit(main(sys.argv[1:]))"]
RUNS = ["llama-2-7b --hardware h100", "llama-2-7b", "deepseek-ai/DeepSeek-V3 --cache-len 4096 --hardware h200", "gpt2 --execution eager --hardware l4",
        "mixtral-8x7b --w-bits 4 --kv-bits 8", "AntonV/mamba2-2.7b-hf --hardware a100 --seq-len 512"]


def printed(line, capsys, monkeypatch, columns=None) -> list[str]:
    "Lines that a command prints where the output is no terminal, of a width or none"
    monkeypatch.setenv("COLUMNS", str(columns)) if columns else monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["analyze", *line.split()]) == 0
    return capsys.readouterr().out.splitlines()


def rows(lines: list[str]) -> list[str]:
    "The rows of the table: between its first two rules"
    rules = [i for i, line in enumerate(lines) if re.fullmatch("[─-]+", line)]
    return lines[rules[0] + 1:rules[1]] if len(rules) > 1 else lines[rules[0] + 1:]


@pytest.mark.parametrize("line", RUNS)
@pytest.mark.parametrize("columns", (60, 80, 100, 160))
def test_fits(line, columns, capsys, monkeypatch):
    lines = printed(line, capsys, monkeypatch, columns)
    assert max(map(len, lines)) <= columns and all(text == text.rstrip() for text in lines)
    run = analyze(line.split()[0]).at(**sizes(line))
    assert len(rows(lines)) == len(run.kernels)  # a row is a line
    names = {part for k in run.kernels for part in (k.path or "(model)").split(".")}
    for row in rows(lines):  # no name is broken, but one that alone is too long
        whole = [part for part in row.split()[0].split("…") if part]
        assert all(name in names for part in whole for name in part.split(".")) or row.split()[0].endswith("…"), row


def sizes(line: str) -> dict:
    given = re.findall(r"--([a-z]+-(?:len|bits)) (\d+)", line)
    found = {name.replace("-", "_"): int(value) for name, value in given} | ({"execution": "eager"} if "eager" in line else {})
    positions = {"seq_len": 1024} if line.startswith("gpt2") else {}
    return positions | ({"seq_len": 1} if "cache_len" in found else {}) | found


@pytest.mark.parametrize("line", RUNS[:4])
def test_largest_first(line, capsys, monkeypatch):
    lines = printed(line, capsys, monkeypatch)
    shares = [float(re.search(r"([\d.]+)%", row)[1]) for row in rows(lines)]
    assert shares == sorted(shares, reverse=True) and abs(sum(shares) - 100) < 0.05 * len(shares)
    bars = [len(row.rpartition("%")[2].strip()) for row in rows(lines)]
    assert bars == sorted(bars, reverse=True) and bars[0] == 12
    in_order = rows(printed(f"{line} --sort order", capsys, monkeypatch))
    run = analyze(line.split()[0]).at(**sizes(line))
    assert [row.split()[0] for row in in_order] == [k.path or "(model)" for k in run.kernels]
    assert sorted(in_order) == sorted(rows(lines))


def test_pipe_has_all_of_it_and_no_codes(capsys, monkeypatch):
    lines = printed("deepseek-ai/DeepSeek-V3 --hardware h100 --execution eager", capsys, monkeypatch)
    run = analyze("deepseek-ai/DeepSeek-V3").at(execution="eager")
    assert not any("\x1b" in line or "…" in line for line in lines)
    assert sorted(row.split()[0] for row in rows(lines)) == sorted(k.path or "(model)" for k in run.kernels)
    totals = next(line for line in lines if line.startswith("FLOPs"))
    assert f"FLOPs {run.totals.flops:,}" in totals and f"written {run.totals.write_bytes:,} B" in totals


@pytest.mark.parametrize("columns", (60, 80, 100))
@pytest.mark.parametrize("model", ("mixtral-8x7b", "AntonV/mamba2-2.7b-hf"))
def test_tree(model, columns, capsys, monkeypatch):
    lines = printed(f"{model} --hardware h200 --layers --seq-len 512", capsys, monkeypatch, columns)
    assert max(map(len, lines)) <= columns
    lines = lines[:next(i for i, line in enumerate(lines) if line.startswith("each row"))]  # below stand the sums
    run = analyze(model).at(seq_len=512)
    assert len(rows(lines)) == len({path for path, _ in run.modules})  # each module once
    first, *below = rows(lines)
    assert "100.0%" in first
    direct = [float(re.search(r"([\d.]+)%", row)[1]) for row in below if re.match(r"  \S", row)]
    assert 99 < sum(direct) <= 100.1  # the rest is the model's own


def at_terminal(line, **environment) -> str:
    "What a command prints to a terminal 90 characters wide"
    leader, follower = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE")} | {"COLUMNS": "90", "TERM": "xterm-256color"} | environment
    done = subprocess.Popen([*SHELL, *line.split()], stdout=follower, stdin=subprocess.DEVNULL, env=env)
    os.close(follower)
    held = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other side has closed
            break
        if not part:
            break
        held += part
    assert done.wait() == 0
    os.close(leader)
    return held.decode()


def test_colour_is_for_terminals():
    line = "analyze gpt2 --hardware l4"
    seen = at_terminal(line)
    assert re.search("\x1b\\[3[0-9]m", seen)
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not re.search("\x1b\\[(3|4|9|10)[0-9]", at_terminal(line, **environment)), environment
    plain = re.sub("\x1b\\[[0-9;]*m", "", seen).replace("\r\n", "\n")
    into_pipe = subprocess.run([*SHELL, *line.split()], capture_output=True, text=True, env={**os.environ, "COLUMNS": "90"}).stdout
    assert plain == into_pipe and "\x1b" not in into_pipe


def test_output_of_ascii():
    done = subprocess.run([*SHELL, "analyze", "gpt2", "--hardware", "h100"], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"})
    assert done.returncode == 0 and done.stdout.isascii() and b"#####" in done.stdout and b"..." in done.stdout and done.stderr == b""


def test_reader_that_stops():
    done = subprocess.run(f"{sys.executable} -c '{SHELL[2]}' analyze gpt2 --execution eager | head -1; echo ${{PIPESTATUS[0]}}", shell=True, executable="/bin/bash",
                          capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_plot_writes_what_was_analyzed(tmp_path, capsys):
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        assert main(["analyze", "gpt2", "--format", "json", "--plot", str(tmp_path / name), *(["--hardware", "l4"] if name == "a.png" else [])]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["model"] == "openai-community/gpt2" and err == f"{tmp_path / name} written\n"
        assert (tmp_path / name).read_bytes().startswith(start)


def test_wrong_input_draws_nothing(tmp_path, capsys):
    assert main(["analyze", "gpt2", "--seq-len", "0", "--plot", str(tmp_path / "a.png")]) == 1
    assert main(["analyze", "gpt2", "--plot", ""]) == 2
    said = "--plot needs the name of a file, such as roofline.png (see `lm-predictor analyze --help`)"
    assert capsys.readouterr().err.splitlines()[-1] == f"lm-predictor: {said}"
    assert list(tmp_path.iterdir()) == []


def test_plot_without_matplotlib(tmp_path):
    code = f"import sys; sys.modules['matplotlib'] = None; {SHELL[2]}"
    done = subprocess.run([sys.executable, "-c", code, "analyze", "gpt2", "--plot", str(tmp_path / "a.png")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "lm-predictor: --plot needs matplotlib: pip install 'lm-predictor[notebook]'\n")
