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
    """`rowjit.transformers.apply` with Liger's switches."""
    from rowjit.transformers import apply

    chosen = {ours: switches[liger] for liger, names in _SWITCHES.items() if liger in switches for ours in names}
    chosen["fused_linear_cross_entropy"] = "auto" if switches.get("fused_linear_cross_entropy", True) else False
    if chosen["fused_linear_cross_entropy"]:
        chosen["cross_entropy"] = True  # as Liger, whose models have one of the two
    apply(model, **chosen)
