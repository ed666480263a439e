#!/usr/bin/env python3
"""Python's share of a call: microseconds above tess_run itself, on a problem of 16 queries whose run takes least,
beside floors that torch sets: an empty operator and an empty autograd.Function of the same inputs and outputs.

    PYTHONPATH=python TESSERA_LIBRARY=build/release/libtessera.so python3 bench/peers/calls.py [cpu|cuda] [WHAT...]

WHAT is any of calls (the default); turns, torch's attention and ours one after the other, beside each alone: two thread
pools in one process; and masks, the import of a BlockMask beside the plan made of it and beside create_block_mask.
"""
import statistics
import sys
import time
import timeit

import numpy

import tessera
import tessera.planned

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


def run_alone(plan, q, k, v, out):
    """Microseconds of tess_run on views that stand."""
    frame = tessera.planned.Frame(plan)
    frame.load(plan, None, q, k, v)
    frame.arguments.o = frame.o(out)
    if plan.launch(frame, tessera.library.c.tess_run):
        raise tessera.TesseraError(frame.error.message.decode())
    run, call, stream = tessera.library.c.tess_run, frame.call, plan.stream()
    return best(lambda: run(*call, stream))


def calls(device):
    pattern = tessera.Pattern.from_spec("causal", 16, block=16)
    if device == "cpu":
        q, k, v = (numpy.zeros((1, 1, 16, 32), "float32") for _ in range(3))
        plan = tessera.Plan(pattern, q, k, v, threads=1)
        out = plan(q, k, v)
        base = run_alone(plan, q, k, v, out)
        print(f"numpy, tess_run by ctypes: {base:.2f} us")
        tell("a bound run", plan.bind(q, k, v, out=out), base)
        tell("a plan, output given", lambda: plan(q, k, v, out=out), base)
        tell("a plan", lambda: plan(q, k, v), base)
        tell("tessera.attention", lambda: tessera.attention(q, k, v, pattern), base)
    if torch is None:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    q, k, v = (torch.zeros(1, 1, 16, 32, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
               for _ in range(3))
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    plan = tessera.Plan(pattern, q, k, v)
    out = plan(q, k, v)
    base = run_alone(plan, q, k, v, out)
    finish()
    print(f"torch, tess_run by ctypes: {base:.2f} us")
    arguments = (q, k, v, None, None, None, pattern.key, 0.0, 0.0, 0.0)
    tell("a bound run", plan.bind(q, k, v, out=out), base, finish)
    tell("a plan, output given", lambda: plan(q, k, v, out=out), base, finish)
    tell("a plan", lambda: plan(q, k, v), base, finish)
    tell("tessera.attention", lambda: tessera.attention(q, k, v, pattern), base, finish)
    tell("the operator", lambda: torch.ops.tessera.attention(*arguments), base, finish)
    q.requires_grad_()
    tell("with autograd", lambda: tessera.attention(q, k, v, pattern), base, finish)
    floors(arguments)
    finish()
    torch.set_num_threads(threads)


def floors(arguments):
    """What torch takes by itself: outputs made, an operator and an autograd.Function that do no more."""
    q, (batch, heads, n, d) = arguments[0].detach(), arguments[0].shape
    lse = q.new_empty(0, dtype=torch.float32)

    def outputs():
        return (q.new_empty_strided((batch, heads, n, d), (heads * n * d, n * d, d, 1)),
                lse.new_empty_strided((batch, heads, n), (heads * n, n, 1)))

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, alibi, sink, seed, call):
            o, lse = outputs()
            ctx.save_for_backward(q, k, v, o, lse, alibi, sink, seed)
            ctx.set_materialize_grads(False)
            return o, lse

        @staticmethod
        def backward(ctx, d_o, d_lse):
            return (None,) * 7

    library = torch.library.Library("tessera_floor", "DEF")
    library.define("attention" + str(torch.ops.tessera.attention.default._schema).partition("attention")[2])
    library.impl("attention", lambda *inputs: outputs(), "Autograd")
    operator = torch.ops.tessera_floor.attention
    def read():
        """An output, and of three tensors all that tells whether a plan takes them."""
        outputs()
        return [(x.shape, x.stride(), x.dtype, x.device, x.requires_grad, x.data_ptr()) for x in arguments[:3]]

    for name, function in (("both outputs made", outputs), ("both made, layouts read", read),
                           ("an empty operator", lambda: operator(*arguments)),
                           ("an empty autograd.Function", lambda: Empty.apply(*arguments[:6], arguments))):
        print(f"{name:32} {best(function):7.2f} us", flush=True)


def milliseconds(function, finish=lambda: None):
    start = time.perf_counter()
    function()
    finish()
    return (time.perf_counter() - start) * 1e3


def turns(device, rounds=60):
    """Medians of torch's attention and ours: each alone, each after a pause as long as the other takes, and in turns.
    Rounds of the three alternate in groups of 10, as a machine's speed wanders."""
    if device != "cpu":
        raise SystemExit("turns are of the CPU's thread pools: cpu turns")
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    plan = tessera.Plan(tessera.Pattern.from_spec("window(255,0)", 2048), q, k, v)
    out = plan(q, k, v)
    functions = {"torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
                 "tessera": lambda: plan(q, k, v, out=out)}
    times = {name: {"alone": [], "after a pause": [], "in turns": []} for name in functions}
    pause = {name: min(milliseconds(function) for _ in range(5)) / 1e3 for name, function in functions.items()}
    for _ in range(rounds // 10 + 1):
        for name, function in functions.items():
            times[name]["alone"] += [milliseconds(function) for _ in range(11)][1:]
            other = pause["torch" if name == "tessera" else "tessera"]
            for _ in range(10):
                time.sleep(other)
                times[name]["after a pause"].append(milliseconds(function))
        for _ in range(10):
            for name, function in functions.items():
                times[name]["in turns"].append(milliseconds(function))
    for name, kinds in times.items():
        found = {kind: statistics.median(x[10:]) for kind, x in kinds.items()}
        print(f"{name:8}" + ", ".join(f"{kind} {x:.3f} ms" for kind, x in found.items())
              + f": {found['in turns'] / found['alone']:.3f}, {torch.get_num_threads()} threads")


def masks(device, n=32768):
    """Least of three times each."""
    from torch.nn.attention.flex_attention import create_block_mask

    def window(b, h, q, k):
        return (q >= k) & (q - k < 1024)

    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    q, k, v = (torch.empty(1, 8, n, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    n_blocks = n if device == "cuda" else n // 8  # on the CPU create_block_mask makes a dense mask
    block_mask = create_block_mask(window, None, None, n_blocks, n_blocks, device=device)
    q, k, v = (x[:, :, :n_blocks] for x in (q, k, v))
    pattern = tessera.Pattern.from_block_mask(block_mask)
    for name, function in (("create_block_mask",
                            lambda: create_block_mask(window, None, None, n_blocks, n_blocks, device=device)),
                           ("Pattern.from_block_mask", lambda: tessera.Pattern.from_block_mask(block_mask)),
                           ("Plan", lambda: tessera.Plan(pattern, q, k, v))):
        print(f"{name:24} {min(milliseconds(function, finish) for _ in range(3)):8.2f} ms, {n_blocks} queries and keys")


if __name__ == "__main__":
    given = sys.argv[2:] or ["calls"]
    for what in given:
        {"calls": calls, "turns": turns, "masks": masks}[what](sys.argv[1] if len(sys.argv) > 1 else "cpu")
