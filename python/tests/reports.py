"""Public reports of wrong attention in other libraries, each tried on this package. The result must be right, or an
error of one line, or PyTorch's own result.

    python/tests/run build/release/bin tests/reports.py torch                          # all, on the CPU
    python/tests/run build/release/bin tests/reports.py torch -- jax gemma             # reports with one of these words
    python/tests/run build/release/bin tests/reports.py torch -- --device cuda
    python/tests/run build/release/bin tests/reports.py torch -- --write               # all, and the table in docs/reports.md

"Right" means that the error from the definition in float64 is within the bound for rounding (definitions.py), or that
the difference from PyTorch's or transformers' eager attention is within a bound of this file. The printed figure is the
largest error as a share of the bound. The exit status is 1 if a report fails.
"""

import math
import pathlib
import resource
import sys
import time
import types
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import attn_proto
import definitions
import page_tables
from definitions import INF, NAN

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from command_line import Parser  # noqa: E402

original = F.scaled_dot_product_attention
ops = torch.ops.attn
REPORTS = []


class Fails(Exception):
    """Raised if a report fails, with the reason."""


def report(address, needs=None):
    """Registers a function as the trials of a report. The first paragraph of the function's text is what the report
    said; each further paragraph describes a trial. If all trials end alike, one paragraph may describe all of them.
    page_tables.py reads the texts from this file."""
    def add(function):
        REPORTS.append(types.SimpleNamespace(address=f"https://github.com/{address}", needs=needs, run=function))
        return function
    return add


class Trial:
    """The run of one report: makes inputs, compares results, and keeps the outcomes of the calls."""

    def __init__(self, device):
        self.device, self.worst, self.became = device, 0.0, []
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, *shape, dtype=torch.float32):
        return torch.randn(shape, generator=self.generator).to(dtype).to(self.device)

    def qkv(self, *shape, keys=None, heads=None, dtype=torch.float32):
        """q with the shape [batch, heads, rows, width]; k and v may have another number of keys or heads."""
        batch, q_heads, rows, width = shape
        other = (batch, heads or q_heads, keys or rows, width)
        return [self.normal(*each, dtype=dtype) for each in (shape, other, other)]

    def table(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def models(self, kind, **sizes):
        """Small models of a type with equal weights: with eager attention, and with ours."""
        import test_transformers

        return [test_transformers.model(kind, name, **sizes).to(self.device) for name in ("eager", "attn_proto")]

    def tokens(self, count):
        """Two sequences of tokens for models."""
        import test_transformers

        return test_transformers.tokens(2, count).to(self.device)

    def add_outcome(self, what):
        if self.became[-1:] != [what]:
            self.became.append(what)

    def right(self, got, want, allowed):
        """Checks that finite values differ by at most `allowed`, and that the same values are not finite in both."""
        got, want = got.detach().double().cpu(), want.detach().double().cpu()
        if got.shape != want.shape:
            raise Fails(f"the shape is {list(got.shape)}; it must be {list(want.shape)}")
        allowed = torch.as_tensor(allowed, dtype=torch.float64).expand(want.shape)
        counts = allowed < INF
        if not torch.equal(got.isfinite()[counts], want.isfinite()[counts]):
            off = (got.isfinite() != want.isfinite())[counts].sum()
            raise Fails(f"{off} of {got.numel()} numbers are finite where the right number is not finite, or not "
                        "finite where the right number is finite")
        parts = ((got - want).abs() / allowed)[counts & want.isfinite()]
        self.worst = max(self.worst, parts.max().item() if parts.numel() else 0.0)
        if self.worst > 1:
            raise Fails(f"the error is {self.worst:.3g} times what is allowed")
        self.add_outcome("right")

    def exact(self, got, q, k, v, *, scale=None, mask=None, causal=False, **more):
        """Compares with the definition in float64. A mask of bool says which pairs are seen. With causal the last query
        stands at the last key."""
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        rows, keys = q.shape[2], k.shape[2]
        hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        if causal:
            hidden = ~torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)[None, None]
        if mask is not None:
            mask = mask.cpu()[(None,) * (4 - mask.dim())]
            hidden, more = (hidden | ~mask, more) if mask.dtype == torch.bool else (hidden, {"added": mask, **more})
        want, allowed = definitions.attention(q, k, v, scale, hidden, **more)[0]
        self.right(got, want, allowed)

    def exact_on_pages(self, o, q, k, v, table, lengths):
        """Compares with the definition over the keys and values of each sequence. A length of None leaves it out."""
        for i, length in enumerate(lengths):
            if length is not None:
                keys, values = (pages[table[i].long()].transpose(0, 1).flatten(1, 2)[None, :, :length] for pages in (k, v))
                self.exact(o[i:i + 1], q[i:i + 1], keys, values)

    def like_eager(self, got, want, allowed=2e-5):
        self.right(got, want, allowed if self.device == "cpu" else 50 * allowed)

    def same_logits(self, kind, tokens=20, **sizes):
        """Compares the logits of a small model with those of eager attention."""
        plain, ours = self.models(kind, **sizes)
        ids = self.tokens(tokens)
        self.like_eager(ours(ids).logits, plain(ids).logits)

    def sdpa(self, *tensors, served=True, **options):
        """Calls scaled_dot_product_attention with the drop-in. `served`: whether our kernels must serve the call."""
        attn_proto.reset_reasons()
        with attn_proto.enable():
            o = F.scaled_dot_product_attention(*tensors, **options)
        self.handed(served)
        return o

    def handed(self, served=True):
        """Checks that our kernels served all calls since reset_reasons(), or, with served=False, that a call went to
        PyTorch."""
        reasons = attn_proto.reasons()
        if served and reasons:
            raise Fails(f"PyTorch computed it, for {', '.join(reasons)}")
        if not served and not reasons:
            raise Fails("our kernels computed it")
        for why in reasons:
            self.add_outcome(f"PyTorch: {why}")

    def refused(self, call, words, by=""):
        try:
            call()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            first, *more = str(error).splitlines()
            if words not in str(error) or more and not by:
                raise Fails(f"refused for another reason, or with more than one line: {first}") from None
            self.add_outcome(f"refused{by}: {first}")
        else:
            raise Fails("accepted")

    def cache(self, lengths, page_size, kv_heads, width, *, pages, dtype=torch.float32):
        """Key and value pages, lengths, and a table of pages in falling order."""
        k, v = self.normal(pages, kv_heads, page_size, width, dtype=dtype), self.normal(pages, kv_heads, page_size, width, dtype=dtype)
        count = pages // len(lengths)
        table = torch.arange(pages - 1, pages - 1 - count * len(lengths), -1, dtype=torch.int32, device=self.device)
        return k, v, self.table(lengths), table.view(len(lengths), count)


