"Images: rules against the processors of transformers, FLOPs against runs with values, whole models against their parts"
import contextlib
import json
import os
import subprocess
import sys

import pytest

from lm_predictor import analyze
from lm_predictor.app.cli.main import main
from lm_predictor.models.parts import architectures
from lm_predictor.models.images.tiles import cut_image
from lm_predictor.models.config.validation import ModelError
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.vision import vision_records

LLAVA = {  # llava-hf/llava-1.5-7b-hf
    "model_type": "llava", "image_token_index": 32000, "projector_hidden_act": "gelu", "tie_word_embeddings": False,
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
                    "vocab_size": 32064},
    "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
                      "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24,
                      "patch_size": 14, "projection_dim": 768, "vocab_size": 32000},
    "vision_feature_layer": -2, "vision_feature_select_strategy": "default"}
LIGHT = "import sys\nfor name in ('torch', 'transformers', 'sympy', 'numpy'):\n    sys.modules[name] = None\n"


def light(code: str, *names) -> subprocess.CompletedProcess:
    "A run of Python in which neither torch nor transformers can be imported"
    return subprocess.run([sys.executable, "-c", LIGHT + code, *names], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def test_the_types_are_those_of_transformers():
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as names
    assert architectures()["images"] == sorted(names)


@pytest.fixture(scope="module")
def llava():
    return analyze(LLAVA)


def test_llava_is_answered_whole(llava):
    "7,063,427,072 parameters are published; its language model alone has those of Vicuna with 64 more tokens"
    alone, run = llava.at(seq_len=1000), llava.at(seq_len=1000, images=2, image_size=(336, 336))
    assert run.parameters == 7_063_427_072 and alone.parameters == llava.parameters < run.parameters
    assert run.workload.seq_len == 1000 + 2 * 576 and run.workload.image_tokens == 1152
    language = llava.at(seq_len=2152)
    inside = [k for k in run.kernels if k.path.startswith("language_model")]
    tower = [k for k in run.kernels if k.path.startswith("vision_tower")]
    assert sum(k.flops * k.count for k in inside) == language.totals.flops and tower
    assert run.totals.flops == sum(k.flops * k.count for k in run.kernels) > language.totals.flops
    rows = {row.path: row for row in run.layers()}
    assert rows["vision_tower"].flops + rows["multi_modal_projector"].flops + rows["language_model"].flops \
        == pytest.approx(run.totals.flops, rel=1e-3)
    assert any("an image of 336x336 is 336x336 pixels" in n and "576 tokens" in n for n in run.notes)
    assert any("alone" in n for n in alone.notes) and not any(" alone" in n for n in run.notes)


def test_images_are_linear_and_batches_multiply_them(llava):
    one, four = (llava.at(images=n, image_size=(336, 336), batch_size=b) for n, b in ((1, 1), (2, 2)))
    flops = lambda run: sum(k.matmul_flops * k.count for k in run.kernels if k.path.startswith("vision_tower"))
    assert flops(four) == 4 * flops(one) > 0


def test_a_decode_step_runs_no_tower(llava):
    run, plain = llava.at(cache_len=1000, images=1, image_size=(336, 336)), llava.at(cache_len=1576)
    assert run.totals.flops == plain.totals.flops and run.totals.kv_cache_bytes == plain.totals.kv_cache_bytes
    assert run.totals.weight_bytes > plain.totals.weight_bytes
    text = llava.at(images=0)
    assert text.parameters == run.parameters and text.totals.flops == llava.at().totals.flops


@pytest.mark.parametrize("given, said", [
    ({"images": 1.5}, "images must be a number of images"), ({"images": -1}, "images must be a number of images"),
    ({"image_size": (336, 336)}, "give both"), ({"images": 1, "image_size": (0, 3)}, "the height must be from 1"),
    ({"images": 1, "image_size": 336}, "must be a height and a width"),
])
def test_bad_images(llava, given, said):
    with pytest.raises(ModelError, match=said):
        llava.at(**given)


def test_bad_images_in_the_shell(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAVA))
    for line, said in ((["gpt2", "--images", "1"], "has no vision part, so it takes no images"),
                       ([str(file), "--image-size", "9", "9"], "give both"),
                       ([str(file), "--images", "1", "--image-size", "0", "9"], "the height must be from 1 to 100000")):
        assert main(["analyze", *line]) == 1
        assert said in (err := capsys.readouterr().err) and err.count("\n") == 1
    file.write_text(json.dumps({k: v for k, v in LLAVA.items() if k != "text_config"}))
    assert main(["analyze", str(file), "--images", "1"]) == 1
    assert "keeps its language model in text_config, and this one has none" in capsys.readouterr().err


def test_shipped_towers_need_no_torch(tmp_path):
    "The record of LLaVA's images and of its language model ship"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAVA))
    done = light("from lm_predictor.app.cli.main import main\n"
                 "assert main(['analyze', sys.argv[1], '--images', '2', '--image-size', '480', '640', '--layers']) == 0",
                 str(file))
    assert done.returncode == 0, done.stderr
    assert "  vision_tower" in done.stdout and "7,063,427,072 parameters" in done.stdout
    file.write_text(json.dumps(LLAVA | {"vision_config": LLAVA["vision_config"] | {"num_hidden_layers": 23}}))
    done = light("from lm_predictor.app.cli.main import main\n"
                 "assert main(['analyze', sys.argv[1], '--images', '2']) == 1", str(file))
    assert done.returncode == 0 and "vision_config.num_hidden_layers is 23" in done.stderr, done.stderr


