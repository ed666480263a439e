"""Patterns: which keys each query sees."""
from __future__ import annotations

import ctypes
import itertools
import weakref
from typing import Any, Callable, Sequence

import numpy

from . import _structs as c
from ._library import ArgumentError, library
from .arrays import is_torch
from .lists import Borrowed, Lists, host, integer, mask_bytes, pack, pair, unpack

patterns: "weakref.WeakValueDictionary[int, Pattern]" = weakref.WeakValueDictionary()  # by number
numbers = itertools.count(1)


class Pattern:
    """Keys that each query sees, as block lists with exact partial tiles. Immutable; threads may share one.

    Queries are aligned to the last key: query i stands at key position i + n_kv - n_q. `a | b` lists what either
    lists, `a & b` what both do, `a.T` exchanges queries and keys, and `a[q0:q1, k0:k1]` is a slice.
    """

    def __init__(self, handle: int, spec: tuple | None = None):
        """Takes over a handle that the library made: use a from_... method."""
        self.handle = handle
        self.spec = spec
        info = library.new(c.PatternInfo)
        library.call("tess_pattern_describe", handle, ctypes.byref(info))
        self.n_q, self.n_kv = info.n_q, info.n_kv
        self.block = (info.block_q, info.block_kv)
        self.batch, self.heads = info.batch, info.heads
        self.number = next(numbers)
        # Name of the pattern in a torch operator: a spec is good in every process, a number in this one.
        self.key = "{},{},{},{};{}".format(*self.block, *spec[1:3], spec[0]) if spec else f"#{self.number}"
        patterns[self.number] = self

    def __del__(self, free: Callable = library.c.tess_pattern_free) -> None:
        if getattr(self, "handle", None):
            free(self.handle)
            self.handle = None

    # ---- constructors ----

    @classmethod
    def from_spec(cls, spec: str, n_q: int, n_kv: int | None = None, *, block: int | Sequence[int] = 64,
                  batch: int = 1, heads: int = 1, threads: int = 0) -> "Pattern":
        """A pattern from words, such as "window(128,128)+global(16)": terms of tess_pattern_from_spec joined by + and
        &. Random terms draw anew for each of batch * heads lists."""
        if not isinstance(spec, str):
            raise ArgumentError(f"spec is {type(spec).__name__}, expected str")
        shape = shape_of(n_q, n_q if n_kv is None else n_kv, block, batch, heads, threads)
        return cls(library.make("tess_pattern_from_spec", spec.encode(), ctypes.byref(shape)), (spec, batch, heads))

    @classmethod
    def from_mask(cls, mask: Any, *, n_q: int | None = None, block: int | Sequence[int] = 64,
                  threads: int = 0) -> "Pattern":
        """A pattern from a boolean mask, True = listed, or one of 0 and -inf: [n_q, n_kv] or [batch, heads, n_q, n_kv].

        Batch and heads that are expanded (stride 0) become one list. n_q repeats a mask of one row for that many
        queries. Boolean masks that are contiguous are read in place.
        """
        data = mask_bytes(mask)
        batch, heads, rows, n_kv = data.shape
        if n_q is None or n_q == rows:
            shape = shape_of(rows, n_kv, block, batch, heads, threads)
            return cls(library.make("tess_pattern_from_mask", data.ctypes.data, ctypes.byref(shape)))
        if rows != 1:
            raise ArgumentError(f"mask has {rows} rows, expected {n_q} or 1")
        # One block row is made, and its lists stand for all.
        block_q, block_kv = pair(block)
        one = cls.from_mask(numpy.repeat(data, block_q, axis=2), block=block, threads=threads)
        lists, repeat = one.lists(), -(-n_q // block_q)
        where = numpy.concatenate([numpy.tile(numpy.arange(a, b), repeat) for a, b in lists.row_ptr])
        each = numpy.repeat(numpy.diff(lists.row_ptr, axis=1), repeat, axis=1)
        return assemble(numpy.repeat(numpy.arange(each.size), each.reshape(-1)), lists.col_idx[where], n_q, n_kv,
                        (block_q, block_kv), batch, heads, one.masks(), where)

    @classmethod
    def from_blocks(cls, blocks: Any, n_q: int, n_kv: int | None = None, *, block: int | Sequence[int] = 64,
                    threads: int = 0) -> "Pattern":
        """A pattern of whole blocks, bool [rows, columns] or [batch, heads, rows, columns], True = listed."""
        data = mask_bytes(blocks)
        n_kv = n_q if n_kv is None else n_kv
        hold_blocks("blocks", data.shape[2:], n_q, n_kv, block)
        shape = shape_of(n_q, n_kv, block, *data.shape[:2], threads)
        return cls(library.make("tess_pattern_from_blocks", data.ctypes.data, ctypes.byref(shape)))

    @classmethod
    def from_bits(cls, bits: Any, n_q: int, n_kv: int | None = None, *, block: int | Sequence[int] = 64,
                  threads: int = 0) -> "Pattern":
        """A pattern of whole blocks from words, uint64 [batch, heads, rows, ceil(columns / 64)], lowest bit first."""
        data = host(bits, "bits", "uint64")
        n_kv = n_q if n_kv is None else n_kv
        rows, columns = (-(-n // size) for n, size in zip((n_q, n_kv), pair(block)))
        if data.ndim != 4 or data.shape[2:] != (rows, -(-columns // 64)):
            raise ArgumentError(f"bits has shape {data.shape}, expected [batch, heads, {rows}, {-(-columns // 64)}]")
        shape = shape_of(n_q, n_kv, block, *data.shape[:2], threads)
        return cls(library.make("tess_pattern_from_bits", data.ctypes.data, ctypes.byref(shape)))

    @classmethod
    def from_counts(cls, indices: Any, counts: Any = None, *, n_q: int, n_kv: int, block: int | Sequence[int] = 64,
                    threads: int = 0) -> "Pattern":
        """A pattern of whole blocks from padded lists: block columns int32 [batch, heads, rows, capacity] in any order,
        -1 = padding, of which counts [batch, heads, rows] are looked at."""
        data = host(indices, "indices", "int32")
        if data.ndim != 4:
            raise ArgumentError(f"indices has {data.ndim} dims, expected [batch, heads, rows, capacity]")
        hold_blocks("indices", (data.shape[2], None), n_q, n_kv, block)
        number = None
        if counts is not None:
            number = host(counts, "counts", "int32")
            if number.shape != data.shape[:3]:
                raise ArgumentError(f"counts has shape {number.shape}, expected {data.shape[:3]}")
        shape = shape_of(n_q, n_kv, block, *data.shape[:2], threads)
        return cls(library.make("tess_pattern_from_counts", data.ctypes.data,
                                None if number is None else number.ctypes.data, data.shape[3], ctypes.byref(shape)))

    @classmethod
    def from_topk(cls, indices: Any, n_kv: int, *, threads: int = 0) -> "Pattern":
        """A pattern from the keys of each query, int32 or int64 [batch, heads, n_q, k] in any order, -1 = padding."""
        data = host(indices, "indices", "int32")
        if data.ndim != 4:
            raise ArgumentError(f"indices has {data.ndim} dims, expected [batch, heads, n_q, k]")
        batch, heads, n_q, k = data.shape
        shape = shape_of(n_q, n_kv, 1, batch, heads, threads)
        return cls(library.make("tess_pattern_from_topk", data.ctypes.data, k, ctypes.byref(shape)))

    @classmethod
    def from_lists(cls, row_ptr: Any, col_idx: Any, *, n_q: int, n_kv: int, block: int | Sequence[int], batch: int = 1,
                   heads: int = 1, bands: tuple[Any, Any] | None = None, bitmasks: tuple[Any, Any] | None = None,
                   threads: int = 0) -> "Pattern":
        """A pattern from block lists, which are checked whole and copied; see Lists for the arrays. bands is
        (band_entry, band), bitmasks (bitmask_entry, bits). What breaks a rule raises ListError with its place."""
        block_q, block_kv = pair(block)
        given = {"row_ptr": host(row_ptr, "row_ptr", "int64"), "col_idx": host(col_idx, "col_idx", "int32")}
        if bands is not None:
            given["band_entry"], given["band"] = host(bands[0], "band_entry", "int64"), host(bands[1], "band", "int32")
        if bitmasks is not None:
            given["bitmask_entry"] = host(bitmasks[0], "bitmask_entry", "int64")
            given["bits"] = host(bitmasks[1], "bits", "uint64")
        sizes = {name: x.size for name, x in given.items()}
        rows = max(-(-n_q // max(block_q, 1)), 0)
        if sizes["row_ptr"] != batch * heads * (rows + 1):
            raise ArgumentError(f"row_ptr has {sizes['row_ptr']} numbers, expected {batch * heads * (rows + 1)}")
        if sizes.get("band", 0) != 2 * sizes.get("band_entry", 0):
            raise ArgumentError(f"band has {sizes['band']} numbers, expected {2 * sizes['band_entry']}")
        words = -(-sizes.get("bitmask_entry", 0) * block_q * block_kv // 64)
        if sizes.get("bits", 0) < words:
            raise ArgumentError(f"bits has {sizes['bits']} words, expected {words}")
        lists = library.new(c.Lists, n_q=n_q, n_kv=n_kv, block_q=block_q, block_kv=block_kv, batch=batch, heads=heads,
                            n_tiles=sizes["col_idx"], n_bands=sizes.get("band_entry", 0),
                            n_bitmasks=sizes.get("bitmask_entry", 0), threads=threads,
                            **{name: x.ctypes.data for name, x in given.items()})
        return cls(library.make("tess_pattern_from_lists", ctypes.byref(lists)))

    @classmethod
    def from_bsr(cls, matrix: Any, *, n_q: int | None = None, n_kv: int | None = None) -> "Pattern":
        """A pattern from where a sparse matrix stores values: scipy's BSR or CSR, torch.sparse_bsr or sparse_csr, with
        batch dims [heads] or [batch, heads]. Values are not looked at: stored zeros are listed. Columns may
        stand in any order. CSR has blocks of 1 x 1. n_q and n_kv cut the last blocks short."""
        if is_torch(matrix):
            row_ptr, col = (host(x, name, "int64") for x, name in ((matrix.crow_indices(), "crow_indices"),
                                                                   (matrix.col_indices(), "col_indices")))
            lead = (1,) * (2 - (row_ptr.ndim - 1)) + row_ptr.shape[:-1]
            block = tuple(matrix.values().shape[-2:]) if "bsr" in str(matrix.layout) else (1, 1)
            row_ptr = row_ptr.reshape(-1, row_ptr.shape[-1])
        elif getattr(matrix, "format", None) in ("bsr", "csr"):
            row_ptr, col = host(matrix.indptr, "indptr", "int64")[None], host(matrix.indices, "indices", "int64")
            lead, block = (1, 1), tuple(matrix.blocksize) if matrix.format == "bsr" else (1, 1)
        else:
            raise ArgumentError(f"matrix is {type(matrix).__name__}, expected BSR or CSR of scipy or torch")
        if len(lead) != 2:
            raise ArgumentError("matrix has more than two batch dims, expected [batch, heads, n_q, n_kv]")
        n_q, n_kv = (int(n if given is None else given) for n, given in zip(matrix.shape[-2:], (n_q, n_kv)))
        counts = numpy.diff(row_ptr, axis=1)
        if counts.min(initial=0) < 0 or row_ptr.shape[1] != -(-n_q // block[0]) + 1:
            raise ArgumentError(f"matrix has {row_ptr.shape[1] - 1} block rows, or falling ones, for {n_q} queries")
        tiles = numpy.full(col.size, -1)
        return assemble(numpy.repeat(numpy.arange(counts.size), counts.reshape(-1)), col.reshape(-1), n_q, n_kv,
                        tuple(map(int, block)), *lead, (tiles, numpy.zeros((0, *block), bool)))

    from_csr = from_bsr

    @classmethod
    def from_block_mask(cls, block_mask: Any, *, chunk: int = 1 << 24) -> "Pattern":
        """A pattern from a BlockMask of FlexAttention: full blocks as they are, partial ones by its mask_mod, evaluated
        on them alone, `chunk` elements at a time. A batch or head of 1 is evaluated at 0."""
        from .masks import from_block_mask
        return from_block_mask(block_mask, chunk)

    @classmethod
    def from_mask_mod(cls, mask_mod: Callable, n_q: int, n_kv: int | None = None, *, block: int | Sequence[int] = 128,
                      batch: int = 1, heads: int = 1, device: Any = None, chunk: int = 1 << 24) -> "Pattern":
        """A pattern from a mask_mod(batch, head, query, key) of FlexAttention, evaluated `chunk` elements at a time and
        packed to bits: no dense mask is made. With torch imported it is called under vmap, on tensors of `device`; else
        on numpy arrays that broadcast."""
        from .masks import from_mask_mod
        return from_mask_mod(mask_mod, n_q, n_q if n_kv is None else n_kv, pair(block), batch, heads, device, chunk)

    @classmethod
    def concat(cls, parts: Sequence["Pattern"]) -> "Pattern":
        """Documents packed in one sequence: each part's queries see that part's keys alone."""
        parts = [hold(x, "parts") for x in parts]
        handles = (ctypes.c_void_p * max(len(parts), 1))(*(x.handle for x in parts))
        return cls(library.make("tess_pattern_concat", handles, len(parts)))

    @classmethod
    def stack(cls, parts: Sequence["Pattern"], axis: str = "batch") -> "Pattern":
        """Patterns of equal sizes, blocks and heads as the batches of one; or axis="heads", as its heads."""
        parts = [hold(x, "parts") for x in parts]
        if axis not in ("batch", "heads") or not parts:
            raise ArgumentError(f"axis is {axis!r} of {len(parts)} parts, expected 'batch' or 'heads' of at least one")
        first = parts[0]
        for i, part in enumerate(parts):
            for name in ("n_q", "n_kv", "block", "heads" if axis == "batch" else "batch"):
                if getattr(part, name) != getattr(first, name):
                    raise ArgumentError(f"parts[{i}] has {name} {getattr(part, name)}, expected {getattr(first, name)}")
        batch, heads = (sum(x.batch for x in parts), first.heads) if axis == "batch" else (
            first.batch, sum(x.heads for x in parts))
        rows = -(-first.n_q // first.block[0])
        places, columns, kinds, tiles, base = [], [], [], [], 0
        for part in parts:
            lists, before = part.lists(), sum(x.heads for x in parts[:parts.index(part)])
            number = numpy.arange(part.batch * part.heads)
            number = number + base if axis == "batch" else number // part.heads * heads + before + number % part.heads
            base += part.batch * part.heads
            each = numpy.diff(lists.row_ptr, axis=1)
            row = number[:, None] * rows + numpy.arange(rows)
            places.append(numpy.repeat(row.reshape(-1), each.reshape(-1)))
            columns.append(lists.col_idx)
            kind, masks = part.masks()
            kinds.append(numpy.where(kind < 0, -1, kind + sum(map(len, tiles))))
            tiles.append(masks)
        return assemble(numpy.concatenate(places), numpy.concatenate(columns), first.n_q, first.n_kv, first.block,
                        batch, heads, (numpy.concatenate(kinds), numpy.concatenate(tiles)))

    # ---- operators ----

    def __or__(self, other: "Pattern") -> "Pattern":
        return self.joined("tess_pattern_union", other)

    def __and__(self, other: "Pattern") -> "Pattern":
        return self.joined("tess_pattern_intersection", other)

    def joined(self, name: str, other: "Pattern") -> "Pattern":
        return type(self)(library.make(name, self.handle, hold(other, "other").handle))

    @property
    def T(self) -> "Pattern":
        """Queries and keys exchanged."""
        return type(self)(library.make("tess_pattern_transpose", self.handle))

    def __getitem__(self, where: tuple[slice, slice]) -> "Pattern":
        """p[q0:q1, k0:k1]: what those queries list of those keys, both then numbered from 0 on."""
        if not isinstance(where, tuple) or len(where) != 2 or not all(isinstance(x, slice) for x in where) or any(
                x.step not in (None, 1) for x in where):
            raise ArgumentError(f"a pattern takes [rows, keys], two slices of step 1, not [{where!r}]")
        ends = [end for x, n in zip(where, (self.n_q, self.n_kv)) for end in x.indices(n)[:2]]
        return type(self)(library.make("tess_pattern_select", self.handle, *ends))

    # ---- what it lists ----

    def lists(self) -> Lists:
        """Its arrays, borrowed."""
        lists = library.new(c.Lists)
        library.call("tess_pattern_lists", self.handle, ctypes.byref(lists))
        rows = -(-self.n_q // self.block[0])
        words = -(-lists.n_bitmasks * self.block[0] * self.block[1] // 64)

        def borrowed(address: int | None, shape: tuple[int, ...], kind: str) -> numpy.ndarray:
            if not address or not all(shape):
                return numpy.zeros(shape, kind)
            return numpy.asarray(Borrowed(self, address, shape, kind))

        return Lists(borrowed(lists.row_ptr, (self.batch * self.heads, rows + 1), "<i8"),
                     borrowed(lists.col_idx, (lists.n_tiles,), "<i4"),
                     borrowed(lists.band_entry, (lists.n_bands,), "<i8"),
                     borrowed(lists.band, (lists.n_bands, 2), "<i4"),
                     borrowed(lists.bitmask_entry, (lists.n_bitmasks,), "<i8"), borrowed(lists.bits, (words,), "<u8"))

    def masks(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """The elements of partial tiles: int64 [tiles], the number of each tile's mask or -1 for full ones, and bool
        [masks, block_q, block_kv]."""
        lists, (block_q, block_kv) = self.lists(), self.block
        apart = numpy.arange(block_kv)[None, :] - numpy.arange(block_q)[:, None]
        low, high = lists.band[:, 0, None, None], lists.band[:, 1, None, None]
        bits = unpack(lists.bits, len(lists.bitmask_entry), block_q * block_kv).reshape(-1, block_q, block_kv)
        number = numpy.full(len(lists.col_idx), -1, numpy.int64)
        entries = numpy.concatenate([lists.band_entry, lists.bitmask_entry])
        number[entries] = numpy.arange(len(entries))
        return number, numpy.concatenate([(low <= apart) & (apart <= high), bits])

    def of_list(self, batch: int, head: int) -> tuple[int, int, int]:
        """Number of a list, and its first and last tile; a pattern of one list for all takes any index."""
        if batch < 0 or head < 0 or batch >= self.batch > 1 or head >= self.heads > 1:
            raise ArgumentError(f"batch {batch}, head {head} is no list of {self.batch} batches and {self.heads} heads")
        number = batch % self.batch * self.heads + head % self.heads
        row_ptr = self.lists().row_ptr[number]
        return number, int(row_ptr[0]), int(row_ptr[-1])

    def keys(self, query: int, batch: int = 0, head: int = 0) -> numpy.ndarray:
        """The keys that a query sees, int64, ascending."""
        count = ctypes.c_int64()
        place = (self.handle, batch, head, query)
        library.call("tess_pattern_row", *place, None, 0, ctypes.byref(count))
        keys = numpy.empty(count.value, numpy.int64)
        library.call("tess_pattern_row", *place, keys.ctypes.data, len(keys), ctypes.byref(count))
        return keys

    def to_mask(self, batch: int = 0, head: int = 0) -> numpy.ndarray:
        """bool [n_q, n_kv] of one list. For small patterns: it is dense."""
        number, first, end = self.of_list(batch, head)
        lists, (block_q, block_kv) = self.lists(), self.block
        kind, masks = self.masks()
        rows, columns = -(-self.n_q // block_q), -(-self.n_kv // block_kv)
        row = numpy.repeat(numpy.arange(rows), numpy.diff(lists.row_ptr[number]))
        dense = numpy.zeros((rows, columns, block_q, block_kv), bool)
        dense[row, lists.col_idx[first:end]] = True
        partial = kind[first:end] >= 0
        dense[row[partial], lists.col_idx[first:end][partial]] = masks[kind[first:end][partial]]
        return dense.transpose(0, 2, 1, 3).reshape(rows * block_q, -1)[:self.n_q, :self.n_kv]

    def to_bsr(self, batch: int = 0, head: int = 0) -> Any:
        """One list as scipy.sparse.bsr_array of bool, partial tiles exact."""
        import scipy.sparse

        if self.n_q % self.block[0] or self.n_kv % self.block[1]:
            raise ArgumentError(f"a BSR matrix has whole blocks: {self.n_q} x {self.n_kv} is none of {self.block}")
        number, first, end = self.of_list(batch, head)
        lists, (kind, masks) = self.lists(), self.masks()
        data = numpy.ones((end - first, *self.block), bool)
        partial = kind[first:end] >= 0
        data[partial] = masks[kind[first:end][partial]]
        return scipy.sparse.bsr_array((data, lists.col_idx[first:end].copy(), lists.row_ptr[number] - first),
                                      shape=(self.n_q, self.n_kv))

    def to_block_mask(self, device: Any = "cpu") -> Any:
        """A BlockMask of FlexAttention, on a device of torch: its mask_mod looks partial tiles up in bits."""
        from .masks import to_block_mask
        return to_block_mask(self, device)

    def describe(self) -> dict[str, int]:
        """Its sizes and parts (tess_pattern_info): tiles by kind, listed pairs, empty rows, bytes."""
        info = library.new(c.PatternInfo)
        library.call("tess_pattern_describe", self.handle, ctypes.byref(info))
        return {name: getattr(info, name) for name, _ in info._fields_[1:]}

    def draw(self, file: Any, batch: int = 0, head: int = 0) -> None:
        """Draws one list, queries down and keys across, to a file named *.svg or *.png."""
        from .picture import draw
        draw(self, file, batch, head)

    def _repr_svg_(self) -> str:
        from .picture import svg
        return svg(self, 0, 0)

    def __repr__(self) -> str:
        return (f"Pattern({self.n_q} x {self.n_kv}, blocks {self.block[0]} x {self.block[1]}, batch {self.batch}, "
                f"heads {self.heads}, {self.describe()['pairs']} pairs)")

    def __reduce__(self) -> tuple:
        if self.spec:
            return remade, (self.spec, self.n_q, self.n_kv, self.block)
        x = Lists(*(y.copy() for y in self.lists()))
        return relisted, (x, self.n_q, self.n_kv, self.block, self.batch, self.heads)


def remade(spec: tuple, n_q: int, n_kv: int, block: tuple[int, int]) -> Pattern:
    return Pattern.from_spec(spec[0], n_q, n_kv, block=block, batch=spec[1], heads=spec[2])


def relisted(x: Lists, n_q: int, n_kv: int, block: tuple[int, int], batch: int, heads: int) -> Pattern:
    return Pattern.from_lists(x.row_ptr, x.col_idx, n_q=n_q, n_kv=n_kv, block=block, batch=batch, heads=heads,
                              bands=(x.band_entry, x.band), bitmasks=(x.bitmask_entry, x.bits))


def hold(x: Any, name: str) -> Pattern:
    if not isinstance(x, Pattern):
        raise ArgumentError(f"{name} is {type(x).__name__}, expected Pattern")
    return x


def hold_blocks(name: str, found: tuple, n_q: int, n_kv: int, block: int | Sequence[int]) -> None:
    """Holds numbers of block rows and columns against the sizes; None is any."""
    expected = tuple(-(-n // size) for n, size in zip((n_q, n_kv), pair(block)))
    if any(x not in (None, y) for x, y in zip(found, expected)):
        raise ArgumentError(f"{name} has {found[0]} block rows and {found[1]} block columns, expected {expected}")


def shape_of(n_q: int, n_kv: int, block: int | Sequence[int], batch: int, heads: int, threads: int) -> c.PatternShape:
    sizes = dict(n_q=n_q, n_kv=n_kv, batch=batch, heads=heads, threads=threads)
    block_q, block_kv = pair(block)
    return library.new(c.PatternShape, block_q=block_q, block_kv=block_kv,
                       **{name: integer(x, name) for name, x in sizes.items()})


def assemble(row: numpy.ndarray, column: numpy.ndarray, n_q: int, n_kv: int, block: tuple[int, int], batch: int,
             heads: int, partial: tuple[numpy.ndarray, numpy.ndarray], pick: numpy.ndarray | None = None) -> Pattern:
    """A pattern from tiles in any order: block row (of all lists) and block column of each, and its mask as
    Pattern.masks has them, of tile pick[i] where that is given. Masks may be bytes of bits, uint8 [masks, bytes]."""
    kind, masks = partial
    kind = kind if pick is None else kind[pick]
    order = numpy.lexsort((column, row))
    kind = kind[order]
    rows = -(-n_q // block[0])
    counts = numpy.bincount(row, minlength=batch * heads * rows).reshape(batch * heads, rows)
    ends = numpy.cumsum(counts.reshape(-1)).reshape(batch * heads, rows)
    row_ptr = numpy.concatenate([(ends - counts)[:, :1], ends], axis=1)
    entry = numpy.flatnonzero(kind >= 0)
    bits = pack(masks[kind[entry]], block[0] * block[1])
    return Pattern.from_lists(row_ptr, column[order], n_q=n_q, n_kv=n_kv, block=block, batch=batch, heads=heads,
                              bitmasks=(entry, bits) if len(entry) else None)
