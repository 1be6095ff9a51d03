"""What kernels need of PyTorch: its allocator, its dtypes and devices."""

import torch

_DTYPES = {
    "bool": torch.bool,
    "i32": torch.int32,
    "i64": torch.int64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "u8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class TorchFramework:
    """See rowjit.programs.Framework."""

    def allocate(self) -> object:
        from rowjit.torch import native  # here, so that `python -m` finds it not yet imported

        return native.allocate()

    def options(self, dtype: str, device: tuple[int, int]) -> dict[str, object]:
        kind, number = device
        return {"dtype": _DTYPES[dtype], "device": torch.device("cpu") if kind == 1 else torch.device("cuda", number)}


def dtype_name(dtype: torch.dtype) -> str:
    """As the text form writes it; raises TypeError for one that kernels have not."""
    name = _NAMES.get(dtype)
    if name is None or name == "u8":
        raise TypeError(f"{dtype} is none of the dtypes that kernels have: {', '.join(map(str, _NAMES))}; cast it")
    return name
