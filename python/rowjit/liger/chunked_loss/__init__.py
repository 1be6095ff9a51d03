"""The losses of liger_kernel.chunked_loss, which trainers import: preference, policy and distillation losses of a head's
logits. A package of its own, as Liger's is, because `liger_fused_linear_jsd` and its class are other functions in
`rowjit.liger`."""

from rowjit.liger.chunked_loss import functions
from rowjit.liger.chunked_loss.losses import *  # noqa: F403
from rowjit.liger.chunked_loss.losses import __all__ as _losses

__all__ = ["functions", *_losses]
