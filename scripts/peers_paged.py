#!/usr/bin/env python3
"""Decoding over a cache on a GPU, bf16: attn::paged_decode and decode_fused against FlashAttention-3 and FlashInfer.

    scripts/peers_paged.py [--device cuda:0] [--libraries FOLDER] [--seconds 0.05] [--out peers_paged.json] [--page]

One query for each sequence, over a contiguous cache, over pages of 16, and with a new token that is turned (RoPE) and
appended to a contiguous cache. All sides take turns on the same values; ratios are taken turn by turn, each peer against
ours of the same kind. All are timed as scripts/peers_gpu.py times its peers: a CUDA graph fills twice the last-level
cache before each launch. Answers are compared, but for those with a new token. A side that is not there, or does not run
a row, is left out, and one line says why. --page writes the table into docs/peers.md; --from needs neither PyTorch nor a
GPU. Ours are PyTorch's operators of this project (docs/extension.md).
"""

import json
import os
import sys

import peers_gpu as peers

torch = peers.torch
PAGE_SIZE = 16
BEGIN, END = "<!-- peers-paged:begin -->\n", "<!-- peers-paged:end -->\n"
# Sequences, tokens of each, query heads, key/value heads, head_dim.
ROWS = [(1, 8192, 32, 8, 128), (1, 131072, 32, 8, 128), (16, 4096, 32, 8, 128), (16, 8192, 32, 8, 128),
        (64, 8192, 32, 8, 128), (128, 2048, 32, 8, 128), (32, 4096, 32, 4, 64)]
KINDS = ("contiguous", "paged", "append")  # of cache, and of ours
SIDES = {"fa3_contiguous": "contiguous", "fa3_paged": "paged", "flashinfer_paged": "paged", "fa3_append": "append"}


class Ours(peers.Peer):
    """An operator of this project's."""

    def __init__(self, function, *tensors, **options):
        self.run = lambda: function(*tensors, bshd=True, cache_bshd=True, **options)


class FlashAttention3(peers.Peer):
    """q is [batch, 1, heads, head_dim], caches are [batch or pages, tokens, heads, head_dim]."""

    def __init__(self, function, q, k_cache, v_cache, **options):
        self.run = lambda: first_of(function(q, k_cache, v_cache, causal=True, **options))


class FlashInfer(peers.Peer):
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


def first_of(result):
    return result[0] if isinstance(result, tuple) else result


