"""The parts of attention in Halide for CUDA, and the tiles that a search tries. tools/generate_cuda.py compiles them.

Tensors are [heads, rows, columns], where `heads` counts the heads of all batches. Halide names the columns first.
Halide writes PTX, which ptxas assembles. Halide's lowered program tells how to launch the kernel. Halide does not know
NVIDIA's matrix units, so all products are multiply-adds of f32. Its PTX has no bf16: a bf16 element is 16 bits that are
shifted to the place where an f32 has them.

The results of a reduction have one shape in Halide, so the sum, the total and the maximum of an online softmax would
each have the shape of the sum. Here a block of keys is a softmax of its own. The results of blocks are merged, with one
total and one maximum for each SIDE-th part of a row of the output.
"""

import importlib.metadata
import pathlib
import re
import subprocess
import tempfile

import halide as hl

VERSION = importlib.metadata.version("halide")
SIDE = 16  # threads along each side of a thread block
WIDE = 4  # elements that a thread reads at once
FEW = 16  # results of threads that one thread puts together
GUARDED = hl.TailStrategy.GuardWithIf
MASKED = -1e30
SOFT_CAP = 30.0  # as kernels/generated.h has it
MOST_BYTES = 227 << 10  # the most threadgroup memory of a thread block
f32 = hl.Float(32)
# An element of a head, a query, a key, a head; a tile of queries, a block of keys, a group of columns.
d, i, k, h, t, b, g = hl.vars("d i k h t b g")


class Inputs:
    """The inputs of the works, and the types in memory."""

    def __init__(self, problem):
        self.bf16, dim = problem.dtype == "bf16", problem.head_dim
        element = hl.UInt(16) if self.bf16 else f32
        self.q_len, self.kv_len, self.heads = (hl.Param(hl.Int(32), name) for name in ("q_len", "kv_len", "all_heads"))
        self.scale = hl.Param(f32, "scale")
        self.of_row = hl.max(self.kv_len / WIDE, 1) * WIDE  # elements of a row of weights
        self.q, self.k, self.v, self.input = (hl.ImageParam(element, 3, name) for name in ("q", "k", "v", "in"))
        for tensor, columns in ((self.q, dim), (self.k, dim), (self.v, dim), (self.input, self.of_row)):
            self.dense(tensor, columns)
        self.slopes = hl.ImageParam(f32, 1, "slopes")
        self.slopes.dim(0).set_min(0)

    def dense(self, tensor, columns):
        """[heads, rows, columns], rows at multiples of WIDE elements."""
        tensor.set_host_alignment(16)
        tensor.dim(0).set_bounds(0, columns)
        rows, heads = tensor.dim(1), tensor.dim(2)
        rows.set_min(0).set_stride(columns if isinstance(columns, int) else rows.stride() / WIDE * WIDE)
        heads.set_min(0).set_stride(heads.stride() / WIDE * WIDE)

    def number(self, element):
        return hl.reinterpret(f32, hl.u32(element) << 16) if self.bf16 else element

    def element(self, number):
        """Rounded to the nearest, ties to even."""
        if not self.bf16:
            return number
        bits = hl.reinterpret(hl.UInt(32), number)
        return hl.u16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)

    def query(self, row):
        return hl.min(row, self.q_len - 1)

    def key(self, row):
        return hl.min(row, self.kv_len - 1)

    def weight(self, column):
        """WIDE columns from a multiple of WIDE on stay adjacent."""
        return hl.min(column / WIDE, self.kv_len / WIDE - 1) * WIDE + column % WIDE

    def blocks(self, keys):
        return (self.kv_len + keys - 1) / keys


def masked_unless(seen):
    return hl.select(seen, hl.f32(0), hl.f32(MASKED))


# ---- shared by the schedules

