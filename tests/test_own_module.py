"A module of the user's own: its matrix products equal torch's counter at random sizes, it stays as it is, bad input is said."
import copy
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lm_predictor import analyze
from lm_predictor.cost.execution import EXECUTIONS
from lm_predictor.models.config.validation import ModelError


class Attention(nn.Module):
    def __init__(self, width, heads, block, flash):
        super().__init__()
        self.c_attn, self.c_proj, self.heads, self.flash = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, flash
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, width, heads, block, flash):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, block, flash)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, flash=True, vocab=320, block=64, width=48, heads=4, layers=2):
        super().__init__()
        self.block, self.wte, self.wpe = block, nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.h = nn.ModuleList(Block(width, heads, block, flash) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        assert t <= self.block, f"Cannot forward sequence of length {t}"
        x = self.wte(idx) + self.wpe(torch.arange(t, device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, None if targets is None else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class Sliding(nn.Module):
    "Attention to the last 12 tokens, through a mask"
    def __init__(self, width=48):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1], device=x.device)
        near = (at[:, None] >= at) & (at[:, None] - at < 12)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).flatten(2)


class LinearAttention(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        state = torch.einsum("bhsd,bhse->bhde", F.elu(k) + 1, v)
        return torch.einsum("bhsd,bhde->bhse", F.elu(q) + 1, state).transpose(1, 2).flatten(2)


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv1d(48, 96, 3, padding=1), nn.ConvTranspose1d(96, 48, 4, stride=2)

    def forward(self, x):
        return self.up(F.relu(self.conv(x.transpose(1, 2)))).transpose(1, 2)


class Several(nn.Module):
    "Named inputs, some of which are no tensors; a dictionary and a tuple as outputs"
    def __init__(self):
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(100, 48), nn.Linear(48, 48), nn.Linear(48, 3)

    def forward(self, *, ids, extra=None, gain=2.0, mode="sum"):
        h = self.a(self.table(ids))
        h = h + extra["x"] * gain if mode == "sum" else h
        return {"h": h, "rest": (self.b(h), h.mean())}


def llama(name, dtype=torch.float32, **more):
    def make():
        from transformers.models.llama import modeling_llama
        config = modeling_llama.LlamaConfig(hidden_size=48, intermediate_size=112, num_attention_heads=4, num_key_value_heads=2)
        for key, value in more.items():
            setattr(config, key, value)
        return getattr(modeling_llama, name)(config, *([0] if name == "LlamaAttention" else [])).to(dtype)
    return make


def hidden(dtype=torch.float32):
    return torch.zeros(2, 20, 48, dtype=dtype)


IDS, HALF = torch.zeros(2, 20, dtype=torch.long), torch.bfloat16
BOTH = {"batch": 0, "seq": 1}
ROTARY = (torch.zeros(2, 20, 12, dtype=HALF), torch.zeros(2, 20, 12, dtype=HALF))
CALL = {"hidden_states": hidden(HALF), "position_embeddings": ROTARY, "attention_mask": None}
SEVERAL = {"ids": IDS, "extra": {"x": hidden()}, "gain": 3}
MODULES = {
    "nanoGPT": (NanoGPT, IDS, {"batch": (0, 0), "seq": {"idx": -1}}),
    "by hand, bf16": (lambda: NanoGPT(flash=False).bfloat16(), (IDS, IDS), BOTH),
    "sliding": (Sliding, hidden(), BOTH), "linear": (LinearAttention, hidden(), BOTH), "conv": (Convolved, hidden(), BOTH),
    "several": (Several, SEVERAL, {"batch": 0, "seq": {0: 1, "extra.x": 1}}),
    "LlamaMLP": (llama("LlamaMLP"), hidden(), BOTH),
    "LlamaAttention": (llama("LlamaAttention", HALF, _attn_implementation="sdpa"), CALL, BOTH),
    "LlamaAttention, eager": (llama("LlamaAttention", HALF, _attn_implementation="eager"), CALL, BOTH),
}


def counted(module, cost, sizes) -> int:
    "The matrix products that torch's counter finds in a run on the meta device"
    put = lambda t, names: torch.empty([sizes.get(names.get(d), n) for d, n in enumerate(t.shape)], dtype=t.dtype, device="meta")
    args, kwargs = cost.source.inputs.call(put)
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        copy.deepcopy(module).to("meta").eval()(*args, **kwargs)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", MODULES)
def test_matrix_products_equal_torchs_counter(name):
    make, example, symbolic = MODULES[name]
    rng, module = random.Random(name), make()
    cost = analyze(module, example, symbolic=symbolic)
    alone = [{"batch": 1, "seq": rng.randint(2, 60)}] if name in ("nanoGPT", "sliding", "LlamaAttention") else []
    for sizes in ({"batch": rng.randint(2, 9), "seq": rng.randint(2, 60)}, *alone):
        run = cost.at(**sizes, execution="eager")
        assert run.totals.matmul_flops == counted(module, cost, sizes) > 0
        assert run.totals.weight_bytes == sum(p.nbytes for p in module.parameters()) and not run.notes and not run.uncounted
        moved = [cost.at(**sizes, execution=e).totals for e in EXECUTIONS]
        assert all(a.read_bytes + a.write_bytes >= b.read_bytes + b.write_bytes for a, b in zip(moved, moved[1:]))
    assert cost.formula("matmul_flops", "eager").evaluate({"batch": 7, "seq": 40}) == cost.at(
        batch=7, seq=40, execution="eager").totals.matmul_flops


def test_lines_device_and_reports():
    run = analyze(NanoGPT(flash=False), IDS, symbolic=BOTH).at(batch=8, seq=50)
    assert {k.operation for k in run.kernels} >= {"attention", "mm"} and {k.count for k in run.kernels} == {1, 2}
    source, lines = Path(__file__), Path(__file__).read_text().splitlines()
    for k in run.kernels:
        file, _, line = k.source.rpartition(":")
        assert file.endswith("test_own_module.py") and lines[int(line) - 1].strip().startswith(k.code.splitlines()[0])
    timed = run.on("nvidia_h100_sxm")
    assert timed.time_s > 0 and timed.to_json()["workload"] == {"sizes": {"batch": 8, "seq": 50}, "w_bits": 32, "a_bits": 32}
    assert "batch 8, seq 50" in repr(timed) and "| `h.*.attn`" in timed._repr_markdown_() and source.name in timed.to_csv()
    # the mask leaves the pairs of the past: 50*51/2 of 50*50
    [attention] = [k for k in run.kernels if k.operation == "attention"]
    assert attention.matmul_flops == 2 * 2 * 8 * 48 * (50 * 51 // 2)


def test_windows_and_masks():
    def products(module, execution="flash", **sizes):
        run = analyze(module, hidden(), symbolic=BOTH).at(**sizes, execution=execution)
        return [k for k in run.kernels if "scaled_dot_product" in k.operation][0].matmul_flops, run.notes
    pairs = 12 * 13 // 2 + (3000 - 12) * 12
    assert products(Sliding(), batch=2, seq=3000) == (2 * 2 * 2 * 48 * pairs, ())
    assert products(Sliding(), "eager", batch=2, seq=3000) == (2 * 2 * 2 * 48 * 3000**2, ())

    class Given(nn.Module):
        def forward(self, q, mask):
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    cost = analyze(Given(), (torch.zeros(2, 4, 20, 16), torch.zeros(20, 20)), symbolic={"seq": {"q": 2, "mask": (0, 1)}})
    flash = cost.at(seq=30, execution="flash")
    assert flash.totals.matmul_flops == 2 * 2 * 2 * 64 * 30**2 and "the mask of 1 of 1 attentions is not known" in flash.notes[0]


def test_precision():
    cost = analyze(llama("LlamaMLP")(), hidden(), symbolic=BOTH)
    at = {"batch": 2, "seq": 9}
    whole, half, narrow = cost.at(**at), cost.at(**at, w_bits=16, a_bits=16), cost.at(**at, w_bits=4, a_bits=16)
    assert whole.totals.read_bytes == 2 * half.totals.read_bytes and whole.totals.weight_bytes == 8 * narrow.totals.weight_bytes
    assert narrow.widths == "weights 4, activations 16 bit"
    own = analyze(llama("LlamaMLP", HALF)(), hidden(HALF), symbolic=BOTH).at(**at)
    assert own.totals == half.totals and own.widths == "16-bit"


class Cache:
    def __init__(self):
        self.seen = []


class Keeps(nn.Module):
    "Changes what it holds in every way"
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 64, 48))
        self.proj, self.cache, self.steps, self.last = nn.Linear(48, 48), Cache(), 0, None

    def forward(self, x):
        self.keys[:, :x.shape[1]] = self.proj(x)
        self.steps, self.last = self.steps + 1, x
        self.cache.seen.append(x)
        return self.keys.sum(1)


