"""The FLOPs of each accelerated function, counted by running its algorithm on numbers that count, and what it computes.

Every algorithm below is written as the kernels are, chunk by chunk, over plain lists; its results are compared with those of
the source's own functions, its additions and multiplications with the rule.
"""
import importlib
import math
import random
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from lm_predictor.cost.rules.functions import function_cost  # noqa: E402
from lm_predictor.cost.rules.operators import Operand, dense  # noqa: E402


class Count:
    "FLOPs so far, on matrix units and on lanes"
    def __init__(self):
        self.matrix, self.lanes, self.inside = 0, 0, False


COUNT = Count()


@dataclass(frozen=True)
class N:
    "A number whose arithmetic is counted"
    v: float

    def _made(self, v, flops=1):
        if COUNT.inside:
            COUNT.matrix += flops
        else:
            COUNT.lanes += flops
        return N(v)

    def __add__(self, other): return self._made(self.v + other.v)
    def __sub__(self, other): return self._made(self.v - other.v)
    def __mul__(self, other): return self._made(self.v * other.v)
    def exp(self): return self._made(math.exp(self.v))
    def softplus(self): return self._made(math.log1p(math.exp(self.v)))
    def silu(self): return self._made(self.v / (1 + math.exp(-self.v)))
    def rsqrt(self): return self._made(self.v**-0.5)
    def least(self, other): return self._made(min(self.v, other))
    def most(self, other): return self._made(max(self.v, other))


ZERO = N(0.0)


def dot(a, b, onto=None):
    "Rows a (m, k) times columns b (k, n) on matrix units: 2mkn, added to what is there"
    COUNT.inside, out = True, [list(row) for row in onto] if onto else [[ZERO] * len(b[0]) for _ in a]
    for i, row in enumerate(a):
        for j in range(len(b[0])):
            for k, x in enumerate(row):
                out[i][j] = out[i][j] + x * b[k][j]
    COUNT.inside = False
    return out


def turned(a): return [list(c) for c in zip(*a)]


def summed(rows):
    total = ZERO
    for x in rows:
        total = total + x
    return total


def numbers(t):
    return [numbers(x) for x in t] if t.dim() else N(float(t))


def values(x):
    return [values(y) for y in x] if isinstance(x, list) else x.v


def drawn(*shape, low=-1.0, high=1.0):
    return torch.empty(shape, dtype=torch.float64).uniform_(low, high)


def source(folder, name):
    return getattr(importlib.import_module(f"transformers.models.{folder}.modeling_{folder}"), name)


def near(ours, theirs):
    torch.testing.assert_close(torch.tensor(values(ours), dtype=torch.float64), theirs.double(), rtol=1e-5, atol=1e-5)


def counted(name, given):
    "Whether a rule gives the FLOPs that were counted"
    known = {n: dense(*t.shape) if isinstance(t, torch.Tensor) else t for n, t in given.items()}
    cost = function_cost(name, known, 8)
    assert (cost.matmul_flops, cost.flops - cost.matmul_flops) == (COUNT.matrix, COUNT.lanes)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    COUNT.__init__()


@pytest.mark.parametrize("activation, bias", [("silu", True), (None, False)])
def test_causal_convolution(activation, bias):
    x, weight, b = drawn(1, 3, 7), drawn(3, 4), drawn(3) if bias else None
    xs, ws, out = numbers(x[0]), numbers(weight), []
    for d in range(3):
        out.append([])
        for t in range(7):
            y = N(float(b[d])) if bias else ZERO
            for w in range(4):
                y = y + ws[d][w] * (xs[d][t - 3 + w] if t - 3 + w >= 0 else ZERO)
            out[d].append(y.silu() if activation else y)
    near(out, source("mamba", "causal_conv1d_fn")(x, weight, b, activation=activation)[0])
    counted("causal_conv1d_fn", dict(x=x, weight=weight, bias=b, activation=bool(activation)))