# ---- large scores, rows that see few keys or none

@report("pytorch/pytorch/issues/121558")
def large_inputs(t):
    """NaN for large bf16 inputs

    every element of the queries, keys and values is 133120, in bf16; 1 row, and 40 rows: every output is 133120"""
    for rows in (1, 40):
        x = torch.full((1, 1, rows, 64), 133120.0, dtype=torch.bfloat16, device=t.device)
        for o in (attn_proto.flash(x, x, x), t.sdpa(x, x, x)):
            t.right(o, x, 1e-3)


@report("ROCm/aotriton/issues/54")
def rounded_once(t):
    """NaN: the kernel rounds a large score twice and subtracts it from the same score, rounded once; exp2 of the
    difference overflows

    40 keys in bf16, scale 0.25, one element of each query and key is 133120: the mean of the values"""
    q, k, v = t.qkv(1, 1, 40, 8, dtype=torch.bfloat16)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = 133120, 133120
    t.right(attn_proto.flash(q, k, v, scale=0.25), v.double().mean(2, keepdim=True).expand(v.shape), 0.02)


@report("pytorch/pytorch/issues/127055")
def band(t):
    """`MultiheadAttention` gives NaN for 600 tokens, each of which sees the last 10 keys

    this mask in f32 and bf16: the result that `need_weights=True` gives"""
    full = torch.full((600, 600), -INF, device=t.device)
    mask = torch.triu(full, diagonal=1) + torch.tril(full, diagonal=-10)
    for dtype, allowed in ((torch.float32, 2e-5), (torch.bfloat16, 0.03)):
        torch.manual_seed(0)
        model = torch.nn.MultiheadAttention(32, 1, device=t.device).to(dtype)
        x = t.normal(600, 32, dtype=dtype)
        attn_proto.reset_reasons()
        with torch.no_grad(), attn_proto.enable():
            o = model(x, x, x, attn_mask=mask.to(dtype), need_weights=False)[0]
        t.handed(served=t.device == "cpu")
        with torch.no_grad():
            t.like_eager(o, model(x, x, x, attn_mask=mask.to(dtype), need_weights=True)[0], allowed)


@report("pytorch/pytorch/issues/108503")
def packed(t):
    """in bf16 with a mask, several sequences in one batch row give other results than each sequence alone

    600 tokens of width 80 in bf16, four sequences and unused tokens, given by `documents` (with five values of
    `scale`) and by a mask: a token sees only its own sequence, and the outputs of unused tokens are 0"""
    q, k, v = t.qkv(1, 2, 600, 80, dtype=torch.bfloat16)
    mask = torch.zeros(600, 600, dtype=torch.bool, device=t.device)
    documents = t.table([[543, 543]] * 600)
    for begin, end in ((0, 128), (128, 256), (256, 384), (543, 600)):
        mask[begin:end, begin:end] = True
        documents[begin:end] = t.table([begin, end])
    for scale in (None, 0.54, 0.593, 0.839, 0.892):  # these scales round differently
        t.exact(attn_proto.flash(q, k, v, scale=scale, documents=documents), q, k, v, scale=scale, mask=mask)
    if t.device == "cpu":
        t.exact(t.sdpa(q, k, v, attn_mask=mask), q, k, v, mask=mask)


@report("Dao-AILab/flash-attention/issues/1778")
def more_queries(t):
    """a wrong result for more queries than keys under a causal mask

    40 queries and 20 keys of width 200 in bf16: the first 20 queries see no key, and their rows are 0"""
    q, k, v = t.qkv(1, 1, 40, 200, keys=20, dtype=torch.bfloat16)
    o = attn_proto.flash(q, k, v, causal=True)
    t.exact(o, q, k, v, causal=True)
    t.right(o[:, :, :20], torch.zeros(1, 1, 20, 200), 1e-30)


@report("ikawrakow/ik_llama.cpp/issues/2344")
def leading_rows(t):
    """NaN if the mask of the first rows of a batch is all -inf, with sinks

    100 rows, 8 heads with sinks; the mask of the first 14 rows is all -inf: these rows are 0"""
    q, k, v = t.qkv(1, 8, 100, 64)
    bias, sinks = torch.zeros(1, 1, 100, 100, device=t.device), t.normal(8)
    bias[:, :, :14] = -INF
    o = attn_proto.flash(q, k, v, bias=bias, sinks=sinks)
    t.exact(o, q, k, v, mask=bias, sinks=sinks)
    t.right(o[:, :, :14], torch.zeros(1, 8, 14, 64), 1e-30)


# ---- causal attention without a mask tensor

@report("huggingface/transformers/pull/30437", needs="transformers")
def static_cache(t):
    """with a static cache and without a mask, attention is causal over the whole cache, unused entries included

    Llama with a cache for 32 tokens, a prompt of 20 tokens, then a step of one token: the logits of eager attention"""
    from transformers.cache_utils import StaticCache

    plain, ours = t.models("llama")
    ids = t.tokens(21)
    cache = StaticCache(ours.config, max_cache_len=32)
    got = torch.cat([ours(part, cache=cache).logits for part in (ids[:, :20], ids[:, 20:])], 1)
    t.like_eager(got, plain(ids).logits)


@report("huggingface/transformers/pull/30652", needs="transformers")
def output_attentions(t):
    """with `output_attentions=True`, `sdpa` does not apply the causal mask

    Llama with `output_attentions=True`: the logits of eager attention, or an error"""
    plain, ours = t.models("llama")
    ids = t.tokens(20)
    try:
        got = ours(ids, output_attentions=True).logits
    except ValueError:
        t.refused(lambda: ours(ids, output_attentions=True), "output_attentions")
    else:
        t.like_eager(got, plain(ids).logits)


