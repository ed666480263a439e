#!/usr/bin/env python3
"""The MLP over listed columns beside PyTorch's dense one: linear, GELU by tanh, linear.

    PYTHONPATH=python TESSERA_LIBRARY=build/release/libtessera.so python3 bench/peers/mlp.py --csv out.csv [CASE...]

A case is rows,dims,hidden,group,keep,dtype: `keep` of the hidden columns, drawn for each group of rows; 1: all, without
lists.

    torch_dense        both linears and the activation between them
    torch_scatter      a scatter of a group's activations into the cache, as PyTorch has it (CUDA)
    triton             triton_mlp.py: a delta (CUDA)
    tessera            without caches
    tessera_store      the step of caching: activations are written as well
    tessera_delta      activations less cached ones, added to the cached output; both caches are brought up to date

Times are medians and least of interleaved rounds, milliseconds: graph replays on CUDA, calls on the CPU. Two x take
turns, so that deltas are not zero. Answers with all columns are held against PyTorch's.
"""
import argparse
import csv
import itertools
import os
import pathlib
import statistics
import sys

import torch
from torch.nn.functional import gelu, linear

import tessera
import turns
from field import DTYPES, commit_of, device_name

CASES = {"cuda": ("3840,3072,12288,128,1,bf16", "3840,3072,12288,128,0.3,bf16", "3840,3072,12288,128,0.1,bf16",
                  "3840,3072,12288,128,0.05,bf16", "3840,3072,12288,192,0.3,bf16"),
         "cpu": ("3840,3072,12288,128,1,bf16", "3840,3072,12288,128,0.3,bf16", "3840,3072,12288,128,0.1,bf16",
                 "3840,3072,12288,128,1,f32", "3840,3072,12288,128,0.3,f32")}
FIELDS = ("case", "who", "device", "commit", "timing", "ms", "min", "dense", "absent")


def draw(device, dtype, scale, *shape):
    return (torch.empty(*shape, device=device).uniform_(-1, 1) * scale).to(dtype)


def calls(line, device):
    """Names, and what is run; checks answer whether all is right."""
    rows, dims, hidden, group, keep, dtype = line.split(",")
    rows, dims, hidden, group, keep, dtype = int(rows), int(dims), int(hidden), int(group), float(keep), DTYPES[dtype]
    xs = [draw(device, dtype, 1, rows, dims) for _ in range(2)]
    w1, w2 = draw(device, dtype, (3 / dims)**.5, hidden, dims), draw(device, dtype, (3 / hidden)**.5, hidden, dims)
    bias, bias_out = draw(device, dtype, 1, hidden), draw(device, dtype, 1, dims)
    weight = w2.t().contiguous()  # as torch.nn.Linear has it
    turn = itertools.cycle(xs)

    def dense(x):
        return linear(gelu(linear(x, w1, bias), approximate="tanh"), weight, bias_out)

    yield "torch_dense", lambda: dense(next(turn))
    count, groups, pattern = hidden, -(-rows // group), None
    listed = torch.arange(hidden).repeat(groups, 1)
    if keep < 1:
        count = int(keep * hidden)
        listed = torch.stack([torch.randperm(hidden)[:count].sort().values for _ in range(groups)])
        pattern = tessera.Pattern.from_counts(listed.int()[None, None].numpy(), n_q=rows, n_kv=hidden, block=(group, 1))
    mlp = tessera.MLP(pattern, xs[0], w1, w2, activation="gelu_tanh")
    cache, out = (torch.zeros(n, m, device=device, dtype=dtype) for n, m in ((hidden, rows), (rows, dims)))
    if keep == 1:
        mlp(xs[0], w1, w2, bias=bias, bias_out=bias_out, out=out)
        if not bool(((out - dense(xs[0])).abs() < 2e-2).all()):
            raise RuntimeError("WRONG: all columns are not the dense MLP")
    yield "tessera", lambda: mlp(next(turn), w1, w2, bias=bias, bias_out=bias_out, out=out)
    yield "tessera_store", lambda: mlp(next(turn), w1, w2, bias=bias, bias_out=bias_out, activations=cache, out=out)
    yield "tessera_delta", lambda: mlp(next(turn), w1, w2, bias=bias, activations=cache, base=out, out=out)
    if device == "cpu" or rows % group:
        return
    place = listed.to(device)[:, :, None].expand(groups, count, group)
    views, h = cache.view(hidden, groups, group).permute(1, 0, 2), draw(device, dtype, 1, groups, count, group)
    yield "torch_scatter", lambda: views.scatter_(1, place, h)
    import triton_mlp
    delta = triton_mlp.Delta(listed.int().to(device), w1, w2, bias)
    if group % triton_mlp.ROWS == 0:
        yield "triton", lambda: delta(next(turn), cache, out)


def measure(line, device, rounds):
    rows, replays = {}, {}
    with torch.no_grad():
        for name, call in calls(line, device):
            rows[name] = dict(case=line, who=name)
            try:
                call()
                replays[name] = turns.Replay(call, device)
                rows[name]["timing"] = replays[name].timing
            except Exception as why:  # each is a row that says so
                rows[name]["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
        if device == "cuda":
            turns.warm()
        for name, ms in turns.turns(replays, rounds).items():
            rows[name].update(ms=statistics.median(ms), min=min(ms))
    for row in rows.values():
        if "ms" in row:
            row["dense"] = rows["torch_dense"].get("ms", 0) / row["ms"]
    return list(rows.values())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--device", choices=list(CASES), default="cuda")
    p.add_argument("--rounds", type=int, default=9, help="interleaved rounds of each case")
    p.add_argument("--csv", help="where the rows go")
    p.add_argument("case", nargs="*")
    a = p.parse_args()
    commit = commit_of(pathlib.Path(os.environ.get("TESSERA_LIBRARY", "")).parent)
    wrong = 0
    with open(a.csv or os.devnull, "w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writeheader()
        for line in a.case or CASES[a.device]:
            for row in measure(line, a.device, a.rounds):
                row.update(commit=commit, device=device_name(a.device))
                writer.writerow(row)
                wrong |= "absent" in row
                times = "{ms:9.4f} ms, least {min:9.4f}, {dense:6.2f} x dense"
                print(f"{line:32s} {row['who']:14s}", row.get("absent") or times.format(**row), flush=True)
            f.flush()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
