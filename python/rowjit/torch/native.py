"""The node of autograd in C++ (node.cpp). The host's compiler — CXX, else c++, g++ or clang++ — makes it when a gradient is
first needed, once for every torch and Python, into rowjit's cache directory. Or ahead of that:

    python -m rowjit.torch.native

Where it cannot be made, one line says why, and the node in Python does the same in more of the host's time.
"""

import fcntl
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import torch

from rowjit._core import cache_directory

_logger = logging.getLogger("rowjit")
_SOURCE = pathlib.Path(__file__).with_name("node.cpp")
_TORCH = pathlib.Path(torch.__file__).parent
_OPTIONS = (
    *("-std=c++20", "-O1", "-fPIC", "-shared", "-w"),
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")


enabled = True  # False, before a gradient is first needed, asks for the node in Python


class UnavailableError(Exception):
    """Why there is no node in C++, in one line."""


def load() -> ModuleType | None:
    """The module of node.cpp; None where it is not asked for, and where it cannot be made, having said why."""
    if not enabled:
        return None
    try:
        return _imported(build())
    except (UnavailableError, OSError) as reason:
        _logger.warning("the node of autograd stays in Python: %s", reason)
        return None


def _imported(path: pathlib.Path) -> ModuleType:
    loader = ExtensionFileLoader("rowjit.torch._node", str(path))
    try:
        module = module_from_spec(spec_from_file_location(loader.name, path, loader=loader))
        loader.exec_module(module)
    except ImportError as reason:
        path.unlink(missing_ok=True)  # the next process compiles it again
        raise UnavailableError(str(reason)) from reason
    return module


def build() -> pathlib.Path:
    """The compiled file, which is in the cache afterwards."""
    path = _folder() / f"node-{_key()}.so"
    if path.exists():
        return path
    command = [*_compiler(), *_OPTIONS, *_headers(), str(_SOURCE), f"-L{_TORCH / 'lib'}", *_LIBRARIES]
    # Processes of one run wait for the first of them.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            # It is the first gradient that waits, and whoever asked for it does not know for what.
            _logger.warning("compiling the node of autograd for torch %s, once, in about 20 seconds", torch.__version__)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = pathlib.Path(folder) / "node.so"
                _run([*command, "-o", str(made)])
                made.replace(path)
    return path


def _key() -> str:
    made_for = (torch.__version__, torch.version.git_version, sysconfig.get_config_var("SOABI"), platform.machine(), *_OPTIONS)
    return hashlib.sha256(repr(made_for).encode() + _SOURCE.read_bytes()).hexdigest()[:32]


def _folder() -> pathlib.Path:
    root = cache_directory()
    if not root:
        raise UnavailableError("no cache directory is kept on disk")
    folder = pathlib.Path(root) / "torch"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # kernels are kept in no directory that others may write
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UnavailableError(f"{folder} is not this user's alone")
    return folder


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    for command in (given,) if given else (["c++"], ["g++"], ["clang++"]):
        if shutil.which(command[0]):
            return command
    raise UnavailableError(f"there is no compiler {given[0] if given else 'c++, g++ or clang++'}")


def _headers() -> list[str]:
    folders = (_TORCH / "include", pathlib.Path(sysconfig.get_path("include")))
    for folder, header in zip(folders, ("torch/csrc/autograd/function.h", "Python.h"), strict=True):
        if not (folder / header).exists():
            raise UnavailableError(f"{folder / header} is not installed")
    return [f"-isystem{folder}" for folder in folders]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    raise UnavailableError(f"{command[0]} ends with {done.returncode}: {' '.join(errors[:1])}")


if __name__ == "__main__":
    try:
        print(build())
    except UnavailableError as reason:
        sys.exit(f"the node of autograd stays in Python: {reason}")
