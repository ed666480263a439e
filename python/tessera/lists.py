"""Arrays that patterns are made from, and the arrays of their block lists."""
from __future__ import annotations

import operator
from typing import Any, NamedTuple, Sequence

import numpy

from ._library import ArgumentError, UnsupportedError
from .arrays import array, dtype_name, is_torch


class Lists(NamedTuple):
    """Block lists as arrays (tess_lists), of lists = batch * heads, rows = ceil(n_q / block_q). Borrowed arrays keep
    their pattern alive and are read-only."""

    row_ptr: numpy.ndarray  # int64 [lists, rows + 1], first tile of each block row in col_idx
    col_idx: numpy.ndarray  # int32 [tiles], block columns, ascending within a row
    band_entry: numpy.ndarray  # int64 [bands], tiles that are diagonal bands
    band: numpy.ndarray  # int32 [bands, 2]: element (r, c) is listed where lo <= c - r <= hi
    bitmask_entry: numpy.ndarray  # int64 [bitmasks], tiles that have a bitmask
    bits: numpy.ndarray  # uint64 words: element (r, c) of mask t is bit t * block_q * block_kv + r * block_kv + c


class Borrowed:
    """Memory of a pattern, for numpy: the array's base holds the pattern."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], kind: str):
        self.owner = owner
        self.__array_interface__ = {"data": (address, True), "shape": shape, "typestr": kind, "version": 3}


def pair(block: int | Sequence[int]) -> tuple[int, int]:
    """block_q and block_kv of one number or two."""
    sizes = tuple(block) if isinstance(block, (tuple, list)) else (block, block)
    if len(sizes) != 2:
        raise ArgumentError(f"block is {block!r}, expected a number or (block_q, block_kv)")
    return integer(sizes[0], "block"), integer(sizes[1], "block")


def integer(x: Any, name: str) -> int:
    try:
        return operator.index(x)
    except TypeError:
        raise ArgumentError(f"{name} is {x!r}, expected an integer") from None


def host(x: Any, name: str, kind: str) -> numpy.ndarray:
    """x on the host, contiguous and of dtype `kind`; numbers that another integer type holds are converted."""
    if isinstance(x, (list, tuple)):
        x = numpy.asarray(x, kind if len(x) == 0 else None)
    x = array(x, name)
    if is_torch(x):
        x = x.detach().cpu().numpy()
    if x.dtype.kind not in ("iub" if numpy.dtype(kind).kind in "iu" else numpy.dtype(kind).kind):
        raise ArgumentError(f"{name} is {x.dtype}, expected {kind}")
    wanted = numpy.dtype(kind)
    if x.dtype != wanted and x.size and wanted.itemsize < x.dtype.itemsize:
        limits = numpy.iinfo(wanted)
        if x.min() < limits.min or x.max() > limits.max:
            raise ArgumentError(f"{name} has numbers that {kind} does not hold")
    return numpy.ascontiguousarray(x, wanted)


def mask_bytes(mask: Any) -> numpy.ndarray:
    """A boolean or 0 / -inf mask as bytes [batch, heads, n_q, n_kv]; dims that are expanded stay 1. A contiguous
    boolean mask of numpy, or of torch on the host, is not copied."""
    mask = array(mask, "mask")
    if not 2 <= mask.ndim <= 4:
        raise ArgumentError(f"mask has {mask.ndim} dims, expected [n_q, n_kv] after batch and heads, if any")
    mask = mask[(None,) * (4 - mask.ndim)]  # as torch broadcasts it
    strides = mask.stride() if is_torch(mask) else mask.strides
    mask = mask[tuple(slice(0, 1) if axis < 2 and strides[axis] == 0 else slice(None) for axis in range(4))]
    if is_torch(mask):
        mask = mask.detach()
        if dtype_name(mask).startswith(("float", "bfloat")):
            kept = mask == 0
            if not bool((kept | (mask == float("-inf"))).all()):
                raise UnsupportedError("mask has values other than 0 and -inf, which a pattern cannot say: biases are "
                                       "not computed, but ALiBi's")
            mask = kept
        mask = mask.cpu().numpy()
    elif mask.dtype.kind == "f":
        kept = mask == 0
        if not (kept | numpy.isneginf(mask)).all():
            raise UnsupportedError("mask has values other than 0 and -inf, which a pattern cannot say: biases are "
                                   "not computed, but ALiBi's")
        mask = kept
    if mask.dtype.itemsize != 1:
        raise ArgumentError(f"mask is {mask.dtype}, expected bool, or floats of 0 and -inf")
    return numpy.ascontiguousarray(mask).view(numpy.uint8)


def unpack(bits: numpy.ndarray, count: int, size: int) -> numpy.ndarray:
    """bool [count, size] of words."""
    flat = numpy.unpackbits(bits.view(numpy.uint8), bitorder="little", count=count * size)
    return flat.view(bool).reshape(count, size)


def pack(masks: numpy.ndarray, size: int) -> numpy.ndarray:
    """Words of masks of `size` elements: bool [count, ...], or uint8 [count, bytes] of bits, each from a byte on."""
    if masks.dtype == numpy.uint8 and size % 8:
        masks = numpy.unpackbits(masks, axis=1, bitorder="little", count=size).view(bool)
    packed = masks.reshape(-1) if masks.dtype == numpy.uint8 else numpy.packbits(masks.reshape(-1), bitorder="little")
    return numpy.concatenate([packed, numpy.zeros(-len(packed) % 8, numpy.uint8)]).view(numpy.uint64)
