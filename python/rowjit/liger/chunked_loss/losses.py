"""The modules of liger_kernel.chunked_loss, with Liger's constructors, and attributes of the same names."""

import torch
from torch import nn

from rowjit.liger.chunked_loss import functions

Tensor = torch.Tensor
_Preference = tuple[Tensor, tuple[Tensor, ...]]
_Distillation = Tensor | tuple[Tensor, Tensor, Tensor]


class LigerFusedLinearDPOLoss(nn.Module):
    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
        loss_type: str = "sigmoid",
        label_smoothing: float = 0.0,
        discopop_tau: float = 0.05,
    ) -> None:
        super().__init__()
        functions.require_dpo_loss(loss_type, label_smoothing)
        self.ignore_index, self.beta, self.alpha, self.compute_nll_loss = ignore_index, beta, alpha, compute_nll_loss
        self.compiled, self.use_ref_model, self.average_log_prob = compiled, use_ref_model, average_log_prob
        self.chunk_size, self.loss_type, self.label_smoothing = chunk_size, loss_type, label_smoothing
        self.discopop_tau = discopop_tau

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
    ) -> _Preference:
        return functions.LigerFusedLinearDPOFunction.apply(
            *(_input, lin_weight, target, bias, ref_input, ref_weight, ref_bias),
            *(self.ignore_index, self.beta, self.compute_nll_loss, self.compiled, self.use_ref_model),
            *(self.average_log_prob, self.chunk_size, self.loss_type, self.label_smoothing, self.discopop_tau, self.alpha),
        )


class LigerFusedLinearORPOLoss(nn.Module):
    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        chunk_size: int = 1,
    ) -> None:
        super().__init__()
        self.ignore_index, self.beta, self.compute_nll_loss = ignore_index, beta, compute_nll_loss
        self.compiled, self.chunk_size = compiled, chunk_size

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> _Preference:
        return functions.LigerFusedLinearORPOFunction.apply(
            *(_input, lin_weight, target, bias, self.ignore_index, self.beta, self.compute_nll_loss, nll_target),
            *(self.compiled, self.chunk_size),
        )


class LigerFusedLinearCPOLoss(nn.Module):
    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> None:
        super().__init__()
        self.ignore_index, self.beta, self.alpha, self.label_smoothing = ignore_index, beta, alpha, label_smoothing
        self.compute_nll_loss, self.compiled, self.average_log_prob = compute_nll_loss, compiled, average_log_prob
        self.chunk_size = chunk_size

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> _Preference:
        return functions.LigerFusedLinearCPOFunction.apply(
            *(_input, lin_weight, target, bias, self.ignore_index, self.beta, self.alpha, self.label_smoothing),
            *(self.compute_nll_loss, self.compiled, self.average_log_prob, self.chunk_size),
        )


class LigerFusedLinearSimPOLoss(nn.Module):
    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        gamma: float = 0.5,
        chunk_size: int = 1,
    ) -> None:
        super().__init__()
        self.ignore_index, self.beta, self.alpha, self.label_smoothing = ignore_index, beta, alpha, label_smoothing
        self.compute_nll_loss, self.compiled, self.gamma, self.chunk_size = compute_nll_loss, compiled, gamma, chunk_size

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> _Preference:
        return functions.LigerFusedLinearSimPOFunction.apply(
            *(_input, lin_weight, target, bias, self.ignore_index, self.beta, self.alpha, self.label_smoothing),
            *(self.compute_nll_loss, self.compiled, self.gamma, self.chunk_size),
        )


class LigerFusedLinearKTOLoss(nn.Module):
    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = False,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> None:
        super().__init__()
        self.ignore_index, self.beta, self.compiled, self.use_ref_model = ignore_index, beta, compiled, use_ref_model
        self.average_log_prob, self.chunk_size = average_log_prob, chunk_size

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        preference_labels: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
    ) -> _Preference:
        return functions.LigerFusedLinearKTOFunction.apply(
            *(_input, lin_weight, target, preference_labels, bias, ref_input, ref_weight, ref_bias, kl),
            *(self.ignore_index, self.beta, self.compiled, self.use_ref_model, self.average_log_prob, self.chunk_size),
        )


class LigerFusedLinearGRPOLoss(nn.Module):
    def __init__(
        self,
        beta: float = 0.04,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
    ) -> None:
        super().__init__()
        positive = {"sapo_temperature_pos": sapo_temperature_pos, "sapo_temperature_neg": sapo_temperature_neg, "delta": delta}
        for name, value in positive.items():
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.beta, self.compiled, self.use_ref_model, self.chunk_size = beta, compiled, use_ref_model, chunk_size
        self.epsilon_low, self.epsilon_high, self.loss_type = epsilon_low, epsilon_high, loss_type
        self.max_completion_length, self.importance_sampling_level = max_completion_length, importance_sampling_level
        self.sapo_temperature_pos, self.sapo_temperature_neg = sapo_temperature_pos, sapo_temperature_neg
        self.temperature, self.delta, self.use_bias_correction_kl = temperature, delta, use_bias_correction_kl
        self.vespo_k_pos, self.vespo_lambda_pos = vespo_k_pos, vespo_lambda_pos
        self.vespo_k_neg, self.vespo_lambda_neg = vespo_k_neg, vespo_lambda_neg

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
    ) -> _Preference:
        return functions.LigerFusedLinearGRPOFunction.apply(
            *(_input, lin_weight, selected_token_ids, attention_mask, advantages, bias),
            *(ref_per_token_logps, old_per_token_logps, ref_input, ref_weight, ref_bias),
            *(self.beta, self.epsilon_low, self.epsilon_high, self.loss_type, self.max_completion_length),
            *(self.importance_sampling_level, self.sapo_temperature_pos, self.sapo_temperature_neg, self.temperature),
            *(self.compiled, self.use_ref_model, self.chunk_size, vllm_is_ratio, self.delta, self.use_bias_correction_kl),
            *(self.vespo_k_pos, self.vespo_lambda_pos, self.vespo_k_neg, self.vespo_lambda_neg, num_items_in_batch),
        )


class _DistillationLoss(nn.Module):
    function: type

    def __init__(
        self,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> None:
        super().__init__()
        if temperature == 0:
            raise AssertionError("Temperature cannot be 0.")
        self.weight_hard_loss, self.weight_soft_loss, self.beta = weight_hard_loss, weight_soft_loss, beta
        self.ignore_index, self.temperature, self.compiled = ignore_index, temperature, compiled
        self.chunk_size, self.return_soft_hard_loss = chunk_size, return_soft_hard_loss

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
    ) -> _Distillation:
        return self.function.apply(
            *(student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias),
            *(self.weight_hard_loss, self.weight_soft_loss, self.beta, self.ignore_index, self.temperature),
            *(self.compiled, self.chunk_size, self.return_soft_hard_loss),
        )


class LigerFusedLinearJSDLoss(_DistillationLoss):
    function = functions.LigerFusedLinearJSDFunction


class LigerFusedLinearCosineSimilarityLoss(_DistillationLoss):
    function = functions.LigerFusedLinearCosineSimilarityFunction


__all__ = [name for name in globals() if name.startswith("Liger")]  # noqa: PLE0605
