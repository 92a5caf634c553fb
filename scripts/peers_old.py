"""An old build of libattn.so beside today's, in one process: whether a row of peers_gpu.py moves.

    scripts/peers gpu --old LIBRARY [--new LIBRARY] [--device cuda:0] [--seconds 0.2] [--out rows.json]

Both libraries compute each row from the same tensors into the same output, in turn: old, new, old again, new again. Two
times are compared. `device` is what peers_gpu.py times: of one CUDA graph a launch. `call` is the wall time of a call of
attn_flash that only enqueues, through ctypes: a sample is the median of several calls, the device idle before the first.
With --device cpu a call computes, so `call` is all there is; the rows are the shorter ones, a batch of 1, in float32.

A ratio is new over old, turn by turn. The noise floor is the largest distance from 1 of the interval of old over old. A
row has moved where its interval lies beyond 1 %, and its median farther beyond than the floor; also where the two
outputs are not the same bits.
"""

import ctypes
import json
import os
import pathlib
import random
import statistics
import sys
import time

import peers_gpu as peers

sys.path.insert(0, str(peers.ROOT / "python/attn_proto"))
import _files  # noqa: E402  by itself: the package would load PyTorch's operators

MOVED = 0.01
CALLS_AT_LEAST, CALLS_AT_MOST = 5, 100  # of a sample of `call`
SAMPLE_SECONDS = 0.01  # of the device, which a sample of `call` keeps busy
LONGEST_ON_CPU = 1024
SOURCE = "ATTENTION_PROTO_SOURCE"


class Tensor(ctypes.Structure):
    """DLTensor, dense, of four dimensions."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]

    def __init__(self, data, shape, device_type, device_id, code, bits):
        super().__init__(data, device_type, device_id, 4, code, bits, 1, (ctypes.c_int64 * 4)(*shape), None, 0)


class FlashOptions(ctypes.Structure):
    """The beginning of attn_flash_options, which is the same in all versions; a library takes the rest as off."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("layout", ctypes.c_int), ("causal", ctypes.c_int)]


class Library:
    """One of the two. `source` is the folder that it reads kernels from; None: the tree that it was built from."""

    def __init__(self, path, device, source=None):
        self.path, self.source = path, source
        try:
            self.lib = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            self.lib.attn_flash.argtypes = [ctypes.c_void_p] * 7
        except (OSError, AttributeError) as error:
            sys.exit(f"peers_gpu: {path} is no libattn.so: {error}")
        self.lib.attn_message.restype = ctypes.c_char_p
        self.engine = ctypes.c_void_p()
        self.with_source(lambda: self.checked(self.lib.attn_open(device.encode(), None, ctypes.byref(self.engine))))

    def checked(self, status):
        if status:
            sys.exit(f"peers_gpu: {self.path}: {self.lib.attn_message().decode()}")

    def with_source(self, action):
        """Where an engine may compile, $ATTENTION_PROTO_SOURCE is its own."""
        before = os.environ.pop(SOURCE, None)
        if self.source:
            os.environ[SOURCE] = str(self.source)
        try:
            return action()
        finally:
            os.environ.pop(SOURCE, None)
            if before is not None:
                os.environ[SOURCE] = before

    def call(self, tensors, causal):
        """attn_flash of q, k, v and o as a function of the stream, with all that ctypes has to make made."""
        options = FlashOptions(ctypes.sizeof(FlashOptions), 0, int(causal))
        pointers, function, engine = [ctypes.addressof(x) for x in tensors], self.lib.attn_flash, self.engine.value
        address = ctypes.addressof(options)

        def flash(stream=None, _alive=(tensors, options)):
            self.checked(function(engine, stream, *pointers, address))
        return flash


class OnCpu:
    """Tensors of a row on the cpu. PyTorch is not needed."""

    def __init__(self, dim, q_heads, kv_heads, batch, length, causal):
        numbers = random.Random(length + dim)
        self.memory = []
        for heads in (q_heads, kv_heads, kv_heads, q_heads):
            size = batch * heads * length * dim
            few = [numbers.gauss(0, 1) for _ in range(min(size, 65537))]  # repeated: to draw them all takes long
            memory = (ctypes.c_float * size)()
            for at in range(0, size, len(few)):
                memory[at:at + len(few)] = few[:size - at]
            self.memory.append(memory)
        self.tensors = [Tensor(ctypes.addressof(memory), (batch, heads, length, dim), 1, 0, 2, 32)
                        for memory, heads in zip(self.memory, (q_heads, kv_heads, kv_heads, q_heads))]

    def result(self, run):
        """What run() leaves in the output, which held something else."""
        ctypes.memset(self.memory[3], 0xFF, ctypes.sizeof(self.memory[3]))
        run()
        return bytes(self.memory[3])

    def clocks(self, calls):
        return {"call": {name: Calls(call, 1, lambda: None) for name, call in calls.items()}}


