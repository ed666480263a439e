#!/usr/bin/env python3
"""Tessera beside its peers in PyTorch, on the same cases, tensors and minute.

    python3 bench/peers/peers.py --library build/release/libtessera.so --json out.json CASE...

A case is a line of `tessera bench`; in a sweep "CASE > FIELD NUMBER" asks that our fused kernel reach
the number in that field ("<": that it stay under it), and the row says what part of it is reached.
On CUDA: cuDNN's and FlashAttention-2's dense attention and
FlexAttention and FlashInfer over the identical pattern, taken from Tessera's own lists. On the CPU:
PyTorch's attention. What is not installed, or refuses a case, is named with its reason. Peers that compute the
case's pattern are checked against Tessera's answer before anything is timed (dense ones are checked
where the pattern is dense or causal). Times are medians of interleaved rounds; on CUDA each is of one
call among as many as fill 2 ms, back to back in one captured graph. rate_over_dense and
time_over_dense are medians of each round's ratio to cuDNN's dense attention in that round: of useful
FLOP/s, and of times.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import library as tessera

DEFAULTS = dict(b="1", h="8", n="4096", d="64", dtype="f32", block="64x64", pattern="dense", lists="q",
                seed="0", threads="0")
# --device and --peers say where and what runs, so a line's backend and pipeline say nothing here.
KEYS = (*DEFAULTS, "hkv", "nkv", "dv", "backend", "pipeline", "kernel")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FIELDS = ("case", "kernel", "device", "commit", "pairs", "difference", "ms", "ms_min", "ms_max", "runs",
          "launches", "tflops", "rate_over_dense", "time_over_dense", "asked", "reached", "tbps", "absent")
# Two right answers, each rounded and summed in its own order: relative, over a whole tensor.
TOLERANCE = {"f32": 2e-5, "f16": 2e-3, "bf16": 1.2e-2}


def goal_parse(line):
    """A sweep's line as its case and what it asks: (">" or "<", field, number), or None."""
    words = line.split()
    if len(words) == 1:
        return line, None
    if len(words) != 4 or words[1] not in "<>" or words[2] not in FIELDS:
        raise ValueError(f"'{line}' is no CASE, nor CASE > FIELD NUMBER")
    return words[0], (words[1], words[2], float(words[3]))


def case_parse(line):
    """The case as a dict; ValueError for what would be measured otherwise than the line says."""
    case, depth, field = dict(DEFAULTS), 0, ""
    for c in line + ",":
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            key, equals, value = field.strip().partition("=")
            if not equals or key not in KEYS:
                raise ValueError(f"'{key}' in '{line}' is no key that the peers follow")
            case[key] = value
            field = ""
        else:
            field += c
    case.setdefault("hkv", case["h"])
    case.setdefault("nkv", case["n"])
    case.setdefault("dv", case["d"])
    for key in ("b", "h", "hkv", "n", "nkv", "d", "dv", "threads"):
        case[key] = int(case[key])
    case["block_q"], case["block_kv"] = map(int, case["block"].split("x"))
    return case


