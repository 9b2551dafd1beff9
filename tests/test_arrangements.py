"Records of models with several kinds of layers answer other orders of them, and none of a kind, as transformers builds and torch counts"
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lm_predictor import analyze
from lm_predictor.formula.language import parse
from lm_predictor.models.sources.loading import full_config
from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_paths, read_json, read_record

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


@pytest.mark.parametrize("kind, changes", [OTHERS[1], OTHERS[3]])
def test_verify_compares_layers_in_their_own_order(kind, changes):
    "Operators by their places would differ, since those of the record are in the order that was traced"
    from dataclasses import replace
    from lm_predictor.models.config.kinds import kinds_of_layers
    from lm_predictor.models.matching import fits, symbol_values
    from lm_predictor.records.model import record_from_json
    from lm_predictor.tracing.config.reads import plain
    from lm_predictor.verification.arrangements import arranged_difference
    from lm_predictor.verification.prove import prove
    config = {**type_config(kind), **changes}
    path, record = next((p, r) for p in model_paths(shipped_directory(), f"{kind}-*")
                        if not fits(r := record_from_json(read_json(p)), config) and not r.functions)
    checks = prove(path, shipped_directory(), shipped_directory(), kind, config).checks
    assert all(c.ok for c in checks) and "what its layers execute equals a run, in their own order" in {c.what for c in checks}
    full = full_config(config)
    values, kinds = symbol_values(record, full.to_dict()), kinds_of_layers(plain(full), record.layers)
    assert arranged_difference(record, full, values, kinds) == ""
    assert arranged_difference(replace(record, parameters=parse(f"{record.parameters} + 1")), full, values, kinds) == "its weights"
    assert arranged_difference(record, full, values, [1 - k for k in kinds])  # that many of the other kind


def test_modules_of_no_layer_are_not_shown():
    config = {**type_config("axk1"), "num_hidden_layers": 2, "mlp_layer_types": ["dense", "dense"]}
    run = analyze(config, SHIPPED).at(batch_size=1, seq_len=16)
    assert run.kernels and all(k.count for k in run.kernels)
    assert not any("none" in row.path or row.class_name.endswith("Experts") for row in run.layers())


def test_sets_are_kinds_of_their_record():
    for path in model_paths(shipped_directory()):
        layers = read_record(path).get("layers", {})
        every = set(range(len(layers.get("kinds", ()))))
        assert all(kinds == sorted(kinds) and set(kinds) <= every for kinds in layers.get("sets", ())), path
        assert not layers or "sets" in layers, path
