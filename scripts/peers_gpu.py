#!/usr/bin/env python3
"""Forward attention on a GPU, 16-bit inputs: proto1_flash against cuDNN and FlashAttention-3, in one process.

    scripts/peers gpu [--device cuda:0] [--seconds 0.2] [--out peers_gpu.json] [--page]
    scripts/peers gpu --old LIBRARY    an old libattn.so against today's, on the same rows (peers_old.py)

All sides take turns on the same values; ratios are taken turn by turn. Every side is timed in the same way: a launch is
one CUDA graph that holds a fill of twice the last-level cache, an event, all kernels of the launch, and another event.
The time is what passes between the two events. Python and the driver are not in it, nor are allocations and the choice
of an algorithm: they are done with before the graph is submitted.

Needs PyTorch with CUDA and events that a graph can record, and the library attention_c that scripts/gpu builds.
FlashAttention-3 takes part where its Python module is found: flash_attn_interface, or fa3_fwd_interface of the package
fa3-fwd. --page writes the table into docs/peers.md; --from needs neither PyTorch nor a GPU.
"""

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import math
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
# head_dim, heads of queries and of keys, batch, length, causal
SHAPES = [*((dim, WIDTH // dim, WIDTH // dim, max(1, TOKENS // length), length, causal)
            for dim in (64, 128, 256) for causal in (False, True) for length in (512, 1024, 2048, 4096, 8192, 16384)),
          *((128, 64, 8, 1, length, causal) for causal in (False, True) for length in (2048, 4096, 8192, 16384, 32768))]
# Two bf16 results, each within 5e-3 + 1e-2 |x| of the truth, as every check of this project allows.
ATOL, RTOL = 1e-2, 2e-2
WARM_UP = 3
ROUNDS_AT_LEAST, ROUNDS_AT_MOST = 15, 200
PAUSE_CYCLES = 400_000  # every side then starts on a device that was equally busy
WINDOW = ("of every side one CUDA graph a launch: a fill of twice the last-level cache, an event, all kernels of the "
          "launch, an event; the time is between the events")
# What results say that were measured before there was a field for it.
EAGER_WINDOW = ("ours from a CUDA graph, the peers launched from Python between two events, so that a slow host shows in "
                "short rows")


def flash_attention_3():
    """Its function and what it is called, or neither."""
    for module, package in ("flash_attn_interface", "flash-attn-3"), ("fa3_fwd_interface", "fa3-fwd"):
        try:
            function = importlib.import_module(module).flash_attn_func
            return function, f"{package} {importlib.metadata.version(package)}"
        except (ImportError, AttributeError):  # not there, or another module of that name
            pass
    return None, None


def pause():
    torch.cuda._sleep(PAUSE_CYCLES)
    torch.cuda.synchronize()


def timed_event():
    """An event that a graph records, and that can be read outside of it."""
    try:
        return torch.cuda.Event(enable_timing=True, external=True)
    except TypeError:
        sys.exit(f"peers_gpu: PyTorch {torch.__version__} cannot time within a CUDA graph (torch.cuda.Event knows no "
                 "external=True); take a later one")


class Ours:
    """The C library, which submits such a graph by itself, in a CUDA context of its own: PyTorch's is current again
    behind every call."""

    def __init__(self, library, device):
        torch.cuda.synchronize()  # makes PyTorch's context
        self.cuda, self.context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.cuda.cuCtxGetCurrent(ctypes.byref(self.context))
        self.lib = ctypes.CDLL(str(library))
        self.lib.flash_peer_open.restype = ctypes.c_void_p
        self.lib.flash_peer_load.restype = ctypes.c_char_p
        self.lib.flash_peer_launch.restype = ctypes.c_double
        self.message = ctypes.create_string_buffer(4096)
        self.handle = ctypes.c_void_p(self.checked(self.lib.flash_peer_open(device.encode(), *self.room())))

    def room(self):
        return self.message, ctypes.c_size_t(len(self.message))

    def checked(self, result):
        self.cuda.cuCtxSetCurrent(self.context)
        if not result:
            sys.exit("peers_gpu: " + self.message.value.decode())
        return result

    def load(self, axes, path):
        return self.checked(self.lib.flash_peer_load(self.handle, axes.encode(), str(path).encode(),
                                                     *self.room())).decode()

    def seconds(self):
        pause()
        return self.checked(self.lib.flash_peer_launch(self.handle, *self.room()))

    def output(self, shape):
        o = torch.empty(shape, dtype=torch.float32)
        self.lib.flash_peer_output(self.handle, ctypes.c_void_p(o.data_ptr()))
        self.cuda.cuCtxSetCurrent(self.context)
        return o


class Peer:
    """A call of PyTorch's. run() launches it and gives [batch, heads, length, head_dim]."""

    def capture(self, flush):
        """Makes the graph, fills `flush` in it first. After that run() is not called any more."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # whatever a first call does besides must not be captured
            for _ in range(WARM_UP):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.start, self.end, self.graph = timed_event(), timed_event(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            flush.fill_(0)
            self.start.record()
            self.o = self.run()  # stays where it is; every replay writes it anew
            self.end.record()

    def seconds(self):
        pause()
        self.graph.replay()
        torch.cuda.synchronize()
        return self.start.elapsed_time(self.end) * 1e-3

    def output(self):
        return self.o.float().cpu()


class CuDnn(Peer):
    """torch.nn.functional.scaled_dot_product_attention, held to the cuDNN backend."""

    def __init__(self, q, k, v, causal):
        self.tensors, self.causal = (q, k, v), causal

    def run(self):
        q, k, v = self.tensors
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1])


class FlashAttention3(Peer):
    """In its own layout, [batch, length, heads, head_dim]."""

    def __init__(self, function, q, k, v, **options):
        self.function, self.options = function, options
        self.tensors = tuple(x.transpose(1, 2).contiguous() for x in (q, k, v))

    def run(self):
        o = self.function(*self.tensors, **self.options)
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


def all_agree(results, want):
    return all(bool(((got - want).abs() <= ATOL + RTOL * want.abs()).all()) for got in results)  # a NaN does not


def take_turns(sides, seconds):
    """The times of each round, the order reversed every other one."""
    turns, spent = [], 0.0
    while len(turns) < ROUNDS_AT_LEAST or (spent < seconds and len(turns) < ROUNDS_AT_MOST):
        order = list(sides) if len(turns) % 2 == 0 else list(reversed(sides))
        turns.append({name: sides[name].seconds() for name in order})
        spent += sum(turns[-1].values())
    return turns


def interval(values):
    """Median, and the order statistics between which the true one lies in 95 % of the cases."""
    ordered, n = sorted(values), len(values)
    reach = math.ceil(0.98 * math.sqrt(n))
    return [statistics.median(ordered), ordered[max(0, (n - 1) // 2 - reach)], ordered[min(n - 1, n // 2 + reach)]]


def rates(turns, flops):
    """TFLOPS of each side, and the time of each peer over ours."""
    found = {}
    for name in turns[0]:
        found[name + "_tflops"] = flops / statistics.median(turn[name] for turn in turns) * 1e-12
        if name != "ours":
            found[name + "_ratio"] = statistics.median(turn[name] / turn["ours"] for turn in turns)
    return found


def measure(ours, fa3, flush, dim, q_heads, kv_heads, batch, length, causal, seconds, folder):
    torch.manual_seed(length + dim)
    q, k, v = (torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
               for heads in (q_heads, kv_heads, kv_heads))
    save(folder / "qkv.safetensors", {"q": q, "k": k, "v": v})
    tile = ours.load(f"variant=tuned causal={int(causal)} out_dtype=bf16 layout=bhsd", folder / "qkv.safetensors")
    peers = {"cudnn": CuDnn(q, k, v, causal)}
    if fa3:
        peers["fa3"] = FlashAttention3(fa3, q, k, v, causal=causal)
    for peer in peers.values():
        peer.capture(flush)
    sides = {"ours": ours, **peers}
    for _ in range(WARM_UP):
        for side in sides.values():
            side.seconds()
    want = peers["cudnn"].output()
    others = [ours.output(want.shape), *(peer.output() for name, peer in peers.items() if name != "cudnn")]
    agree = all_agree(others, want)

    turns = take_turns(sides, seconds)
    flops = 4 * dim * q_heads * batch * (length * (length + 1) // 2 if causal else length * length)
    return {"head_dim": dim, "q_heads": q_heads, "kv_heads": kv_heads, "batch": batch, "length": length,
            "causal": causal, "tile": tile, "turns": len(turns), "agree": agree, **rates(turns, flops)}


def table(rows, about):
    peers = {"cudnn": f"cuDNN {about['cudnn']} through PyTorch {about['torch']}"}
    if about.get("fa3"):
        peers["fa3"] = f"FlashAttention-3 ({about['fa3']})"
    names = {"cudnn": "cuDNN", "fa3": "FA-3"}
    lines = [f"Measured on {about['device']} with {' and '.join(peers.values())}, bf16, by `scripts/peers_gpu.py`. "
             "TFLOPS, and the medians of the ratios turn by turn; causal counts the unmasked half. "
             f"Timed: {about.get('window', EAGER_WINDOW)}.\n\n",
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


def parser_of(description, seconds, device="cuda:0", library=ROOT / "build/gpu/libattention_c.so",
              option="--library"):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default=device)
    parser.add_argument(option, dest="library", type=pathlib.Path, default=library)
    parser.add_argument("--seconds", type=float, default=seconds, help="device time per shape")
    parser.add_argument("--out", type=pathlib.Path, help="rows as JSON")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="rows measured before, for --page")
    parser.add_argument("--page", nargs="?", const=PAGE, type=pathlib.Path, metavar="FILE",
                        help="write the table into FILE, docs/peers.md where none is named")
    return parser


def arguments(*of_parser, **more):
    return parser_of(*of_parser, **more).parse_args()


def finish(options, result, text, begin, end):
    """Writes what --out and --page want; the exit status."""
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.page:
        head, rest = options.page.read_text().split(begin)
        options.page.write_text(head + begin + text + end + rest.split(end)[1])
    return 0 if all(row["agree"] for row in result["rows"]) else 1


def flush_buffer():
    """Where a fill of it has evicted what the caches held. Exits where there is no GPU to measure on."""
    if torch is None:
        sys.exit("peers_gpu: PyTorch is not installed")
    if not torch.cuda.is_available():
        sys.exit("peers_gpu: PyTorch finds no GPU")
    timed_event()  # ends here where there is none
    return torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")


def main():
    parser = parser_of(__doc__.split("\n")[0], 0.2)
    parser.add_argument("--old", type=pathlib.Path, metavar="LIBRARY",
                        help="measures an old libattn.so against today's, and nothing else; status 1 where a row moves")
    parser.add_argument("--old-source", type=pathlib.Path, metavar="FOLDER",
                        help="what the old one reads kernels from; the tree that it was built from where not named")
    parser.add_argument("--new", type=pathlib.Path, metavar="LIBRARY",
                        help="in the place of today's, which is what the Python package finds")
    options = parser.parse_args()
    if options.old:
        if options.source or options.page:
            parser.error("--old takes neither --from nor --page: what it measures is not recorded")
        from peers_old import compare
        return compare(options, SHAPES)
    if options.new or options.old_source:
        parser.error("--new and --old-source go with --old")
    if options.source:
        result = json.loads(options.source.read_text())
    else:
        flush = flush_buffer()
        version = torch.backends.cudnn.version()
        fa3, fa3_name = flash_attention_3()
        result = {"about": {"device": torch.cuda.get_device_name(0), "torch": torch.__version__.split("+")[0],
                            "cudnn": f"{version // 10000}.{version // 100 % 100}.{version % 100}", "fa3": fa3_name,
                            "window": WINDOW},
                  "rows": []}
        ours = Ours(options.library, options.device)
        with tempfile.TemporaryDirectory() as folder:
            for shape in SHAPES:
                row = measure(ours, fa3, flush, *shape, options.seconds, pathlib.Path(folder))
                result["rows"].append(row)
                ratios = ", ".join(f"{peer} {row[peer + '_tflops']:.1f} ({row[peer + '_ratio']:.3f})"
                                   for peer in ("cudnn", "fa3") if peer + "_ratio" in row)
                print(f"D={row['head_dim']} heads={row['q_heads']}/{row['kv_heads']} N={row['length']} "
                      f"causal={int(row['causal'])} {row['tile']}: {row['ours_tflops']:.1f} TFLOPS; {ratios}"
                      f"{'' if row['agree'] else ' RESULTS DIFFER'}", flush=True)
    return finish(options, result, table(result["rows"], result["about"]), BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
