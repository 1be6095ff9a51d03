"""Cross-entropy of logits whose vocabulary is divided over the ranks of a process group, as tensor parallelism leaves
them: a kernel over this rank's columns, one gathering of a few numbers a row, a kernel over those numbers.
"""

from collections.abc import Sequence

import torch
import torch.distributed

from rowjit.torch import functional as F  # noqa: N812

Tensor = torch.Tensor


class _Gather(torch.autograd.Function):
    """Numbers of each row, from every rank: (..., ranks) each. Every rank makes the same loss of them, so what flows back
    to this rank's own is the whole gradient, and nothing is communicated."""

    @staticmethod
    def forward(ctx, group: torch.distributed.ProcessGroup | None, *numbers: Tensor):  # noqa: ANN001, ANN205
        ctx.rank = torch.distributed.get_rank(group)
        own = torch.stack(numbers)
        of_ranks = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(of_ranks, own, group=group)
        return tuple(torch.stack(of_ranks, -1).unbind(0))

    @staticmethod
    def backward(ctx, *cotangents: Tensor):  # noqa: ANN001, ANN205
        return None, *(cotangent[..., ctx.rank] for cotangent in cotangents)


def _first_class_and_vocabulary(columns: int, part: Sequence[int] | None, group: torch.distributed.ProcessGroup | None) -> tuple[int, int]:
    if part is not None:
        first_class, vocabulary = part
        return first_class, vocabulary
    return torch.distributed.get_rank(group) * columns, torch.distributed.get_world_size(group) * columns


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    group: torch.distributed.ProcessGroup | None = None,
    *,
    part: Sequence[int] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float | None = None,
    z_loss: float | None = None,
    temperature: float | None = None,
    softcap: float | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The loss of `functional.cross_entropy`, from this rank's columns of the logits.

    Args:
        logits: (..., columns of this rank)
        target: (...), classes counted over all ranks, the same on each
        group: the ranks; the default group without it
        part: the first class of this rank and the number of classes of all; without it the ranks have as many each
        entropy: whether the rows' entropies are a second result

    Returns:
        The same on every rank: the loss; with z_loss its part of the loss; with `entropy` the entropies. Each rank calls
        backward, and has the gradient of its own logits.
    """
    first_class, vocabulary = _first_class_and_vocabulary(logits.shape[-1], part, group)
    smoothed = label_smoothing is not None
    numbers = F.vocabulary_part(
        logits, target, first_class=first_class, logit_sum=smoothed, entropy=entropy, temperature=temperature, softcap=softcap
    )
    lse, target_logit, *others = _Gather.apply(group, *numbers)
    loss, _, *asked = F.combine_vocabulary(
        lse,
        target_logit,
        target,
        others.pop(0) if smoothed else None,
        others.pop(0) if entropy else None,
        vocabulary=vocabulary,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )
    return (loss, *asked) if asked else loss
