"""`apply`: rowjit's operations in place of a decoder model's own, module by module, parameters and names unchanged.

A replaced module gets a subclass of its class that has its name, so that what looks for classes — gradient
checkpointing, FSDP's wrapping, `isinstance` — finds what it did before.
"""

import copy
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rowjit.torch import attention, functional as F  # noqa: N812
from rowjit.torch.mlp import gated_mlp
from rowjit.transformers.beside import linear_forward, normed_beside, products_beside
from rowjit.transformers.head import head_forward, model_forward, shifted, taken_loss
from rowjit.transformers.plain import plain_weights
from rowjit.transformers.recognise import (
    Gated,
    Layer,
    Norm,
    Rotary,
    positional_names,
    recognise_head,
    recognise_layer,
    recognise_mlp,
    recognise_norm,
    recognise_rotary,
)
from rowjit.transformers.recompute import kept
from rowjit.transformers.stack import add_rms_norm, ended, found, recognise_stack, saving, stack_forward
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
    across_layers: bool = True  # likewise where the norm is the next layer's, or the one behind the last
    beside: bool = True  # gradients of what several operations read are added where they are made
    keep_last: bool = True  # where layers are checkpointed the last, whose backward is next, keeps what that reads
    offload: int = 0  # the first layers of which what they keep waits in host memory for their backward
    cross_entropy: bool = True
    # The head's matrix product and the loss as one, which never has all logits: in training the model's are None.
    # "auto": where the model's head is recognised; True: or an error.
    fused_linear_cross_entropy: bool | str = "auto"
    head_gradient: str = "forward"  # of rowjit.torch.linear_cross_entropy
    head_memory: str = "usual"  # likewise
    recompute: bool = True  # norms and gated activations in the backward, in place of keeping them


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
            _replace_layer(module, norms, chosen, summary)
        if chosen.gated_mlp:
            _replace_mlp(module, chosen.recompute, summary)
        if chosen.rope:
            _replace_rotary(module, summary)
        if chosen.layer_norm and type(module) is torch.nn.LayerNorm and len(module.normalized_shape) == 1:
            _swap(module, _of_one(_layer_norm, type(module).forward), "layer_norm")
            summary.replace("LayerNorm", "layer_norm")
    if chosen.rms_norm:
        for module, norm in norms.items():
            if _is_open(module):
                _swap(module, _of_one(functools.partial(_rms_norm, norm), type(module).forward), norm, _rowjit_norm=norm)
                summary.replace(type(module).__name__, "rms_norm")
    if chosen.across_layers or chosen.keep_last or chosen.offload:
        for module in modules:
            _replace_stack(module, chosen, summary)
    _replace_loss(model, chosen, summary)
    return summary


# ---- Classes -------------------------------------------------------------------------------------------------------

_classes: dict[tuple[type, object], type] = {}


def _is_open(module: torch.nn.Module) -> bool:
    return not getattr(type(module), "_rowjit", False)