@report("huggingface/transformers/issues/46273", needs="transformers")
def layer_alone(t):
    """a single layer of a model, called without a mask, is not causal, and no error says so

    one attention layer of Llama without a mask: the result of eager attention"""
    plain, ours = (each.model for each in t.models("llama"))
    x = t.normal(2, 20, 64)
    angles = plain.rotary_emb(x, torch.arange(20, device=t.device)[None])
    got, want = (each.layers[0].self_attn(x, position_embeddings=angles, attention_mask=None)[0] for each in (ours, plain))
    t.like_eager(got, want)


@report("pytorch/pytorch/issues/144858")
def cached_queries(t):
    """with `is_causal` and a cache, a single query sees only the first key

    `flash(causal=True)` for 1, 5 and 20 queries over 40 keys: the last query sees all keys"""
    for rows in (1, 5, 20):
        q, k, v = t.qkv(2, 4, rows, 64, keys=40)
        t.exact(attn_proto.flash(q, k, v, causal=True), q, k, v, causal=True)


@report("pytorch/executorch/issues/22426")
def first_key(t):
    """with `is_causal` and fewer queries than keys, the backend lets the last query see all keys; in PyTorch the first
    query sees only the first key

    `is_causal=True` for 1, 9 and 16 queries over 16 keys, by the drop-in: the result of PyTorch"""
    for rows in (1, 9, 16):
        q, k, v = t.qkv(1, 4, rows, 64, keys=16)
        t.like_eager(t.sdpa(q, k, v, is_causal=True), original(q, k, v, is_causal=True))


@report("pytorch/pytorch/issues/103082")
def causal_bias(t):
    """if the numbers of queries and keys differ, two causal masks are possible, and `is_causal` does not say which one
    it means; `torch.nn.attention.bias` has names for both masks

    `causal_lower_right` and `causal_upper_left` as `attn_mask`, for 1 query over 8 keys and for 40 queries over 80
    keys: the mask that the name says"""
    for rows, keys in ((1, 8), (40, 80)):
        q, k, v = t.qkv(2, 4, rows, 64, keys=keys)
        for make, diagonal in ((causal_lower_right, keys - rows), (causal_upper_left, 0)):
            with attn_proto.enable():
                o = F.scaled_dot_product_attention(q, k, v, attn_mask=make(rows, keys))
            t.exact(o, q, k, v, mask=torch.ones(rows, keys, dtype=torch.bool).tril(diagonal))


# ---- arguments that models pass to attention

@report("huggingface/transformers/pull/47014", needs="transformers")
def position_bias(t):
    """T5's position bias reaches the attention interface as a separate argument

    T5 with a large bias, without and with padding: the logits of eager attention"""
    import test_transformers

    plain, ours = (each.to(t.device) for each in test_transformers.t5_models())
    ids, padding = t.tokens(20), torch.ones(2, 20, dtype=torch.long, device=t.device)
    padding[1, 15:] = 0
    got, want = (each(ids, decoder_input_ids=ids, attention_mask=padding).logits for each in (ours, plain))
    t.like_eager(got, want)


@report("sgl-project/sglang/issues/33915", needs="transformers")
def soft_cap(t):
    """the kernel does not get the soft cap of Gemma 2, nor a window

    a cap of 5 on large scores with a window of 10, and the model Gemma 2: the logits of eager attention"""
    q, k, v = t.qkv(1, 4, 50, 64)
    seen = torch.ones(50, 50, dtype=torch.bool).tril().triu(-10)
    t.exact(attn_proto.flash(4 * q, k, v, causal=True, soft_cap=5, window_left=10), 4 * q, k, v, mask=seen, cap=5)
    t.same_logits("gemma2", attn_logit_softcapping=2.0)


@report("ggml-org/llama.cpp/pull/29034")
def capped_padding(t):
    """with a soft cap, the keys that fill up the last tile take part in the softmax

    65 keys with a cap of 5: only these keys take part"""
    q, k, v = t.qkv(1, 2, 65, 64)
    t.exact(attn_proto.flash(4 * q, k, v, soft_cap=5), 4 * q, k, v, cap=5)


@report("unslothai/unsloth/issues/3142", needs="transformers")
def sinks(t):
    """GPT-OSS needs sinks, and PyTorch's attention has none

    GPT-OSS: the logits of eager attention"""
    t.same_logits("gpt_oss")


@report("huggingface/transformers/pull/48769", needs="transformers")
def doge(t):
    """with `sdpa` the tokens of Doge see later tokens, because `sdpa` gets no mask

    Doge: the logits of eager attention; if the last token is replaced, the earlier tokens keep their logits"""
    plain, ours = t.models("doge")
    ids = t.tokens(20)
    others = ids.clone()
    others[:, -1] = 98 - others[:, -1]
    try:
        got, later = ours(ids).logits, ours(others).logits
    except ValueError:
        t.refused(lambda: ours(ids), "attn_proto: ")
    else:
        t.like_eager(got, plain(ids).logits)
        t.like_eager(later[:, :-1], got[:, :-1])


@report("huggingface/optimum-habana/pull/1115", needs="transformers")
def own_attention(t):
    """MPT gives wrong results with a fused attention in bf16; the reason seems to be its bias for each head

    a bias for each head, by the drop-in

    the model MPT"""
    q, k, v = t.qkv(2, 4, 24, 32)
    bias = t.normal(1, 4, 24, 24)
    t.exact(t.sdpa(q, k, v, attn_mask=bias, served=t.device == "cpu"), q, k, v, mask=bias)
    _, ours = t.models("mpt", d_model=64, n_layers=1, n_heads=2)
    t.refused(lambda: ours(t.tokens(20)), 'runs with attn_implementation="eager" alone')


@report("huggingface/transformers/issues/29029", needs="transformers")
def left_padding(t):
    """padding on the left changes the logits of Llama

    Llama, two prompts of 20 and 13 tokens in one batch: the logits of each prompt alone"""
    _, ours = t.models("llama")
    ids = t.tokens(20)
    padding = torch.ones_like(ids)
    padding[1, :7] = 0
    positions = (padding.cumsum(1) - 1).clamp(min=0)
    got = ours(ids, attention_mask=padding, position_ids=positions).logits
    t.like_eager(got[:1], ours(ids[:1]).logits)
    t.like_eager(got[1:, 7:], ours(ids[1:, 7:]).logits)


