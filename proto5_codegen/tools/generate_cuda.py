#!/usr/bin/env python3
"""Compiles kernels of Triton, TileLang and Halide for sm_90a ahead of time, for proto5_codegen.

    proto5_codegen/tools/generate_cuda.py compile [--candidates DIR] [--generator triton] [--jobs N] [--default]
    proto5_codegen/tools/generate_cuda.py tune --minutes 1 [--candidates DIR] [--log FILE]
    proto5_codegen/tools/generate_cuda.py keep [--candidates DIR] [--log FILE]
    proto5_codegen/tools/generate_cuda.py check

A problem is a work with a dtype, a head_dim, a mask and, for a softmax, a length. A candidate is a kernel for a
problem, with one of the tiles that the generator's module lists.

`compile` makes the machine code of every candidate. It needs the generators, and no GPU.
`tune` times the candidates, --minutes for each generator. It needs a GPU and PyTorch, and no generator.
`keep` copies the fastest candidate of each problem into proto5_codegen/generated, where the experiment finds it. If no
candidate was timed, `keep` takes the first candidate that compiled.
`check` says whether the kernels in proto5_codegen/generated were made from today's texts in proto5_codegen/generators.

The sources are in proto5_codegen/generators/NAME_kernels.py. Each of these modules has VERSION; tiles(problem), which
lists the tiles of the candidates, the default tile first; and generate(problem, tile), which compiles a candidate.
"""

import ast
import atexit
import concurrent.futures
import ctypes
import hashlib
import importlib
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from command_line import Parser, number  # noqa: E402

GENERATORS = ROOT / "proto5_codegen/generators"
KEPT = ROOT / "proto5_codegen/generated"
NAMES = ["triton", "tilelang", "halide"]
# Candidates are timed with the heads and the length of the quick sweep. Softmaxes are timed with all lengths of the
# full sweep, and with fewer heads at large lengths.
HEADS, LENGTH, CAP = 32, 2048, 30.0
SOFTMAX_LENGTHS = [256, 512, 1024, 2048, 4096, 8192]
# For each work: a tensor's name in the generators' kernels, and the tensor's name in the experiment.
TENSORS = {"scores": {"s": "out"}, "softmax": {"s": "in", "p": "out"}, "values": {"p": "in", "o": "out"},
           "attention": {"o": "out"}, "modified": {"o": "out"}}
# The lengths and the numbers that the description of a cubin may name.
LENGTHS = {"all_heads", "q_len", "kv_len", "head_dim", "all_rows"}
NUMBERS = {"scale", "cap"}


class Problem(NamedTuple):
    """What a kernel computes. `kv_len` is the length that a softmax is made for, and 0 for other works. `head_dim` is 0
    for a softmax."""
    work: str
    dtype: str
    head_dim: int
    causal: int
    kv_len: int

    def name(self):
        parts = [self.work, f"d{self.head_dim}" if self.head_dim else "", "causal" if self.causal else "",
                 f"n{self.kv_len}" if self.kv_len else "", self.dtype]
        return "_".join(part for part in parts if part)


def problems():
    found = []
    for dtype in ("bf16", "f32"):
        for dim in (64, 128):
            found += [Problem(work, dtype, dim, causal, 0) for work in ("attention", "modified") for causal in (0, 1)]
            found += [Problem(work, dtype, dim, 0, 0) for work in ("scores", "values")]
        found += [Problem("softmax", dtype, 0, 0, length) for length in SOFTMAX_LENGTHS]
    return found


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def source_of(generator):
    return GENERATORS / f"{generator}_kernels.py"


def module_of(generator):
    os.environ.update(TRITON_DISABLE_LINE_INFO="1", TRITON_ALWAYS_COMPILE="1")  # no source paths in cubins, no cache
    sys.path.insert(0, str(GENERATORS))
    return importlib.import_module(f"{generator}_kernels")


