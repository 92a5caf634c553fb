"""Random calls of the operators attn::* and of the drop-in. Each result is compared with its
definition in float64 (definitions.py). A call that is not allowed must give an error of one line.

    python/tests/run build/release/bin tests/fuzz.py torch                      # a minute, with a new seed
    python/tests/run build/release/bin tests/fuzz.py torch -- --seconds 600     # or --seed S, --only N
    python/tests/run build/gpu/bin tests/fuzz.py torch -- --seconds 600 --device cuda

The seed and the number determine a case. About one case in three runs under one of PyTorch's modes, with a changed q, or
in a trace. Without --only, cases run in a second process, so a case that ends the process is a finding
too. A finding is one line, and begins with the options that repeat the case. The exit status is 1 if there are
findings.
"""

import argparse
import collections
import contextlib
import math
import os
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import attn_proto
import definitions
from definitions import INF, NAN, UNIT

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from command_line import Parser, number  # noqa: E402
from watched import follow  # noqa: E402

ops = torch.ops.attn
original = F.scaled_dot_product_attention
# PyTorch 2.11's call of cuDNN faults on a GPU for a mask [rows, 1] of bfloat16, and ends the process.
torch.backends.cuda.enable_cudnn_sdp(False)
HEADS = ((1, 1), (2, 1), (3, 1), (4, 2), (5, 5), (6, 2), (7, 1), (8, 2), (12, 4), (16, 1))
WIDTHS = (8, 16, 24, 32, 40, 64, 64, 72, 80, 96, 104, 128, 128, 136, 160, 192, 200, 256)
BEYOND = (2 ** 31 - 2, 2 ** 31 - 1, 2 ** 31, 2 ** 32 + 3, 2 ** 63 - 1)
LEAST = (torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min)
SILENCE = 120  # seconds; a call that takes longer counts as hanging


class Subclass(torch.Tensor):
    pass


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODES = {"plain": lambda device: contextlib.nullcontext(), "no_grad": lambda device: torch.no_grad(),
         "inference": lambda device: torch.inference_mode(), "functions": lambda device: torch.overrides.BaseTorchFunctionMode(),
         "dispatch": lambda device: Dispatches(), "device": torch.device,
         "autocast": lambda device: torch.autocast(torch.device(device).type, torch.bfloat16)}
CHANGES = {"parameter": lambda x: torch.nn.Parameter(x, requires_grad=False), "negative view": lambda x: torch._neg_view(-x),
           "subclass": lambda x: x.as_subclass(Subclass)}  # changes of q
# In these ways the call gets a copy of q. If rows of q overlap, the copy has another order in memory.
COPIES = ("vmap", "negative view", "autocast")
TRACES = ("fake", "fx", "fx fake", "fx symbolic", "compile", "compile dynamic", "vmap")


def shape_of(x):
    return (tuple(x.shape), x.dtype, x.stride(), x.device) if isinstance(x, torch.Tensor) else x


def under(way, device, function, arguments, options):
    """Returns function(*arguments, **options), run under a mode, with a changed q, or as a trace of all tensors."""
    if way in MODES:
        with MODES[way](device):
            return function(*arguments, **options)
    if way in CHANGES:
        return function(CHANGES[way](arguments[0]), *arguments[1:], **options)
    if way == "vmap":  # over two equal slices of q, k and v
        batched = [i < 3 and isinstance(x, torch.Tensor) and x.dtype.is_floating_point for i, x in enumerate(arguments)]
        over = torch.func.vmap(lambda *each: function(*each, **options), in_dims=tuple(0 if each else None for each in batched))
        return tree_map(lambda x: x[1], over(*(torch.stack([x, x]) if each else x for each, x in zip(batched, arguments))))
    leaves, spec = tree_flatten((arguments, options))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def with_tensors(*tensors):
        each = dict(zip(places, tensors))
        given, named = tree_unflatten([each.get(i, x) for i, x in enumerate(leaves)], spec)
        return function(*given, **named)

    tensors = [leaves[i] for i in places]
    if way == "fake":
        result = with_tensors(*tensors)
        with FakeTensorMode() as mode:
            fake = with_tensors(*map(mode.from_tensor, tensors))
        if (here := tree_map(shape_of, result)) != (there := tree_map(shape_of, fake)):
            raise AssertionError(f"a trace sees {there} for {here}")
        return result
    if way.startswith("fx"):
        return make_fx(with_tensors, tracing_mode=way[3:] or "real")(*tensors)(*tensors)
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(with_tensors, fullgraph=True, backend="aot_eager", dynamic=way == "compile dynamic")(*tensors)


