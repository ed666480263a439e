"""Attention of torch: autograd through the fused backward, operators for torch.compile and export, vmap.

Eager calls go by an autograd.Function straight to the plan, which costs least. While a program is compiled or exported,
or torch.func transforms it, they go by the operators torch.ops.tessera.attention and attention_backward.
"""
from __future__ import annotations

import functools
import math
import weakref
from typing import Any

import torch

from ._library import ArgumentError, TesseraError, UnsupportedError
from .arrays import hold_types, layout
from .attention import on_others
from .cache import Entry, plan_cache
from .pattern import Pattern, hold, patterns
from .plan import BackwardPlan, Plan

PLAIN = (torch.Tensor, torch.nn.Parameter)  # what is neither, such as a fake tensor, takes the operator
threads = torch.get_num_threads


def entry_for(kind: type, pattern: Pattern, q: Any, k: Any, v: Any, options: tuple, alibi: Any, sink: Any,
              gradients: tuple[str, ...] | None = None, where: tuple | None = None) -> Entry:
    """The plan that is kept for these tensors. options is (scale, softcap, dropout), where their layout."""
    key = (kind, options, (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, alibi is None, sink is None, gradients,
           threads(), where or layout(q, k, v))
    entry = plan_cache.find(pattern.number, key)
    if entry is None:
        hold_types(q, k, v)
        scale, softcap, dropout = options
        fields = dict(scale=scale or None, softcap=softcap, alibi=int(alibi is not None), sink=int(sink is not None),
                      dropout=dropout, **({} if gradients is None else {"gradients": gradients}))
        with torch.no_grad():
            entry = plan_cache.keep(pattern.number, key, kind(pattern, q, k, v, **fields))
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        plan_cache.pinned[id(entry.plan)] = entry.plan  # the graph reads its image at each replay
    return entry


def usable(x: Any) -> Any:
    """A gradient as the library takes it: autograd's may be expanded, or rows of something wider."""
    return x if x.is_contiguous() else x.contiguous()


def forward(entry: Entry, q: Any, k: Any, v: Any, alibi: Any, sink: Any, seed: Any, return_lse: bool = True) -> Any:
    """A run by a kept plan."""
    arrays = None
    if alibi is not None or sink is not None or seed is not None:
        arrays = {"alibi": alibi, "sink": sink, "seed": seed}
    return entry.plan.once(entry.layout, q, k, v, None, return_lse, None, arrays)


def backward(wanted: tuple[str, ...], q: Any, k: Any, v: Any, o: Any, lse: Any, d_o: Any, d_lse: Any, alibi: Any,
             sink: Any, seed: Any, pattern: Pattern, options: tuple) -> dict[str, Any]:
    entry = entry_for(BackwardPlan, pattern, q, k, v, options, alibi, sink, wanted)
    d_o = torch.zeros_like(o) if d_o is None else usable(d_o)
    arrays = {"alibi": alibi, "sink": sink, "seed": seed}
    return entry.plan.once(entry.layout, q, k, v, o, lse, d_o, None if d_lse is None else usable(d_lse), None, None,
                           {name: x for name, x in arrays.items() if x is not None})


GRADIENTS = ("q", "k", "v", "alibi", "sink")


class Attention(torch.autograd.Function):
    """Eager attention. Inputs are q, k, v, alibi, sink, seed and call, (pattern, options, entry); outputs o and lse."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, alibi: Any, sink: Any, seed: Any, call: tuple) -> tuple:
        o, lse = forward(call[2], q, k, v, alibi, sink, seed)
        ctx.save_for_backward(q, k, v, o, lse, alibi, sink, seed)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Any, d_lse: Any) -> tuple:
        # Under create_graph a gradient of the gradient is refused, if one is asked for; that check costs as a run does.
        return (once if torch.is_grad_enabled() else Attention.gradients)(ctx, d_o, d_lse)

    @staticmethod
    def gradients(ctx: Any, d_o: Any, d_lse: Any) -> tuple:
        if d_o is None and d_lse is None:
            return (None,) * 7
        q, k, v, o, lse, alibi, sink, seed = ctx.saved_tensors
        wanted = tuple(name for name, needed in zip(GRADIENTS, ctx.needs_input_grad) if needed)
        found = backward(wanted, q, k, v, o, lse, d_o, d_lse, alibi, sink, seed, *ctx.call[:2])
        return tuple(found.get(name) for name in GRADIENTS) + (None,) * 2


once = torch.autograd.function.once_differentiable(Attention.gradients)
apply = super(torch.autograd.Function, Attention).apply  # without looking for transforms, which plain has done

# ---- operators ----

library = torch.library.Library("tessera", "DEF")
library.define("attention(Tensor q, Tensor k, Tensor v, Tensor? alibi, Tensor? sink, Tensor? seed, str pattern, "
               "float scale, float softcap, float dropout) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
library.define("attention_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor d_o, Tensor? d_lse, "
               "Tensor? alibi, Tensor? sink, Tensor? seed, str pattern, float scale, float softcap, float dropout) -> "
               "(Tensor, Tensor, Tensor, Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))


@functools.lru_cache(maxsize=64)
def spec_pattern(key: str, n_q: int, n_kv: int) -> Pattern:
    sizes, _, spec = key.partition(";")
    block_q, block_kv, batch, heads = map(int, sizes.split(","))
    return Pattern.from_spec(spec, n_q, n_kv, block=(block_q, block_kv), batch=batch, heads=heads)


def pattern_of(key: str, n_q: int, n_kv: int) -> Pattern:
    """The pattern that an operator is given by name (Pattern.key)."""
    if key[0] != "#":
        return spec_pattern(key, n_q, n_kv)
    pattern = patterns.get(int(key[1:]))
    if pattern is None:
        raise TesseraError(f"pattern {key} is gone: what was compiled with a pattern needs it kept alive, in this "
                           "process. Patterns from specs are made anew")
    return pattern


def operator_forward(q: Any, k: Any, v: Any, alibi: Any, sink: Any, seed: Any, key: str, scale: float, softcap: float,
                     dropout: float) -> tuple:
    """Attention of plain tensors, with autograd where it is asked for."""
    where = layout(q, k, v)
    if where[2][-1] != 1 or where[7][-1] != 1 or where[12][-1] != 1:
        q, k, v = strided(q, k, v)
        where = layout(q, k, v)
    pattern = pattern_of(key, where[1][2], where[6][2])
    return eager(q, k, v, pattern, (scale, softcap, dropout), alibi, sink, seed, True, where)


def operator_backward(q: Any, k: Any, v: Any, o: Any, lse: Any, d_o: Any, d_lse: Any, alibi: Any, sink: Any, seed: Any,
                      pattern: str, scale: float, softcap: float, dropout: float) -> tuple:
    wanted = ("q", "k", "v") + ("alibi",) * (alibi is not None) + ("sink",) * (sink is not None)
    found = backward(wanted, *strided(q, k, v), usable(o), usable(lse), d_o, d_lse, alibi, sink, seed,
                     pattern_of(pattern, q.shape[2], k.shape[2]), (scale, softcap, dropout))
    return tuple(found[name] if name in found else q.new_empty(0, dtype=torch.float32) for name in GRADIENTS)


def strided(*tensors: Any) -> tuple:
    """Compilers choose layouts: rows whose elements are apart are copied."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


for backend in ("CPU", "CUDA"):
    library.impl("attention", operator_forward, backend)
    library.impl("attention_backward", operator_backward, backend)


@torch.library.register_fake("tessera::attention", lib=library)
def _(q: Any, k: Any, v: Any, alibi: Any, sink: Any, seed: Any, *options: Any) -> tuple:
    lead = q.shape[:3]
    return q.new_empty((*lead, v.shape[3])), q.new_empty(lead, dtype=torch.float32)


@torch.library.register_fake("tessera::attention_backward", lib=library)
def _(q: Any, k: Any, v: Any, o: Any, lse: Any, d_o: Any, d_lse: Any, alibi: Any, sink: Any, *rest: Any) -> tuple:
    small = [q.new_empty(q.shape[1] if x is not None else 0, dtype=torch.float32) for x in (alibi, sink)]
    return (*(x.new_empty(x.shape) for x in (q, k, v)), *small)


def setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:6])
    ctx.rest = inputs[6:]
    ctx.set_materialize_grads(False)


