"""A region of an ATen graph as a function of its operands, in place of its nodes.

Operands and results are the nodes' own tensors: what a region needs of them — numbers of rows without their last
dimension of one, rows in the order in which the results lie in memory — is a matter of views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from rowjit import Error
from rowjit._core import Program
from rowjit.programs import Builder
from rowjit.registry import Shape
from rowjit.torch.backend.expressions import Region, Step
from rowjit.torch.backend.lowering import known, tensor_of
from rowjit.torch.backend.partition import Group, Partition
from rowjit.torch.framework import TorchFramework

Tensor = torch.Tensor

_ROWS = Shape(0, (), ("",))
_NUMBERS = Shape(0, (), ())
_WEIGHT = Shape(-1, (), ("",))
_ONE = Shape(-1, (), ())

_programs: dict[tuple, Program] = {}


@dataclass(frozen=True)
class Result:
    """How a result of the region becomes the node's tensor."""

    dimensions: int
    columns: int  # 0: a number a row, −1: sums over rows
    has_last: bool  # whether a number a row has a last dimension of one
    order: tuple[int, ...]  # its leading dimensions, outermost in memory first


class Call:
    """A region's function. What the compiler refuses is computed by the nodes themselves, and `refused` says why."""

    def __init__(self, group: Group, found: Partition, name: str) -> None:
        self.__name__ = name
        self.group = group
        self.found = found
        self.refused = ""
        self.operands: list[Node] = []
        self.numbers: list[Node] = []
        self.order: tuple[int, ...] = ()
        self._views: list[Callable[[Tensor], Tensor]] = []
        self._steps: list[Step] = []
        self._values: dict[object, int] = {}
        self.results = [node for node in group.members if _is_read_outside(node, group, found)]
        self._returned = [self._result(node) for node in self.results]
        self._make()

    # ---- Making it ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        group = self.group
        orders = [result.order for result in self._returned if result.columns > 0]
        self.order = max(orders, key=orders.count) if orders else tuple(range(len(group.domain.rows)))
        shapes: list[Shape] = []
        # Operands have the first numbers, then those given at launch, then steps; so they are all found first.
        pending = [ref for node in group.members for ref in self._leaves(node)]
        for node, of_numbers in dict.fromkeys(pending):
            tensor = tensor_of(node)
            if tensor.dim() == 0 and tensor.device.type == "cpu":
                continue
            self._values[(node, of_numbers)] = len(self.operands)
            self.operands.append(node)
            shape, view = self._operand(tensor, of_numbers)
            shapes.append(shape)
            self._views.append(view)
        for node, of_numbers in dict.fromkeys(pending):
            if (node, of_numbers) not in self._values:
                self._values[(node, of_numbers)] = len(self.operands) + len(self.numbers)
                self.numbers.append(node)
        for node in group.members:
            self._values[(node, False)] = self._step(node)
        results = tuple((self._values[(node, False)], max(0, self._columns(node))) for node in self.results)
        region = Region(tuple(shapes), len(self.numbers), tuple(self._steps), results)
        program = _programs.get(region.key())
        if program is None:
            program = _programs[region.key()] = Builder(region, TorchFramework(), region.scalars).program()
        self.region = region
        self.run = program.run

    def _columns(self, node: Node) -> int:
        lowered = self.found.lowered[node]
        return known(tensor_of(lowered.refs[0]).shape[-1]) if lowered.columns == -1 else lowered.columns

    def _leaves(self, node: Node, of_numbers: bool = False) -> list[tuple[Node, bool]]:
        lowered = self.found.lowered.get(node) if node in self.group.members else self.found.through.get(node)
        if lowered is None:
            return [(node, of_numbers)]
        found = []
        for ref in lowered.refs:
            if isinstance(ref, Node) and (ref not in self.group.members):
                found += self._leaves(ref, lowered.operation == "same_numbers")
        return found

    def _step(self, node: Node) -> int:
        """The value of a member or of what is seen through."""
        lowered = self.found.lowered.get(node) if node in self.group.members else self.found.through[node]
        operands = tuple(
            ref if not isinstance(ref, Node) else self._value(ref, lowered.operation == "same_numbers") for ref in lowered.refs
        )
        if lowered.operation in ("same", "same_numbers"):
            return operands[0]
        step = lowered.step(operands)
        key = step
        if key not in self._values:
            self._values[key] = len(self.operands) + len(self.numbers) + len(self._steps)
            self._steps.append(step)
        return self._values[key]

    def _value(self, node: Node, of_numbers: bool) -> int:
        for key in ((node, of_numbers), (node, False)):
            if key in self._values:
                return self._values[key]
        return self._step(node)

    def _operand(self, tensor: Tensor, of_numbers: bool) -> tuple[Shape, Callable[[Tensor], Tensor]]:
        rank = len(self.group.domain.rows)
        plain = self.order == tuple(range(rank))
        if tensor.dim() == 0:
            return _ONE, _same
        if of_numbers:
            return _NUMBERS, _same if plain else _Permuted(rank, self.order, False)
        last = known(tensor.shape[-1])
        if tensor.dim() == 1:
            return (_ONE, _first) if last == 1 else (_WEIGHT, _same)
        if last == 1:
            return _NUMBERS, _numbers if plain else _PermutedNumbers(rank, self.order)
        return _ROWS, _same if plain else _Permuted(rank, self.order, True)

    def _result(self, node: Node) -> Result:
        tensor = tensor_of(node)
        columns = self.found.lowered[node].columns
        rank = len(self.group.domain.rows)
        if columns < 0:
            return Result(tensor.dim(), -1, False, ())
        strides = tensor.stride()[:rank]
        order = tuple(sorted(range(rank), key=lambda d: (-_hint(strides[d]), d)))
        return Result(tensor.dim(), columns, tensor.dim() == rank + 1, order)

    # ---- Calling it --------------------------------------------------------------------------------------------------

    def __call__(self, *tensors: object) -> tuple[Tensor, ...]:
        if self.refused:
            return self.eager(*tensors)
        count = len(self.operands)
        operands = [view(tensor) for view, tensor in zip(self._views, tensors, strict=False)]
        numbers = tuple(float(number) for number in tensors[count : count + len(self.numbers)])
        try:
            found = self.run(numbers, *operands)
        except Error as error:
            self.refused = str(error)
            return self.eager(*tensors)
        if len(self.results) == 1:
            return (self._as_node(found, self._returned[0]),)
        return tuple(map(self._as_node, found, self._returned))

    def _as_node(self, tensor: Tensor, result: Result) -> Tensor:
        if result.columns < 0:
            return tensor if tensor.dim() == result.dimensions else tensor.view((1,) * (result.dimensions - 1) + tensor.shape)
        rank = len(self.order)
        while tensor.dim() < rank + (result.columns > 0):
            tensor = tensor.unsqueeze(0)
        own = self.order
        if result.order != own and result.columns > 0:
            # In memory as the node's tensor lies, which what reads it may rely on.
            to = [own.index(d) for d in result.order]
            tensor = tensor.permute(*to, rank).contiguous()
            own = result.order
        if own != tuple(range(rank)):
            back = [own.index(d) for d in range(rank)]
            tensor = tensor.permute(*back, rank) if result.columns > 0 else tensor.permute(*back)
        return tensor.unsqueeze(-1) if result.columns == 0 and result.has_last else tensor

    # ---- The nodes themselves ----------------------------------------------------------------------------------------

    def eager(self, *tensors: object) -> tuple[Tensor, ...]:
        module = getattr(self, "_module", None)
        if module is None:
            module = self._module = self._graph_module()
        return module(*tensors)

    def arguments(self) -> list[Node]:
        """What it is called with: operands, numbers, and the extents that the nodes themselves need."""
        return [*self.operands, *self.numbers, *self._extents()]

    def _extents(self) -> list[Node]:
        found = []
        for node in self._inside():
            found += [source for source in node.all_input_nodes if tensor_of(source) is None]
        return list(dict.fromkeys(found))

    def _inside(self) -> list[Node]:
        """Members and what they see through, in the graph's order."""
        inside: dict[Node, None] = {}

        def add(node: Node) -> None:
            lowered = self.found.lowered.get(node) if node in self.group.members else self.found.through[node]
            for ref in lowered.refs:
                if isinstance(ref, Node) and ref not in self.group.members and ref in self.found.through:
                    add(ref)
            inside[node] = None

        for node in self.group.members:
            add(node)
        return list(inside)

    def _graph_module(self) -> GraphModule:
        graph = Graph()
        copies = {node: graph.placeholder(f"argument{i}") for i, node in enumerate(self.arguments())}
        waiting = self._inside()
        while waiting:  # what is seen through may read a member that stands behind it here
            late = []
            for node in waiting:
                if all(source in copies for source in node.all_input_nodes):
                    copies[node] = graph.node_copy(node, copies.__getitem__)
                else:
                    late.append(node)
            waiting = late
        graph.output(tuple(copies[node] for node in self.results))
        return GraphModule(torch.nn.Module(), graph)


