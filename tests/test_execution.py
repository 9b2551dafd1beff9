"""Shipped records, in every execution: the kernels can run one after another, and no product is lost on the way."""
import json
import zlib

import pytest

from lm_predictor import analyze
from lm_predictor.records.cases import Case
from lm_predictor.records.storage.database import read_json
from lm_predictor.cost.execution import EXECUTIONS, attentions, unwritten
from lm_predictor.cost.rewrites.engine import device_kernels, executed
from lm_predictor.records.storage.files import model_id
from lm_predictor.records.model import record_from_json
from shipped import PATHS


@pytest.mark.parametrize("path", PATHS, ids=map(model_id, PATHS))
def test_every_record(path):
    record = record_from_json(read_json(path))
    for case in ("prefill", "decode", "decode_past"):
        if case not in record.cases:
            continue
        graph = record.graph(case)
        products = {i for i, n in enumerate(graph.nodes) if n.kind == "matmul"}
        found = attentions(graph)
        assert len(found) == sum(n.scores is not None for n in graph.nodes)  # each softmax over scores stands between two products
        merged = {before[0] for before, _ in found.values()}
        for execution, expected in (("eager", products), ("fused", products), ("flash", products - merged)):
            kernels = device_kernels(graph, execution)
            run = [i for k in kernels for i in k.nodes]
            assert len(run) == len(set(run)) and set(run) & products == expected


@pytest.mark.parametrize("path", PATHS, ids=map(model_id, PATHS))
def test_what_a_kernel_reads_is_there(path):
    "GPT-OSS in flash took a maximum over scores that no kernel had written (finding C)"
    record = record_from_json(read_json(path))
    for case in record.cases:
        if Case.parse(case).single or Case.parse(case).all_logits:  # `verify` looks at these, too
            continue
        graph = record.graph(case)
        for execution in EXECUTIONS:
            run = executed(graph, execution)
            lost = [(k.operation, tensor) for k, tensor in unwritten(run.graph, run.kernels)]
            assert not lost, (case, execution)


def in_window(tokens, window):
    return sum(min(i, window) for i in range(1, tokens + 1))


@pytest.mark.parametrize("tokens", [100, 8192])
def test_attention_with_sinks_by_hand(tokens):
    "gpt-oss-20b: 12 full and 12 windowed layers, 64 query and 8 KV heads of 64, one sink for each of the 64; a window of 128"
    run = analyze("openai/gpt-oss-20b", trace=False).at(batch_size=1, seq_len=tokens, execution="flash")
    sinks = [k for k in run.kernels if k.operation == "attention"]
    assert len(sinks) == 2 and all(k.count == 12 for k in sinks)
    pairs = in_window(tokens, 128), in_window(tokens, tokens)
    q, kv = 64 * 64 * tokens, 8 * 64 * tokens
    for k, left in zip(sorted(sinks, key=lambda k: k.matmul_flops), sorted(pairs)):
        assert k.matmul_flops == 64 * left * 4 * 64
        # scale; of one column more in each row: the maximum, its subtraction, 3 of the softmax
        assert k.flops - k.matmul_flops == 64 * (left + 5 * (left + tokens))
        assert (k.read_bytes, k.write_bytes) == (2 * (q + 2 * kv + 64), 2 * q)
    fused = analyze("openai/gpt-oss-20b", trace=False).at(batch_size=1, seq_len=tokens, execution="fused").totals
    skipped = 24 * tokens**2 - 12 * sum(pairs)
    assert fused.matmul_flops - run.totals.matmul_flops == 64 * 4 * 64 * skipped


