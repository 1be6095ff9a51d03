"""The loss of a head's logits, its gradients made in the forward or in the backward."""

import pytest
import torch
from conftest import assert_as_good, kernels_made

import rowjit.torch as rt


def operands(dtype=torch.float32, tokens=(2, 7)):
    hidden = torch.randn(*tokens, 24).to(dtype).requires_grad_()
    weight, bias = (torch.randn(40, 24) / 4).to(dtype).requires_grad_(), torch.randn(40).to(dtype).requires_grad_()
    target = torch.randint(0, 40, tokens)
    target[..., :2] = -100
    return hidden, weight, target, bias


def formula(hidden, weight, target, bias, scale=1.0, **options):
    logits = torch.nn.functional.linear(hidden, weight, bias)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide.flatten(0, -2), target.flatten(), **options) * scale


@pytest.mark.parametrize("gradient", ["forward", "backward"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "sum", "scale": 1 / 7}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_and_its_gradients_are_as_good_as_eager(dtype, options, gradient):
    given = operands(dtype)
    exact_given = [tensor.detach().double().requires_grad_() if tensor.is_floating_point() else tensor for tensor in given]
    ours = rt.linear_cross_entropy(*given, gradient=gradient, **options)
    eager, exact = formula(*given, **options), formula(*exact_given, **options)
    assert_as_good(ours, eager, exact)
    found, by_eager = (torch.autograd.grad(loss * 0.5, (given[0], given[1], given[3])) for loss in (ours, eager))
    by_exact = torch.autograd.grad(exact * 0.5, (exact_given[0], exact_given[1], exact_given[3]))
    for of_ours, of_eager, of_exact in zip(found, by_eager, by_exact, strict=True):
        assert_as_good(of_ours, of_eager, of_exact)


def test_in_low_memory_gradients_are_as_good_as_eager_by_kernels_of_their_own():
    given = operands(torch.bfloat16)
    exact_given = [tensor.detach().double().requires_grad_() if tensor.is_floating_point() else tensor for tensor in given]
    rt.linear_cross_entropy(*given)
    before = kernels_made()
    ours, eager, exact = rt.linear_cross_entropy(*given, memory="low"), formula(*given), formula(*exact_given)
    assert kernels_made() > before
    assert_as_good(ours, eager, exact)
    found, by_eager = (torch.autograd.grad(loss, (given[0], given[1], given[3])) for loss in (ours, eager))
    by_exact = torch.autograd.grad(exact, (exact_given[0], exact_given[1], exact_given[3]))
    for of_ours, of_eager, of_exact in zip(found, by_eager, by_exact, strict=True):
        assert_as_good(of_ours, of_eager, of_exact)
    with pytest.raises(ValueError, match="memory is"):
        rt.linear_cross_entropy(*given, memory="none")


def test_only_gradients_that_are_wanted_are_made():
    hidden, weight, target, _ = operands()
    rt.linear_cross_entropy(hidden, weight.detach(), target).backward()
    assert hidden.grad is not None
    assert weight.grad is None
    with torch.no_grad():
        assert not rt.linear_cross_entropy(hidden, weight, target).requires_grad


def test_gradients_of_the_forward_are_given_once():
    hidden, weight, target, _ = operands()
    loss = rt.linear_cross_entropy(hidden, weight, target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match='gradient="backward"'):
        loss.backward()
    loss = rt.linear_cross_entropy(hidden, weight, target, gradient="backward")
    loss.backward(retain_graph=True)
    loss.backward()


def test_other_numbers_of_tokens_compile_nothing():
    rt.linear_cross_entropy(*operands()).backward()
    made = kernels_made()
    for tokens in ((1, 3), (4, 9), (30,)):
        rt.linear_cross_entropy(*operands(tokens=tokens), scale=None).backward()
    assert kernels_made() == made


def test_what_options_ask_for_stands_behind_the_loss():
    hidden, weight, target, bias = operands()
    loss, lse, argmax = rt.linear_cross_entropy(hidden, weight, target, bias, lse=True, argmax=True)
    logits = torch.nn.functional.linear(hidden, weight, bias)
    torch.testing.assert_close(lse, torch.logsumexp(logits, -1).detach())
    assert torch.equal(argmax.long(), logits.argmax(-1))
    assert loss.requires_grad
    assert not lse.requires_grad


def test_the_module_is_the_function():
    given = operands()
    torch.testing.assert_close(rt.nn.LinearCrossEntropyLoss(label_smoothing=0.1)(*given), formula(*given, label_smoothing=0.1))


def test_a_gradient_of_another_time_is_refused():
    with pytest.raises(ValueError, match="forward, backward"):
        rt.linear_cross_entropy(*operands(), gradient="later")


def test_gradients_made_in_the_forward_have_no_graph():
    hidden, weight, target = torch.randn(4, 16, requires_grad=True), torch.randn(50, 16), torch.randint(0, 50, (4,))
    loss = rt.linear_cross_entropy(hidden, weight, target)
    with pytest.raises(RuntimeError, match='gradient="backward"'):
        torch.autograd.grad(loss, hidden, create_graph=True)
    loss = rt.linear_cross_entropy(hidden, weight, target, gradient="backward")
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(gradient.sum(), hidden)
