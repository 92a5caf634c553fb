"""The sides: this project's kernels ("ours") and the peers. clocks.py times a side's run(), which computes a row once
and returns the output."""

import ctypes
import importlib
import importlib.metadata
import math
import pathlib
import sys
import types

from . import Refused
from .clocks import left_out, np, torch
from .work import added, slopes

try:
    import onnx
    import onnxruntime as ort
except ModuleNotFoundError:
    onnx = ort = None  # the side of ONNX Runtime is left out

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/attn_proto"
FLASH_ATTENTION_3 = (("flash_attn_interface", "flash-attn-3"), ("fa3_fwd_interface", "fa3-fwd"),
                     ("flash_attn_interface", "fa3-fwd"))
FLASH_ATTENTION_4 = (("flash_attn.cute", "flash-attn-4"),)


def first_of(result):
    return result[0] if isinstance(result, tuple) else result


class Call:
    """A side that calls a function of tensors. The output is the function's (first) result."""

    def __init__(self, function, *tensors, **options):
        self.function, self.tensors, self.options = function, tensors, options

    def run(self):
        return first_of(self.function(*self.tensors, **self.options))


def by_tokens(function, q, k, v, **options):
    """A side whose function takes and gives tensors [batch, length, heads, head_dim]. Q, K and V, which are
    [batch, heads, length, head_dim], are brought into that order once, before run() is timed."""
    def call(*tensors):
        return first_of(function(*tensors, **options)).transpose(1, 2)

    return Call(call, *(x.transpose(1, 2).contiguous() for x in (q, k, v)))


# ---- ours


def operators():
    """Returns the package attn_proto with PyTorch's operators. Raises Refused if the package does not load."""
    sys.path.insert(0, str(PACKAGE.parent))
    try:
        return importlib.import_module("attn_proto")
    except ImportError as error:
        raise Refused(str(error)) from None


def part_of_package(name):
    """Returns a module of attn_proto without the rest of the package. The whole package would load PyTorch's operators,
    which a build may lack."""
    package = types.ModuleType("attn_proto")
    package.__path__ = [str(PACKAGE)]
    sys.modules.setdefault("attn_proto", package)
    try:
        return importlib.import_module(f"attn_proto.{name}")
    except ImportError as error:
        raise Refused(str(error)) from None


def files():
    return part_of_package("_files")


def dlpack():
    return part_of_package("dlpack")


def on_cpu(threads):
    """Returns attn_proto.dlpack, set up so that its calls on arrays of the CPU run on `threads` threads."""
    package, engine = dlpack(), ctypes.c_void_p()
    package._check(package._lib.attn_open(f"cpu:threads={threads}".encode(), None, ctypes.byref(engine)))
    package._engines["cpu"] = engine
    return package


# ---- packages that may be missing


def version(package):
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def function_of(places, name):
    """Looks for the function `name` in each (module, package) of `places`. Returns the first function found and its
    package with the version, or None and None."""
    for module, package in places:
        try:
            return getattr(importlib.import_module(module), name), f"{package} {importlib.metadata.version(package)}"
        except (ModuleNotFoundError, AttributeError):  # no such module, function or package
            pass
        except Exception as error:  # the module is installed but does not load
            left_out(package, error)
    return None, None


# ---- PyTorch


