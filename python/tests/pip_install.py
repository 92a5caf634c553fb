"""Installs the package by pip into a separate folder, with the libraries of an existing build, and calls attention from
there."""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = """
import importlib.metadata, pathlib, sys, torch, attn_proto
from attn_proto import dlpack
assert pathlib.Path(attn_proto.__file__).is_relative_to(sys.argv[1]), attn_proto.__file__
q, k, v = torch.randn(3, 1, 4, 40, 64).unbind()
want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
with attn_proto.enable():
    for o in (attn_proto.flash(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v), dlpack.flash(q, k, v)):
        assert (o - want).abs().max() < 1e-4
assert attn_proto.reasons() == {}
assert attn_proto.__version__ == importlib.metadata.version("attn-proto") == sys.argv[2], attn_proto.__version__
assert importlib.metadata.metadata("attn-proto")["License"] == "Apache-2.0"
"""


def check_cmake_arguments():
    """Builds with a cmake that only writes down its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        said, cmake = pathlib.Path(folder) / "said", pathlib.Path(folder) / "cmake"
        cmake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{said}"\n')
        cmake.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        environment.pop("ATTENTION_PROTO_LIBRARIES", None)
        build = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", f"{folder}/lib"]
        subprocess.run(build, check=True, cwd=HERE, env={**environment, "CMAKE_ARGS": '-DCMAKE_CXX_FLAGS="-O1 -g" -DA=b'})
        arguments = said.read_text().splitlines()
        assert {"-DCMAKE_CXX_FLAGS=-O1 -g", "-DA=b"} < set(arguments), arguments
        done = subprocess.run(build, cwd=HERE, env={**environment, "CMAKE_ARGS": '-DA="b'}, stderr=subprocess.PIPE, text=True)
        assert done.returncode and done.stderr.splitlines()[-1].startswith('setup.py: CMAKE_ARGS=-DA="b: '), done.stderr


check_cmake_arguments()
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
                    "--target", f"{folder}/site", HERE], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{folder}/site", "ATTENTION_PROTO_CACHE": f"{folder}/cache"}
    environment.pop("ATTENTION_PROTO_LIBRARIES", None)  # the package must find its own libraries
    program = [sys.executable, "-c", PROGRAM, folder, (HERE.parent / "VERSION").read_text().strip()]
    subprocess.run(program, check=True, cwd=folder, env=environment)
    # The kernels must come from the package, and not from the tree from which the library was built.
    (kernel,) = pathlib.Path(folder).glob("site/attn_proto/share/**/tuned.cpu.cpp")
    kernel.write_text("#error of the package\n" + kernel.read_text())
    done = subprocess.run(program, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "of the package" in done.stderr, done.stderr
