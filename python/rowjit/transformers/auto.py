"""Loading a causal language model with rowjit in it."""

from __future__ import annotations

import torch

from rowjit.transformers.apply import apply


class AutoModelForCausalLM:
    """transformers.AutoModelForCausalLM, followed by `apply`. `rowjit` takes the switches."""

    @staticmethod
    def from_pretrained(*arguments: object, rowjit: dict[str, bool | str] | None = None, **named: object) -> torch.nn.Module:
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(*arguments, **named)
        apply(model, **(rowjit or {}))
        return model

    @staticmethod
    def from_config(*arguments: object, rowjit: dict[str, bool | str] | None = None, **named: object) -> torch.nn.Module:
        import transformers

        model = transformers.AutoModelForCausalLM.from_config(*arguments, **named)
        apply(model, **(rowjit or {}))
        return model