def cudnn(q, k, v, causal):
    """scaled_dot_product_attention, restricted to the cuDNN backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(*tensors, **options):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, **options)

    return Call(call, q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def sdpa(work, q, k, v):
    """scaled_dot_product_attention, which gets ALiBi and a window as an additive mask. PyTorch's function has no soft
    cap, so `work` must have none."""
    options = {"is_causal": work.causal}
    if work.alibi or work.window is not None:
        options = {"attn_mask": torch.from_numpy(added(work, q.shape[1], q.shape[2]))}
    return Call(torch.nn.functional.scaled_dot_product_attention, q, k, v, **options)


class Compiled(Call):
    """A side that calls a function which PyTorch compiles for the shapes of one row."""

    def __init__(self, function, *tensors, **options):
        torch._dynamo.reset()
        super().__init__(torch.compile(function, dynamic=False), *tensors, **options)


def slopes_like(q):
    return torch.tensor(slopes(q.shape[1]), dtype=torch.float32, device=q.device)


def flex_attention(work, q, k, v):
    """FlexAttention, compiled. It gets ALiBi and the soft cap as a score function, the causal mask and the window as a
    block mask."""
    from torch.nn.attention import flex_attention as flex

    length, slope, cap, window = q.shape[2], slopes_like(q), work.soft_cap, work.window

    def alibi(score, _batch, head, row, key):
        return score + slope[head] * (key - row)

    def soft_cap(score, _batch, _head, _row, _key):
        return cap * torch.tanh(score / cap)

    def both(score, batch, head, row, key):
        return alibi(soft_cap(score, batch, head, row, key), batch, head, row, key)

    def causal(_batch, _head, row, key):
        return row >= key

    def near(_batch, _head, row, key):
        return (row >= key) & (row - key <= window)

    score = {(True, True): both, (True, False): alibi, (False, True): soft_cap}.get((work.alibi, bool(cap)))
    mask = near if window is not None else causal if work.causal else None
    block_mask = flex.create_block_mask(mask, None, None, length, length, device=str(q.device)) if mask else None
    return Compiled(flex.flex_attention, q, k, v, score_mod=score, block_mask=block_mask)


def inductor(work, q, k, v, addend=None):
    """The definition of attention in plain PyTorch, compiled. The tensor `addend` has ALiBi and the mask; without
    `addend` the compiled function computes them."""
    dim, places, slope = q.shape[3], torch.arange(q.shape[2], device=q.device), slopes_like(q)[:, None, None]

    def attention(q, k, v):
        scores = q @ k.transpose(-1, -2) * dim**-0.5
        if work.soft_cap:
            scores = work.soft_cap * torch.tanh(scores.float() / work.soft_cap)
        if addend is not None:
            scores = scores + addend
        else:
            if work.alibi:
                scores = scores + slope * (places - places[:, None])
            if work.causal:
                scores = scores.masked_fill(places > places[:, None], float("-inf"))
        return torch.softmax(scores.float(), -1).to(q.dtype) @ v

    return Compiled(attention, q, k, v)


def compiled_rope(q, k):
    """One compiled function that rotates Q and K (RoPE) with tables of cosines and sines in f32. Element i of a row
    makes a pair with element i + head_dim / 2. run() returns the rotated Q."""
    length, half = q.shape[2], q.shape[3] // 2
    frequencies = 10000 ** (-torch.arange(half, device=q.device, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(length, device=q.device, dtype=torch.float64), frequencies)
    cosines, sines = angles.cos().float(), angles.sin().float()

    def turned(rows):
        x, y = rows.float().chunk(2, -1)
        return torch.cat((x * cosines - y * sines, y * cosines + x * sines), -1).to(rows.dtype)

    return Compiled(lambda q, k: (turned(q), turned(k)), q, k)


# ---- FlashInfer


class FlashInfer:
    """Decoding over a paged cache. q is [batch, 1, heads, head_dim]. `last_page` is the number of tokens on the last
    page of each sequence."""

    def __init__(self, q, k, v, table, last_page):
        import flashinfer
        batch, pages = table.shape
        starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * pages
        rest = torch.full((batch,), last_page, device="cuda", dtype=torch.int32)
        self.workspace = torch.empty(512 << 20, device="cuda", dtype=torch.uint8)
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True, paged_kv_indptr_buffer=starts.clone(),
            paged_kv_indices_buffer=table.flatten().clone(), paged_kv_last_page_len_buffer=rest.clone())
        self.wrapper.plan(starts, table.flatten(), rest, q.shape[2], k.shape[2], q.shape[3], k.shape[1],
                          pos_encoding_mode="NONE", q_data_type=q.dtype, kv_data_type=k.dtype)
        self.run = lambda: self.wrapper.run(q[:, 0], (k, v))[:, None]


# ---- ONNX Runtime


class OnnxRuntime:
    """A graph of ONNX operators in a session of the CPU provider. Inputs and outputs are bound when the session is
    made. The array of a result is [1, heads, n, head_dim], even if the graph's output is [1, n, heads * head_dim]."""

    def __init__(self, nodes, inputs, outputs, threads, heads, constants=()):
        types_of = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int32): onnx.TensorProto.INT32}
        helper = onnx.helper
        graph = helper.make_graph(
            nodes, "attention",
            [helper.make_tensor_value_info(key, types_of[x.dtype], x.shape) for key, x in inputs.items()],
            [helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, shape) for key, shape in outputs.items()],
            [onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in dict(constants).items()])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = ort.SessionOptions()
        session.intra_op_num_threads = threads
        session.inter_op_num_threads = 1
        session.add_session_config_entry("session.set_denormal_as_zero", "1")  # as this project's cpu device does
        session.add_session_config_entry("session.force_spinning_stop", "1")  # no thread spins while the next side runs
        self.session = ort.InferenceSession(model.SerializeToString(), session, providers=["CPUExecutionProvider"])
        self.binding, self.heads = self.session.io_binding(), heads
        self.values = [ort.OrtValue.ortvalue_from_numpy(x) for x in inputs.values()]
        for key, value in zip(inputs, self.values):
            self.binding.bind_ortvalue_input(key, value)
        self.results = [ort.OrtValue.ortvalue_from_numpy(np.full(shape, np.nan, np.float32))
                        for shape in outputs.values()]
        for key, value in zip(outputs, self.results):
            self.binding.bind_ortvalue_output(key, value)

    def run(self):
        self.session.run_with_iobinding(self.binding)
        return self

    def __array__(self, dtype=None, copy=None):
        """Returns the output. Clocks read the output after they have taken the time, because reading may copy it."""
        o = self.results[0].numpy()
        return o if o.ndim == 4 else o.reshape(*o.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)


