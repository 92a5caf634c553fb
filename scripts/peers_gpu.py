#!/usr/bin/env python3
"""Forward attention on a GPU, 16-bit inputs: proto1_flash against cuDNN through PyTorch, in one process.

    scripts/peers_gpu.py [--device cuda:0] [--seconds 0.3] [--out peers_gpu.json] [--page]

Ours and the peer take turns on the same values, each launch after a flush of twice the last-level cache and timed by
events on the device; ratios are taken turn by turn. Needs PyTorch with CUDA, and the library proto1_flash_c that
scripts/gpu builds. --page writes the table into docs/peers.md.
"""

import argparse
import ctypes
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
# Two bf16 results, each within 5e-3 + 1e-2 |x| of the truth (common/compare.h).
ATOL, RTOL = 1e-2, 2e-2
ROUNDS_AT_LEAST = 15


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
        return self.checked(self.lib.flash_peer_launch(self.handle, *self.room()))

    def output(self, shape):
        o = torch.empty(shape, dtype=torch.float32)
        self.lib.flash_peer_output(self.handle, ctypes.c_void_p(o.data_ptr()))
        return o


class CuDnn:
    """torch.nn.functional.scaled_dot_product_attention, held to the cuDNN backend."""

    def __init__(self, q, k, v, causal):
        self.tensors, self.causal = (q, k, v), causal
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")

    def run(self):
        q, k, v = self.tensors
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1])

    def seconds(self):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            q, k, v = self.tensors
            grouped = q.shape[1] != k.shape[1]
            torch.cuda._sleep(200_000)  # the host is then ahead of the device, and its own time is not measured
            self.flush.fill_(1)
            start.record()
            F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)
            end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3


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


def measure(ours, dim, q_heads, kv_heads, batch, length, causal, seconds, folder):
    torch.manual_seed(length + dim)
    q, k, v = (torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
               for heads in (q_heads, kv_heads, kv_heads))
    save(folder / "qkv.safetensors", {"q": q, "k": k, "v": v})
    tile = ours.load(f"variant=tuned causal={int(causal)} out_dtype=bf16 layout=bhsd", folder / "qkv.safetensors")
    peer = CuDnn(q, k, v, causal)
    want = peer.run().float().cpu()
    ours.seconds()
    got = ours.output(want.shape)
    agree = bool(((got - want).abs() <= ATOL + RTOL * want.abs()).all())  # a NaN is not

    for _ in range(3):
        ours.seconds(), peer.seconds()
    turns, spent = [], 0.0
    while len(turns) < ROUNDS_AT_LEAST or (spent < seconds and len(turns) < 200):
        turns.append((ours.seconds(), peer.seconds()))
        spent += sum(turns[-1])
    flops = 4 * dim * q_heads * batch * (length * (length + 1) // 2 if causal else length * length)
    tflops = [flops / statistics.median(times) * 1e-12 for times in zip(*turns)]
    return {"head_dim": dim, "q_heads": q_heads, "kv_heads": kv_heads, "batch": batch, "length": length,
            "causal": causal, "tile": tile, "ours_tflops": tflops[0], "cudnn_tflops": tflops[1],
            "ratio": statistics.median(theirs / mine for mine, theirs in turns), "turns": len(turns), "agree": agree}


def table(rows, about):
    lines = [f"Measured on {about['device']} with cuDNN {about['cudnn']} through PyTorch {about['torch']}, bf16, by "
             "`scripts/peers_gpu.py`. TFLOPS, ours / cuDNN, and the median of the ratios turn by turn; causal counts "
             "the unmasked half.\n\n",
             "| head_dim | heads | mask | " + "length | batch | tile | ours | cuDNN | ours / cuDNN |\n",
             "|---|---|---|---|---|---|---|---|---|\n"]
    for row in rows:
        heads = f"{row['q_heads']}" if row["q_heads"] == row["kv_heads"] else f"{row['q_heads']}/{row['kv_heads']}"
        lines.append(f"| {row['head_dim']} | {heads} | {'causal' if row['causal'] else 'full'} | {row['length']} | "
                     f"{row['batch']} | {row['tile']} | {row['ours_tflops']:.0f} | {row['cudnn_tflops']:.0f} | "
                     f"{row['ratio']:.3f}{'' if row['agree'] else ' (results differ)'} |\n")
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
        result = {"about": {"device": torch.cuda.get_device_name(0), "torch": torch.__version__.split("+")[0],
                            "cudnn": f"{version // 10000}.{version // 100 % 100}.{version % 100}"}, "rows": []}
        ours = Ours(options.library, options.device)
        shapes = [(dim, WIDTH // dim, WIDTH // dim, max(1, TOKENS // length), length, causal)
                  for dim in (64, 128, 256) for causal in (False, True)
                  for length in (512, 1024, 2048, 4096, 8192, 16384)]
        shapes += [(128, 64, 8, 1, length, causal) for causal in (False, True)
                   for length in (2048, 4096, 8192, 16384, 32768)]
        with tempfile.TemporaryDirectory() as folder:
            for shape in shapes:
                row = measure(ours, *shape, options.seconds, pathlib.Path(folder))
                result["rows"].append(row)
                print(f"D={row['head_dim']} heads={row['q_heads']}/{row['kv_heads']} N={row['length']} "
                      f"causal={int(row['causal'])} {row['tile']}: {row['ours_tflops']:.1f} / "
                      f"{row['cudnn_tflops']:.1f} TFLOPS, ratio {row['ratio']:.3f}"
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
