"""rowjit in PyTorch: its operations as functions (`functional`, also here by their names) and as modules (`nn`), an optimizer
(`optim`), and expressions of one's own (`jit`). Backwards are derived; a new batch size or sequence length compiles nothing.
"""

from rowjit.torch import attention, functional, nn, optim, row
from rowjit.torch.functional import *  # noqa: F403
from rowjit.torch.functional import __all__ as _operations
from rowjit.torch.head import linear_cross_entropy
from rowjit.torch.jit import jit
from rowjit.torch.mlp import gated_mlp


def explain_backend() -> str:
    """What `torch.compile(…, backend="rowjit")` made of every graph so far: regions, each in one call, and by operation
    and reason what it left to ATen."""
    from rowjit.torch.backend import explain_backend as explain

    return explain()


__all__ = ["attention", "explain_backend", "functional", "gated_mlp", "jit", "linear_cross_entropy", "nn", "optim", "row", *_operations]
