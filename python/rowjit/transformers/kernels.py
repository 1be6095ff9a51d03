"""rowjit's layers for the package `kernels`, which replaces the forward of modules that ask for a layer by a name; transformers'
models ask for "RMSNorm" and "rotary_pos_emb", whatever it is that each computes.

    with kernels.use_kernel_mapping(rowjit.transformers.kernel_mapping()):
        model = kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cuda")

What a module computes is found out at its first call, as `apply` does; what rowjit has not stays the module's own. `apply`
replaces more. The layers are for eager mode: a model that is kernelized for torch.compile keeps its own.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rowjit.torch import functional as F  # noqa: N812
from rowjit.transformers.apply import rotary_function
from rowjit.transformers.recognise import recognise_norm, recognise_rotary

Tensor = torch.Tensor

# A layer has no state, no method but forward and none of the package's names but this: `kernels` puts its forward into a module.


class _RMSNorm(torch.nn.Module):
    can_torch_compile = False

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _norm(self)(self, hidden_states)


class _RotaryEmbedding(torch.nn.Module):
    can_torch_compile = False

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim != 1:
            return type(self).forward(self, q, k, cos, sin, unsqueeze_dim)
        return _rotary(type(self))(q, k, cos, sin)


_KEPT = "_rowjit_kernel"  # in a module's own dictionary, beside the forward that `kernels` puts there


def _norm(module: torch.nn.Module) -> Callable[[torch.nn.Module, Tensor], Tensor]:
    computes = module.__dict__.get(_KEPT)
    if computes is None:
        norm = recognise_norm(module)
        if norm is None:
            computes = type(module).forward
        else:
            options = {"eps": norm.eps, "offset": norm.offset, "casting": norm.casting}
            computes = lambda module, x: F.rms_norm(x, module.weight, **options)  # noqa: E731
        module.__dict__[_KEPT] = computes
    return computes


@functools.cache
def _rotary(kind: type) -> Callable[..., tuple[Tensor, Tensor]]:
    """Of the class of one function, whose forward has no use for its instance."""
    original = functools.partial(kind.forward, None)
    rotary = recognise_rotary(original)
    return original if rotary is None else rotary_function(original, rotary)


@dataclass(frozen=True)
class _Layer:
    """What `kernels` calls a repository: where a layer is loaded from, here this file."""

    layer: type[torch.nn.Module]

    @property
    def layer_name(self) -> str:
        return self.layer.__name__.removeprefix("_")

    def load(self) -> type[torch.nn.Module]:
        return self.layer

    def __str__(self) -> str:
        return f"rowjit's {self.layer_name}"


def kernel_mapping() -> dict[str, dict[str, dict[object, _Layer]]]:
    """For kernels.use_kernel_mapping and kernels.register_kernel_mapping, of the devices that rowjit has."""
    from kernels import Mode

    layers = {"RMSNorm": _Layer(_RMSNorm), "rotary_pos_emb": _Layer(_RotaryEmbedding)}
    return {
        name: {device: {Mode.TRAINING: layer, Mode.INFERENCE: layer} for device in ("cuda", "rocm", "cpu")}
        for name, layer in layers.items()
    }
