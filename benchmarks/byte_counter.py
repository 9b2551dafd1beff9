"""Which bytes of memory does each ATen operator read and write?

`ByteCounter` knows nothing of lm_predictor. It sees operators with their real tensors and marks each byte of memory
that an operator touches; a byte that is touched twice counts once. What an operator touches follows from the tensors
(their memory, offsets and strides), from torch's own schemas (which argument is changed in place) and from real
indices. The four sets below are all that it knows of single operators, with `_grouped_mm`, `empty`, `..._like` and
`new_...`.

    with torch.no_grad(), ByteCounter() as counter:
        model(ids)
    counter.rows
"""
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GATHERS = {"embedding", "index", "index_select", "gather", "take"}  # read the places that their indices name
SCATTERS = {"index_put_", "scatter_", "index_copy_"}  # write the places that their indices name
SCATTER_ADDS = {"index_add_", "scatter_add_", "scatter_reduce_"}  # read them too
OVERWRITES = {"copy_", "fill_", "zero_"}  # do not read what they replace
VALUES = {"values", "value", "src", "source"}  # the arguments of a scatter that say what is written, not where


@dataclass
class Seen:
    "A tensor that an operator read or wrote"
    bytes: int  # distinct bytes of memory that the operator touched of it
    shape: tuple
    item: int  # bytes of an element


@dataclass
class Row:
    "One executed operator"
    op: str
    read: int  # bytes of memory; what two inputs share counts once
    write: int
    ins: list  # of Seen, each view once
    outs: list  # of Seen: what is changed in place, then what is new
    chosen: int = 0  # of the bytes read, those that real values chose: rows of a table, experts
    layer: int | None = None
    tokens: int = 0  # new ones, of all sequences


class ByteCounter(TorchDispatchMode):
    "Counts the bytes that each operator reads and writes; whoever uses it sets `layer`"

    def __init__(self):
        super().__init__()
        self.rows, self.layer, self.kept = [], None, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        ins, outs = tensors((args, kwargs)), tensors(out)
        changed = [a for s, a in zip(func._schema.arguments, args) if s.alias_info and s.alias_info.is_write]
        made = [t for t in outs if memory(t) not in set(map(memory, ins))]
        self.kept += [t.untyped_storage() for t in (*ins, *made)]  # memory given back could be given out again
        if made or changed or not outs:  # else it made views
            self.count(func, args, kwargs, ins, made, changed)
        return out

    def count(self, func, args, kwargs, ins, made, changed):
        name = func._schema.name.partition("::")[2]
        at = chosen_places(func, name, args, kwargs)
        if name.endswith("_like") or name.startswith("new_"):
            ins = []  # it asks for the shape only
        if name in SCATTERS | OVERWRITES:
            ins = [t for t in ins if t is not args[0]]
        table = args[1] if name == "_grouped_mm" else args[0] if args else None  # the input that `at` is about
        read = [(t, marked(t, at if t is table else None)) for t in ins]
        written = [(t, marked(t, at if name in SCATTERS | SCATTER_ADDS else None)) for t in changed]
        written += [(t, marked(t)) for t in made if "empty" not in name]
        views = {(memory(t), t.storage_offset(), tuple(t.shape), t.stride()): (t, flags) for t, flags in read}
        self.rows.append(Row(
            str(func).removesuffix(".default"), together(read), together(written),
            [seen(*pair) for pair in views.values()], [seen(*pair) for pair in written],
            together([(t, f) for t, f in read if t is table]) if at is not None else 0, self.layer))


def seen(t: torch.Tensor, flags: torch.Tensor) -> Seen:
    return Seen(int(flags.sum()), tuple(t.shape), t.element_size())


def tensors(x) -> list:
    return [t for t in tree_leaves(x) if isinstance(t, torch.Tensor)]


def memory(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def places(t: torch.Tensor) -> torch.Tensor:
    "Where in its memory each element of a tensor lies, counted in elements"
    at = torch.tensor(t.storage_offset())
    for d, (n, step) in enumerate(zip(t.shape, t.stride())):
        at = at + (torch.arange(n) * step).view(-1, *[1] * (t.dim() - d - 1))
    return at


def marked(t: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
    "A flag for each byte of a tensor's memory: whether it belongs to the tensor, or to the given places of it"
    flags = torch.zeros(t.untyped_storage().nbytes() // t.element_size(), t.element_size(), dtype=torch.bool)
    start, outer_first = t.storage_offset(), sorted(range(t.dim()), key=t.stride, reverse=True)
    if at is None and t.permute(outer_first).is_contiguous():  # one piece: the same as its places, but quick
        flags[start:start + t.numel()] = True
    else:
        flags[(places(t) if at is None else at).flatten()] = True
    return flags.flatten()


def together(touched: list) -> int:
    "Bytes of (tensor, flags) pairs; what two of them share counts once"
    flags = {}
    for t, mine in touched:
        flags[memory(t)] = flags[memory(t)] | mine if memory(t) in flags else mine
    return sum(int(f.sum()) for f in flags.values())


def chosen_places(func, name: str, args: tuple, kwargs: dict) -> torch.Tensor | None:
    "The places of its table that an operator touches, by its real indices; None for one that touches all of them"
    if name in GATHERS:  # the operator itself says it: it fetches places instead of values
        return func(places(args[0]), *args[1:], **kwargs)
    if name in SCATTERS | SCATTER_ADDS:  # it puts ones among zeros
        ones = [a if s.name not in VALUES else torch.ones_like(a) if isinstance(a, torch.Tensor) else 1
                for s, a in zip(func._schema.arguments[1:], args[1:])]
        return places(args[0])[func(torch.zeros(args[0].shape, dtype=args[0].dtype), *ones, **kwargs) != 0]
    if name == "_grouped_mm":  # the experts that have rows
        ends = args[2]
        return places(args[1])[torch.diff(ends, prepend=ends.new_zeros(1)) > 0]
    return None
