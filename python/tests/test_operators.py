"""Compares the operators attn::* with formulas in PyTorch, and tests properties that a framework expects of
operators."""

import inspect
import itertools
import math
import pydoc
import re
import sys
import threading
import unittest

import torch
import torch.nn.functional as F

import attn_proto
import definitions
from attn_proto import dlpack

DEVICES = [device for device in ("cpu", "cuda")
           if torch.ops.attn.has_backend(device) and (device == "cpu" or torch.cuda.is_available())]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ops = torch.ops.attn
OPERATORS = "flash", "flash_with_lse", "paged_decode", "paged_prefill", "decode_fused", "prefill_fused", "check_cache", "linear", "rope"


def drawn(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float32, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def qkv(device, dtype=torch.float32, batch=2, heads=4, kv_heads=2, rows=40, keys=40, width=64):
    return (drawn(batch, heads, rows, width, device=device, dtype=dtype),
            drawn(batch, kv_heads, keys, width, device=device, dtype=dtype),
            drawn(batch, kv_heads, keys, width, device=device, dtype=dtype).flip(2))


def reference(q, k, v, mask=None):
    """The definition in float64, over the pairs for which the mask is true. Rows without a key are 0."""
    hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool) if mask is None else ~mask.cpu()
    return definitions.attention(q, k, v, 1 / math.sqrt(q.shape[-1]), hidden)[0][0].to(q.device)


def table_of(*numbers, device="cpu"):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


def in_threads(calls):
    """Runs each call in a thread of its own, and waits for all of them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
            q, k, v = (x[:1] for x in qkv(device, dtype, kv_heads=1))
            for rows in (40, 1):
                wide = [q[:, :, :rows].expand(3, 4, rows, 64), k.expand(3, 2, 40, 64), v.expand(3, 2, 40, 64)]
                self.near(attn_proto.flash(*wide), reference(*wide), dtype)

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
            packed = torch.cat([q, k, v], 1)  # slices of one tensor
            self.near(attn_proto.flash(packed[:, :4], packed[:, 4:6], packed[:, 6:]), want)

    def test_outputs_are_dense_for_any_query(self):
        """The query's rows may repeat or overlap. Outputs have the same strides in a trace and in a call."""
        for device in self.on_each():
            buffer = drawn(1, 1, 400, 64, device=device).flatten()
            k, v = (drawn(2, 4, 20, 64, device=device) for _ in "kv")
            lengths = torch.full((2,), 20, dtype=torch.int32, device=device)
            for strides in ((0, 1280, 64, 1), (5120, 0, 64, 1), (5120, 1280, 0, 1), (0, 0, 0, 1), (2000, 400, 4, 1), (2000, 4, 400, 1),
                            (4, 4, 4, 1), (5120, 64, 256, 1), (5120, 1280, 1, 1), (12000, 3000, 128, 1)):
                if device == "cuda" and strides[2] == 1:
                    continue  # a GPU's kernels refuse strides that are no multiples of 16 bytes
                self.now = device, strides
                q = buffer.as_strided((2, 4, 20, 64), strides)
                o = attn_proto.flash(q, k, v)
                self.near(o, reference(q, k, v))
                self.assertEqual((o.stride(-1), o.untyped_storage().nbytes()), (1, o.nbytes))
                for op, tensors in ((ops.flash, (q, k, v)), (ops.paged_decode, (q, k, v, lengths)), (ops.rope, (q, k)), (ops.linear, (q, k, v))):
                    far = [x.to("meta") for x in (buffer, *tensors[1:])]
                    far[0] = far[0].as_strided(q.shape, strides)
                    for got, traced in zip(tuple_of(op(*tensors)), tuple_of(op(*far))):
                        self.assertEqual(got.stride(), traced.stride(), op)

    def test_why_not(self):
        """fuzz.py compares the reason with the error of the call."""
        for device in self.on_each():
            q, k, v = qkv(device)
            launches = attn_proto.launches(device)
            self.assertIsNone(attn_proto.why_not(q, k, v, causal=True))
            self.assertIn("alibi_slopes", attn_proto.why_not(q, k, v, alibi_slopes=torch.ones(2, device=device)))
            on_meta = [x.to("meta") for x in (q, k, v)]
            self.assertIsNone(attn_proto.why_not(*on_meta, device=device))
            self.assertIn("query is on meta", attn_proto.why_not(*on_meta))
            self.assertEqual(attn_proto.launches(device), launches)


