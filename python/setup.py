"""Builds the libraries with CMake, and installs them into the package, with the sources of the kernels.

If the Python that runs this file has PyTorch, PyTorch's operators are built too. By default pip runs this file without
PyTorch. This command runs it with PyTorch: pip install --no-build-isolation ./python. $CMAKE_ARGS has more arguments
for CMake, in the quotes of a shell: CMAKE_ARGS='-DCMAKE_CXX_FLAGS="-O1 -g"'. If $ATTENTION_PROTO_LIBRARIES names the
folder `bin` of a build, setup installs this build and builds nothing. If $ATTENTION_PROTO_ARCHIVES names a folder of
archives (save_archive()), setup installs this folder too.
"""

import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

TREE = pathlib.Path(__file__).resolve().parent.parent


def build(torch):
    """Builds with CMake and returns the build folder."""
    folder = TREE / "build/python"
    found = [f"-DATTN_TORCH={pathlib.Path(torch.origin).parent}"] if torch else []
    try:
        given = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    except ValueError as error:
        raise SystemExit(f"setup.py: CMAKE_ARGS={os.environ['CMAKE_ARGS']}: {error}; words as in a shell are allowed")
    if not shutil.which("make"):  # CMake would choose make
        os.environ.setdefault("CMAKE_GENERATOR", "Ninja")
    subprocess.run(["cmake", "-S", TREE, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DATTN_EXPERIMENTS=OFF",
                    "-DCMAKE_UNITY_BUILD=ON", *found, *given], check=True)
    subprocess.run(["cmake", "--build", folder, "--parallel", str(os.cpu_count())], check=True)
    return folder


class Build(build_py):
    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib) / "attn_proto"
        torch = importlib.util.find_spec("torch")
        libraries = os.environ.get("ATTENTION_PROTO_LIBRARIES")
        built = pathlib.Path(libraries).parent if libraries else build(torch)
        for component in ["attn", "attn_torch"] if torch else ["attn"]:
            subprocess.run(["cmake", "--install", built, "--component", component, "--prefix", package], check=True)
        if (archives := os.environ.get("ATTENTION_PROTO_ARCHIVES")):  # a folder of files that save_archive() wrote
            shutil.copytree(archives, package / "archives", dirs_exist_ok=True)


class WithLibraries(Distribution):
    """Makes wheels for one platform, because they contain libraries."""

    def has_ext_modules(self):
        return True


setup(version=(TREE / "VERSION").read_text().strip(), license="Apache-2.0", cmdclass={"build_py": Build},
      distclass=WithLibraries)
