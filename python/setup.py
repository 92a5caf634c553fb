"""Builds the libraries with CMake, and puts them, the kernels' sources and archives into the package.

Operators of PyTorch are built where the Python that builds has PyTorch: pip install --no-build-isolation ./python.
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


class Build(build_py):
    def run(self):
        super().run()
        package, build = pathlib.Path(self.build_lib) / "attn_proto", TREE / "build/python"
        torch = importlib.util.find_spec("torch")
        found = [f"-DATTN_TORCH={pathlib.Path(torch.origin).parent}"] if torch else []
        targets = ["attn", "attn_torch"] if torch else ["attn"]
        subprocess.run(["cmake", "-S", TREE, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DATTN_TESTS=OFF",
                        "-DCMAKE_UNITY_BUILD=ON", *found, *os.environ.get("CMAKE_ARGS", "").split()], check=True)
        subprocess.run(["cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target", *targets], check=True)
        (package / "lib").mkdir(exist_ok=True)
        shutil.copy(build / "bin/libattn.so.1", package / "lib/libattn.so.1")
        shutil.copy(build / "bin/libattn.so.1", package / "lib/libattn.so")
        if torch:
            shutil.copy(build / "bin/libattn_torch.so", package / "lib")
        for folder in SOURCES:
            shutil.copytree(TREE / folder, package / "source" / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))
        if (archives := os.environ.get("ATTENTION_PROTO_ARCHIVES")):  # a folder of files that save_archive() wrote
            shutil.copytree(archives, package / "archives", dirs_exist_ok=True)


class WithLibraries(Distribution):
    """Wheels are of one platform."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Build}, distclass=WithLibraries)
