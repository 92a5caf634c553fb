"""Models of transformers with attn_implementation="attn_proto", against eager attention."""

import collections
import contextlib
import functools
import itertools
import re
import subprocess
import sys
import types
import unittest
import warnings

import torch
import transformers
from transformers import masking_utils as masking
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.masking_utils import (bidirectional_mask_function, causal_mask_function, chunked_causal_mask_function,
                                        sdpa_mask, sliding_window_causal_mask_function)

import attn_proto
import attn_proto.transformers as support
from attn_proto._masks import Structure
from test_operators import shortened

torch.set_num_threads(1)  # layers are so small that threads would only wait for each other
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 99, "pad_token_id": 0}
WINDOW = {"sliding_window": 8}
MIXED = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "llama": {}, "qwen2": {}, "mistral": WINDOW, "gemma2": {**WINDOW, "query_pre_attn_scalar": 32},
    "gemma3_text": {**MIXED, "query_pre_attn_scalar": 32},
    # Every token goes to both experts, so rounding cannot change which experts a token goes to.
    "gpt_oss": {**MIXED, "num_local_experts": 2, "num_experts_per_tok": 2},
    "llama4_text": {"attention_chunk_size": 8, "num_local_experts": 1, "intermediate_size_mlp": 64, "no_rope_layers": [1, 0],
                    "layer_types": ["chunked_attention", "full_attention"]}}


def model(kind, implementation, **changes):
    """A small causal language model, with equal weights for every implementation."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **FAMILIES.get(kind, {}), **changes})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def pair(kind, **changes):
    """Two models with equal weights: with eager attention, and with ours."""
    return [model(kind, name, **changes) for name in ("eager", "attn_proto")]


def t5_models():
    """As pair(), for T5, whose biases of the first layer serve all layers. They are drawn large enough to matter."""
    plain, ours = (transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=64, d_kv=32, d_ff=64, num_heads=2, num_layers=2, vocab_size=99, relative_attention_num_buckets=8,
        decoder_start_token_id=0, attn_implementation=name)).eval() for name in ("eager", "attn_proto"))
    for stack in (plain.encoder, plain.decoder):
        torch.nn.init.normal_(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight, std=2)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def tokens(batch, count):
    return torch.randint(1, 99, (batch, count), generator=torch.Generator().manual_seed(1))


def padding(batch, count, *hidden):
    """A mask of 1, with 0 at the places that `hidden` names: (sequence, first token, token after the last)."""
    mask = torch.ones(batch, count, dtype=torch.long)
    for sequence, begin, end in hidden:
        mask[sequence, begin:end] = 0
    return mask


def logits(model, ids, cache, parts, padding=None):
    """The logits of a prompt that is run in parts, without the rows of padding."""
    out, at = [], 0
    for count in parts:
        mask = None if padding is None else padding[:, :at + count]
        out.append(model(ids[:, at:at + count], cache=cache, attention_mask=mask).logits)
        at += count
    return torch.cat(out, 1) if padding is None else torch.cat(out, 1)[padding[:, :at].bool()]


def reasons():
    """attn_proto.reasons(), without what the kernels serve."""
    return {why.partition(";")[0]: count for why, count in attn_proto.reasons().items()}


@unittest.skipUnless(torch.ops.attn.has_backend("cpu"), "the build has no kernels for the CPU")
class Case(unittest.TestCase):
    def setUp(self):
        attn_proto.reset_reasons()
        self.enterContext(torch.no_grad())

    def near(self, got, want, bound=2e-5):
        self.assertLess((got - want).abs().max().item(), bound)


class Rotations(Case):
    def test_scalings_agree_with_transformers(self):
        """The engine keeps a prepared launch for each set of parameters. All sets run on one engine, so that a launch
        of another set would show."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        yarn = [{"factor": 4.0}, {"factor": 1.0}, {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
                {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}, {"factor": 40.0, "mscale": 2.0},
                {"factor": 40.0, "mscale_all_dim": 2.0}, {"factor": 1.0, "mscale": 2.0, "mscale_all_dim": 0.5},
                {"factor": 8.0, "attention_factor": 0.7}, {"factor": 8.0, "attention_factor": 1.3, "mscale": 2.0, "mscale_all_dim": 1.0},
                {"factor": 8.0, "beta_fast": 16.0}, {"factor": 8.0, "beta_slow": 0.3}, {"factor": 8.0, "beta_fast": 3.0, "beta_slow": 3.0},
                {"factor": 8.0, "beta_fast": 1000.0, "beta_slow": 0.001}]
        yarn = [{**each, "truncate": truncate} for each in yarn for truncate in (True, False)]
        llama3 = [{"factor": 8.0, "low_freq_factor": low, "high_freq_factor": high} for low, high in ((1.0, 4.0), (0.5, 4.0), (1.0, 1.5))]
        x = torch.randn(1, 1, 64, 64, dtype=torch.float64)
        at = torch.arange(64, dtype=torch.float64)[:, None]
        for theta, length, part in ((10000.0, 2048, 1.0), (500000.0, 8192, 1.0), (10000.0, 300, 0.5)):
            for scaling, options in (*(("yarn", each) for each in yarn), *(("llama3", each) for each in llama3), ("linear", {"factor": 3.0})):
                with self.subTest(scaling=scaling, theta=theta, length=length, **options):
                    length_option = {} if scaling == "linear" else {"original_max_position_embeddings": length}
                    config = transformers.LlamaConfig(
                        hidden_size=64, num_attention_heads=1, head_dim=64,
                        max_position_embeddings=int(length * options["factor"]) + 1,
                        rope_parameters={"rope_type": scaling, "rope_theta": theta, "partial_rotary_factor": part, **length_option, **options})
                    frequencies, grown = ROPE_INIT_FUNCTIONS[scaling](config, "cpu")
                    pairs, angles = len(frequencies), at * frequencies.double()
                    a, b, rest = x.split((pairs, pairs, 64 - 2 * pairs), -1)
                    want = torch.cat([grown * (a * angles.cos() - b * angles.sin()), grown * (b * angles.cos() + a * angles.sin()), rest], -1)
                    length_option = {} if scaling == "linear" else {"original_length": length}
                    got = torch.ops.attn.rope(x.float(), x.float(), theta=theta, rotary_dim=2 * pairs, scaling=scaling, **length_option, **options)
                    self.near(got[0], want, 5e-5)


