"""A gated MLP as one node: its gradients, what it keeps, how it stands to checkpointing."""

import copy

import pytest
import torch
from conftest import assert_as_good, kernels_made
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import rowjit.torch as rt

ACTIVATIONS = {
    "swiglu": torch.nn.functional.silu,
    "geglu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "reglu": torch.nn.functional.relu,
}


def operands(dtype=torch.float32, rows=(2, 7)):
    x = torch.randn(*rows, 16).to(dtype).requires_grad_()
    gate, up, down = (torch.randn(shape).div(4).to(dtype).requires_grad_() for shape in ((24, 16), (24, 16), (20, 24)))
    return x, gate, up, down


def formula(x, gate, up, down, operation="swiglu"):
    linear = torch.nn.functional.linear
    return linear(ACTIVATIONS[operation](linear(x, gate)) * linear(x, up), down)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default, torch.ops.aten.addmm.default)
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("operation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_and_gradients_are_as_good_as_eager(operation, dtype):
    given = operands(dtype)
    exact_given = [tensor.detach().double().requires_grad_() for tensor in given]
    found, eager, exact = rt.gated_mlp(*given, operation), formula(*given, operation), formula(*exact_given, operation)
    assert_as_good(found, eager, exact)
    cotangent = torch.randn(found.shape).to(dtype)
    ours, by_eager = (torch.autograd.grad(y, given, cotangent) for y in (found, eager))
    by_exact = torch.autograd.grad(exact, exact_given, cotangent.double())
    for of_ours, of_eager, of_exact in zip(ours, by_eager, by_exact, strict=True):
        assert_as_good(of_ours, of_eager, of_exact)


def test_a_backward_that_is_to_run_again_overwrites_nothing():
    given = operands()
    y = rt.gated_mlp(*given)
    first = torch.autograd.grad(y.sum(), given, retain_graph=True)
    for found, again in zip(first, torch.autograd.grad(y.sum(), given), strict=True):
        assert torch.equal(found, again)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


@pytest.mark.parametrize("asked", range(4))
def test_only_gradients_that_are_wanted_are_made(asked):
    given = [tensor.detach().requires_grad_(place == asked) for place, tensor in enumerate(operands())]
    rt.gated_mlp(*given).sum().backward()
    expected = [tensor.detach().requires_grad_(place == asked) for place, tensor in enumerate(given)]
    formula(*expected).sum().backward()
    for found, by_eager in zip(given, expected, strict=True):
        torch.testing.assert_close(found.grad, by_eager.grad)


def test_checkpointing_computes_neither_the_activation_nor_the_product_behind_it_again():
    given = operands()
    with Products() as products:
        y = checkpoint(rt.gated_mlp, *given, use_reentrant=False)
        assert products.count == 3
        y.sum().backward()
    assert products.count == 3 + 2 + 6
    expected = torch.autograd.grad(formula(*given).sum(), given)
    for found, by_eager in zip(given, expected, strict=True):
        torch.testing.assert_close(found.grad, by_eager)


def test_a_second_derivative_is_refused():
    given = operands()
    (gradient,) = torch.autograd.grad(rt.gated_mlp(*given).square().sum(), given[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|second derivative"):
        gradient.sum().backward()


def test_an_operand_changed_before_the_backward_is_an_error():
    given = operands()
    y = rt.gated_mlp(*given)
    with torch.no_grad():
        given[3].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_other_numbers_of_rows_compile_nothing():
    rt.gated_mlp(*operands()).sum().backward()
    made = kernels_made()
    for rows in ((1, 3), (4, 5), (9,)):
        given = operands(rows=rows)
        rt.gated_mlp(*given).sum().backward()
    assert kernels_made() == made


def test_gates_far_from_zero_have_finite_gradients():
    gates = torch.tensor([[-1e30, -1e4, -200.0, -89.0, 200.0]])
    for operation in (rt.silu, rt.swiglu, rt.gelu, rt.glu):
        x = (torch.cat((torch.ones_like(gates), gates), -1) if operation is rt.glu else gates.clone()).requires_grad_()
        (operation(x, torch.ones_like(x)) if operation is rt.swiglu else operation(x)).sum().backward()
        assert x.grad.isfinite().all()


def test_operations_on_one_operand_are_refused():
    with pytest.raises(ValueError, match="gate and up"):
        rt.gated_mlp(*operands(), operation="silu")


@pytest.mark.parametrize("view", [
    lambda x: x[:0], lambda x: x.t().contiguous().t(), lambda x: x[:1].expand(5, 16), lambda x: x[0], lambda x: x[::2, None],
])
def test_views_are_read_as_they_lie(view):
    _, *weights = operands()
    x = torch.randn(6, 16)
    leaves = [x.clone().requires_grad_() for _ in "ab"]
    for leaf, function in zip(leaves, (rt.gated_mlp, formula), strict=True):
        function(view(leaf), *weights).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


def test_meta_tensors_and_compiled_functions_have_gradients():
    meta = [tensor.detach().to("meta").requires_grad_() for tensor in operands()]
    rt.gated_mlp(*meta).sum().backward()
    assert meta[0].grad.is_meta
    given = operands()
    torch._dynamo.reset()
    found = torch.autograd.grad(torch.compile(rt.gated_mlp, backend="aot_eager")(*given).sum(), given)
    for ours, by_eager in zip(found, torch.autograd.grad(formula(*given).sum(), given), strict=True):
        torch.testing.assert_close(ours, by_eager)


def test_without_gradients_it_is_its_operations():
    given = operands()
    with torch.no_grad():
        torch.testing.assert_close(rt.gated_mlp(*given), formula(*given))
    again = copy.deepcopy([tensor.detach() for tensor in given])
    torch.testing.assert_close(rt.gated_mlp(*again), formula(*given).detach())
