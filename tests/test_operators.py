"Each rule is for an operator that torch has"
import pytest
import torch

from lm_predictor.cost.rules.operators import METADATA, RULES

NAMES = {schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas()}


@pytest.mark.parametrize("registry", (RULES, METADATA), ids=("rules", "metadata"))
def test_every_key_is_an_operator_of_torch(registry):
    assert len(registry) > 15 and sorted(set(registry) - NAMES) == []


def test_an_invented_operator_is_noticed():
    assert {"mm", "bmm", "_softmax"} <= NAMES and not {"flex_attention", "matrix_product"} & NAMES
