"""PyTorch's own tests of scaled_dot_product_attention, with the drop-in in place of PyTorch's function.

    python/tests/run build/release/bin tests/pytorch_sdpa.py torch expecttest

$ATTENTION_PROTO_SDPA_TESTS names the file test/test_transformers.py of PyTorch's source, in the installed version or in
a version near it. Without the variable the exit status is 77. The script runs the classes TestSDPA* of the file for
$ATTENTION_PROTO_SDPA_SECONDS seconds, or 300 seconds if this variable is not set. Some classes have thousands of tests,
so the script takes one test of each kind (tests whose names begin alike) in turn, in a random order. A test that fails
is run again without the drop-in. If the test then passes, the script counts an error, except for tests of differences
that docs/extension.md names (KNOWN).
"""

import collections
import importlib.util
import os
import pathlib
import random
import sys
import time
import unittest

import attn_proto
from attn_proto import dropin

KNOWN = (
    "test_cpu_flash_attn_nan_propagation",  # rows whose scores are all NaN
    # These tests expect that a kernel of PyTorch, named by sdpa_kernel(), refuses a call that attn::flash takes.
    "test_flash_attention_fail_with_non_square_causal_attention", "test_flash_fail_fp32", "test_invalid_fused_inputs_dim_3",
    "test_fused_sdp_priority_order",  # this test times first calls
    "test_flash_atteention_large_bf16_nan_values",  # scores of 10^11 from one key, on a GPU
)
calls = 0


def counted(*arguments, **options):
    global calls
    calls += 1
    return served(*arguments, **options)


served, dropin.scaled_dot_product_attention = dropin.scaled_dot_product_attention, counted


def load(path):
    """Loads the file as a module, with the drop-in under every name by which the file imports the function."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with attn_proto.enable():
        spec.loader.exec_module(module)
    return module


def tests_of(module):
    kinds, found = collections.Counter(), []
    for name, one in vars(module).items():
        if name.startswith("TestSDPA") and isinstance(one, type) and issubclass(one, unittest.TestCase):
            found += unittest.defaultTestLoader.loadTestsFromTestCase(one)
    random.Random(0).shuffle(found)

    def turn(test):
        kinds[kind := test._testMethodName[:30]] += 1
        return kinds[kind]

    return sorted(found, key=turn)


def main():
    path = pathlib.Path(os.environ.get("ATTENTION_PROTO_SDPA_TESTS", ""))
    if not path.is_file():
        print("skipped, $ATTENTION_PROTO_SDPA_TESTS names no file")
        sys.exit(77)
    module, result = load(path), unittest.TestResult()
    tests = tests_of(module)
    end = time.monotonic() + float(os.environ.get("ATTENTION_PROTO_SDPA_SECONDS", 300))
    with attn_proto.enable():
        for test in tests:
            if time.monotonic() > end:
                break
            test.run(result)
    reasons, total = collections.Counter(attn_proto.reasons()), calls

    module.scaled_dot_product_attention = dropin._original
    failed = result.failures + result.errors
    broken = known = 0
    for test, trace in failed:
        again = unittest.TestResult()
        type(test)(test._testMethodName).run(again)
        if again.wasSuccessful() and test._testMethodName.startswith(KNOWN):
            known += 1
        elif again.wasSuccessful():
            broken += 1
            print(f"{test.id()}\n{trace}")
    print(f"{result.testsRun - len(result.skipped) - len(failed)} passed, {broken} fail only with the drop-in, "
          f"{known} fail on known differences, {len(failed) - broken - known} fail without the drop-in too, "
          f"{len(result.skipped)} skipped, "
          f"{len(tests) - result.testsRun} not reached")
    print(f"{total} calls, {total - sum(reasons.values())} of them served by attn::flash; the others:")
    for reason, count in reasons.most_common():
        print(f"{count:8} {reason}")
    sys.exit(bool(broken))


main()
