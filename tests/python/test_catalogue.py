"""Every operation against PyTorch's formula for it, forward and backward, at the bar of the project: no further from the
exact value than eager is, and a unit in the last place."""

import pytest
import torch
from conftest import assert_as_good
from formulas import CASES, Case, make

import rowjit
import rowjit.torch

# Their results are random, or tested elsewhere: the optimizers write over their operands, and streams and depths are
# axes of a graph's own.
ELSEWHERE = {"dropout", "dropout_add", "sgd_step", "adamw_step", "lion_step", "clip_gradient", "dequantize", "mrope",
             "vocabulary_part", "combine_vocabulary", "hyper_pre", "hyper_post", "attention_residual"}


def test_every_operation_has_a_formula():
    assert {case.op for case in CASES} | ELSEWHERE == set(rowjit.operations())


def name_of(case: Case) -> str:
    return "-".join([case.op, case.operands.replace(" ", "."), *map(str, case.options.values())])


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_operation_is_as_good_as_eager(case):
    for dtype in case.dtypes:
        operands = [make(word, dtype) for word in case.operands.split()]
        described = rowjit.operations()[case.op].operands
        floats = [i for i, t in enumerate(operands)
                  if t is not None and t.is_floating_point() and t.dtype == dtype and not described[i].constant]

        def run(function, to, leaves=operands, floats=floats):
            given = [t.to(to).requires_grad_() if i in floats else t.to(to) if t is not None and t.is_floating_point()
                     and to == torch.float64 else t for i, t in enumerate(t if t is None else t.detach() for t in leaves)]
            results = as_tuple(function(*given))
            differentiable = [r for r in results if r.requires_grad]
            if not differentiable:
                return results, ()
            torch.manual_seed(1)
            cotangents = [torch.randn(r.shape, dtype=torch.float64).to(dtype).to(r.dtype) for r in differentiable]
            wanted = [given[i] for i in floats]
            return results, torch.autograd.grad(differentiable, wanted, cotangents, allow_unused=True)

        ours, our_gradients = run(lambda *t: getattr(rowjit.torch, case.op)(*t, **case.options), dtype)
        eager, eager_gradients = run(case.formula, dtype)
        exact, exact_gradients = run(case.formula, torch.float64)
        for found, by_eager, by_exact in zip(ours, eager, exact, strict=True):
            if found.is_floating_point():
                assert_as_good(found.detach(), by_eager.detach(), by_exact.detach(), case.units)
            else:
                assert torch.equal(found, by_eager)
        for found, by_eager, by_exact in zip(our_gradients, eager_gradients, exact_gradients, strict=True):
            if by_exact is not None:
                assert_as_good(found, by_eager, by_exact, case.units)
