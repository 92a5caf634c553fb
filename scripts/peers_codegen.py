#!/usr/bin/env python3
"""What generates attention kernels for users on the CPU, f32: PyTorch Inductor and ONNX Runtime against ours, in turns.

    scripts/peers_codegen.py [--device cpu:threads=2] [--seconds 4] [--out peers_codegen.json] [--page]

Whole attention, 8 heads, 1024 tokens: full, causal, and causal with ALiBi and a soft cap of 30, as proto5_codegen has
them. Inductor is torch.compile of the definition as a user writes it, and of FlexAttention; ONNX Runtime is given the
same definition as a graph of MatMul and Softmax, and optimises that. All sides take turns on the same values, each behind
a fill of a buffer that is larger than the caches. Results are compared with attention in double.

Needs the library attention_c (ninja -C build/release attention_c), what scripts/peers.requirements.txt lists, and PyTorch
(torch), which is left out where it is not installed. --page writes the table into docs/peers.md; --from measures nothing.
"""

import json
import math
import pathlib
import statistics
import sys
import tempfile

import peers_gpu as peers
import peers_variants_cpu as cpu

torch, np = cpu.torch, cpu.np
HEADS, LENGTH, CAP = 8, 1024, 30
BEGIN, END = "<!-- peers-codegen:begin -->\n", "<!-- peers-codegen:end -->\n"
NAMES = {"inductor": "Inductor", "flex": "FlexAttention", "ort": "ONNX Runtime"}
ROWS = {"full": "causal=0", "causal": "causal=1", "modified, causal": f"causal=1 alibi=1 soft_cap={CAP}"}


def added(name):
    """What is added to the scores, f32: [1, heads, n, n] with ALiBi, else [1, 1, n, n]."""
    distance = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))  # of a query to a key
    mask = np.where(distance < 0, -np.inf, 0) if "causal" in name else np.zeros_like(distance, float)
    slopes = cpu.slopes() if "modified" in name else np.zeros(1)
    return (mask - slopes[:, None, None] * distance)[None].astype(np.float32)


def reference(name, q, k, v):
    """Attention in double, and what a result in f32 may differ by."""
    s = q.astype(float) @ k.astype(float).swapaxes(2, 3) / math.sqrt(q.shape[3])
    s = (CAP * np.tanh(s / CAP) if "modified" in name else s) + added(name)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    p /= p.sum(axis=3, keepdims=True)
    o = p @ v.astype(float)
    largest = np.abs(s, where=np.isfinite(s), out=np.zeros_like(s)).max(axis=3, keepdims=True)
    return o, cpu.ATOL + cpu.RTOL * np.abs(o) + 2.0**-23 * largest * (p @ np.abs(v.astype(float)))


class Inductor(cpu.Peer):
    """torch.compile of the definition."""

    def __init__(self, name, q, k, v):
        self.tensors = [torch.from_numpy(x) for x in (q, k, v)]
        addend = torch.from_numpy(added(name)) if name != "full" else None
        scale, modified = 1 / math.sqrt(q.shape[3]), "modified" in name

        def attention(q, k, v):
            s = q @ k.transpose(2, 3) * scale
            if modified:
                s = CAP * torch.tanh(s / CAP)
            if addend is not None:
                s = s + addend
            return torch.softmax(s, dim=3) @ v

        torch._dynamo.reset()  # each row is compiled for itself
        self.function = torch.compile(attention, dynamic=False)

    def run(self):
        with torch.no_grad():
            return self.function(*self.tensors)


class Flex(cpu.Peer):
    """torch.nn.attention.flex_attention, compiled for the one shape."""

    def __init__(self, name, q, k, v):
        from torch.nn.attention import flex_attention as flex
        self.tensors = [torch.from_numpy(x) for x in (q, k, v)]
        slope = torch.from_numpy(cpu.slopes().astype(np.float32))

        def modified(score, _batch, head, row, key):
            return CAP * torch.tanh(score / CAP) + slope[head] * (key - row)

        def causal(_batch, _head, row, key):
            return row >= key

        self.options = {"score_mod": modified if "modified" in name else None,
                        "block_mask": flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
                                      if "causal" in name else None}
        torch._dynamo.reset()
        self.function = torch.compile(flex.flex_attention, dynamic=False)

    def run(self):
        with torch.no_grad():
            return self.function(*self.tensors, **self.options)


