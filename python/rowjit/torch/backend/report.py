"""What the backend did with a graph: its regions, and what it left and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch.fx import Node

from rowjit.torch.backend.call import Call


@dataclass
class GraphReport:
    """A graph of a compiled function: "forward", "backward" or "inference"."""

    kind: str
    regions: list[Call] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)  # by operation and reason

    def leave(self, node: Node, reason: str) -> None:
        self.left[f"{node.target} {reason}"] += 1

    def __str__(self) -> str:
        lines = [f"{self.kind}: {len(self.regions)} regions of {sum(len(r.group.members) for r in self.regions)} operations"]
        shapes: Counter[str] = Counter()
        for region in self.regions:
            operations = " ".join(self._name(node) for node in region.group.members)
            refused = f"\n      computed by ATen: {region.refused}" if region.refused else ""
            shapes[f"{operations}{refused}"] += 1
        lines += [f"  {count} × {operations}" for operations, count in shapes.items()]
        lines += [f"  left {count} × {what}" for what, count in self.left.most_common()]
        return "\n".join(lines)

    @staticmethod
    def _name(node: Node) -> str:
        return str(node.target).removeprefix("aten.").split(".")[0]


reports: list[GraphReport] = []


def explain_backend() -> str:
    """What `torch.compile(…, backend="rowjit")` made of every graph since the process began or `forget` was called:
    regions, each in one call, and by operation and reason what it left to ATen."""
    return "\n".join(map(str, reports)) or "no graph has been compiled with this backend"


def forget() -> None:
    reports.clear()
