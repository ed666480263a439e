#!/usr/bin/env python3
"""Decode over top-k lists on CUDA: Tessera's filled plan beside a plain Triton kernel (triton_decode.py).

    python3 bench/peers/decode.py --library build/release/libtessera.so --csv out.csv [CASE...]

A case is n queries of h heads over one KV head of nkv tokens, V in the first dims of K, a list of topk entries for
each query, padding behind those that are valid. Its keys beside those of `tessera bench`:

    keys=A/B/...    valid entries of each query, instead of a share
    draw=           stretch: one key of each stretch of the cache; any: those in any order; runs: runs of
                    neighbours, as the seed's lists have, one row in seventeen in any order
    cache=          rows: K whole; apart: its last 64 dims in a tensor of their own; token: 656 bytes, of
                    e4m3 512 dims, 4 scales, and 64 dims of bf16
    promises=       of the lists, a sum (tess_promise): 1 distinct, 2 ascending, 4 padding last
    kernel=         ours, by name, instead of the plan's choice
    split=          fewest keys of a part of ours, instead of the plan's choice

Times are medians of interleaved rounds of graph replays, microseconds a step: cold, where eight draws of the lists
take turns (two of large ones), and warm, of one. Eight draws of short lists fit into L2: flushed is what a step adds
to a read of 128 MB before it, in each round. tessera_run has its lists filled already, tessera_step fills
first, tessera_direct reads the padded indices, without an image, where a plan does; Triton reads the padded indices,
and rows. Its configuration is the fastest when cold of those that fit, or of those that a CSV of before names.
tflops are those of valid keys, cold. Answers of the first queries are held against PyTorch's in f32 before anything
is timed.

With --repeats N nothing is timed: one captured graph reads indices that change between its replays, N of them in all,
and each set's bits have to be those of its first replay.
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

SETS, LARGE = 8, 1 << 20  # entries of a set past which there are two
RUN, ROPE, GROUP, TOKEN = .85, 64, 128, 656
DEFAULTS = dict(h=16, n=8, nkv=541568, d=576, dv=512, dtype="bf16", topk=2048, valid=1.0, seed=0, keys="",
                draw="stretch", cache="rows", promises=0, kernel="", split=0)
WORDS = dict(draw=("stretch", "any", "runs"), cache=("rows", "apart", "token"))
CASES = ([f"n={n},valid={valid}" for n in (1, 8, 128) for valid in (1, .14, .02)] +
         ["h=128,n=64", "h=128,n=64,valid=0.02", "h=128,n=1"])
FIELDS = ("case", "who", "device", "commit", "config", "difference", "cold_us", "warm_us", "flushed_us", "tflops",
          "absent")


def case_parse(line):
    """The case as a dict; ValueError for what is no key of it."""
    case = dict(DEFAULTS, line=line)
    for item in line.split(","):
        key, equals, value = item.partition("=")
        if not equals or key not in DEFAULTS or value not in WORDS.get(key, (value,)):
            raise ValueError(f"'{item}' in '{line}' is none of {', '.join(DEFAULTS)}")
        case[key] = type(DEFAULTS[key])(value)
    valid = [int(x) for x in case["keys"].split("/")] if case["keys"] else [
        round(case["topk"] * case["valid"])] * case["n"]
    if len(valid) != case["n"] or not 0 <= max(valid) <= min(case["topk"], case["nkv"]):
        raise ValueError(f"keys in '{line}': {case['n']} numbers up to {case['topk']}")
    return dict(case, valid=valid)


def draw(case, device):
    """Indices [n, topk] of one set; those of a row are distinct, as a top-k's are."""
    n, most, nkv = case["n"], max(max(case["valid"]), 1), case["nkv"]
    here = torch.arange(most, device=device) < torch.tensor(case["valid"], device=device)[:, None]
    if case["draw"] == "runs":
        # Gaps are 1 but at the ends of runs; what is left of the cache lies before runs.
        jump = torch.rand(n, most, device=device) > RUN
        jump[:, 0] = True
        far = torch.rand(n, most, device=device) * (jump & here) + 1e-9
        far = (far / far.sum(1, keepdim=True) * (nkv - most - 1) * torch.rand(n, 1, device=device)).long()
        keys = far.cumsum(1) + torch.arange(most, device=device)
    else:
        step = nkv // most
        keys = torch.arange(most, device=device) * step + torch.randint(step, (n, most), device=device)
    mixed = dict(stretch=0, any=1, runs=1 / 17)[case["draw"]]
    order = torch.rand(n, most, device=device).masked_fill(~here, 2).argsort(1)
    keys = torch.where(torch.rand(n, 1, device=device) < mixed, keys.gather(1, order), keys)
    index = torch.full((n, case["topk"]), -1, device=device, dtype=torch.int32)
    index[:, :most] = torch.where(here, keys, -1)
    return index


