"""`apply`: rowjit's operations in place of a decoder model's own, module by module, parameters and names unchanged.

A replaced module gets a subclass of its class that has its name, so that what looks for classes — gradient
checkpointing, FSDP's wrapping, `isinstance` — finds what it did before.
"""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rowjit.torch import attention, functional as F  # noqa: N812
from rowjit.transformers.recognise import (
    Gated,
    Layer,
    Norm,
    positional_names,
    recognise_layer,
    recognise_mlp,
    recognise_norm,
    recognise_rotary,
)
from rowjit.transformers.summary import Summary

Tensor = torch.Tensor


@dataclass(frozen=True)
class Switches:
    """What `apply` replaces."""

    rms_norm: bool = True
    layer_norm: bool = True
    rope: bool = True
    gated_mlp: bool = True
    residual: bool = True  # the residual add and the norm after it as one kernel
    cross_entropy: bool = True
    # The head's matrix product and the loss as one, which never has all logits; "auto": where the library has it.
    fused_linear_cross_entropy: bool | str = "auto"


def apply(model: torch.nn.Module, **switches: bool | str) -> Summary:
    """Replaces in place what the model computes and rowjit has. `switches` are the fields of Switches.

    Returns what was replaced, and what was left and why. Applying twice does nothing more.
    """
    chosen = Switches(**switches)
    summary = Summary()
    modules = list(model.modules())
    norms: dict[torch.nn.Module, Norm] = {}
    for module in modules:
        if (norm := recognise_norm(module)) is not None:
            norms[module] = norm
        elif "Norm" in type(module).__name__ and not isinstance(module, torch.nn.LayerNorm) and _is_open(module):
            summary.leave(type(module).__name__, "computes no RMS norm that rowjit has")
    for module in modules:
        if not _is_open(module):
            continue
        if chosen.residual and chosen.rms_norm:
            _replace_layer(module, norms, summary)
        if chosen.gated_mlp:
            _replace_mlp(module, summary)
        if chosen.rope:
            _replace_rotary(module, summary)
        if chosen.layer_norm and type(module) is torch.nn.LayerNorm and len(module.normalized_shape) == 1:
            _swap(module, _layer_norm)
            summary.replace("LayerNorm", "layer_norm")
    if chosen.rms_norm:
        for module, norm in norms.items():
            if _is_open(module):
                _swap(module, functools.partial(_rms_norm, norm), norm)
                summary.replace(type(module).__name__, "rms_norm")
    _replace_loss(model, chosen, summary)
    return summary


# ---- Classes -------------------------------------------------------------------------------------------------------

_classes: dict[tuple[type, object], type] = {}


def _is_open(module: torch.nn.Module) -> bool:
    return not getattr(type(module), "_rowjit", False)


