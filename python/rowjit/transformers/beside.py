"""Where several operations of a decoder layer read one tensor: the products of a norm's result, and a norm beside the
residual. rowjit.torch.beside adds their gradients where they are made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rowjit.torch.beside import linear_beside, rms_norm_beside
from rowjit.transformers.plain import is_plain, usual_linear
from rowjit.transformers.stack import found, norm_of

Tensor = torch.Tensor


class _Reading(threading.local):
    """The tensor that products read, and as what the next of them is to read it."""

    x: Tensor | None = None
    given: Tensor | None = None


_reading = _Reading()


@contextmanager
def products_beside(x: Tensor) -> Iterator[None]:
    """While it is entered, products of x by modules that have `linear_forward` are one beside the other."""
    outer = _reading.x, _reading.given
    _reading.x = _reading.given = x
    try:
        yield
    finally:
        _reading.x, _reading.given = outer


def linear_forward(module: torch.nn.Linear, x: Tensor) -> Tensor:
    if x is not _reading.x or not x.requires_grad or not usual_linear(x, module):
        return torch.nn.Linear.forward(module, x)
    y, _reading.given = linear_beside(_reading.given, module.weight, module.bias)
    return y


def normed_beside(norm: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """x for the residual, and its norm."""
    known = norm_of(norm)
    usual = known is not None and is_plain(norm) and type(norm.weight) is torch.nn.Parameter and norm.weight.dtype == x.dtype
    if not usual or not x.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return x, norm(x)
    if (left := found(norm, x)) is not None:
        return x, left
    normed, x = rms_norm_beside(x, norm.weight, eps=known.eps, offset=known.offset, casting=known.casting)
    return x, normed
