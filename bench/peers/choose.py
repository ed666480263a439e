#!/usr/bin/env python3
"""Choosing what is listed, on CUDA: selection, pooled blocks and their scores, columns and masks beside PyTorch and Triton.

    PYTHONPATH=python TESSERA_LIBRARY=build/release/libtessera.so python3 bench/peers/choose.py --csv out.csv [CASE...]

A case is what is done, then sizes:

    topk:rows,n,k,dtype           k columns of each row, ascending: torch.topk, unsorted; triton_select.py
    chain:heads,n,dims,block,k    q and k pooled, scored, k blocks of each block row chosen, lists filled: the same by
                                  PyTorch, without the fill
    pool:heads,n,dims,block       q pooled by blocks: the mean over a view
    score:heads,blocks,dims       pairs of pooled blocks: a product of f32
    lists:rows,n,share            bits to indices with counts: nonzero of the bytes
    pack:rows,n                   bytes to bits: the sum of bytes times powers of two
    mask:batch,heads,n,block      a window(16,16) of bytes to a plan's lists: any and all of each block; nonzero
    filled:heads,n,block,share    bits of single columns, chosen for so many queries each, to a plan's lists, a run of
                                  128 dims over them, and both in one step; run and step with a base that is merged:
                                  a plan of the host over the same bits; dense by cuDNN

Times are medians of interleaved rounds of graph replays, or of calls where a peer cannot be captured, microseconds. gbs is
what is read once, over the time; copy is the rate of copying 1 GB in the same run, read and written. Answers are held
against PyTorch's before anything is timed.
"""
import argparse
import csv
import math
import os
import pathlib
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import tessera
import turns
from field import DTYPES, commit_of, device_name

CASES = ("topk:64,4096,2048,f32", "topk:64,16384,2048,f32", "topk:64,65536,2048,f32", "topk:16,524288,2048,f32",
         "topk:30,12288,3686,f32", "topk:14856,12288,3686,f32", "topk:9216,768,77,f32", "topk:14856,118784,8315,bf16",
         "pool:12,49152,128,64", "score:12,768,128", "chain:12,49152,128,64,77",
         "lists:1857,118784,0.07", "pack:14856,118784", "mask:4,8,4096,64", "mask:4,8,1024,64", "mask:4,8,128,64",
         "filled:24,32768,192,0.07", "filled:24,32768,128,0.07", "filled:24,118784,192,0.07")
FIELDS = ("case", "who", "device", "commit", "timing", "us", "gbs", "copy_gbs", "absent")
PEER_MOST = 1 << 29  # scores of a topk past which PyTorch and Triton stand aside
HOST_MOST = 1 << 16  # queries past which no plan of the host is made


class Wrong(Exception):
    """An answer that differs."""


def same(found, expected, what):
    if not bool((found == expected).all()):
        raise Wrong(f"WRONG: {what}")


def normal(*shape, dtype=torch.float32):
    """As torch.randn, without a whole tensor of f32 beside one of 16 bits."""
    x = torch.empty(*shape, device="cuda", dtype=dtype)
    for part in x.view(-1).split(1 << 26):
        part.copy_(torch.randn(len(part), device="cuda"))
    return x


def topk(rows, n, k, dtype):
    x = normal(1, 1, rows, n, dtype=DTYPES[dtype])
    out = tessera.select(x, k=k)
    index = torch.empty(rows, k, device="cuda", dtype=torch.int32)
    yield "read", x.numel() * x.element_size()

    def triton():
        import triton_select
        triton_select.topk(x[0, 0], k, index)

    def check_torch():
        some = min(rows, 64)
        found = torch.topk(x[0, 0, :some], k, sorted=False).indices.sort().values
        values = x[0, 0, :some].gather(1, found).sort().values
        same(values, x[0, 0, :some].gather(1, out.indices[0, 0, :some].long()).sort().values, "scores of a row")

    yield "tessera", lambda: tessera.select(x, k=k, out=out)
    yield "check", check_torch
    if x.numel() <= PEER_MOST:
        yield "torch", lambda: torch.topk(x, k, sorted=False)
        yield "triton", triton
        yield "check", lambda: same(index, out.indices[0, 0], "Triton's columns") if x.dtype == torch.float32 else None


