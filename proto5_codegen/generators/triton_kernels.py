"""The parts of attention in Triton, and the tiles that a search tries. tools/generate_cuda.py compiles them.

Tensors are [heads, rows, columns], where `heads` counts the heads of all batches. Rows arrive and leave by tensor
copies, which read zeros and write nothing beyond a tensor's end. So a row must be a multiple of 16 bytes long. The
softmax keeps its rows in registers, and uses plain loads instead.
"""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra.cuda import libdevice

VERSION = triton.__version__
LOG2_E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1e30)


@triton.jit
def load_rows(tensor, head, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tensor.load([head, row, column]).reshape(ROWS, COLUMNS)


@triton.jit
def store_rows(tensor, head, row, column, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TYPE: tl.constexpr):
    tensor.store([head, row, column], tile.to(TYPE).reshape(1, ROWS, COLUMNS))


@triton.jit
def scores(q, k, s, scale, HEAD_DIM: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, STRIPE: tl.constexpr,
           STAGES: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """S = scale Q K^T. A program has BLOCK_R rows of Q, and takes STRIPE blocks of keys one by one."""
    row, head = tl.program_id(1) * BLOCK_R, tl.program_id(2)
    first = tl.program_id(0) * BLOCK_C * STRIPE
    queries = load_rows(q, head, row, 0, BLOCK_R, HEAD_DIM)
    for key in tl.range(first, first + BLOCK_C * STRIPE, BLOCK_C, num_stages=STAGES):
        keys = load_rows(k, head, key, 0, BLOCK_C, HEAD_DIM)
        tile = tl.dot(queries, keys.T, input_precision=PRECISION) * scale
        store_rows(s, head, row, key, tile, BLOCK_R, BLOCK_C, TYPE)


@triton.jit
def softmax(s, p, kv_len, all_rows, COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr):
    """The softmax of BLOCK_R rows of scores, each at most COLUMNS long, which stay in registers."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, COLUMNS)
    place = rows[:, None].to(tl.int64) * kv_len + columns[None, :]
    there = (rows < all_rows)[:, None] & (columns < kv_len)[None, :]
    x = tl.load(s + place, mask=there, other=float("-inf")).to(tl.float32) * LOG2_E
    weights = tl.exp2(x - tl.max(x, 1)[:, None])
    weights *= (1.0 / tl.sum(weights, 1))[:, None]
    tl.store(p + place, weights.to(p.dtype.element_ty), mask=there)


@triton.jit
def values(p, v, o, kv_len, HEAD_DIM: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
           TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """O = P V."""
    row, head = tl.program_id(0) * BLOCK_R, tl.program_id(1)
    output = tl.zeros([BLOCK_R, HEAD_DIM], tl.float32)
    for key in tl.range(0, kv_len, BLOCK_C, num_stages=STAGES):
        weights = load_rows(p, head, row, key, BLOCK_R, BLOCK_C)
        rows = load_rows(v, head, key, 0, BLOCK_C, HEAD_DIM)
        output = tl.dot(weights, rows, output, input_precision=PRECISION)
    store_rows(o, head, row, 0, output, BLOCK_R, HEAD_DIM, TYPE)


@triton.jit
def tanh(x, APPROX: tl.constexpr):
    if APPROX:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return libdevice.tanh(x)


@triton.jit
def attend(output, shift, total, queries, k, v, head, rows, begin, end, kv_len, own, scale, slope, cap,
           HEAD_DIM: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
           MODIFIED: tl.constexpr, MASKED_KEYS: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """The online softmax over the keys from `begin` to `end`; `own` is the key at which the first query stands."""
    columns = tl.arange(0, BLOCK_C)
    for key in tl.range(begin, end, BLOCK_C, num_stages=STAGES):
        keys = load_rows(k, head, key, 0, BLOCK_C, HEAD_DIM)
        x = tl.dot(queries, keys.T, input_precision=PRECISION)
        if MODIFIED:  # cap tanh(s / cap) - slope (own key - key); the factors are folded, and powers are of 2
            first = slope * (key - own - rows).to(tl.float32)  # small where weights are large
            bias = (slope * columns.to(tl.float32))[None, :] + first[:, None]
            x = (cap * LOG2_E) * tanh(x * (scale / cap), TYPE == tl.bfloat16) + bias * LOG2_E
        if MASKED_KEYS:
            seen = (key + columns < kv_len)[None, :]
            if CAUSAL:
                seen = seen & (key + columns[None, :] <= (rows + own)[:, None])
            x = tl.where(seen, x, MASKED)
        if MODIFIED:
            larger = tl.maximum(shift, tl.max(x, 1))
            weights = tl.exp2(x - larger[:, None])
        else:  # the scale is applied inside the exponential
            larger = tl.maximum(shift, tl.max(x, 1) * (scale * LOG2_E))
            weights = tl.exp2(x * (scale * LOG2_E) - larger[:, None])
        alpha = tl.exp2(shift - larger)
        total = total * alpha + tl.sum(weights, 1)
        output = output * alpha[:, None]
        output = tl.dot(weights.to(TYPE), load_rows(v, head, key, 0, BLOCK_C, HEAD_DIM), output,
                        input_precision=PRECISION)
        shift = larger
    return output, shift, total


@triton.jit
def attention(q, k, v, o, slopes, scale, cap, q_len, kv_len, HEAD_DIM: tl.constexpr, BLOCK_R: tl.constexpr,
              BLOCK_C: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, MODIFIED: tl.constexpr,
              TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """Flash attention (Dao 2023, FlashAttention-2): first the blocks of keys that all rows see, then masked ones."""
    tile, head = tl.program_id(0), tl.program_id(1)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile  # the longest tiles first
    row, own = tile * BLOCK_R, kv_len - q_len
    rows = row + tl.arange(0, BLOCK_R)
    slope = tl.load(slopes + head) if MODIFIED else 0.0
    queries = load_rows(q, head, row, 0, BLOCK_R, HEAD_DIM)
    shift = tl.full([BLOCK_R], MASKED, tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    output = tl.zeros([BLOCK_R, HEAD_DIM], tl.float32)
    all_see = tl.maximum(tl.minimum(row + 1 + own, kv_len), 0) if CAUSAL else kv_len
    some_see = tl.minimum(row + BLOCK_R + own, kv_len) if CAUSAL else kv_len
    masked_from = all_see // BLOCK_C * BLOCK_C
    output, shift, total = attend(output, shift, total, queries, k, v, head, rows, 0, masked_from, kv_len, own, scale,
                                  slope, cap, HEAD_DIM, BLOCK_C, STAGES, CAUSAL, MODIFIED, False, TYPE, PRECISION)
    output, shift, total = attend(output, shift, total, queries, k, v, head, rows, masked_from, some_see, kv_len, own,
                                  scale, slope, cap, HEAD_DIM, BLOCK_C, STAGES, CAUSAL, MODIFIED, True, TYPE,
                                  PRECISION)
    store_rows(o, head, row, 0, output * (1.0 / total)[:, None], BLOCK_R, HEAD_DIM, TYPE)


# ---- what a search tries, the default first

def tiles(problem):
    """Function constants and options of the compiler, for each candidate."""
    work, dim, f32 = problem.work, problem.head_dim, problem.dtype == "f32"
    if work == "softmax":
        rows = [1, 2, 4] if problem.kv_len <= 1024 else [1]
        return [{"BLOCK_R": r, "warps": w} for r in rows for w in (4, 8, 16, 2) if r * problem.kv_len >= 64 * w]
    if work == "scores":
        shapes = (((128, 64, 8), (64, 64, 4), (128, 128, 8)) if f32 else
                  ((128, 128, 8), (128, 128, 4), (128, 64, 4), (64, 128, 4), (128, 256, 8), (256, 128, 8)))
        return [{"BLOCK_R": r, "BLOCK_C": c, "STRIPE": stripe, "STAGES": 2, "warps": w}
                for r, c, w in shapes for stripe in (4, 1, 8)]
    if work == "values":
        shapes = (((128, 32, 8), (64, 32, 4), (128, 64, 8), (64, 64, 4)) if f32 else
                  ((128, 64, 4), (128, 128, 8), (128, 64, 8), (64, 128, 4), (64, 64, 4), (256, 64, 8)))
        return [{"BLOCK_R": r, "BLOCK_C": c, "STAGES": s, "warps": w} for r, c, w in shapes for s in (3, 4, 2)]
    shapes = (((64, 32, 4), (128, 32, 8), (64, 64, 4), (128, 64, 8)) if f32 else
              ((128, 128, 8), (128, 64, 4), (128, 64, 8), (64, 128, 4), (64, 64, 4), (256, 64, 8)))
    return [{"BLOCK_R": r, "BLOCK_C": c, "STAGES": s, "warps": w} for r, c, w in shapes
            for s in (2, 3, 4) if s == 2 or c * dim <= 64 * 128]


# ---- compiled ahead of time

def tensor_map(name, rows, columns, meta):
    """Parameters of a descriptor of [heads, rows, columns]: the map, the sizes, the strides."""
    return [{"kind": "tensor_map", "tensor": name, "rows": rows, "columns": columns, "box": meta["block_size"][1:],
             "swizzle": [0, 32, 64, 128][meta["swizzle"]]},
            *({"kind": "int32", "of": of} for of in (["all_heads"], [rows], [columns])),
            *({"kind": "int64", "of": of} for of in ([rows, columns], [columns], []))]


def generate(problem, tile):
    """The machine code of one candidate, and how it is launched."""
    work, dim, f32 = problem.work, problem.head_dim, problem.dtype == "f32"
    element = "fp32" if f32 else "bf16"
    rows, columns = tile["BLOCK_R"], tile.get("BLOCK_C")
    constants = {"HEAD_DIM": dim, "BLOCK_R": rows, "BLOCK_C": columns, "TYPE": tl.float32 if f32 else tl.bfloat16,
                 "STRIPE": tile.get("STRIPE"), "STAGES": tile.get("STAGES"), "CAUSAL": bool(problem.causal),
                 "MODIFIED": work == "modified", "PRECISION": "tf32x3" if f32 else None, "COLUMNS": problem.kv_len}
    # Of each tensor: rows and columns as the launch knows them, and the box.
    q, k = ("q_len", "head_dim", [rows, dim]), ("kv_len", "head_dim", [columns, dim])
    matrix = ("q_len", "kv_len", [rows, columns])
    numbers = {"scale": "fp32", "cap": "fp32", "q_len": "i32", "kv_len": "i32", "all_rows": "i32"}
    row_tiles = {"of": ["q_len"], "per": rows}
    heads = {"of": ["all_heads"], "per": 1}
    function, tensors, grid = {
        "scores": (scores, {"q": q, "k": k, "s": matrix},
                   [{"of": ["kv_len"], "per": columns and columns * tile.get("STRIPE", 1)}, row_tiles, heads]),
        "softmax": (softmax, {"s": None, "p": None}, [{"of": ["all_heads", "q_len"], "per": rows}]),
        "values": (values, {"p": matrix, "v": k, "o": q}, [row_tiles, heads]),
        "attention": (attention, {"q": q, "k": k, "v": k, "o": q, "slopes": None}, [row_tiles, heads]),
        "modified": (attention, {"q": q, "k": k, "v": k, "o": q, "slopes": None}, [row_tiles, heads]),
    }[work]
    signature, aligned = {}, {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in numbers:
            signature[name] = numbers[name]
            if name == "kv_len" and work == "softmax":
                aligned[(i,)] = [["tt.divisibility", 16]]
        elif tensors[name] is None:
            signature[name] = "*fp32" if name == "slopes" else "*" + element
            aligned[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = f"tensordesc<{element}[1, {', '.join(map(str, tensors[name][2]))}]>"
    used = {name: value for name, value in constants.items() if name in function.arg_names}
    compiled = triton.compile(ASTSource(function, signature, used, aligned), target=GPUTarget("cuda", 90, 32),
                              options={"num_warps": tile["warps"]})
    meta = compiled.metadata
    parameters, maps = [], iter(meta.tensordesc_meta)
    for name, kind in signature.items():
        if kind.startswith("tensordesc"):
            parameters += tensor_map(name, *tensors[name][:2], next(maps))
        elif kind.startswith("*"):
            parameters.append({"kind": "pointer", "tensor": name})
        elif kind != "constexpr":
            parameters.append({"kind": {"fp32": "float", "i32": "int32"}[kind], "of": [name]})
    assert meta.global_scratch_size == meta.profile_scratch_size == 0 and meta.num_ctas == 1
    parameters += [{"kind": "null"}, {"kind": "null"}]  # scratch memory, which these kernels do not use
    return {"cubin": compiled.asm["cubin"], "entry": meta.name, "grid": grid, "threads": 32 * meta.num_warps,
            "threadgroup_bytes": meta.shared, "parameters": parameters,
            "kv_len_multiple": {"softmax": 16, "scores": 4 if f32 else 8, "values": 4 if f32 else 8}.get(work, 1),
            "most_kv_len": problem.kv_len if work == "softmax" else 0}