def test_every_shipped_tower_is_sound():
    "Formulas, names and comparisons; the FLOPs that torch counted are those of the formulas now"
    from lm_predictor.timing.images import ImageCost
    records = list(vision_records(shipped_directory()))
    assert len({r.id for r in records}) == len(records) > 30
    for record in records:
        assert record.model_type in architectures()["images"] and not record.uncounted, record.id
        for images, height, width, flops in record.verification["matmul_flops equals FlopCounterMode"]:
            values = {"images": images, **cut_image(record.cut, (height, width)).values}
            graph = record.graph
            ours = sum((n.matmul_flops * graph.repeat(n.call)).evaluate(values) for n in graph.nodes)
            assert ours == flops > 0, record.id
        part = ImageCost(record)
        for side in (448, 1024):
            crops = record.cut["rule"] in ("crops", "windows") and side == 448  # images with crops alone are traced
            with pytest.raises(ModelError, match="makes no crops of it") if crops else contextlib.nullcontext():
                assert part.tokens(cut_image(record.cut, (side, side))) > 0, record.id


PROCESSORS = {  # class -> what its result says of one image, against the rule that the benchmark's config has
    "Qwen2VLImageProcessorPil": ("qwen2_vl", lambda out, cut: out["pixel_values"].shape[0] == cut.values["patches"]),
    "Glm4vImageProcessorPil": ("glm4v", lambda out, cut: out["pixel_values"].shape[0] == cut.values["patches"]),
    "PaddleOCRVLImageProcessorPil":
        ("paddleocr_vl", lambda out, cut: out["pixel_values"].shape[0] == cut.values["patches"]),
    "Ernie4_5_VLMoeImageProcessorPil":
        ("ernie4_5_vl_moe", lambda out, cut: out["pixel_values"].shape[0] == cut.values["patches"]),
    "LlavaNextImageProcessorPil":
        ("llava_next", lambda out, cut: out["pixel_values"].shape[1] == cut.values["tiles"]),
    "Gemma4ImageProcessorPil":
        ("gemma4", lambda out, cut: 9 * int(out["num_soft_tokens_per_image"][0]) == cut.values["patches"]),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_rules_are_those_of_the_processors(name):
    import numpy
    import transformers
    from PIL import Image
    kind, same = PROCESSORS[name]
    record = next(vision_records(shipped_directory(), kind))
    square = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}  # of every checkpoint
    processor = getattr(transformers, name)(**(square if kind == "llava_next" else {}))
    for height, width in ((336, 336), (100, 900), (517, 311), (1300, 700), (64, 64), (1111, 2222)):
        image = Image.fromarray(numpy.zeros((height, width, 3), dtype=numpy.uint8))
        out = processor(images=[image], return_tensors="pt")
        assert same(out, cut_image(record.cut, (height, width))), (height, width)


TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 400}
WITH_VALUES = {
    "llava": {"vision_config": {"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 96,
                                "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56, "patch_size": 14},
              "text_config": {"model_type": "llama", **TINY}},
    "qwen2_vl": {"vision_config": {"depth": 3, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
                 "text_config": {"model_type": "qwen2_vl_text", **TINY}},
    "qwen2_5_vl": {"vision_config": {"depth": 4, "hidden_size": 64, "out_hidden_size": 64, "num_heads": 4,
                                     "intermediate_size": 96, "fullatt_block_indexes": [1, 3]},
                   "text_config": {"model_type": "qwen2_5_vl_text", **TINY}},
}


@pytest.mark.parametrize("kind", WITH_VALUES)
def test_towers_against_runs_with_values(kind):
    "On the CPU, with weights and pixels, torch counts what the formulas say; and the model has the parameters"
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from lm_predictor.obtain.vision import trace_vision, whole_config
    from transformers import AutoModelForImageTextToText
    config = {"model_type": kind, **WITH_VALUES[kind]}
    record = trace_vision(config, 64)
    model = AutoModelForImageTextToText.from_config(whole_config(config), attn_implementation="eager").eval()
    assert sum(p.numel() for p in model.parameters()) == record.verification["parameters of the whole"]
    for images, size in ((1, (140, 196)), (2, (336, 252)), (3, (224, 224))):
        cut = cut_image(record.cut, size)
        if kind == "llava":
            given = {"pixel_values": torch.rand(images, 3, cut.height, cut.width)}
        else:
            rows, columns = cut.height // 14, cut.width // 14
            given = {"pixel_values": torch.rand(images * rows * columns, 3 * 2 * 14 * 14),
                     "image_grid_thw": torch.tensor([[1, rows, columns]] * images)}
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.model.get_image_features(**given)
        values = {"images": images, **cut.values}
        ours = sum((n.matmul_flops * record.graph.repeat(n.call)).evaluate(values) for n in record.graph.nodes)
        assert ours == counter.get_total_flops(), (images, size)


def test_a_traced_tower_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_PREDICTOR_DB", str(tmp_path))
    config, db = {"model_type": "llava", **WITH_VALUES["llava"]}, Database()
    first = analyze(config, db=db).at(images=1)
    assert [r.model_type for r in vision_records(tmp_path)] == ["llava"]
    assert analyze(config, db=db).at(images=1) == first
    os.chmod(next((tmp_path / "vision").glob("*")), 0o644)
    other = config | {"vision_config": config["vision_config"] | {"patch_size": 28}}
    assert analyze(other, db=db).at(images=1).totals.flops < first.totals.flops
    assert len(list(vision_records(tmp_path))) == 2