class Options(Case):
    """Each option reaches the kernels: it changes the result of a call, and the result is that of attn_proto.dlpack,
    which test_dlpack.py compares with the definition."""

    def like_dlpack(self, got, want, plain, dtype=torch.float32):
        for each, other in zip(tuple_of(got), tuple_of(want), strict=True):
            self.near(each, other.double(), dtype)
        if plain is not None:
            self.assertGreater((tuple_of(got)[0] - plain).abs().max().item(), 1e-3, self.now)

    def test_flash(self):
        for device in self.on_each():
            q, k, v = qkv(device, batch=1, rows=300, keys=300)
            documents = torch.tensor([[0, 13]] * 13 + [[13, 300]] * 287, dtype=torch.int32, device=device)
            pairs = drawn(1, 4, 300, 300, device=device)
            cases = ({"causal": True}, {"scale": 0.3}, {"soft_cap": 2.5}, {"window_left": 5}, {"window_right": 3},
                     {"causal": True, "prefix": 9}, {"window_left": 2, "window_right": 2, "global_tokens": 3}, {"alibi": True},
                     {"alibi_slopes": drawn(4, device=device).abs()}, {"sinks": drawn(4, device=device)}, {"lengths": table_of(7, device=device)},
                     {"documents": documents}, {"blocks": table_of(0b001, 0b011, 0b110, device=device)[:, None]}, {"bias": pairs},
                     {"mask": pairs > 0}, {"mask": (pairs > 0).view(torch.uint8) * 255}, {"starts": table_of(7, device=device)},
                     {name: table_of(0, 50, 300, device=device) for name in ("cu_seqlens_q", "cu_seqlens_k")})
            plain = ops.flash(q, k, v)
            for options in cases:
                self.now = device, list(options)
                want = dlpack.flash(q, k, v, with_lse=True, **options)
                self.like_dlpack(ops.flash_with_lse(q, k, v, **options), want, plain)
                self.like_dlpack(ops.flash(q, k, v, **options), want[0], None)

    def test_caches(self):
        """Caches of each type, on pages; the fused operators write new tokens to the cache."""
        angles = torch.arange(128)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
        for device, (stored, dtype) in self.on_each(*itertools.product((None, torch.int8, torch.float8_e4m3fn), TOLERANCE)):
            rotation = {"cosines": angles.cos().to(device), "sines": angles.sin().to(device)}
            k, v, table, lengths = cache(device, dtype)
            scales = {}
            if stored:
                k, v = ((50 * x).to(stored) for x in (k, v))
                scales = {name: torch.rand(20, 2, generator=torch.Generator().manual_seed(i)).add(0.5).div(40).to(device)
                          for i, name in enumerate(("k_scales", "v_scales"))}
            scale_names = {"key_scales": scales.get("k_scales"), "value_scales": scales.get("v_scales")}
            modifiers = ({"scale": 0.3}, {"soft_cap": 2.5}, {"window_left": 5}, {"alibi": True}, {"alibi_slopes": drawn(4, device=device).abs()},
                         {"sinks": drawn(4, device=device)}, {"starts": table_of(7, 33, device=device)})
            for rows, paged, fused, other in ((3, ops.paged_decode, ops.decode_fused, dlpack.decode),
                                              (30, ops.paged_prefill, ops.prefill_fused, dlpack.prefill)):
                if stored and device != "cpu" and rows == 3 and dtype == torch.float32:
                    continue  # a GPU's decoding kernels of 8 bits take queries of 16 bits
                q, new_k, new_v = (drawn(2, heads, rows, 64, device=device, dtype=dtype) for heads in (4, 2, 2))
                new_k[0, 0, -1, 3], new_v[1, 1, -1, 5] = 100, -100  # beyond what 8 bits times the scale can hold
                trees = ({"tree": torch.tensor([[1, 2, 5]] * 2, device=device)},) if rows == 3 else ()
                plain = paged(q, k, v, lengths, table, **scale_names)
                for options in ({}, *modifiers, *trees):
                    self.now = device, stored, dtype, rows, list(options)
                    want = other(q, k, v, lengths, table, **scales, **options)
                    self.like_dlpack(paged(q, k, v, lengths, table, **scale_names, **options), want, plain if options else None, dtype)
                for options in ({}, {"interleaved": True}):
                    mine, others = [k.clone(), v.clone()], [k.clone(), v.clone()]
                    got = fused(q, new_k, new_v, *mine, lengths, table, *rotation.values(), **scale_names, **options)
                    want = other(q, *others, lengths, table, new_k=new_k, new_v=new_v, **rotation, **scales, **options)
                    self.like_dlpack((got, *(x.float() for x in mine)), (want, *(x.float() for x in others)), plain, dtype)
                    self.assertFalse(torch.equal(mine[0].float(), k.float()))

    def test_linear_and_rope(self):
        for device in self.on_each():
            q, k, v = drawn(2, 4, 70, 32, device=device), drawn(2, 4, 70, 32, device=device).flip(2), drawn(2, 4, 70, 16, device=device)
            cases = ({"causal": False}, {"scale": 0.5}, {"feature": "relu"}, {"feature": "elu1", "normalised": True},
                     {"gate": -drawn(2, 4, 70, device=device).abs()}, {"initial_state": drawn(2, 4, 32, 16, device=device)})
            yarn, llama3 = ({"scaling": name, "factor": 4.0, "original_length": 300.0} for name in ("yarn", "llama3"))
            angles = ({"offsets": table_of(3, 1000, device=device)}, {"interleaved": True}, {"theta": 500.0}, {"rotary_dim": 16},
                      {"scaling": "linear", "factor": 4.0}, {**yarn, "attention_factor": 0.7, "truncate": False},
                      {**yarn, "mscale": 2.0, "mscale_all_dim": 0.5, "beta_fast": 16.0, "beta_slow": 2.0},
                      {**llama3, "low_freq_factor": 0.5, "high_freq_factor": 3.0})
            for op, other, tensors, each in ((ops.linear, dlpack.linear, (q, k, v), cases), (ops.rope, dlpack.rope, (q, k), angles)):
                plain = op(*tensors)[0]
                for options in ({}, *each):
                    self.now = device, op, options
                    self.like_dlpack(op(*tensors, **options), other(*tensors, **options), plain if options else None)