class Work:
    """A case's tensors and sets of indices. k, k_type, scale and rope are the cache as the case has it."""

    def __init__(self, case, device):
        c, dtype = case, DTYPES[case["dtype"]]
        torch.manual_seed(c["seed"])
        self.case, self.device = case, device
        self.q = torch.randn(c["n"], c["h"], c["d"], device=device, dtype=dtype)
        self.scale = self.rope = None
        self.k_type = c["dtype"]
        if c["cache"] == "rows":
            self.k = torch.randn(c["nkv"], c["d"], device=device, dtype=dtype)
        elif c["cache"] == "apart":
            self.k = torch.randn(c["nkv"], c["d"] - ROPE, device=device, dtype=dtype)
            self.rope = torch.randn(c["nkv"], ROPE, device=device, dtype=dtype)
        else:
            self.tokens(device)
        self.indices = [draw(c, device) for _ in range(2 if c["n"] * c["topk"] > LARGE else SETS)]

    def tokens(self, device):
        c = self.case
        if (c["d"], c["dv"], c["dtype"]) != (576, 512, "bf16"):
            raise RuntimeError("tokens of 656 bytes have 512 and 64 dims, of bf16")
        at, self.k_type = c["d"] - ROPE, "e4m3"
        token = torch.empty(c["nkv"], TOKEN, device=device, dtype=torch.uint8)
        self.k, self.scale = token[:, :at], token[:, at:at + 16].view(torch.float32)
        self.rope = token[:, at + 16:].view(torch.bfloat16)
        for rows in torch.arange(c["nkv"], device=device).split(1 << 18):
            of = slice(int(rows[0]), int(rows[-1]) + 1)
            x = torch.randn(len(rows), c["d"], device=device)
            groups = x[:, :at].reshape(len(rows), -1, GROUP)
            scale = groups.abs().amax(2) / 448
            self.k[of] = (groups / scale[..., None]).to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)
            self.scale[of], self.rope[of] = scale, x[:, at:].to(torch.bfloat16)

    def gathered(self, index):
        """Rows of K in f32, whatever holds them."""
        k = self.k[index]
        if self.scale is not None:
            k = k.contiguous().view(torch.float8_e4m3fn).float()
            k = (k.reshape(len(index), -1, GROUP) * self.scale[index][..., None]).flatten(1)
        k = k.float()
        return k if self.rope is None else torch.cat([k, self.rope[index].float()], 1)

    def reference(self, queries=4):
        """Of set 0, [queries, h, dv]."""
        c, out = self.case, []
        for i in range(min(queries, c["n"])):
            index = self.indices[0][i]
            k = self.gathered(index[index >= 0].long())
            s = self.q[i].float() @ k.T * c["d"]**-.5
            out.append(s.softmax(1) @ k[:, :c["dv"]])
        return torch.stack(out)

    def flops(self):
        c = self.case
        return 2 * (c["d"] + c["dv"]) * c["h"] * sum(c["valid"])


def ours(library, work, how):
    """how: a method of tessera.Decode, `run`, `step` or `direct`."""
    c = work.case
    # One sequence of n queries: [1, H, N, D] views of [N, H, D].
    o = torch.empty(c["n"], c["h"], c["dv"], device=work.device, dtype=work.q.dtype)
    lse = torch.empty(1, c["h"], c["n"], 1, device=work.device)
    k, scale, rope = (x if x is None else x[None, None] for x in (work.k, work.scale, work.rope))
    plan = tessera.Decode(library, work.q.transpose(0, 1)[None], k, k[..., :c["dv"]], o.transpose(0, 1)[None],
                          lse, work.indices, c["dtype"], "cuda" if work.device == "cuda" else "cpu", work.k_type,
                          scale, rope, c["promises"], c["kernel"], c["split"])

    def run(number):
        stream = torch.cuda.current_stream().cuda_stream if work.device == "cuda" else 0
        getattr(plan, how)(number, stream)
        return o

    for number in range(len(work.indices)):
        plan.fill(number)
    run.config, run.plan = plan.kernel(), plan
    return run


def cold_of(run, work):
    number = itertools.count()
    return turns.Replay(lambda: run(next(number) % len(work.indices)), work.device)


class Flush:
    """Fills the caches with what no step reads."""

    def __init__(self, device):
        self.buffer = torch.zeros(32 << 20 if device == "cuda" else 1 << 10, device=device)
        self.sum = torch.empty((), device=device)

    def __call__(self):
        torch.sum(self.buffer, 0, out=self.sum)


def triton(work, tuned):
    import triton_decode

    c = work.case
    if c["dv"] % 128 or c["dv"] & (c["dv"] - 1) or c["d"] - c["dv"] not in (16, 32, 64, 128):
        raise RuntimeError("V of 128 or 512 dims inside K of 16 to 128 more")
    if c["cache"] == "token":
        raise RuntimeError("8 bits")
    cache = work.k if work.rope is None else torch.cat([work.k, work.rope], 1)
    launch, o = triton_decode.launcher(work.q, cache, c["dv"], c["topk"])
    best, why = None, None
    for config in tuned or (triton_decode.CONFIGS if work.device == "cuda" else triton_decode.CONFIGS[:1]):
        try:
            replay = cold_of(lambda i: launch(config, work.indices[i]), work)
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


