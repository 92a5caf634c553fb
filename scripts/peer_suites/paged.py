"""Decoding over a cache on a GPU, bf16: this project's kernels against FlashAttention-3 and FlashInfer.

Each row has one or several queries for each sequence: its last tokens. The row is computed over a contiguous cache,
over a cache on pages of 16 tokens, and, with one query, over a contiguous cache to which a new, rotated (RoPE) token is
appended first. A ratio is a peer's time over the time of this project's kernel with the same kind of cache. Results are
compared with this project's result over the contiguous cache. If this project's side is left out, the first other
side's result takes its place. Results with a new token are not compared.
"""

import statistics

from . import clocks, pages, sides
from .clocks import torch
from .work import agreement

MARK, DEVICE, SECONDS = "peers-paged", "cuda:0", 0.05
PAGE_SIZE = 16
# Sequences, tokens of each sequence, query heads, key/value heads, head_dim, queries of each sequence.
AXES = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "q_len")
ROWS = [*((*row, 1) for row in ((1, 8192, 32, 8, 128), (1, 131072, 32, 8, 128), (16, 4096, 32, 8, 128),
                                (64, 8192, 32, 8, 128), (128, 2048, 32, 8, 128), (32, 4096, 32, 4, 64))),
        *((*row, queries) for row in ((16, 8192, 32, 8, 128), (1, 131072, 64, 8, 128), (32, 16384, 16, 2, 128),
                                      (8, 4096, 32, 32, 128), (64, 2048, 32, 8, 64), (4, 16384, 8, 1, 256))
          for queries in (1, 2, 4, 8, 16))]
KINDS = ("contiguous", "paged", "append")  # what a side decodes over; this project has a side for each
PEERS = {"fa3_contiguous": "contiguous", "fa3_paged": "paged", "flashinfer_paged": "paged", "fa3_append": "append"}


def flash_attention_3():
    return sides.function_of(sides.FLASH_ATTENTION_3, "flash_attn_with_kvcache")


def about():
    return {"fa3": flash_attention_3()[1] or "no FlashAttention-3", "flashinfer": sides.version("flashinfer-python")}


def angles(tokens, dim):
    """Returns the cosines and the sines of RoPE's angles, each [tokens, dim / 2] in bf16, as FlashAttention-3 takes
    them."""
    frequencies = 10000 ** (-torch.arange(dim // 2, device="cuda", dtype=torch.float64) / (dim // 2))
    turns = torch.outer(torch.arange(tokens, device="cuda", dtype=torch.float64), frequencies)
    return turns.cos().bfloat16(), turns.sin().bfloat16()


def makers(attn, fa3, row):
    """Returns for each side, by name, the function that makes the side."""
    batch, tokens, q_heads, kv_heads, dim, queries = row
    torch.manual_seed(tokens + batch)

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    q = random(batch, queries, q_heads, dim)
    new_k, new_v = random(batch, 1, kv_heads, dim), random(batch, 1, kv_heads, dim)
    k, v = random(batch, tokens, kv_heads, dim), random(batch, tokens, kv_heads, dim)
    per_sequence = tokens // PAGE_SIZE
    table = torch.arange(batch * per_sequence, device="cuda", dtype=torch.int32).reshape(batch, per_sequence)
    k_pages, v_pages = (x.view(batch * per_sequence, PAGE_SIZE, kv_heads, dim) for x in (k, v))
    lengths = torch.full((batch,), tokens, device="cuda", dtype=torch.int32)
    cosines, sines = angles(tokens, dim)

    def ours(function, *tensors, **options):
        return lambda: sides.Call(function, q, *tensors, bshd=True, cache_bshd=True, **options)

    # The sides that append write to copies of the cache, because the other sides read the cache itself.
    found = {"ours_contiguous": ours(attn.paged_decode, k, v, lengths),
             "ours_paged": ours(attn.paged_decode, k_pages, v_pages, lengths, table),
             "ours_append": lambda: ours(attn.decode_fused, new_k, new_v, k.clone(), v.clone(), lengths,
                                         cosines=cosines.float(), sines=sines.float())(),
             "flashinfer_paged": lambda: sides.FlashInfer(q, k_pages, v_pages, table, PAGE_SIZE)}
    if fa3:
        found["fa3_contiguous"] = lambda: sides.Call(fa3, q, k, v, causal=True, cache_seqlens=lengths)
        found["fa3_paged"] = lambda: sides.Call(fa3, q, k_pages, v_pages, causal=True, cache_seqlens=lengths,
                                                page_table=table)
        found["fa3_append"] = lambda: sides.Call(fa3, q, k.clone(), v.clone(), causal=True, k=new_k, v=new_v,
                                                 cache_seqlens=lengths - 1, rotary_cos=cosines, rotary_sin=sines,
                                                 rotary_interleaved=False)
    one_query = ("ours_append", "fa3_append", "flashinfer_paged")
    return {name: make for name, make in found.items() if queries == 1 or name not in one_query}


def figures(turns):
    """Returns the microseconds of each side, and each peer's time over the time of our side with the same kind of
    cache."""
    found = clocks.medians(turns, "us", 1e6)
    for name, kind in PEERS.items():
        if name in turns[0] and f"ours_{kind}" in turns[0]:
            found[f"{name}_ratio"] = statistics.median(clocks.ratios(turns, f"ours_{kind}")[name])
    return found


def measure(attn, fa3, machine, row, seconds):
    found = clocks.ready(makers(attn, fa3, row), machine.clock)
    compared = {name: side for name, side in found.items() if not name.endswith("append")}
    agree = not compared or agreement(compared, "ours_contiguous")
    turns = clocks.take_turns(found, seconds)
    return {**dict(zip(AXES, row)), "turns": len(turns), "agree": agree, **figures(turns)}


def rows(machine, options):
    fa3, _ = flash_attention_3()
    for row in ROWS:
        yield measure(sides.operators(), fa3, machine, row, options.seconds)


def table(rows, about):
    peers = f"{about['fa3']} and {about['flashinfer']}, PyTorch {about['torch']}, bf16, pages of {PAGE_SIZE}"
    text = (f"{pages.measured(about, peers, 'paged')} {pages.MICROSECONDS} "
            f"{pages.ratios(about)}\n\n" + pages.leads(about, rows, {name.replace("_", ", "): f"{name}_ratio" for name in PEERS}))
    cells = [[f"{row['batch']} x {row['kv_len']}{pages.differ(row)}", f"{row['q_heads']}/{row['kv_heads']}",
              row["head_dim"], row["q_len"], *(pages.cell(row, f"ours_{kind}_us", ".1f") for kind in KINDS),
              *pages.of_peers(row, PEERS, "us", ".1f", ".3f")] for row in rows]
    heads = pages.heads([name.replace("_", ", ") for name in PEERS], "theirs / ours")
    ours = [f"ours, {kind}" for kind in KINDS]
    return text + pages.markdown(["sequences x tokens", "heads", "head_dim", "queries", *ours, *heads], cells)