@pytest.mark.parametrize("model, tokens, layers, flops, read", [
    # per pair: two products of 2 FLOPs per element of a head; scale, division, tanh, product, 3 of the softmax
    ("google/gemma-2-2b", 300, 13, 8 * 300 * 301 // 2 * (4 * 256 + 7), 2 * 300 * 256 * (8 + 4 + 4)),
    ("google/gemma-2-2b", 77, 13, 8 * 77 * 78 // 2 * (4 * 256 + 7), 2 * 77 * 256 * (8 + 4 + 4)),
    # the slopes times the positions, for each head and key, are added in the product: 1 for it, 3 for the softmax
    ("bigscience/bloom", 300, 70, 112 * 300 * 301 // 2 * (4 * 128 + 4), 2 * 300 * 112 * (3 * 128 + 1)),
    ("bigscience/bloom", 77, 70, 112 * 77 * 78 // 2 * (4 * 128 + 4), 2 * 77 * 112 * (3 * 128 + 1)),
])
def test_softcap_and_alibi_are_inside_the_attention(model, tokens, layers, flops, read):
    run = analyze(model, trace=False).at(batch_size=1, seq_len=tokens, execution="flash")
    kernels = [k for k in run.kernels if k.operation.startswith("attention")]
    assert {(k.operation, k.count, k.flops, k.read_bytes) for k in kernels} == {("attention", layers, flops, read)}


# a small DeepSeek-V3.2: 4 heads of 12 + 8 for scores and of 20 for values; its indexer of 3 heads of 16 picks 10 tokens
SPARSE = dict(
    model_type="deepseek_v32", num_hidden_layers=1, first_k_dense_replace=1, hidden_size=64, intermediate_size=96,
    moe_intermediate_size=32, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=2,
    n_group=2, topk_group=1, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8, head_dim=8, qk_nope_head_dim=12,
    v_head_dim=20, index_n_heads=3, index_head_dim=16, index_topk=10, vocab_size=1001)


def test_sparse_attention_on_both_sides_of_what_is_picked(tmp_path, monkeypatch):
    "Nothing could be said of DeepSeek-V3.2 at more tokens than its indexer picks, which is where it is sparse"
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path / "db"))
    (tmp_path / "config.json").write_text(json.dumps(SPARSE))
    cost = analyze(str(tmp_path / "config.json"), trace=True)
    for new, cached in ((7, 0), (40, 0), (1, 50), (6, 7)):
        eager, flash = (cost.at(batch_size=2, seq_len=new, cache_len=cached, execution=e) for e in ("eager", "flash"))
        real = forward(new, cached)
        assert eager.totals.matmul_flops == real
        together, pairs = new * (cached + new), sum(min(cached + i, 10) for i in range(1, new + 1))
        assert real - flash.totals.matmul_flops == 2 * 4 * 2 * (20 + 20) * (together - pairs)
        [attention] = [k for k in flash.kernels if k.operation == "attention"]
        q, chosen = 4 * 20 * new, min(10, cached + new) * new
        rows = min(cached + new, pairs)  # those that the queries selected together, each at most once
        read = q + rows * 4 * 20 + rows * 4 * 20
        assert attention.read_bytes == 2 * 2 * read + 2 * 8 * chosen
        if new == 1:  # latents: 16 numbers and 8 that are turned, for each of the 10 rows; the 16 are the values, too
            engine = cost.at(batch_size=2, seq_len=new, cache_len=cached, execution="engine")
            [attention] = [k for k in engine.kernels if k.operation == "attention"]
            assert attention.read_bytes == 2 * 2 * (4 * (16 + 8) + 10 * (16 + 8)) + 2 * 8 * chosen
        assert any(k.operation == "topk" for k in flash.kernels)  # the indexer is run


def forward(new, cached):
    "FLOPs of the products of a forward of SPARSE, two sequences, as torch counts them"
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
    config = AutoConfig.for_model(**SPARSE)
    with torch.device("meta"), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16).eval()
        cache = DynamicCache(config=config)
        if cached:
            model(torch.zeros((2, cached), dtype=torch.long), past_key_values=cache)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros((2, new), dtype=torch.long), past_key_values=cache, logits_to_keep=1)
    return counter.get_total_flops()


