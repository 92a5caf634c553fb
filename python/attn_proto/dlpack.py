"""The kernels for tensors of any library that supports DLPack: NumPy, JAX, CuPy. Arrays are passed without a copy.

    from attn_proto import dlpack
    o = dlpack.flash(q, k, v, causal=True)

Arrays are [batch, heads, tokens, width], or [batch, tokens, heads, width] with bshd=True; outputs are new arrays of q's
library. Inputs are not written, and may be read-only, except a cache that a call appends to. JAX's arrays must be on
the CPU. Options have the names and meanings of attn.h and fill its structs of options. Layouts are given as bshd and
cache_bshd. A scale of None means the default of attn.h. Errors in arguments raise TypeError or ValueError, other errors
RuntimeError.
"""

import ctypes
import inspect
import operator
import sys
import threading

from attn_proto import _files, _options, _storage

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


_types = {"attn_layout": ctypes.c_int, "attn_rope_scaling": ctypes.c_int, "bool": ctypes.c_int, "int64_t": ctypes.c_int64,
          "double": ctypes.c_double, "scale": ctypes.c_double, "const char*": ctypes.c_char_p,
          "const DLTensor*": _TensorPointer, "output": _TensorPointer}


def _struct(name, fields):
    """The ctypes class of a struct of options of attn.h."""
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_bytes", ctypes.c_size_t),
                                                         *((field, _types[kind]) for field, kind, _ in fields)]})


FlashOptions = _struct("attn_flash_options", _options.FLASH)
CacheOptions = _struct("attn_cache_options", _options.CACHE)
LinearOptions = _struct("attn_linear_options", _options.LINEAR)
RopeOptions = _struct("attn_rope_options", _options.ROPE)

_lib = ctypes.CDLL(str(_files.library("libattn.so")))
_lib.attn_message.restype = _lib.attn_why_not.restype = ctypes.c_char_p
_lib.attn_prepared.restype, _lib.attn_launches.restype = ctypes.c_size_t, ctypes.c_uint64
if _lib.attn_abi_version() != 1:
    raise ImportError("attn_proto: libattn.so and this package differ in version; install both from one source tree")
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
    """An array as a DLTensor. The DLTensor is valid while this object exists."""

    def __init__(self, name, array, written=False):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"attn_proto: {name} is a {type(array).__name__}; arrays that support DLPack are allowed")
        if not _is_plain(array):
            raise TypeError(f"attn_proto: {name} is a {type(array).__name__} whose memory does not hold its elements; copy the "
                            "elements into an array")
        if _is_followed(array):
            raise TypeError(f"attn_proto: {name} is traced, or has a forward derivative, and PyTorch does not see this call; "
                            "torch.ops.attn can be traced")
        if _library(array) == "torch":
            _storage.check(name, array)
        bits, dtype = _beyond_numpy(array)
        array = array if bits is None else array.view(bits)
        try:
            self.capsule = array.__dlpack__(max_version=(1, 0))  # without max_version NumPy refuses read-only arrays
        except TypeError:  # a library older than DLPack 1
            self.capsule = array.__dlpack__()
        if _is_valid(self.capsule, b"dltensor_versioned"):
            managed = ctypes.cast(_pointer_of(self.capsule, b"dltensor_versioned"), ctypes.POINTER(Versioned))
            if managed.contents.major != 1:  # the fields after the version may be others
                raise TypeError(f"attn_proto: {name} is a {type(array).__name__} that hands out version {managed.contents.major} of "
                                "DLPack; version 1 is allowed, and DLPack without a version")
            self.tensor = ctypes.pointer(managed.contents.tensor)
            read_only = managed.contents.flags & 1
        else:
            read_only = False
            # A DLManagedTensor begins with its DLTensor.
            self.tensor = ctypes.cast(_pointer_of(self.capsule, b"dltensor"), _TensorPointer)
        if dtype is not None:
            self.tensor.contents.dtype = dtype
        if written and (read_only or _library(array) == "jax"):
            raise ValueError(f"attn_proto: the call writes {name}, but {name} is read-only")


def _library(array):
    name = type(array).__module__.split(".")[0]
    return "jax" if name == "jaxlib" else name


