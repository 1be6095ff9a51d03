"""How a computation is called on tensors: directly where nothing needs a gradient, else as a node of autograd."""

from collections.abc import Callable, Sequence

import torch
from torch.autograd import forward_ad

from rowjit._core import Program
from rowjit.programs import Builder, Computation
from rowjit.torch.framework import TorchFramework

_FRAMEWORK = TorchFramework()
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

Tensors = Sequence[torch.Tensor | None]


class Computed:
    """A computation with its programs: one that only computes, and one for every set of operands with a gradient."""

    def __init__(self, computation: Computation, scalars: tuple[str, ...]) -> None:
        self.computation = computation
        self.scalars = scalars
        self.forward = Builder(computation, _FRAMEWORK, scalars).program()
        self._training: dict[int, Program] = {}

    def training(self, wanted: int) -> Program:
        """The program for gradients of the operands in the bits of `wanted`."""
        program = self._training.get(wanted)
        if program is None:
            places = tuple(place for place in range(len(self.computation.names)) if wanted >> place & 1)
            program = Builder(self.computation, _FRAMEWORK, self.scalars, places).program()
            self._training[wanted] = program
        return program


class Bound:
    """A computation with the values of its scalars: all that a call needs besides the tensors."""

    __slots__ = ("computed", "fallback", "forward", "scalars")

    def __init__(self, computed: Computed, scalars: tuple[float, ...], fallback: Callable | None = None) -> None:
        self.computed = computed
        self.forward = computed.forward.run
        self.scalars = scalars
        self.fallback = fallback

    def __call__(self, *operands: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        wanted = 0
        bit = 1
        for operand in operands:
            if operand is not None:
                if operand.__class__ not in _PLAIN or operand.is_meta:
                    return self.unusual(operands)
                if operand.requires_grad:
                    wanted |= bit
            bit += bit
        if wanted and torch.is_grad_enabled():
            return _Differentiable.apply(self.computed.training(wanted), self.scalars, *operands)
        if forward_ad._current_level >= 0:
            _refuse_tangents(operands)
        return self.forward(self.scalars, *operands)

    def unusual(self, operands: Tensors) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Operands that only torch's dispatcher knows how to treat: fake and meta tensors, other subclasses."""
        for name, operand in zip(self.computed.computation.names, operands, strict=True):
            if operand is not None and not isinstance(operand, torch.Tensor):
                raise TypeError(f"{name} is a {type(operand).__name__}; give a torch.Tensor")
        if self.fallback is None:
            raise TypeError("rowjit.torch.jit takes tensors with memory; fake, meta and wrapper tensors have none")
        return self.fallback(operands)


def _refuse_tangents(operands: Tensors) -> None:
    if any(operand is not None and forward_ad.unpack_dual(operand).tangent is not None for operand in operands):
        raise RuntimeError("rowjit's operations have derivatives in reverse mode alone; compute this part with torch")


class _Differentiable(torch.autograd.Function):
    """A forward that saves and its backward, as rowjit_differentiate divides them."""

    @staticmethod
    def forward(ctx, program: Program, scalars: tuple[float, ...], *operands: torch.Tensor | None):  # noqa: ANN001, ANN205
        pair, outputs = program.run_for_owner(scalars, *operands)
        ctx.of_backward = pair, scalars
        ctx.save_for_backward(*pair.kept((*operands, *outputs)))
        if pair.results == 1:
            return outputs[0]
        if pair.whole:
            ctx.mark_non_differentiable(*[outputs[place] for place in pair.whole])
        return outputs[: pair.results]

    @staticmethod
    def backward(ctx, *cotangents: torch.Tensor):  # noqa: ANN001, ANN205
        pair, scalars = ctx.of_backward
        found = pair.backward.run(scalars, *ctx.saved_tensors, *cotangents)
        gradients = None, None, *pair.of_operands((None, *found))
        # Autograd computes with gradients enabled only when a second derivative may be asked for.
        return _once(ctx, gradients, cotangents) if torch.is_grad_enabled() else gradients


def _once(ctx, gradients: tuple[torch.Tensor | None, ...], cotangents: Tensors) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN001
    """The same gradients, with an edge to all that they depend on, which raises when it is taken."""
    sources = [tensor for tensor in (*ctx.saved_tensors, *cotangents) if tensor is not None and tensor.requires_grad]
    if not sources:
        return gradients
    error = torch._C._functions.DelayedError(
        "a second derivative was asked of an operation of rowjit, which has a first; compute this part with torch",
        1 + len(sources),
    )
    return tuple(None if gradient is None else error(gradient, *sources)[0] for gradient in gradients)
