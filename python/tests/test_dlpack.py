"""attn_proto.dlpack on NumPy's arrays, and on PyTorch's where it is there."""

import unittest

import numpy as np

from attn_proto import dlpack

try:
    import torch.nn.attention.bias
    from torch.fx.experimental.proxy_tensor import make_fx
except ImportError:
    torch = None


def drawn(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def attention(q, k, v):
    """The definition, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    weights = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return weights / weights.sum(-1, keepdims=True) @ v


class Arrays(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = (drawn(2, 4, n, 64) for n in (21, 30, 30))

    def near(self, got, want, tolerance=2e-5):
        self.assertEqual(got.shape, want.shape)
        self.assertLess(np.abs(np.asarray(got, np.float64) - want).max(), tolerance)

    def refuses(self, error, text, *arguments, **options):
        with self.assertRaisesRegex(error, text):
            dlpack.flash(*arguments, **options)

    def test_read_only_arrays(self):
        bias = drawn(1, 1, 1, 32)
        for array in (self.q, self.k, self.v, bias):
            array.flags.writeable = False
        self.near(dlpack.flash(self.q, self.k, self.v), attention(self.q, self.k, self.v))
        dlpack.flash(self.q, self.k, self.v, bias=bias)
        self.assertTrue(dlpack.flash(self.q, self.k, self.v).flags.writeable)

    def test_orders_in_memory(self):
        want = attention(self.q, self.k, self.v)
        turned = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (self.q, self.k, self.v)]
        self.near(dlpack.flash(*turned), want)
        self.near(dlpack.flash(*(x.swapaxes(1, 2).copy() for x in (self.q, self.k, self.v)), bshd=True).swapaxes(1, 2), want)
        repeated = np.broadcast_to(self.q[:, :1], self.q.shape)
        self.near(dlpack.flash(repeated, self.k, self.v), attention(repeated, self.k, self.v))
        backwards = self.q[:, :, ::-1]
        self.near(dlpack.flash(backwards, self.k, self.v), attention(backwards, self.k, self.v))
        self.near(dlpack.flash(*(x.astype(np.float16) for x in (self.q, self.k, self.v))), want, 4e-3)

    def test_empty_arrays(self):
        for axis in (0, 2):
            q, k, v = (np.delete(x, np.s_[:], axis) for x in (self.q, self.k, self.v))
            for order in "CF":
                self.assertEqual(dlpack.flash(*(np.array(x, order=order) for x in (q, k, v))).shape, q.shape)
        self.near(dlpack.flash(self.q, k, v), np.zeros_like(self.q))

    def test_unknown_names(self):
        self.refuses(TypeError, "takes no attn_mask.*bias are allowed", self.q, self.k, self.v, attn_mask=self.q)
        self.refuses(TypeError, "takes no lse", self.q, self.k, self.v, lse=drawn(2, 4, 21))

    def test_wrong_arguments(self):
        q, k, v = self.q, self.k, self.v
        self.refuses(TypeError, "q is a list", q.tolist(), k, v)
        self.refuses(TypeError, "k is a NoneType", q, None, v)
        self.refuses(TypeError, "q is a MaskedArray", np.ma.masked_array(q, q > 0), k, v)
        self.refuses(TypeError, "sinks is a Marked", q, k, v, sinks=drawn(4).view(type("Marked", (np.ndarray,), {})))
        self.refuses(ValueError, "3 dimensions", q[0], k, v)
        self.refuses(ValueError, "64 bits", q.astype(np.float64), k, v)
        self.refuses(ValueError, "batch", q, k[:1], v[:1])
        self.refuses(ValueError, "heads", q, k[:, :3], v[:, :3])
        self.refuses(ValueError, "equal", q, k, v[:, :, :29])
        self.refuses(ValueError, "widths", q, k[..., :32], v)
        self.refuses(ValueError, "last dimension", np.asfortranarray(q), k, v)
        self.refuses(ValueError, "bias", q, k, v, bias=drawn(1, 1, 21, 31))
        self.refuses(ValueError, "bias", q, k, v, bias=drawn(21, 32))
        self.refuses(ValueError, "lengths", q, k, v, lengths=np.array([30, 30]))
        self.refuses(ValueError, "lengths", q, k, v, lengths=np.array([30], np.int32))
        self.refuses(ValueError, "scale of 0", q, k, v, scale=0)
        self.refuses(ValueError, "window_left 18446744073709551619", q, k, v, window_left=2 ** 64 + 3)
        self.refuses(TypeError, "integer", q, k, v, soft_cap=30.0)
        self.near(dlpack.flash(q, k, v, causal=2 ** 32), dlpack.flash(q, k, v, causal=True))

    @unittest.skipUnless(torch, "PyTorch")
    def test_what_pytorch_would_record(self):
        def attend(q):
            return dlpack.flash(q, q, q)

        q = torch.from_numpy(self.q)
        for trace in (lambda: torch.jit.trace(attend, q, check_trace=False), lambda: make_fx(attend)(q)):
            with self.assertRaisesRegex(TypeError, "q is traced"):
                trace()
        with torch.autograd.forward_ad.dual_level():
            attend(q)
            with self.assertRaisesRegex(TypeError, "forward derivative"):
                attend(torch.autograd.forward_ad.make_dual(q, q))

    @unittest.skipUnless(torch, "PyTorch")
    def test_tensors_whose_memory_is_not_their_elements(self):
        q, k, v = (torch.from_numpy(x) for x in (self.q, self.k, self.v))
        self.near(dlpack.flash(torch.nn.Parameter(q, requires_grad=False), k, v), attention(self.q, self.k, self.v))
        self.refuses(TypeError, "q is a Tensor", torch._neg_view(q), k, v)
        self.refuses(TypeError, "k is a Tensor", q, torch._efficientzerotensor(k.shape), v)
        self.refuses(TypeError, "bias is a CausalBias", q, k, v, bias=torch.nn.attention.bias.causal_lower_right(21, 30))
        self.refuses(BufferError, "gradient", q.clone().requires_grad_(), k, v)
        if torch.cuda.is_available() and torch.ops.attn.has_backend("cuda"):
            self.refuses(ValueError, "k is on device", q, k.cuda(), v.cuda())


if __name__ == "__main__":
    unittest.main()
