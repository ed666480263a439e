"""Attention in one call, over plans that are kept."""
from __future__ import annotations

from typing import Any

import numpy

from ._library import ArgumentError
from .arrays import array, data_of, hold_types, is_torch
from .cache import plan_cache
from .pattern import Pattern, hold
from .plan import BackwardPlan, Plan


attend: Any = None  # of tessera.torch, once a tensor of torch comes


def numpy_plan(kind: type, pattern: Pattern, q: Any, k: Any, v: Any, scale: float | None, softcap: float, alibi: Any,
               sink: Any, dropout: float, seed: Any, **fields: Any) -> Any:
    """The plan that is kept for these arrays, made where there is none."""
    if k.dtype != q.dtype or v.dtype != q.dtype:
        hold_types(q, k, v)
    if dropout and seed is None:
        raise ArgumentError("seed is None, and dropout is not 0: give a word, numpy.array([number], numpy.uint64)")
    aligned = (data_of(q) | data_of(k) | data_of(v)) & 15
    key = (kind, hold(pattern, "pattern").number, q.shape, k.shape, v.shape, q.strides, k.strides, v.strides, q.dtype,
           aligned, scale, softcap, alibi is None, sink is None, dropout, *fields.values())
    plan = plan_cache.find(key)
    if plan is None:
        plan = plan_cache.keep(key, kind(pattern, q, k, v, scale=scale, softcap=softcap, alibi=int(alibi is not None),
                                         sink=int(sink is not None), dropout=dropout, **fields))
    return plan


def attention(q: Any, k: Any, v: Any, pattern: Pattern, *, scale: float | None = None, return_lse: bool = False,
              softcap: float = 0.0, alibi: Any = None, sink: Any = None, dropout: float = 0.0, seed: Any = None) -> Any:
    """Sparse attention: o [batch, heads_q, n_q, d_v]; with return_lse (o, lse), lse [batch, heads_q, n_q], f32, natural
    logarithm.

    q [batch, heads_q, n_q, d_qk], k [batch, heads_kv, n_kv, d_qk], v [batch, heads_kv, n_kv, d_v]: arrays of numpy, of
    torch on the CPU or CUDA, or of what speaks DLPack; float32, float16 or bfloat16. scale None means 1/sqrt(d_qk). A
    query that the pattern gives no key has o = 0 and lse = -inf. alibi and sink are f32 [heads_q]; seed, of dropout, is
    one 64-bit word, drawn by torch where it is None. With torch, gradients flow to q, k, v, alibi and sink.

    The plan is kept in tessera.plan_cache, by pattern, sizes, strides, types, device and modifiers. A call that finds
    none makes one; a Plan of your own saves the look-up.
    """
    if not isinstance(q, numpy.ndarray):
        return on_torch(q, k, v, pattern, scale, return_lse, softcap, alibi, sink, dropout, seed)
    if not isinstance(k, numpy.ndarray) or not isinstance(v, numpy.ndarray):
        k, v = array(k, "k"), array(v, "v")
        if is_torch(k) or is_torch(v):
            raise ArgumentError("q is a numpy.ndarray, and k or v a torch.Tensor: give arrays of one kind")
    plan = numpy_plan(Plan, pattern, q, k, v, scale, softcap, alibi, sink, dropout, seed)
    if alibi is None and sink is None and not dropout:
        return plan(q, k, v, return_lse=return_lse)
    return plan(q, k, v, return_lse=return_lse, alibi=alibi, sink=sink, seed=seed if dropout else None)


def on_torch(q: Any, k: Any, v: Any, pattern: Pattern, *options: Any) -> Any:
    """attention on torch tensors, or on arrays that DLPack makes of q, k and v."""
    global attend
    if not is_torch(q):
        q, k, v = array(q, "q"), array(k, "k"), array(v, "v")
    if isinstance(q, numpy.ndarray):
        names = ("scale", "return_lse", "softcap", "alibi", "sink", "dropout", "seed")
        return attention(q, k, v, pattern, **dict(zip(names, options)))
    if attend is None:
        from .torch import attend as attend
    return attend(q, k, v, pattern, *options)


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
        plan = numpy_plan(BackwardPlan, pattern, q, k, v, scale, softcap, alibi, sink, dropout, seed, **fields)
    found = plan(q, k, v, o, lse, d_o, d_lse=d_lse, alibi=alibi, sink=sink, seed=seed if dropout else None)
    return tuple(found[name] for name in fields["gradients"])
