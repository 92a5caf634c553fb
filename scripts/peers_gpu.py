#!/usr/bin/env python3
"""Forward attention on a GPU, 16-bit inputs: proto1_flash against cuDNN and FlashAttention-3, in one process.

    scripts/peers_gpu.py [--device cuda:0] [--seconds 0.2] [--out peers_gpu.json] [--page]

All take turns on the same values, each launch after the same pause and a flush of twice the last-level cache, timed by
events on the device; ratios are taken turn by turn. Needs PyTorch with CUDA, and the library proto1_flash_c that
scripts/gpu builds. FlashAttention-3 takes part where its Python module is found: flash_attn_interface, or
fa3_fwd_interface of the package fa3-fwd. --page writes the table into docs/peers.md.
"""

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import pathlib
import statistics
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ModuleNotFoundError:
    torch = None  # --from needs none

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/peers.md"
BEGIN, END = "<!-- peers-gpu:begin -->\n", "<!-- peers-gpu:end -->\n"
TOKENS, WIDTH = 16384, 2048
# Two bf16 results, each within 5e-3 + 1e-2 |x| of the truth (common/data/compare.h).
ATOL, RTOL = 1e-2, 2e-2
ROUNDS_AT_LEAST = 15
PAUSE_CYCLES = 400_000  # the host is then ahead of the device, and its own time is not measured


def flash_attention_3():
    """Its function and what it is called, or neither."""
    for module, package in ("flash_attn_interface", "flash-attn-3"), ("fa3_fwd_interface", "fa3-fwd"):
        try:
            function = importlib.import_module(module).flash_attn_func
            return function, f"{package} {importlib.metadata.version(package)}"
        except (ImportError, AttributeError):  # not there, or another module of that name
            pass
    return None, None


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
            sys.exit("peers_gpu: " + self.message.value.decode())
        return result

    def load(self, axes, path):
        return self.checked(self.lib.flash_peer_load(self.handle, axes.encode(), str(path).encode(),
                                                     *self.room())).decode()

    def seconds(self):
        torch.cuda._sleep(PAUSE_CYCLES)
        torch.cuda.synchronize()
        return self.checked(self.lib.flash_peer_launch(self.handle, *self.room()))

    def output(self, shape):
        o = torch.empty(shape, dtype=torch.float32)
        self.lib.flash_peer_output(self.handle, ctypes.c_void_p(o.data_ptr()))
        return o


class Peer:
    """Of PyTorch's: run() gives [batch, heads, length, head_dim]."""

    def __init__(self):
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")

    def seconds(self):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(PAUSE_CYCLES)
        self.flush.fill_(1)
        start.record()
        self.run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3


class CuDnn(Peer):
    """torch.nn.functional.scaled_dot_product_attention, held to the cuDNN backend."""

    def __init__(self, q, k, v, causal):
        super().__init__()
        self.tensors, self.causal = (q, k, v), causal

    def run(self):
        q, k, v = self.tensors
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1])

    def seconds(self):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return super().seconds()


class FlashAttention3(Peer):
    """In its own layout, [batch, length, heads, head_dim]."""

    def __init__(self, function, q, k, v, causal):
        super().__init__()
        self.function, self.causal = function, causal
        self.tensors = tuple(x.transpose(1, 2).contiguous() for x in (q, k, v))

    def run(self):
        o = self.function(*self.tensors, causal=self.causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)


