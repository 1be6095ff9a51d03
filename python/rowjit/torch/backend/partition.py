"""Which nodes of an ATen graph become regions: connected operations on the same rows, in one call each.

A node joins the regions of what it reads where no path leads from them back to them through something else. Regions that
only read the same tensor are joined where they are near one another, so that the order of the graph stays about what it was.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from rowjit.torch.backend.lowering import Domain, Lowered, NoRows, leading, lower, seen_through, tensor_of

_LEAST_OPERATIONS = 2  # of a region: one alone is ATen's as well
_NEAR = 16  # nodes between regions that read the same tensor


@dataclass(eq=False)
class Group:
    """A region while it is made."""

    domain: Domain
    members: list[Node] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)  # of other groups and of none
    into: Group | None = None  # what it has become part of

    def whole(self) -> Group:
        return self if self.into is None else self.into.whole()


@dataclass
class Partition:
    groups: list[Group]
    lowered: dict[Node, Lowered]
    through: dict[Node, Lowered]
    left: dict[Node, str]  # why, of the nodes that compute something


class _Partitioner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lowered: dict[Node, Lowered] = {}
        self.through: dict[Node, Lowered] = {}
        self.left: dict[Node, str] = {}
        self.group_of: dict[Node, Group] = {}
        # Groups that a node outside of groups depends on with none between.
        self.behind: dict[Node, set[Group]] = {}

    def run(self) -> Partition:
        for node in self.graph.nodes:
            if node.op == "call_function":
                through = seen_through(node)
                if through is not None:
                    self.through[node] = through
                else:
                    self.place(node)
            if node not in self.group_of:
                self.behind[node] = self.nearest(node.all_input_nodes)
        self.join_readers()
        groups = list(dict.fromkeys(group.whole() for group in self.group_of.values()))
        found = []
        position = {node: i for i, node in enumerate(self.graph.nodes)}
        for group in groups:
            group.members.sort(key=position.__getitem__)
            reason = "stands alone: nothing to fuse it with" if len(group.members) < _LEAST_OPERATIONS else ""
            # Masks of attention, whose columns are positions too: a kernel would be for one length of sequences.
            if not any(tensor_of(read) is not None and tensor_of(read).is_floating_point() for read in group.reads):
                reason = "is of conditions alone"
            if not reason:
                found.append(group)
            self.left |= dict.fromkeys(group.members if reason else (), reason)
        return Partition(found, self.lowered, self.through, self.left)

    def place(self, node: Node) -> None:
        try:
            lowered = self.lowered[node] = lower(node)
        except NoRows as reason:
            if tensor_of(node) is not None:
                self.left[node] = str(reason)
            return
        sources = list(dict.fromkeys(sources_of(node, self.lowered, self.through)))
        candidates = [
            self.group_of[source].whole()
            for source in sources
            if source in self.group_of and self.lowered[source].columns >= 0
        ]
        candidates = [group for group in dict.fromkeys(candidates) if group.domain == lowered.domain]
        joined: list[Group] = []
        for chosen in (candidates, *([group] for group in candidates)):
            if chosen and not set(chosen) & set(joined) and self.may_join([*joined, *chosen], sources):
                joined += chosen
        group = self.joined(joined) if joined else Group(lowered.domain)
        group.members.append(node)
        self.group_of[node] = group
        group.reads = self.from_outside(group, group.reads.union(sources))

    def joined(self, groups: list[Group]) -> Group:
        first, *others = groups
        for other in others:
            first.members += other.members
            first.reads |= other.reads
            other.into = first
        first.reads = self.from_outside(first, first.reads)
        return first

    def from_outside(self, group: Group, reads: set[Node]) -> set[Node]:
        return {read for read in reads if read not in self.group_of or self.group_of[read].whole() is not group}

    def join_readers(self) -> None:
        """Groups near one another on the same rows that read the same tensor, where nothing stands between them."""
        position = {node: i for i, node in enumerate(self.graph.nodes)}
        readers: dict[Node, list[Group]] = {}
        for group in dict.fromkeys(group.whole() for group in self.group_of.values()):
            for read in group.reads:
                tensor = tensor_of(read)
                if tensor is not None and tensor.dim() > 1 and leading(tensor) == group.domain.rows and tensor.shape[-1] != 1:
                    readers.setdefault(read, []).append(group)
        for groups in readers.values():
            for one, other in itertools.pairwise(groups):
                first, second = one.whole(), other.whole()
                near = min(abs(position[a] - position[b]) for a in first.members for b in second.members) <= _NEAR
                if first is not second and first.domain == second.domain and near and self.may_join([first, second], ()):
                    self.joined([first, second])

    def may_join(self, groups: list[Group], sources: Iterable[Node]) -> bool:
        """Whether nothing else stands between the groups, or between them and a node that reads `sources`."""
        reads = set(sources).union(*(group.reads for group in groups))
        waiting = [group for group in self.nearest(reads) if group not in groups]
        waiting += [group for read in reads if read not in self.group_of for group in self.nearest([read])]
        reached: set[Group] = set()
        while waiting:
            group = waiting.pop()
            if group in groups:
                return False
            if group not in reached:
                reached.add(group)
                waiting.extend(self.nearest(group.reads))
        return True

    def nearest(self, nodes: Iterable[Node]) -> set[Group]:
        """The groups that the nodes are of, or depend on with none between."""
        found: set[Group] = set()
        for node in nodes:
            group = self.group_of.get(node)
            if group is not None:
                found.add(group.whole())
            else:
                found |= {behind.whole() for behind in self.behind.get(node, ())}
        return found


def sources_of(node: Node, lowered: dict[Node, Lowered], through: dict[Node, Lowered]) -> Iterator[Node]:
    """The nodes whose values a step reads, behind views and constants that are seen through."""
    for ref in (lowered.get(node) or through[node]).refs:
        if isinstance(ref, Node):
            if ref in through:
                yield from sources_of(ref, lowered, through)
            else:
                yield ref


def partition(graph: Graph) -> Partition:
    return _Partitioner(graph).run()


def ordered(graph: Graph, found: Partition) -> list[Node | Group]:
    """The graph's nodes, a group in place of its members, each behind what it reads; otherwise as they were."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    unit: dict[Node, Node | Group] = {node: node for node in graph.nodes}
    place: dict[Node | Group, int] = dict(position)
    for group in found.groups:
        place[group] = max(position[node] for node in group.members)
        for node in group.members:
            unit[node] = group
    readers: dict[Node | Group, set] = {each: set() for each in dict.fromkeys(unit.values())}
    waiting_for = dict.fromkeys(readers, 0)
    for node in graph.nodes:
        is_member = isinstance(unit[node], Group)
        for source in sources_of(node, found.lowered, found.through) if is_member else node.all_input_nodes:
            before, after = unit[source], unit[node]
            if before is not after and after not in readers[before]:
                readers[before].add(after)
                waiting_for[after] += 1
    ready = [(place[each], each) for each, count in waiting_for.items() if count == 0]
    heapq.heapify(ready)
    units = []
    while ready:
        each = heapq.heappop(ready)[1]
        units.append(each)
        for reader in readers[each]:
            waiting_for[reader] -= 1
            if waiting_for[reader] == 0:
                heapq.heappush(ready, (place[reader], reader))
    if len(units) != len(readers):
        raise RuntimeError("rowjit's regions depend on one another in a circle: a bug, please report it")
    return units
