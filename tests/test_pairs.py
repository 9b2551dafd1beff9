"Pairs of query and key in flash attention are those that the mask leaves (finding G)"
from dataclasses import replace

import pytest

from lm_predictor import analyze
from lm_predictor.formula.language import parse
from lm_predictor.models.sources.hub import presets
from lm_predictor.models.sources.loading import full_config
from lm_predictor.models.matching import symbol_values
from lm_predictor.verification.compare import compare_pairs
from lm_predictor.verification.runs.reference_run import collect


def triangle(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def left(tokens: int, window: int) -> int:
    return sum(min(i, window) for i in range(1, tokens + 1))


@pytest.mark.parametrize("model, tokens, pairs", [
    ("gpt-neo-125m", 2047, 6 * triangle(2047) + 6 * left(2047, 256)),  # global and local layers in turn
    ("gpt-neo-125m", 200, 12 * triangle(200)), ("openai-gpt", 512, 12 * triangle(512))
])
def test_flash_computes_what_the_mask_leaves(model, tokens, pairs):
    "Two products of 2 FLOPs for each pair and each of the 768 numbers of all heads; without flash for all pairs, 12 layers"
    cost = analyze(model, trace=False)
    flash, fused = (cost.at(seq_len=tokens, execution=e).totals.matmul_flops for e in ("flash", "fused"))
    assert fused - flash == 4 * 768 * (12 * tokens**2 - pairs)


def test_verification_sees_a_window_that_is_no_symbol():
    "GPT-Neo's local layers counted as causal ones: its check ran no more tokens than the window has"
    config = presets()["EleutherAI/gpt-neo-125m"]["config"]
    record = analyze("gpt-neo-125m", trace=False).record
    graph = record.graph("prefill")
    causal = parse("seq_len*cache_len + seq_len*(seq_len + 1)/2")
    wrong = replace(graph, nodes=tuple(replace(n, pairs=causal) if n.pairs else n for n in graph.nodes))
    assert wrong != graph
    evidence = collect(record, full_config(config), symbol_values(record, config))
    mistaken = replace(record, cases={**{c: record.graph(c) for c in record.cases}, "prefill": wrong})
    assert [c.ok for r in (record, mistaken) for c in compare_pairs(r, "prefill", evidence)] == [True, False]
