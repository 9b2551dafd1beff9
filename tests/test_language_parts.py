"The language models inside of models that see: which are answered, of what parts, with the figures of their classes"
import importlib
import sys
from pathlib import Path

import pytest

from lm_predictor import analyze
from lm_predictor.models.config.settings import bookkeeping
from lm_predictor.models.config.validation import ModelError
from lm_predictor.models.matching import symbol_values
from lm_predictor.models.parts import architectures, language_part
from lm_predictor.models.sources.loading import full_config
from lm_predictor.obtain.confirm import built_parameters
from lm_predictor.verification.runs.counter import torch_matmul_flops

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
vision = importlib.import_module("vision")


@pytest.mark.parametrize("kind", architectures()["images"])
def test_each_type_is_answered_by_its_language_part(kind):
    assert not vision.answered(kind)


def test_what_a_whole_makes_of_its_part():
    "The table says what the class of a whole sets in its language model, where that is a causal type's"
    from transformers import CONFIG_MAPPING
    table, found = architectures(), {}
    inside = {kind: part for kind, part in table["parts"].items() if part in table["causal"]}
    for kind, part in inside.items():
        made = CONFIG_MAPPING[kind](text_config={"model_type": part}).get_text_config().to_dict()
        usual = CONFIG_MAPPING[part]().to_dict() | {"num_image_tokens": made.get("num_image_tokens")}  # no layer reads it
        found[kind] = {n: v for n, v in made.items() if v != usual[n] and not bookkeeping(n)}
    assert len(found) > 50
    assert {kind: row for kind, row in found.items() if row} == {"paligemma": table["sets"]["paligemma"]}


TEXT = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 768,
        "vocab_size": 3000}
EXPERTS = {**TEXT, "head_dim": 128, "moe_intermediate_size": 256, "num_experts_per_tok": 4}
HALF = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
WHOLE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
BART = {**{f"{stack}_{size}": n for stack in ("encoder", "decoder")
           for size, n in {"layers": 3, "attention_heads": 4, "ffn_dim": 512}.items()}, "d_model": 256, "vocab_size": 1000}
