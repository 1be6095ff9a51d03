"""The pieces of Python in docs/python.md, run in their order."""

import pathlib
import re
import typing

import pytest
import torch

DOCS = pathlib.Path(__file__).parents[2] / "docs/python.md"


def test_what_the_documents_show_runs(capsys):
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    scope: dict[str, typing.Any] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), scope)  # noqa: S102
    shown = capsys.readouterr().out
    assert "add_rms_norm" in shown
    assert "forward: 12 regions" in shown
    assert "'compiled'" in shown