def operator_gradients(ctx: Any, d_o: Any, d_lse: Any) -> tuple:
    q, k, v, o, lse, alibi, sink, seed = ctx.saved_tensors
    if d_o is None:
        d_o = torch.zeros_like(o)
    found = torch.ops.tessera.attention_backward(q, k, v, o, lse, d_o, d_lse, alibi, sink, seed, *ctx.rest)
    needed = ctx.needs_input_grad[-10:]
    return tuple(x if need else None for x, need in zip(found, needed)) + (None,) * 5


def below(keys: Any, inputs: tuple) -> tuple:
    """The operator without autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.tessera.attention.default.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


class Traced(torch.autograd.Function):
    """Autograd of the operator for what is no plain tensor."""

    @staticmethod
    def forward(ctx: Any, keys: Any, *inputs: Any) -> tuple:
        output = below(keys, inputs)
        setup(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, d_o: Any, d_lse: Any) -> tuple:
        return (None,) * 11 if d_o is None and d_lse is None else (None, *operator_gradients(ctx, d_o, d_lse))


modes = torch._C._len_torch_dispatch_stack
interpreter = torch._C._functorch.peek_interpreter_stack


def plain(q: Any, k: Any, v: Any) -> bool:
    """Whether nobody looks on: no subclass, no mode, no transform."""
    return (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN and interpreter() is None and not modes())


def operator_autograd(keys: Any, *inputs: Any) -> tuple:
    """The first of the operator's kernels that a tensor meets: plain ones need no second dispatch."""
    if plain(*inputs[:3]):
        return operator_forward(*inputs)
    return Traced.apply(keys, *inputs) if needs_grad(*inputs[:5]) else below(keys, inputs)


