"""Modules beside those of torch.nn that they replace, with the same parameters."""

import pytest
import torch
from conftest import assert_as_good

from rowjit.torch import nn as ours

PAIRS = {
    "RMSNorm": ((16,), {}, (2, 3, 16)),
    "RMSNorm of two dimensions": ((( 4, 4),), {"eps": 1e-3}, (5, 4, 4)),
    "LayerNorm": ((16,), {}, (2, 3, 16)),
    "LayerNorm without parameters": ((16,), {"elementwise_affine": False}, (3, 16)),
    "LayerNorm without bias": ((16,), {"bias": False}, (3, 16)),
    "GroupNorm": ((2, 8), {}, (3, 8, 5, 4)),
    "SiLU": ((), {}, (3, 16)),
    "GELU": ((), {}, (3, 16)),
    "GELU by tanh": ((), {"approximate": "tanh"}, (3, 16)),
    "GLU": ((), {}, (3, 16)),
    "Softmax": ((-1,), {}, (3, 16)),
    "Softmax of another dimension": ((1,), {}, (3, 5, 16)),
    "LogSoftmax": ((-1,), {}, (3, 16)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_computes_what_it_replaces(name, dtype):
    positional, named, shape = PAIRS[name]
    kind = name.split()[0]
    theirs = getattr(torch.nn, kind)(*positional, **named).to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    mine = getattr(ours, kind)(*positional, **named).to(dtype)
    mine.load_state_dict(theirs.state_dict())
    exact = getattr(torch.nn, kind)(*positional, **named).double()
    exact.load_state_dict(theirs.state_dict())
    assert isinstance(mine, getattr(torch.nn, kind))
    x = torch.randn(shape).to(dtype)
    cotangent = torch.randn_like(theirs(x))

    def run(module, x, cotangent):
        x = x.clone().requires_grad_()
        y = module(x)
        return y.detach(), *torch.autograd.grad(y, (x, *module.parameters()), cotangent)

    found = zip(run(mine, x, cotangent), run(theirs, x, cotangent), run(exact, x.double(), cotangent.double()), strict=True)
    for of_ours, of_torch, of_exact in found:
        assert_as_good(of_ours, of_torch, of_exact)


LOSSES = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "of each row": {"reduction": "none"},
    "smoothed": {"label_smoothing": 0.2},
    "ignoring": {"ignore_index": 3},
    "weighted": {"weight": torch.rand(7)},
}


@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("shape", [(5, 7), (2, 7, 3)])
def test_cross_entropy_computes_torchs(options, shape):
    logits = torch.randn(shape, requires_grad=True)
    target = torch.randint(0, 7, (shape[0], *shape[2:]))
    found, expected = ours.CrossEntropyLoss(**options)(logits, target), torch.nn.CrossEntropyLoss(**options)(logits, target)
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, logits, cotangent), torch.autograd.grad(expected, logits, cotangent)
    )


@pytest.mark.parametrize("reduction", ["sum", "mean", "batchmean"])
def test_kl_div_computes_torchs(reduction):
    student, teacher = (torch.log_softmax(torch.randn(5, 7), -1) for _ in range(2))
    named = {"reduction": reduction, "log_target": True}
    torch.testing.assert_close(ours.KLDivLoss(**named)(student, teacher), torch.nn.KLDivLoss(**named)(student, teacher))


def test_an_embedding_takes_rows_and_sums_their_gradients():
    theirs = torch.nn.Embedding(11, 8)
    mine = ours.Embedding(11, 8)
    mine.load_state_dict(theirs.state_dict())
    ids = torch.tensor([[1, 5, 1], [0, 10, 5]])
    cotangent = torch.randn(2, 3, 8)
    assert torch.equal(mine(ids), theirs(ids))
    mine(ids).backward(cotangent)
    theirs(ids).backward(cotangent)
    torch.testing.assert_close(mine.weight.grad, theirs.weight.grad)


def test_dropout_keeps_everything_outside_of_training():
    module = ours.Dropout(0.5).eval()
    x = torch.randn(4, 8)
    assert module(x) is x
    torch.manual_seed(3)
    first = module.train()(x)
    torch.manual_seed(3)
    assert torch.equal(module(x), first)
