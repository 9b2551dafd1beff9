"""What `engine` runs: the figures of the shipped models, through the CLI and Python."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lm_predictor import analyze
from lm_predictor.models.config.validation import ModelError


def cli(*words):
    return subprocess.run([sys.executable, "-m", "lm_predictor", *words], capture_output=True, text=True, timeout=120)


def test_llama_decode_launches_what_an_engine_launches():
    found = cli("analyze", "meta-llama/Llama-3.1-8B", "--cache-len", "8192", "--format", "json")
    run = json.loads(found.stdout)
    assert sum(k["count"] for k in run["kernels"]) <= 291
    assert [r["name"] for r in run["rewrites"]] == ["siblings", "rope", "tables", "norm"]
    assert any("modeling_llama.py" in line for r in run["rewrites"] for line in r["lines"])


def test_a_rewrite_is_left_out_by_name():
    found = cli("analyze", "meta-llama/Llama-3.1-8B", "--cache-len", "64", "--execution", "engine", "--without", "siblings")
    assert found.returncode == 0 and "rewrites: rope, tables, norm" in found.stdout
    both = cli("analyze", "gpt2", "--execution", "engine", "--without", "norm,rope")
    assert both.returncode == 0 and "rewrites: epilogue (as" in both.stdout
    counts = {w: sum(k.count for k in analyze("llama-3.1-8b").at(cache_len=64, execution="engine", without=w).kernels)
              for w in ((), ("siblings",), ("norm",), ("rope",), ("tables",))}
    assert [n - counts[()] for n in counts.values()] == [0, 3 * 32, 32, 2 * 32, 1]


def test_an_unknown_rewrite_is_refused_with_the_nearest():
    found = cli("analyze", "gpt2", "--execution", "engine", "--without", "norn")
    assert found.returncode == 1 and found.stderr == "lm-predictor: there is no rewrite 'norn'; did you mean norm?\n"
    found = cli("analyze", "gpt2", "--execution", "flash", "--without", "norm")
    assert found.returncode == 1 and "flash has no rewrites to leave out" in found.stderr
    with pytest.raises(ModelError, match="there is no rewrite 'sibling'; did you mean siblings?"):
        analyze("gpt2").at(seq_len=5, execution="engine", without=["sibling"])


def test_deepseek_decode_does_not_expand_its_cache():
    "batch 16, 8192 cached, one token: 3.40 TFLOP and 0.57 TB, where the source expands every latent: 270 TFLOP, 2.40 TB"
    found = cli("analyze", "deepseek-ai/DeepSeek-V3", "--batch-size", "16", "--cache-len", "8192", "--execution", "engine",
                "--format", "json")
    totals = json.loads(found.stdout)["totals"]
    assert totals["flops"] == pytest.approx(3.40e12, rel=0.01)
    assert totals["read_bytes"] + totals["write_bytes"] == pytest.approx(0.57e12, rel=0.02)
    expanded = analyze("deepseek-v3").at(batch_size=16, cache_len=8192, execution="engine", without="absorb").totals
    assert expanded.flops > 270e12 and expanded.read_bytes + expanded.write_bytes > 2.3e12


@pytest.mark.parametrize("tokens, cached, absorbed", [(2048, 0, False), (1, 8192, True), (64, 8192, True), (512, 8192, False)])
def test_a_prompt_is_expanded_where_that_is_cheaper(tokens, cached, absorbed):
    run = analyze("deepseek-v3").at(batch_size=1, seq_len=tokens, cache_len=cached, execution="engine")
    assert ("absorb" in [r.name for r in run.rewrites]) is absorbed
    assert any(note.startswith("not applied: absorb") for note in run.notes) is not absorbed
    other = analyze("deepseek-v3").at(batch_size=1, seq_len=tokens, cache_len=cached, execution="engine", without="absorb")
    assert run.totals.flops <= other.totals.flops


@pytest.mark.parametrize("model, sizes, flash, engine", [
    ("llama-4-maverick", dict(seq_len=4096), 3500, 280),       # all tokens times all 128 experts, of which each chose one
    ("llama-4-maverick", dict(cache_len=1000), 167, 6.9),
    ("qwen3-30b-a3b", dict(seq_len=4096), 38.6, 36),           # rows of experts copied there; on their way back they are added up
    ("deepseek-v3", dict(batch_size=16, cache_len=8192), 660, 118),
])
def test_times_of_an_h200(model, sizes, flash, engine):
    "in ms, at the roofline"
    cost = analyze(model)
    assert cost.at(**sizes, execution="flash").on("h200").time_s * 1e3 == pytest.approx(flash, rel=0.02)
    assert cost.at(**sizes).on("h200").time_s * 1e3 == pytest.approx(engine, rel=0.02)


def test_mamba_prefill_moves_what_its_kernels_must():
    "8192 tokens: 87 GB, in under 1,000 kernels: the scan writes its output once, and each norm has its sum at hand"
    found = cli("analyze", "state-spaces/mamba-2.8b-hf", "--seq-len", "8192", "--execution", "engine", "--format", "json")
    run = json.loads(found.stdout)
    assert run["totals"]["read_bytes"] + run["totals"]["write_bytes"] == pytest.approx(87e9, rel=0.05)
    assert sum(k["count"] for k in run["kernels"]) < 1000
    assert {"gate", "norm"} < {r["name"] for r in run["rewrites"]}
    at = lambda without: analyze("mamba-2.8b").at(seq_len=8192, execution="engine", without=without).totals
    tokens, moved = 8192, lambda t: t.read_bytes + t.write_bytes
    assert at("gate").write_bytes - at(()).write_bytes == 64 * tokens * 5120 * 2
    assert moved(at("norm")) - moved(at(())) == 64 * tokens * 2560 * 4 + tokens * 2560 * 4  # the last sum is not written


def test_no_wide_copy_of_the_cache():
    "GPT-J at batch 32 after 2000 tokens: weights, 2 bytes of each key and value, and under 1 % of activations"
    run = analyze("gpt-j-6b").at(batch_size=32, cache_len=2000, execution="engine")
    cached = 2 * 28 * 32 * 2001 * 4096 * 2
    assert run.totals.read_bytes + run.totals.write_bytes == pytest.approx(2 * 6_050_882_784 + cached, rel=0.02)


def test_a_waterfall_shows_what_each_step_saves(tmp_path):
    picture = tmp_path / "steps.png"
    words = ("analyze", "deepseek-v3", "--batch-size", "16", "--cache-len", "8192", "--waterfall", "--hardware", "h200")
    found = cli(*words, "--plot", str(picture))
    assert found.returncode == 0, found.stderr
    rows = [line.split() for line in found.stdout.splitlines()]
    names = [row[0] for row in rows if row and row[0] in ("eager", "fused", "flash", "absorb", "siblings", "engine")]
    assert names == ["eager", "fused", "flash", "absorb", "siblings", "engine"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    stages = json.loads(cli(*words, "--format", "json").stdout)["stages"]
    assert max(stages[3:], key=lambda s: s["saved_s"] or 0)["name"] == "absorb"
    assert sum(s["saved_bytes"] for s in stages) == stages[0]["bytes"] - stages[-1]["bytes"]


@pytest.mark.parametrize("model, layers", [
    ("mixtral-8x7b", 32), ("qwen3-30b-a3b", 48), ("gpt-oss-20b", 24), ("deepseek-v3", 58), ("glm-4.5-air", 45)])
def test_a_layer_of_experts_ends_in_a_kernel_with_the_norm_after_it(model, layers):
    "A launch less for each layer, and the numbers of the residual stream are not read again"
    run, apart = (analyze(model).at(seq_len=64, execution="engine", without=w) for w in ((), ("norm",)))
    both = lambda r: sum(k.count for k in r.kernels if "sum" in k.operation and "rsqrt" in k.operation)
    assert both(run) == layers and both(apart) == 0
    assert run.totals.read_bytes < apart.totals.read_bytes and run.totals.flops == apart.totals.flops


def test_weights_of_one_format_lie_side_by_side_where_their_scales_do():
    "q_a_proj and kv_a_proj of DeepSeek-V3 in fp8: 1536 rows fill blocks of 128, and the 576 others come after them"
    run, apart = (analyze("deepseek-ai/DeepSeek-V3-FP8").at(cache_len=64, without=w) for w in ((), ("siblings",)))
    assert {k.operation for k in run.kernels if k.path.endswith("{q_a_proj,kv_a_proj_with_mqa}")} == {"2 mm"}
    assert run.totals.weight_bytes == apart.totals.weight_bytes and run.totals.flops == apart.totals.flops


def test_what_no_rule_covers_is_named():
    "RWKV's source loops over the tokens of a prompt; Llama's kernels are all covered"
    found = cli("analyze", "rwkv-4-169m", "--seq-len", "512")
    assert "no rule of engine covers 15.5% of the bytes moved" in found.stdout
    assert "a loop over tokens in Python (modeling_rwkv.py:270, 6,144 kernels)" in found.stdout
    rows = json.loads(cli("analyze", "rwkv-4-169m", "--seq-len", "512", "--format", "json").stdout)["without_rule"]
    assert rows[0]["source"].endswith("modeling_rwkv.py:270") and rows[0]["share"] > rows[1]["share"]
    assert analyze("llama-3.1-8b").at(cache_len=64).without_rule() == ()
    assert "no rule of engine" not in cli("analyze", "gpt2").stdout
    assert "no rule of engine covers" in cli("analyze", "rwkv-4-169m", "--seq-len", "512", "--waterfall").stdout


def test_a_waterfall_has_all_rewrites():
    found = cli("analyze", "gpt2", "--waterfall", "--without", "norm")
    assert found.returncode == 2 and "leave out --layers, --sort, --without" in found.stderr


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
SAMPLE = ("gpt2", "llama-3.1-8b", "gemma-2-2b", "deepseek-v2-lite", "qwen3-30b-a3b", "llama-4-scout", "mamba-130m",
          "qwen3-next-80b-a3b", "bloom-560m", "gpt-j-6b", "falcon-7b", "gpt-oss-20b")


@pytest.mark.parametrize("model", SAMPLE)
def test_each_execution_moves_at_most_what_the_one_before_does(model):
    "all presets: benchmarks/executions.py"
    from executions import out_of_order
    assert [row for row in out_of_order(model) if not row[-1]] == []


@pytest.mark.parametrize("model", ("gpt2", "llama-3.1-8b", "gemma-2-2b", "deepseek-v3", "llama-4-maverick", "gpt-j-6b", "mamba-130m"))
def test_a_step_moves_little_more_than_it_must(model):
    "weights that are used, what is cached and the logits, once each; all presets: benchmarks/executions.py"
    from executions import too_much
    assert [row for row in too_much(model) if not row[-1]] == []
