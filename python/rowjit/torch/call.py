"""How a computation is called on tensors: directly where nothing needs a gradient, else as a node of autograd."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch._C import _are_functorch_transforms_active as are_transforms_active
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
                if operand.__class__ not in _PLAIN or operand.is_meta or operand.is_neg():
                    return self.unusual(operands)
                if operand.requires_grad:
                    wanted |= bit
            bit += bit
        if forward_ad._current_level >= 0:
            _refuse_tangents(operands)
        if are_transforms_active() and any(map(is_transformed, operands)):
            return self.functionalized(operands)
        if wanted and torch.is_grad_enabled():
            return _apply(self.computed.training(wanted), self.scalars, *operands)
        return self.forward(self.scalars, *operands)

    def unusual(self, operands: Tensors) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Operands that only torch's dispatcher knows how to treat: fake and meta tensors, wrappers. Other subclasses are
        tensors like any other, and so are those whose memory has the negative of their elements."""
        for name, operand in zip(self.computed.computation.names, operands, strict=True):
            if operand is not None and not isinstance(operand, torch.Tensor):
                raise TypeError(f"{name} is a {type(operand).__name__}; give a torch.Tensor")
        if any(map(_is_named_otherwise, operands)):
            return self(*[operand.as_subclass(torch.Tensor) if _is_named_otherwise(operand) else operand for operand in operands])
        if any(operand is not None and type(operand) in _PLAIN and operand.is_neg() for operand in operands):
            return self(*[None if operand is None else operand.resolve_neg() for operand in operands])
        if self.fallback is None:
            raise TypeError("rowjit.torch.jit takes tensors with memory; fake, meta and wrapper tensors have none")
        return self.fallback(operands)

    def functionalized(self, operands: Tensors) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Operands inside a transform of torch.func, of which torch.func.functionalize alone needs no rule of the operation's."""
        if self.fallback is None or not all(torch._is_functional_tensor(each) for each in operands if is_transformed(each)):
            raise RuntimeError(
                "rowjit's operations have no rules for torch.func's transforms, as grad, vjp, jacrev, jvp and vmap are; use"
                " torch.autograd, leave the batch to leading dimensions, or compute this part with torch"
            )
        return self.fallback(operands)


def is_transformed(operand: torch.Tensor | None) -> bool:
    """Whether a transform of torch.func has wrapped it, which its class does not tell."""
    return operand is not None and torch._C._functorch.is_functorch_wrapped_tensor(operand)


def _is_named_otherwise(operand: torch.Tensor | None) -> bool:
    """Whether the operand's class is no other to the dispatcher than torch.Tensor."""
    return (
        operand is not None
        and operand.__class__ not in _PLAIN
        and type(operand).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def _refuse_tangents(operands: Tensors) -> None:
    if any(operand is not None and forward_ad.unpack_dual(operand).tangent is not None for operand in operands):
        raise RuntimeError("rowjit's operations have derivatives in reverse mode alone; compute this part with torch")


class _Differentiable(torch.autograd.Function):
    """A forward that saves and its backward, as rowjit_differentiate divides them. node.cpp is the same in C++."""

    @staticmethod
    def forward(ctx, program: Program, scalars: tuple[float, ...], *operands: torch.Tensor | None):  # noqa: ANN001, ANN205
        pair, outputs = program.run_for_owner(scalars, *operands)
        ctx.of_backward = pair, scalars
        tensors = (*operands, *outputs)
        ctx.save_for_backward(*[tensors[place] for place in pair.kept])
        if pair.results == 1:
            return outputs[0]
        if pair.whole:
            ctx.mark_non_differentiable(*[outputs[place] for place in pair.whole])
        return outputs[: pair.results]

    @staticmethod
    def backward(ctx, *cotangents: torch.Tensor):  # noqa: ANN001, ANN205
        pair, scalars = ctx.of_backward
        kept = ctx.saved_tensors
        cotangents = tuple(None if each is None else each.resolve_neg() for each in cotangents)
        found = pair.backward.run(scalars, *kept, *cotangents)
        # Autograd computes with gradients enabled only when a second derivative may be asked for.
        if torch.is_grad_enabled():
            found = _once(found, (*kept, *cotangents))
        found = (None, *found)
        return None, None, *[found[place] for place in pair.of_operands]


def first_derivative(backward: Callable) -> Callable:
    """The backward of a torch.autograd.Function that computes no graph. torch's once_differentiable sees cotangents alone,
    and a second derivative with respect to what was saved would be without this node's part."""

    @functools.wraps(backward)
    def refusing(ctx, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN001
        with torch.no_grad():
            found = backward(ctx, *cotangents)
        if not torch.is_grad_enabled():
            return found
        gradients = iter(_once(tuple(each for each in found if each is not None), (*ctx.saved_tensors, *cotangents)))
        return tuple(None if each is None else next(gradients) for each in found)

    return refusing


def _once(gradients: tuple[torch.Tensor, ...], read: Tensors) -> tuple[torch.Tensor, ...]:
    """The same gradients, with an edge to all that they depend on, which raises when it is taken."""
    sources = [tensor for tensor in read if tensor is not None and tensor.requires_grad]
    if not sources:
        return gradients
    error = torch._C._functions.DelayedError(
        "a second derivative was asked of an operation of rowjit, which has a first; compute this part with torch",
        1 + len(sources),
    )
    return tuple(error(gradient, *sources)[0] for gradient in gradients)


def _apply(program: Program, scalars: tuple[float, ...], *operands: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The results with their history: by the node in Python, until the one in C++ is there and for ever where it is not to be had."""
    global _apply
    from rowjit.torch import native  # here, so that `python -m` finds it not yet imported

    node = native.load()
    if node is not None:
        node.install(_once)
        _apply = node.apply
    elif not native.is_awaited():
        _apply = _Differentiable.apply
    else:
        return _Differentiable.apply(program, scalars, *operands)
    return _apply(program, scalars, *operands)
