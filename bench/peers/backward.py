#!/usr/bin/env python3
"""Tessera's backward beside PyTorch's dense one, on the same tensors and in the same minute.

    python3 bench/peers/backward.py --library build/release/libtessera.so --json out.json --csv out.csv

A case is a line of `tessera bench` without op=backward; one with pipeline=staged has the staged backward beside
the fused one. PyTorch computes its scaled_dot_product_attention once, and torch.autograd.grad of q, k and v
each round, over all pairs whatever the pattern. Where the pattern is dense or causal, gradients are compared
before anything is timed; staged and fused ones always are.

Times are medians of interleaved rounds, tflops counts five products of listed pairs, two of a forward. Of our
backwards' rows, medians of each round's ratios: over_dense, times of PyTorch's fastest backward over ours;
times_forward, ours over our forward's; rate_of_..., our rate over that of our forward, of the portable forward
(without Hopper's instructions), and of PyTorch's backwards by FlashAttention 2 and cuDNN.

On the CPU (backward_cpu.txt) 16 threads and 1, f32 and bf16, take 40 s of a 16-core processor; on CUDA
(backward_cuda.txt) the host plans what it measures, and graphs hold our runs; PyTorch's are calls that the host
gives while the device sleeps.
"""
import argparse
import csv
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F

import field
import library as tessera
import turns
from field import Work, case_parse, commit_of, device_name, needs

OVER = ("times_forward", "rate_of_forward", "rate_of_portable", "rate_of_flash2", "rate_of_cudnn",
        "rate_of_efficient")
FIELDS = ("case", "who", "kernel", "device", "commit", "pairs", "difference", "ms", "ms_min", "ms_max", "runs",
          "tflops", "over_dense", *OVER, "absent")