def source_lines(generator, work):
    """Returns the number of lines with code in the function that makes a work, and in the functions that it calls."""
    text = source_of(generator).read_text()
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    wanted = [next(name for name in (work, f"{work}_kernel", "attention", "attention_kernel") if name in functions)]
    count = 0
    for name in wanted:  # the loop appends to this list
        used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        wanted += [other for other in sorted(used & functions.keys()) if other not in wanted]
        body = functions[name].body
        told = [node for node in ast.walk(functions[name])
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
        left_out = {line for node in told for line in range(node.lineno, node.end_lineno + 1)}
        lines = text.splitlines()[functions[name].lineno - 1:body[-1].end_lineno]
        count += sum(1 for number, line in enumerate(lines, functions[name].lineno)
                     if line.strip() and not line.strip().startswith("#") and number not in left_out)
    return count


# ---- compile

def checked(parameters, work):
    """Gives tensors the experiment's names. An unknown name fails an assertion."""
    for parameter in parameters:
        if "tensor" in parameter:
            parameter["tensor"] = TENSORS[work].get(parameter["tensor"], parameter["tensor"])
            assert parameter["tensor"] in ("q", "k", "v", "in", "out", "slopes"), parameter
        if parameter["kind"] == "tensor_map":
            assert {parameter["rows"], parameter["columns"]} <= LENGTHS, parameter
        assert set(parameter.get("of", [])) <= LENGTHS | NUMBERS, parameter
    return parameters


def candidates_of(generator):
    module = module_of(generator)
    return module.VERSION, [(problem, module.tiles(problem)) for problem in problems()]


def compile_one(job):
    """Writes a candidate's machine code into the folder. Returns the candidate's description or failure as JSON."""
    generator, problem, number, tile, folder = job
    name = f"{generator}_{problem.name()}_{number}"
    module = module_of(generator)
    start = time.perf_counter()
    try:
        made = module.generate(problem, tile)
        cubin = made.pop("cubin")
        made["parameters"] = checked(made["parameters"], problem.work)
        (folder / f"{name}.cubin").write_bytes(cubin)
        made["cubin_sha256"] = sha256(cubin)
    except Exception as error:  # pylint: disable=broad-except; any error of a generator is the candidate's result
        made = {"failed": f"{type(error).__name__}: {str(error).strip()[-300:]}"}
    # The result is JSON: to unpickle an object of a generator, a process would load the generator's libraries.
    return json.dumps({"name": name, "problem": problem._asdict(), "tile": tile, "candidate": number, **made,
                       "compile_s": round(time.perf_counter() - start, 3)})


def compile_all(options):
    if len(options.generator) > 1:  # each generator in a process of its own, because each brings an LLVM
        command = [sys.executable, sys.argv[0], "compile", "--candidates", options.candidates, "--jobs", str(options.jobs),
                   *["--default"] * options.default, "--generator"]
        return max(subprocess.run([*command, generator], check=False).returncode for generator in options.generator)
    generator, = options.generator
    options.candidates.mkdir(parents=True, exist_ok=True)
    made, start = [], time.perf_counter()
    # Only the pool's processes import generators. They end by os._exit, because some generators crash at a normal end.
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), atexit.register,
                                                (os._exit, 0)) as pool:
        try:
            version, candidates = pool.submit(candidates_of, generator).result()
        except ModuleNotFoundError as error:
            print(f"generate_cuda: {generator} is left out: {sys.executable} has no module {error.name}")
            return 0
        jobs = [(generator, problem, number, tile, options.candidates) for problem, tiles in candidates
                for number, tile in enumerate(tiles[:1 if options.default else None])]
        for one in map(json.loads, pool.map(compile_one, jobs)):
            made.append(one)
            if "failed" in one:
                print(f"{one['name']}: {one['failed']}", flush=True)
    index = {"generator": generator, "version": version,
             "source_sha256": sha256(source_of(generator).read_bytes()), "kernels": made}
    (options.candidates / f"{generator}.json").write_text(json.dumps(index, indent=1) + "\n")
    failures = sum("failed" in one for one in made)
    print(f"{generator} {version}: {len(made)} candidates in {time.perf_counter() - start:.0f} s, "
          f"{failures} failed", flush=True)
    return int(failures == len(made))


