"""Compares an old build of libattn.so with today's, in one process: scripts/peers gpu --old LIBRARY.

The comparison says which rows have moved. A row is one shape of attention. A row has moved if its time or its output
differs between the two libraries.

Both libraries compute each row from the same tensors into the same output. A turn is: old, new, old again, new again.
Every other turn goes in the reverse order. Two times are compared. `device` is the time of a launch as one CUDA graph,
as in the suite gpu. `call` is the wall time of a call of attn_flash through ctypes. On a GPU the call only enqueues the
launch. A sample of `call` is the median of several calls, and the device is idle before the first of them.

With --device cpu a call returns only when the row is computed. `call` is then the whole time, and `device` is not
measured. On the CPU only the rows of at most 1024 tokens are compared, in f32, and each row with a batch of 1 in place
of its own batch.

A ratio is the time of new over the time of old within one turn. The ratio of old again to old has an interval, too. The
noise floor is the larger of the distances from 1 of this interval's two ends. A row has moved if the interval of new
over old lies wholly above 1.01 or wholly below 0.99, and the median lies beyond that limit by more than the noise
floor. A row has also moved if any bit of the output differs between the two libraries.
"""

import ctypes
import json
import os
import random
import statistics
import time

from . import Refused, clocks, sides
from .clocks import torch
from .command import LIBRARIES
from .gpu import AXES

MOVED = 0.01
CALLS_AT_LEAST, CALLS_AT_MOST = 5, 100  # calls in a sample of `call`
SAMPLE_SECONDS = 0.01  # a sample of `call` has as many calls as the GPU runs in this time, within the limits above
LONGEST_ON_CPU = 1024  # tokens
SOURCE = "ATTENTION_PROTO_SOURCE"


class Library:
    """The old or the new library. It reads kernels from the folder `source`, else from the tree that it was built
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
        """Runs `action` with $ATTENTION_PROTO_SOURCE set to this library's source, or unset. Every action in which the engine
        may compile must run through this function."""
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
        """Returns a function flash(stream) that calls attn_flash. It makes no objects of ctypes, so that the time of
        `call` does not include them."""
        kind = sides.dlpack().FlashOptions
        # struct_bytes covers only the fields before `scale`. Every version of the library has these fields, and takes
        # all later options as off.
        options = kind(kind.scale.offset, causal=causal)
        pointers, function, engine = [ctypes.addressof(x) for x in tensors], self.lib.attn_flash, self.engine.value
        address = ctypes.addressof(options)

        def flash(stream=None, _alive=(tensors, options)):
            self.checked(function(engine, stream, *pointers, address))
        return flash


def tensor(address, shape, device, dtype):
    """Returns a dense DLTensor."""
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
            few = [numbers.gauss(0, 1) for _ in range(min(size, 65537))]  # the tensor repeats these; drawing is slow
            memory = (ctypes.c_float * size)()
            for at in range(0, size, len(few)):
                memory[at:at + len(few)] = few[:size - at]
            self.memory.append(memory)
        self.tensors = [tensor(ctypes.addressof(memory), (batch, heads, length, dim), (1, 0), (2, 32, 1))
                        for memory, heads in zip(self.memory, (q_heads, kv_heads, kv_heads, q_heads))]

    def result(self, run):
        """Returns the bytes of the output after run(). Before run() it sets every byte to 0xFF."""
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
    """A side whose run() makes a call on PyTorch's current stream, and returns the output `o`."""

    def __init__(self, call, o):
        self.call, self.o = call, o

    def run(self):
        self.call(torch.cuda.current_stream().cuda_stream)
        return self.o


class Calls:
    """The clock of a call. seconds() returns the median wall time of `count` calls. `wait` waits until the device is
    idle."""

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
    """Returns the interval of new / old and the interval of old again / old. Each turn gives two values of the first
    ratio: new / old, and new again / old again."""
    pairs = [turn["new" + again] / turn["old" + again] for turn in turns for again in ("", " again")]
    return clocks.interval(pairs), clocks.interval([turn["old again"] / turn["old"] for turn in turns])


def has_moved(ratio, floor):
    """Returns whether the times of a row have moved, by the rule at the head of this file."""
    value, low, high = ratio
    noise = max(abs(end - 1) for end in floor)
    return (low > 1 + MOVED and value - (1 + MOVED) > noise) or (high < 1 - MOVED and (1 - MOVED) - value > noise)


def measure(libraries, inputs, shape, seconds):
    row = dict(zip(AXES, shape))
    calls = {side: libraries[side.split()[0]].call(inputs.tensors, row["causal"]) for side in SIDES}
    new, old = (libraries[name].with_source(lambda: inputs.result(calls[name])) for name in ("new", "old"))
    row["equal"] = new == old
    row["moved"] = not row["equal"]
    for clock, timed in inputs.clocks(calls).items():
        turns = clocks.take_turns(timed, seconds)
        # On a GPU `call` is the second clock. clocks.TURNS_AT_LEAST turns are enough for `call`, because each
        # sample is a median of many calls.
        seconds = 0
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
            result = row[clock]
            text += (f" {clock} {result['old_us']:.1f} us, new / old {result['ratio'][0]:.4f} "
                     f"[{result['ratio'][1]:.4f}, {result['ratio'][2]:.4f}], old / old [{result['floor'][1]:.4f}, "
                     f"{result['floor'][2]:.4f}]{' MOVED' if result['moved'] else ''};")
    return text[:-1] + ("" if row["equal"] else "; RESULTS DIFFER")


def new_library(options):
    """Returns the path of the library that --new names, or of today's libattn.so. attn_proto loads the same file."""
    if not options.new:
        return sides.files().library("libattn.so")
    os.environ[LIBRARIES] = str(options.new.resolve().parent)
    return options.new


def compare(options, shapes):
    """Measures and prints all rows. Returns the exit status: 1 if a row has moved, else 0."""
    new = new_library(options)
    for library in options.old, new:
        if not os.path.exists(library):
            raise Refused(f"{library} is not there")
    if os.path.samefile(new, options.old):
        raise Refused(f"--old {options.old} is also the new library; it must be another file: a build of another "
                      "commit, or a copy")
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
        raise Refused(f"--new {new} is not allowed; the file must be named libattn.so, because attn_proto opens it by "
                      "that name")
    rows = []
    for shape in shapes:
        rows.append(measure(libraries, inputs_of(*shape), shape, options.seconds))
        print(line(rows[-1]), flush=True)
    moved = sum(row["moved"] for row in rows)
    print(f"{moved} of {len(rows)} rows have moved: the results differ, or the times differ by more than "
          f"{MOVED:.0%} plus the noise of old against old")
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if moved else 0