# Of a gradient: both round its weights and sums, each in its own order.
TOLERANCE = {"f32": 1e-4, "f16": 5e-3, "bf16": 2e-2}
# PyTorch's on CUDA; the CPU has one.
DENSE = {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
OURS = ("tessera", "tessera_staged")


def stream(work):
    return torch.cuda.current_stream().cuda_stream if work.device == "cuda" else 0


def forward(kernel=None):
    def make(work, d_o):
        case = work.case
        tensors = work.q, work.k, work.v, work.o, work.lse
        plan = tessera.Plan(work.library, work.pattern, tessera.Attention.inputs(work.library, tensors, case["dtype"]),
                            work.device, "fused", case["threads"], kernel and kernel.format(**case))
        a = tessera.Attention(work.library, plan, case["dtype"], tensors)

        def run():
            a.run(stream(work))

        run.kernel, run.exact, run.products = a.kernel(), False, 2
        return run

    return make


def ours(pipeline):
    """After a forward, whose o and lse it reads."""
    def make(work, d_o):
        case = work.case
        needs(pipeline == "fused" or case.get("pipeline") == pipeline, "not asked of this case")
        gradients = [torch.empty_like(x) for x in (work.q, work.k, work.v)]
        a = tessera.Backward(work.library, work.pattern, (work.q, work.k, work.v, work.o, d_o), work.lse,
                             gradients, case["dtype"], work.device, pipeline, case["threads"], case["spill"])

        def run():
            a.run(stream(work))
            return gradients

        run.kernel, run.exact, run.products = a.kernel(), True, 5
        return run

    return make


def dense(backend):
    def make(work, d_o):
        case = work.case
        needs(case["pattern"] != "causal" or case["n"] == case["nkv"], "causal over other keys")
        needs(backend != "EFFICIENT_ATTENTION" or case["dtype"] == "f32", "others are faster")
        needs(backend in (None, "EFFICIENT_ATTENTION") or case["dtype"] != "f32", "16 bits only")
        inputs = [x.detach().requires_grad_() for x in (work.q, work.k, work.v)]
        attend = dict(is_causal=case["pattern"] == "causal", enable_gqa=case["h"] != case["hkv"])
        if backend:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            with sdpa_kernel(getattr(SDPBackend, backend)):
                o = F.scaled_dot_product_attention(*inputs, **attend)
        else:
            o = F.scaled_dot_product_attention(*inputs, **attend)

        def run():
            return torch.autograd.grad(o, inputs, d_o, retain_graph=True)

        # autograd runs on the stream of its forward, which is not the one that captures.
        run.kernel, run.exact, run.products, run.capture = "pytorch_dense", work.dense, 5, False
        return run

    return make


def difference(a, b):
    """The largest of a gradient, relative to the other's norm."""
    return max(((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(a, b))


def who_runs(device):
    who = {"forward": forward(), "tessera": ours("fused")}
    if device == "cpu":
        return dict(who, pytorch=dense(None))
    return dict(who, tessera_staged=ours("staged"),
                portable=forward("cuda_attention_{dtype}_d{d}"),
                **{name: dense(backend) for name, backend in DENSE.items()})


def enter(work, d_o):
    """A row for each, and the replays of those that run."""
    rows, replays, products, answer = {}, {}, {}, None
    for name, make in who_runs(work.device).items():
        row = rows[name] = dict(case=work.case["line"], who=name, kernel=name, pairs=work.pairs)
        try:
            run = make(work, d_o)
            out = run()
            row["kernel"] = run.kernel
            if run.exact:
                out = [x.clone() for x in out]
                answer = answer or out
                row["difference"] = difference(out, answer)
                if not row["difference"] <= TOLERANCE[work.case["dtype"]]:
                    row["absent"] = f"WRONG: it differs by {row['difference']:.2e}"
                    continue
            replays[name] = turns.Replay(run, work.device, getattr(run, "capture", True))
            products[name] = run.products
        except field.Refused:
            del rows[name]
        except Exception as why:  # each is a row that says so
            row["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
    return rows, replays, products


def measure(library, case, device, rounds):
    if device == "cpu":
        torch.set_num_threads(case["threads"] or torch.get_num_threads())
    work = Work(library, case, device)
    rows, replays, products = enter(work, torch.randn_like(work.o))
    if device == "cuda":
        turns.warm(100)
    times = turns.turns(replays, rounds)
    flops = {}
    for name, ms in times.items():
        median = statistics.median(ms)
        listed = name in (*OURS, "forward", "portable")
        dims = case["d"] + case["dv"] if products[name] == 2 else 3 * case["d"] + 2 * case["dv"]
        flops[name] = 2 * dims * (work.pairs if listed else work.dense_pairs())
        rows[name].update(ms=median, ms_min=min(ms), ms_max=max(ms), runs=len(ms),
                          tflops=flops[name] / median * 1e-9)

    def ratio(one, other):
        """Of times, in each round."""
        return statistics.median(x / y for x, y in zip(times[one], times[other]))

    for name in OURS:
        if name not in times:
            continue
        peers = [x for x in (*DENSE, "pytorch") if x in times]
        if peers:
            rows[name]["over_dense"] = ratio(min(peers, key=lambda x: rows[x]["ms"]), name)
        if "forward" in times:
            rows[name]["times_forward"] = ratio(name, "forward")
        for other in {"forward", "portable", *DENSE} & times.keys():
            rows[name][f"rate_of_{other}"] = ratio(other, name) * flops[name] / flops[other]
    return list(rows.values())


def tell(row):
    if "ms" not in row:
        return row["absent"]
    words = row.get("absent", "") + f"{row['ms']:9.3f} ms {row['tflops']:8.3f} Tflop/s"
    if "over_dense" in row:
        words += f" {row['over_dense']:6.2f} of dense"
    return words + "".join(f", {key} {row[key]:.2f}" for key in OVER if key in row)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="path of libtessera.so")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    p.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each case")
    p.add_argument("--sweep", help="a file of cases, one a line, # begins a comment (default backward_DEVICE.txt)")
    p.add_argument("--json", help="where the rows go, as one array")
    p.add_argument("--csv", help="where they go as CSV")
    p.add_argument("case", nargs="*", help="instead of the sweep")
    a = p.parse_args()
    sweep = a.sweep or str(pathlib.Path(__file__).parent / f"backward_{a.device}.txt")
    lines = a.case or [s for s in (line.split("#")[0].strip() for line in open(sweep)) if s]
    try:
        cases = [case_parse(line) for line in lines]
    except ValueError as why:
        p.error(str(why))
    library, rows = tessera.Library(a.library), []
    commit, device = commit_of(pathlib.Path(a.library).parent), device_name(a.device)
    for case in cases:
        for row in measure(library, case, a.device, a.rounds):
            row.update(commit=commit, device=device)
            rows.append(row)
            print(f"{case['line']:66s} {row['who']:14s} {tell(row)}", flush=True)
        if a.device == "cuda":
            torch.cuda.empty_cache()
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    wrong = [row for row in rows if row.get("absent", "").startswith("WRONG") or
             row["who"] in OURS and "absent" in row]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
