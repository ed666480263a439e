#!/usr/bin/env python3
"""Two builds of the library and every peer that is here, on the same cases, tensors and minute.

    python3 bench/peers/against.py --old OLD.so --new NEW.so --group small,vsa --csv out.csv
    python3 bench/peers/against.py --new NEW.so CASE...

A case is a line of `tessera bench`, with two more patterns (field.py); groups of them are below, or
`fuzz`: drawn shapes (--seed, --cases). One line a case: time and useful TFLOP/s of the new build, then
what others take and that over the new build's time, so that above 1 the new one is faster; the best
peer of the same pattern first, and cuDNN's dense attention last, whatever the pattern. "own" is what
the lists' keys and values come to, each fetched for each block row, over the new build's time; "~"
marks calls that no graph would hold. DIFF: an answer differs from the first one's by more than two
roundings. Files have all that was measured, a row for each case and who ran it.
"""
import argparse
import collections
import concurrent.futures
import csv
import json
import os
import pathlib
import statistics
import sys
import time

import torch

import field
import library as tessera
import turns

FIELDS = ("case", "who", "kernel", "device", "commit", "pairs", "difference", "ms", "ms_min", "ms_max", "runs",
          "launches", "timing", "tflops", "over_new", "config", "tile", "items", "split", "absent")
PEERS = ("triton", "vsa", "flash4", "cudnn_dense")


def lines(of, *which):
    return [of.format(x) if isinstance(x, (str, int, float)) else of.format(*x) for x in which]


