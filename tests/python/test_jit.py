"""Expressions of one's own."""

import pytest
import torch
from conftest import kernels_made

import rowjit
from rowjit.torch import jit, row


@jit
def gated_norm(x, gate, weight: "columns", eps=1e-6):  # noqa: F722, F821
    h = x.float()
    normed = (h * row.rsqrt(row.mean(h * h) + eps)).to(torch.bfloat16)
    return normed * weight * row.silu(gate)


def reference(x, gate, weight, eps=1e-6):
    h = x.float()
    normed = (h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps)).bfloat16()
    return normed * weight * torch.nn.functional.silu(gate)


def operands(*shape):
    return [torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)] + [
        torch.randn(shape[-1], dtype=torch.bfloat16, requires_grad=True)
    ]


def test_an_expression_gives_torchs_bits_and_its_gradients():
    given = operands(2, 3, 32)
    ours, expected = gated_norm(*given), reference(*given)
    assert torch.equal(ours, expected)
    cotangent = torch.randn_like(ours)
    for found, wanted in zip(torch.autograd.grad(ours, given, cotangent), torch.autograd.grad(expected, given, cotangent), strict=True):
        torch.testing.assert_close(found, wanted)


def test_rows_and_numbers_are_no_part_of_the_kernel():
    gated_norm(*operands(4, 32))
    made = kernels_made()
    given = operands(5, 2, 32)
    assert torch.equal(gated_norm(*given, eps=0.25), reference(*given, eps=0.25))
    assert kernels_made() == made


def test_several_results_are_a_tuple_and_an_operand_may_be_left_out():
    @jit
    def shifted(x, bias: "columns" = None):  # noqa: F821
        y = x if bias is None else x + bias
        return y, row.max(y)

    x, bias = torch.randn(4, 8), torch.randn(8)
    torch.testing.assert_close(shifted(x), (x, x.amax(-1)))
    torch.testing.assert_close(shifted(x, bias), (x + bias, (x + bias).amax(-1)))


def test_a_condition_on_rows_is_refused_in_words():
    @jit
    def branched(x):
        return x if x > 0 else -x

    with pytest.raises(TypeError, match="select"):
        branched(torch.randn(4, 8))


def test_what_does_not_fit_is_refused_with_the_graphs_words():
    @jit
    def mixed(x, y):
        return x + y

    with pytest.raises(rowjit.InvalidGraph, match="dtypes differ"):
        mixed(torch.randn(4, 8), torch.randn(4, 8).bfloat16())


@pytest.mark.parametrize("columns", [8, 1])
def test_columns_of_different_numbers_are_refused_with_their_shapes(columns):
    @jit
    def scaled(x, y):
        return row.sum(x * y)

    with pytest.raises(rowjit.InvalidGraph, match=rf"x \(…, 16\), y \(…, {columns}\); .*\"tokens\""):
        scaled(torch.randn(4, 16), torch.randn(4, columns))


def test_a_number_of_rows_with_other_columns_and_named_axes_do_fit():
    @jit
    def centred(x, y):
        return x - row.mean(y)

    @jit
    def outer(x: "tokens, heads", y):  # noqa: F722
        return x * y

    x, y = torch.randn(4, 16), torch.randn(4, 8)
    torch.testing.assert_close(centred(x, y), x - y.mean(-1, keepdim=True))
    torch.testing.assert_close(outer(x, y), x[..., None] * y[..., None, :])


def test_a_long_function_of_rows_compiles():
    @jit
    def powers(x):
        y = x
        for _ in range(200):
            y = y * x
        return y

    x = torch.rand(3, 4) / 64 + 1
    torch.testing.assert_close(powers(x), x**201, rtol=1e-4, atol=0)
