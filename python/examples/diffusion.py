"""Lists that change: steps of a loop as diffusion models have it, in which each block of queries keeps the blocks of
keys with the largest pooled scores. The plan is reserved once; each step fills it with its own lists.

    python3 diffusion.py
"""
import numpy as np

import tessera

N, D, H, BLOCK, KEEP = 1024, 64, 4, 64, 4
rng = np.random.default_rng(0)
x = rng.standard_normal((1, H, N, D)).astype("float32")
weights = [(rng.standard_normal((D, D)) / np.sqrt(D)).astype("float32") for _ in range(3)]

rows = N // BLOCK
chosen = np.zeros((1, H, rows, KEEP), np.int32)
lists = tessera.DevicePattern.indices(chosen, N, block=BLOCK, promises=("distinct",))
plan = tessera.ReservedPlan(lists, x, x, x)

for step in range(4):
    q, k, v = (x @ w for w in weights)
    pooled_q, pooled_k = (y.reshape(1, H, rows, BLOCK, D).mean(3) for y in (q, k))
    scores = pooled_q @ pooled_k.swapaxes(2, 3)
    chosen[:] = np.argpartition(scores, -KEEP, axis=-1)[..., -KEEP:]
    plan.fill(lists)  # reads `chosen` as it is now
    o = plan(q, k, v)
    report = plan.report()
    assert report["faults"] == 0 and report["pairs"] == H * rows * KEEP * BLOCK * BLOCK
    x = x + 0.1 * o
    print(f"step {step}: {report['pairs'] / (H * N * N):.0%} of the pairs, largest output {abs(o).max():.2f}")

# The last step again, by a pattern of the same blocks.
pattern = tessera.Pattern.from_counts(chosen, n_q=N, n_kv=N, block=BLOCK)
assert np.allclose(o, tessera.attention(q, k, v, pattern), atol=1e-5)
