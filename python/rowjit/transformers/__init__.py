"""rowjit in the decoder models of Hugging Face's transformers, found by what their modules compute, not by their names.

    from rowjit.transformers import apply
    print(apply(model))
"""

from rowjit.transformers.apply import Switches, apply
from rowjit.transformers.auto import AutoModelForCausalLM
from rowjit.transformers.kernels import kernel_mapping
from rowjit.transformers.summary import Summary

__all__ = ["AutoModelForCausalLM", "Summary", "Switches", "apply", "kernel_mapping"]
