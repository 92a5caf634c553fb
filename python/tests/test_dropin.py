"""The drop-in for scaled_dot_product_attention. reports.py has more tests of it."""

import itertools
import math
import re
import unittest
import unittest.mock

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

import attn_proto
from test_operators import DEVICES, TOLERANCE, drawn, in_threads, shortened, table_of

original = F.scaled_dot_product_attention


class Case(unittest.TestCase):
    def setUp(self):
        attn_proto.reset_reasons()
        torch._dynamo.reset()
        self.addCleanup(attn_proto.disable)

    def near(self, got, want, bound=2e-5):
        self.assertLess((got - want).abs().max().item(), bound if got.device.type == "cpu" else 50 * bound)


class DropIn(Case):

    def test_several_threads(self):
        """Each thread enables the drop-in, calls attention and leaves the block; the last thread restores PyTorch's
        function. Every call that goes to PyTorch is counted."""
        served, given_back = (drawn(1, 2, 20, width, device=DEVICES[0]) for width in (64, 63))
        tolerance = 1e-5 if DEVICES[0] == "cpu" else 1e-3
        want = [F.scaled_dot_product_attention(x, x, x) for x in (served, given_back)]
        attn_proto.reset_reasons()
        wrong = []

        def run():
            for _ in range(50):
                with attn_proto.enable():
                    got = [F.scaled_dot_product_attention(x, x, x) for x in (served, given_back)]
                    if F.scaled_dot_product_attention is original:
                        wrong.append("not enabled")
                wrong.extend("differs" for a, b in zip(got, want) if not torch.allclose(a, b, atol=tolerance))

        in_threads([run] * 4)
        self.assertEqual(wrong, [])
        self.assertIs(F.scaled_dot_product_attention, original)
        self.assertEqual(list(attn_proto.reasons().values()), [200])

    def compare(self, served, *tensors, tolerance=2e-5, **options):
        """If the call is served, compares the result with the definition, because PyTorch's kernels differ from one
        another in rows without a key. If the call goes to PyTorch, compares the result, or the error, with PyTorch's
        own."""
        mask = options.get("attn_mask")
        rows = tensors[0].shape[-2]
        for_each_query = mask is not None and mask.dim() > 1 and mask.shape[-2] > 1 and mask.stride(-2) != 0
        if for_each_query and mask.is_cuda and rows > 16 and mask.dtype != torch.bool:
            served = False  # on a GPU, a mask for each of more than 16 queries is served only if it is boolean
        attn_proto.reset_reasons()
        try:
            with attn_proto.enable():
                got = F.scaled_dot_product_attention(*tensors, **options)
        except (RuntimeError, IndexError) as error:
            self.assertFalse(served, error)
            with self.assertRaisesRegex(type(error), re.escape(str(error))):
                original(*tensors, **options)
            return
        self.assertEqual(served, not attn_proto.reasons(), attn_proto.reasons())
        if served:
            in_floats = {**options, "attn_mask": mask.float()} if mask is not None and mask.dtype != torch.bool else options
            with sdpa_kernel(SDPBackend.MATH):
                want = original(*(x.float() for x in tensors), **in_floats)
        else:
            want = original(*tensors, **options)
        self.assertEqual((got.shape, got.dtype), (want.shape, tensors[0].dtype))
        if got.is_meta:
            return
        bound = (5 if got.is_cuda else 1) * tolerance
        self.assertTrue(torch.allclose(got.to(want.dtype), want, rtol=0, atol=bound, equal_nan=not served))

    def test_cases_of_scaled_dot_product_attention(self):
        """Inputs like those of PyTorch's own operator tests."""
        shapes = (3, 6, 8), (3, 3, 8), (40, 40, 64), (1, 90, 64), (90, 40, 32), (5, 200, 128), (33, 75, 64)
        for device, (rows, keys, width) in itertools.product(DEVICES, shapes):
            for lead, causal, scale in itertools.product(((), (4,), (4, 4), (2, 3, 4)), (False, True), (None, 0.4)):
                tensors = [drawn(*lead, n, width, device=device) for n in (rows, keys, keys)]
                self.compare(len(lead) in (1, 2) and not (causal and rows > keys), *tensors, is_causal=causal, scale=scale)
            tensors = [drawn(2, 4, n, width, device=device) for n in (rows, keys, keys)]
            few = rows <= 16  # then the decoding kernel serves the call
            for shape in ((rows, keys), (4, rows, keys), (2, 1, rows, keys), (2, 1, 1, keys), (rows, 1)):
                mask = drawn(*shape, device=device)
                each_head = shape[0] == 4
                self.compare(few or rows > 16 and not (each_head and keys % 4), *tensors, attn_mask=mask)
                # On a GPU the kernels also take a boolean mask for each head.
                self.compare(few or rows > 16 and (device != "cpu" or not each_head), *tensors, attn_mask=mask > -1.5)
            self.compare(True, drawn(2, 4, rows, width, device=device), *(drawn(2, 2, keys, width, device=device),) * 2, enable_gqa=True)

    def test_masks(self):
        """Masks with many kinds of strides, made anew for each call; no call goes to PyTorch. Rows without a key are 0."""
        for device, (dtype, tolerance) in itertools.product(DEVICES, TOLERANCE.items()):
            for rows, keys in ((150, 300), (257, 129)):
                q, k, v = (drawn(2, 7, n, 64, device=device, dtype=dtype) for n in (rows, keys, keys))
                own, key = torch.arange(rows, device=device)[:, None], torch.arange(keys, device=device)
                half = drawn(2, 1, rows, keys, device=device) > 0
                few = half.clone()
                few[0, 0, 3], few[1, 0, 40:], few[:, :, :, :9] = False, False, False
                for mask in (half, few, half[:1, 0], half[0, 0], half[..., :1].expand(2, 7, rows, keys), half.mT.contiguous().mT,
                             half.expand(2, 7, rows, keys), (drawn(2, 1, keys, 2 * rows, device=device) > 0)[:, :, :, ::2].mT,
                             (drawn(rows, keys + 9, device=device) > 0)[:, 5:-4], own // 50 == key // 50,
                             (key <= own) & (key > own - 20), torch.zeros_like(half), torch.ones_like(half),
                             torch.where(few, 0.0, -math.inf).to(dtype), drawn(rows, keys, device=device, dtype=dtype)):
                    self.compare(True, q, k, v, attn_mask=mask, tolerance=tolerance)
                grouped = (x[:, :1] for x in (k, v))
                self.compare(True, q, *grouped, attn_mask=half, enable_gqa=True, tolerance=tolerance)
            with attn_proto.enable():
                o = F.scaled_dot_product_attention(q, k, v, attn_mask=few)
            self.assertEqual(o[0, :, 3].abs().max().item() + o[1, :, 40:].abs().max().item(), 0)

    def test_a_chosen_backend(self):
        x = drawn(2, 4, 24, 64, device=DEVICES[0])
        with sdpa_kernel(SDPBackend.MATH):
            self.compare(False, x, x, x)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            self.compare(True, x, x, x)

    def test_falls_back_with_a_reason(self):
        q = drawn(2, 4, 24, 64, device=DEVICES[0])
        pairs = q[0, 0, :, :24]
        wide = drawn(1, 1, 2, 8, device=DEVICES[0]).expand(70000, 1, 2, 8)
        for *tensors, options in (
                *((*(q.double(),) * 3, {"attn_mask": mask}) for mask in (None, pairs > 0, pairs.double(), pairs)),
                (*(q.to_sparse(),) * 3, {}), (q, q, q, {"attn_mask": pairs.to_sparse()}), (*(q.to("meta"),) * 3, {}), (wide, wide, wide, {}),
                (q, q, q, {"attn_mask": torch.zeros(24, device=DEVICES[0])}), (*(q.mT.contiguous().mT,) * 3, {}),
                (q, q[:1], q[:1], {}), (q, q[:, :2], q[:, :2], {}), (q[:, :, :0], q, q, {}),
                *((q, q, q, {"scale": scale}) for scale in (0.0, math.nan, math.inf, 1e39, 1e-39))):
            self.compare(False, *tensors, **options)
        self.compare(False, *(q[..., :60],) * 3)
        self.assertRegex(next(iter(attn_proto.reasons())), "^width 60 is not allowed; .* multiple of 8")
        for mask in (torch.ones(1, 1, 24, 24), torch.ones(1, 4, 1, 24) > 0):  # PyTorch refuses more dimensions than the queries have
            attn_proto.reset_reasons()
            with attn_proto.enable(), self.assertRaises(RuntimeError):
                F.scaled_dot_product_attention(q[0], q[0], q[0], attn_mask=mask.to(DEVICES[0]))
            self.assertEqual([why.partition(";")[0] for why in attn_proto.reasons()], ["a mask of 4 dimensions"])
        with unittest.mock.patch("attn_proto.dropin._backends", ()):  # as in a build without the tensors' device
            self.compare(False, *(drawn(1, 4, 23, 64, device=DEVICES[0]),) * 3)
        attn_proto.reset_reasons()
        with attn_proto.enable():
            q.requires_grad_()
            F.scaled_dot_product_attention(q, q, q).sum().backward()
        self.assertIsNotNone(q.grad)
        self.assertEqual(attn_proto.reasons()["a gradient is wanted"], 1)

    def test_storages_that_end_before_their_tensors(self):
        """Masks of each form in which the kernels take them, and tensors that autocast converts."""
        for device, rows, autocast in itertools.product(DEVICES, (1, 24), (False, True)):
            q, k, v = drawn(2, 4, rows, 64, device=device), *(drawn(2, 4, 24, 64, device=device) for _ in "kv")
            numbers = drawn(1, 1, rows, 24, device=device)
            for mask in (numbers, numbers > 0, numbers.to(torch.bfloat16 if autocast else torch.float32)[0, 0]):
                for short in range(4):
                    given = [shortened(x) if i == short else x for i, x in enumerate((q, k, v, mask))]
                    with self.subTest(device=device, rows=rows, autocast=autocast, mask=mask.dtype, short=short), attn_proto.enable(), \
                            torch.autocast(device, torch.bfloat16, enabled=autocast), \
                            self.assertRaisesRegex((RuntimeError, ValueError), "its elements need|out of bounds for storage"):  # PyTorch's words
                        F.scaled_dot_product_attention(*given)

    def test_nested_tensors(self):
        parts = [drawn(4, n, 64, device=DEVICES[0]) for n in (24, 9)]
        nested = torch.nested.nested_tensor(parts)
        jagged = torch.nested.nested_tensor([x.transpose(0, 1) for x in parts], layout=torch.jagged).transpose(1, 2)
        for tensors, watched in ((nested, torch.no_grad()), (jagged, SeesFunctions())):
            attn_proto.reset_reasons()
            with torch.no_grad(), attn_proto.enable(), watched:
                o = F.scaled_dot_product_attention(tensors, tensors, tensors)
            found = o.unbind() if tensors is nested else [x.transpose(0, 1) for x in o.transpose(1, 2).unbind()]
            for got, x in zip(found, parts):
                self.near(got, original(x, x, x), 1e-4)
            self.assertEqual(len(attn_proto.reasons()), 1)

    def test_enable_and_disable_again_and_again(self):
        for _ in range(3):
            attn_proto.enable()
            with attn_proto.enable():
                with attn_proto.enable():
                    self.assertTrue(attn_proto.enabled())
                self.assertTrue(attn_proto.enabled())
            self.assertTrue(attn_proto.enabled(), "the enable() without a block still holds")
            attn_proto.disable()
            self.assertIs(F.scaled_dot_product_attention, original)
        with self.assertRaises(ZeroDivisionError), attn_proto.enable():
            1 / 0
        self.assertFalse(attn_proto.enabled())


