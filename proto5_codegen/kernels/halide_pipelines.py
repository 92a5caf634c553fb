# The works of proto5_codegen (CodegenWork in generated.h) in Halide. Each work has three schedules. The program writes
# one object file, OUT:
#
#   python halide_pipelines.py OUT ENTRY ARCH FEATURES NAME=VALUE...
#
# ENTRY is one of the functions halide_*() below. ARCH is LLVM's name of the host's CPU ("znver4"). FEATURES is LLVM's
# list of the CPU's features ("avx2,fma,..."). The other arguments are the kernel's constants:
#
#   SCHEDULE       0 plain: each stage is computed for all rows before the next stage, with vectors along its innermost
#                  dimension
#                  1 auto: an autoscheduler makes the schedule
#                  2 tuned: the schedule is in this file; a search may choose its constants
#   HALIDE         Halide's version, major * 10000 + minor * 100 + patch; other versions generate other code
#   BLOCK_R        rows of the output that one call computes
#   MULTIPLE       the number of columns of the output is a multiple of this number
#   VECTOR_WIDTH   lanes of a vector
#   HEAD_DIM, CAUSAL, MODIFIED   if the work has them
#   AUTOSCHEDULER, LENGTH        of auto: 0 Mullapudi2016, 1 Adams2019; the number of keys to optimise for
#   TILE_VECTORS, TILE_ROWS, TILE_COLUMNS   of tuned: the sizes of register tiles
#   UNROLL         of tuned: how many steps of a register tile's loop are unrolled
#
# A function computes BLOCK_R rows of one head; `first` is the index of their first row. Only `rows` rows and `keys`
# keys exist. Beyond these, a pipeline reads the last row or key again, and the results are not used. So the loops over
# rows and columns of the output run over whole tiles, without a remainder.
import pathlib
import sys

import halide as hl

i, k, d = hl.vars("i k d")  # a row (of the block), a key, an element of a head
f32 = hl.Float(32)
soft_cap = 30.0  # as generated.h has it


class Work:
    """The constants and inputs of a work, and the parts of schedules that the works share."""

    def __init__(self, constants):
        self.constants = constants
        self.vector = constants["VECTOR_WIDTH"]
        self.q, self.k, self.v, self.input = (hl.ImageParam(f32, 2, name) for name in ("q", "k", "v", "in"))
        self.keys, self.rows, self.first = (hl.Param(hl.Int(32), name) for name in ("keys", "rows", "first"))
        self.scale, self.slope = hl.Param(f32, "scale"), hl.Param(f32, "slope")
        self.reduced_keys = hl.RDom([(0, self.keys)])
        self.plain, self.auto, self.tuned = (constants["SCHEDULE"] == which for which in range(3))
        if self.tuned:
            self.tile = constants["TILE_VECTORS"] * self.vector
            self.tile_rows, self.unroll = constants.get("TILE_ROWS"), constants.get("UNROLL")

    def key(self, at):
        return hl.min(hl.likely(at), self.keys - 1)

    def row(self, at):
        return hl.min(at, self.rows - 1)

    def estimate(self, out, columns):
        """Gives the autoscheduler an estimate of each size and number."""
        length, rows = self.constants["LENGTH"], self.constants["BLOCK_R"]
        for tensor in (self.q, self.k, self.v):
            tensor.set_estimates([(0, self.constants.get("HEAD_DIM", 0)), (0, length)])
        self.input.set_estimates([(0, length), (0, length)])
        self.keys.set_estimate(length)
        self.rows.set_estimate(rows)
        self.first.set_estimate(0)
        self.scale.set_estimate(0.125)
        self.slope.set_estimate(0.5)
        out.set_estimates([(0, columns), (0, rows)])

    def whole(self, *stages):
        """The plain schedule."""
        for stage in stages:
            stage.compute_root().vectorize(stage.args()[0], self.vector)
            if stage.has_update_definition():
                stage.update().vectorize(stage.args()[0], self.vector)

    def in_registers(self, product, consumer, at, inner, outer, step):
        """Keeps a tile of sums in registers, with `inner` along the lanes. The loop `step` adds up the terms."""
        product.compute_at(consumer, at).vectorize(inner, self.vector).unroll(inner).unroll(outer)
        update = product.update()
        update.reorder(inner, outer, step).vectorize(inner, self.vector).unroll(inner).unroll(outer)
        if self.unroll > 1:
            update.unroll(step, self.unroll)


