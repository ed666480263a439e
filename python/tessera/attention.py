"""Attention in one call, over plans that are kept."""
from __future__ import annotations

from typing import Any

import numpy

from ._library import ArgumentError
from .arrays import NumpyView, array, data_of, hold_types, is_torch
from .cache import Entry, plan_cache
from .pattern import Pattern, hold
from .plan import BackwardPlan, Plan


def entry_for(kind: type, pattern: Pattern, q: Any, k: Any, v: Any, scale: float | None, softcap: float, alibi: Any,
              sink: Any, dropout: float, seed: Any, **fields: Any) -> Entry:
    """The plan that is kept for these arrays of numpy, made where there is none."""
    if dropout and seed is None:
        raise ArgumentError("seed is None, and dropout is not 0: give a word, numpy.array([number], numpy.uint64)")
    aligned = (data_of(q) | data_of(k) | data_of(v)) & 15
    key = (kind, scale, softcap, dropout, aligned, alibi is None, sink is None, *fields.values(),
           NumpyView.look(q, k, v))
    entry = plan_cache.find(hold(pattern, "pattern").number, key)
    if entry is None:
        hold_types(q, k, v)
        entry = plan_cache.keep(pattern.number, key, kind(
            pattern, q, k, v, scale=scale, softcap=softcap, alibi=int(alibi is not None), sink=int(sink is not None),
            dropout=dropout, **fields))
    return entry


def on_others(q: Any, k: Any, v: Any, pattern: Pattern, *options: Any) -> Any:
    """attention on tensors of torch, or on arrays that DLPack makes of q, k and v."""
    global attend
    if is_torch(q):
        from .torch import attend as attend
        return attend(q, k, v, pattern, *options)
    names = ("scale", "return_lse", "softcap", "alibi", "sink", "dropout", "seed", "base", "beta")
    return attention(array(q, "q"), array(k, "k"), array(v, "v"), pattern, **dict(zip(names, options)))


attend: Any = on_others  # of tessera.torch, once a tensor of torch comes


def attention(q: Any, k: Any, v: Any, pattern: Pattern, *, scale: float | None = None, return_lse: bool = False,
              softcap: float = 0.0, alibi: Any = None, sink: Any = None, dropout: float = 0.0, seed: Any = None,
              base: Any = None, beta: float | None = None) -> Any:
    """Sparse attention: o [batch, heads_q, n_q, d_v]; with return_lse (o, lse), lse [batch, heads_q, n_q], f32, natural
    logarithm.

    q [batch, heads_q, n_q, d_qk], k [batch, heads_kv, n_kv, d_qk], v [batch, heads_kv, n_kv, d_v]: arrays of numpy, of
    torch on the CPU or CUDA, or of what speaks DLPack; float32, float16 or bfloat16. scale None means 1/sqrt(d_qk). A
    query that the pattern gives no key has o = 0 and lse = -inf. alibi and sink are f32 [heads_q]; seed, of dropout, is
    one 64-bit word, drawn by torch where it is None. With torch, gradients flow to q, k, v, alibi and sink. base is
    what attention starts from: (o, lse) over other keys, which is merged, or o alone, to which beta (1) times attention
    is added; it has no gradient.

    The plan is kept in tessera.plan_cache, by pattern, sizes, strides, types, device and modifiers. A call that finds
    none makes one; a Plan of your own saves the look-up.
    """
    if not isinstance(q, numpy.ndarray):
        return attend(q, k, v, pattern, scale, return_lse, softcap, alibi, sink, dropout, seed, base, beta)
    if not isinstance(k, numpy.ndarray) or not isinstance(v, numpy.ndarray):
        k, v = array(k, "k"), array(v, "v")
        if is_torch(k) or is_torch(v):
            raise ArgumentError("q is a numpy.ndarray, and k or v a torch.Tensor: give arrays of one kind")
    entry = entry_for(Plan, pattern, q, k, v, scale, softcap, alibi, sink, dropout, seed)
    arrays = None
    if alibi is not None or sink is not None or dropout or base is not None or beta is not None:
        arrays = {"alibi": alibi, "sink": sink, "seed": seed if dropout else None, "base": base, "beta": beta}
    return entry.plan.once(entry.layout, q, k, v, None, return_lse, None, arrays)


def attention_backward(q: Any, k: Any, v: Any, pattern: Pattern, o: Any, lse: Any, d_o: Any, *, d_lse: Any = None,
                       scale: float | None = None, gradients: tuple[str, ...] = ("q", "k", "v"), softcap: float = 0.0,
                       alibi: Any = None, sink: Any = None, dropout: float = 0.0, seed: Any = None) -> tuple:
    """Gradients of attention, as many as are named, each like its tensor; for numpy, where there is no autograd.

    o and lse are what attention answered for the same arguments, d_o and d_lse the gradients of both. gradients names
    some of "q", "k", "v", "alibi" and "sink".
    """
    q, k, v = (array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
    fields = {"gradients": tuple(gradients)}
    if is_torch(q):
        plan = BackwardPlan(pattern, q, k, v, scale=scale, softcap=softcap, alibi=int(alibi is not None),
                            sink=int(sink is not None), dropout=dropout, **fields)
    else:
        plan = entry_for(BackwardPlan, pattern, q, k, v, scale, softcap, alibi, sink, dropout, seed, **fields).plan
    found = plan(q, k, v, o, lse, d_o, d_lse=d_lse, alibi=alibi, sink=sink, seed=seed if dropout else None)
    return tuple(found[name] for name in fields["gradients"])