@report("huggingface/transformers/pull/46672", needs="transformers")
def beams(t):
    """beam search does not reorder the cache of a model

    Llama, three beams in a `PagedCache`: the same tokens as with eager attention"""
    from attn_proto.transformers import PagedCache

    plain, ours = t.models("llama", eos_token_id=98)
    cache = PagedCache(ours.config, batch=6, max_tokens=64, page_size=8, device=t.device)
    got, want = (each.generate(t.tokens(20), max_new_tokens=12, do_sample=False, num_beams=3, cache=given)
                 for each, given in ((ours, cache), (plain, None)))
    t.right(got, want, 1e-9)


# ---- caches

@report("Dao-AILab/flash-attention/pull/2711")
def beyond_the_table(t):
    """a length beyond the capacity of the block table reads outside the table

    lengths of 40 and 32 tokens; the table has two pages of 16 tokens for each sequence"""
    k, v, lengths, table = t.cache([40, 32], 16, 2, 64, pages=4)
    q = t.normal(2, 2, 1, 64)
    if t.device == "cpu":
        t.refused(lambda: attn_proto.paged_decode(q, k, v, lengths, table), "row 0: length 40")
    else:
        t.refused(lambda: attn_proto.check_cache(k, lengths, table), "row 0: length 40")
        o = attn_proto.paged_decode(q, k, v, lengths, table)
        t.right(o[0], torch.full((2, 1, 64), NAN), 1)
        t.exact_on_pages(o, q, k, v, table, [None, 32])


@report("NVIDIA/TensorRT-LLM/pull/16714")
def no_pages(t):
    """page tables with indices outside the pool

    page -1 of a pool of 8 pages

    page 8 of a pool of 8 pages

    page 10^9 of a pool of 8 pages"""
    q = t.normal(2, 2, 1, 64)
    for wrong in (-1, 8, 10 ** 9):
        k, v, lengths, table = t.cache([20, 32], 16, 2, 64, pages=8)
        table[0, 1] = wrong
        look = attn_proto.paged_decode if t.device == "cpu" else lambda _, k, __, *more: attn_proto.check_cache(k, *more)
        t.refused(lambda: look(q, k, v, lengths, table), f"page {wrong}")


@report("Dao-AILab/flash-attention/issues/638")
def full_cache(t):
    """appending to a full cache writes into other tensors

    a token is appended to a full cache of 32 tokens

    the tensors next to this cache in memory, after the call: unchanged"""
    buffer = t.normal(2, 4, 32, 64)
    before = buffer.clone()
    k, v = buffer[:1, :2], buffer[1:, :2]
    new = t.normal(1, 2, 1, 64)
    call = lambda: attn_proto.decode_fused(t.normal(1, 2, 1, 64), new, new, k, v, t.table([33]))  # noqa: E731
    if t.device == "cpu":
        t.refused(call, "lengths[0] is 33")
    else:
        t.right(call(), torch.full((1, 2, 1, 64), NAN), 1)
    t.right(buffer, before, 1e-30)


@report("vllm-project/vllm/issues/50427")
def many_pages(t):
    """with 65,536 pages or more, offsets overflow: the kernel crashes, or reads the keys of another page

    a sequence on the last 4 pages of 65,600 pages of 16 tokens"""
    k, v, lengths, table = t.cache([60], 16, 1, 8, pages=65600, dtype=torch.float16)
    table = table[:, :4].contiguous()
    q = t.normal(1, 1, 1, 8, dtype=torch.float16)
    t.exact_on_pages(attn_proto.paged_decode(q, k, v, lengths, table), q, k, v, table, [60])


@report("Dao-AILab/flash-attention/issues/1745")
def nan_after_the_end(t):
    """NaN in the cache after the last token of a sequence reaches the output of the sequence

    sequences of 1 and 3 tokens in f16 on pages of 16 tokens; all other elements of the pages are NaN: no NaN"""
    k, v, lengths, table = t.cache([1, 3], 16, 1, 64, pages=2, dtype=torch.float16)
    for pages in (k, v):
        pages[table[0, 0], :, 1:], pages[table[1, 0], :, 3:] = NAN, NAN
    q = t.normal(2, 1, 1, 64, dtype=torch.float16)
    t.exact_on_pages(attn_proto.paged_decode(q, k, v, lengths, table), q, k, v, table, [1, 3])


@report("Dao-AILab/flash-attention/issues/2374")
def nan_in_padding(t):
    """if each sequence has its own length, NaN in V after this length reaches the output

    128 keys in bf16, lengths of 32, 64, 96 and 48; keys and values after each length are NaN: no NaN"""
    q, k, v = t.qkv(4, 8, 20, 64, keys=128, dtype=torch.bfloat16)
    counts = (32, 64, 96, 48)
    for i, count in enumerate(counts):
        k[i, :, count:], v[i, :, count:] = NAN, NAN
    seen = torch.arange(128) < torch.tensor(counts)[:, None, None, None]
    t.exact(attn_proto.flash(q, k, v, lengths=t.table(counts)), q, k, v, mask=seen)


@report("vllm-project/vllm/pull/49077")
def nan_of_e4m3(t):
    """NaN of float8 e4m3 is read as 480

    e4m3, a NaN in a key of one sequence and in a value of another sequence: NaN in the outputs that use it"""
    pages = [t.normal(4, 1, 16, 64).to(torch.float8_e4m3fn) for _ in range(2)]
    q, lengths, table = t.normal(2, 2, 1, 64, dtype=torch.bfloat16), t.table([20, 20]), t.table([[0, 1], [2, 3]])
    scales = torch.ones(4, 1, device=t.device)
    pages[0].view(torch.uint8)[1, 0, 2, 5] = 0x7F
    pages[1].view(torch.uint8)[2, 0, 2, 5] = 0xFF
    o = attn_proto.paged_decode(q, *pages, lengths, table, key_scales=scales, value_scales=scales)
    t.exact_on_pages(o, q, *(each.to(torch.bfloat16) for each in pages), table, [20, 20])


