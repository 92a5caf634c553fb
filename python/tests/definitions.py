"""The operators' results in float64, computed straight from the formulas, with the error that rounding allows.

Each operator's function gives a list of (result, tolerance). If a result is not finite, the operator's result must not
be finite either. If a tolerance is not finite, any result passes.

These rules hold for all operators of attention. A hidden pair of query and key has weight 0 for any key, value and
bias. A bias of -inf hides its pair. A finite bias is added to the score. A row that sees no key is 0, and its lse is
-inf or the sink. A score of NaN or +inf makes its whole row NaN. An element of V that is not finite makes only its own
column NaN, in the rows that see its key.
"""

import math

import torch
import torch.nn.functional as F

NAN, INF = math.nan, math.inf
U = 2.0 ** -24  # half a unit in the last place of float32; UNIT has half a unit of each type
UNIT = {torch.float32: U, torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8}
LEAST = {torch.float32: 2.0 ** -125, torch.float16: 2.0 ** -24, torch.bfloat16: 2.0 ** -125}  # smaller numbers may be lost


def on_host(*tensors):
    return [x.detach().double().cpu() for x in tensors]


def attention(q, k, v, scale, hidden, cap=0, added=None, sinks=None, rotated=False):
    """Returns o and lse of softmax(scale Q K^T, then capped, then with `added`) V, over the pairs that are not
    `hidden`.

    q: [batch, heads, rows, width]; k, v: [batch, kv_heads, keys, width]; hidden, added: broadcast to [batch, heads,
    rows, keys]; sinks: [heads]. `rotated`: q and k were rotated, so they are rounded results themselves."""
    dtype, keys, width, fast_tanh = q.dtype, k.shape[2], q.shape[3], q.is_cuda and q.dtype != torch.float32
    q, k, v = on_host(q, *(x.repeat_interleave(q.shape[1] // max(x.shape[1], 1), 1) for x in (k, v)))
    size = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]
    score = scale * (q @ k.mT)
    overflows = torch.isfinite(score) & (max(abs(scale), 1) * size > 1e37)
    size = abs(scale) * size
    error = ((4 + math.sqrt(width) + 3 * width / 16) * U + rotated * UNIT[dtype] / 4) * size + 4 * U * score.abs()
    if cap:
        score = cap * torch.tanh(score / cap)
        error = error + 4e-7 * cap + fast_tanh * 2.0 ** -10 * score.abs()
    if cap or added is not None:
        added = torch.zeros(()) if added is None else added.double().cpu()
        absorbs = added.abs() > 2.0 ** 30 * (1 + size)  # a sum in float32 then loses the whole score, and its error
        error = torch.where(absorbs, 0, error + 1e-5 + 8 * U * (score.abs() + added.abs()))
        score, hidden = (score.float() + added.float()).double(), hidden | (added == -INF)

    hidden = hidden.expand(score.shape)
    seen, score = ~hidden, score.masked_fill(hidden, -INF)
    sink = torch.full((1, 1, 1, 1), -INF) if sinks is None else sinks.double().cpu()[:, None, None]
    top = torch.cat([score, sink.expand(*score.shape[:3], 1)], -1).amax(-1, keepdim=True)
    weight = torch.exp(score - top).masked_fill(hidden, 0)  # may be NaN if the top is NaN or infinite
    total = weight.sum(-1, keepdim=True) + torch.exp(sink - top)
    nothing = top == -INF
    weight, lse = (weight / total).masked_fill(nothing, 0), (top + total.log()).masked_fill(nothing, -INF)
    finite = torch.isfinite(v)
    plain = v.masked_fill(~finite, 0)
    o = (weight @ plain).masked_fill(seen.double() @ (~finite).double() > 0, NAN).masked_fill(~(top < INF), NAN)

    # common/cases/tolerance.cpp gives the reasons for these terms, and has tighter terms.
    off = error.masked_fill(hidden, 0).amax(-1, keepdim=True) if keys else torch.zeros_like(top)
    relative = torch.expm1(2 * off.clamp(max=1)) + (2e-4 if dtype == torch.bfloat16 else 2e-6) + U * (64 + 4 * keys)
    rounded = 0 if dtype == torch.float32 else 3 * UNIT[dtype]  # the weights are rounded
    absolute = seen.double() @ plain.abs()
    tolerance = (relative + rounded) * (weight.nan_to_num(0) @ plain.abs() + o.abs()) + 2 * UNIT[dtype] * o.abs()
    tolerance = tolerance + LEAST[dtype] * (1 + absolute)
    arbitrary = off > 0.5  # scores so large that their rounding chooses among the keys
    tolerance = torch.where(arbitrary, 4 * absolute, tolerance)
    # Some scores may overflow float32. A score that becomes -inf by overflow hides its pair. But the result is NaN if
    # the row has only scores that overflow, or if the value of the pair is not finite.
    unsure = (seen & overflows).any(-1, keepdim=True) | (seen.any(-1, keepdim=True) & nothing)
    tolerance = tolerance.masked_fill((seen & (score == -INF)).double() @ (~finite).double() > 0, INF)
    tolerance = tolerance.masked_fill(unsure | (o.abs() > torch.finfo(dtype).max / 2), INF)
    lse_tolerance = (relative + 8 * U * lse.abs().nan_to_num(0, 0)).masked_fill(unsure | arbitrary, INF)
    return [(o, tolerance), (lse[..., 0], lse_tolerance[..., 0])]


def rotated(x, cosines, sines, interleaved):
    """RoPE of the first elements of each row of x, [..., tokens, width]; cosines, sines: [..., tokens, pairs]."""
    pairs, out = cosines.shape[-1], x.clone()
    a, b = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    out[..., a] = x[..., a] * cosines - x[..., b] * sines
    out[..., b] = x[..., b] * cosines + x[..., a] * sines
    return out


def frequencies(theta, rotary_dim, scaling, factor, original_length, attention_factor=0, mscale=0, mscale_all_dim=0, beta_fast=32,
                beta_slow=1, truncate=True, low_freq_factor=1, high_freq_factor=4):
    """Returns, for a scaling of attn.h, the angle by which each pair turns from one position to the next, in radians,
    and the factor by which the rotated elements are multiplied."""
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64)
    if scaling == "ntk":
        theta = theta * factor ** (rotary_dim / (rotary_dim - 2))
    plain = theta ** (-2 * pair / rotary_dim)
    if scaling == "linear":
        return plain / factor, 1
    if scaling == "llama3":
        turns = original_length * plain / (2 * math.pi)
        fast = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
        return plain * (fast + (1 - fast) / factor), 1
    if scaling == "yarn":
        first, last = (rotary_dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (beta_fast, beta_slow))
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        slow = ((pair - first) / (last - first or 0.001)).clamp(0, 1)
        if not attention_factor:
            above, below = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1, 0)
            attention_factor = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
        return plain * (1 - slow + slow / factor), attention_factor
    return plain, 1


