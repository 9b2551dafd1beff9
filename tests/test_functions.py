"The operators of accelerated functions give what the source's own functions give, and do the FLOPs of their algorithm"
import importlib
import inspect
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lm_predictor.tracing.runtime.functions import SCHEMAS, decorated, stand_in  # noqa: E402

MODELS = Path(transformers.__file__).parent / "models"


def fallbacks() -> list:
    "(function, file, name there) of every different text of an accelerated function in the installed source"
    found = {}
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        if "use_kernel_func_from_hub_with_fallback" in path.read_text():
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            for at, name in decorated(str(path)).items():
                found.setdefault((name, inspect.getsource(getattr(module, at))), (name, path.parent.name, at))
    return [pytest.param(*row, id="-".join(row[:2])) for row in found.values()]


def tensor(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def convolution(rng):
    b, d, t, w = rng.randint(1, 5), rng.randint(2, 40), rng.randint(2, 70), rng.randint(2, 5)
    return dict(hidden_states=tensor(b, d, t), weight=tensor(d, w), bias=tensor(d), activation="silu")


def update(rng):
    given = convolution(rng)
    (b, d, _), w = given["hidden_states"].shape, given["weight"].shape[-1]
    return given | dict(hidden_states=tensor(b, d, 1), conv_state=tensor(b, d, w))


def scan(rng):
    b, d, t, n = rng.randint(1, 4), rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 9)
    return dict(hidden_states=tensor(b, d, t), dt=tensor(b, d, t), A=tensor(d, n, dtype=torch.float32),
                B=tensor(b, n, t), C=tensor(b, n, t), D=tensor(d), z=tensor(b, d, t), delta_softplus=True,
                delta_bias=tensor(d, dtype=torch.float32), return_last_state=True)


def step(rng, heads: bool):
    b, h, p, n, g = rng.randint(1, 4), 2 * rng.randint(1, 5), rng.randint(2, 30), rng.randint(2, 9), rng.choice([1, 2])
    inner = (h, p) if heads else (p,)
    shared = (b, g, n) if heads else (b, n)
    return dict(state=tensor(b, *inner, n, dtype=torch.float32), hidden_states=tensor(b, *inner), dt=tensor(b, *inner),
                A=tensor(*inner, n, dtype=torch.float32), B=tensor(*shared), C=tensor(*shared), D=tensor(*inner),
                dt_bias=tensor(*inner), dt_softplus=True)


def chunked(rng):
    g, b, t, p, n = rng.choice([1, 2]), rng.randint(1, 3), rng.randint(2, 40), rng.randint(2, 9), rng.randint(2, 9)
    h = g * rng.randint(1, 4)
    return dict(hidden_states=tensor(b, t, h, p), dt=tensor(b, t, h), A=tensor(h, dtype=torch.float32), D=tensor(h),
                B=tensor(b, t, g, n), C=tensor(b, t, g, n), chunk_size=rng.choice([4, 8, 16]), dt_bias=tensor(h),
                dt_softplus=True, return_final_states=True)


def delta(rng, gates: bool, tokens: tuple):
    b, t, h, k, v = rng.randint(1, 3), rng.randint(*tokens), rng.randint(1, 4), rng.randint(2, 9), rng.randint(2, 9)
    hv = h if gates else h * rng.choice([1, 2])
    return dict(query=tensor(b, t, h, k), key=tensor(b, t, h, k), value=tensor(b, t, hv, v), beta=tensor(b, t, hv),
                g=tensor(b, t, hv, *((k,) if gates else ()), dtype=torch.float32),
                initial_state=rng.choice([None, tensor(b, hv, k, v, dtype=torch.float32)]), output_final_state=True,
                use_qk_l2norm_in_kernel=rng.choice([True, False]))


DRAWN = {
    "causal_conv1d_fn": convolution, "causal_conv1d_update": update, "selective_scan_fn": scan,
    "mamba_chunk_scan_combined": chunked, "chunk_gated_delta_rule": lambda rng: delta(rng, False, (2, 150)),
    "chunk_kda": lambda rng: delta(rng, True, (2, 150)), "fused_recurrent_kda": lambda rng: delta(rng, True, (1, 4)),
    "fused_recurrent_gated_delta_rule": lambda rng: delta(rng, False, (1, 4))
}
# Triton's kernels give the type of their input, these functions of the source float32
FLOAT32 = {"mamba_chunk_scan_combined"}


@pytest.mark.parametrize("name, folder, at", fallbacks())
def test_an_operator_gives_what_the_source_gives(name, folder, at):
    "Shapes and types of all results at 20 random sizes, and states changed in place stay what they are"
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    original, rng = getattr(module, at), random.Random(name)
    draw = DRAWN.get(name) or (lambda rng: step(rng, "num_heads" in inspect.getsource(original)))
    for _ in range(20):
        given = draw(rng)
        ours, theirs = stand_in(name, original)(**given), original(**given)
        several = isinstance(theirs, tuple)
        assert several == isinstance(ours, tuple)
        for mine, its in zip(*((ours, theirs) if several else ((ours,), (theirs,)))):
            assert mine.shape == its.shape
            assert mine.dtype == its.dtype or name in FLOAT32 and (mine.dtype, its.dtype) == (
                given["hidden_states"].dtype, torch.float32)


def test_every_function_of_the_source_was_compared():
    assert {row.values[0] for row in fallbacks()} == set(SCHEMAS)


def test_a_chunk_size_that_the_formulas_cannot_take_is_refused():
    "Four blocks of two tokens at least are inverted; no other size is counted in silence"
    rule = stand_in("chunk_gated_delta_rule", lambda query, key, value, g, beta, chunk_size=64, **kwargs: None)
    heads = [tensor(2, 24, 3, 8) for _ in range(3)]
    model = torch.nn.Module()
    model.forward = lambda size: rule(*heads, tensor(2, 24, 3), tensor(2, 24, 3), chunk_size=size)[0]
    from lm_predictor.tracing.recording.recorder import recording
    with recording(model) as recorder:
        assert model(8).shape == (2, 24, 3, 8)
        for size, near in ((12, "8 or 16"), (4, "8"), (-64, "8")):
            with pytest.raises(ValueError, match=f"chunk_size must be a multiple of 8 tokens, got {size}; the nearest is {near}$"):
                model(size)
    assert "function" not in [op.kind for op, _ in recorder.root.walk()]  # of the last call
