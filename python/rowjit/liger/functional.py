"""Liger's functions, with Liger's parameters."""

from dataclasses import dataclass

import torch

from rowjit.liger import functions as f

Tensor = torch.Tensor


@dataclass
class CrossEntropyOutput:
    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


def liger_cross_entropy(
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    returns = (return_z_loss, return_token_accuracy, return_predicted_tokens)
    options = (ignore_index, lse_square_scale, label_smoothing, reduction, softcap)
    found = f.LigerCrossEntropyFunction.apply(input, target, weight, *options, *returns)
    return CrossEntropyOutput(*found) if any(returns) else found[0]


def liger_fused_linear_cross_entropy(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    returns = (return_z_loss, return_token_accuracy, return_predicted_tokens)
    options = (ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, accum_dtype)
    found = f.LigerFusedLinearCrossEntropyFunction.apply(
        input, weight, target, bias, ce_weight, *options, use_token_scaling, *returns[1:]
    )
    return CrossEntropyOutput(*found) if any(returns) else found[0]


def liger_modulated_rms_norm(
    X: Tensor,  # noqa: N803
    W: Tensor | None,  # noqa: N803
    scale: Tensor,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> Tensor:
    return f.LigerModulatedRMSNormFunction.apply(X, W, scale, shift, eps, offset, casting_mode, in_place)


liger_rms_norm = f.LigerRMSNormFunction.apply
liger_fused_add_rms_norm = f.LigerFusedAddRMSNormFunction.apply
liger_layer_norm = f.LigerLayerNormFunction.apply
liger_group_norm = f.LigerGroupNormFunction.apply
liger_poly_norm = f.LigerPolyNormFunction.apply
liger_dyt = f.LigerDyTFunction.apply
liger_swiglu = f.LigerSiLUMulFunction.apply
liger_geglu = f.LigerGELUMulFunction.apply
liger_relu_squared = f.LigerReLUSquaredFunction.apply
liger_rope = liger_rotary_pos_emb = f.LigerRopeFunction.apply
liger_qwen2vl_mrope = liger_multimodal_rotary_pos_emb = f.LigerQwen2VLMRopeFunction.apply
liger_softmax = f.LigerSoftmaxFunction.apply
liger_sparsemax = f.LigerSparsemaxFunction.apply
liger_jsd = f.LigerJSDFunction.apply
liger_fused_linear_jsd = f.LigerFusedLinearJSDFunction.apply
liger_llama4_text_rotary_pos_emb = f.LigerLlama4RopeFunction.apply
liger_attn_res = f.LigerAttnResFunction.apply


def liger_tvd(
    input: Tensor,  # noqa: A002
    target: Tensor,
    shift_labels: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    return f.LigerTVDLossFunction.apply(input, target, shift_labels, reduction, ignore_index)


def liger_kl_div(
    input: Tensor,  # noqa: A002
    target: Tensor,
    size_average: bool = True,
    reduce: bool = True,
    reduction: str = "mean",
    log_target: bool = False,
    eps: float = 1e-10,
) -> Tensor:
    return f.LigerKLDivLossFunction.apply(input, target, reduction, log_target, eps)


__all__ = ["CrossEntropyOutput", *(name for name in globals() if name.startswith("liger_"))]  # noqa: PLE0604
