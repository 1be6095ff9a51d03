"""Liger's entry for a model, as trainers call it."""

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
    """`rowjit.transformers.apply` with Liger's switches. The loss is rowjit's if either of Liger's two is on."""
    from rowjit.transformers import apply

    chosen = {ours: switches[liger] for liger, names in _SWITCHES.items() if liger in switches for ours in names}
    if switches.get("fused_linear_cross_entropy", True):
        chosen["cross_entropy"] = True
    apply(model, **chosen)
