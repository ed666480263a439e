#!/usr/bin/env python3
"""Kernels and tile heights of the same cases, in turns on the same tensors.

    python3 bench/peers/choices.py --library NEW.so --csv out.csv FILE...

Lines of FILE are cases of `tessera bench`, each with a kernel=, tile= or split= of its own; those that differ in
these alone take turns. A line for each group: the fastest, and what others take over its time. The file has a row
for each choice.
"""
import argparse
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


def groups_of(files):
    """Cases of all lines, by what they have in common."""
    groups = {}
    for path in files:
        for line in filter(None, (text.split("#")[0].strip() for text in open(path))):
            shape = re.sub(r",(kernel|tile|split)=[^,]*", "", line)
            groups.setdefault(shape, []).append(field.case_parse(line))
    return groups


def measure(library, shape, cases, a):
    """Rows of the choices of a shape."""
    work = field.Work(library, field.case_parse(shape), a.device)
    makers = {case["line"]: field.ours("fused", library, case) for case in cases}
    rows, replays = field.enter(makers, work, only_right=False)
    if a.device == "cuda":
        turns.warm(a.warm)
    for line, ms in turns.turns(replays, a.rounds).items():
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
    p.add_argument("--warm", type=float, default=10, help="milliseconds that the card works before each group")
    p.add_argument("--seconds", type=float, default=1e9, help="after which no group is begun")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--csv", required=True, help="where all rows go, as they are measured")
    p.add_argument("--quiet", action="store_true", help="tell of faults alone")
    p.add_argument("file", nargs="+")
    a = p.parse_args()
    library, end = tessera.Library(str(pathlib.Path(a.library).resolve())), time.time() + a.seconds
    facts = dict(device=field.device_name(a.device), commit=field.commit_of(pathlib.Path(a.library).parent))
    groups, left = groups_of(a.file), 0
    with open(a.csv, "w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, extrasaction="ignore", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        for shape, cases in groups.items():
            if time.time() > end:
                left += 1
                continue
            try:
                rows = measure(library, shape, cases, a)
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