@pytest.mark.parametrize("more", (True, False))
def test_selective_scan(more):
    d, t, n = 3, 5, 2
    u, delta, A, B, C = drawn(1, d, t), drawn(1, d, t, low=0.1), drawn(d, n, low=-2, high=-0.1), drawn(1, n, t), drawn(1, n, t)
    D, z, bias = (drawn(d), drawn(1, d, t), drawn(d)) if more else (None, None, None)
    us, ds, As, Bs, Cs = numbers(u[0]), numbers(delta[0]), numbers(A), numbers(B[0]), numbers(C[0])
    out, last = [], []
    for c in range(d):
        state = [(N(1.0), ZERO)] * n
        out.append([])
        for i in range(t):
            dt = ds[c][i]
            if more:
                dt = (dt + N(float(bias[c]))).softplus()
            du = dt * us[c][i]
            y = N(float(D[c])) * us[c][i] if more else ZERO
            for s in range(n):
                a, b = (dt * As[c][s]).exp(), Bs[s][i] * du
                state[s] = a * state[s][0], a * state[s][1] + b  # the scan combines pairs
                y = y + state[s][1] * Cs[s][i]
            out[c].append(y * N(float(z[0, c, i])).silu() if more else y)
        last.append([b for _, b in state])
    theirs = source("mamba", "mamba_selective_scan")(
        u, delta, A, B, C, D=D, z=z, delta_bias=bias, delta_softplus=more, return_last_state=True)
    near(out, theirs[0][0])
    near(last, theirs[1][0])
    counted("selective_scan_fn", dict(u=u, A=A, D=D, z=z, delta_bias=bias, delta_softplus=more))


def test_state_update_of_mamba():
    p, n = 3, 4
    state, x, dt, A, B, C = drawn(1, p, n), drawn(1, p), drawn(1, p), drawn(p, n, high=0), drawn(1, n), drawn(1, n)
    D, z, bias, out, new = drawn(p), drawn(1, p), drawn(p), [], []
    hs, As, Bs, Cs = numbers(state[0]), numbers(A), numbers(B[0]), numbers(C[0])
    for i in range(p):
        step, y = (N(float(dt[0, i])) + N(float(bias[i]))).softplus(), ZERO
        new.append([])
        for s in range(n):
            new[i].append(hs[i][s] * (As[i][s] * step).exp() + (Bs[s] * step) * N(float(x[0, i])))
            y = y + new[i][s] * Cs[s]
        y = y + N(float(x[0, i])) * N(float(D[i]))
        out.append(y * N(float(z[0, i])).silu())
    held = state.clone()
    theirs = source("mamba", "mamba_selective_state_update")(held, x, dt, A, B, C, D, bias, True, z)
    near(out, theirs[0])
    near(new, held[0])
    counted("selective_state_update", dict(state=state, dt=dt, D=D, z=z, dt_bias=bias, dt_softplus=True))


def test_state_update_of_mamba_2():
    "One step and one A for a whole head"
    h, p, n = 2, 3, 4
    state, x, dt, A, B, C = drawn(1, h, p, n), drawn(1, h, p), drawn(1, h), drawn(h, high=0), drawn(1, 1, n), drawn(1, 1, n)
    D, bias, out, new = drawn(h), drawn(h), [], []
    hs, Bs, Cs = numbers(state[0]), numbers(B[0, 0]), numbers(C[0, 0])
    for j in range(h):
        step = (N(float(dt[0, j])) + N(float(bias[j]))).softplus()
        decay, dB = (N(float(A[j])) * step).exp(), [b * step for b in Bs]
        out.append([])
        new.append([])
        for i in range(p):
            xi, y = N(float(x[0, j, i])), ZERO
            new[j].append([hs[j][i][s] * decay + dB[s] * xi for s in range(n)])
            for s in range(n):
                y = y + new[j][i][s] * Cs[s]
            out[j].append(y + xi * N(float(D[j])))
    held, wide = state.clone(), lambda v: v[..., None].expand(*v.shape, p)
    theirs = source("mamba2", "mamba2_selective_state_update")(
        held, x, wide(dt), A[:, None, None].expand(h, p, n), B, C, wide(D), wide(bias), True)
    near(out, theirs[0])
    near(new, held[0])
    given = dict(state=dense(1, h, p, n), dt=Operand((1, h, p), h), D=D, z=None, dt_bias=bias, dt_softplus=True)
    counted("selective_state_update", given)


def parts(t, size):
    "The tokens of each chunk"
    return [range(i, min(i + size, t)) for i in range(0, t, size)]


