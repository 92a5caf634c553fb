#!/usr/bin/env python3
"""Linear attention on a GPU, bf16: attn::linear against flash-linear-attention (fla), in turns.

    scripts/peers_linear.py [--device cuda:0] [--libraries FOLDER] [--seconds 0.05] [--out peers_linear.json] [--page]

Without a gate and with one for each token and head (simple GLA), causal, [batch, tokens, heads, head_dim]. Of fla each
row has the forms that the project found fastest. All sides take turns on the same values; ratios are taken turn by turn.
All are timed as scripts/peers_gpu.py times its peers: a CUDA graph fills twice the last-level cache before each launch.
Ours is PyTorch's operator of this project (docs/extension.md). A side that does not run is left out, and one line says
why. --page writes the table into docs/peers.md; --from needs neither PyTorch nor a GPU.
"""

import importlib
import sys

import peers_gpu as peers
import peers_paged as paged

torch = peers.torch
BEGIN, END = "<!-- peers-linear:begin -->\n", "<!-- peers-linear:end -->\n"
# head_dim, heads, sequences, tokens.
ROWS = [(64, 32, 4, 4096), (64, 32, 1, 65536), (64, 32, 16, 1024), (64, 1, 1, 1024), (128, 16, 4, 4096),
        (128, 16, 1, 65536), (128, 32, 1, 8192), (256, 8, 4, 4096)]
GATES = ("none", "token")
# fla's forms by gate: module and function.
FORMS = {"none": {"chunk": ("fla.ops.linear_attn", "chunk_linear_attn"),
                  "fused_chunk": ("fla.ops.linear_attn", "fused_chunk_linear_attn")},
         "token": {"chunk": ("fla.ops.simple_gla", "chunk_simple_gla")}}


class First(peers.Peer):
    """A function whose first result is the output."""

    def __init__(self, function, *tensors, **options):
        self.function, self.tensors, self.options = function, tensors, options

    def run(self):
        with torch.no_grad():
            return self.function(*self.tensors, **self.options)[0]


def close(got, want):
    """Outputs are sums over all tokens, so an element may be off by what the others' size makes of rounding."""
    size = want.square().mean().sqrt()
    return bool(((got - want).abs() <= 0.1 * (want.abs() + size)).all())  # a NaN is not


def makers(row, gate):
    """What makes each peer, by its name."""
    dim, heads, batch, tokens = row
    torch.manual_seed(tokens + dim)
    q, k, v = (torch.randn(batch, tokens, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    options, gate_of_ours = {"normalize": False}, None
    if gate == "token":
        options = {"g": torch.nn.functional.logsigmoid(torch.randn(batch, tokens, heads, device="cuda")) / 16}
        gate_of_ours = options["g"].transpose(1, 2).contiguous()
    ours = importlib.import_module("attn_proto").linear
    return {"ours": lambda: First(ours, q, k, v, gate_of_ours, bshd=True),
            **{name: lambda module=module, function=function:
               First(getattr(importlib.import_module(module), function), q, k, v, **options)
               for name, (module, function) in FORMS[gate].items()}}


def figures(turns, bytes_moved):
    """Microseconds of each side, ours in GB/s, and the time of fla's fastest form over ours."""
    names = [name for name in turns[0] if name != "ours"]
    found = {f"{name}_us": 1e6 * peers.statistics.median(turn[name] for turn in turns) for name in turns[0]}
    if "ours" in turns[0]:
        found["ours_gbps"] = bytes_moved / found["ours_us"] * 1e-3
        if names:
            found["ratio"] = peers.statistics.median(min(turn[name] for name in names) / turn["ours"] for turn in turns)
    return found


def measure(options, flush, row, gate):
    dim, heads, batch, tokens = row
    sides = paged.captured(makers(row, gate), flush, "peers_linear")
    answers = [side.o.float() for side in sides.values()]
    agree = all(close(answer, answers[-1]) for answer in answers)
    del answers
    turns = peers.take_turns(sides, options.seconds)
    bytes_moved = batch * tokens * heads * (4 * 2 * dim + (4 if gate == "token" else 0))
    return {**dict(zip(("head_dim", "heads", "batch", "q_len"), row)), "gate": gate, "turns": len(turns),
            "agree": agree, **figures(turns, bytes_moved)}


def table(rows, about):
    forms = ("chunk", "fused_chunk")
    lines = [f"Measured on {about['device']} with {about['fla']}, PyTorch {about['torch']}, bf16, by "
             "`scripts/peers_linear.py`. Microseconds from cold caches; GB/s counts Q, K and V read once and O written "
             "once; the ratio is that of fla's fastest form to ours, the median turn by turn.\n\n",
             "| gate | head_dim | heads | sequences x tokens | ours | GB/s | " +
             " | ".join(f"fla, {form.replace('_', ' ')}" for form in forms) + " | fla / ours |\n", "|---" * 9 + "|\n"]
    for row in rows:
        cells = [row["gate"], row["head_dim"], row["heads"], f"{row['batch']} x {row['q_len']}",
                 f"{row['ours_us']:.1f}{'' if row['agree'] else ' (results differ)'}" if "ours_us" in row else "",
                 f"{row['ours_gbps']:.0f}" if "ours_us" in row else "",
                 *(f"{row[form + '_us']:.1f}" if form + "_us" in row else "" for form in forms),
                 f"{row['ratio']:.2f}" if "ratio" in row else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    def rows(options, flush):
        for gate in GATES:
            for row in ROWS:
                yield measure(options, flush, row, gate)

    return paged.run("peers_linear", __doc__.split("\n")[0], lambda: {"fla": paged.version("fla-core")}, rows, table,
                     BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
