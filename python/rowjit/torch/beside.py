"""Operations beside others that read the same x: each gives x on to the next, and its backward adds its own gradient of
x to that of whoever read x behind it, where it makes it. Autograd would add them in kernels of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from rowjit._core import Graph, Program
from rowjit.calls import Call
from rowjit.programs import Argument, Builder
from rowjit.registry import Shape
from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.call import first_derivative
from rowjit.torch.framework import TorchFramework

Tensor = torch.Tensor
_ROWS, _COLUMNS = Shape(0, (), ("",)), Shape(-1, (), ("",))


# ---- Products of matrices ------------------------------------------------------------------------------------------


class _LinearBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ANN001
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        ctx.set_materialize_grads(False)
        return torch.nn.functional.linear(x, weight, bias), x

    @staticmethod
    @first_derivative
    def backward(ctx, d_y: Tensor | None, d_x: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN001
        if d_y is None:
            return d_x, None, None
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = d_y.reshape(-1, d_y.shape[-1])
        if of_x and d_x is None:
            d_x = (rows @ weight).view(*d_y.shape[:-1], weight.shape[1])
        elif of_x:
            # Nobody else has it: x was given on to one reader, whose backward is this or another node of ours.
            d_x.view(-1, weight.shape[1]).addmm_(rows, weight)
        d_weight = rows.t() @ x.reshape(-1, x.shape[-1]) if of_weight else None
        return d_x, d_weight, rows.sum(0) if of_bias else None


def linear_beside(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """torch.nn.functional.linear of operands of one dtype, and x, which linear_beside alone may read again."""
    return _LinearBeside.apply(x, weight, bias)


# ---- Norms ---------------------------------------------------------------------------------------------------------


class _GradientsOfNormAndResidual:
    """Gradients of x and the weight, over those of x given on and of the norm. See rowjit.programs.Computation."""

    def __init__(self, call: Call, wanted: tuple[str, ...]) -> None:
        self.call = call
        self.wanted = wanted
        self.names = ("x", "weight", "d_given", "d_y")
        self.shapes = (_ROWS, _COLUMNS, _ROWS, _ROWS)
        self.tables = (False,) * 4

    def body(self, arguments: Sequence[Argument | None]) -> str:
        graph = Graph.parse(self.call.text(arguments[:2]) + "output given = x\n", "rowjit")
        joint = graph.gradient(self.wanted, ("y", "given"), (), False, False)
        declared = ("rows ", "columns ", "input ")
        return "".join(f"{line}\n" for line in joint.text().splitlines() if not line.startswith(declared))


@functools.cache
def _gradients_of_norm(wanted: tuple[str, ...], **options: object) -> tuple[Program, tuple[float, ...]]:
    op = F.OPS["rms_norm"]
    _, values = F.arguments_of(op)(None, None, **options)
    choice = op.choice(values)
    computation = _GradientsOfNormAndResidual(op.call(choice, values), wanted)
    return Builder(computation, TorchFramework(), choice.scalars).program(), choice.scalar_values


class _NormBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, options: dict[str, object]) -> tuple[Tensor, Tensor]:  # noqa: ANN001
        ctx.save_for_backward(x, weight)
        ctx.options = options
        return F.rms_norm(x, weight, **options), x

    @staticmethod
    @first_derivative
    def backward(ctx, d_y: Tensor, d_given: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN001
        wanted = tuple(name for name, asked in zip(("x", "weight"), ctx.needs_input_grad, strict=False) if asked)
        program, scalars = _gradients_of_norm(wanted, **ctx.options)
        found = program.run(scalars, *ctx.saved_tensors, d_given, d_y)
        gradients = dict(zip(wanted, found if len(wanted) > 1 else (found,), strict=True))
        return gradients.get("x"), gradients.get("weight"), None


def rms_norm_beside(x: Tensor, weight: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    """rowjit.torch.rms_norm, and x, for the sum behind what reads the norm."""
    return _NormBeside.apply(x, weight, options)