def angles(tokens, dim):
    """Cosines and sines of each position, as FlashAttention-3 takes them."""
    frequencies = 10000 ** (-torch.arange(dim // 2, device="cuda", dtype=torch.float64) / (dim // 2))
    turns = torch.outer(torch.arange(tokens, device="cuda", dtype=torch.float64), frequencies)
    return turns.cos().bfloat16(), turns.sin().bfloat16()


def cache_function():
    """FlashAttention-3's, and what it is called; or neither."""
    for module, package in ("flash_attn_interface", "flash-attn-3"), ("fa3_fwd_interface", "fa3-fwd"), \
                           ("flash_attn_interface", "fa3-fwd"):
        try:
            function = peers.importlib.import_module(module).flash_attn_with_kvcache
            return function, f"{package} {peers.importlib.metadata.version(package)}"
        except (ImportError, AttributeError):
            pass
    return None, None


def makers(fa3, row):
    """What makes each peer, by its name."""
    batch, tokens, q_heads, kv_heads, dim = row
    torch.manual_seed(tokens + batch)

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    q, new_k, new_v = random(batch, 1, q_heads, dim), random(batch, 1, kv_heads, dim), random(batch, 1, kv_heads, dim)
    k, v = random(batch, tokens, kv_heads, dim), random(batch, tokens, kv_heads, dim)
    pages = tokens // PAGE_SIZE
    table = torch.arange(batch * pages, device="cuda", dtype=torch.int32).reshape(batch, pages)
    k_pages, v_pages = (x.view(batch * pages, PAGE_SIZE, kv_heads, dim) for x in (k, v))
    lengths = torch.full((batch,), tokens, device="cuda", dtype=torch.int32)
    cosines, sines = angles(tokens, dim)
    attn = peers.importlib.import_module("attn_proto")
    # Those that append write to copies: the others read what was drawn.
    found = {"ours_contiguous": lambda: Ours(attn.paged_decode, q, k, v, lengths),
             "ours_paged": lambda: Ours(attn.paged_decode, q, k_pages, v_pages, lengths, table),
             "ours_append": lambda: Ours(attn.decode_fused, q, new_k, new_v, k.clone(), v.clone(), lengths,
                                         cosines=cosines.float(), sines=sines.float()),
             "flashinfer_paged": lambda: FlashInfer(q, k_pages, v_pages, table, PAGE_SIZE)}
    if fa3:
        found["fa3_contiguous"] = lambda: FlashAttention3(fa3, q, k, v, cache_seqlens=lengths)
        found["fa3_paged"] = lambda: FlashAttention3(fa3, q, k_pages, v_pages, cache_seqlens=lengths, page_table=table)
        found["fa3_append"] = lambda: FlashAttention3(fa3, q, k.clone(), v.clone(), k=new_k, v=new_v,
                                                      cache_seqlens=lengths - 1, rotary_cos=cosines, rotary_sin=sines,
                                                      rotary_interleaved=False)
    return found


def captured(makers, flush, script="peers_paged"):
    """The sides that can be made and captured, by name."""
    sides = {}
    for name, make in makers.items():
        try:
            side = make()
            side.capture(flush)
            side.seconds()
            sides[name] = side
        except Exception as error:  # not there, does not build, or does not take the row
            why = [*str(error).splitlines(), type(error).__name__][0]
            print(f"{script}: {name} is left out: {why}", file=sys.stderr, flush=True)
    return sides or sys.exit(f"{script}: no side is there")


def figures(turns):
    """Microseconds of each side, and each peer's time over that of ours of the same kind."""
    found = {name + "_us": 1e6 * peers.statistics.median(turn[name] for turn in turns) for name in turns[0]}
    for name, kind in SIDES.items():
        if name in turns[0] and "ours_" + kind in turns[0]:
            found[name + "_ratio"] = peers.statistics.median(turn[name] / turn["ours_" + kind] for turn in turns)
    return found


def measure(options, fa3, flush, row):
    sides = captured(makers(fa3, row), flush)
    answers = [side.output() for name, side in sides.items() if not name.endswith("append")]
    turns = peers.take_turns(sides, options.seconds)
    return {**dict(zip(("batch", "kv_len", "q_heads", "kv_heads", "head_dim"), row)), "turns": len(turns),
            "agree": peers.all_agree(answers[1:], answers[0]), **figures(turns)}


def table(rows, about):
    lines = [f"Measured on {about['device']} with {about['fa3']} and {about['flashinfer']}, PyTorch {about['torch']}, "
             f"bf16, pages of {PAGE_SIZE}, by `scripts/peers_paged.py`. Microseconds from cold caches, and the medians "
             "of the ratios turn by turn.\n\n",
             "| sequences x tokens | heads | head_dim | " +
             " | ".join(["ours, contiguous", "ours, paged", "ours, append",
                         *(f"{name.replace('_', ', ')} | theirs / ours" for name in SIDES)]) + " |\n",
             "|---" * (6 + 2 * len(SIDES)) + "|\n"]
    for row in rows:
        cells = [f"{row['batch']} x {row['kv_len']}", f"{row['q_heads']}/{row['kv_heads']}", row["head_dim"],
                 *(f"{row[f'ours_{kind}_us']:.1f}" if f"ours_{kind}_us" in row else "" for kind in KINDS)]
        for name in SIDES:
            cells += [f"{row[name + '_us']:.1f}", f"{row[name + '_ratio']:.3f}"] if name + "_us" in row else ["", ""]
        cells[0] += "" if row["agree"] else " (results differ)"
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(lines)


def version(package):
    try:
        return f"{package} {peers.importlib.metadata.version(package)}"
    except peers.importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def run(script, description, about, rows, table, begin, end):
    """main() of a script whose side of ours are operators. about() says what takes part; rows(options, flush) yields a
    row after the other, which are kept as they come."""
    options = peers.arguments(description, 0.05, library=peers.ROOT / "build/gpu/bin", option="--libraries")
    if options.source:
        result = json.loads(options.source.read_text())
    elif torch is None or not torch.cuda.is_available():
        sys.exit(f"{script}: needs PyTorch and a GPU")
    else:
        os.environ["ATTENTION_PROTO_LIBRARIES"] = str(options.library)
        sys.path.insert(0, str(peers.ROOT / "python"))
        result = {"about": {"device": torch.cuda.get_device_name(0), "torch": torch.__version__.split("+")[0], **about()},
                  "rows": []}
        peers.timed_event()
        flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
        for row in rows(options, flush):
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")
            torch.cuda.empty_cache()
    return peers.finish(options, result, table(result["rows"], result["about"]), begin, end)


def main():
    def about():
        return {"fa3": cache_function()[1] or "no FlashAttention-3", "flashinfer": version("flashinfer-python")}

    def rows(options, flush):
        fa3, _ = cache_function()
        for row in ROWS:
            yield measure(options, fa3, flush, row)

    return run("peers_paged", __doc__.split("\n")[0], about, rows, table, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