STACK = {"hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 128, "vocab_size": 3000, "sliding_window": 16}
CONFIGS = {
    "mllama": {**TEXT, "num_hidden_layers": 7, "cross_attention_layers": [1, 4], "vocab_size": 128256},
    "glm4v": {**TEXT, "num_hidden_layers": 5, "rope_parameters": HALF},
    "glm4v_moe": {**EXPERTS, "num_hidden_layers": 6, "first_k_dense_replace": 3, "n_routed_experts": 16,
                  "rope_parameters": HALF},
    "qwen2_5_omni_thinker": {**TEXT, "num_hidden_layers": 3, "rope_parameters": WHOLE},
    "qwen3_omni_moe_thinker": {**EXPERTS, "num_hidden_layers": 4, "num_experts": 32, "rope_parameters": WHOLE},
    "paligemma": {**TEXT, "model_type": "gemma2", "num_hidden_layers": 4, "head_dim": 64},
    "ernie4_5_vl_moe": {**TEXT, "num_hidden_layers": 4, "moe_num_experts": 16, "moe_intermediate_size": [1536, 512],
                        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
    "blip": {**TEXT, "num_hidden_layers": 3},
    "pix2struct": {"hidden_size": 512, "num_heads": 8, "num_layers": 3, "d_ff": 768, "vocab_size": 3000},
    "florence2": BART,
    "pp_formulanet": {"d_model": 256, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 512},
    "diffusion_gemma": {**EXPERTS, "num_hidden_layers": 7, "global_head_dim": 192, "num_experts": 16, "top_k_experts": 2,
                        "num_key_value_heads": 4, "num_global_key_value_heads": 2, "sliding_window": 12},
}
AT_THE_TOP = {  # whose entries lie at the top, or in two stacks
    "udop": {"d_model": 256, "num_heads": 4, "num_layers": 3, "d_ff": 512, "vocab_size": 1000},
    "t5gemma2": {"encoder": {"text_config": STACK, "vision_config": {}}, "decoder": STACK},
    "idefics": {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 512,
                "vocab_size": 1000, "vision_config": {"embed_dim": 768, "image_size": 448, "num_hidden_layers": 5}},
}


@pytest.mark.parametrize("kind", [*CONFIGS, *AT_THE_TOP])
def test_another_size_has_the_figures_of_its_class(kind):
    "Parameters as transformers builds them, FLOPs as torch counts them, over a prompt and over cached tokens"
    parts = {"text_config": CONFIGS[kind], "vision_config": {}} if kind in CONFIGS else AT_THE_TOP[kind]
    config = {"model_type": kind, **parts}
    cost, full = analyze(config, trace=False), full_config(language_part(config)[0])
    assert cost.parameters == built_parameters(full)
    workloads = [(2, 9, 0), (3, 1, 17)]  # sequences, new and cached tokens
    for (batch, new, cached), counted in zip(workloads, torch_matmul_flops(full, workloads)):
        run = cost.at(batch_size=batch, seq_len=new, cache_len=cached, execution="eager")
        assert run.totals.matmul_flops == counted


def test_a_decoder_is_as_wide_where_it_looks_as_what_it_looks_at():
    "Keys and values of 1,024 numbers in place of 768 in each of 12 layers: 12 * 2 * 256 * 768 weights more"
    seen = {"hidden_size": 1024, "num_attention_heads": 16}
    wide = {"model_type": "blip", "text_config": {"num_attention_heads": 12}, "vision_config": seen}
    narrow = {"model_type": "blip", "text_config": {"num_attention_heads": 12}}
    more = [analyze(config, trace=False).parameters for config in (wide, narrow)]
    assert more[0] - more[1] == 12 * 2 * 256 * 768
    assert more[0] == built_parameters(full_config(language_part(wide)[0]))


def test_step_names_its_layers_with_experts_in_a_text_and_runs_them_as_one_product():
    "196,956,118,272 are what transformers builds of these entries: 'Step-3.7-Flash', 198 billion with its image part"
    config = {"model_type": "step3p7", **vision.CONFIGS["step3p7"]}
    found = analyze(config, trace=False)
    assert found.parameters == built_parameters(full_config(language_part(config)[0])) == 196_956_118_272
    assert any("Step3p7Experts goes over its experts in a loop" in note for note in found.at(batch_size=1, seq_len=64).notes)
    fewer = config | {"text_config": config["text_config"] | {"moe_layers_enum": "3"}}  # one layer with experts, 44 dense
    layer = 3 * 4096 * (289 * 1280 - 11264) + 288 * 4096  # the shared expert is the 289th
    assert found.parameters - analyze(fewer, trace=False).parameters == 41 * layer
    with pytest.raises(ModelError, match="moe_layers_enum must name layers by their indices, got '3;4'"):
        analyze(config | {"text_config": config["text_config"] | {"moe_layers_enum": "3;4"}}, trace=False)


def test_a_list_of_all_layers_is_about_so_many_at_most():
    "Four layers that Mllama's list names are of one kind; a fifth is of another, with 2 + 2 x 128 parameters less"
    text = CONFIGS["mllama"] | {"cross_attention_layers": [0, 1, 2, 3]}
    of = lambda layers: {"model_type": "mllama", "vision_config": {}, "text_config": text | {"num_hidden_layers": layers}}
    built = {n: built_parameters(full_config(language_part(of(n))[0])) for n in (3, 4, 5)}
    assert [analyze(of(n), trace=False).parameters for n in (3, 4)] == [built[3], built[4]]
    assert built[4] - built[3] == built[5] - built[4] + 2 + 2 * 128
    with pytest.raises(ModelError, match="num_hidden_layers <= 4 does not hold"):
        analyze(of(5), trace=False)


def test_paligemma_says_which_attention_it_has():
    "Its class asks for attention both ways, which its processor's marks make; on token ids alone it is that of Gemma"
    gemma = {**TEXT, "model_type": "gemma", "num_hidden_layers": 2, "head_dim": 64, "num_key_value_heads": 1}
    seeing = analyze({"model_type": "paligemma", "text_config": gemma, "vision_config": {}}, trace=False)
    flops = lambda cost: cost.at(seq_len=100, execution="flash").totals.matmul_flops
    assert flops(seeing) == flops(analyze(gemma, trace=False)) and seeing.record.settings["use_bidirectional_attention"]
    assert any("see each other both ways" in note for note in seeing.notes)


@pytest.mark.parametrize("given", [{"text_config": {"tie_word_embeddings": "yes"}},
                                   {"text_config": {}, "tie_word_embeddings": "yes"}])
def test_a_strange_tie_is_refused_in_either_place(given):
    "Where the class of the whole decides, a part that says nonsense of it is a user's mistake all the same"
    with pytest.raises(ModelError, match="tie_word_embeddings must be true or false, got 'yes'"):
        analyze({"model_type": "qwen2_5_omni_thinker", **given}, trace=False)


def test_an_encoder_reads_and_the_decoder_writes():
    "What transformers itself counts for the prompt, and for the token that is written next; no code of ours in between"
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Florence2Config, Florence2ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput
    config = {"model_type": "florence2", "text_config": {"model_type": "bart", **BART}}
    eyes = {"embed_dim": [8] * 4, "depths": [1] * 4, "num_heads": [1] * 4, "num_groups": [1] * 4, "projection_dim": 256}
    whole = Florence2Config(text_config=config["text_config"], vision_config=eyes)
    model = Florence2ForConditionalGeneration._from_config(whole, attn_implementation="eager").eval()
    cost, ids = analyze(config, trace=False), lambda n: torch.zeros((2, n), dtype=torch.long)
    counted, more = [], {"input_ids": ids(9)}
    for _ in range(2):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            out = model(decoder_input_ids=ids(1), use_cache=True, **more)
        counted.append(counter.get_total_flops())
        read = out.encoder_last_hidden_state
        more = {"encoder_outputs": BaseModelOutput(read), "past_key_values": out.past_key_values}
    ran = [cost.at(batch_size=2, seq_len=new, cache_len=read, execution="eager") for new, read in ((9, 0), (1, 9))]
    assert [run.totals.matmul_flops for run in ran] == counted


def test_an_encoder_reads_and_the_decoder_denoises_a_canvas():
    "What transformers itself counts for the prompt with a first step, and for a later one; no code of ours in between"
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
    text = {k: v for k, v in CONFIGS["diffusion_gemma"].items() if k != "num_experts_per_tok"}
    eyes = {"model_type": "gemma4_vision", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    whole = DiffusionGemmaConfig(text_config=text, vision_config=eyes, canvas_length=21)
    model = DiffusionGemmaForBlockDiffusion._from_config(
        whole, attn_implementation="eager", experts_implementation="batched_mm").eval()
    cost = analyze({"model_type": "diffusion_gemma", "text_config": text, "canvas_length": 21}, trace=False)
    ids, counted = lambda n: torch.zeros((2, n), dtype=torch.long), []
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            out = model(input_ids=ids(17), decoder_input_ids=ids(21))
        counted.append(counter.get_total_flops())
        with FlopCounterMode(display=False) as counter:
            model(decoder_input_ids=ids(21), past_key_values=out.past_key_values, self_conditioning_logits=out.logits)
        counted.append(counter.get_total_flops())
    ran = [cost.at(batch_size=2, seq_len=new, cache_len=read, execution="eager") for new, read in ((17, 0), (21, 17))]
    assert [run.totals.matmul_flops for run in ran] == counted
    assert cost.parameters == sum(p.numel() for n, p in model.named_parameters() if "vision" not in n)


@pytest.mark.parametrize("length", [0, -3, 2.5, "256", None, True])
def test_a_canvas_has_a_whole_number_of_tokens(length):
    with pytest.raises(ModelError, match="canvas_length must be a positive integer"):
        analyze({"model_type": "diffusion_gemma", "text_config": {}, "canvas_length": length}, trace=False)


def test_a_canvas_is_as_long_as_its_class_makes_it():
    from transformers import DiffusionGemmaConfig
    part = language_part({"model_type": "diffusion_gemma", "text_config": {}})[0]["text_config"]
    assert part["canvas_length"] == DiffusionGemmaConfig().canvas_length


def test_a_drafter_is_answered_by_its_own_class():
    "Not by the class of its text_config, whose layers have keys and values of their own"
    text = {**vision.type_config("gemma4_assistant")["text_config"], "hidden_size": 512, "head_dim": 64}
    config = {"model_type": "gemma4_assistant", "text_config": text, "backbone_hidden_size": 1536}
    cost = analyze(config, trace=False)
    assert cost.parameters == built_parameters(full_config(config)) and cost.record.model_type == "gemma4_assistant"


@pytest.mark.parametrize("given", [
    {}, {"per_layer_config": {}}, {"global_head_dim": 96}, {"head_dim": 512}, {"per_layer_config": {"5": {"head_dim": 64}}},
    {"global_head_dim": 96, "per_layer_config": {"05": {"head_dim": 64}}}])
def test_heads_of_full_attention_are_as_wide_as_their_class_makes_them(given):
    "An entry of its own, or one for each layer, which counts where both are given; as wide as the others where it is empty"
    config = {"model_type": "gemma4_unified_text", "num_hidden_layers": 6, **given}
    assert analyze(config, trace=False).parameters == built_parameters(full_config(config))


@pytest.mark.parametrize("layer", [{"4": {"head_dim": 64}}, {"5": {"head_dim": 64, "intermediate_size": 64}}])
def test_what_other_layers_have_otherwise_is_refused(layer):
    with pytest.raises(ModelError, match="per_layer_config gives single layers other entries than were traced"):
        analyze({"model_type": "gemma4_unified_text", "num_hidden_layers": 6, "per_layer_config": layer}, trace=False)


def test_a_record_of_stacks_that_differ_asks_for_both():
    "Traced with three layers that read and two that write, it is about no other numbers of either"
    from lm_predictor.models.matching import fits
    from lm_predictor.obtain.fresh.record import traced
    config = {"model_type": "udop", **AT_THE_TOP["udop"], "num_layers": 3, "num_decoder_layers": 2}
    record, _ = traced(language_part(config)[0])
    assert record.parameters.evaluate(symbol_values(record, config)) == built_parameters(full_config(config))
    of = lambda **more: fits(record, language_part({"model_type": "udop", **AT_THE_TOP["udop"], **more})[0])
    assert of(num_layers=3, num_decoder_layers=2) == ""
    assert of(num_layers=7, num_decoder_layers=2) == "num_layers is 7, traced with 3"
    assert of(num_layers=3, num_decoder_layers=4) == "num_hidden_layers is 4, traced with 2"
    assert of(num_layers=2) == "num_layers is 2, traced with 3"


def test_an_image_that_layers_look_at_has_as_many_tokens_as_its_class_makes_of_it():
    "The entry of the part for language is what the part for images makes, at several sizes"
    import torch
    from lm_predictor.tracing.runtime.building import build
    for config in (
        {"model_type": "pp_formulanet", "text_config": {"decoder_layers": 1}, "vision_config": {"image_size": 200}},
        {"model_type": "pp_formulanet", "text_config": {"decoder_layers": 1}, "vision_config": {"image_size": 768}},
        {"model_type": "idefics", "num_hidden_layers": 1, "vision_config": {"image_size": 336, "patch_size": 16}},
        {"model_type": "idefics", "num_hidden_layers": 1, "use_resampler": True,
         "perceiver_config": {"use_resampler": True, "resampler_n_latents": 32}},
    ):
        with torch.device("meta"):
            made = build(full_config(config)).image_tokens
        part = language_part(config)[0]
        assert part.get("image_tokens", part.get("text_config", {}).get("image_tokens")) == made


def test_stacks_that_differ_are_refused():
    many = {"model_type": "florence2", "text_config": {**BART, "encoder_attention_heads": 8}}
    with pytest.raises(ModelError, match="encoder_attention_heads is 8 and decoder_attention_heads 4, traced with one n"):
        analyze(many, trace=False)
    other = {"model_type": "florence2", "text_config": {**BART, "num_hidden_layers": 12}}
    with pytest.raises(ModelError, match="num_hidden_layers"):  # BART's other name of its encoder's
        analyze(other, trace=False)
    longer = {"model_type": "udop", "num_layers": 6, "num_decoder_layers": 4}
    with pytest.raises(ModelError, match="its stacks have num_decoder_layers 4 and num_layers 6 layers, traced with as m"):
        analyze(longer, trace=False)
    alone = {"model_type": "t5gemma2", "encoder": {}, "decoder": STACK}
    with pytest.raises(ModelError, match="head_dim is null in its encoder and 128 in its decoder"):
        analyze(alone, trace=False)


def test_stacks_of_other_feed_forward_widths():
    "Florence-2's encoder has a width of its own: parameters and FLOPs are those of the model that transformers builds"
    config = {"model_type": "florence2", "text_config": {**BART, "encoder_ffn_dim": 1024}}
    cost = analyze(config, trace=False)
    assert (cost.values["encoder_ffn_dim"], cost.values["intermediate_size"]) == (1024, 512)
    full, sizes = full_config(language_part(config)[0]), [(2, 11, 0), (2, 1, 9)]
    assert cost.parameters == built_parameters(full)
    runs = [cost.at(batch_size=b, seq_len=s, cache_len=c, execution="eager") for b, s, c in sizes]
    assert [run.totals.matmul_flops for run in runs] == [*torch_matmul_flops(full, sizes)]


def test_a_record_of_two_stacks_asks_for_both():
    "Also where a record is asked by itself, and where one of the two is left to the class"
    record = analyze({"model_type": "florence2", "text_config": BART}, trace=False).record
    config = lambda **more: {"model_type": "florence2", "text_config": {**BART, **more}}
    assert symbol_values(record, config())["intermediate_size"] == 512
    with pytest.raises(ModelError, match="encoder_attention_heads is 8 and decoder_attention_heads 4, traced with one n"):
        symbol_values(record, config(encoder_attention_heads=8))
    alone = {k: v for k, v in BART.items() if k != "decoder_layers"}
    with pytest.raises(ModelError, match="encoder_layers is 3 and decoder_layers 12"):
        symbol_values(record, {"model_type": "florence2", "text_config": alone})
