"""Cross-entropy of logits whose vocabulary is divided over the ranks of a process group, as tensor parallelism leaves
them: a kernel over this rank's columns, one gathering of a few numbers a row, a kernel over those numbers. Of logits, or
of a head that makes them, a chunk of rows at a time.
"""

import functools
from collections.abc import Sequence

import torch
import torch.distributed

from rowjit._core import Program
from rowjit.calls import Call
from rowjit.programs import Argument, Builder
from rowjit.registry import Shape
from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.framework import TorchFramework
from rowjit.torch.head import Scaled, multiply

Tensor = torch.Tensor
_Group = torch.distributed.ProcessGroup | None


def _of_ranks(group: _Group, numbers: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Numbers of each row, from every rank: (..., ranks) each."""
    own = torch.stack(tuple(numbers))
    of_ranks = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(of_ranks, own, group=group)
    return tuple(torch.stack(of_ranks, -1).unbind(0))


class _Gather(torch.autograd.Function):
    """Every rank makes the same loss of what is gathered, so what flows back to this rank's own is the whole gradient, and
    nothing is communicated."""

    @staticmethod
    def forward(ctx, group: _Group, *numbers: Tensor):  # noqa: ANN001, ANN205
        ctx.rank = torch.distributed.get_rank(group)
        return _of_ranks(group, numbers)

    @staticmethod
    def backward(ctx, *cotangents: Tensor):  # noqa: ANN001, ANN205
        return None, *(cotangent[..., ctx.rank] for cotangent in cotangents)


def _first_class_and_vocabulary(columns: int, part: Sequence[int] | None, group: _Group) -> tuple[int, int]:
    if part is not None:
        first_class, vocabulary = part
        return first_class, vocabulary
    return torch.distributed.get_rank(group) * columns, torch.distributed.get_world_size(group) * columns


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    group: _Group = None,
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


# ---- Of a head -------------------------------------------------------------------------------------------------------

_CHUNK_BYTES = 600 << 20  # of logits, as the library divides them
_CHUNK_STEP = 256  # rows
_PART = F.OPS["vocabulary_part"]
_COMBINE = F.OPS["combine_vocabulary"]
_OPERANDS = ("hidden", "weight", "target", "bias")


class _Part:
    """A chunk of this rank's logits, and its numbers of their rows. See rowjit.programs.Computation."""

    names = _OPERANDS
    shapes = (Shape(0, (), ("width",)), Shape(-1, (), ("classes", "width")), Shape(0, (), ()), Shape(-1, (), ("classes",)))
    tables = (False,) * len(_OPERANDS)

    def __init__(self, call: Call) -> None:
        self.call = call

    def body(self, arguments: Sequence[Argument | None]) -> str:
        hidden, _, target, bias = arguments
        product = "matmul(hidden, weight, width)"
        logits = f"logits = {product}\n" if bias is None else f"product = {product}\nlogits = product + bias\n"
        return logits + "output logits\n" + self.call.body((hidden, target))


@functools.cache
def _part_program(options: tuple, wanted: int) -> tuple[Program, tuple[float, ...]]:
    """The chunk's forward, which saves the logits, and a backward that has their gradient in their place, adds the
    weight's and the bias's to f32 tensors, and gives that of hidden."""
    choice = _PART.choice(options)
    places = tuple(place for place in range(len(_OPERANDS)) if wanted >> place & 1)
    builder = Builder(
        _Part(_PART.call(choice, options)),
        TorchFramework(),
        choice.scalars,
        places,
        differentiated=choice.results,
        overwritten=("logits",),
        added=tuple(place for place in places if _OPERANDS[place] != "hidden"),
    )
    return builder.program(), choice.scalar_values


@functools.cache
def _combine_program(options: tuple, smoothed: bool) -> tuple[Program, tuple[float, ...], int]:
    """The sum of the rows' losses times a scale, and its gradients by the numbers of all ranks."""
    choice = _COMBINE.choice(options)
    numbers = (0, 1, 3) if smoothed else (0, 1)
    builder = Builder(Scaled(_COMBINE.call(choice, options)), TorchFramework(), choice.scalars, numbers, True)
    return builder.program(), choice.scalar_values, len(choice.results)


class _Head:
    """What a call computes, a chunk of rows at a time."""

    def __init__(self, group: _Group, wanted: int, part_options: tuple, combine_options: tuple, smoothed: bool) -> None:
        self.group = group
        self.rank = torch.distributed.get_rank(group)
        self.wanted = wanted  # bits of the operands that have a gradient
        self.part, self.part_scalars = _part_program(part_options, wanted or 1)
        self.combine, self.combine_scalars, self.results = _combine_program(combine_options, smoothed)

    def run(self, chunk_rows: int, scale: Tensor, operands: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
        """The loss and what of it is z-loss, and the gradients of the operands, those of this rank's columns."""
        hidden, weight, target, bias = operands
        totals = scale.new_zeros(2)
        sums = {place: torch.zeros_like(operands[place], dtype=scale.dtype) for place in (1, 3) if self.wanted >> place & 1}
        d_hidden = torch.empty_like(hidden) if self.wanted & 1 else None
        for first in range(0, hidden.shape[0], chunk_rows):
            rows = slice(first, first + chunk_rows)
            self.add_chunk((hidden[rows], weight, target[rows], bias), scale, totals, sums, None if d_hidden is None else d_hidden[rows])
        gradients = {0: d_hidden} | sums
        return totals, [
            gradients[place].to(operand.dtype) if self.wanted >> place & 1 else None for place, operand in enumerate(operands)
        ]

    def add_chunk(
        self, chunk: tuple[Tensor | None, ...], scale: Tensor, totals: Tensor, sums: dict[int, Tensor], d_hidden: Tensor | None
    ) -> None:
        """The only place where there are logits."""
        pair, outputs = self.part.run_for_owner(self.part_scalars, *chunk)
        lse, target_logit, *logit_sum = _of_ranks(self.group, outputs[1 : pair.results])
        found = self.combine.run(self.combine_scalars, lse, target_logit, chunk[2], *(logit_sum or [None]), None, scale)
        totals[0] += found[0]
        if self.results > 2:
            totals[1] += found[2] * scale
        if not self.wanted:
            return
        of_rank = [gradient[..., self.rank].contiguous() for gradient in found[self.results :]]
        tensors = (*chunk, *outputs)
        kept = [tensors[place] for place in pair.kept]
        gradients = pair.backward.run(self.part_scalars, *kept, *of_rank, *sums.values())
        if d_hidden is not None:
            d_hidden.copy_(gradients[0])


class _GradientsInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, head: _Head, chunk_rows: int, scale: Tensor, *operands: Tensor | None):  # noqa: ANN001, ANN205
        totals, ctx.gradients = head.run(chunk_rows, scale, operands)
        ctx.group = head.group
        loss, z_loss = totals[0].clone(), totals[1].clone()
        ctx.mark_non_differentiable(z_loss)
        return loss, z_loss

    @staticmethod
    def backward(ctx, cotangent: Tensor, *_: Tensor):  # noqa: ANN001, ANN205
        if torch.is_grad_enabled():
            raise RuntimeError("vocab_parallel_linear_cross_entropy made its gradients in the forward; they have no graph")
        if ctx.gradients is None:
            raise RuntimeError("vocab_parallel_linear_cross_entropy made its gradients in the forward and has given them away")
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is not None:
                multiply(None, gradient, cotangent)
        if gradients[0] is not None:  # each rank's columns have a part of it
            torch.distributed.all_reduce(gradients[0], group=ctx.group)
        return None, None, None, *gradients


def vocab_parallel_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    group: _Group = None,
    bias: Tensor | None = None,
    *,
    part: Sequence[int] | None = None,
    chunk_rows: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float | None = None,
    z_loss: float | None = None,
    temperature: float | None = None,
    softcap: float | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The loss of `linear_cross_entropy`, from this rank's rows of the head's weight.

    A chunk of tokens at a time: this rank's logits and its numbers of their rows, one gathering of those, the loss and
    its gradients, that of the logits in their place. Of logits there is one chunk; the weight's gradient is added up in
    f32.

    Args:
        hidden: (..., hidden), the same on each rank
        weight: (columns of this rank, hidden)
        target: (...), classes counted over all ranks, the same on each
        group: the ranks; the default group without it
        bias: (columns of this rank)
        part: the first class of this rank and the number of classes of all; without it the ranks have as many each
        chunk_rows: tokens of a chunk, the same on each rank; without it as many as 600 MiB hold of equal parts' logits
        reduction: mean or sum

    Returns:
        The same on every rank: the loss; with z_loss its part of the loss, which has no gradient of its own. Each rank
        calls backward, once, and has the gradient of its own weight; that of hidden is summed over the ranks there.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; give mean or sum, or the logits to vocab_parallel_cross_entropy")
    first_class, vocabulary = _first_class_and_vocabulary(weight.shape[0], part, group)
    smoothed = label_smoothing is not None
    part_options = F.arguments_of(_PART)(None, None, first_class=first_class, logit_sum=smoothed, temperature=temperature, softcap=softcap)[1]
    combine_options = F.arguments_of(_COMBINE)(
        *(None,) * 5, vocabulary=vocabulary, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing, z_loss=z_loss
    )[1]
    flat = target.reshape(-1)
    operands = (hidden.reshape(-1, hidden.shape[-1]), weight, flat, bias)
    wanted = sum(1 << place for place, each in enumerate(operands) if each is not None and each.requires_grad)
    head = _Head(group, wanted if torch.is_grad_enabled() else 0, part_options, combine_options, smoothed)
    scale = torch.ones((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32, device=hidden.device)
    if reduction == "mean":
        scale /= (flat != ignore_index).sum()
    if chunk_rows is None:
        widest = -(-vocabulary // torch.distributed.get_world_size(group))
        chunk_rows = max(1, _CHUNK_BYTES // (widest * hidden.element_size()) // _CHUNK_STEP) * _CHUNK_STEP
    loss, own_z_loss = _GradientsInForward.apply(head, chunk_rows, scale, *operands)
    return loss if z_loss is None else (loss, own_z_loss)
