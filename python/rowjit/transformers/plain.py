"""When a module can be computed without being called: nobody has hooked into it, and its parameters are plain tensors."""

import torch

Tensor = torch.Tensor
_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(module: torch.nn.Module) -> bool:
    """Whether to call the module is to call its forward."""
    return not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def usual_linear(x: Tensor, module: torch.nn.Linear) -> bool:
    """Whether the product of x, in a forward whose gradient is asked, is of two plain tensors of one dtype."""
    weight = module._parameters.get("weight")
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and type(x) in _PLAIN
        and not x.is_meta
        and not torch.is_autocast_enabled(x.device.type)
        and type(weight) in _PLAIN
        and weight.dim() == 2
        and weight.dtype == x.dtype
        and weight.device == x.device
    )


def plain_weights(x: Tensor, linear: tuple[torch.nn.Module, ...]) -> tuple[Tensor, ...] | None:
    """The weights of products of x that a node of autograd can have for its own: torch's own modules without bias, whose
    weights are there whole and of x's dtype; where a gradient is asked."""
    usual = all(
        type(module) is torch.nn.Linear and module.bias is None and is_plain(module) and usual_linear(x, module)
        for module in linear
    )
    if not usual:
        return None
    weights = tuple(module.weight for module in linear)
    return weights if any(each.requires_grad for each in (x, *weights)) else None
