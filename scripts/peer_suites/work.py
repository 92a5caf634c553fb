"""The attention that a row computes, its definition in double, and the test whether two results agree."""

import math
from typing import NamedTuple, Optional

from . import clocks
from .clocks import np

# An f32 result may differ from the exact result x by 1e-5 + 1e-4 |x|, a bf16 result by 5e-3 + 1e-2 |x|. These are the
# fixed tolerances of the study that this project follows (docs/measuring.md). Two bf16 results may therefore differ
# from each other by 1e-2 + 2e-2 |x|.
F32_ATOL, F32_RTOL = 1e-5, 1e-4
BF16_ATOL, BF16_RTOL = 1e-2, 2e-2


class Work(NamedTuple):
    """softmax(f(Q K^T / sqrt(head_dim))) V. f applies the soft cap first, then adds ALiBi, then the mask."""
    causal: bool = False
    alibi: bool = False
    soft_cap: float = 0  # 0: none
    window: Optional[int] = None  # a causal query sees its own key and this many keys before it; None: all

    def options(self):
        """Returns the work as options of this project's flash()."""
        found = {"causal": self.causal, "alibi": self.alibi, "soft_cap": float(self.soft_cap)}
        return found if self.window is None else {**found, "window_left": self.window}

    def flops(self, heads, length, head_dim):
        """Returns the number of operations of the two matrix products. Only pairs of a query and a key that the causal
        mask allows count; a window does not lower the number."""
        return 4 * head_dim * heads * (length * (length + 1) // 2 if self.causal else length * length)


def slopes(heads):
    """Returns ALiBi's slopes."""
    return [2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]


def added(work, heads, length):
    """Returns an f32 tensor that has ALiBi and the mask, and that attention adds to the scores: [1, heads, n, n] with
    ALiBi, else [1, 1, n, n]."""
    distance = np.subtract.outer(np.arange(length), np.arange(length))  # the query's position - the key's position
    found = np.zeros((1, 1, length, length), np.float32)
    if work.alibi:
        found = (-np.array(slopes(heads))[None, :, None, None] * distance).astype(np.float32)
    if work.causal:
        found[..., distance < 0] = -np.inf
    if work.window is not None:
        found[..., distance > work.window] = -np.inf
    return found


def reference(work, q, k, v):
    """Returns attention in double, and the difference that is allowed for each element of a result in f32. The allowed
    difference grows with the largest score, because a kernel rounds scores in f32 and each weight then changes by a
    fraction of itself."""
    heads, length, dim = q.shape[1:]
    addend = added(work, heads, length)
    o, allowed = np.empty(q.shape), np.empty(q.shape)
    for head in range(heads):
        s = q[0, head].astype(float) @ k[0, head].astype(float).T / math.sqrt(dim)
        if work.soft_cap:
            s = work.soft_cap * np.tanh(s / work.soft_cap)
        s += addend[0, head % addend.shape[1]]
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        o[0, head] = p @ v[0, head].astype(float)
        largest = np.abs(s, where=np.isfinite(s), out=np.zeros_like(s)).max(axis=1, keepdims=True)
        allowed[0, head] = (F32_ATOL + F32_RTOL * np.abs(o[0, head]) +
                            2.0**-23 * largest * (p @ np.abs(v[0, head].astype(float))))
    return o, allowed


def against_reference(sides, work, q, k, v):
    """Returns whether the results of all sides agree with the reference, and each side's largest error."""
    want, allowed = reference(work, q, k, v)
    errors = {name: np.abs(side.output() - want) for name, side in sides.items()}
    return {"agree": all(bool(np.all(error <= allowed)) for error in errors.values()),  # a NaN makes it false
            "max_abs": {name: float(error.max()) for name, error in errors.items()}}


def on_a_cpu(makers, work, shape, machine, seconds, unchecked=()):
    """Makes and times the sides of a row on random f32 tensors of shape [1, heads, length, head_dim]. Returns the
    result of against_reference() for all but the sides `unchecked`, and the turns. makers(tensors) returns for each
    side, by name, the function that makes the side."""
    _, _, length, dim = shape
    tensors = np.random.default_rng(length + dim).standard_normal((3, *shape), np.float32)
    found = clocks.ready(makers(tensors), machine.clock)
    checked = against_reference({name: side for name, side in found.items() if name not in unchecked}, work, *tensors)
    return checked, clocks.take_turns(found, seconds)


def all_agree(results, want):
    """Returns whether all tensors of `results`, rounded to bf16, agree with the tensor `want`."""
    return all(bool(((got - want).abs() <= BF16_ATOL + BF16_RTOL * want.abs()).all()) for got in results)  # NaN: False


def agreement(sides, want):
    """Returns whether the results of all sides agree with the result of the side `want`, or, if this side is left out,
    of the first side."""
    answers = {name: side.output() for name, side in sides.items()}
    first = answers.get(want, next(iter(answers.values())))
    return all_agree(answers.values(), first)
