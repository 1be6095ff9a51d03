"""Liger's autograd functions: classes with `apply`, arguments in Liger's order.

What Liger does in place rowjit does not: `in_place` and `row_mode` are accepted and change nothing.
"""

from collections.abc import Callable

import torch

from rowjit.torch import attention, functional as F, row  # noqa: N812
from rowjit.torch.autocast import of_product
from rowjit.torch.head import linear_cross_entropy
from rowjit.torch.jit import jit

Tensor = torch.Tensor
_CASTINGS = {"llama": "llama", "gemma": "gemma", "none": "none", 0: "llama", 1: "gemma", -1: "none"}


class LigerRMSNormFunction:
    @staticmethod
    def apply(
        X: Tensor,  # noqa: N803
        W: Tensor | None,  # noqa: N803
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> Tensor:
        return F.rms_norm(X, W, eps=eps, offset=float(offset), casting=_CASTINGS[casting_mode])


class LigerFusedAddRMSNormFunction:
    """Gives the norm, then the sum."""

    @staticmethod
    def apply(
        X: Tensor,  # noqa: N803
        R: Tensor,  # noqa: N803
        W: Tensor,  # noqa: N803
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = False,
    ) -> tuple[Tensor, Tensor]:
        total, y = F.add_rms_norm(X, R, W, eps=eps, offset=float(offset), casting=_CASTINGS[casting_mode])
        return y, total


@jit
def _modulate(y, scale, shift):  # noqa: ANN001, ANN202
    return y * (scale + 1.0) + shift


@jit
def _scale(y, scale):  # noqa: ANN001, ANN202
    return y * (scale + 1.0)


class LigerModulatedRMSNormFunction:
    """norm·(1 + scale) + shift. Scale and shift are of every row, of as many rows that follow each other as come on each,
    or of all."""

    @staticmethod
    def apply(
        X: Tensor,  # noqa: N803
        W: Tensor | None,  # noqa: N803
        scale: Tensor,
        shift: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
    ) -> Tensor:
        columns = X.shape[-1]
        y = F.rms_norm(X, W, eps=eps, offset=float(offset), casting=_CASTINGS[casting_mode])
        count = scale.numel() // columns
        if count == 0 or scale.numel() % columns or (y.numel() // columns) % count:
            raise AssertionError(f"scale {tuple(scale.shape)} has no row for each equal share of the rows of {tuple(X.shape)}")
        if shift is not None and shift.numel() != scale.numel():
            raise AssertionError(f"shift {tuple(shift.shape)} has other rows than scale {tuple(scale.shape)}")
        given = [y, scale] if shift is None else [y, scale, shift]
        if any(each.dtype != X.dtype for each in given):
            given = [each.float() for each in given]  # and rounded once
        rows, *by_row = given[0].reshape(count, -1, columns), *given[1:]
        operands = [each.reshape(count, 1, columns).expand_as(rows) for each in by_row]
        return (_scale if shift is None else _modulate)(rows, *operands).view(X.shape).to(X.dtype)


class LigerLayerNormFunction:
    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:  # noqa: N803
        return F.layer_norm(X, W, B, eps=eps)


class LigerGroupNormFunction:
    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, num_channels: int, num_groups: int, eps: float) -> Tensor:  # noqa: N803
        groups = (num_groups, num_channels // num_groups)
        rows = X.reshape(X.shape[0], *groups, -1)
        return F.group_norm(rows, W.view(groups), B.view(groups), eps=eps).view(X.shape)


class LigerPolyNormFunction:
    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6, in_place: bool = True) -> Tensor:  # noqa: N803
        return F.poly_norm(X, W, B.view(()), eps=eps)


class LigerDyTFunction:
    @staticmethod
    def apply(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:
        shift = torch.zeros_like(gamma) if beta is None else beta
        return F.dynamic_tanh(x, alpha.view(()), gamma, shift)


class LigerSiLUMulFunction:
    @staticmethod
    def apply(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
        c = F.swiglu(a if gate_multiplier == 1.0 else a * gate_multiplier, b)
        return c if down_multiplier == 1.0 else c * down_multiplier


class LigerFusedGateUpSiLUMulFunction:
    """Of gate and up side by side."""

    @staticmethod
    def apply(y: Tensor, in_place: bool = False) -> Tensor:
        return F.swiglu(y)


class LigerGELUMulFunction:
    @staticmethod
    def apply(a: Tensor, b: Tensor) -> Tensor:
        return F.geglu(a, b, form="tanh")


class LigerReLUSquaredFunction:
    @staticmethod
    def apply(x: Tensor) -> Tensor:
        return F.relu2(x)


class LigerRopeFunction:
    @staticmethod
    def apply(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        if cos.dim() == 2:
            cos, sin = cos.unsqueeze(0), sin.unsqueeze(0)
        if cos.shape[-1] > q.shape[-1]:
            # Of heads of an odd width: their last column is in no pair, and the tables have a pair too many.
            pairs = q.shape[-1] // 2
            cos, sin = (table[..., :pairs].repeat(1, 1, 2) for table in (cos, sin))
        return attention.apply_rotary_pos_emb(q, k, cos.to(q.dtype), sin.to(q.dtype))


class LigerQwen2VLMRopeFunction:
    @staticmethod
    def apply(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int], unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return attention.apply_multimodal_rotary_pos_emb(q, k, cos.to(q.dtype), sin.to(q.dtype), mrope_section)


class LigerLlama4RopeFunction:
    """Heads behind the sequence; `freqs_cis` as complex numbers, or as pairs of their parts."""

    @staticmethod
    def apply(q: Tensor, k: Tensor, freqs_cis: Tensor, BLOCK_SIZE: int | None = None) -> tuple[Tensor, Tensor]:  # noqa: N803
        parts = torch.view_as_real(freqs_cis) if freqs_cis.is_complex() else freqs_cis
        rotations = parts.float().reshape(-1, q.shape[1], q.shape[-1])
        return F.rope_complex(q, rotations), F.rope_complex(k, rotations)


class LigerEmbeddingFunction:
    @staticmethod
    def apply(embeddings: Tensor, indices: Tensor) -> Tensor:
        return F.embedding(embeddings, indices)


class LigerAttnResFunction:
    """Of states stacked in front."""

    @staticmethod
    def apply(V_stacked: Tensor, w_query: Tensor, w_norm: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: N803
        return F.attention_residual(V_stacked, w_query, w_norm, eps=eps)[0]


class LigerSoftmaxFunction:
    @staticmethod
    def apply(x: Tensor) -> Tensor:
        return F.softmax(x)


class LigerSparsemaxFunction:
    @staticmethod
    def apply(x: Tensor, dim: int = -1) -> Tensor:
        last = dim in (-1, x.dim() - 1)
        return F.sparsemax(x) if last else F.sparsemax(x.movedim(dim, -1)).movedim(-1, dim)


def _is_known_nan(loss: Tensor) -> bool:
    """Not while a CUDA graph is captured or torch.compile traces, when no kernel can be waited for; nor of what has no
    memory, as meta and fake tensors."""
    if loss.is_meta or type(loss) is not Tensor or torch.compiler.is_compiling():
        return False
    if loss.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return bool(loss.detach().isnan().any())


def _require_classes(targets: Tensor, classes: int) -> None:
    for target in targets.aminmax():
        if not 0 <= target < classes:
            raise AssertionError(f"Target {target} is out of bounds. Expected 0 to {classes - 1}")


def _cross_entropy(
    compute: Callable[..., Tensor | tuple[Tensor, ...]],
    operands: tuple[Tensor | None, ...],
    *,
    target: Tensor,
    classes: int,
    ignore_index: int,
    reduction: str,
    lse_square_scale: float,
    label_smoothing: float,
    returns: tuple[bool, bool, bool],
    **options: object,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Liger's results of an operation with our names of options; `returns` is what it is asked for beside the loss.

    A target that is no class makes our loss NaN, and so does a mean over no target, of which Liger's is 0. Liger looks at
    the targets before every loss; here they are looked at when the loss is NaN.
    """
    z_loss, accuracy, predicted = returns
    by_row = accuracy and reduction == "none"

    def compute_reduced(reduction: str) -> tuple[Tensor, ...]:
        results = compute(
            *operands,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing or None,
            z_loss=lse_square_scale or None,
            accuracy=accuracy and not by_row,
            argmax=predicted or by_row,
            **options,
        )
        return results if isinstance(results, tuple) else (results,)

    results = compute_reduced(reduction)
    if _is_known_nan(results[0]):
        counted = target[target != ignore_index]
        if counted.numel():
            _require_classes(counted, classes)
        elif reduction == "mean":
            results = compute_reduced("sum")
    found = iter(results)
    loss = next(found)
    of_lse = next(found) if lse_square_scale else torch.zeros_like(loss)
    greatest = next(found) if predicted or by_row else None
    hits = ((greatest == target) & (target != ignore_index)).float() if by_row else next(found).detach() if accuracy else None
    tokens = greatest.long().where(target != ignore_index, -1) if predicted else None
    return loss, of_lse if z_loss else None, hits, tokens


class LigerCrossEntropyFunction:
    """Gives the loss, the z-loss, the accuracy and the predicted classes; None for what is not asked for. Losses have the
    logits' dtype, as Liger's and torch's."""

    @staticmethod
    def apply(
        _input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        loss, z_loss, accuracy, predicted = _cross_entropy(
            F.cross_entropy,
            (_input, target, weight),
            target=target,
            classes=_input.shape[-1],
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            returns=(return_z_loss, return_token_accuracy, return_predicted_tokens),
            reduction=reduction,
            ignore_index=ignore_index,
            softcap=softcap,
        )
        return loss.to(_input.dtype), None if z_loss is None else z_loss.to(_input.dtype), accuracy, predicted


class LigerFusedLinearCrossEntropyFunction:
    """The gradients of hidden states and weight are made in the forward, as Liger makes them."""

    @staticmethod
    def apply(
        _input: Tensor,
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
        accum_dtype: torch.dtype | None = None,  # ours is f32
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        return _cross_entropy(
            linear_cross_entropy,
            (_input, weight, target, bias, ce_weight),
            target=target,
            classes=weight.shape[0],
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            returns=(return_z_loss, return_token_accuracy, return_predicted_tokens),
            reduction=reduction,
            ignore_index=ignore_index,
            softcap=softcap,
            token_scaling=use_token_scaling,
        )


class LigerVocabParallelCEFunction:
    """The rows' losses, f32. A smoothing that each rank takes over its own classes (`partition`) is refused: the ranks' losses
    then differ."""

    @staticmethod
    def apply(
        vocab_parallel_logits: Tensor,
        target: Tensor,
        tp_group: torch.distributed.ProcessGroup | None = None,
        ignore_index: int | None = -100,
        label_smoothing: float = 0.0,
        label_smoothing_formula: str = "pytorch",
        label_smoothing_mode: str = "global",
    ) -> Tensor:
        if vocab_parallel_logits.dim() != 3:
            raise ValueError(f"logits of shape {tuple(vocab_parallel_logits.shape)}; (sequence, batch, vocabulary) are expected")
        ranks = 1 if tp_group is None else torch.distributed.get_world_size(tp_group)
        if label_smoothing and label_smoothing_mode != "global" and ranks > 1:
            raise ValueError(f"label_smoothing_mode is {label_smoothing_mode!r}; rowjit smooths over all ranks' classes, global")
        if label_smoothing and label_smoothing_formula == "megatron":
            classes = vocab_parallel_logits.shape[-1] * ranks
            label_smoothing *= classes / (classes - 1)
        options = {
            "ignore_index": -100 if ignore_index is None else ignore_index,
            "reduction": "none",
            "label_smoothing": label_smoothing or None,
        }
        if ranks == 1:
            return F.cross_entropy(vocab_parallel_logits, target, **options)
        from rowjit.torch.distributed import vocab_parallel_cross_entropy

        return vocab_parallel_cross_entropy(vocab_parallel_logits, target, tp_group, **options)


def _count(kept: Tensor) -> Tensor:
    """What a mean divides by: a mean over no row is 0."""
    return kept.sum().clamp(min=1)


def _jsd(
    compute: Callable[..., Tensor], operands: tuple[Tensor | None, ...], shift_labels: Tensor | None, **options: object
) -> Tensor:
    loss = compute(*operands, target=shift_labels, reduction="mean" if shift_labels is None else "sum", **options)
    return loss if shift_labels is None else loss / _count(shift_labels != options["ignore_index"])


class LigerJSDFunction:
    @staticmethod
    def apply(
        _input: Tensor,
        target: Tensor,
        shift_labels: Tensor | None = None,
        beta: float = 0.5,
        ignore_index: int = -100,
    ) -> Tensor:
        options = {"beta": beta, "of": "log_probabilities", "ignore_index": ignore_index}
        return _jsd(F.jsd, (_input, target), shift_labels, **options).to(_input.dtype)


class LigerFusedLinearJSDFunction:
    """The teacher has no gradient, as Liger's; the student's is computed in the backward."""

    @staticmethod
    def apply(
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,  # ours is f32
    ) -> Tensor:
        student = of_product(student_input, student_weight)
        teacher = of_product(teacher_input.detach(), teacher_weight.detach())
        options = {"beta": jsd_beta, "ignore_index": ignore_index, "temperature": temperature}
        return _jsd(F.fused_linear_jsd, (*student, None, *teacher), shift_labels, **options)


@jit
def _kl(y, p, eps=1e-10):  # noqa: ANN001, ANN202
    p = p.float()
    return p * (row.log(row.maximum(p, eps)) - y.float())


@jit
def _kl_rows(y, p, eps=1e-10):  # noqa: ANN001, ANN202
    p = p.float()
    return row.sum(p * (row.log(row.maximum(p, eps)) - y.float()))


@jit
def _kl_of_logarithms(y, p):  # noqa: ANN001, ANN202
    p = p.float()
    return row.exp(p) * (p - y.float())


@jit
def _kl_rows_of_logarithms(y, p):  # noqa: ANN001, ANN202
    p = p.float()
    return row.sum(row.exp(p) * (p - y.float()))


class LigerKLDivLossFunction:
    @staticmethod
    def apply(
        y_pred: Tensor, y_true: Tensor, reduction: str = "batchmean", log_target: bool = False, eps: float = 1e-10
    ) -> Tensor:
        if reduction == "none":
            return _kl_of_logarithms(y_pred, y_true) if log_target else _kl(y_pred, y_true, eps=eps)
        rows = _kl_rows_of_logarithms(y_pred, y_true) if log_target else _kl_rows(y_pred, y_true, eps=eps)
        return rows.sum() / {"sum": 1, "batchmean": y_pred.shape[0], "mean": y_pred.numel()}[reduction]


@jit
def _tvd(p, q):  # noqa: ANN001, ANN202
    return 0.5 * row.abs(p.float() - q.float())


@jit
def _tvd_rows(p, q):  # noqa: ANN001, ANN202
    return row.sum(0.5 * row.abs(p.float() - q.float()))


class LigerTVDLossFunction:
    """Of probabilities."""

    @staticmethod
    def apply(
        p: Tensor, q: Tensor, shift_labels: Tensor | None = None, reduction: str = "batchmean", ignore_index: int = -100
    ) -> Tensor:
        kept = None if shift_labels is None else shift_labels != ignore_index
        if reduction == "none":
            loss = _tvd(p, q)
            return loss if kept is None else loss * kept[:, None]
        rows = _tvd_rows(p, q)
        count = p.shape[0] if kept is None else _count(kept)
        total = (rows if kept is None else rows * kept).sum()
        return total / {"sum": 1, "batchmean": count, "mean": count * p.shape[-1]}[reduction]


__all__ = [name for name in globals() if name.startswith("Liger")]  # noqa: PLE0605