def _of_one(forward: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
    """The forward of one tensor; for what else a module may be called with, the gate of a norm say, its own."""

    def call(module: torch.nn.Module, *arguments: object, **named: object) -> object:
        if len(arguments) != 1 or named:
            return original(module, *arguments, **named)
        return forward(module, *arguments)

    return call


def _swap(module: torch.nn.Module, forward: Callable[..., object], key: object, **facts: object) -> None:
    """Gives the module a subclass whose forward calls `forward(module, …)`, with `facts`; one for equal keys."""
    kind = type(module)
    made = _classes.get((kind, key))
    if made is None:

        def call(self, *arguments, **named):  # noqa: ANN001, ANN002, ANN003, ANN202
            return forward(self, *arguments, **named)

        functools.update_wrapper(call, kind.forward, updated=())
        del call.__wrapped__
        call.__signature__ = inspect.signature(kind.forward)  # trainers and generate() look arguments up
        body = {
            "forward": call,
            "_rowjit": True,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__reduce_ex__": _reduced,
            "__deepcopy__": _deep_copied,
        }
        made = _classes[(kind, key)] = type(kind.__name__, (kind,), body | facts)
    module.__class__ = made


def _reduced(module: torch.nn.Module, protocol: int) -> tuple:
    """A pickle has the module as it was before: its class is made anew by `apply`, and known nowhere else."""
    _, _, *state = torch.nn.Module.__reduce_ex__(module, max(protocol, 2))
    kind = next(each for each in type(module).__mro__ if "_rowjit" not in vars(each))
    return (object.__new__, (kind,), *state)


def _deep_copied(module: torch.nn.Module, memo: dict[int, object]) -> torch.nn.Module:
    copied = memo[id(module)] = object.__new__(type(module))
    copied.__dict__.update(copy.deepcopy(module.__dict__, memo))
    return copied


# ---- Norms and MLPs ------------------------------------------------------------------------------------------------


def _rms_norm(norm: Norm, module: torch.nn.Module, x: Tensor) -> Tensor:
    left = found(module, x)
    return _rms_norm_of(norm, x, module.weight) if left is None else left


def _rms_norm_of(norm: Norm, x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight, eps=norm.eps, offset=norm.offset, casting=norm.casting)


def _again(norm: torch.nn.Module, x: Tensor, _: Tensor) -> Tensor:
    return type(norm).forward(norm, x)


def _layer_norm(module: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, module.weight, module.bias, eps=module.eps)


def _replace_mlp(module: torch.nn.Module, recompute: bool, summary: Summary) -> None:
    gated = recognise_mlp(module)
    if gated is None:
        if "MLP" in type(module).__name__:
            summary.leave(type(module).__name__, "computes no gated activation that rowjit has")
        return
    _swap(module, _of_one(functools.partial(_mlp, gated, recompute), type(module).forward), (gated, recompute))
    summary.replace(type(module).__name__, gated.operation)


def _mlp(gated: Gated, recompute: bool, module: torch.nn.Module, x: Tensor) -> Tensor:
    children = module._modules
    options = {} if gated.form is None else {"form": gated.form}
    if recompute and gated.up is not None:
        weights = plain_weights(x, (children[gated.gate], children[gated.up], children[gated.down]))
        if weights is not None:
            return gated_mlp(x, *weights, gated.operation, **options)
    halves = (children[gated.gate](x),) if gated.up is None else (children[gated.gate](x), children[gated.up](x))
    operation = functools.partial(getattr(F, gated.operation), **options)
    activated = operation(*halves)
    with kept(recompute, activated, operation, *halves):
        return children[gated.down](activated)


# ---- Rotary embeddings ---------------------------------------------------------------------------------------------


def _replace_rotary(module: torch.nn.Module, summary: Summary) -> None:
    """The attention's forward, which calls ours by another name than the function that turns queries and keys.

    The name is added to the model's own module, where torch.compile looks a function's names up.
    """
    forward = type(module).forward
    within = inspect.unwrap(forward)
    if not isinstance(within, types.FunctionType):
        return
    names = [name for name in within.__code__.co_names if "rotary_pos_emb" in name and name in within.__globals__]
    if not names:
        return
    what = f"{type(module).__name__}.{names[0]}"
    if len(names) > 1:
        summary.leave(what, "its forward turns more than once")
        return
    original = within.__globals__[names[0]]
    found = recognise_rotary(original)
    if found is None:
        summary.leave(what, "computes no rotary embedding of queries and keys that rowjit has")
        return
    name = f"_rowjit_{names[0]}"
    copied = _renamed(forward, names[0], name)
    if copied is None:
        summary.leave(what, "its forward is decorated by what cannot be copied")
        return
    within.__globals__[name] = rotary_function(original, found)
    _swap(module, copied, ("rotary", original))
    summary.replace(what, "rope_qk")


def _renamed(function: Callable[..., object], name: str, other: str) -> types.FunctionType | None:
    """A copy that reads the global `other` for `name`, with copies of its decorators around it. None where one of those
    keeps what it calls elsewhere than in its closure."""
    if not isinstance(function, types.FunctionType):
        return None
    code, cells, within = function.__code__, function.__closure__, getattr(function, "__wrapped__", None)
    if within is None:
        code = code.replace(co_names=tuple(other if each == name else each for each in code.co_names))
    else:
        calls = [cell.cell_contents is within for cell in cells or ()]
        renamed = _renamed(within, name, other)
        if renamed is None or not any(calls):
            return None
        cells = tuple(types.CellType(renamed) if is_call else cell for cell, is_call in zip(cells, calls, strict=True))
    copied = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


@functools.cache
def rotary_function(original: Callable[..., object], rotary: Rotary) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of the original's signature, which calls it for what rowjit does not take."""

    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: object, **named: object):  # noqa: ANN202
        if more or named or q.dim() != 4 or cos.dim() != 3 or cos.dtype != q.dtype:
            return original(q, k, cos, sin, *more, **named)
        wide_cos, wide_sin = rotary.widened(cos), rotary.widened(sin)
        if wide_cos.shape[-1] != q.shape[-1] and not rotary.partial:
            return original(q, k, cos, sin)
        return attention.apply_rotary_pos_emb(q, k, wide_cos, wide_sin, rotary.pairing)

    return apply_rotary_pos_emb


# ---- Decoder layers ------------------------------------------------------------------------------------------------