def test_chunk_scan_of_mamba_2():
    t, h, p, g, n, c = 10, 2, 3, 1, 2, 4
    x, dt, A, B, C = drawn(1, t, h, p), drawn(1, t, h), drawn(h, high=0), drawn(1, t, g, n), drawn(1, t, g, n)
    D, bias, before = drawn(h), drawn(h), drawn(1, h, p, n)
    xs, Bs, Cs = numbers(x[0]), numbers(B[0, :, 0]), numbers(C[0, :, 0])
    step, sums = {}, {}
    for k in parts(t, c):  # the first kernel
        for j in range(h):
            total = ZERO
            for i in k:
                step[i, j] = (N(float(dt[0, i, j])) + N(float(bias[j]))).softplus().least(9e9).most(0.0)
                total = total + step[i, j] * N(float(A[j]))
                sums[i, j] = total
    out, state = [[None] * h for _ in range(t)], numbers(before[0])
    for k in parts(t, c):
        cb = dot([Cs[i] for i in k], turned([Bs[i] for i in k]))  # of all pairs of a group
        for j in range(h):
            last = sums[k[-1], j]
            scale = {i: (last - sums[i, j]).least(0.0).exp() * step[i, j] for i in k}
            own = dot(turned([xs[i][j] for i in k]), [[b * scale[i] for b in Bs[i]] for i in k])
            for row, i in enumerate(k):
                [y] = dot([Cs[i]], turned(state[j]))
                grown = sums[i, j].exp()
                y = [v * grown for v in y]
                decays = [(sums[i, j] - sums[k[m], j]).least(0.0).exp() for m in range(row + 1)]
                left = [cb[row][m] * decays[m] * step[k[m], j] for m in range(row + 1)]
                [y] = dot([left], [xs[i2][j] for i2 in k[:row + 1]], [y])
                out[i][j] = [v + N(float(D[j])) * xs[i][j][q] for q, v in enumerate(y)]
            decay = last.exp()
            state[j] = [[s * decay + new for s, new in zip(*rows)] for rows in zip(state[j], own)]
    theirs = source("mamba2", "mamba2_chunk_scan")(
        x, dt, A, B, C, c, D, bias, before, True, (0.0, 9e9), True)
    near(out, theirs[0][0])
    near(state, theirs[1][0])
    counted("mamba_chunk_scan_combined", dict(x=x, B=B, chunk_size=c, D=D, dt_bias=bias, dt_softplus=True))


def unit(row):
    "A vector by its length"
    inverse = (summed([v * v for v in row]) + N(1e-6)).rsqrt()
    return [v * inverse for v in row]