@report("flashinfer-ai/flashinfer/issues/996")
def seven_heads(t):
    """7 query heads for each key head are not supported

    28 query heads and 4 key heads, keys on pages"""
    k, v, lengths, table = t.cache([30], 16, 4, 128, pages=2, dtype=torch.bfloat16)
    q = t.normal(1, 28, 1, 128, dtype=torch.bfloat16)
    t.exact_on_pages(attn_proto.paged_decode(q, k, v, lengths, table), q, k, v, table, [30])


@report("flashinfer-ai/flashinfer/issues/4450")
def low_scores(t):
    """keys with scores below -5e4 count as hidden, and the result is 0

    keys on pages; all scores are -524288, all values are 1: every output is 1"""
    k, v, lengths, table = t.cache([20], 16, 1, 64, pages=2)
    q = torch.full((1, 1, 1, 64), -1024.0, device=t.device)
    o = attn_proto.paged_decode(q, torch.full_like(k, 64.0), torch.ones_like(v), lengths, table)
    t.right(o, torch.ones(1, 1, 1, 64), 1e-6)


# ---- bounds of options

@report("Dao-AILab/flash-attention/issues/1133")
def whole_windows(t):
    """causal attention with a window that reaches every key differs from causal attention without a window

    300 tokens in bf16, windows of 299, 300, 2^31 - 1 and 2^63 - 1 keys to the left: causal attention"""
    q, k, v = t.qkv(1, 2, 300, 64, dtype=torch.bfloat16)
    for window in (299, 300, 2 ** 31 - 1, sys.maxsize):
        t.exact(attn_proto.flash(q, k, v, causal=True, window_left=window), q, k, v, causal=True)
        t.exact(attn_proto.flash(q, k, v, window_left=window, window_right=0), q, k, v, causal=True)


@report("huggingface/transformers/issues/39408", needs="transformers")
def sliding_window(t):
    """with a sliding window of n keys a token sees n + 1 keys

    Mistral with a window of 8: the logits of eager attention"""
    t.same_logits("mistral", tokens=30)


@report("jax-ml/jax/pull/39576")
def window_to_the_left(t):
    """with a window to the left and without causal, a token sees all later tokens

    `window_left=5`, `window_right=0`: a token sees itself and the 5 tokens before it"""
    q, k, v = t.qkv(1, 2, 80, 64)
    seen = torch.ones(80, 80, dtype=torch.bool).tril().triu(-5)
    t.exact(attn_proto.flash(q, k, v, window_left=5, window_right=0), q, k, v, mask=seen)


@report("jax-ml/jax/issues/32300")
def window_alone(t):
    """a window is ignored if there is no mask

    180 queries and 200 keys without a mask, `window_left=0` with `window_right=31` and with `window_right=0`: a query
    sees only the keys of its window"""
    q, k, v = t.qkv(1, 2, 180, 64, keys=200, dtype=torch.bfloat16)
    for right in (31, 0):
        own = torch.arange(180)[:, None] + 20
        keys = torch.arange(200)
        t.exact(attn_proto.flash(q, k, v, window_left=0, window_right=right), q, k, v, mask=(keys >= own) & (keys <= own + right))


@report("EricLBuehler/mistral.rs/pull/1930")
def no_numbers(t):
    """soft caps that are negative or NaN are accepted

    a cap of -5, by the operator

    a scale of NaN, by the operator

    a scale of NaN, by the drop-in

    an infinite scale, by the operator

    an infinite scale, by the drop-in"""
    q, k, v = t.qkv(1, 2, 20, 64)
    t.refused(lambda: attn_proto.flash(q, k, v, soft_cap=-5), "soft_cap -5")
    for scale in (NAN, INF):
        t.refused(lambda: attn_proto.flash(q, k, v, scale=scale), "scale")
        t.right(t.sdpa(q, k, v, scale=scale, served=False), original(q, k, v, scale=scale), 1e-9)


@report("SKaiNET-developers/SKaiNET/issues/860")
def scale_of_zero(t):
    """0 should stand for the usual scale, but scores are multiplied by 0

    `scale=0`, by the operator

    `scale=0`, by DLPack

    `scale=0`, by the drop-in"""
    from attn_proto import dlpack

    q, k, v = t.qkv(1, 2, 20, 64)
    t.refused(lambda: attn_proto.flash(q, k, v, scale=0.0), "None is the usual one")
    t.refused(lambda: dlpack.flash(q, k, v, scale=0), "None is the usual one")
    t.right(t.sdpa(q, k, v, scale=0.0, served=False), v.mean(2, keepdim=True).expand(v.shape), 1e-5)


@report("pytorch/pytorch/pull/105202")
def negative_scale(t):
    """a negative scale gives a wrong result

    a scale of -0.3, by the operator and by the drop-in"""
    q, k, v = t.qkv(1, 2, 40, 64)
    t.exact(attn_proto.flash(q, k, v, scale=-0.3), q, k, v, scale=-0.3)
    t.exact(t.sdpa(q, k, v, scale=-0.3), q, k, v, scale=-0.3)


@report("ml-explore/mlx/issues/343")
def slopes(t):
    """ALiBi's slopes are wrong if the number of heads is no power of two

    causal attention with ALiBi for 6 heads: the slopes of the code of ALiBi's authors"""
    q, k, v = t.qkv(1, 6, 40, 64)
    slope = torch.tensor([2.0 ** -n for n in (2, 4, 6, 8, 1, 3)])
    away = (torch.arange(40)[:, None] - torch.arange(40)).clamp(min=0)
    t.exact(attn_proto.flash(q, k, v, causal=True, alibi=True), q, k, v, causal=True, mask=-slope[:, None, None] * away)


@report("lucidrains/rotary-embedding-torch/issues/11")
def offsets(t):
    """a second call with another offset gets the angles of the first call

    `rope()` of two sequences with offsets 0 and 0, then with offsets 100 and 7: the angles of each call's offsets"""
    q, k = t.normal(2, 2, 20, 64), t.normal(2, 2, 20, 64)
    for at in ([0, 0], [100, 7]):
        got = attn_proto.rope(q, k, t.table(at))
        for each, (want, allowed) in zip(got, definitions.rope((q, k), at, 10000, 64, False, "none", 1)):
            t.right(each, want, allowed)


