"`assert_cost` and its pytest plugin, as users meet them: pytest runs in a directory of its own"
import importlib.metadata
import json
import re
import subprocess
import sys

import pytest

from lm_predictor import analyze, assert_cost, diff
from lm_predictor.library.comparison.diff import Diff, paired
from lm_predictor.library.comparison.snapshot import read_snapshot
from lm_predictor.models.config.validation import ModelError

pytest_plugins = ["pytester"]
INSTALLED = any(e.value == "lm_predictor.library.pytest_plugin" for e in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = ["-p", "lm_predictor.library.pytest_plugin"]  # that of the entry point, where the installation has it


@pytest.fixture
def users(pytester, monkeypatch):
    "Runs pytest over a test of a user, in this process"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # tests that follow within a second look alike to a cache
    def run(test: str, *arguments: str):
        pytester.makepyfile(test_costs=f"from lm_predictor import assert_cost\n\n{test}")
        return pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider", *PLUGIN, *arguments)
    return run


def test_a_model_that_costs_what_is_expected(users):
    flops = analyze("gpt2").at(seq_len=64).totals.flops
    users(f"def test_gpt2():\n    assert_cost('gpt2', at={{'seq_len': 64}}, flops={flops}, parameters=124439808, at_most={{'kernels': 99}})\n"
          "def test_mlp():\n    assert_cost('LlamaMLP', at={'seq_len': 2, 'hidden_size': 8, 'intermediate_size': 16}, matmul_flops=1536)\n"
          ).assert_outcomes(passed=2)


def test_a_failure_shows_the_numbers_the_lines_and_the_users_own_line(users):
    result = users("def test_gpt2():\n    assert_cost('gpt2', at={'seq_len': 64}, flops=10**10, at_most={'read_bytes': 2e8})\n")
    result.assert_outcomes(failed=1)
    totals = analyze("gpt2").at(seq_len=64).totals
    text = result.stdout.str()
    assert re.search(rf"E +flops +10,000,000,000 +{totals.flops:,} +\+{totals.flops - 10**10:,} \(\+10\.6%\)", text)
    assert re.search(rf"E +read_bytes +at most 200,000,000 +{totals.read_bytes:,} +\+{totals.read_bytes - 2 * 10**8:,}", text)
    assert re.search(r"E +most of flops:\nE +transformer\.h\.\*\.mlp\.c_fc +pytorch_utils\.py:119 .* 33\.0%", text), text
    assert ">   assert_cost('gpt2'" in text.replace(">       ", ">   ") and "__tracebackhide__" not in text
    result.stdout.fnmatch_lines(["FAILED test_costs.py::test_gpt2 - AssertionError: openai-community/gpt2*"])


BASELINE = "def test_gpt2():\n    assert_cost('gpt2', at={'seq_len': %d}, baseline='costs/gpt2.json'%s)\n"


def test_a_baseline_is_written_compared_and_updated(users, pytester):
    result = users(BASELINE % (64, ""))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*costs/gpt2.json is not there: no baseline of openai-community/gpt2; write it with `pytest --update-costs`"])
    result = users(BASELINE % (64, ""), "--update-costs")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= baselines of costs =*", "written costs/gpt2.json"])
    file = pytester.path / "costs" / "gpt2.json"
    first = file.read_bytes()
    assert read_snapshot(file).totals["flops"] == analyze("gpt2").at(seq_len=64).totals.flops
    result = users(BASELINE % (64, ""))
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*baselines of costs*")
    result = users(BASELINE % (65, ""))
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert re.search(r"E +A openai-community/gpt2: .*64 new tokens.*\nE +B openai-community/gpt2: .*65 new tokens", text)
    assert re.search(r"E +changed: transformer\.h\.\*\.mlp\.c_fc", text) and "and 5 more lines" in text
    assert "where that is meant, `pytest --update-costs` makes it the baseline" in text
    users(BASELINE % (65, ", tolerance=0.02")).assert_outcomes(passed=1)
    assert file.read_bytes() == first
    result = users(BASELINE % (65, ""), "--update-costs")
    result.stdout.fnmatch_lines(["updated costs/gpt2.json"])
    assert file.read_bytes() != first
    result = users(BASELINE % (65, ""), "--update-costs")
    result.stdout.no_fnmatch_line("*baselines of costs*")


def test_a_baseline_of_another_source_names_the_line(users, pytester):
    "A statement that is gone, and one that costs more: what a new version of transformers would do"
    users(BASELINE % (64, ", execution='eager'"), "--update-costs").assert_outcomes(passed=1)
    file = pytester.path / "costs" / "gpt2.json"
    data = json.loads(file.read_text())
    softmax = next(r for r in data["lines"] if "softmax" in r["operation"])
    softmax["figures"]["flops"] -= 7
    data["lines"] = [r for r in data["lines"] if r["path"] != "transformer.ln_f"]
    file.write_text(json.dumps(data))
    text = users(BASELINE % (64, ", execution='eager'")).stdout.str()
    assert re.search(r"E +changed: transformer\.h\.\*\.attn +sdpa_attention|E +changed: transformer\.h\.\*\.attn ", text), text
    assert "only in B: transformer.ln_f" in text and re.search(r"E +flops .* \+7 ", text)
    now = read_snapshot(file)
    assert Diff(now, now, tuple(paired(now.lines, now.lines))).same


def test_broken_and_shared_baselines(users, pytester):
    (pytester.path / "costs").mkdir()
    file = pytester.path / "costs" / "gpt2.json"
    file.write_text("{")
    result = users(BASELINE % (64, ""))
    result.stdout.fnmatch_lines(["*DatabaseError: *costs/gpt2.json is not valid JSON*"])
    users(BASELINE % (64, ""), "--update-costs").assert_outcomes(passed=1)  # a broken one is replaced
    twice = BASELINE % (64, "") + (BASELINE % (65, "")).replace("test_gpt2", "test_again")
    result = users(twice, "--update-costs")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*costs/gpt2.json is the baseline of two different costs; give each a file of its own"])


def test_processes_of_xdist_write_baselines(pytester):
    "A real run of pytest, with two processes and the installed plugin where there is one"
    pytest.importorskip("xdist")
    pytester.makepyfile(test_costs="import pytest\nfrom lm_predictor import assert_cost\n\n@pytest.mark.parametrize('n', [7, 9])\n"
                        "def test_gpt2(n):\n    assert_cost('gpt2', at={'seq_len': n}, baseline=f'gpt2_{n}.json')\n")
    result = pytester.runpytest_subprocess("-n", "2", *PLUGIN, "--update-costs")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["written gpt2_7.json", "written gpt2_9.json"])
    pytester.runpytest_inprocess("-p", "no:xdist", *PLUGIN).assert_outcomes(passed=2)


