"""The optimizer against torch's."""

import copy

import pytest
import torch
from conftest import kernels_made

import rowjit.torch.optim as ours

SHAPES = ((64, 128), (3, 5, 128), (7,), (101, 97), (1,))


def parameters(dtype):
    return [torch.nn.Parameter(torch.randn(*shape, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def steps(optimizer, given, count=4, first=0):
    """Steps on gradients that are the same for every optimizer."""
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        for parameter in given:
            gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(torch.bfloat16)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def copies(given, dtype=None):
    return [torch.nn.Parameter(each.detach().clone().to(dtype or each.dtype)) for each in given]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_steps_are_as_exact_as_torchs_fused(dtype):
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    given = parameters(dtype)
    fused, exact = copies(given), copies(given, torch.float64)
    optimizer = ours.AdamW(given, **options)
    steps(optimizer, given)
    steps(torch.optim.AdamW(fused, fused=True, **options), fused)
    steps(torch.optim.AdamW(exact, **options), exact)
    for found, theirs, wanted in zip(given, fused, exact, strict=True):
        unit = torch.finfo(dtype).eps * wanted.abs().max()
        assert (found.double() - wanted).abs().max() <= (theirs.double() - wanted).abs().max() + unit
        assert optimizer.state[found]["step"] == 4


@pytest.mark.parametrize("odd", [{"amsgrad": True}, {"maximize": True}, {"lr": torch.tensor(1e-2)}])
def test_what_kernels_do_not_take_is_torchs(odd):
    given = parameters(torch.float32)
    theirs = copies(given)
    steps(ours.AdamW(given, **{"lr": 1e-2} | odd), given)
    steps(torch.optim.AdamW(theirs, **{"lr": 1e-2} | odd), theirs)
    assert all(torch.equal(*each) for each in zip(given, theirs, strict=True))


def test_strides_and_missing_gradients_are_right_too():
    given = [torch.nn.Parameter(torch.randn(64, 128).t()), torch.nn.Parameter(torch.randn(64, 128)), torch.nn.Parameter(torch.randn(64))]
    theirs = [torch.nn.Parameter(each.detach().clone(memory_format=torch.preserve_format)) for each in given]
    for each, other in zip(given[:2], theirs[:2], strict=True):
        each.grad = torch.randn(each.shape[1], each.shape[0]).t()
        other.grad = each.grad.clone()
    ours.AdamW(given, lr=1e-2).step()
    torch.optim.AdamW(theirs, lr=1e-2).step()
    for found, wanted in zip(given, theirs, strict=True):
        torch.testing.assert_close(found, wanted)


def test_either_continues_the_others_checkpoint():
    given = parameters(torch.float32)
    expected = copies(given)
    reference = torch.optim.AdamW(expected, lr=1e-2)
    steps(reference, expected, 2)
    optimizer = ours.AdamW(given, lr=1e-2)
    steps(optimizer, given, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    theirs = copies(given)
    other = torch.optim.AdamW(theirs, lr=1e-2, fused=True)
    other.load_state_dict(saved)
    optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
    for each, values in ((reference, expected), (optimizer, given)):
        steps(each, values, 2, first=2)
    for found, wanted in zip(given, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_step_is_seen_by_autograd_by_hooks_and_by_schedulers():
    weight = torch.nn.Parameter(torch.randn(64, 64))
    optimizer = ours.AdamW([weight], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    hooked = []
    optimizer.register_step_post_hook(lambda *_: hooked.append(1))
    loss = (weight * weight).sum()
    loss.backward(retain_graph=True)
    made = None
    for _ in range(3):
        optimizer.step(lambda: weight.square().sum())
        scheduler.step()
        made = made or kernels_made()
    assert len(hooked) == 3
    assert kernels_made() == made
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
