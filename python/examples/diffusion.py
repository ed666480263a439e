"""Lists that change: steps of a loop as diffusion models have it, in which each block of queries keeps the blocks of
keys with the largest pooled scores. The plan is reserved once; each step chooses lists of its own, fills it and runs.

    python3 diffusion.py
"""
import numpy as np

import tessera

N, D, H, BLOCK, KEEP = 1024, 64, 4, 64, 4
rng = np.random.default_rng(0)
x = rng.standard_normal((1, H, N, D)).astype("float32")
weights = [(rng.standard_normal((D, D)) / np.sqrt(D)).astype("float32") for _ in range(3)]

rows = N // BLOCK
chosen = tessera.Selected(indices=np.zeros((1, H, rows, KEEP), np.int32), counts=np.zeros((1, H, rows), np.int32),
                          bits=None, overflows=np.zeros((1, H, rows), np.int64))
lists = tessera.DevicePattern.indices(chosen.indices, N, block=BLOCK, promises=("distinct", "ascending"))
plan = tessera.ReservedPlan(lists, x, x, x)

for step in range(4):
    q, k, v = (x @ w for w in weights)
    scores = tessera.pool_score(tessera.pool(q, BLOCK), tessera.pool(k, BLOCK), block=BLOCK)
    tessera.select(scores, k=KEEP, block=BLOCK, out=chosen)
    o = plan.step(lists, q, k, v)  # reads what was chosen, and runs over it
    report = plan.report()
    assert report["faults"] == 0 and report["pairs"] == H * rows * KEEP * BLOCK * BLOCK
    x = x + 0.1 * o
    print(f"step {step}: {report['pairs'] / (H * N * N):.0%} of the pairs, largest output {abs(o).max():.2f}")

# The last step again, by a pattern of the same blocks.
pattern = tessera.Pattern.from_counts(chosen.indices, n_q=N, n_kv=N, block=BLOCK)
assert np.allclose(o, tessera.attention(q, k, v, pattern), atol=1e-5)
