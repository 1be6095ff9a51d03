"""Results that cost less to compute again than to keep: of a norm and of a gated activation autograd is given how they
are made, from tensors that it keeps anyway. A matrix product is never made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

Tensor = torch.Tensor


def kept(recompute: bool, result: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager:
    """The context of what reads `result`: a Recomputed, or nothing where nothing would be kept of it or somebody else
    decides how — checkpointing, offloading, a tracer."""
    if (
        recompute
        and not torch.compiler.is_compiling()
        and result.requires_grad
        and torch.is_grad_enabled()
        and nobody_decides()
    ):
        return _entered(Recomputed(result, make, *inputs))
    return nullcontext()


@contextmanager
def _entered(recomputed: Recomputed) -> Iterator[None]:
    """The hooks are an object beside it: were they itself, it would refer to itself, and its inputs would wait for
    Python's collector long after the backward has released them."""
    try:
        with torch.autograd.graph.saved_tensors_hooks(recomputed.pack, recomputed.unpack):
            yield
    finally:
        recomputed.result = None


def nobody_decides() -> bool:
    """Whether nobody decides how tensors are kept, but for another Recomputed around this one."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is None or isinstance(getattr(hooks[0], "__self__", None), Recomputed)


class Recomputed:
    """While its hooks are entered, what autograd saves of `result` is `make`, which computes it again from `inputs`.

    All that save it share what is computed, until the last of them has read it.
    """

    def __init__(self, result: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> None:
        self.result: Tensor | None = result
        self.version = result._version
        self.make = make
        self.inputs = tuple(tensor.detach() for tensor in inputs)
        self.versions = tuple(tensor._version for tensor in inputs)
        self.readers = 0
        self.unread = 0
        self.again: Tensor | None = None

    def pack(self, saved: Tensor) -> tuple:
        # A product of matrices saves a view of its operand.
        if (
            saved.data_ptr() == self.result.data_ptr()
            and saved.numel() == self.result.numel()
            and saved.is_contiguous()
            and self.result.is_contiguous()
            and saved.dtype == self.result.dtype
            and saved._version == self.version
        ):
            self.readers += 1
            self.unread += 1
            return (None, saved.shape)
        return (saved.detach(), saved._version)

    def unpack(self, packed: tuple) -> Tensor:
        saved, of_saved = packed
        if saved is not None:
            if saved._version != of_saved:
                raise RuntimeError(_modified(saved))
            return saved
        if self.again is None:
            for tensor, version in zip(self.inputs, self.versions, strict=True):
                if tensor._version != version:
                    raise RuntimeError(_modified(tensor))
            with torch.no_grad():
                self.again = self.make(*self.inputs)
        again = self.again.view(of_saved)
        self.unread -= 1
        if self.unread == 0:
            self.again = None
            self.unread = self.readers
        return again


def _modified(tensor: Tensor) -> str:
    return (
        f"a tensor needed for the backward has been modified in place: {list(tensor.shape)} of {tensor.dtype}; "
        "modify a copy, or give rowjit.transformers.apply recompute=False"
    )
