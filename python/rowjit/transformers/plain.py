"""When a module can be computed without being called: nobody has hooked into it, and its parameters are plain tensors."""

import torch

Tensor = torch.Tensor
_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(module: torch.nn.Module) -> bool:
    """Whether to call the module is to call its forward."""
    return not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def plain_weights(x: Tensor, linear: tuple[torch.nn.Module, ...]) -> tuple[Tensor, ...] | None:
    """The weights of products of x that a node of autograd can have for its own: torch's own modules without bias, whose
    weights are there whole and of x's dtype; where a gradient is asked."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type):
        return None
    weights = tuple(module._parameters.get("weight") for module in linear)
    usual = all(
        type(module) is torch.nn.Linear
        and module.bias is None
        and is_plain(module)
        and type(weight) in _PLAIN
        and weight.dim() == 2
        and weight.dtype == x.dtype
        and weight.device == x.device
        for module, weight in zip(linear, weights, strict=True)
    )
    if not usual or type(x) not in _PLAIN or x.is_meta or not any(each.requires_grad for each in (x, *weights)):
        return None
    return weights