def blocks(heads, n, dims, block):
    q, k = (torch.randn(1, heads, n, dims, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return q, k, [torch.empty(1, heads, n // block, dims, device="cuda", dtype=torch.bfloat16) for _ in range(2)]


def means(x, block):
    return x.view(*x.shape[:2], -1, block, x.shape[3]).mean(3)


def pool(heads, n, dims, block):
    q, _, out = blocks(heads, n, dims, block)
    yield "read", q.numel() * 2
    yield "tessera", lambda: tessera.pool(q, block, out=out[0])
    yield "check", lambda: same((out[0].float() - means(q, block).float()).abs() < 1e-2, True, "means")
    yield "torch", lambda: means(q, block)


def score(heads, count, dims):
    q, k, _ = blocks(heads, count, dims, 1)
    out = torch.empty(1, heads, count, count, device="cuda")
    yield "read", q.numel() * 4 + out.numel() * 4
    yield "tessera", lambda: tessera.pool_score(q, k, out=out)
    expected = (q.float() @ k.float().transpose(2, 3)) * dims**-.5
    yield "check", lambda: same((out - expected).abs() < 1e-3, True, "scores")
    yield "torch", lambda: (q.float() @ k.float().transpose(2, 3)) * dims**-.5


def chain(heads, n, dims, block, most):
    q, k, pooled = blocks(heads, n, dims, block)
    scores = torch.empty(1, heads, n // block, n // block, device="cuda")
    found = tessera.select(scores.zero_(), k=most)
    lists = tessera.DevicePattern.indices(found.indices, n, counts=found.counts, n_q=n, block=block,
                                          promises=("distinct", "ascending", "padded_last"))
    plan = tessera.ReservedPlan(lists, q, k, k)
    yield "read", q.numel() * 4

    def choose():
        tessera.pool(q, block, out=pooled[0])
        tessera.pool(k, block, out=pooled[1])
        tessera.pool_score(*pooled, block=block, out=scores)
        tessera.select(scores, k=most, out=found)
        plan.fill(lists)

    def by_torch():
        s = means(q, block).float() @ means(k, block).float().transpose(2, 3)
        return torch.topk(s, most, sorted=False)

    yield "tessera", choose
    yield "torch", by_torch


def columns(rows, n, share):
    x = torch.empty(rows, n, device="cuda", dtype=torch.uint8)
    for part in x.split(1 << 9):
        part.copy_(torch.rand(len(part), n, device="cuda") < share)
    return x


def lists(rows, n, share):
    x = columns(rows, n, float(share))
    bits = tessera.columns(tessera.Columns(bytes=x), n, "bits")
    most = int(x.sum(1, dtype=torch.int32).max())
    held = {}
    yield "read", rows * n // 8

    def convert():
        held["columns"] = tessera.columns(bits, n, "indices", most)

    yield "tessera", convert
    yield "check", lambda: same(held["columns"].indices[held["columns"].indices >= 0], x.nonzero()[:, 1], "columns")
    yield "torch_nonzero", lambda: x.nonzero()


def pack(rows, n):
    x = columns(rows, n, .07)
    powers = torch.tensor([1 << i for i in range(8)], device="cuda", dtype=torch.uint8)
    held = {}
    yield "read", rows * n + rows * n // 8

    def convert():
        held["bits"] = tessera.columns(tessera.Columns(bytes=x), n, "bits").bits

    yield "tessera", convert
    yield "check", lambda: same(held["bits"][:64].view(torch.uint8).view(64, -1),
                                (x[:64].view(64, -1, 8) * powers).sum(2, dtype=torch.uint8), "bits")
    yield "torch", lambda: (x.view(rows, -1, 8) * powers).sum(2, dtype=torch.uint8)


def mask(batch, heads, n, block):
    at = torch.arange(n, device="cuda")
    x = ((at[:, None] - at).abs() <= 16).expand(batch, heads, n, n).to(torch.uint8).contiguous()
    q = torch.randn(batch, heads, n, 64, device="cuda", dtype=torch.bfloat16)
    pattern = tessera.DevicePattern.mask(x, block=block)
    plan = tessera.ReservedPlan(pattern, q, q, q)
    tiles = x.view(batch, heads, n // block, block, n // block, block)
    yield "read", x.numel()
    yield "tessera", lambda: plan.fill(pattern)
    yield "check", lambda: same(torch.tensor(plan.report()["pairs"]), int(x.sum(dtype=torch.int64)), "pairs")
    yield "torch_blocks", lambda: (tiles.any(5).any(3), tiles.all(5).all(3))
    yield "torch_nonzero", lambda: x.nonzero()


def filled(heads, n, block, share):
    rows = -(-n // block)
    q, k, v, o = (torch.randn(1, heads, n, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    lse = torch.randn(1, heads, n, device="cuda") + math.log(float(share) * n)  # of o, which is the base
    bits = tessera.columns(tessera.Columns(bytes=columns(heads * rows, n, float(share))), n, "bits").bits
    bits = bits.view(1, heads, rows, -1)
    listed = tessera.DevicePattern.bits(bits, n, n, block=(block, 1), capacity=int(1.01 * float(share) * heads * rows * n))
    plan, (out, merged) = tessera.ReservedPlan(listed, q, k, v), (torch.empty_like(q) for _ in range(2))
    plan.fill(listed)
    own = plan(q, k, v, out=out, return_lse=True)[1]

    def check_merged():
        for h in range(heads):
            expected = torch.lerp(out[0, h].float(), o[0, h].float(), torch.sigmoid(lse[0, h] - own[0, h])[:, None])
            same((merged[0, h].float() - expected).abs() < 2e-2, True, "outputs with a base")

    def dense():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)

    yield "read", bits.numel() * 8
    yield "tessera_fill", lambda: plan.fill(listed)
    yield "tessera", lambda: plan(q, k, v, out=out)
    yield "tessera_step", lambda: plan.step(listed, q, k, v, out=out)
    yield "merged", lambda: plan(q, k, v, out=merged, base=(o, lse))
    yield "merged_step", lambda: plan.step(listed, q, k, v, out=merged, base=(o, lse))
    yield "check", check_merged
    yield "cudnn_dense", dense
    if n > HOST_MOST:
        return
    pattern = tessera.Pattern.from_bits(bits.cpu().numpy().view("uint64"), n, block=(block, 1))
    host, expected = tessera.Plan(pattern, q, k, v), torch.empty_like(q)
    yield "tessera_host", lambda: host(q, k, v, out=expected)
    yield "check", lambda: same((out - expected).abs() < 1e-2, True, "outputs")


WORKS = dict(filled=filled, topk=topk, pool=pool, score=score, chain=chain, lists=lists, pack=pack, mask=mask)


def case_parse(line):
    name, _, sizes = line.partition(":")
    if name not in WORKS:
        raise ValueError(f"'{line}' is none of {', '.join(WORKS)}")
    return WORKS[name], [int(x) if x.isdigit() else x for x in sizes.split(",")]


def copy_gbs():
    x = torch.empty(1 << 29, device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)
    replay = turns.Replay(lambda: y.copy_(x), "cuda")
    turns.warm()
    return 2e-6 * x.numel() / min(replay.once() for _ in range(5))


def measure(line, rounds):
    work, sizes = case_parse(line)
    rows, replays, last, read = {}, {}, None, 0
    for name, x in work(*sizes):
        if name == "read":
            read = x
            continue
        if name != "check":
            last = rows[name] = dict(case=line, who=name)
        elif "absent" in last:
            continue
        try:
            x()
            torch.cuda.synchronize()
            if name != "check":
                replays[name] = turns.Replay(x, "cuda", capture=not name.endswith("nonzero"))
                last["timing"] = replays[name].timing
                replays[name].once()  # what a capture has allocated is written by a replay
        except Exception as why:  # each is a row that says so
            last["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
            replays.pop(last["who"], None)
    turns.warm()
    for name, ms in turns.turns(replays, rounds).items():
        rows[name]["us"] = 1e3 * statistics.median(ms)
        rows[name]["gbs"] = read / rows[name]["us"] * 1e-3
    return list(rows.values())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rounds", type=int, default=9, help="interleaved rounds of each case")
    p.add_argument("--csv", help="where the rows go")
    p.add_argument("case", nargs="*")
    a = p.parse_args()
    try:
        for line in a.case:
            case_parse(line)
    except ValueError as why:
        p.error(str(why))
    commit = commit_of(pathlib.Path(os.environ.get("TESSERA_LIBRARY", "")).parent)
    wrong, rate = 0, copy_gbs()
    print(f"copy: {rate:.0f} GB/s, read and written")
    with open(a.csv or os.devnull, "w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writeheader()
        for line in a.case or CASES:
            for row in measure(line, a.rounds):
                row.update(commit=commit, device=device_name("cuda"), copy_gbs=rate)
                writer.writerow(row)
                wrong |= row.get("absent", "").startswith("WRONG")
                result = row.get("absent") or f"{row['us']:10.1f} us {row['gbs']:8.0f} GB/s  {row['timing']}"
                print(f"{line:32s} {row['who']:14s} {result}", flush=True)
            f.flush()
            torch.cuda.empty_cache()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
