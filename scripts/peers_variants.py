#!/usr/bin/env python3
"""Modified attention on a GPU, bf16: proto7_variants against FlexAttention and FlashAttention-3, in one process.

    scripts/peers_variants.py [--device cuda:0] [--seconds 0.1] [--out peers_variants.json] [--page]

ALiBi, a soft cap of 30, a window of 1024 keys, and RoPE alone (Q and K), 32 heads, timed as scripts/peers_gpu.py does:
captured graphs that take turns. RoPE is compiled by torch.compile, from a table in f32. FlexAttention gets each modifier as a score function or a block mask, and is compiled with torch.compile.
FlashAttention-3 takes part where the package fa3-fwd has the modifier. --page writes the table into docs/peers.md; --from
needs neither PyTorch nor a GPU.
"""

import json
import pathlib
import sys
import tempfile

import peers_gpu as peers

torch = peers.torch
HEADS, CAP, WINDOW = 32, 30, 1024
BEGIN, END = "<!-- peers-variants:begin -->\n", "<!-- peers-variants:end -->\n"
# What ours and FlashAttention-3 call each row's modifier; the functions of FlexAttention are below.
ROWS = {
    "full": ("causal=0", {}),
    "causal": ("causal=1", {"causal": True}),
    "ALiBi": ("causal=0 alibi=1", None),
    "ALiBi, causal": ("causal=1 alibi=1", None),
    "soft cap": (f"causal=0 soft_cap={CAP}", {"softcap": float(CAP)}),
    "soft cap, causal": (f"causal=1 soft_cap={CAP}", {"softcap": float(CAP), "causal": True}),
    "window, causal": (f"causal=1 window_left={WINDOW}", None),
    "RoPE": ("causal=0 task=rope", None),
}
# (head_dim, length) of RoPE, and of all other rows.
ROPE_SHAPES = [(64, 2048), (128, 2048), (128, 16384)]
SHAPES = [(dim, length) for dim in (64, 128) for length in (2048, 8192)]


class FlexAttention(peers.Peer):
    """torch.nn.attention.flex_attention, compiled for the one shape."""

    def __init__(self, name, q, k, v):
        from torch.nn.attention import flex_attention as flex
        self.tensors = q, k, v
        length = q.shape[2]
        slopes = torch.exp2(-8 * torch.arange(1, HEADS + 1, device="cuda", dtype=torch.float32) / HEADS)

        def alibi(score, _batch, head, row, key):
            return score + slopes[head] * (key - row)

        def soft_cap(score, _batch, _head, _row, _key):
            return CAP * torch.tanh(score / CAP)

        def causal(_batch, _head, row, key):
            return row >= key

        def window(_batch, _head, row, key):
            return (row >= key) & (row - key <= WINDOW)

        mask = window if "window" in name else causal if "causal" in name else None
        self.options = {
            "score_mod": alibi if "ALiBi" in name else soft_cap if "soft cap" in name else None,
            "block_mask": flex.create_block_mask(mask, None, None, length, length) if mask else None}
        torch._dynamo.reset()  # each row is compiled for itself
        self.function = torch.compile(flex.flex_attention, dynamic=False)

    def run(self):
        return self.function(*self.tensors, **self.options)


