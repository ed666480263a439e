#!/usr/bin/env python3
"""Python's share of a call: microseconds above tess_run itself, on a problem of 16 queries whose run takes least.

    PYTHONPATH=python TESSERA_LIBRARY=build/release/libtessera.so python3 bench/peers/calls.py [cpu|cuda]
"""
import sys
import timeit

import numpy

import tessera

try:
    import torch
except ImportError:
    torch = None


def best(function, count=50, rounds=1000):
    """Microseconds of a call: the least of `rounds` means."""
    return min(timeit.repeat(function, number=count, repeat=rounds)) / count * 1e6


def tell(name, function, base, *finish):
    print(f"{name:32} {best(function) - base:7.2f} us above tess_run", flush=True)
    for end in finish:
        end()


def main(device):
    pattern = tessera.Pattern.from_spec("causal", 16, block=16)
    run = tessera.library.c.tess_run
    if device == "cpu":
        q, k, v = (numpy.zeros((1, 1, 16, 32), "float32") for _ in range(3))
        plan = tessera.Plan(pattern, q, k, v, threads=1)
        out = plan(q, k, v)
        frame = plan.frame()
        frame.q(q), frame.k(k), frame.v(v), frame.o(out)
        base = best(lambda: run(*frame.call, None))
        print(f"numpy, tess_run by ctypes: {base:.2f} us")
        tell("a bound run", plan.bind(q, k, v, out=out), base)
        tell("a plan, output given", lambda: plan(q, k, v, out=out), base)
        tell("a plan", lambda: plan(q, k, v), base)
        tell("tessera.attention", lambda: tessera.attention(q, k, v, pattern), base)
    if torch is None:
        return
    torch.set_num_threads(1)
    q, k, v = (torch.zeros(1, 1, 16, 32, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
               for _ in range(3))
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    plan = tessera.Plan(pattern, q, k, v)
    out = plan(q, k, v)
    frame = plan.frame()
    frame.q(q), frame.k(k), frame.v(v), frame.o(out)
    stream = plan.stream()
    base = best(lambda: run(*frame.call, stream))
    finish()
    print(f"torch, tess_run by ctypes: {base:.2f} us")
    key = pattern.key
    tell("a bound run", plan.bind(q, k, v, out=out), base, finish)
    tell("a plan, output given", lambda: plan(q, k, v, out=out), base, finish)
    tell("a plan", lambda: plan(q, k, v), base, finish)
    tell("tessera.attention", lambda: tessera.attention(q, k, v, pattern), base, finish)
    operator = torch.ops.tessera.attention
    tell("the operator", lambda: operator(q, k, v, None, None, None, key, 0.0, 0.0, 0.0), base, finish)
    q.requires_grad_()
    tell("with autograd", lambda: tessera.attention(q, k, v, pattern), base, finish)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