def inverse(a):
    "Of 1 + a, with a below the diagonal only: four blocks on the diagonal by substitution, the others of products"
    c = len(a)
    b = c // 4
    block = lambda i, j: [[N(-v.v) if i == j else v for v in row[j * b:(j + 1) * b]] for row in a[i * b:(i + 1) * b]]
    found = {}
    for i in range(4):
        near_ = block(i, i)
        for r in range(2, b):  # every row of the tile takes part
            row = near_[r]
            product = [[row[m] * v for v in near_[m]] for m in range(b)]
            near_[r] = [v + summed(column) for v, column in zip(row, turned(product))]
        found[i, i] = [[v if r != q else N(v.v + 1.0) for q, v in enumerate(row)] for r, row in enumerate(near_)]
    minus = lambda m: [[N(-v.v) for v in row] for row in m]
    plus = lambda x, y: [[p + q for p, q in zip(*rows)] for rows in zip(x, y)]
    for i, j in ((1, 0), (2, 1), (3, 2), (2, 0), (3, 1), (3, 0)):
        among = dot(block(i, j), found[j, j])
        for m in range(j + 1, i):
            among = plus(among, dot(block(i, m), found[m, j]))
        found[i, j] = minus(dot(found[i, i], among))
    return [[found[i // b, j // b][i % b][j % b] if j // b <= i // b else ZERO for j in range(c)] for i in range(c)]


def squared(a, c):
    "A triangular matrix of fewer tokens, filled with zeros to a whole chunk"
    return [[*row, *[ZERO] * (c - len(row))] for row in a] + [[ZERO] * c for _ in range(c - len(a))]


@pytest.mark.parametrize("tokens, normed", [(11, True), (16, False)])
def test_chunked_gated_delta_rule(tokens, normed):
    t, h, hv, k, v, c = tokens, 1, 2, 3, 2, 8
    q, key, val = drawn(1, t, h, k), drawn(1, t, h, k), drawn(1, t, hv, v)
    g, beta, before = drawn(1, t, hv, high=0), drawn(1, t, hv, low=0), drawn(1, hv, k, v)
    qs, ks = numbers(q[0]), numbers(key[0])
    if normed:
        qs, ks = ([[unit(head) for head in row] for row in rows] for rows in (qs, ks))
    out, state = [[None] * hv for _ in range(t)], numbers(before[0])
    for j in range(hv):
        keys, queries = [row[j * h // hv] for row in ks], [row[j * h // hv] for row in qs]
        vals, betas = numbers(val[0, :, j]), numbers(beta[0, :, j])
        for part in parts(t, c):
            gate, total = {}, ZERO
            for i in part:
                total = total + N(float(g[0, i, j]))
                gate[i] = total * N(1.0)  # to base 2
            a = []
            for r, i in enumerate(part):
                [row] = dot([keys[i]], turned([keys[m] for m in part[:r + 1]]))
                a.append([row[m] * (gate[i] - gate[part[m]]).exp() * betas[i] if m < r else ZERO for m in range(r + 1)])
            solved = [row[:len(part)] for row in inverse(squared([[*row, *[ZERO] * (len(part) - len(row))] for row in a], c))]
            u = dot(solved[:len(part)], [[x * betas[i] for x in vals[i]] for i in part])
            kb = []
            for i in part:
                grown = gate[i].exp()
                kb.append([x * betas[i] * grown for x in keys[i]])
            w = dot(solved[:len(part)], kb)
            read = dot(w, state[j])
            new = [[x - y for x, y in zip(*rows)] for rows in zip(u, read)]
            for r, i in enumerate(part):
                [old], grown = dot([queries[i]], state[j]), gate[i].exp()
                old = [x * grown for x in old]
                [row] = dot([queries[i]], turned([keys[m] for m in part]))
                # a pair above the diagonal is masked after the exponent, which may be large there
                row = [x * (gate[i] - gate[part[m]]).exp() for m, x in enumerate(row)]
                [own] = dot([[x if m <= r else ZERO for m, x in enumerate(row)]], new)
                scale = N(k**-0.5)
                out[i][j] = [x * scale + y * scale for x, y in zip(old, own)]
            last = gate[part[-1]]
            grown = []
            for r, i in enumerate(part):
                left = (last - gate[i]).exp()
                grown.append([x * left for x in new[r]])
            decay = last.exp()
            state[j] = dot(turned([keys[i] for i in part]), grown, [[x * decay for x in row] for row in state[j]])
    theirs = source("qwen3_next", "torch_chunk_gated_delta_rule")(q, key, val, g, beta, c, before, True, normed)
    near(out, theirs[0][0])
    near(state, theirs[1][0])
    counted("chunk_gated_delta_rule", dict(k=key, v=val, chunk_size=c, use_qk_l2norm_in_kernel=normed))


@pytest.mark.parametrize("kda", (False, True))
def test_recurrent_delta_rule(kda):
    t, h, hv, k, v = 2, 2, 2, 3, 2
    q, key, val, beta, before = drawn(1, t, h, k), drawn(1, t, h, k), drawn(1, t, hv, v), drawn(1, t, hv), drawn(1, hv, k, v)
    g = drawn(1, t, hv, k) if kda else drawn(1, t, hv)
    out, state = [[None] * hv for _ in range(t)], numbers(before[0])
    for j in range(hv):
        for i in range(t):
            qs, ks, vs = unit(numbers(q[0, i, j])), unit(numbers(key[0, i, j])), numbers(val[0, i, j])
            qs = [x * N(k**-0.5) for x in qs]
            decay = [x.exp() for x in numbers(g[0, i, j])] if kda else [N(float(g[0, i, j])).exp()] * k
            held = [[x * decay[r] for x in row] for r, row in enumerate(state[j])]
            known = [summed([held[r][m] * ks[r] for r in range(k)]) for m in range(v)]
            new = [(vs[m] - known[m]) * N(float(beta[0, i, j])) for m in range(v)]
            held = [[x + ks[r] * new[m] for m, x in enumerate(row)] for r, row in enumerate(held)]
            out[i][j], state[j] = [summed([held[r][m] * qs[r] for r in range(k)]) for m in range(v)], held
    name = ("kimi_linear", "recurrent_kimi_delta_attention") if kda else ("qwen3_next", "torch_recurrent_gated_delta_rule")
    theirs = source(*name)(q, key, val, g, beta, before, True, True)
    near(out, theirs[0][0])
    near(state, theirs[1][0])
    rule = "fused_recurrent_kda" if kda else "fused_recurrent_gated_delta_rule"
    counted(rule, dict(k=key, v=val, g=g, use_qk_l2norm_in_kernel=True))


def test_chunked_kimi_delta_attention():
    "In two whole chunks; of a last one in part, the rule counts the gates of all tiles, as the kernel has them"
    t, h, k, v, c, b = 16, 2, 3, 2, 8, 2
    q, key, val, beta, before = drawn(1, t, h, k), drawn(1, t, h, k), drawn(1, t, h, v), drawn(1, t, h), drawn(1, h, k, v)
    g, scale = drawn(1, t, h, k, high=0), N(k**-0.5)
    out, state = [[None] * h for _ in range(t)], numbers(before[0])
    for j in range(h):
        qs, ks = ([*map(unit, numbers(x[0, :, j]))] for x in (q, key))
        vs, betas = numbers(val[0, :, j]), numbers(beta[0, :, j])
        for part in parts(t, c):
            gate, total = {}, [ZERO] * k
            for i in part:
                total = [x + y for x, y in zip(total, numbers(g[0, i, j]))]
                gate[i] = [x * N(1.0) for x in total]  # to base 2
            aqk, akk = ([[ZERO] * c for _ in part] for _ in range(2))
            for first in range(0, c, b):
                tile = part[first:first + b]
                for i in tile:  # on the diagonal, pair by pair
                    for m in (m for m in tile if m <= i):
                        gated = [ks[m][x] * (gate[i][x] - gate[m][x]).exp() for x in range(k)]
                        row, column = i - part[0], m - part[0]
                        aqk[row][column] = summed([x * y for x, y in zip(qs[i], gated)]) * scale
                        own = summed([x * y for x, y in zip(ks[i], gated)]) * betas[i]
                        akk[row][column] = own if m < i else ZERO
                if not first:
                    continue
                start, rows_q, rows_k = gate[tile[0]], [], []
                for i in tile:
                    grown = [(x - y).exp() for x, y in zip(gate[i], start)]
                    rows_q.append([x * y for x, y in zip(qs[i], grown)])
                    rows_k.append([x * y for x, y in zip(ks[i], grown)])
                for at in range(0, first, b):
                    columns = turned([[x * (s - y).exp() for x, s, y in zip(ks[m], start, gate[m])]
                                      for m in part[at:at + b]])
                    for r, (pq, pk) in enumerate(zip(dot(rows_q, columns), dot(rows_k, columns))):
                        aqk[first + r][at:at + b] = [x * scale for x in pq]
                        akk[first + r][at:at + b] = [x * betas[tile[r]] for x in pk]
            solved, last = inverse(akk), gate[part[-1]]
            u = dot(solved, [[x * betas[i] for x in vs[i]] for i in part])
            w = dot(solved, [[x * betas[i] * y.exp() for x, y in zip(ks[i], gate[i])] for i in part])
            kg = [[x * (z - y).exp() for x, y, z in zip(ks[i], gate[i], last)] for i in part]
            new = [[x - y for x, y in zip(*rows)] for rows in zip(u, dot(w, state[j]))]
            qg = [[x * y.exp() for x, y in zip(qs[i], gate[i])] for i in part]
            old = [[x * scale for x in row] for row in dot(qg, state[j])]
            for i, row in zip(part, dot(aqk, new, old)):
                out[i][j] = row
            decay = [x.exp() for x in last]
            state[j] = dot(turned(kg), new, [[x * d for x in row] for row, d in zip(state[j], decay)])
    theirs = source("kimi_linear", "chunk_kimi_delta_attention")(q, key, val, g, beta, c, before, True, True)
    near(out, theirs[0][0])
    near(state, theirs[1][0])
    counted("chunk_kda", dict(k=key, v=val, g=g, chunk_size=c, use_qk_l2norm_in_kernel=True))