def repeat(library, case, device, repeats, how):
    """How many of so many replays of one graph gave other bits than the first of their set of indices."""
    work = Work(case, device)
    now = work.indices[0].clone()
    run = ours(library, work, how)
    run.plan.patterns[0].indices = now.data_ptr()
    out, replay = run(0), turns.Replay(lambda: run(0), device)
    first, wrong = {}, torch.zeros((), dtype=torch.int64, device=device)
    for i in range(repeats):
        number = i % len(work.indices)
        now.copy_(work.indices[number])
        replay.graph.replay()
        if number in first:
            wrong += (out.view(torch.int16) != first[number]).any()
        else:
            first[number] = out.view(torch.int16).clone()
    differ = sum(not torch.equal(first[0], x) for x in list(first.values())[1:])
    return int(wrong) if differ == len(first) - 1 else repeats


def measure(library, case, device, rounds, who, tuned):
    work = Work(case, device)
    makers = {"tessera_" + how: lambda how=how: ours(library, work, how) for how in ("run", "step", "direct")}
    makers |= {"triton": lambda: triton(work, tuned)}
    rows, answer, flush = {}, work.reference(), Flush(device)
    replays = {"flush": turns.Replay(flush, device)}
    for name in who:
        row = rows[name] = dict(case=case["line"], who=name)
        try:
            run = makers[name]()
            out = run(0)[:len(answer)].float()
            row["config"] = run.config
            row["difference"] = ((out - answer).norm() / answer.norm().clamp(min=1e-30)).item()
            if not row["difference"] <= TOLERANCE[case["dtype"]]:
                row["absent"] = f"WRONG: it differs by {row['difference']:.2e}"
                continue
            replays[name, "cold_us"] = cold_of(run, work)
            replays[name, "warm_us"] = turns.Replay(lambda run=run: run(0), device)
            replays[name, "flushed_us"] = cold_of(lambda i, run=run: (flush(), run(i)), work)
        except Exception as why:  # each is a row that says so
            row["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
    if device == "cuda":
        turns.warm()
    times = turns.turns(replays, rounds)
    alone = times.pop("flush")
    for (name, field), ms in times.items():
        if field == "flushed_us":
            ms = [both - one for both, one in zip(ms, alone)]
        rows[name][field] = 1e3 * statistics.median(ms)
    for row in rows.values():
        if "cold_us" in row:
            row["tflops"] = work.flops() / row["cold_us"] * 1e-6
    return list(rows.values())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="path of libtessera.so")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--rounds", type=int, default=15, help="interleaved rounds of each case")
    p.add_argument("--who", default="tessera_run,tessera_step,tessera_direct,triton", help="of these, by commas")
    p.add_argument("--sweep", help="a file of cases, one a line, # begins a comment")
    p.add_argument("--csv", help="where the rows go")
    p.add_argument("--tuned", help="a CSV of before: of Triton's configurations those that it names are tried")
    p.add_argument("--repeats", type=int, help="replays of one graph over indices that change")
    p.add_argument("case", nargs="*")
    a = p.parse_args()
    if a.sweep:
        a.case += [s for s in (line.split("#")[0].strip() for line in open(a.sweep)) if s]
    try:
        cases = [case_parse(line) for line in a.case or CASES]
    except ValueError as why:
        p.error(str(why))
    library, rows, tuned = tessera.Library(a.library), [], []
    if a.tuned:
        tuned = sorted({tuple(map(int, row["config"].split("/"))) for row in csv.DictReader(open(a.tuned))
                        if row["who"] == "triton" and row["config"]})
    if a.repeats:
        wrong = 0
        for case, how in itertools.product(cases, a.who.replace("tessera_", "").split(",")):
            wrong += (other := repeat(library, case, a.device, a.repeats, how))
            print(f"{case['line']:28s} {how:8s} {a.repeats} replays, {other} of other bits", flush=True)
        return 1 if wrong else 0
    commit = commit_of(pathlib.Path(a.library).parent)
    for case in cases:
        for row in measure(library, case, a.device, a.rounds, a.who.split(","), tuned):
            row.update(commit=commit, device=device_name(a.device))
            rows.append(row)
            result = row.get("absent") or (f"cold {row['cold_us']:8.1f} warm {row['warm_us']:8.1f} "
                                           f"flushed {row['flushed_us']:8.1f} us "
                                           f"{row['tflops']:6.1f} Tflop/s")
            print(f"{case['line']:28s} {row['who']:14s} {row.get('config', ''):34s} {result}", flush=True)
        if a.device == "cuda":
            torch.cuda.empty_cache()
    for who, key in itertools.product(a.who.split(","), ("cold_us", "flushed_us")):
        us = [row[key] for row in rows if row["who"] == who and key in row]
        if us:
            print(f"== {who}: {len(us)} cases, {key}, median {statistics.median(us):.1f}, at most {max(us):.1f}")
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 1 if any(row.get("absent", "").startswith("WRONG") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