# ---- tune

def of_lengths(said, lengths):
    """Returns the product of the lengths that `of` names, divided by `per` and rounded up."""
    return -(-math.prod(lengths[name] for name in said["of"]) // said.get("per", 1))


class Cuda:
    """Calls CUDA's driver in PyTorch's context."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")

    def check(self, status, call):
        if status != 0:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{call}: {text.value.decode() if text.value else status}")

    def load(self, kernel, code):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.lib.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        self.check(self.lib.cuModuleGetFunction(ctypes.byref(function), module, kernel["entry"].encode()),
                   "cuModuleGetFunction")
        most_threadgroup_bytes = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of cuda.h
        self.check(self.lib.cuFuncSetAttribute(function, most_threadgroup_bytes, kernel["threadgroup_bytes"]),
                   "cuFuncSetAttribute")
        return module, function

    def tensor_map(self, tensor, parameter, lengths):
        """Makes a CUtensorMap of a tensor [heads, rows, columns]. Returns its memory and its address."""
        bf16 = tensor.element_size() == 2
        columns, rows = lengths[parameter["columns"]], lengths[parameter["rows"]]
        element = tensor.element_size()
        memory = (ctypes.c_uint8 * 192)()
        place = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
        # Enumerators of cuda.h: type 9 is bf16 and 7 is f32; the 2 after the swizzle promotes reads to 128 bytes in the
        # L2 cache.
        self.check(self.lib.cuTensorMapEncodeTiled(
            ctypes.c_void_p(place), 9 if bf16 else 7, 3, ctypes.c_void_p(tensor.data_ptr()),
            (ctypes.c_uint64 * 3)(columns, rows, lengths["all_heads"]),
            (ctypes.c_uint64 * 2)(columns * element, columns * rows * element),
            (ctypes.c_uint32 * 3)(parameter["box"][1], parameter["box"][0], 1), (ctypes.c_uint32 * 3)(1, 1, 1),
            0, {0: 0, 32: 1, 64: 2, 128: 3}[parameter["swizzle"]], 2, 0), "cuTensorMapEncodeTiled")
        return memory, place

    def arguments(self, kernel, tensors, lengths, numbers):
        """Returns pointers to the values of all parameters, and the objects that keep the values alive."""
        alive, pointers = [], []
        for parameter in kernel["parameters"]:
            kind, of = parameter["kind"], parameter.get("of", [])
            if kind == "tensor_map":
                memory, place = self.tensor_map(tensors[parameter["tensor"]], parameter, lengths)
                alive.append(memory)
                pointers.append(place)
                continue
            if kind == "float":
                value = ctypes.c_float(numbers[of[0]])
            elif kind in ("pointer", "null"):
                tensor = tensors.get(parameter.get("tensor"))
                value = ctypes.c_uint64(tensor.data_ptr() if tensor is not None else 0)
            else:
                product = of_lengths(parameter, lengths)
                value = ctypes.c_int64(product) if kind == "int64" else ctypes.c_int32(product)
            alive.append(value)
            pointers.append(ctypes.addressof(value))
        return (ctypes.c_void_p * len(pointers))(*pointers), alive

    def launch(self, function, kernel, grid, arguments, stream):
        self.check(self.lib.cuLaunchKernel(function, *grid, kernel["threads"], 1, 1, kernel["threadgroup_bytes"],
                                           ctypes.c_void_p(stream), arguments, None), "cuLaunchKernel")


class Tuned:
    """The inputs of a problem, and the result for the last two heads, which PyTorch computes in double."""

    def __init__(self, torch, problem):
        torch.manual_seed(0)
        self.problem, self.torch = problem, torch
        dtype = torch.bfloat16 if problem.dtype == "bf16" else torch.float32
        dim, self.length = problem.head_dim, problem.kv_len or LENGTH
        self.heads = min(HEADS, 2**28 // self.length**2) if problem.work in ("scores", "softmax", "values") else HEADS
        made = lambda *shape: torch.randn(self.heads, *shape, device="cuda", dtype=torch.float32).to(dtype)
        rows, matrix = (self.length, dim), (self.length, self.length)
        read = {"scores": {"q": rows, "k": rows}, "softmax": {"in": matrix}, "values": {"in": matrix, "v": rows}}
        self.tensors = {name: made(*shape) for name, shape in
                        read.get(problem.work, {"q": rows, "k": rows, "v": rows}).items()}
        out = matrix if problem.work in ("scores", "softmax") else rows
        self.tensors["out"] = torch.empty(self.heads, *out, device="cuda", dtype=dtype)
        self.tensors["slopes"] = torch.exp2(-8 * torch.arange(1, self.heads + 1, device="cuda") / self.heads).float()
        self.lengths = {"all_heads": self.heads, "q_len": self.length, "kv_len": self.length, "head_dim": dim,
                        "all_rows": self.heads * self.length}
        self.numbers = {"scale": dim**-0.5 if dim else 0, "cap": CAP}
        checked_heads = slice(self.heads - 2, self.heads)
        self.want = self.reference(checked_heads)
        self.got = lambda: self.tensors["out"][checked_heads].float()

    def reference(self, heads):
        torch, work = self.torch, self.problem.work
        x = {name: tensor[heads].double() for name, tensor in self.tensors.items()}
        if work == "softmax":
            return x["in"].softmax(-1)
        if work == "values":
            return x["in"] @ x["v"]
        scores = x["q"] @ x["k"].transpose(1, 2) * self.numbers["scale"]
        if work == "scores":
            return scores
        places = torch.arange(self.length, device="cuda")
        if work == "modified":
            scores = CAP * (scores / CAP).tanh() + x["slopes"][:, None, None] * (places - places[:, None])
        if self.problem.causal:
            scores = scores.masked_fill(places > places[:, None], float("-inf"))
        return scores.softmax(-1) @ x["v"]

    def agrees(self):
        error, size = (self.got() - self.want).abs(), self.want.abs()
        bf16, long_sum = self.problem.dtype == "bf16", self.problem.work == "values"
        bound = (0.02 * size + (0.05 if long_sum else 0.01)) if bf16 else 2e-3 * size + (1e-2 if long_sum else 1e-3)
        return bool((error <= bound).all())


def seconds_of(torch, cuda, kernel, code, inputs):
    """Returns the median time of ten launches in seconds. Raises RuntimeError if the first result is wrong."""
    lengths = inputs.lengths
    grid = [of_lengths(side, lengths) for side in kernel["grid"]]
    grid += [1] * (3 - len(grid))
    arguments, alive = cuda.arguments(kernel, inputs.tensors, lengths, inputs.numbers)
    module, function = cuda.load(kernel, code)
    try:
        stream = torch.cuda.current_stream().cuda_stream
        inputs.tensors["out"].fill_(float("nan"))
        cuda.launch(function, kernel, grid, arguments, stream)
        torch.cuda.synchronize()
        if not inputs.agrees():
            raise RuntimeError("wrong result")
        events = [torch.cuda.Event(enable_timing=True) for _ in range(12)]
        for event in events:
            event.record()
            cuda.launch(function, kernel, grid, arguments, stream)
        last = torch.cuda.Event(enable_timing=True)
        last.record()
        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) for begin, end in itertools.pairwise([*events, last])]
        return 1e-3 * statistics.median(times[2:])
    finally:
        del alive
        cuda.lib.cuModuleUnload(module)


def in_turn(kernels):
    """Sorts candidates: number 0 of every problem, then number 1 of every problem, and so on. So a search that ends
    early favours no problem."""
    return sorted(kernels, key=lambda kernel: kernel["candidate"])


def tune_some(candidates, log_path, generator, minutes):
    """Times candidates until all were tried, or the time is over. Before a candidate runs, the log gets an entry that
    says that it failed; the result replaces this entry. If the kernel hangs, an alarm ends this process, and the entry
    stays. After a fault of the kernel the CUDA context is lost, so the process logs the error, and ends."""
    import torch
    index, log = json.loads((candidates / f"{generator}.json").read_text()), json.loads(log_path.read_text())
    cuda = Cuda()
    log["device"] = torch.cuda.get_device_name(0)
    about = log["generators"][generator]
    done, inputs = {one["name"] for one in about["tried"]}, {}
    spent, start = about["seconds"], time.perf_counter()
    for kernel in in_turn(index["kernels"]):
        about["seconds"] = round(spent + time.perf_counter() - start, 1)
        if about["seconds"] > 60 * minutes:
            break
        if kernel["name"] in done:
            continue
        one = {"name": kernel["name"], "tile": kernel["tile"], "failed": "it does not end, or ends the process"}
        about["tried"].append(one)
        log_path.write_text(json.dumps(log) + "\n")
        signal.alarm(20)
        problem = Problem(**kernel["problem"])
        try:
            if "failed" in kernel:
                raise RuntimeError(kernel["failed"])
            if problem not in inputs:
                if torch.cuda.memory_allocated() > 60 * 2**30:
                    inputs.clear()
                inputs[problem] = Tuned(torch, problem)
            code = (candidates / f"{kernel['name']}.cubin").read_bytes()
            one["us"] = round(1e6 * seconds_of(torch, cuda, kernel, code, inputs[problem]), 2)
            del one["failed"]
        except Exception as error:  # pylint: disable=broad-except; a candidate that fails is not chosen
            one["failed"] = str(error).strip()[:200]
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                log_path.write_text(json.dumps(log) + "\n")
                os._exit(1)  # the context is lost
    signal.alarm(0)
    log_path.write_text(json.dumps(log, indent=1) + "\n")


def tune(options):
    log = {"device": "", "minutes": options.minutes, "generators": {}}
    options.log.parent.mkdir(parents=True, exist_ok=True)
    for generator in options.generator:
        path = options.candidates / f"{generator}.json"
        if not path.is_file():
            print(f"generate_cuda: {generator} is left out: no {path.name} in {options.candidates}")
            continue
        index = json.loads(path.read_text())
        log["generators"][generator] = {
            "version": index["version"], "source_sha256": index["source_sha256"], "candidates": len(index["kernels"]),
            "compile_s": round(sum(one["compile_s"] for one in index["kernels"]), 1), "seconds": 0.0, "tried": []}
        options.log.write_text(json.dumps(log, indent=1) + "\n")
        tried = -1
        while tried < len(log["generators"][generator]["tried"]):  # if a process is lost, the next process goes on
            tried = len(log["generators"][generator]["tried"])
            process = multiprocessing.get_context("spawn").Process(
                target=tune_some, args=(options.candidates, options.log, generator, options.minutes))
            process.start()
            process.join()
            log = json.loads(options.log.read_text())
            if process.exitcode == 0:
                break
        about = log["generators"][generator]
        failed = sum("failed" in one for one in about["tried"])
        print(f"{generator}: {len(about['tried'])} of {about['candidates']} candidates timed in "
              f"{about['seconds']:.0f} s, {failed} failed", flush=True)
    return 0


# ---- keep, check

def keep(options):
    log = json.loads(options.log.read_text()) if options.log.is_file() else {"generators": {}}
    KEPT.mkdir(exist_ok=True)
    for generator in options.generator:
        path = options.candidates / f"{generator}.json"
        if not path.is_file():
            continue
        index = json.loads(path.read_text())
        tried = log["generators"].get(generator, {})
        if tried and tried["source_sha256"] != index["source_sha256"]:
            sys.exit(f"generate_cuda: the log was made from another version of {source_of(generator).name}; tune again")
        times = {one["name"]: one for one in tried.get("tried", [])}
        for old in KEPT.glob(f"{generator}_*.cubin"):
            old.unlink()
        chosen = []
        for problem in problems():
            made = [one for one in index["kernels"] if Problem(**one["problem"]) == problem and "failed" not in one]
            timed = [one for one in made if "us" in times.get(one["name"], {})]
            if not made:
                continue
            best = min(timed, key=lambda one: times[one["name"]]["us"]) if timed else made[0]
            name = f"{generator}_{problem.name()}.cubin"
            shutil.copyfile(options.candidates / f"{best['name']}.cubin", KEPT / name)
            search = {"candidates": len(made), "timed": len(timed)}
            if timed:
                search |= {"us": times[best["name"]]["us"], "default_us": times.get(made[0]["name"], {}).get("us")}
            kernel = {key: value for key, value in best.items() if key not in ("name", "candidate")}
            lines = source_lines(generator, problem.work)
            chosen.append({"file": name, **kernel, "source_lines": lines, "search": search})
        about = {key: tried[key] for key in ("seconds", "compile_s", "candidates") if key in tried}
        if tried:
            about["device"], about["minutes"] = log["device"], log["minutes"]
        (KEPT / f"{generator}.json").write_text(
            "\n".join(json.dumps({**index, "search": about, "kernels": []}).split("[]")[:1]) + "[\n" +
            ",\n".join(json.dumps(kernel) for kernel in chosen) + "]}\n")
        size = sum(file.stat().st_size for file in KEPT.glob(f"{generator}_*.cubin"))
        print(f"{generator}: {len(chosen)} kernels kept, {size // 1024} KiB")
    return 0


def complaints():
    """Returns a line for each fault of the kernels in proto5_codegen/generated."""
    found = []
    for generator in NAMES:
        path, source = KEPT / f"{generator}.json", source_of(generator)
        try:
            index = json.loads(path.read_text())
            of_source = index["source_sha256"]
            kernels = {kernel["file"]: kernel["cubin_sha256"] for kernel in index["kernels"]}
        except FileNotFoundError:
            found.append(f"{path.name} is not there: run the steps compile, tune and keep")
            continue
        except (ValueError, KeyError, TypeError) as error:
            found.append(f"{path.name} is damaged: {error!r}; run the steps compile, tune and keep")
            continue
        if sha256(source.read_bytes()) != of_source:
            found.append(f"{path.name} was made from another version of {source.name}: run the steps compile, tune and "
                         "keep")
        for name, of_cubin in kernels.items():
            cubin = KEPT / name
            if not cubin.is_file():
                found.append(f"{path.name} names {name}, which is not there")
            elif sha256(cubin.read_bytes()) != of_cubin:
                found.append(f"{name} is not the file that {path.name} describes")
        found += [f"{cubin.name} is not in {path.name}" for cubin in sorted(KEPT.glob(f"{generator}_*.cubin"))
                  if cubin.name not in kernels]
    return found


def check(_options):
    found = complaints()
    for line in found:
        print(f"generate_cuda: {line}")
    return 1 if found else 0


def main():
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=["compile", "tune", "keep", "check"])
    parser.add_argument("--candidates", type=pathlib.Path, default=ROOT / "build/candidates")
    parser.add_argument("--generator", action="append", choices=NAMES, help="all if none is named")
    parser.add_argument("--jobs", type=number(int, 1, 1024), default=2)
    parser.add_argument("--default", action="store_true", help="compile only the first candidate of each problem")
    parser.add_argument("--minutes", type=number(float, 0.01, 10 ** 6), default=1,
                        help="minutes to time the candidates of each generator")
    parser.add_argument("--log", type=pathlib.Path, default=KEPT / "tuning.log.json")
    options = parser.parse_args()
    options.generator = options.generator or NAMES
    made = [name for name in options.generator if (options.candidates / f"{name}.json").is_file()]
    if options.step in ("tune", "keep") and not made:
        sys.exit(f"generate_cuda: {options.candidates} has no candidates; generate_cuda.py compile makes them")
    return {"compile": compile_all, "tune": tune, "keep": keep, "check": check}[options.step](options)


if __name__ == "__main__":
    sys.exit(main())