def rows_of(x):
    """Returns x, [1, heads, n, head_dim], as [1, n, heads * head_dim]."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(1, x.shape[2], -1))


def onnx_multi_head(work, q, k, v, threads, heads_first=False):
    """com.microsoft.MultiHeadAttention, with ALiBi as an additive tensor. The operator gets Q as
    [1, n, heads * head_dim], and K and V as [1, heads, n, head_dim] if `heads_first` is set, else as Q."""
    _, heads, length, dim = q.shape
    inputs = {"q": rows_of(q), "k": k if heads_first else rows_of(k), "v": v if heads_first else rows_of(v)}
    operands = list(inputs)
    if work.alibi:
        operands += ["", "", "bias"]
        inputs["bias"] = added(work._replace(causal=False), heads, length)
    node = onnx.helper.make_node("MultiHeadAttention", operands, ["o"], domain="com.microsoft", num_heads=heads,
                                 unidirectional=int(work.causal))
    return OnnxRuntime([node], inputs, {"o": (1, length, heads * dim)}, threads, heads)


def onnx_grouped_query(work, q, k, v, threads):
    """com.microsoft.GroupQueryAttention. The operator is always causal; it has a soft cap and a window."""
    _, heads, length, dim = q.shape
    inputs = {"q": rows_of(q), "k": rows_of(k), "v": rows_of(v)}
    operands = [*inputs, "", "", "seqlens_k", "total"]
    inputs |= {"seqlens_k": np.array([length - 1], np.int32), "total": np.array([length], np.int32)}
    outputs = {"o": (1, length, heads * dim), **{key: (1, heads, length, dim) for key in ("present_k", "present_v")}}
    options = {"softcap": float(work.soft_cap)} if work.soft_cap else {}
    if work.window is not None:
        options["local_window_size"] = work.window + 1
    node = onnx.helper.make_node("GroupQueryAttention", operands, list(outputs), domain="com.microsoft",
                                 num_heads=heads, kv_num_heads=heads, **options)
    return OnnxRuntime([node], inputs, outputs, threads, heads)


def onnx_definition(work, q, k, v, threads):
    """The definition of attention as a graph of MatMul and Softmax. The session optimises the graph."""
    node = onnx.helper.make_node
    nodes = [node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["products"]),
             node("Mul", ["products", "scale"], ["scores"])]
    score, constants = "scores", {"scale": np.float32(1 / math.sqrt(q.shape[3]))}
    if work.soft_cap:
        constants["cap"] = np.float32(work.soft_cap)
        nodes += [node("Div", [score, "cap"], ["divided"]), node("Tanh", ["divided"], ["tanh"]),
                  node("Mul", ["tanh", "cap"], ["capped"])]
        score = "capped"
    if work.causal or work.alibi:
        constants["added"] = added(work, q.shape[1], q.shape[2])
        nodes.append(node("Add", [score, "added"], ["masked"]))
        score = "masked"
    nodes += [node("Softmax", [score], ["weights"], axis=3), node("MatMul", ["weights", "v"], ["o"])]
    return OnnxRuntime(nodes, {"q": q, "k": k, "v": v}, {"o": q.shape}, threads, q.shape[1], constants)


def onnx_version():
    return ort.__version__ if ort else "(not there)"
