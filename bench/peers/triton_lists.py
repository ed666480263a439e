"""The plainest kernel over block lists, in Triton: one program a block row with its own list, so many
keys a step gathered from the listed blocks, no plan. In f32, products of three TF32 ones."""
import concurrent.futures
import os

import torch
import triton
import triton.language as tl

# Keys a step, warps, stages: what is tried for a case, by rows of a tile; WIDER is the whole of it.
CONFIGS = {16: ((64, 2, 2), (64, 2, 3), (64, 4, 3), (128, 2, 2), (128, 4, 2), (128, 4, 3)),
           32: ((64, 2, 2), (64, 2, 3), (64, 4, 2), (128, 2, 2), (128, 4, 2), (128, 4, 3)),
           64: ((64, 4, 2), (64, 4, 3), (64, 4, 4), (128, 4, 2), (128, 4, 3), (128, 8, 2)),
           128: ((64, 4, 2), (64, 8, 2), (64, 8, 3), (128, 8, 2), (128, 8, 3))}
CONFIGS_F32 = ((32, 4, 2), (32, 4, 3), (32, 2, 2), (64, 4, 2), (64, 4, 3), (64, 8, 2))
WIDER = [(keys, warps, stages) for keys in (32, 64, 128) for warps in (2, 4, 8) for stages in (2, 3, 4)]


@triton.jit(do_not_specialize=["n_q", "n_kv", "rows", "lists", "shared"])
def attend(Q, K, V, O, FIRST, COLUMN, scale, n_q, n_kv, rows, lists, shared, group, BQ: tl.constexpr,
           BK: tl.constexpr, M: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, SHORT: tl.constexpr,
           PRECISION: tl.constexpr):
    # Program (row, head over all batches); its list is one of `lists`, of which each serves `shared` heads.
    row = tl.program_id(0)
    head = tl.program_id(1)
    of_list = (head % lists) // shared
    i = row * BQ + tl.arange(0, M)
    here = (tl.arange(0, M) < BQ) & (i < n_q)
    dims = tl.arange(0, D)
    at = tl.arange(0, KEYS)
    q = tl.load(Q + (head * n_q + i)[:, None] * D + dims[None, :], mask=here[:, None], other=0.0)
    first = tl.load(FIRST + of_list * (rows + 1) + row)
    end = tl.load(FIRST + of_list * (rows + 1) + row + 1)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, D], tl.float32)
    for tile in range(first, end, KEYS // BK):
        entry = tile + at // BK
        listed = entry < end
        key = tl.load(COLUMN + entry, mask=listed, other=0) * BK + at % BK
        if SHORT:  # the last block may be
            listed = listed & (key < n_kv)
            key = tl.where(listed, key, 0)
        from_here = ((head // group) * n_kv + key)[:, None] * D + dims[None, :]
        k = tl.load(K + from_here)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.44269504)
        s = tl.where(listed[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        v = tl.load(V + from_here)
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        top = new
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(O + (head * n_q + i)[:, None] * D + dims[None, :], sums.to(O.dtype.element_ty), mask=here[:, None])


def configs(block_q, block_kv, f32, wider):
    tile = min(max(16, triton.next_power_of_2(block_q)), 128)
    fit = [c for c in (WIDER if wider else CONFIGS_F32 if f32 else CONFIGS[tile]) if c[0] % block_kv == 0]
    # A block wider than those: as many keys as it has.
    return fit or [(block_kv, warps, stages) for warps in (4, 8) for stages in (2, 3)]


def launcher(q, k, v, first, column, n_lists, shared, block_q, block_kv):
    """A function of (config, only compile) that runs the case, and the output."""
    b, h, n_q, d = q.shape
    h_kv, n_kv = k.shape[1:3]
    o = torch.empty_like(q)
    rows = first.shape[1] - 1
    arguments = (q, k, v, o, first, column, d**-0.5, n_q, n_kv, rows, n_lists, shared, h // h_kv, block_q,
                 block_kv, max(16, triton.next_power_of_2(block_q)))
    short = n_kv % block_kv != 0

    def launch(config, compile=False):
        keys, warps, stages = config
        more = dict(num_warps=warps, num_stages=stages)
        if compile:
            return attend.warmup(*arguments, keys, d, short, "tf32x3", grid=(rows, b * h), **more)
        return attend[(rows, b * h)](*arguments, keys, d, short, "tf32x3", **more)

    return launch, o


def tune(launch, tried):
    """The fastest of what is tried, each by two launches; compiled side by side before."""
    if len(tried) == 1:
        return tried[0]

    def compiled(config):
        try:
            launch(config, compile=True)
        except Exception:  # said again, and passed over, by the launch
            pass

    with concurrent.futures.ThreadPoolExecutor(min(len(tried), os.cpu_count() or 1)) as pool:
        list(pool.map(compiled, tried))
    best, why = None, None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for config in tried:
        try:
            launch(config)
            begin.record()
            launch(config)
            launch(config)
            end.record()
            end.synchronize()
        except Exception as error:  # too much shared memory, mostly
            why = error
            continue
        ms = begin.elapsed_time(end) / 2
        if best is None or ms < best[0]:
            best = ms, config
    if best is None:
        raise why
    return best[1]
