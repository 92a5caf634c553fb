"""Replaces PyTorch's scaled_dot_product_attention. attn::flash serves the calls that it supports, except some calls
with masks, which PyTorch serves faster. PyTorch serves all other calls."""

import collections
import importlib
import importlib.machinery
import math
import operator
import sys
import threading

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import handle_torch_function, has_torch_function

from attn_proto import _storage

_original = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_reasons = collections.Counter()
_depth = 0
_backends = tuple(backend for backend in ("cpu", "cuda") if torch.ops.attn.has_backend(backend))
_in_memory = (torch.Tensor, torch.nn.Parameter)  # exactly these types: their elements lie at their addresses
_traced = (FakeTensor, FunctionalTensor)  # these have no elements; attn::flash computes the shape of the result
# Calls that run the decoding kernel: the most queries, and the most rows for a key/value head. Then the bytes of which
# addresses and strides on a GPU are multiples, and the magnitudes that a scale may have.
_few_queries, _few_rows, _alignment, *_scales = torch.ops.attn.limits()
_served_scales = "magnitudes from {:.3g} to {:.3g} are served".format(*_scales)
_gpu_row_bytes = 512  # tiles of wider rows may not fit in the threadgroup memory of a GPU
_decided, _most_decided = {}, 4096  # results of _decide(), by the properties of a call on which they depend
watchers = []  # functions that notify_watchers() calls; explain() adds a function


class _Asked(threading.local):
    about = None  # the call that a __torch_function__ is handling now


_asked = _Asked()


def _known(condition):
    """Whether a condition on sizes holds. A trace serves a range of sizes, and keeps the whole range: a condition that
    only a part of the range satisfies counts as false."""
    if not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import

    return statically_known_true(condition)


def _why_not(query, key, value, mask, dropout, causal, gqa, traced):
    """Returns the reason why attn::flash does not take a call, or None if it takes the call. Here are the rules of
    scaled_dot_product_attention, where its calls mean something else than attn::flash's, or nothing; attn::why_not has
    the rules of attn::flash."""
    if query.device.type not in _backends:
        return f"device {query.device.type}; {' and '.join(_backends)} are served"
    if dropout != 0:
        return "dropout"
    if query.dim() not in (3, 4) or key.dim() != query.dim() or value.dim() != query.dim():
        return f"{query.dim()}, {key.dim()}, {value.dim()} dimensions; equal numbers are served: 3 or 4"
    if key.device != query.device or value.device != query.device:
        return "mixed devices"
    if query.shape[-1] > 256:  # on a CPU attn::flash takes wider rows, but decodes them more slowly than PyTorch
        return "widths above 256; up to 256 are served"  # a graph has no number to show
    if query.shape[-3] != key.shape[-3] and not gqa:
        return "numbers of heads that differ; with enable_gqa they are served"
    if query.numel() == 0 or key.shape[-2] == 0:
        return "no elements"
    if causal and not _known(query.shape[-2] <= key.shape[-2]):
        return "causal, more queries than keys"
    if mask is not None:
        if causal:
            return "a mask and is_causal"
        if mask.dtype not in (torch.bool, torch.float32, query.dtype) or mask.device != query.device:
            return f"a mask of {mask.dtype} on {mask.device}; bool, float32 and the query's type are served, on the query's device"
        if not 2 <= mask.dim() <= query.dim():
            return f"a mask of {mask.dim()} dimensions; 2 to {query.dim()} are served"
    if traced:
        return _answer(query.device, (query.dtype, key.dtype, value.dtype), *_numbers(query, key, value, mask))
    with torch._C._DisableTorchDispatch():  # no mode that is active sees this call
        if query.dim() == 3:
            query, key, value = query[None], key[None], value[None]
        if mask is None:
            return torch.ops.attn.why_not(query, key, value)
        return torch.ops.attn.why_not(query, key, value, mask=torch.empty(_in_four(mask.shape, 1), dtype=torch.bool, device="meta"))


@torch.compiler.assume_constant_result
def _answer(device, types, sizes, strides, mask_sizes):
    """Returns the answer of attn::why_not for tensors with these types, sizes and strides."""
    with torch._C._DisableTorchDispatch():
        tensors = [torch.empty_strided(*each, dtype=dtype, device="meta") for *each, dtype in zip(sizes, strides, types)]
        mask = torch.empty(mask_sizes, dtype=torch.bool, device="meta") if mask_sizes else None
        return torch.ops.attn.why_not(*tensors, mask=mask, device=device)


def _in_four(numbers, first):
    return (first,) * (4 - len(numbers)) + tuple(numbers)


