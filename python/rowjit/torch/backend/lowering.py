"""Nodes of an ATen graph as steps of a region: which nodes are operations on rows, and why others are none.

The rows of a tensor are its leading dimensions, the columns its last, whose extent must be known. A node is lowered if
its operation is in the table here and its operands broadcast to its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import Node

from rowjit.programs import FLOATS
from rowjit.torch.backend.expressions import Step
from rowjit.torch.framework import dtype_name

aten = torch.ops.aten
_DTYPES = {torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.bool}

Extents = tuple[str, ...]


class NoRows(Exception):
    """The node is no operation on rows, and why."""


@dataclass(frozen=True)
class Domain:
    """The rows that a node computes: its leading extents, as written."""

    rows: Extents


@dataclass(frozen=True)
class Lowered:
    """A node as a step: `refs` are nodes and numbers in place of the step's operands."""

    domain: Domain
    columns: int  # of the result; 0 for one number a row, -1 for one row of sums over all
    operation: str
    refs: tuple[Node | float | bool, ...]
    compute: str
    common: str
    result: str
    parameters: tuple[int, ...] = ()

    def step(self, operands: tuple[int | float | bool, ...]) -> Step:
        return Step(self.operation, operands, self.compute, self.common, self.result, self.parameters)


def tensor_of(node: object) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def known(extent: object) -> int | None:
    """The extent where it is known when the graph is compiled."""
    if isinstance(extent, int):
        return extent
    expression = extent.node.expr
    return int(expression) if expression.is_number else None


def leading(tensor: torch.Tensor) -> Extents:
    return tuple(str(extent) for extent in tensor.shape[:-1])


def _wide(dtype: str) -> str:
    return "f32" if dtype in ("bf16", "f16") else dtype


def _domain(tensor: torch.Tensor) -> tuple[Domain, int]:
    """Of a result with columns."""
    if tensor.dim() < 2:
        raise NoRows("has fewer than two dimensions")
    columns = known(tensor.shape[-1])
    if columns is None:
        raise NoRows("has a last dimension whose extent is not known before launch")
    if columns == 0:
        raise NoRows("has no columns")
    return Domain(leading(tensor)), columns


def _check(node: Node, tensor: torch.Tensor, domain: Domain, columns: int) -> None:
    """Whether an operand's dimensions are rows and columns of the domain, or broadcast to them."""
    if tensor.dtype not in _DTYPES:
        raise NoRows(f"reads {tensor.dtype}")
    if tensor.dim() == 0:
        return
    last = known(tensor.shape[-1])
    if last not in (1, columns) and columns > 0:
        raise NoRows(f"reads {last} columns for {columns}")
    own = leading(tensor)
    if len(own) > len(domain.rows):
        raise NoRows("has fewer dimensions than it reads")
    for extent, whole in zip(reversed(own), reversed(domain.rows), strict=False):
        if extent not in ("1", whole):
            raise NoRows("reads other rows than its own")


# ---- Operations ------------------------------------------------------------------------------------------------------


def _pointwise(operation: str, refs: tuple, node: Node) -> Lowered:
    tensor = tensor_of(node)
    domain, columns = _domain(tensor)
    dtypes = []
    for ref in refs:
        operand = tensor_of(ref)
        if operand is None:
            if isinstance(ref, Node):
                raise NoRows("reads a number that is not known before launch")
            if not isinstance(ref, int | float):
                raise NoRows(f"has the argument {ref!r}")
            continue
        _check(node, operand, domain, columns)
        dtypes.append(operand)
    if tensor.dtype not in _DTYPES:
        raise NoRows(f"gives {tensor.dtype}")
    values = [operand if operand is not None else ref for ref in refs for operand in (tensor_of(ref),)]
    if operation == "where":
        values = values[1:]
    common = values[0].dtype if len(values) == 1 and isinstance(values[0], torch.Tensor) else torch.result_type(values[0], values[1])
    if common not in _DTYPES:
        raise NoRows(f"computes in {common}")
    # One column where others are read through a broadcast is a number a row.
    of_rows = 0 if columns == 1 else columns
    name = dtype_name(common)
    numbers = tuple(ref if isinstance(ref, Node) else float(ref) for ref in refs)
    return Lowered(domain, of_rows, operation, numbers, _wide(name), name, dtype_name(tensor.dtype))


def _of_bools(operation: str, refs: tuple, node: Node) -> Lowered:
    if any(tensor_of(ref) is None or tensor_of(ref).dtype != torch.bool for ref in refs):
        raise NoRows("is of bits of whole numbers")
    return _pointwise(operation, refs, node)


def _unary(operation: str) -> Callable[[Node], Lowered]:
    def lower(node: Node) -> Lowered:
        if len(node.args) != 1 or node.kwargs:
            raise NoRows("has options")
        return _pointwise(operation, (node.args[0],), node)

    return lower


def _binary(operation: str) -> Callable[[Node], Lowered]:
    def lower(node: Node) -> Lowered:
        if len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("rounding_mode") is not None:
            raise NoRows("has options")
        return _pointwise(operation, tuple(node.args), node)

    return lower


