"""Liger-Kernel's names over rowjit.

    import rowjit.liger          # before or after liger_kernel: what Liger calls is rowjit from here on
    from rowjit.liger import LigerRMSNorm, liger_rotary_pos_emb     # or by these names, without Liger

Where liger_kernel is installed, importing this module puts rowjit behind its autograd functions that rowjit has, and
`apply` behind `_apply_liger_kernel_to_instance`, which trainers call for `use_liger_kernel`. What rowjit has not stays
Liger's own.
"""

from rowjit.liger import chunked_loss
from rowjit.liger.chunked_loss.losses import *  # noqa: F403
from rowjit.liger.chunked_loss.losses import __all__ as _losses
from rowjit.liger.functional import *  # noqa: F403
from rowjit.liger.functional import __all__ as _functional
from rowjit.liger.functions import *  # noqa: F403
from rowjit.liger.functions import __all__ as _functions
from rowjit.liger.install import install
from rowjit.liger.modules import *  # noqa: F403
from rowjit.liger.modules import __all__ as _modules
from rowjit.liger.models import (
    AutoLigerKernelForCausalLM,
    _apply_liger_kernel,
    _apply_liger_kernel_to_instance,
    apply_liger_kernel_to,
)

__all__ = [
    "AutoLigerKernelForCausalLM",
    "_apply_liger_kernel",
    "_apply_liger_kernel_to_instance",
    "chunked_loss",
    "install",
    *_functional,
    *_functions,
    *_losses,
    *_modules,
]


def __getattr__(name: str) -> object:
    """apply_liger_kernel_to_llama and its like, of every type of model that transformers has."""
    prefix = "apply_liger_kernel_to_"
    if not name.startswith(prefix):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return apply_liger_kernel_to(name.removeprefix(prefix))


install()
