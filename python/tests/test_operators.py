"""Compares the operators attn::* with formulas in PyTorch, and tests properties that a framework expects of
operators."""

import inspect
import itertools
import math
import multiprocessing
import pydoc
import sys
import threading
import unittest

import torch
import torch.nn.functional as F

import attn_proto

DEVICES = [device for device in ("cpu", "cuda")
           if torch.ops.attn.has_backend(device) and (device == "cpu" or torch.cuda.is_available())]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ops = torch.ops.attn


def drawn(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float32, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def qkv(device, dtype=torch.float32, batch=2, heads=4, kv_heads=2, rows=40, keys=40, width=64):
    return (drawn(batch, heads, rows, width, device=device, dtype=dtype),
            drawn(batch, kv_heads, keys, width, device=device, dtype=dtype),
            drawn(batch, kv_heads, keys, width + 0, device=device, dtype=dtype).flip(2))


def reference(q, k, v, mask=None, change=lambda s: s, scale=None):
    """The definition in float64. `change` is a function of the scores. Rows without a key are 0."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = change(q.double() @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1])))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v


def causal_mask(rows, keys, device):
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


class Case(unittest.TestCase):
    now = None  # the current element of a loop over on_each(), for messages

    def near(self, got, want, dtype=torch.float32, factor=1):
        self.assertEqual(got.shape, want.shape, self.now)
        largest = (got.double() - want).abs().max().item()
        self.assertLess(largest, (5 if got.is_cuda else 1) * factor * TOLERANCE[dtype], self.now)

    def on_each(self, *values):
        for device in DEVICES:
            for value in values or (None,):
                self.now = device, value
                yield (device, value) if values else device

    def refuses(self, text, call, error=RuntimeError):
        with self.assertRaisesRegex(error, text, msg=self.now) as caught:
            call()
        return caught.exception


class Flash(Case):
    def test_shapes_and_types(self):
        for device, dtype in self.on_each(*TOLERANCE):
            for heads, kv_heads, rows, keys, width in ((8, 2, 100, 100, 64), (4, 4, 1, 333, 128), (8, 2, 17, 300, 64),
                                                       (2, 1, 5, 900, 32), (1, 1, 1, 1, 64), (2, 2, 70, 9, 256)):
                q, k, v = qkv(device, dtype, 2, heads, kv_heads, rows, keys, width)
                for causal in (False, True):
                    mask = causal_mask(rows, keys, device) if causal else None
                    self.near(attn_proto.flash(q, k, v, causal=causal), reference(q, k, v, mask), dtype)

    def test_both_layouts_without_a_copy(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            want = reference(q, k, v)
            in_memory = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
            o = attn_proto.flash(*in_memory, bshd=True)
            self.assertTrue(o.is_contiguous())
            self.near(o.transpose(1, 2), want)
            o = attn_proto.flash(*(x.transpose(1, 2) for x in in_memory))
            self.assertEqual(o.stride(), in_memory[0].transpose(1, 2).stride())
            self.near(o, want)
            packed = torch.cat([x.repeat_interleave(1, 1) for x in (q, k, v)], 1)  # slices of one tensor
            self.near(attn_proto.flash(packed[:, :4], packed[:, 4:6], packed[:, 6:]), want)

    def test_outputs_are_dense_for_any_query(self):
        """The query's rows may repeat or overlap. Outputs have the same strides in a trace and in a call."""
        for device in self.on_each():
            buffer = drawn(1, 1, 400, 64, device=device).flatten()
            k, v = (drawn(2, 4, 20, 64, device=device) for _ in "kv")
            for strides in ((0, 1280, 64, 1), (5120, 0, 64, 1), (5120, 1280, 0, 1), (0, 0, 0, 1), (2000, 400, 4, 1), (2000, 4, 400, 1),
                            (4, 4, 4, 1), (5120, 64, 256, 1), (5120, 1280, 1, 1), (12000, 3000, 128, 1)):
                if device == "cuda" and strides[2] == 1:
                    continue  # a GPU's kernels refuse strides that are no multiples of 16 bytes
                self.now = device, strides
                q = buffer.as_strided((2, 4, 20, 64), strides)
                far = [x.to("meta") for x in (buffer, k, v)]
                far[0] = far[0].as_strided(q.shape, strides)
                o = attn_proto.flash(q, k, v)
                self.near(o, reference(q, k, v))
                self.assertEqual((o.stride(-1), o.untyped_storage().nbytes()), (1, o.nbytes))
                for op, more in ((ops.flash, ()), (ops.paged_decode, (torch.full((2,), 20, dtype=torch.int32, device=device),)),
                                 (ops.rope, None), (ops.linear, ())):
                    here, there = ((q, k, v, *more), (*far, *(x.to("meta") for x in more))) if more is not None else ((q, k), far[:2])
                    for got, traced in zip(*(x if isinstance(x, tuple) else (x,) for x in (op(*here), op(*there)))):
                        self.assertEqual(got.stride(), traced.stride(), op)

    def test_modifiers(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            place = torch.arange(40, device=device)
            before, causal = place[None] - place[:, None], causal_mask(40, 40, device)
            sinks, slopes = drawn(4, device=device), torch.tensor([2.0 ** (-2 * i) for i in range(1, 5)], device=device)
            bias = drawn(1, 4, 40, 40, device=device)
            lengths = torch.tensor([40, 7], dtype=torch.int32, device=device)
            documents = torch.tensor([[0, 13]] * 13 + [[13, 40]] * 27, dtype=torch.int32, device=device)
            same = torch.block_diag(torch.ones(13, 13), torch.ones(27, 27)).bool().to(device)
            for options, mask, change in (
                    ({"causal": True, "window_left": 5}, causal & (before >= -5), lambda s: s),
                    ({"window_left": 5, "window_right": 3}, (before >= -5) & (before <= 3), lambda s: s),
                    ({"causal": True, "prefix": 9}, causal | (place[None] < 9), lambda s: s),
                    ({"window_left": 2, "window_right": 2, "global_tokens": 3},
                     (before.abs() <= 2) | (place[None] < 3) | (place[:, None] < 3), lambda s: s),
                    ({"soft_cap": 5}, None, lambda s: 5 * torch.tanh(s / 5)),
                    ({"soft_cap": 2.5}, None, lambda s: 2.5 * torch.tanh(s / 2.5)),
                    ({"alibi": True}, None, lambda s: s + slopes[:, None, None] * before),
                    ({"alibi_slopes": 2 * slopes}, None, lambda s: s + 2 * slopes[:, None, None] * before),
                    ({"bias": bias}, None, lambda s: s + bias),
                    ({"bias": bias[:, :1]}, None, lambda s: s + bias[:, :1]),
                    ({"lengths": lengths}, place[None, None, None] < lengths[:, None, None, None], lambda s: s),
                    ({"documents": documents}, same, lambda s: s),
                    ({"scale": 0.3}, None, lambda s: s * 0.3 * 8)):
                self.near(attn_proto.flash(q, k, v, **options), reference(q, k, v, mask, change), factor=4)
            o, lse = attn_proto.flash_with_lse(q, k, v, sinks=sinks)
            scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 8
            with_sink = torch.cat([scores, sinks[None, :, None, None].expand(2, 4, 40, 1)], -1)
            self.near(lse, with_sink.logsumexp(-1).double())
            self.near(o, (with_sink.softmax(-1)[..., :-1] @ v.repeat_interleave(2, 1)).double())

    def test_masks(self):
        """A mask has a byte for each pair of a query and a key, in any layout. Rows without a key are 0."""
        for device, dtype in self.on_each(*TOLERANCE):
            q, k, v = qkv(device, dtype, rows=70, keys=75)
            seen = drawn(2, 4, 70, 75, device=device) > 0
            seen[1, 2, 30:] = False
            apart = torch.zeros(2, 4, 75, 140, dtype=torch.bool, device=device)
            apart[..., ::2] = seen.mT
            for mask in (seen, seen[:1], seen[:, :1], seen[:, :, :1], seen[..., :1], seen[:1, :1].expand(2, 4, 70, 75),
                         apart[..., ::2].mT, seen.view(torch.uint8) * 255):
                self.near(attn_proto.flash(q, k, v, mask=mask), reference(q, k, v, mask.bool().expand(2, 4, 70, 75)), dtype)
            causal = seen & causal_mask(70, 75, device)
            self.near(attn_proto.flash(q, k, v, mask=seen, causal=True), reference(q, k, v, causal), dtype)
            self.assertEqual(attn_proto.flash(q, k, v, mask=seen)[1, 2, 30:].abs().max().item(), 0)
            self.refuses("mask: int32 is not allowed; bool and uint8 are", lambda: attn_proto.flash(q, k, v, mask=seen.int()))

    def test_masks_in_traces_and_graphs(self):
        for device in self.on_each():
            q, k, v = qkv(device, rows=70, keys=75)
            seen = drawn(2, 1, 70, 75, device=device) > 0
            compiled = torch.compile(lambda *x: attn_proto.flash(*x[:3], mask=x[3]), fullgraph=True)
            self.near(compiled(q, k, v, seen), reference(q, k, v, seen.expand(2, 4, 70, 75)))
            if device == "cpu":
                continue
            attn_proto.flash(q, k, v, mask=seen)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o = attn_proto.flash(q, k, v, mask=seen)
            for _ in range(2):  # the graph reads the mask anew
                seen.logical_not_()
                graph.replay()
                self.near(o, reference(q, k, v, seen.expand(2, 4, 70, 75)))

    def test_bias_for_a_number_of_keys_that_is_no_multiple_of_4(self):
        for device, dtype in self.on_each(*TOLERANCE):
            q, k, v = qkv(device, dtype, rows=70, keys=75)
            bias = drawn(2, 1, 70, 75, device=device)
            padded = F.pad(bias, (0, 1), value=math.nan)
            self.near(attn_proto.flash(q, k, v, bias=padded), reference(q, k, v, None, lambda s: s + bias), dtype)
            bias = bias.masked_fill(bias > 0, -math.inf)
            bias[1, 0, 7] = -math.inf
            padded = F.pad(bias, (0, 1))
            self.near(attn_proto.flash(q, k, v, bias=padded), reference(q, k, v, None, lambda s: s + bias), dtype)
            self.refuses("bias", lambda: attn_proto.flash(q, k, v, bias=bias))

    def test_huge_scores(self):
        """Scores of 1.4 * 10^11, where neighbouring float32 numbers are 16384 apart. On a GPU only few rows are tested,
        because the flash attention kernels take scores up to 10^9."""
        for device, dtype in self.on_each(torch.float32, torch.bfloat16):
            for rows in (1, 9) if device == "cuda" else (1, 9, 40):
                q, k = (torch.full((1, 2, n, 64), 133120.0, dtype=dtype, device=device) for n in (rows, 300))
                v = drawn(1, 2, 300, 64, device=device, dtype=dtype)
                self.near(attn_proto.flash(q, k, v), v.double().mean(2, keepdim=True).expand(1, 2, rows, 64), dtype)

    def test_numbers_that_are_not_finite_reach_the_rows_that_see_them(self):
        """A score of NaN or +inf makes its whole row NaN. A value that is not finite makes only its column of the row
        not finite. A score of -inf has weight 0. A bias of -inf hides a key's score and value."""
        for device, dtype in self.on_each(*TOLERANCE):
            own = torch.arange(70, device=device)
            bias = torch.zeros(1, 1, 70, 72, device=device)
            bias[..., ::3, 30] = -math.inf
            lengths = torch.tensor([70, 30], dtype=torch.int32, device=device)
            for options, seen in (({}, own >= 0), ({"causal": True}, own >= 30), ({"causal": True, "window_left": 5}, (own >= 30) & (own <= 35)),
                                  ({"lengths": lengths}, own >= 0), ({"bias": bias}, own % 3 != 0)):
                seen = seen.expand(2, 4, 70).clone()
                seen[1] &= "lengths" not in options
                for special in (math.nan, math.inf, -math.inf):
                    self.now = device, dtype, list(options), special
                    q, k, v = (x.abs() for x in qkv(device, dtype, rows=70, keys=70))
                    want = attn_proto.flash(q, k, v, **options)
                    k[:, :, 30, 5] = special  # the scores have the sign of `special`; the weight of a score of -inf is 0
                    o = attn_proto.flash(q, k, v, **options)
                    self.assertTrue(torch.equal(torch.isnan(o), (seen & (special != -math.inf))[..., None].expand_as(o)), self.now)
                    self.near(o.masked_fill(seen[..., None], 0), want.masked_fill(seen[..., None], 0).double(), dtype, 4)
                    q, k, v = qkv(device, dtype, rows=70, keys=70)
                    v[:, :, 30, 5] = special
                    o = attn_proto.flash(q, k, v, **options)
                    self.assertTrue(torch.equal(~torch.isfinite(o[..., 5]), seen), self.now)
                    self.assertTrue(torch.isfinite(o[..., :5]).all() and torch.isfinite(o[..., 6:]).all(), self.now)

    def test_repeated_tensors(self):
        for device, dtype in self.on_each(*TOLERANCE):
            q, k, v = (x[:1] for x in qkv(device, dtype, kv_heads=1))
            for rows in (40, 1):
                wide = [q[:, :, :rows].expand(3, 4, rows, 64), k.expand(3, 2, 40, 64), v.expand(3, 2, 40, 64)]
                self.near(attn_proto.flash(*wide), reference(*wide), dtype)

    def test_blocks(self):
        for device in self.on_each():
            q, k, v = qkv(device, rows=300, keys=300)
            seen = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=torch.bool, device=device)
            words = torch.tensor([[0b001], [0b011], [0b110]], dtype=torch.int32, device=device)
            mask = seen.repeat_interleave(128, 0).repeat_interleave(128, 1)[:300, :300]
            self.near(attn_proto.flash(q, k, v, blocks=words), reference(q, k, v, mask))

    def test_tables_may_change_between_calls(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            lengths = torch.tensor([40, 7], dtype=torch.int32, device=device)
            attn_proto.flash(q, k, v, lengths=lengths)
            lengths.fill_(9)
            mask = torch.arange(40, device=device) < 9
            self.near(attn_proto.flash(q, k, v, lengths=lengths), reference(q, k, v, mask))

    def test_empty_tensors(self):
        for device in self.on_each():
            for shape in ((0, 4, 3, 64), (2, 4, 0, 64)):
                x = torch.empty(shape, device=device)
                self.assertEqual(attn_proto.flash(x, torch.empty(shape[0], 2, 5, 64, device=device),
                                                  torch.empty(shape[0], 2, 5, 64, device=device)).shape, shape)
            q, none = drawn(1, 2, 3, 64, device=device), torch.empty(1, 2, 0, 64, device=device)
            sinks = torch.tensor([1.0, 2.0], device=device)
            o, lse = attn_proto.flash_with_lse(q, none, none)
            self.assertEqual(o.abs().max().item(), 0)
            self.assertEqual(lse.tolist(), [[[-math.inf] * 3] * 2])
            lse = attn_proto.flash_with_lse(q, none, none, sinks=sinks)[1]
            self.near(lse, sinks.double()[None, :, None].expand(1, 2, 3))

    def test_why_not_says_what_flash_says(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            halves, heads = [x.half() for x in (q, k, v)], torch.ones(4, device=device)
            for tensors, options in (((q, k, v), {"causal": True, "sinks": heads}), (halves, {"mask": drawn(1, 1, 40, 1, device=device) > 0}),
                                     ((q.double(), k, v), {}), ((q, k.half(), v), {}), ((q[:, :3], k, v), {}),
                                     ((q[..., :60], k[..., :60], v[..., :60]), {}), ((q, k, v), {"scale": 0.0}),
                                     ((q, k, v), {"alibi_slopes": heads[:2]}), ((q, k, v), {"bias": drawn(1, 1, 40, 39, device=device)}),
                                     ((q, k, v), {"window_left": -3})):
                launches, said = attn_proto.launches(device), ""
                why = attn_proto.why_not(*tensors, **options)
                self.assertEqual(attn_proto.launches(device), launches)
                try:
                    attn_proto.flash(*tensors, **options)
                except RuntimeError as error:
                    said = str(error).splitlines()[0]
                self.assertEqual(why is None, said == "", (why, said))
                self.assertIn(why or "", said)
            on_meta = [x.to("meta") for x in (q, k, v)]
            self.assertIsNone(attn_proto.why_not(*on_meta, device=device))
            self.assertIn("query is on meta", attn_proto.why_not(*on_meta))

    def test_wrong_arguments(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            self.refuses("query is Double", lambda: attn_proto.flash(q.double(), k, v))
            self.refuses("k: bf16 is not allowed", lambda: attn_proto.flash(q, k.bfloat16(), v.bfloat16()))
            self.refuses("do not divide", lambda: attn_proto.flash(q[:, :3], k, v))
            self.refuses("widths", lambda: attn_proto.flash(q, k[..., :32], v))
            self.refuses("stride of 64", lambda: attn_proto.flash(*(3 * (drawn(1, 1, 64, 64, device=device).mT,))))
            self.refuses("lengths: float32 is not allowed; int32 is", lambda: attn_proto.flash(q, k, v, lengths=torch.ones(2, device=device)))
            self.refuses("scale", lambda: attn_proto.flash(q, k, v, scale=0.0))
            self.refuses("soft_cap", lambda: attn_proto.flash(q, k, v, soft_cap=-1))
            self.refuses("requires a gradient", lambda: attn_proto.flash(q.clone().requires_grad_(), k, v))
            with torch.no_grad():
                attn_proto.flash(q.clone().requires_grad_(), k, v)
            if device == "cuda":
                self.refuses("device", lambda: attn_proto.flash(q, k.cpu(), v))
                self.refuses("multiples of 16", lambda: attn_proto.flash(*(torch.randn(1, 1, 40, 65, device=device)[..., 1:],) * 3))

    def test_limits_beyond_the_sequence_hide_nothing(self):
        for device in self.on_each():
            q, k, v = qkv(device, rows=40, keys=50)
            before = ops.prepared(q)
            whole, causal = attn_proto.flash(q, k, v), attn_proto.flash(q, k, v, causal=True)
            for most in (49, 2 ** 31 - 1, 2 ** 31 + 5, 2 ** 32 + 3, sys.maxsize):
                for options, want in (({"window_left": most}, whole), ({"window_right": most}, whole),
                                      ({"window_left": most, "window_right": most, "global_tokens": 3}, whole),
                                      ({"window_left": 2, "window_right": 2, "global_tokens": max(most, 50)}, whole),
                                      ({"causal": True, "window_left": most}, causal),
                                      ({"causal": True, "window_right": most}, causal),
                                      ({"causal": True, "prefix": max(most, 50)}, whole)):
                    self.assertTrue(torch.equal(attn_proto.flash(q, k, v, **options), want), (device, options))
            self.assertLessEqual(ops.prepared(q), before + 2)

    def test_options_out_of_range(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            for options in ({"window_left": -2}, {"window_right": -sys.maxsize}, {"prefix": -1, "causal": True},
                            {"prefix": 3}, {"global_tokens": -1}, {"soft_cap": 1001}, {"soft_cap": -1}, {"soft_cap": math.nan},
                            {"scale": math.nan}, {"scale": math.inf}, {"scale": 1e39}, {"scale": 1e-46}):
                self.refuses(next(iter(options)), lambda: attn_proto.flash(q, k, v, **options))
            for width in (4, 12):
                self.refuses("width", lambda: attn_proto.flash(*(x[..., :width].contiguous() for x in (q, k, v))))
            for options in ({"theta": math.nan}, {"theta": 0.0}, {"scaling": "linear", "factor": 0.0},
                            {"scaling": "yarn", "factor": math.inf}, {"scaling": "yarn", "beta_fast": 0.5},
                            {"scaling": "yarn", "attention_factor": -1.0}, {"scaling": "llama3", "low_freq_factor": 5.0},
                            {"rotary_dim": 7}, {"rotary_dim": 66}):
                self.refuses(list(options)[-1], lambda: ops.rope(q, k, **options))
            self.refuses("scale", lambda: ops.linear(q, q, q, scale=math.nan))
            self.refuses("not allowed with normalised, which has no scale", lambda: ops.linear(q, q, q, normalised=True, scale=3.0))
            state = torch.zeros(2, 4, 64, 64, device=device)
            self.refuses("not allowed with normalised", lambda: ops.linear(q, q, q, None, state, normalised=True))

    @unittest.skipUnless("cpu" in DEVICES, "a build with the cpu device")
    def test_tables_out_of_range(self):
        q, k, v = qkv("cpu")
        for lengths in ([41, 40], [40, -1]):
            self.refuses("lengths", lambda: attn_proto.flash(q, k, v, lengths=torch.tensor(lengths, dtype=torch.int32)))
        documents = torch.tensor([[0, 13]] * 13 + [[13, 41]] * 27, dtype=torch.int32)
        self.refuses("documents", lambda: attn_proto.flash(q, k, v, documents=documents))
        self.refuses("offsets", lambda: ops.rope(q, k, torch.tensor([0, 2 ** 31 - 39], dtype=torch.int32)))

    def test_tensors_without_memory_and_too_many_sequences(self):
        for device in self.on_each():
            block = torch.empty(2 ** 31 + 1000, dtype=torch.float16, device="meta")  # a tensor without memory
            self.assertEqual(ops.flash(block[:64000].view(1, 1, 1000, 64), block[:64000].view(1, 1, 1000, 64),
                                       block[:64000].view(1, 1, 1000, 64)).shape, (1, 1, 1000, 64))
            self.refuses("allowed are sizes up to", lambda: attn_proto.flash(*(torch.empty(1, 1, 1, 64, device=device).expand(70000, 1, 1, 64),) * 3))


class Caches(Case):
    PAGE = 16

    def cache(self, device, dtype=torch.float32):
        pages = torch.randperm(20, generator=torch.Generator().manual_seed(0)).int()
        return (drawn(20, 2, self.PAGE, 64, device=device, dtype=dtype), drawn(20, 2, self.PAGE, 64, device=device, dtype=dtype).flip(0),
                pages[:16].view(2, 8).contiguous().to(device), torch.tensor([100, 37], dtype=torch.int32, device=device))

    def rows(self, cache, table, lengths, i):
        return torch.cat([cache[p] for p in table[i].tolist()], 1)[None, :, :lengths[i]]

    def test_pages(self):
        for device in self.on_each():
            k, v, table, lengths = self.cache(device)
            for rows, op in ((1, ops.paged_decode), (3, ops.paged_decode), (30, ops.paged_prefill)):
                q = drawn(2, 4, rows, 64, device=device)
                o = op(q, k, v, lengths, table)
                for i in range(2):
                    keys = self.rows(k, table, lengths, i)
                    mask = causal_mask(rows, keys.shape[2], device)
                    self.near(o[i:i + 1], reference(q[i:i + 1], keys, self.rows(v, table, lengths, i), mask))

    def test_fused_is_rope_then_write_then_attention(self):
        half = torch.arange(32)
        angles = torch.arange(128)[:, None] * 10000.0 ** (-half / 32)
        for device in self.on_each():
            cosines, sines = torch.cos(angles).to(device), torch.sin(angles).to(device)
            for rows, fused, plain in ((1, ops.decode_fused, ops.paged_decode), (30, ops.prefill_fused, ops.paged_prefill)):
                k, v, table, lengths = self.cache(device)
                q, new_k, new_v = (drawn(2, heads, rows, 64, device=device) for heads in (4, 2, 2))
                other_k, other_v = k.clone(), v.clone()
                o = fused(q, new_k, new_v, k, v, lengths, table, cosines, sines)
                rotated_q, rotated_k = ops.rope(q, new_k, lengths - rows)
                for i in range(2):
                    for token in range(rows):
                        at = lengths[i].item() - rows + token
                        page = table[i, at // self.PAGE]
                        other_k[page, :, at % self.PAGE] = rotated_k[i, :, token]
                        other_v[page, :, at % self.PAGE] = new_v[i, :, token]
                self.near(k, other_k.double())
                self.near(v, other_v.double())
                self.near(o, plain(rotated_q, other_k, other_v, lengths, table).double())

    def test_modifiers_are_those_of_flash(self):
        for device in self.on_each():
            starts, slopes, sinks = torch.tensor([7, 36], dtype=torch.int32, device=device), drawn(4, device=device).abs(), drawn(4, device=device)
            together = {"soft_cap": 2.5, "window_left": 20, "alibi": True, "sinks": sinks, "starts": starts}
            for modifiers in (*({name: value} for name, value in together.items()), {"alibi_slopes": slopes}, together):
                for rows, op, fused in ((3, ops.paged_decode, ops.decode_fused), (30, ops.paged_prefill, ops.prefill_fused)):
                    k, v, table, lengths = self.cache(device)
                    q = drawn(2, 4, rows, 64, device=device)
                    o = op(q, k, v, lengths, table, **modifiers)
                    newest = []
                    for i in range(2):
                        keys, values = self.rows(k, table, lengths, i), self.rows(v, table, lengths, i)
                        own = {**modifiers, **({"starts": starts[i:i + 1]} if "starts" in modifiers else {})}
                        self.near(o[i:i + 1], ops.flash(q[i:i + 1], keys, values, causal=True, **own).double())
                        newest.append([x[:, :, -rows:] for x in (keys, values)])
                    new_k, new_v = (torch.cat(x) for x in zip(*newest))
                    self.near(fused(q, new_k, new_v, k, v, lengths, table, **modifiers), o.double())
            self.refuses("starts", lambda: ops.paged_decode(q, k, v, lengths, table, starts=starts[:1]))

    def test_prompts_over_caches_of_8_bits(self):
        """A prompt reads the cache in the type of the queries: the stored number times the scale, rounded."""
        for device, (stored, dtype) in self.on_each(*itertools.product((torch.int8, torch.float8_e4m3fn), TOLERANCE)):
            k, v, table, lengths = self.cache(device)
            k, v = ((50 * x).to(stored) for x in (k, v))
            starts, sinks = torch.tensor([9, 0], dtype=torch.int32, device=device), drawn(4, device=device)
            q = drawn(2, 4, 30, 64, device=device, dtype=dtype)
            for paged in (True, False):
                pages, options = (k, v), {"window_left": 40, "soft_cap": 2.5, "alibi": True, "sinks": sinks, "starts": starts}
                if not paged:
                    pages = [x[table[:, :2].long()].transpose(1, 2).flatten(2, 3) for x in pages]
                scales = [torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(i)).div(40).to(device) for i, x in enumerate(pages)]
                wide = [(x.float() * each[..., None, None]).to(dtype) for x, each in zip(pages, scales)]
                tables = (lengths, table) if paged else (lengths.clamp(max=32),)
                got = ops.paged_prefill(q, *pages, *tables, key_scales=scales[0], value_scales=scales[1], **options)
                self.near(got, ops.paged_prefill(q, *wide, *tables, **options).double(), dtype)

    def test_new_tokens_in_caches_of_8_bits(self):
        """A new token is divided by the scale of its page and head, and rounded; magnitudes beyond the type's largest
        number become the largest. The call attends to the stored tokens."""
        half = torch.arange(32)
        angles = torch.arange(128)[:, None] * 10000.0 ** (-half / 32)
        for device, (stored, dtype) in self.on_each(*itertools.product((torch.int8, torch.float8_e4m3fn), TOLERANCE)):
            if device != "cpu" and dtype == torch.float32:
                continue
            most = 127 if stored == torch.int8 else 448
            tables = torch.cos(angles).to(device), torch.sin(angles).to(device)
            for rows, fused, plain in ((1, ops.decode_fused, ops.paged_decode), (30, ops.prefill_fused, ops.paged_prefill)):
                k, v, table, lengths = self.cache(device)
                k, v = ((50 * x).to(stored) for x in (k, v))
                scales = [torch.rand(20, 2, generator=torch.Generator().manual_seed(i)).add(0.5).div(40).to(device) for i in range(2)]
                options = {"key_scales": scales[0], "value_scales": scales[1]}
                q, new_k, new_v = (drawn(2, heads, rows, 64, device=device, dtype=dtype) for heads in (4, 2, 2))
                new_k[0, 0, -1, 3], new_v[1, 1, -1, 5] = 100, -100
                want, rotated_q = [k.float(), v.float()], ops.rope(q, q, lengths - rows)[0]
                rotated_k = ops.rope(new_k.float(), new_k.float(), lengths - rows)[0]
                o = fused(q, new_k, new_v, k, v, lengths, table, *tables, **options)
                for i, token in itertools.product(range(2), range(rows)):
                    at = lengths[i].item() - rows + token
                    page = table[i, at // self.PAGE].item()
                    for cache, fresh, each in zip(want, (rotated_k, new_v.float()), scales):
                        number = (fresh[i, :, token] / each[page][:, None]).clamp(-most, most)
                        cache[page, :, at % self.PAGE] = (number.round() if stored == torch.int8 else number.to(stored)).float()
                for cache, numbers in zip((k, v), want):  # a rotated key may lie nearly midway between two numbers
                    wrong = cache.float() != numbers
                    self.assertLessEqual(wrong.sum().item(), 2)
                    step = 1 if stored == torch.int8 else numbers.abs()[wrong] / 7 + 2 ** -9
                    self.assertTrue(((cache.float() - numbers).abs()[wrong] <= step).all())
                self.near(o, plain(rotated_q, k, v, lengths, table, **options).double(), dtype)
            self.refuses("it must have the type of q", lambda: fused(q, new_k.to(stored), new_v.to(stored), k, v, lengths, table, **options))

    def test_wrong_arguments(self):
        for device in self.on_each():
            k, v, table, lengths = self.cache(device)
            q = drawn(2, 4, 1, 64, device=device)
            self.refuses("lengths: int64 is not allowed; int32 is", lambda: ops.paged_decode(q, k, v, lengths.long(), table))
            self.refuses("without a table", lambda: ops.paged_decode(q, k, v, lengths))
            new, scales = drawn(2, 2, 1, 64, device=device), torch.ones(20, 2, device=device)
            for op, fused in ((ops.paged_decode, ops.decode_fused), (ops.paged_prefill, ops.prefill_fused)):
                self.refuses("k_scales", lambda: op(q, k.to(torch.int8), v.to(torch.int8), lengths, table))
                self.refuses("k_scales", lambda: fused(q, new, new, k.to(torch.int8), v.to(torch.int8), lengths, table))
                self.refuses("k_scales", lambda: fused(q, new, new, k, v, lengths, table, key_scales=scales, value_scales=scales))
                eight = k.to(torch.int8), v.to(torch.int8)
                self.refuses(r"k_scales\[", lambda: attn_proto.check_cache(
                    eight[0], lengths, table, new_key=new, key_scales=0 * scales, value_scales=scales))
                if device == "cpu":  # on a GPU a call does not check the values of scales
                    self.refuses(r"k_scales\[", lambda: fused(q, new, new, *eight, lengths, table, key_scales=0 * scales, value_scales=scales))
            angles = torch.zeros(127, 32, device=device)
            self.refuses("127 positions", lambda: ops.decode_fused(q, new, new, k, v, lengths, table, angles, angles))
            self.refuses("k overlaps v", lambda: ops.decode_fused(q, new, new, k, k, lengths, table))
            self.refuses("overlap one another", lambda: ops.decode_fused(q, new, new, k[:1].expand_as(k), v, lengths, table))

    def test_lengths_and_pages_out_of_range(self):
        for device in self.on_each():
            k, v, table, lengths = self.cache(device)
            attn_proto.check_cache(k, lengths, table)
            q, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            kept = k.clone(), v.clone()
            for what, place, value in (("length", (0,), 129), ("length", (1,), -1), ("length", (1,), 2 ** 31 - 1),
                                       ("page", (0, 0), -1), ("page", (0, 6), 20), ("page", (1, 2), 10 ** 9)):
                bad_lengths, bad_table = lengths.clone(), table.clone()
                (bad_lengths if what == "length" else bad_table)[place] = value
                self.refuses(f"{what} {value}", lambda: attn_proto.check_cache(k, bad_lengths, bad_table))
                if device == "cpu":  # on a GPU a call does not check
                    for call in (lambda: ops.paged_decode(q, k, v, bad_lengths, bad_table),
                                 lambda: ops.paged_prefill(q, k, v, bad_lengths, bad_table),
                                 lambda: ops.decode_fused(q, new, new, k, v, bad_lengths, bad_table),
                                 lambda: ops.prefill_fused(q, new, new, k, v, bad_lengths, bad_table)):
                        self.refuses(f"{what} {value}", call)
            self.assertTrue(torch.equal(k, kept[0]) and torch.equal(v, kept[1]))
            table[1, 5:] = -1  # pages that no token reaches may be anything
            attn_proto.check_cache(k, lengths, table)
            ops.paged_decode(q, k, v, lengths, table)
            whole = torch.tensor([20, 1], dtype=torch.int32, device=device)
            self.refuses("20; 0 to 16", lambda: attn_proto.check_cache(k[:2], whole))

    def test_numbers_that_are_not_finite_reach_the_rows_that_see_them(self):
        """Like the test of this name in the class Flash, over a cache. Slots after a sequence's last token hold NaN."""
        for device, dtype in self.on_each(*TOLERANCE):
            for special in (math.nan, math.inf):
                k, v, table, lengths = self.cache(device, dtype)
                slots = torch.arange(128, device=device).view(8, self.PAGE)
                for i in range(2):
                    for cache in (k, v):
                        cache.transpose(1, 2)[table[i].long()] = torch.where(
                            (slots < lengths[i])[..., None, None], cache.transpose(1, 2)[table[i].long()], math.nan)
                place = table[0, 95 // self.PAGE], slice(None), 95 % self.PAGE  # token 95 of 100
                for rows, op in ((9, ops.paged_decode), (30, ops.paged_prefill)):
                    self.now = device, dtype, special, op
                    q = drawn(2, 4, rows, 64, device=device, dtype=dtype).abs()
                    self.assertTrue(torch.isfinite(op(q, k, v, lengths, table)).all(), self.now)
                    seen = torch.zeros(2, 4, rows, dtype=torch.bool, device=device)
                    seen[0, :, -5:] = True
                    changed = k.clone()
                    changed[place] = special
                    o = op(q, changed, v, lengths, table)
                    self.assertTrue(torch.equal(torch.isnan(o), seen[..., None].expand_as(o)), self.now)
                    changed = v.clone()
                    changed[place][..., 5] = special
                    o = op(q, k, changed, lengths, table)
                    self.assertTrue(torch.equal(~torch.isfinite(o[..., 5]), seen), self.now)
                    self.assertTrue(torch.isfinite(o[..., :5]).all(), self.now)

    def test_keys_and_values_that_lie_in_one_tensor(self):
        for device in self.on_each():
            k, v, table, lengths = self.cache(device)
            q, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            both = torch.stack([k, v], 1)
            want = ops.decode_fused(q, new, new, k, v, lengths, table)
            self.near(ops.decode_fused(q, new, new, both[:, 0], both[:, 1], lengths, table), want.double())
            self.assertTrue(torch.equal(both[:, 0], k) and torch.equal(both[:, 1], v))


class Shapes(Case):
    def test_errors_say_which_shape_was_given_and_which_are_allowed(self):
        for device in self.on_each():
            def made(*shape, dtype=torch.float32):
                return torch.ones(shape, device=device, dtype=dtype)

            def flash(**options):
                return lambda: ops.flash(q, k, v, **options)

            q, k, v = qkv(device, keys=42)
            pages, _, table, lengths = Caches().cache(device)
            caches, few, new, angles = (pages, pages.clone()), q[:, :, :2], k[:, :, :2], made(128, 32)
            four = "[batch, heads, tokens, width]", "[batch, tokens, heads, width] with the layout bshd"
            gates = "[4]", "[2, 4, 40]", "[2, 4, 40, 64]"
            for given, allowed, call in (
                    ([4, 40, 64], four, lambda: ops.flash(q[0], k, v)), ([2, 42, 64], four, lambda: ops.flash(q, k[:, 0], v)),
                    ([4, 40, 64], four, lambda: ops.flash_with_lse(q.to("meta")[0], k.to("meta"), v.to("meta"))),
                    ([3], ["[q_heads] = [4]"], flash(sinks=made(3))), ([3], ["[2]"], flash(lengths=made(3, dtype=torch.int32))),
                    ([42], ["[kv_len, 2] = [42, 2]"], flash(documents=made(42, dtype=torch.int32))),
                    ([40, 44], ["a multiple of 4] = [1 or 2, 1 or 4, 1 or 40, 1 or 44]"], flash(bias=made(40, 44))),
                    ([2, 1, 40, 42], ["[1 or 2, 1 or 4, 1 or 40, 1 or 44]"], flash(bias=made(2, 1, 40, 42))),
                    ([40, 42], ["[1 or 2, 1 or 4, 1 or 40, 1 or 42]"], flash(mask=made(40, 42, dtype=torch.bool))),
                    ([1, 1, 40, 44], ["[1 or 2, 1 or 4, 1 or 40, 1 or 42]"], flash(mask=made(1, 1, 40, 44, dtype=torch.bool))),
                    ([20, 16, 64], ["[batch, kv_heads, capacity, width]", "[pages, kv_heads, page_size, width] with a table", "cache_bshd"],
                     lambda: ops.paged_decode(few, pages[:, 0], pages, lengths, table)),
                    ([1, 8], ["[batch, max_pages] = [2, any]"], lambda: ops.paged_decode(few, *caches, lengths, table[:1])),
                    ([1], ["[2]"], lambda: ops.paged_prefill(q, *caches, lengths[:1], table)),
                    ([20], ["[pages, kv_heads] = [20, 2]"], lambda: ops.paged_decode(
                        few, *(x.to(torch.int8) for x in caches), lengths, table, key_scales=made(20), value_scales=made(20))),
                    ([2, 3], ["[batch, q_len] = [2, 2]"], lambda: ops.paged_decode(few, *caches, lengths, table, tree=made(2, 3, dtype=torch.int64))),
                    ([2, 1, 2, 64], ["[2, 2, 2, 64]"], lambda: ops.decode_fused(few, new[:, :1], new, *caches, lengths, table)),
                    ([128], ["[any, any]"], lambda: ops.decode_fused(few, new, new, *caches, lengths, table, angles[:, 0], angles)),
                    ([128, 16], ["[128, 32]"], lambda: ops.decode_fused(few, new, new, *caches, lengths, table, angles, made(128, 16))),
                    ([1, 2], ["[batch] = [any]"], lambda: ops.check_cache(pages, lengths[None], table)),
                    ([2, 4], gates, lambda: ops.linear(q, q, q, made(2, 4))), ([2, 4, 39], gates, lambda: ops.linear(q, q, q, made(2, 4, 39))),
                    ([64, 64], ["[2, 4, 64, 64]"], lambda: ops.linear(q, q, q, None, made(64, 64))),
                    ([4, 40, 64], four, lambda: ops.linear(q, q, q[0])),
                    ([1], ["[2]"], lambda: ops.rope(q, q, lengths[:1])), ([2, 4, 39, 64], ["[2, 4, 40, 64]"], lambda: ops.rope(q, q[:, :, 1:]))):
                said = str(self.refuses("", call))
                for shape in (str(given), *allowed):
                    self.assertIn(shape, said)


def shortened(tensor):
    """A copy of the tensor whose storage ends one byte before the copy's last element does."""
    copy = tensor.clone()
    copy.untyped_storage().resize_(copy.untyped_storage().nbytes() - 1)
    return copy


class Storages(Case):
    def test_storages_that_end_before_their_tensors(self):
        for device, name in self.on_each("flash", "flash_with_lse", "paged_decode", "paged_prefill", "decode_fused", "prefill_fused",
                                         "check_cache", "linear", "rope"):
            op, tensor = getattr(ops, name), drawn(2, 4, 8, 16, device=device)
            given = {each.name: tensor for each in op.default._schema.arguments if "Tensor" in str(each.type)}
            for short in given:
                for autocast in (False, True):
                    with torch.autocast(device, torch.bfloat16, enabled=autocast):
                        self.refuses(rf"^{short}: a storage of 4095 bytes is not allowed; its elements need 4096",
                                     lambda: op(**{**given, short: shortened(tensor)}))

    def test_storages_that_end_with_their_tensors(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            buffer = drawn(2, 4, 40, 80, device=device)
            want = reference(buffer[..., :64], k, v)
            buffer.untyped_storage().resize_(buffer.nbytes - 4 * 16)
            self.near(attn_proto.flash(buffer.as_strided(q.shape, buffer.stride()), k, v), want)
            nothing = q[:0].clone()
            nothing.untyped_storage().resize_(0)
            self.assertEqual(attn_proto.flash(nothing, k[:0], v[:0]).shape, nothing.shape)


class LinearAndRope(Case):
    def test_linear(self):
        for device in self.on_each():
            q, k, v = drawn(2, 2, 70, 32, device=device), drawn(2, 2, 70, 32, device=device).flip(2), drawn(2, 2, 70, 16, device=device)
            o, state = ops.linear(q, k, v)
            self.near(o, ((q @ k.mT).tril() @ v / math.sqrt(32)).double(), factor=4)
            self.near(state, (k.mT @ v).double(), factor=4)
            first, middle = ops.linear(q[:, :, :30].contiguous(), k[:, :, :30].contiguous(), v[:, :, :30].contiguous())
            second, _ = ops.linear(q[:, :, 30:].contiguous(), k[:, :, 30:].contiguous(), v[:, :, 30:].contiguous(),
                                   initial_state=middle)
            self.near(torch.cat([first, second], 2), o.double(), factor=4)
            whole, _ = ops.linear(q, k, v, causal=False)
            self.near(whole, (q @ (k.mT @ v) / math.sqrt(32)).double(), factor=8)
            gate = -drawn(2, 2, 70, device=device).abs()
            gated, _ = ops.linear(q, k, v, gate)
            decay = gate.double().cumsum(-1)
            weight = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
            self.near(gated, (q.double() @ k.double().mT * weight) @ v.double() / math.sqrt(32), factor=4)

    def test_linear_of_no_tokens_leaves_the_state(self):
        for device, dtype in self.on_each(*TOLERANCE):
            none, state = torch.empty(2, 2, 0, 64, device=device, dtype=dtype), drawn(2, 2, 64, 64, device=device)
            for causal in (True, False):
                o, last = ops.linear(none, none, none, None, state, causal=causal)
                self.assertEqual(o.shape, none.shape)
                self.assertTrue(torch.equal(last, state))
                self.assertEqual(ops.linear(none, none, none, causal=causal)[1].abs().max().item(), 0)

    def test_numbers_that_are_not_finite_reach_the_tokens_that_see_them(self):
        for device, dtype in self.on_each(*TOLERANCE):
            for special in (math.nan, math.inf, -math.inf):
                for causal in (True, False):
                    self.now = device, dtype, special, causal
                    q, k, v = (drawn(2, 2, 70, 32, device=device, dtype=dtype) for _ in "qkv")
                    seen = (torch.arange(70, device=device) >= 30) | (not causal)
                    seen = torch.stack([seen, seen & False])[:, None].expand(2, 2, 70)  # only the first sequence
                    v[0, :, 30, 5] = special
                    o, state = ops.linear(q, k, v, causal=causal)
                    self.assertTrue(torch.equal(~torch.isfinite(o[..., 5]), seen), self.now)
                    self.assertTrue(torch.isfinite(o[..., :5]).all() and torch.isfinite(o[..., 6:]).all(), self.now)
                    self.assertFalse(torch.isfinite(state[0, ..., 5]).any() or not torch.isfinite(state[1]).all(), self.now)
                    q, k, v = (drawn(2, 2, 70, 32, device=device, dtype=dtype) for _ in "qkv")
                    k[0, :, 30, 5] = special
                    o, state = ops.linear(q, k, v, causal=causal)
                    self.assertTrue(torch.equal(~torch.isfinite(o), seen[..., None].expand_as(o)), self.now)
                    self.assertFalse(torch.isfinite(state[0, :, 5]).any() or not torch.isfinite(state[0, :, 6:]).all(), self.now)
                    q, k, v = (drawn(2, 2, 70, 32, device=device, dtype=dtype) for _ in "qkv")
                    q[0, :, 30, 5] = special
                    o = ops.linear(q, k, v, causal=causal)[0]
                    self.assertEqual((~torch.isfinite(o)).any(-1).nonzero().tolist(), [[0, 0, 30], [0, 1, 30]], self.now)

    def test_wrong_arguments_without_tokens(self):
        for device in self.on_each():
            none = torch.empty(2, 2, 0, 64, device=device)
            self.refuses("feature 'gelu'", lambda: ops.linear(none, none, none, feature="gelu"))
            self.refuses("head_dim 12", lambda: ops.linear(none[..., :12], none[..., :12], none))
            self.refuses("scaling 'gelu'", lambda: ops.rope(none, none, scaling="gelu"))

    def test_rope(self):
        for device in self.on_each():
            q, k = drawn(2, 4, 9, 64, device=device), drawn(2, 2, 9, 64, device=device)
            offsets = torch.tensor([0, 100], dtype=torch.int32, device=device)
            angles = (offsets[:, None] + torch.arange(9, device=device))[:, None, :, None] * 10000.0 ** (-torch.arange(32, device=device) / 32)
            for x, got in zip((q, k), ops.rope(q, k, offsets)):
                a, b = x.double().chunk(2, -1)
                cos, sin = angles.double().cos(), angles.double().sin()
                self.near(got, torch.cat([a * cos - b * sin, b * cos + a * sin], -1))


class Autocast(Case):
    """Tokens take the type of torch.autocast, as in PyTorch's own attention; tables and states do not."""

    def same(self, got, want):
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want))):
            self.assertEqual((a.dtype, a.stride()), (b.dtype, b.stride()), self.now)
            self.assertTrue(torch.equal(a, b), self.now)

    def test_a_parameter_that_changes_within_autocast(self):
        """PyTorch's own operations keep the first copy of a parameter until autocast ends."""
        for device in self.on_each():
            value = torch.nn.Parameter(drawn(1, 1, 20, 8, device=device))
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                for factor in (1, -2):
                    value.mul_(factor)
                    self.near(attn_proto.flash(value, value, value), reference(*(value.bfloat16(),) * 3), torch.bfloat16)

    def test_tokens_take_the_type_of_autocast(self):
        for device, to in self.on_each(torch.bfloat16, torch.float16):
            q, k, v = qkv(device)
            q2 = q.to(torch.bfloat16)
            options = {"bias": drawn(1, 4, 40, 40, device=device), "sinks": drawn(4, device=device), "alibi_slopes": drawn(4, device=device)}
            gate, state = -drawn(2, 4, 40, device=device).abs(), drawn(2, 4, 64, 64, device=device)
            halves = [x.to(to) for x in (q, k, v)]
            for op, tensors, more in ((ops.flash, (q, k, v), options), (ops.flash, (q2, k, v), {}),
                                      (ops.flash_with_lse, (q, k, v), options), (ops.flash_with_lse, halves, {"causal": True}),
                                      (ops.linear, (q, q, q), {"gate": gate, "initial_state": state})):
                self.now = device, to, op
                want = op(*(x.to(to) for x in tensors), **more)
                torch._dynamo.reset()
                compiled = torch.compile(lambda *tensors: op(*tensors, **more), backend="aot_eager", fullgraph=True)
                with torch.no_grad(), torch.autocast(device, dtype=to):
                    self.same(op(*tensors, **more), want)
                    self.same(compiled(*tensors), want)
                with torch.autocast(device, enabled=False):
                    self.assertEqual(attn_proto.flash(q, k, v).dtype, torch.float32)
            with torch.autocast(device, dtype=to):
                self.refuses("query is Double", lambda: attn_proto.flash(q.double(), k, v))
                self.refuses("requires a gradient", lambda: attn_proto.flash(q.clone().requires_grad_(), k, v))
                self.assertEqual(ops.rope(q, k)[0].dtype, torch.float32)

    def test_the_type_of_the_cache_decides(self):
        """The cache is not copied. Queries and new tokens take the cache's type, or autocast's type if the cache has 8
        bits."""
        for device, kept in self.on_each(torch.float32, torch.bfloat16, torch.int8):
            k, v, table, lengths = Caches().cache(device)
            q, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            scales = {}
            if kept == torch.int8:
                scales = {name: torch.full((20, 2), 0.02, device=device) for name in ("key_scales", "value_scales")}
            k, v = ((50 * x if scales else x).to(kept) for x in (k, v))
            to = torch.bfloat16 if scales else kept
            paged, fused = (ops.paged_decode, ops.paged_prefill), (ops.decode_fused, ops.prefill_fused)
            for op in paged + fused:
                self.now = device, kept, op
                tensors = (q,) if "paged" in str(op) else (q, new, new)
                caches, others = [k.clone(), v.clone()], [k.clone(), v.clone()]
                with torch.autocast(device, dtype=torch.bfloat16):
                    got = op(*tensors, *caches, lengths, table, **scales)
                self.same(got, op(*(x.to(to) for x in tensors), *others, lengths, table, **scales))
                self.same(tuple(caches), tuple(others))


class Derivatives(Case):
    """The operators have neither backward nor forward derivatives. A backward pass fails if an operator has written a
    tensor that the pass needs."""

    def calls(self, device):
        """For each operator: a function of its tensors, and the tensors."""
        q, k, v = qkv(device)
        cache_k, cache_v, table, lengths = Caches().cache(device)
        one, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
        slopes, state = torch.ones(4, device=device), drawn(2, 4, 64, 64, device=device)
        return {"flash": (lambda q, k, v, s: ops.flash(q, k, v, alibi_slopes=s), (q, k, v, slopes)),
                "flash_with_lse": (lambda q, k, v: ops.flash_with_lse(q, k, v)[1], (q, k, v)),
                "paged_decode": (lambda q, k, v: ops.paged_decode(q, k, v, lengths, table), (one, cache_k, cache_v)),
                "paged_prefill": (lambda q, k, v: ops.paged_prefill(q, k, v, lengths, table), (one, cache_k, cache_v)),
                "decode_fused": (lambda *all: ops.decode_fused(*all, lengths, table), (one, new, new, cache_k, cache_v)),
                "prefill_fused": (lambda *all: ops.prefill_fused(*all, lengths, table), (one, new, new, cache_k, cache_v)),
                "linear": (lambda q, s: ops.linear(q, q, q, None, s)[0], (q, state)),
                "rope": (lambda q, k: ops.rope(q, k)[1], (q, k))}

    def test_forward_and_backward_derivatives_are_refused(self):
        for device in self.on_each():
            for name, (call, tensors) in self.calls(device).items():
                for i, tensor in enumerate(tensors):
                    self.now = device, name, i
                    with_one = lambda x: call(*tensors[:i], x, *tensors[i + 1:])
                    self.refuses("forward derivative", lambda: torch.func.jvp(with_one, (tensor,), (tensor,)))
                    with torch.no_grad():
                        self.refuses("forward derivative", lambda: torch.func.jvp(with_one, (tensor,), (tensor,)))
                    with torch.autograd.forward_ad.dual_level():
                        dual = torch.autograd.forward_ad.make_dual(tensor, tensor)
                        self.refuses("forward derivative", lambda: with_one(dual))
                    self.refuses("requires a gradient", lambda: torch.func.grad(lambda x: with_one(x).sum())(tensor))
                    self.refuses("requires a gradient", lambda: with_one(tensor.clone().requires_grad_()))
                    with torch.no_grad():
                        with_one(tensor.clone().requires_grad_())
                    with torch.inference_mode():
                        with_one(tensor)
                # A call on tensors without derivatives is served within a transform.
                torch.func.jvp(lambda x: x + call(*tensors).sum(), (tensors[0],), (tensors[0],))

    def test_written_caches_have_another_version(self):
        for device in self.on_each():
            for op in (ops.decode_fused, ops.prefill_fused):
                k, v, table, lengths = Caches().cache(device)
                one, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
                for cache in (k, v):
                    product = (cache * torch.ones_like(cache).requires_grad_()).sum()
                    with torch.no_grad():
                        op(one, new, new, k, v, lengths, table)
                    self.refuses("modified by an inplace operation", product.backward)
                    torch._dynamo.reset()
                    product = (cache * torch.ones_like(cache).requires_grad_()).sum()
                    with torch.no_grad():
                        torch.compile(lambda *all: op(*all) + 1, fullgraph=True, backend="aot_eager")(
                            one, new, new, k, v, lengths, table)
                    self.refuses("modified by an inplace operation", product.backward)

    def test_vmap(self):
        for device in self.on_each():
            q, k, v = (torch.stack([x, 2 * x, -x], 2) for x in qkv(device))
            got = torch.func.vmap(lambda *each: attn_proto.flash(*each, causal=True), in_dims=2)(q, k, v)
            for i in range(3):
                self.near(got[i], attn_proto.flash(q[:, :, i], k[:, :, i], v[:, :, i], causal=True).double())
            k, v, table, lengths = Caches().cache(device)
            one, new = drawn(3, 2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            self.refuses("[Bb]atching rule", lambda: torch.func.vmap(
                lambda q: ops.decode_fused(q, new, new, k, v, lengths, table))(one))


class Framework(Case):
    def test_help(self):
        """help() has the arguments with their defaults, and what each option means."""
        for name in ("flash", "flash_with_lse", "paged_decode", "paged_prefill", "decode_fused", "prefill_fused", "check_cache", "linear", "rope"):
            operator = getattr(attn_proto, name)
            arguments = {each.name: each for each in operator.default._schema.arguments}
            shown = inspect.signature(operator).parameters
            self.assertEqual(list(shown), list(arguments))
            text = pydoc.plain(pydoc.render_doc(operator))
            self.assertIn(f"{name}(", text)
            for argument in arguments.values():
                self.assertEqual(shown[argument.name].default, argument.default_value if argument.has_default_value() else inspect.Parameter.empty)
                if argument.kwarg_only and argument.name not in ("bshd", "cache_bshd"):
                    self.assertRegex(text, rf"(?m)^ *{argument.name}: .")

    def test_opcheck(self):
        for device in self.on_each():
            q, k, v = qkv(device)
            cache_k, cache_v, table, lengths = Caches().cache(device)
            one = drawn(2, 4, 1, 64, device=device)
            new = drawn(2, 2, 1, 64, device=device)
            for op, arguments, options in (
                    (ops.flash, (q, k, v), {"causal": True}), (ops.flash, (q.mT.contiguous().mT[:, :, :, :].contiguous(), k, v), {"alibi": True}),
                    (ops.flash_with_lse, (q, k, v), {}), (ops.paged_decode, (one, cache_k, cache_v, lengths, table), {}),
                    (ops.paged_prefill, (q, cache_k, cache_v, lengths, table), {}),
                    (ops.decode_fused, (one, new, new, cache_k, cache_v, lengths, table), {}),
                    (ops.linear, (q, q, q), {}), (ops.rope, (q, k), {})):
                torch.library.opcheck(op.default, arguments, options)

    def test_compile_without_graph_breaks(self):
        def model(q, k, v):
            o = attn_proto.flash(q * 2, k, v, causal=True)
            return F.scaled_dot_product_attention(o, k, v, enable_gqa=True) + 1

        for device in self.on_each():
            q, k, v = qkv(device)
            with attn_proto.enable():
                want = model(q, k, v)
                torch._dynamo.reset()
                compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager" if device == "cpu" else "inductor")
                with torch.no_grad():
                    self.near(compiled(q, k, v), want.double())
                    q2, k2, v2 = qkv(device, rows=56, keys=56)
                    self.near(compiled(q2, k2, v2), model(q2, k2, v2).double())

    @unittest.skipUnless(hasattr(torch._dynamo.decorators, "mark_unbacked"), "PyTorch 2.5")
    def test_compile_for_an_unknown_number_of_tokens(self):
        for device in self.on_each():
            for bshd in (False, True):
                torch._dynamo.reset()
                compiled = torch.compile(lambda q, k, v: attn_proto.flash(q, k, v) + 1, fullgraph=True, backend="aot_eager")
                for rows in (40, 56):
                    q, k, v = qkv(device, rows=rows)
                    q = q.transpose(1, 2).contiguous().transpose(1, 2) if bshd else q
                    torch._dynamo.decorators.mark_unbacked(q, 2)
                    got = compiled(q, k, v)
                    self.near(got, reference(q, k, v) + 1)
                    self.assertEqual(got.stride(), q.stride())

    def test_gradients_are_refused_where_traced(self):
        x = drawn(1, 2, 40, 64, device=DEVICES[0]).requires_grad_()
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: attn_proto.flash(x, x, x), fullgraph=True, backend="aot_eager")
        self.refuses("requires a gradient", lambda: compiled(x), Exception)
        with torch.no_grad():
            self.near(compiled(x), reference(x, x, x))
            self.assertFalse(attn_proto.flash(x, x, x).requires_grad)

    def test_tensors_without_memory_among_others(self):
        """If one tensor has no memory, PyTorch runs the operator's meta function, which computes no result. So the meta
        function refuses a call in which another tensor has memory."""
        for device in self.on_each():
            for name, (call, tensors) in Derivatives().calls(device).items():
                for i in range(len(tensors)):
                    for far in ([i], [j for j in range(len(tensors)) if j != i]):
                        self.now = device, name, far
                        self.refuses("on the device meta", lambda: call(*(x.to("meta") if j in far else x for j, x in enumerate(tensors))))

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return attn_proto.flash(q, k, v, causal=True)

        q, k, v = qkv(DEVICES[0])
        program = torch.export.export(Model(), (q, k, v))
        self.assertIn("attn.flash", str(program.graph))
        self.near(program.module()(q, k, v), Model()(q, k, v).double())

    def test_concurrent_callers(self):
        for device in self.on_each():
            work = [qkv(device, rows=rows, keys=keys) for rows, keys in ((40, 40), (1, 90), (33, 70), (1, 200))]
            wants = [reference(*each) for each in work]
            wrong = []

            def call(i):
                stream = torch.cuda.Stream() if device == "cuda" else None
                with torch.cuda.stream(stream) if stream else torch.no_grad():
                    for turn in range(40):
                        n = (i + turn) % len(work)
                        o = attn_proto.flash(*work[n])
                        if stream:
                            stream.synchronize()
                        if (o.double() - wants[n]).abs().max() > 1e-4:
                            wrong.append((i, turn))

            if device == "cuda":
                torch.cuda.synchronize()
            threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])

    @unittest.skipUnless("cpu" in DEVICES, "a build with the cpu device")
    def test_a_fork_begins_anew(self):
        q, k, v = qkv("cpu")
        want = attn_proto.flash(q, k, v)

        def child(connection):
            connection.send((attn_proto.flash(q, k, v) - want).abs().max().item())

        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=child, args=(there,))
        process.start()
        self.assertTrue(here.poll(60), "the child hangs")
        self.assertEqual(here.recv(), 0)
        process.join()


@unittest.skipUnless(torch.cuda.is_available(), "a GPU")
class Graphs(Case):
    def test_capture_and_replay(self):
        for warm in (True, False):  # without a warm-up, kernels are prepared during the capture
            with self.subTest(warm=warm):
                rows = 70 if warm else 77
                q, k, v = qkv("cuda", torch.bfloat16, rows=rows, keys=rows)
                lengths = torch.tensor([rows, 9], dtype=torch.int32, device="cuda")
                if warm:
                    attn_proto.flash(q, k, v, lengths=lengths)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    o = attn_proto.flash(q, k, v, lengths=lengths)
                    one = attn_proto.flash(q[:, :, :1], k, v)
                for turn in range(3):
                    q.copy_(drawn(*q.shape, device="cuda").add_(turn))
                    lengths[1] = 9 + turn
                    graph.replay()
                    torch.cuda.synchronize()
                    mask = torch.arange(rows, device="cuda")[None, None, None] < lengths[:, None, None, None]
                    self.near(o, reference(q, k, v, mask), torch.bfloat16)
                    self.near(one, reference(q[:, :, :1], k, v), torch.bfloat16)

    def test_prefill_of_several_layers_in_one_graph(self):
        k, v, table, lengths = Caches().cache("cuda", torch.bfloat16)
        caches = [(k.clone(), v.clone()) for _ in range(3)]
        q, new = drawn(2, 4, 30, 64, device="cuda", dtype=torch.bfloat16), drawn(2, 2, 30, 64, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = [ops.prefill_fused(q, new * (i + 1), new, *caches[i], lengths, table) for i in range(3)]
        for _ in range(2):
            graph.replay()
        for i in range(3):
            want = ops.prefill_fused(q, new * (i + 1), new, k.clone(), v.clone(), lengths, table)
            self.near(outputs[i], want.double(), torch.bfloat16)

    def test_a_prompt_over_a_cache_of_8_bits(self):
        """The graph reads the cache, the lengths and the table at each replay. A length beyond the cache gives NaN."""
        k, v, table, lengths = Caches().cache("cuda")
        k, v = ((50 * x).to(torch.int8) for x in (k, v))
        scales = {name: torch.full((20, 2), 0.02, device="cuda") for name in ("key_scales", "value_scales")}
        q = drawn(2, 4, 30, 64, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = ops.paged_prefill(q, k, v, lengths, table, **scales)
        for turn in range(3):
            lengths[1] = 37 + turn
            k.copy_(k.roll(turn, 0))
            graph.replay()
            self.near(o, ops.paged_prefill(q, k, v, lengths, table, **scales).double(), torch.bfloat16)
        lengths[0] = 129
        graph.replay()
        self.assertTrue(o[0].isnan().all())
        self.assertFalse(o[1].isnan().any())

    def test_all_gpus(self):
        devices = []
        for index in range(torch.cuda.device_count()):
            q, k, v = qkv(f"cuda:{index}", torch.bfloat16)
            self.near(attn_proto.flash(q, k, v), reference(q, k, v), torch.bfloat16)
            thread = threading.Thread(target=lambda: devices.append((attn_proto.flash(q, k, v), torch.cuda.current_device())))
            thread.start()
            thread.join()
        self.assertEqual([device for _, device in devices], [0] * torch.cuda.device_count(), "the current device stays")
        self.assertEqual(torch.cuda.current_device(), 0)

    @unittest.skipIf(torch.cuda.device_count() < 2, "two GPUs")
    def test_a_gpu_that_is_not_current(self):
        """Tensors are on cuda:1 while cuda:0 is current: results and launches are on cuda:1. Tensors on two GPUs are
        refused."""
        def calls(q, k, v):
            lengths = torch.tensor([40, 17], dtype=torch.int32, device=q.device)
            starts = torch.tensor([3, 0], dtype=torch.int32, device=q.device)
            caches = k.clone(), v.clone()
            return [ops.flash(q, k, v, causal=True, starts=starts), ops.paged_prefill(q, k, v, lengths), ops.paged_decode(q[:, :, :3], k, v, lengths),
                    ops.decode_fused(q[:, :, :1], k[:, :, :1], v[:, :, :1], *caches, lengths),
                    *ops.rope(q, k), *ops.linear(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), *caches]

        self.assertEqual(torch.cuda.current_device(), 0)
        tensors = {device: qkv(device, torch.bfloat16) for device in ("cuda:0", "cuda:1")}
        want = calls(*tensors["cuda:0"])
        before = {device: attn_proto.launches(device) for device in tensors}
        got = calls(*tensors["cuda:1"])
        stream = torch.cuda.Stream("cuda:1")
        stream.wait_stream(torch.cuda.current_stream("cuda:1"))
        with torch.cuda.stream(stream):  # also makes cuda:1 current
            torch.cuda.set_device(0)
            of_stream = calls(*tensors["cuda:1"])
            torch.cuda.set_device(1)
        stream.synchronize()
        self.assertEqual({device: attn_proto.launches(device) - before[device] for device in tensors}, {"cuda:0": 0, "cuda:1": 8})
        for each in (*zip(got, want), *zip(of_stream, want)):
            self.assertEqual(str(each[0].device), "cuda:1")
            self.assertTrue(torch.equal(each[0].cpu(), each[1].cpu()))
        found = {device: [] for device in tensors}
        threads = [threading.Thread(target=lambda device=device: [found[device].append(calls(*tensors[device])) for _ in range(20)])
                   for device in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for device, runs in found.items():
            self.assertEqual(len(runs), 20)
            for run in runs:
                self.assertTrue(all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(run, want)), device)
        self.assertEqual(torch.cuda.current_device(), 0)
        q, k, v = tensors["cuda:1"]
        for wrong in (lambda: ops.flash(q, tensors["cuda:0"][1], v), lambda: ops.flash(q, k, v, sinks=torch.zeros(4, device="cuda:0"))):
            with self.assertRaisesRegex(RuntimeError, "device|cuda:0"):
                wrong()

    @unittest.skipIf(torch.cuda.device_count() < 2, "two GPUs")
    def test_a_graph_of_a_gpu_that_is_not_current(self):
        q, k, v = qkv("cuda:1", torch.bfloat16)
        with torch.cuda.device(1):
            graph = torch.cuda.CUDAGraph()
            # Without a stream PyTorch captures on the stream of its first capture, which may be on cuda:0.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                o = ops.flash(q, k, v, sinks=torch.zeros(4, device="cuda:1"))
        self.assertEqual(torch.cuda.current_device(), 0)
        for factor in (1, 3):
            q.copy_(drawn(*q.shape) * factor)
            graph.replay()
            torch.cuda.synchronize(1)
            self.assertTrue(torch.equal(o, ops.flash(q, k, v, sinks=torch.zeros(4, device="cuda:1"))))


if __name__ == "__main__":
    torch.manual_seed(0)
    if not DEVICES:
        sys.exit(77)
    unittest.main()
