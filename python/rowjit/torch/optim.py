"""AdamW whose step of a parameter is one kernel over its memory: torch's, with `fused=True`, moves bf16 on an H200 at half of
the rate of a copy (docs/experiments/python-and-models.md).

    optimizer = rowjit.torch.optim.AdamW(model.parameters(), lr=1e-5)
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch.optim.adamw import adamw

from rowjit.programs import Argument, Builder
from rowjit.registry import Shape
from rowjit.torch.framework import TorchFramework

Tensor = torch.Tensor
_ROWS = Shape(0, (), ("",))
_PLAIN = (Tensor, torch.nn.Parameter)
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# A parameter's elements are seen as rows of so many, or of as large a divisor of that as they allow, so that a model has
# one or two kernels. Rows of fewer than the least are too short: a parameter of odd size is one row, or torch's.
_MOST_COLUMNS, _LEAST_COLUMNS = 4096, 64


class _Step:
    """torch's fused step: the moments are rounded to their dtype when they are written. See rowjit.programs.Computation."""

    names = ("parameter", "gradient", "first", "second")
    shapes = (_ROWS,) * 4
    tables = (False,) * 4
    scalars = ("kept", "beta1", "beta2", "eps", "step_size", "root")

    def body(self, arguments: Sequence[Argument | None]) -> str:
        parameter, _, first, second = (argument.dtype for argument in arguments)
        wide = "f64" if parameter == "f64" else "f32"
        lines = [f"scalar {name}: {wide} = 1" for name in self.scalars]
        lines += [
            f"g = cast(gradient, {wide})",
            f"m = beta1 * cast(first, {wide}) + (1 - beta1) * g",
            f"v = beta2 * cast(second, {wide}) + (1 - beta2) * g * g",
            f"p = kept * cast(parameter, {wide}) - step_size * (m / (sqrt(v) / root + eps))",
            f"output new_parameter = cast(p, {parameter}) alias(parameter)",
            f"output new_first = cast(m, {first}) alias(first)",
            f"output new_second = cast(v, {second}) alias(second)",
        ]
        return "\n".join(lines) + "\n"


_program = Builder(_Step(), TorchFramework(), _Step.scalars).program()


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW with its arguments and its state, of which checkpoints of either continue in the other.

    A parameter whose elements lie one after the other on the CPU or a GPU, or the part of a sharded one that is here, takes
    one kernel of rowjit; so do none with amsgrad, maximize, capturable, differentiable or a learning rate in a tensor.
    Whatever takes none is torch's. `fused` is taken for False: steps are counted on the host.
    """

    def __init__(self, *arguments: object, fused: bool | None = None, **named: object) -> None:
        super().__init__(*arguments, fused=None, **named)
        for group in self.param_groups:
            group["fused"] = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step(group)
        return loss

    def _step(self, group: dict[str, object]) -> None:
        lists: tuple[list[Tensor], ...] = ([], [], [], [], [], [])  # parameters, gradients, moments, their maxima, steps
        has_complex = self._init_group(group, *lists)
        parameters, gradients, first, second, _, steps = lists
        if _is_usual(group):
            written: list[Tensor] = []
            left = [
                i
                for i, operands in enumerate(zip(parameters, gradients, first, second, strict=True))
                if not _stepped(group, steps[i], operands, written)
            ]
            if written:
                torch.autograd.graph.increment_version(written)
            lists = tuple([each[i] for i in left] if each else each for each in lists)
        if not lists[0]:
            return
        beta1, beta2 = group["betas"]
        same = {name: group[name] for name in ("amsgrad", "lr", "weight_decay", "eps", "maximize", "foreach", "capturable", "differentiable")}
        adamw(*lists, beta1=beta1, beta2=beta2, has_complex=has_complex, fused=None, **same)


def _is_usual(group: dict[str, object]) -> bool:
    numbers = (group["lr"], *group["betas"])
    special = ("amsgrad", "maximize", "capturable", "differentiable")
    return not any(group[name] for name in special) and not any(isinstance(each, Tensor) for each in numbers)


def _stepped(group: dict[str, object], step: Tensor, operands: tuple[Tensor, ...], written: list[Tensor]) -> bool:
    """Whether the parameter took its step, which `written` is added to then."""
    here = tuple(each.to_local() if hasattr(each, "to_local") else each for each in operands)
    columns = _columns(here[0].numel())
    if not columns or not _is_taken(here):
        return False
    step += 1
    taken = step.item()
    beta1, beta2 = group["betas"]
    scalars = (
        1 - group["lr"] * group["weight_decay"],
        beta1,
        beta2,
        group["eps"],
        group["lr"] / (1 - beta1**taken),
        math.sqrt(1 - beta2**taken),
    )
    _program.run(scalars, *[each.view(-1, columns) for each in here])
    written += [operands[0], operands[2], operands[3]]
    return True


def _columns(elements: int) -> int:
    """Of the rows that so many elements are seen as; 0 where they are left to torch."""
    columns = math.gcd(elements, _MOST_COLUMNS)
    if columns >= _LEAST_COLUMNS:
        return columns
    return elements if elements <= _MOST_COLUMNS else 0


def _is_taken(operands: tuple[Tensor, ...]) -> bool:
    parameter, gradient, first, second = operands
    return (
        parameter.dtype in _FLOATS
        and gradient.dtype == parameter.dtype
        and first.dtype in _FLOATS
        and second.dtype in _FLOATS
        and (parameter.dtype == torch.float64) == (first.dtype == torch.float64) == (second.dtype == torch.float64)
        and all(
            type(each) in _PLAIN and each.device == parameter.device and each.shape == parameter.shape and each.is_contiguous()
            for each in operands
        )
        and parameter.device.type in ("cpu", "cuda")
    )
