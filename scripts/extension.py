#!/usr/bin/env python3
"""What the kernels are worth inside PyTorch: a call's cost, one layer of a Llama, masks, and a small model's tokens a second.

    scripts/extension.py [--device cuda] [--out extension.json] [--quick]

Needs PyTorch and the package attn_proto (pip install ./python, or a build with -DATTN_TORCH=...); tokens a second of a whole
model need transformers too. Weights are random. All sides take turns. Times on a GPU are between events, of calls that
were made ready before; a call's cost is the host's time. What is not there is left out, and the output says so.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "scripts")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import attn_proto  # noqa: E402
from peer_suites import sides  # noqa: E402

sdpa = F.scaled_dot_product_attention


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def host_us(call, device, calls=200, rounds=15):
    """Time until a call returns; the device does its work meanwhile, and is waited for between rounds."""
    for _ in range(20):
        call()
    times = []
    for _ in range(rounds):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
        synchronise(device)
    return statistics.median(times)


def device_ms(sides, device, rounds):
    """Median time of each side, in turn."""
    times = {name: [] for name in sides}
    for name, call in sides.items():
        for _ in range(3):
            call()
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            synchronise(device)
            if device.type == "cuda":
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                sides[name]()
                end.record()
                torch.cuda.synchronize()
                times[name].append(start.elapsed_time(end))
            else:
                start = time.perf_counter()
                sides[name]()
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(of) for name, of in times.items()}


def calls(device, dtype):
    """us on the host of each way to make a call on a few tokens, of which the kernel is a small part."""
    q = torch.randn(1, 1, 16, 64, device=device, dtype=dtype)
    flash, empty = torch.ops.attn.flash.default, torch.ops.attn.empty.default
    found = {"empty_kernel_us": host_us(lambda: empty(q), device), "flash_us": host_us(lambda: flash(q, q, q), device),
             "sdpa_us": host_us(lambda: sdpa(q, q, q), device), "empty_like_us": host_us(lambda: torch.empty_like(q), device)}
    with attn_proto.enable():
        found["drop_in_us"] = host_us(lambda: F.scaled_dot_product_attention(q, q, q), device)
    k = torch.randn(8, 2, 16, 64, device=device, dtype=dtype)
    table = torch.arange(8, dtype=torch.int32, device=device).view(1, 8)
    lengths = torch.tensor([100], dtype=torch.int32, device=device)
    one = torch.randn(1, 4, 1, 64, device=device, dtype=dtype)
    found["paged_decode_us"] = host_us(lambda: torch.ops.attn.paged_decode(one, k, k, lengths, table), device)
    return found


class Layer(torch.nn.Module):
    """One layer of Llama-3-8B without its norms' weights."""

    def __init__(self, device, dtype, width=4096, heads=32, kv_heads=8, inner=14336):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        into = (heads + 2 * kv_heads) * self.dim
        for name, a, b in ("qkv", width, into), ("out", width, width), ("gate", width, 2 * inner), ("down", inner, width):
            setattr(self, name, torch.nn.Linear(a, b, bias=False, device=device, dtype=dtype))

    def heads_of(self, x):
        q, k, v = self.qkv(F.rms_norm(x, x.shape[-1:])).split([n * self.dim for n in (self.heads, self.kv_heads, self.kv_heads)], -1)
        return [y.unflatten(-1, (-1, self.dim)).transpose(1, 2) for y in (q, k, v)]

    def forward(self, x):
        q, k, v = self.heads_of(x)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(-2))
        gate, up = self.gate(F.rms_norm(x, x.shape[-1:])).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def layer(device, dtype, length, rounds):
    """A prompt through one layer, and its attention alone, with PyTorch's, with ours, and where it is there with
    FlashAttention-3."""
    torch.manual_seed(0)
    model, x = Layer(device, dtype), torch.randn(1, length, 4096, device=device, dtype=dtype)
    q, k, v = model.heads_of(x)

    def ours(call):
        def run():
            with attn_proto.enable():
                call()
        return run

    def attention():
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    with attn_proto.enable():
        got = model(x)
    off = (got - model(x)).abs().max().item()
    sides = {"layer_sdpa": lambda: model(x), "layer_ours": ours(lambda: model(x)), "attention_sdpa": attention,
             "attention_ours": ours(attention)}
    fa3, name = sides.function_of(sides.FLASH_ATTENTION_3 if device.type == "cuda" else (), "flash_attn_func")
    if fa3:
        by_tokens = [y.transpose(1, 2) for y in (q, k, v)]
        sides[f"attention_{name.split()[0]}"] = lambda: fa3(*by_tokens, causal=True)
    times = device_ms(sides, device, rounds)
    share = {f"share_{side}": times[f"attention_{side}"] / times[f"layer_{side}"] for side in ("sdpa", "ours")}
    return {"length": length, **{name + "_ms": value for name, value in times.items()}, **share, "largest_difference": off}