def test_the_plugin_loads_nothing_heavy(pytester):
    "Stored models and classes need no torch, and a run without costs not even this package's parts"
    pytester.makepyfile(test_a="import sys\n\ndef test_before():\n    assert {m for m in sys.modules if m.startswith('lm_predictor.')} == {\n"
                               "        'lm_predictor.library', 'lm_predictor.library.pytest_plugin'}\n",
                        test_b="import sys\n\ndef test_costs():\n    from lm_predictor import assert_cost\n    assert_cost('llama-3.1-8b', at={'cache_len': 5}, at_most={'kernels': 300})\n"
                        "    assert_cost('LlamaMLP', model='llama-2-7b', at_most={'flops': 1e12})\n"
                        "    assert not {'torch', 'transformers', 'sympy', 'numpy', 'anthropic'} & sys.modules.keys()\n")
    pytester.runpytest_subprocess("-p", "no:xdist", *PLUGIN).assert_outcomes(passed=2)


@pytest.mark.skipif(not INSTALLED, reason="the installation is older than the plugin: pip install -e . again")
def test_the_installed_plugin_is_found_without_a_word():
    done = subprocess.run([sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, cwd="/")
    assert "--update-costs" in done.stdout


@pytest.mark.parametrize("given, error, said", [
    ({}, ModelError, "nothing is expected: give figures such as flops=..., at_most={...}, or baseline="),
    ({"flop": 3}, TypeError, "assert_cost has no argument 'flop'; did you mean flops?"),
    ({"flops": -3}, ModelError, "flops must be a number of at least 0, got -3"),
    ({"flops": "many"}, ModelError, "flops must be a number of at least 0, got 'many'"),
    ({"flops": float("nan")}, ModelError, "flops must be a number of at least 0, got nan"),
    ({"flops": True}, ModelError, "flops must be a number of at least 0, got True"),
    ({"at_most": {"read_byte": 3}}, ModelError, "there is no figure 'read_byte'; did you mean read_bytes?"),
    ({"at_least": {"cost": 3}}, ModelError, "there is no figure 'cost'; they are flops, matmul_flops, read_bytes,"),
    ({"at_most": 3}, ModelError, "at_most takes figures by name such as at_most={'flops': 1e12}, got 3"),
    ({"at_most": {"flops": 1}, "at_least": {"flops": 2}}, ModelError, "flops cannot be at least 2 and at most 1"),
    ({"flops": 3, "tolerance": -1}, ModelError, "a tolerance is a part of the whole such as 0.01 for 1 %, at least 0; got -1"),
    ({"flops": 3, "at": {"seq": 3}}, ModelError, "not seq; did you mean seq_len?"),
    ({"flops": 3, "at": {"seq_len": 0}}, ModelError, "seq_len must be an integer of at least 1, got 0"),
    ({"flops": 3, "at": 5}, ModelError, "at is a dictionary of sizes"),
    ({"flops": 3, "execution": "fast"}, ModelError, "unknown execution 'fast'"),
    ({"time_s": 3}, ModelError, "has no time_s: times need hardware=..., and a model"),
    ({"baseline": "gpt2"}, ModelError, "a baseline is the path of a file that ends in .json, got 'gpt2'"),
    ({"baseline": 3}, ModelError, "a baseline is the path of a file that ends in .json, got 3"),
])
def test_nonsense_is_one_sentence(given, error, said):
    with pytest.raises(error) as raised:
        assert_cost("gpt2", **given)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_no_cost_is_refused():
    for target, said in ((3, "got int"), ("gpt3", "unknown model 'gpt3'"), ("LlamaMLP", "lacks hidden_size, intermediate_size"),
                         ("my.py:Block", "is source code")):
        with pytest.raises(ModelError, match=re.escape(said)):
            assert_cost(target, flops=3)
    with pytest.raises(ModelError, match="has its numbers already; leave out at"):
        assert_cost(analyze("gpt2").at(seq_len=3), flops=3, at={"seq_len": 4})
    with pytest.raises(ModelError, match="has no weight_bytes: only a model holds weights and a cache"):
        assert_cost("LlamaMLP", model="llama-2-7b", weight_bytes=3)


def test_a_module_of_ones_own(tmp_path):
    "At the sizes of its example or at others, against a baseline, and one revision against the next"
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self, gated):
            super().__init__()
            self.up, self.down, self.gated = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8), gated

        def forward(self, x):
            y = torch.relu(self.up(x))
            if self.gated:
                y = y * y
            return x + self.down(y)

    asked = {"example_inputs": (torch.zeros(2, 5, 8),), "symbolic": {"batch": 0, "seq": 1}}
    assert_cost(Block(False), **asked, matmul_flops=2 * 2 * 10 * 8 * 32)
    found = assert_cost(Block(False), **asked, at={"batch": 3, "seq": 7}, execution="eager", kernels=4, parameters=8 * 32 * 2 + 40)
    assert found.asked["at"] == {"batch": 3, "seq": 7}
    [new] = [r for r in diff(Block(False), Block(True), {"seq": 100}, "eager", **asked).lines if r.change != "same"]
    assert diff(analyze(Block(True), **asked), Block(True), **asked).same
    assert (new.change, new.line.code, new.figures["flops"].after) == ("only in B", "y = y * y", 2 * 100 * 32)
    with pytest.raises(ModelError, match="there is no size 'sq'; did you mean seq"):
        assert_cost(Block(False), **asked, at={"sq": 3}, flops=3)
    with pytest.raises(ModelError, match="example_inputs"):
        assert_cost(Block(False), flops=3)