# ---- NaN, infinity, and masks that are numbers

@report("pytorch/pytorch/issues/141128")
def nan_query(t):
    """NaN in the queries gives zeros on a CPU

    one query is NaN, in f32 and in bf16: the row of this query is NaN, all other rows are right"""
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = t.qkv(2, 4, 40, 64, dtype=dtype)
        q[0, 1, 7] = NAN
        t.exact(attn_proto.flash(q, k, v), q, k, v)
        t.exact(t.sdpa(q, k, v), q, k, v)


@report("pytorch/pytorch/issues/101967")
def hidden_nan(t):
    """NaN in a key that the mask hides reaches the output

    24 keys, the second key is NaN and hidden; 24 rows by the operator and by the drop-in, 2 rows by the operator: no
    NaN"""
    for rows in (2, 24):
        q, k, v = t.qkv(1, 1, rows, 8, keys=24)
        k[:, :, 1], v[:, :, 1] = NAN, 1e36
        seen = torch.ones(1, 1, 1, 24, dtype=torch.bool, device=t.device)
        seen[..., 1] = False
        t.exact(attn_proto.flash(q, k, v, bias=torch.where(seen, 0.0, -INF)), q, k, v, mask=seen)
        if rows > 16:
            t.exact(t.sdpa(q, k, v, attn_mask=seen), q, k, v, mask=seen)


@report("pytorch/pytorch/issues/110213")
def least_numbers(t):
    """a row whose mask is all `finfo.min` is NaN on a GPU, and the mean of the values on a CPU

    20 rows, one row with a mask of `finfo.min`, by the operator and by the drop-in: this row is the mean of the values
    """
    q, k, v = t.qkv(1, 1, 20, 8)
    bias = torch.ones(1, 1, 20, 20, device=t.device)
    bias[:, :, 3] = torch.finfo(torch.float32).min
    o = attn_proto.flash(q, k, v, bias=bias)
    t.exact(o, q, k, v, mask=bias)
    t.right(o[:, :, 3], v.mean(2), 1e-6)
    t.like_eager(t.sdpa(q, k, v, attn_mask=bias, served=t.device == "cpu"), o)


@report("pytorch/pytorch/issues/109517")
def least_first(t):
    """NaN if the mask is `finfo.min` for the first 128 keys

    this mask for 441 tokens, 2 heads of width 64"""
    q, k, v = t.qkv(2, 2, 441, 64)
    bias = torch.zeros(2, 1, 1, 441, device=t.device)
    bias[..., :128] = torch.finfo(torch.float32).min
    t.exact(t.sdpa(q, k, v, attn_mask=bias), q, k, v, mask=bias)


@report("pytorch/pytorch/issues/103749")
def padding_rows(t):
    """rows of padding, whose mask is all `False`, are NaN

    6 rows over 10 keys, as in the report; the last row sees no key: this row is 0"""
    q, k, v = t.qkv(1, 2, 6, 8, keys=10)
    mask = torch.ones(6, 10, dtype=torch.bool, device=t.device).tril()
    mask[5] = False
    bias = F.pad(torch.where(mask, 0.0, -INF), (0, 2))[None, None]
    t.exact(attn_proto.flash(q, k, v, scale=0.125, bias=bias), q, k, v, scale=0.125, mask=mask)


@report("microsoft/onnxruntime/issues/28904")
def hidden_rows(t):
    """a row that sees no key is the mean of the values, because hidden keys get a finite score, not -inf

    causal attention and a mask that hides the first 9 keys: the first 9 rows are 0"""
    q, k, v = t.qkv(1, 2, 40, 64)
    mask = torch.ones(40, 40, dtype=torch.bool, device=t.device).tril()
    mask[:, :9] = False
    bias = torch.where(mask, 0.0, -INF)[None, None]
    o = attn_proto.flash(q, k, v, causal=True, bias=bias)
    t.exact(o, q, k, v, mask=mask)
    t.right(o[:, :, :9], torch.zeros(1, 2, 9, 64), 1e-30)
    if t.device == "cpu":
        t.exact(t.sdpa(q, k, v, attn_mask=mask), q, k, v, mask=mask)


@report("pytorch/pytorch/issues/116176")
def overflow(t):
    """NaN in f16, because scores overflow

    queries and keys down to -900 in f16, width 64"""
    q, k, v = (t.normal(2, 2, 128, 64).abs().clamp(max=1).mul(-900).half() for _ in range(3))
    v = (v / 900).half()
    t.exact(attn_proto.flash(q, k, v), q, k, v)
    t.exact(t.sdpa(q, k, v), q, k, v)


# ---- arguments that are ignored, strides, limits of sizes

@report("pytorch/pytorch/issues/122753")
def ignored_mask(t):
    """a fused kernel ignores the mask

    a mask, by the drop-in

    `attn_mask` by DLPack, whose functions have no such argument"""
    from attn_proto import dlpack

    q, k, v = t.qkv(1, 2, 40, 64)
    mask = t.normal(1, 1, 1, 40)
    t.exact(t.sdpa(q, k, v, attn_mask=mask), q, k, v, mask=mask)
    t.refused(lambda: dlpack.flash(q, k, v, attn_mask=mask), "takes no attn_mask")


@report("ROCm/pytorch/issues/3230")
def transposed(t):
    """if the values are a transposed view of a tensor, the result differs

    16 heads of 62 tokens in bf16, once with values that are a transposed view, once with queries, keys and values
    whose rows have 128 elements and lie 129 elements apart"""
    q, k, _ = t.qkv(1, 16, 62, 128, dtype=torch.bfloat16)
    v = t.normal(1, 62, 16, 128, dtype=torch.bfloat16).transpose(1, 2)
    for o in (attn_proto.flash(q, k, v), t.sdpa(q, k, v)):
        t.exact(o, q, k, v)
    apart = [t.normal(1, 16, 62, 129, dtype=torch.bfloat16)[..., :128] for _ in range(3)]
    if t.device == "cpu":
        t.exact(attn_proto.flash(*apart), *apart)
    else:
        t.refused(lambda: attn_proto.flash(*apart), "multiples of 16 bytes")