GROUPS = {
    "small": lines("h={1},n={2},d={0},dtype=bf16,block={3},pattern=random({4},1)",
                   (64, 8, 32768, "32x32", .1), (64, 8, 32768, "16x16", .05), (64, 8, 32768, "8x8", .05),
                   (128, 16, 16384, "32x32", .1), (128, 16, 16384, "16x16", .05), (128, 16, 16384, "64x64", .1),
                   (64, 32, 16384, "64x64", .1), (128, 8, 32768, "128x1", .07), (128, 8, 32768, "64x1", .05),
                   (128, 8, 32768, "64x16", .1), (64, 8, 32768, "16x64", .05), (64, 8, 32768, "1x64", .01),
                   (64, 8, 16384, "4x4", .02), (64, 8, 16384, "2x2", .01), (64, 4, 16384, "1x1", .01),
                   (128, 16, 16384, "32x128", .1), (64, 8, 32768, "16x128", .05), (128, 16, 16384, "64x32", .1)),
    "vsa": lines("h={1},n={2},d={0},dtype=bf16,block=64x64,pattern={3}",
                 *((d, h, 16384, f"drawn({keep},1)") for d, h in ((128, 16), (64, 32)) for keep in (.5, .1, .02)),
                 (128, 16, 16384, "random_row(0.1,1)"), (64, 32, 16384, "random_row(0.1,1)"),
                 (128, 16, 40960, "random_row(0.1,1)"), (128, 7, 109632, "random_row(0.03736,1)")),  # 64 a row
    "dense": lines("h={1},n={2},d={0},dtype=bf16,block=128x128,pattern={3}",
                   *((d, h, 16384, p) for d, h in ((64, 32), (128, 16)) for p in (
                       "dense", "causal", "drawn(0.5,1)", "drawn(0.1,1)", "drawn(0.05,1)", "drawn(0.01,1)")),
                   (256, 8, 16384, "dense"), ("192,dv=128", 16, 8192, "dense")),
    "short": lines("h={1},n={2},d={0},dtype=bf16,block=128x128,pattern={3}",
                   (128, 16, 1024, "dense"), (128, 16, 2048, "dense"), (128, 16, 4096, "dense"),
                   (128, 16, 1024, "causal"), (128, 16, 2048, "causal"), (128, 16, 4096, "causal"),
                   (64, 16, 2048, "causal"), (128, "32,hkv=8", 2048, "causal"), (64, 12, 512, "dense"),
                   (64, 16, 4096, "dense")),
    "windows": lines("h={1},n={2},d={0},dtype=bf16,block={3},pattern={4}",
                     (128, 16, 32768, "128x128", "window(511,0)"), (64, 32, 32768, "128x128", "window(511,0)"),
                     (128, 16, 32768, "128x128", "window(4095,0)"), (64, 32, 32768, "128x128", "window(127,0)"),
                     *((d, h, n, b, p) for d, h, n, b in ((64, 16, 4096, "1x1"), (64, 16, 8192, "8x8"),
                                                          (128, 16, 16384, "64x64"))
                       for p in ("window(256,256)", "causal", "dilated(256,4)", "summary(128,128)")),
                     (64, 16, 8192, "1x1", "sliding(256,2048,1)")),
    "columns": lines("h={1},n={2},d={0},dtype=bf16,block={3},pattern=random({4},1)",
                     *((128, 24, 32768, b, .07) for b in ("192x1", "192x4", "128x1", "64x1", "64x4")),
                     *((d, 8, 16384, b, .5) for d in (64, 128) for b in ("8x8", "16x16", "32x32"))),
    "f32": lines("h=8,n={1},d={0},dtype=f32,block={2},pattern={3}",
                 (64, 4096, "64x64", "random(0.1,1)"), (64, 16384, "64x64", "random(0.1,1)"),
                 (64, 16384, "32x32", "random(0.1,1)"), (64, 16384, "16x16", "random(0.05,1)"),
                 (64, 16384, "8x8", "random(0.05,1)"), (128, 8192, "64x64", "random(0.1,1)"),
                 (128, 8192, "16x16", "random(0.1,1)"), (64, 4096, "64x64", "random(1,1)")),
    "stages": lines("h={1},n={2},d={0},dtype={3},block={4},pattern=random({5},1)",
                    *((d, h, n, "bf16", b, .1) for d, h, n in ((128, 16, 16384), (64, 8, 32768))
                      for b in ("32x32", "64x64", "128x128")),
                    *((d, 8, 4096, "f32", b, .1) for d in (64, 256) for b in ("8x8", "64x64")),
                    (64, 8, 32768, "bf16", "8x8", .05), (64, 8, 32768, "bf16", "1x1", .01),
                    (64, 8, 4096, "f32", "1x1", .05)),
    "wide": lines("h=8,n=4096,d={0},dtype={1},block={2},pattern={3}",
                  *((d, t, b, p) for d in (512, 1024) for t in ("bf16", "f32") for b, p in (
                      ("128x128", "dense"), ("128x128", "random(0.1,1)"), ("16x16", "random(0.1,1)"))),
                  *((d, "bf16", "128x128", "random(0.2,1)") for d in (32, 96, 192, 256, "576,dv=512", 768))),
}
# What is to be read beside one another at a group's end: a case's time over another's.
RATIOS = {"columns": [("block=192x4", "block=192x1"), ("block=64x4", "block=64x1")]}
# One configuration of Triton's for each block size: drawn shapes have no time for more.
FUZZ_CONFIG = {64: (64, 4, 2), 32: (64, 2, 2), 16: (64, 2, 2), 8: (64, 2, 2)}


def short(line):
    """The case in fewer letters."""
    c = field.case_parse(line)
    heads = f"{c['h']}" + (f":{c['hkv']}" if c["h"] != c["hkv"] else "")
    dims = f"{c['d']}" + (f"/{c['dv']}" if c["d"] != c["dv"] else "")
    batch = f"b{c['b']} " if c["b"] > 1 else ""
    kind = "" if c["dtype"] == "bf16" else " " + c["dtype"]
    return f"{c['block']} d{dims} {batch}h{heads} n{c['n']} {c['pattern']}{kind}"


