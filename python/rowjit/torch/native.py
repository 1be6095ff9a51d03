"""What costs the host less in C++ than in Python (node.cpp): a node of autograd, and memory for what kernels write. The host's
compiler — CXX, else c++, g++ or clang++ — makes it once for every torch and Python, into rowjit's cache directory, beside
the program that first needs a gradient: until it is there, and where it cannot be made, which one line says, the node in
Python and torch.empty do the same. Ahead of that, in an image for instance:

    python -m rowjit.torch.native
"""

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
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


enabled = True  # False, before the first operation, asks for the node in Python


class UnavailableError(Exception):
    """Why there is no node in C++, in one line."""


class _Loading:
    """The module of node.cpp in this process: not looked for, being compiled, there, or not to be had."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.module: ModuleType | None = None
        self.done = False  # nothing is to be expected any more
        self.compiler: threading.Thread | None = None

    def load(self, compile_it: bool) -> ModuleType | None:
        with self.lock:
            if self.done or self.compiler is not None:
                return self.module
            try:
                path = _path()
                if path.exists():
                    self.module = _imported(path)
                    self.done = True
            except (UnavailableError, OSError) as reason:
                if compile_it:
                    self.refuse(reason)
            if compile_it and not self.done:
                _logger.warning("compiling the node of autograd for torch %s, once, in about 20 seconds, meanwhile", torch.__version__)
                self.compiler = threading.Thread(target=self.compile, name="rowjit compiles its node", daemon=True)
                self.compiler.start()
            return self.module

    def compile(self) -> None:
        try:
            self.module = _imported(build())
        except (UnavailableError, OSError) as reason:
            self.refuse(reason)
        self.done = True

    def refuse(self, reason: Exception) -> None:
        self.done = True
        if not _interpreter_ends.is_set():
            _logger.warning("the node of autograd stays in Python: %s", reason)


_loading = _Loading()


def load(wait: bool = False) -> ModuleType | None:
    """The module of node.cpp, if it is there; else it begins to be made, or is waited for. None too where it is not asked for."""
    if not enabled:
        return None
    module = _loading.load(True)
    if wait and _loading.compiler is not None:
        _loading.compiler.join()
        module = _loading.module
    return module


def is_awaited() -> bool:
    """Whether `load` may give more later than it has."""
    return enabled and not _loading.done


def allocate() -> object:
    """See rowjit.programs.Framework. What is not compiled yet is not compiled for this."""
    node = _loading.load(False) if enabled else None
    return torch.empty if node is None else node.allocator()


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
    path = _path()
    if path.exists():
        return path
    command = [*_compiler(), *_OPTIONS, *_headers(), str(_SOURCE), f"-L{_TORCH / 'lib'}", *_LIBRARIES]
    # Processes of one run wait for the first of them.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    made = pathlib.Path(folder) / "node.so"
                    _run([*command, "-o", str(made)])
                    made.replace(path)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile has the file open too
    return path


def _path() -> pathlib.Path:
    return _folder() / f"node-{_key()}.so"


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


_interpreter_ends = threading.Event()
_running: list[subprocess.Popen] = []


def _run(command: list[str]) -> None:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        _running.append(process)
        _, said = process.communicate()
        _running.remove(process)
    if process.returncode == 0:
        return
    errors = [line for line in said.splitlines() if "error" in line]
    raise UnavailableError(f"{command[0]} ends with {process.returncode}: {' '.join(errors[:1])}")


@atexit.register
def _abandon() -> None:
    """A program that ends before the compiler does not wait for it, and leaves nothing of it behind."""
    _interpreter_ends.set()
    for process in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if _loading.compiler is not None:
        _loading.compiler.join(5)


if __name__ == "__main__":
    try:
        print(build())
    except UnavailableError as reason:
        sys.exit(f"the node of autograd stays in Python: {reason}")