def exponential(x):
    return hl.fast_exp(hl.clamp(x, -87.0, 88.0))  # outside these bounds the results of fast_exp() are wrong


def halide_scores(w):
    """S = scale Q K^T: keys in the lanes."""
    depth = hl.RDom([(0, w.constants["HEAD_DIM"])])
    turned, product, out = hl.Func("turned"), hl.Func("product"), hl.Func("out")
    turned[k, d] = w.k[d, w.key(k)] * w.scale
    product[k, i] = 0.0
    product[k, i] += turned[k, depth] * w.q[depth, w.row(i)]
    out[k, i] = product[k, i]
    if w.plain:
        w.whole(turned, product, out)
    if w.tuned:
        ko, ki, io, ii = hl.vars("ko ki io ii")
        out.split(k, ko, ki, w.tile).split(i, io, ii, w.tile_rows).reorder(ki, ii, io, ko)
        out.vectorize(ki, w.vector).unroll(ki).unroll(ii)
        turned.compute_at(out, ko).vectorize(k, w.vector)
        w.in_registers(product, out, io, k, i, depth.x)
    return out, w.constants.get("LENGTH"), [w.q, w.k, w.keys, w.rows, w.scale]


def halide_softmax(w):
    """P = softmax(S) of rows: keys in the lanes."""
    r = w.reduced_keys
    maximum, weight, total, out = (hl.Func(name) for name in ("maximum", "weight", "total", "out"))
    maximum[i] = hl.f32(-1e30)
    maximum[i] = hl.max(maximum[i], w.input[r, w.row(i)])
    weight[k, i] = exponential(w.input[w.key(k), w.row(i)] - maximum[i])
    total[i] = 0.0
    total[i] += weight[r, i]
    out[k, i] = weight[k, i] * (1.0 / total[i])
    if w.plain:
        w.whole(weight, out)
        maximum.compute_root()
        total.compute_root()
    if w.tuned:
        lanes, ro, ri = hl.Var("lanes"), hl.RVar("ro"), hl.RVar("ri")
        out.split(k, k, hl.Var("ki"), w.tile).vectorize(hl.Var("ki"), w.vector)
        weight.compute_at(out, i).vectorize(k, w.vector)
        for sums in (maximum, total):
            sums.compute_at(out, i)
            update = sums.update()
            update.split(r.x, ro, ri, w.tile)
            part = update.rfactor(ri, lanes)
            part.compute_at(out, i).vectorize(lanes, w.vector).unroll(lanes)
            part.update().reorder(lanes, ro).vectorize(lanes, w.vector).unroll(lanes)
    return out, w.constants.get("LENGTH"), [w.input, w.keys, w.rows]


def halide_values(w):
    """O = P V: elements of a head in the lanes."""
    r = w.reduced_keys
    product, out = hl.Func("product"), hl.Func("out")
    product[d, i] = 0.0
    product[d, i] += w.input[r, w.row(i)] * w.v[d, r]
    out[d, i] = product[d, i]
    if w.plain:
        w.whole(product, out)
    if w.tuned:
        do, di, io, ii = hl.vars("do di io ii")
        out.split(d, do, di, w.tile).split(i, io, ii, w.tile_rows).reorder(di, ii, io, do)
        out.vectorize(di, w.vector).unroll(di).unroll(ii)
        w.in_registers(product, out, io, d, i, r.x)
    return out, w.constants["HEAD_DIM"], [w.input, w.v, w.keys, w.rows]


