#!/usr/bin/env python3
"""Attention on a GPU, bf16: the hand-written kernel against what PyTorch's compiler makes, in turns.

    scripts/peers_codegen_gpu.py [--libraries FOLDER] [--seconds 0.05] [--out peers_codegen_gpu.json] [--page]

Two works of proto5_codegen, 32 heads: attention, and attention modified by ALiBi and a soft cap of 30, full and causal.
FlexAttention is Inductor's template: it gets the modifiers as a score function, the mask as a block mask. Inductor
alone gets the definition in plain PyTorch, softmax(f(Q K^T)) V. Ours is PyTorch's operator of this project
(docs/extension.md). All sides take turns on the same values, and their results are checked against the definition in
float64; ratios are taken turn by turn. All are timed as
scripts/peers_gpu.py times its peers: a CUDA graph fills twice the last-level cache before each launch. A side that does
not run is left out, and one line says why. --page writes the table into docs/peers.md; --from needs neither PyTorch nor
a GPU.
"""

import importlib
import sys

import peers_gpu as peers
import peers_paged as paged
from peers_variants import us

torch = peers.torch
HEADS, CAP = 32, 30
BEGIN, END = "<!-- peers-codegen-gpu:begin -->\n", "<!-- peers-codegen-gpu:end -->\n"
NAMES = {"flex": "FlexAttention", "inductor": "Inductor"}
ROWS = [(work, dim, length, causal) for work in ("attention", "modified") for dim in (64, 128)
        for length in (2048, 8192) for causal in (False, True)]


def slopes_of_heads():
    return torch.exp2(-8 * torch.arange(1, HEADS + 1, device="cuda", dtype=torch.float32) / HEADS)


class Ours(peers.Peer):
    """The operator of this project."""

    def __init__(self, modified, causal, *tensors):
        self.function, self.tensors = importlib.import_module("attn_proto").flash, tensors
        self.options = {"causal": causal, **({"soft_cap": CAP, "alibi_slopes": slopes_of_heads()} if modified else {})}

    def run(self):
        return self.function(*self.tensors, **self.options)


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


def makers(row):
    """What makes each side, by its name."""
    work, dim, length, causal = row
    torch.manual_seed(length + dim)
    tensors = [torch.randn(1, HEADS, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return {name: lambda side=side: side(work == "modified", causal, *tensors)
            for name, side in (("ours", Ours), ("flex", FlexAttention), ("inductor", Inductor))}


def figures(turns):
    """Microseconds of each side, and each peer's time over ours."""
    found = {f"{name}_us": 1e6 * peers.statistics.median(turn[name] for turn in turns) for name in turns[0]}
    for name in NAMES:
        if {name, "ours"} <= turns[0].keys():
            found[f"{name}_ratio"] = peers.statistics.median(turn[name] / turn["ours"] for turn in turns)
    return found


def defined(row, head, tensors):
    """One head by its definition, in float64."""
    work, dim, length, causal = row
    q, k, v = (tensor[0, head].double() for tensor in tensors)
    scores, places = q @ k.T * dim**-0.5, torch.arange(length, device=q.device)
    if work == "modified":
        scores = CAP * torch.tanh(scores / CAP) + slopes_of_heads()[head] * (places - places[:, None])
    if causal:
        scores = scores.masked_fill(places > places[:, None], float("-inf"))
    return (scores.softmax(-1) @ v).cpu()


def against_definition(row, tensors, outputs):
    """Whether all outputs agree with the definition, and the largest error of each; a NaN is larger than any."""
    agree, errors = True, {f"{name}_error": [] for name in outputs}
    for head in range(HEADS):
        want = defined(row, head, tensors)
        agree &= peers.all_agree([output[0, head] for output in outputs.values()], want)
        for name, output in outputs.items():
            errors[f"{name}_error"].append((output[0, head] - want).abs().max())
    return {"agree": agree, **{name: torch.stack(found).max().item() for name, found in errors.items()}}


def measure(options, flush, row):
    sides = paged.captured(makers(row), flush, "peers_codegen_gpu")
    found = against_definition(row, next(iter(sides.values())).tensors,
                               {name: side.output() for name, side in sides.items()})
    turns = peers.take_turns(sides, options.seconds)
    return {**dict(zip(("work", "head_dim", "length", "causal"), row)), "turns": len(turns), **found, **figures(turns)}


def table(rows, about):
    lines = [f"Measured on {about['device']} with PyTorch {about['torch']}, bf16, {HEADS} heads, by "
             "`scripts/peers_codegen_gpu.py`. Microseconds from cold caches, and the medians of the ratios turn by "
             "turn; the largest errors of the sides, in their order, against the definition in float64.\n\n",
             "| work | head_dim | mask | length | ours | " +
             " | ".join(f"{name} | theirs / ours" for name in NAMES.values()) +
             " | errors |\n",
             "|---" * (6 + 2 * len(NAMES)) + "|\n"]
    for row in rows:
        cells = [row["work"], row["head_dim"], "causal" if row["causal"] else "full", row["length"],
                 (us(row["ours_us"]) if "ours_us" in row else "") + ("" if row["agree"] else " (results differ)")]
        for peer in NAMES:
            cells += [us(row[f"{peer}_us"]) if f"{peer}_us" in row else "",
                      f"{row[f'{peer}_ratio']:.2f}" if f"{peer}_ratio" in row else ""]
        cells.append(", ".join(f"{row[f'{name}_error']:.4f}" for name in ("ours", *NAMES) if f"{name}_error" in row))
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    def rows(options, flush):
        for row in ROWS:
            yield measure(options, flush, row)

    return paged.run("peers_codegen_gpu", __doc__.split("\n")[0], dict, rows, table, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
