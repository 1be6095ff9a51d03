"""Puts rowjit behind an installed liger_kernel."""

import importlib.util
import sys

from rowjit.liger import functions
from rowjit.liger.models import _apply_liger_kernel_to_instance


def install() -> bool:
    """Whether there is a liger_kernel; if so, what it imported and will import of its functions is rowjit's."""
    if importlib.util.find_spec("liger_kernel") is None:
        return False
    import liger_kernel.ops
    import liger_kernel.transformers

    ours = {name: getattr(functions, name) for name in functions.__all__}
    ours["_apply_liger_kernel_to_instance"] = _apply_liger_kernel_to_instance
    for name, module in list(sys.modules.items()):
        if name.startswith(("liger_kernel.ops", "liger_kernel.transformers")):
            for replaced in ours.keys() & vars(module).keys():
                setattr(module, replaced, ours[replaced])
    liger_kernel.transformers._apply_liger_kernel_to_instance = _apply_liger_kernel_to_instance
    return True
