"""Cross-entropy of a head's logits, which never exist whole: `functional.fused_linear_cross_entropy`, whose gradients
may be made while the logits are there, in the forward.
"""

from collections.abc import Sequence

import torch

from rowjit._core import Program
from rowjit.calls import Call, Choice
from rowjit.programs import Argument, Builder
from rowjit.registry import Shape
from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.call import are_transforms_active
from rowjit.torch.framework import TorchFramework

Tensor = torch.Tensor
_OP = F.OPS["fused_linear_cross_entropy"]
_OPERANDS = ("hidden", "weight", "target", "bias", "class_weight", "token_weight")
_GRADIENTS = ("forward", "backward")
_MEMORY = ("usual", "low")


class Scaled:
    """The operation, its loss multiplied by one more operand. See rowjit.programs.Computation."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.names = (*call.names, "scale")
        self.shapes = (*call.shapes, Shape(-1, (), ()))
        self.tables = (*call.tables, False)

    def body(self, arguments: Sequence[Argument | None]) -> str:
        lines = self.call.body(arguments[:-1])
        if arguments[-1] is None:
            return lines
        wide = "f64" if arguments[0].dtype == "f64" else "f32"
        return lines.replace("output loss\n", f"output scaled_loss = loss * cast(scale, {wide})\n")


class _Multiplied:
    """A tensor's rows times a number on the device, over the tensor's memory. See rowjit.programs.Computation.

    torch reads a number on the device as a tensor to broadcast: 3.0 ms for the gradients of 32768 rows of 4096 columns and
    128256 classes on an H200, which are 1.3 GB.
    """

    names = ("tensor", "factor")
    shapes = (Shape(0, (), ("",)), Shape(-1, (), ()))
    tables = (False, False)

    def body(self, arguments: Sequence[Argument | None]) -> str:
        tensor, factor = arguments
        return f"output product = cast(cast(tensor, {factor.dtype}) * factor, {tensor.dtype}) alias(tensor)\n"


multiply = Builder(_Multiplied(), TorchFramework()).program().run
_arguments = F.arguments_of(_OP)
_choices: dict[tuple, Choice] = {}
_programs: dict[tuple, Program] = {}


def _program(options: tuple, wanted: int, low_memory: bool) -> tuple[Program, tuple[float, ...], int]:
    choice = _choices.get(options)
    if choice is None:
        choice = _choices[options] = _OP.choice(options)
    key = (choice.structure, wanted, low_memory)
    program = _programs.get(key)
    if program is None:
        places = tuple(place for place in range(len(_OPERANDS)) if wanted >> place & 1)
        computation = Scaled(_OP.call(choice, options))
        program = _programs[key] = Builder(computation, TorchFramework(), choice.scalars, places, True, low_memory).program()
    return program, choice.scalar_values, len(choice.results)


class _GradientsInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, program: Program, scalars: tuple[float, ...], results: int, *operands: Tensor | None):  # noqa: ANN001, ANN205
        outputs = program.run(scalars, *operands)
        ctx.gradients = outputs[results:]
        ctx.asked = ctx.needs_input_grad
        found = outputs[:results]
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx, cotangent: Tensor, *_: Tensor):  # noqa: ANN001, ANN205
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_cross_entropy made its gradients in the forward, and they have no graph; to ask for one "
                '(create_graph=True), use gradient="backward"'
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "linear_cross_entropy made its gradients in the forward and has given them away; to call backward "
                'through it twice, use gradient="backward"'
            )
        # Theirs alone, so that they are scaled in place: the weight's is as large as the weight.
        found = iter([multiply(None, gradient, cotangent) for gradient in ctx.gradients])
        ctx.gradients = None
        return tuple(next(found) if asked else None for asked in ctx.asked)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    class_weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    *,
    scale: Tensor | float | None = None,
    gradient: str = "forward",
    memory: str = "usual",
    **options: object,
) -> Tensor | tuple[Tensor, ...]:
    """Cross-entropy of hidden·weightᵀ + bias, a block of rows of logits at a time.

    Args:
        hidden, weight, target, bias, class_weight, token_weight: as `fused_linear_cross_entropy` takes them
        scale: multiplies the loss, as 1 / number of items does; without gradient
        gradient: "forward" makes the gradients while the logits are there, and keeps those of hidden and weight;
            "backward" keeps neither, and computes the logits again; reduction="none" always does so
        memory: "low" makes the gradients of the forward with about 64 MiB beside them, for a fourth product in place of
            an f32 accumulator of the weight's
        options: of `fused_linear_cross_entropy`

    Returns:
        the loss, and behind it what options ask for, which has no gradient where they are made in the forward
    """
    if gradient not in _GRADIENTS:
        raise ValueError(f"gradient is {gradient!r}; it is one of {', '.join(_GRADIENTS)}")
    if memory not in _MEMORY:
        raise ValueError(f"memory is {memory!r}; it is one of {', '.join(_MEMORY)}")
    operands = (hidden, weight, target, bias, class_weight, token_weight)
    wanted = sum(1 << place for place, operand in enumerate(operands) if operand is not None and operand.requires_grad)
    usual = not are_transforms_active() and all(
        type(operand) in (Tensor, torch.nn.Parameter) and not operand.is_meta and not operand.is_neg()
        for operand in operands
        if operand is not None
    )
    in_forward = gradient == "forward" and options.get("reduction", "mean") != "none"
    if not (in_forward and usual and wanted and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        results = F.fused_linear_cross_entropy(*operands, **options)
        if scale is None:
            return results
        return results * scale if isinstance(results, Tensor) else (results[0] * scale, *results[1:])
    if scale is not None:
        scale = torch.as_tensor(scale, dtype=torch.float32, device=hidden.device).reshape(()).detach()
    program, scalars, count = _program(_arguments(*operands, **options)[1], wanted, memory == "low")
    found = _GradientsInForward.apply(program, scalars, count, *operands, scale)
    return found[0] if count == 1 else found
