"""Liger's entries for models: for one that there is, as trainers call it, for those that will be made of a type, and for
loading one."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

# Liger's switches, and ours.
_SWITCHES = {
    "rope": ("rope",),
    "rms_norm": ("rms_norm", "residual"),
    "swiglu": ("gated_mlp",),
    "geglu": ("gated_mlp",),
    "layer_norm": ("layer_norm",),
    "cross_entropy": ("cross_entropy",),
}


def _apply_liger_kernel_to_instance(model: torch.nn.Module, **switches: bool) -> None:
    """`rowjit.transformers.apply` with Liger's switches."""
    from rowjit.transformers import apply

    chosen = {ours: switches[liger] for liger, names in _SWITCHES.items() if liger in switches for ours in names}
    chosen["fused_linear_cross_entropy"] = "auto" if switches.get("fused_linear_cross_entropy", True) else False
    if chosen["fused_linear_cross_entropy"]:
        chosen["cross_entropy"] = True  # as Liger, whose models have one of the two
    apply(model, **chosen)


def apply_liger_kernel_to(model_type: str) -> Callable[..., None]:
    """The function that Liger calls apply_liger_kernel_to_{model_type}: of a model, or, without one, of the models of the type
    that are made from then on."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    of_text, of_images = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type), MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type)
    names = dict.fromkeys(name for name in (of_text, of_images) if name is not None)
    if not names:
        raise AttributeError(f"transformers has no causal language model of type {model_type!r}")

    def apply_to_type(*, model: torch.nn.Module | None = None, **switches: bool) -> None:
        if model is not None:
            _apply_liger_kernel_to_instance(model, **switches)
            return
        import transformers

        for name in names:
            _apply_when_made(getattr(transformers, name), switches)

    apply_to_type.__name__ = apply_to_type.__qualname__ = f"apply_liger_kernel_to_{model_type}"
    return apply_to_type


def _apply_when_made(kind: type, switches: dict[str, bool]) -> None:
    make = getattr(kind.__init__, "_rowjit_makes", kind.__init__)

    @functools.wraps(make)
    def made(model: torch.nn.Module, *arguments: object, **named: object) -> None:
        make(model, *arguments, **named)
        # Weights that are yet to be loaded have no memory, and what modules compute is tried on some that has.
        with torch.device("cpu"):
            _apply_liger_kernel_to_instance(model, **switches)

    made._rowjit_makes = make
    kind.__init__ = made


def _apply_liger_kernel(model_type: str, **switches: bool) -> None:
    apply_liger_kernel_to(model_type)(**switches)


class AutoLigerKernelForCausalLM:
    """transformers.AutoModelForCausalLM, followed by `apply`; of the arguments those that are Liger's switches are its."""

    @staticmethod
    def from_pretrained(*arguments: object, **named: object) -> torch.nn.Module:
        import transformers

        return _applied(transformers.AutoModelForCausalLM.from_pretrained, arguments, named)

    @staticmethod
    def from_config(*arguments: object, **named: object) -> torch.nn.Module:
        import transformers

        return _applied(transformers.AutoModelForCausalLM.from_config, arguments, named)


def _applied(load: Callable[..., torch.nn.Module], arguments: tuple, named: dict[str, object]) -> torch.nn.Module:
    switches = {name: named.pop(name) for name in (*_SWITCHES, "fused_linear_cross_entropy") if name in named}
    model = load(*arguments, **named)
    _apply_liger_kernel_to_instance(model, **switches)
    return model
