"""Every shipped record, in every execution: the kernels are found, and no product is lost on the way."""
import pytest

from lm_predictor.records.database import read_json, shipped_directory
from lm_predictor.cost.execution import attentions, device_kernels
from lm_predictor.records.model import record_from_json

PATHS = sorted((shipped_directory() / "models").glob("*.json"))


@pytest.mark.parametrize("path", PATHS, ids=[p.stem for p in PATHS])
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