def _swap(module: torch.nn.Module, forward: Callable[..., object], key: object = None) -> None:
    """Gives the module a subclass whose forward calls `forward(module, …)`; one for equal keys."""
    kind = type(module)
    made = _classes.get((kind, key or forward))
    if made is None:

        def call(self, *arguments, **named):  # noqa: ANN001, ANN002, ANN003, ANN202
            return forward(self, *arguments, **named)

        functools.update_wrapper(call, kind.forward, updated=())
        del call.__wrapped__
        body = {"forward": call, "_rowjit": True, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        made = _classes[(kind, key or forward)] = type(kind.__name__, (kind,), body)
    module.__class__ = made


# ---- Norms and MLPs ------------------------------------------------------------------------------------------------


def _rms_norm(norm: Norm, module: torch.nn.Module, x: Tensor) -> Tensor:
    return F.rms_norm(x, module.weight, eps=norm.eps, offset=norm.offset, casting=norm.casting)


def _layer_norm(module: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, module.weight, module.bias, eps=module.eps)


def _replace_mlp(module: torch.nn.Module, summary: Summary) -> None:
    gated = recognise_mlp(module)
    if gated is None:
        if "MLP" in type(module).__name__:
            summary.leave(type(module).__name__, "computes no gated activation that rowjit has")
        return
    _swap(module, functools.partial(_mlp, gated), gated)
    summary.replace(type(module).__name__, gated.operation)


def _mlp(gated: Gated, module: torch.nn.Module, x: Tensor) -> Tensor:
    children = module._modules
    halves = (children[gated.gate](x), None if gated.up is None else children[gated.up](x))
    operation = getattr(F, gated.operation)
    activated = operation(*halves) if gated.form is None else operation(*halves, form=gated.form)
    return children[gated.down](activated)


# ---- Rotary embeddings ---------------------------------------------------------------------------------------------


def _replace_rotary(module: torch.nn.Module, summary: Summary) -> None:
    """The attention's forward on a copy of its globals, where the function that turns queries and keys is ours."""
    forward = type(module).forward
    if not isinstance(forward, types.FunctionType):
        return
    names = [name for name in forward.__code__.co_names if "rotary_pos_emb" in name and name in forward.__globals__]
    if not names:
        return
    what = f"{type(module).__name__}.{names[0]}"
    if len(names) > 1 or hasattr(forward, "__wrapped__"):
        summary.leave(what, "its forward is decorated, or turns more than once")
        return
    original = forward.__globals__[names[0]]
    found = recognise_rotary(original)
    if found is None:
        summary.leave(what, "computes no rotary embedding of queries and keys that rowjit has")
        return
    ours = rotary_function(original, *found)
    copied = types.FunctionType(
        forward.__code__, forward.__globals__ | {names[0]: ours}, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copied.__kwdefaults__ = forward.__kwdefaults__
    _swap(module, copied, ("rotary", original))
    summary.replace(what, "rope_qk")


@functools.cache
def rotary_function(original: Callable[..., object], pairing: str, partial: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of the original's signature, which calls it for what rowjit does not take."""

    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: object, **named: object):  # noqa: ANN202
        width = cos.shape[-1]
        if more or named or q.dim() != 4 or cos.dim() != 3 or cos.dtype != q.dtype or (width != q.shape[-1] and not partial):
            return original(q, k, cos, sin, *more, **named)
        return attention.apply_rotary_pos_emb(q, k, cos, sin, pairing)

    return apply_rotary_pos_emb


# ---- Decoder layers ------------------------------------------------------------------------------------------------


def _replace_layer(module: torch.nn.Module, norms: dict[torch.nn.Module, Norm], summary: Summary) -> None:
    of_module = {name for name, child in module.named_children() if child in norms}
    if len(of_module) < 2:
        return
    layer = recognise_layer(module, of_module)
    if layer is None:
        if "Layer" in type(module).__name__:
            summary.leave(f"{type(module).__name__}'s residual add", "no norm follows it in this layer as rowjit knows layers")
        return
    norm = norms[module._modules[layer.norm_before_mlp]]
    names = positional_names(type(module).forward)
    _swap(module, functools.partial(_layer, layer, norm, names), (layer, norm))
    summary.replace(f"{type(module).__name__}'s residual add and {layer.norm_before_mlp}", "add_rms_norm")


def _layer(
    layer: Layer, norm: Norm, names: tuple[str, ...], module: torch.nn.Module, *arguments: object, **named: object
) -> Tensor:
    children = module._modules
    given = dict(zip(names, arguments, strict=False)) | named
    residual = given.pop(names[0])
    x = children[layer.norm_before_attention](residual)
    x = children[layer.attention](hidden_states=x, **given)[0]
    if layer.norm_after_attention:
        x = children[layer.norm_after_attention](x)
    if layer.scale != 1.0:
        x = x * layer.scale
    weight = children[layer.norm_before_mlp].weight
    summed, x = F.add_rms_norm(x, residual, weight, eps=norm.eps, offset=norm.offset, casting=norm.casting)
    x = children[layer.mlp](x)
    if layer.norm_after_mlp:
        x = children[layer.norm_after_mlp](x)
    return summed + (x if layer.scale == 1.0 else x * layer.scale)


# ---- Losses --------------------------------------------------------------------------------------------------------


def _replace_loss(model: torch.nn.Module, chosen: Switches, summary: Summary) -> None:
    if chosen.fused_linear_cross_entropy is True:
        raise ValueError("fused_linear_cross_entropy: this version of rowjit has none; leave it at \"auto\"")
    if not chosen.cross_entropy or not hasattr(type(model), "loss_function"):
        return
    from transformers.loss.loss_utils import ForCausalLMLoss

    if model.loss_function is causal_loss:
        return
    if model.loss_function is not ForCausalLMLoss:
        summary.leave("the loss", "is not the usual one of causal language models")
        return
    model.loss_function = causal_loss
    summary.replace("the loss", "cross_entropy")


def causal_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_: object,
) -> Tensor:
    """transformers' ForCausalLMLoss, which reads the logits in their own dtype and makes no copy of them in f32."""
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.to(logits.device).reshape(-1)
    rows = logits.reshape(-1, vocab_size)
    if num_items_in_batch is None:
        return F.cross_entropy(rows, target, ignore_index=ignore_index)
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return F.cross_entropy(rows, target, ignore_index=ignore_index, reduction="sum") / num_items_in_batch
