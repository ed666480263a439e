"""Columns that rows of scores choose, as lists for a DevicePattern (tess_select)."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Sequence

from . import _structs as c
from ._library import ArgumentError, library
from .arrays import array, device_of, empty, is_torch, vector
from .calls import call, kinds, numbers, optional, view_of
from .lists import pair


class Selected(NamedTuple):
    """Columns of each row: indices int32 [batch, heads, rows, capacity], ascending, -1 behind the last; counts int32
    [batch, heads, rows]; bits int64 words [batch, heads, rows, ceil(n / 64)], or None; overflows int64 [batch, heads,
    rows], columns that did not fit."""

    indices: Any
    counts: Any
    bits: Any
    overflows: Any


def select(scores: Any, *, k: Any = None, threshold: float | None = None, p: float | None = None, capacity: int = 0,
           keep_first: int = 0, keep_last: int = 0, keep: Any = None, block: int | Sequence[int] = 1,
           causal: bool = False, n_q: int = 0, n_kv: int = 0, lengths: Any = None, bits: bool = False,
           out: Selected | None = None) -> Selected:
    """The columns of each row of scores [batch, heads, rows, n] that attention is to read: the k highest, those of at
    least a threshold, or the fewest that hold a share p of the row's softmax.

    k is a number, or int32 [batch, heads, rows]. A row keeps the first keep_first and the last keep_last of its columns
    whatever their scores, and those with a bit in keep: int64 words [1, rows or batch * heads * rows, ceil(n / 64)],
    which columns() makes of lists. A column is block_kv keys and a row block_q queries, for lengths int32 [batch],
    causal, and n_q and n_kv where the last ones have fewer. On CUDA it runs on the current stream; out is written where
    it is given.
    """
    scores = array(scores, "scores")
    modes = [name for name, x in (("k", k), ("threshold", threshold), ("p", p)) if x is not None]
    if len(modes) != 1:
        raise ArgumentError(f"{', '.join(modes) or 'nothing'} is given: choose by one of k, threshold and p")
    torch, where = is_torch(scores), device_of(scores, "scores")
    view = view_of(scores, "scores", where)
    batch, heads, rows, n = view.struct.size
    selection = library.new(c.Selection, keep_first=keep_first, keep_last=keep_last, causal=int(causal), n_q=n_q,
                            n_kv=n_kv)
    selection.block_q, selection.block_kv = pair(block)
    many = k is not None and hasattr(k, "shape")
    if many:
        k = array(k, "k")
        selection.row_k = vector(k, "k", ("int32",), (batch, heads, rows), where)
    elif k is not None:
        selection.k = k
    elif threshold is not None:
        selection.mode, selection.threshold = c.TESS_SELECT_THRESHOLD, threshold
    else:
        selection.mode, selection.p = c.TESS_SELECT_TOP_P, p
    lengths = optional(lengths, "lengths")
    selection.lengths = numbers(lengths, "lengths", batch, where)
    keep = optional(keep, "keep")
    if keep is not None:
        selection.keep = vector(keep, "keep", ("int64", "uint64"), (-1, -(-n // 64)), where)
        selection.keep_rows = keep.shape[0]
    width = capacity or (n if many or k is None else min(k, n))
    shapes = {"indices": ((batch, heads, rows, width), "int32"), "counts": ((batch, heads, rows), "int32"),
              "bits": ((batch, heads, rows, -(-n // 64)), "int64"), "overflows": ((batch, heads, rows), "int64")}
    if out is None:
        place = scores.device if torch else None
        out = Selected(*(empty(shape, getattr(kinds(torch), kind), place, torch) if name != "bits" or bits else None
                         for name, (shape, kind) in shapes.items()))
    selected = library.new(c.Selected, capacity=width)
    for name, (shape, kind) in shapes.items():
        x = getattr(out, name)
        if x is not None:
            types = (kind, "uint64") if name == "bits" else (kind,)
            setattr(selected, name, vector(x, name, types, shape, where, True))
    call("tess_select", where, ctypes.byref(selection), view.address, ctypes.byref(selected))
    return out