class OnGpu:
    """The same on a GPU, in bf16, as PyTorch's tensors."""

    def __init__(self, flush, dim, q_heads, kv_heads, batch, length, causal):
        torch = peers.torch
        torch.manual_seed(length + dim)
        self.flush = flush
        self.memory = [torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
                       for heads in (q_heads, kv_heads, kv_heads, q_heads)]
        self.tensors = [Tensor(x.data_ptr(), x.shape, 2, x.device.index, 4, 16) for x in self.memory]

    def result(self, run):
        self.memory[3].fill_(float("nan"))
        run()
        return self.memory[3].view(peers.torch.int16).cpu().numpy().tobytes()

    def clocks(self, calls):
        graphs = {name: Graph(call, self.memory[3]) for name, call in calls.items()}
        for graph in graphs.values():
            graph.capture(self.flush)
        for _ in range(peers.WARM_UP):
            seconds = max(graph.seconds() for graph in graphs.values())
        count = max(CALLS_AT_LEAST, min(CALLS_AT_MOST, int(SAMPLE_SECONDS / seconds)))
        stream = peers.torch.cuda.current_stream().cuda_stream
        return {"device": graphs,
                "call": {name: Calls(lambda call=call: call(stream), count, peers.torch.cuda.synchronize)
                         for name, call in calls.items()}}


class Graph(peers.Peer):
    def __init__(self, call, o):
        self.call, self.result = call, o

    def run(self):
        self.call(peers.torch.cuda.current_stream().cuda_stream)
        return self.result


class Calls:
    """Wall time of a call."""

    def __init__(self, call, count, wait):
        self.call, self.count, self.wait = call, count, wait

    def seconds(self):
        self.wait()
        times = []
        for _ in range(self.count):
            start = time.perf_counter_ns()
            self.call()
            times.append(time.perf_counter_ns() - start)
        self.wait()
        return statistics.median(times) * 1e-9


SIDES = ("old", "new", "old again", "new again")


def ratios(turns):
    """new / old of all pairs, and old again / old, each as an interval."""
    pairs = [turn["new" + again] / turn["old" + again] for turn in turns for again in ("", " again")]
    return peers.interval(pairs), peers.interval([turn["old again"] / turn["old"] for turn in turns])


def has_moved(ratio, floor):
    """Whether new / old, an interval, is beyond 1 %, and by more than old / old explains."""
    value, low, high = ratio
    noise = max(abs(end - 1) for end in floor)
    return (low > 1 + MOVED and value - (1 + MOVED) > noise) or (high < 1 - MOVED and (1 - MOVED) - value > noise)


def measure(libraries, inputs, shape, seconds):
    """One row."""
    row = dict(zip(("head_dim", "q_heads", "kv_heads", "batch", "length", "causal"), shape))
    calls = {side: libraries[side.split()[0]].call(inputs.tensors, row["causal"]) for side in SIDES}
    new, old = (libraries[name].with_source(lambda: inputs.result(calls[name])) for name in ("new", "old"))
    row["equal"] = new == old
    row["moved"] = not row["equal"]
    for clock, sides in inputs.clocks(calls).items():
        turns = peers.take_turns(sides, seconds)
        seconds = 0  # the fewest turns: a sample of the next clock is a median already
        ratio, floor = ratios(turns)
        row[clock] = {"old_us": statistics.median(turn["old"] for turn in turns) * 1e6, "ratio": ratio, "floor": floor,
                      "turns": len(turns), "moved": has_moved(ratio, floor)}
        row["moved"] |= row[clock]["moved"]
    return row


def line(row):
    heads = f"{row['q_heads']}/{row['kv_heads']}"
    text = f"D={row['head_dim']} heads={heads} N={row['length']} causal={int(row['causal'])}:"
    for clock in "device", "call":
        if clock in row:
            of = row[clock]
            text += (f" {clock} {of['old_us']:.1f} us, new / old {of['ratio'][0]:.4f} [{of['ratio'][1]:.4f}, "
                     f"{of['ratio'][2]:.4f}], old / old [{of['floor'][1]:.4f}, {of['floor'][2]:.4f}]"
                     f"{' MOVED' if of['moved'] else ''};")
    return text[:-1] + ("" if row["equal"] else "; RESULTS DIFFER")


def compare(options, shapes):
    """Measures all rows, prints them, and says how many have moved. The exit status: 1 if any has."""
    new = options.new or _files.library("libattn.so")
    for library in options.old, new:
        if not os.path.exists(library):
            sys.exit(f"peers_gpu: {library} is not there")
    if os.path.samefile(new, options.old):
        sys.exit(f"peers_gpu: --old {options.old} is the new library too; a build of another commit, or a copy, is allowed")
    on_cpu = options.device.startswith("cpu")
    if on_cpu:
        shapes = [(*shape[:3], 1, *shape[4:]) for shape in shapes if shape[4] <= LONGEST_ON_CPU]
        inputs_of = OnCpu
    else:
        _files.find_compiler()
        flush = peers.flush_buffer()
        inputs_of = lambda *shape: OnGpu(flush, *shape)  # noqa: E731
    libraries = {"old": Library(options.old, options.device, options.old_source), "new": Library(new, options.device)}
    rows = []
    for shape in shapes:
        rows.append(measure(libraries, inputs_of(*shape), shape, options.seconds))
        print(line(rows[-1]), flush=True)
    moved = sum(row["moved"] for row in rows)
    print(f"{moved} of {len(rows)} rows move by more than {MOVED:.0%} beyond what old against old explains")
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if moved else 0