class ByFunction(torch.Tensor):
    """A tensor whose elements only its __torch_function__ knows; its memory holds NaN. `knows` says whether the
    tensor takes a function for scaled_dot_product_attention."""

    @staticmethod
    def __new__(cls, elements, knows):
        tensor = torch.full_like(elements, math.nan, dtype=torch.float32).as_subclass(cls)
        tensor.elements, tensor.knows = elements, knows
        return tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        own = next((x for x in args if isinstance(x, cls)), None)
        if own is None or not own.knows(func):
            return super().__torch_function__(func, types, args, kwargs or {})
        return F.scaled_dot_product_attention(*(x.elements if isinstance(x, cls) else x for x in args), **(kwargs or {}))


class Refusing(ByFunction):
    """A ByFunction that refuses all functions that it does not know, as PyTorch's guide recommends."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        own = next(x for x in args if isinstance(x, cls))
        return super().__torch_function__(func, types, args, kwargs) if own.knows(func) else NotImplemented


class ByDispatch(torch.Tensor):
    """A tensor without memory, like the tensors of torch.distributed.tensor."""
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elements):
        tensor = torch.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype, device=elements.device)
        tensor.elements = elements
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda x: x.elements if isinstance(x, cls) else x, (args, kwargs or {}))
        return func(*args, **kwargs)


class Again(torch.Tensor):
    """A subclass whose __torch_function__ calls the function that torch.nn.functional has now, on the tensor itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            again = F.scaled_dot_product_attention if func.__name__ == "scaled_dot_product_attention" else func
            return again(*args, **(kwargs or {}))