def _is_plain(array):
    """Whether an array's elements lie at its addresses. The elements of a subclass, such as a masked array, may lie
    elsewhere."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy and isinstance(array, numpy.ndarray):
        return type(array) in (numpy.ndarray, numpy.memmap)
    if torch and isinstance(array, torch.Tensor):
        return type(array) in (torch.Tensor, torch.nn.Parameter) and not array.is_neg() and not array._is_zerotensor()
    return True


def _is_followed(array):
    """Whether PyTorch records the operations on an array, for a trace or for a forward derivative. PyTorch does not see
    a call of this module, so a trace would return memory that nobody writes."""
    torch = sys.modules.get("torch")
    if not torch or not isinstance(array, torch.Tensor):
        return False
    proxies, derivatives = sys.modules.get("torch.fx.experimental.proxy_tensor"), torch.autograd.forward_ad
    return (torch.jit.is_tracing() or proxies is not None and proxies.get_proxy_mode() is not None
            or derivatives._current_level >= 0 and derivatives.unpack_dual(array).tangent is not None)


def _beyond_numpy(array):
    """For an array of NumPy whose type is of the package ml_dtypes, which NumPy's DLPack lacks: the name of a type of
    NumPy with as many bits, and the type in DLPack. Else None, None."""
    if _library(array) == "numpy" and array.dtype.kind == "V":
        return {"bfloat16": ("uint16", DataType(4, 16, 1)),
                "float8_e4m3fn": ("uint8", DataType(10, 8, 1))}.get(array.dtype.name, (None, None))
    return None, None


def _empty(like, shape, single=False):
    """Returns a new dense array, and a function that turns the array into the caller's result after the array is
    written. The array has the library and device of the array `like`, and the type of `like`, or float32 if `single` is
    set."""
    library = _library(like)
    if library == "numpy":
        return sys.modules[library].empty(shape, "float32" if single else like.dtype), lambda o: o
    if library == "cupy":
        with like.device:
            return sys.modules[library].empty(shape, "float32" if single else like.dtype), lambda o: o
    if library == "jax":
        import jax
        import numpy

        if like.device.platform != "cpu":
            raise ValueError("attn_proto: arrays of JAX must be on the cpu; on a GPU use CuPy arrays that share their "
                             "memory")
        return numpy.empty(shape, "float32" if single else like.dtype), lambda o: jax.device_put(o, like.device)
    if hasattr(like, "new_empty"):  # a tensor of PyTorch
        return like.new_empty(shape, dtype=sys.modules["torch"].float32 if single else like.dtype), lambda o: o
    raise ValueError(f"attn_proto: arrays of {library} are not supported: there is no way to make a new array")


def _stream(array, device):
    """The stream on which the array's library works now; None means the default stream."""
    library = _library(array)
    if device.device_type == 1 or library not in ("cupy", "torch"):
        return None
    if library == "cupy":
        with array.device:
            return ctypes.c_void_p(sys.modules[library].cuda.get_current_stream().ptr)
    return ctypes.c_void_p(sys.modules[library].cuda.current_stream(device.device_id).cuda_stream)


# ---- options


def _whole(name, number):
    if not -2 ** 63 <= operator.index(number) < 2 ** 63:  # ctypes would cut off further bits
        raise ValueError(f"attn_proto: {name} {number} has more than 64 bits")
    return operator.index(number)


def _scale(name, scale):
    if scale == 0:
        raise ValueError("attn_proto: a scale of 0 is not allowed; None is the usual one")
    return 0.0 if scale is None else float(scale)


def _scaling(name, scaling):
    names = ("none", "linear", "ntk", "yarn", "llama3")
    if scaling not in names:
        raise ValueError(f"attn_proto: {name} {scaling!r} is not allowed; allowed are {', '.join(map(repr, names))}")
    return names.index(scaling)


_read = {"attn_layout": lambda name, value: bool(value), "bool": lambda name, value: bool(value), "int64_t": _whole,
         "double": lambda name, value: float(value), "scale": _scale, "attn_rope_scaling": _scaling,
         "const char*": lambda name, value: value if value is None else str(value).encode()}
_python_names = {"layout": "bshd", "cache_layout": "cache_bshd"}
_python_values = {"attn_layout": lambda off: bool(off), "bool": lambda off: bool(off), "scale": lambda off: None,
                  "attn_rope_scaling": lambda off: "none"}


class _Options:
    """The options of a call. `struct` is the struct of attn.h; it points to the tensors in `arrays`."""

    def __init__(self, function, struct, fields, given):
        known = {_python_names.get(name, name): (name, kind) for name, kind, _ in fields if kind != "output"}
        if unknown := ", ".join(given.keys() - known.keys()):
            raise TypeError(f"attn_proto: {function}() takes no {unknown}; {', '.join(known)} are allowed")
        self.struct = struct(ctypes.sizeof(struct), **{name: off for name, _, off in fields if off is not None})
        self.arrays = {}
        for python_name, value in given.items():
            name, kind = known[python_name]
            if kind != "const DLTensor*":
                setattr(self.struct, name, _read[kind](python_name, value))
            elif value is not None:
                self.borrow(name, value)
        if "alibi_slopes" in self.arrays:
            self.struct.alibi = True

    def borrow(self, name, array):
        self.arrays[name] = _Borrowed(name, array)
        setattr(self.struct, name, self.arrays[name].tensor)


