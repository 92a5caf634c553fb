"""scaled_dot_product_attention of PyTorch, served by attn::flash where that applies, by PyTorch where not."""

import collections
import math
import threading

import torch

_original = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_reasons = collections.Counter()
_depth = 0
_backends = tuple(backend for backend in ("cpu", "cuda") if torch.ops.attn.has_backend(backend))
_dtypes = (torch.float32, torch.float16, torch.bfloat16)
_few_queries = 16  # up to which a call runs the decoding kernel, which takes no mask
_decided, _most_decided = {}, 4096  # by what _why_not() looks at, addresses and gradients apart


def _why_not(query, key, value, mask, dropout, causal, gqa):
    """Why attn::flash does not take a call; None where it does."""
    if query.device.type not in _backends:
        return f"device {query.device.type}"
    if dropout > 0:
        return "dropout"
    if query.dtype not in _dtypes or key.dtype != query.dtype or value.dtype != query.dtype:
        return f"types {query.dtype}, {key.dtype}, {value.dtype}"
    if query.dim() not in (3, 4) or key.dim() != query.dim() or value.dim() != query.dim():
        return f"{query.dim()} dimensions"
    if key.device != query.device or value.device != query.device:
        return "mixed devices"
    if query.shape[-1] != key.shape[-1] or value.shape[-1] != query.shape[-1] or query.shape[-1] % 8 or query.shape[-1] > 256:
        return f"widths {query.shape[-1]}, {key.shape[-1]}, {value.shape[-1]}"
    if key.shape[:-1] != value.shape[:-1] or query.shape[:-3] != key.shape[:-3]:
        return "shapes that are broadcast"
    if query.shape[-3] != key.shape[-3] and (not gqa or key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]):
        return "numbers of heads that differ"
    if query.numel() == 0 or key.shape[-2] == 0:
        return "no elements"
    for tensor in (query, key, value):
        if tensor.stride(-1) != 1:
            return "a last dimension that is not dense"
        step = 16 // tensor.element_size() if tensor.is_cuda else 1
        if any(s % step for s, n in zip(tensor.stride()[:-1], tensor.shape) if n > 1):
            return "strides that are no multiples of 16 bytes"
    if mask is not None:
        if causal:
            return "a mask and is_causal"
        if mask.dtype not in (torch.bool, torch.float32, query.dtype) or mask.device != query.device or mask.requires_grad:
            return f"a mask of {mask.dtype} on {mask.device.type}" + (", with a gradient" if mask.requires_grad else "")
        shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        whole = (1,) * (4 - query.dim()) + tuple(query.shape[:-1]) + (key.shape[-2],)
        if mask.dim() > 4 or any(a not in (1, b) for a, b in zip(shape, whole)):
            return "the shape of the mask"
        if mask.is_cuda and shape[-2] > 1 and mask.stride(-2) != 0:
            return "a mask for each query on a GPU"  # where PyTorch takes 0.75 of our time
        ready = mask.dtype == torch.float32 and mask.is_contiguous() and (shape[-1] == 1 or shape[-1] % 4 == 0)
        if not ready and mask.dim() > 2 and mask.shape[-3] > 1 and mask.stride(-3) != 0:
            return "a mask for each head that would be copied"
    return None


def _bias_of(mask):
    """What a mask adds to the scores, float32 in four dimensions, of which those that only repeat stay 1. It is a copy,
    unless the mask is so already; its keys are filled up to a multiple of 4."""
    mask = mask[(None,) * (4 - mask.dim())]
    for axis in range(4):
        if mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    bias = torch.where(mask, 0.0, -math.inf) if mask.dtype == torch.bool else mask
    rest = -bias.shape[-1] % 4 if bias.shape[-1] > 1 else 0
    return torch.nn.functional.pad(bias.float(), (0, rest)).contiguous()


def _why_not_now(*tensors):
    """The same of what may differ from call to call on tensors that are alike, or keeps them from being compared."""
    if any(tensor.is_nested for tensor in tensors):
        return "nested tensors"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "a gradient is wanted"
    if torch.compiler.is_compiling():
        return None
    if tensors[0].is_cuda and any(tensor.data_ptr() % 16 for tensor in tensors):
        return "addresses that are no multiples of 16 bytes"
    allowed = torch.backends.cuda  # which speaks for the cpu too
    if not (allowed.flash_sdp_enabled() or allowed.mem_efficient_sdp_enabled() or allowed.cudnn_sdp_enabled()):
        return "sdpa_kernel(MATH)"
    return None


def _decide(query, key, value, mask, dropout, causal, scale, gqa):
    """_why_not(), once for tensors that are alike."""
    if scale == 0:
        return "a scale of 0"
    if mask is not None and query.shape[-2] <= _few_queries:
        return "a mask over few queries"
    if mask is not None or torch.compiler.is_compiling():
        return _why_not(query, key, value, mask, dropout, causal, gqa)
    alike = (query.shape, query.stride(), query.dtype, query.device, key.shape, key.stride(), key.dtype, key.device,
             value.shape, value.stride(), value.dtype, value.device, dropout, causal, gqa)
    if (why := _decided.get(alike, alike)) is alike:
        why = _why_not(query, key, value, mask, dropout, causal, gqa)
        if len(_decided) < _most_decided:
            _decided[alike] = why
    return why


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """As torch.nn.functional has it."""
    why = _why_not_now(query, key, value) or _decide(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if why is not None:
        if not torch.compiler.is_compiling():
            _reasons[why] += 1
        return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    flat = query.dim() == 3
    if flat:
        query, key, value = query[None], key[None], value[None]
    rows, keys = query.shape[-2], key.shape[-2]
    if is_causal and rows != keys:  # PyTorch's first query stands at the first key, ours the last at the last
        if rows > keys:
            if not torch.compiler.is_compiling():
                _reasons["causal, more queries than keys"] += 1
            o = _original(query, key, value, None, 0.0, True, scale=scale, enable_gqa=enable_gqa)
            return o[0] if flat else o
        key, value = key[:, :, :rows], value[:, :, :rows]
    bias = None if attn_mask is None else _bias_of(attn_mask)
    o = torch.ops.attn.flash(query, key, value, causal=is_causal, scale=scale, bias=bias)
    return o[0] if flat else o


class enable:  # noqa: N801: it reads as a function, and ends as a context manager may
    """Replaces scaled_dot_product_attention from now on; `with enable():` until the block ends."""

    def __init__(self):
        global _depth
        with _lock:
            _depth += 1
            torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention

    def __enter__(self):
        return self

    def __exit__(self, *error):
        global _depth
        with _lock:
            _depth = max(_depth - 1, 0)
            if _depth == 0:
                torch.nn.functional.scaled_dot_product_attention = _original


def disable():
    """Restores PyTorch's own, however often it was replaced."""
    global _depth
    with _lock:
        _depth = 0
        torch.nn.functional.scaled_dot_product_attention = _original


def enabled():
    return torch.nn.functional.scaled_dot_product_attention is scaled_dot_product_attention


def reasons():
    """Why calls went to PyTorch, and how many, since the last reset_reasons(). Compiled code does not count."""
    return dict(_reasons)


def reset_reasons():
    _reasons.clear()
