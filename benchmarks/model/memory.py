"""Where the memory of a step is: the bytes alive after its forward and at its peak, by the operation that allocated them."""

import sys
from collections import Counter

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

GIB = 2**30


class Memory(TorchDispatchMode):
    """Follows what is allocated while it is entered; what was there before is "before"."""

    def __init__(self, before):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in before}
        self.alive = {}
        self.peak, self.peak_bytes = Counter(), 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        results = function(*arguments, **(named or {}))
        for tensor in torch.utils._pytree.tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage(), function)
        return results

    def add(self, storage, function):
        key = storage._cdata
        if key in self.known or (key in self.alive and not self.alive[key][0].expired()):
            return
        self.alive[key] = (StorageWeakRef(storage), storage.nbytes(), label(function))
        self.alive = {key: each for key, each in self.alive.items() if not each[0].expired()}
        total = sum(size for _, size, _ in self.alive.values())
        if total > self.peak_bytes:
            self.peak_bytes, self.peak = total, self.by_operation()

    def by_operation(self):
        found = Counter()
        for reference, size, name in self.alive.values():
            if not reference.expired():
                found[name] += size
        return found


def label(function):
    """The operation's name: of rowjit's, whose memory is torch.empty's, the function that asked for it."""
    name = str(function).removeprefix("aten.")
    if not name.startswith("empty."):
        return name
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<rowjit.torch."):
            return f"rowjit {code.co_name}"
        if code.co_filename.endswith(("rowjit/torch/mlp.py", "rowjit/torch/head.py", "rowjit/torch/call.py")) and code.co_name == "backward":
            return f"rowjit {code.co_filename.rpartition('/')[2].removesuffix('.py')}'s backward"
        frame = frame.f_back
    return name


def of_a_step(model, given):
    """GiB by operation, largest first, beside parameters and the optimizer's state."""
    with Memory([*model.parameters(), *model.buffers()]) as memory:
        loss = model(**given).loss
        kept = memory.by_operation()
        loss.backward()
    model.zero_grad(set_to_none=True)
    return {"kept_gib": in_gib(kept), "peak_gib": in_gib(memory.peak)}


def in_gib(found):
    return {name: round(size / GIB, 6) for name, size in found.most_common(16)}