def _takes(fields, *without):
    """A decorator that adds options of attn.h to a function's signature, so that help() lists the options."""

    def described(function):
        own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
        names = {each.name for each in own} | set(without)
        options = [inspect.Parameter(_python_names.get(name, name), inspect.Parameter.KEYWORD_ONLY,
                                     default=_python_values.get(kind, lambda off: off)(off))
                   for name, kind, off in fields if kind != "output" and _python_names.get(name, name) not in names]
        function.__signature__ = inspect.Signature(sorted(own + options, key=lambda each: each.kind))
        return function

    return described


def _call(function, like, tensors, options):
    """Calls a function of attn.h; tensors that are None become null pointers."""
    device = next(each for each in tensors if each is not None).tensor.contents.device
    _check(function(_engine(device.device_type, device.device_id), _stream(like, device),
                    *(None if each is None else each.tensor for each in tensors), ctypes.byref(options.struct)))


# ---- operators


def _attend(function, q, k, v, options, written, with_lse, bshd):
    tensors = [_Borrowed("q", q), _Borrowed("k", k, written), _Borrowed("v", v, written)]
    out, finish = _empty(q, q.shape)
    tensors.append(_Borrowed("out", out))
    if with_lse and len(q.shape) == 4:  # the call refuses another number of dimensions
        lse, _ = _empty(q, (q.shape[0], q.shape[2 if bshd else 1], q.shape[1 if bshd else 2]), single=True)
        options.borrow("lse", lse)
    _call(function, q, tensors, options)
    return (finish(out), finish(lse)) if with_lse else finish(out)


@_takes(_options.FLASH)
def flash(q, k, v, *, with_lse=False, **options):
    """softmax(scale Q K^T) V, with the modifiers of attn_flash_options; with_lse also returns the natural log of the
    softmax's denominator, float32 [batch, q_heads, q_len]. alibi_slopes turn alibi on."""
    read = _Options("flash", FlashOptions, _options.FLASH, options)
    return _attend(_lib.attn_flash, q, k, v, read, False, with_lse, read.struct.layout)


def _over_cache(name, function, q, k_cache, v_cache, with_lse, options):
    read = _Options(name, CacheOptions, _options.CACHE, options)
    return _attend(function, q, k_cache, v_cache, read, "new_k" in read.arrays, with_lse, read.struct.layout)


@_takes(_options.CACHE)
def decode(q, k_cache, v_cache, lengths, table=None, *, with_lse=False, **options):
    """Attention of up to 16 new queries for each sequence (64 with a tree), over a cache. The cache is on pages if
    there is a table, else it is contiguous. new_k and new_v, if given, are written into the cache first. With cosines
    and sines, new_k and the queries are rotated. soft_cap, window_left, alibi, alibi_slopes, sinks and with_lse are as
    in flash(). starts, int32 [batch], has for each sequence its first key that is not padding. tree, int64 [batch,
    q_len], says which new tokens a new token sees: bit i of a token's word is set if the token sees new token i. A
    cache of 8 bits has k_scales and v_scales, float32 [pages or batch, kv_heads]. New tokens of such a cache have q's
    type; they are divided by the scales, and rounded."""
    return _over_cache("decode", _lib.attn_decode, q, k_cache, v_cache, with_lse, {**options, "lengths": lengths, "table": table})


@_takes(_options.CACHE)
def prefill(q, k_cache, v_cache, lengths, table=None, *, with_lse=False, **options):
    """Like decode(), for prompts with any number of new queries."""
    return _over_cache("prefill", _lib.attn_prefill, q, k_cache, v_cache, with_lse, {**options, "lengths": lengths, "table": table})


def check_cache(k_cache, lengths, table=None, *, new_k=None, k_scales=None, v_scales=None, window_left=-1, starts=None,
                bshd=False, cache_bshd=False):
    """Raises ValueError if a length or a page number leads outside the cache. With new_k, also raises ValueError if a
    page gets tokens through two entries of the table, or if another sequence sees a slot that gets a token; window_left
    and starts say which tokens a sequence sees. With k_scales and v_scales too, raises ValueError if a page that gets
    tokens has a scale that is not allowed. decode() and prefill() make these checks themselves on a CPU, but not on a
    GPU. On a GPU check_cache() waits for the stream."""
    options = _Options("check_cache", CacheOptions, _options.CACHE,
                       {"lengths": lengths, "table": table, "new_k": new_k, "k_scales": k_scales, "v_scales": v_scales,
                        "window_left": window_left, "starts": starts, "bshd": bshd, "cache_bshd": cache_bshd})
    _call(_lib.attn_check_cache, k_cache, [_Borrowed("k", k_cache)], options)


