#!/usr/bin/env python3
"""Attention on a GPU, bf16: the hand-written kernel against what PyTorch's compiler makes, in one process.

    scripts/peers_codegen_gpu.py [--device cuda:0] [--seconds 0.1] [--out peers_codegen_gpu.json] [--page]

Two works of proto5_codegen, 32 heads: attention, and attention modified by ALiBi and a soft cap of 30, full and causal.
FlexAttention is Inductor's template: it gets the modifiers as a score function, the mask as a block mask. Inductor
alone gets the definition in plain PyTorch, softmax(f(Q K^T)) V. All take turns as in scripts/peers_gpu.py. --page
writes the table into docs/peers.md; --from needs neither PyTorch nor a GPU.
"""

import json
import pathlib
import sys
import tempfile

import peers_gpu as peers
from peers_variants import us

torch = peers.torch
HEADS, CAP = 32, 30
BEGIN, END = "<!-- peers-codegen-gpu:begin -->\n", "<!-- peers-codegen-gpu:end -->\n"
NAMES = {"flex": "FlexAttention", "inductor": "Inductor"}
ROWS = [(work, dim, length, causal) for work in ("attention", "modified") for dim in (64, 128)
        for length in (2048, 8192) for causal in (False, True)]


def slopes_of_heads():
    return torch.exp2(-8 * torch.arange(1, HEADS + 1, device="cuda", dtype=torch.float32) / HEADS)


class FlexAttention(peers.Peer):
    """torch.nn.attention.flex_attention, compiled for the one shape."""

    def __init__(self, modified, causal, *tensors):
        from torch.nn.attention import flex_attention as flex
        self.tensors, length, slopes = tensors, tensors[0].shape[2], slopes_of_heads()

        def changed(score, _batch, head, row, key):
            return CAP * torch.tanh(score / CAP) + slopes[head] * (key - row)

        def seen(_batch, _head, row, key):
            return row >= key

        self.options = {"score_mod": changed if modified else None,
                        "block_mask": flex.create_block_mask(seen, None, None, length, length) if causal else None}
        torch._dynamo.reset()  # each row is compiled for itself
        self.function = torch.compile(flex.flex_attention, dynamic=False)

    def run(self):
        return self.function(*self.tensors, **self.options)


class Inductor(peers.Peer):
    """The definition, compiled."""

    def __init__(self, modified, causal, *tensors):
        self.tensors = tensors
        _, _, length, dim = tensors[0].shape
        slopes, places = slopes_of_heads(), torch.arange(length, device="cuda")

        def attention(q, k, v):
            scores = q @ k.transpose(-1, -2) * dim**-0.5
            if modified:
                scores = CAP * torch.tanh(scores.float() / CAP) + slopes[:, None, None] * (places - places[:, None])
            if causal:
                scores = scores.masked_fill(places > places[:, None], float("-inf"))
            return torch.softmax(scores.float(), -1).to(q.dtype) @ v

        torch._dynamo.reset()
        self.function = torch.compile(attention, dynamic=False)

    def run(self):
        return self.function(*self.tensors)


def measure(ours, flush, work, dim, length, causal, seconds, folder):
    torch.manual_seed(length + dim)
    tensors = [torch.randn(1, HEADS, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    peers.save(folder / "qkv.safetensors", dict(zip("qkv", tensors)))
    modified = work == "modified"
    axes = f"variant=tuned causal={int(causal)}" + (f" alibi=1 soft_cap={CAP}" if modified else "")
    tile = ours.load(f"{axes} out_dtype=bf16 layout=bhsd", folder / "qkv.safetensors")
    others = {"flex": FlexAttention(modified, causal, *tensors), "inductor": Inductor(modified, causal, *tensors)}
    for peer in others.values():
        peer.capture(flush)
    sides = {"ours": ours, **others}
    for _ in range(peers.WARM_UP):
        for side in sides.values():
            side.seconds()
    want = others["flex"].output()
    agree = peers.all_agree([ours.output(want.shape), others["inductor"].output()], want)
    turns = peers.take_turns(sides, seconds)
    medians = {f"{side}_us": 1e6 * peers.statistics.median(turn[side] for turn in turns) for side in sides}
    ratios = {f"{side}_ratio": peers.statistics.median(turn[side] / turn["ours"] for turn in turns) for side in others}
    return {"work": work, "head_dim": dim, "length": length, "causal": causal, "tile": tile, "turns": len(turns),
            "agree": agree, **medians, **ratios}


def table(rows, about):
    lines = [f"Measured on {about['device']} with PyTorch {about['torch']}, bf16, {HEADS} heads, by "
             f"`scripts/peers_codegen_gpu.py`. Microseconds, and the medians of the ratios turn by turn. "
             f"Timed: {about['window']}.\n\n",
             "| work | head_dim | mask | length | ours | " +
             " | ".join(f"{name} | theirs / ours" for name in NAMES.values()) + " |\n",
             "|---" * (5 + 2 * len(NAMES)) + "|\n"]
    for row in rows:
        cells = [row["work"], row["head_dim"], "causal" if row["causal"] else "full", row["length"],
                 us(row["ours_us"]) + ("" if row["agree"] else " (results differ)")]
        for peer in NAMES:
            cells += [us(row[f"{peer}_us"]), f"{row[f'{peer}_ratio']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    options = peers.arguments(__doc__.split("\n")[0], 0.1)
    if options.source:
        result = json.loads(options.source.read_text())
    elif torch is None or not torch.cuda.is_available():
        sys.exit("peers_codegen_gpu: needs PyTorch and a GPU")
    else:
        result = {"about": {"device": torch.cuda.get_device_name(0), "torch": torch.__version__.split("+")[0],
                            "window": peers.WINDOW}, "rows": []}
        ours = peers.Ours(options.library, options.device)
        peers.timed_event()
        flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
        with tempfile.TemporaryDirectory() as folder:
            for work, dim, length, causal in ROWS:
                row = measure(ours, flush, work, dim, length, causal, options.seconds, pathlib.Path(folder))
                result["rows"].append(row)
                print(f"{work} D={dim} N={length} causal={int(causal)} {row['tile']}: {row['ours_us']:.1f} us; " +
                      ", ".join(f"{peer} {row[peer + '_us']:.1f} ({row[peer + '_ratio']:.3f})" for peer in NAMES) +
                      ("" if row["agree"] else " RESULTS DIFFER"), flush=True)
                if options.out:  # as far as it is
                    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return peers.finish(options, result, table(result["rows"], result["about"]), BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
