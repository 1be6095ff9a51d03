"""Liger's modules, with Liger's constructors."""

from types import SimpleNamespace

import torch
from torch import nn

from rowjit.liger import functions
from rowjit.liger.functional import CrossEntropyOutput
from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.nn import GEGLU, SwiGLU

Tensor = torch.Tensor


def _weight(size: int, init_fn: str) -> nn.Parameter:
    if init_fn not in ("ones", "zeros"):
        raise AssertionError(f"init_fn must be either 'ones' or 'zeros', got {init_fn}")
    return nn.Parameter(getattr(torch, init_fn)(size))


class LigerRMSNorm(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        self.weight = _weight(hidden_size, init_fn) if elementwise_affine else None
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode

    def forward(self, hidden_states: Tensor) -> Tensor:
        arguments = (self.weight, self.variance_epsilon, self.offset, self.casting_mode)
        return functions.LigerRMSNormFunction.apply(hidden_states, *arguments)


class _OffsetRMSNorm(LigerRMSNorm):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str = "gemma",
        init_fn: str = "zeros",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma(_OffsetRMSNorm):
    pass


class LigerRMSNormForGemma2(_OffsetRMSNorm):
    pass


class LigerRMSNormForQwen3Next(_OffsetRMSNorm):
    pass


class LigerRMSNormForGemma3(LigerRMSNorm):
    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str = "gemma",
        init_fn: str = "zeros",
        in_place: bool = False,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "gemma",
        init_fn: str = "ones",
        in_place: bool = False,
        with_scale: bool = True,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale)


class LigerRMSNormForOlmo2(LigerRMSNorm):
    pass


class LigerRMSNormForGlm4(LigerRMSNorm):
    pass


class LigerModulatedRMSNorm(LigerRMSNorm):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=elementwise_affine)

    def forward(self, hidden_states: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        arguments = (self.weight, scale, shift, self.variance_epsilon, self.offset, self.casting_mode)
        return functions.LigerModulatedRMSNormFunction.apply(hidden_states, *arguments)


class LigerFusedAddRMSNorm(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
    ) -> None:
        super().__init__()
        self.weight = _weight(hidden_size, init_fn)
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        arguments = (self.weight, self.variance_epsilon, self.offset, self.casting_mode)
        return functions.LigerFusedAddRMSNormFunction.apply(hidden_states, residual, *arguments)


class LigerLayerNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones") -> None:
        super().__init__()
        self.weight = _weight(hidden_size, init_fn)
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functions.LigerLayerNormFunction.apply(hidden_states, self.weight, self.bias, self.variance_epsilon)


class LigerGroupNorm(nn.Module):
    def __init__(
        self, num_channels: int, num_groups: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"
    ) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise AssertionError(f"{num_channels} channels are not divisible into {num_groups} groups")
        self.num_channels, self.num_groups, self.variance_epsilon = num_channels, num_groups, eps
        self.weight = _weight(num_channels, init_fn)
        self.bias = nn.Parameter(torch.randn(num_channels) if bias else torch.zeros(num_channels))

    def forward(self, hidden_states: Tensor) -> Tensor:
        arguments = (self.weight, self.bias, self.num_channels, self.num_groups, self.variance_epsilon)
        return functions.LigerGroupNormFunction.apply(hidden_states, *arguments)


class LigerDyT(nn.Module):
    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1) * init_alpha)
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.beta = nn.Parameter(torch.zeros(hidden_size)) if beta else None

    def forward(self, x: Tensor) -> Tensor:
        return functions.LigerDyTFunction.apply(x, self.alpha, self.gamma, self.beta)


class LigerPolyNorm(nn.Module):
    def __init__(self, eps: float = 1e-6, in_place: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1.0 / 3.0))
        self.bias = nn.Parameter(torch.tensor(1.0))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functions.LigerPolyNormFunction.apply(hidden_states, self.weight, self.bias, self.variance_epsilon)


def _require_silu(config: SimpleNamespace) -> None:
    if config.hidden_act not in ("silu", "swish"):
        raise ValueError(f"Activation function {config.hidden_act} not supported.")


class LigerSwiGLUMLP(SwiGLU):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config.hidden_size, config.intermediate_size)
        _require_silu(config)
        self.config = config


class LigerQwen3MoeSwiGLUMLP(SwiGLU):
    def __init__(self, config: SimpleNamespace, intermediate_size: int | None = None) -> None:
        super().__init__(config.hidden_size, config.intermediate_size if intermediate_size is None else intermediate_size)
        _require_silu(config)
        self.config = config


class LigerHunyuanV1SwiGLUMLP(LigerSwiGLUMLP):
    def __init__(self, config: SimpleNamespace, layer_idx: int | None = None, is_shared_mlp: bool = False) -> None:
        super().__init__(config)
        self.layer_idx = layer_idx