def _numbers(query, key, value, mask):
    """Returns sizes and strides of query, key and value, and the sizes of a mask or (), in four dimensions, that stand for
    all calls that a trace serves. Sizes of a range get a number; sizes of one dimension that are equal get the same number.
    The trace serves only heads and widths that are multiples as they are now, and on a GPU only strides with the remainders
    that they have now when divided by the alignment; other strides may vary, and are 0 here."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar, has_static_value  # takes long to import

    def along(*sizes, stand_in=lambda place, size: 251 + place):
        found = []
        for size in sizes:
            equal = [number for other, number in zip(sizes, found) if size == other]
            found.append(equal[0] if equal else guard_scalar(size) if has_static_value(size) else stand_in(len(found), size))
        return found

    def along_heads(query, key, *others):
        heads = along(query, key, *others)
        if heads[0] != heads[1] and not (has_static_value(query) and has_static_value(key)):
            group = heads[1] * 2 + (1 if query % key != 0 else 0)
            heads = [group if number == heads[0] else number for number in heads]
        return heads

    sizes = [_in_four(tensor.shape, 1) for tensor in (query, key, value)]
    masked = () if mask is None else _in_four(mask.shape, 1)
    batch, queries, keys = (along(*each) for each in ([*(size[0] for size in sizes), *masked[:1]], [sizes[0][2], *masked[2:3]],
                                                      [*(size[2] for size in sizes[1:]), *masked[3:]]))
    heads = along_heads(*(size[1] for size in sizes), *masked[1:2])
    widths = along(*(size[3] for size in sizes), stand_in=lambda place, size: 64 + 8 * place + (4 if size % 8 != 0 else 0))
    numbers = list(zip(batch, heads, (queries[0], *keys), widths))
    step = _alignment // query.element_size()
    strides = [_in_four(tensor.stride(), 0) for tensor in (query, key, value)]
    strides = [(*(guard_scalar(s % step) if query.is_cuda else 0 for s in stride[:3]), guard_scalar(stride[3])) for stride in strides]
    return tuple(numbers), tuple(strides), (batch[3], heads[3], queries[1], keys[2]) if masked else ()


def _becomes_bits(mask):
    """Whether attn::flash turns a mask into lists of key blocks and bits. Other masks are added to the scores, in
    float32."""
    return mask.dtype == torch.bool and mask.stride(-2) != 0 and not _known(mask.shape[-2] <= _few_queries)


def _decodes(query, key):
    """Whether a call with few queries runs the decoding kernel. One prepared launch of this kernel serves many
    numbers of keys."""
    rows = query.shape[-3] // key.shape[-3] * query.shape[-2]
    return _known(rows <= _few_rows) and (not query.is_cuda or query.shape[-1] * query.element_size() <= _gpu_row_bytes)


def _why_slower(query, key, mask):
    """Returns the reason why PyTorch serves a call with a mask faster than attn::flash, or None if PyTorch is not
    faster."""
    if _known(query.shape[-2] <= _few_queries):
        return None if _decodes(query, key) else "a mask over few queries"
    if mask.is_cuda and _becomes_bits(mask):
        return None
    if mask.is_cuda and mask.shape[-2] > 1 and mask.stride(-2) != 0:
        return "a float mask for each query on a GPU"  # PyTorch takes 0.75 of attn::flash's time with such a mask
    for_each_head = mask.dim() > 2 and mask.shape[-3] > 1 and mask.stride(-3) != 0
    if for_each_head and not (mask.dtype == torch.float32 and mask.is_contiguous() and
                              (mask.shape[-1] == 1 or _known(mask.shape[-1] % 4 == 0))):
        return "a mask for each head that would be copied"
    return None


def _strides_stay():
    """Whether tensors of later calls have the strides that are seen now. torch.compile checks strides again; the graphs
    of torch.export and make_fx serve all strides."""
    return not torch.compiler.is_exporting() if torch.compiler.is_compiling() else get_proxy_mode() is None


def _check_storage(name, tensor):
    """Raises ValueError if an operation of PyTorch on the tensor would read beyond the end of the tensor's storage. The
    tensors of a trace or of a transform of torch.func, and sparse tensors, have no storage to look at."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or type(tensor) not in _in_memory:
        return
    if torch._C._functorch.maybe_current_level() is None and tensor.layout == torch.strided:
        _storage.check(name, tensor)