def threads(stage, first, own_first, second, own_second, serial=(), within=()):
    """SIDE by SIDE threads, each with `own_first` by `own_second` adjacent elements. `serial` are loops around the
    threads, `within` are loops of a thread."""
    fo, fi, so, si, thread = hl.vars("fo fi so si thread")
    stage.split(first, fo, fi, own_first).split(second, so, si, own_second).reorder(fi, si, *within, fo, so, *serial)
    stage.fuse(fo, so, thread).gpu_threads(thread).unroll(fi).unroll(si)
    return thread


def staged(func, consumer, at, rows, columns, extent):
    """Rows of an input, which the threads read together, WIDE elements of one row at once."""
    ro, ri, do, di, dw, thread = hl.vars("ro ri do di dw thread")
    func.bound_extent(rows, extent).compute_at(consumer, at)
    func.split(columns, do, dw, WIDE).split(do, do, di, SIDE).split(rows, ro, ri, SIDE).reorder(dw, do, ro, ri, di)
    func.fuse(ri, di, thread).gpu_threads(thread).vectorize(dw)


def in_registers(product, consumer, at, tile, step):
    """The sums of one thread; `tile` has its dimensions and their extents."""
    product.compute_at(consumer, at)
    update = product.update().reorder(*(dimension for dimension, _ in tile), step).unroll(step, WIDE)
    for dimension, extent in tile:
        product.bound_extent(dimension, extent).unroll(dimension)
        update.unroll(dimension)


