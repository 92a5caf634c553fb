"""Forward attention, fp32, the same inputs: proto1_flash against ONNX Runtime, and both against OpenBLAS's sgemm.

Run it as scripts/peers. Ours and the peer take turns, several rounds per shape, so that a machine that speeds up or
slows down does so for both; ratios are taken round by round. Times are the caller's: from the call to its completion.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
import safetensors.numpy
import threadpoolctl

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "build/release/bin/proto1_flash"
PAGE = ROOT / "docs/peers.md"
BEGIN, END = "<!-- peers:begin -->\n", "<!-- peers:end -->\n"
HEADS = 8
# Two fp32 results, each within 1e-5 + 1e-4 |x| of the truth (common/data/compare.h).
ATOL, RTOL = 2e-5, 2e-4


def timed(call, seconds):
    """Median seconds of a call: one throw-away, then at least 3 and as many as fit."""
    call()
    samples = []
    while len(samples) < 3 or sum(samples) < seconds:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


class OnnxRuntime:
    """com.microsoft.MultiHeadAttention. Q is [1, n, heads * dim]; K and V are so too or [1, heads, n, dim]."""

    def __init__(self, q, k, v, causal, threads, heads_first):
        n, dim = q.shape[2:]

        def rows(x):
            return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(1, n, HEADS * dim))

        def tensor(name, shape):
            return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

        inputs = {"q": rows(q), "k": k if heads_first else rows(k), "v": v if heads_first else rows(v)}
        node = onnx.helper.make_node("MultiHeadAttention", list(inputs), ["o"], domain="com.microsoft",
                                     num_heads=HEADS, unidirectional=int(causal))
        graph = onnx.helper.make_graph([node], "attention", [tensor(name, x.shape) for name, x in inputs.items()],
                                       [tensor("o", [1, n, HEADS * dim])])
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.set_denormal_as_zero", "1")  # as our device does
        options.add_session_config_entry("session.force_spinning_stop", "1")  # leave the cores to the next turn
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.inputs = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in inputs.items()}
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        self.result = ort.OrtValue.ortvalue_from_numpy(np.full((1, n, HEADS * dim), np.nan, np.float32))
        self.binding.bind_ortvalue_output("o", self.result)
        self.shape = (1, n, HEADS, dim)

    def run(self):
        self.session.run_with_iobinding(self.binding)

    def output(self):
        self.run()
        return self.result.numpy().reshape(self.shape).transpose(0, 2, 1, 3)


def fastest_onnx_runtime(q, k, v, causal, threads, seconds):
    forms = [OnnxRuntime(q, k, v, causal, threads, heads_first) for heads_first in (False, True)]
    return min(forms, key=lambda form: timed(form.run, seconds / 4))


def ours(folder, causal, threads, seconds, dump=None):
    """The measurement of one run of proto1_flash on folder/qkv.safetensors."""
    command = [BINARY, "--device", f"cpu:threads={threads}", "--input", folder / "qkv.safetensors", "--json", "--quiet",
               "--axis", "variant=tuned", "--axis", "layout=bhsd", "--axis", f"causal={int(causal)}",
               "--budget", str(1.5 * seconds),  # a third is kept for comparisons, of which there are none
               "--measurements", folder / "measurements.jsonl", "--out", folder / "findings.jsonl"]
    if dump:
        command += ["--dump-output", dump]
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if run.returncode not in (0, 1):
        sys.exit(f"peers: proto1_flash ended with status {run.returncode}")
    return json.loads(run.stdout.splitlines()[0])


def seconds_of(record):
    return next((t["median_s"] for t in record["time"] if t["scope"] == "host"), None)


def sgemm(size=1536):
    a, b = np.random.default_rng(1).standard_normal((2, size, size), np.float32)
    c = np.zeros((size, size), np.float32)
    return lambda: np.matmul(a, b, out=c), 2 * size**3


def measure(n, dim, causal, options):
    """One line of the table; None for the figures of a shape that ours does not run."""
    rng = np.random.default_rng(1000 * n + dim)
    q, k, v = rng.standard_normal((3, 1, HEADS, n, dim), np.float32)
    flops = 4 * dim * HEADS * (n * (n + 1) // 2 if causal else n * n)
    gemm, gemm_flops = sgemm()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        safetensors.numpy.save_file({"q": q, "k": k, "v": v}, folder / "qkv.safetensors")
        peer = fastest_onnx_runtime(q, k, v, causal, options.threads, options.seconds)
        first = ours(folder, causal, options.threads, 0.1, folder / "o.safetensors")
        if not (first["check"] or {}).get("ok"):
            return {"status": f"{first['status']}: {first['reason']}"}
        got, want = safetensors.numpy.load_file(folder / "o.safetensors")["o"], peer.output()
        error = np.abs(got - want)
        row = {"agree": bool(np.all(error <= ATOL + RTOL * np.abs(want))), "max_abs": float(error.max()),
               "device": first["device"], "ours": [], "peer": [], "gemm": [], "status": first["status"]}
        for turn in range(options.rounds):
            rates = {}
            steps = ["ours", "peer", "gemm"]
            for step in steps if turn % 2 == 0 else reversed(steps):
                if step == "ours":
                    record = ours(folder, causal, options.threads, options.seconds)
                    if seconds_of(record) is None:
                        return {"status": f"{record['status']}: {record['reason']}"}
                    rates[step] = flops / seconds_of(record)
                elif step == "peer":
                    rates[step] = flops / timed(peer.run, options.seconds)
                else:
                    rates[step] = gemm_flops / timed(gemm, options.seconds / 4)
            for step, rate in rates.items():
                row[step].append(rate / 1e9)
    return row


def ratio(row, over):
    """Median and range of the rounds' ratios."""
    ratios = [a / b for a, b in zip(row["ours"], row[over])]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def line(n, dim, causal, row):
    shape = f"| {n} | {dim} | {'causal' if causal else 'full'} |"
    if "agree" not in row:
        return f"{shape} | | | | | {row['status']} |"
    middle = {step: f"{statistics.median(row[step]):.0f}" for step in ("ours", "peer", "gemm")}
    outputs = f"equal, {row['max_abs']:.0e}" if row["agree"] else f"DIFFER by {row['max_abs']:.0e}"
    return (f"{shape} {middle['ours']} | {middle['peer']} | {ratio(row, 'peer')} | {middle['gemm']} | "
            f"{ratio(row, 'gemm')} | {outputs} |")


