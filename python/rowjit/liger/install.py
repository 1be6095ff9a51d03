"""Puts rowjit behind an installed liger_kernel."""

import importlib
import importlib.util
import logging
import sys

from rowjit.liger import functions
from rowjit.liger.chunked_loss import functional as chunked_functional, functions as chunked_functions
from rowjit.liger.models import _apply_liger_kernel_to_instance


def _named(*modules: object) -> dict[str, object]:
    return {name: getattr(module, name) for module in modules for name in module.__all__}


# Packages of Liger's that are imported and replaced together, and what rowjit has of them. The chunked losses are apart: the
# same names are other functions there, and they are PyTorch alone, to be imported where there is no Triton.
_PARTS = (
    (
        ("liger_kernel.ops", "liger_kernel.transformers"),
        _named(functions) | {"_apply_liger_kernel_to_instance": _apply_liger_kernel_to_instance},
    ),
    (
        ("liger_kernel.chunked_loss", "liger_kernel.chunked_loss.functional"),
        _named(chunked_functions, chunked_functional),
    ),
)


def install() -> bool:
    """Whether there is a liger_kernel; if so, what it imported and will import of its functions is rowjit's.

    A part of it that cannot be imported, as where there is no Triton, is as none, and said.
    """
    if importlib.util.find_spec("liger_kernel") is None:
        return False
    installed = False
    for packages, ours in _PARTS:
        try:
            for package in packages:
                importlib.import_module(package)
        except ImportError as error:
            logging.getLogger("rowjit").warning(
                "%s is installed but not imported, and rowjit not put behind it: %s", packages[0], error
            )
            continue
        installed = True
        for name, module in list(sys.modules.items()):
            if name.startswith(packages):
                for replaced in ours.keys() & vars(module).keys():
                    setattr(module, replaced, ours[replaced])
    if "liger_kernel.transformers" in sys.modules:  # which makes this name only when it is asked for
        sys.modules["liger_kernel.transformers"]._apply_liger_kernel_to_instance = _apply_liger_kernel_to_instance
    return installed