def kept(out, dim, block_r):
    """Blocks of `block_r` rows of the output. The threads write the rows that exist. Returns the loop over blocks."""
    io, ii, yo, yi, do, di, thread = hl.vars("io ii yo yi do di thread")
    out.bound(d, 0, dim).split(d, do, di, dim // SIDE).split(i, io, ii, block_r, GUARDED).split(ii, yo, yi, SIDE)
    out.reorder(di, yo, do, yi, io, h).fuse(do, yi, thread).unroll(di).gpu_threads(thread).gpu_blocks(io, h)
    return io


# ---- works

def scores(w, dim, BLOCK_R, BLOCK_C):
    """S = scale Q K^T."""
    q_rows, k_rows, product, out = map(hl.Func, ("q_rows", "k_rows", "product", "out"))
    depth = hl.RDom([(0, dim)])
    q_rows[i, d, h] = w.number(w.q[d, w.query(i), h]) * w.scale
    k_rows[k, d, h] = w.number(w.k[d, w.key(k), h])
    product[k, i, h] = 0.0
    product[k, i, h] += k_rows[k, depth, h] * q_rows[i, depth, h]
    out[k, i, h] = w.element(product[k, i, h])

    kv, kw, ko, kx, ki, io, iy, ii, thread = hl.vars("kv kw ko kx ki io iy ii thread")
    own_rows, own_keys = BLOCK_R // SIDE, BLOCK_C // SIDE
    out.bound(k, 0, w.of_row).split(k, kv, kw, WIDE).split(kv, ko, kx, BLOCK_C // WIDE, GUARDED)
    out.split(kx, kx, ki, own_keys // WIDE).split(i, io, ii, BLOCK_R, GUARDED).split(ii, iy, ii, own_rows)
    out.reorder(kw, ki, ii, kx, iy, ko, io, h).fuse(kx, iy, thread).gpu_threads(thread).gpu_blocks(ko, io, h)
    out.vectorize(kw).unroll(ki).unroll(ii)
    in_registers(product, out, thread, [(k, own_keys), (i, own_rows)], depth.x)
    staged(q_rows, out, ko, i, d, BLOCK_R)
    staged(k_rows, out, ko, k, d, BLOCK_C)
    return out, [w.q, w.k, w.q_len, w.kv_len, w.heads, w.scale]


def softmax(w, columns, ROWS, THREADS):
    """P = softmax of each row of S. ROWS rows share a thread block, and lie in the memory of its threads."""
    names = ("score", "some_maximum", "more_maximum", "maximum", "weight", "some_total", "more_total", "total", "out")
    score, some_maximum, more_maximum, maximum, weight, some_total, more_total, total, out = map(hl.Func, names)
    own = hl.RDom([(0, WIDE), (0, columns // (WIDE * THREADS))])
    some, rest = hl.RDom([(0, THREADS // FEW)]), hl.RDom([(0, FEW)])
    own_key = own.y * (WIDE * THREADS) + g * WIDE + own.x
    score[k, i, h] = w.number(w.input[w.weight(k), w.query(i), h]) + masked_unless(k < w.kv_len)
    some_maximum[g, i, h] = hl.f32(MASKED)
    some_maximum[g, i, h] = hl.max(some_maximum[g, i, h], score[own_key, i, h])
    more_maximum[g, i, h] = hl.f32(MASKED)
    more_maximum[g, i, h] = hl.max(more_maximum[g, i, h], some_maximum[some * FEW + g, i, h])
    maximum[i, h] = hl.f32(MASKED)
    maximum[i, h] = hl.max(maximum[i, h], more_maximum[rest, i, h])
    weight[k, i, h] = hl.exp(score[k, i, h] - maximum[i, h])
    some_total[g, i, h] = 0.0
    some_total[g, i, h] += weight[own_key, i, h]
    more_total[g, i, h] = 0.0
    more_total[g, i, h] += some_total[some * FEW + g, i, h]
    total[i, h] = 0.0
    total[i, h] += more_total[rest, i, h]
    out[k, i, h] = w.element(weight[k, i, h] * (1.0 / total[i, h]))

    io, ii = hl.vars("io ii")

    def across(stage, row):
        ko, ki, kw, thread = hl.vars("ko ki kw thread")
        guard = [GUARDED] if stage is out else []
        stage.split(k, k, kw, WIDE).split(k, ko, ki, THREADS, *guard).reorder(kw, ko, ki, row)
        stage.fuse(ki, row, thread).gpu_threads(thread).vectorize(kw)

    out.bound(k, 0, w.of_row).split(i, io, ii, ROWS, GUARDED)
    across(out, ii)
    out.gpu_blocks(io, h)
    for stage in (score, weight):
        across(stage.bound_extent(k, columns), i)
    for stage in (score, some_maximum, more_maximum, maximum, weight, some_total, more_total, total):
        stage.bound_extent(i, ROWS).compute_at(out, io)
    for stage, loops in ((some_maximum, [own.x, own.y]), (some_total, [own.x, own.y]), (more_maximum, [some.x]),
                         (more_total, [some.x])):
        thread = hl.Var("thread")
        stage.fuse(g, i, thread).gpu_threads(thread)
        stage.update().reorder(*loops, g, i).fuse(g, i, thread).gpu_threads(thread)
    for stage in (maximum, total):
        stage.gpu_threads(i)
        stage.update().gpu_threads(i)
    return out, [w.input, w.q_len, w.kv_len, w.heads]


def values(w, dim, BLOCK_R, BLOCK_C):
    """O = P V. Blocks of keys are added up in registers, and their sums in the memory of a thread block."""
    weights, v_rows, part, sums, out = map(hl.Func, ("weights", "v_rows", "part", "sums", "out"))
    key, blocks = hl.RDom([(0, BLOCK_C)]), hl.RDom([(0, w.blocks(BLOCK_C))])
    own_key = b * BLOCK_C + k
    there = hl.select(own_key < w.kv_len, hl.f32(1), hl.f32(0))
    weights[i, k, b, t, h] = w.number(w.input[w.weight(own_key), w.query(t * BLOCK_R + i), h]) * there
    v_rows[d, k, b, h] = w.number(w.v[d, w.key(own_key), h])
    part[d, i, b, t, h] = 0.0
    part[d, i, b, t, h] += v_rows[d, key, b, h] * weights[i, key, b, t, h]
    sums[d, i, t, h] = 0.0
    sums[d, i, t, h] += part[d, i, blocks, t, h]
    out[d, i, h] = w.element(sums[d, i % BLOCK_R, i / BLOCK_R, h])

    own_columns, own_rows = dim // SIDE, BLOCK_R // SIDE
    sums.compute_at(out, kept(out, dim, BLOCK_R)).bound_extent(t, 1)
    threads(sums, d, own_columns, i, own_rows)
    thread = threads(sums.update(), d, own_columns, i, own_rows, serial=[blocks.x])
    in_registers(part, sums, thread, [(d, own_columns), (i, own_rows)], key.x)
    staged(weights, sums, blocks.x, i, k, BLOCK_R)
    staged(v_rows, sums, blocks.x, k, d, BLOCK_C)
    return out, [w.input, w.v, w.q_len, w.kv_len, w.heads]


def attention(w, dim, causal, modified, BLOCK_R, BLOCK_C):
    """O = softmax(scale Q K^T) V, modified or not."""
    group, few = dim // SIDE, BLOCK_C // SIDE
    names = ("q_rows", "k_rows", "v_rows", "product", "score", "some_maximum", "maximum", "weight", "some_total",
             "total", "part", "state", "out")
    (q_rows, k_rows, v_rows, product, score, some_maximum, maximum, weight, some_total, total, part, state,
     out) = map(hl.Func, names)
    depth, some, all_some, key = (hl.RDom([(0, extent)]) for extent in (dim, few, SIDE, BLOCK_C))
    blocks = hl.RDom([(0, w.blocks(BLOCK_C))])
    q_rows[i, d, t, h] = w.number(w.q[d, w.query(t * BLOCK_R + i), h]) * w.scale
    k_rows[k, d, b, h] = w.number(w.k[d, w.key(b * BLOCK_C + k), h])
    v_rows[d, k, b, h] = w.number(w.v[d, w.key(b * BLOCK_C + k), h])
    product[i, k, b, t, h] = 0.0
    product[i, k, b, t, h] += q_rows[i, depth, t, h] * k_rows[k, depth, b, h]
    changed, own_query, own_key = product[i, k, b, t, h], t * BLOCK_R + i, b * BLOCK_C + k
    if modified:
        changed = SOFT_CAP * hl.tanh(changed / SOFT_CAP) + w.slopes[h] * hl.f32(own_key - own_query)
    seen = own_key < w.kv_len
    if causal:
        seen = seen & (own_key <= own_query)
        blocks.where(blocks.x * BLOCK_C < (t + 1) * BLOCK_R)
    score[i, k, b, t, h] = changed + masked_unless(seen)  # a select around the product would narrow its tile
    some_maximum[i, g, b, t, h] = hl.f32(MASKED)
    some_maximum[i, g, b, t, h] = hl.max(some_maximum[i, g, b, t, h], score[i, g * few + some, b, t, h])
    maximum[i, b, t, h] = hl.f32(MASKED)
    maximum[i, b, t, h] = hl.max(maximum[i, b, t, h], some_maximum[i, all_some, b, t, h])
    weight[i, k, b, t, h] = hl.exp(score[i, k, b, t, h] - maximum[i, b, t, h])
    some_total[i, g, b, t, h] = 0.0
    some_total[i, g, b, t, h] += weight[i, g * few + some, b, t, h]
    total[i, b, t, h] = 0.0
    total[i, b, t, h] += some_total[i, all_some, b, t, h]
    part[d, i, b, t, h] = 0.0
    part[d, i, b, t, h] += v_rows[d, key, b, h] * weight[i, key, b, t, h]
    state[g, i, t, h] = hl.Tuple([hl.f32(MASKED)] + [hl.f32(0)] * (1 + group))
    largest, *sums = (state[g, i, t, h][n] for n in range(2 + group))
    added = [total[i, blocks, t, h]] + [part[g * group + n, i, blocks, t, h] for n in range(group)]
    larger = hl.max(largest, maximum[i, blocks, t, h])
    keep, add = hl.exp(largest - larger), hl.exp(maximum[i, blocks, t, h] - larger)
    state[g, i, t, h] = hl.Tuple([larger] + [old * keep + new * add for old, new in zip(sums, added)])
    _, divisor, *sums = (state[d / group, i % BLOCK_R, i / BLOCK_R, h][n] for n in range(2 + group))
    out[d, i, h] = w.element(hl.mux(d % group, sums) / divisor)

    own_rows = BLOCK_R // SIDE
    state.compute_at(out, kept(out, dim, BLOCK_R)).bound_extent(t, 1).reorder_storage(i, g, t, h)
    threads(state, i, own_rows, g, 1)
    thread = threads(state.update(), i, own_rows, g, 1, serial=[blocks.x])
    in_registers(part, state, thread, [(d, group), (i, own_rows)], key.x)
    # Read again for each block. Halide 21 counts no use of memory across the turns of a loop: it gives memory away
    # after its last use in a turn, and the next turn would find other values there.
    staged(q_rows, state, blocks.x, i, d, BLOCK_R)
    staged(k_rows, state, blocks.x, k, d, BLOCK_C)
    staged(v_rows, state, blocks.x, k, d, BLOCK_C)
    for func in (score, weight, some_maximum, some_total, maximum, total):
        func.compute_at(state, blocks.x).bound_extent(t, 1).bound_extent(h, 1)
    in_registers(product, score, threads(score, i, own_rows, k, few), [(i, own_rows), (k, few)], depth.x)
    threads(weight, i, own_rows, k, few)
    for func in (some_maximum, some_total):
        threads(func, i, own_rows, g, 1)
        threads(func.update(), i, own_rows, g, 1, within=[some.x])
    for func in (maximum, total):
        func.gpu_threads(i)
        func.update().gpu_threads(i)
    return out, [w.q, w.k, w.v, w.slopes, w.q_len, w.kv_len, w.heads, w.scale]


# ---- what a search tries, the default first

def tiles(problem):
    """Arguments of the functions above, for each candidate."""
    if problem.work == "softmax":
        return [{"ROWS": rows, "THREADS": threads} for rows, threads in
                ((1, 128), (2, 128), (1, 256), (2, 64), (4, 64), (1, 64), (4, 32), (8, 32), (2, 256), (1, 512))
                if WIDE * threads <= problem.kv_len and threadgroup_bytes(problem, rows, 0) <= MOST_BYTES]
    fewest = SIDE * WIDE if problem.work in ("scores", "values") else 1  # the threads have WIDE keys each
    return [{"BLOCK_R": rows, "BLOCK_C": keys} for rows, keys in
            ((64, 64), (128, 64), (128, 128), (64, 128), (128, 32), (64, 32), (32, 64), (32, 128))
            if keys >= fewest and threadgroup_bytes(problem, rows, keys) <= MOST_BYTES]


def threadgroup_bytes(problem, rows, keys):
    """About how many bytes a thread block holds at once."""
    dim, length = problem.head_dim, problem.kv_len
    return 4 * {"scores": (rows + keys) * dim, "softmax": 2 * rows * length, "values": rows * (dim + keys) + keys * dim,
                }.get(problem.work, rows * (2 * dim + 2 * keys + 2 * SIDE) + max(rows, keys) * dim)


# ---- compiled ahead of time

TARGET = "x86-64-linux-cuda-cuda_capability_86-no_asserts-no_bounds_query-no_runtime"  # Halide knows no later one


def pipeline_of(problem, tile):
    """The function that is the output, and its arguments."""
    inputs, work, dim = Inputs(problem), problem.work, problem.head_dim
    if work == "scores":
        out, arguments = scores(inputs, dim, **tile)
    elif work == "softmax":
        out, arguments = softmax(inputs, problem.kv_len, **tile)
    elif work == "values":
        out, arguments = values(inputs, dim, **tile)
    else:
        out, arguments = attention(inputs, dim, bool(problem.causal), work == "modified", **tile)
    buffer = out.output_buffer()
    inputs.dense(buffer, inputs.of_row if work in ("scores", "softmax") else dim)
    buffer.dim(1).set_extent(inputs.q_len)
    buffer.dim(2).set_extent(inputs.heads)
    return out, arguments


def lowered(out, arguments):
    """Halide's lowered program: the PTX, and the text of the host's part, which launches the PTX."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "stmt")
        out.compile_to({hl.OutputFileType.stmt: str(path)}, arguments, "host", hl.Target(TARGET))
        text = path.read_text()
    ptx, host = re.search(r"\{\n(//\n// Generated by LLVM NVPTX.*?)\0(.*)", text, re.S).groups()
    return ptx, re.sub(r"\$\d+", "", host)  # Halide numbers names that are taken


def assembled(ptx):
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = pathlib.Path(folder, "kernel.ptx"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(ptx)
        done = subprocess.run(["ptxas", "-arch=sm_90a", source, "-o", cubin], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("ptxas: " + done.stderr.strip()[-400:])
        return cubin.read_bytes()


def rounded_up(expression, named):
    """An expression of the host's as lengths, whose product is divided by `per`: "(kv_len + 127)/128", "max(t1, 1)".
    A division that rounds down gives the same as one that rounds up where kv_len is a multiple of WIDE."""
    if expression in named:
        return named[expression] if isinstance(named[expression], dict) else rounded_up(named[expression], named)
    if expression == "1":
        return {"of": [], "per": 1}
    least = re.fullmatch(r"max\((.*), 1\)", expression)
    if least:
        return rounded_up(least[1], named)
    inner, plus, per = re.fullmatch(r"\(?(.*?)(?: \+ (\d+)\))?/(\d+)", expression).groups()
    assert int(plus or 0) in (0, int(per) - WIDE, int(per) - 1), expression
    inner = rounded_up(inner, named)
    return {"of": inner["of"], "per": inner["per"] * int(per)}


def generate(problem, tile):
    """The machine code of one candidate, and how it is launched."""
    work = problem.work
    ptx, host = lowered(*pipeline_of(problem, tile))
    launches = re.findall(r'halide_cuda_run\(\S+ "(\w+)", (.*?), 0 \+ \((\d+)\*(\d+)\), .*? \(void \*\)make_struct\('
                          r'(\(void \*\).*?), reinterpret', host)
    (entry, sizes, elements, element_bytes, values), = launches  # one kernel
    matrix = ["q_len", "kv_len"]
    of_heads = {"q": ["q_len", "head_dim"], "k": ["kv_len", "head_dim"], "v": ["kv_len", "head_dim"], "in": matrix,
                "out": matrix if work in ("scores", "softmax") else ["q_len", "head_dim"]}
    named = {name: {"of": [name], "per": 1} for name in ("q_len", "kv_len", "all_heads")}
    for tensor, lengths in of_heads.items():
        named[f"{tensor}.stride.1"] = {"of": lengths[1:], "per": 1}
        named[f"{tensor}.stride.2"] = {"of": lengths, "per": 1}
    named |= dict(re.findall(r"let (t\d+) = (.*)", host))
    *grid, threads, _, _ = sizes.split(", ")
    parameters = []
    for value in re.sub(r"\(void \*\)(?:make_struct)?", "", values).split(", "):
        if value.endswith(".buffer"):
            parameters.append({"kind": "pointer", "tensor": value.removesuffix(".buffer")})
        elif value.startswith("((float32)"):
            parameters.append({"kind": "float", "of": [value[10:-1]]})
        else:
            parameters.append({"kind": "int32", **rounded_up(value[1:-1], named)})
    return {"cubin": assembled(ptx), "entry": entry, "threads": int(threads),
            "grid": [rounded_up(side, named) for side in grid],
            "threadgroup_bytes": int(elements) * int(element_bytes), "parameters": parameters,
            "kv_len_multiple": WIDE if work in ("scores", "softmax", "values") else 1,
            "most_kv_len": problem.kv_len if work == "softmax" else 0}
