"""Lists that change from run to run, as views of the caller's arrays (tess_device_pattern)."""
from __future__ import annotations

import ctypes
from typing import Any, Sequence

from . import _structs as c
from ._library import ArgumentError, library
from .arrays import HOST, array, device_name, device_of, vector
from .lists import integer, pair

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
CAUSAL = (INT64_MIN, 0)  # a cut: keys up to the query's position
PROMISES = {"distinct": c.TESS_DISTINCT, "ascending": c.TESS_ASCENDING, "padded_last": c.TESS_PADDED_LAST}


class DevicePattern:
    """A view of lists that the caller owns, on the device of the plan. It keeps its arrays alive.

    Every form has n_q queries, at most n_kv keys, and blocks: a number or (block_q, block_kv). lengths, int32 [batch of
    the problem], says how many keys there are today. cut (lo, hi) lists of a block only lo <= j - p_i <= hi; CAUSAL is
    one. promises names some of "distinct", "ascending" and "padded_last".
    """

    def __init__(self, form: int, n_q: int, n_kv: int, block: int | Sequence[int], batch: int, heads: int,
                 capacity: int, arrays: dict[str, tuple[Any, str, tuple[int, ...]]], lengths: Any = None,
                 cut: tuple[int, int] | None = None, promises: Sequence[str] = ()):
        if set(promises) - set(PROMISES):
            raise ArgumentError(f"promises is {promises!r}, expected some of {', '.join(PROMISES)}")
        block_q, block_kv = pair(block)
        self.n_q, self.n_kv, self.block = integer(n_q, "n_q"), integer(n_kv, "n_kv"), (block_q, block_kv)
        self.struct = library.new(c.DevicePattern, form=form, n_q=self.n_q, n_kv=self.n_kv, block_q=block_q,
                                  block_kv=block_kv, batch=batch, heads=heads, capacity=capacity,
                                  promises=sum(PROMISES[x] for x in set(promises)))
        if cut is not None:
            self.struct.cut_lo, self.struct.cut_hi = cut
        self.arrays, self.device = {}, HOST
        given = dict(arrays, lengths=(lengths, "int32", (-1,)))
        for name, (x, kind, shape) in given.items():
            if x is None:
                continue
            x = array(x, name)
            where = device_of(x, name)
            if self.arrays and where != self.device:
                raise ArgumentError(f"{name} is on {device_name(where)}, expected {device_name(self.device)}")
            self.device = where
            kinds = {"uint64": ("uint64", "int64"), "uint8": ("uint8", "bool")}.get(kind, (kind,))
            setattr(self.struct, name, vector(x, name, kinds, shape, where))
            self.arrays[name] = x
        self.address = ctypes.addressof(self.struct)

    @staticmethod
    def sizes(x: Any, name: str, dims: int) -> tuple[int, ...]:
        shape = tuple(array(x, name).shape)
        if len(shape) != dims:
            raise ArgumentError(f"{name} has {len(shape)} dims, expected {dims}")
        return shape

    @classmethod
    def indices(cls, indices: Any, n_kv: int, *, counts: Any = None, n_q: int | None = None,
                block: int | Sequence[int] = 1, **rest: Any) -> "DevicePattern":
        """Block columns int32 [batch, heads, rows, capacity] of each block row, -1 = padding; blocks of 1 are keys of a
        query. counts int32 [batch, heads, rows]: how many of a row's entries are looked at."""
        batch, heads, rows, capacity = cls.sizes(indices, "indices", 4)
        return cls(c.TESS_INDICES, rows * pair(block)[0] if n_q is None else n_q, n_kv, block, batch, heads, capacity,
                   {"indices": (indices, "int32", (batch, heads, rows, capacity)),
                    "counts": (counts, "int32", (batch, heads, rows))}, **rest)

    @classmethod
    def rows(cls, row_ptr: Any, indices: Any, n_q: int, n_kv: int, *, block: int | Sequence[int],
             **rest: Any) -> "DevicePattern":
        """row_ptr int64 [batch, heads, rows + 1] into block columns int32 [capacity]."""
        batch, heads, _ = shape = cls.sizes(row_ptr, "row_ptr", 3)
        (capacity,) = cls.sizes(indices, "indices", 1)
        return cls(c.TESS_BLOCK_ROWS, n_q, n_kv, block, batch, heads, capacity,
                   {"row_ptr": (row_ptr, "int64", shape), "indices": (indices, "int32", (capacity,))}, **rest)

    @classmethod
    def bits(cls, bits: Any, n_q: int, n_kv: int, *, block: int | Sequence[int], capacity: int = 0,
             **rest: Any) -> "DevicePattern":
        """A bit for each block, words uint64 (or int64) [batch, heads, rows, ceil(columns / 64)], lowest first; at most
        `capacity` blocks over all lists, 0 = all."""
        shape = cls.sizes(bits, "bits", 4)
        return cls(c.TESS_BLOCK_BITS, n_q, n_kv, block, *shape[:2], capacity, {"bits": (bits, "uint64", shape)}, **rest)

    @classmethod
    def mask(cls, mask: Any, *, block: int | Sequence[int], capacity: int = 0, **rest: Any) -> "DevicePattern":
        """A mask, True = listed, bool or uint8 [batch, heads, n_q, n_kv], element for element; `capacity` is the most
        blocks of a block row with a listed element, 0 = all."""
        shape = cls.sizes(mask, "mask", 4)
        return cls(c.TESS_MASK, *shape[2:], block, *shape[:2], capacity, {"mask": (mask, "uint8", shape)}, **rest)

    @classmethod
    def ranges(cls, ranges: Any, n_q: int, n_kv: int, *, block_q: int, counts: Any = None,
               **rest: Any) -> "DevicePattern":
        """Ranges of keys int32 [batch, heads, rows, up to 4, 2], begin and end; numbers below 0 count back from today's
        length, -1 being the length."""
        batch, heads, rows, capacity, _ = shape = cls.sizes(ranges, "ranges", 5)
        return cls(c.TESS_RANGES, n_q, n_kv, (block_q, 1), batch, heads, capacity,
                   {"indices": (ranges, "int32", shape), "counts": (counts, "int32", (batch, heads, rows))}, **rest)
