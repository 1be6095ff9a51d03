"""The sum that ends a decoder layer and the norm that begins the next, as one kernel across the modules' boundary.

The layer computes both and leaves the norm's result with the sum, where the norm finds it. Whoever changes the sum, or
gives the norm another tensor, gets a norm of that. Only while the stack's own forward runs does a layer know what is
behind it; what checkpointing computes again, it computes alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from rowjit.torch import functional as F  # noqa: N812
from rowjit.transformers.offload import Offload
from rowjit.transformers.plain import is_plain
from rowjit.transformers.recognise import Layer, Norm
from rowjit.transformers.recompute import nobody_decides

Tensor = torch.Tensor
_PLACE = "_rowjit_normed"


@dataclass(frozen=True)
class Stack:
    """The children of a decoder: its layers, and the norm behind the last. What is done about them."""

    layers: str
    norm: str | None
    across: bool
    keep_last: bool
    offload: int


@dataclass
class _Normed:
    """What a layer leaves with its result."""

    norm: torch.nn.Module
    result: Tensor
    version: int  # of the sum


class _Running(threading.local):
    behind: dict[torch.nn.Module, torch.nn.Module] | None = None
    offload: Offload | None = None


_running = _Running()


def recognise_stack(module: torch.nn.Module, across: bool, keep_last: bool, offload: int) -> Stack | str | None:
    """None where there are no layers that rowjit knows; or why the sums between them are left."""
    lists = {
        name: child
        for name, child in module.named_children()
        if isinstance(child, torch.nn.ModuleList) and any(_layer_of(layer) is not None for layer in child)
    }
    if not lists:
        return None
    if len(lists) > 1 or any(_layer_of(layer) is None for child in lists.values() for layer in child):
        return "not every layer is one that rowjit knows"
    ((name, layers),) = lists.items()
    if not all(map(is_plain, layers)):
        return "layers have hooks, as those of sharded or offloaded parameters do"
    norms = [child for child, each in module.named_children() if norm_of(each) is not None]
    return Stack(name, norms[0] if len(norms) == 1 else None, across, keep_last, offload)


def _layer_of(module: torch.nn.Module) -> Layer | None:
    return getattr(type(module), "_rowjit_layer", None)


def norm_of(module: torch.nn.Module) -> Norm | None:
    return getattr(type(module), "_rowjit_norm", None)


def _is_checkpointed(layer: torch.nn.Module) -> bool:
    return layer.training and getattr(layer, "gradient_checkpointing", False)


def stack_forward(forward: Callable[..., object], stack: Stack, module: torch.nn.Module, *arguments, **named):  # noqa: ANN002, ANN003, ANN201
    """The decoder's forward, whose layers know what is behind them."""
    if torch.compiler.is_compiling():
        return forward(module, *arguments, **named)
    with _last_kept(module, stack):
        outer = _running.behind, _running.offload
        _running.behind = _norms_behind(module, stack)
        _running.offload = _offload(module, stack)
        try:
            return forward(module, *arguments, **named)
        finally:
            _running.behind, _running.offload = outer


def _offload(module: torch.nn.Module, stack: Stack) -> Offload | None:
    """Checkpointing keeps nothing that could be moved; a layer is not where somebody else decides about all of them."""
    if not stack.offload or not torch.is_grad_enabled() or not nobody_decides():
        return None
    layers = list(module._modules[stack.layers])
    return None if any(map(_is_checkpointed, layers[: stack.offload])) else Offload(layers, stack.offload)


def saving(layer: torch.nn.Module) -> AbstractContextManager:
    """The context of the layer's forward."""
    kept = None if _running.offload is None else _running.offload.kept.get(layer)
    return nullcontext() if kept is None else kept.saving()


@contextmanager
def _last_kept(module: torch.nn.Module, stack: Stack) -> Iterator[None]:
    """The last layer is not checkpointed: its backward runs next, which would make at once what was just released."""
    layers = module._modules[stack.layers]
    last = layers[-1] if stack.keep_last and len(layers) > 1 else None
    if last is None or not _is_checkpointed(last):
        yield
        return
    last.gradient_checkpointing = False
    try:
        yield
    finally:
        last.gradient_checkpointing = True


def _norms_behind(module: torch.nn.Module, stack: Stack) -> dict[torch.nn.Module, torch.nn.Module]:
    """By layer. A layer that is hooked into may not be what runs next; its parameters may not be there yet."""
    behind = {}
    if not stack.across:
        return behind
    layers = list(module._modules[stack.layers])
    for layer, following in zip(layers, layers[1:], strict=False):
        known = _layer_of(following)
        if known is not None and is_plain(following) and not _is_checkpointed(layer) and not _is_checkpointed(following):
            behind[layer] = following._modules[known.norm_before_attention]
    if stack.norm is not None and layers and not _is_checkpointed(layers[-1]):
        behind[layers[-1]] = module._modules[stack.norm]
    return behind


def ended(layer: torch.nn.Module, total: Tensor, x: Tensor) -> Tensor:
    """total + x, the layer's result."""
    result = _summed(layer, total, x)
    if _running.offload is not None:
        _running.offload.ended(layer, result)
    return result


def _summed(layer: torch.nn.Module, total: Tensor, x: Tensor) -> Tensor:
    """total + x, with the norm behind it where that can be computed now."""
    norm = None if _running.behind is None else _running.behind.get(layer)
    # Of a tensor made in inference mode nobody could say that it was changed before the norm reads it.
    unknown = torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
    if norm is None or unknown or not nobody_decides() or not _is_there(norm, x):
        return total + x
    result, normed = add_rms_norm(norm_of(norm), x, total, norm.weight)
    setattr(result, _PLACE, _Normed(norm, normed, result._version))
    return result


def add_rms_norm(norm: Norm, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, with the dtype that torch gives it — autocast makes branches narrower than the residual — and its norm."""
    dtype = torch.promote_types(x.dtype, residual.dtype)
    operands = x.to(dtype), residual.to(dtype), weight
    return F.add_rms_norm(*operands, eps=norm.eps, offset=norm.offset, casting=norm.casting)


def _is_there(norm: torch.nn.Module, x: Tensor) -> bool:
    """Whether the norm's parameter can be read before the norm is called."""
    weight = norm._parameters.get("weight")
    return (
        norm_of(norm) is not None
        and is_plain(norm)
        and type(weight) is torch.nn.Parameter
        and weight.device == x.device
        and weight.shape == x.shape[-1:]
    )


def found(norm: torch.nn.Module, x: Tensor) -> Tensor | None:
    """The norm of x that a layer has left, given once."""
    if torch.compiler.is_compiling() or _running.behind is None:
        return None
    left: _Normed | None = getattr(x, _PLACE, None)
    if left is None:
        return None
    delattr(x, _PLACE)
    return left.result if left.norm is norm and left.version == x._version and nobody_decides() else None
