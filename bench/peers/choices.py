#!/usr/bin/env python3
"""Kernels and tile heights of the same cases, in turns on the same tensors.

    python3 bench/peers/choices.py --library NEW.so --csv out.csv FILE...

Lines of FILE are cases of `tessera bench`, each with a kernel=, tile= or split= of its own; those that differ in
these alone take turns. A line for each group: the fastest, and what others take over its time. The file has a row
for each choice.

Runs of a graph take turns over sets of tensors, as layers of a model do: none reads what the run before it read, nor
writes the same O. What small problems read lies in L2 then, as behind a projection; what large ones read does not.
"""
import argparse
import collections
import concurrent.futures
import csv
import pathlib
import re
import sys
import time

import torch

import field
import library as tessera
import turns

FIELDS = ("case", "kernel", "device", "commit", "pairs", "difference", "ms", "ms_min", "ms_max", "runs", "launches",
          "timing", "tflops", "tile", "items", "split", "absent")

AHEAD = 8  # groups that are planned while one is timed
SHORT_MS, SHORT_TIMES = .05, 3  # runs of less are timed in so many times the rounds
LAUNCHES = 128  # of a graph at most: a replay begins some microseconds after its event


def groups_of(files):
    """Cases of all lines, by what they have in common."""
    groups = {}
    for path in files:
        for line in filter(None, (text.split("#")[0].strip() for text in open(path))):
            shape = re.sub(r",(kernel|tile|split)=[^,]*", "", line)
            groups.setdefault(shape, []).append(field.case_parse(line))
    return groups


def prepared(library, groups, a):
    """Work and plans of each group, some groups ahead: threads plan while the card is timed. None: time is up."""
    ahead, end = collections.deque(), time.time() + a.seconds
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for shape, cases in [*groups.items(), *[(None, ())] * AHEAD]:
            if shape:
                work = time.time() < end and field.Work(library, field.case_parse(shape), a.device)
                plans = [pool.submit(field.plan_make, library, work, case, case.get("pipeline", "fused"))
                         for case in cases if work]
                ahead.append((shape, cases, work, plans))
            if len(ahead) > AHEAD or (not shape and ahead):
                yield ahead.popleft()


def measure(cases, work, plans, a):
    """Rows of the choices of a shape."""
    sets = [tuple(x.clone() for x in work.tensors()) for _ in range(a.sets - 1)]
    makers = {case["line"]: lambda work, plan=plan: field.ours("fused", None, plan.result(), sets)(work)
              for case, plan in zip(cases, plans)}
    rows, replays = field.enter(makers, work, only_right=False)
    if a.device == "cuda":
        turns.warm(a.warm)
    times = turns.turns(replays, a.rounds)
    if max(map(max, times.values()), default=1) < SHORT_MS:
        times = turns.turns(replays, SHORT_TIMES * a.rounds)
    for line, ms in times.items():
        field.timed(rows[line], ms, work)
    for line, row in rows.items():
        row["case"] = line
    return rows


def tell(shape, rows):
    timed = sorted((row for row in rows.values() if "ms" in row), key=lambda row: row["ms"])
    words = [f"{row['kernel'].replace('cuda_attention_', '')} {row['tile']}: {row['ms'] / timed[0]['ms']:.3f}"
             for row in timed]
    print(f"{timed[0]['ms']:.4g} ms {', '.join(words)} [{shape}]" if timed else f"none [{shape}]", flush=True)
    for row in rows.values():
        if "absent" in row:
            print(f"ERR {row['absent']} [{row['case']}]", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True, help="path of a libtessera.so")
    p.add_argument("--rounds", type=int, default=5, help="rounds of each group")
    p.add_argument("--sets", type=int, default=4, help="sets of tensors, which take turns")
    p.add_argument("--warm", type=float, default=10, help="milliseconds that the card works before each group")
    p.add_argument("--seconds", type=float, default=1e9, help="after which no group is begun")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--csv", required=True, help="where all rows go, as they are measured")
    p.add_argument("--quiet", action="store_true", help="tell of faults alone")
    p.add_argument("file", nargs="+")
    a = p.parse_args()
    library, turns.LAUNCHES_MAX = tessera.Library(str(pathlib.Path(a.library).resolve())), LAUNCHES
    facts = dict(device=field.device_name(a.device), commit=field.commit_of(pathlib.Path(a.library).parent))
    groups, left = groups_of(a.file), 0
    with open(a.csv, "w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, extrasaction="ignore", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        for shape, cases, work, plans in prepared(library, groups, a):
            if not work:
                left += 1
                continue
            try:
                rows = measure(cases, work, plans, a)
            except RuntimeError as why:
                print(f"ERR {str(why).strip().splitlines()[:1]} [{shape}]", flush=True)
                continue
            writer.writerows({**row, **facts} for row in rows.values())
            if not a.quiet:
                tell(shape, rows)
            if a.device == "cuda" and torch.cuda.memory_reserved() > 40 << 30:
                torch.cuda.empty_cache()
    print(f"{facts['device']}: {len(groups) - left} of {len(groups)} groups are timed", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