class LigerFalconH1SwiGLUMLP(SwiGLU):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config.hidden_size, config.intermediate_size, getattr(config, "mlp_bias", False))
        _require_silu(config)
        self.config = config
        self.gate_multiplier, self.down_multiplier = map(float, config.mlp_multipliers)

    def forward(self, x: Tensor) -> Tensor:
        factors = (self.gate_multiplier, self.down_multiplier)
        return self.down_proj(functions.LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x), *factors))


class LigerGEGLUMLP(GEGLU):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config.hidden_size, config.intermediate_size)
        self.config = config


class LigerBlockSparseTop2MLP(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.swiglu(self.w1(x), self.w3(x)))


class LigerPhi3SwiGLUMLP(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.swiglu(self.gate_up_proj(x)))


class LigerReLUSquared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functions.LigerReLUSquaredFunction.apply(x)


class LigerSoftmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functions.LigerSoftmaxFunction.apply(x)


class LigerSparsemax(nn.Module):
    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functions.LigerSparsemaxFunction.apply(x, self.dim)


class LigerCrossEntropyLoss(nn.Module):
    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.options = (ignore_index, lse_square_scale, label_smoothing, reduction, softcap)
        self.returns = (return_z_loss, return_token_accuracy, return_predicted_tokens)

    def forward(self, _input: Tensor, target: Tensor) -> Tensor | CrossEntropyOutput:
        found = functions.LigerCrossEntropyFunction.apply(_input, target, self.weight, *self.options, *self.returns)
        return CrossEntropyOutput(*found) if any(self.returns) else found[0]


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    def __init__(
        self,
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
    ) -> None:
        super().__init__()
        self.ce_weight = ce_weight
        self.returns = (return_z_loss, return_token_accuracy, return_predicted_tokens)
        self.options = (
            *(ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss),
            *(accum_dtype, use_token_scaling, return_token_accuracy, return_predicted_tokens),
        )

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor | CrossEntropyOutput:
        found = functions.LigerFusedLinearCrossEntropyFunction.apply(
            _input, lin_weight, target, bias, self.ce_weight, *self.options
        )
        return CrossEntropyOutput(*found) if any(self.returns) else found[0]


class LigerKLDIVLoss(nn.KLDivLoss):
    def __init__(self, eps: float = 1e-10, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        self.eps = eps

    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor:
        return functions.LigerKLDivLossFunction.apply(y_pred, y_true, self.reduction, self.log_target, self.eps)


class LigerJSD(nn.Module):
    def __init__(self, beta: float = 0.5, ignore_index: int = -100) -> None:
        super().__init__()
        self.beta, self.ignore_index = beta, ignore_index

    def forward(self, log_q: Tensor, log_p: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return functions.LigerJSDFunction.apply(log_q, log_p, shift_labels, self.beta, self.ignore_index)


class LigerFusedLinearJSD(nn.Module):
    def __init__(
        self,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if temperature == 0:
            raise AssertionError("temperature cannot be 0.")
        self.options = (jsd_beta, ignore_index, temperature, accum_dtype)

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None,
    ) -> Tensor:
        operands = (student_input, student_weight, teacher_input, teacher_weight, shift_labels)
        return functions.LigerFusedLinearJSDFunction.apply(*operands, *self.options)


class LigerVocabParallelCrossEntropy(nn.Module):
    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "none",
        label_smoothing_formula: str = "pytorch",
        label_smoothing_mode: str = "global",
    ) -> None:
        super().__init__()
        if reduction != "none":
            raise ValueError(f"Vocab-parallel CE returns per-token loss; reduction must be 'none', got {reduction!r}.")
        self.options = (ignore_index, label_smoothing, label_smoothing_formula, label_smoothing_mode)

    def forward(
        self, vocab_parallel_logits: Tensor, target: Tensor, tp_group: torch.distributed.ProcessGroup | None = None
    ) -> Tensor:
        return functions.LigerVocabParallelCEFunction.apply(vocab_parallel_logits, target, tp_group, *self.options)


class LigerEmbedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.randn(num_embeddings, embedding_dim))
        if padding_idx is not None:
            with torch.no_grad():
                self.weight[padding_idx].fill_(0)

    def forward(self, indices: Tensor) -> Tensor:
        rows = functions.LigerEmbeddingFunction.apply(self.weight, indices)
        return rows if self.padding_idx is None else rows.masked_fill((indices == self.padding_idx)[..., None], 0)


class LigerTVDLoss(nn.Module):
    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100) -> None:
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, p: Tensor, q: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return functions.LigerTVDLossFunction.apply(p, q, shift_labels, self.reduction, self.ignore_index)


__all__ = [name for name in globals() if name.startswith("Liger")]  # noqa: PLE0605