class Halves(torch.Tensor):
    """A subclass that calls every function as it is, but halves the scale of functions that it takes for attention."""
    knows = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if cls.knows(func):
            kwargs["scale"] = kwargs["scale"] / 2
        return super().__torch_function__(func, types, args, kwargs)


class SeesFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class SeesOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Overrides(Case):
    """Subclasses of Tensor, modes and transforms. PyTorch's own function calls these before it reads the memory of a
    tensor, so the drop-in must do so too."""

    def setUp(self):
        super().setUp()
        attn_proto.enable()

    def test_a_subclass_of_tensor_is_asked(self):
        """A subclass may know the function that stands in torch.nn.functional at the call, or only PyTorch's original
        function."""
        known = {"now": lambda func: func is F.scaled_dot_product_attention, "before": lambda func: func is original,
                 "by name": lambda func: func.__name__ == "scaled_dot_product_attention"}
        for device in DEVICES:
            tensors = [drawn(2, 4, 24, 64, device=device) for _ in range(3)] + [drawn(24, 24, device=device)]
            want = original(*tensors)
            for place in range(4):
                for kind, (name, knows) in itertools.product((ByFunction, Refusing), known.items()):
                    with self.subTest(device=device, place=place, kind=kind, knows=name):
                        self.near(F.scaled_dot_product_attention(*tensors[:place], kind(tensors[place], knows),
                                                                 *tensors[place + 1:]), want)
                attn_proto.reset_reasons()
                self.near(F.scaled_dot_product_attention(*tensors[:place], ByDispatch(tensors[place]), *tensors[place + 1:]), want)
                self.assertEqual(attn_proto.reasons(), {"a ByDispatch": 1})
            for knows in known.values():
                with unittest.mock.patch.object(Halves, "knows", knows):
                    half = F.scaled_dot_product_attention(tensors[0].as_subclass(Halves), *tensors[1:], scale=0.25)
                    self.near(half.as_subclass(torch.Tensor), want)
            again = F.scaled_dot_product_attention(tensors[0].as_subclass(Again), *tensors[1:])
            self.near(again.as_subclass(torch.Tensor), want)
            with torch.no_grad():
                attn_proto.reset_reasons()
                F.scaled_dot_product_attention(torch.nn.Parameter(tensors[0]), *tensors[1:3])
                self.assertEqual(attn_proto.reasons(), {})

    def test_modes_see_one_function_and_one_operator(self):
        q = drawn(2, 4, 24, 64, device=DEVICES[0])
        with SeesFunctions() as functions:
            F.scaled_dot_product_attention(q, q, q)
        self.assertEqual(functions.seen, [F.scaled_dot_product_attention])
        with SeesOperators() as operators:
            F.scaled_dot_product_attention(q, q, q)
        self.assertEqual(operators.seen, [torch.ops.attn.flash.default])
        with torch.device(DEVICES[0]):
            F.scaled_dot_product_attention(q, q, q)
        self.assertEqual(attn_proto.reasons(), {})

    def test_torch_jit(self):
        """A trace serves other shapes than those it was made with."""
        def attend(q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)

        q, more = drawn(1, 2, 20, 16, device=DEVICES[0]), drawn(1, 2, 40, 16, device=DEVICES[0])
        mask = drawn(20, 20, device=DEVICES[0]) > 0
        causal = torch.jit.trace(attend, (q, q, q))
        masked = torch.jit.trace(attend, (q, q, q, mask[:1].expand(20, 20)), check_trace=False)
        self.near(causal(q, more, more), original(q, more, more, is_causal=True))
        self.near(masked(q, q, q, mask), original(q, q, q, mask))
        self.assertEqual(set(attn_proto.reasons()), {"torch.jit.trace"})
        self.near(torch.jit.script(Squared())(q), original(q, q, q))


