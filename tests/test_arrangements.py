"Records of models with several kinds of layers answer other orders of them, and none of a kind, as transformers builds and torch counts"
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lm_predictor import analyze
from lm_predictor.models.sources.loading import full_config
from lm_predictor.obtain.build import type_config
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_paths, read_json

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from every_key import answered
from random_configs import compared, counts

SHIPPED = Database(shipped_directory(), shipped_directory())
FULL, SLIDING = "full_attention", "sliding_attention"
OTHERS = [  # a config of the type's own order is met the other way round, or lacks a kind
    ("cwm", {"num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("gemma2", {"num_hidden_layers": 3, "layer_types": [FULL, FULL, SLIDING]}),
    ("axk1", {"num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "dense"]}),
    ("axk1", {"num_hidden_layers": 2, "mlp_layer_types": ["dense", "dense"]}),
    ("deepseek_v3", {"num_hidden_layers": 2, "first_k_dense_replace": 0, "n_shared_experts": 1}),
]


@pytest.mark.parametrize("kind, changes", OTHERS)
def test_other_arrangements(kind, changes):
    config = {**type_config(kind), **changes}
    found = answered(config, SHIPPED)
    assert not isinstance(found, str), found
    assert found[0].layers["sets"] and compared(*found, *counts(full_config(config))) == ""


def test_modules_of_no_layer_are_not_shown():
    config = {**type_config("axk1"), "num_hidden_layers": 2, "mlp_layer_types": ["dense", "dense"]}
    run = analyze(config, SHIPPED).at(batch_size=1, seq_len=16)
    assert run.kernels and all(k.count for k in run.kernels)
    assert not any("none" in row.path or row.class_name.endswith("Experts") for row in run.layers())


def test_sets_are_kinds_of_their_record():
    for path in model_paths(shipped_directory()):
        layers = read_json(path).get("layers", {})
        every = set(range(len(layers.get("kinds", ()))))
        assert all(kinds == sorted(kinds) and set(kinds) <= every for kinds in layers.get("sets", ())), path
        assert not layers or "sets" in layers, path
