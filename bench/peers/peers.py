#!/usr/bin/env python3
"""Tessera beside its peers in PyTorch, on the same cases, tensors and minute.

    python3 bench/peers/peers.py --library build/release/libtessera.so --json out.json CASE...

A case is a line of `tessera bench`; in a sweep "CASE > FIELD NUMBER" asks that our fused kernel reach
the number in that field ("<": that it stay under it), and the row says what part of it is reached.
On CUDA: cuDNN's and FlashAttention-2's dense attention, and FlexAttention, FlashInfer, plain Triton
(triton_lists.py), FastVideo's VSA and FlashAttention 4 over the identical pattern, taken from Tessera's
own lists. On the CPU: PyTorch's attention. What is not installed, or refuses a case, is named with its
reason. Peers that compute the case's pattern are checked against Tessera's answer before anything is
timed (dense ones are checked where the pattern is dense or causal). Times are medians of interleaved rounds; on CUDA each is of one
call among as many as fill 2 ms, back to back in one captured graph. rate_over_dense and
time_over_dense are medians of each round's ratio to cuDNN's dense attention in that round: of useful
FLOP/s, and of times.
"""
import argparse
import csv
import json
import os
import pathlib
import statistics
import sys

import torch

import library as tessera
import turns
from field import PEERS, Work, case_parse, commit_of, device_name, enter, timed

FIELDS = ("case", "kernel", "device", "commit", "pairs", "difference", "ms", "ms_min", "ms_max", "runs",
          "launches", "tflops", "rate_over_dense", "time_over_dense", "asked", "reached", "tbps", "absent",
          "config")


def goal_parse(line):
    """A sweep's line as its case and what it asks: (">" or "<", field, number), or None."""
    words = line.split()
    if len(words) == 1:
        return line, None
    if len(words) != 4 or words[1] not in "<>" or words[2] not in FIELDS:
        raise ValueError(f"'{line}' is no CASE, nor CASE > FIELD NUMBER")
    return words[0], (words[1], words[2], float(words[3]))


def ceilings(device):
    """What the machine does at best just now: the two that every row is to be read beside."""
    if device == "cpu":
        return {}
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(1 << 30, device=device, dtype=torch.uint8)
    y = torch.empty_like(x)
    return {"matmul_bf16": lambda: torch.mm(a, b), "copy": lambda: y.copy_(x)}


def measure(library, case, device, wanted, rounds):
    torch.set_num_threads(case["threads"] or os.cpu_count())
    work = Work(library, case, device)
    rows, replays = enter({name: PEERS[name] for name in wanted}, work)
    for name, run in ceilings(device).items():
        rows[name] = dict(case=case["line"], kernel=name, launches=1)
        # a copy inside a graph goes by the slower copy engine
        replays[name] = turns.Replay(run, device, capture=False)
    if device == "cuda":
        turns.warm()
    times = turns.turns(replays, rounds)
    for name, ms in times.items():
        row = rows[name]
        timed(row, ms, work)
        if name in PEERS and name != "cudnn_dense" and "cudnn_dense" in times:
            over = statistics.median(d / t for d, t in zip(times["cudnn_dense"], ms))
            row.update(time_over_dense=over, rate_over_dense=over * work.pairs / work.dense_pairs())
        if name == "copy":
            row["tbps"] = 2 * (1 << 30) / row["ms"] * 1e-9
            del row["tflops"]
        elif name == "matmul_bf16":
            row["tflops"] = 2 * 8192**3 / row["ms"] * 1e-9
        if "goal" in case and name == "tessera_fused":
            sense, field, number = case["goal"]
            row["asked"] = f"{field} {sense} {number:g}"
            if field in row:  # not without the peer that it is relative to
                row["reached"] = row[field] / number if sense == ">" else number / row[field]
    return list(rows.values())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="path of libtessera.so")
    p.add_argument("--device", choices=("cuda", "cpu"),
                   default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--peers", default=",".join(PEERS), help="which, of " + ", ".join(PEERS))
    p.add_argument("--rounds", type=int, default=15, help="interleaved rounds of each case")
    p.add_argument("--sweep", help="a file of cases, one a line, # begins a comment")
    p.add_argument("--json", help="where the rows go, as one array")
    p.add_argument("--csv", help="where they go as CSV")
    p.add_argument("case", nargs="*")
    a = p.parse_args()
    for name in a.peers.split(","):
        if name not in PEERS:
            p.error(f"--peers: '{name}' is none of {', '.join(PEERS)}")
    lines = list(a.case)
    if a.sweep:
        lines += [s for s in (line.split("#")[0].strip() for line in open(a.sweep)) if s]
    cases = []
    try:
        for line, goal in map(goal_parse, lines):
            cases.append(dict(case_parse(line), **({"goal": goal} if goal else {})))
    except ValueError as why:
        p.error(str(why))
    library, rows, wrong = tessera.Library(a.library), [], 0
    commit = commit_of(pathlib.Path(a.library).parent)
    for case in cases:
        for row in measure(library, case, a.device, a.peers.split(","), a.rounds):
            row.update(commit=commit, device=device_name(a.device))
            rows.append(row)
            wrong += row.get("absent", "").startswith("WRONG")
            rate = f"{row['tflops']:7.1f} Tflop/s" if "tflops" in row else f"{row.get('tbps', 0):7.2f} TB/s"
            result = f"{row['ms']:9.3f} ms {rate}" if "ms" in row else row["absent"]
            if "reached" in row:
                result += f", {row['asked']}: {row[row['asked'].split()[0]]:.3f}, {100 * row['reached']:.0f} %"
            print(f"{case['line']:72s} {row['kernel']:28s} {result}", flush=True)
        if a.device == "cuda":
            torch.cuda.empty_cache()
    if a.json:
        with open(a.json, "w") as f:
            json.dump([{k: v for k, v in row.items() if k in FIELDS} for row in rows], f, indent=1)
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, extrasaction="ignore", quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
