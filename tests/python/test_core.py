"""The binding: graphs and engines as Python sees them, errors, what is freed."""

import gc
import json
import sys
import threading

import pytest
import torch

import rowjit
import rowjit.torch
from rowjit import _core


def test_a_graph_is_parsed_and_printed():
    graph = rowjit.Graph.parse("rows tokens\ninput x: f32[tokens, 8]\noutput y = x * x\n")
    assert rowjit.Graph.parse(graph.text()).digest() == graph.digest()
    assert graph.inputs == (("x", 5, None, (("tokens", -1), ("", 8)), 1),)
    assert graph.row_axes == ("tokens",)


def test_a_failure_is_an_exception_with_a_code_and_of_pythons_kind():
    with pytest.raises(rowjit.ParseError, match="x.rj:1:1") as raised:
        rowjit.Graph.parse("nonsense", "x.rj")
    assert raised.value.code == "parse"
    assert isinstance(raised.value, rowjit.Error)
    assert isinstance(raised.value, ValueError)
    with pytest.raises(rowjit.Error, match="cuda:99") as raised:
        _core.Engine("cuda:99")
    assert raised.value.code == "environment"


def test_a_cache_directory_that_cannot_be_one_is_refused_in_words(monkeypatch):
    monkeypatch.setenv("ROWJIT_CACHE_DIR", "relative/folder")
    with pytest.raises(rowjit.Error, match="relative/folder.*absolute path"):
        _core.cache_directory()


def test_an_engine_says_what_it_is():
    info = rowjit.statistics("cpu")
    assert info["rowjit"] == rowjit.__version__
    assert "target" in info


def test_handles_are_freed_with_their_owners():
    graph = rowjit.Graph.parse("rows tokens\ninput x: f32[tokens, 8]\noutput y = x + x\n")
    kinds = [type(graph)]
    before = [sys.getrefcount(kind) for kind in kinds]
    for _ in range(100):
        graph.differentiate((), (), (), (), ())
    gc.collect()
    assert [sys.getrefcount(kind) for kind in kinds] == before


def test_operands_are_not_kept_by_a_call():
    x = torch.randn(4, 16)
    count = sys.getrefcount(x)
    for _ in range(10):
        rowjit.torch.silu(x)
    assert sys.getrefcount(x) == count


def test_threads_call_the_same_kernel_at_once():
    inputs = [torch.randn(64, 128) for _ in range(8)]
    rowjit.torch.silu(inputs[0])
    found = [None] * len(inputs)

    def run(i):
        for _ in range(50):
            found[i] = rowjit.torch.silu(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, y in zip(inputs, found, strict=True):
        torch.testing.assert_close(y, torch.nn.functional.silu(x))


def test_an_executable_tells_its_schedules():
    graph = rowjit.Graph.of_op("rms_norm", 64, "f32", {})
    info = json.loads(rowjit.engine("cpu").compile(graph).info())
    assert info["kernels"][0]["schedule"]


def test_every_operation_reads_as_a_function_with_documentation():
    for name in rowjit.operations():
        function = getattr(rowjit.torch, name)
        assert function.__doc__
        assert function.__name__ == name