library.impl("attention", operator_autograd, "Autograd", with_keyset=True)


class Transformed(torch.autograd.Function):
    """The operator for torch.func, whose transforms take this form of a Function alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple:
        return torch.ops.tessera.attention(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        setup(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, d_o: Any, d_lse: Any) -> tuple:
        return (None,) * 10 if d_o is None and d_lse is None else operator_gradients(ctx, d_o, d_lse)


def folded(info: Any, in_dims: tuple, tensors: tuple, names: str) -> list[Any]:
    """Tensors with the mapped dim in front of the batch and joined to it."""
    found = []
    for x, dim, name in zip(tensors, in_dims, names.split()):
        if x is None or name in ("alibi", "sink", "seed"):
            if dim is not None and x is not None:
                raise UnsupportedError(f"{name} is mapped by vmap: it is one array for all of a call")
            found.append(x)
            continue
        x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        found.append(x.reshape(-1, *x.shape[2:]))
    return found


def apart(info: Any, found: tuple) -> tuple:
    return tuple(x.reshape(info.batch_size, -1, *x.shape[1:]) for x in found)


def hold_one(pattern: str, q: Any, k: Any) -> None:
    """A pattern with a list for each batch does not fit batches that vmap multiplies."""
    if pattern.startswith("#") and pattern_of(pattern, q.shape[2], k.shape[2]).batch > 1:
        raise UnsupportedError("pattern has a list for each batch: under vmap give one for all batches")


@torch.library.register_vmap("tessera::attention", lib=library)
def _(info: Any, in_dims: tuple, *inputs: Any) -> tuple:
    hold_one(inputs[6], *inputs[:2])
    given = folded(info, in_dims, inputs[:6], "q k v alibi sink seed")
    return apart(info, torch.ops.tessera.attention(*given, *inputs[6:])), (0, 0)


@torch.library.register_vmap("tessera::attention_backward", lib=library)
def _(info: Any, in_dims: tuple, *inputs: Any) -> tuple:
    hold_one(inputs[10], *inputs[:2])
    if inputs[7] is not None or inputs[8] is not None:
        raise UnsupportedError("alibi or sink is given: their gradients are not mapped by vmap")
    given = folded(info, in_dims, inputs[:10], "q k v o lse d_o d_lse alibi sink seed")
    found = torch.ops.tessera.attention_backward(*given, *inputs[10:])
    return apart(info, found[:3]) + tuple(found[3:]), (0, 0, 0, None, None)


# ---- calls ----


def needs_grad(q: Any, k: Any, v: Any, alibi: Any, sink: Any) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or (
        alibi is not None and alibi.requires_grad) or (sink is not None and sink.requires_grad))


def eager(q: Any, k: Any, v: Any, pattern: Pattern, options: tuple, alibi: Any, sink: Any, seed: Any,
          return_lse: bool, where: tuple | None = None) -> Any:
    """Attention of plain tensors."""
    entry = entry_for(Plan, pattern, q, k, v, options, alibi, sink, None, where)
    if needs_grad(q, k, v, alibi, sink):
        found = apply(q, k, v, alibi, sink, seed, (pattern, options, entry))
        return found if return_lse else found[0]
    return forward(entry, q, k, v, alibi, sink, seed, return_lse)


def based(q: Any, k: Any, v: Any, pattern: Pattern, options: tuple, return_lse: bool, arrays: dict[str, Any]) -> Any:
    """Attention that starts from a base."""
    if needs_grad(q, k, v, arrays["alibi"], arrays["sink"]):
        raise UnsupportedError("base is given, which has no gradient: run under torch.no_grad()")
    entry = entry_for(Plan, pattern, q, k, v, options, arrays["alibi"], arrays["sink"])
    return entry.plan.once(entry.layout, q, k, v, None, return_lse, None, arrays)


def operator(q: Any, k: Any, v: Any) -> Any:
    """The operator, in the form for who looks on."""
    if not torch.compiler.is_compiling() and interpreter() is not None:
        return Transformed.apply
    for name, x in (("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name} is {type(x).__name__}, expected torch.Tensor, as q is")
    return torch.ops.tessera.attention


def attend(q: Any, k: Any, v: Any, pattern: Pattern, scale: float | None, return_lse: bool, softcap: float, alibi: Any,
           sink: Any, dropout: float, seed: Any, base: Any = None, beta: float | None = None) -> Any:
    """tessera.attention on torch tensors."""
    if not dropout:
        seed = None
    elif seed is None:
        seed = torch.randint(0, (1 << 63) - 1, (1,), dtype=torch.int64, device=q.device)
    if not torch.compiler.is_compiling() and plain(q, k, v):
        if base is not None or beta is not None:
            return based(q, k, v, hold(pattern, "pattern"), (scale or 0.0, softcap, dropout), return_lse,
                         {"alibi": alibi, "sink": sink, "seed": seed, "base": base, "beta": beta})
        return eager(q, k, v, hold(pattern, "pattern"), (scale or 0.0, softcap, dropout), alibi, sink, seed, return_lse)
    if not isinstance(q, torch.Tensor):
        return on_others(q, k, v, pattern, scale, return_lse, softcap, alibi, sink, dropout, seed, base, beta)
    if base is not None or beta is not None:
        raise UnsupportedError("base is given: torch.compile, torch.func and subclasses of tensors take none; call a "
                               "Plan outside them")
    if q.dtype == torch.float64:
        raise UnsupportedError("q is float64: there is no double precision; convert it first")
    found = operator(q, k, v)(q, k, v, alibi, sink, seed, hold(pattern, "pattern").key, float(scale or 0.0),
                              float(softcap), float(dropout))
    return found if return_lse else found[0]


class MaskPatterns:
    """Patterns of mask tensors, as long as these live and are not written: one import for all layers of a model."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple] = {}

    def get(self, mask: Any, n_q: int, block: int | tuple[int, int]) -> Pattern:
        if mask.is_inference():  # it does not tell when it is written
            return Pattern.from_mask(mask, n_q=n_q, block=block)
        found = self.kept.get(id(mask))
        if found is not None and found[0]() is mask and found[1:3] == (mask._version, (n_q, block)):
            return found[3]
        pattern = Pattern.from_mask(mask, n_q=n_q, block=block)
        number, kept = id(mask), self.kept
        reference = weakref.ref(mask, lambda gone: kept.pop(number, None))
        kept[number] = (reference, mask._version, (n_q, block), pattern)
        return pattern