def _is_read_outside(node: Node, group: Group, found: Partition) -> bool:
    members = set(group.members)

    def outside(user: Node) -> bool:
        if user in members:
            return False
        # A view that only members see through.
        return user not in found.through or not user.users or any(outside(reader) for reader in user.users)

    return any(outside(user) for user in node.users)


def _hint(extent: object) -> float:
    """A stride's size, where it is a symbol as it was traced."""
    if isinstance(extent, int):
        return extent
    hint = extent.node.hint
    return math.inf if hint is None else hint


# ---- Views of operands -----------------------------------------------------------------------------------------------


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _first(tensor: Tensor) -> Tensor:
    return tensor.view(())


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.squeeze(-1)


class _Permuted:
    """Leading dimensions in another order, those that are lacking added."""

    def __init__(self, rank: int, order: Sequence[int], has_columns: bool) -> None:
        self.rank = rank + has_columns
        self.order = (*order, *((rank,) if has_columns else ()))

    def __call__(self, tensor: Tensor) -> Tensor:
        while tensor.dim() < self.rank:
            tensor = tensor.unsqueeze(0)
        return tensor.permute(self.order)


class _PermutedNumbers(_Permuted):
    def __init__(self, rank: int, order: Sequence[int]) -> None:
        super().__init__(rank, order, False)

    def __call__(self, tensor: Tensor) -> Tensor:
        return super().__call__(tensor.squeeze(-1))
