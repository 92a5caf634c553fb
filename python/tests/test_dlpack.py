"""Tests attn_proto.dlpack on NumPy's arrays. If a PyTorch with torch.nn.attention.bias is installed, some tests use
PyTorch's tensors."""

import ctypes
import itertools
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from attn_proto import _options, dlpack

try:
    import torch.nn.attention.bias
    from torch.fx.experimental.proxy_tensor import make_fx
except ImportError:
    torch = None


def drawn(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def attention(q, k, v, scale=None, seen=True, change=lambda s: s, sinks=None):
    """The definition in float64: o, and the log of the denominator. A row that sees no key is 0."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = change(q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1])))
    weights = np.where(seen, np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks.astype(np.float64))[:, None, None])
    with np.errstate(divide="ignore"):
        return weights / np.maximum(total, 1e-300) @ v, np.log(total[..., 0])


def rotated(x, first, frequencies, grown=1, interleaved=False):
    """RoPE. Row 0 has the position `first`. The first 2 * len(frequencies) elements of each row are rotated."""
    x, pairs = x.astype(np.float64), len(frequencies)
    angles = (first + np.arange(x.shape[2]))[:, None] * frequencies
    a, b = (np.s_[0:2 * pairs:2], np.s_[1:2 * pairs:2]) if interleaved else (np.s_[:pairs], np.s_[pairs:2 * pairs])
    out = x.copy()
    out[..., a] = grown * (x[..., a] * np.cos(angles) - x[..., b] * np.sin(angles))
    out[..., b] = grown * (x[..., b] * np.cos(angles) + x[..., a] * np.sin(angles))
    return out


class Case(unittest.TestCase):
    def near(self, got, want, tolerance=2e-5):
        self.assertEqual(got.shape, want.shape)
        self.assertLess(np.abs(np.asarray(got, np.float64) - want).max(), tolerance)


class Arrays(Case):
    def setUp(self):
        self.q, self.k, self.v = (drawn(2, 4, n, 64) for n in (21, 30, 30))

    def refuses(self, error, text, *arguments, **options):
        with self.assertRaisesRegex(error, text):
            dlpack.flash(*arguments, **options)

    def test_orders_in_memory(self):
        """Also arrays that are read-only, and results that are not."""
        want = attention(self.q, self.k, self.v)[0]
        strided = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (self.q, self.k, self.v)]
        for x in strided:
            x.flags.writeable = False
        o = dlpack.flash(*strided)
        self.near(o, want)
        self.assertTrue(o.flags.writeable)
        for q in (np.broadcast_to(self.q[:, :1], self.q.shape), self.q[:, :, ::-1]):
            self.near(dlpack.flash(q, self.k, self.v), attention(q, self.k, self.v)[0])
        self.near(dlpack.flash(*(x.astype(np.float16) for x in (self.q, self.k, self.v))), want, 4e-3)

    def test_empty_arrays(self):
        for axis in (0, 2):
            q, k, v = (np.delete(x, np.s_[:], axis) for x in (self.q, self.k, self.v))
            for order in "CF":
                self.assertEqual(dlpack.flash(*(np.array(x, order=order) for x in (q, k, v))).shape, q.shape)
        self.near(dlpack.flash(self.q, k, v), np.zeros_like(self.q))

    def test_wrong_arguments(self):
        q, k, v = self.q, self.k, self.v
        marked = drawn(4).view(type("Marked", (np.ndarray,), {}))
        for error, word, tensors, options in (
                (TypeError, "takes no attn_mask; bshd, causal, .*bias.* are allowed", (q, k, v), {"attn_mask": q}),
                (TypeError, "takes no lse", (q, k, v), {"lse": drawn(2, 4, 21)}), (TypeError, "takes no layout", (q, k, v), {"layout": 1}),
                (TypeError, "q is a list", (q.tolist(), k, v), {}), (TypeError, "k is a NoneType", (q, None, v), {}),
                (TypeError, "q is a MaskedArray", (np.ma.masked_array(q, q > 0), k, v), {}),
                (TypeError, "sinks is a Marked", (q, k, v), {"sinks": marked}), (TypeError, "integer", (q, k, v), {"window_left": 30.0}),
                (ValueError, r"\[4, 21, 64\] is not allowed; allowed are \[batch, heads, tokens, width\]", (q[0], k, v), {}),
                (ValueError, r"\[4, 21, 64\] is not allowed", (q[0], k, v), {"with_lse": True}),
                (ValueError, "float64", (q.astype(np.float64), k, v), {}), (ValueError, "last dimension", (np.asfortranarray(q), k, v), {}),
                (ValueError, "bias", (q, k, v), {"bias": drawn(21, 32)}), (ValueError, "lengths", (q, k, v), {"lengths": np.array([30, 30])}),
                (ValueError, "scale of 0", (q, k, v), {"scale": 0}), (ValueError, "soft_cap 1000.5", (q, k, v), {"soft_cap": 1000.5}),
                (ValueError, "window_left 18446744073709551619", (q, k, v), {"window_left": 2 ** 64 + 3}),
                (ValueError, "must both be given", (q, k, v), {"cu_seqlens_q": np.array([0, 21], np.int32)})):
            self.refuses(error, word, *tensors, **options)
        for i in range(3):
            with self.assertRaisesRegex(ValueError, r"\[4, 21, 64\] is not allowed"):
                dlpack.linear(*(q[0] if j == i else q for j in range(3)))
        self.near(dlpack.flash(q, k, v, causal=2 ** 32), dlpack.flash(q, k, v, causal=True))

    def test_why_not_says_what_the_call_says(self):
        q, k, v = self.q, self.k, self.v
        tables = {"lengths": np.array([30, 30], np.int32)}
        for operation, arrays, options in (
                ("flash", (q, k, v), {"causal": True, "bias": drawn(1, 1, 1, 32)}), ("flash", (q, k[:1], v[:1]), {}),
                ("decode", (q, k, v), tables), ("decode", (q, k, v), {**tables, "new_k": q}), ("prefill", (q, k, v), tables),
                ("prefill", (q, k, v), {**tables, "tree": np.zeros((2, 21), np.int64)}), ("linear", (k, k, v), {"feature": "elu1"}),
                ("linear", (k, k, v), {"feature": "gelu"}), ("rope", (q, q), {"interleaved": True}), ("rope", (q,), {"rotary_dim": 3})):
            with self.subTest(operation, options=list(options)):
                said, launches = None, dlpack.launches(q)
                why = dlpack.why_not(operation, *arrays, **options)
                self.assertEqual(dlpack.launches(q), launches)
                try:
                    getattr(dlpack, operation)(*arrays, **options)
                except ValueError as error:
                    said = str(error)
                self.assertEqual(why, said)
        with self.assertRaisesRegex(ValueError, "operation 'sdpa' is not allowed"):
            dlpack.why_not("sdpa", q)

    def test_versions_of_dlpack(self):
        class Versioned:
            def __init__(self, array, major):
                self.array, self.major, self.shape = array, major, array.shape

            def __dlpack__(self, **options):
                capsule = self.array.__dlpack__(max_version=(1, 0))
                begin = dlpack._pointer_of(capsule, b"dltensor_versioned")
                ctypes.c_uint32.from_address(begin).value = self.major
                return capsule

        want = attention(self.q, self.k, self.v)[0]
        self.near(dlpack.flash(self.q, Versioned(self.k, 1), self.v), want)
        for major in (0, 2, 99):
            self.refuses(TypeError, f"k is a Versioned that hands out version {major} of DLPack; version 1 is allowed", self.q,
                         Versioned(self.k, major), self.v)

    @unittest.skipUnless(torch, "PyTorch")
    def test_storages_that_end_before_their_tensors(self):
        tensors = [torch.from_numpy(x) for x in (self.q, self.k, self.v, drawn(4))]
        for i in range(4):
            given = [x.clone() for x in tensors]
            given[i].untyped_storage().resize_(given[i].nbytes - 1)
            self.refuses(ValueError, "a storage of .* bytes is not allowed; its elements need", *given[:3], sinks=given[3])

    @unittest.skipUnless(torch, "PyTorch")
    def test_traces_and_derivatives_of_pytorch_are_refused(self):
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
    def test_tensors_that_pytorch_computes_when_they_are_read_are_refused(self):
        q, k, v = (torch.from_numpy(x) for x in (self.q, self.k, self.v))
        self.near(dlpack.flash(torch.nn.Parameter(q, requires_grad=False), k, v), attention(self.q, self.k, self.v)[0])
        self.refuses(TypeError, "q is a Tensor", torch._neg_view(q), k, v)
        self.refuses(TypeError, "k is a Tensor", q, torch._efficientzerotensor(k.shape), v)
        self.refuses(TypeError, "bias is a CausalBias", q, k, v, bias=torch.nn.attention.bias.causal_lower_right(21, 30))
        self.refuses(BufferError, "gradient", q.clone().requires_grad_(), k, v)
        if torch.cuda.is_available() and torch.ops.attn.has_backend("cuda"):
            self.refuses(ValueError, "k is on device", q, k.cuda(), v.cuda())


class Structs(unittest.TestCase):
    def test_fields_stand_where_the_c_compiler_puts_them(self):
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang-19")
        if not compiler:
            self.skipTest("no C compiler")
        structs = [dlpack.FlashOptions, dlpack.CacheOptions, dlpack.LinearOptions, dlpack.RopeOptions]
        lines = [f'printf("{each.__name__} {name} %zu %zu\\n", offsetof({each.__name__}, {name}), sizeof (({each.__name__}*)0)->{name});'
                 for each in structs for name, _ in each._fields_]
        lines += [f'printf("{each.__name__} %zu\\n", sizeof({each.__name__}));' for each in structs]
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder) / "a.c", pathlib.Path(folder) / "a"
            source.write_text('#include <stdio.h>\n#include "common/api/attn.h"\nint main(void) {' + "\n".join(lines) + "}")
            subprocess.run([*compiler.split(), "-I", pathlib.Path(__file__).resolve().parents[2], source, "-o", program], check=True)
            said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
        want = [f"{each.__name__} {name} {getattr(each, name).offset} {getattr(each, name).size}" for each in structs for name, _ in each._fields_]
        self.assertEqual(said, want + [f"{each.__name__} {ctypes.sizeof(each)}" for each in structs])


class Attention(Case):
    def setUp(self):
        self.q, self.k, self.v = drawn(2, 4, 37, 64), drawn(2, 2, 40, 64), drawn(2, 2, 40, 64)[:, :, ::-1].copy()

    def test_every_option(self):
        q, k, v = self.q, self.k, self.v
        own, key = np.arange(3, 40)[:, None], np.arange(40)
        slopes, bias = 2.0 ** (-2 * np.arange(1, 5)), drawn(2, 1, 37, 40)
        lengths, sinks = np.array([40, 13], np.int32), drawn(4)
        starts = np.array([5, 39], np.int32)
        documents = np.array([[0, 13]] * 13 + [[13, 40]] * 27, np.int32)
        always = np.ones((37, 40), bool)
        cases = (
            ({"causal": True}, key <= own, lambda s: s), ({"scale": 0.3}, always, lambda s: s * 0.3 * 8),
            ({"soft_cap": 5}, always, lambda s: 5 * np.tanh(s / 5)),
            ({"soft_cap": 2.5}, always, lambda s: 2.5 * np.tanh(s / 2.5)),
            ({"causal": True, "window_left": 5}, (key <= own) & (key >= own - 5), lambda s: s),
            ({"window_right": 3}, key <= own + 3, lambda s: s),
            ({"causal": True, "prefix": 9}, (key <= own) | (key < 9), lambda s: s),
            ({"window_left": 2, "window_right": 2, "global_tokens": 3}, (abs(key - own) <= 2) | (key < 3) | (own < 3), lambda s: s),
            ({"alibi": True}, always, lambda s: s + slopes[:, None, None] * (key - own)),
            ({"alibi_slopes": 3 * slopes.astype(np.float32)}, always, lambda s: s + 3 * slopes[:, None, None] * (key - own)),
            ({"starts": starts}, key >= starts[:, None, None, None], lambda s: s),
            ({"lengths": lengths}, key < lengths[:, None, None, None], lambda s: s),
            ({"documents": documents}, documents[key][:, 0] == documents[own[:, 0]][:, :1], lambda s: s),
            ({"blocks": np.array([[1]], np.uint32)}, always, lambda s: s),
            ({"bias": bias}, always, lambda s: s + bias), ({"mask": bias > 0}, bias > 0, lambda s: s),
            ({"sinks": sinks}, always, lambda s: s))
        for options, seen, change in cases:
            with self.subTest(options=list(options)):
                want, want_lse = attention(q, k, v, seen=seen, change=change, sinks=options.get("sinks"))
                o, lse = dlpack.flash(q, k, v, with_lse=True, **options)
                self.near(o, want, 5e-5)
                self.near(lse, want_lse, 5e-5)
                bshd = [x.swapaxes(1, 2).copy() for x in (q, k, v)]
                o, lse = dlpack.flash(*bshd, bshd=True, with_lse=True, **options)
                self.near(o.swapaxes(1, 2), want, 5e-5)
                self.near(lse, want_lse, 5e-5)
        self.assertEqual({name for name, kind, _ in _options.FLASH if kind not in ("attn_layout", "output")},
                         {"cu_seqlens_q", "cu_seqlens_k", *(name for options, *_ in cases for name in options)}, "an option without a test here")

    def test_packed_sequences(self):
        queries, keys = np.array([0, 5, 5, 22, 31], np.int32), np.array([0, 9, 12, 30, 40], np.int32)
        q, k, v = (x[:1] for x in (self.q, self.k, self.v))
        o, lse = dlpack.flash(q, k, v, causal=True, cu_seqlens_q=queries, cu_seqlens_k=keys, with_lse=True)
        for rows, tokens in zip(map(slice, queries, queries[1:]), map(slice, keys, keys[1:])):
            count, length = rows.stop - rows.start, tokens.stop - tokens.start
            if count:
                seen = np.arange(length) <= np.arange(length - count, length)[:, None]
                want, want_lse = attention(q[:, :, rows], k[:, :, tokens], v[:, :, tokens], seen=seen)
                self.near(o[:, :, rows], want, 5e-5)
                self.near(lse[:, :, rows], want_lse, 5e-5)

    def test_blocks(self):
        q, k, v = (drawn(1, 2, 300, 32) + x for x in (0, 0, 1))
        seen = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool).repeat(128, 0).repeat(128, 1)[:300, :300]
        self.near(dlpack.flash(q, k, v, blocks=np.array([[0b001], [0b011], [0b110]], np.uint32)), attention(q, k, v, seen=seen)[0])


class Caches(Case):
    PAGE = 16

    def setUp(self):
        self.lengths, self.table = np.array([100, 37], np.int32), np.random.default_rng(0).permutation(20)[:16].reshape(2, 8).astype(np.int32)
        self.k, self.v = drawn(20, 2, self.PAGE, 64), drawn(20, 2, self.PAGE, 64)[::-1].copy()

    def rows(self, cache, i):
        return np.concatenate([cache[page] for page in self.table[i]], 1)[None, :, :self.lengths[i]]

    def over_rows(self, q, k, v, hides=lambda i, own, key: False, change=lambda s, distance: s, sinks=None):
        """The definition over a cache on pages: o, and lse."""
        results = []
        for i, length in enumerate(self.lengths):
            own, key = np.arange(length - q.shape[2], length)[:, None], np.arange(length)
            seen = (key <= own) & ~np.asarray(hides(i, own, key))
            results.append(attention(q[i:i + 1], self.rows(k, i), self.rows(v, i), seen=seen, change=lambda s: change(s, own - key), sinks=sinks))
        return [np.concatenate(each) for each in zip(*results)]

    def agrees(self, attend, q, meaning, **options):
        """Compares a call over the cache with the definition. `meaning`: the options, as over_rows() takes them."""
        with np.errstate(invalid="ignore"):
            want, want_lse = self.over_rows(q, self.k, self.v, **meaning)
        o, lse = attend(q, self.k, self.v, self.lengths, self.table, with_lse=True, **options)
        self.near(o, want, 5e-5)
        self.near(np.exp(lse), np.exp(want_lse), 1e-3)
        self.near(attend(q, self.k, self.v, self.lengths, self.table, **options), want, 5e-5)

    def test_modifiers(self):
        starts, sinks, slopes = np.array([7, 36], np.int32), drawn(4), 2.0 ** (-2 * np.arange(1, 5))
        cases = (({}, {}), ({"soft_cap": 2.5}, {"change": lambda s, _: 2.5 * np.tanh(s / 2.5)}), ({"sinks": sinks}, {"sinks": sinks}),
                 ({"window_left": 5}, {"hides": lambda i, own, key: key < own - 5}), ({"starts": starts}, {"hides": lambda i, own, key: key < starts[i]}),
                 ({"alibi": True}, {"change": lambda s, distance: s - slopes[:, None, None] * distance}),
                 ({"alibi_slopes": 3 * slopes.astype(np.float32)}, {"change": lambda s, distance: s - 3 * slopes[:, None, None] * distance}))
        for rows, attend in ((1, dlpack.decode), (3, dlpack.decode), (30, dlpack.prefill)):
            q = drawn(2, 4, rows, 64)
            for options, meaning in cases:
                with self.subTest(rows=rows, options=list(options)):
                    self.agrees(attend, q, meaning, **options)
            bshd = [x.swapaxes(1, 2).copy() for x in (q, self.k, self.v)]
            got = attend(*bshd, self.lengths, self.table, bshd=True, cache_bshd=True)
            self.near(got.swapaxes(1, 2), self.over_rows(q, self.k, self.v)[0])
        modifiers = {name for name, _, _ in _options.CACHE} & {name for name, _, _ in _options.FLASH} - {"layout", "scale", "lengths", "lse"}
        self.assertEqual(modifiers, {name for options, _ in cases for name in options}, "a modifier without a test here")

    def test_contiguous_caches(self):
        for rows, attend in ((2, dlpack.decode), (30, dlpack.prefill)):
            q, k, v = drawn(2, 4, rows, 64), drawn(2, 2, 120, 64), drawn(2, 2, 120, 64)[::-1].copy()
            o = attend(q, k, v, self.lengths, scale=0.2)
            for i, n in enumerate(self.lengths):
                seen = np.arange(n) <= np.arange(n - rows, n)[:, None]
                self.near(o[i:i + 1], attention(q[i:i + 1], k[i:i + 1, :, :n], v[i:i + 1, :, :n], 0.2, seen)[0])

    def with_new_tokens(self, cache, tokens):
        """A copy of a cache with the last tokens of each sequence."""
        written = cache.copy()
        for i, n in enumerate(self.lengths):
            for row, token in enumerate(tokens[i].swapaxes(0, 1), n - tokens.shape[2]):
                written[self.table[i, row // self.PAGE], :, row % self.PAGE] = token
        return written

    def test_new_tokens_are_rotated_and_written(self):
        frequencies = 10000.0 ** (-np.arange(32) / 32)
        angles = np.arange(128)[:, None] * frequencies
        angles = {"cosines": np.cos(angles).astype(np.float32), "sines": np.sin(angles).astype(np.float32)}
        for (rows, attend), interleaved in itertools.product(((1, dlpack.decode), (30, dlpack.prefill)), (False, True)):
            q, new_k, new_v = (drawn(2, heads, rows, 64) + heads for heads in (4, 2, 2))
            k, v = self.k.copy(), self.v.copy()
            o = attend(q, k, v, self.lengths, self.table, new_k=new_k, new_v=new_v, interleaved=interleaved, **angles)
            turned_q, turned_k = (np.concatenate([rotated(x[i:i + 1], n - rows, frequencies, 1, interleaved)
                                                  for i, n in enumerate(self.lengths)]) for x in (q, new_k))
            want_k, want_v = self.with_new_tokens(self.k, turned_k), self.with_new_tokens(self.v, new_v)
            self.near(k, want_k)
            self.near(v, want_v)
            self.near(o, self.over_rows(turned_q, want_k, want_v)[0], 5e-5)

    def test_checks(self):
        dlpack.check_cache(self.k, self.lengths, self.table)
        dlpack.check_cache(self.k.swapaxes(1, 2).copy(), self.lengths, self.table, cache_bshd=True)
        q, new, eight, scales = drawn(2, 4, 1, 64), drawn(2, 2, 1, 64), self.k.astype(np.int8), np.ones((20, 2), np.float32)
        dlpack.check_cache(eight, self.lengths, self.table, new_k=new, k_scales=scales, v_scales=scales)
        for word, cache, lengths, options in (
                ("length 129", self.k, np.array([100, 129], np.int32), {}), ("length -1", self.k, np.array([100, -1], np.int32), {}),
                (r"v_scales\[", eight, self.lengths, {"new_k": new, "k_scales": scales, "v_scales": 0 * scales})):
            with self.assertRaisesRegex(ValueError, word):
                dlpack.check_cache(cache, lengths, self.table, **options)
        for cache in (self.k, self.v):
            cache.flags.writeable = False
            with self.assertRaisesRegex(ValueError, "the call writes .*, but .* is read-only"):
                dlpack.decode(q, self.k, self.v, self.lengths, self.table, new_k=new, new_v=new)
            dlpack.decode(q, self.k, self.v, self.lengths, self.table)
            cache.flags.writeable = True
        with self.assertRaisesRegex(TypeError, "decode.. takes no causal"):
            dlpack.decode(q, self.k, self.v, self.lengths, self.table, causal=True)


class OtherOperators(Case):
    def linear(self, q, k, v, gate=None, state=None, causal=True, normalised=False, function=lambda x: x, scale=0.125):
        q, k, v = function(q.astype(np.float64)), function(k.astype(np.float64)), v.astype(np.float64)
        s, z, o = np.zeros((*q.shape[:2], q.shape[3], v.shape[3])), np.zeros((*q.shape[:2], q.shape[3])), np.zeros(v.shape)
        s = s if state is None else state.astype(np.float64)
        for t in range(q.shape[2]):
            if gate is not None:
                decay = np.exp(gate.astype(np.float64))
                decay = decay[None, :, None] if gate.ndim == 1 else decay[:, :, t] if gate.ndim == 4 else decay[:, :, t, None]
                s, z = s * decay[..., None], z * decay
            s, z = s + k[:, :, t, :, None] * v[:, :, t, None], z + k[:, :, t]
            o[:, :, t] = (q[:, :, t, None] @ s)[:, :, 0] * scale
            if normalised:
                o[:, :, t] /= scale * (q[:, :, t] * z).sum(-1)[..., None]
        return o if causal else q @ s * scale, s

    def test_linear(self):
        q, k, v = drawn(2, 3, 50, 64), drawn(2, 3, 50, 64)[:, :, ::-1].copy(), drawn(2, 3, 50, 32)
        gates = [-np.abs(drawn(*shape)) / 4 for shape in ((3,), (2, 3, 50), (2, 3, 50, 64))]
        state = drawn(2, 3, 64, 32)
        elu1 = {"feature": "elu1", "normalised": True}
        for options, meant in (({}, {}), ({"initial_state": state}, {"state": state}), ({"causal": False}, {"causal": False}),
                               ({"scale": 0.5}, {"scale": 0.5}), ({"feature": "relu"}, {"function": lambda x: np.maximum(x, 0)}),
                               (elu1, {"normalised": True, "function": lambda x: np.where(x > 0, x + 1, np.exp(x))}),
                               *(({"gate": gate}, {"gate": gate}) for gate in gates)):
            with self.subTest(options=list(options)):
                want = self.linear(q, k, v, **meant)
                o, last = dlpack.linear(*(x.swapaxes(1, 2).copy() for x in (q, k, v)), bshd=True, **options)
                for got, right in (*zip(dlpack.linear(q, k, v, **options), want), *zip((o.swapaxes(1, 2), last), want)):
                    self.near(got, right, 2e-5 * max(1, np.abs(right).max()))
        for error, text, options in ((ValueError, "feature", {"feature": "cosine"}), (TypeError, "takes no final_state", {"final_state": state})):
            with self.assertRaisesRegex(error, text):
                dlpack.linear(q, k, v, **options)

    def test_rope(self):
        q, k = drawn(2, 4, 20, 64), drawn(2, 2, 20, 64)
        offsets = np.array([0, 1000], np.int32)
        pair, plain = np.arange(32), 10000.0 ** (-np.arange(32) / 32)
        first, last = (64 * math.log(300 / (turns * 2 * math.pi)) / (2 * math.log(10000)) for turns in (16, 2))
        slow = np.clip((pair - first) / (last - first), 0, 1)
        fast = np.clip((300 * plain / (2 * math.pi) - 0.5) / (3 - 0.5), 0, 1)
        yarn = {"scaling": "yarn", "factor": 4, "original_length": 300, "beta_fast": 16, "beta_slow": 2, "truncate": False}
        llama3 = {"scaling": "llama3", "factor": 4, "original_length": 300, "low_freq_factor": 0.5, "high_freq_factor": 3}
        cases = (({}, plain, 1), ({"interleaved": True}, plain, 1), ({"theta": 500.0}, 500.0 ** (-pair / 32), 1),
                 ({"rotary_dim": 32}, 10000.0 ** (-np.arange(16) / 16), 1), ({"scaling": "linear", "factor": 4}, plain / 4, 1),
                 ({**yarn, "attention_factor": 0.7}, plain * (1 - slow + slow / 4), 0.7), (llama3, plain * (fast + (1 - fast) / 4), 1),
                 ({**yarn, "mscale": 2, "mscale_all_dim": 0.5}, plain * (1 - slow + slow / 4),
                  (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1)))
        self.assertEqual({name for name, kind, _ in _options.ROPE if kind != "attn_layout"},
                         {"offsets", *(name for options, *_ in cases for name in options)}, "an option without a test here")
        for options, frequencies, grown in cases:
            with self.subTest(options=options):
                results = dlpack.rope(q, k, offsets, **options)
                alone = dlpack.rope(q, offsets=offsets, **options)
                for got, x in zip((*results, alone), (q, k, q)):
                    want = np.concatenate([rotated(x[i:i + 1], n, frequencies, grown, options.get("interleaved", False))
                                           for i, n in enumerate(offsets)])
                    self.near(got, want, 5e-5)
        for text, options in (("allowed are 'none', 'linear'", {"scaling": "cubic"}), ("theta", {"theta": 0.5}), ("more than 64 bits", {"rotary_dim": 2 ** 70})):
            with self.assertRaisesRegex(ValueError, text):
                dlpack.rope(q, k, **options)

    def test_backends_prepared_launches_and_archives(self):
        x = drawn(1, 1, 8, 8)
        self.assertTrue(dlpack.has_backend("cpu"))
        self.assertFalse(dlpack.has_backend("vulkan"))
        dlpack.empty(x)
        dlpack.flash(x, x, x)
        before = dlpack.prepared(x)
        self.assertGreater(before, 0)
        dlpack.flash(x, x, x)
        self.assertEqual(dlpack.prepared(x), before)
        with tempfile.TemporaryDirectory() as folder:
            dlpack.save_archive(x, pathlib.Path(folder) / "a.archive")
            self.assertGreater((pathlib.Path(folder) / "a.archive").stat().st_size, 0)
            with self.assertRaises(ValueError):
                dlpack.save_archive(x, pathlib.Path(folder) / "no/such/folder")

    def test_a_python_without_pytorch(self):
        program = "import sys; sys.modules['torch'] = None; import attn_proto; from attn_proto import dlpack; attn_proto.enable()"
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr.splitlines()
        self.assertEqual(said[-1], "AttributeError: attn_proto has no 'enable' without PyTorch; attn_proto.dlpack needs no PyTorch")


if __name__ == "__main__":
    unittest.main()
