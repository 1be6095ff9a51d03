"""Modules with the constructors of those of torch.nn that they replace, over rowjit's operations; and gated MLPs.

Each is a subclass of what it replaces, so that `isinstance`, state dicts and initialisation stay as they are.
"""

import torch

from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.head import linear_cross_entropy

Tensor = torch.Tensor


def _rows(x: Tensor, dimensions: int) -> Tensor:
    """The last dimensions as one."""
    return x if dimensions == 1 else x.flatten(-dimensions)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.flatten()


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, which rounds once, after the weight."""

    def forward(self, x: Tensor) -> Tensor:
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        rows = _rows(x, len(self.normalized_shape))
        return F.rms_norm(rows, _flat(self.weight), eps=eps, casting="gemma").view(x.shape)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _flat(self.weight), _flat(self.bias)
        return F.layer_norm(_rows(x, len(self.normalized_shape)), weight, bias, eps=self.eps).view(x.shape)


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm."""

    def forward(self, x: Tensor) -> Tensor:
        channels = self.num_channels // self.num_groups
        rows = x.reshape(x.shape[0], self.num_groups, channels, -1)
        per_group = (self.num_groups, channels)
        weight = None if self.weight is None else self.weight.view(per_group)
        bias = None if self.bias is None else self.bias.view(per_group)
        return F.group_norm(rows, weight, bias, eps=self.eps).view(x.shape)


class DynamicTanh(torch.nn.Module):
    """tanh(alpha·x)·weight + bias in place of a norm (Zhu et al. 2025)."""

    def __init__(self, normalized_shape: int, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.full((1,), alpha))
        self.weight = torch.nn.Parameter(torch.ones(normalized_shape))
        self.bias = torch.nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        return F.dynamic_tanh(x, self.alpha.view(()), self.weight, self.bias)


class SiLU(torch.nn.SiLU):
    """torch.nn.SiLU; never in place."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class GELU(torch.nn.GELU):
    """torch.nn.GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, form="tanh" if self.approximate == "tanh" else "erf")


class GLU(torch.nn.GLU):
    """torch.nn.GLU over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        if self.dim not in (-1, x.dim() - 1):
            raise ValueError(f"GLU halves the last dimension; dim is {self.dim}: transpose, or use torch.nn.GLU")
        return F.glu(x)


def _along(x: Tensor, dim: int | None) -> Tensor:
    """x with dimension `dim` last."""
    return x if dim in (None, -1, x.dim() - 1) else x.movedim(dim, -1)


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.softmax(_along(x, self.dim))
        return y if self.dim in (None, -1, x.dim() - 1) else y.movedim(-1, self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.log_softmax(_along(x, self.dim))
        return y if self.dim in (None, -1, x.dim() - 1) else y.movedim(-1, self.dim)


class Dropout(torch.nn.Dropout):
    """torch.nn.Dropout, whose mask is computed again in the backward and kept nowhere. It follows torch's CPU generator,
    which it draws a seed from at every call; the mask is the same on every device."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return F.dropout(x, p=self.p, seed=int(torch.randint(2**53, ())))


class Embedding(torch.nn.Embedding):
    """torch.nn.Embedding without max_norm, scale_grad_by_freq and sparse gradients. Its gradient is deterministic."""

    def forward(self, ids: Tensor) -> Tensor:
        if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            raise ValueError("Embedding has no max_norm, scale_grad_by_freq or sparse gradient: use torch.nn.Embedding")
        return F.embedding(self.weight, ids)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, and beyond it the options of `functional.cross_entropy`: z_loss, softcap, temperature."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        **options: float,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.options = options

    def forward(self, logits: Tensor, target: Tensor) -> Tensor | tuple[Tensor, ...]:
        if logits.dim() > 2:  # classes are the second dimension
            logits = logits.movedim(1, -1)
            if target.is_floating_point():
                target = target.movedim(1, -1)
        return F.cross_entropy(
            logits,
            target,
            self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing or None,
            **self.options,
        )


class LinearCrossEntropyLoss(torch.nn.Module):
    """`rowjit.torch.linear_cross_entropy` with its options given: of hidden states, a head's weight, classes."""

    def __init__(self, reduction: str = "mean", gradient: str = "forward", **options: float) -> None:
        super().__init__()
        self.options = options | {"reduction": reduction, "gradient": gradient}

    def forward(
        self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        return linear_cross_entropy(hidden, weight, target, bias, **self.options)


class KLDivLoss(torch.nn.KLDivLoss):
    """torch.nn.KLDivLoss of log-probabilities, the target log-probabilities too (log_target=True).

    A mean is one over elements or, as "batchmean", over rows, of which torch divides by the first dimension alone.
    """

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        if not self.log_target:
            teacher = teacher.log()
        if self.reduction == "none":
            raise ValueError("KLDivLoss gives no loss of every element: reduction is one of mean, batchmean, sum")
        loss = F.kl_div(student, teacher, of="log_probabilities", reduction="sum")
        elements = {"sum": 1, "batchmean": student.shape[0], "mean": student.numel()}
        return loss / elements[self.reduction]


class _GatedMLP(torch.nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, bias)
        self.up_proj = torch.nn.Linear(hidden_size, intermediate_size, bias)
        self.down_proj = torch.nn.Linear(intermediate_size, hidden_size, bias)


class SwiGLU(_GatedMLP):
    """down(silu(gate(x))·up(x)), with the names of transformers' LlamaMLP."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.swiglu(self.gate_proj(x), self.up_proj(x)))


class GEGLU(_GatedMLP):
    """down(gelu(gate(x))·up(x)), with the names of transformers' GemmaMLP."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False, approximate: str = "tanh") -> None:
        super().__init__(hidden_size, intermediate_size, bias)
        self.form = "tanh" if approximate == "tanh" else "erf"

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.geglu(self.gate_proj(x), self.up_proj(x), form=self.form))


__all__ = [
    "CrossEntropyLoss",
    "DynamicTanh",
    "Dropout",
    "Embedding",
    "GEGLU",
    "GELU",
    "GLU",
    "GroupNorm",
    "KLDivLoss",
    "LayerNorm",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "RMSNorm",
    "SiLU",
    "Softmax",
    "SwiGLU",
]
