"""Attention on a CPU, f32: this project's kernel against compilers: PyTorch Inductor, FlexAttention and ONNX Runtime.

The rows are whole attention with 8 heads and 1024 tokens: full, causal, and causal with ALiBi and a soft cap of 30, as
in proto5_codegen. torch.compile (Inductor) compiles two sides: the definition of attention as a user writes it, and
FlexAttention. ONNX Runtime gets the definition as a graph of MatMul and Softmax, and optimises the graph. Before each
call 256 MiB of memory are filled, so that the caches are cold. The time of a call is the time that the caller waits.
Results are compared with attention in double.
"""

from . import clocks, pages, sides
from .clocks import torch
from .work import Work, added, on_a_cpu

MARK, DEVICE, SECONDS = "peers-codegen", "cpu:threads=2", 4
HEADS, LENGTH, CAP = 8, 1024, 30
NAMES = {"inductor": "Inductor", "flex": "FlexAttention", "ort": "ONNX Runtime"}
ROWS = {"full": Work(), "causal": Work(causal=True), "modified, causal": Work(causal=True, alibi=True, soft_cap=CAP)}


def about():
    return {"ort": sides.onnx_version()}


def makers(ours, work, tensors, threads):
    """Returns for each side, by name, the function that makes the side."""
    found = {"ours": lambda: sides.Call(ours.flash, *tensors, **work.options())}
    if torch:
        q, k, v = map(torch.from_numpy, tensors)
        addend = torch.from_numpy(added(work, HEADS, LENGTH)) if work != Work() else None
        found |= {"inductor": lambda: sides.inductor(work, q, k, v, addend),
                  "flex": lambda: sides.flex_attention(work, q, k, v)}
    if sides.ort:
        found["ort"] = lambda: sides.onnx_definition(work, *tensors, threads)
    return found


def measure(ours, machine, name, dim, seconds):
    work = ROWS[name]
    checked, turns = on_a_cpu(lambda tensors: makers(ours, work, tensors, machine.threads), work,
                              (1, HEADS, LENGTH, dim), machine, seconds)
    return {"work": name, "head_dim": dim, "turns": len(turns), **checked, **clocks.medians(turns, "ms", 1e3),
            **{f"{side}_ratio": clocks.interval(values) for side, values in clocks.ratios(turns).items()}}


def rows(machine, options):
    ours = sides.on_cpu(machine.threads)
    for name in ROWS:
        for dim in (64, 128):
            yield measure(ours, machine, name, dim, options.seconds)


def table(rows, about):
    peers = (f"PyTorch {about['torch']} and ONNX Runtime {about['ort']}, f32, {HEADS} heads, {LENGTH} tokens, "
             f"{about['threads']} threads")
    interval = "" if about.get("processes", 1) > 1 else " Its 95 % interval stands in parentheses."
    text = (f"{pages.measured(about, peers, 'codegen')} Times are in milliseconds. {pages.ratios(about)}{interval}\n\n"
            + pages.leads(about, rows, {name: f"{peer}_ratio" for peer, name in NAMES.items()}))
    cells = [[row["work"], row["head_dim"], pages.cell(row, "ours_ms", ".1f") + pages.differ(row),
              *pages.of_peers(row, NAMES, "ms", ".1f", ".2f")] for row in rows]
    return text + pages.markdown(["attention", "head_dim", "ours", *pages.heads(NAMES.values(), "{} / ours")], cells)
