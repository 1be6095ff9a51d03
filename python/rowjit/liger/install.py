"""Puts rowjit behind an installed liger_kernel."""

import importlib.util
import logging
import sys

from rowjit.liger import functions
from rowjit.liger.models import _apply_liger_kernel_to_instance


def install() -> bool:
    """Whether there is a liger_kernel; if so, what it imported and will import of its functions is rowjit's.

    One that cannot be imported, as where there is no Triton, is as none, and said.
    """
    if importlib.util.find_spec("liger_kernel") is None:
        return False
    try:
        import liger_kernel.ops
        import liger_kernel.transformers
    except ImportError as error:
        logging.getLogger("rowjit").warning("liger_kernel is installed but not imported, and rowjit not put behind it: %s", error)
        return False

    ours = {name: getattr(functions, name) for name in functions.__all__}
    ours["_apply_liger_kernel_to_instance"] = _apply_liger_kernel_to_instance
    for name, module in list(sys.modules.items()):
        if name.startswith(("liger_kernel.ops", "liger_kernel.transformers")):
            for replaced in ours.keys() & vars(module).keys():
                setattr(module, replaced, ours[replaced])
    liger_kernel.transformers._apply_liger_kernel_to_instance = _apply_liger_kernel_to_instance
    return True
