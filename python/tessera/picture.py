"""Pictures of one list of a pattern: SVG of its tiles, or of a grid where tiles are too many; PNG of the grid."""
from __future__ import annotations

import os
import struct
import zlib
from typing import Any

import numpy

SIDE = 512  # pixels of the longer side
LIMIT = 20000  # runs of tiles in an SVG
COLOURS = {"full tile": "#0072b2", "band": "#a6d5f3", "bitmask": "#f5cf80"}  # of Okabe and Ito's palette


def tiles(pattern: Any, batch: int, head: int) -> tuple[Any, Any, Any, Any]:
    """Block row, block column, kind (0 full, 1 band, 2 bitmask) and listed share of each tile of a list."""
    number, first, end = pattern.of_list(batch, head)
    lists, (mask, masks) = pattern.lists(), pattern.masks()
    row = numpy.repeat(numpy.arange(lists.row_ptr.shape[1] - 1), numpy.diff(lists.row_ptr[number]))
    kind = numpy.zeros(len(lists.col_idx), int)
    kind[lists.band_entry], kind[lists.bitmask_entry] = 1, 2
    share = numpy.concatenate([masks.reshape(len(masks), -1).mean(1), [1.0]])[mask[first:end]]
    return row, lists.col_idx[first:end], kind[first:end], share


def grid(pattern: Any, batch: int, head: int, side: int) -> Any:
    """Listed share of each cell, float [height, width], the longer side of at most `side` cells. A tile that is
    listed in part is spread over its cells."""
    row, column, _, share = tiles(pattern, batch, head)
    scale = min(side / max(pattern.n_q, pattern.n_kv), 1)
    height, width = (max(round(n * scale), 1) for n in (pattern.n_q, pattern.n_kv))

    def spread(n: int, cells: int, block: int) -> Any:
        """How many tokens of each block lie in each cell, [cells, blocks]."""
        bound = numpy.arange(cells + 1) * n // cells
        start = numpy.arange(-(-n // block)) * block
        low = numpy.maximum(bound[:-1, None], start)
        return numpy.maximum(numpy.minimum(bound[1:, None], start + block) - low, 0).astype(float)

    down, across = spread(pattern.n_q, height, pattern.block[0]), spread(pattern.n_kv, width, pattern.block[1])
    listed = numpy.zeros((down.shape[1], across.shape[1]))
    listed[row, column] = share
    return (down @ listed @ across.T) / (down.sum(1)[:, None] * across.sum(1))


def svg(pattern: Any, batch: int, head: int) -> str:
    """An SVG document, tiles coloured by kind."""
    row, column, kind, _ = tiles(pattern, batch, head)
    scale = SIDE / max(pattern.n_q, pattern.n_kv)
    width, height = pattern.n_kv * scale, pattern.n_q * scale
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {width + 2:.6g} {height + 2:.6g}" '
           f'width="{width + 2:.6g}" height="{height + 2:.6g}">',
           f"<title>{pattern.n_q} queries (down) by {pattern.n_kv} keys, {len(row)} tiles</title>",
           f'<rect width="{width:.6g}" height="{height:.6g}" fill="#fff" stroke="#555" stroke-width="1"/>']
    # Runs of neighbouring tiles of one kind are one rectangle.
    begins = numpy.ones(len(row), bool)
    begins[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1] + 1) | (kind[1:] != kind[:-1])
    first = numpy.flatnonzero(begins)
    if len(first) > LIMIT:
        cells = grid(pattern, batch, head, 128)
        for y, x in zip(*numpy.nonzero(cells)):
            down, across = height / cells.shape[0], width / cells.shape[1]
            out.append(f'<rect x="{x * across:.5g}" y="{y * down:.5g}" width="{across:.5g}" height="{down:.5g}" '
                       f'fill="{COLOURS["full tile"]}" fill-opacity="{cells[y, x]:.3g}"/>')
        return "\n".join([*out, "</svg>\n"])
    last = numpy.append(first[1:], len(row)) - 1
    block_q, block_kv = pattern.block
    for number, colour in enumerate(COLOURS.values()):
        out.append(f'<g fill="{colour}">')
        for a, b in zip(first[kind[first] == number], last[kind[first] == number]):
            y, x = row[a] * block_q, column[a] * block_kv
            end_y, end_x = min(y + block_q, pattern.n_q), min((column[b] + 1) * block_kv, pattern.n_kv)
            out.append(f'<rect x="{x * scale:.6g}" y="{y * scale:.6g}" width="{(end_x - x) * scale:.6g}" '
                       f'height="{(end_y - y) * scale:.6g}"/>')
        out.append("</g>")
    return "\n".join([*out, "</svg>\n"])


def png(pattern: Any, batch: int, head: int) -> bytes:
    """A PNG file of greys, dark = listed, whose longer side has at most 512 pixels."""
    cells = numpy.round(255 * (1 - grid(pattern, batch, head, SIDE))).astype(numpy.uint8)
    lines = numpy.concatenate([numpy.zeros((len(cells), 1), numpy.uint8), cells], axis=1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head_data = struct.pack(">IIBBBBB", cells.shape[1], cells.shape[0], 8, 0, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head_data) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
            + chunk(b"IEND", b""))


def draw(pattern: Any, file: Any, batch: int, head: int) -> None:
    from ._library import ArgumentError

    suffix = os.path.splitext(os.fspath(file))[1].lower()
    if suffix not in (".svg", ".png"):
        raise ArgumentError(f"file is {os.fspath(file)!r}, expected a name that ends in .svg or .png")
    data = svg(pattern, batch, head).encode() if suffix == ".svg" else png(pattern, batch, head)
    with open(file, "wb") as out:
        out.write(data)
