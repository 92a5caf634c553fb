"""Modified attention on a GPU, bf16: this project's kernels against FlexAttention and FlashAttention-3.

The rows compute attention with 32 heads: without a modifier, with ALiBi, with a soft cap of 30, and with a window in
which a query sees its own key and the 1024 keys before it. Other rows only rotate Q and K (RoPE). FlexAttention gets
each modifier as a score function or a block mask. In the rows with RoPE the only peer is a PyTorch function that reads
cosines and sines from tables in f32. torch.compile compiles FlexAttention and this function. FlashAttention-3 takes
part in the rows without a modifier and in the rows with a soft cap. Results are compared with the result of
FlexAttention, and in the rows with RoPE with the result of the PyTorch function. If this side is left out, results are
compared with the result of the first side.
"""

from . import clocks, pages, sides
from .clocks import torch
from .work import Work, agreement

MARK, DEVICE, SECONDS = "peers-variants", "cuda:0", 0.1
HEADS, CAP, WINDOW = 32, 30, 1024
# For each row its work, and FlashAttention-3's options for it, or None if FlashAttention-3 does not take part. RoPE is
# no attention, so its work is None.
ROWS = {
    "full": (Work(), {}),
    "causal": (Work(causal=True), {"causal": True}),
    "ALiBi": (Work(alibi=True), None),
    "ALiBi, causal": (Work(causal=True, alibi=True), None),
    "soft cap": (Work(soft_cap=CAP), {"softcap": float(CAP)}),
    "soft cap, causal": (Work(causal=True, soft_cap=CAP), {"softcap": float(CAP), "causal": True}),
    "window, causal": (Work(causal=True, window=WINDOW), None),
    "RoPE": (None, None),
}
# (head_dim, length): ROPE_SHAPES for RoPE, SHAPES for all other rows.
ROPE_SHAPES = [(64, 2048), (128, 2048), (128, 16384)]
SHAPES = [(dim, length) for dim in (64, 128) for length in (2048, 8192)]


def about():
    return {"fa3": sides.function_of(sides.FLASH_ATTENTION_3, "flash_attn_func")[1] or "no FlashAttention-3"}


def makers(attn, fa3, name, q, k, v):
    """Returns for each side, by name, the function that makes the side."""
    work, fa3_options = ROWS[name]
    if work is None:
        return {"ours": lambda: sides.Call(attn.rope, q, k), "torch": lambda: sides.compiled_rope(q, k)}
    found = {"ours": lambda: sides.Call(attn.flash, q, k, v, **work.options()),
             "flex": lambda: sides.flex_attention(work, q, k, v)}
    if fa3 and fa3_options is not None:
        found["fa3"] = lambda: sides.by_tokens(fa3, q, k, v, **fa3_options)
    return found


def measure(attn, fa3, machine, name, dim, length, seconds):
    torch.manual_seed(length + dim)
    q, k, v = (torch.randn(1, HEADS, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    found = clocks.ready(makers(attn, fa3, name, q, k, v), machine.clock)
    agree = agreement(found, "torch" if name == "RoPE" else "flex")
    turns = clocks.take_turns(found, seconds)
    return {"modifier": name, "head_dim": dim, "length": length, "turns": len(turns), "agree": agree,
            **clocks.medians(turns, "us", 1e6), **clocks.median_ratios(turns)}


def rows(machine, options):
    fa3, _ = sides.function_of(sides.FLASH_ATTENTION_3, "flash_attn_func")
    for name in ROWS:
        for dim, length in ROPE_SHAPES if name == "RoPE" else SHAPES:
            yield measure(sides.operators(), fa3, machine, name, dim, length, options.seconds)


def table(rows, about):
    peers = f"FlexAttention of PyTorch {about['torch']} and {about['fa3']}, bf16, {HEADS} heads"
    text = (f"{pages.measured(about, peers, 'variants')} Times are in microseconds. {pages.ratios(about)} "
            f"{clocks.WINDOW}\n\n"
            + pages.leads(about, rows, {"FlexAttention": "flex_ratio", "compiled RoPE": "torch_ratio",
                                        "FA-3": "fa3_ratio"}))
    cells = [[row["modifier"], row["head_dim"], row["length"], pages.microseconds(row, "ours_us") + pages.differ(row),
              *pages.of_peers(row, ("torch" if row["modifier"] == "RoPE" else "flex", "fa3"), "us", None, ".2f")] for row in rows]
    return text + pages.markdown(["modifier", "head_dim", "length", "ours",
                                  *pages.heads(["FlexAttention, or compiled RoPE", "FA-3"], "theirs / ours")], cells)
