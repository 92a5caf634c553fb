"""Attention on a GPU, bf16: this project's kernel against compilers: FlexAttention and PyTorch Inductor.

The rows compute two things with 32 heads, as in proto5_codegen: attention, and attention modified by ALiBi and a soft
cap of 30. Both are computed without a mask (full) and with a causal mask. FlexAttention is a template of Inductor. It
gets the modifiers as a score function, and the mask as a block mask. The side `inductor` is the definition in plain
PyTorch, softmax(f(Q K^T)) V, compiled. Results are compared with the definition in float64.
"""

from . import clocks, pages, sides
from .clocks import torch
from .work import Work, all_agree, slopes

MARK, DEVICE, SECONDS = "peers-codegen-gpu", "cuda:0", 0.05
HEADS, CAP = 32, 30
NAMES = {"flex": "FlexAttention", "inductor": "Inductor"}
AXES = ("work", "head_dim", "length", "causal")
ROWS = [(work, dim, length, causal) for work in ("attention", "modified") for dim in (64, 128)
        for length in (2048, 8192) for causal in (False, True)]


def about():
    return {}


def work_of(name, causal):
    return Work(causal=causal, alibi=True, soft_cap=CAP) if name == "modified" else Work(causal=causal)


def defined(work, head, tensors):
    """Returns the output of one head by the definition of attention, in float64."""
    q, k, v = (tensor[0, head].double() for tensor in tensors)
    scores, places = q @ k.T * q.shape[1]**-0.5, torch.arange(q.shape[0], device=q.device)
    if work.soft_cap:
        scores = work.soft_cap * torch.tanh(scores / work.soft_cap)
    if work.alibi:
        scores = scores + slopes(HEADS)[head] * (places - places[:, None])
    if work.causal:
        scores = scores.masked_fill(places > places[:, None], float("-inf"))
    return (scores.softmax(-1) @ v).cpu()


def against_definition(work, tensors, outputs):
    """Returns whether all outputs agree with the definition, and the largest error of each output, or NaN."""
    agree, errors = True, {f"{name}_error": [] for name in outputs}
    for head in range(HEADS):
        want = defined(work, head, tensors)
        agree &= all_agree([output[0, head] for output in outputs.values()], want)
        for name, output in outputs.items():
            errors[f"{name}_error"].append((output[0, head] - want).abs().max())
    return {"agree": agree, **{name: torch.stack(found).max().item() for name, found in errors.items()}}


def measure(machine, row, seconds):
    name, dim, length, causal = row
    work = work_of(name, causal)
    torch.manual_seed(length + dim)
    tensors = [torch.randn(1, HEADS, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    ours = sides.operators().flash
    found = clocks.ready({"ours": lambda: sides.Call(ours, *tensors, **work.options()),
                          "flex": lambda: sides.flex_attention(work, *tensors),
                          "inductor": lambda: sides.inductor(work, *tensors)}, machine.clock)
    checked = against_definition(work, tensors, {side: clock.output() for side, clock in found.items()})
    turns = clocks.take_turns(found, seconds)
    return {**dict(zip(AXES, row)), "turns": len(turns), **checked, **clocks.medians(turns, "us", 1e6),
            **clocks.median_ratios(turns)}


def rows(machine, options):
    for row in ROWS:
        yield measure(machine, row, options.seconds)


def table(rows, about):
    peers = f"PyTorch {about['torch']}, bf16, {HEADS} heads"
    text = (f"{pages.measured(about, peers, 'codegen_gpu')} {pages.MICROSECONDS} "
            f"{pages.ratios(about)} The last column has the largest error of each side against the definition in "
            "float64, in the order of the sides.\n\n"
            + pages.leads(about, rows, {name: f"{peer}_ratio" for peer, name in NAMES.items()}))
    cells = [[row["work"] + pages.differ(row), row["head_dim"], pages.mask_of(row), row["length"],
              pages.microseconds(row, "ours_us"), *pages.of_peers(row, NAMES, "us", None, ".2f"),
              ", ".join(f"{row[f'{name}_error']:.4f}" for name in ("ours", *NAMES) if f"{name}_error" in row)]
             for row in rows]
    heads = pages.heads(NAMES.values(), "theirs / ours")
    return text + pages.markdown(["work", "head_dim", "mask", "length", "ours", *heads, "errors"], cells)
