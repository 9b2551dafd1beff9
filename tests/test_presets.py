"The presets: each is a real checkpoint, and the weights that its config builds are as many as were published."
import json
import re
import warnings

import pytest

from lm_predictor.records.storage.database import shipped_directory
from lm_predictor.models.sources.loading import load_config
from lm_predictor.models.sources.hub import all_names, known_names, presets
from lm_predictor.obtain.analyze import analyze

FILES = sorted((shipped_directory() / "presets").glob("*.json"))
PRESETS = presets()
FIELDS = {"model", "aliases", "published_parameters", "published_text", "published_quantization", "source", "config", "whole"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file(path):
    "Every field is there, and nothing else; the file is named as its model"
    preset = json.loads(path.read_text())
    assert FIELDS - {"published_text", "published_quantization", "whole"} <= set(preset) <= FIELDS
    assert path.stem == preset["model"].replace("/", "--") and preset["model"].count("/") == 1
    assert type(preset["published_parameters"]) is int
    assert preset["source"].startswith("Hyperparameters: ") and " Parameter count: " in preset["source"]
    assert preset["config"]["model_type"] and preset["aliases"] and all(a == a.lower() for a in preset["aliases"])


WHOLE = {  # parameters of the checkpoints whose count for the whole is named by their source
    "Qwen/Qwen3-VL-8B-Instruct": 8767123696, "google/gemma-3-4b-it": 4300079472, "google/gemma-3-12b-it": 12187325040,
    "google/gemma-3-27b-it": 27432406640, "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108641793536,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 401583781376
}


@pytest.mark.parametrize("model", [m for m, p in PRESETS.items() if "whole" in p])
def test_images_are_answered_by_name(model):
    "What stands around the language model is in the preset, and its image part ships"
    preset = PRESETS[model]
    assert "text_config" not in preset["whole"] and isinstance(preset["whole"]["vision_config"], dict)
    cost = analyze(model, trace=False)
    whole = cost.at(images=1, image_size=(448, 672), seq_len=64)
    assert whole.parameters == WHOLE.get(model, whole.parameters) > cost.at(seq_len=64).parameters
    assert whole.workload.seq_len == 64 + whole.workload.image_tokens > 64 + 100
    assert whole.totals.flops > cost.at(seq_len=whole.workload.seq_len).totals.flops


def test_names_are_unique():
    assert len(FILES) == len(PRESETS)
    names = [n.lower() for p in PRESETS.values() for n in (p["model"], *p["aliases"])]
    assert len(names) == len(set(names))
    for p in PRESETS.values():
        for n in (p["model"], *p["aliases"]):
            assert load_config(n) == (p["model"], p["config"])


def test_how_many():
    assert len(PRESETS) >= 62
    assert len({p["config"]["model_type"] for p in PRESETS.values()}) >= 36


@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if "published_text" in p])
def test_published_text(name):
    "A count that was published rounded (6.7B): the integer rounds to it"
    number, unit = re.fullmatch(r"([\d.]+)([MBT])", PRESETS[name]["published_text"]).groups()
    digits = len(number.partition(".")[2])
    assert f"{PRESETS[name]['published_parameters'] / 10 ** {'M': 6, 'B': 9, 'T': 12}[unit]:.{digits}f}" == number


@pytest.mark.parametrize("name", PRESETS)
def test_weights_are_as_many_as_published(name):
    "Built on the meta device (shapes without data), each tied weight counted once, buffers not"
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = dict(PRESETS[name]["config"])
    kind = config.pop("model_type")
    built = transformers.AutoConfig.for_model(kind, **config)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(built)
    assert built.model_type == kind and type(model).__name__ == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    assert sum(p.numel() for p in model.parameters()) == PRESETS[name]["published_parameters"]


def test_the_names_of_all_presets_stand_in_one_file():
    wanted = dict(sorted(all_names(presets()).items()))
    assert known_names() == wanted, (
        "write it again: python -c \"from lm_predictor.models.sources.hub import *; from lm_predictor.records.storage.database import *; "
        "from lm_predictor.records.storage.files import *; "
        "write_json(shipped_directory() / 'names.json', dict(sorted(all_names(presets()).items())))\""
    )


def test_recurrentgemma_decodes_over_the_cache_that_generate_passes_on():
    """Finding D: its cache was left behind, so that decode ran over an empty one.

    8 attention layers hold keys and values of 2047 tokens, 1 head of 256 numbers of 2 bytes each; 18 recurrent layers hold
    460,800 bytes of states, as generate's own cache does.
    """
    run = analyze("google/recurrentgemma-2b", trace=False).at(batch_size=1, seq_len=1, cache_len=4096)
    assert run.totals.kv_cache_bytes == 8 * 2 * 2047 * 256 * 2 + 460_800 == 17_229_824