@_takes(_options.LINEAR)
def linear(q, k, v, gate=None, initial_state=None, **options):
    """Linear attention. Returns the outputs, and the final state, float32 [batch, heads, width, value width]."""
    read = _Options("linear", LinearOptions, _options.LINEAR, {**options, "gate": gate, "initial_state": initial_state})
    tensors = [_Borrowed("q", q), _Borrowed("k", k), _Borrowed("v", v)]
    out, finish = _empty(q, v.shape)
    sizes = ()  # the call refuses q and v with another number of dimensions than 4
    if len(q.shape) == len(v.shape) == 4:
        sizes = q.shape[0], q.shape[2 if read.struct.layout else 1], q.shape[3], v.shape[3]
    state, _ = _empty(q, sizes, single=True)
    tensors.append(_Borrowed("out", out))
    read.borrow("final_state", state)
    _call(_lib.attn_linear, q, tensors, read)
    return finish(out), finish(state)


@_takes(_options.ROPE)
def rope(q, k=None, offsets=None, **options):
    """Rotary position embedding. Returns q and k rotated, or only q if there is no k."""
    read = _Options("rope", RopeOptions, _options.ROPE, {**options, "offsets": offsets})
    arrays = {"q": q, "k": k} if k is not None else {"q": q}
    tensors = {name: _Borrowed(name, array) for name, array in arrays.items()}
    turned = {name: _empty(array, array.shape) for name, array in arrays.items()}
    tensors.update({f"{name}_out": _Borrowed(f"{name}_out", out) for name, (out, _) in turned.items()})
    _call(_lib.attn_rope, q, [tensors.get(name) for name in ("q", "k", "q_out", "k_out")], read)
    results = tuple(finish(out) for out, finish in turned.values())
    return results if k is not None else results[0]


_structs = {"flash": (FlashOptions, _options.FLASH), "decode": (CacheOptions, _options.CACHE), "prefill": (CacheOptions, _options.CACHE),
            "linear": (LinearOptions, _options.LINEAR), "rope": (RopeOptions, _options.ROPE)}  # in the order of attn_operation


def why_not(operation, q, k=None, v=None, **options):
    """Returns in one line why flash(), decode(), prefill(), linear() or rope(), whose name is `operation`, refuses a call
    with these arguments, or None if it serves the call (attn_why_not). For decode() and prefill() k and v are the caches.
    Reads no array; values of tables are not checked."""
    if operation not in _structs:
        raise ValueError(f"attn_proto: operation {operation!r} is not allowed; allowed are {', '.join(_structs)}")
    read = _Options(operation, *_structs[operation], options)
    borrowed = [None if each is None else _Borrowed(name, each) for name, each in (("q", q), ("k", k), ("v", v))]
    tensors = [None if each is None else each.tensor for each in borrowed]
    device = tensors[0].contents.device
    why = _lib.attn_why_not(_engine(device.device_type, device.device_id), list(_structs).index(operation), *tensors, None,
                            ctypes.byref(read.struct))
    return why and why.decode()


def _engine_and_stream(like):
    borrowed = _Borrowed("like", like)
    device = borrowed.tensor.contents.device
    return _engine(device.device_type, device.device_id), _stream(like, device)


def empty(like):
    """Launches a kernel that does nothing on the device of an array, to measure the cost of a call."""
    _check(_lib.attn_empty(*_engine_and_stream(like)))


def prepared(like):
    """The number of configurations with prepared launches on the device of an array."""
    return _lib.attn_prepared(_engine_and_stream(like)[0])


def launches(like):
    """The number of calls of attention that the engine has launched on the device of an array (attn_launches)."""
    return _lib.attn_launches(_engine_and_stream(like)[0])


def save_archive(like, path):
    """Writes all kernels that this process has loaded for the device of an array into one file (attn_save_archive)."""
    _check(_lib.attn_save_archive(_engine_and_stream(like)[0], str(path).encode()))


def has_backend(name):
    """Whether the library has the backend "cpu" or "cuda". Even if it has, the machine may lack the device."""
    return bool(_lib.attn_has_backend(str(name).encode()))