class Squared(torch.nn.Module):
    def forward(self, q):
        return F.scaled_dot_product_attention(q, q, q)


class Attends(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x, mask=None):
        return F.scaled_dot_product_attention(x, x + 1, x * 2, attn_mask=mask, **self.options)


class Autocast(Case):
    def test_as_pytorch_under_autocast(self):
        """Autocast changes the type of a mask too: finfo.min of float32 is -inf in bfloat16."""
        f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
        for device, to, types in itertools.product(DEVICES, (bf16, f16), ((f32,) * 3, (bf16, f32, f16), (f64,) * 3)):
            tensors = [drawn(2, 4, 24, 64, device=device, dtype=dtype) for dtype in types]
            masks = [None, drawn(24, 24, device=device) > 0]
            if types[0] != f64:
                masks += [100 * drawn(24, 24, device=device), torch.full((24, 24), torch.finfo(f32).min, device=device)]
            for mask in masks:
                with self.subTest(device=device, to=to, types=types), torch.autocast(device, dtype=to):
                    want = original(*tensors, attn_mask=mask)
                    torch._dynamo.reset()
                    with attn_proto.enable():
                        attn_proto.reset_reasons()
                        got = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
                        compiled = torch.compile(F.scaled_dot_product_attention, backend="eager", fullgraph=True)
                        traced = compiled(*tensors, attn_mask=mask)
                    if device == "cpu":
                        self.assertEqual(len(attn_proto.reasons()), types[0] == f64)
                    for each in (got, traced):
                        self.assertEqual(each.dtype, want.dtype)
                        self.near(each.float(), want.float(), 3e-2)


