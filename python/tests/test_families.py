"""Families of models with attn_implementation="attn_proto": every call of attention runs on the kernels. In float32 the
outputs agree with eager attention. In bfloat16 their distance from eager attention in float32 is at most twice the
distance of the implementation that transformers takes by default.

Tiny models with drawn weights run three prompts, and then some steps. Either no prompt is padded, or two are padded on
the left. The cache grows, is static or has pages.
"""

import contextlib
import io
import itertools
import unittest

import torch
import transformers
from transformers.cache_utils import DynamicCache, StaticCache

import attn_proto.transformers  # registers the implementation
from test_operators import DEVICES
from test_transformers import FAMILIES, padding, tokens
from test_transformers import model as small_model

PROMPT, STEPS = 20, 3
PADDING = ((0, 0, 5), (2, 0, 11))


def model(kind, implementation, dtype, device):
    made = small_model(kind, implementation)
    for parameter in made.parameters():
        if parameter.dim() > 1:  # scores that differ, so that a wrong mask shows
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return made.to(torch.bfloat16).to(dtype).to(device)  # the weights have equal values in all types


def run(model, padded, kind="growing"):
    """The logits of the prompts and of STEPS steps, without the rows of padding."""
    device = model.device
    ids = tokens(3, PROMPT + STEPS).to(device)
    mask = padding(3, PROMPT, *(PADDING if padded else ())).to(device)
    cache = (DynamicCache(config=model.config) if kind == "growing" else StaticCache(model.config, max_cache_len=PROMPT + 9)
             if kind == "static" else attn_proto.transformers.PagedCache(model.config, batch=3, max_tokens=PROMPT + 9))
    place, found = (mask.cumsum(-1) - 1).clamp(min=0), []
    for part in (slice(0, PROMPT), *(slice(at, at + 1) for at in range(PROMPT, PROMPT + STEPS))):
        rows = mask[:, part].bool()
        found.append(model(ids[:, part], attention_mask=mask if padded else None, position_ids=place, cache=cache).logits[rows])
        mask, place = torch.nn.functional.pad(mask, (0, 1), value=1), place[:, -1:] + 1
    return torch.cat(found).float()


