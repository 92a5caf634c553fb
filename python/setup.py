"""Builds the libraries with CMake, and puts them, the kernels' sources and archives into the package.

Operators of PyTorch are built where the Python that builds has PyTorch: pip install --no-build-isolation ./python.
$ATTENTION_PROTO_LIBRARIES names a folder of libraries that are built, for that Python, to be taken instead.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

TREE = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("common/kernel", "common/attention/kernels", "common/paged/kernels", "common/linear/kernels", "common/api/kernels")


def build(torch):
    """Their folder."""
    folder = TREE / "build/python"
    found = [f"-DATTN_TORCH={pathlib.Path(torch.origin).parent}"] if torch else []
    targets = ["attn", "attn_torch"] if torch else ["attn"]
    subprocess.run(["cmake", "-S", TREE, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DATTN_TESTS=OFF",
                    "-DCMAKE_UNITY_BUILD=ON", *found, *os.environ.get("CMAKE_ARGS", "").split()], check=True)
    subprocess.run(["cmake", "--build", folder, "--parallel", str(os.cpu_count()), "--target", *targets], check=True)
    return folder / "bin"


class Build(build_py):
    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib) / "attn_proto"
        torch = importlib.util.find_spec("torch")
        libraries = os.environ.get("ATTENTION_PROTO_LIBRARIES") or build(torch)
        (package / "lib").mkdir(exist_ok=True)
        shutil.copy(f"{libraries}/libattn.so.1", package / "lib/libattn.so.1")
        shutil.copy(f"{libraries}/libattn.so.1", package / "lib/libattn.so")
        if torch:
            shutil.copy(f"{libraries}/libattn_torch.so", package / "lib")
        for folder in SOURCES:
            shutil.copytree(TREE / folder, package / "source" / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))
        if (archives := os.environ.get("ATTENTION_PROTO_ARCHIVES")):  # a folder of files that save_archive() wrote
            shutil.copytree(archives, package / "archives", dirs_exist_ok=True)


class WithLibraries(Distribution):
    """Wheels are of one platform."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Build}, distclass=WithLibraries)
