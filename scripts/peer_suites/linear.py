"""Linear attention on a GPU, bf16: this project's kernels against flash-linear-attention (fla).

The rows are causal, on tensors [batch, tokens, heads, head_dim]. They have no gate, a gate for each token and head
(simple GLA, gated linear attention), or a gate for each of its channels (GLA). fla has many functions for the same result, here called forms. Only the forms that
this project found fastest take part.
"""

import importlib
import statistics

from . import clocks, pages, sides
from .clocks import torch

MARK, DEVICE, SECONDS = "peers-linear", "cuda:0", 0.05
# head_dim, heads, sequences, tokens of each sequence.
AXES = ("head_dim", "heads", "batch", "q_len")
ROWS = [(64, 32, 4, 4096), (64, 32, 1, 65536), (64, 32, 16, 1024), (64, 1, 1, 1024), (64, 16, 8, 2048),
        (128, 16, 4, 4096), (128, 16, 1, 65536), (128, 32, 1, 8192), (128, 24, 2, 8192), (256, 8, 4, 4096)]
# For each gate the forms of fla, each with its module and its function.
FORMS = {"none": {"chunk": ("fla.ops.linear_attn", "chunk_linear_attn"),
                  "fused_chunk": ("fla.ops.linear_attn", "fused_chunk_linear_attn")},
         "token": {"chunk": ("fla.ops.simple_gla", "chunk_simple_gla")},
         "channel": {"chunk": ("fla.ops.gla", "chunk_gla")}}


def about():
    return {"fla": sides.version("fla-core")}


def close(got, want):
    """Returns whether two outputs agree. An output is a sum over its token and all earlier tokens, so the rounding of
    large terms may also show in a small element. Therefore the allowed difference grows with the root mean square of
    `want`."""
    size = want.square().mean().sqrt()
    return bool(((got - want).abs() <= 0.1 * (want.abs() + size)).all())  # false if there is a NaN


def makers(ours, row, gate):
    """Returns for each side, by name, the function that makes the side."""
    dim, heads, batch, tokens = row
    torch.manual_seed(tokens + dim)
    q, k, v = (torch.randn(batch, tokens, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    options, gate_of_ours = {"normalize": False}, None
    if gate != "none":
        shape = (batch, tokens, heads, *([dim] if gate == "channel" else []))
        options = {"g": torch.nn.functional.logsigmoid(torch.randn(shape, device="cuda")) / 16}
        gate_of_ours = options["g"].transpose(1, 2).contiguous()
    return {"ours": lambda: sides.Call(ours, q, k, v, gate_of_ours, bshd=True),
            **{name: lambda module=module, function=function:
               sides.Call(getattr(importlib.import_module(module), function), q, k, v, **options)
               for name, (module, function) in FORMS[gate].items()}}


def figures(turns, bytes_moved):
    """Returns the microseconds of each side, the GB/s of ours, and the time of fla's fastest form over the time of
    ours."""
    names = [name for name in turns[0] if name != "ours"]
    found = clocks.medians(turns, "us", 1e6)
    if "ours" in turns[0]:
        found["ours_gbps"] = bytes_moved / found["ours_us"] * 1e-3
        if names:
            found["ratio"] = statistics.median(min(turn[name] for name in names) / turn["ours"] for turn in turns)
    return found


def measure(ours, machine, row, gate, seconds):
    dim, heads, batch, tokens = row
    found = clocks.ready(makers(ours, row, gate), machine.clock)
    answers = [side.o.float() for side in found.values()]
    agree = all(close(answer, answers[-1]) for answer in answers)
    del answers
    turns = clocks.take_turns(found, seconds)
    gates = {"none": 0, "token": 1, "channel": dim}[gate]
    bytes_moved = batch * tokens * heads * (4 * 2 * dim + 4 * gates)
    return {**dict(zip(AXES, row)), "gate": gate, "turns": len(turns), "agree": agree, **figures(turns, bytes_moved)}


def rows(machine, options):
    for gate in FORMS:
        for row in ROWS:
            yield measure(sides.operators().linear, machine, row, gate, options.seconds)


def table(rows, about):
    forms = ("chunk", "fused_chunk")
    peers = f"{about['fla']}, PyTorch {about['torch']}, bf16"
    text = (f"{pages.measured(about, peers, 'linear')} {pages.MICROSECONDS} GB/s counts Q, K, V and "
            "the gate read once, and O written once. The ratio of a turn is the time of the fastest form of fla over the "
            f"time of ours. {pages.ratios(about)}\n\n" + pages.leads(about, rows, {"fla": "ratio"}))
    cells = [[row["gate"], row["head_dim"], row["heads"], f"{row['batch']} x {row['q_len']}",
              pages.cell(row, "ours_us", ".1f") + pages.differ(row), pages.cell(row, "ours_gbps", ".0f"),
              *(pages.cell(row, f"{form}_us", ".1f") for form in forms), pages.cell(row, "ratio", ".2f")]
             for row in rows]
    return text + pages.markdown(["gate", "head_dim", "heads", "sequences x tokens", "ours", "GB/s",
                                  *(f"fla, {form.replace('_', ' ')}" for form in forms), "fla / ours"], cells)