class Families(unittest.TestCase):
    def setUp(self):
        self.enterContext(torch.no_grad())

    def walk(self, dtype):
        for device, (kind, changes) in itertools.product(DEVICES, FAMILIES.items()):
            ours, exact = model(kind, "attn_proto", dtype, device), model(kind, "eager", torch.float32, device)
            theirs = model(kind, None, dtype, device)
            caches = ("growing", "static") if "attention_chunk_size" in changes else ("growing", "static", "paged")  # pages take no chunks
            for padded, cache in itertools.product((False, True), caches):
                with self.subTest(kind, device=device, dtype=dtype, padded=padded, cache=cache):
                    want = run(exact, padded)
                    attn_proto.reset_reasons()
                    before = attn_proto.launches(device)
                    got = run(ours, padded, cache)
                    self.assertEqual(attn_proto.launches(device) - before, (1 + STEPS) * ours.config.num_hidden_layers)
                    self.assertEqual(attn_proto.reasons(), {})
                    close = 2e-5 if device == "cpu" else 1e-3  # a wrong mask shows as 0.1 or more
                    allowed = close if dtype == torch.float32 else 2 * (run(theirs, padded) - want).abs().max().item()
                    self.assertLess((got - want).abs().max().item(), allowed)

    def test_float32(self):
        self.walk(torch.float32)

    def test_bfloat16(self):
        self.walk(torch.bfloat16)

    @unittest.skipUnless("cuda" in DEVICES, "a GPU")
    def test_a_captured_step(self):
        """A CUDA graph of one step in a static cache serves later steps: their lengths are on the device."""
        from transformers.masking_utils import create_masks_for_generate

        plain, ours = (model("llama", name, torch.float32, "cuda") for name in ("eager", "attn_proto"))
        ids = tokens(3, PROMPT + 6).cuda()
        mask = padding(3, PROMPT + 6, *PADDING).cuda()
        want = plain(ids, attention_mask=mask, position_ids=torch.arange(PROMPT + 6, device="cuda")[None]).logits
        cache = StaticCache(ours.config, max_cache_len=PROMPT + 9)
        ours(ids[:, :PROMPT], attention_mask=mask[:, :PROMPT], cache=cache, position_ids=torch.arange(PROMPT, device="cuda")[None])
        part, place = ids[:, PROMPT:PROMPT + 1].clone(), torch.full((1, 1), PROMPT, device="cuda")

        def masks(at):
            return create_masks_for_generate(ours.config, ours.get_input_embeddings()(part), mask[:, :at + 1], cache)

        ours(part, attention_mask=masks(PROMPT), cache=cache, position_ids=place)  # prepares the launch
        held, graph = masks(PROMPT + 1), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = ours(part, attention_mask=held, cache=cache, position_ids=place).logits
        for at in range(PROMPT + 1, PROMPT + 6):
            part.copy_(ids[:, at:at + 1])
            place.fill_(at)
            for each in held.values() if isinstance(held, dict) else [held]:
                each.lengths.fill_(at + 1)
            graph.replay()
            self.assertLess((logits[:, 0] - want[:, at]).abs().max().item(), 1e-4)

    @unittest.skipIf(torch.cuda.device_count() < 2, "two GPUs")
    def test_a_model_on_two_gpus(self):
        """The second layer is on cuda:1, while cuda:0 is current. The mask goes from one device to the other."""
        def moved(device, values):
            return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), values)

        for kind in ("llama", "gemma2"):
            ours, exact = model(kind, "attn_proto", torch.float32, "cuda:0"), model(kind, "eager", torch.float32, "cuda:0")
            layer = ours.model.layers[1].to("cuda:1")
            layer.register_forward_pre_hook(lambda _, args, named: moved("cuda:1", (args, named)), with_kwargs=True)
            layer.register_forward_hook(lambda _, args, out: moved("cuda:0", out))
            want = run(exact, True)
            attn_proto.reset_reasons()
            before = [attn_proto.launches(device) for device in ("cuda:0", "cuda:1")]
            got = run(ours, True)
            self.assertLess((got - want).abs().max().item(), 1e-3)
            self.assertEqual([attn_proto.launches(device) - count for device, count in zip(("cuda:0", "cuda:1"), before)], [1 + STEPS] * 2)
            self.assertEqual(attn_proto.reasons(), {})
            self.assertEqual(torch.cuda.current_device(), 0)

    def test_explain(self):
        """Each line says where calls go, and why. explain() asks for the inputs of models that do not read input_ids
        alone."""
        device = DEVICES[0]

        def explained(made, **inputs):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                calls = attn_proto.explain(made.to(device), **inputs)
            return calls, out.getvalue()

        calls, text = explained(small_model("mistral", "attn_proto"))
        self.assertEqual([(call.run, call.layer, call.why) for call in calls],
                         [(run, f"model.layers.{layer}.self_attn", None) for run in ("prompt", "step") for layer in (0, 1)])
        self.assertIn("2 x 4 x 24 x 24, causal, a window of 8, padding on the left -> the kernels (2 calls like it)", text)
        calls, text = explained(small_model("llama", "attn_proto", head_dim=20), input_ids=tokens(1, 9).to(device))
        self.assertEqual({call.why.partition(";")[0] for call in calls}, {"width 20 is not allowed"})
        self.assertIn("9 x 9, causal -> PyTorch, for: width 20 is not allowed", text)
        calls, text = explained(small_model("llama", "sdpa"))
        self.assertEqual(calls, [])
        self.assertIn("no call of attention reached attn_proto", text)
        seeing = transformers.ViTModel._from_config(transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2))
        with self.assertRaisesRegex(ValueError, "give ViTModel its inputs, as explain\\(model, pixel_values=...\\)"):
            attn_proto.explain(seeing)


if __name__ == "__main__":
    unittest.main()
