#!/usr/bin/env python3
"""The CPU's decode over top-k lists beside what bounds it: bench/decode_cpu.py [FOLDER [--threads T] [--seconds X]].

FOLDER has the program, as bench/all.sh's. Eight queries of 16 heads, 512 + 64 dims, V in K, bf16, 2048 keys
each, of a cache of 131,072 tokens; eight draws of the lists take turns. The larger of two times bounds a run:

    read        1152 bytes a key at the rate at which all threads read, by memchr, a buffer as large as
                the cache, each its own part, which it has written first
    products    2 (576 + 512) operations a key and head at the rate of dense attention of the same dims

The fraction is that bound over the run's time. All are measured in turns, --rounds times; medians.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

QUERIES, HEADS, DIMS, VALUES, KEYS, TOKENS = 8, 16, 576, 512, 2048, 131072
BYTES = 2 * DIMS * TOKENS
DECODE = (f"h={HEADS},hkv=1,lists=kv,n={QUERIES},nkv={TOKENS},d={DIMS},dv={VALUES},dtype=bf16,topk={KEYS},vink=1,"
          "backend=cpu")
DENSE = f"h={HEADS},hkv=1,n=512,nkv=2048,d={DIMS},dv={VALUES},dtype=bf16,backend=cpu,pipeline=fused"


class Reader:
    """A buffer of which each thread has a part."""

    def __init__(self, threads):
        self.libc = ctypes.CDLL(None)
        for name, arguments in (("memset", (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)),
                                ("memchr", (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t))):
            function = getattr(self.libc, name)
            function.argtypes, function.restype = arguments, ctypes.c_void_p
        self.threads, self.part = threads, BYTES // threads
        self.libc.malloc.restype, self.libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        self.at = self.libc.malloc(BYTES)
        self.each(lambda part: self.libc.memset(part, 1, self.part))

    def each(self, work):
        """Seconds until all threads, which begin together, have done their parts."""
        gate, ends = threading.Barrier(self.threads + 1), [0.0] * self.threads

        def body(i):
            gate.wait()
            work(self.at + i * self.part)
            ends[i] = time.perf_counter()

        bodies = [threading.Thread(target=body, args=(i,)) for i in range(self.threads)]
        for one in bodies:
            one.start()
        gate.wait()
        begun = time.perf_counter()
        for one in bodies:
            one.join()
        return max(ends) - begun

    def rate(self, passes):
        """Bytes a second: the best of a few goes, of so many passes each."""

        def read(part):
            for _ in range(passes):
                self.libc.memchr(part, 2, self.part)

        return max(passes * self.part * self.threads / self.each(read) for _ in range(5))


def bench(program, seconds, options, case, threads):
    """The row of a case."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.json"
        subprocess.run([program, "bench", *options, f"--seconds={seconds}", "--json", path,
                        f"{case},threads={threads}"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())[0]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder", nargs="?", default="build/release")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--seconds", type=float, default=1, help="of each measurement")
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    program, reader, rounds = pathlib.Path(a.folder) / "tessera", Reader(a.threads), []
    keys = QUERIES * KEYS
    for _ in range(a.rounds):
        rate = reader.rate(8)
        dense = bench(program, a.seconds, (), DENSE, a.threads)
        decode = bench(program, a.seconds, ("--rotate",), DECODE, a.threads)
        read_ms = 2e3 * DIMS * keys / rate
        product_ms = 2e-9 * (DIMS + VALUES) * keys * HEADS / dense["tflops"]
        rounds.append((rate * 1e-9, dense["tflops"], read_ms, product_ms, decode["ms"], decode["step_ms"],
                       max(read_ms, product_ms) / decode["ms"]))
        print("read %.1f GB/s, dense %.3f Tflop/s: read %.3f ms, products %.3f ms; run %.3f ms, fill and run %.3f ms: "
              "%.3f of the run" % rounds[-1], flush=True)
    print(f"{decode['device']}, {a.threads} threads, {dense['kernel']} and {decode['kernel']}, "
          f"commit {decode['commit']}")
    print("medians: " + "read %.1f GB/s, dense %.3f Tflop/s: read %.3f ms, products %.3f ms; run %.3f ms, fill and run "
          "%.3f ms: %.3f of the run" % tuple(map(statistics.median, zip(*rounds))))


if __name__ == "__main__":
    main()
