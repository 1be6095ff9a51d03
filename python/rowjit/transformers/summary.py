"""What `apply` did to a model, and what it left and why."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Summary:
    """Counts of modules by what replaced them, and by the reason for which they were left."""

    replaced: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def replace(self, what: str, operation: str) -> None:
        self.replaced[f"{what} → {operation}"] += 1

    def leave(self, what: str, reason: str) -> None:
        self.left[f"{what}: {reason}"] += 1

    def __str__(self) -> str:
        lines = [f"replaced {count} × {what}" for what, count in self.replaced.items()]
        lines += [f"left     {count} × {what}" for what, count in self.left.items()]
        return "\n".join(lines) or "nothing was found to replace"
