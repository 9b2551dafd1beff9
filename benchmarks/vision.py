"""Which types of vision-language models are answered whole?

    python benchmarks/vision.py [TYPE ...] [--language] [--store DIRECTORY]
    python benchmarks/vision.py --shipped [TYPE ...]
    python benchmarks/vision.py --ties [TYPE ...]
    python benchmarks/vision.py --published [--store DIRECTORY]

Goes over the types that transformers has for images and text, each with the config in CONFIGS, else the one of its
class. Of each it says whether its image part is traced (its FLOPs in matrix products equal torch's FlopCounterMode at
two workloads, of images of different sizes and numbers), whether the parameters of image part and language model are
those of the whole, and, with --language, whether its language model is traced. --store keeps the records.
With --shipped, only whether a record that ships answers its language part, without a trace, and why not.
With --ties, where it says that its embeddings are tied, as built models show, beside the table that ships.
"""
import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

from lm_predictor.models.sources.hub import quiet
from lm_predictor.models.parts import ELSEWHERE, TEXT, architectures, language_part
from lm_predictor.models.config.validation import ModelError
from lm_predictor.obtain.analyze import analyze
from lm_predictor.models.sources.type_configs import type_config
from lm_predictor.obtain.vision import trace_vision
from lm_predictor.records.vision import store_vision

TIE = "tie_word_embeddings"
PROMPTS = {"glm5_next": 128, "qwen4_exp": 128}  # tokens to ask of types whose formulas begin with more than 64 of them

SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
          "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14}