def rope(tensors, offsets, theta, rotary_dim, interleaved, scaling, factor, original_length=8192, **more):
    """Each of `tensors`, [batch, heads, tokens, width], rotated. offsets: [batch], positions of the first tokens."""
    frequency, grown = frequencies(theta, rotary_dim, scaling, factor, original_length, **more)
    results = []
    for x in tensors:
        dtype, (x,) = x.dtype, on_host(x)
        at = (torch.arange(x.shape[2]) + torch.as_tensor(offsets)[:, None])[:, None, :, None]
        angle = at * frequency
        out = rotated(x, grown * angle.cos(), grown * angle.sin(), interleaved)
        off = grown * (6e-7 + 1e-15 * at.abs())  # errors of the kernel's cosine and of this angle
        largest = torch.where(x.isfinite(), x, 0).abs().amax(-1, keepdim=True)  # ignores NaN of other pairs
        tolerance = 2 * off * largest + 2 * UNIT[dtype] * out.abs() + LEAST[dtype]
        results.append((out, tolerance.nan_to_num(1, INF).masked_fill(out.abs() > torch.finfo(dtype).max / 2, INF)))
    return results


def linear(q, k, v, gate, state, causal, normalised, feature, scale):
    """Returns o and the final state of linear attention, computed token by token. The same sums, taken over absolute
    values, bound the rounding errors."""
    dtype, tokens, width = q.dtype, q.shape[2], q.shape[3]
    function = {"identity": lambda x: x, "elu1": lambda x: F.elu(x) + 1, "relu": torch.relu}[feature]
    q, k, v = on_host(q, k, v)
    q, k = function(q), function(k)
    s = torch.zeros(*q.shape[:2], width, v.shape[3], dtype=torch.float64) if state is None else state.double().cpu()
    size, z = s.abs(), torch.zeros(*q.shape[:2], width, dtype=torch.float64)
    relative = 4 * UNIT[dtype] + (gate is not None) * 4e-5 + U * (64 + 4 * (tokens + width))
    o, tolerance = v.clone(), v.clone()  # for the shapes only

    def read(t):
        row = q[:, :, t, None]
        sums, error = (row @ s)[:, :, 0], relative * (row.abs() @ size)[:, :, 0]
        if normalised:
            divisor = (row @ z[..., None])[:, :, 0]
            doubt = relative * (row.abs() @ z[..., None].abs())[:, :, 0]
            lost = (doubt > 0.1 * divisor.abs()) | (divisor.abs() < 1e-30)  # products below 2^-126 are 0
            error = torch.where(lost, INF, (error + (sums / divisor).abs() * doubt) / divisor.abs())
            none = (divisor == 0) & (sums == 0)
            sums, error = (sums / divisor).masked_fill(none, 0), error.masked_fill(none, 0)
        o[:, :, t] = scale * sums
        rounding = 2 * UNIT[dtype] * o[:, :, t].abs().nan_to_num(0, 0) + LEAST[dtype]
        tolerance[:, :, t] = (abs(scale) * error).nan_to_num(0, INF) + rounding

    for t in range(tokens):
        if gate is not None:
            decay = gate.double().cpu().exp()
            decay = decay[None, :, None] if gate.dim() == 1 else decay[:, :, t] if gate.dim() == 4 else decay[:, :, t, None]
            s, size, z = s * decay[..., None], size * decay[..., None], z * decay
        outer = k[:, :, t, :, None] * v[:, :, t, None]
        s, size, z = s + outer, size + outer.abs(), z + k[:, :, t]
        if causal:
            read(t)
    for t in range(0 if causal else tokens):
        read(t)
    tolerance = tolerance.masked_fill(o.abs() > torch.finfo(dtype).max / 2, INF)
    return [(o, tolerance), (s, (relative * size).nan_to_num(0, INF) + LEAST[dtype])]