@pytest.mark.parametrize("tokens", [57, 300])
def test_experts_outputs_are_put_back_by_one_kernel(tokens):
    "Gathers were never fused, so that fused moved more than a generated kernel does (finding H)"
    run = analyze("mixtral-8x7b", trace=False).at(batch_size=1, seq_len=tokens, execution="fused")
    [back] = [k for k in run.kernels if "index" in k.operation and "sum" in k.operation]
    rows, stream = 2 * 2 * 4096 * tokens, 2 * 4096 * tokens  # two experts' outputs for each token; the residual stream
    assert back.write_bytes == stream
    assert back.read_bytes == rows + stream + 2 * tokens * (4 + 8 + 8)  # their weights and places
    embedded = analyze("gpt2", trace=False).at(batch_size=1, seq_len=tokens, execution="fused").kernels[0]
    assert embedded.operation.startswith("2 embedding") and embedded.write_bytes == 2 * 768 * tokens


@pytest.mark.parametrize("path", PATHS, ids=map(model_id, PATHS))
def test_executions_move_less_and_less(path):
    "flash <= fused <= eager in bytes, at a prefill and a step, whatever joins"
    record = record_from_json(read_json(path))
    for case, new, cached in (("prefill", 40, 0), ("decode", 1, 70)):
        graph, moved = record.graph(case), []
        for execution in ("flash", "fused", "eager"):
            kernels = device_kernels(graph, execution)
            names = {n for k in kernels for f in (k.repeat, *k.cost) for n in f.names}
            at = {n: 64 * (3 + zlib.crc32(n.encode()) % 11) for n in names} | dict.fromkeys(("w_bytes", "a_bytes", "kv_bytes"), 2)
            at |= dict(batch_size=3, seq_len=new, cache_len=cached, active_experts=2)
            moved.append(sum(k.repeat.evaluate(at) * (k.cost.read + k.cost.write).evaluate(at) for k in kernels))
        assert moved == sorted(moved), case


@pytest.mark.parametrize("model, experts, execution, said", [
    ("llama-4-scout", 16, "flash", True), ("llama-4-maverick", 128, "eager", True), ("llama-4-scout", 16, "engine", False),
    ("mixtral-8x7b", 8, "flash", False),  # its source computes the chosen ones
])
def test_it_is_said_where_all_experts_are_computed(model, experts, execution, said):
    "Llama 4's source multiplies each token with every expert, and no note said so (finding H)"
    notes = analyze(model, trace=False).at(seq_len=40, execution=execution).notes
    start = f"every token is multiplied with all {experts} experts of a layer, as the source does it (modeling_llama4.py:79, "
    assert any(note.startswith(start) for note in notes) is said
    assert any("is multiplied with all" in note for note in notes) is said


# 3 heads of 8; MPT adds slopes times positions of one row, Falcon to the scores and again, with the mask, for each pair
BIASED = {
    "mpt": dict(d_model=24, n_heads=3, n_layers=1, vocab_size=101, max_seq_len=512),
    "falcon": dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=1, vocab_size=101, alibi=True,
                   new_decoder_architecture=False, multi_query=False, parallel_attn=False, bias=False),
}


@pytest.fixture(scope="module", params=BIASED)
def biased(request, tmp_path_factory):
    "A small model with position biases, traced"
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "config.json").write_text(json.dumps({"model_type": request.param} | BIASED[request.param]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_PREDICTOR_DB", str(folder / "db"))
        return request.param, analyze(str(folder / "config.json"), trace=True)


@pytest.mark.parametrize("tokens", [5, 40])
def test_position_biases_are_inside_the_attention(biased, tokens):
    kind, cost = biased
    run = cost.at(batch_size=2, seq_len=tokens, execution="flash")
    [attention] = [k for k in run.kernels if k.operation.startswith("attention")]
    pairs, heads, row = tokens * (tokens + 1) // 2, 2 * 3, 2 * 3 * 8 * tokens * 2  # bytes of Q, of K, of V
    # scale, bias and softmax; Falcon's scores get both its biases
    assert attention.matmul_flops == heads * pairs * 4 * 8
    assert attention.flops - attention.matmul_flops == heads * pairs * (5 if kind == "mpt" else 6)
    # the bias of a head and key, 4 bytes; for each sequence of 2 bytes, and of each pair
    bias = 4 * 3 * tokens if kind == "mpt" else 2 * heads * (tokens + tokens**2)
    assert (attention.read_bytes, attention.write_bytes) == (3 * row + bias, row)