def machine(rows, options):
    blas = next(pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")
    device = next((row["device"] for row in rows if "device" in row), platform.machine())
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return (f"{device}; {os.cpu_count()} cores, {options.threads} threads for each; ONNX Runtime {ort.__version__}, "
            f"{blas['internal_api']} {blas['version']} ({blas['architecture']}) from numpy {np.__version__}; "
            f"commit {commit.stdout.strip() or 'unknown'}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}; "
            f"{options.rounds} rounds of {options.seconds} s.")


def write_page(table):
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + table + END + rest.split(END)[1])


def main():
    parser = argparse.ArgumentParser(prog="scripts/peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds at n = 1024; prints, writes no page")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    options = parser.parse_args()
    options.rounds, options.seconds = (3, 0.3) if options.quick else (5, 1)
    threadpoolctl.threadpool_limits(options.threads)

    shapes = [(n, dim, causal) for dim in (64, 128) for causal in (False, True)
              for n in ((1024,) if options.quick else (1024, 2048, 4096))]
    rows, lines = [], []
    for shape in shapes:
        rows.append(measure(*shape, options))
        lines.append(line(*shape, rows[-1]))
        print(lines[-1], file=sys.stderr)
    head = ["| n | head_dim | mask | ours | ONNX Runtime | ours / ONNX Runtime | sgemm | ours / sgemm | outputs |",
            "|--:|--:|---|--:|--:|---|--:|---|---|"]
    table = "\n".join(head + lines) + "\n\n" + machine(rows, options) + "\n"
    if options.quick:
        print(table, end="")
    else:
        write_page(table)
        print(f"written to {PAGE.relative_to(ROOT)}")
    return 0 if all(row.get("agree", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
