#!/usr/bin/env python3
"""Modified attention on the CPU, f32: proto7_variants against PyTorch and ONNX Runtime, in one process.

    scripts/peers_variants_cpu.py [--device cpu:threads=2] [--seconds 2] [--out peers_variants_cpu.json] [--page]

ALiBi, a soft cap of 30 and a window of 256 keys, 8 heads, 2048 tokens. All sides take turns on the same values, each
behind a fill of a buffer that is larger than the caches; ratios are taken turn by turn. Results are compared with
attention in double.

Needs the library attention_c (ninja -C build/release attention_c), and what scripts/peers.requirements.txt lists. PyTorch
(torch) takes part where it is installed: scaled_dot_product_attention with an additive mask, and FlexAttention where it
compiles. --page writes the table into docs/peers.md; --from measures nothing.
"""

import ctypes
import json
import pathlib
import platform
import statistics
import sys
import tempfile
import time

import peers_gpu as peers

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
    import safetensors.numpy
except ModuleNotFoundError:
    np = None  # --from needs none

torch = peers.torch
HEADS, LENGTH, CAP, WINDOW = 8, 2048, 30, 256
FLUSH_BYTES = 256 << 20
BEGIN, END = "<!-- peers-variants-cpu:begin -->\n", "<!-- peers-variants-cpu:end -->\n"
# An f32 result is within 1e-5 + 1e-4 |x| of the truth (common/data/compare.h).
ATOL, RTOL = 1e-5, 1e-4
NAMES = {"sdpa": "SDPA", "flex": "FlexAttention", "ort": "ONNX Runtime"}
ROWS = {
    "full": "causal=0",
    "causal": "causal=1",
    "ALiBi": "causal=0 alibi=1",
    "ALiBi, causal": "causal=1 alibi=1",
    "soft cap": f"causal=0 soft_cap={CAP}",
    "soft cap, causal": f"causal=1 soft_cap={CAP}",
    "window, causal": f"causal=1 window_left={WINDOW}",
}


def slopes():
    return 2.0 ** (-8 * np.arange(1, HEADS + 1) / HEADS)


def additive(name):
    """What is added to the scores, f32: [1, heads, n, n] with ALiBi, else [1, 1, n, n]."""
    distance = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))  # of a query to a key
    added = np.zeros((1, 1, LENGTH, LENGTH), np.float32)
    if "ALiBi" in name:
        added = (-slopes()[None, :, None, None] * distance).astype(np.float32)
    if "causal" in name:
        added[..., distance < 0] = -np.inf
    if "window" in name:
        added[..., distance > WINDOW] = -np.inf
    return added


def reference(name, q, k, v):
    """Attention in double, and what a result in f32 may differ by: scores are rounded where they are large, and so are
    weights then by a share."""
    added = additive(name)
    o, allowed = np.empty(q.shape), np.empty(q.shape)
    for head in range(HEADS):
        s = q[0, head].astype(float) @ k[0, head].astype(float).T / np.sqrt(q.shape[3])
        if "soft cap" in name:
            s = CAP * np.tanh(s / CAP)
        s += added[0, head % added.shape[1]]
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        o[0, head] = p @ v[0, head].astype(float)
        largest = np.abs(s, where=np.isfinite(s), out=np.zeros_like(s)).max(axis=1, keepdims=True)
        allowed[0, head] = ATOL + RTOL * np.abs(o[0, head]) + 2.0**-23 * largest * (p @ np.abs(v[0, head]))
    return o, allowed


class Ours:
    def __init__(self, library, device):
        self.lib = ctypes.CDLL(str(library))
        self.lib.flash_peer_open.restype = ctypes.c_void_p
        self.lib.flash_peer_load.restype = ctypes.c_char_p
        self.lib.flash_peer_launch.restype = ctypes.c_double
        self.message = ctypes.create_string_buffer(4096)
        self.handle = ctypes.c_void_p(self.checked(self.lib.flash_peer_open(device.encode(), *self.room())))

    def room(self):
        return self.message, ctypes.c_size_t(len(self.message))

    def checked(self, result):
        if not result:
            sys.exit("peers_variants_cpu: " + self.message.value.decode())
        return result

    def load(self, axes, path):
        return self.checked(self.lib.flash_peer_load(self.handle, axes.encode(), str(path).encode(),
                                                     *self.room())).decode()

    def seconds(self):
        return self.checked(self.lib.flash_peer_launch(self.handle, *self.room()))

    def output(self, shape):
        self.seconds()
        o = np.empty(shape, np.float32)
        self.lib.flash_peer_output(self.handle, o.ctypes.data_as(ctypes.c_void_p))
        return o