class Masks(Case):
    def test_a_structure_has_the_elements_of_the_mask(self):
        """Compares Structures with the masks of transformers. The counts at the end say how many masks at least must be
        Structures."""
        found = collections.Counter()
        for q_length, kv_length, q_offset, kv_offset in itertools.product((1, 3, 8), (1, 3, 8, 11), (0, 3, 8), (0, 3)):
            end = max(q_offset + q_length, kv_offset + kv_length)
            padding = torch.ones(2, q_offset + q_length, dtype=torch.bool)
            left, right, hole = (padding.clone() for _ in range(3))
            left[1, :2], right[1, -1], hole[0, q_offset // 2] = False, False, False
            for mask in (None, padding, left, right, hole, padding[:, 1:]):
                lefts = torch.tensor([0, 2 if mask is left else 0])
                blocks = torch.full((2, end), -1)
                blocks[:, :4] = 0
                causal = {"causal": causal_mask_function, "all": bidirectional_mask_function,
                          "prefix": masking.or_masks(causal_mask_function, masking.blockwise_overlay(blocks))}
                for size in (3, 99):
                    causal[f"window of {size}"] = sliding_window_causal_mask_function(size)
                    causal[f"two-sided window of {size}"] = masking.sliding_window_bidirectional_mask_function(size)
                    causal[f"chunks of {size}"] = chunked_causal_mask_function(size, lefts)
                if q_length == kv_length and q_offset == kv_offset == 0 and mask is None:
                    place = (torch.arange(q_length) % 3).expand(2, -1)
                    documents = (place == 0).cumsum(-1)
                    for name, function in list(causal.items()):
                        if "two" not in name and name not in ("prefix", "all"):
                            causal[f"{name}, documents"] = masking.and_masks(
                                masking.remap_positions_for_packed_sequence(function, place), masking.packed_sequence_mask_function(documents))
                for name, function in causal.items():
                    sizes = {"batch_size": 2, "q_length": q_length, "kv_length": kv_length, "kv_offset": kv_offset,
                             "mask_function": function, "attention_mask": mask}
                    whole = sdpa_mask(**sizes, q_offset=q_offset, allow_is_causal_skip=False)
                    fits = 0 <= q_offset - kv_offset <= kv_length - q_length
                    for offset in (q_offset, torch.tensor(q_offset)) if fits else (q_offset,):
                        got = support._mask(**sizes, q_offset=offset)
                        found[re.sub(" of .*?(?=,|$)", "", name)] += isinstance(got, Structure)
                        own = (torch.arange(q_length) + q_offset)[None].expand(2, -1)
                        seen = own >= 0
                        if isinstance(got, Structure) and got.shifts is not None:  # a query that is padding may see other keys
                            seen = torch.nn.functional.pad(mask, (0, end)).gather(1, own)
                        self.assertTrue(torch.equal(got[:, 0][seen], whole[:, 0][seen]), (name, sizes, offset))
        for name, least in {"causal": 270, "all": 600, "prefix": 160, "window": 540, "two-sided window": 100, "chunks": 400,
                            "causal, documents": 3, "window, documents": 6, "chunks, documents": 6}.items():
            self.assertGreaterEqual(found[name], least, name)

    def test_other_mask_functions(self):
        """The mask must be right for mask functions that a model made, too. Such a function may be an object without a
        name, or a wrapper that has the name of a function of transformers."""
        blocks = masking.blockwise_overlay(torch.full((2, 9), 0))
        wrapper = functools.wraps(blocks)(lambda *place: ~blocks(*place))
        whole = functools.wraps(causal_mask_function)(lambda *place: ~causal_mask_function(*place))
        for function in (masking.or_masks(causal_mask_function, functools.partial(lambda past, b, h, q, k: k > past, 5)),
                         masking.or_masks(causal_mask_function, wrapper), masking.and_masks(causal_mask_function, wrapper), whole,
                         sliding_window_causal_mask_function(0)):  # nothing is seen; 0 must not become "no window"
            sizes = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": function}
            self.assertTrue(torch.equal(support._mask(**sizes), sdpa_mask(**sizes, allow_is_causal_skip=False)))

    def test_a_structure_is_a_mask(self):
        """A Structure has no elements. It stays a Structure if a model takes a slice of all keys. For every other
        operation of a model the elements are computed."""
        for q_length, past in ((20, 0), (7, 13), (1, 19)):
            for padding in (None, torch.ones(2, past + q_length) > 0):
                mask = support._mask(2, q_length, past + q_length, past, attention_mask=padding)
                self.assertIsInstance(mask, Structure)
                self.assertIsInstance(mask[:, :, :, :past + q_length], Structure)
                self.assertEqual(mask.to("meta").starts, None)
                whole = torch.ones(q_length, past + q_length, dtype=torch.bool).tril(past).expand(2, 1, -1, -1)
                for change in (lambda x: x.clone(), lambda x: x[:, :, -3:, 1:], lambda x: x[:1], lambda x: torch.cat([x, x], -1), lambda x: x.float(),
                               lambda x: torch.where(x, 0.0, -1.0), lambda x: torch.zeros(x.shape).add_(x), lambda x: ~x,
                               lambda x: x.all(), lambda x: x[0, 0, 0]):
                    got, want = change(mask), change(whole)
                    self.assertTrue(type(got) is torch.Tensor and torch.equal(got, want))
                with self.assertRaisesRegex(ValueError, "not to be written"):
                    mask.masked_fill_(whole, False)

    def test_prompts_in_parts(self):
        """Padding on the left, between tokens and before new tokens, in each kind of cache. A static cache is as long as
        all tokens, or longer. The kernels serve all calls."""
        ids = tokens(2, 24)
        left, hole = padding(2, 24, (1, 0, 3)), padding(2, 24, (1, 0, 3), (0, 6, 9), (1, 11, 12))
        right = padding(2, 24, (1, 15, 19))
        for kind in ("llama", "mistral", "gemma2", "gpt_oss"):
            plain, ours = pair(kind)
            for parts, mask in itertools.product(((20, 1, 3), (9, 13, 2)), (None, left, hole, right)):
                want = logits(plain, ids, DynamicCache(config=plain.config), parts, mask)
                caches = [DynamicCache(config=ours.config), *(StaticCache(ours.config, max_cache_len=size) for size in (24, 40))]
                if mask is not hole and mask is not right:
                    caches.append(support.PagedCache(ours.config, batch=2, max_tokens=64))
                for cache in caches:
                    with self.subTest(kind, parts=parts, mask=mask is not None, cache=type(cache).__name__):
                        before = attn_proto.launches()
                        self.near(logits(ours, ids, cache, parts, mask), want)
                        self.assertEqual(attn_proto.launches() - before, 6)
        self.assertEqual(attn_proto.reasons(), {})

    def test_chunks_that_go_to_pytorch(self):
        """PyTorch's causal attention lets the first query see the first key alone. This is right in the first chunk
        only."""
        ids = tokens(2, 24)
        plain, ours = pair("llama", head_dim=20)
        self.near(logits(ours, ids, DynamicCache(), (9, 11, 1, 3)), logits(plain, ids, DynamicCache(), (9, 11, 1, 3)))
        self.assertEqual(reasons(), {"width 20 is not allowed": 8})
        with torch.enable_grad():
            plain, ours = pair("llama")
            got = logits(ours, ids, DynamicCache(), (9, 15))
            self.near(got, logits(plain, ids, DynamicCache(), (9, 15)))
            got.sum().backward()
        self.assertIsNotNone(ours.model.layers[0].self_attn.k_proj.weight.grad)

    def test_autocast(self):
        """Under autocast a rotation gives queries and keys in float32, and a linear layer gives values in bfloat16."""
        ids, left = tokens(2, 21), padding(2, 21, (1, 0, 3))
        for kind in ("llama", "gemma2", "gpt_oss"):
            plain, ours = pair(kind)
            with torch.autocast("cpu", torch.bfloat16):
                want = logits(plain, ids, DynamicCache(config=plain.config), (20, 1), left)
                for cache in (DynamicCache(config=ours.config), StaticCache(ours.config, max_cache_len=30), support.PagedCache(ours.config, 2, 30)):
                    self.near(logits(ours, ids, cache, (20, 1), left), want, 0.02)
        self.assertEqual(attn_proto.reasons(), {})

    def test_gradients_of_biases_and_sinks(self):
        """A call goes to PyTorch too if only the position bias, the mask or the sinks are trained."""
        q, bias = torch.ones(1, 4, 3, 32), torch.ones(1, 4, 3, 3, requires_grad=True)
        with torch.enable_grad():
            for given in ({"position_bias": bias}, {"attention_mask": bias}):
                support._forward(types.SimpleNamespace(), q, q, q, **{"attention_mask": None, **given})[0].sum().backward()
            with self.assertRaisesRegex(ValueError, "sinks are not served in this call: a gradient is wanted"):
                support._forward(types.SimpleNamespace(), q, q, q, None, s_aux=torch.ones(4, requires_grad=True))
        self.assertEqual(attn_proto.reasons(), {"a gradient is wanted": 2})

    def test_the_mask_decides_what_is_causal(self):
        """Runs a decoder whose configuration lets queries see all keys. Then runs a model with a causal mask whose
        layers say that they are not causal."""
        for sizes in ({"is_causal": False}, {}):
            plain, ours = pair("llama", **sizes)
            for layer in ours.model.layers:
                layer.self_attn.is_causal = False
            self.near(ours(tokens(2, 20)).logits, plain(tokens(2, 20)).logits)


class Arguments(Case):
    """Arguments that models pass to an implementation are served or refused."""

    def forward(self, *shapes, mask=None, dtype=torch.float32, **given):
        q, k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype) for shape in shapes)
        o = support._forward(types.SimpleNamespace(is_causal=True), q, k, v, mask, **given)[0]
        self.assertTrue(o.is_contiguous())  # as in eager attention: a model may call view()
        return o.transpose(1, 2), q.double(), k.double(), v.double()

    def biased(self, rows, keys, width, mask, bias, bound=2e-5, dtype=torch.float32):
        """Compares a call with a position bias and a mask with the definition."""
        got, q, k, v = self.forward((2, 4, rows, width), *((2, 4, keys, width),) * 2, mask=mask, position_bias=bias, dtype=dtype, scaling=0.2)
        scores = 0.2 * q @ k.mT + bias
        if isinstance(mask, Structure):
            mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        self.near(got, scores.softmax(-1) @ v, bound)

    def test_position_bias(self):
        """The bias is added to the scores with every mask, causal or not, by the kernel and by PyTorch."""
        draw = torch.Generator().manual_seed(3)
        for rows, keys, width in ((20, 24, 32), (24, 24, 32), (3, 24, 32), (20, 21, 32), (20, 24, 20), (1, 24, 32)):
            seen = torch.rand(2, 1, rows, keys, generator=draw) > 0.3
            seen[..., 0] = True
            for heads, batch in itertools.product((1, 4), (1, 2)):
                bias = 3 * torch.randn(batch, heads, rows, keys, generator=draw)
                for mask in (None, support._mask(2, rows, keys, keys - rows), seen, torch.where(seen, 0.5, -torch.inf)):
                    self.biased(rows, keys, width, mask, bias)

    def test_other_arguments_are_refused(self):
        shapes = ((2, 4, 20, 32),) * 3
        want = self.forward(*shapes)[0]
        for harmless in ({"sliding_window": 4}, {"position_ids": torch.arange(20)}, {"use_cache": True},
                         {"position_bias": None, "cu_seq_lens_q": None, "output_attentions": False}):
            self.assertTrue(torch.equal(self.forward(*shapes, **harmless)[0], want))
        for name, value in (("cu_seq_lens_q", torch.tensor([0, 7, 20])), ("indices", torch.tensor([1])), ("sinks", want),
                            ("output_attentions", True), ("cache", object()), ("head_mask", torch.ones(4))):
            for softcap in (None, 5):
                with self.assertRaisesRegex(ValueError, f"attention with {name} is not served"):
                    self.forward(*shapes, **{name: value}, softcap=softcap)

    def test_soft_caps_and_sinks(self):
        sinks = torch.arange(4.0)
        for cap in (2.0, 2.5, 0.75):
            got, q, k, v = self.forward(*((2, 4, 20, 32),) * 3, softcap=cap, s_aux=sinks)
            scores = cap * torch.tanh(q @ k.mT / cap / 32**0.5)
            want = torch.cat([scores, sinks.double()[:, None, None].expand(2, 4, 20, 1)], -1).softmax(-1)[..., :-1] @ v
            self.near(got, want)
        for given, text in (({"s_aux": sinks, "dropout": 0.1}, "dropout"),
                            ({"softcap": 2.0, "mask": torch.ones(3, 3)}, "mask: a shape of")):
            with self.assertRaisesRegex(ValueError, text):
                self.forward(*((2, 4, 20, 32),) * 3, **given)

    def test_storages_that_end_before_their_tensors(self):
        bias, sinks = shortened(torch.zeros(1, 4, 20, 20)), shortened(torch.zeros(4, dtype=torch.bfloat16))
        for given in ({"position_bias": bias}, {"position_bias": bias, "mask": torch.ones(1, 1, 20, 20) > 0}, {"s_aux": sinks}, {"mask": bias}):
            with self.assertRaisesRegex(ValueError, "a storage of .* bytes is not allowed; its elements need"):
                self.forward(*((1, 4, 20, 32),) * 3, **given)

    def test_transforms_of_torch_func_go_to_pytorch(self):
        q, bias = torch.randn(1, 4, 20, 32), torch.zeros(1, 4, 20, 20)
        call = lambda x, **given: support._forward(types.SimpleNamespace(is_causal=False), x, q, q, None, **given)[0].sum()
        for given in ({}, {"position_bias": bias}):
            for autocast in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    self.assertEqual(torch.func.grad(lambda x: call(x, **given))(q).shape, q.shape)
        self.assertEqual(torch.func.grad(lambda x: call(q, position_bias=x))(bias).shape, bias.shape)

    def test_reasons_are_counted_once(self):
        for enabled in (attn_proto.enable(), contextlib.nullcontext()):
            with enabled:
                self.forward(*((1, 4, 20, 20),) * 3)
        self.assertEqual(reasons(), {"width 20 is not allowed": 2})

    def test_a_position_bias_may_change_between_calls(self):
        """Biases that are converted for the kernels: 16 bits, the heads as the innermost dimension, a number of keys
        that is no multiple of 4. Some ways to change a tensor leave its _version as it is."""
        def reversed_by_numpy(bias):
            if bias.dtype != torch.bfloat16:  # which NumPy lacks
                bias.numpy()[:] = bias.numpy()[..., ::-1].copy()

        changes = (lambda bias: None, lambda bias: bias.neg_(), lambda bias: bias.data.copy_(bias.flip(-1)), reversed_by_numpy,
                   lambda bias: torch.from_dlpack(bias).mul_(-0.5))
        for keys, dtype, bound in ((24, torch.float32, 2e-5), (23, torch.float32, 2e-5), (24, torch.bfloat16, 3e-2)):
            bias = (3 * torch.randn(20, keys, 4, generator=torch.Generator().manual_seed(3))).to(dtype).permute(2, 0, 1)[None]
            for change in changes:
                change(bias)
                for mask in (None, support._mask(2, 20, keys, keys - 20)):
                    self.biased(20, keys, 32, mask, bias, bound, dtype)
        self.assertEqual(attn_proto.reasons(), {})


