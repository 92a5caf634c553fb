"""How sides are timed.

A row of a suite is a computation, such as attention of one shape. A side is an object whose run() computes the row once
and gives the output. A clock wraps a side: seconds() runs the side and gives the time of one run, output() gives the
side's result. All sides of a row take turns on the same values.
"""

import math
import os
import pathlib
import platform
import statistics
import sys
import time

from . import Refused

try:
    import numpy as np
except ModuleNotFoundError:
    np = None  # --from needs neither numpy nor threadpoolctl nor PyTorch
try:
    import threadpoolctl
except ModuleNotFoundError:
    threadpoolctl = None
try:
    import torch
except ModuleNotFoundError:
    torch = None

WARM_UP = 3
TURNS_AT_LEAST, TURNS_AT_MOST = 15, 200
PAUSE_CYCLES = 400_000  # before each launch the GPU waits for so many cycles, so that all sides start in the same state
FLUSH_BYTES = 256 << 20  # more than the caches of most CPUs hold
WINDOW = ("Each launch of each side is one CUDA graph. The graph fills a buffer of twice the last-level cache, records "
          "an event, runs all kernels of the launch and records a second event. The time is the time between the two "
          "events.")


def timed_event():
    """Returns an event that a graph records, and whose time can be read outside of the graph."""
    try:
        return torch.cuda.Event(enable_timing=True, external=True)
    except TypeError:
        raise Refused(f"PyTorch {torch.__version__} cannot time within a CUDA graph (torch.cuda.Event knows no "
                      "external=True); take a later one") from None


class Gpu:
    """A GPU. The constructor makes it the GPU of all later tensors for "cuda". clock() makes the clock of a side."""

    def __init__(self, device):
        if torch is None:
            raise Refused("PyTorch is not installed")
        if not torch.cuda.is_available():
            raise Refused("PyTorch finds no GPU")
        index = int(device.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise Refused(f"there is no {device}; PyTorch finds cuda:0 to cuda:{torch.cuda.device_count() - 1}")
        timed_event()  # raises Refused if PyTorch has no external events
        torch.cuda.set_device(index)
        torch.set_grad_enabled(False)
        properties = torch.cuda.get_device_properties(index)
        self.flush = torch.empty(2 * properties.L2_cache_size, dtype=torch.uint8, device="cuda")

    def clock(self, side):
        return Graph(side, self.flush)

    def about(self):
        return {"device": torch.cuda.get_device_name(), "torch": torch.__version__.split("+")[0]}


class Graph:
    """A launch of a side as one CUDA graph, timed as WINDOW says. The time includes no work of Python or of the driver,
    no allocation and no choice of an algorithm: the graph is submitted after all of these."""

    def __init__(self, side, flush):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # the graph must not capture the extra work of a first call
            for _ in range(WARM_UP):
                side.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.side = side  # keeps the side's tensors alive: the graph reads them
        self.start, self.end, self.graph = timed_event(), timed_event(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            flush.fill_(0)
            self.start.record()
            self.o = side.run()  # every replay of the graph writes this output again
            self.end.record()

    def seconds(self):
        torch.cuda._sleep(PAUSE_CYCLES)
        torch.cuda.synchronize()
        self.graph.replay()
        torch.cuda.synchronize()
        return self.start.elapsed_time(self.end) * 1e-3

    def output(self):
        return self.o.float().cpu()


class Cpu:
    """The CPU. Every side runs on `threads` threads. clock() makes the clock of a side, with cold caches."""

    def __init__(self, device):
        if np is None:
            raise Refused("numpy is not installed; scripts/peer_suites/requirements.txt lists the packages")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.threads = int(device.partition("=")[2] or cores)
        if not 1 <= self.threads <= cores:
            raise Refused(f"{self.threads} threads are not allowed; 1 to {cores} are")
        if torch:
            torch.set_num_threads(self.threads)
            torch.set_flush_denormal(True)
            torch.set_grad_enabled(False)
        if threadpoolctl:
            threadpoolctl.threadpool_limits(self.threads)
        self.flush = np.empty(FLUSH_BYTES, np.uint8)

    def clock(self, side):
        return AfterFlush(side, self.flush)

    def about(self):
        return {"device": processor(), "torch": torch.__version__.split("+")[0] if torch else "(not there)",
                "threads": self.threads}


def processor():
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


class AfterFlush:
    """A clock with cold caches. seconds() fills `flush`, then returns the time that one call takes its caller."""

    def __init__(self, side, flush):
        self.side, self.flush = side, flush

    def seconds(self):
        self.flush.fill(0)
        start = time.perf_counter()
        self.side.run()
        return time.perf_counter() - start

    def output(self):
        return np.asarray(self.side.run())


class Repeated:
    """A clock with warm caches. After one untimed call seconds() times calls for `span` seconds, at least 3 of them.
    It returns the median time that a call takes its caller."""

    def __init__(self, side, span):
        self.side, self.span = side, span

    def seconds(self):
        self.side.run()
        samples = []
        while len(samples) < 3 or sum(samples) < self.span:
            start = time.perf_counter()
            self.side.run()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)

    def output(self):
        return np.asarray(self.side.run())


def left_out(name, error):
    why = [*str(error).splitlines(), type(error).__name__][0]
    print(f"peers: {name} is left out: {why}", file=sys.stderr, flush=True)


def ready(makers, clock):
    """Makes the sides. Returns the clock of each side that can be made and timed, by the side's name. Prints a line for
    each other side. Raises Refused if no side is left."""
    found = {}
    for name, make in makers.items():
        try:
            side = clock(make())
            for _ in range(WARM_UP):
                side.seconds()
            found[name] = side
        except Refused:
            raise
        except Exception as error:  # the peer is not installed, does not compile, or cannot compute the row
            left_out(name, error)
    if not found:
        raise Refused("every side is left out")
    return found


def take_turns(sides, seconds, at_least=TURNS_AT_LEAST):
    """Times the sides in turns. Returns a list with a dict for each turn: the time of each side by name. The order of
    the sides is reversed every other turn. There are at least `at_least` turns; further turns follow until all have
    taken `seconds`, or TURNS_AT_MOST are done."""
    turns, spent = [], 0.0
    while len(turns) < at_least or (spent < seconds and len(turns) < TURNS_AT_MOST):
        order = list(sides) if len(turns) % 2 == 0 else list(reversed(sides))
        turns.append({name: sides[name].seconds() for name in order})
        spent += sum(turns[-1].values())
    return turns


def medians(turns, unit, per_second):
    """Returns the median time of each side, under the key NAME_unit. `per_second` is the number of units in a
    second."""
    return {f"{name}_{unit}": per_second * statistics.median(turn[name] for turn in turns) for name in turns[0]}


def ratios(turns, ours="ours"):
    """Returns for each other side the list, over the turns, of its time over the time of the side `ours`. The dict is
    empty if the side `ours` is left out."""
    names = [name for name in turns[0] if name != ours and ours in turns[0]]
    return {name: [turn[name] / turn[ours] for turn in turns] for name in names}


def median_ratios(turns):
    return {f"{name}_ratio": statistics.median(values) for name, values in ratios(turns).items()}


def interval(values):
    """Returns [median, low, high]. Low and high are values at equal ranks below and above the median. For 6 or more
    values the true median lies between them with a probability of at least 95 %."""
    ordered, n = sorted(values), len(values)
    reach = math.ceil(0.98 * math.sqrt(n))
    return [statistics.median(ordered), ordered[max(0, (n - 1) // 2 - reach)], ordered[min(n - 1, n // 2 + reach)]]
