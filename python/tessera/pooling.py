"""Pooled blocks, scores of pairs of them, and columns as bytes, bits and indices: what patterns are chosen by."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Sequence

from . import _structs as c
from ._library import ArgumentError, library
from .arrays import array, device_of, empty, is_torch, vector
from .calls import call, kinds, numbers, optional, view_of
from .lists import pair

MODES = {"mean": c.TESS_POOL_MEAN, "min_max": c.TESS_POOL_MIN_MAX, "lse": c.TESS_POOL_LSE}


def pool(x: Any, block: int, mode: str = "mean", *, lengths: Any = None, begins: Any = None, out: Any = None) -> Any:
    """Blocks of rows of x [batch, heads, n, d], pooled dim by dim: [batch, heads, ceil(n / block), d] of x's type, or
    2 d dims, the least and then the largest, where mode is "min_max"; "lse" is the log of the sum of exponentials.

    lengths int32 [batch] are the rows of today. With begins int32 [batch] only blocks with rows from there on are
    written, so that `out` grows with a cache. Blocks without rows today are not written.
    """
    x, lengths, begins = array(x, "x"), optional(lengths, "lengths"), optional(begins, "begins")
    if mode not in MODES:
        raise ArgumentError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    if block < 1:
        raise ArgumentError(f"block is {block}, expected 1 or more")
    torch, where = is_torch(x), device_of(x, "x")
    given = view_of(x, "x", where)
    batch, heads, n, d = given.struct.size
    if out is None:
        shape = (batch, heads, -(-n // block), 2 * d if mode == "min_max" else d)
        out = empty(shape, x.dtype, x.device if torch else None, torch)
    pooling = library.new(c.Pooling, mode=MODES[mode], block=block)
    pooling.lengths = numbers(lengths, "lengths", batch, where)
    pooling.begins = numbers(begins, "begins", batch, where)
    written = view_of(out, "out", where, True)
    call("tess_pool", where, ctypes.byref(pooling), given.address, written.address)
    return out


def pool_score(q: Any, k: Any, *, scale: float = 0.0, bounds: bool = False, causal: bool = False,
               block: int | Sequence[int] = 1, n_q: int = 0, n_kv: int = 0, heads: int | None = None,
               lengths: Any = None, out: Any = None) -> Any:
    """Scores float32 [batch, heads, rows, columns] of pooled queries [batch, heads_q, rows, d] and pooled keys
    [batch, heads_kv, columns, d], which tessera.select takes as they are.

    scale 0 is 1 / sqrt(d). With bounds, k has the least and the largest of each dim. heads (those of q by default) may
    be those of k, or between: scores of neighbouring query heads are added up. n_q and n_kv are queries and keys where
    the last blocks are not whole, lengths int32 [batch] the keys of today.
    """
    q, k, lengths = array(q, "q"), array(k, "k"), optional(lengths, "lengths")
    torch, where = is_torch(q), device_of(q, "q")
    queries, keys = view_of(q, "q", where), view_of(k, "k", where)
    batch, heads_q, rows, _ = queries.struct.size
    if out is None:
        out = empty((batch, heads or heads_q, rows, keys.struct.size[2]), kinds(torch).float32,
                    q.device if torch else None, torch)
    scoring = library.new(c.Scoring, scale=scale, bounds=int(bounds), causal=int(causal), n_q=n_q, n_kv=n_kv)
    scoring.block_q, scoring.block_kv = pair(block)
    scoring.lengths = numbers(lengths, "lengths", batch, where)
    written = view_of(out, "out", where, True)
    call("tess_pool_score", where, ctypes.byref(scoring), queries.address, keys.address, written.address)
    return out


class Columns(NamedTuple):
    """Columns of rows in up to three forms, None where one is not there: bytes uint8 [rows, columns], not 0 = listed;
    bits int64 words [rows, ceil(columns / 64)]; indices int32 [rows, capacity], -1 = none, with counts int32 [rows]."""

    bytes: Any = None
    bits: Any = None
    indices: Any = None
    counts: Any = None


def columns(given: Columns, count: int, to: str | Sequence[str], capacity: int = 0) -> Columns:
    """The columns of `given`, which has one form, written in others: `to` names bytes, bits and indices. Rows have
    `count` columns, and written indices room for `capacity` (0: all), ascending with -1 behind the last."""
    names = (to,) if isinstance(to, str) else tuple(to)
    forms = [name for name in ("bytes", "bits", "indices") if getattr(given, name) is not None]
    if len(forms) != 1:
        raise ArgumentError(f"{', '.join(forms) or 'nothing'} is given: one of bytes, bits and indices is converted")
    unknown = set(names) - {"bytes", "bits", "indices"}
    if unknown or not names:
        raise ArgumentError(f"to is {to!r}, expected names among bytes, bits and indices")
    first = array(getattr(given, forms[0]), forms[0])
    torch, where, rows = is_torch(first), device_of(first, forms[0]), first.shape[0]

    def struct_of(x: Columns, width: int, write: bool) -> tuple[Any, list]:
        made, kept = library.new(c.Columns, rows=rows, columns=count, capacity=width), []
        shapes = {"bytes": ((rows, count), ("uint8", "bool")), "bits": ((rows, -(-count // 64)), ("int64", "uint64")),
                  "indices": ((rows, width), ("int32",)), "counts": ((rows,), ("int32",))}
        for name, (shape, types) in shapes.items():
            if getattr(x, name) is not None:
                kept.append(array(getattr(x, name), name))
                setattr(made, name, vector(kept[-1], name, types, shape, where, write))
        return made, kept

    source, kept = struct_of(given, first.shape[1] if forms[0] == "indices" else 0, False)
    width, place, kind = capacity or count, first.device if torch else None, kinds(torch)
    shapes = {"bytes": ((rows, count), "uint8"), "bits": ((rows, -(-count // 64)), "int64"),
              "indices": ((rows, width), "int32"), "counts": ((rows,), "int32")}
    wanted = names + (("counts",) if "indices" in names else ())
    out = Columns(**{name: empty(shapes[name][0], getattr(kind, shapes[name][1]), place, torch) for name in wanted})
    target, written = struct_of(out, width, True)
    call("tess_columns_convert", where, ctypes.byref(source), ctypes.byref(target))
    return out
