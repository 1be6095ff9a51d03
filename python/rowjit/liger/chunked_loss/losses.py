"""The modules of liger_kernel.chunked_loss, with Liger's constructors, and attributes of the same names."""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import nn

from rowjit.liger.chunked_loss import functions

Tensor = torch.Tensor
_Preference = tuple[Tensor, tuple[Tensor, ...]]
_Distillation = Tensor | tuple[Tensor, Tensor, Tensor]


class _Loss(nn.Module):
    """A module whose fields are Liger's options: its constructor's arguments, attributes, and what its function is given by
    their names, as they are when it is called."""

    function: ClassVar[type]

    def __post_init__(self) -> None:
        super().__init__()

    def _apply_function(self, *operands: Tensor | None, **more: Tensor | float | None) -> _Preference | _Distillation:
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return self.function.apply(*operands, **more, **options)


@dataclass(eq=False, repr=False)
class LigerFusedLinearDPOLoss(_Loss):
    function = functions.LigerFusedLinearDPOFunction

    ignore_index: int = -100
    beta: float = 0.1
    alpha: float = 1.0
    compute_nll_loss: bool = False
    compiled: bool = True
    use_ref_model: bool = True
    average_log_prob: bool = False
    chunk_size: int = 1
    loss_type: str = "sigmoid"
    label_smoothing: float = 0.0
    discopop_tau: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        functions.require_dpo_loss(self.loss_type, self.label_smoothing)

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
        return self._apply_function(_input, lin_weight, target, bias, ref_input, ref_weight, ref_bias)


@dataclass(eq=False, repr=False)
class LigerFusedLinearORPOLoss(_Loss):
    function = functions.LigerFusedLinearORPOFunction

    ignore_index: int = -100
    beta: float = 0.1
    compute_nll_loss: bool = True
    compiled: bool = True
    chunk_size: int = 1

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> _Preference:
        return self._apply_function(_input, lin_weight, target, bias, nll_target=nll_target)


@dataclass(eq=False, repr=False)
class LigerFusedLinearCPOLoss(_Loss):
    function = functions.LigerFusedLinearCPOFunction

    ignore_index: int = -100
    beta: float = 0.1
    alpha: float = 1.0
    label_smoothing: float = 0.0
    compute_nll_loss: bool = True
    compiled: bool = True
    average_log_prob: bool = False
    chunk_size: int = 1

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> _Preference:
        return self._apply_function(_input, lin_weight, target, bias)


@dataclass(eq=False, repr=False)
class LigerFusedLinearSimPOLoss(_Loss):
    function = functions.LigerFusedLinearSimPOFunction

    ignore_index: int = -100
    beta: float = 0.1
    alpha: float = 1.0
    label_smoothing: float = 0.0
    compute_nll_loss: bool = True
    compiled: bool = True
    gamma: float = 0.5
    chunk_size: int = 1

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> _Preference:
        return self._apply_function(_input, lin_weight, target, bias)


@dataclass(eq=False, repr=False)
class LigerFusedLinearKTOLoss(_Loss):
    function = functions.LigerFusedLinearKTOFunction

    ignore_index: int = -100
    beta: float = 0.1
    compiled: bool = True
    use_ref_model: bool = False
    average_log_prob: bool = False
    chunk_size: int = 1

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
        return self._apply_function(_input, lin_weight, target, preference_labels, bias, ref_input, ref_weight, ref_bias, kl)


@dataclass(eq=False, repr=False)
class LigerFusedLinearGRPOLoss(_Loss):
    function = functions.LigerFusedLinearGRPOFunction

    beta: float = 0.04
    compiled: bool = True
    use_ref_model: bool = True
    chunk_size: int = 1
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    loss_type: str = "dapo"
    max_completion_length: int | None = None
    importance_sampling_level: str = "token"
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    temperature: float = 1.0
    delta: float | None = None
    use_bias_correction_kl: bool = False
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sapo_temperature_pos", "sapo_temperature_neg", "delta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")

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
        operands = (_input, lin_weight, selected_token_ids, attention_mask, advantages, bias)
        references = (ref_per_token_logps, old_per_token_logps, ref_input, ref_weight, ref_bias)
        return self._apply_function(
            *operands, *references, vllm_is_ratio=vllm_is_ratio, num_items_in_batch=num_items_in_batch
        )


@dataclass(eq=False, repr=False)
class _DistillationLoss(_Loss):
    weight_hard_loss: float = 0.5
    weight_soft_loss: float = 0.5
    beta: float = 0.5
    ignore_index: int = -100
    temperature: float = 1.0
    compiled: bool = True
    chunk_size: int = 1024
    return_soft_hard_loss: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0:
            raise AssertionError("Temperature cannot be 0.")

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
        operands = (student_input, student_weight, teacher_input, teacher_weight, true_labels)
        return self._apply_function(*operands, student_bias, teacher_bias)


class LigerFusedLinearJSDLoss(_DistillationLoss):
    function = functions.LigerFusedLinearJSDFunction


class LigerFusedLinearCosineSimilarityLoss(_DistillationLoss):
    function = functions.LigerFusedLinearCosineSimilarityFunction


__all__ = [name for name in globals() if name.startswith("Liger")]  # noqa: PLE0605