CONFIGS = {  # of types whose class has no config by default that builds, or none that is a published one
    "gemma3": {"vision_config": {**SIGLIP, "image_size": 896}, "mm_tokens_per_image": 256},
    "shieldgemma2": {"vision_config": {**SIGLIP, "image_size": 896}, "mm_tokens_per_image": 256},
    "aya_vision": {"vision_config": {**SIGLIP, "image_size": 364}},
    "aria": {"vision_config": {"model_type": "idefics3_vision", "image_size": 980, "patch_size": 14,
                               "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
                               "num_attention_heads": 16}},
    "llama4": {"vision_config": {
        "model_type": "llama4_vision_model", "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34,
        "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "pixel_shuffle_ratio": 0.5,
        "vision_output_dim": 4096, "projector_input_dim": 4096, "projector_output_dim": 4096}},
    "step3p7": {"text_config": {  # Step-3.7-Flash, as public ports of it check its config
        "model_type": "step3p5", "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
        "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "vocab_size": 128896,
        "max_position_embeddings": 262144, "moe_layers_enum": ",".join(map(str, range(3, 45))),
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "sliding_window": 512, "layer_types": [f"{'sliding' if i % 4 else 'full'}_attention" for i in range(45)],
        "partial_rotary_factors": [1.0 if i % 4 else 0.5 for i in range(45)],
        "rope_theta": [1e4 if i % 4 else 5e6 for i in range(45)],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                    "num_attention_groups": 8, "head_dim": 128}}},
    "perception_lm": {"text_config": {  # facebook/Perception-LM-1B: Llama 3.2 1B behind a tower of 23 layers
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
        "vision_use_cls_token": True, "projector_pooling_ratio": 2, "vision_config": {
        "model_type": "timm_wrapper", "architecture": "vit_pe_core_large_patch14_336", "do_pooling": True,
        "num_classes": 1024, "global_pool": "map",
        "model_args": {"embed_dim": 1024, "img_size": [448, 448], "depth": 23, "global_pool": "",
                       "use_post_transformer_norm": False, "init_values": 0.1, "ref_feat_shape": [32, 32]}}},
    "gemma4": {"vision_config": {"model_type": "gemma4_vision"}},
    # a guess: both parts as Gemma 4 26B-A4B has them, whose name and plan of parallel experts its source repeats
    "diffusion_gemma": {
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304,
                          "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
                          "head_dim": 72, "global_head_dim": 72, "standardize": True},
        "text_config": {"model_type": "diffusion_gemma_text", "hidden_size": 2816, "intermediate_size": 2112,
                        "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
                        "num_global_key_value_heads": 2, "num_experts": 128, "top_k_experts": 8,
                        "moe_intermediate_size": 704, "sliding_window": 1024}},
    "gemma4_unified": {"vision_config": {"model_type": "gemma4_unified_vision"},
                       "text_config": {"model_type": "gemma4_unified_text", "hidden_size": 3840}},
    "cohere_compass": {"text_config": {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 50000.0, "mrope_section": [24, 20, 20]}}}},
    "idefics2": {"text_config": {"vocab_size": 32003}, "vision_config": {
        "model_type": "idefics2_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 980, "patch_size": 14}},
    "idefics3": {"scale_factor": 2, "vision_config": {
        "model_type": "idefics3_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 364, "patch_size": 14}},
    "smolvlm": {"scale_factor": 4, "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 512, "patch_size": 16}},
    "inkling_mm_model": {"vision_config": {"model_type": "inkling_vision", "num_hidden_layers": 5}},
    "deepseek_ocr2": {"vision_config": {
        "model_type": "deepseek_ocr2_vision", "encoder_config": {
            "model_type": "deepseek_ocr2_encoder", "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}}},
    "granite4_vision": {
        "downsample_rate": "4/8", "deepstack_layer_map": [[-19, 9], [-13, 6], [-7, 3], [-1, 0]],
        "vision_feature_select_strategy": "full",
        "image_grid_pinpoints": [[384 * a, 384 * b] for a in range(1, 11) for b in range(1, 11) if 1 < a * b <= 10],
        "vision_config": {**SIGLIP, "image_size": 384, "patch_size": 16},
        "text_config": {"vocab_size": 100352, "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 40,
                        "num_attention_heads": 40, "num_key_value_heads": 8}},
    **{kind: {"vision_config": {
        "model_type": f"{kind}_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 980, "patch_size": 14}}
       for kind in ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")},
    "lfm2_vl": {"vision_config": {
        "model_type": "siglip2_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "patch_size": 16, "num_patches": 256, "vision_use_head": False}},
    "pi0": {"vlm_config": {"model_type": "paligemma", "text_config": {
        "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "intermediate_size": 16384,
        "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 257152}}},
}


def _clip(**more) -> dict:
    return {"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
            "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, **more}


def _text(kind: str, width: int, inner: int, layers: int, heads: int, kv: int, words: int, **more) -> dict:
    return {"model_type": kind, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": words, **more}


def _qwen25(width: int, inner: int, layers: int, heads: int, kv: int, words: int, tied=False, own=3420) -> dict:
    tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": own, "num_heads": 16, "in_chans": 3,
             "out_hidden_size": width, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
             "fullatt_block_indexes": [7, 15, 23, 31], "temporal_patch_size": 2}
    return {"model_type": "qwen2_5_vl", "vision_config": tower, "tie_word_embeddings": tied,
            "text_config": _text("qwen2_5_vl_text", width, inner, layers, heads, kv, words)}


def _qwen2(width: int, inner: int, layers: int, heads: int, kv: int, words: int, tied=False) -> dict:
    tower = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": width,
             "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    return {"model_type": "qwen2_vl", "vision_config": tower, "tie_word_embeddings": tied,
            "text_config": _text("qwen2_vl_text", width, inner, layers, heads, kv, words)}


def _gemma3(width: int, inner: int, layers: int, heads: int, kv: int, head_dim: int) -> dict:
    return {"model_type": "gemma3", "mm_tokens_per_image": 256,
            "vision_config": {**SIGLIP, "image_size": 896, "vision_use_head": False},
            "text_config": _text("gemma3_text", width, inner, layers, heads, kv, 262208, head_dim=head_dim)}


LLAMA7 = _text("llama", 4096, 11008, 32, 32, 32, 32064)
MISTRAL7 = _text("mistral", 4096, 14336, 32, 32, 8, 32064)
PUBLISHED = {  # model -> config, published parameters (0: not looked up)
    "llava-hf/llava-1.5-7b-hf": ({"model_type": "llava", "vision_config": _clip(), "text_config": LLAMA7,
                                  "tie_word_embeddings": False}, 7_063_427_072),
    "llava-hf/llava-v1.6-mistral-7b-hf": ({
        "model_type": "llava_next", "vision_config": _clip(), "text_config": MISTRAL7,
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
        "tie_word_embeddings": False}, 7_566_747_648),
    "google/gemma-3-4b-it": (_gemma3(2560, 10240, 34, 8, 4, 256), 4_300_079_472),
    "google/gemma-3-12b-it": (_gemma3(3840, 15360, 48, 16, 8, 256), 12_187_325_040),
    "google/gemma-3-27b-it": (_gemma3(5376, 21504, 62, 32, 16, 128), 27_432_406_640),
    "google/paligemma-3b-pt-224": ({
        "model_type": "paligemma", "projection_dim": 2048, "hidden_size": 2048,
        "vision_config": {**SIGLIP, "image_size": 224, "projection_dim": 2048, "vision_use_head": False},
        "text_config": _text("gemma", 2048, 16384, 18, 8, 1, 257216)}, 0),
    "Qwen/Qwen2.5-VL-3B-Instruct": (_qwen25(2048, 11008, 36, 16, 2, 151936, True), 3_754_622_976),
    "Qwen/Qwen2.5-VL-7B-Instruct": (_qwen25(3584, 18944, 28, 28, 4, 152064), 8_292_166_656),
    "Qwen/Qwen2.5-VL-72B-Instruct": (_qwen25(8192, 29568, 80, 64, 8, 152064, own=3456), 73_410_777_344),
    "Qwen/Qwen2-VL-2B-Instruct": (_qwen2(1536, 8960, 28, 12, 2, 151936, True), 2_208_985_600),
    "Qwen/Qwen2-VL-7B-Instruct": (_qwen2(3584, 18944, 28, 28, 4, 152064), 8_291_375_616),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": ({
        "model_type": "mistral3", "spatial_merge_size": 2, "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu", "vision_feature_layer": -1, "tie_word_embeddings": False,
        "vision_config": {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "head_dim": 64,
                          "image_size": 1540, "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24,
                          "patch_size": 14},
        "text_config": _text("mistral", 5120, 32768, 40, 32, 8, 131072, head_dim=128)}, 24_011_361_280),
}


def config_of(kind: str) -> dict:
    "The config at which a type is looked at"
    from lm_predictor.obtain.vision import whole_config
    config = {**type_config(kind), **CONFIGS.get(kind, {})}
    try:
        full = whole_config(config)
        text = full.get_text_config()
    except Exception:  # a class without a usual config
        return config
    if text is full or not any(getattr(full, name, None) is text for name in (ELSEWHERE.get(kind, ""), *TEXT)):
        return config  # T5Gemma 2 takes its decoder's for it
    tied = {"tie_word_embeddings": bool(getattr(full, "tie_word_embeddings", False))}  # what the whole says counts
    return config | {"text_config": text.to_dict() | config.get("text_config", {}) | tied}


def images_of(kind: str):
    "The record of a type's image part, or why there is none"
    config = config_of(kind)
    try:
        return trace_vision(config, width_of(config))
    except ModelError as e:
        return str(e).removeprefix(f"{kind}: ")


def width_of(config: dict):
    "The width of the language model of a config"
    from lm_predictor.obtain.vision import whole_config
    text = whole_config(config).get_text_config()
    return getattr(text, "hidden_size", None)


def language_of(kind: str) -> str:
    "Why the language model of a type is not traced; empty where it is"
    from lm_predictor.models.sources.loading import full_config
    from lm_predictor.obtain.fresh.record import traced
    try:
        with quiet():
            full_config(language_part(config_of(kind))[0])
            traced(language_part(config_of(kind))[0])
    except Exception as e:  # whatever its code raises
        return f"{type(e).__name__}: {' '.join(str(e).split())[:160]}"
    return ""


def answered(kind: str) -> str:
    "Why no record that ships answers the language part of a type; empty where one does"
    with tempfile.TemporaryDirectory() as directory, quiet():
        path = Path(directory) / "config.json"
        path.write_text(json.dumps(config_of(kind), default=str), encoding="utf-8")
        try:
            analyze(str(path), trace=False).at(batch_size=1, seq_len=PROMPTS.get(kind, 64))
        except ModelError as e:
            return " ".join(str(e).split())[:160]
    return ""


def shipped(kinds: list) -> int:
    "Print which types a record that ships answers by their language part"
    refused = {kind: why for kind in kinds if (why := answered(kind))}
    for kind, why in refused.items():
        print(f"{kind}: {why}", flush=True)
    print(f"{len(kinds) - len(refused)} of {len(kinds)} types are answered by their language part, with what ships")
    return 0


def what_ties(kind: str) -> dict:
    "Where a type says that its embeddings are tied, as models built on the meta device show: whole and part"
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText
    usual = AutoConfig.for_model(**config_of(kind))
    place = next(n for n in (ELSEWHERE.get(kind, ""), *TEXT) if n and hasattr(usual, n))
    inner = {k: v for k, v in getattr(usual, place).to_dict().items() if k != TIE}

    def tied(whole: dict, part: dict) -> bool:
        with torch.device("meta"):
            made = AutoModelForImageTextToText.from_config(type(usual)(**{place: {**inner, **part}}, **whole))
        return getattr(made.get_output_embeddings(), "weight", None) is made.get_input_embeddings().weight

    yes, no = {TIE: True}, {TIE: False}
    whole, part = (tied(*both) != tied(no, no) for both in ((yes, no), (no, yes)))
    return {"whole": tied({}, no) if whole else None, "part": tied(no, {}) if part else None}


def ties(kinds: list) -> int:
    "Print of each type where it says that its embeddings are tied, and whether the table that ships has it so"
    known, wrong = architectures()["ties"], 0
    for kind in kinds:
        try:
            with quiet():
                found = what_ties(kind)
        except Exception as e:  # whatever its code raises, and a type without a part for language
            print(f"{kind}: {type(e).__name__}: {' '.join(str(e).split())[:120]}", flush=True)
            continue
        right = known.get(kind, {"whole": None, "part": None}) == found
        wrong += not right
        print(f"{kind}: {found}{'' if right else ', which is not what ships'}", flush=True)
    return 2 if wrong else 0


def row(kind: str, language: bool, store: Path | None) -> tuple[bool, str]:
    "Whether a type is whole, and what is to be said of it"
    start, found = time.time(), images_of(kind)
    if isinstance(found, str):
        return False, f"language only: {found}"
    if uncounted := ", ".join(found.uncounted):
        return False, f"language only: no cost rule for {uncounted}"
    if store:
        store_vision(found, store)
    if language and (why := language_of(kind)):
        return False, f"images only: {why}"
    counted = found.verification["matmul_flops equals FlopCounterMode"]
    at = "; ".join(f"{n} of {h}x{w}: {flops:,}" for n, h, w, flops in counted)
    held = found.verification["parameters of the whole"]
    said = f"whole: {held:,} parameters, {found.parameters:,} of them for images; FLOPs {at}"
    return True, f"{said} ({time.time() - start:.0f} s)"


def published(store: Path | None) -> int:
    "Print of each checkpoint whether the parameters of its parts are those that are published"
    wrong = 0
    for name, (config, parameters) in PUBLISHED.items():
        record = trace_vision(config, config["text_config"]["hidden_size"])
        if store:
            store_vision(record, store)
        held = record.verification["parameters of the whole"]
        wrong += parameters not in (0, held)
        said = "" if parameters in (0, held) else f", published {parameters:,}"
        print(f"{name}: {held:,} parameters{said}, "
              f"{record.parameters:,} of them for images", flush=True)
    print(f"{len(PUBLISHED) - wrong} of {len(PUBLISHED)} have as many parameters as are published, where that was looked up")
    return 2 if wrong else 0


def main(argv=None) -> int:
    "Print a row for each type, and how many are whole"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("--language", action="store_true")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--ties", action="store_true")
    args = parser.parse_args(argv)
    if args.published:
        return published(args.store)
    kinds, whole = args.types or architectures()["images"], 0
    if args.shipped:
        return shipped(kinds)
    if args.ties:
        return ties(kinds)
    for kind in kinds:
        good, said = row(kind, args.language, args.store)
        whole += good
        print(f"{kind}: {said}", flush=True)
    print(f"{whole} of {len(kinds)} types are whole{'' if args.language else ', their language models not looked at'}")
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
