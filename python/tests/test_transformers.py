"""Models of transformers with attn_implementation="attn_proto", against its own eager attention."""

import itertools
import unittest

import torch

import attn_proto

try:
    import transformers
    from transformers.cache_utils import DynamicCache, StaticCache
    from transformers.masking_utils import (bidirectional_mask_function, causal_mask_function,
                                            chunked_causal_mask_function, sdpa_mask, sliding_window_causal_mask_function)

    import attn_proto.transformers as support
except ImportError:
    transformers = None

torch.set_num_threads(1)  # layers are so small that threads would only wait for each other
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 99, "pad_token_id": 0}
MORE = {"gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 32},
        "mistral": {"sliding_window": 8},
        "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
                    "layer_types": ["sliding_attention", "full_attention"]}}


def model(kind, implementation, **changes):
    """A small causal language model, the same weights for every implementation."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **MORE.get(kind, {}), **changes})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def tokens(batch, count):
    return torch.randint(1, 99, (batch, count), generator=torch.Generator().manual_seed(1))


@unittest.skipUnless(transformers, "transformers")
class Case(unittest.TestCase):
    def setUp(self):
        attn_proto.reset_reasons()
        no_grad = torch.no_grad()
        no_grad.__enter__()
        self.addCleanup(no_grad.__exit__, None, None, None)

    def near(self, got, want, bound=2e-5):
        self.assertLess((got - want).abs().max().item(), bound)


class Masks(Case):
    def test_none_says_what_the_kernel_computes(self):
        """The last query stands at the last key: that, or a mask that says another thing."""
        none = 0
        for q_length, kv_length, q_offset, kv_offset in itertools.product((1, 3, 8), (1, 3, 8, 11), (0, 3, 5, 8), (0, 3, 5)):
            padding = torch.ones(2, q_offset + q_length, dtype=torch.bool)
            left, right = padding.clone(), padding.clone()
            left[1, 0], right[1, -1] = False, False
            for local, mask in itertools.product((None, 3, 8, 99), (None, padding, left, right, padding[:, 1:])):
                functions = [causal_mask_function, bidirectional_mask_function]
                if local is not None:
                    functions = [sliding_window_causal_mask_function(local), chunked_causal_mask_function(
                        local, (torch.zeros if mask is not left else torch.ones)(2, dtype=torch.long))]
                for function in functions:
                    sizes = {"batch_size": 2, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
                             "kv_offset": kv_offset, "mask_function": function, "attention_mask": mask, "local_size": local}
                    whole = sdpa_mask(**sizes, allow_is_causal_skip=False)
                    got = support._mask(**sizes)
                    none += got is None
                    if got is None:
                        got = torch.ones(q_length, kv_length, dtype=torch.bool).tril(kv_length - q_length).expand_as(whole)
                    self.assertTrue(torch.equal(got, whole), sizes)
                    self.assertIsNotNone(support._mask(**sizes, allow_is_causal_skip=False))
        self.assertGreater(none, 50)

    def test_prompts_chunks_and_steps_need_no_mask(self):
        for q_length, past in ((20, 0), (7, 13), (1, 19)):
            self.assertIsNone(support._mask(q_length, past + q_length, past))
            self.assertIsNone(support._mask(q_length, past + q_length, past, attention_mask=torch.ones(2, past + q_length) > 0))

    def logits(self, model, ids, cache, parts, padding=None):
        out, at = [], 0
        for count in parts:
            mask = None if padding is None else padding[:, :at + count]
            out.append(model(ids[:, at:at + count], cache=cache, attention_mask=mask).logits)
            at += count
        return torch.cat(out, 1)

    def test_caches_of_every_kind(self):
        """A prompt at once and in chunks, and steps, in caches that grow and that are longer than the prompt."""
        ids = tokens(2, 22)
        padding = torch.ones(2, 22, dtype=torch.long)
        left = padding.clone()
        left[1, :3] = 0
        for kind in ("llama", "qwen2", "mistral", "gemma2", "gpt_oss"):
            plain, ours = model(kind, "eager"), model(kind, "attn_proto")
            for parts, mask in itertools.product(((20, 1, 1), (9, 11, 2)), (None, padding, left)):
                want = self.logits(plain, ids, DynamicCache(config=plain.config), parts, mask)
                seen = slice(None) if mask is None else mask.bool()
                for cache in (DynamicCache(config=ours.config), StaticCache(ours.config, max_cache_len=22),
                              StaticCache(ours.config, max_cache_len=40)):
                    with self.subTest(kind, parts=parts, mask=mask is not None, cache=type(cache).__name__):
                        self.near(self.logits(ours, ids, cache, parts, mask)[seen], want[seen])

    def test_generate_with_a_static_cache(self):
        for kind in ("llama", "gemma2"):
            said = [model(kind, name).generate(tokens(2, 20), max_new_tokens=6, do_sample=False, cache_implementation=cache)
                    for name, cache in (("eager", None), ("attn_proto", None), ("attn_proto", "static"))]
            self.assertTrue(torch.equal(said[0], said[1]))
            self.assertTrue(torch.equal(said[0], said[2]))

    def test_chunks_that_go_to_pytorch(self):
        """Whose causal attention puts the first query at the first key."""
        ids = tokens(2, 24)
        plain, ours = (model("llama", name, head_dim=20) for name in ("eager", "attn_proto"))
        want = self.logits(plain, ids, DynamicCache(), (9, 11, 1, 3))
        self.near(self.logits(ours, ids, DynamicCache(), (9, 11, 1, 3)), want)
        self.assertEqual(attn_proto.reasons(), {"widths 20, 20, 20": 8})
        with torch.enable_grad():
            ours = model("llama", "attn_proto")
            logits = self.logits(ours, ids, DynamicCache(), (9, 15))
            self.near(logits, self.logits(model("llama", "eager"), ids, DynamicCache(), (9, 15)))
            logits.sum().backward()
        self.assertIsNotNone(ours.model.layers[0].self_attn.k_proj.weight.grad)

    def test_other_types_go_to_pytorch(self):
        ids = tokens(1, 20)
        self.near(model("llama", "attn_proto").double()(ids).logits, model("llama", "eager").double()(ids).logits, 1e-6)
        self.assertEqual(list(attn_proto.reasons()), ["types torch.float64, torch.float64, torch.float64"])
        with torch.autocast("cpu", torch.bfloat16):
            got, want = (model("llama", name)(ids).logits for name in ("attn_proto", "eager"))
        self.assertLess((got - want).abs().max().item(), 0.02)

    def test_decoders_that_are_to_see_all(self):
        ids = tokens(2, 20)
        plain, ours = (model("llama", name, is_causal=False) for name in ("eager", "attn_proto"))
        self.near(ours(ids).logits, plain(ids).logits)


if __name__ == "__main__":
    unittest.main()
