"""What autocast does to a matrix product's operands, for products that torch does not see."""

import torch
from torch import Tensor


def of_product(*operands: Tensor | None) -> tuple[Tensor | None, ...]:
    """The operands in autocast's dtype for their device where it is enabled, else as they are."""
    device = next(operand for operand in operands if operand is not None).device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return operands
    narrow = torch.get_autocast_dtype(device)
    return tuple(None if operand is None else operand.to(narrow) for operand in operands)