class OwnAttention(Case):
    """Some models have their own code for attention, which calls no registered implementation. The kernels could serve
    none of their calls, so attn_proto refuses these models."""

    def test_these_models_are_refused(self):
        decoder = {"is_decoder": True}
        for kind, sizes in (("bloom", {}), ("xglm", {"ffn_dim": 64}), ("mpt", {}), ("megatron-bert", decoder), ("rembert", decoder)):
            ours = model(kind, "attn_proto", **sizes)
            for each, ids in itertools.product((ours, torch.compile(ours, backend="eager")), (tokens(2, 20), tokens(2, 1))):
                with self.assertRaisesRegex(ValueError, f'attn_proto: {kind} runs with attn_implementation="eager" alone'):
                    each(ids)
            with self.assertRaisesRegex(ValueError, "does not support"):
                model(kind, "sdpa", **sizes)


class Pages(Case):
    def cache(self, ours, **sizes):
        return support.PagedCache(ours.config, **{"batch": 2, "max_tokens": 64, **sizes})

    def test_reorder_and_crop(self):
        ids = tokens(3, 20)
        plain, ours = pair("llama")
        cache = self.cache(ours, batch=3, page_size=8)
        ours(ids, cache=cache)
        cache.crop(0)
        cache.crop(-7)
        cache.reorder_cache(order := torch.tensor([2, 0, 2]))
        self.near(ours(ids[:, :9], cache=cache).logits, plain(torch.cat([ids[order, :13], ids[:, :9]], 1)).logits[:, 13:])
        for wrong in (1, -23):
            with self.assertRaisesRegex(ValueError, r"crop\(.*\) is not allowed; -22 to 0 are"):
                cache.crop(wrong)
        with self.assertRaisesRegex(ValueError, "for a batch of 3, not 1"):
            cache.reorder_cache(order[:1])
        with self.assertRaises((IndexError, RuntimeError)):
            cache.reorder_cache(order + 1)
        cache.reset()
        self.near(ours(ids, cache=cache).logits, plain(ids).logits)

    def test_calls_that_a_paged_cache_refuses(self):
        ours = model("llama", "attn_proto")
        sees_all = model("llama", "attn_proto", is_causal=False)
        cache = self.cache(ours)
        ours(tokens(2, 20), cache=cache)
        hole = padding(2, 23, (0, 1, 2), (1, 1, 2))

        def after(name):
            """A step with another implementation than the prompt's."""
            other = model("llama", "attn_proto")
            pages = self.cache(other)
            other(tokens(2, 20), cache=pages)
            other.set_attn_implementation(name)
            other(tokens(2, 1), cache=pages)

        for text, wrong in (
                ("the batch of a PagedCache stays", lambda: cache.batch_repeat_interleave(2)),
                ("the batch of a PagedCache stays", lambda: cache.batch_select_indices(torch.tensor([0]))),
                ("on pages", lambda: cache.offload(0)),
                ("on pages", lambda: cache.layers[0].prefetch()),
                ("on pages", lambda: cache.layers[0].values),
                ("for a batch of 2, not 1", lambda: ours(tokens(1, 3), cache=cache)),
                ("for a batch of 2, not 3", lambda: self.cache(ours).early_initialization(3, 1, 32, torch.float32, "cpu")),
                ("is on meta, not cpu", lambda: ours(tokens(2, 3), cache=self.cache(ours, device="meta"))),
                ("is on cpu, not meta", lambda: cache.layers[0].update(*torch.zeros(2, 2, 1, 3, 32, device="meta"))),
                ("room for 64 tokens", lambda: ours(tokens(2, 45), cache=cache)),
                ("does not serve this call: masks", lambda: sees_all(tokens(2, 3), cache=self.cache(sees_all))),
                ("does not serve this call: masks", lambda: ours(tokens(2, 3), cache=cache, attention_mask=hole)),
                ("the call failed", lambda: ours(tokens(2, 3), cache=cache)),
                ("layers of linear_attention", lambda: support.PagedCache(transformers.AutoConfig.for_model(
                    "qwen3_next", attn_implementation="attn_proto"), 1, 64)),
                ('needs attn_implementation="attn_proto"', lambda: self.cache(model("llama", "eager"))),
                *((f"{name}={number} of a PagedCache is not allowed", lambda name=name, number=number: self.cache(ours, **{name: number}))
                  for name in ("batch", "max_tokens", "page_size") for number in (0, 2.5)),
                *(('serves models of attn_implementation="attn_proto"', lambda name=name: after(name)) for name in ("sdpa", "eager"))):
            with self.assertRaisesRegex(ValueError, f"attn_proto: .*{text}"):
                wrong()
        with self.assertRaisesRegex(RuntimeError, "bf16 is not allowed"):
            cache.reset()
            ours.bfloat16()(tokens(2, 3), cache=cache)

    def test_each_layer_takes_the_device_and_the_type_of_its_first_keys(self):
        """A layer on the device meta stands for a layer on a GPU."""
        for layer, device, dtype in zip(self.cache(model("llama", "attn_proto")).layers, ("cpu", "meta"), (torch.bfloat16, torch.float16)):
            for count in (20, 1):
                q, k, v = (torch.zeros(2, heads, count, 32, device=device, dtype=dtype) for heads in (2, 1, 1))
                o = layer.attend(q, *(new.tensor for new in layer.update(k, v)), None, {})
                for each in (o, layer.key_pages, layer.value_pages):
                    self.assertEqual((each.device.type, each.dtype), (device, dtype))

    def test_keys_that_a_model_changes(self):
        """A PagedCache gives the model stand-ins for the keys and values of the new tokens. A model that changes them
        is refused, because its attention would see only the new tokens."""
        ours = model("llama", "attn_proto")
        cache = self.cache(ours)
        update = cache.layers[1].update
        cache.layers[1].update = lambda *given, **named: tuple(each.clone() for each in update(*given))
        with self.assertRaisesRegex(ValueError, "that hand its keys and values to attention as they are"):
            ours(tokens(2, 20), cache=cache)
        cache.layers[1].update = update
        with self.assertRaisesRegex(ValueError, "or the model changes keys"):
            ours(tokens(2, 1), cache=cache)