def _replace_layer(
    module: torch.nn.Module, norms: dict[torch.nn.Module, Norm], chosen: Switches, summary: Summary
) -> None:
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
    options = (layer, norm, chosen.recompute, chosen.beside)
    _swap(module, functools.partial(_layer, *options, names), options, _rowjit_layer=layer)
    summary.replace(f"{type(module).__name__}'s residual add and {layer.norm_before_mlp}", "add_rms_norm")
    if not chosen.beside:
        return
    attention = module._modules[layer.attention]
    for child in attention.children():
        if type(child) is torch.nn.Linear:
            _swap(child, _of_one(linear_forward, torch.nn.Linear.forward), "beside")
            summary.replace(f"{type(attention).__name__}'s Linear", "Linear beside those of the same input")


def _layer(
    layer: Layer,
    norm: Norm,
    recompute: bool,
    beside: bool,
    names: tuple[str, ...],
    module: torch.nn.Module,
    *arguments: object,
    **named: object,
) -> Tensor:
    given = dict(zip(names, arguments, strict=False)) | named
    with saving(module):
        return ended(module, *_sum_and_mlp(layer, norm, recompute, beside, module._modules, given.pop(names[0]), given))


def _sum_and_mlp(
    layer: Layer,
    norm: Norm,
    recompute: bool,
    beside: bool,
    children: dict[str, torch.nn.Module],
    residual: Tensor,
    given: dict[str, object],
) -> tuple[Tensor, Tensor]:
    """What the layer's result is the sum of."""
    before = children[layer.norm_before_attention]
    residual, x = normed_beside(before, residual) if beside else (residual, before(residual))
    with kept(recompute, x, functools.partial(_again, before), residual, before.weight), products_beside(x):
        x = children[layer.attention](hidden_states=x, **given)[0]
    if layer.norm_after_attention:
        x = children[layer.norm_after_attention](x)
    if layer.scale != 1.0:
        x = x * layer.scale
    weight = children[layer.norm_before_mlp].weight
    summed, x = add_rms_norm(norm, x, residual, weight)
    with kept(recompute, x, functools.partial(_rms_norm_of, norm), summed, weight):
        x = children[layer.mlp](x)
    if isinstance(x, tuple):
        x = x[0]  # and the scores of experts, which the layer makes nothing of
    if layer.norm_after_mlp:
        x = children[layer.norm_after_mlp](x)
    return summed, x if layer.scale == 1.0 else x * layer.scale


def _replace_stack(module: torch.nn.Module, chosen: Switches, summary: Summary) -> None:
    stack = recognise_stack(module, chosen.across_layers, chosen.keep_last, chosen.offload)
    if stack is None or not _is_open(module):
        return
    what = f"{type(module).__name__}'s residual add and norm across layers"
    if isinstance(stack, str):
        summary.leave(what, stack)
        return
    _swap(module, functools.partial(stack_forward, type(module).forward, stack), stack)
    if chosen.across_layers:
        summary.replace(what, "add_rms_norm")


# ---- Losses --------------------------------------------------------------------------------------------------------


def _replace_loss(model: torch.nn.Module, chosen: Switches, summary: Summary) -> None:
    fused = chosen.fused_linear_cross_entropy
    if fused not in (True, False, "auto"):
        raise ValueError(f'fused_linear_cross_entropy is {fused!r}; it is one of True, False, "auto"')
    if not (chosen.cross_entropy or fused is True) or not hasattr(type(model), "loss_function"):
        return
    from transformers.loss.loss_utils import ForCausalLMLoss

    if model.loss_function is causal_loss:
        return
    if model.loss_function is not ForCausalLMLoss:
        summary.leave("the loss", "is not the usual one of causal language models")
        return
    found = recognise_head(model) if fused else ""
    model.loss_function = causal_loss
    if isinstance(found, str):
        if fused is True:
            raise ValueError(f"fused_linear_cross_entropy: {type(model).__name__} {found}")
        if fused:
            summary.leave("the head", found)
        summary.replace("the loss", "cross_entropy")
        return
    options = found | {"gradient": chosen.head_gradient, "memory": chosen.head_memory}
    key = tuple(options.items())
    head = model.get_output_embeddings()
    _swap(head, functools.partial(head_forward, type(head).forward), "head")
    _swap(model, functools.partial(model_forward, type(model).forward, options), key)
    summary.replace("the head and the loss", "fused_linear_cross_entropy")


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
    if (taken := taken_loss()) is not None:
        return taken
    target = shifted(labels, shift_labels, ignore_index).to(logits.device).reshape(-1)
    rows = logits.reshape(-1, vocab_size)
    if num_items_in_batch is None:
        return F.cross_entropy(rows, target, ignore_index=ignore_index)
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return F.cross_entropy(rows, target, ignore_index=ignore_index, reduction="sum") / num_items_in_batch