def _bias_of(mask):
    """Returns the values that a mask adds to the scores, float32 in four dimensions. Dimensions along which the mask
    only repeats have size 1. Keys are padded to a multiple of 4. The result is a copy, unless the mask already has this
    form."""
    _check_storage("the mask", mask)
    mask = mask[(None,) * (4 - mask.dim())]
    if _strides_stay():
        for axis in range(4):
            if mask.stride(axis) == 0:
                mask = mask.narrow(axis, 0, 1)
    mask = torch.where(mask, 0.0, -math.inf) if mask.dtype == torch.bool else mask
    rest = -mask.shape[-1] % 4 if mask.shape[-1] > 1 else 0
    if torch.compiler.is_compiling() or get_proxy_mode() is not None or type(mask) not in _in_memory:
        # Not contiguous(), which leaves nothing in the graph if this mask is contiguous; a later mask may not be.
        return torch.nn.functional.pad(mask.float(), (0, rest)).clone(memory_format=torch.contiguous_format)
    if mask.dtype == torch.float32 and rest == 0 and mask.is_contiguous() and mask.data_ptr() % 16 == 0:
        return mask
    bias = mask.new_empty((*mask.shape[:3], mask.shape[3] + rest), dtype=torch.float32)
    bias[..., :mask.shape[3]] = mask  # type and order of dimensions change in one pass
    return bias


def mask_options(mask):
    """The options of attn::flash for a mask of scaled_dot_product_attention, or for no mask."""
    if mask is None:
        return {}
    return {"mask": mask[(None,) * (4 - mask.dim())]} if _becomes_bits(mask) else {"bias": _bias_of(mask)}


def _why_not_now(*tensors):
    """Returns a reason why attn::flash does not take a call, or None. Unlike _why_not()'s reasons, these reasons need
    not hold for later calls with equal shapes, strides and types."""
    for tensor in tensors:
        if tensor.is_nested:
            return "nested tensors"
        if tensor.layout != torch.strided:
            return f"layout {tensor.layout}"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "a gradient is wanted"
    if torch.compiler.is_compiling():
        return None
    if torch.jit.is_tracing():  # the graph would keep decisions made from these sizes and strides for all tensors
        return "torch.jit.trace"
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return "a transform of torch.func, or forward derivatives"
    if any(tensor.is_cuda and type(tensor) in _in_memory and tensor.data_ptr() % _alignment for tensor in tensors[:3]):
        return f"addresses that are no multiples of {_alignment} bytes"
    allowed = torch.backends.cuda  # the flags of this module hold for the CPU too
    if not (allowed.flash_sdp_enabled() or allowed.mem_efficient_sdp_enabled() or allowed.cudnn_sdp_enabled()):
        return "sdpa_kernel(MATH)"
    return None


@torch.compiler.assume_constant_result  # a trace may take a number of a module for one that varies
def _limit_of_scale(which):
    return _scales[which]


def _decide(query, key, value, mask, dropout, causal, scale, gqa, compared=True):
    """Returns the reason why attn::flash does not take a call, or None if it takes the call. With `compared` a reason may
    be that PyTorch is faster. Outside of traces, the result is kept for later calls with equal shapes, strides and types."""
    if scale is not None and not _limit_of_scale(0) <= abs(scale) <= _limit_of_scale(1):
        given = "this scale" if torch.compiler.is_compiling() else f"a scale of {scale}"  # a graph has no number to show
        return f"{given}; {_served_scales}"
    traced = torch.compiler.is_compiling() or any(type(x) in _traced for x in (query, key, value, mask))
    if not traced:
        alike = (query.shape, query.stride(), query.dtype, query.device, key.shape, key.stride(), key.dtype, key.device,
                 value.shape, value.stride(), value.dtype, value.device, dropout, causal, gqa,
                 None if mask is None else (mask.shape, mask.stride(), mask.dtype, mask.device, compared))
        if (why := _decided.get(alike, alike)) is not alike:
            return why
    why = _why_not(query, key, value, mask, dropout, causal, gqa, traced)
    if why is None and mask is not None and compared:
        why = _why_slower(query, key, mask)
    if not traced:
        if len(_decided) >= _most_decided:
            _decided.clear()
        _decided[alike] = why
    return why


def _under_autocast(tensors, names=("query", "key", "value", "attn_mask")):
    """The tensors as torch.autocast hands them to scaled_dot_product_attention: the mask changes its type too."""
    kind = tensors[0].device.type
    if kind not in _backends or not torch.is_autocast_enabled(kind):
        return tensors
    dtype, cast = torch.get_autocast_dtype(kind), []
    for name, tensor in zip(names, tensors):
        if tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == kind:
            _check_storage(name, tensor)
            tensor = tensor.to(dtype)
        cast.append(tensor)
    return cast


def count(why):
    """Counts a call that goes to PyTorch."""
    with _lock:
        _reasons[why] += 1


def notify_watchers(module, query, key, mask, why):
    """Tells the watchers about a call. module: the module of transformers that makes the call, or None. why: the reason
    why the call goes to PyTorch, or None if attn::flash serves the call."""
    if not torch.compiler.is_compiling():
        for watch in watchers:
            watch(module, query, key, mask, why)