def save(path, tensors):
    """A safetensors file, written here so that no package is needed for it."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(memoryview(tensor.contiguous().cpu().view(torch.int16).numpy()))


def measure(ours, fa3, dim, q_heads, kv_heads, batch, length, causal, seconds, folder):
    torch.manual_seed(length + dim)
    q, k, v = (torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
               for heads in (q_heads, kv_heads, kv_heads))
    save(folder / "qkv.safetensors", {"q": q, "k": k, "v": v})
    tile = ours.load(f"variant=tuned causal={int(causal)} out_dtype=bf16 layout=bhsd", folder / "qkv.safetensors")
    sides = {"ours": ours, "cudnn": CuDnn(q, k, v, causal)}
    if fa3:
        sides["fa3"] = FlashAttention3(fa3, q, k, v, causal)
    for _ in range(3):
        for side in sides.values():
            side.seconds()
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        want = sides["cudnn"].run().float().cpu()
    got = ours.output(want.shape)
    agree = bool(((got - want).abs() <= ATOL + RTOL * want.abs()).all())  # a NaN is not

    turns, spent = [], 0.0
    while len(turns) < ROUNDS_AT_LEAST or (spent < seconds and len(turns) < 200):
        order = list(sides) if len(turns) % 2 == 0 else list(reversed(sides))
        turns.append({name: sides[name].seconds() for name in order})
        spent += sum(turns[-1].values())
    flops = 4 * dim * q_heads * batch * (length * (length + 1) // 2 if causal else length * length)
    row = {"head_dim": dim, "q_heads": q_heads, "kv_heads": kv_heads, "batch": batch, "length": length,
           "causal": causal, "tile": tile, "turns": len(turns), "agree": agree}
    for name in sides:
        row[name + "_tflops"] = flops / statistics.median(turn[name] for turn in turns) * 1e-12
        if name != "ours":
            row[name + "_ratio"] = statistics.median(turn[name] / turn["ours"] for turn in turns)
    return row


def table(rows, about):
    peers = {"cudnn": f"cuDNN {about['cudnn']} through PyTorch {about['torch']}"}
    if about.get("fa3"):
        peers["fa3"] = f"FlashAttention-3 ({about['fa3']})"
    names = {"cudnn": "cuDNN", "fa3": "FA-3"}
    lines = [f"Measured on {about['device']} with {' and '.join(peers.values())}, bf16, by `scripts/peers_gpu.py`. "
             "TFLOPS, and the medians of the ratios turn by turn; causal counts the unmasked half.\n\n",
             "| head_dim | heads | mask | length | batch | tile | ours | " +
             " | ".join(f"{names[p]} | ours / {names[p]}" for p in peers) + " |\n",
             "|---" * (7 + 2 * len(peers)) + "|\n"]
    for row in rows:
        heads = f"{row['q_heads']}" if row["q_heads"] == row["kv_heads"] else f"{row['q_heads']}/{row['kv_heads']}"
        cells = [row["head_dim"], heads, "causal" if row["causal"] else "full", row["length"], row["batch"],
                 row["tile"], f"{row['ours_tflops']:.0f}{'' if row['agree'] else ' (results differ)'}"]
        for peer in peers:
            cells += [f"{row[peer + '_tflops']:.0f}", f"{row[peer + '_ratio']:.3f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build/gpu/libproto1_flash_c.so")
    parser.add_argument("--seconds", type=float, default=0.2, help="device time per shape")
    parser.add_argument("--out", type=pathlib.Path, help="rows as JSON")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="rows measured before, for --page")
    parser.add_argument("--page", action="store_true", help="write the table into docs/peers.md")
    options = parser.parse_args()

    if options.source:
        result = json.loads(options.source.read_text())
    elif torch is None:
        sys.exit("peers_gpu: PyTorch is not installed")
    else:
        version = torch.backends.cudnn.version()
        fa3, fa3_name = flash_attention_3()
        result = {"about": {"device": torch.cuda.get_device_name(0), "torch": torch.__version__.split("+")[0],
                            "cudnn": f"{version // 10000}.{version // 100 % 100}.{version % 100}", "fa3": fa3_name},
                  "rows": []}
        ours = Ours(options.library, options.device)
        shapes = [(dim, WIDTH // dim, WIDTH // dim, max(1, TOKENS // length), length, causal)
                  for dim in (64, 128, 256) for causal in (False, True)
                  for length in (512, 1024, 2048, 4096, 8192, 16384)]
        shapes += [(128, 64, 8, 1, length, causal) for causal in (False, True)
                   for length in (2048, 4096, 8192, 16384, 32768)]
        with tempfile.TemporaryDirectory() as folder:
            for shape in shapes:
                row = measure(ours, fa3, *shape, options.seconds, pathlib.Path(folder))
                result["rows"].append(row)
                ratios = ", ".join(f"{peer} {row[peer + '_tflops']:.1f} ({row[peer + '_ratio']:.3f})"
                                   for peer in ("cudnn", "fa3") if peer + "_ratio" in row)
                print(f"D={row['head_dim']} heads={row['q_heads']}/{row['kv_heads']} N={row['length']} "
                      f"causal={int(row['causal'])} {row['tile']}: {row['ours_tflops']:.1f} TFLOPS; {ratios}"
                      f"{'' if row['agree'] else ' RESULTS DIFFER'}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.page:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(head + BEGIN + table(result["rows"], result["about"]) + END + rest.split(END)[1])
    return 0 if all(row["agree"] for row in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
