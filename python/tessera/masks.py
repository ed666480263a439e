"""Patterns from FlexAttention's masks, and back. torch is imported where the caller's objects come from it."""
from __future__ import annotations

from typing import Any, Callable

import numpy

from ._library import ArgumentError
from .arrays import torch_module
from .pattern import Pattern, assemble


def evaluate(mask_mod: Callable, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """mask_mod on numbers [tiles], [tiles], [tiles, block_q] and [tiles, block_kv]: bool [tiles, block_q, block_kv]."""
    torch = torch_module()
    if torch is None or isinstance(query, numpy.ndarray):
        shape = (*query.shape, key.shape[1])
        found = mask_mod(batch[:, None, None], head[:, None, None], query[:, :, None], key[:, None, :])
        return numpy.broadcast_to(numpy.asarray(found, bool), shape)
    over_keys = torch.vmap(mask_mod, in_dims=(None, None, None, 0))
    over_queries = torch.vmap(over_keys, in_dims=(None, None, 0, None))
    return torch.vmap(over_queries, in_dims=(0, 0, 0, 0))(batch, head, query, key)


def packed(masks: Any) -> numpy.ndarray:
    """bool [tiles, block_q, block_kv] as bytes of bits [tiles, ...] on the host, packed where the masks lie."""
    torch = torch_module()
    if not isinstance(masks, numpy.ndarray) and masks.device.type == "cpu":
        masks = masks.numpy()
    if isinstance(masks, numpy.ndarray):
        return numpy.packbits(masks.reshape(len(masks), -1), axis=1, bitorder="little")
    flat = masks.reshape(len(masks), -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).reshape(len(masks), -1, 8).to(torch.uint8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=masks.device)
    return (flat * weights).sum(-1, dtype=torch.uint8).cpu().numpy()


def tiles_of(mask_mod: Callable, batch: Any, head: Any, row: Any, column: Any, n_q: int, n_kv: int,
             block: tuple[int, int], chunk: int) -> numpy.ndarray:
    """Bits of the tiles at (batch, head, row, column), some at a time. Numbers past n_q and n_kv are those of the last
    query and key, whose elements the library leaves out there: tables of the mask_mod are not read past their ends."""
    torch = torch_module()
    step = max(chunk // (block[0] * block[1]), 1)
    found = []
    for first in range(0, len(row), step):
        b, h, r, col = (x[first:first + step] for x in (batch, head, row, column))
        if isinstance(row, numpy.ndarray):
            query = numpy.minimum(r[:, None] * block[0] + numpy.arange(block[0]), n_q - 1)
            key = numpy.minimum(col[:, None] * block[1] + numpy.arange(block[1]), n_kv - 1)
        else:
            query, key = (torch.clamp(x[:, None] * size + torch.arange(size, device=x.device), max=n - 1)
                          for x, size, n in ((r, block[0], n_q), (col, block[1], n_kv)))
        found.append(packed(evaluate(mask_mod, b, h, query, key)))
    size = -(-block[0] * block[1] // 8)
    return numpy.concatenate(found) if found else numpy.zeros((0, size), numpy.uint8)


def from_mask_mod(mask_mod: Callable, n_q: int, n_kv: int, block: tuple[int, int], batch: int, heads: int, device: Any,
                  chunk: int) -> Pattern:
    torch = torch_module()
    if device is not None and torch is None:
        raise ArgumentError(f"device is {device!r}, which needs torch: import it first")
    rows, columns = (-(-n // size) for n, size in zip((n_q, n_kv), block))
    step = max(chunk // (block[0] * block[1]), 1)
    places, bits = [], []
    for first in range(0, batch * heads * rows * columns, step):
        number = numpy.arange(first, min(first + step, batch * heads * rows * columns))
        at = [number // (rows * columns * heads), number // (rows * columns) % heads, number // columns % rows,
              number % columns]
        if torch is not None:
            at = [torch.as_tensor(x, device=device or "cpu") for x in at]
        found = tiles_of(mask_mod, *at, n_q, n_kv, block, chunk)
        kept = found.any(axis=1)
        places.append(number[kept])
        bits.append(found[kept])
    number, bits = numpy.concatenate(places), numpy.concatenate(bits)
    full = (numpy.bitwise_count(bits).sum(1, dtype=numpy.int64) if hasattr(numpy, "bitwise_count") else
            numpy.unpackbits(bits, axis=1).sum(1, dtype=numpy.int64)) == block[0] * block[1]
    kind = numpy.where(full, -1, numpy.cumsum(~full) - 1)
    return assemble(number // columns, number % columns, n_q, n_kv, block, batch, heads, (kind, bits[~full]))


def from_block_mask(mask: Any, chunk: int) -> Pattern:
    import torch

    if not hasattr(mask, "kv_num_blocks") or not hasattr(mask, "mask_mod"):
        raise ArgumentError(f"block_mask is {type(mask).__name__}, expected a BlockMask of FlexAttention")
    size = mask.BLOCK_SIZE
    block = tuple(int(x) for x in (size if isinstance(size, (tuple, list)) else (size, size)))
    batch, heads, rows = mask.kv_num_blocks.shape
    n_q, n_kv = (int(x) for x in getattr(mask, "seq_lengths", None) or mask.shape[-2:])

    def listed(counts: Any, indices: Any) -> list[Any]:
        """Batch, head, row and column of the blocks that are counted; entries past the counts are not read."""
        valid = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        b, h, row, place = valid.nonzero(as_tuple=True)
        return [b, h, row, indices[b, h, row, place].long()]

    partial = listed(mask.kv_num_blocks, mask.kv_indices)
    bits = tiles_of(mask.mask_mod, *partial, n_q, n_kv, block, chunk)
    found = [x.cpu().numpy() for x in partial]
    kind = numpy.arange(len(bits))
    if mask.full_kv_num_blocks is not None:
        full = [x.cpu().numpy() for x in listed(mask.full_kv_num_blocks, mask.full_kv_indices)]
        found = [numpy.concatenate(x) for x in zip(found, full)]
        kind = numpy.concatenate([kind, numpy.full(len(full[0]), -1)])
    b, h, row, column = found
    if len(column) and not (0 <= column.min() and column.max() < -(-n_kv // block[1])):
        raise ArgumentError(f"block_mask names block column {int(column.max())} of {-(-n_kv // block[1])}")
    return assemble((b * heads + h) * rows + row, column, n_q, n_kv, block, batch, heads, (kind, bits))


def to_block_mask(pattern: Pattern, device: Any) -> Any:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    lists, (kind, masks) = pattern.lists(), pattern.masks()
    block_q, block_kv = pattern.block
    rows, columns = -(-pattern.n_q // block_q), -(-pattern.n_kv // block_kv)
    lead = (pattern.batch, pattern.heads)
    row = numpy.repeat(numpy.arange(lead[0] * lead[1] * rows), numpy.diff(lists.row_ptr, axis=1).reshape(-1))

    def padded(chosen: numpy.ndarray) -> tuple[Any, Any]:
        """Counts and columns [batch, heads, rows, columns] of the chosen tiles; those not listed come after them."""
        listed = numpy.zeros((lead[0] * lead[1] * rows, columns), bool)
        listed[row[chosen], lists.col_idx[chosen]] = True
        order = numpy.argsort(~listed, axis=1, kind="stable")
        return (torch.as_tensor(listed.sum(1).reshape(*lead, rows), dtype=torch.int32, device=device),
                torch.as_tensor(order.reshape(*lead, rows, columns), dtype=torch.int32, device=device))

    # Mask of each tile: that of its bits, or one of two more, which list nothing and everything.
    number = numpy.full((lead[0] * lead[1] * rows, columns), len(masks), numpy.int64)
    number[row, lists.col_idx] = numpy.where(kind < 0, len(masks) + 1, kind)
    bits = numpy.packbits(masks.reshape(len(masks), -1), axis=1, bitorder="little")
    ends = numpy.repeat(numpy.array([[0], [255]], numpy.uint8), -(-block_q * block_kv // 8), axis=1)
    table = torch.as_tensor(numpy.concatenate([bits, ends]), device=device)
    number = torch.as_tensor(number.reshape(*lead, rows, columns), device=device)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        tile = number[b if lead[0] > 1 else 0, h if lead[1] > 1 else 0, q // block_q, k // block_kv]
        bit = (q % block_q) * block_kv + k % block_kv
        return ((table[tile, bit // 8] >> (bit % 8).to(torch.uint8)) & 1).to(torch.bool)

    return BlockMask.from_kv_blocks(*padded(kind >= 0), *padded(kind < 0), BLOCK_SIZE=pattern.block, mask_mod=mask_mod,
                                    seq_lengths=(pattern.n_q, pattern.n_kv))
