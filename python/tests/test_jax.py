"""Tests attn_proto.dlpack on arrays of bfloat16, which NumPy has only by the package ml_dtypes: JAX's arrays, and NumPy's."""

import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from attn_proto import dlpack
from test_dlpack import Case, attention, drawn


class Bfloat16:
    """The tests. `of` makes an array of the library from an array of NumPy."""

    def drawn(self, *shapes):
        return [self.of(drawn(*shape).astype(ml_dtypes.bfloat16)) for shape in shapes]

    def near_bfloat16(self, got, want, like, tolerance=2e-2):
        self.assertIs(type(got), type(like))
        self.assertEqual(got.dtype, ml_dtypes.bfloat16)
        if isinstance(got, jax.Array):
            self.assertEqual(got.device, like.device)
        self.near(np.asarray(got), want, tolerance)

    def test_flash(self):
        q, k, v = self.drawn((2, 4, 21, 64), (2, 2, 30, 64), (2, 2, 30, 64))
        bias = drawn(1, 1, 21, 32)
        want, want_lse = attention(*map(np.asarray, (q, k, v)), seen=np.arange(30) <= np.arange(9, 30)[:, None], change=lambda s: s + bias[..., :30])
        o, lse = dlpack.flash(q, k, v, causal=True, bias=self.of(bias), with_lse=True)
        self.near_bfloat16(o, want, q)
        self.near(np.asarray(lse), want_lse, 1e-4)
        self.assertIs(type(lse), type(q))
        self.assertGreater(dlpack.launches(q), 0)
        with self.assertRaisesRegex(ValueError, "e4m3 is not allowed"):
            dlpack.flash(*(q.astype(ml_dtypes.float8_e4m3fn),) * 3)

    def test_caches(self):
        lengths, table, scales = np.array([30, 17], np.int32), np.array([[3, 1], [0, 2]], np.int32), np.full((4, 2), 0.05, np.float32)
        for rows, attend in ((1, dlpack.decode), (20, dlpack.prefill)):
            q, k, v = self.drawn((2, 4, rows, 64), (4, 2, 16, 64), (4, 2, 16, 64))
            dlpack.check_cache(k, self.of(lengths), self.of(table))
            eight = [self.of((np.asarray(x, np.float32) / 0.05).astype(ml_dtypes.float8_e4m3fn)) for x in (k, v)]
            for caches, factor, options in (((k, v), 1, {}), (eight, 0.05, {"k_scales": self.of(scales), "v_scales": self.of(scales)})):
                o = attend(q, *caches, self.of(lengths), self.of(table), **options)
                rows_of = [factor * np.asarray(x, np.float64)[table].swapaxes(1, 2).reshape(2, 2, 32, 64) for x in caches]
                want = [attention(np.asarray(q[i:i + 1]), *(x[i:i + 1, :, :n] for x in rows_of),
                                  seen=np.arange(n) <= np.arange(n - rows, n)[:, None])[0] for i, n in enumerate(lengths)]
                self.near_bfloat16(o, np.concatenate(want), q, 4e-2)

    def test_new_tokens_in_a_cache(self):
        """NumPy's caches alone: JAX's arrays are read-only."""
        k, v = (np.zeros((1, 1, 8, 64), ml_dtypes.bfloat16) for _ in "kv")
        q, new_k, new_v = (sign * drawn(1, 1, 1, 64).astype(ml_dtypes.bfloat16) for sign in (1, 1, -1))
        o = dlpack.decode(q, k, v, np.array([1], np.int32), new_k=new_k, new_v=new_v)
        self.near_bfloat16(o, new_v.astype(np.float64), q)
        for cache, new in ((k, new_k), (v, new_v)):
            self.assertTrue(np.array_equal(cache[:, :, :1], new) and not cache[:, :, 1:].any())
        with self.assertRaisesRegex(ValueError, "the call writes k, but k is read-only"):
            dlpack.decode(*map(jnp.asarray, (q, k, v, np.array([1], np.int32))), new_k=jnp.asarray(new_k), new_v=jnp.asarray(new_v))


class OfJax(Bfloat16, Case):
    of = staticmethod(jnp.asarray)


class OfNumPy(Bfloat16, Case):
    of = staticmethod(np.asarray)


if __name__ == "__main__":
    unittest.main()