def _hand_back(why, *arguments, **options):
    """Counts the reason, and calls PyTorch's function."""
    if not torch.compiler.is_compiling():
        count(why)
    notify_watchers(None, arguments[0], arguments[1], arguments[3], why)
    return _original(*arguments, **options)


class _NotKnown(BaseException):
    """_ask() gives a call to a __torch_function__. If the __torch_function__ calls the drop-in with the same arguments,
    the drop-in raises this error. _ask() then calls PyTorch's function."""


def _ask(tensors, call, **options):
    """Gives a call to the __torch_function__ of a subclass of Tensor, a proxy or a mode, and returns the result. A
    subclass may have a table of the functions that it knows. A table made before enable() lacks the drop-in; a subclass
    with such a table is called again with PyTorch's function."""
    if torch.compiler.is_compiling():
        return handle_torch_function(scaled_dot_product_attention, tensors, *call, **options)
    before, _asked.about = _asked.about, (*call, *options.values())
    try:
        return handle_torch_function(scaled_dot_product_attention, tensors, *call, **options)
    except _NotKnown as error:
        why = str(error)
    except TypeError as error:  # every __torch_function__ returned NotImplemented
        if not str(error).startswith(f"no implementation found for '{__name__}."):
            raise
        why = "tensors that do not know the drop-in"
    finally:
        _asked.about = before
    return _hand_back(why, *call, **options)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
                                 enable_gqa=False):
    """Takes the arguments and gives the result of torch.nn.functional.scaled_dot_product_attention."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    # Outside of a trace has_torch_function() decides alone; a trace of torch.compile needs the second condition too.
    if has_torch_function(tensors) and (torch._C._is_torch_function_enabled() or not torch.compiler.is_compiling()):
        return _ask(tensors, (query, key, value, attn_mask, dropout_p, is_causal), scale=scale, enable_gqa=enable_gqa)
    for tensor in tensors:
        if type(tensor) not in _in_memory and type(tensor) not in _traced:
            why = f"a {type(tensor).__name__}"
            call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if not torch.compiler.is_compiling() and _asked.about and all(map(operator.is_, call, _asked.about)):
                raise _NotKnown(why)
            return _hand_back(why, *call[:6], scale=scale, enable_gqa=enable_gqa)
    why = _why_not_now(*tensors)
    if why is None:
        query, key, value, *mask = _under_autocast(tensors)
        attn_mask = mask[0] if mask else None
        why = _decide(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if why is not None:
        return _hand_back(why, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    flat = query.dim() == 3
    if flat:
        query, key, value = query[None], key[None], value[None]
    rows = query.shape[-2]
    # With a causal mask PyTorch aligns the first query with the first key, and attn::flash aligns the last query with
    # the last key.
    if is_causal and not _known(rows == key.shape[-2]):
        key, value = key[:, :, :rows], value[:, :, :rows]
    notify_watchers(None, query, key, attn_mask, None)
    o = torch.ops.attn.flash(query, key, value, causal=is_causal, scale=scale, **mask_options(attn_mask))
    return o[0] if flat else o


# torch.jit.script compiles a call of the drop-in as a call of PyTorch's own function.
torch.jit._builtins._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")


_modeling = "transformers.modeling_utils"  # every model of transformers imports this module


def _register():
    """Imports attn_proto.transformers, which registers attn_implementation="attn_proto"."""
    try:
        importlib.import_module("attn_proto.transformers")
    except ImportError:  # the transformers that is installed is too old to register an implementation
        pass


class _RegistersLater:
    """A finder of modules that runs _register() after the first import of transformers. Importing transformers takes
    seconds, so a program that does not use transformers should not import it."""

    def find_spec(self, name, path=None, target=None):
        if name != _modeling:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module):
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        spec.loader.exec_module = run_and_register
        return spec


def _register_with_transformers():
    if _modeling in sys.modules:
        _register()
    elif not any(isinstance(finder, _RegistersLater) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegistersLater())


class enable:  # noqa: N801: a class, so that enable() works as a call and in a with statement
    """Puts the drop-in in place of PyTorch's function from now on, or until the end of the block of `with enable():`.
    Also registers attn_implementation="attn_proto" with transformers, now or when the program imports transformers."""

    def __init__(self):
        global _depth
        _register_with_transformers()
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
    """Restores PyTorch's own function after any number of enable()."""
    global _depth
    with _lock:
        _depth = 0
        torch.nn.functional.scaled_dot_product_attention = _original


def enabled():
    return torch.nn.functional.scaled_dot_product_attention is scaled_dot_product_attention


def reasons():
    """The reasons why calls went to PyTorch, each with the number of calls since the last reset_reasons(). Most reasons
    that name numbers or types also say, after a semicolon, which ones the kernels serve. Calls in compiled code do not
    count."""
    return dict(_reasons)


def reset_reasons():
    _reasons.clear()
