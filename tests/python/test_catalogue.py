"""Every operation against PyTorch's formula for it, forward and backward, at the bar of the project: no further from the
exact value than eager is, and a unit in the last place."""

import pytest
import torch
from conftest import assert_as_good_in_the_mean
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


def results_of(case: Case, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Each result and gradient of operands that are drawn: ours, eager's, and in f64."""
    operands = [make(word, dtype) for word in case.operands.split()]
    described = rowjit.operations()[case.op].operands
    floats = [i for i, t in enumerate(operands)
              if t is not None and t.is_floating_point() and t.dtype == dtype and not described[i].constant]

    def run(function, to):
        given = [t.to(to).requires_grad_() if i in floats else t.to(to) if t is not None and t.is_floating_point()
                 and to == torch.float64 else t for i, t in enumerate(t if t is None else t.detach() for t in operands)]
        results = as_tuple(function(*given))
        differentiable = [r for r in results if r.requires_grad]
        if not differentiable:
            return [*results]
        torch.manual_seed(1)
        cotangents = [torch.randn(r.shape, dtype=torch.float64).to(dtype).to(r.dtype) for r in differentiable]
        gradients = torch.autograd.grad(differentiable, [given[i] for i in floats], cotangents, allow_unused=True)
        return [r.detach() for r in results] + [*gradients]

    ours = run(lambda *t: getattr(rowjit.torch, case.op)(*t, **case.options), dtype)
    found = zip(ours, run(case.formula, dtype), run(case.formula, torch.float64), strict=True)
    return [triple for triple in found if triple[2] is not None]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_operation_is_as_good_as_eager(case):
    for dtype in case.dtypes:
        draws = [results_of(case, dtype)]
        for seed in range(1, case.draws):
            torch.manual_seed(seed)
            draws.append(results_of(case, dtype))
        for triples in zip(*draws, strict=True):
            if triples[0][0].is_floating_point():
                assert_as_good_in_the_mean(triples, case.units)
            else:
                assert all(torch.equal(found, by_eager) for found, by_eager, _ in triples)
