"""The plainest exact top-k of rows in Triton: one program a row finds the k-th key by four digits of 8 bits, reading the
row for each, then writes the columns above it and the first that equal it, in order."""
import triton
import triton.language as tl


@triton.jit
def keys_of(X, column, n):
    # Scores as numbers in the same order; what lies past the row is below all that can be chosen.
    word = tl.load(X + column, mask=column < n, other=float("-inf")).to(tl.float32).to(tl.uint32, bitcast=True)
    return tl.where(word >= 0x80000000, ~word, word | 0x80000000)


@triton.jit
def choose(X, INDEX, n, k, STEP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    X += row * n
    INDEX += row * k
    digits = tl.arange(0, 512)  # the last is of columns that do not count
    cut = tl.zeros([1], tl.uint32)
    left = tl.zeros([1], tl.int32) + k
    for p in tl.static_range(4):
        shift = 24 - 8 * p
        counts = tl.zeros([512], tl.int32)
        for first in range(0, n, STEP):
            column = first + tl.arange(0, STEP)
            key = keys_of(X, column, n)
            digit = ((key >> shift) & 255).to(tl.int32)
            if p > 0:
                digit = tl.where((key >> (shift + 8)) == (cut >> (shift + 8)), digit, 511)
            counts += tl.histogram(tl.where(column < n, digit, 511), 512)
        counts = tl.where(digits < 256, counts, 0)
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        found = tl.max(tl.where((above + counts >= left) & (digits < 256), digits, -1), 0)
        left = left - tl.sum(tl.where(digits == found, above, 0), 0)
        cut = cut | (found.to(tl.uint32) << shift)
    done = tl.zeros([1], tl.int32)
    ties = tl.zeros([1], tl.int32)
    for first in range(0, n, STEP):
        column = first + tl.arange(0, STEP)
        key = keys_of(X, column, n)
        equal = ((key == cut) & (column < n)).to(tl.int32)
        chosen = ((key > cut) & (column < n)) | ((equal > 0) & (tl.cumsum(equal, 0) + ties <= left))
        chosen = chosen.to(tl.int32)
        tl.store(INDEX + done + tl.cumsum(chosen, 0) - 1, column.to(tl.int32), mask=chosen > 0)
        done += tl.sum(chosen, 0)
        ties += tl.sum(equal, 0)


def topk(x, k, index):
    """Indices int32 [rows, k] of the k highest of each row of x [rows, n]."""
    rows, n = x.shape
    choose[(rows,)](x, index, n, k, STEP=4096 if n >= 4096 else 1024, num_warps=16)
