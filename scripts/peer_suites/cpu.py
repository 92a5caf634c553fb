"""Attention on a CPU, f32: this project's kernel against ONNX Runtime, and against OpenBLAS's sgemm.

The rows have 8 heads, full and causal. The time of a call is the time that the caller waits, with warm caches. Each
process measures a row in 5 rounds. In a round every side runs for the process's share of --seconds, sgemm for a quarter
of this share. The time of a side in a round is the median of its calls. ONNX Runtime's MultiHeadAttention takes K and V
in two orders; the time of the faster order counts. Results are compared with attention in double.
"""

import os
import statistics

from . import clocks, pages, sides
from .clocks import np, threadpoolctl
from .work import Work, against_reference

MARK, DEVICE, SECONDS = "peers", "cpu", 1
HEADS = 8
NAMES = {"ort": "ONNX Runtime", "sgemm": "sgemm"}
GEMM_ROWS = 1536


def shapes(quick):
    return [(dim, causal, length) for dim in (64, 128) for causal in (False, True)
            for length in ((1024,) if quick else (1024, 2048, 4096))]


def about():
    pools = threadpoolctl.threadpool_info() if threadpoolctl else []
    blas = next((pool for pool in pools if pool["user_api"] == "blas"), None)
    return {"cores": os.cpu_count(), "ort": sides.onnx_version(), "numpy": np.__version__,
            "blas": f"{blas['internal_api']} {blas['version']} ({blas['architecture']})" if blas else "(not there)"}


def sgemm():
    a, b = np.random.default_rng(1).standard_normal((2, GEMM_ROWS, GEMM_ROWS), np.float32)
    return sides.Call(np.matmul, a, b, out=np.zeros((GEMM_ROWS, GEMM_ROWS), np.float32))


def onnx_runtime(work, tensors, threads, seconds):
    forms = [sides.onnx_multi_head(work, *tensors, threads, heads_first) for heads_first in (False, True)]
    return min(forms, key=lambda form: clocks.Repeated(form, seconds / 4).seconds())


def measure(ours, machine, shape, rounds, seconds):
    dim, causal, length = shape
    work = Work(causal=causal)
    q, k, v = np.random.default_rng(1000 * length + dim).standard_normal((3, 1, HEADS, length, dim), np.float32)
    makers = {"ours": lambda: sides.Call(ours.flash, q, k, v, **work.options())}
    if sides.ort:
        makers["ort"] = lambda: onnx_runtime(work, (q, k, v), machine.threads, seconds)
    found = clocks.ready(makers, lambda side: clocks.Repeated(side, 0))
    checked = against_reference(found, work, q, k, v)
    timed = {name: clocks.Repeated(clock.side, seconds) for name, clock in found.items()}
    if threadpoolctl:  # without threadpoolctl numpy could use more threads than the other sides
        timed["sgemm"] = clocks.Repeated(sgemm(), seconds / 4)
    turns = clocks.take_turns(timed, 0, at_least=rounds)
    flops = {name: work.flops(HEADS, length, dim) for name in found} | {"sgemm": 2 * GEMM_ROWS**3}
    row = {"head_dim": dim, "causal": causal, "length": length, "turns": rounds, **checked,
           **{f"{name}_gflops": 1e-9 * flops[name] / statistics.median(turn[name] for turn in turns) for name in timed}}
    for name, over_ours in clocks.ratios(turns).items():
        rates = [flops["ours"] / flops[name] * ratio for ratio in over_ours]
        row[f"{name}_ratio"] = [statistics.median(rates), min(rates), max(rates)]
    return row


def rows(machine, options):
    ours = sides.on_cpu(machine.threads)
    rounds, seconds = (3, min(options.seconds, 0.3)) if options.quick else (5, options.seconds)
    for shape in shapes(options.quick):
        yield measure(ours, machine, shape, rounds, seconds)


def table(rows, about):
    peers = (f"ONNX Runtime {about['ort']}, {about['blas']} from numpy {about['numpy']}, {about['cores']} cores, "
             f"{about['threads']} threads for each side")
    ends = "" if about.get("processes", 1) > 1 else " The lowest and the highest ratio stand in parentheses."
    text = (f"{pages.measured(about, peers, 'cpu')} Rates are in GFLOP/s. {pages.ratios(about)}{ends}\n\n"
            + pages.leads(about, rows, {name: f"{side}_ratio" for side, name in NAMES.items()}))
    cells = [[row["length"], row["head_dim"], pages.mask_of(row), pages.cell(row, "ours_gflops", ".0f"),
              *pages.of_peers(row, NAMES, "gflops", ".0f", ".2f"),
              f"{'equal' if row['agree'] else 'DIFFER'}, {max(row['max_abs'].values()):.0e}"] for row in rows]
    heads = pages.heads(NAMES.values(), "ours / {}")
    return text + pages.markdown(["n", "head_dim", "mask", "ours", *heads, "outputs"], cells)