class Peer:
    """A call of another library's; run() gives [1, heads, n, head_dim] as something that numpy takes."""

    flush = None

    def seconds(self):
        Peer.flush.fill(0)
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def output(self, _shape):
        return np.asarray(self.run())


class Sdpa(Peer):
    """torch.nn.functional.scaled_dot_product_attention; what it does not know is an additive mask."""

    def __init__(self, name, q, k, v):
        if "soft cap" in name:
            raise NotImplementedError
        self.tensors = [torch.from_numpy(x) for x in (q, k, v)]
        plain = name in ("full", "causal")
        self.options = ({"is_causal": name == "causal"} if plain else {"attn_mask": torch.from_numpy(additive(name))})

    def run(self):
        return torch.nn.functional.scaled_dot_product_attention(*self.tensors, **self.options)


class Flex(Peer):
    """torch.nn.attention.flex_attention, compiled for the one shape."""

    def __init__(self, name, q, k, v):
        from torch.nn.attention import flex_attention as flex
        self.tensors = [torch.from_numpy(x) for x in (q, k, v)]
        slope = torch.from_numpy(slopes().astype(np.float32))

        def alibi(score, _batch, head, row, key):
            return score + slope[head] * (key - row)

        def soft_cap(score, _batch, _head, _row, _key):
            return CAP * torch.tanh(score / CAP)

        def causal(_batch, _head, row, key):
            return row >= key

        def window(_batch, _head, row, key):
            return (row >= key) & (row - key <= WINDOW)

        mask = window if "window" in name else causal if "causal" in name else None
        self.options = {
            "score_mod": alibi if "ALiBi" in name else soft_cap if "soft cap" in name else None,
            "block_mask": flex.create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu") if mask else None}
        torch._dynamo.reset()  # each row is compiled for itself
        self.function = torch.compile(flex.flex_attention, dynamic=False)

    def run(self):
        with torch.no_grad():
            return self.function(*self.tensors, **self.options)


class OnnxRuntime(Peer):
    """com.microsoft.GroupQueryAttention, which is causal and has soft cap and window; MultiHeadAttention, with ALiBi as
    an additive tensor, for the rest."""

    def __init__(self, name, q, k, v, threads):
        dim = q.shape[3]
        grouped = "causal" in name and "ALiBi" not in name
        if "soft cap" in name and not grouped:
            raise NotImplementedError

        def rows(x):
            return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(1, LENGTH, HEADS * dim))

        inputs = {"q": rows(q), "k": rows(k), "v": rows(v)}
        outputs = {"o": (1, LENGTH, HEADS * dim)}
        if grouped:
            operands = [*inputs, "", "", "seqlens_k", "total"]
            inputs |= {"seqlens_k": np.array([LENGTH - 1], np.int32), "total": np.array([LENGTH], np.int32)}
            outputs |= {which: (1, HEADS, LENGTH, dim) for which in ("present_k", "present_v")}
            options = {"kv_num_heads": HEADS}
            if "soft cap" in name:
                options["softcap"] = float(CAP)
            if "window" in name:
                options["local_window_size"] = WINDOW + 1
        else:
            operands = list(inputs)
            options = {"unidirectional": int("causal" in name)}
            if "ALiBi" in name:
                operands += ["", "", "bias"]
                inputs["bias"] = additive("ALiBi")
        types = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int32): onnx.TensorProto.INT32}
        node = onnx.helper.make_node("GroupQueryAttention" if grouped else "MultiHeadAttention", operands,
                                     list(outputs), domain="com.microsoft", num_heads=HEADS, **options)
        graph = onnx.helper.make_graph(
            [node], "attention",
            [onnx.helper.make_tensor_value_info(key, types[x.dtype], x.shape) for key, x in inputs.items()],
            [onnx.helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, shape) for key, shape in outputs.items()])
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = ort.SessionOptions()
        session.intra_op_num_threads = threads
        session.inter_op_num_threads = 1
        session.add_session_config_entry("session.set_denormal_as_zero", "1")  # as our device does
        session.add_session_config_entry("session.force_spinning_stop", "1")  # leave the cores to the next turn
        self.session = ort.InferenceSession(model.SerializeToString(), session, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.values = [ort.OrtValue.ortvalue_from_numpy(x) for x in inputs.values()]
        for key, value in zip(inputs, self.values):
            self.binding.bind_ortvalue_input(key, value)
        self.results = [ort.OrtValue.ortvalue_from_numpy(np.full(shape, np.nan, np.float32))
                        for shape in outputs.values()]
        for key, value in zip(outputs, self.results):
            self.binding.bind_ortvalue_output(key, value)
        self.shape = (1, LENGTH, HEADS, dim)

    def run(self):
        self.session.run_with_iobinding(self.binding)
        return self.results[0].numpy().reshape(self.shape).transpose(0, 2, 1, 3)


def peers_of(name, q, k, v, threads):
    """Those that can do it."""
    makers = {"ort": lambda: OnnxRuntime(name, q, k, v, threads)}
    if torch:
        makers |= {"sdpa": lambda: Sdpa(name, q, k, v), "flex": lambda: Flex(name, q, k, v)}
    found = {}
    for peer, make in makers.items():
        try:
            found[peer] = make()
            found[peer].run()  # here FlexAttention compiles, if it can
        except NotImplementedError:
            found.pop(peer, None)
        except Exception as error:  # of a compiler that is missing, say
            found.pop(peer, None)
            print(f"{NAMES[peer]}, {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def measure(ours, plain, name, dim, options, folder):
    q, k, v = np.random.default_rng(LENGTH + dim).standard_normal((3, 1, HEADS, LENGTH, dim), np.float32)
    path = folder / "qkv.safetensors"
    safetensors.numpy.save_file({"q": q, "k": k, "v": v}, path)
    common = "variant=tuned out_dtype=f32 layout=bhsd"
    tile = ours.load(f"{common} {ROWS[name]}", path)
    plain.load(f"{common} {ROWS['causal' if 'causal' in name else 'full']}", path)
    others = peers_of(name, q, k, v, options.threads)
    sides = {"ours": ours, "plain": plain, **others}
    want, allowed = reference(name, q, k, v)
    errors = {which: np.abs(side.output(want.shape) - want) for which, side in sides.items() if which != "plain"}
    agree = all(np.all(error <= allowed) for error in errors.values())  # a NaN does not
    turns = peers.take_turns(sides, options.seconds)
    return {"modifier": name, "head_dim": dim, "length": LENGTH, "tile": tile, "turns": len(turns),
            "agree": bool(agree), "max_abs": {side: float(error.max()) for side, error in errors.items()},
            **{f"{side}_ms": 1e3 * statistics.median(turn[side] for turn in turns) for side in sides},
            "cost": statistics.median(turn["ours"] / turn["plain"] for turn in turns),
            **{f"{side}_ratio": statistics.median(turn[side] / turn["ours"] for turn in turns) for side in others}}


def table(rows, about):
    lines = [f"Measured on {about['device']} with PyTorch {about['torch']} and ONNX Runtime {about['ort']}, f32, {HEADS} "
             f"heads, {LENGTH} tokens, {about['threads']} threads, by `scripts/peers_variants_cpu.py`. Milliseconds, and "
             "the medians of the ratios turn by turn.\n\n",
             "| modifier | head_dim | tile | ours | ours / plain | " +
             " | ".join(f"{name} | {name} / ours" for name in NAMES.values()) + " |\n", "|---" * 11 + "|\n"]
    for row in rows:
        cells = [row["modifier"], row["head_dim"], row["tile"],
                 f"{row['ours_ms']:.1f}{'' if row['agree'] else ' (results differ)'}", f"{row['cost']:.2f}"]
        for peer in NAMES:
            there = f"{peer}_ms" in row
            cells += [f"{row[peer + '_ms']:.1f}", f"{row[peer + '_ratio']:.2f}"] if there else ["", ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    options = peers.arguments(__doc__.split("\n")[0], 2, "cpu:threads=2", peers.ROOT / "build/release/libattention_c.so")
    if options.source:
        result = json.loads(options.source.read_text())
        return peers.finish(options, result, table(result["rows"], result["about"]), BEGIN, END)
    if np is None:
        sys.exit("peers_variants_cpu: scripts/peers.requirements.txt lists what is missing")
    options.threads = int(options.device.partition("threads=")[2] or 1)
    if torch:
        torch.set_num_threads(options.threads)
        torch.set_flush_denormal(True)
    Peer.flush = np.empty(FLUSH_BYTES, np.uint8)
    result = {"about": {"device": processor(), "torch": torch.__version__.split("+")[0] if torch else "(not there)",
                        "ort": ort.__version__, "threads": options.threads}, "rows": []}
    ours, plain = (Ours(options.library, options.device) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        for name in ROWS:
            for dim in (64, 128):
                row = measure(ours, plain, name, dim, options, pathlib.Path(folder))
                result["rows"].append(row)
                print(f"{name} D={dim} {row['tile']}: {row['ours_ms']:.1f} ms, {row['cost']:.3f} of plain; " +
                      ", ".join(f"{peer} {row[peer + '_ms']:.1f} ({row[peer + '_ratio']:.2f})"
                                for peer in NAMES if peer + "_ms" in row) +
                      ("" if row["agree"] else " RESULTS DIFFER"), flush=True)
    return peers.finish(options, result, table(result["rows"], result["about"]), BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