def test_module_is_unchanged():
    module = Keeps()
    handle = module.proj.register_forward_hook(lambda *given: None)
    module.proj.eval()
    before = {n: (id(t), t.clone()) for n, t in module.state_dict(keep_vars=True).items()}
    x = hidden().requires_grad_()
    cost = analyze(module, x, symbolic={"seq": 1})
    run = cost.at(seq=30, execution="eager")
    after = module.state_dict(keep_vars=True)
    assert all(id(after[n]) == i and torch.equal(after[n], t) for n, (i, t) in before.items()) and list(after) == list(before)
    assert module.training and not module.proj.training and handle.id in module.proj._forward_hooks and x.grad_fn is None
    assert (module.steps, module.last, module.cache.seen) == (0, None, []) and module.proj.weight.requires_grad
    assert "hooks of 1 modules" in run.notes[0] and any("copy" in k.operation for k in run.kernels)
    for execution in EXECUTIONS:  # what it keeps is written in every one
        assert cost.at(seq=30, execution=execution).totals.write_bytes >= 4 * 2 * 30 * 48
    module.proj = nn.Linear(48, 7)  # the cost is that of the module as it was
    assert cost.at(seq=31).totals.matmul_flops == 2 * 2 * 31 * 48 * 48 and module.proj.out_features == 7
    with pytest.raises(ModelError):
        analyze(NanoGPT().eval(), torch.zeros(2, 99, dtype=torch.long), symbolic=BOTH)


