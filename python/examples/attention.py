"""Sparse attention on numpy arrays: a pattern, one call, and one query by hand.

    python3 attention.py
"""
import numpy as np

import tessera

N, D = 512, 64
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 4, N, D)).astype("float32") for _ in range(3))

# Each query sees the 31 keys before it and itself, and the first 4 tokens.
pattern = tessera.Pattern.from_spec("causal&(window(31,0)+global(4))", N, block=16)
print(pattern)
o, lse = tessera.attention(q, k, v, pattern, return_lse=True)

# Query 200 by hand.
keys = pattern.keys(200)
scores = k[0, 0, keys] @ q[0, 0, 200] / np.sqrt(D)
weights = np.exp(scores - scores.max())
expected = weights @ v[0, 0, keys] / weights.sum()
print(f"query 200 sees {len(keys)} keys; largest error {abs(o[0, 0, 200] - expected).max():.1e}")
assert np.allclose(o[0, 0, 200], expected, atol=1e-6)

# A plan is made once where the call is repeated; bound to its arrays a run costs what the library's own does.
plan = tessera.Plan(pattern, q, k, v)
print(str(plan).splitlines()[0], plan.kernels)
run = plan.bind(q, k, v, out=o)
for _ in range(3):
    run()

# Attention over two sets of keys is that over both.
even = np.arange(N) % 2 == 0
mask = pattern.to_mask()
halves = [tessera.Pattern.from_mask(mask & x, block=16) for x in (even, ~even)]
parts = [tessera.attention(q, k, v, x, return_lse=True) for x in halves]
whole, _ = tessera.merge(*zip(*parts))
assert np.allclose(whole, o, atol=1e-5)