@report("pytorch/pytorch/pull/187506")
def apart(t):
    """rows whose elements are not contiguous give wrong results on a CPU

    queries, keys and values transposed in memory, by the operator

    the same inputs, by the drop-in"""
    q, k, v = (t.normal(1, 2, 64, 40).mT for _ in range(3))
    t.refused(lambda: attn_proto.flash(q, k, v), "along the last dimension")
    t.exact(t.sdpa(q, k, v, served=False), q, k, v)


@report("facebookresearch/xformers/issues/813")
def odd_bias(t):
    """a bias whose number of keys is no multiple of 8 is refused

    43 keys with a bias for each query"""
    q, k, v = t.qkv(2, 2, 30, 64, keys=43)
    mask = t.normal(2, 1, 30, 43)
    t.exact(t.sdpa(q, k, v, attn_mask=mask, served=t.device == "cpu"), q, k, v, mask=mask)


@report("numpy/numpy/issues/20742", needs="numpy")
def read_only(t):
    """read-only arrays cannot be passed by DLPack

    read-only NumPy arrays as queries, keys and values"""
    import numpy
    from attn_proto import dlpack

    q, k, v = (t.normal(1, 2, 40, 64).cpu() for _ in range(3))
    arrays = [each.numpy() for each in (q, k, v)]
    for array in arrays:
        array.flags.writeable = False
    t.exact(torch.from_numpy(numpy.array(dlpack.flash(*arrays))), q, k, v)


@report("pytorch/pytorch/issues/142228")
def many_heads(t):
    """65,536 heads or sequences are refused as an invalid configuration

    65,536 heads of 10 tokens, by the drop-in

    the same inputs, by the operator"""
    x = t.normal(1, 65536, 10, 16)
    if t.device == "cpu":  # PyTorch refuses this call on a GPU
        t.right(t.sdpa(x, x, x, served=False), original(x, x, x), 1e-9)
    t.refused(lambda: attn_proto.flash(x, x, x), "allowed are sizes up to [65535, 65535")


@report("pytorch/pytorch/issues/124464")
def dropout(t):
    """dropout is also applied in evaluation

    `dropout_p=1` by the drop-in: zeros, as PyTorch gives"""
    q, k, v = t.qkv(1, 2, 40, 64)
    t.right(t.sdpa(q, k, v, dropout_p=1.0, served=False), torch.zeros(q.shape), 1e-30)


# ---- derivatives, modes and tracing

@report("pytorch/pytorch/issues/165530")
def forward_derivative(t):
    """`torch.func.jvp` of a fused kernel is not implemented

    `jvp` of the operator

    `jvp` of the drop-in, inside `sdpa_kernel(SDPBackend.MATH)`

    `jvp` of the drop-in, while PyTorch chooses the backend"""
    q, k, v = t.qkv(1, 2, 40, 64)
    tangent = t.normal(*q.shape)
    t.refused(lambda: torch.func.jvp(lambda x: attn_proto.flash(x, k, v), (q,), (tangent,)), "has a forward derivative")
    definition = lambda x: (x @ k.mT / 8).softmax(-1) @ v  # noqa: E731
    want = torch.func.jvp(definition, (q,), (tangent,))[1]
    with sdpa_kernel(SDPBackend.MATH):
        got = torch.func.jvp(lambda x: t.sdpa(x, k, v, served=False), (q,), (tangent,))[1]
    t.like_eager(got, want)
    t.refused(lambda: torch.func.jvp(lambda x: t.sdpa(x, k, v, served=False), (q,), (tangent,)), "forward AD", " by PyTorch")


@report("linkedin/Liger-Kernel/issues/272")
def versions(t):
    """a kernel that writes in place does not change the tensor's version, so gradients are wrong

    a backward pass through a cache that `decode_fused` wrote to"""
    k, v, new = t.normal(1, 2, 32, 64), t.normal(1, 2, 32, 64), t.normal(1, 2, 1, 64)
    weight = t.normal(64).requires_grad_()
    loss = (weight * k).square().sum()
    attn_proto.decode_fused(t.normal(1, 2, 1, 64), new, new, k, v, t.table([20]))
    t.refused(loss.backward, "modified by an inplace operation", " by PyTorch")


@report("pytorch/pytorch/issues/151558")
def under_vmap(t):
    """a mask under `vmap` is refused

    `vmap` of the drop-in over queries, keys, values and masks, and `vmap` of the operator"""
    q, k, v = (t.normal(3, 2, 2, 24, 32) for _ in range(3))
    masks = t.normal(3, 1, 1, 24, 24)
    attn_proto.reset_reasons()
    with warnings.catch_warnings(), attn_proto.enable():
        warnings.simplefilter("ignore")  # PyTorch has no rule for all of its kernels
        got = torch.vmap(lambda *x: F.scaled_dot_product_attention(*x[:3], attn_mask=x[3]))(q, k, v, masks)
        other = torch.vmap(attn_proto.flash)(q, k, v)
    t.handed(served=False)
    for i in range(3):
        t.exact(got[i], q[i], k[i], v[i], mask=masks[i])
        t.exact(other[i], q[i], k[i], v[i])


@report("pytorch/pytorch/issues/99012")
def autocast(t):
    """a float32 mask fails under autocast on a CPU

    the drop-in with a float32 mask, under autocast to bf16: a result in bf16, as PyTorch gives"""
    q, k, v = t.qkv(1, 8, 64, 32)
    mask = t.normal(1, 1, 1, 64)
    with torch.autocast(t.device, torch.bfloat16):
        o, want = t.sdpa(q, k, v, attn_mask=mask), original(q, k, v, attn_mask=mask)
    if o.dtype != want.dtype:
        raise Fails(f"the type is {o.dtype}; PyTorch's is {want.dtype}")
    t.right(o, want, 0.02)


