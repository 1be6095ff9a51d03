"""Tensors of more than 2^31 elements: rows past the limit of 32-bit numbers are what the same rows alone are. Only where a
GPU has the memory; that rows far apart are addressed is tested without one (tests/runtime, tests/simt)."""

import pytest
import torch

import rowjit.torch

LIMIT = 2**31
MEMORY = 40 * 2**30

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < MEMORY,
    reason="needs a GPU of 40 GiB")


def gradient(results, inputs):
    return torch.autograd.grad(results, inputs, torch.ones_like(results))


# Columns of a row, and results and gradients of x for a tensor of rows.
CASES = {
    "rms_norm": (4096, lambda x, w, _: rowjit.torch.rms_norm(x, w)),
    "softmax": (32000, lambda x, _, __: rowjit.torch.softmax(x)),
    "swiglu": (14336, lambda x, _, __: rowjit.torch.swiglu(x, x)),
    "cross_entropy": (128256, lambda x, _, target: rowjit.torch.cross_entropy(x, target, reduction="none")),
    "silu": (1, lambda x, _, __: rowjit.torch.silu(x)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_past_two_to_the_31_elements_are_as_they_are_alone(name):
    columns, function = CASES[name]
    rows = LIMIT // columns + 1000
    x = torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda").requires_grad_()
    weight = torch.randn(columns, dtype=torch.bfloat16, device="cuda")
    targets = torch.randint(0, columns, (rows,), device="cuda")
    whole = function(x, weight, targets)
    whole_gradient, = gradient(whole, x)
    for part in (slice(0, 500), slice(rows - 1500, rows - 500), slice(rows - 500, rows)):
        alone = x.detach()[part].clone().requires_grad_()
        result = function(alone, weight, targets[part])
        assert torch.equal(whole.detach()[part], result.detach())
        assert torch.equal(whole_gradient[part], gradient(result, alone)[0])


def test_a_weights_gradient_sums_rows_past_two_to_the_31_elements():
    columns = 4096
    rows = LIMIT // columns + 1000
    x = torch.randn(rows, columns, dtype=torch.float32, device="cuda")
    weight = torch.randn(columns, device="cuda").requires_grad_()
    found, = gradient(rowjit.torch.rms_norm(x, weight), weight)
    normed = (part * torch.rsqrt(part.square().mean(-1, keepdim=True) + 1e-6) for part in x.split(16384))
    exact = sum(part.sum(0, dtype=torch.float64) for part in normed)
    assert torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-2)