def test_meta_module():
    with torch.device("meta"):
        module = NanoGPT(vocab=50304, block=1024, width=768, heads=12, layers=2)
    run = analyze(module, torch.zeros(1, 1024, dtype=torch.long), symbolic=BOTH).at(batch=4, seq=1024, execution="eager")
    tokens = 4 * 1024
    layer = 2 * tokens * 12 * 768**2 + 2 * 2 * 4 * 1024**2 * 768
    assert run.totals.matmul_flops == 2 * layer + 2 * tokens * 768 * 50304 and module.wte.weight.is_meta


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(48, 48)

    def forward(self, x):
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = torch.tanh(self.step(x[:, t]) + h)
        return h


def test_a_loop_over_tokens_runs_at_the_sizes_asked_for():
    module = Loops()
    cost = analyze(module, hidden(), symbolic=BOTH)
    run = cost.at(batch=3, seq=11, execution="eager")
    assert run.totals.matmul_flops == counted(module, cost, {"batch": 3, "seq": 11}) == 11 * 2 * 3 * 48 * 48
    assert run.notes[0].startswith("run at exactly these sizes: its code needs seq as a number at ")
    assert "for t in range(x.shape[1]):" in run.notes[0]
    with pytest.raises(ModelError, match="Loops has no formulas: run at exactly these sizes"):
        cost.formula()


def module_of(body: str, tmp_path) -> tuple:
    "A module of a file whose forward() is `body`, and the file"
    file = tmp_path / "net.py"
    file.write_text("import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n        " + body + "\n")
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    return space["Net"](), file


