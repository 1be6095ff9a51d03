"""Row kernels of large language models, compiled at run time: norms, rotary embeddings, gated activations, losses.

`rowjit.torch` has the operations as functions and modules of PyTorch, `rowjit.transformers.apply` puts them into a
model. This package itself is the compiler as Python sees it, and imports no framework.
"""

from rowjit._core import Error, Graph, InvalidArgument, InvalidGraph, ParseError, Unsupported, __version__
from rowjit.engines import engine, set_log, statistics, tune
from rowjit.registry import operations

__all__ = [
    "Error",
    "Graph",
    "InvalidArgument",
    "InvalidGraph",
    "ParseError",
    "Unsupported",
    "__version__",
    "engine",
    "operations",
    "set_log",
    "statistics",
    "tune",
]
