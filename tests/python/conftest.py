"""What the tests of the Python package share."""

from collections.abc import Sequence

import pytest
import torch

from rowjit import statistics
from rowjit.torch import native

native.load(wait=True)  # so that a test that says no other meets the same node of autograd on every run


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def kernels_made() -> int:
    """How many kernels this process has compiled, or read from memory or disk, so far."""
    made = statistics("cpu")
    return made["compiled"] + made["memory_hits"] + made["disk_hits"]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance; where both are the same infinity or NaN there is none."""
    distance = (found.double() - exact).abs()
    same = (found.double() == exact) | (found.isnan() & exact.isnan())
    return distance.masked_fill(same, 0).max().item() if distance.numel() else 0.0


def assert_as_good(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, units: int = 1) -> None:
    """The bar of every operation: an error against the exact value no larger than eager's own and one unit in the last
    place of the largest value."""
    assert_as_good_in_the_mean([(found, eager, exact)], units)


def assert_as_good_in_the_mean(draws: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], units: int = 1) -> None:
    """The same of what was found, eager's and exact in each of several draws: of the sums of their errors and units."""
    ours, eagers, room = 0.0, 0.0, 0.0
    for found, eager, exact in draws:
        assert found.dtype == eager.dtype
        assert found.shape == eager.shape
        finite = exact[exact.isfinite()]
        room += units * torch.finfo(found.dtype).eps * (finite.abs().max().item() if finite.numel() else 0)
        ours += error(found, exact)
        eagers += error(eager, exact)
    assert ours <= eagers + room
