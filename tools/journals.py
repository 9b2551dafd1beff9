#!/usr/bin/env python3
"""Write the journals in journals/: complete analyses whose assistant turns were written by the authors of this package.

    python tools/journals.py            write them
    python tools/journals.py --check    say whether writing them again gives the same bytes

No model is called. The turns are below, as text; everything else in a journal (the task, the results of the tools, the
feedback of the check) is what the real loop makes of them. The head of each journal says so.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lm_predictor.agent.conversation.client import Budget, replay_send  # noqa: E402
from lm_predictor.agent.analyze import analyze_class, json_text  # noqa: E402
from lm_predictor.records.storage.database import Database  # noqa: E402

AUTHOR = "written by the authors of LM-Predictor in tools/journals.py; no model was called"
LLAMA = "transformers/models/llama/modeling_llama.py"
LINEAR = "torch.nn.modules.linear.Linear"


def parameter(name: str, meaning: str, origin: str) -> dict:
    return {"name": name, "meaning": meaning, "origin": origin}


WORKLOAD = {
    "batch_size": "sequences processed at once", "seq_len": "new tokens per sequence", "cache_len": "tokens already in the cache, per sequence",
    "active_experts": "experts of a layer that at least one token is routed to", "w_bytes": "bytes of a weight element",
    "a_bytes": "bytes of an activation element", "kv_bytes": "bytes of a cached key or value element"}


def workload(*names: str) -> list[dict]:
    return [parameter(n, WORKLOAD[n], "the workload") for n in names]


def kernel(line: int, code: str, operation: str, why: str, flops: str, read: str, write: str, matmul: str = "0", **more) -> dict:
    return {"kernel_type": "composite" if "${" in flops else "basic", "line": line, "code": code, "operation": operation, "analysis": why,
            "flops": flops, "matmul_flops": matmul, "memory_access": {"read": read, "write": write}, **more}


def call(line: int, code: str, operation: str, why: str, reference: str, **more) -> dict:
    "A kernel that is one reference"
    return kernel(line, code, operation, why, reference, reference, reference, reference, **more)


def document(name: str, found: str, path: str, shapes: list[str], answer: dict) -> str:
    "The line-by-line document"
    rows = [f"# {name}", "", "## Source", "", found, "", "## Inference path", "", path, "", "## Variables and shapes", "", *(f"- {s}" for s in shapes), "", "## Line by line"]
    for where, kernels in (("", answer["kernels"]), *((f" ({', '.join(v['assumptions'])})", v["kernels"]) for v in answer.get("variants", ()))):
        for k in kernels:
            notes = k.get("phases", []) + k.get("when", [])
            rows += ["", f"### Line {k['line']}{where}" + (f" [{', '.join(notes)}]" if notes else ""), "", "```python", k["code"], "```", "", f"- Kernel type: {k['kernel_type']}",
                     f"- Operation: {k['operation']}", f"- Analysis: {k['analysis']}", f"- FLOPs: `{k['flops']}`", f"- Read: `{k['memory_access']['read']}`",
                     f"- Written: `{k['memory_access']['write']}`"]
    return "\n".join([*rows, "", "## Review", "", "Every statement of `forward()` was looked at; those without an entry make no tensor.", ""])


class Turns:
    "Assistant turns, numbered so that each tool call has its own id"

    def __init__(self):
        self.rows, self.calls = [], 0

    def say(self, text: str, *calls: tuple) -> None:
        blocks = [{"type": "text", "text": text}]
        for name, given in calls:
            self.calls += 1
            blocks.append({"type": "tool_use", "id": f"toolu_{self.calls:02d}", "name": name, "input": given})
        self.rows.append({"role": "assistant", "model": "none", "content": blocks, "stop_reason": "tool_use" if calls else "end_turn",
                          "usage": {"input_tokens": 0, "output_tokens": 0}})

    def read(self, text: str, path: str, first: int, last: int) -> None:
        self.say(text, ("read", {"path": path, "offset": first, "limit": last - first + 1}))

    def write(self, text: str, md: str, answer: dict) -> None:
        self.say(text, ("write", {"path": "work/analysis.md", "content": md}), ("write", {"path": "work/analysis.json", "content": json_text(answer)}), ("check", {}))


def linear() -> list:
    product, moved = "2*batch_size*seq_len*in_features*out_features", "batch_size*seq_len*in_features*a_bytes + in_features*out_features*w_bytes"
    out, code = "batch_size*seq_len*out_features*a_bytes", "return F.linear(input, self.weight, self.bias)"
    why = ("F.linear multiplies input (batch_size, seq_len, in_features) by the transposed weight (out_features, in_features): batch_size*seq_len*out_features sums "
           "of in_features products, 2 FLOPs each. Input and weight are read once, the output is written once.")
    answer = {"class_name": LINEAR, "parameters": [*workload("batch_size", "seq_len", "w_bytes", "a_bytes"),
              parameter("in_features", "width of the input", "constructor argument in_features"), parameter("out_features", "width of the output", "constructor argument out_features"),
              parameter("bias", "1 with a bias, 0 without", "constructor argument bias") | {"default": 1}],
              "kernels": [kernel(134, code, "matrix product", why + " `__init__` sets bias to None.", product, moved, out, product, when=["bias == 0"]),
                          kernel(134, code, "matrix product with bias", why + " The bias (out_features) is read once and added to every output element: one more operation each.",
                                 f"{product} + batch_size*seq_len*out_features", f"{moved} + out_features*w_bytes", out, product, when=["bias == 1"])]}
    md = document("torch.nn.modules.linear.Linear", "`torch/nn/modules/linear.py`, class `Linear`; `forward()` at line 130 is one statement.",
                  "One path; whether there is a bias was decided in `__init__` (lines 111-114).",
                  ["input: (batch_size, seq_len, in_features)", "self.weight: (out_features, in_features), lines 108-110", "self.bias: (out_features) or None",
                   "result: (batch_size, seq_len, out_features)"], answer)
    t = Turns()
    t.say("I locate the class.", ("grep", {"pattern": "^class Linear|def forward", "path": "torch/nn/modules/linear.py"}), ("read", {"path": "torch/nn/modules/linear.py", "offset": 96, "limit": 40}))
    t.write("One statement, two configurations.", md, answer)
    t.say("The analysis is complete: one line, with and without a bias.")
    return t.rows


def rms_norm() -> list:
    n, tokens = "batch_size*seq_len*hidden_size", "batch_size*seq_len"
    square = "`pow` makes one float32 square per element, `mean` adds one operation per input element and leaves one number per token. "
    kernels = [
        kernel(63, "hidden_states = hidden_states.to(torch.float32)", "cast to float32", "A change of type: (batch_size, seq_len, hidden_size) is read in a_bytes and written in 4 bytes; no arithmetic.",
               "0", f"{n}*a_bytes", f"4*{n}"),
        kernel(64, "variance = hidden_states.pow(2).mean(-1, keepdim=True)", "square, mean",
               square + "Both read the whole tensor; the square is written in 4 bytes per element, the mean in 4 bytes per token.", f"2*{n}", f"8*{n}", f"4*{n} + 4*{tokens}"),
        kernel(65, "hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)", "add, reciprocal root, multiply",
               "Add and rsqrt work on one float32 per token; the product on every element, reading the tensor and one number per token.", f"2*{tokens} + {n}",
               f"12*{tokens} + 4*{n}", f"8*{tokens} + 4*{n}"),
        kernel(66, "return self.weight * hidden_states.to(input_dtype)", "cast back, multiply by the weight",
               "The cast reads float32 and writes the model's type; the product reads that and the weight (hidden_size) and writes the result.", n,
               f"4*{n} + {n}*a_bytes + hidden_size*w_bytes", f"2*{n}*a_bytes")]
    answer = {"class_name": "transformers.models.llama.modeling_llama.LlamaRMSNorm",
              "parameters": [*workload("batch_size", "seq_len", "w_bytes", "a_bytes"), parameter("hidden_size", "width of the residual stream", "constructor argument hidden_size, line 53")], "kernels": kernels}
    wrong = answer | {"kernels": [kernels[0], kernels[1] | {"memory_access": {"read": f"2*{n}*a_bytes", "write": f"{n}*a_bytes + {tokens}*a_bytes"}}, *kernels[2:]]}
    md = document("LlamaRMSNorm", f"`{LLAMA}`, lines 51-69; `forward()` begins at line 61. The decorator offers a kernel from the hub, which is not used by default.",
                  "One path, no condition.", ["hidden_states: (batch_size, seq_len, hidden_size), the model's type, float32 from line 63 to 65", "variance: (batch_size, seq_len, 1), float32",
                                               "self.weight: (hidden_size), line 58"], answer)
    t = Turns()
    t.read("I read the class.", LLAMA, 50, 70)
    t.write("Four lines compute.", md, wrong)
    t.write("Line 64 works on the float32 tensor that line 63 made: 4 bytes per element, not a_bytes.", md, answer)
    t.say("The analysis is complete: four lines.")
    return t.rows


def mlp() -> list:
    def product(a, b):
        return f"${{{LINEAR}}}(batch_size=batch_size, seq_len=seq_len, in_features={a}, out_features={b}, bias=0)"
    silu = "${transformers.activations.SiLUActivation}(batch_size=batch_size, seq_len=seq_len, num_features=intermediate_size)"
    calls = f"2*{product('hidden_size', 'intermediate_size')} + {silu} + {product('intermediate_size', 'hidden_size')}"
    n = "batch_size*seq_len*intermediate_size"
    why = ("Four calls, one product of this class's own. gate_proj and up_proj (lines 158, 159) map hidden_size to intermediate_size: where, config.hidden_size and "
           "config.intermediate_size; why, they are the two dimensions of the weight; how, `__init__`. down_proj (line 160) maps back. act_fn is ACT2FN[config.hidden_act], by default "
           "'silu', SiLUActivation, on intermediate_size features. config.mlp_bias is False: bias=0. batch_size and seq_len are the leading dimensions of x. The product of the "
           "two (batch_size, seq_len, intermediate_size) tensors is one operation per element; both are read, the result is written.")
    answer = {"class_name": "transformers.models.llama.modeling_llama.LlamaMLP", "parameters": [*workload("batch_size", "seq_len", "a_bytes"),
              parameter("hidden_size", "width of the residual stream", "config.hidden_size, line 155"), parameter("intermediate_size", "inner width of the feed-forward block", "config.intermediate_size, line 156")],
              "kernels": [kernel(164, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))", "gated feed-forward: 3 Linear, SiLU, product", why,
                                 f"{calls} + {n}", f"{calls} + 2*{n}*a_bytes", f"{calls} + {n}*a_bytes", calls)]}
    md = document("LlamaMLP", f"`{LLAMA}`, lines 152-165; `forward()` begins at line 163.", "One path.",
                  ["x: (batch_size, seq_len, hidden_size)", "gate, up: (batch_size, seq_len, intermediate_size)", "result: (batch_size, seq_len, hidden_size)"], answer)
    t = Turns()
    t.read("I read the class.", LLAMA, 152, 165)
    t.say("Which class is the default activation, and what does a reference to it pass?", ("grep", {"pattern": '"silu"', "path": "transformers/activations.py"}),
          ("grep", {"pattern": "SiLUActivation|linear.Linear", "path": "work/signatures.md"}), ("grep", {"pattern": "mlp_bias|hidden_act", "path": "transformers/models/llama/configuration_llama.py"}))
    t.write("One line, four calls and a product.", md, answer)
    t.say("The analysis is complete: one composite line.")
    return t.rows


def attention() -> list:
    b, t_, s, d = "batch_size", "(cache_len + seq_len)", "seq_len", "head_dim"
    general, single, decode = ["extend", "extend_all", "prefill", "prefill_all"], ["extend_b1", "extend_all_b1", "prefill_b1", "prefill_all_b1"], ["decode", "decode_b1"]
    interface = ("attn_output, attn_weights = attention_interface(\n            self,\n            query_states,\n            key_states,\n            value_states,\n"
                 "            attention_mask,\n            dropout=0.0 if not self.training else self.attention_dropout,\n            scaling=self.scaling,\n            **kwargs,\n        )")

    def projection(line, name, heads, at):
        return call(line, f"{name}_states = self.{name[0]}_proj(hidden_states).view(hidden_shape).transpose(1, 2)", f"{name} projection",
                    f"A call of Linear; view and transpose are names. in_features=hidden_size: the width of hidden_states, line {at}; out_features={heads}*head_dim: the second argument there, "
                    f"a dimension of the weight. config.attention_bias is False: bias=0. batch_size and seq_len lead hidden_states.",
                    f"${{{LINEAR}}}(batch_size={b}, seq_len={s}, in_features=hidden_size, out_features={heads}*{d}, bias=0)")

    def kernels(kv):
        q, k, scores, one = f"{b}*{s}*num_heads*{d}", f"{b}*{s}*{kv}*{d}", f"{b}*num_heads*{s}*{t_}", f"{b}*{t_}*{kv}*{d}"
        grouped, single_head, every = kv != "num_heads", kv == "1", f"{b}*{t_}*num_heads*{d}"
        rope = kernel(248, "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)", "rotary position embedding of queries and keys",
                      "Read at lines 119-149. For queries and keys alike, with n elements: x*cos reads x and cos (seq_len, head_dim), rotate_half negates half of x and concatenates n elements, "
                      "*sin, and a sum: 3*n + n/2 operations; reads 5*n + n/2 and cos and sin once each; writes 4*n + n/2.",
                      f"3*{q} + {q}/2 + 3*{k} + {k}/2", f"(5*{q} + {q}/2 + 5*{k} + {k}/2 + 4*{s}*{d})*a_bytes", f"(4*{q} + {q}/2 + 4*{k} + {k}/2)*a_bytes")
        cache = kernel(251, "key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)", "append keys and values to the cache",
                       "cache_utils.py concatenates, for keys and values alike: cache_len cached and seq_len new tokens are read, all are written to the new cache.", "0",
                       f"2*{b}*cache_len*{kv}*{d}*kv_bytes + 2*{k}*a_bytes", f"2*{one}*kv_bytes")

        def attend(phases, query_copies, output_copies, why, grouped=grouped):
            copies = f"{query_copies + output_copies}*{q}*a_bytes + " if query_copies + output_copies else ""
            read = f"{copies}{q}*a_bytes + {scores}*a_bytes + 3*{scores}*a_bytes + {b}*{s}*{t_}*a_bytes + 8*{scores}"
            write = f"{copies}{q}*a_bytes + 4*{scores}*a_bytes + 8*{scores}"
            read += f" + 2*{one}*kv_bytes" + (f" + 2*{every}*a_bytes" if grouped else "")
            write += f" + 2*{every}*a_bytes" if grouped else ""
            repeat = ("repeat_kv expands keys and values to num_heads and reshapes, a copy: they are read once in kv_bytes and written in a_bytes, and the products read the copies. "
                      if grouped else "repeat_kv expands the one head of one sequence and reshapes it, which is a view; the products read the cache. " if single_head else
                      "repeat_kv returns its input, num_key_value_groups is 1; the products read the cache. ")
            return kernel(257, interface, "eager attention", repeat + f"eager_attention_forward, lines 180-202: product with the keys, scaling, mask, cast to float32, softmax (3 per score), cast back, "
                          f"product with the values. Each of the six intermediate score tensors is written and read. {why}", f"4*{scores}*{d} + 5*{scores}", read, write, f"4*{scores}*{d}", phases=phases)
        output = call(269, "attn_output = self.o_proj(attn_output)", "output projection", "A call of Linear from num_heads*head_dim (lines 228-230) to hidden_size, without bias; both are dimensions of the weight.",
                      f"${{{LINEAR}}}(batch_size={b}, seq_len={s}, in_features=num_heads*{d}, out_features=hidden_size, bias=0)")
        return [projection(243, "query", "num_heads", 220), projection(244, "key", kv, 223), projection(245, "value", kv, 226), rope, cache,
                attend(general, 1, 1, "matmul copies the queries, whose batch and head dimensions do not merge into one; `.transpose(1, 2).contiguous()` copies the output."),
                attend(single, 0, 1, "With one sequence the queries' dimensions merge without a copy; `.contiguous()` copies the output.", grouped and not single_head),
                *(attend(phases, 0, 0, "With one new token neither the queries nor the output need a copy: a transposed dimension of size 1 changes no layout.", repeats)
                  for phases, repeats in ([(["decode"], True), (["decode_b1"], False)] if single_head else [(decode, grouped)])), output]

    answer = {"class_name": "transformers.models.llama.modeling_llama.LlamaAttention", "parameters": [*workload("batch_size", "seq_len", "cache_len", "a_bytes", "kv_bytes"),
              parameter("hidden_size", "width of the residual stream", "config.hidden_size, line 220"), parameter("num_heads", "attention heads of the queries", "config.num_attention_heads, line 220"),
              parameter("num_kv_heads", "attention heads of keys and values", "config.num_key_value_heads, line 223"), parameter("head_dim", "width of one attention head", "config.head_dim, line 213")],
              "assumptions": ["num_kv_heads == num_heads", "head_dim % 2 == 0"], "kernels": kernels("num_heads"),
              "variants": [{"assumptions": ["num_kv_heads == 1", "head_dim % 2 == 0"], "kernels": kernels("1")},
                           {"assumptions": ["num_heads % num_kv_heads == 0", "num_heads > num_kv_heads", "head_dim % 2 == 0"], "kernels": kernels("num_kv_heads")}]}
    md = document("LlamaAttention", f"`{LLAMA}`, lines 205-270; `forward()` begins at line 232. Helpers: lines 119-202 and `transformers/cache_utils.py`.",
                  "There is a cache (line 250 is taken) and a mask; no dropout. `_attn_implementation` chooses the function at line 253: eager. repeat_kv copies where num_kv_heads is below num_heads, but one head of one sequence: three variants.",
                  ["hidden_states: (batch_size, seq_len, hidden_size)", "queries: (batch_size, num_heads, seq_len, head_dim), a transposed view", "keys, values: (batch_size, num_kv_heads, seq_len, head_dim)",
                   "cached keys, values: (batch_size, num_kv_heads, cache_len + seq_len, head_dim)", "scores: (batch_size, num_heads, seq_len, cache_len + seq_len)",
                   "mask: (batch_size, 1, seq_len, cache_len + seq_len)", "cos, sin: (seq_len, head_dim)"], answer)
    t = Turns()
    t.read("I read the class and its helpers.", LLAMA, 118, 270)
    t.say("The cache's update is a helper in another file.", ("grep", {"pattern": "torch.cat|def update|class DynamicLayer", "path": "transformers/cache_utils.py"}), ("read", {"path": "transformers/cache_utils.py", "offset": 112, "limit": 30}))
    t.write("Seven lines compute; the attention function differs with batch and phase.", md, answer)
    t.say("The analysis is complete: four projections, the rotary embedding, the cache, and attention in up to four cases and three variants.")
    return t.rows


def moe_block() -> list:
    file, base = "transformers/models/qwen3_moe/modeling_qwen3_moe.py", "transformers.models.qwen3_moe.modeling_qwen3_moe"
    common = "batch_size=batch_size, seq_len=seq_len, hidden_size=hidden_size, num_experts_per_tok=num_experts_per_tok, num_local_experts=num_local_experts"
    answer = {"class_name": f"{base}.Qwen3MoeSparseMoeBlock", "parameters": [*workload("batch_size", "seq_len", "active_experts"), parameter("hidden_size", "width of the residual stream", "config.hidden_size"),
              parameter("moe_intermediate_size", "inner width of one expert", "config.moe_intermediate_size"), parameter("num_experts_per_tok", "experts that one token is routed to", "config.num_experts_per_tok"),
              parameter("num_local_experts", "experts of a layer", "config.num_experts")],
              "kernels": [
                  call(278, "_, routing_weights, selected_experts = self.gate(hidden_states_reshaped)", "router",
                       "A call of Qwen3MoeTopKRouter (line 273). batch_size and seq_len: the tokens, merged by the view of line 277; hidden_size: the last dimension of hidden_states, the router's weight has it; "
                       "num_experts_per_tok: config, it decides how many scores are kept; num_local_experts: config, the rows of its weight.", f"${{{base}.Qwen3MoeTopKRouter}}({common})"),
                  call(279, "final_hidden_states = self.experts(hidden_states_reshaped, selected_experts, routing_weights)", "experts",
                       "A call of Qwen3MoeExperts (line 272). As for the router; moe_intermediate_size: config, the inner width of an expert's weights; active_experts: how many experts some token chose, whose weights are read.",
                       f"${{{base}.Qwen3MoeExperts}}({common}, moe_intermediate_size=moe_intermediate_size, active_experts=active_experts)")]}
    md = document("Qwen3MoeSparseMoeBlock", f"`{file}`, lines 269-280; `forward()` begins at line 275.", "One path.",
                  ["hidden_states: (batch_size, seq_len, hidden_size)", "hidden_states_reshaped: (batch_size*seq_len, hidden_size), a view", "routing_weights, selected_experts: (batch_size*seq_len, num_experts_per_tok)"], answer)
    t = Turns()
    t.read("I read the class.", file, 200, 281)
    t.say("What do references to the router and the experts pass?", ("grep", {"pattern": "Qwen3MoeTopKRouter|Qwen3MoeExperts", "path": "work/signatures.md"}))
    t.write("Two calls; the reshapes are views.", md, answer)
    t.say("The analysis is complete: two composite lines, nothing of its own.")
    return t.rows


CLASSES = {
    LINEAR: linear, "transformers.models.llama.modeling_llama.LlamaRMSNorm": rms_norm, "transformers.models.llama.modeling_llama.LlamaMLP": mlp,
    "transformers.models.llama.modeling_llama.LlamaAttention": attention, "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock": moe_block}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args, wrong = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as directory:
        for name, turns in CLASSES.items():
            db = Database(Path(directory) / "db")
            made = Path(directory) / f"{name}.jsonl"
            outcome = analyze_class(name, replay_send(turns()), db, Budget(), llm="none", author=AUTHOR, journal=made, force=True)
            kept = ROOT / "journals" / made.name
            same = kept.exists() and kept.read_bytes() == made.read_bytes()
            if not args.check and outcome.status == "verified":
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(made.read_bytes())
            wrong += outcome.status != "verified" or (args.check and not same)
            print(f"{name}: {outcome.status}, {outcome.result.turns} turns, {outcome.why}{'' if same or not args.check else '; other bytes than journals/'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
