#!/usr/bin/env python3
"""Decode over top-k lists on CUDA: Tessera's filled plan beside a plain Triton kernel (triton_decode.py).

    python3 bench/peers/decode.py --library build/release/libtessera.so --csv out.csv [CASE...]

A case is a line of `tessera bench` with the keys h, n, nkv, d, dv, dtype, topk, valid and seed: n queries of h
heads over one KV head, V in the first dims of K, a list for each query, the first entries valid. Times are
medians of interleaved rounds of graph replays, microseconds a step: cold, where eight draws of the lists take
turns, and warm, of one. tessera_run has its lists filled already, tessera_step fills first; Triton reads the
padded indices. Its configuration is the fastest when cold of those that fit. Answers are held against each other
before anything is timed.
"""
import argparse
import csv
import itertools
import pathlib
import statistics
import sys

import torch

import library as tessera
import turns
from field import DTYPES, TOLERANCE, commit_of, device_name

SETS = 8
DEFAULTS = dict(h=16, n=8, nkv=541568, d=576, dv=512, dtype="bf16", topk=2048, valid=1.0, seed=0)
CASES = ([f"n={n},valid={valid}" for n in (1, 8, 128) for valid in (1, .14, .02)] +
         ["h=128,n=64", "h=128,n=64,valid=0.02"])
FIELDS = ("case", "who", "device", "commit", "config", "difference", "cold_us", "warm_us", "absent")


def case_parse(line):
    """The case as a dict; ValueError for what is no key of it."""
    case = dict(DEFAULTS, line=line)
    for item in line.split(","):
        key, equals, value = item.partition("=")
        if not equals or key not in DEFAULTS:
            raise ValueError(f"'{key}' in '{line}' is none of {', '.join(DEFAULTS)}")
        case[key] = type(DEFAULTS[key])(value)
    return case


class Work:
    """A case's tensors and sets of indices."""

    def __init__(self, case, device):
        c, dtype = case, DTYPES[case["dtype"]]
        torch.manual_seed(c["seed"])
        self.case, self.device = case, device
        self.q = torch.randn(c["n"], c["h"], c["d"], device=device, dtype=dtype)
        self.cache = torch.randn(c["nkv"], c["d"], device=device, dtype=dtype)
        valid = round(c["topk"] * c["valid"])
        self.indices = []
        for _ in range(SETS):
            # Distinct, as a top-k's are: one of each stretch of the cache.
            step = c["nkv"] // max(valid, 1)
            index = torch.full((c["n"], c["topk"]), -1, device=device, dtype=torch.int32)
            index[:, :valid] = torch.arange(valid, device=device, dtype=torch.int32) * step + torch.randint(
                0, step, (c["n"], valid), device=device, dtype=torch.int32)
            self.indices.append(index)


def ours(library, work, step):
    c = work.case
    # One sequence of n queries: [1, H, N, D] views of [N, H, D].
    o = torch.empty(c["n"], c["h"], c["dv"], device=work.device, dtype=work.q.dtype)
    lse = torch.empty(1, c["h"], c["n"], 1, device=work.device)
    cache = work.cache[None, None]
    plan = tessera.Decode(library, work.q.transpose(0, 1)[None], cache, cache[..., :c["dv"]],
                          o.transpose(0, 1)[None], lse, work.indices, c["dtype"],
                          "cuda" if work.device == "cuda" else "cpu")

    def run(number):
        stream = torch.cuda.current_stream().cuda_stream if work.device == "cuda" else 0
        if step:
            plan.fill(number, stream)
        plan.run(number, stream)
        return o

    for number in range(SETS):
        plan.fill(number)
    run.config = plan.kernel()
    return run


def cold_of(run, device):
    number = itertools.count()
    return turns.Replay(lambda: run(next(number) % SETS), device)


def triton(work):
    import triton_decode

    c = work.case
    if c["dv"] % 128 or c["dv"] & (c["dv"] - 1) or c["d"] - c["dv"] not in (16, 32, 64, 128):
        raise RuntimeError("V of 128 or 512 dims inside K of 16 to 128 more")
    launch, o = triton_decode.launcher(work.q, work.cache, c["dv"], c["topk"])
    best, why = None, None
    for config in triton_decode.CONFIGS if work.device == "cuda" else triton_decode.CONFIGS[:1]:
        try:
            replay = cold_of(lambda i: launch(config, work.indices[i]), work.device)
            took = min(replay.once() for _ in range(3))
        except Exception as error:  # too much shared memory, mostly
            why = error
            continue
        if best is None or took < best[0]:
            best = took, config
    if best is None:
        raise why

    def run(number):
        launch(best[1], work.indices[number])
        return o

    run.config = "/".join(map(str, best[1]))
    return run


def measure(library, case, device, rounds):
    work = Work(case, device)
    makers = {"tessera_run": lambda: ours(library, work, False), "tessera_step": lambda: ours(library, work, True),
              "triton": lambda: triton(work)}
    rows, replays, answer = {}, {}, None
    for name, make in makers.items():
        row = rows[name] = dict(case=case["line"], who=name)
        try:
            run = make()
            out = run(0).float().clone()
            row["config"] = run.config
            answer = out if answer is None else answer
            row["difference"] = ((out - answer).norm() / answer.norm().clamp(min=1e-30)).item()
            if not row["difference"] <= TOLERANCE[case["dtype"]]:
                row["absent"] = f"WRONG: it differs from the first by {row['difference']:.2e}"
                continue
            replays[name, "cold_us"] = cold_of(run, device)
            replays[name, "warm_us"] = turns.Replay(lambda run=run: run(0), device)
        except Exception as why:  # each is a row that says so
            row["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
    if device == "cuda":
        turns.warm()
    for (name, field), ms in turns.turns(replays, rounds).items():
        rows[name][field] = 1e3 * statistics.median(ms)
    return list(rows.values())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="path of libtessera.so")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--rounds", type=int, default=15, help="interleaved rounds of each case")
    p.add_argument("--csv", help="where the rows go")
    p.add_argument("case", nargs="*")
    a = p.parse_args()
    try:
        cases = [case_parse(line) for line in a.case or CASES]
    except ValueError as why:
        p.error(str(why))
    library, rows = tessera.Library(a.library), []
    commit = commit_of(pathlib.Path(a.library).parent)
    for case in cases:
        for row in measure(library, case, a.device, a.rounds):
            row.update(commit=commit, device=device_name(a.device))
            rows.append(row)
            result = row.get("absent") or f"cold {row['cold_us']:8.1f} warm {row['warm_us']:8.1f} us"
            print(f"{case['line']:28s} {row['who']:14s} {row.get('config', ''):34s} {result}", flush=True)
        if a.device == "cuda":
            torch.cuda.empty_cache()
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 1 if any(row.get("absent", "").startswith("WRONG") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
