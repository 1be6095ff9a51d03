"""What is made of the node of autograd in C++ where it cannot be compiled. test_autograd.py has what it computes."""

import os
import stat
import subprocess
import sys
import time

import pytest
import torch

from rowjit.torch import native


@pytest.fixture(autouse=True)
def loading(monkeypatch):
    """As a process begins."""
    monkeypatch.setattr(native, "_loading", native._Loading())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "cache_directory", lambda: str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler(tmp_path, monkeypatch, body):
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))


def refusal(caplog):
    """What `load` says, in one line, where it gives nothing."""
    assert native.load(wait=True) is None
    assert not native.is_awaited()
    said = caplog.messages[-1]
    assert said.startswith("the node of autograd stays in Python: ")
    assert "\n" not in said
    return said


def test_a_compiler_that_is_missing_is_named(cache, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert "no compiler no-such-compiler" in refusal(caplog)


def test_nobody_waits_for_the_compiler_and_its_failure_is_told_once(cache, tmp_path, monkeypatch, caplog):
    compiler(tmp_path, monkeypatch, f"while ! test -e {tmp_path}/go; do sleep 0.01; done; exit 1")
    assert native.load() is None
    assert native.load() is None
    assert native.is_awaited()
    (tmp_path / "go").touch()
    assert native.load(wait=True) is None
    assert not native.is_awaited()
    assert [message.split(":")[0].split(" for")[0] for message in caplog.messages] == [
        "compiling the node of autograd",
        "the node of autograd stays in Python",
    ]


def test_memory_alone_compiles_nothing(cache, caplog):
    assert native.allocate() is torch.empty
    assert not caplog.records
    assert native.is_awaited()


def test_a_program_that_ends_first_leaves_no_compiler_and_no_folder(cache, tmp_path, monkeypatch):
    compiler(tmp_path, monkeypatch, "sleep 60")
    program = f"""
import time
from rowjit.torch import native
native.cache_directory = lambda: {str(cache)!r}
native.load()
while not native._running: time.sleep(0.01)
"""
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert time.monotonic() - before < 50
    assert "stays in Python" not in done.stderr
    assert [path.suffix for path in (cache / "torch").iterdir()] == [".lock"]


def test_the_first_error_of_a_compiler_is_told_and_nothing_is_kept(cache, tmp_path, monkeypatch, caplog):
    compiler(tmp_path, monkeypatch, 'echo "warning: w" >&2; echo "node.cpp:1: error: first" >&2; echo "error: second" >&2; exit 3')
    said = refusal(caplog)
    assert "ends with 3" in said
    assert "error: first" in said
    assert [path.suffix for path in (cache / "torch").iterdir()] == [".lock"]


def test_a_file_that_is_no_module_is_refused_and_compiled_again(cache, tmp_path, monkeypatch, caplog):
    compiler(tmp_path, monkeypatch, 'for last; do :; done; echo nothing > "$last"')
    assert "node-" in refusal(caplog)
    assert [path.suffix for path in (cache / "torch").iterdir()] == [".lock"]


def test_headers_that_are_missing_are_named(cache, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(native.sysconfig, "get_path", lambda _: str(tmp_path))
    assert str(tmp_path / "Python.h") in refusal(caplog)


def test_without_a_cache_directory_there_is_none(monkeypatch, caplog):
    monkeypatch.setattr(native, "cache_directory", lambda: "")
    assert "no cache directory" in refusal(caplog)


def test_a_folder_that_others_may_write_is_not_used(cache, caplog):
    (cache / "torch").mkdir(parents=True)
    os.chmod(cache / "torch", 0o777)
    assert "not this user's alone" in refusal(caplog)


def test_the_cache_directory_is_this_users_alone(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    before = os.umask(0)
    try:
        native.load(wait=True)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, cache / "torch")] == [0o700, 0o700]


def test_whoever_asks_for_the_node_in_python_compiles_nothing(cache, monkeypatch, caplog):
    monkeypatch.setattr(native, "enabled", False)
    assert native.load() is None
    assert not caplog.records
    assert not cache.exists()
