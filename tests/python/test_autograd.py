"""The operations as nodes of autograd."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rowjit.torch as rt
from rowjit.torch import beside, call, native, row


@pytest.fixture(autouse=True, params=["python", "native"])
def node(request, monkeypatch):
    """Both nodes of autograd: the one in C++ is skipped where this machine cannot compile it."""
    if request.param == "python":
        monkeypatch.setattr(call, "_apply", call._Differentiable.apply)
        return
    made = native.load(wait=True)
    if made is None:
        pytest.skip("no node in C++")
    made.install(call._once)
    monkeypatch.setattr(call, "_apply", made.apply)


def norm(x, w):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


def test_gradients_are_torchs_by_finite_differences():
    x, w = torch.randn(3, 8, dtype=torch.float64, requires_grad=True), torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: rt.rms_norm(x, w), (x, w))
    assert torch.autograd.gradcheck(lambda x, w: rt.layer_norm(x, w, w), (x, w))
    assert torch.autograd.gradcheck(lambda x: rt.cross_entropy(x, torch.tensor([1, 5, -100])), (x,))


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_only_what_is_asked_for_is_differentiated(wanted):
    x, w = torch.randn(4, 16, requires_grad=wanted[0]), torch.randn(16, requires_grad=wanted[1])
    rt.rms_norm(x, w).sum().backward()
    assert (x.grad is not None, w.grad is not None) == wanted


def test_nothing_is_saved_where_nothing_needs_a_gradient():
    x = torch.randn(4, 16, requires_grad=True)
    with torch.no_grad():
        assert rt.silu(x).grad_fn is None
    with torch.inference_mode():
        assert rt.silu(torch.randn(4, 16)).is_inference()
    assert rt.silu(x.detach()).grad_fn is None


def test_a_result_that_is_not_used_has_a_gradient_of_zero():
    x, residual, w = (torch.randn(4, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True), torch.ones(16))
    total, _ = rt.add_rms_norm(x, residual, w)
    total.sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 16))


def test_a_result_of_whole_numbers_has_no_gradient():
    loss, best = rt.cross_entropy(torch.randn(4, 16, requires_grad=True), torch.tensor([1, 2, 3, 4]), argmax=True)
    assert loss.requires_grad
    assert not best.requires_grad


def test_gradients_accumulate():
    x = torch.randn(4, 16, requires_grad=True)
    rt.silu(x).sum().backward()
    once = x.grad.clone()
    rt.silu(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * once)


@pytest.mark.parametrize("form", [lambda x: rt.silu(x).sum(), lambda x: (rt.silu(x) * x).sum()])
def test_a_second_derivative_is_refused_in_words(form):
    x = torch.randn(4, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(form(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(gradient.sum(), x)


@pytest.mark.parametrize("kind", ["linear", "norm", "mlp"])
def test_a_second_derivative_is_refused_beside_one_that_there_is(kind):
    x, w, down = torch.randn(4, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True), torch.randn(16, 8)
    y = {
        "linear": lambda: beside.linear_beside(x, w)[0],
        "norm": lambda: beside.rms_norm_beside(x, w[0])[0],
        "mlp": lambda: rt.gated_mlp(x, w, w, down),
    }[kind]()
    (gradient,) = torch.autograd.grad(y.sum() + x.pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(gradient.sum(), x)


def test_a_gradient_may_be_asked_for_with_a_graph_that_is_not_used():
    x = torch.randn(4, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(rt.silu(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)[0])


def test_what_the_backward_reads_must_not_be_overwritten():
    x = torch.randn(4, 16, requires_grad=True)
    h = x * 2
    y = rt.silu(h)
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_cotangent_of_any_layout_is_read():
    x, w = torch.randn(3, 4, 16, requires_grad=True), torch.randn(16)
    for cotangent in (torch.ones(()).expand(3, 4, 16), torch.randn(4, 3, 16).transpose(0, 1), torch.randn(16, 4, 3).permute(2, 1, 0)):
        found, = torch.autograd.grad(rt.rms_norm(x, w), x, cotangent)
        expected, = torch.autograd.grad(norm(x, w), x, cotangent)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_again(reentrant):
    x, w = torch.randn(4, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    checkpoint(lambda x: rt.silu(rt.rms_norm(x, w)), x, use_reentrant=reentrant).sum().backward()
    expected = torch.autograd.grad(torch.nn.functional.silu(norm(x, w)).sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_autocast_gives_norms_the_dtypes_they_are_given():
    x, w = torch.randn(4, 16), torch.randn(16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rt.rms_norm(x.bfloat16(), w).dtype == torch.bfloat16


def test_a_backward_runs_on_a_thread_of_autograds():
    x = torch.randn(4, 16, requires_grad=True)
    y = rt.silu(x)
    with torch.autograd.set_multithreading_enabled(True):
        y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("shape", [(1, 4, 16), (4, 16)])
def test_terms_of_a_sum_share_a_gradient_where_they_have_one_shape(shape):
    x, other = torch.randn(1, 4, 16, requires_grad=True), torch.randn(shape, requires_grad=True)
    cotangent = torch.randn(1, 4, 16)
    found = torch.autograd.grad(rt.jit(lambda x, other: row.silu(x + other))(x, other), (x, other), cotangent)
    assert (found[0].data_ptr() == found[1].data_ptr()) == (x.shape == other.shape)
    torch.testing.assert_close(found, torch.autograd.grad(torch.nn.functional.silu(x + other), (x, other), cotangent))


def test_leaves_with_one_gradient_accumulate_each_its_own():
    x, residual, w = torch.randn(4, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True), torch.randn(16)
    for _ in range(2):
        sum(each.sum() for each in rt.add_rms_norm(x, residual, w)).backward()
    once = x.grad.clone()
    x.grad.zero_()
    assert torch.equal(residual.grad, once)


@pytest.mark.parametrize("transform", ["grad", "jacrev", "vmap", "vjp"])
def test_transforms_of_torch_func_are_refused_in_words(transform):
    x, w, many, head = torch.randn(4, 16), torch.randn(16), torch.ones(8, 16), torch.randn(5, 16, requires_grad=True)
    target = torch.zeros(4, dtype=torch.long)
    for computed in (
        lambda x: rt.rms_norm(x, w).sum(),
        lambda x: rt.gated_mlp(x, many, many, many.t()).sum(),
        lambda x: rt.linear_cross_entropy(x.expand(4, 16), head, target).sum(),
    ):
        with pytest.raises(RuntimeError, match="torch.func's transforms"):
            getattr(torch.func, transform)(computed, *[x] * (transform == "vjp"))(x)


def test_functionalized_operands_are_right():
    x, w = torch.randn(4, 16), torch.randn(16)
    assert torch.equal(torch.func.functionalize(rt.rms_norm)(x, w), rt.rms_norm(x, w))


def test_memory_of_negatives_is_read_as_what_it_stands_for():
    x, w, cotangent = torch.randn(4, 16), torch.randn(16), torch.randn(4, 16)
    lazy = torch._neg_view(x.clone()).requires_grad_()
    plain = (-x).requires_grad_()
    assert torch.equal(rt.rms_norm(lazy.detach(), w), rt.rms_norm(-x, w))
    found, = torch.autograd.grad(rt.rms_norm(lazy, w), lazy, torch._neg_view(cotangent))
    expected, = torch.autograd.grad(rt.rms_norm(plain, w), plain, -cotangent)
    assert torch.equal(found, expected)
    head, target = torch.randn(5, 16), torch.tensor([0, 1, 4, 2])
    assert rt.linear_cross_entropy(lazy, head, target) == rt.linear_cross_entropy(plain, head, target)
