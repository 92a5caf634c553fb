"""The parts of attention in TileLang, and the tiles that a search tries. tools/generate_cuda.py compiles them.

Tensors are [heads, rows, columns], where `heads` counts the heads of all batches. All lengths are known only when a
kernel runs. TileLang writes CUDA C++, which nvcc compiles. TileLang has no product of f32 as exact as the oracle asks:
its products of f32 are of tf32.
"""

import pathlib
import re
import subprocess
import tempfile

import tilelang
import tilelang.language as T
from tvm.target import Target

VERSION = tilelang.__version__
TYPE, SUM = "bfloat16", "float32"
LOG2_E = 1.4426950408889634


def lengths():
    return T.dynamic("heads"), T.dynamic("q_len"), T.dynamic("kv_len")


def blocks_seen(end, kv_len, causal, block_c):
    """How many blocks of keys are seen by queries whose last one stands before the key `end`."""
    return T.ceildiv(T.min(end, kv_len) if causal else kv_len, block_c)


def scores_kernel(dim, BLOCK_R, BLOCK_C, STRIPE, STAGES, threads):
    """S = scale Q K^T. A threadgroup has BLOCK_R rows of Q, and takes STRIPE blocks of keys one by one."""
    heads, q_len, kv_len = lengths()

    @T.prim_func
    def scores(q: T.Tensor((heads, q_len, dim), TYPE), k: T.Tensor((heads, kv_len, dim), TYPE),
               s: T.Tensor((heads, q_len, kv_len), TYPE), scale: T.float32):
        with T.Kernel(T.ceildiv(kv_len, BLOCK_C * STRIPE), T.ceildiv(q_len, BLOCK_R), heads,
                      threads=threads) as (stripe, tile, head):
            q_tile = T.alloc_shared((BLOCK_R, dim), TYPE)
            k_tile = T.alloc_shared((BLOCK_C, dim), TYPE)
            s_tile = T.alloc_shared((BLOCK_R, BLOCK_C), TYPE)
            sums = T.alloc_fragment((BLOCK_R, BLOCK_C), SUM)
            T.copy(q[head, tile * BLOCK_R, 0], q_tile)
            for step in T.Pipelined(STRIPE, num_stages=STAGES):
                key = (stripe * STRIPE + step) * BLOCK_C
                T.copy(k[head, key, 0], k_tile)
                T.clear(sums)
                T.gemm(q_tile, k_tile, sums, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BLOCK_R, BLOCK_C):
                    sums[i, j] *= scale
                T.copy(sums, s_tile)
                T.copy(s_tile, s[head, tile * BLOCK_R, key])

    return scores


