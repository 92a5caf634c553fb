"""Modified attention on a CPU, f32: this project's kernel against PyTorch and ONNX Runtime.

The modifiers are ALiBi, a soft cap of 30 and a window of 256 keys, with 8 heads and 2048 tokens. PyTorch takes part
with scaled_dot_product_attention and an additive mask, and with FlexAttention if it compiles. Before each call 256 MiB
of memory are filled, so that the caches are cold. The time of a call is the time that the caller waits. Results are
compared with attention in double.
"""

import statistics

from . import clocks, pages, sides
from .clocks import torch
from .work import Work, on_a_cpu

MARK, DEVICE, SECONDS = "peers-variants-cpu", "cpu:threads=2", 2
HEADS, LENGTH, CAP, WINDOW = 8, 2048, 30, 256
NAMES = {"sdpa": "SDPA", "flex": "FlexAttention", "ort": "ONNX Runtime"}
ROWS = {
    "full": Work(),
    "causal": Work(causal=True),
    "ALiBi": Work(alibi=True),
    "ALiBi, causal": Work(causal=True, alibi=True),
    "soft cap": Work(soft_cap=CAP),
    "soft cap, causal": Work(causal=True, soft_cap=CAP),
    "window, causal": Work(causal=True, window=WINDOW),
}


def about():
    return {"ort": sides.onnx_version()}


def makers(ours, work, tensors, threads):
    """Returns for each side that can do the work, by name, the function that makes the side. The side `plain` is the
    side `ours` without the modifier."""
    plain = Work(causal=work.causal)
    found = {"ours": lambda: sides.Call(ours.flash, *tensors, **work.options()),
             "plain": lambda: sides.Call(ours.flash, *tensors, **plain.options())}
    grouped = work.causal and not work.alibi
    if sides.ort and (grouped or not work.soft_cap):
        form = sides.onnx_grouped_query if grouped else sides.onnx_multi_head
        found["ort"] = lambda: form(work, *tensors, threads)
    if torch:
        q, k, v = map(torch.from_numpy, tensors)
        if not work.soft_cap:
            found["sdpa"] = lambda: sides.sdpa(work, q, k, v)
        found["flex"] = lambda: sides.flex_attention(work, q, k, v)
    return found


def measure(ours, machine, name, dim, seconds):
    work = ROWS[name]
    checked, turns = on_a_cpu(lambda tensors: makers(ours, work, tensors, machine.threads), work,
                              (1, HEADS, LENGTH, dim), machine, seconds, unchecked=("plain",))
    ratios = clocks.ratios(turns)
    row = {"modifier": name, "head_dim": dim, "length": LENGTH, "turns": len(turns), **checked,
           **clocks.medians(turns, "ms", 1e3)}
    if "plain" in ratios:
        row["cost"] = statistics.median(1 / ratio for ratio in ratios.pop("plain"))
    return row | {f"{side}_ratio": statistics.median(values) for side, values in ratios.items()}


def rows(machine, options):
    ours = sides.on_cpu(machine.threads)
    for name in ROWS:
        for dim in (64, 128):
            yield measure(ours, machine, name, dim, options.seconds)


def table(rows, about):
    peers = (f"PyTorch {about['torch']} and ONNX Runtime {about['ort']}, f32, {HEADS} heads, {LENGTH} tokens, "
             f"{about['threads']} threads")
    text = (f"{pages.measured(about, peers, 'variants_cpu')} Times are in milliseconds. {pages.ratios(about)}\n\n"
            + pages.leads(about, rows, {name: f"{peer}_ratio" for peer, name in NAMES.items()}))
    tile = ["tile"] if any("tile" in row for row in rows) else []
    cells = [[row["modifier"], row["head_dim"], *(row.get(key, "") for key in tile),
              pages.cell(row, "ours_ms", ".1f") + pages.differ(row), pages.cell(row, "cost", ".2f"),
              *pages.of_peers(row, NAMES, "ms", ".1f", ".2f")] for row in rows]
    return text + pages.markdown(["modifier", "head_dim", *tile, "ours", "ours / plain", *pages.heads(NAMES.values(), "{} / ours")], cells)