@report("pytorch/pytorch/issues/195460")
def operations(t):
    """`FlopCounterMode` counts nothing for attention on a CPU

    12 heads, 64 tokens, width 64, by the drop-in: 12,582,912 operations"""
    from torch.utils.flop_counter import FlopCounterMode

    q = t.normal(1, 12, 64, 64)
    with FlopCounterMode(display=False) as mode, attn_proto.enable():
        F.scaled_dot_product_attention(q, q, q)
    t.right(torch.tensor(mode.get_total_flops()), torch.tensor(12_582_912), 1e-9)


@report("pytorch/pytorch/issues/113007")
def traced(t):
    """`make_fx` fails on attention

    the drop-in with a mask, traced by `make_fx`; then the graph runs"""
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = t.qkv(1, 2, 24, 64)
    mask = t.normal(1, 1, 1, 24)
    with attn_proto.enable():
        program = make_fx(lambda *x: F.scaled_dot_product_attention(*x[:3], attn_mask=x[3]))(q, k, v, mask)
    t.exact(program(q, k, v, mask), q, k, v, mask=mask)


@report("pytorch/pytorch/issues/115262")
def whole_graph(t):
    """attention cannot be traced as a whole if `is_causal` depends on the number of queries

    `torch.compile(fullgraph=True)`, called with 1 and with 20 queries"""
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)

    given = [t.qkv(1, 2, rows, 64, keys=20) for rows in (1, 20)]
    with attn_proto.enable():
        for q, k, v in given:
            torch.compiler.reset()
            compiled = torch.compile(attention, fullgraph=True, backend="eager")
            t.like_eager(compiled(q, k, v), original(q, k, v, is_causal=q.shape[2] > 1))
    torch.compiler.reset()


@report("pytorch/pytorch/pull/177495")
def exported(t):
    """`torch.export` fails for attention with a mask and a range of lengths

    an export with 20 tokens that runs with 33 tokens"""
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    tokens = torch.export.Dim("tokens", min=2, max=512)
    sizes = [{2: tokens}] * 3 + [{2: tokens, 3: tokens}]
    given = [(*t.qkv(1, 2, rows, 64), t.normal(1, 1, rows, rows)) for rows in (20, 33)]
    with attn_proto.enable():
        program = torch.export.export(Layer(), given[0], dynamic_shapes={"q": sizes[0], "k": sizes[1], "v": sizes[2], "mask": sizes[3]})
    q, k, v, mask = given[1]
    t.exact(program.module()(q, k, v, mask), q, k, v, mask=mask)


# ---- linear attention, memory

@report("MoonshotAI/FlashKDA/pull/32")
def no_tokens(t):
    """a batch of empty sequences ends the program; the final state should be the initial state

    linear attention over 0 tokens with an initial state: the initial state"""
    empty, state = t.normal(2, 2, 0, 64, dtype=torch.bfloat16), t.normal(2, 2, 64, 64)
    t.right(attn_proto.linear(empty, empty, empty, None, state)[1], state, 1e-30)


@report("fla-org/flash-linear-attention/issues/351")
def initial_state(t):
    """with an initial state the result is wrong

    linear attention over 8 tokens in f32, with gates and an initial state"""
    q, k, v = t.qkv(2, 2, 8, 64)
    gate, state = -t.normal(2, 2, 8).abs(), t.normal(2, 2, 64, 64)
    got = attn_proto.linear(q, k, v, gate, state)
    for each, (want, allowed) in zip(got, definitions.linear(q, k, v, gate, state, True, False, "identity", 1 / 8)):
        t.right(each, want, allowed)


@report("pytorch/pytorch/issues/27971")
def memory(t):
    """the memory of the process grows with each new input shape

    8 sequences with masks, for 50 lengths from 900 tokens on: the memory grows by at most a quarter of the size of all
    masks"""
    lengths = range(900, 950 if t.device == "cpu" else 1100)

    def run(tokens):
        q, k, v = t.qkv(8, 1, tokens, 8)
        attn_proto.flash(q, k, v, bias=torch.zeros(8, 1, tokens, tokens + -tokens % 4, device=t.device))

    def used():
        if t.device != "cpu":
            return -torch.cuda.mem_get_info()[0]
        if sys.platform == "darwin":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return resource.getpagesize() * int(pathlib.Path("/proc/self/statm").read_text().split()[1])

    run(lengths[0])
    before = used()
    for tokens in lengths:
        run(tokens)
    t.right(torch.tensor(max(used() - before, 0)), torch.tensor(0), sum(4 * 8 * tokens * tokens for tokens in lengths) / 4)


# ---- running the reports

def outcome(each, device):
    """Runs a report's trials. Returns whether this package passes (None if not tried), the outcome in words, and the
    figure."""
    if each.needs:
        try:
            __import__(each.needs)
        except ImportError:
            return None, f"not tried, as {each.needs} is not installed", 0
    trial = Trial(device)
    attn_proto.reset_reasons()
    try:
        with warnings.catch_warnings(), torch.set_grad_enabled(each.needs is None):
            each.run(trial)
    except Fails as error:
        return False, str(error), trial.worst
    except Exception as error:
        return False, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", trial.worst
    finally:
        attn_proto.disable()
    return True, "; ".join(trial.became), trial.worst


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("words", nargs="*", help="reports with one of these words in address or text; default all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--write", action="store_true", help="write the table of docs/reports.md anew")
    options = parser.parse_args()
    if options.write and (options.words or options.device != "cpu"):
        parser.error("the table is of all reports on the cpu: --write takes no words and no device")
    results, failed, untried = [], 0, 0
    for each in REPORTS:
        text = f"{each.address} {' '.join(each.run.__doc__.split())}".lower()
        if options.words and not any(word.lower() in text for word in options.words):
            continue
        start = time.monotonic()
        holds, became, figure = outcome(each, options.device)
        results.append((each, became if holds else f"**fails**: {became}"))
        failed += holds is False
        untried += holds is None
        print(f"{'holds' if holds else 'fails' if holds is False else 'skipped'} {figure:.2g} {each.address}: {became} "
              f"({time.monotonic() - start:.1f} s)", flush=True)
    print(f"{len(results)} reports, {failed} fail, {untried} not tried")
    if options.write:
        if untried:
            sys.exit("reports: the table is not written, because not all reports could be tried")
        page_tables.write("reports", [{"report": each.address, "now": became} for each, became in results])
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