def _logical(operation: str) -> Callable[[Node], Lowered]:
    return lambda node: _of_bools(operation, tuple(node.args), node)


def _backward(operation: str) -> Callable[[Node], Lowered]:
    """Of ATen's (gradient, operand or result, …)."""

    def lower(node: Node) -> Lowered:
        gradient, operand, *more = node.args
        return _pointwise(operation, (operand, gradient, *more), node)

    return lower


def _gelu(node: Node) -> Lowered:
    return _pointwise(_form("gelu", node), (node.args[0],), node)


def _gelu_backward(node: Node) -> Lowered:
    form = "gelu_tanh_backward" if node.kwargs.get("approximate") == "tanh" else "gelu_backward"
    return _pointwise(form, (node.args[1], node.args[0]), node)


def _form(operation: str, node: Node) -> str:
    return f"{operation}_tanh" if node.kwargs.get("approximate") == "tanh" else operation


_POWERS = {1: "copy", 2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


def _power(node: Node) -> Lowered:
    exponent = node.args[1]
    if isinstance(exponent, Node) or exponent not in _POWERS:
        raise NoRows(f"has the exponent {exponent}")
    return _pointwise(_POWERS[exponent], (node.args[0],), node)


def _copy(node: Node) -> Lowered:
    """Also another dtype or memory format of the same elements."""
    source = node.args[0]
    tensor, given = tensor_of(node), tensor_of(source)
    if given is None or given.device != tensor.device:
        raise NoRows("copies to another device")
    lowered = _pointwise("copy", (source,), node)
    if "bool" in (lowered.common, lowered.result) and lowered.common != lowered.result and lowered.result not in FLOATS:
        raise NoRows("makes conditions of numbers")
    return lowered


def _where(node: Node) -> Lowered:
    condition = tensor_of(node.args[0])
    if condition is None or condition.dtype != torch.bool:
        raise NoRows("has a condition that is no bool")
    return _pointwise("where", tuple(node.args), node)


def _dimensions(node: Node, given: object) -> tuple[int, ...]:
    count = tensor_of(node.args[0]).dim()
    dimensions = range(count) if given is None else [given] if isinstance(given, int) else given
    return tuple(sorted(d % count for d in dimensions)) or tuple(range(count))


def _reduction(operation: str) -> Callable[[Node], Lowered]:
    """Over the columns; a sum also over all rows."""

    def lower(node: Node) -> Lowered:
        source = tensor_of(node.args[0])
        if source is None or source.dim() < 2 or not source.is_floating_point():
            raise NoRows("reduces no rows of floats")
        domain, columns = _domain(source)
        _check(node, source, domain, columns)
        over = _dimensions(node, node.args[1] if len(node.args) > 1 else None)
        result, name = dtype_name(tensor_of(node).dtype), dtype_name(source.dtype)
        common = name if node.kwargs.get("dtype") is None else result
        if over == (source.dim() - 1,) and columns > 1:
            return Lowered(domain, 0, operation, (node.args[0],), _wide(common), common, result)
        if operation == "sum" and over == tuple(range(source.dim() - 1)) and columns > 1:
            return Lowered(domain, -1, "sum_rows", (node.args[0],), _wide(common), common, result)
        raise NoRows(f"reduces dimensions {list(over)} of {source.dim()}, not its columns or all its rows")

    return lower


def _softmax(operation: str) -> Callable[[Node], Lowered]:
    def lower(node: Node) -> Lowered:
        backward = operation.endswith("backward")
        dim = node.args[2 if backward else 1]
        tensor = tensor_of(node.args[0])
        if tensor is None or tensor.dim() < 2 or dim not in (-1, tensor.dim() - 1):
            raise NoRows("is not along the last dimension")
        lowered = _pointwise(operation, tuple(node.args[:2] if backward else node.args[:1]), node)
        if lowered.columns < 2:
            raise NoRows("has one column")
        return lowered

    return lower


def _cat(node: Node) -> Lowered:
    parts = node.args[0]
    tensor = tensor_of(node)
    domain, columns = _domain(tensor)
    dim = node.args[1] if len(node.args) > 1 else 0
    if dim not in (-1, tensor.dim() - 1):
        raise NoRows("joins other dimensions than the last")
    for part in parts:
        operand = tensor_of(part)
        if leading(operand) != domain.rows or known(operand.shape[-1]) is None or operand.dtype != tensor.dtype:
            raise NoRows("joins tensors of other rows or dtypes")
        if known(operand.shape[-1]) < 2:
            raise NoRows("joins single columns")
    if tensor.dtype not in _DTYPES or tensor.dtype == torch.bool:
        raise NoRows(f"joins {tensor.dtype}")
    name = dtype_name(tensor.dtype)
    return Lowered(domain, columns, "cat", tuple(parts), name, name, name)


def _pad(node: Node) -> Lowered:
    """slice_backward."""
    gradient, sizes, dim, start, end, step = node.args
    tensor, given = tensor_of(node), tensor_of(gradient)
    domain, columns = _domain(tensor)
    width = known(given.shape[-1])
    if dim not in (-1, tensor.dim() - 1) or step != 1 or width is None or width < 2 or not isinstance(start, int):
        raise NoRows("is not the gradient of a slice of the last dimension")
    if not tensor.is_floating_point():
        raise NoRows(f"gives {tensor.dtype}")
    name = dtype_name(tensor.dtype)
    start = start % columns if start < 0 else start
    return Lowered(domain, columns, "pad", (gradient,), name, name, name, (start, columns))


OPERATIONS: dict[object, Callable[[Node], Lowered]] = {
    aten._log_softmax.default: _softmax("log_softmax"),
    aten._log_softmax_backward_data.default: _softmax("log_softmax_backward"),
    aten._softmax.default: _softmax("softmax"),
    aten._softmax_backward_data.default: _softmax("softmax_backward"),
    aten._to_copy.default: _copy,
    aten.amax.default: _reduction("amax"),
    aten.amin.default: _reduction("amin"),
    aten.cat.default: _cat,
    aten.clone.default: _copy,
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.mean.dim: _reduction("mean"),
    aten.pow.Tensor_Scalar: _power,
    aten.sigmoid_backward.default: _backward("sigmoid_backward"),
    aten.silu_backward.default: _backward("silu_backward"),
    aten.slice_backward.default: _pad,
    aten.sum.dim_IntList: _reduction("sum"),
    aten.tanh_backward.default: _backward("tanh_backward"),
    aten.threshold_backward.default: _backward("threshold_backward"),
    aten.where.self: _where,
    torch.ops.prims.convert_element_type.default: _copy,
}
for _name in ("abs", "cos", "erf", "exp", "floor", "log", "log1p", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "silu",
              "sin", "sqrt", "tanh"):
    OPERATIONS[getattr(aten, _name).default] = _unary(_name)
for _name in ("add", "div", "eq", "ge", "gt", "le", "lt", "mul", "ne", "sub"):
    OPERATIONS[getattr(aten, _name).Tensor] = _binary(_name)
    OPERATIONS[getattr(aten, _name).Scalar] = _binary(_name)
for _name in ("maximum", "minimum"):
    OPERATIONS[getattr(aten, _name).default] = _binary(_name)
for _name, _operation in (("logical_and", "logical_and"), ("logical_or", "logical_or"), ("logical_not", "logical_not")):
    OPERATIONS[getattr(aten, _name).default] = _logical(_operation)
OPERATIONS[aten.bitwise_and.Tensor] = _logical("bitwise_and")
OPERATIONS[aten.bitwise_or.Tensor] = _logical("bitwise_or")
OPERATIONS[aten.bitwise_not.default] = _logical("bitwise_not")


def lower(node: Node) -> Lowered:
    """The node as a step; raises NoRows."""
    row = OPERATIONS.get(node.target)
    if row is None:
        raise NoRows("is not an operation on rows that rowjit has")
    tensor = tensor_of(node)
    if tensor is None:
        raise NoRows("gives no tensor")
    if any(isinstance(value, float) and math.isnan(value) for value in node.args):
        raise NoRows("has an argument that is not a number")
    return row(node)


# ---- What is read through --------------------------------------------------------------------------------------------


def seen_through(node: Node) -> Lowered | None:
    """A view of a row's columns, or a constant: part of every region that reads it, and no value of its own."""
    tensor = tensor_of(node)
    if node.target is aten.slice.Tensor:
        return _slice(node, tensor)
    if node.target in (aten.full.default, aten.scalar_tensor.default) and tensor is not None:
        number = node.args[1] if node.target is aten.full.default else node.args[0]
        if tensor.dim() == 0 and isinstance(number, int | float) and tensor.dtype in _DTYPES - {torch.bool}:
            name = dtype_name(tensor.dtype)
            return Lowered(Domain(()), 0, "constant", (float(number),), name, name, name)
    if node.target is aten.expand.default and tensor is not None:
        given = tensor_of(node.args[0])
        if given is not None and given.dim() == tensor.dim() >= 2 and given.dtype in _DTYPES:
            name = dtype_name(tensor.dtype)
            return Lowered(Domain(leading(tensor)), 0, "same", (node.args[0],), name, name, name)
    if node.target is aten.unsqueeze.default and tensor is not None and node.args[1] in (-1, tensor.dim() - 1):
        name = dtype_name(tensor.dtype) if tensor.dtype in _DTYPES else ""
        return Lowered(Domain(leading(tensor)), 0, "same_numbers", (node.args[0],), name, name, name) if name else None
    return None


def _slice(node: Node, tensor: torch.Tensor | None) -> Lowered | None:
    source = tensor_of(node.args[0])
    if tensor is None or source is None or source.dim() < 2 or tensor.dtype not in _DTYPES:
        return None
    dim, start, end, step = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
    columns, own = known(source.shape[-1]), known(tensor.shape[-1])
    start = 0 if start is None else start
    if dim not in (-1, source.dim() - 1) or step != 1 or not isinstance(start, int) or columns is None or own is None or own < 2:
        return None
    start = start + columns if start < 0 else start
    name = dtype_name(tensor.dtype)
    return Lowered(Domain(leading(source)), own, "slice", (node.args[0],), name, name, name, (start, start + own))
