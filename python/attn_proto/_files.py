"""Finds the package's libraries, its archive of kernels, and a compiler."""

import ctypes
import glob
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]


def version():
    """Returns the version of the installed package, or of the source tree."""
    installed = HERE / "share/attn/VERSION"
    return (installed if installed.exists() else TREE / "VERSION").read_text().strip()


def library(name):
    """Returns the path of a library, which `name` names as on Linux. Looks in $ATTENTION_PROTO_LIBRARIES, this package
    and build/release/bin, in this order. Raises ImportError if no folder has the library."""
    if sys.platform == "darwin":
        name = name.removesuffix(".so") + ".dylib"
    folders = [HERE / "lib", TREE / "build/release/bin"]
    if named := os.environ.get("ATTENTION_PROTO_LIBRARIES"):
        folders.insert(0, pathlib.Path(named))
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    how = "scripts/test --torch" if (TREE / "scripts/test").exists() else "pip install --no-build-isolation ./python"
    raise ImportError(f"{name} is in none of {', '.join(map(str, folders))}: {how} builds it")


def find_compiler():
    """Loads the NVRTC of an installed package (PyTorch brings one), so that this package's libraries find NVRTC by its
    name."""
    for folder in sys.path:
        for path in sorted(glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.1[0-9]"), reverse=True):
            try:
                ctypes.CDLL(path)
                return
            except OSError:  # built for another system
                pass


def find_archive(torch):
    """If $ATTENTION_PROTO_ARCHIVE is not set, sets it to the package's file of compiled kernels for this GPU, if there
    is one."""
    if not torch.cuda.is_available():
        return
    name = re.sub(r"[^A-Za-z0-9]+", "_", torch.cuda.get_device_name())
    if (path := HERE / "archives" / f"{name}.archive").exists():
        os.environ.setdefault("ATTENTION_PROTO_ARCHIVE", str(path))