class Case(random.Random):
    """Draws the parts of a call. `said` is the call in words; `wrong` has the reasons why the call must be refused."""

    def __init__(self, seed, number, device):
        super().__init__(f"{seed}/{number}")
        self.device, self.wrong, self.said, self.kept = device, [], [], []
        self.generator = torch.Generator().manual_seed(self.getrandbits(60))
        self.way = self.choice((*MODES, *CHANGES, *TRACES, "autocast")) if self.one_in(3) else "plain"
        self.rows_may_overlap = self.way not in COPIES
        if self.way != "plain":
            self.say(self.way)

    def say(self, *words, **options):
        self.said += [*words, *(f"{name}={value}" for name, value in options.items() if value is not None and value is not False)]

    def one_in(self, n):
        return self.randrange(n) == 0

    def spoilt(self, n, why):
        """Returns True for one call in n, which the caller must then make wrong for the reason `why`."""
        if spoil := self.one_in(n):
            self.wrong.append(why)
        return spoil

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def size(self, most):
        """A size up to `most`, often near a multiple of 16."""
        near = 16 * self.randint(1, max(most // 16, 1)) + self.randint(-1, 1)
        return min(self.choice((1, 2, self.randint(1, 20), self.randint(1, most), near, near)), most)

    def number(self, name, most):
        """A number from 0 to `most` + 1, or a number near or above the largest int32. A negative number is wrong."""
        if self.spoilt(25, f"a negative {name}"):
            return self.choice((-2, -5, -2 ** 31, -2 ** 63))
        return self.choice((0, 1, self.randint(0, most), self.randint(0, most), most, most + 1, self.choice(BEYOND)))

    def scale(self, width):
        """The scale as it is given, and the number that it stands for."""
        given = self.choice((None, None, None, 0.1, 0.593, 1.0, -0.2, 1e-6, self.choice((1e-30, 1e4, -1e30))))
        if self.spoilt(30, "a scale that is 0 or not finite"):
            given = self.choice((0.0, NAN, INF, -INF, 1e39))
        self.say(scale=given)
        return given, 1 / math.sqrt(width) if given is None else given

    def tensor(self, name, *shape, dtype, wild=6, huge=True, written=False, times=1):
        """A tensor of normally distributed numbers, `times` a factor, whose axes lie in memory in any order, with NaN
        (127 for int8) between rows, between pages and around the tensor. An axis may have stride 0 and rows may overlap,
        unless the tensor is `written`. One tensor in `wild` has a few elements that are not finite, 0 or, with `huge`,
        very large. Strides are multiples of 16 bytes on a GPU."""
        step = 1 if self.device == "cpu" else 16 // dtype.itemsize
        strides, inner = [1] * len(shape), -(-shape[-1] // step) * step + step * self.choice((0, 0, 0, 1, 3))
        for axis in self.sample(range(len(shape) - 1), len(shape) - 1):
            strides[axis] = 0 if self.one_in(15) and not written else inner
            inner = inner * max(shape[axis], 1) + step * self.choice((0, 0, 0, 1, 40)) if strides[axis] else inner
        if self.rows_may_overlap and not written and self.one_in(30):
            strides[-2] = step
        strided = shape[-1] > 1 and math.prod(shape) and self.way not in COPIES
        if strided and self.spoilt(100, f"elements of {name} that do not lie side by side"):
            strides[-1] = 2
        start = step * self.choice((0, 0, 1, 5, 300))
        reach = start + sum((size - 1) * stride for size, stride in zip(shape, strides) if size > 1) + 1 + self.choice((0, 0, 1, 300))
        place = torch.arange(reach)
        place = place.as_strided(shape, strides, start).flatten() if math.prod(shape) else place[:0]
        values, used, words = times * self.normal(reach), torch.zeros(reach, dtype=torch.bool), f"{name}{list(shape)} strides {strides}"
        used[place] = True
        for _ in range(self.choice((1, 1, 2, 7)) if len(place) and wild and self.one_in(wild) else 0):
            special = self.choice((NAN, INF, -INF, 0.0) + (min(torch.finfo(dtype).max, torch.finfo(torch.float32).max) / 128,) * huge)
            values[place[self.randrange(len(place))]] = special
            words += f" {special:.3g}"
        self.say(words)
        buffer = torch.where(used, values, NAN if dtype.is_floating_point else 127).to(dtype).to(self.device)
        if not written:
            self.kept.append((name, buffer))
        return buffer.as_strided(shape, strides, start)

    def table(self, name, value, dtype=torch.float32):
        """A dense table with the elements of `value`, in a larger buffer whose other elements are NaN, or the largest
        number of their type."""
        value = torch.as_tensor(value, dtype=dtype)
        if value.numel() and self.spoilt(80, f"{name} of another type"):
            value = value.to(torch.float64 if dtype.is_floating_point else torch.int32 if dtype == torch.int64 else torch.int64)
        elif value.numel() and self.spoilt(80, f"{name} of another shape"):
            value = torch.cat([value] * 4)  # no batch is as large, so no axis of size 1 becomes a batch
        before, after = self.choice(((0, 0), (0, 64), (64, 64)))
        around = NAN if value.dtype.is_floating_point else True if value.dtype == torch.bool else torch.iinfo(value.dtype).max
        buffer = torch.full((before + value.numel() + after,), around, dtype=value.dtype)
        buffer[before:before + value.numel()] = value.flatten()
        return buffer.to(self.device)[before:before + value.numel()].view(value.shape)

    def run(self, function, *arguments, **options):
        return under(self.way, self.device, function, arguments, options)

    def cast(self, *tensors, to=torch.bfloat16):
        """The tensors in the type to which autocast converts them."""
        return [x.to(to) if self.way == "autocast" else x for x in tensors]

    def keep(self):
        self.kept = [(name, buffer, buffer.clone()) for name, buffer in self.kept]

    def changed(self):
        """The names of the inputs that the call has written since keep()."""
        return [name for name, buffer, before in self.kept if not torch.equal(buffer.view(torch.uint8), before.view(torch.uint8))]


def swapped(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def shapes(case, most_rows=300, most_keys=300):
    """dtype, batch, heads, kv_heads, rows, keys, width; one of the sizes may be 0."""
    dtype, batch, rows, keys = case.choice(list(UNIT)), case.choice((1, 1, 2, 3)), case.size(most_rows), case.size(most_keys)
    if case.one_in(25):
        batch, rows, keys = case.choice(((0, rows, keys), (batch, 0, keys), (batch, rows, 0)))
    heads, kv_heads = (3, 2) if case.spoilt(60, "heads that do not divide") else case.choice(HEADS)
    width = case.choice((4, 12, 63) if case.spoilt(60, "a width that is no multiple of 8") else WIDTHS)
    case.say(str(dtype)[6:])
    return dtype, batch, heads, kv_heads, rows, keys, width


def qkv(case, dtype, batch, heads, kv_heads, rows, keys, width):
    other = dtype
    if case.way == "autocast":
        other = case.choice(list(UNIT))
    elif case.spoilt(60, "types that differ"):
        other = case.choice([x for x in (*UNIT, torch.float64) if x != dtype])
    q, k = case.tensor("q", batch, heads, rows, width, dtype=dtype), case.tensor("k", batch, kv_heads, keys, width, dtype=other)
    v = case.tensor("v", batch, kv_heads, keys, width, dtype=dtype)
    return q, k, v.cpu() if case.device != "cpu" and case.spoilt(60, "a value on the host") else v


# ---- the operators. Each function in OPERATORS draws a call, and returns the call and its results' definition

def windows(case, names, rows, keys):
    """Draws options that are numbers; returns them, and the pairs that they hide."""
    limits = {name: case.number(name, keys) for name in ("window_left", "window_right", "prefix", "global_tokens") if name in names}
    causal = "causal" in names or limits.get("prefix", 0) > 0 and not case.spoilt(3, "a prefix without causal")
    own, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    left, right, first = (limits.get(name, off) for name, off in (("window_left", -1), ("window_right", -1), ("global_tokens", 0)))
    hidden = (left >= 0) & (own - key > left) | (right >= 0) & (key - own > right)
    hidden = hidden & ((first == 0) | (key >= first) & (own >= first))
    hidden |= (key > own) & (key >= limits.get("prefix", 0)) & causal
    return {**limits, "causal": causal}, hidden


def starts_of(case, batch, keys):
    """Draws the first key of each sequence; returns the table, and the keys that it hides."""
    starts = torch.tensor([case.choice((0, case.randint(0, keys), keys)) for _ in range(batch)], dtype=torch.int32)
    if batch and case.device == "cpu" and case.spoilt(15, "a start out of range"):
        starts[0] = case.choice((-1, keys + 1, 2 ** 31 - 1))
    case.say(starts=starts.tolist())
    return case.table("starts", starts, torch.int32), torch.arange(keys) < starts[:, None, None, None]


def hiding_tables(case, names, batch, heads, rows, keys):
    """Draws tables that say which keys are seen; returns them, and the pairs that they hide."""
    tables, own, key = {}, (torch.arange(rows)[:, None] + keys - rows).clamp(0), torch.arange(keys)
    hidden = torch.zeros(batch, 1, rows, keys, dtype=torch.bool)
    if "lengths" in names:
        lengths = torch.tensor([case.randint(0, keys) for _ in range(batch)], dtype=torch.int32)
        if batch and case.device == "cpu" and case.spoilt(15, "a length out of range"):  # a GPU does not check lengths
            lengths[0] = case.choice((-1, keys + 1, 2 ** 31 - 1, -2 ** 31))
        case.say(lengths=lengths.tolist())
        tables["lengths"] = case.table("lengths", lengths, torch.int32)
        hidden |= key >= lengths[:, None, None, None]
    if "starts" in names:
        starts, more = starts_of(case, batch, keys)
        tables["starts"], hidden = starts, hidden | more
    if "documents" in names and keys:
        ends = torch.tensor(sorted({case.randint(1, keys) for _ in range(case.choice((1, 3, 9)))} | {keys}))
        document = torch.bucketize(key, ends, right=True)
        table = torch.stack([torch.cat([torch.zeros(1), ends])[document], ends[document]], 1)
        if case.device == "cpu" and case.spoilt(15, "a document out of range"):
            table[-1, 1] = case.choice((keys + 1, 2 ** 30))
        case.say(documents=ends.tolist())
        tables["documents"] = case.table("documents", table, torch.int32)
        hidden |= document != document[own]
    if "blocks" in names and keys:
        count, words = -(-keys // 128), -(-keys // 4096)
        seen = torch.rand(count, count, generator=case.generator) < case.choice((0.2, 0.6, 1.1))
        case.say(f"blocks {seen.int().tolist()}")
        tables["blocks"] = case.table("blocks", (seen.long() << torch.arange(count)).sum(-1).view(count, words), torch.int32)
        hidden |= ~seen[own // 128, key // 128]
    if "mask" in names and keys:
        sizes = [size if case.one_in(2) else 1 for size in (batch, heads, rows, keys)]
        seen = torch.rand(*sizes, generator=case.generator) < case.choice((0.0, 0.1, 0.5, 0.9, 1.1))
        if case.one_in(3):  # most blocks of keys are hidden
            seen &= ((torch.arange(sizes[2])[:, None] - torch.arange(sizes[3])).abs() < 40)
        case.say(f"mask {sizes}")
        tables["mask"] = case.table("mask", seen, torch.bool)
        hidden = hidden | ~seen
    return tables, hidden


def adding_tables(case, names, batch, heads, rows, keys):
    """Draws options that are added to scores; returns them, the sum that they add, and the sinks."""
    options, added, sinks = {}, None, None
    if "alibi" in names:
        power = 2 ** (heads.bit_length() - 1)
        slopes = torch.tensor([2.0 ** (-8 * i / power) for i in range(1, power + 1)] +
                              [2.0 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)])
        options["alibi"] = True
        if case.one_in(2):
            slopes = case.normal(heads)
            if case.one_in(4):
                slopes[case.randrange(heads)] = special = case.choice((NAN, 0.0, 1e4, 1e30))
                case.say(slope=special)
            options["alibi_slopes"] = case.table("alibi_slopes", slopes)
        case.say("alibi", slopes="alibi_slopes" in options)
        added = slopes.double()[:, None, None] * (torch.arange(keys) - torch.arange(rows)[:, None] - keys + rows)
    if "sinks" in names:
        sinks = case.normal(heads)
        if case.one_in(4):
            sinks[case.randrange(heads)] = special = case.choice((NAN, INF, -INF, 1e4, -1e4, 1e30))
            case.say(sink=special)
        case.say("sinks")
        options["sinks"] = case.table("sinks", sinks)
    if "bias" in names:  # each size is 1 or the size of the scores; keys that only pad to a multiple of 4 have no effect
        shape = [size if case.one_in(2) else 1 for size in (batch, heads, rows, -(-keys // 4) * 4)]
        bias, words = case.normal(*shape), f"bias {shape}"
        for _ in range(case.choice((0, 1, 3))):
            special = case.choice((-INF, -INF, NAN, INF, -1e4, -1e30, *LEAST))
            where = torch.rand([size if case.one_in(2) else 1 for size in shape], generator=case.generator)
            bias, words = bias.masked_fill(where < case.choice((0.1, 0.5, 1.1)), special), f"{words} {special:.3g}"
        if shape[3] > 1:
            bias[..., keys:] = case.choice((NAN, 0.0, INF))
        case.say(words)
        options["bias"] = case.table("bias", bias)
        bias = bias[..., :keys] if shape[3] > 1 else bias
        added = bias if added is None else added + bias.double()
    return options, added, sinks


def compare_with_why_not(case, tensors, options):
    """Raises AssertionError unless attn::why_not says of a call of attn::flash what the call itself says."""
    why, said = ops.why_not(*tensors, **options), None
    try:
        ops.flash(*tensors, **options)
    except RuntimeError as error:
        said = str(error).splitlines()[0]
    unseen = why is None and any("out of range" in wrong for wrong in case.wrong)
    if not (said is None if why is None else why in (said or "")) and not unseen:
        raise AssertionError(f"attn::why_not says {why!r}, the call {said!r}")


def flash(case):
    dtype, batch, heads, kv_heads, rows, keys, width = sizes = shapes(case)
    q, k, v = qkv(case, *sizes)
    given, scale = case.scale(width)
    names = case.sample(("causal", "window_left", "window_right", "global_tokens", "prefix", "soft_cap", "alibi", "sinks",
                         "lengths", "documents", "blocks", "bias", "starts", "mask"), case.choice((0, 0, 1, 1, 2, 3, 5)))
    options, hidden = windows(case, names, rows, keys)
    cap = case.choice((1, 5, 30, 1000, 0.5, 30.5)) if "soft_cap" in names else 0
    if cap:
        spoilt = case.spoilt(15, "a soft cap out of range")
        options["soft_cap"] = case.choice((-1, 1001, 0.0005, math.inf)) if spoilt else cap
    with_lse, bshd = case.one_in(2), case.one_in(3)
    case.say(**options, lse=with_lse, bshd=bshd)
    tables, more = hiding_tables(case, names, batch, heads, rows, keys)
    others, added, sinks = adding_tables(case, names, batch, heads, rows, keys)
    options |= {**tables, **others, "scale": given, "bshd": bshd}

    def call():
        tensors = swapped(q, k, v) if bshd else (q, k, v)
        if case.way == "plain":
            compare_with_why_not(case, tensors, options)
        result = case.run(ops.flash_with_lse if with_lse else ops.flash, *tensors, **options)
        result = result if with_lse else [result]
        return [*swapped(result[0]), *result[1:]] if bshd else result

    return call, lambda: definitions.attention(*case.cast(q, k, v), scale, hidden | more, cap, added, sinks)[:1 + with_lse]


def quantised(x, dtype):
    most = 127 if dtype == torch.int8 else 448
    x = x.clamp(-most, most)
    return x.round().nan_to_num(0) if dtype == torch.int8 else x.float().to(dtype).double()


def over_cache(case, appends):
    """A cache is contiguous or on pages. It has q's type, or a type of 8 bits."""
    few, eight = case.one_in(2), case.one_in(4)
    tree = few and case.one_in(4)
    dtype, batch, heads, kv_heads, rows, _, width = shapes(case, 64 if tree else 16 if few else 60)
    if eight and case.device != "cpu":
        dtype = torch.bfloat16 if few and dtype == torch.float32 else dtype
        width = -(-width // 16) * 16 if width % 8 == 0 else width
    page = case.choice((0, 0, 1, 3, 8, 16, 64, 128))
    cache_dtype = case.choice((torch.int8, torch.float8_e4m3fn)) if eight else dtype
    max_pages = case.randint(1, max(200 // page, 1)) if page else 0
    capacity = page * max_pages or case.size(300)
    count = batch * max_pages + case.randint(0, 4) if page else batch
    sizes, scales, options = (count, kv_heads, page or capacity, width), (1, 1), {}
    token_dtype = case.choice(list(UNIT)) if case.way == "autocast" else dtype
    q = case.tensor("q", batch, heads, rows, width, dtype=token_dtype)
    if eight:
        caches = [case.tensor(name, *sizes, dtype=cache_dtype, wild=0, written=appends, times=9) for name in ("k_cache", "v_cache")]
        scales = [torch.rand(sizes[:2], generator=case.generator) for _ in "kv"]
        options = {name: case.table(name, each) for name, each in zip(("key_scales", "value_scales"), scales)}
    else:
        wild = 0 if appends else 6
        caches = [case.tensor(name, *sizes, dtype=dtype, wild=wild, written=appends) for name in ("k_cache", "v_cache")]
        if appends and count > 1 and caches[0].numel() and case.spoilt(40, "a cache that is written and repeats"):
            caches[0] = caches[0][:1].expand(sizes)
    least = min(rows, capacity)
    lengths = torch.tensor([case.choice((case.randint(0, capacity), case.randint(0, least), least, capacity, capacity, 0))
                            for _ in range(batch)]).int()
    table = torch.randperm(count, generator=case.generator)[:batch * max_pages].view(batch, -1).int() if page and batch else None
    for i in range(batch if page else 0):  # pages that hold no token
        table[i, -(-lengths[i].item() // page):] = case.choice((-1, 0, 10 ** 9))
    empty = case.one_in(2) and all(x.stride(-2) >= width and 0 not in x.stride() for x in caches)
    for cache in caches if empty else ():  # slots that hold no token, before the call
        holds = torch.zeros(sizes[0], sizes[2], dtype=torch.bool)
        for i, token in ((i, token) for i, length in enumerate(lengths.tolist()) for token in range(length - rows * appends)):
            holds[(table[i, token // page], token % page) if page else (i, token)] = True
        bits = cache.view(torch.uint8) if eight else cache
        bits.masked_fill_(~holds.to(case.device)[:, None, :, None], NAN if not eight else 127)  # 127 is NaN as e4m3
    case.say(empty_slots_are_nan=empty)
    if batch and case.device == "cpu" and case.spoilt(15, "a length out of range"):  # a GPU does not check them
        lengths[0] = case.choice((-1, capacity + 1, 2 ** 31 - 1, -2 ** 31))
    elif page and batch and lengths[0] > 0 and case.device == "cpu" and case.spoilt(15, "a page out of range"):
        table[0, 0] = case.choice((-1, count, 10 ** 9, -2 ** 31))
    if page and not batch:
        table = torch.zeros(0, max_pages)
    given, scale = case.scale(width)
    bshd, cache_bshd = case.one_in(3), case.one_in(3)
    case.say(f"{str(cache_dtype)[6:]} cache {list(sizes)}", lengths=lengths.tolist(), table=table.tolist() if page else None,
             bshd=bshd, cache_bshd=cache_bshd, few=few)
    tables = [case.table("lengths", lengths, torch.int32), case.table("table", table, torch.int32) if page else None]
    new, angles = [], []
    if appends:
        new = [case.tensor(name, batch, kv_heads, rows, width, dtype=token_dtype) for name in ("new_k", "new_v")]
        if case.way == "vmap":
            case.wrong.append("a write to a tensor that is not batched")
        if not tree and case.one_in(2):
            pairs = case.choice((width // 2, 4))
            if case.spoilt(20, "angles for more pairs than a row has, or for a number of pairs that prefill refuses"):
                pairs = width // 2 + 4 if few else case.choice((width // 2 + 4, 6))
            angle = case.normal(capacity, pairs)
            angles, options["interleaved"] = [angle.cos(), angle.sin()], case.one_in(2)
            if case.one_in(6):
                case.choice(angles).view(-1)[case.randrange(angle.numel())] = special = case.choice((NAN, INF))
                case.say(angle=special)
            case.say(f"angles {list(angle.shape)}", interleaved=options["interleaved"])
    names = case.sample(("window_left", "soft_cap", "alibi", "sinks", "starts"), case.choice((0, 0, 1, 1, 2, 4)))
    cap = options["soft_cap"] = case.choice((1, 5, 30, 0.5, 30.5)) if "soft_cap" in names else 0
    window = options["window_left"] = case.number("window_left", capacity) if "window_left" in names else -1
    more, added, sinks = adding_tables(case, names, batch, heads, 1, 2)
    options |= more
    # The first of the two keys is one before the query's own key, so `added` is -slope there.
    slopes = None if added is None else -added[:, 0, 0]
    starts, before_start = starts_of(case, batch, capacity) if "starts" in names else (None, None)
    options["starts"] = starts
    if not few and case.spoilt(15, "a tree in a prompt"):
        tree = True
    if tree:
        tree = torch.randint(-2 ** 63, 2 ** 63 - 1, (batch, rows), generator=case.generator)
        options["tree"] = case.table("tree", tree, torch.int64)
    case.say(cap=cap, window=window, tree=tree is not False)
    before = [x.clone() for x in caches]
    options |= {"scale": given, "bshd": bshd, "cache_bshd": cache_bshd}
    name = ("decode_fused" if few else "prefill_fused") if appends else "paged_decode" if few else "paged_prefill"

    def call():
        o = case.run(getattr(ops, name), *(swapped(q, *new) if bshd else (q, *new)), *(swapped(*caches) if cache_bshd else caches),
                     *tables, *(x.to(case.device) for x in angles), **options)
        return [*(swapped(o) if bshd else [o]), *(caches if appends else ())]

    def right():
        seen = lengths.long()
        at = seen[:, None] - rows + torch.arange(rows)
        query, *fresh = (x.cpu() for x in case.cast(q, *new, to=torch.bfloat16 if eight else dtype))
        if angles:
            cosines, sines = (x.double()[at.clamp(0)][:, None] for x in angles)
            query, fresh[0] = (definitions.rotated(x.double(), cosines, sines, options["interleaved"]).to(to)
                               for x, to in ((query, query.dtype), (fresh[0], torch.float64 if eight else dtype)))
        stored = [x.double().cpu() for x in before]
        rounding = [torch.zeros_like(x) for x in stored]
        for i, row in ((i, row) for i in range(batch if appends else 0) for row in range(rows) if at[i, row] >= 0):
            slot = (table[i, at[i, row] // page], at[i, row] % page) if page else (i, at[i, row])
            for cache, x, each, step in zip(stored, fresh, scales, rounding):
                x = x[i, :, row].double()
                if eight:
                    x = quantised(x / each[slot[0]][:, None], cache_dtype)
                    # Near the midpoint of two neighbouring numbers of the type, the rotation in f32 decides which of
                    # the two is stored.
                    step[slot[0], :, slot[1]] = 1 if cache_dtype == torch.int8 else x.abs().nan_to_num(0) / 7 + 2 ** -9
                cache[slot[0], :, slot[1]] = x
        full = stored
        if eight:  # the call attends to the numbers that it has stored
            full = [x.double().cpu() * each[..., None, None] for x, each in zip(caches, scales)]
        if eight and not few:  # a prompt reads a copy of the cache in q's type
            full = [x.float().to(query.dtype).double() for x in full]
        dense = [x[table.long().clamp(0, count - 1)].transpose(1, 2).flatten(2, 3) if page else x for x in full]
        key, own = torch.arange(capacity), at[:, None, :, None]
        hidden = key > own
        if tree is not False:
            token = key - (seen - rows)[:, None, None, None]
            unseen = (tree[:, None, :, None] >> token.clamp(0, 63)) & 1 == 0
            hidden = (token >= 0) & unseen | (key >= seen[:, None, None, None]) | (own < 0)
        if window >= 0:
            hidden = hidden | (own - key > window)
        if before_start is not None:
            hidden = hidden | before_start
        more = None if slopes is None else slopes[:, None, None] * (key - own)
        result = definitions.attention(query, *dense, scale, hidden, cap, more, sinks, rotated=bool(angles))[:1]
        if not eight:
            rounding = [4 * UNIT[dtype] * bool(angles) * x.abs().nan_to_num(0, 0).amax(-1, keepdim=True).expand(x.shape) for x in full]
        return result + list(zip(stored, rounding)) if appends else result

    return call, right


def linear(case):
    dtype, batch, heads, tokens = case.choice(list(UNIT)), case.choice((1, 1, 2)), case.choice((1, 2, 3, 8)), case.size(200)
    width, values = case.choice((8, 16, 24, 32, 64, 128)), case.choice((8, 16, 40, 64, 128))
    if case.spoilt(60, "a width that is no multiple of 8"):
        width, values = case.choice(((4, values), (width, 12), (264, values)))
    if case.one_in(20):
        batch, tokens = case.choice(((0, tokens), (batch, 0)))
    causal, normalised, bshd = not case.one_in(4), case.one_in(3), case.one_in(3)
    # Not `identity` with `normalised`: the divisor may be 0.
    feature = case.choice(("elu1", "relu") if normalised else ("identity", "elu1", "relu"))
    q, k, v = (case.tensor(name, batch, heads, tokens, size, dtype=dtype, wild=12, huge=False)
               for name, size in (("q", width), ("k", width), ("v", values)))
    gate = state = None
    if case.one_in(2) and (causal or case.spoilt(3, "a gate without causal")):
        gate = -torch.rand(case.choice(((heads,), (batch, heads, tokens), (batch, heads, tokens, width))), generator=case.generator)
        gate *= case.choice((0.01, 1, 30))
        special = case.choice((NAN, -INF, -1e30, 0.0)) if gate.numel() and case.one_in(4) else None
        if special is not None:
            gate.view(-1)[case.randrange(gate.numel())] = special
        case.say(f"gate {list(gate.shape)}", special=special)
    if case.one_in(3) and not normalised:
        state = case.normal(batch, heads, width, values)
    given, scale = (None, 1.0) if normalised else case.scale(width)
    case.say(str(dtype)[6:], causal=causal, normalised=normalised, feature=feature, initial_state=state is not None, bshd=bshd)
    options = {"causal": causal, "normalised": normalised, "scale": given, "bshd": bshd, "feature": feature}
    tables = [None if x is None else case.table(name, x) for name, x in (("gate", gate), ("initial_state", state))]

    def call():
        o, final = case.run(ops.linear, *(swapped(q, k, v) if bshd else (q, k, v)), *tables, **options)
        return [*(swapped(o) if bshd else [o]), final]

    return call, lambda: definitions.linear(*case.cast(q, k, v), gate, state, causal, normalised, feature, scale)


def rope(case):
    (heads, kv_heads), dtype, width = case.choice(HEADS), case.choice(list(UNIT)), case.choice(WIDTHS)
    batch, tokens, bshd = case.choice((1, 2, 3)), case.size(100), case.one_in(3)
    if case.one_in(20):
        batch, tokens = case.choice(((0, tokens), (batch, 0)))
    q, k = (case.tensor(name, batch, n, tokens, width, dtype=dtype) for name, n in (("q", heads), ("k", kv_heads)))
    options = {"theta": case.choice((10000.0, 500000.0, 1.5)), "rotary_dim": case.choice((0, 0, 2, 8, width)),
               "interleaved": case.one_in(2), "scaling": case.choice(("none", "none", "linear", "ntk", "yarn", "llama3")),
               "factor": case.choice((1.0, 2.0, 8.0))}
    if options["scaling"] == "yarn":
        options |= {"attention_factor": case.choice((0.0, 0.0, 0.5, 1.5)), "mscale": case.choice((0.0, 1.0, 0.707)),
                    "mscale_all_dim": case.choice((0.0, 1.0, 0.5)), "beta_fast": case.choice((32.0, 16.0, 1.0)),
                    "beta_slow": case.choice((1.0, 0.5)), "truncate": case.one_in(2)}
    if options["scaling"] == "llama3":
        options |= {"low_freq_factor": case.choice((1.0, 0.5)), "high_freq_factor": case.choice((4.0, 2.0))}
    meant = {**options, "rotary_dim": options["rotary_dim"] or width}
    if meant["scaling"] == "ntk" and meant["rotary_dim"] == 2:
        case.wrong.append("ntk of one pair")
    bad = {"theta": (1.0, 0.0, -3.0, NAN, INF), "rotary_dim": (-2, 3, width + 2, 2 ** 31, 2 ** 32 + 2), "scaling": ("dynamic", ""),
           "attention_factor": (-1.0, 1e7, NAN), "beta_slow": (0.0, 100.0, NAN), "low_freq_factor": (0.0, 5.0, NAN)}
    for name in sorted(bad.keys() & options.keys()):  # in one order, so that a seed gives one case
        if case.spoilt(40, f"{name} out of range"):
            options[name] = case.choice(bad[name])
    offsets = None
    if case.one_in(2):
        offsets = [case.choice((0, 5, -3, 10 ** 6, -2 ** 31, 2 ** 31 - max(tokens, 1))) for _ in range(batch)]
    case.say(str(dtype)[6:], offsets=offsets, **options, bshd=bshd)
    place = None if offsets is None else case.table("offsets", offsets, torch.int32)

    def call():
        result = case.run(ops.rope, *(swapped(q, k) if bshd else (q, k)), place, bshd=bshd, **options)
        return swapped(*result) if bshd else result

    return call, lambda: definitions.rope((q, k), offsets or [0] * batch, **meant)


def mask_of(case, dtype, batch, heads, rows, keys):
    shape = case.choice(((rows, keys), (batch, 1, rows, keys), (batch, heads, rows, keys), (batch, 1, 1, keys), (1, heads, 1, keys),
                         (rows, 1)))
    mask = case.tensor("mask", *shape, dtype=case.choice((dtype, torch.float32)), wild=3)
    kind = case.choice(("numbers", "bool", "-inf", "least"))
    case.say(f"{kind} in the mask")
    return {"numbers": mask, "bool": mask > -0.5, "-inf": mask.masked_fill(mask > 0.5, -INF),
            "least": mask.masked_fill(mask > -1, torch.finfo(mask.dtype).min)}[kind]


def dropin(case):
    """scaled_dot_product_attention under one of PyTorch's modes. If the drop-in leaves a call to PyTorch, the result
    must be PyTorch's."""
    case.rows_may_overlap = False  # PyTorch's results then overlap too
    dtype, batch, heads, kv_heads, rows, keys, width = shapes(case)
    gqa = case.one_in(2)
    kv_heads = kv_heads if gqa else heads
    q, k, v = qkv(case, dtype, batch, heads, kv_heads, rows, keys, width)
    given, scale = case.scale(width)
    causal, mask, corner = case.one_in(3), None, None
    if not causal and case.one_in(2):
        mask = mask_of(case, dtype, batch, heads, rows, keys)
    elif not causal and case.way not in TRACES and case.one_in(4):
        corner = case.choice((causal_upper_left, causal_lower_right))
        mask = corner(rows, keys)
    flat = batch == 1 and (mask is None or mask.dim() == 2) and case.one_in(4)
    tensors = [x[0] for x in (q, k, v)] if flat else [q, k, v]
    if case.one_in(30):
        tensors = [x.double() if case.one_in(2) else x for x in tensors]
    case.say(f"types {[str(x.dtype)[6:] for x in tensors]}", causal=causal, gqa=gqa, flat=flat, corner=corner and corner.__name__)
    case.wrong.clear()  # PyTorch decides which calls are refused
    options = {"attn_mask": mask, "is_causal": causal, "scale": given, "enable_gqa": gqa}
    served, got = False, None

    def attempt(function):
        try:
            return under(case.way, case.device, function, tensors, options)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def call():
        nonlocal served, got
        attn_proto.reset_reasons()
        with attn_proto.enable():
            got = attempt(F.scaled_dot_product_attention)
        served = not attn_proto.reasons() and not isinstance(got, str)
        return [got]

    def right():
        pytorch = attempt(original) if not served or case.way in TRACES else None
        if case.way in TRACES:  # a trace may serve other calls than a direct call, and refuse in other words
            if isinstance(got, str) and isinstance(pytorch, str) or not difference(got, pytorch, None):
                return [(got, None)]
        elif not served:
            return [(pytorch, None)]
        query, key, value = (x.detach()[None] if flat else x.detach() for x in tensors)
        added = None if corner else mask
        query, key, value = case.cast(query, key, value)
        if added is not None and added.dtype == torch.bool:
            added = torch.zeros(added.shape).masked_fill(~added.cpu(), -INF)
        elif added is not None:
            added, = case.cast(added)
        first = keys - rows if corner is causal_lower_right else 0  # the key at which the first query stands
        hidden = (torch.arange(keys) > torch.arange(rows)[:, None] + first) & (causal or corner is not None)
        o, tolerance = definitions.attention(query, key, value, scale, hidden, added=added)[0]
        return [(o[0], tolerance[0]) if flat else (o, tolerance)]

    return call, right


OPERATORS = {"flash": flash, "paged": lambda case: over_cache(case, False), "fused": lambda case: over_cache(case, True),
             "linear": linear, "rope": rope, "dropin": dropin}
WEIGHTS = (4, 2, 2, 2, 1, 4)


# ---- running them

def difference(got, want, tolerance):
    """The difference in words, or an empty text."""
    if tolerance is None:  # PyTorch's own result, or its error
        if isinstance(got, str) or isinstance(want, str):
            same = got == want
        else:
            same = got.shape == want.shape and torch.allclose(got.detach().double(), want.detach().double(), equal_nan=True)
        return "" if same else f"{str(got)[:150]!r}, but PyTorch's is {str(want)[:150]!r}"
    if isinstance(got, str):
        return got
    if got.shape != want.shape:
        return f"has the shape {list(got.shape)}; it must be {list(want.shape)}"
    got = got.detach().double().cpu()
    near = torch.where(torch.isfinite(want), (got - want).abs() <= tolerance, (got == want) | ~torch.isfinite(got) & (want != -INF))
    if (wrong := ~near & (tolerance < INF)).any():
        at = tuple(wrong.nonzero()[0].tolist())
        return (f"{list(at)} is {got[at]:.6g}; it must be {want[at]:.6g} within {tolerance[at]:.1e}; {wrong.sum()} of "
                f"{wrong.numel()} elements are wrong")
    return ""


def judge(seed, number, device, tell):
    """Runs a case. Returns the operator's name, and the error of the case or an empty text. Passes the call in words to
    `tell` before the call runs."""
    case = Case(seed, number, device)
    name = case.choices(list(OPERATORS), WEIGHTS)[0]
    call, right = OPERATORS[name](case)
    words = f"{name}({', '.join(filter(None, case.said))})"
    tell(words)
    case.keep()
    try:
        results = call()
        if device != "cpu":
            torch.cuda.synchronize()
    except AssertionError as error:
        return name, f"{error}: {words}"
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        line = str(error)
        if device != "cpu" and "of threadgroup memory, cuda" in line:  # no tile of f32 with the largest width fits
            return name, ""
        if not case.wrong:
            return name, f"refused, {line.splitlines()[0][:300]}: {words}"
        several = "\n" in line and case.way not in TRACES
        return name, f"an error of several lines, {line[:200]!r}: {words}" if several else ""
    if case.wrong:
        return name, f"accepted {', '.join(case.wrong)}: {words}"
    for i, (got, (want, tolerance)) in enumerate(zip(results, right())):
        if found := difference(got, want, tolerance):
            return name, f"result {i} {found}: {words}"
    return name, f"wrote to {', '.join(case.changed())}: {words}" if case.changed() else ""


def work(options):
    """Runs cases from options.first on. Writes two lines for each case: the call in words before the call runs, and
    then the operator's name and the error."""
    number, end = options.first, time.monotonic() + options.seconds
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps output of libraries apart from the answers

    def tell(words):
        print(words.replace("\n", " "), file=answers, flush=True)

    while time.monotonic() < end:
        tell(" ".join(judge(options.seed, number, options.device, tell)))
        number += 1


def watch(options):
    """Runs cases in processes. If a case ends its process, the next process begins with the next case. Returns the
    number of findings."""
    end, number, counts, findings = time.monotonic() + options.seconds, 0, collections.Counter(), 0
    words = None  # the call that is running

    def report(what):
        nonlocal findings
        findings += 1
        print(f"fuzz.py --seed {options.seed} --only {number}: {what}", flush=True)

    def take(line):
        nonlocal number, words
        if words is None:
            words = line
            return
        name, found = line.split(" ", 1)
        if found:
            report(found)
        counts[name], number, words = counts[name] + 1, number + 1, None

    while (left := end - time.monotonic()) > 0:
        words = None
        command = [sys.executable, __file__, "--seed", options.seed, "--first", number, "--seconds", left, "--device", options.device]
        if why := follow(list(map(str, command)), SILENCE, take):
            report(f"{why}: {words}")
            number += 1
    cases = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print(f"seed {options.seed}: {counts.total()} cases ({cases}), {findings} findings")
    return findings


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("--seconds", type=number(float, 0, 10 ** 6), default=60)
    parser.add_argument("--seed", type=number(int, 0, 2 ** 63 - 1), default=random.SystemRandom().randrange(10 ** 6))
    parser.add_argument("--only", type=number(int, 0, 2 ** 63 - 1), help="run this case alone, in this process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)  # for the second process
    options = parser.parse_args()
    if options.first is not None:
        return work(options)
    if options.only is not None:
        name, found = judge(options.seed, options.only, options.device, print)
        print(f"{name}: {found or 'right'}")
        return bool(found)
    print(f"seed {options.seed}", flush=True)
    return bool(watch(options))


if __name__ == "__main__":
    sys.exit(main())