class Runner:
    def __init__(self, a, makers, commits):
        self.a, self.makers, self.commits, self.rows, self.said = a, makers, commits, [], set()
        self.spent = collections.Counter()  # seconds by what took them
        self.base = "new" if "new" in makers else "old"
        self.device = field.device_name(a.device)
        self.file = open(a.csv, "w", newline="") if a.csv else None
        if self.file:
            self.writer = csv.DictWriter(self.file, FIELDS, extrasaction="ignore", lineterminator="\n",
                                         quoting=csv.QUOTE_NONNUMERIC)
            self.writer.writeheader()

    def spend(self, what, begun):
        now = time.time()
        self.spent[what] += now - begun
        return now

    def complain(self, case, who, why):
        if (who, why) not in self.said:  # once, though every case says it
            self.said.add((who, why))
            print(f"ERR {who}: {why} [{short(case['line'])}]", flush=True)

    def case(self, case, without=(), rounds=None, again=None, warm=turns.WARM_MS):
        """Measures a case; `again`, of its rows, says whether it is to be timed once more, and for so
        many rounds. Its rows by who ran it, or None."""
        rounds = rounds or self.a.rounds
        try:
            begun = time.time()
            library = self.libraries[self.base]
            work = field.Work(library, case, self.a.device)
            begun = self.spend("tensors and patterns", begun)
            if work.pairs == 0:
                return None
            makers = {who: make for who, make in self.makers.items() if who not in without}
            rows, replays = field.enter(makers, work, only_right=False, spent=self.spent)
            begun = time.time()
            if self.a.device == "cuda":
                turns.warm(warm)
            while True:
                for who, ms in turns.turns(replays, rounds).items():
                    field.timed(rows[who], ms, work)
                base = rows[self.base]
                for row in rows.values():
                    if "ms" in row and "ms" in base:
                        row["over_new"] = row["ms"] / base["ms"]
                rounds = again and again(rows)
                if not rounds:
                    break
                again = None
            self.spend("timing", begun)
        except Exception as why:
            self.complain(case, "case", f"{type(why).__name__} {str(why).strip().splitlines()[:1]}"[:200])
            return None
        for who, row in rows.items():
            row.update(device=self.device, commit=self.commits.get(who))
            if row.get("absent", "").startswith("WRONG"):
                print(f"DIFF {who}: {row['absent'][7:]} [{short(case['line'])}]", flush=True)
            elif "absent" in row and not row["refused"]:
                self.complain(case, who, row["absent"])
            if self.file:
                self.writer.writerow(row)
            self.rows.append(row)
        if self.file:
            self.file.flush()
        rows["bytes"] = work.listed_bytes()
        rows["dense"] = work.dense
        return rows

    def tell(self, line, rows):
        def words(who):
            row = rows[who]
            return f"{who} {'~' if row['timing'] == 'calls' else ''}{row['ms']:.4g} {row['over_new']:.2f}"

        base = rows[self.base]
        if "ms" not in base:
            return
        parts = [f"{self.base} {base['ms']:.4g} ms {base['tflops']:.0f} TF"]
        if self.base == "new" and "ms" in rows.get("old", {}):
            parts.append(words("old"))
        # the best peer of the same pattern comes first
        peers = sorted((who for who in PEERS if "over_new" in rows.get(who, {}) and
                        (who != "cudnn_dense" or rows["dense"])), key=lambda who: rows[who]["ms"])
        if peers:
            parts.append(", ".join(map(words, peers)))
        if "over_new" in rows.get("cudnn_dense", {}) and not rows["dense"]:
            parts.append(f"dense {rows['cudnn_dense']['over_new']:.2f}")
        parts.append(f"own {rows['bytes'] / base['ms'] * 1e-9:.1f} TB/s")
        print(f"{short(line):44s} " + " | ".join(parts), flush=True)

    def group(self, name, of, end):
        print(f"== {name}", flush=True)
        for i, line in enumerate(of):
            if time.time() > end:
                print(f"   time is up: {len(of) - i} cases of {name} are left", flush=True)
                return
            rows = self.case(field.case_parse(line))
            if rows:
                self.tell(line, rows)
            self.alive()
        of_base = {row["case"]: row["ms"] for row in self.rows if row["who"] == self.base and "ms" in row}
        for one, other in RATIOS.get(name, ()):
            for line, ms in of_base.items():
                beside = of_base.get(line.replace(one, other))
                if one in line and beside:
                    print(f"   {one} over {other}, {self.base}: {ms / beside:.3f} of its time", flush=True)

    def alive(self):
        """Goes on only while the device does: one fault ends all that comes after it."""
        if self.a.device == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception as why:
                print(f"ERR the device is lost: {str(why).splitlines()[0]}", flush=True)
                self.close()
                sys.exit(1)
            if torch.cuda.memory_reserved() > 40 << 30:
                torch.cuda.empty_cache()

    def close(self):
        if self.file:
            self.file.close()
        if self.a.json:
            with open(self.a.json, "w") as f:
                json.dump([{k: row[k] for k in FIELDS if k in row} for row in self.rows], f, indent=1)

    # ---- drawn shapes ----

    def compile(self):
        """What drawn shapes will ask of Triton, side by side."""
        import triton_lists

        def one(d, block, group):
            q, kv = (torch.empty(1, h, 256, d, device="cuda", dtype=torch.bfloat16) for h in (group, 1))
            first, column = (torch.zeros(1, n, device="cuda", dtype=torch.int32) for n in (256 // block + 1, 256))
            launch, _ = triton_lists.launcher(q, kv, kv, first, column, 1, 1, block, block)
            launch(FUZZ_CONFIG[block], compile=True)

        begun = time.time()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(one, d, block, group) for block in FUZZ_CONFIG
                         for d in (32, 64, 128, 256) for group in (1, 4)]:
                if done.exception():  # the launch says it again
                    print(f"ERR triton: {str(done.exception()).strip().splitlines()[:1]}"[:160], flush=True)
        print(f"   kernels of Triton are compiled: {time.time() - begun:.0f} s", flush=True)

    def fuzz(self, seed, end):
        gen = torch.Generator().manual_seed(seed)
        self.spent.clear()

        def pick(of):
            return of[int(torch.randint(len(of), (1,), generator=gen))]

        drawn, n_drawn, begun = [], 0, time.time()
        while len(drawn) < self.a.cases and time.time() < end:
            d, block = pick([32, 64, 64, 128, 128, 256]), pick([128, 128, 64, 64, 32, 16, 8])
            h, b = pick([1, 2, 4, 8, 12, 16, 32]), pick([1, 1, 1, 2, 4])
            n = pick([256, 512, 1024, 2048, 3072, 4096, 8192, 16384, 32768])
            keep = pick([1.0, .5, .2, .1, .05, .02])
            group = pick([1, 1, 1, 4]) if h % 4 == 0 else 1
            causal = keep == 1 and pick([False, True])
            if block < 32 and n * keep > 3000 or b * h * n * n * keep * d * 4 > 1.5e12:
                continue
            n_drawn += 1
            pattern = "causal" if causal else f"random({keep:g},{n_drawn})"
            line = (f"b={b},h={h},hkv={h // group},n={n},d={d},dtype=bf16,block={block}x{block},"
                    f"pattern={pattern},lists=all")
            if not causal and block < 128:
                self.tuned[line] = FUZZ_CONFIG[block]

            def behind(rows):
                others = [who for who in ("old", "triton") if who in rows]
                others += ["cudnn_dense"] * (keep == 1 and "cudnn_dense" in rows)
                return 9 if any(rows[who].get("over_new", 9) < 1 for who in others) else 0

            without = ("vsa", "flash4") + (("triton",) if causal or block == 128 else ())
            rows = self.case(field.case_parse(line), without, 5, behind, warm=10)
            self.alive()
            self.tuned.pop(line, None)
            if rows and "ms" in rows[self.base]:
                drawn.append(dict(line=line, block=block, keep=keep, base=rows[self.base], **{
                    who: rows.get(who, {}).get("over_new") for who in ("old", "triton", "cudnn_dense")}))
        print(f"== fuzz: seed {seed}, {len(drawn)} cases in {time.time() - begun:.0f} s: " +
              ", ".join(f"{what} {s:.0f}" for what, s in self.spent.most_common()))

        def share(what, who, of):
            of = [x for x in of if x[who]]
            if of:
                under = [sum(x[who] < bar for x in of) for bar in (1, .98, .9)]
                print(f"{what}: of {len(of)}, under 1.0 {under[0]} ({100 * under[0] / len(of):.1f} %), "
                      f".98 {under[1]}, .9 {under[2]}; median {statistics.median(x[who] for x in of):.2f}")
            return sorted(of, key=lambda x: x[who])

        def worst(of, who, many, bar=1.0):
            for x in [x for x in of if x[who] < bar][:many]:
                base = x["base"]
                kernel = base["kernel"].replace("cuda_attention_", "").replace("bf16_", "")
                print(f"  {x[who]:.2f} {1e3 * base['ms']:.1f} us {short(x['line'])}; {kernel} tile {base['tile']} "
                      f"items {base['items']} split {base['split']}")

        print("time over the new build's:" if self.base == "new" else "time over the build's:")
        worst(share("Triton, blocks under 128", "triton", drawn), "triton", 16)
        for block in (8, 16, 32, 64):
            share(f"  blocks of {block}", "triton", [x for x in drawn if x["block"] == block])
        worst(share("cuDNN dense, all kept or causal", "cudnn_dense", [x for x in drawn if x["keep"] == 1]),
              "cudnn_dense", 12)
        few = [x for x in drawn if x["keep"] <= .2]
        worst(share("cuDNN dense, keep .2 and under, blocks of 64 and 128", "cudnn_dense",
                    [x for x in few if x["block"] >= 64]), "cudnn_dense", 8)
        worst(share("cuDNN dense, keep .2 and under, blocks under 64", "cudnn_dense",
                    [x for x in few if x["block"] < 64]), "cudnn_dense", 8)
        if self.base == "new":
            worst(share("the old build", "old", drawn), "old", 12, .98)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--old", help="path of one libtessera.so")
    p.add_argument("--new", help="path of another; either may be left out")
    p.add_argument("--group", default="", help="which, by commas, of " + ", ".join((*GROUPS, "fuzz")))
    p.add_argument("--pipeline", choices=("fused", "staged"), default="fused", help="of both builds")
    p.add_argument("--peers", default=",".join(PEERS), help="which, by commas")
    p.add_argument("--rounds", type=int, default=9, help="rounds of each case")
    p.add_argument("--seconds", type=float, default=100, help="after which no case of a group is begun")
    p.add_argument("--seed", default="21", help="of the drawn shapes; more, by commas, one after the other")
    p.add_argument("--cases", type=int, default=500, help="how many drawn shapes of each seed")
    p.add_argument("--tuned", help="a file that keeps Triton's configurations from run to run")
    p.add_argument("--wider", action="store_true", help="try all of Triton's configurations")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--csv", help="where all rows go, as they are measured")
    p.add_argument("--json", help="where they go at the end")
    p.add_argument("case", nargs="*")
    a = p.parse_args()
    groups, seeds = [g for g in a.group.split(",") if g], [int(seed) for seed in a.seed.split(",")]
    if not (a.old or a.new) or any(g not in (*GROUPS, "fuzz") for g in groups):
        p.error("--old or --new, and of the groups " + ", ".join((*GROUPS, "fuzz")))
    libraries = {who: tessera.Library(str(pathlib.Path(path).resolve()))
                 for who, path in (("old", a.old), ("new", a.new)) if path}
    tuned = {}
    if a.tuned and pathlib.Path(a.tuned).is_file():
        tuned = {line: tuple(config) for line, config in json.load(open(a.tuned)).items()}
    everybody = dict(field.PEERS, triton=field.triton(tuned, a.wider))
    makers = {who: field.ours(a.pipeline, library) for who, library in libraries.items()}
    for who in a.peers.split(","):
        needed = {"triton": "triton", "vsa": "fastvideo_kernel.block_sparse_attn",
                  "flash4": "flash_attn.cute.interface"}.get(who)
        try:
            if needed:
                __import__(needed)
            makers[who] = everybody[who]
        except Exception as why:
            print(f"{who} is not here: {type(why).__name__} {str(why).strip().splitlines()[:1]}"[:160], flush=True)
    commits = {who: field.commit_of(pathlib.Path(path).parent)
               for who, path in (("old", a.old), ("new", a.new)) if path}
    runner = Runner(a, makers, commits)
    runner.libraries, runner.tuned = libraries, tuned
    print(f"{runner.device}: " + ", ".join(f"{who} {c[:10]}" for who, c in commits.items()) +
          "; times in ms; theirs over ours: above 1 ours is faster", flush=True)
    if a.case:
        runner.group("cases", a.case, time.time() + a.seconds)
    for name in groups:
        begun = time.time()
        if name == "fuzz":
            if "triton" in makers and a.device == "cuda":
                runner.compile()
            for i, seed in enumerate(seeds):
                now, end = time.time(), begun + a.seconds
                runner.fuzz(seed, now + (end - now) / (len(seeds) - i))
        else:
            runner.group(name, GROUPS[name], begun + a.seconds)
        print(f"   {name}: {time.time() - begun:.0f} s", flush=True)
    if a.tuned:
        with open(a.tuned, "w") as f:
            json.dump(tuned, f, indent=0)
    runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