class CompiledRope(peers.Peer):
    """Q and K turned by one compiled function, halves of a row being pairs; gives Q."""

    def __init__(self, q, k):
        length, half = q.shape[2], q.shape[3] // 2
        frequencies = 10000 ** (-torch.arange(half, device="cuda", dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(length, device="cuda", dtype=torch.float64), frequencies)
        cosines, sines = angles.cos().float(), angles.sin().float()

        def turned(rows):
            x, y = rows.float().chunk(2, -1)
            return torch.cat((x * cosines - y * sines, y * cosines + x * sines), -1).to(rows.dtype)

        torch._dynamo.reset()
        function = torch.compile(lambda q, k: (turned(q), turned(k)), dynamic=False)
        self.run = lambda: function(q, k)[0]


def measure(ours, fa3, flush, name, dim, length, seconds, folder):
    axes, fa3_options = ROWS[name]
    torch.manual_seed(length + dim)
    q, k, v = (torch.randn(1, HEADS, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    peers.save(folder / "qkv.safetensors", {"q": q, "k": k, "v": v})
    tile = ours.load(f"variant=tuned {axes} out_dtype=bf16 layout=bhsd", folder / "qkv.safetensors")
    others = {"torch": CompiledRope(q, k)} if name == "RoPE" else {"flex": FlexAttention(name, q, k, v)}
    if fa3 and fa3_options is not None:
        others["fa3"] = peers.FlashAttention3(fa3, q, k, v, **fa3_options)
    for peer in others.values():
        peer.capture(flush)
    sides = {"ours": ours, **others}
    for _ in range(peers.WARM_UP):
        for side in sides.values():
            side.seconds()
    first, *rest = others.values()
    want = first.output()
    results = [ours.output(want.shape), *(peer.output() for peer in rest)]
    agree = peers.all_agree(results, want)
    turns = peers.take_turns(sides, seconds)
    medians = {f"{side}_us": 1e6 * peers.statistics.median(turn[side] for turn in turns) for side in sides}
    ratios = {f"{side}_ratio": peers.statistics.median(turn[side] / turn["ours"] for turn in turns) for side in others}
    return {"modifier": name, "head_dim": dim, "length": length, "tile": tile, "turns": len(turns), "agree": agree,
            **medians, **ratios}


def us(microseconds):
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def table(rows, about):
    lines = [f"Measured on {about['device']} with FlexAttention of PyTorch {about['torch']} and {about['fa3']}, bf16, "
             f"{HEADS} heads, by `scripts/peers_variants.py`. Microseconds, and the medians of the ratios turn by turn. "
             f"Timed: {about['window']}.\n\n",
             "| modifier | head_dim | length | tile | ours | FlexAttention, or compiled RoPE | theirs / ours | FA-3 | theirs / ours |\n",
             "|---" * 9 + "|\n"]
    for row in rows:
        fa3 = [us(row["fa3_us"]), f"{row['fa3_ratio']:.2f}"] if "fa3_us" in row else ["", ""]
        torchs = "torch" if "torch_us" in row else "flex"
        cells = [row["modifier"], row["head_dim"], row["length"], "" if torchs == "torch" else row["tile"],
                 us(row["ours_us"]) + ("" if row["agree"] else " (results differ)"), us(row[torchs + "_us"]),
                 f"{row[torchs + '_ratio']:.2f}", *fa3]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    options = peers.arguments(__doc__.split("\n")[0], 0.1)
    if options.source:
        result = json.loads(options.source.read_text())
    elif torch is None or not torch.cuda.is_available():
        sys.exit("peers_variants: needs PyTorch and a GPU")
    else:
        fa3, fa3_name = peers.flash_attention_3()
        result = {"about": {"device": torch.cuda.get_device_name(0), "torch": torch.__version__.split("+")[0],
                            "fa3": fa3_name or "no FlashAttention-3", "window": peers.WINDOW}, "rows": []}
        ours = peers.Ours(options.library, options.device)
        peers.timed_event()
        flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
        with tempfile.TemporaryDirectory() as folder:
            for name in ROWS:
                for dim, length in ROPE_SHAPES if name == "RoPE" else SHAPES:
                    row = measure(ours, fa3, flush, name, dim, length, options.seconds, pathlib.Path(folder))
                    result["rows"].append(row)
                    print(f"{name} D={dim} N={length} {row['tile']}: {row['ours_us']:.1f} us; " +
                          ", ".join(f"{peer} {row[peer + '_us']:.1f} ({row[peer + '_ratio']:.3f})"
                                    for peer in ("flex", "torch", "fa3") if peer + "_us" in row) +
                          ("" if row["agree"] else " RESULTS DIFFER"), flush=True)
    return peers.finish(options, result, table(result["rows"], result["about"]), BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
