"""The kernels for tensors of any library that speaks DLPack: NumPy, JAX, CuPy. Nothing is copied.

    from attn_proto import dlpack
    o = dlpack.flash(q, k, v, causal=True)

Arrays are [batch, heads, tokens, width], or [batch, tokens, heads, width] with bshd=True; outputs are new arrays of q's
library. Inputs are not written, and may be read-only. JAX's arrays are on the cpu. Errors raise TypeError or ValueError, or
RuntimeError where it is not the arguments' fault.
"""

import ctypes
import operator
import sys
import threading

from attn_proto import _files

_files.find_compiler()


class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_TensorPointer = ctypes.POINTER(Tensor)


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


_tables = ("alibi_slopes", "sinks", "lengths", "documents", "blocks", "bias")


class FlashOptions(ctypes.Structure):
    """attn_flash_options of attn.h."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("layout", ctypes.c_int), ("causal", ctypes.c_int),
                ("scale", ctypes.c_double), ("soft_cap", ctypes.c_int64), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("prefix", ctypes.c_int64), ("global_tokens", ctypes.c_int64),
                ("alibi", ctypes.c_int)] + [(name, _TensorPointer) for name in (*_tables, "lse")]


_lib = ctypes.CDLL(str(_files.library("libattn.so")))
_lib.attn_message.restype = ctypes.c_char_p
if _lib.attn_abi_version() != 1:
    raise ImportError("attn_proto: libattn.so is of another version")
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_engines, _lock = {}, threading.Lock()


def _check(status):
    if status:
        raise (ValueError if status == 1 else RuntimeError)(_lib.attn_message().decode())


def _engine(kind, index):
    spec = "cpu" if kind == 1 else f"cuda:{index}"
    with _lock:
        if spec not in _engines:
            engine = ctypes.c_void_p()
            _check(_lib.attn_open(spec.encode(), None, ctypes.byref(engine)))
            _engines[spec] = engine
        return _engines[spec]


class _Borrowed:
    """An array as a DLTensor, as long as this lives."""

    def __init__(self, name, array):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"attn_proto: {name} is a {type(array).__name__}; arrays that speak DLPack are allowed")
        if not _is_plain(array):
            raise TypeError(f"attn_proto: {name} is a {type(array).__name__} whose memory does not hold its elements; copy them "
                            "into an array")
        if _is_followed(array):
            raise TypeError(f"attn_proto: {name} is traced, or has a forward derivative, and PyTorch does not see this call; "
                            "torch.ops.attn.flash can be traced")
        try:
            self.capsule = array.__dlpack__(max_version=(1, 0))  # without, NumPy hands no read-only array over
        except TypeError:  # a library of before DLPack 1
            self.capsule = array.__dlpack__()
        if _is_valid(self.capsule, b"dltensor_versioned"):
            managed = ctypes.cast(_pointer_of(self.capsule, b"dltensor_versioned"), ctypes.POINTER(Versioned))
            self.tensor = ctypes.pointer(managed.contents.tensor)
        else:
            self.tensor = ctypes.cast(_pointer_of(self.capsule, b"dltensor"), _TensorPointer)  # a DLManagedTensor begins so


def _is_plain(array):
    """Whether an array's elements are what lies at its addresses, which a subclass, as a masked array, may see otherwise."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy and isinstance(array, numpy.ndarray):
        return type(array) in (numpy.ndarray, numpy.memmap)
    if torch and isinstance(array, torch.Tensor):
        return type(array) in (torch.Tensor, torch.nn.Parameter) and not array.is_neg() and not array._is_zerotensor()
    return True


def _is_followed(array):
    """Whether PyTorch records what becomes of an array, and would take the result for memory that nobody writes."""
    torch = sys.modules.get("torch")
    if not torch or not isinstance(array, torch.Tensor):
        return False
    proxies, derivatives = sys.modules.get("torch.fx.experimental.proxy_tensor"), torch.autograd.forward_ad
    return (torch.jit.is_tracing() or proxies is not None and proxies.get_proxy_mode() is not None
            or derivatives._current_level >= 0 and derivatives.unpack_dual(array).tangent is not None)


def _empty_like(array):
    library = type(array).__module__.split(".")[0]
    if library == "numpy":
        return sys.modules[library].empty_like(array, order="C"), lambda o: o
    if library == "cupy":
        with array.device:
            return sys.modules[library].empty_like(array, order="C"), lambda o: o
    if library in ("jax", "jaxlib"):
        import jax
        import numpy

        if array.device.platform != "cpu":
            raise ValueError("attn_proto: arrays of JAX are taken on the cpu; on a GPU CuPy shares their memory")
        return numpy.empty_like(numpy.from_dlpack(array), order="C"), jax.dlpack.from_dlpack
    if hasattr(array, "new_empty"):  # PyTorch's
        return array.new_empty(array.shape), lambda o: o
    raise ValueError(f"attn_proto: no way to make an array of {library}")


def _stream(array, device):
    """That on which the array's library works now; None is the default one."""
    library = type(array).__module__.split(".")[0]
    if device.device_type == 1 or library not in ("cupy", "torch"):
        return None
    if library == "cupy":
        with array.device:
            return ctypes.c_void_p(sys.modules[library].cuda.get_current_stream().ptr)
    return ctypes.c_void_p(sys.modules[library].cuda.current_stream(device.device_id).cuda_stream)


def flash(q, k, v, *, causal=False, scale=None, soft_cap=0, window_left=-1, window_right=-1, prefix=0, global_tokens=0,
          alibi=False, bshd=False, **tables):
    """softmax(scale Q K^T) V. `tables`: alibi_slopes, sinks, lengths, documents, blocks, bias, as attn.h has them."""
    if unknown := ", ".join(tables.keys() - set(_tables)):
        raise TypeError(f"attn_proto: flash() takes no {unknown}; beside its numbers {', '.join(_tables)} are allowed")
    if scale == 0:
        raise ValueError("attn_proto: a scale of 0 is not allowed; None is the usual one")
    numbers = {"soft_cap": soft_cap, "window_left": window_left, "window_right": window_right, "prefix": prefix,
               "global_tokens": global_tokens}
    for name, number in numbers.items():
        if not -2 ** 63 <= operator.index(number) < 2 ** 63:  # which ctypes would cut
            raise ValueError(f"attn_proto: {name} {number} has more than 64 bits")
    arrays = {"q": _Borrowed("q", q), "k": _Borrowed("k", k), "v": _Borrowed("v", v)}
    extra = {name: _Borrowed(name, array) for name, array in tables.items() if array is not None}
    out, finish = _empty_like(q)
    arrays["out"] = _Borrowed("out", out)
    device = arrays["q"].tensor.contents.device
    options = FlashOptions(ctypes.sizeof(FlashOptions), bool(bshd), bool(causal), scale or 0.0,
                           alibi=bool(alibi) or "alibi_slopes" in extra, **numbers,
                           **{name: each.tensor for name, each in extra.items()})
    _check(_lib.attn_flash(_engine(device.device_type, device.device_id), _stream(q, device),
                           *(each.tensor for each in arrays.values()), ctypes.byref(options)))
    return finish(out)
