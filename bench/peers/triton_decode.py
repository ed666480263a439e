"""The plainest split-K decode over padded token lists, in Triton: a program for each query, part of its list
and group of heads; partial results in f32, and a second kernel that joins them. Parts are of the entries,
padding included: nothing is planned, and nothing waits for the host. K and V are one tensor of `wide` dims,
which both have, and of more, which K alone has."""
import torch
import triton
import triton.language as tl

# Parts, keys a step, warps: what is tried for a case.
CONFIGS = [(parts, keys, warps) for parts in (4, 8, 16, 32, 64) for keys in (16, 32, 64) for warps in (4, 8)]
LOG2_E = 1.4426950408889634


@triton.jit
def attend(Q, CACHE, INDEX, TOP, TOTAL, SUMS, scale, entries, heads, part_entries, ROWS: tl.constexpr,
           KEYS: tl.constexpr, WIDE: tl.constexpr, MORE: tl.constexpr):
    query = tl.program_id(0)
    part = tl.program_id(1)
    head = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    here = head < heads
    row = query * heads + head
    wide = tl.arange(0, WIDE)
    more = WIDE + tl.arange(0, MORE)
    q_wide = tl.load(Q + row[:, None] * (WIDE + MORE) + wide[None, :], mask=here[:, None], other=0.0)
    q_more = tl.load(Q + row[:, None] * (WIDE + MORE) + more[None, :], mask=here[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDE], tl.float32)
    end = tl.minimum((part + 1) * part_entries, entries)
    for begin in range(part * part_entries, end, KEYS):
        entry = begin + tl.arange(0, KEYS)
        index = tl.load(INDEX + query * entries + entry, mask=entry < end, other=-1)
        listed = index >= 0
        place = tl.where(listed, index, 0).to(tl.int64)[:, None] * (WIDE + MORE)
        k_wide = tl.load(CACHE + place + wide[None, :], mask=listed[:, None], other=0.0)
        k_more = tl.load(CACHE + place + more[None, :], mask=listed[:, None], other=0.0)
        s = tl.dot(q_wide, tl.trans(k_wide)) + tl.dot(q_more, tl.trans(k_more))
        s = tl.where(listed[None, :], s * scale, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        # Where nothing is listed yet every weight is 0, not 2^(-inf + inf).
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None] + tl.dot(p.to(k_wide.dtype), k_wide)
        top = new
    slot = (query * tl.num_programs(1) + part) * heads + head
    tl.store(TOP + slot, top, mask=here)
    tl.store(TOTAL + slot, total, mask=here)
    tl.store(SUMS + slot[:, None] * WIDE + wide[None, :], sums, mask=here[:, None])


@triton.jit
def join(TOP, TOTAL, SUMS, O, heads, PARTS: tl.constexpr, WIDE: tl.constexpr, DIMS: tl.constexpr):
    query = tl.program_id(0)
    head = tl.program_id(1)
    dim = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    slot = (query * PARTS + tl.arange(0, PARTS)) * heads + head
    top = tl.load(TOP + slot)
    most = tl.max(top, 0)
    weight = tl.exp2(top - tl.where(most == float("-inf"), 0.0, most))
    total = tl.sum(weight * tl.load(TOTAL + slot), 0)
    o = tl.sum(weight[:, None] * tl.load(SUMS + slot[:, None] * WIDE + dim[None, :]), 0)
    o = o / tl.where(total > 0, total, 1.0)
    tl.store(O + (query * heads + head) * WIDE + dim, o.to(O.dtype.element_ty))


def launcher(q, cache, wide, entries):
    """A function of (config, indices) that runs the case, and the output [queries, heads, wide]."""
    queries, heads, d = q.shape
    rows = min(64, max(16, triton.next_power_of_2(heads)))
    o = torch.empty(queries, heads, wide, device=q.device, dtype=q.dtype)
    room = {}

    def launch(config, indices):
        parts, keys, warps = config
        if parts not in room:
            room[parts] = [torch.empty(queries, parts, heads, *dims, device=q.device) for dims in ((), (), (wide,))]
        attend[(queries, parts, triton.cdiv(heads, rows))](
            q, cache, indices, *room[parts], d**-0.5 * LOG2_E, entries, heads, triton.cdiv(entries, parts),
            rows, keys, wide, d - wide, num_warps=warps, num_stages=2)
        join[(queries, heads, wide // 128)](*room[parts], o, heads, parts, wide, 128, num_warps=4)

    return launch, o