PAGE = 16


def cache(device, dtype=torch.float32):
    """Keys and values on 20 pages, and the table and lengths of two sequences."""
    pages = torch.randperm(20, generator=torch.Generator().manual_seed(0)).int()
    k = drawn(20, 2, PAGE, 64, device=device, dtype=dtype)
    return k, k.flip(0), pages[:16].view(2, 8).contiguous().to(device), table_of(100, 37, device=device)


class Refused(Case):
    """Calls that the operators refuse, each with a word of the error."""

    def test_calls(self):
        """common/api/tests has the calls that attn.h refuses."""
        for device in self.on_each():
            q, k, v = qkv(device)
            pages, values, table, lengths = cache(device)
            one, new, scales = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device), torch.ones(20, 2, device=device)
            eight, both = (pages.to(torch.int8), values.to(torch.int8)), {"key_scales": scales, "value_scales": scales}
            angles, none, state = (torch.zeros(shape, device=device) for shape in ((127, 32), (2, 2, 0, 64), (2, 4, 64, 64)))
            wide = torch.empty(1, 1, 1, 64, device=device).expand(70000, 1, 1, 64)
            calls = [("query is Double", ops.flash, (q.double(), k, v), {}), ("do not divide", ops.flash, (q[:, :3], k, v), {}),
                     ("lengths: float32", ops.flash, (q, k, v), {"lengths": torch.ones(2, device=device)}),
                     ("requires a gradient", ops.flash, (q.clone().requires_grad_(), k, v), {}),
                     ("allowed are sizes up to", ops.flash, (wide,) * 3, {}),
                     ("not allowed with normalised", ops.linear, (q, q, q), {"normalised": True, "scale": 3.0}),
                     ("not allowed with normalised", ops.linear, (q, q, q, None, state), {"normalised": True}),
                     ("feature 'gelu'", ops.linear, (none, none, none), {"feature": "gelu"}),
                     ("scaling 'gelu'", ops.rope, (none, none), {"scaling": "gelu"}),
                     ("without a table", ops.paged_decode, (one, pages, values, lengths), {}),
                     ("k_scales", ops.check_cache, (eight[0], lengths, table), {"new_key": new, "key_scales": 0 * scales, "value_scales": scales}),
                     ("length 129", ops.check_cache, (pages, table_of(129, 1, device=device), table), {}),
                     ("page 20", ops.check_cache, (pages, lengths, 0 * table + 20), {}),
                     ("20; 0 to 16", ops.check_cache, (pages[:2], table_of(20, 1, device=device)), {}),
                     ("127 positions", ops.decode_fused, (one, new, new, pages, values, lengths, table, angles, angles), {}),
                     ("k overlaps v", ops.decode_fused, (one, new, new, pages, pages, lengths, table), {})]
            for op, fused in ((ops.paged_decode, ops.decode_fused), (ops.paged_prefill, ops.prefill_fused)):
                if device == "cpu":  # on a GPU a call does not check the values of tables
                    calls.append(("length 129", fused, (one, new, new, pages, values, table_of(100, 129, device=device), table), {}))
                calls += [("k_scales", op, (one, *eight, lengths, table), {}), ("k_scales", fused, (one, new, new, *eight, lengths, table), {}),
                          ("k_scales", fused, (one, new, new, pages, values, lengths, table), both),
                          ("type of q", fused, (one, *[new.to(torch.int8)] * 2, *eight, lengths, table), both)]
            if device == "cuda":
                calls += [("device", ops.flash, (q, k.cpu(), v), {}),
                          ("multiples of 16", ops.flash, (torch.randn(1, 1, 40, 65, device=device)[..., 1:],) * 3, {})]
            for word, op, tensors, options in calls:
                self.now = device, word, op
                self.refuses(re.escape(word), lambda: op(*tensors, **options))

    def test_an_error_says_which_shape_was_given_and_which_are_allowed(self):
        for device in self.on_each():
            q, k, v = qkv(device, keys=42)
            pages, _, table, lengths = cache(device)
            for given, allowed, call in (
                    ("[4, 40, 64]", "with the layout bshd", lambda: ops.flash_with_lse(q.to("meta")[0], k.to("meta"), v.to("meta"))),
                    ("[40, 44]", "[1 or 2, 1 or 4, 1 or 40, 1 or 44]", lambda: ops.flash(q, k, v, bias=torch.ones(40, 44, device=device))),
                    ("[1, 8]", "[batch, max_pages] = [2, any]", lambda: ops.paged_decode(q[:, :, :2], pages, pages.clone(), lengths, table[:1]))):
                said = str(self.refuses("", call))
                self.assertIn(given, said)
                self.assertIn(allowed, said)

    def test_storages_that_end_before_their_tensors(self):
        for device, name in self.on_each(*OPERATORS):
            op, tensor = getattr(ops, name), drawn(2, 4, 8, 16, device=device)
            given = {each.name: tensor for each in op.default._schema.arguments if "Tensor" in str(each.type)}
            for short, autocast in itertools.product(given, (False, True)):
                with torch.autocast(device, torch.bfloat16, enabled=autocast):
                    self.refuses(rf"^{short}: a storage of 4095 bytes is not allowed; its elements need 4096",
                                 lambda: op(**{**given, short: shortened(tensor)}))
            q, k, v = qkv(device)
            buffer = drawn(2, 4, 40, 80, device=device)
            want = reference(buffer[..., :64], k, v)
            buffer.untyped_storage().resize_(buffer.nbytes - 4 * 16)  # ends with the last element
            self.near(attn_proto.flash(buffer.as_strided(q.shape, buffer.stride()), k, v), want)


