"""The operations in torch.compile: one graph, no break, a new batch size no new kernel."""

import pytest
import torch
from conftest import kernels_made

import rowjit
import rowjit.torch as rt
from rowjit.torch import registered  # noqa: F401: torch.ops.rowjit


def model(x, w, target):
    h = rt.rms_norm(x, w, eps=1e-6)
    q, k = rt.rope_qk(h.unflatten(-1, (4, 8)), h.unflatten(-1, (4, 8)), torch.ones(1, x.shape[1], 8), torch.ones(1, x.shape[1], 8))
    h = rt.swiglu(q.flatten(-2), k.flatten(-2))
    return rt.cross_entropy(h, target, label_smoothing=0.1), h


def test_a_compiled_step_is_the_eager_one_for_every_batch_size():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    made = None
    for batch in (2, 3, 5):
        x, w = torch.randn(batch, 4, 32, requires_grad=True), torch.randn(32, requires_grad=True)
        target = torch.randint(0, 32, (batch, 4))
        ours, eager = compiled(x, w, target), model(x, w, target)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(torch.autograd.grad(ours[0], (x, w)), torch.autograd.grad(eager[0], (x, w)))
        made = made or kernels_made()
    assert kernels_made() == made
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("name", "operands", "numbers", "words"),
    [
        ("rms_norm", [torch.randn(3, 16), torch.randn(16)], [1e-6, 0.0], "xx llama"),
        ("swiglu", [torch.randn(3, 16), torch.randn(3, 16)], [], "xx"),
        ("rope_qk", [torch.randn(2, 3, 2, 8), torch.randn(2, 3, 1, 8), torch.randn(1, 3, 8), torch.randn(1, 3, 8)], [0.0],
         "xxxx half"),
    ],
)
def test_a_registered_operation_keeps_torchs_rules(name, operands, numbers, words):
    given = [operand.requires_grad_() for operand in operands]
    torch.library.opcheck(getattr(torch.ops.rowjit, name).default, (given, numbers, words))


def test_every_operation_with_a_functional_form_is_registered():
    for name, operation in rowjit.operations().items():
        assert hasattr(torch.ops.rowjit, name) != bool(operation.in_place)