mask_patterns = MaskPatterns()


@functools.lru_cache(maxsize=64)
def causal_pattern(n_q: int, n_kv: int, block: int) -> Pattern:
    """Causal as torch has it, aligned to the first key: query i sees keys 0 ... i."""
    if n_q == n_kv:
        return Pattern.from_spec("causal", n_q, block=block)
    whole = max(n_q, n_kv)
    return Pattern.from_spec("causal", whole, block=block)[:n_q, :n_kv]


@functools.lru_cache(maxsize=64)
def dense_pattern(n_q: int, n_kv: int, block: int) -> Pattern:
    return Pattern.from_spec("dense", n_q, n_kv, block=block)


def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
                                 pattern: Pattern | None = None, block: int = 64) -> Any:
    """torch.nn.functional.scaled_dot_product_attention with torch's meaning, over a pattern.

    query [batch, heads, n_q, dims] or [heads, n_q, dims]. attn_mask is boolean, True = seen, or of 0 and -inf; other
    values raise UnsupportedError. is_causal is aligned to the first key. Without mask, is_causal and pattern it is
    dense. A mask is imported once, for as long as the tensor lives and is not written; from CUDA that waits for the
    device. Rows that see nothing are 0.
    """
    if sum(x is not None for x in (attn_mask, pattern)) + bool(is_causal) > 1:
        raise ArgumentError("attn_mask, is_causal and pattern: give one of them; patterns are joined by &")
    three = query.dim() == 3
    if three:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    if query.dim() != 4:
        raise ArgumentError(f"query has {query.dim()} dims, expected 3 or 4")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ArgumentError(f"query has {query.shape[1]} heads and key {key.shape[1]}: set enable_gqa to share them")
    n_q, n_kv = query.shape[2], key.shape[2]
    if attn_mask is not None:
        pattern = mask_patterns.get(attn_mask, n_q, block)
    elif pattern is None:
        pattern = (causal_pattern if is_causal else dense_pattern)(n_q, n_kv, block)
    o = attend(*strided(query, key, value), pattern, scale, False, 0.0, None, None, dropout_p, None)
    return o.squeeze(0) if three else o
