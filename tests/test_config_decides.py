"""Every config is answered for what it says, or refused: findings A, B and 8, and a seeded sample of all changed keys"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm_predictor.models.sources.hub import presets
from lm_predictor.models.sources.loading import full_config
from lm_predictor.models.matching import fits, has_every_kind, stored_records, symbol_values, unknown_names, with_layers_of
from lm_predictor.models.config.validation import ModelError
from lm_predictor.obtain.confirm import built_parameters, contradiction
from lm_predictor.obtain.fresh.ladder import against_numbers, record_values
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.tracing.runtime.functions import as_recorded

SHIPPED = Database(shipped_directory(), shipped_directory())
ROOT = Path(__file__).parent.parent


def of_type(kind: str) -> dict:
    return next(p["config"] for p in presets().values() if p["config"]["model_type"] == kind)


def answers(config: dict) -> list:
    return [r for _, r in stored_records(config["model_type"], SHIPPED) if not fits(r, config)]


CHANGED = [  # finding A: each of these was answered with the figures of another config
    ("qwen3_moe", {"mlp_only_layers": [0]}),
    ("qwen2_moe", {"mlp_only_layers": [1, 2]}), ("qwen3_next", {"mlp_only_layers": [3]}),
    ("mixtral", {"head_dim": 64}), ("falcon", {"n_embed": 2048}),
    ("lfm2", {"block_auto_adjust_ff_dim": False}), ("lfm2", {"block_ffn_dim_multiplier": 1.5}),
    ("recurrent_gemma", {"block_types": ["recurrent", "attention"]}),
    ("llama4_text", {"moe_layers": [0, 2]}), ("gpt_neox", {"rotary_pct": 0.5}), ("phi", {"partial_rotary_factor": 1.0}),
    ("phi3", {"partial_rotary_factor": 0.5}), ("stablelm", {"partial_rotary_factor": 0.5}),
    ("glm", {"partial_rotary_factor": 0.25}), ("glm4", {"partial_rotary_factor": 0.25}),
    ("glm4_moe", {"partial_rotary_factor": 0.25}), ("qwen3_next", {"partial_rotary_factor": 0.5}),
    ("minimax_m2", {"rotary_dim": 32}), ("recurrent_gemma", {"partial_rotary_factor": 0.25}),
    # finding B: a record whose layers are all alike answered any mixture
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"] * 14, "use_sliding_window": True}),
    ("llama", {"per_layer_config": {"0": {"intermediate_size": 64}}})
]


@pytest.mark.parametrize("kind, change", CHANGED, ids=[f"{k}-{'-'.join(c)}" for k, c in CHANGED])
def test_a_key_that_the_model_reads_decides(kind, change):
    config = of_type(kind)
    assert answers(config), "the preset itself is answered"
    changed = {k: v for k, v in config.items() if k != "rope_parameters"} | change
    for record in answers(changed):  # it is about the change: a run of the changed model does what it says
        full = full_config(changed)
        assert contradiction(record, changed) == ""
        with as_recorded(record, full):
            named = with_layers_of(record, changed)
            assert against_numbers(named, full, record_values(record, full)) == "", record.id


def run(*words, home) -> subprocess.CompletedProcess:
    environment = {**os.environ, "LM_PREDICTOR_DB": str(home), "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "lm_predictor", *words], capture_output=True, text=True, env=environment, cwd=ROOT)


def test_a_misspelt_or_null_size_is_named(tmp_path):
    config = of_type("mistral")
    for size in ("hidden_size", "vocab_size"):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**config, size: None}))
        found = run("analyze", str(file), home=tmp_path / "records")
        assert found.returncode == 1 and size in found.stderr and not found.stdout, found.stderr
        assert found.stderr.count("\n") == 1
    misspelt = {"hiden_size" if k == "hidden_size" else k: v for k, v in config.items()}
    (tmp_path / "config.json").write_text(json.dumps(misspelt))
    found = run("analyze", str(tmp_path / "config.json"), home=tmp_path / "records")
    assert found.returncode == 1 and "hiden_size; did you mean hidden_size?" in found.stderr, found.stderr


def test_what_a_class_does_not_know_is_named():
    config = of_type("mistral")
    [record] = answers(config)
    assert unknown_names(record, config | {"trained_on": "web"}) == ["trained_on"]
    with pytest.raises(ModelError, match="did you mean intermediate_size"):
        unknown_names(record, {("intermediate_sise" if k == "intermediate_size" else k): v for k, v in config.items()})


def test_a_record_of_layers_that_are_alike_is_about_such_layers():
    "Finding B: it answered any mixture"
    config = of_type("qwen3")
    layers = config["num_hidden_layers"]
    [record] = answers({**config, "layer_types": ["full_attention"] * layers})
    assert record.settings["layer_types"]["value"] == "full_attention"
    assert not answers({**config, "layer_types": ["sliding_attention", *["full_attention"] * (layers - 1)]})


@pytest.mark.slow
def test_the_order_of_analyses_changes_nothing(monkeypatch):
    "Finding B: layers that are alike and a mixture, in one database of one's own, in either order"
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from every_key import both_orders
    config = of_type("qwen3") | {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 16}
    kinds = "full_attention", "sliding_attention"
    alike, mixed = ({**config, "layer_types": [first, "full_attention"]} for first in kinds)
    assert both_orders(alike, mixed) == []


@pytest.mark.slow
def test_a_sample_of_all_changed_keys():
    "Parameters, FLOPs by FlopCounterMode and operators, of 8 answers drawn by chance; benchmarks/every_key.py has all"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "benchmarks/every_key.py", "llama", "qwen3_moe", "falcon", "gpt_neox", "--sample", "8"],
        capture_output=True, text=True, cwd=ROOT, env=environment)
    assert found.returncode == 0 and "8 answers are compared" in found.stdout, found.stdout + found.stderr


OTHERS = [  # sizes and patterns of layers that nobody published
    ("bert", {"is_decoder": True, "hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 320}),
    ("bart", {"d_model": 192, "decoder_attention_heads": 6, "decoder_ffn_dim": 320, "decoder_layers": 3}),
    ("gpt_neox", {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 640, "num_hidden_layers": 3}),
    ("deepseek_v3", {"num_hidden_layers": 5, "first_k_dense_replace": 2, "kv_lora_rank": 96, "q_lora_rank": 160,
                     "qk_nope_head_dim": 48, "v_head_dim": 80, "n_group": 4, "topk_group": 2, "n_routed_experts": 24,
                     "num_experts_per_tok": 4, "hidden_size": 256, "num_attention_heads": 6, "num_key_value_heads": 6}),
    ("gemma3_text", {"num_hidden_layers": 7, "sliding_window_pattern": 3}),
    ("gemma2", {"num_hidden_layers": 5}), ("lfm2", {"full_attn_idxs": [0, 1]}),
    ("gemma2", {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}),
    ("gemma2", {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    ("falcon", {"hidden_size": 2048, "num_attention_heads": 32}),
    ("codegen", {"n_embd": 1536, "n_head": 12, "n_layer": 3}), ("cpmant", {"hidden_size": 768, "num_attention_heads": 6}),
    ("jamba", {"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 3, "expert_layer_offset": 2}),
    ("qwen3_next", {"num_hidden_layers": 8, "decoder_sparse_step": 3, "mlp_only_layers": [5], "num_key_value_heads": 16, "linear_num_value_heads": 16}),
    ("bamba", {"num_hidden_layers": 7, "attn_layer_indices": [2, 5]}),
    ("llama4_text", {"hidden_size": 640, "num_attention_heads": 10, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 12,
                     "no_rope_layer_interval": 4, "attention_chunk_size": 512, "num_experts_per_tok": 2}),
    ("llama4_text", {"num_hidden_layers": 8, "moe_layers": [1, 3, 4, 7]}), ("llama4_text", {"no_rope_layers": []}),
    ("kimi_linear", {"head_dim": 96}),
    ("big_bird", {"is_decoder": True, "hidden_size": 192, "num_attention_heads": 6, "num_hidden_layers": 3}),
    ("xlm", {"emb_dim": 192, "n_heads": 6, "vocab_size": 500}),
    ("mistral", {"hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 128}),
]


@pytest.mark.parametrize("kind, change", OTHERS, ids=[f"{k}-{len(c)}" for k, c in OTHERS])
def test_other_sizes_and_patterns_are_answered(kind, change):
    "By a shipped record, and with as many parameters as transformers builds"
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.models.matching import symbol_values
    from lm_predictor.obtain.confirm import built_parameters, contradiction
    config = next((p["config"] for p in presets().values() if p["config"]["model_type"] == kind), {"model_type": kind})
    found = answers(config := config | change)
    assert found, [fits(r, config) for _, r in stored_records(kind, SHIPPED)]
    ours = found[0].parameters.evaluate(symbol_values(found[0], config))
    assert ours == built_parameters(full_config(config)), (torch.__version__, transformers.__version__)


def test_layers_of_several_kinds_are_counted():
    "Their paths are those of the config, and a kind that is not there, or one alone where that was not proven, is refused"
    from lm_predictor import analyze
    config = of_type("gemma2") | {"num_hidden_layers": 5}
    run = analyze(config, trace=False).at(batch_size=1, seq_len=16)
    of = lambda layers: {k.count for k in run.kernels if k.path.startswith(f"model.layers.{layers}.mlp")}
    assert of("0,2..4") == {3} and of("1,3") == {2}
    alone = config | {"layer_types": ["sliding_attention"] * 5}
    [sliding] = answers(alone)  # a record of such layers alone, not the one of both kinds
    assert not sliding.layers and contradiction(sliding, alone) == ""
    assert not answers(config | {"layer_types": ["sliding_attention", "full_attention"]})  # not one for each layer
    assert not answers(config | {"layer_types": ["sliding_attention"] * 4 + ["chunked_attention"]})


def test_an_interval_says_how_many_layers_are_of_each_kind():
    "Qwen3-Next makes its kinds of layers of an interval: a record of every fourth answers every second, with its counts"
    config = {"model_type": "qwen3_next"}
    for interval, counts in ((4, (36, 12)), (2, (24, 24))):
        given = config | {"full_attention_interval": interval}
        [record] = [r for r in answers(given) if has_every_kind(r, given)]  # others have dense layers, too
        values = symbol_values(record, config | {"full_attention_interval": interval})
        assert (values["num_layers_1"], values["num_layers_2"]) == counts
        full = full_config(config | {"full_attention_interval": interval})
        assert record.parameters.evaluate(values) == built_parameters(full)


def test_one_of_something_is_not_several():
    "One group of experts masks nothing, and one head is not transposed: records of more refuse one"
    kimi = presets()["moonshotai/Kimi-K2-Instruct"]["config"]
    [record] = answers({k: v for k, v in kimi.items() if k != "auto_map"} | {"model_type": "deepseek_v3"})
    assert "n_group == 1" in record.assumptions
    [several] = answers({"model_type": "deepseek_v3"})
    assert {"n_group > 1", "num_heads > 1"} <= {*several.assumptions}


def test_two_widths_that_differ_stay_apart():
    "A guard `a != b` is kept: ELECTRA projects its embedding only where that is narrower than the model"
    sizes = {"num_attention_heads": 2, "intermediate_size": 256, "model_type": "electra", "is_decoder": True}
    [projected] = answers(sizes | {"hidden_size": 192, "embedding_size": 128})
    [plain] = answers(sizes | {"hidden_size": 128, "embedding_size": 128})
    assert projected.id != plain.id and "embedding_size == hidden_size" in plain.assumptions


def test_one_head_of_keys_is_no_group_of_heads():
    "Its expanded view is no copy, so records of groups do not answer it; Gemma 3 1B and Llama have a record of their own"
    from lm_predictor import analyze
    with pytest.raises(ModelError, match="num_key_value_heads is 1, traced with more"):
        analyze({**presets()["Qwen/Qwen3.5-35B-A3B"]["config"], "num_key_value_heads": 1}, trace=False)
    llama = {**presets()["meta-llama/Llama-3.1-8B"]["config"], "num_key_value_heads": 1}
    for model in ("gemma-3-1b-it", llama):
        assert "num_kv_heads == 1" in analyze(model, trace=False).record.assumptions


def test_many_tokens_run_through_other_modules():
    "BigBird's sparse attention runs where a prompt has more than 704 tokens; its record is about fewer, which it says"
    from lm_predictor import analyze
    cost = analyze({"model_type": "big_bird", "is_decoder": True}, trace=False)
    assert cost.at(batch_size=1, seq_len=704).totals.flops > 0
    with pytest.raises(ModelError, match="seq_len <= 704"):
        cost.at(batch_size=1, seq_len=705)


@pytest.mark.parametrize("width", [None, 64, 128])
def test_a_head_s_width_that_only_code_reads_is_a_size(width):
    "Falcon-H1's class knows no head_dim, and its code takes one: a config is answered with its own, or with the usual"
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 4,
             "intermediate_size": 2048, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
             "mamba_d_state": 128, "vocab_size": 32784}
    config = {"model_type": "falcon_h1"} | sizes | ({"head_dim": width} if width else {})
    assert (records := answers(config))  # of one group, and of any number of them
    for record in records:
        values = symbol_values(record, config)
        assert values["head_dim"] == (width or 128)
        assert record.parameters.evaluate(values) == built_parameters(full_config(config))


@pytest.mark.parametrize("batch_size, seq_len, cache_len, counted", [
    (2, 63, 33, 1694991384576), (2, 150, 33, 4042136223744), (1, 330, 0, 4447316213760), (2, 1000, 0, 26952943534080),
])
def test_chunks_and_the_tokens_that_they_leave(batch_size, seq_len, cache_len, counted):
    "xLSTM takes chunks of 64 tokens together and the others one by one: `counted` is what torch's FlopCounterMode counts"
    from lm_predictor import analyze
    cost = analyze({"model_type": "xlstm"}, trace=False)
    totals = cost.at(batch_size=batch_size, seq_len=seq_len, cache_len=cache_len).totals
    assert totals.matmul_flops == counted and cost.record.cases["decode"].kv_cache_bytes.names >= {"num_layers"}


@pytest.mark.parametrize("seq_len", [64, 69, 512, 16385])
def test_chunks_that_its_formulas_do_not_know(seq_len):
    "What xLSTM does with one chunk, with chunks that leave no token or with very many, its record says not to know"
    from lm_predictor import analyze
    cost = analyze({"model_type": "xlstm"}, trace=False)
    with pytest.raises(ModelError, match="the formulas of xlstm assume"):
        cost.at(batch_size=2, seq_len=seq_len, cache_len=33)
