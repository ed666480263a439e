#!/usr/bin/env python3
"""Tessera's backward on the CPU beside PyTorch's dense one, on the same tensors and in the same minute.

    python3 bench/peers/backward.py --library build/release/libtessera.so --json out.json --csv out.csv

A case is a line of `tessera bench` without op=backward. PyTorch computes its scaled_dot_product_attention
once, and torch.autograd.grad of q, k and v each round, over all pairs whatever the pattern. Where the
pattern is dense or causal, gradients are compared before anything is timed. Times are medians of interleaved
rounds; over_dense is the median of each round's ratio, PyTorch's time over ours; tflops counts five
products of listed pairs. 16 threads and 1, f32 and bf16, take 40 s of a 16-core processor.
"""
import argparse
import csv
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F

import library as tessera
import turns
from field import Work, case_parse, commit_of, device_name, needs

FIELDS = ("case", "kernel", "device", "commit", "pairs", "difference", "ms", "ms_min", "ms_max", "runs",
          "tflops", "over_dense", "absent")
# Of a gradient: both round its weights and sums, each in its own order.
TOLERANCE = {"f32": 1e-4, "f16": 5e-3, "bf16": 2e-2}


def ours(work, d_o):
    case, dtype = work.case, work.case["dtype"]
    forward = tessera.Attention(work.library, work.pattern, work.q, work.k, work.v, work.o, work.lse,
                                dtype, "cpu", "fused", case["threads"])
    forward.run()
    gradients = [torch.empty_like(x) for x in (work.q, work.k, work.v)]
    a = tessera.Backward(work.library, work.pattern, (work.q, work.k, work.v, work.o, d_o), work.lse,
                         gradients, dtype, case["threads"])

    def run():
        a.run()
        return gradients

    run.kernel, run.exact = a.kernel(), True
    return run


def dense(work, d_o):
    case = work.case
    needs(case["pattern"] != "causal" or case["n"] == case["nkv"], "causal over other keys")
    inputs = [x.detach().requires_grad_() for x in (work.q, work.k, work.v)]
    o = F.scaled_dot_product_attention(*inputs, is_causal=case["pattern"] == "causal",
                                       enable_gqa=case["h"] != case["hkv"])

    def run():
        return torch.autograd.grad(o, inputs, d_o, retain_graph=True)

    run.kernel, run.exact = "pytorch_dense", work.dense
    return run


def difference(a, b):
    """The largest of a gradient, relative to the other's norm."""
    return max(((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(a, b))


def measure(library, case, rounds):
    torch.set_num_threads(case["threads"] or torch.get_num_threads())
    work = Work(library, case, "cpu")
    d_o = torch.randn_like(work.o)
    rows, replays, answer = {}, {}, None
    for name, make in (("tessera", ours), ("pytorch", dense)):
        row = rows[name] = dict(case=case["line"], kernel=name, pairs=work.pairs)
        try:
            run = make(work, d_o)
            out = [x.clone() for x in run()]
            row["kernel"] = run.kernel
            answer = answer or out
            if run.exact:
                row["difference"] = difference(out, answer)
                if not row["difference"] <= TOLERANCE[case["dtype"]]:
                    row["absent"] = f"WRONG: it differs by {row['difference']:.2e}"
                    continue
            replays[name] = turns.Replay(run, "cpu")
        except Exception as why:  # each is a row that says so
            row["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
    times = turns.turns(replays, rounds)
    for name, ms in times.items():
        median = statistics.median(ms)
        pairs = work.pairs if name == "tessera" else work.dense_pairs()
        rows[name].update(ms=median, ms_min=min(ms), ms_max=max(ms), runs=len(ms),
                          tflops=2 * (3 * case["d"] + 2 * case["dv"]) * pairs / median * 1e-9)
        if "pytorch" in times:
            rows[name]["over_dense"] = statistics.median(d / t for d, t in zip(times["pytorch"], ms))
    return list(rows.values())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="path of libtessera.so")
    p.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each case")
    p.add_argument("--sweep", default=str(pathlib.Path(__file__).parent / "backward_cpu.txt"),
                   help="a file of cases, one a line, # begins a comment")
    p.add_argument("--json", help="where the rows go, as one array")
    p.add_argument("--csv", help="where they go as CSV")
    p.add_argument("case", nargs="*", help="instead of the sweep")
    a = p.parse_args()
    lines = a.case or [s for s in (line.split("#")[0].strip() for line in open(a.sweep)) if s]
    try:
        cases = [case_parse(line) for line in lines]
    except ValueError as why:
        p.error(str(why))
    library, rows = tessera.Library(a.library), []
    commit, device = commit_of(pathlib.Path(a.library).parent), device_name("cpu")
    for case in cases:
        for row in measure(library, case, a.rounds):
            row.update(commit=commit, device=device)
            rows.append(row)
            result = row.get("absent") or (f"{row['ms']:9.2f} ms {row['tflops']:7.3f} Tflop/s"
                                           f"{row.get('over_dense', 0):7.2f} of dense")
            print(f"{case['line']:66s} {row['kernel'][:40]:40s} {result}", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    wrong = [row for row in rows if row.get("absent", "").startswith("WRONG") or
             row["kernel"] == "tessera"]  # ours goes by its kernels where it runs
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
