"""A causal language model's head and loss as one operation, which never has all logits.

The model's own forward runs as it is. While it runs with labels, its head gives the loss in place of logits, and its
loss function takes that; what lies between them, a scale or a soft cap, is part of the operation.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from rowjit.torch.autocast import of_product
from rowjit.torch.head import linear_cross_entropy

Tensor = torch.Tensor


@dataclass
class _Step:
    """A forward with labels, from its start until its loss."""

    labels: Tensor
    options: dict[str, object]
    given: dict[str, object]  # what the model would give its loss function
    loss: Tensor | None = None


class _Running(threading.local):
    step: _Step | None = None


_running = _Running()


def taken_loss() -> Tensor | None:
    """The loss that this forward's head has computed."""
    step = _running.step
    return None if step is None else step.loss


def shifted(labels: Tensor | None, shift_labels: Tensor | None, ignore_index: int) -> Tensor:
    """What each position is to predict, as transformers shifts labels."""
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    return shift_labels


def head_forward(forward, head: torch.nn.Linear, hidden: Tensor) -> Tensor:  # noqa: ANN001
    """The head's forward: logits, or the loss of a step."""
    step = _running.step
    if step is None or step.loss is not None:
        return forward(head, hidden)
    given = step.given
    ignore_index = given.get("ignore_index", -100)
    target = shifted(step.labels, given.get("shift_labels"), ignore_index).to(hidden.device)
    hidden, weight, bias = of_product(hidden, head.weight, head.bias)
    items = given.get("num_items_in_batch")
    if items is None:
        step.loss = linear_cross_entropy(hidden, weight, target, bias, ignore_index=ignore_index, **step.options)
        return step.loss
    scale = torch.as_tensor(items, dtype=torch.float32, device=hidden.device).reciprocal()
    step.loss = linear_cross_entropy(
        hidden, weight, target, bias, ignore_index=ignore_index, reduction="sum", scale=scale, **step.options
    )
    return step.loss


def model_forward(forward, options: dict[str, object], model: torch.nn.Module, *arguments, **named):  # noqa: ANN001, ANN002, ANN003, ANN201
    """The model's forward; where a gradient is asked of its loss the logits are None."""
    labels = named.get("labels")
    plain = (
        labels is None
        or not model.training
        or not torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or not _keeps_all(named.get("logits_to_keep", 0))
        or not named.get("return_dict", True)
        or not getattr(model.config, "return_dict", True)
    )
    if plain:
        return forward(model, *arguments, **named)
    _running.step = _Step(labels, options, named)
    try:
        out = forward(model, *arguments, **named)
    finally:
        _running.step = None
    return type(out)(**{name: value for name, value in out.items() if name != "logits"})


def _keeps_all(logits_to_keep: object) -> bool:
    return isinstance(logits_to_keep, int) and logits_to_keep == 0