def decode(device, dtype, length, rounds):
    """One token's attention over a cache, with PyTorch's over a tensor and with ours over it and over pages."""
    q = torch.randn(1, 32, 1, 128, device=device, dtype=dtype)
    k, v = (torch.randn(1, 8, length, 128, device=device, dtype=dtype) for _ in range(2))
    pages_k, pages_v = (x.view(8, length // 16, 16, 128).transpose(0, 1).contiguous() for x in (k, v))
    table = torch.arange(length // 16, dtype=torch.int32, device=device)[None]
    lengths = torch.tensor([length], dtype=torch.int32, device=device)
    flash = torch.ops.attn.flash.default
    times = device_ms({"sdpa": lambda: sdpa(q, k, v, enable_gqa=True), "ours": lambda: flash(q, k, v),
                       "pages": lambda: torch.ops.attn.paged_decode(q, pages_k, pages_v, lengths, table)}, device, rounds)
    return {"length": length, **{name + "_ms": value for name, value in times.items()}}


def masks(device, dtype, length, rounds):
    """Attention with masks of bool: one for each query and key, and one of keys alone, which PyTorch expands."""
    q, k, v = (torch.randn(2, 16, length, 64, device=device, dtype=dtype) for _ in range(3))
    whole = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
    padding = torch.arange(length, device=device)[None, None, None] < torch.tensor([length, length // 2], device=device)[:, None, None, None]
    ours = attn_proto.dropin.scaled_dot_product_attention
    sides = {f"{name}_{side}": lambda call=call, mask=mask: call(q, k, v, attn_mask=mask)
             for name, mask in (("whole", whole), ("padding", padding)) for side, call in (("sdpa", sdpa), ("ours", ours))}
    return {"length": length, **{name + "_ms": value for name, value in device_ms(sides, device, rounds).items()}}


def model_tokens(device, dtype, quick):
    """Tokens a second of a Llama of random weights, before and behind, and with the paged cache."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM

        import attn_proto.transformers as support
    except ImportError as error:
        return {"skipped": f"{error.name or 'transformers'} is not installed"}
    size = dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
                head_dim=64) if quick else dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=4,
                                                num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    prompt, new = (512, 16) if quick else (8192, 64)
    found, said = {"prompt": prompt, "new_tokens": new}, {}
    tokens = torch.randint(1000, (1, prompt), device=device)
    for name in "sdpa", "ours", "ours_paged":
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=1000, attn_implementation="sdpa" if name == "sdpa" else "attn_proto", **size)
        with torch.device(device):
            model = LlamaForCausalLM(config).to(dtype).eval()

        def run():
            cache = support.PagedCache(config, 1, prompt + new + 1, device=device) if name == "ours_paged" else None
            more = {"past_key_values": cache} if cache is not None else {}
            synchronise(device)
            start = time.perf_counter()
            out = model(tokens, use_cache=True, **more)
            synchronise(device)
            first = time.perf_counter()
            step, cache, list_of = out.logits[:, -1:].argmax(-1), out.past_key_values, []
            for _ in range(new):
                out = model(step, past_key_values=cache, use_cache=True)
                step = out.logits[:, -1:].argmax(-1)
                list_of.append(step)
            synchronise(device)
            return prompt / (first - start), new / (time.perf_counter() - first), torch.cat(list_of, 1)

        run()
        turns = [run() for _ in range(2 if quick else 3)]
        found[name + "_prefill_per_s"], found[name + "_decode_per_s"] = (max(turn[i] for turn in turns) for i in (0, 1))
        said[name] = turns[0][2]
    found["same_tokens"] = {name: (said[name] == said["sdpa"]).float().mean().item() for name in said}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lengths = (512,) if options.quick or device.type == "cpu" else (2048, 8192)
    result = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__,
              "dtype": str(dtype)}
    with torch.no_grad():
        result["calls"] = calls(device, dtype)
        print(json.dumps(result, indent=1), flush=True)
        for name, measure in ("layer", layer), ("decode", decode), ("masks", masks):
            result[name] = [measure(device, dtype, length, 3 if options.quick else 15) for length in lengths]
            print(json.dumps({name: result[name]}, indent=1), flush=True)
        result["model"] = model_tokens(device, dtype, options.quick or device.type == "cpu")
        print(json.dumps({"model": result["model"]}, indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
