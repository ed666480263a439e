"""The plainest kernels of an MLP's delta over listed columns: a program for so many rows of a group and so many
columns, or dims of o, which gathers rows of the weights as they are listed."""
import torch
import triton
import triton.language as tl

ROWS, COLUMNS, DEPTH = 128, 128, 64  # of a program, and of a step of its loop


@triton.jit
def up(x, w1, bias, cache, moved, listed, dims, rows, count, group, BM: tl.constexpr, BN: tl.constexpr,
       BK: tl.constexpr):
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    place = tl.program_id(0) * BN + tl.arange(0, BN)
    some = place < count
    column = tl.load(listed + tl.program_id(1) * BM // group * count + place, mask=some, other=0).to(tl.int64)
    dim = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for i in range(0, dims, BK):
        a = tl.load(x + row[:, None] * dims + i + dim[None, :])
        b = tl.load(w1 + column[None, :] * dims + i + dim[:, None])
        sums += tl.dot(a, b)
    y = sums + tl.load(bias + column)[None, :].to(tl.float32)
    h = (y / (1 + tl.exp(-1.5957691216 * (y + 0.044715 * y * y * y)))).to(x.dtype.element_ty)
    at = cache + column[None, :] * rows + row[:, None]
    before = tl.load(at, mask=some[None, :], other=0)
    tl.store(at, h, mask=some[None, :])
    tl.store(moved + row[:, None] * count + place[None, :], h - before, mask=some[None, :])


@triton.jit
def down(moved, w2, o, listed, dims, count, group, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    dim = tl.program_id(0) * BN + tl.arange(0, BN)
    place = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for i in range(0, count, BK):
        some = i + place < count
        column = tl.load(listed + tl.program_id(1) * BM // group * count + i + place, mask=some, other=0).to(tl.int64)
        a = tl.load(moved + row[:, None] * count + i + place[None, :], mask=some[None, :], other=0)
        b = tl.load(w2 + column[:, None] * dims + dim[None, :])
        sums += tl.dot(a, b)
    at = o + row[:, None] * dims + dim[None, :]
    tl.store(at, (tl.load(at).to(tl.float32) + sums).to(o.dtype.element_ty))


class Delta:
    """listed [groups, count], int32; x [rows, k], w1 [hidden, k], w2 [hidden, n]: multiples of a program's sizes."""

    def __init__(self, listed, w1, w2, bias):
        self.listed, self.w1, self.w2, self.bias = listed, w1, w2, bias

    def __call__(self, x, cache, o):
        groups, count = self.listed.shape
        rows, group = len(x), len(x) // groups
        moved = torch.empty(rows, count, device=x.device, dtype=x.dtype)
        step = dict(BM=ROWS, BN=COLUMNS, BK=DEPTH, num_warps=8, num_stages=4)
        up[(triton.cdiv(count, COLUMNS), rows // ROWS)](x, self.w1, self.bias, cache, moved, self.listed, x.shape[1],
                                                        rows, count, group, **step)
        down[(o.shape[1] // COLUMNS, rows // ROWS)](moved, self.w2, o, self.listed, o.shape[1], count, group, **step)
