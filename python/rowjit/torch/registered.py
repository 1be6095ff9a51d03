"""The operations as torch.ops.rowjit.*, for torch.compile and all else that works through torch's dispatcher: each with
a fake implementation and a backward. In eager mode nothing comes here, since the dispatcher's call costs more than ours.

The backward computes again what the forward had rather than take it from there, so that the forward has no results but
its own and a partitioner is free to choose.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true as known

from rowjit.programs import DLPACK_DTYPES, DTYPES, Builder, Computation, output_layouts
from rowjit.registry import GROUP_NAMES
from rowjit.torch.call import Bound
from rowjit.torch.framework import TorchFramework, dtype_name
from rowjit.torch.functional import OPS, Op

Tensors = Sequence[torch.Tensor | None]
Results = torch.Tensor | tuple[torch.Tensor, ...]

_library = torch.library.Library("rowjit", "DEF")


def call(name: str, operands: Tensors, options: tuple) -> Results:
    """The registered operation on operands and values of options in the registry's order.

    Numbers are passed as such, since a tracer may have made symbols of them; an absent one is NaN. The first of the words
    says which operands are given, since autograd sees none in a list of those that need not be.
    """
    devices = {operand.device for operand in operands if operand is not None}
    if len(devices) > 1:
        raise ValueError(f"{name}: operands are on {' and '.join(sorted(map(str, devices)))}; move them to one device")
    numbers: list[float] = []
    words = ["".join(["-" if operand is None else "x" for operand in operands])]
    for value, is_number in zip(options, OPS[name].are_numbers, strict=True):
        if is_number:
            numbers.append(float("nan") if value is None else float(value))
        else:
            words.append(str(value))
    results = getattr(torch.ops.rowjit, name)([operand for operand in operands if operand is not None], numbers, " ".join(words))
    return results[0] if len(results) == 1 else tuple(results)


def _options(op: Op, numbers: Sequence[float], words: str) -> tuple:
    """The values of options, as eager mode is given them."""
    of_numbers, of_words = iter(numbers), iter(words.split()[1:])
    values: list[object] = []
    for option in op.options:
        if option.type in ("number", "integer"):
            number = float(next(of_numbers))
            whole = option.type == "integer"
            values.append(None if math.isnan(number) else int(number) if whole else number)
        else:
            word = next(of_words)
            values.append(None if word == "None" else word == "True" if option.type == "flag" else word)
    return tuple(values)


def _bound(op: Op, operands: Tensors, numbers: Sequence[float], words: str) -> Bound:
    key = _options(op, numbers, words)
    if op.by_dtype is not None:
        key = (*key, operands[op.by_dtype].is_floating_point())
    return op.bound.get(key) or op.bind(key)


def _spread(given: Sequence, words: str) -> list:
    """What there is of each operand given, in its place among all of them."""
    of_given = iter(given)
    return [next(of_given) if present == "x" else None for present in words.split()[0]]


def _as_list(results: Results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _signature(computation: Computation, operands: Tensors) -> tuple[tuple, list[list]]:
    """As rowjit._core describes operands to a Builder, every leading dimension an axis of its own; and their extents.

    Leading extents may be symbols, which are compared with 1 only where that is known.
    """
    leads: list[list] = [[] for _ in GROUP_NAMES]
    for operand, shape in zip(operands, computation.shapes, strict=True):
        if operand is None or shape.group < 0:
            continue
        given = list(operand.shape[len(shape.prefix) : operand.dim() - len(shape.suffix)])
        group = leads[shape.group]
        group[:0] = given[: max(0, len(given) - len(group))]
        for d in range(-1, -len(given) - 1, -1):
            if known(group[d] == 1):
                group[d] = given[d]
    described: list[tuple | None] = []
    for operand, shape, table in zip(operands, computation.shapes, computation.tables, strict=True):
        if operand is None:
            described.append(None)
            continue
        prefix, suffix = len(shape.prefix), len(shape.suffix)
        count = operand.dim() - prefix - suffix
        has = 0
        group = leads[shape.group] if shape.group >= 0 else []
        for d in range(len(group) - count, len(group)):
            extent = operand.shape[prefix + d - (len(group) - count)]
            lacks = known(extent == 1) and (not known(group[d] == 1) or (table and d + 1 < len(group)))
            has |= 0 if lacks else 1 << d
        dtype = DLPACK_DTYPES[DTYPES.index(dtype_name(operand.dtype))]
        extents = tuple(int(operand.shape[i]) for i in (*range(prefix), *range(operand.dim() - suffix, operand.dim())))
        described.append((dtype, count, has, extents[:prefix], extents[prefix:]))
    groups = tuple((len(lead), [(d, d + 1) for d in range(len(lead))] or [(0, 0)]) for lead in leads)
    return (1, 0, 0, groups, tuple(described)), leads


def _fake(op: Op, given: Sequence[torch.Tensor], numbers: Sequence[float], words: str) -> list[torch.Tensor]:
    operands = _spread(given, words)
    computation = _bound(op, operands, numbers, words).computed.computation
    signature, leads = _signature(computation, operands)
    like = next(operand for operand in operands if operand is not None)
    made = []
    for _, group, dtype, shape, *_ in output_layouts(Builder(computation, TorchFramework()), signature):
        sizes = [extent if d < 0 else leads[group][d] for d, extent in shape]
        made.append(torch.empty(sizes, dtype=_dtype(dtype), device=like.device))
    return made


def _dtype(dlpack: int) -> torch.dtype:
    return TorchFramework().options(DTYPES[DLPACK_DTYPES.index(dlpack)], (1, 0))["dtype"]


def _register(op: Op) -> None:
    name = op.operation.name

    def forward(given: Sequence[torch.Tensor], numbers: Sequence[float], words: str) -> list[torch.Tensor]:
        operands = _spread(given, words)
        with torch.no_grad():
            return _as_list(_bound(op, operands, numbers, words)(*operands))

    def backward(
        cotangents: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor],
        wanted: Sequence[bool],
        numbers: Sequence[float],
        words: str,
    ) -> list[torch.Tensor]:
        leaves = [operand.detach() for operand in given]
        differentiated = [leaf.requires_grad_() for leaf, asked in zip(leaves, wanted, strict=True) if asked]
        operands = _spread(leaves, words)
        with torch.enable_grad():
            results = _as_list(_bound(op, operands, numbers, words)(*operands))
        floating = [result for result in results if result.requires_grad]
        return list(torch.autograd.grad(floating, differentiated, list(cotangents)))

    def fake_backward(
        cotangents: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor],
        wanted: Sequence[bool],
        numbers: Sequence[float],
        words: str,
    ) -> list[torch.Tensor]:
        asked = [operand for operand, asked in zip(given, wanted, strict=True) if asked]
        return [torch.empty(operand.shape, dtype=operand.dtype, device=operand.device) for operand in asked]

    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001
        given, ctx.numbers, ctx.words = inputs
        ctx.wanted = [operand.requires_grad for operand in given]
        ctx.floating = [result.is_floating_point() for result in output]
        ctx.save_for_backward(*given)

    def differentiate(ctx, cotangents):  # noqa: ANN001, ANN202
        of_floats = [cotangent for cotangent, floating in zip(cotangents, ctx.floating, strict=True) if floating]
        found = iter(derivative(of_floats, list(ctx.saved_tensors), ctx.wanted, ctx.numbers, ctx.words))
        # torch takes an empty list for one of tensors, whose gradient is a list too.
        return [next(found) if asked else None for asked in ctx.wanted], None if ctx.numbers else [], None

    _library.define(f"{name}(Tensor[] operands, float[] numbers, str words) -> Tensor[]")
    _library.define(
        f"{name}_backward(Tensor[] cotangents, Tensor[] operands, bool[] wanted, float[] numbers, str words) -> Tensor[]"
    )
    derivative = getattr(torch.ops.rowjit, f"{name}_backward")
    _library.impl(name, forward, "CompositeExplicitAutograd")
    _library.impl(f"{name}_backward", backward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rowjit::{name}", functools.partial(_fake, op), lib=_library)
    torch.library.register_fake(f"rowjit::{name}_backward", fake_backward, lib=_library)
    torch.library.register_autograd(f"rowjit::{name}", differentiate, setup_context=setup_context, lib=_library)


for _op in OPS.values():
    if not _op.operation.in_place:  # what is written over its operands is for eager mode alone
        _register(_op)