def shortened(tensor):
    """A copy of the tensor whose storage ends one byte before the copy's last element does."""
    copy = tensor.clone()
    copy.untyped_storage().resize_(copy.untyped_storage().nbytes() - 1)
    return copy


class Autocast(Case):
    """Tokens take the type of torch.autocast, as in PyTorch's own attention; tables and states do not."""

    def same(self, got, want):
        for a, b in zip(tuple_of(got), tuple_of(want)):
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
            k, v, table, lengths = cache(device)
            q, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            eight = kept == torch.int8
            scales = {name: torch.full((20, 2), 0.02, device=device) for name in ("key_scales", "value_scales") if eight}
            k, v = ((50 * x if eight else x).to(kept) for x in (k, v))
            for op, tensors in ((ops.paged_decode, (q,)), (ops.paged_prefill, (q,)), (ops.decode_fused, (q, new, new)), (ops.prefill_fused, (q, new, new))):
                self.now = device, kept, op
                caches, others = [k.clone(), v.clone()], [k.clone(), v.clone()]
                with torch.autocast(device, dtype=torch.bfloat16):
                    got = op(*tensors, *caches, lengths, table, **scales)
                self.same(got, op(*(x.to(torch.bfloat16 if eight else kept) for x in tensors), *others, lengths, table, **scales))
                self.same(tuple(caches), tuple(others))