class Generates(Case):
    def test_generate(self):
        """Beam search reorders a cache; if the model rejects tokens of a draft, the cache is cropped; the first chunks of a
        shorter prompt may be padding alone. Prompts are padded on the left. All calls are served."""
        ids, mask = tokens(2, 20).repeat(1, 2)[:, :37], padding(2, 37, (1, 0, 15))
        for kind in ("llama", "gemma2"):
            plain, ours = pair(kind, eos_token_id=98)
            draft = model(kind, "attn_proto", num_hidden_layers=1, eos_token_id=98)
            for given, sequences, caches in (
                    ({}, 2, ("growing", "static", "paged")), ({"num_beams": 3}, 6, ("growing", "paged")),
                    ({"num_beams": 2, "num_return_sequences": 2}, 4, ("static", "paged")),
                    ({"prompt_lookup_num_tokens": 3}, 1, ("growing", "paged")), ({"assistant_model": draft}, 1, ("growing", "paged")),
                    *(({"prefill_chunk_size": size}, 2, ("growing", "paged")) for size in (8, 15))):
                rows = slice(-1, None) if sequences == 1 else slice(None)
                prompt, few = ids[rows], {"attention_mask": mask[rows], "max_new_tokens": 9, "do_sample": False}
                want = plain.generate(prompt, **few, **{name: value for name, value in given.items() if name != "prefill_chunk_size"})
                for cache in caches:
                    with self.subTest(kind, cache=cache, **given):
                        of = {"growing": {}, "static": {"cache_implementation": "static"},
                              "paged": {"cache": support.PagedCache(ours.config, batch=sequences, max_tokens=64, page_size=8)}}[cache]
                        self.assertTrue(torch.equal(ours.generate(prompt, **few, **given, **of), want))
        self.assertEqual(attn_proto.reasons(), {})

    def test_static_steps_share_prepared_launches(self):
        """Compiled steps in a static cache: the mask is made outside of the graph, as in generate(). The steps share
        their prepared launches, and at most three graphs."""
        ids, left = tokens(2, 30), padding(2, 30, (1, 0, 5))
        for kind in ("llama", "gemma2"):
            plain, ours = pair(kind, sliding_window=40)
            want = plain(ids, attention_mask=left).logits[:, 20:]
            cache = StaticCache(ours.config, max_cache_len=32)
            ours(ids[:, :20], attention_mask=left[:, :20], cache=cache)
            graphs, prepared = [], set()

            def backend(graph, inputs):
                graphs.append(graph)
                return graph

            step = torch.compile(ours, backend=backend, fullgraph=True)
            for at in range(20, 30):
                part = ids[:, at:at + 1]
                masks = masking.create_masks_for_generate(ours.config, ours.get_input_embeddings()(part), left[:, :at + 1], cache)
                before = attn_proto.launches()
                place = torch.full((2, 1), at)  # a tensor, so that one graph serves every step
                self.near(step(part, attention_mask=masks, cache=cache, position_ids=place).logits[:, 0], want[:, at - 20])
                self.assertEqual(attn_proto.launches() - before, 2)
                prepared.add(torch.ops.attn.prepared(ids))
            self.assertEqual(len(prepared), 1)
            self.assertLess(len(graphs), 4)


