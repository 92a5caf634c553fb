"""An old build of libattn.so against today's, in one process: scripts/peers gpu --old LIBRARY says whether a row moves.

Both libraries compute each row from the same tensors into the same output, in turn: old, new, old again, new again. Two
times are compared. `device` is the time of a launch as one CUDA graph, as in the suite gpu. `call` is the wall time of
a call of attn_flash through ctypes that only enqueues the launch: a sample is the median of several calls, and the
device is idle before the first call. With --device cpu a call computes the row, so only `call` is compared; the rows
are those of at most 1024 tokens, with a batch of 1, in f32.

A ratio is new over old, turn by turn. The noise floor is the largest distance from 1 of the interval of old over old. A
row has moved if the interval of the ratio lies beyond 1 %, and the ratio's median is farther beyond 1 % than the noise
floor. A row has also moved if the outputs of the two libraries differ in a bit.
"""

import ctypes
import json
import os
import random
import statistics
import time

from . import Refused, clocks, sides
from .clocks import torch
from .gpu import AXES

MOVED = 0.01
CALLS_AT_LEAST, CALLS_AT_MOST = 5, 100  # calls in a sample of `call`
SAMPLE_SECONDS = 0.01  # so long a sample of `call` keeps the device busy, within these limits
LONGEST_ON_CPU = 1024
LIBRARIES, SOURCE = "ATTENTION_PROTO_LIBRARIES", "ATTENTION_PROTO_SOURCE"


class Library:
    """The old or the new library. It reads kernels from the folder `source`; None: from the tree that it was built
    from."""

    def __init__(self, path, device, source=None):
        self.path, self.source = path, source
        try:
            self.lib = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            self.lib.attn_flash.argtypes = [ctypes.c_void_p] * 7
        except (OSError, AttributeError) as error:
            raise Refused(f"{path} is no libattn.so: {error}") from None
        self.lib.attn_message.restype = ctypes.c_char_p
        self.engine = ctypes.c_void_p()
        self.with_source(lambda: self.checked(self.lib.attn_open(device.encode(), None, ctypes.byref(self.engine))))

    def checked(self, status):
        if status:
            raise Refused(f"{self.path}: {self.lib.attn_message().decode()}")

    def with_source(self, action):
        """Does an action in which the engine may compile, with $ATTENTION_PROTO_SOURCE set to this library's source."""
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
        """attn_flash of q, k, v and o as a function of the stream. All objects of ctypes that the call needs are made
        here."""
        kind = sides.dlpack().FlashOptions
        options = kind(kind.scale.offset, causal=causal)  # fields of all versions; the rest is off
        pointers, function, engine = [ctypes.addressof(x) for x in tensors], self.lib.attn_flash, self.engine.value
        address = ctypes.addressof(options)

        def flash(stream=None, _alive=(tensors, options)):
            self.checked(function(engine, stream, *pointers, address))
        return flash


def tensor(address, shape, device, dtype):
    """A dense DLTensor."""
    dlpack = sides.dlpack()
    return dlpack.Tensor(address, dlpack.Device(*device), len(shape), dlpack.DataType(*dtype),
                         (ctypes.c_int64 * len(shape))(*shape), None, 0)


class OnCpu:
    """Tensors of a row on the CPU, made without PyTorch."""

    def __init__(self, dim, q_heads, kv_heads, batch, length, causal):
        numbers = random.Random(length + dim)
        self.memory = []
        for heads in (q_heads, kv_heads, kv_heads, q_heads):
            size = batch * heads * length * dim
            few = [numbers.gauss(0, 1) for _ in range(min(size, 65537))]  # then repeated: drawing is slow
            memory = (ctypes.c_float * size)()
            for at in range(0, size, len(few)):
                memory[at:at + len(few)] = few[:size - at]
            self.memory.append(memory)
        self.tensors = [tensor(ctypes.addressof(memory), (batch, heads, length, dim), (1, 0), (2, 32, 1))
                        for memory, heads in zip(self.memory, (q_heads, kv_heads, kv_heads, q_heads))]

    def result(self, run):
        """The output after run(). Before run() every byte of the output is 0xFF."""
        ctypes.memset(self.memory[3], 0xFF, ctypes.sizeof(self.memory[3]))
        run()
        return bytes(self.memory[3])

    def clocks(self, calls):
        return {"call": {name: Calls(call, 1, lambda: None) for name, call in calls.items()}}