class Traced(Case):
    """Tools that record a program. A tool that works without the drop-in must work with the drop-in, for all sizes that
    the tool was told to support."""

    def setUp(self):
        super().setUp()
        attn_proto.enable()

    def inputs(self, rows=40):
        x = drawn(2, 4, rows, 64, device=DEVICES[0])
        mask = drawn(2, 1, rows, rows, device=DEVICES[0])
        return ((Attends(), (x,)), (Attends(is_causal=True), (x,)), (Attends(), (x, mask)), (Attends(), (x, mask > 0)),
                (Attends(scale=0.3), (x, mask[:, :, :1] > 0)), (Attends(), (x, mask.expand(2, 4, rows, rows))),
                (Attends(), (x, mask.repeat(1, 4, 1, 1))), (Attends(), (x, mask.repeat(1, 4, 1, 1) > 0)))

    def check(self, program, model, inputs):
        with torch.no_grad():
            got = program(*inputs)
            attn_proto.disable()
            want = model(*inputs)
            attn_proto.enable()
        self.near(got, want)

    def test_export_for_a_range_of_tokens(self):
        """The range includes few queries, and numbers of keys that are no multiple of 4."""
        tokens = torch.export.Dim("tokens", min=2, max=500)
        for strict, (which, (model, inputs)) in itertools.product((False, True), enumerate(self.inputs())):
            if DEVICES[0] != "cpu" and which == 2:
                continue  # float masks on a GPU go to PyTorch, whose kernels take no range of lengths with masks
            sizes = {2: tokens}, {2: tokens if inputs[-1].shape[2] > 1 else torch.export.Dim.STATIC, 3: tokens}
            with self.subTest(strict=strict, which=which):
                exported = torch.export.export(model, inputs, dynamic_shapes=sizes[:len(inputs)], strict=strict)
                if DEVICES[0] == "cpu":
                    self.assertEqual("attn.flash" in str(exported.graph), which < 6)
                for rows in (40, 3, 99):
                    self.check(exported.module(), *self.inputs(rows)[which])

    def test_compile_for_several_lengths(self):
        for dynamic, (which, (model, _)) in itertools.product((False, True), enumerate(self.inputs())):
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
            for rows in (40, 3, 99):
                with self.subTest(dynamic=dynamic, which=which, rows=rows):
                    self.check(compiled, *self.inputs(rows)[which])

    def test_compile_for_ranges_of_numbers(self):
        """One graph serves scales that go to PyTorch too, and all numbers of heads: a graph for each number of heads would
        be more than PyTorch compiles."""
        def compiled(function):
            torch._dynamo.reset()
            return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)

        x = drawn(2, 4, 40, 64, device=DEVICES[0])
        scaled = compiled(lambda x, scale: F.scaled_dot_product_attention(x, x, x, scale=scale))
        for scale in (0.3, 0.0, 1e-42):
            self.near(scaled(x, scale), original(x, x, x, scale=scale), 1e-3)
        for group in (1, 2):
            grouped = compiled(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
            for heads in range(2, 13):
                q, k = drawn(2, group * heads, 20, 64, device=DEVICES[0]), drawn(2, heads, 20, 64, device=DEVICES[0])
                self.near(grouped(q, k), original(q, k, k, enable_gqa=True), 1e-3)

    def test_each_way_to_trace(self):
        """A trace also serves masks with other strides than those of the mask that it was made with."""
        x = drawn(2, 4, 40, 64, device=DEVICES[0])
        whole, dense = drawn(2, 1, 40, 40, device=DEVICES[0]) > 0, drawn(2, 4, 40, 40, device=DEVICES[0])
        cases = [(model, inputs, inputs) for model, inputs in self.inputs()]
        cases += [(Attends(), (x, first), (x, then)) for first, then in ((whole[:1, :, :1].expand(2, 1, 40, 40), whole),
                                                                         (dense, dense.transpose(1, 2).contiguous().transpose(1, 2)))]
        for name, trace in (("export", lambda model, given: torch.export.export(model, given).module()),
                            ("strict export", lambda model, given: torch.export.export(model, given, strict=True).module()),
                            *((f"make_fx {mode}", lambda model, given, mode=mode: make_fx(model, tracing_mode=mode)(*given))
                              for mode in ("real", "fake", "symbolic")),
                            ("symbolic_trace", lambda model, given: torch.fx.symbolic_trace(
                                model, concrete_args={"mask": None} if len(given) == 1 else None)),
                            ("compile", lambda model, given: torch.compile(model, fullgraph=True, backend="aot_eager"))):
            for which, (model, first, then) in enumerate(cases):
                with self.subTest(name, which=which):
                    torch._dynamo.reset()
                    traced = trace(model, first)
                    self.check(traced, model, first)
                    self.check(traced, model, then)

    def test_operations_are_counted(self):
        def counted(call):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                call()
            return counter.get_total_flops()

        ops, x, one = torch.ops.attn, drawn(2, 4, 40, 64, device=DEVICES[0]), drawn(2, 4, 1, 64, device=DEVICES[0])
        keys, lengths = drawn(2, 2, 40, 64, device=DEVICES[0]), table_of(9, 9, device=DEVICES[0])
        pages, table = keys.view(10, 2, 8, 64), torch.zeros(2, 5, dtype=torch.int32, device=DEVICES[0])
        by_tokens = [each.transpose(1, 2) for each in (x, keys, keys)]
        row = 2 * 2 * 2 * 4 * 40 * 64  # operations of both products for a row of queries
        for want, call in ((40 * row, lambda: F.scaled_dot_product_attention(x, x, x)), (40 * row, lambda: ops.flash(x, keys, keys)),
                           (40 * row, lambda: ops.flash_with_lse(*by_tokens, bshd=True)),
                           (row, lambda: ops.paged_decode(one, keys, keys, lengths)),
                           (row, lambda: ops.paged_prefill(one, pages, pages, lengths, table)),
                           (row, lambda: ops.decode_fused(one, keys[:, :, :1], keys[:, :, :1], keys.clone(), keys.clone(), lengths)),
                           (row, lambda: ops.paged_decode(one, *by_tokens[1:], lengths, cache_bshd=True)),
                           (counted(lambda: x @ (x.mT @ x)), lambda: ops.linear(x, x, x))):
            self.assertEqual(counted(call), want)


if __name__ == "__main__":
    unittest.main()
