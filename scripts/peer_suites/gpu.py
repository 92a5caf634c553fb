"""Forward attention on a GPU, bf16: this project's kernel against cuDNN, FlashAttention-3 and FlashAttention-4.

FlashAttention-3 takes part if its Python module is found: flash_attn_interface, or fa3_fwd_interface of the package
fa3-fwd. FlashAttention-4 takes part if the module flash_attn.cute of the package flash-attn-4 is found. Results are
compared with cuDNN's.

With --old the suite measures no peers: it compares an old libattn.so with today's on these rows.
"""

import statistics

from . import clocks, pages, sides
from .clocks import torch
from .work import Work, agreement

MARK, DEVICE, SECONDS = "peers-gpu", "cuda:0", 0.2
TOKENS, WIDTH = 16384, 2048
AXES = ("head_dim", "q_heads", "kv_heads", "batch", "length", "causal")
SHAPES = [*((dim, WIDTH // dim, WIDTH // dim, max(1, TOKENS // length), length, causal)
            for dim in (64, 128, 256) for causal in (False, True) for length in (512, 1024, 2048, 4096, 8192, 16384)),
          *((128, 64, 8, 1, length, causal) for causal in (False, True) for length in (2048, 4096, 8192, 16384, 32768))]
NAMES = {"cudnn": "cuDNN", "fa3": "FA-3", "fa4": "FA-4"}


def flash_attention():
    """Returns two dicts by the names of the sides: the functions of the versions of FlashAttention that are installed,
    and, for `about`, the package of each version with its number, or None."""
    functions, about = {}, {}
    for name, places in ("fa3", sides.FLASH_ATTENTION_3), ("fa4", sides.FLASH_ATTENTION_4):
        function, about[name] = sides.function_of(places, "flash_attn_func")
        if function:
            functions[name] = function
    return functions, about


def about():
    version = torch.backends.cudnn.version()
    return {"cudnn": f"{version // 10000}.{version // 100 % 100}.{version % 100}", **flash_attention()[1]}


def rates(turns, flops):
    """Returns the TFLOPS of each side, and the time of each peer over the time of ours."""
    tflops = {f"{name}_tflops": flops / statistics.median(turn[name] for turn in turns) * 1e-12 for name in turns[0]}
    return tflops | clocks.median_ratios(turns)


def measure(functions, machine, shape, seconds):
    row = dict(zip(AXES, shape))
    work = Work(causal=row["causal"])
    torch.manual_seed(row["length"] + row["head_dim"])
    q, k, v = (torch.randn(row["batch"], heads, row["length"], row["head_dim"], device="cuda", dtype=torch.bfloat16)
               for heads in (row["q_heads"], row["kv_heads"], row["kv_heads"]))
    ours = sides.operators().flash
    makers = {"ours": lambda: sides.Call(ours, q, k, v, **work.options()),
              "cudnn": lambda: sides.cudnn(q, k, v, work.causal),
              **{name: lambda function=function: sides.by_tokens(function, q, k, v, causal=work.causal)
                 for name, function in functions.items()}}
    found = clocks.ready(makers, machine.clock)
    agree = agreement(found, "cudnn")
    turns = clocks.take_turns(found, seconds)
    flops = row["batch"] * work.flops(row["q_heads"], row["length"], row["head_dim"])
    return {**row, "turns": len(turns), "agree": agree, **rates(turns, flops)}


def rows(machine, options):
    functions, _ = flash_attention()
    for shape in SHAPES:
        yield measure(functions, machine, shape, options.seconds)


def table(rows, about):
    peers = {"cudnn": f"cuDNN {about['cudnn']} through PyTorch {about['torch']}",
             **{name: f"FlashAttention-{name[-1]} ({about[name]})" for name in ("fa3", "fa4") if about.get(name)}}
    text = (f"{pages.measured(about, pages.listed(list(peers.values())) + ', bf16', 'gpu')} "
            f"Rates are in TFLOPS; with a causal mask only the half that is not masked counts. {pages.ratios(about)} "
            f"{clocks.WINDOW}\n\n"
            + pages.leads(about, rows, {NAMES[peer]: f"{peer}_ratio" for peer in peers}))
    cells = [[row["head_dim"], pages.heads_of(row), pages.mask_of(row), row["length"], row["batch"],
              pages.cell(row, "ours_tflops", ".0f") + pages.differ(row), *pages.of_peers(row, peers, "tflops", ".0f", ".3f")]
             for row in rows]
    names = [NAMES[peer] for peer in peers]
    return text + pages.markdown(["head_dim", "heads", "mask", "length", "batch", "ours", *pages.heads(names, "ours / {}")], cells)
