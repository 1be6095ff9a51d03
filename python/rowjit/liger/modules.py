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


class LigerSwiGLUMLP(SwiGLU):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config.hidden_size, config.intermediate_size)
        if config.hidden_act not in ("silu", "swish"):
            raise ValueError(f"Activation function {config.hidden_act} not supported.")
        self.config = config


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


class LigerTVDLoss(nn.Module):
    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100) -> None:
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, p: Tensor, q: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return functions.LigerTVDLossFunction.apply(p, q, shift_labels, self.reduction, self.ignore_index)


__all__ = [name for name in globals() if name.startswith("Liger")]  # noqa: PLE0605