class OnnxRuntime(cpu.Peer):
    """The definition as a graph."""

    def __init__(self, name, q, k, v, threads):
        onnx, ort, helper = cpu.onnx, cpu.ort, cpu.onnx.helper
        constants = {"scale": np.float32(1 / math.sqrt(q.shape[3])), "cap": np.float32(CAP), "added": added(name)}
        nodes = [helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
                 helper.make_node("MatMul", ["q", "kt"], ["products"]),
                 helper.make_node("Mul", ["products", "scale"], ["scores"])]
        score = "scores"
        if "modified" in name:
            nodes += [helper.make_node("Div", [score, "cap"], ["divided"]), helper.make_node("Tanh", ["divided"], ["tanh"]),
                      helper.make_node("Mul", ["tanh", "cap"], ["capped"])]
            score = "capped"
        if name != "full":
            nodes.append(helper.make_node("Add", [score, "added"], ["masked"]))
            score = "masked"
        nodes += [helper.make_node("Softmax", [score], ["weights"], axis=3),
                  helper.make_node("MatMul", ["weights", "v"], ["o"])]
        used = {operand for node in nodes for operand in node.input}
        inputs = {"q": q, "k": k, "v": v}
        shape = list(q.shape)
        graph = helper.make_graph(
            nodes, "attention",
            [helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, shape) for key in inputs],
            [helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, shape)],
            [onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items() if key in used])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        session = ort.SessionOptions()
        session.intra_op_num_threads = threads
        session.inter_op_num_threads = 1
        session.add_session_config_entry("session.set_denormal_as_zero", "1")  # as our device does
        session.add_session_config_entry("session.force_spinning_stop", "1")  # leave the cores to the next turn
        self.session = ort.InferenceSession(model.SerializeToString(), session, providers=["CPUExecutionProvider"])
        self.inputs = inputs

    def run(self):
        return self.session.run(None, self.inputs)[0]


def peers_of(name, q, k, v, threads):
    """Those that can do it."""
    makers = {"ort": lambda: OnnxRuntime(name, q, k, v, threads)}
    if torch:
        makers |= {"inductor": lambda: Inductor(name, q, k, v), "flex": lambda: Flex(name, q, k, v)}
    found = {}
    for peer, make in makers.items():
        try:
            found[peer] = make()
            found[peer].run()  # here Inductor compiles, if it can
        except Exception as error:  # of a compiler that is missing, say
            found.pop(peer, None)
            print(f"{NAMES[peer]}, {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def measure(ours, name, dim, options, folder):
    q, k, v = np.random.default_rng(LENGTH + dim).standard_normal((3, 1, HEADS, LENGTH, dim), np.float32)
    path = folder / "qkv.safetensors"
    cpu.safetensors.numpy.save_file({"q": q, "k": k, "v": v}, path)
    ours.load(f"variant=tuned out_dtype=f32 layout=bhsd {ROWS[name]}", path)
    others = peers_of(name, q, k, v, options.threads)
    sides = {"ours": ours, **others}
    want, allowed = reference(name, q, k, v)
    agree = all(np.all(np.abs(side.output(want.shape) - want) <= allowed) for side in sides.values())  # a NaN does not
    turns = peers.take_turns(sides, options.seconds)
    return {"work": name, "head_dim": dim, "turns": len(turns), "agree": bool(agree),
            **{f"{side}_ms": 1e3 * statistics.median(turn[side] for turn in turns) for side in sides},
            **{f"{side}_ratio": peers.interval([turn[side] / turn["ours"] for turn in turns]) for side in others}}


def cell(row, peer):
    if peer + "_ms" not in row:
        return ["", ""]
    ratio, low, high = row[peer + "_ratio"]
    return [f"{row[peer + '_ms']:.1f}", f"{ratio:.2f} ({low:.2f} to {high:.2f})"]


def table(rows, about):
    lines = [f"Measured on {about['device']} with PyTorch {about['torch']} and ONNX Runtime {about['ort']}, f32, {HEADS} "
             f"heads, {LENGTH} tokens, {about['threads']} threads, by `scripts/peers_codegen.py`. Milliseconds, and the "
             "medians of the ratios turn by turn with their 95 % intervals.\n\n",
             "| attention | head_dim | ours | " + " | ".join(f"{name} | {name} / ours" for name in NAMES.values()) + " |\n",
             "|---" * 9 + "|\n"]
    for row in rows:
        ours = f"{row['ours_ms']:.1f}{'' if row['agree'] else ' (results differ)'}"
        cells = [row["work"], row["head_dim"], ours] + [text for peer in NAMES for text in cell(row, peer)]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    options = peers.arguments(__doc__.split("\n")[0], 4, "cpu:threads=2", peers.ROOT / "build/release/libattention_c.so")
    if options.source:
        result = json.loads(options.source.read_text())
        return peers.finish(options, result, table(result["rows"], result["about"]), BEGIN, END)
    if np is None:
        sys.exit("peers_codegen: scripts/peers.requirements.txt lists what is missing")
    if not options.device.startswith("cpu"):
        sys.exit("peers_codegen: --device is cpu or cpu:threads=N")
    options.threads = int(options.device.partition("threads=")[2] or 1)
    if torch:
        torch.set_num_threads(options.threads)
        torch.set_flush_denormal(True)
    cpu.Peer.flush = np.empty(cpu.FLUSH_BYTES, np.uint8)
    result = {"about": {"device": cpu.processor(), "torch": torch.__version__.split("+")[0] if torch else "(not there)",
                        "ort": cpu.ort.__version__, "threads": options.threads}, "rows": []}
    ours = cpu.Ours(options.library, options.device)
    with tempfile.TemporaryDirectory() as folder:
        for name in ROWS:
            for dim in (64, 128):
                row = measure(ours, name, dim, options, pathlib.Path(folder))
                result["rows"].append(row)
                print(f"{name} D={dim}: {row['ours_ms']:.1f} ms; " +
                      ", ".join(f"{peer} {' '.join(cell(row, peer))}" for peer in NAMES if peer + "_ms" in row) +
                      ("" if row["agree"] else " RESULTS DIFFER"), flush=True)
    return peers.finish(options, result, table(result["rows"], result["about"]), BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