def halide_attention(w):
    """O = softmax(scale Q K^T) V, modified or not: rows in the lanes, so no sum of the softmax crosses lanes."""
    depth, r = hl.RDom([(0, w.constants["HEAD_DIM"])]), w.reduced_keys
    turned, product, score, maximum, weight, total, sums, divided, out = (
        hl.Func(name)
        for name in ("turned", "product", "score", "maximum", "weight", "total", "sums", "divided", "out")
    )
    turned[i, d] = w.q[d, w.row(i)] * w.scale
    product[i, k] = 0.0
    product[i, k] += turned[i, depth] * w.k[depth, w.key(k)]
    changed = product[i, k]
    if w.constants["MODIFIED"]:
        tanh = 1.0 - 2.0 / (exponential(changed * (2.0 / soft_cap)) + 1.0)
        changed = soft_cap * tanh + w.slope * hl.f32(k - i - w.first)
    if w.constants["CAUSAL"]:
        # The mask is added. With a select around the product, Halide would keep the product's sums in memory.
        changed = changed + hl.select(k <= i + w.first, hl.f32(0), hl.f32(-1e30))
    score[i, k] = changed
    maximum[i] = hl.f32(-1e30)
    maximum[i] = hl.max(maximum[i], score[i, r])
    weight[i, k] = exponential(score[i, k] - maximum[i])
    total[i] = 0.0
    total[i] += weight[i, r]
    sums[i, d] = 0.0
    sums[i, d] += weight[i, r] * w.v[d, r]
    divided[i, d] = sums[i, d] * (1.0 / total[i])
    out[d, i] = divided[i, d]
    if w.plain:
        w.whole(turned, product, score, maximum, weight, total, sums, divided, out)
    if w.tuned:
        io, ii, ko, ki, do, di = hl.vars("io ii ko ki do di")
        out.split(i, io, ii, w.tile).vectorize(d, w.vector)
        for stage in (turned, maximum, weight, total):
            stage.compute_at(out, io).vectorize(i, w.vector).unroll(i)
        for stage in (maximum, total):
            stage.update().reorder(i, r.x).vectorize(i, w.vector).unroll(i)
        score.compute_at(out, io).split(k, ko, ki, w.tile_rows).reorder(i, ki, ko)
        score.vectorize(i, w.vector).unroll(i).unroll(ki)
        w.in_registers(product, score, ko, i, k, depth.x)
        divided.compute_at(out, io).split(d, do, di, w.constants["TILE_COLUMNS"]).reorder(i, di, do)
        divided.vectorize(i, w.vector).unroll(i).unroll(di)
        w.in_registers(sums, divided, do, i, d, r.x)
    return out, w.constants["HEAD_DIM"], [w.q, w.k, w.v, w.keys, w.rows, w.first, w.scale, w.slope]


def target_of(arch, features):
    """Returns Halide's target for the host."""
    if "neon" in features:
        return hl.Target("arm-64-linux-no_runtime-no_asserts-no_bounds_query")
    names = ["x86-64-linux", "sse41"]
    if "avx2" in features and "fma" in features:
        names += ["avx", "avx2", "fma", "f16c"]
    if all(name in features for name in ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")):
        names += ["avx512", "avx512_skylake"]
    if arch in ("znver1", "znver2", "znver3", "znver4", "znver5"):
        names.append("tune_" + arch)
    names += ["no_runtime", "no_asserts", "no_bounds_query"]
    return hl.Target("-".join(names))


def version():
    import importlib.metadata

    numbers = [int(part) for part in importlib.metadata.version("halide").split(".")[:3]]
    return numbers[0] * 10000 + numbers[1] * 100 + numbers[2]


def main():
    path, entry, arch, features = sys.argv[1:5]
    constants = {name: int(value) for name, value in (argument.split("=") for argument in sys.argv[5:])}
    if constants["HALIDE"] != version():
        sys.exit(f"Halide is {version()}, and {constants['HALIDE']} is asked for")
    target = target_of(arch, features.split(","))
    work = Work(constants)
    out, columns, arguments = globals()[entry](work)
    out.output_buffer().dim(0).set_min(0).set_extent(
        out.output_buffer().dim(0).extent() / constants["MULTIPLE"] * constants["MULTIPLE"]
    )
    out.output_buffer().dim(1).set_min(0).set_extent(constants["BLOCK_R"])
    pipeline = hl.Pipeline(out)
    if work.auto:
        work.estimate(out, columns)
        name = ["Mullapudi2016", "Adams2019"][constants["AUTOSCHEDULER"]]
        plugin = f"lib*/libautoschedule_{name.lower()}.so"
        hl.load_plugin(str(next(pathlib.Path(hl.__file__).parent.glob(plugin))))
        pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(name, {"parallelism": "1"}))
    pipeline.compile_to({hl.OutputFileType.object: path}, arguments, entry, target)


main()