class OnGpu:
    """Tensors of a row on a GPU, in bf16, made by PyTorch."""

    def __init__(self, machine, dim, q_heads, kv_heads, batch, length, causal):
        torch.manual_seed(length + dim)
        self.machine = machine
        self.memory = [torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
                       for heads in (q_heads, kv_heads, kv_heads, q_heads)]
        self.tensors = [tensor(x.data_ptr(), x.shape, (2, x.device.index), (4, 16, 1)) for x in self.memory]

    def result(self, run):
        self.memory[3].fill_(float("nan"))
        run()
        return self.memory[3].view(torch.int16).cpu().numpy().tobytes()

    def clocks(self, calls):
        graphs = {name: self.machine.clock(Launch(call, self.memory[3])) for name, call in calls.items()}
        for _ in range(clocks.WARM_UP):
            seconds = max(graph.seconds() for graph in graphs.values())
        count = max(CALLS_AT_LEAST, min(CALLS_AT_MOST, int(SAMPLE_SECONDS / seconds)))
        stream = torch.cuda.current_stream().cuda_stream
        return {"device": graphs,
                "call": {name: Calls(lambda call=call: call(stream), count, torch.cuda.synchronize)
                         for name, call in calls.items()}}


class Launch:
    """A call on PyTorch's current stream."""

    def __init__(self, call, o):
        self.call, self.o = call, o

    def run(self):
        self.call(torch.cuda.current_stream().cuda_stream)
        return self.o


class Calls:
    """The clock of a call: the median wall time of `count` calls; `wait` waits until the device is idle."""

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
    """The interval of new / old over all pairs, and the interval of old again / old."""
    pairs = [turn["new" + again] / turn["old" + again] for turn in turns for again in ("", " again")]
    return clocks.interval(pairs), clocks.interval([turn["old again"] / turn["old"] for turn in turns])


def has_moved(ratio, floor):
    """Whether the interval of new / old lies beyond 1 %, and its median is farther beyond 1 % than the noise of old /
    old."""
    value, low, high = ratio
    noise = max(abs(end - 1) for end in floor)
    return (low > 1 + MOVED and value - (1 + MOVED) > noise) or (high < 1 - MOVED and (1 - MOVED) - value > noise)


def measure(libraries, inputs, shape, seconds):
    """Measures one row, and gives its results."""
    row = dict(zip(AXES, shape))
    calls = {side: libraries[side.split()[0]].call(inputs.tensors, row["causal"]) for side in SIDES}
    new, old = (libraries[name].with_source(lambda: inputs.result(calls[name])) for name in ("new", "old"))
    row["equal"] = new == old
    row["moved"] = not row["equal"]
    for clock, timed in inputs.clocks(calls).items():
        turns = clocks.take_turns(timed, seconds)
        seconds = 0  # the clock `call` then gets the fewest turns: each of its samples is a median
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


def new_library(options):
    """Today's libattn.so, or the library that --new names. attn_proto loads the same file."""
    if not options.new:
        return sides.files().library("libattn.so")
    os.environ[LIBRARIES] = str(options.new.resolve().parent)
    return options.new


def compare(options, shapes):
    """Measures all rows, prints them, and says how many have moved. Gives the exit status: 1 if a row has moved, else
    0."""
    new = new_library(options)
    for library in options.old, new:
        if not os.path.exists(library):
            raise Refused(f"{library} is not there")
    if os.path.samefile(new, options.old):
        raise Refused(f"--old {options.old} is the new library too; a build of another commit, or a copy, is allowed")
    on_cpu = options.device.startswith("cpu")
    if on_cpu:
        shapes = [(*shape[:3], 1, *shape[4:]) for shape in shapes if shape[4] <= LONGEST_ON_CPU]
        inputs_of = OnCpu
    else:
        machine = clocks.Gpu(options.device)
        sides.files().find_compiler()
        inputs_of = lambda *shape: OnGpu(machine, *shape)  # noqa: E731
    libraries = {"old": Library(options.old, options.device, options.old_source), "new": Library(new, options.device)}
    if os.path.basename(new) != "libattn.so":
        raise Refused(f"--new {new} is not allowed; a file libattn.so is, because attn_proto opens it by that name")
    rows = []
    for shape in shapes:
        rows.append(measure(libraries, inputs_of(*shape), shape, options.seconds))
        print(line(rows[-1]), flush=True)
    moved = sum(row["moved"] for row in rows)
    print(f"{moved} of {len(rows)} rows move by more than {MOVED:.0%} beyond what old against old explains")
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if moved else 0