class Derivatives(Case):
    """The operators have neither backward nor forward derivatives. A backward pass fails if an operator has written a
    tensor that the pass needs."""

    def calls(self, device):
        """For each operator: a function of its tensors, and the tensors."""
        q, k, v = qkv(device)
        cache_k, cache_v, table, lengths = cache(device)
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
        for device, op in self.on_each(ops.decode_fused, ops.prefill_fused):
            torch._dynamo.reset()
            for call in (op, torch.compile(lambda *all: op(*all) + 1, fullgraph=True, backend="aot_eager")):
                k, v, table, lengths = cache(device)
                one, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
                products = [(x * torch.ones_like(x).requires_grad_()).sum() for x in (k, v)]
                with torch.no_grad():
                    call(one, new, new, k, v, lengths, table)
                for product in products:
                    self.refuses("modified by an inplace operation", product.backward)

    def test_vmap(self):
        for device in self.on_each():
            q, k, v = (torch.stack([x, 2 * x, -x], 2) for x in qkv(device))
            got = torch.func.vmap(lambda *each: attn_proto.flash(*each, causal=True), in_dims=2)(q, k, v)
            for i in range(3):
                self.near(got[i], attn_proto.flash(q[:, :, i], k[:, :, i], v[:, :, i], causal=True).double())
            k, v, table, lengths = cache(device)
            one, new = drawn(3, 2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            self.refuses("[Bb]atching rule", lambda: torch.func.vmap(
                lambda q: ops.decode_fused(q, new, new, k, v, lengths, table))(one))


class Framework(Case):
    def test_help(self):
        """help() has the arguments with their defaults, and what each option means."""
        for name in OPERATORS:
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
            keys, values, table, lengths = cache(device)
            one, new = drawn(2, 4, 1, 64, device=device), drawn(2, 2, 1, 64, device=device)
            for op, arguments, options in (
                    (ops.flash, (q, k, v), {"causal": True}), (ops.flash_with_lse, (q, k, v), {"alibi": True}),
                    (ops.paged_decode, (one, keys, values, lengths, table), {}), (ops.paged_prefill, (q, keys, values, lengths, table), {}),
                    (ops.decode_fused, (one, new, new, keys, values, lengths, table), {}), (ops.linear, (q, q, q), {}), (ops.rope, (q, k), {})):
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

    def test_concurrent_callers(self):
        for device in self.on_each():
            work = [qkv(device, rows=rows, keys=keys) for rows, keys in ((40, 40), (1, 90), (33, 70), (1, 200))]
            wants = [reference(*each) for each in work]
            wrong = []

            def call(i):
                with torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else torch.no_grad():
                    for turn in range(40):
                        n = (i + turn) % len(work)
                        o = attn_proto.flash(*work[n])  # copied to the host by the line below, which waits for the stream
                        if (o.double() - wants[n]).abs().max().item() > 1e-4:
                            wrong.append((i, turn))

            if device == "cuda":
                torch.cuda.synchronize()
            in_threads(lambda i=i: call(i) for i in range(4))
            self.assertEqual(wrong, [])


def captured(call, stream=None):
    """A graph of the call, and the result that each replay writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    return graph, result


@unittest.skipUnless(torch.cuda.is_available(), "a GPU")
class Graphs(Case):
    def test_a_replay_reads_the_tensors_again(self):
        """The kernels are prepared during the capture, or before it."""
        for warm, rows in ((False, 77), (True, 70)):
            q, k, v = qkv("cuda", torch.bfloat16, rows=rows, keys=rows)
            pages_k, pages_v, table, cached = cache("cuda")
            eight = [(50 * x).to(torch.int8) for x in (pages_k, pages_v)]
            scales = {name: torch.full((20, 2), 0.02, device="cuda") for name in ("key_scales", "value_scales")}
            lengths, seen = table_of(rows, 9, device="cuda"), drawn(2, 1, rows, rows, device="cuda") > 0
            for call in (lambda: ops.flash(q, k, v, lengths=lengths), lambda: ops.flash(q[:, :, :1], k, v),
                         *((lambda: ops.flash(q, k, v, mask=seen),) if warm else ()), lambda: ops.paged_prefill(q, *eight, cached, table, **scales)):
                if warm:
                    call()
                graph, o = captured(call)
                for turn in range(3):
                    q.copy_(drawn(*q.shape, device="cuda").add_(turn))
                    lengths[1], cached[1] = 9 + turn, 37 + turn
                    seen.logical_not_()
                    graph.replay()
                    self.near(o, call().double(), torch.bfloat16)
        cached[0] = 129  # a length beyond the cache
        graph.replay()
        self.assertTrue(o[0].isnan().all())
        self.assertFalse(o[1].isnan().any())

    def test_prefill_of_several_layers_in_one_graph(self):
        k, v, table, lengths = cache("cuda", torch.bfloat16)
        caches = [(k.clone(), v.clone()) for _ in range(3)]
        q, new = drawn(2, 4, 30, 64, device="cuda", dtype=torch.bfloat16), drawn(2, 2, 30, 64, device="cuda", dtype=torch.bfloat16)
        graph, outputs = captured(lambda: [ops.prefill_fused(q, new * (i + 1), new, *caches[i], lengths, table) for i in range(3)])
        for _ in range(2):
            graph.replay()
        for i in range(3):
            want = ops.prefill_fused(q, new * (i + 1), new, k.clone(), v.clone(), lengths, table)
            self.near(outputs[i], want.double(), torch.bfloat16)

    def test_all_gpus(self):
        devices = []
        for index in range(torch.cuda.device_count()):
            q, k, v = qkv(f"cuda:{index}", torch.bfloat16)
            self.near(attn_proto.flash(q, k, v), reference(q, k, v), torch.bfloat16)
            in_threads([lambda: devices.append((attn_proto.flash(q, k, v), torch.cuda.current_device()))])
        self.assertEqual([device for _, device in devices], [0] * torch.cuda.device_count(), "the current device stays")
        self.assertEqual(torch.cuda.current_device(), 0)

    @unittest.skipIf(torch.cuda.device_count() < 2, "two GPUs")
    def test_a_gpu_that_is_not_current(self):
        """Tensors are on cuda:1 while cuda:0 is current: results and launches are on cuda:1. Tensors on two GPUs are
        refused."""
        def calls(q, k, v):
            lengths, starts = table_of(40, 17, device=q.device), table_of(3, 0, device=q.device)
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
        in_threads(lambda device=device: [found[device].append(calls(*tensors[device])) for _ in range(20)] for device in tensors)
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
            # Without a stream PyTorch captures on the stream of its first capture, which may be on cuda:0.
            graph, o = captured(lambda: ops.flash(q, k, v, sinks=torch.zeros(4, device="cuda:1")), torch.cuda.Stream())
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
