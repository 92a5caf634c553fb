"""Calls dlpack.flash() with CuPy arrays, and compares the result with softmax attention written in CuPy.

The call runs on the arrays' GPU, on CuPy's current stream.
"""

import cupy as cp

from attn_proto import dlpack

q, k, v = (cp.random.standard_normal((1, heads, 1024, 128), dtype=cp.float32).astype(cp.float16) for heads in (8, 2, 2))
o = dlpack.flash(q, k, v, causal=True)
scores = cp.where(cp.tri(1024, dtype=bool), q @ cp.repeat(k, 4, 1).swapaxes(-1, -2) / 128 ** 0.5, -cp.inf).astype(cp.float32)
weights = cp.exp(scores - scores.max(-1, keepdims=True))
want = weights / weights.sum(-1, keepdims=True) @ cp.repeat(v, 4, 1).astype(cp.float32)
print(f"largest difference: {float(cp.abs(o - want).max()):.1e}")
assert cp.abs(o - want).max() < 2e-2
