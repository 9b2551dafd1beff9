"""Independent roads to each number: torch's FlopCounterMode, and a concrete trace without any symbol.

Both run the real transformers models on the meta device (shapes without data).
"""
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402

from lm_predictor.config import canonical, integers, set_attribute  # noqa: E402
from lm_predictor.database import Database, shipped_directory  # noqa: E402
from lm_predictor.model import Workload, analyze, presets, stored_records  # noqa: E402
from lm_predictor.records import item_bytes  # noqa: E402
from lm_predictor.trace import build, fold, keep_kinds, layer_kinds, run  # noqa: E402

RECORDED = {p.stem.rpartition("-")[0] for p in (shipped_directory() / "models").glob("*.json")}
PRESETS = {n: p for n, p in presets().items() if p["config"]["model_type"] in RECORDED}  # test_presets.py: the weights of all
WORKLOADS = [Workload(1, 131, 0, "last"), Workload(3, 17, 33, "all"), Workload(2, 1, 100, "last")]


def hf_config(name):
    config = dict(PRESETS[name]["config"])
    return AutoConfig.for_model(config.pop("model_type"), **config)


@pytest.mark.parametrize("name", PRESETS)
def test_matmul_flops_equal_torch(name):
    "Whole model, all layers, real sizes: equal to torch's counter to the integer"
    config, cost = hf_config(name), analyze(name)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # batched_mm: torch's counter has no rule for grouped_mm
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="batched_mm").eval()
    for w in WORKLOADS:
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), torch.device("meta"):
            if w.cache_len:
                for i, layer in enumerate(cache.layers or [None] * config.num_hidden_layers):
                    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
                    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
                    past = torch.zeros((w.batch_size, heads, w.cache_len, width), dtype=torch.bfloat16)
                    cache.update(past, past, i)
            with FlopCounterMode(display=False) as counter:
                model(input_ids=torch.zeros((w.batch_size, w.seq_len), dtype=torch.long), past_key_values=cache, use_cache=True,
                      logits_to_keep=1 if w.logits == "last" else 0)
        assert cost.at(w, "eager").totals.matmul_flops == counter.get_total_flops(), w


def small_values(record, rng):
    "Random sizes that a record's construction allows, all different"
    head_dim, groups, kv = 2 * rng.randrange(5, 9), rng.choice([2, 3]), rng.choice([5, 7])
    values = {"head_dim": head_dim, "num_kv_heads": kv, "num_heads": kv * groups, "intermediate_size": 8 * rng.randrange(20, 40),
              "moe_intermediate_size": 8 * rng.randrange(20, 40), "vocab_size": rng.randrange(400, 900), "num_experts_per_tok": 3,
              "max_position_embeddings": rng.randrange(1000, 2000), "num_layers": 2, "hidden_size": 8 * rng.randrange(11, 19)}
    if "num_kv_heads == num_heads" in record.assumptions or "num_kv_heads" not in record.symbols:
        values["num_heads"] = values["num_kv_heads"] = kv
    if "head_dim" not in record.symbols:
        values["hidden_size"] = values["num_heads"] * 8 * rng.randrange(1, 4)
    return {n: v for n, v in values.items() if n in record.symbols}


def records():
    found = {}
    for name, preset in PRESETS.items():
        cost = analyze(name)
        found.setdefault(cost.record.id, name)
    return found.items()


@pytest.mark.parametrize("record_id,name", records())
@pytest.mark.parametrize("batch_size,seq_len,cache_len,logits", [
    (1, 23, 0, "last"), (4, 23, 0, "last"), (2, 9, 0, "all"), (1, 9, 0, "all"), (1, 1, 37, "last"), (5, 1, 37, "last"), (3, 1, 1, "last"),
    (1, 6, 31, "last"), (3, 6, 31, "last"), (2, 6, 31, "all"), (1, 6, 1, "all"), (1, 1, 0, "last"), (3, 1, 0, "all"), (2, 2, 1, "last")])
def test_symbolic_equals_concrete(record_id, name, batch_size, seq_len, cache_len, logits):
    "Each operator's FLOPs and bytes, from formulas and from a separate run with plain integers"
    rng = random.Random(f"{record_id} {batch_size} {seq_len} {cache_len}")
    cost = analyze(name)
    record, config = cost.record, hf_config(name)
    values = cost.values | small_values(record, rng)
    for attribute in integers(config):
        set_attribute(config, attribute, values[canonical(attribute)])
    with torch.device("meta"):
        model = build(config)
        names = keep_kinds(model, model.config, layer_kinds(model, model.config))
        recorder = run(model, batch_size, seq_len, cache_len, logits == "all")
    fold(recorder.root, names)
    storages = {s.id: s for s in recorder.storages.values()}
    w = Workload(batch_size, seq_len, cache_len, logits, 8, 16, 32)  # three different widths, so that a swapped one shows
    values |= w.symbols
    graph = record.graph(w.case)
    ours = [(n.op, graph.calls[n.call].path, graph.lines[n.line].line, *(f.evaluate(values) for f in graph.cost(n))) for n in graph.nodes]
    item = {id(s): item_bytes(s).evaluate(values) for s in storages.values()}
    theirs = [(op.name, chain[-1].path, op.line, op.flops, op.matmul_flops, sum(int(e) * item[id(storages[t])] for t, e, _ in op.reads),
               sum(int(e) * item[id(storages[t])] for t, e in op.writes)) for op, chain in recorder.root.walk()]
    assert len(ours) > 30
    for a, b in zip(ours, theirs):
        assert a == b
    assert len(ours) == len(theirs)