@pytest.mark.parametrize("body, said", [
    ("return x * x.sum().item()", "Net needs the value of a tensor at {file}:6: `return x * x.sum().item()`"),
    ("return x if x.mean() > 0 else -x", "Net needs the value of a tensor at {file}:6"),
    ("return x[x > 0]", "Net needs the value of a tensor at {file}:6"),
    ("return x.nonzero()", "Net needs the value of a tensor at {file}:6"), ("return x.tolist()", "Net needs the value of a tensor"),
    ("return x @ x", "Net does not run: {file}:6: `return x @ x`: RuntimeError: "), ("return None", "Net returns no tensor"),
    ("return self.nothing(x)", "Net does not run: {file}:6: `return self.nothing(x)`: AttributeError: 'Net' object has no"),
])
def test_bad_forwards(body, said, tmp_path):
    module, file = module_of(body, tmp_path)
    with pytest.raises(ModelError) as e:
        analyze(module, hidden(), symbolic=BOTH)
    assert said.format(file=file) in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize("body, sizes, said", [
    ("return x.view(-1, 20, 4, 12).sum(-1)", {"seq": 21}, "seq must be 20 in Net: {file}:6: `return x.view(-1, 20, 4, 12)"),
    ("assert x.shape[1] % 4 == 0; return x", {"seq": 21}, "Net takes seq%4 == 0 at {file}:6"),
    ("assert x.shape[1] <= 32; return x + 1", {"seq": 33}, "Net takes seq <= 32 at {file}:6"),
    ("return x + 1", {}, ".at() needs seq as well; its sizes are batch, seq"),
    ("return x + 1", {"sek": 2, "seq": 3}, "there is no size 'sek'; did you mean seq?"),
    ("return x + 1", {"seq": 2.5}, "seq must be an integer from 1 to 1000000000, got 2.5"),
    ("return x + 1", {"seq": 2, "w_bits": 3}, "w_bits must be one of 4, 8, 16, 32, got 3"),
    ("return x + 1", {"seq": 2, "execution": "quick"}, "unknown execution 'quick'"),
    ("return x + 1", {"seq": 2, "without": "ropes"}, "there is no rewrite 'ropes'; did you mean rope"),
])
def test_bad_sizes(body, sizes, said, tmp_path):
    module, file = module_of(body, tmp_path)
    cost = analyze(module, hidden(), symbolic=BOTH)
    with pytest.raises(ModelError) as e:
        cost.at(batch=2, **sizes)
    assert said.format(file=file) in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize("symbolic, said", [
    ({"my batch": 0}, "'my batch' is no Python identifier"), ({"class": 0}, "'class' is no Python identifier"),
    ({"w_bits": 0}, "'w_bits' has a meaning of its own here; call the size w_bits_size"), ({"n": 5}, "n is bound to no dimension"),
    ({"n": {"idxx": 0}}, "there is no argument 'idxx'; did you mean idx?"), ({"n": (0, 2)}, "n is dimension 2 of idx, which has 2"),
    ({"n": {"idx": (0, 1)}}, "n is 2 in dimension 0 of idx and 20 in dimension 1 of idx"), ("batch", "symbolic is a dictionary"),
    ({"a": 0, "b": (0, 0)}, "dimension 0 of idx is named both a and b"),
])
def test_bad_names(symbolic, said):
    with pytest.raises(ModelError) as e:
        analyze(NanoGPT(), IDS, symbolic=symbolic)
    assert said in str(e.value)


def test_what_is_no_plain_module():
    hooked = nn.Linear(2, 2)
    hooked._hf_hook = object()
    for module, said in ((nn.Linear, "Linear is a class"), (nn.LazyLinear(3), "has no shape yet"), (hooked, "a hook of accelerate"),
                         (torch.jit.script(nn.Linear(2, 2)), "scripted"), (nn.DataParallel(nn.Linear(2, 2)), "give the module inside")):
        with pytest.raises(ModelError, match=said):
            analyze(module, torch.zeros(2, 2), symbolic={"batch": 0})
    with pytest.raises(ModelError, match="the inputs of one call of Linear are needed"):
        analyze(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="example_inputs and symbolic are for a torch.nn.Module, got 'gpt2'"):
        analyze("gpt2", symbolic={"batch": 0})
    with pytest.raises(ModelError, match="missing a required argument: 'idx'. A tuple holds positional arguments"):
        analyze(NanoGPT(), {"targets": IDS})


def test_a_model_is_analyzed_without_torch():
    code = "import sys; from lm_predictor import analyze; analyze('gpt2', trace=False).at(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_module_of_transformers_that_needs_values():
    from transformers import BertConfig, BertModel
    bert = BertModel(BertConfig(hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, vocab_size=100))
    with pytest.raises(ModelError, match="^BertModel needs the value of a tensor at transformers/masking_utils.py:"):
        analyze(bert, {"input_ids": IDS, "attention_mask": torch.ones(2, 20)}, symbolic=BOTH)
