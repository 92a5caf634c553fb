"""Random calls of the operators attn::* and of the drop-in, each against its definition in float64, or against an error of
one line where the call is wrong.

    python/tests/run build/release/bin tests/fuzz.py torch                       # a minute, with a new seed
    python/tests/run build/release/bin tests/fuzz.py torch -- --seconds 600      # or --seed S, --only N, --device cuda

A case is made from the seed and its number alone. Cases run in a second process, so that one which ends it is a finding too.
A finding is one line; it begins with the options that make it again.

What holds for all attention: a hidden pair (causal, windows, lengths, documents, blocks, a bias of -inf) has weight 0 whatever
its key, value or bias hold. A bias of finite size is arithmetic. A row that sees nothing is 0 and its lse -inf, or the sink.
A score of NaN or +inf makes NaN of exactly the rows that see it; a value that is not finite, of what such rows have in its
column. Inputs are not written.
"""

import argparse
import collections
import contextlib
import math
import random
import select
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

import attn_proto

ops = torch.ops.attn
original = F.scaled_dot_product_attention
U = 2.0 ** -24  # half a unit in the last place of float32; UNIT is the same of each type
UNIT = {torch.float32: U, torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8}
HEADS = ((1, 1), (2, 1), (3, 1), (4, 2), (5, 5), (6, 2), (7, 1), (8, 2), (12, 4), (16, 1))
WIDTHS = (8, 16, 24, 32, 40, 64, 64, 72, 80, 96, 104, 128, 128, 136, 160, 192, 200, 256)
NAN, INF = math.nan, math.inf
BEYOND = (2 ** 31 - 2, 2 ** 31 - 1, 2 ** 31, 2 ** 32 + 3, 2 ** 63 - 1)


