"""Operations beside others that read the same x: gradients as good as eager's, added where they are made."""

import pytest
import torch
from conftest import assert_as_good

import rowjit.torch as rt
from rowjit.torch.beside import linear_beside, rms_norm_beside

linear = torch.nn.functional.linear


def products(x, weights, biases, beside):
    found = []
    for weight, bias in zip(weights, biases, strict=True):
        if beside:
            y, x = linear_beside(x, weight, bias)
        else:
            y = linear(x, weight, bias)
        found.append(y)
    return found


def operands(dtype):
    x = torch.randn(2, 7, 16).to(dtype).requires_grad_()
    weights = [torch.randn(columns, 16).div(4).to(dtype).requires_grad_() for columns in (16, 8, 8)]
    biases = [None, torch.randn(8).to(dtype).requires_grad_(), None]
    return x, weights, biases


def of(x, weights, biases):
    return [each for each in (x, *weights, *biases) if each is not None and each.requires_grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_one_input_are_as_good_as_eager(dtype):
    given = operands(dtype)
    x, weights, biases = given
    exact_given = (
        x.detach().double().requires_grad_(),
        [each.detach().double().requires_grad_() for each in weights],
        [None if each is None else each.detach().double().requires_grad_() for each in biases],
    )
    cotangents = [torch.randn(2, 7, columns).to(dtype) for columns in (16, 8, 8)]
    ours = torch.autograd.grad(products(*given, True), of(*given), cotangents)
    eager = torch.autograd.grad(products(*given, False), of(*given), cotangents)
    exact = torch.autograd.grad(products(*exact_given, False), of(*exact_given), [each.double() for each in cotangents])
    for found, by_eager, by_exact in zip(ours, eager, exact, strict=True):
        assert_as_good(found, by_eager, by_exact)


@pytest.mark.parametrize("asked", range(5))
def test_products_have_the_gradients_that_are_wanted(asked):
    x, weights, biases = operands(torch.float32)
    for place, each in enumerate(of(x, weights, biases)):
        each.requires_grad_(place == asked)
    (leaf,) = of(x, weights, biases)
    found, expected = (
        torch.autograd.grad(sum(y.square().sum() for y in products(x, weights, biases, beside)), leaf)[0]
        for beside in (True, False)
    )
    torch.testing.assert_close(found, expected)


def test_a_product_that_nobody_reads_passes_the_others_gradients_on():
    x, weights, biases = operands(torch.float32)
    for read in range(3):
        found, expected = (products(x, weights, biases, beside)[read].square().sum() for beside in (True, False))
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))


def test_a_backward_of_products_may_run_again():
    x, weights, biases = operands(torch.float32)
    total = sum(y.square().sum() for y in products(x, weights, biases, True))
    first = torch.autograd.grad(total, of(x, weights, biases), retain_graph=True)
    for found, again in zip(first, torch.autograd.grad(total, of(x, weights, biases)), strict=True):
        assert torch.equal(found, again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"offset": 1.0, "casting": "gemma"}])
def test_a_norm_beside_its_residual_is_as_good_as_eager(dtype, options):
    x, weight = torch.randn(3, 5, 64).to(dtype).requires_grad_(), torch.randn(64).to(dtype).requires_grad_()
    d_y, d_given = torch.randn_like(x), torch.randn_like(x)
    ours = torch.autograd.grad(rms_norm_beside(x, weight, eps=1e-5, **options), (x, weight), (d_y, d_given))
    apart = torch.autograd.grad((rt.rms_norm(x, weight, eps=1e-5, **options), x * 1), (x, weight), (d_y, d_given))
    exact_x, exact_weight = (each.detach().double().requires_grad_() for each in (x, weight))
    normed = exact_x * torch.rsqrt(exact_x.square().mean(-1, keepdim=True) + 1e-5) * (options.get("offset", 0) + exact_weight)
    exact = torch.autograd.grad((normed, exact_x * 1), (exact_x, exact_weight), (d_y.double(), d_given.double()))
    for found, by_two, by_exact in zip(ours, apart, exact, strict=True):
        assert_as_good(found, by_two, by_exact)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_norm_beside_its_residual_has_the_gradients_that_are_wanted(asked):
    given = [torch.randn(4, 16).requires_grad_(asked == 0), torch.randn(16).requires_grad_(asked == 1)]
    y, x = rms_norm_beside(*given)
    (found,) = torch.autograd.grad(y.sin().sum() + (2 * x).sum(), given[asked])
    (expected,) = torch.autograd.grad(rt.rms_norm(*given).sin().sum() + (2 * given[0]).sum(), given[asked])
    torch.testing.assert_close(found, expected)