class Work:
    """A case's tensors and pattern on one device."""

    def __init__(self, library, case, device):
        c, dtype = case, DTYPES[case["dtype"]]
        torch.manual_seed(int(c["seed"]))
        self.case, self.device = case, device
        self.q = torch.randn(c["b"], c["h"], c["n"], c["d"], device=device, dtype=dtype)
        self.k = torch.randn(c["b"], c["hkv"], c["nkv"], c["d"], device=device, dtype=dtype)
        self.v = torch.randn(c["b"], c["hkv"], c["nkv"], c["dv"], device=device, dtype=dtype)
        self.o = torch.empty(c["b"], c["h"], c["n"], c["dv"], device=device, dtype=dtype)
        self.lse = torch.empty(c["b"], c["h"], c["n"], 1, device=device, dtype=torch.float32)
        heads = {"q": c["h"], "kv": c["hkv"], "1": 1}[c["lists"]]
        self.pattern = tessera.Pattern(library, c["pattern"], c["n"], c["nkv"], c["block_q"],
                                       c["block_kv"], heads)
        info = self.pattern.info()
        self.pairs = info.pairs * (c["b"] * c["h"] // (info.batch * info.heads))

    def flops(self):
        return 2 * (self.case["d"] + self.case["dv"]) * self.pairs

    def dense_pairs(self):
        """What dense attention computes of the case; causal is a dense kernel's own case."""
        c = self.case
        return self.pairs if c["pattern"] == "causal" else c["b"] * c["h"] * c["n"] * c["nkv"]


# ---- who can run a case: each answers a function of no arguments that returns the output ----


def ours(pipeline):
    def make(library, work):
        backend = "cuda" if work.device == "cuda" else "cpu"
        a = tessera.Attention(library, work.pattern, work.q, work.k, work.v, work.o, work.lse,
                              work.case["dtype"], backend, pipeline, work.case["threads"],
                              work.case.get("kernel"))

        def run():
            a.run(torch.cuda.current_stream().cuda_stream if backend == "cuda" else 0)
            return work.o

        run.kernel = a.kernel()
        return run

    return make


def dense(backend_name):
    def make(library, work):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if work.device == "cpu" and backend_name != "FLASH_ATTENTION":
            raise RuntimeError("CUDA only")
        which, causal = getattr(SDPBackend, backend_name), work.case["pattern"] == "causal"
        grouped = work.case["h"] != work.case["hkv"]

        def run():
            with sdpa_kernel(which):
                return F.scaled_dot_product_attention(work.q, work.k, work.v, is_causal=causal,
                                                      enable_gqa=grouped)

        run.exact = work.case["pattern"] in ("dense", "causal")
        return run

    return make


def block_mask(work):
    """FlexAttention's mask of the case: whole tiles where its blocks are at least 64 wide, else a
    look-up of the fine blocks inside tiles of 128."""
    from torch.nn.attention.flex_attention import BlockMask

    c = work.case
    listed, partial = work.pattern.blocks()
    if partial.any():
        raise RuntimeError("the pattern has partial tiles: no mask is made for them")
    fine = torch.from_numpy(listed).to(work.device)[None]
    block = (c["block_q"], c["block_kv"])
    coarse, mod, size = fine, None, block
    if min(block) < 64:
        size = (128, 128)
        if any(128 % b for b in block):
            raise RuntimeError("its blocks do not divide 128")
        q, kv = size[0] // block[0], size[1] // block[1]
        lists, rows, columns = listed.shape
        coarse = F.max_pool2d(fine.float(), (q, kv), ceil_mode=True).bool()
        one = lists == 1

        def mod(b, h, i, j):
            return fine[0, 0 if one else h, i // block[0], j // block[1]]

    count = coarse.sum(-1).to(torch.int32)
    index = torch.argsort((~coarse).to(torch.int8), dim=-1, stable=True).to(torch.int32)
    none = torch.zeros_like(count)
    full, part = ((none, index), (count, index)) if mod else ((count, index), (none, index))
    return BlockMask.from_kv_blocks(*part, *full, BLOCK_SIZE=size, mask_mod=mod,
                                    seq_lengths=(c["n"], c["nkv"])), size


def flex(library, work):
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 256
    mask, size = block_mask(work)
    compiled = torch.compile(flex_attention, dynamic=False)
    # It refuses blocks under its own tile unless the tile is named.
    options = {"BLOCK_M": min(size[0], 128), "BLOCK_N": min(size[1], 128)} if min(size) < 128 else None
    grouped = work.case["h"] != work.case["hkv"]

    def run():
        return compiled(work.q, work.k, work.v, block_mask=mask, kernel_options=options,
                        enable_gqa=grouped)

    run.exact = True
    return run


def flashinfer(library, work):
    from flashinfer import BlockSparseAttentionWrapper

    c = work.case
    listed, partial = work.pattern.blocks()
    if partial.any() or c["n"] % c["block_q"] or c["nkv"] % c["block_kv"]:
        raise RuntimeError("whole blocks only")
    if c["b"] > 1 or len(listed) > 1:
        raise RuntimeError("one list for all heads only (lists=1)")
    rows, columns = (torch.from_numpy(x).to(torch.int32) for x in listed[0].nonzero())
    begin = torch.zeros(listed.shape[1] + 1, dtype=torch.int32)
    begin[1:] = torch.bincount(rows, minlength=listed.shape[1]).cumsum(0)
    wrapper = BlockSparseAttentionWrapper(torch.empty(128 << 20, dtype=torch.uint8, device=work.device))
    wrapper.plan(begin.to(work.device), columns.to(work.device), c["n"], c["nkv"], c["block_q"],
                 c["block_kv"], c["h"], c["hkv"], c["d"], q_data_type=work.q.dtype)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (work.q, work.k, work.v))

    def run():
        return wrapper.run(q, k, v).transpose(0, 1)[None]

    run.exact = True
    return run


PEERS = {"tessera_fused": ours("fused"), "tessera_staged": ours("staged"),
         "cudnn_dense": dense("CUDNN_ATTENTION"), "flash2_dense": dense("FLASH_ATTENTION"), "flex": flex,
         "flashinfer": flashinfer}


# ---- timing ----


FILL_MS, LAUNCHES_MAX = 2.0, 32
WARM_MS = 300.0  # rates of a card that has just begun to work are of no use to anybody


def graph_of(run):
    """As many calls as fill FILL_MS, in one graph; and how many they are."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    launches = max(1, min(LAUNCHES_MAX, math.ceil(FILL_MS / once_ms(run, "cuda"))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()

    def replay():  # holds `run`, and with it the memory that the graph works on
        return graph.replay(), run

    return replay, launches


def once_ms(run, device):
    if device == "cpu":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def ceilings(device):
    """What the machine does at best just now: the two that every row is to be read beside."""
    if device == "cpu":
        return {}
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(1 << 30, device=device, dtype=torch.uint8)
    y = torch.empty_like(x)
    return {"matmul_bf16": lambda: torch.mm(a, b), "copy": lambda: y.copy_(x)}


def device_name(device):
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "cpu")


def measure(library, case, device, wanted, rounds):
    torch.set_num_threads(case["threads"] or os.cpu_count())
    work, runs, rows = Work(library, case, device), {}, []
    answer = reference = None
    for name in wanted:
        row = dict(case=case["line"], kernel=name, device=device_name(device), pairs=work.pairs)
        rows.append(row)
        try:
            run = PEERS[name](library, work)
            out = run().float().clone()
        except Exception as why:  # peers fail in ways of their own; each is a row that says so
            row["absent"] = str(why).strip().split("\n")[0][:160]
            continue
        if hasattr(run, "kernel"):
            row["kernel"] = run.kernel
        if name.startswith("tessera") or getattr(run, "exact", False):
            if answer is None:
                answer, reference = out, row["kernel"]
            row["difference"] = ((out - answer).norm() / answer.norm()).item()
            if not row["difference"] <= TOLERANCE[case["dtype"]]:
                row["absent"] = f"WRONG: it differs from {reference} by {row['difference']:.2e}"
                continue
        replay, row["launches"] = graph_of(run) if device == "cuda" else (run, 1)
        runs[name] = (row, replay)
    for name, run in ceilings(device).items():
        row = dict(case=case["line"], kernel=name, device=rows[0]["device"], launches=1)
        rows.append(row)
        runs[name] = (row, run)  # a copy inside a graph goes by the slower copy engine
    times, warm = {name: [] for name in runs}, 0.0
    while device == "cuda" and warm < WARM_MS:
        warm += once_ms(runs["matmul_bf16"][1], device)
    for _ in range(rounds + 1):
        for name, (row, run) in runs.items():
            times[name].append(once_ms(run, device) / row["launches"])
    for name, (row, _) in runs.items():
        ms = sorted(times[name][1:])
        row.update(ms=statistics.median(ms), ms_min=ms[0], ms_max=ms[-1], runs=len(ms))
        if name in PEERS and name != "cudnn_dense" and "cudnn_dense" in times:
            over = statistics.median(d / t for d, t in zip(times["cudnn_dense"][1:], times[name][1:]))
            row.update(time_over_dense=over, rate_over_dense=over * work.pairs / work.dense_pairs())
        seconds = row["ms"] * 1e-3
        if name == "copy":
            row["tbps"] = 2 * (1 << 30) / seconds * 1e-12
        else:
            flops = 2 * 8192**3 if name == "matmul_bf16" else work.flops()
            row["tflops"] = flops / seconds * 1e-12
        if "goal" in case and name == "tessera_fused":
            sense, field, number = case["goal"]
            row["asked"] = f"{field} {sense} {number:g}"
            if field in row:  # not without the peer that it is relative to
                row["reached"] = row[field] / number if sense == ">" else number / row[field]
    return rows


def commit_of(folder):
    """Of the library in a build folder, or in one that tools/scripts/gpu_stage.sh made."""
    for path in (folder / "commit", folder / "commit" / "commit.h"):
        if path.is_file():
            return path.read_text().split()[-1].strip('"')
    return "unknown"


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
            cases.append(dict(case_parse(line), line=line, **({"goal": goal} if goal else {})))
    except ValueError as why:
        p.error(str(why))
    library, rows, wrong = tessera.Library(a.library), [], 0
    commit = commit_of(pathlib.Path(a.library).parent)
    for case in cases:
        for row in measure(library, case, a.device, a.peers.split(","), a.rounds):
            row["commit"] = commit
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
            json.dump(rows, f, indent=1)
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