class Case(random.Random):
    """What a call is made of. `wrong` says what has to be refused, `said` is the call in words."""

    rows_may_overlap = True

    def __init__(self, seed, number, device):
        super().__init__(f"{seed}/{number}")
        self.device, self.wrong, self.said, self.kept = device, [], [], []
        self.generator = torch.Generator().manual_seed(self.getrandbits(60))

    def one_in(self, n):
        return self.randrange(n) == 0

    def size(self, most):
        """Near multiples of 16 rather than not."""
        near = 16 * self.randint(1, max(most // 16, 1)) + self.randint(-1, 1)
        return min(self.choice((1, 2, self.randint(1, 20), self.randint(1, most), near, near)), most)

    def number(self, name, most):
        """0, around `most`, or beyond what the kernels count in; rarely a negative one, which is wrong."""
        value = self.choice((0, 1, self.randint(0, most), self.randint(0, most), most, most + 1, self.choice(BEYOND)))
        if self.one_in(25):
            value = self.choice((-2, -5, -2 ** 31, -2 ** 63))
            self.wrong.append(f"a negative {name}")
        return value

    def scale(self, width):
        value = self.choice((None, None, None, 0.1, 0.593, 1.0, -0.2, 1e-6))
        if self.one_in(30):
            value = self.choice((0.0, NAN, INF, -INF, 1e39))
            self.wrong.append("a scale that is 0 or not finite")
        return value, 1 / math.sqrt(width) if value is None else value

    def say(self, *words, **options):
        self.said += [*words, *(f"{name}={value}" for name, value in options.items() if value is not None and value is not False)]

    def spoilt(self, chance, why):
        if self.one_in(chance):
            self.wrong.append(why)
            return True
        return False

    def tensor(self, name, *shape, dtype=torch.float32, wild=6, values=None):
        """Normal numbers in some order in memory, with gaps of NaN; axes may repeat, and rows overlap. One of `wild` has a few
        elements that are not finite, huge or 0. On a GPU all strides are of 16 bytes."""
        step = 1 if self.device == "cpu" else 16 // torch.empty(0, dtype=dtype).element_size()
        strides, inner = [1] * len(shape), -(-shape[-1] // step) * step + step * self.choice((0, 0, 0, 1, 3))
        for axis in self.sample(range(len(shape) - 1), len(shape) - 1):
            strides[axis] = 0 if self.one_in(15) else inner
            inner *= max(shape[axis], 1) if strides[axis] else 1
        if len(shape) > 1 and self.rows_may_overlap and self.one_in(30):
            strides[-2] = step
        if shape[-1] > 1 and self.spoilt(100, f"{name}'s elements do not lie side by side"):
            strides[-1] = 2
        start = step * self.choice((0, 0, 1, 5))
        reach = start + sum((size - 1) * stride for size, stride in zip(shape, strides) if size > 1) + 1
        at = torch.arange(reach).as_strided(shape, strides, start) if math.prod(shape) else torch.empty(shape, dtype=torch.long)
        used = torch.zeros(reach, dtype=torch.bool)
        used[at.flatten()] = True
        drawn = torch.randn(reach, generator=self.generator) if values is None else values(reach)
        words = [f"{name}{list(shape)} strides {strides}"]
        if wild and at.numel() and self.one_in(wild):
            for _ in range(self.choice((1, 1, 2, 7))):
                special, where = self.choice((NAN, INF, -INF, torch.finfo(dtype).max / 128, 0.0)), at.flatten()[self.randrange(at.numel())]
                drawn[where] = special
                words.append(f"{special:.3g}")
        self.say(" ".join(words))
        buffer = torch.where(used, drawn, NAN if dtype.is_floating_point else -1).to(dtype).to(self.device)
        self.kept.append((name, buffer, buffer.clone()))
        return buffer.as_strided(shape, strides, start)

    def table(self, name, value, dtype=torch.float32):
        value = torch.as_tensor(value, dtype=dtype)
        if value.numel() and self.spoilt(80, f"{name} of another type"):
            value = value.to(torch.float64 if dtype.is_floating_point else torch.int64)
        elif value.numel() and self.spoilt(80, f"{name} of another shape"):
            value = torch.cat([value, value])
        return value.contiguous().to(self.device)

    def written(self):
        """Names of inputs whose memory changed."""
        return [name for name, buffer, before in self.kept if not torch.equal(buffer.view(torch.uint8), before.view(torch.uint8))]


# ---- definitions

def on_host(*tensors):
    return [x.detach().double().cpu() for x in tensors]


def attention(q, k, v, scale, hidden, cap=0, added=None, sinks=None, turned=False):
    """softmax(scale Q K^T, capped, and with what is added) V over the pairs that are not hidden: [(o, tolerance), (lse,
    tolerance)]. What is not finite has to be so in the result; a tolerance that is not finite allows everything."""
    dtype, keys, width = q.dtype, k.shape[2], q.shape[3]
    unit = UNIT[dtype]
    q, k, v = on_host(q, *(x.repeat_interleave(q.shape[1] // max(x.shape[1], 1), 1) for x in (k, v)))
    score, size = scale * (q @ k.mT), q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]
    overflows = torch.isfinite(score) & (max(abs(scale), 1) * size > 1e37)
    size = abs(scale) * size
    error = ((4 + math.sqrt(width) + 3 * width / 16) * U + (unit / 4 if turned else 0)) * size + 4 * U * score.abs()
    if cap:
        score = cap * torch.tanh(score / cap)
    if cap or added is not None:  # a hook's own error, and a sum in float32, in which a huge number leaves nothing of the score
        added = torch.zeros(()) if added is None else added.double()
        error = torch.where(added.abs() > 2.0 ** 30 * (1 + size), 0, error + 1e-5 + 8 * U * (score.abs() + added.abs()))
        score, hidden = (score.float() + added.float()).double(), hidden | (added == -INF)
    hidden = hidden.expand(score.shape)
    score, seen = score.masked_fill(hidden, -INF), ~hidden
    sink = torch.full((1, 1, 1, 1), -INF) if sinks is None else sinks.double().cpu()[:, None, None]
    top = torch.cat([score, sink.expand(*score.shape[:3], 1)], -1).amax(-1, keepdim=True)
    weight = torch.exp(score - top).masked_fill(hidden, 0)  # NaN, or of a top of infinity, throughout the row
    total = weight.sum(-1, keepdim=True) + torch.exp(sink - top)
    nothing = top == -INF
    weight, lse = (weight / total).masked_fill(nothing, 0), (top + total.log()).masked_fill(nothing, -INF)[..., 0]
    finite = torch.isfinite(v)
    plain = v.masked_fill(~finite, 0)
    o = (weight @ plain).masked_fill(seen.double() @ (~finite).double() > 0, NAN).masked_fill(~(top < INF), NAN)
    # The tolerance: common/attention/tolerance.cpp has its reasons, for sizes that are more exact.
    off = error.masked_fill(hidden, 0).amax(-1, keepdim=True) if keys else torch.zeros_like(lse)[..., None]
    relative = torch.expm1(2 * off.clamp(max=1)) + (2e-4 if dtype == torch.bfloat16 else 2e-6) + U * (64 + 4 * keys)
    spread, all_of = weight.nan_to_num(0) @ plain.abs(), seen.double() @ plain.abs()
    tolerance = (relative + (0 if dtype == torch.float32 else 3 * unit)) * (spread + o.abs()) + 2 * unit * o.abs()
    tolerance += (2.0 ** -24 if dtype == torch.float16 else 2.0 ** -125) * (1 + all_of)
    tolerance = torch.where(off > 0.5, 4 * all_of, tolerance)  # scores so large that their rounding chooses the keys
    unsure = (seen & overflows).any(-1) | (seen.any(-1) & (lse == -INF))  # a score of -inf that arithmetic made hides, or not
    tolerance[unsure] = INF
    tolerance[o.abs() > torch.finfo(dtype).max / 2] = INF
    return [(o, tolerance), (lse, (relative[..., 0] + 8 * U * lse.abs()).masked_fill(unsure | (off[..., 0] > 0.5), INF))]


def turn(x, cosines, sines, interleaved):
    """Rotary position embedding of the first elements of x, [..., tokens, width]; cosines and sines: [..., tokens, pairs]."""
    half = cosines.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    out = x.clone()
    out[..., first] = x[..., first] * cosines - x[..., second] * sines
    out[..., second] = x[..., second] * cosines + x[..., first] * sines
    return out


def recurrence(q, k, v, gate, state, causal, normalised, feature, scale):
    """Linear attention, token by token, and beside it the same of absolute values, which rounding is measured by."""
    dtype, (batch, heads, tokens, width) = q.dtype, q.shape
    q, k, v = on_host(q, k, v)
    f = {"identity": lambda x: x, "elu1": lambda x: F.elu(x) + 1, "relu": torch.relu}[feature]
    q, k = f(q), f(k)
    s = torch.zeros(batch, heads, width, v.shape[3], dtype=torch.float64) if state is None else state.double().cpu()
    size, z, o, errors = s.abs(), torch.zeros(batch, heads, width, dtype=torch.float64), [], []
    relative = 4 * UNIT[dtype] + (4e-5 if gate is not None else 0) + U * (64 + 4 * (tokens + width))

    def read(t):
        top, least, under = (q[:, :, t, None] @ s)[:, :, 0], (q[:, :, t, None].abs() @ size)[:, :, 0], 1.0
        error = relative * least
        if normalised:
            under, doubt = (q[:, :, t] * z).sum(-1, keepdim=True), relative * (q[:, :, t] * z).abs().sum(-1, keepdim=True)
            error = (error + (top / under).abs() * doubt) / under.abs()
            error[(doubt > 0.1 * under.abs()).expand_as(error) & (least > 0)] = INF
        result = top * scale / under
        o.append(torch.where((top == 0) & (under == 0), 0, result) if normalised else result)
        errors.append((error * abs(scale)).nan_to_num(0, INF) + 2 * UNIT[dtype] * result.abs().nan_to_num(0, 0) + 2.0 ** -24 * (dtype == torch.float16) + 1e-30)

    for t in range(tokens):
        if gate is not None:
            decay = gate.double().cpu().exp()
            decay = decay[None, :, None] if gate.dim() == 1 else decay[:, :, t] if gate.dim() == 4 else decay[:, :, t, None]
            s, size, z = s * decay[..., None], size * decay[..., None], z * decay
        s, size = s + k[:, :, t, :, None] * v[:, :, t, None], size + (k[:, :, t, :, None] * v[:, :, t, None]).abs()
        z = z + k[:, :, t]
        if causal:
            read(t)
    if not causal:
        for t in range(tokens):
            read(t)
    shape = (batch, heads, 0, v.shape[3])
    return [(torch.stack(o, 2) if o else torch.empty(shape), torch.stack(errors, 2) if o else torch.empty(shape)),
            (s, (relative * size).nan_to_num(0, INF) + 1e-30)]


# ---- the operators: each makes a call, and says what comes out of it

def shapes(case, most_rows=300, most_keys=300):
    """Types and sizes, of which some are 0: dtype, batch, heads, kv_heads, rows, keys, width."""
    heads, kv_heads = case.choice(HEADS)
    dtype, batch, rows, keys = case.choice(list(UNIT)), case.choice((1, 1, 2, 3)), case.size(most_rows), case.size(most_keys)
    if case.one_in(25):
        batch, rows, keys = case.choice(((0, rows, keys), (batch, 0, keys), (batch, rows, 0)))
    if case.spoilt(60, "heads that do not divide"):
        heads, kv_heads = 3, 2
    width = case.choice(WIDTHS)
    if case.spoilt(60, "a width that is no multiple of 8"):
        width = case.choice((4, 12, 63))
    case.say(str(dtype)[6:])
    return dtype, batch, heads, kv_heads, rows, keys, width


def qkv(case, dtype, batch, heads, kv_heads, rows, keys, width):
    others = [dtype, dtype]
    if case.spoilt(60, "types that differ"):
        others = [case.choice([x for x in (*UNIT, torch.float64) if x != dtype]), dtype]
    return (case.tensor("q", batch, heads, rows, width, dtype=dtype),
            *(case.tensor(name, batch, kv_heads, keys, width, dtype=other) for name, other in zip("kv", others)))


def swapped(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def bias_of(case, batch, heads, rows, keys):
    """Each size 1 or whole; what fills keys up to a multiple of 4 counts for nothing."""
    whole = (batch, heads, rows, -(-keys // 4) * 4)
    shape = [size if case.one_in(2) else 1 for size in whole]
    bias = torch.randn(shape, generator=case.generator)
    for _ in range(case.choice((0, 1, 3))):
        value = case.choice((-INF, -INF, -1e4, -1e30, torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min, NAN, INF))
        where = torch.rand([size if case.one_in(2) else 1 for size in shape], generator=case.generator)
        bias = bias.masked_fill(where < case.choice((0.1, 0.5, 1.1)), value)
        case.say(f"bias {value:.3g}")
    if shape[3] > 1:
        bias[..., keys:] = case.choice((NAN, 0.0, INF))
    case.say(f"bias {shape}")
    return case.table("bias", bias), bias[..., :keys] if shape[3] > 1 else bias


def flash(case):
    dtype, batch, heads, kv_heads, rows, keys, width = sizes = shapes(case)
    q, k, v = qkv(case, *sizes)
    given, scale = case.scale(width)
    options, cap, added, sinks = {"scale": given}, 0, None, None
    own, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    hidden = torch.zeros(batch, 1, rows, keys, dtype=torch.bool)
    names = case.sample(("causal", "window_left", "window_right", "global_tokens", "prefix", "soft_cap", "alibi", "alibi_slopes",
                         "sinks", "lengths", "documents", "blocks", "bias"), case.choice((0, 0, 1, 1, 2, 3, 5)))
    if "prefix" in names and "causal" not in names and not case.spoilt(3, "a prefix without causal"):
        names.append("causal")
    for name in ("window_left", "window_right", "prefix", "global_tokens"):
        if name in names:
            options[name] = case.number(name, keys)
    if "soft_cap" in names:
        cap = options["soft_cap"] = case.choice((1, 5, 30, 1000))
        if case.spoilt(15, "a soft cap out of range"):
            options["soft_cap"] = case.choice((-1, 1001, 2 ** 31, 2 ** 63 - 1))
    options |= {name: True for name in ("causal", "alibi") if name in names}
    if "causal" in names:
        hidden |= (key > own) & (key >= options.get("prefix", 0))
    left, right, first = options.get("window_left", -1), options.get("window_right", -1), options.get("global_tokens", 0)
    outside = (left >= 0) & (own - key > left) | (right >= 0) & (key - own > right)
    hidden |= outside & (key >= first) & (own >= first)
    case.say(**options)
    if "alibi" in names or "alibi_slopes" in names:
        power = 2 ** (heads.bit_length() - 1)
        slopes = torch.tensor([2.0 ** (-8 * i / power) for i in range(1, power + 1)] +
                              [2.0 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)])
        if "alibi_slopes" in names:
            slopes = torch.randn(heads, generator=case.generator)
            options["alibi_slopes"], options["alibi"] = case.table("alibi_slopes", slopes), True
            case.say("alibi_slopes")
        added = slopes.double()[:, None, None] * (key - own)
    if "sinks" in names:
        sinks = torch.randn(heads, generator=case.generator)
        if case.one_in(4):
            sinks[case.randrange(heads)] = special = case.choice((NAN, INF, -INF, 1e4, -1e4, 1e30))
            case.say(sink=special)
        options["sinks"] = case.table("sinks", sinks)
        case.say("sinks")
    if "lengths" in names:
        lengths = torch.tensor([case.randint(0, keys) for _ in range(batch)], dtype=torch.int32)
        if batch and case.spoilt(15, "a length out of range"):
            lengths[0] = case.choice((-1, keys + 1, 2 ** 31 - 1, -2 ** 31))
        options["lengths"] = case.table("lengths", lengths, torch.int32)
        case.say(lengths=lengths.tolist())
        hidden |= key >= lengths[:, None, None, None]
    if "documents" in names:
        ends = sorted({case.randint(1, max(keys, 1)) for _ in range(case.choice((1, 3, 9)))} | {keys})
        document = torch.bucketize(key, torch.tensor(ends), right=True)
        begins = torch.tensor([0, *ends])[document]
        documents = torch.stack([begins, torch.tensor(ends)[document] if keys else begins], 1).int()
        if keys and case.spoilt(15, "a document out of range"):
            documents[-1, 1] = case.choice((keys + 1, 2 ** 31 - 1))
        options["documents"] = case.table("documents", documents, torch.int32)
        case.say(documents=ends)
        if keys:
            hidden |= document != document[own.clamp(0)]
    if "blocks" in names:
        count, words = -(-keys // 128), -(-keys // 4096)
        seen = torch.rand(count, count, generator=case.generator) < case.choice((0.2, 0.6, 1.1))
        bits = (seen.long() << torch.arange(count)).sum(-1) if count else torch.zeros(0)
        options["blocks"] = case.table("blocks", bits.view(count, words), torch.int32)
        case.say(f"blocks {seen.int().tolist()}")
        hidden |= ~seen[own.clamp(0) // 128, key // 128] if keys else False
    if "bias" in names:
        options["bias"], bias = bias_of(case, batch, heads, rows, keys)
        added = bias if added is None else added + bias.double()
    bshd, with_lse = case.one_in(3), case.one_in(2)
    case.say(bshd=bshd)
    op = ops.flash_with_lse if with_lse else ops.flash

    def call():
        result = op(*(swapped(q, k, v) if bshd else (q, k, v)), bshd=bshd, **options)
        o, *lse = result if with_lse else (result,)
        return [*(swapped(o) if bshd else [o]), *lse]

    return call, lambda: attention(q, k, v, scale, hidden, cap, added, sinks)[:1 + with_lse]


def paged(case, appends):
    few, eight = case.one_in(2), not appends and case.one_in(4)
    dtype, batch, heads, kv_heads, rows, _, width = shapes(case, 16 if few or eight else 60)
    on_pages, page = case.one_in(2), case.choice((1, 3, 8, 16, 16, 64, 128))
    max_pages = case.randint(1, max(200 // page, 1))
    capacity = page * max_pages if on_pages else case.size(300)
    count = case.randint(batch * max_pages, batch * max_pages + 4) if on_pages else batch
    cache_dtype = case.choice((torch.int8, torch.float8_e4m3fn)) if eight else dtype
    stored = torch.float32 if eight else cache_dtype

    def cache(name):
        tensor = case.tensor(name, count, kv_heads, page if on_pages else capacity, width, dtype=stored, wild=0 if appends else 6)
        return tensor.clamp(-100, 100).mul(9 if cache_dtype == torch.int8 else 1).nan_to_num(0).to(cache_dtype).contiguous() if eight else tensor

    q, k_cache, v_cache = case.tensor("q", batch, heads, rows, width, dtype=dtype), cache("k_cache"), cache("v_cache")
    if appends:  # what is written may not overlap itself
        k_cache, v_cache = k_cache.clone(memory_format=torch.contiguous_format), v_cache.clone(memory_format=torch.contiguous_format)
    lengths = torch.tensor([case.choice((case.randint(0, capacity), min(rows, capacity), capacity)) for _ in range(batch)]).int()
    table = torch.randperm(count, generator=case.generator)[:batch * max_pages].view(batch, max_pages).int() if on_pages else None
    if on_pages:
        for i in range(batch):  # pages that hold no token
            table[i, -(-lengths[i].item() // page):] = case.choice((-1, 0, 10 ** 9))
    if batch and case.spoilt(15, "a length out of range"):
        lengths[0] = case.choice((-1, capacity + 1, 2 ** 31 - 1, -2 ** 31))
    elif on_pages and batch and lengths[0] > 0 and case.spoilt(15, "a page out of range"):
        table[0, 0] = case.choice((-1, count, 10 ** 9, -2 ** 31))
    given, scale = case.scale(width)
    options, scales = {"scale": given}, (1, 1)
    case.say(f"{str(cache_dtype)[6:]} cache", scale=given, lengths=lengths.tolist(), table=table.tolist() if on_pages else None)
    if eight:
        scales = [torch.rand(count, kv_heads, generator=case.generator) for _ in "kv"]
        options |= {name: case.table(name, each) for name, each in zip(("key_scales", "value_scales"), scales)}
        scales = [each.double()[..., None, None] for each in scales]
    cache_bshd, bshd = case.one_in(3), case.one_in(3)
    case.say(cache_bshd=cache_bshd, bshd=bshd)
    tables = [case.table("lengths", lengths, torch.int32), None if table is None else case.table("table", table, torch.int32)]
    new, angles, interleaved = [], [], False
    if appends:
        new = [case.tensor(name, batch, kv_heads, rows, width, dtype=dtype) for name in ("new_k", "new_v")]
        if case.one_in(2):
            angle = torch.randn(capacity, case.choice((width // 2, 4)), generator=case.generator)
            angles, interleaved = [angle.cos(), angle.sin()], case.one_in(2)
            options["interleaved"] = interleaved
            case.say(f"angles {list(angle.shape)}", interleaved=interleaved)
    before = [x.clone() for x in (k_cache, v_cache)]
    at = lengths.long()[:, None] - rows + torch.arange(rows)  # [batch, rows]: each query's position

    def call():
        query, *fresh = swapped(q, *new) if bshd else (q, *new)
        caches = swapped(k_cache, v_cache) if cache_bshd else (k_cache, v_cache)
        name = ("decode" if few else "prefill") + "_fused" if appends else "paged_" + ("decode" if few or eight else "prefill")
        o = getattr(ops, name)(query, *fresh, *caches, *tables, *(x.to(case.device) for x in angles), bshd=bshd,
                               cache_bshd=cache_bshd, **options)
        return [*(swapped(o) if bshd else [o]), *((k_cache, v_cache) if appends else ())]

    def want():
        query = q
        caches = [x.double().cpu() * each for x, each in zip(before, scales)]
        cos, sin = (x.double()[at.clamp(0)][:, None] for x in angles) if angles else (None, None)
        if appends:
            turned = [turn(x.double().cpu(), cos, sin, interleaved).to(dtype) if angles else x.cpu() for x in (q, new[0])]
            query = turned[0]
            for to, fresh in zip(caches, (turned[1], new[1].cpu())):
                for i, r in ((i, r) for i in range(batch) for r in range(rows) if at[i, r] >= 0):
                    slot = (table[i, at[i, r] // page], at[i, r] % page) if on_pages else (i, at[i, r])
                    to[slot[0], :, slot[1]] = fresh[i, :, r].double()
        dense = [x[table.long().clamp(0, count - 1)].transpose(1, 2).flatten(2, 3) if on_pages else x for x in caches]
        hidden = torch.arange(capacity) > at[:, None, :, None]
        rounding = [2 * UNIT[dtype] * x.abs().nan_to_num(0, 0) * bool(angles) for x in caches]
        return attention(query.to(dtype), *dense, scale, hidden, turned=bool(angles))[:1] + (list(zip(caches, rounding)) if appends else [])

    return call, want


def linear(case):
    heads, dtype, tokens = case.choice((1, 2, 3, 8)), case.choice(list(UNIT)), case.size(200)
    batch, width, values = case.choice((1, 1, 2)), case.choice((8, 16, 24, 32, 64, 128)), case.choice((8, 16, 40, 64, 128))
    if case.one_in(20):
        batch, tokens = case.choice(((0, tokens), (batch, 0)))
    causal, normalised, feature = not case.one_in(4), case.one_in(3), case.choice(("identity", "elu1", "relu"))
    feature = "elu1" if normalised and feature == "identity" else feature  # a sum of any sign may be 0
    case.say(str(dtype)[6:], causal=causal, normalised=normalised, feature=feature)
    q, k, v = (case.tensor(name, batch, heads, tokens, size, dtype=dtype, wild=0) for name, size in zip("qkv", (width, width, values)))
    for x in case.sample((q, k, v), 1):
        if x.numel() and case.one_in(6):
            x[tuple(case.randrange(size) for size in x.shape)] = special = case.choice((NAN, INF, -INF))
            case.say(special=special)
            case.kept = [(name, buffer, buffer.clone()) for name, buffer, _ in case.kept]
    gate = state = None
    if case.one_in(2) and (causal or case.spoilt(3, "a gate without causal")):
        shape = case.choice(((heads,), (batch, heads, tokens), (batch, heads, tokens, width)))
        gate = -torch.rand(shape, generator=case.generator) * case.choice((0.01, 1, 30))
        if gate.numel() and case.one_in(4):
            gate.view(-1)[case.randrange(gate.numel())] = special = case.choice((NAN, -INF, -1e30, 0.0))
            case.say(gate_has=special)
        case.say(f"gate{list(shape)}")
    if case.one_in(3) and not normalised:
        state = torch.randn(batch, heads, width, values, generator=case.generator)
        case.say("initial_state")
    given, scale = (None, 1.0) if normalised else case.scale(width)
    bshd = case.one_in(3)
    case.say(scale=given, bshd=bshd)
    if case.spoilt(40, "an unknown feature"):
        feature = "gelu"
    tables = [x if x is None else case.table(name, x) for name, x in (("gate", gate), ("initial_state", state))]

    def call():
        o, final = ops.linear(*(swapped(q, k, v) if bshd else (q, k, v)), *tables, causal=causal, normalised=normalised,
                              feature=feature, scale=given, bshd=bshd)
        return [*(swapped(o) if bshd else [o]), final]

    return call, lambda: recurrence(q, k, v, gate, state, causal, normalised, feature, scale)


def rope(case):
    (heads, kv_heads), dtype, width = case.choice(HEADS), case.choice(list(UNIT)), case.choice(WIDTHS)
    batch, tokens = case.choice((1, 2, 3)), case.size(100)
    if case.one_in(20):
        batch, tokens = case.choice(((0, tokens), (batch, 0)))
    q, k = (case.tensor(name, batch, n, tokens, width, dtype=dtype) for name, n in (("q", heads), ("k", kv_heads)))
    theta, rotary = case.choice((10000.0, 500000.0, 1.5)), case.choice((0, 0, 2, 8, width))
    scaling, factor, length = case.choice(("none", "none", "linear", "ntk", "yarn", "llama3")), case.choice((1.0, 2.0, 8.0)), 8192.0
    options = {"theta": theta, "rotary_dim": rotary, "interleaved": case.one_in(2), "scaling": scaling, "factor": factor}
    for name, bad in (("theta", (1.0, 0.0, -3.0, NAN, INF)), ("rotary_dim", (-2, 3, width + 2, 2 ** 31, 2 ** 32 + 2)),
                      ("scaling", ("dynamic", ""))):
        if case.spoilt(40, f"{name} out of range"):
            options[name] = case.choice(bad)
    if scaling == "ntk" and (rotary or width) == 2:
        case.wrong.append("ntk of one pair")
    offsets = [case.choice((0, 5, -3, 10 ** 6, -2 ** 31, 2 ** 31 - tokens)) for _ in range(batch)] if case.one_in(2) else None
    case.say(str(dtype)[6:], offsets=offsets, **options)
    place = None if offsets is None else case.table("offsets", offsets, torch.int32)
    bshd = case.one_in(3)
    case.say(bshd=bshd)

    def want():
        pairs = (rotary or width) // 2
        i, base = torch.arange(pairs, dtype=torch.float64), theta * (factor ** (pairs / (pairs - 1)) if scaling == "ntk" else 1)
        frequency, turns = base ** (-i / pairs), length * theta ** (-i / pairs) / (2 * math.pi)
        if scaling == "linear":
            frequency = frequency / factor
        elif scaling == "llama3":
            fast = ((turns - 1) / 3).clamp(0, 1)
            frequency = frequency * (fast + (1 - fast) / factor)
        elif scaling == "yarn":
            pair_of = lambda turns: 2 * pairs * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))  # noqa: E731
            first, last = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), 2 * pairs - 1)
            slow = ((i - first) / (last - first or 0.001)).clamp(0, 1)
            frequency = frequency * (1 - slow + slow / factor)
        grown = 0.1 * math.log(factor) + 1 if scaling == "yarn" else 1
        at = torch.arange(tokens) + torch.tensor([0] * batch if offsets is None else offsets)[:, None]  # [batch, tokens]
        angle = at[..., None] * frequency
        cosines, sines = grown * angle.cos()[:, None], grown * angle.sin()[:, None]
        off = (6e-7 + 1e-15 * at.abs()[:, None, :, None]) * grown  # of an angle: of the kernel's cosine, and of this one
        result = []
        for x in on_host(q, k):
            out, size = turn(x, cosines, sines, options["interleaved"]), x.abs().amax(-1, keepdim=True)
            tolerance = 2 * off * size + 2 * UNIT[dtype] * out.abs() + 2.0 ** -24 * (dtype == torch.float16) + 1e-37
            result.append((out, tolerance.masked_fill(out.abs() > torch.finfo(dtype).max / 2, INF).nan_to_num(1, INF)))
        return result

    def call():
        result = ops.rope(*(swapped(q, k) if bshd else (q, k)), place, bshd=bshd, **options)
        return swapped(*result) if bshd else result

    return call, want


def dropin(case):
    """scaled_dot_product_attention, under one of PyTorch's modes. What the drop-in does not serve has to be PyTorch's result."""
    case.rows_may_overlap = False  # PyTorch's results then overlap too
    dtype, batch, heads, kv_heads, rows, keys, width = shapes(case)
    gqa = case.one_in(2)
    if not gqa:
        kv_heads = heads
    q, k, v = qkv(case, dtype, batch, heads, kv_heads, rows, keys, width)
    given, scale = case.scale(width)
    causal, flat, mask = case.one_in(3), batch == 1 and case.one_in(4), None
    if not causal and case.one_in(2):
        shape = case.choice(((rows, keys), (batch, 1, rows, keys), (batch, heads, rows, keys), (batch, 1, 1, keys), (1, heads, 1, keys), (rows, 1)))
        mask = case.tensor("mask", *shape, dtype=case.choice((dtype, torch.float32)), wild=3)
        mask = case.choice((lambda x: x, lambda x: x > -0.5, lambda x: x.masked_fill(x > 0.5, -INF),
                            lambda x: x.masked_fill(x > -1, torch.finfo(x.dtype).min)))(mask)
        case.say(f"{str(mask.dtype)[6:]} mask")
    modes = {"none": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode,
             "device": lambda: torch.device(case.device), "autocast": lambda: torch.autocast(case.device, torch.bfloat16),
             "functions": torch.overrides.BaseTorchFunctionMode}
    mode = case.choice(list(modes))
    case.say(mode, scale=given, causal=causal, gqa=gqa, flat=flat)
    case.wrong.clear()  # PyTorch says what it refuses
    tensors = [x[0] for x in (q, k, v)] if flat else [q, k, v]
    if flat and mask is not None and mask.dim() == 4:
        mask = mask[0]
    if case.one_in(10):
        change = case.choice((torch.nn.Parameter, torch._neg_view, lambda x: x.clone().requires_grad_(), lambda x: x.double()))
        tensors = [change(x) for x in tensors] if case.one_in(2) else [change(tensors[0]), *tensors[1:]]
        case.say("changed")

    def attempt(function):
        try:
            with modes[mode]():
                return function(*tensors, attn_mask=mask, is_causal=causal, scale=given, enable_gqa=gqa)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def call():
        attn_proto.reset_reasons()
        with attn_proto.enable():
            got = attempt(F.scaled_dot_product_attention)
        case.say(f"{attn_proto.reasons()}")
        case.served = not attn_proto.reasons() and not isinstance(got, str)
        return [got]

    def want():
        if not case.served:
            return [(attempt(original), None)]
        cast = [x.to(torch.bfloat16) if mode == "autocast" and x.is_floating_point() else x for x in (*tensors, *([] if mask is None else [mask]))]
        query, key, value = (x.detach()[None] if flat else x.detach() for x in cast[:3])
        hidden, added = torch.zeros(1, 1, rows, keys, dtype=torch.bool), None
        if causal:
            hidden |= torch.arange(keys) > torch.arange(rows)[:, None]
        if mask is not None:
            added = cast[3].cpu().float() if cast[3].is_floating_point() else torch.zeros(mask.shape).masked_fill(~mask.cpu(), -INF)
        (o, tolerance), _ = attention(query, key, value, scale, hidden, added=added)
        return [(o[0], tolerance[0]) if flat else (o, tolerance)]

    return call, want


OPERATORS = {"flash": (flash, 4), "paged": (lambda case: paged(case, False), 2), "fused": (lambda case: paged(case, True), 2),
             "linear": (linear, 2), "rope": (rope, 1), "dropin": (dropin, 4)}


# ---- running them

def difference(got, want, tolerance):
    """In words; None where there is none."""
    if tolerance is None:  # PyTorch's own result, or its error
        same = got == want if isinstance(got, str) or isinstance(want, str) else got.shape == want.shape and torch.allclose(
            got.detach().double(), want.detach().double(), rtol=1e-2, atol=1e-3, equal_nan=True)
        return None if same else f"{str(got)[:150]!r}, PyTorch says {str(want)[:150]!r}"
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, {list(want.shape)} is right"
    got = got.detach().double().cpu()
    wrong = torch.where(torch.isfinite(want), ~((got - want).abs() <= tolerance), torch.isfinite(got)) & (tolerance < INF)
    if want.dim() == 3:  # lse: -inf is a result
        wrong |= (want == -INF) & (got != -INF) & (tolerance != INF)
        wrong &= ~((want == -INF) & (got == -INF))
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return f"{list(at)} is {got[at]:.6g}, {want[at]:.6g} is right within {tolerance[at]:.1e}; {int(wrong.sum())} of {wrong.numel()}"


def judge(seed, number, device, tell):
    """The operator's name, and what is wrong with case `number`, or None. Tells the call in words before it is made."""
    case = Case(seed, number, device)
    name = case.choices(list(OPERATORS), [weight for _, weight in OPERATORS.values()])[0]
    call, want = OPERATORS[name][0](case)
    words = f"{name}({', '.join(case.said)})"
    tell(words)
    try:
        results = call()
        if device != "cpu":
            torch.cuda.synchronize()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        line = str(error)
        if not case.wrong:
            return name, f"refused: {line.splitlines()[0][:300]}: {words}"
        return name, f"an error of several lines, {line[:200]!r}: {words}" if "\n" in line else None
    if case.wrong:
        return name, f"accepted {', '.join(case.wrong)}: {words}"
    for which, (got, (right, tolerance)) in enumerate(zip(results, want())):
        if found := difference(got, right, tolerance):
            return name, f"result {which} {found}: {words}"
    return name, f"wrote to {', '.join(case.written())}: {words}" if case.written() else None


def work(options):
    """Cases from options.first on. Of each two lines: the call, before it is made, and what was wrong with it."""
    number, end = options.first, time.monotonic() + options.seconds
    while time.monotonic() < end:
        name, found = judge(options.seed, number, options.device, lambda words: print(words, flush=True))
        print(name, (found or "").replace("\n", " "), flush=True)
        number += 1


def lines_of(process, silence):
    """What it says, until its end; kills it where it says nothing for so many seconds."""
    while select.select([process.stdout], [], [], silence)[0]:
        if not (line := process.stdout.readline()):
            return
        yield line.rstrip("\n")
    process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6))
    parser.add_argument("--only", type=int, help="run this case alone, in this process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)  # of the second process
    options = parser.parse_args()
    if options.first is not None:
        return work(options)
    if options.only is not None:
        name, found = judge(options.seed, options.only, options.device, print)
        print(f"{name}: {found or 'as it has to be'}")
        return bool(found)
    print(f"seed {options.seed}", flush=True)
    end, number, counts, findings, silence = time.monotonic() + options.seconds, 0, collections.Counter(), 0, 120

    def report(what):
        print(f"fuzz.py --seed {options.seed} --only {number}: {what}", flush=True)

    while (left := end - time.monotonic()) > 0:
        worker = subprocess.Popen([sys.executable, __file__, "--seed", str(options.seed), "--first", str(number), "--seconds", str(left),
                                   "--device", options.device], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        words = None  # of a call that is under way
        for line in lines_of(worker, silence):
            if words is None:
                words = line
                continue
            name, found = line.split(" ", 1)
            if found:
                report(found)
            counts[name], findings, words, number = counts[name] + 1, findings + bool(found), None, number + 1
        if worker.wait() != 0:
            report(f"ended the process ({worker.returncode}), or gave no answer in {silence} s: {words}")
            findings, number = findings + 1, number + 1
    print(f"seed {options.seed}: {sum(counts.values())} cases ({', '.join(f'{name} {n}' for name, n in sorted(counts.items()))}), "
          f"{findings} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