class Registers(unittest.TestCase):
    def test_enable_registers_the_implementation(self):
        """In a program that imports transformers after enable(), and in one that has imported it before."""
        ask = "assert 'attn_proto' in transformers.AttentionInterface()"
        for program in (f"import sys, attn_proto; attn_proto.enable(); assert 'transformers' not in sys.modules; import transformers; {ask}",
                        f"import transformers, attn_proto; transformers.AttentionInterface; attn_proto.enable(); {ask}"):
            run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)


class Compiled(Case):
    def test_a_trace_of_torch_jit_serves_other_lengths(self):
        class Logits(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, ids, padding):
                return self.model(ids, attention_mask=padding, use_cache=False).logits

        ids, others, of_others = tokens(2, 20), tokens(2, 13), padding(2, 13, (0, 0, 3))
        for kind in ("llama", "mistral"):
            plain, ours = pair(kind)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                traced = torch.jit.trace(Logits(ours), (ids, padding(2, 20, (1, 0, 4))), check_trace=False)
            want = plain(others, attention_mask=of_others).logits
            self.near(traced(others, of_others)[of_others.bool()], want[of_others.bool()])

    def test_steps(self):
        """A prompt and steps with padding, in a cache that grows and in a static cache. The trace includes the code
        that makes the masks. The kernels serve all calls."""
        ids = tokens(2, 24)
        for mask in (padding(2, 24, (1, 0, 3)), padding(2, 24, (1, 0, 3), (0, 5, 6))):
            plain, ours = pair("gemma2")
            want = plain(ids, attention_mask=mask).logits[mask.bool()]
            for cache in (DynamicCache(config=ours.config), StaticCache(ours.config, max_cache_len=30)):
                torch._dynamo.reset()
                before = attn_proto.launches()
                self.near(logits(torch.compile(ours, backend="eager", fullgraph=True), ids, cache, (20, 1, 1, 1, 1), mask), want)
                self.assertEqual(attn_proto.launches() - before, 10)


if __name__ == "__main__":
    unittest.main()