def softmax_kernel(columns, BLOCK_R, threads):
    """The softmax of BLOCK_R rows of scores, each at most `columns` long, which stay in registers."""
    heads, q_len, kv_len = lengths()

    @T.prim_func
    def softmax(s: T.Tensor((heads, q_len, kv_len), TYPE), p: T.Tensor((heads, q_len, kv_len), TYPE)):
        with T.Kernel(T.ceildiv(q_len, BLOCK_R), heads, threads=threads) as (tile, head):
            T.assume(kv_len % 16 == 0)
            x = T.alloc_fragment((BLOCK_R, columns), SUM)
            largest = T.alloc_fragment((BLOCK_R,), SUM)
            total = T.alloc_fragment((BLOCK_R,), SUM)
            for i, j in T.Parallel(BLOCK_R, columns):
                x[i, j] = T.if_then_else(T.And(j < kv_len, tile * BLOCK_R + i < q_len),
                                         T.cast(s[head, tile * BLOCK_R + i, j], SUM) * LOG2_E, -T.infinity(SUM))
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(BLOCK_R, columns):
                x[i, j] = T.exp2(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(BLOCK_R, columns):
                if tile * BLOCK_R + i < q_len and j < kv_len:
                    p[head, tile * BLOCK_R + i, j] = T.cast(x[i, j] / total[i], TYPE)

    return softmax


def values_kernel(dim, BLOCK_R, BLOCK_C, STAGES, threads):
    """O = P V."""
    heads, q_len, kv_len = lengths()

    @T.prim_func
    def values(p: T.Tensor((heads, q_len, kv_len), TYPE), v: T.Tensor((heads, kv_len, dim), TYPE),
               o: T.Tensor((heads, q_len, dim), TYPE)):
        with T.Kernel(T.ceildiv(q_len, BLOCK_R), heads, threads=threads) as (tile, head):
            p_tile = T.alloc_shared((BLOCK_R, BLOCK_C), TYPE)
            v_tile = T.alloc_shared((BLOCK_C, dim), TYPE)
            o_tile = T.alloc_shared((BLOCK_R, dim), TYPE)
            sums = T.alloc_fragment((BLOCK_R, dim), SUM)
            T.clear(sums)
            for block in T.Pipelined(T.ceildiv(kv_len, BLOCK_C), num_stages=STAGES):
                T.copy(p[head, tile * BLOCK_R, block * BLOCK_C], p_tile)
                T.copy(v[head, block * BLOCK_C, 0], v_tile)
                T.gemm(p_tile, v_tile, sums, policy=T.GemmWarpPolicy.FullRow)
            T.copy(sums, o_tile)
            T.copy(o_tile, o[head, tile * BLOCK_R, 0])

    return values


def attention_kernel(dim, causal, modified, BLOCK_R, BLOCK_C, STAGES, threads):
    """Flash attention (Dao 2023, FlashAttention-2)."""
    heads, q_len, kv_len = lengths()

    @T.prim_func
    def attention(q: T.Tensor((heads, q_len, dim), TYPE), k: T.Tensor((heads, kv_len, dim), TYPE),
                  v: T.Tensor((heads, kv_len, dim), TYPE), o: T.Tensor((heads, q_len, dim), TYPE),
                  slopes: T.Tensor((heads,), SUM), scale: T.float32, cap: T.float32):
        with T.Kernel(T.ceildiv(q_len, BLOCK_R), heads, threads=threads) as (place, head):
            q_tile = T.alloc_shared((BLOCK_R, dim), TYPE)
            k_tile = T.alloc_shared((BLOCK_C, dim), TYPE)
            v_tile = T.alloc_shared((BLOCK_C, dim), TYPE)
            o_tile = T.alloc_shared((BLOCK_R, dim), TYPE)
            x = T.alloc_fragment((BLOCK_R, BLOCK_C), SUM)
            weights = T.alloc_fragment((BLOCK_R, BLOCK_C), TYPE)
            sums = T.alloc_fragment((BLOCK_R, dim), SUM)
            shift = T.alloc_fragment((BLOCK_R,), SUM)
            older = T.alloc_fragment((BLOCK_R,), SUM)
            alpha = T.alloc_fragment((BLOCK_R,), SUM)
            part = T.alloc_fragment((BLOCK_R,), SUM)
            total = T.alloc_fragment((BLOCK_R,), SUM)
            tile = T.ceildiv(q_len, BLOCK_R) - 1 - place if causal else place  # the longest tiles first
            own = kv_len - q_len + tile * BLOCK_R  # the key at which the first query stands
            factor = LOG2_E if modified else scale * LOG2_E
            T.copy(q[head, tile * BLOCK_R, 0], q_tile)
            T.clear(sums)
            T.clear(total)
            T.fill(shift, -T.infinity(SUM))
            for block in T.Pipelined(blocks_seen(own + BLOCK_R, kv_len, causal, BLOCK_C), num_stages=STAGES):
                T.copy(k[head, block * BLOCK_C, 0], k_tile)
                T.clear(x)
                T.gemm(q_tile, k_tile, x, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                if modified:  # cap tanh(s / cap) - slope (own key - key)
                    for i, j in T.Parallel(BLOCK_R, BLOCK_C):
                        x[i, j] = cap * T.tanh(x[i, j] * (scale / cap)) + slopes[head] * T.cast(
                            block * BLOCK_C + j - own - i, SUM)
                if causal:
                    if (block + 1) * BLOCK_C > own + 1:
                        for i, j in T.Parallel(BLOCK_R, BLOCK_C):
                            x[i, j] = T.if_then_else(block * BLOCK_C + j <= own + i, x[i, j], -T.infinity(SUM))
                else:
                    if (block + 1) * BLOCK_C > kv_len:
                        for i, j in T.Parallel(BLOCK_R, BLOCK_C):
                            x[i, j] = T.if_then_else(block * BLOCK_C + j < kv_len, x[i, j], -T.infinity(SUM))
                T.copy(shift, older)
                T.reduce_max(x, shift, dim=1, clear=False)
                for i in T.Parallel(BLOCK_R):
                    alpha[i] = T.exp2((older[i] - shift[i]) * factor)
                for i, j in T.Parallel(BLOCK_R, BLOCK_C):
                    x[i, j] = T.exp2(x[i, j] * factor - shift[i] * factor)
                T.reduce_sum(x, part, dim=1)
                T.copy(x, weights)
                for i in T.Parallel(BLOCK_R):
                    total[i] = total[i] * alpha[i] + part[i]
                for i, j in T.Parallel(BLOCK_R, dim):
                    sums[i, j] *= alpha[i]
                T.copy(v[head, block * BLOCK_C, 0], v_tile)
                T.gemm(weights, v_tile, sums, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BLOCK_R, dim):
                sums[i, j] /= total[i]
            T.copy(sums, o_tile)
            T.copy(o_tile, o[head, tile * BLOCK_R, 0])

    return attention


# ---- what a search tries, the default first

def tiles(problem):
    """Function constants and threads, for each candidate; no candidates where there is no kernel."""
    work, dim = problem.work, problem.head_dim
    if problem.dtype != "bf16":
        return []
    if work == "softmax":
        rows = [1, 2, 4] if problem.kv_len <= 1024 else [1]
        return [{"BLOCK_R": r, "threads": w} for r in rows for w in (128, 256, 512) if r * problem.kv_len >= 2 * w]
    if work == "scores":
        return [{"BLOCK_R": r, "BLOCK_C": c, "STRIPE": stripe, "STAGES": 2, "threads": w}
                for r, c, w in ((128, 128, 256), (128, 128, 128), (128, 64, 128), (64, 128, 128), (128, 256, 256))
                for stripe in (4, 1, 8)]
    if work == "values":
        return [{"BLOCK_R": r, "BLOCK_C": c, "STAGES": s, "threads": w}
                for r, c, w in ((128, 64, 128), (128, 128, 256), (128, 64, 256), (64, 128, 128), (64, 64, 128))
                for s in (3, 4, 2)]
    return [{"BLOCK_R": r, "BLOCK_C": c, "STAGES": s, "threads": w}
            for r, c, w in ((128, 128, 256), (128, 64, 256), (64, 128, 128), (64, 64, 128), (192, 128, 384),
                            (192, 64, 384), (128, 176, 256))
            for s in (2, 3) if s == 2 or c == 64 or dim == 64]


# ---- compiled ahead of time

def kernel_of(problem, tile):
    work, dim = problem.work, problem.head_dim
    if work == "scores":
        return scores_kernel(dim, **tile)
    if work == "softmax":
        return softmax_kernel(problem.kv_len, **tile)
    if work == "values":
        return values_kernel(dim, **tile)
    return attention_kernel(dim, bool(problem.causal), work == "modified", **tile)


def lengths_of(expression, dim):
    """The names whose product an expression of the host's is: "kv_len * q_len" or "64"."""
    names = {"heads": "all_heads"}
    found = re.findall(r"[a-z_]+", expression)
    return [names.get(name, name) for name in found] if found else ["head_dim"] if int(expression) == dim else []


def tensor_map(arguments, dim):
    """The parameter for the map that the host makes with cuTensorMapEncodeTiled, of a tensor [heads, rows, columns]."""
    name, rank, tensor, *rest = (str(argument) for argument in arguments[1:])
    tensor, rank, rest = rest[0], int(tensor), rest[1:]
    assert rank == 3 and name.removesuffix("_desc") == tensor
    columns, rows = (lengths_of(dimension, dim)[0] for dimension in rest[:2])
    box, swizzle = rest[2 * rank:3 * rank], rest[4 * rank + 1]
    return {"kind": "tensor_map", "tensor": tensor, "rows": rows, "columns": columns,
            "box": [int(box[1]), int(box[0])], "swizzle": [0, 32, 64, 128][int(swizzle)]}


def grid_of(extent):
    """A dimension of the grid: "(q_len + 127) // 128" or "heads"."""
    rounded = re.fullmatch(r"\((\w+) \+ \d+\) // (\d+)", extent)
    name, per = rounded.groups() if rounded else (extent, 1)
    return {"of": lengths_of(name, 0), "per": int(per)}


def generate(problem, tile):
    """The machine code of one candidate, and how it is launched."""
    target = Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        lowered = tilelang.lower(kernel_of(problem, tile), target=target)
    device, = lowered.device_mod.functions.values()
    host, = lowered.host_mod.functions.values()
    entry, extents = device.attrs["global_symbol"], device.attrs["thread_extent"]
    maps = {str(name): tensor_map(arguments, problem.head_dim)
            for name, arguments in host.attrs.get("tma_descriptor_args", {}).items()}
    parameters = []
    declared = re.search(rf"{entry}\((.*?)\);", lowered.kernel_source).group(1)
    for parameter in declared.split(", "):
        kind, name = parameter.rsplit(" ", 1)
        if name in maps:
            parameters.append(maps[name])
        elif "*" in kind:
            parameters.append({"kind": "pointer", "tensor": name})
        else:
            parameters.append({"kind": {"int": "int32", "float": "float"}[kind], "of": lengths_of(name, 0)})
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = pathlib.Path(folder, "kernel.cu"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(lowered.kernel_source)
        root = pathlib.Path(tilelang.__file__).parent
        done = subprocess.run(["nvcc", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-DENABLE_BF16",
                               "--use_fast_math", "-I", root / "src", "-I", root / "3rdparty/cutlass/include", source,
                               "-o", cubin], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("nvcc: " + done.stderr.strip()[-400:])
        code = cubin.read_bytes()
    return {"cubin": code, "entry": str(entry), "threads": int(extents["threadIdx.x"]),
            "grid": [grid_of(str(extents[side])) for side in (f"blockIdx.{axis}" for axis in "xyz") if side in extents],
            "threadgroup_bytes": int(device.attrs.get("dyn_shared_memory_buf", 0)), "parameters": parameters,
            "kv_len_multiple": 16 if problem.work == "softmax" else 8 if problem.work in ("scores", "values") else 1,
            "most_kv_len": problem.kv_len if problem.work == "softmax" else 0}
