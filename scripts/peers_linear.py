#!/usr/bin/env python3
"""Linear attention on a GPU, bf16: proto6_linear against flash-linear-attention (fla), in turns.

    scripts/peers_linear.py [--device cuda:0] [--program FILE] [--seconds 1] [--out peers_linear.json] [--page]

Without a gate and with one for each token and head (simple GLA), causal, [batch, tokens, heads, head_dim]. Of fla each
row has the forms that the project found fastest. All sides take turns, round by round; ratios are taken round by round.
fla is timed as scripts/peers_gpu.py times its peers: a CUDA graph fills twice the last-level cache before each launch.
Ours is the program itself, which times from cold caches in the same way, on values of its own, and checks them against
its oracle; the answers of fla's forms are compared with each other. A form that does not run is left out, and one line
says why. --page writes the table into docs/peers.md; --from needs neither PyTorch nor a GPU.
"""

import importlib
import json
import sys

import peers_gpu as peers
import peers_paged as paged

torch = peers.torch
ROUNDS, LAUNCHES = 3, 15  # rounds of each row, and a peer's launches in a round
BEGIN, END = "<!-- peers-linear:begin -->\n", "<!-- peers-linear:end -->\n"
# head_dim, heads, sequences, tokens.
ROWS = [(64, 32, 4, 4096), (64, 32, 1, 65536), (64, 32, 16, 1024), (64, 1, 1, 1024), (128, 16, 4, 4096),
        (128, 16, 1, 65536), (128, 32, 1, 8192), (256, 8, 4, 4096)]
GATES = ("none", "token")
# fla's forms by gate: module and function.
FORMS = {"none": {"chunk": ("fla.ops.linear_attn", "chunk_linear_attn"),
                  "fused_chunk": ("fla.ops.linear_attn", "fused_chunk_linear_attn")},
         "token": {"chunk": ("fla.ops.simple_gla", "chunk_simple_gla")}}


def command(program, device, row, gate, seconds, folder):
    """Of one run of ours."""
    axes = dict(zip(("head_dim", "heads", "batch", "q_len"), row), value_dim=row[0], gate=gate, variant="fused",
                dtype="bf16", out_dtype="bf16", causal=1, normalised=0, feature="identity", layout="bshd",
                lengths="equal", state=0, segments=0, chunk=64)
    return [str(program), "--device", device, "--json", "--quiet", "--budget", str(2 * seconds),
            "--measurements", str(folder / "measurements.jsonl"), "--out", str(folder / "findings.jsonl"),
            *(word for name, value in axes.items() for word in ("--axis", f"{name}={value}"))]


def cold_seconds(lines):
    """Median seconds, the least bytes that could be moved, and whether the result was right, of what ours prints."""
    records = [json.loads(line) for line in lines if line.startswith("{")]
    record = next((record for record in records if "case" in record), None)
    times = [t["median_s"] for t in (record or {}).get("time") or [] if t["scope"] == "device_cold"]
    if not times:
        sys.exit(f"peers_linear: ours has no cold time: {(record or {}).get('reason') or 'nothing was measured'}")
    return times[0], record["work"]["bytes"], bool((record["check"] or {}).get("ok"))


class Fla(peers.Peer):
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
    options = {"normalize": False}
    if gate == "token":
        options = {"g": torch.nn.functional.logsigmoid(torch.randn(batch, tokens, heads, device="cuda")) / 16}
    return {name: lambda module=module, function=function:
                Fla(getattr(importlib.import_module(module), function), q, k, v, **options)
            for name, (module, function) in FORMS[gate].items()}


def figures(rounds, bytes_moved):
    """Microseconds of each side, ours in GB/s, and the time of fla's fastest form over ours."""
    names = [name for name in rounds[0] if name != "ours"]
    found = {f"{name}_us": 1e6 * peers.statistics.median(each[name] for each in rounds) for name in ("ours", *names)}
    found["ours_gbps"] = bytes_moved / found["ours_us"] * 1e-3
    if names:
        found["ratio"] = peers.statistics.median(min(each[name] for name in names) / each["ours"] for each in rounds)
    return found


def measure(options, flush, row, gate, folder):
    sides = paged.captured(makers(row, gate), flush, "peers_linear")
    answers = [side.o.float() for side in sides.values()]
    agree, rounds, bytes_moved = all(close(answer, answers[0]) for answer in answers), [], 0
    del answers
    for turn in range(ROUNDS):
        times = {}
        for step in ("ours", *sides) if turn % 2 == 0 else (*reversed(sides), "ours"):
            if step == "ours":
                words = command(options.library, options.device, row, gate, options.seconds, folder)
                times["ours"], bytes_moved, right = cold_seconds(paged.lines_of(words))
                agree = agree and right
            else:
                times[step] = peers.statistics.median(sides[step].seconds() for _ in range(LAUNCHES))
        rounds.append(times)
    return {**dict(zip(("head_dim", "heads", "batch", "q_len"), row)), "gate": gate, "rounds": len(rounds),
            "agree": agree, **figures(rounds, bytes_moved)}


def table(rows, about):
    forms = ("chunk", "fused_chunk")
    lines = [f"Measured on {about['device']} with {about['fla']}, PyTorch {about['torch']}, bf16, by "
             "`scripts/peers_linear.py`. Microseconds from cold caches; GB/s counts Q, K and V read once and O written "
             "once; the ratio is that of fla's fastest form to ours, the median round by round.\n\n",
             "| gate | head_dim | heads | sequences x tokens | ours | GB/s | " +
             " | ".join(f"fla, {form.replace('_', ' ')}" for form in forms) + " | fla / ours |\n", "|---" * 9 + "|\n"]
    for row in rows:
        cells = [row["gate"], row["head_dim"], row["heads"], f"{row['batch']} x {row['q_len']}",
                 f"{row['ours_us']:.1f}{'' if row['agree'] else ' (results differ)'}", f"{row['ours_gbps']:.0f}",
                 *(f"{row[form + '_us']:.1f}" if form + "_us" in row else "" for form in forms),
                 f"{row['ratio']:.2f}" if "ratio" in row else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    def rows(options, flush, folder):
        for gate in GATES:
            for row in ROWS:
                yield measure(options, flush, row, gate, folder)

    return paged.run("peers_linear", __doc__.split("\n")[0], "proto6_linear", lambda: {"fla": paged.version("fla-core")},
                     rows, table, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
