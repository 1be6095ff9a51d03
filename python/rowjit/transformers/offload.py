"""What the first layers of a decoder keep for their backward, in host memory until that comes near.

The first layers' backward is the last, so that the bus has all of a step for both ways, on a stream of its own, and the
device's memory at the step's peak is for the others. Nothing is computed again for it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

Tensor = torch.Tensor
_LEAST_BYTES = 2**20  # what is less stays where it is, as do parameters
_AHEAD = 2  # layers: a backward takes longer than the bus for what a layer keeps, but not by much


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class _Moved:
    """A device's memory that has been copied to the host."""

    def __init__(self, memory: Tensor) -> None:
        self.device = memory.device
        self.fetched: Tensor | None = None
        self.ready: torch.cuda.Event | None = None
        if self.device.type == "cpu":
            self.host = memory.clone()
            return
        stream = _stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        self.host = torch.empty(memory.shape, dtype=memory.dtype, pin_memory=True)
        with torch.cuda.stream(stream):
            self.host.copy_(memory, non_blocking=True)
        memory.record_stream(stream)

    def fetch(self) -> None:
        """Begins the copy back."""
        if self.fetched is not None:
            return
        self.fetched = torch.empty(self.host.shape, dtype=self.host.dtype, device=self.device)
        if self.device.type == "cpu":
            self.fetched.copy_(self.host)
            return
        # The memory is the reader's stream's, whose allocator gives it out again; what it was for before may still run.
        stream = _stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self.fetched.copy_(self.host, non_blocking=True)
            self.ready = stream.record_event()
        self.fetched.record_stream(stream)

    def read(self) -> Tensor:
        self.fetch()
        if self.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(self.ready)
        return self.fetched


class KeptInHost:
    """What one layer's forward saves while `saving` is entered, and its way back."""

    def __init__(self) -> None:
        # Of nodes that wait for their backward: they let go of theirs when they have read them.
        self.moved: list[weakref.ref[_Moved]] = []
        # By address, with what lies there, so that nothing else does: several nodes save one tensor, or views of it.
        self.sources: dict[int, tuple[Tensor, int, _Moved]] = {}

    @contextmanager
    def saving(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self.pack, _unpack):
            yield
        if any(source._version != version for source, version, _ in self.sources.values()):
            raise RuntimeError("a tensor that a layer has saved for its backward was modified in place: modify a copy, or leave offload out")
        self.sources.clear()

    def pack(self, saved: Tensor) -> tuple:
        storage = saved.untyped_storage()
        of = saved if saved._base is None else saved._base
        if isinstance(of, torch.nn.Parameter) or storage.nbytes() < _LEAST_BYTES:
            return None, saved.detach(), saved._version
        if storage.data_ptr() not in self.sources:
            moved = _Moved(torch.empty(0, dtype=torch.uint8, device=saved.device).set_(storage))
            self.sources[storage.data_ptr()] = saved.detach(), saved._version, moved
            self.moved.append(weakref.ref(moved))
        moved = self.sources[storage.data_ptr()][2]
        return moved, saved.dtype, (saved.storage_offset(), saved.shape, saved.stride())

    def fetch(self) -> None:
        """What is read first in the backward first: what was saved last."""
        for reference in reversed(self.moved):
            if (moved := reference()) is not None:
                moved.fetch()


def _unpack(packed: tuple) -> Tensor:
    moved, *how = packed
    if moved is None:
        tensor, version = how
        if tensor._version != version:
            raise RuntimeError("a tensor needed for the backward has been modified in place; modify a copy")
        return tensor
    dtype, layout = how
    memory = moved.read()
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory.untyped_storage(), *layout)


class Offload:
    """Of one forward of a decoder: which layers keep theirs in host memory, and when that is fetched."""

    def __init__(self, layers: list[torch.nn.Module], count: int) -> None:
        self.kept = {layer: KeptInHost() for layer in layers[:count]}
        self.ahead = {later: self.kept[layer] for layer, later in zip(layers[:count], layers[_AHEAD:], strict=False)}

    def ended(self, layer: torch.nn.Module, result: Tensor) -> None:
        kept = self.ahead.get(layer)
        if kept is not None and result.requires_grad:
            # Its gradient begins this layer's backward.
            result.register_hook(lambda _: kept.fetch())
