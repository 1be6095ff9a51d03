"""ATen's operations on rows in the text form: what each computes, rounded where ATen rounds.

An operation on narrow floats is computed in f32 and rounded once, as ATen's kernels do. `OPERATIONS` is the table; a
Step is one of them on values of a region, and `Region` the computation that they make together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rowjit.programs import FLOATS, Argument
from rowjit.registry import Shape

_NARROW = ("bf16", "f16")
_SIGMOID = "(1.0 / (1.0 + exp(-{0})))"
_CUBIC = "({0} + 0.044715 * {0} * {0} * {0})"
_TANH = "tanh(0.7978845608028654 * " + _CUBIC + ")"

# Of operands {0}, {1}, …: pointwise, in the dtype that ATen computes in.
POINTWISE = {
    "abs": "abs({0})",
    "add": "{0} + {1}",
    "bitwise_and": "{0} && {1}",
    "bitwise_not": "!{0}",
    "bitwise_or": "{0} || {1}",
    "cos": "cos({0})",
    "div": "{0} / {1}",
    "eq": "{0} == {1}",
    "erf": "erf({0})",
    "exp": "exp({0})",
    "floor": "floor({0})",
    "ge": "{0} >= {1}",
    "gelu": "0.5 * {0} * (1.0 + erf({0} * 0.7071067811865476))",
    "gelu_tanh": "0.5 * {0} * (1.0 + " + _TANH + ")",
    "gelu_backward": (
        "{1} * (0.5 * (1.0 + erf({0} * 0.7071067811865476)) + {0} * exp(-0.5 * {0} * {0}) * 0.3989422804014327)"
    ),
    "gelu_tanh_backward": (
        "{1} * (0.5 * (1.0 + " + _TANH + ") + 0.5 * {0} * (1.0 - " + _TANH + " * " + _TANH + ") * "
        "(0.7978845608028654 * (1.0 + 0.134145 * {0} * {0})))"
    ),
    "gt": "{0} > {1}",
    "le": "{0} <= {1}",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "logical_and": "{0} && {1}",
    "logical_not": "!{0}",
    "logical_or": "{0} || {1}",
    "lt": "{0} < {1}",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "mul": "{0} * {1}",
    "ne": "{0} != {1}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "relu": "maximum({0}, 0.0)",
    "rsqrt": "rsqrt({0})",
    "sigmoid": _SIGMOID,
    "sigmoid_backward": "{1} * (1.0 - {0}) * {0}",
    "silu": "{0} / (1.0 + exp(-{0}))",
    "silu_backward": "{1} * " + _SIGMOID + " * (1.0 + {0} * (1.0 - " + _SIGMOID + "))",
    "sin": "sin({0})",
    "sqrt": "sqrt({0})",
    "square": "{0} * {0}",
    "cube": "{0} * {0} * {0}",
    "sub": "{0} - {1}",
    "tanh": "tanh({0})",
    "tanh_backward": "{1} * (1.0 - {0} * {0})",
    "threshold_backward": "select({0} <= {2}, 0.0, {1})",
}

# Along the columns of a row.
OVER_COLUMNS = {
    "amax": "max({0})",
    "amin": "min({0})",
    "log_softmax": "({0} - max({0})) - log(sum(exp({0} - max({0}))))",
    "log_softmax_backward": "{0} - exp({1}) * sum({0})",
    "mean": "mean({0})",
    "softmax": "exp({0} - max({0})) / sum(exp({0} - max({0})))",
    "softmax_backward": "{0} * {1} - {1} * sum({0} * {1})",
    "sum": "sum({0})",
}


@dataclass(frozen=True)
class Step:
    """An operation on values, which are numbered: a region's operands first, then what its steps give."""

    operation: str
    operands: tuple[int | float | bool, ...]  # values by their numbers, and numbers as floats
    compute: str = ""  # the dtype it is computed in
    common: str = ""  # the dtype that operands have before that
    result: str = ""
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True)
class Value:
    name: str
    dtype: str
    rows: tuple[str, ...]
    columns: int  # 0: one number a row

    def axes(self) -> tuple[str, ...]:
        return (*self.rows, *((f"@{self.columns}",) if self.columns else ()))


class Region:
    """See rowjit.programs.Computation: operands, numbers given at launch, steps, and the values that are its results."""

    def __init__(
        self,
        shapes: tuple[Shape, ...],
        numbers: int,
        steps: tuple[Step, ...],
        results: tuple[tuple[int, int], ...],  # values, and the columns that each shall have
    ) -> None:
        self.names = tuple(f"x{i}" for i in range(len(shapes)))
        self.shapes = shapes
        self.tables = (False,) * len(shapes)
        self.scalars = tuple(f"number{i}" for i in range(numbers))
        self.steps = steps
        self.results = results

    def key(self) -> tuple:
        return (self.shapes, len(self.scalars), self.steps, self.results)

    def body(self, arguments: Sequence[Argument | None]) -> str:
        return _Text(self, arguments).written()


class _Text:
    """A region's lines for operands of given dtypes and axes."""

    def __init__(self, region: Region, arguments: Sequence[Argument]) -> None:
        self.region = region
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.rows: list[str] = []
        for name, argument in zip(region.names, arguments, strict=True):
            rows = argument.axes[: argument.rows]
            self.rows += [row for row in rows if row not in self.rows]
            self.values.append(Value(name, argument.dtype, rows, argument.extents[-1] if argument.extents else 0))
        wide = "f64" if any(argument.dtype == "f64" for argument in arguments) else "f32"
        for name in region.scalars:
            self.lines.append(f"scalar {name}: {wide} = 0")
            self.values.append(Value(name, wide, (), 0))

    def written(self) -> str:
        for step in self.region.steps:
            self.values.append(self.step(step))
        for i, (value, columns) in enumerate(self.region.results):
            self.lines.append(f"output out{i} = {self.spread(self.values[value], columns).name}")
        return "\n".join(self.lines) + "\n"

    def let(self, expression: str, dtype: str, rows: tuple[str, ...], columns: int) -> Value:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return Value(name, dtype, rows, columns)

    def ordered(self, operands: Sequence[Value]) -> tuple[str, ...]:
        return tuple(row for row in self.rows if any(row in operand.rows for operand in operands))

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.let(f"cast({value.name}, {dtype})", dtype, value.rows, value.columns)

    def computed(self, operand: int | float, step: Step) -> Value | str:
        """An operand in the dtype of the computation: a number as it is."""
        if isinstance(operand, float):
            return f"({operand!r})"
        value = self.values[operand]
        if value.dtype == "bool" and step.compute == "bool":
            return value
        return self.cast(self.cast(value, step.common), step.compute)

    def step(self, step: Step) -> Value:
        special = _SPECIAL.get(step.operation)
        if special is not None:
            return special(self, step)
        operands = [self.computed(operand, step) for operand in step.operands]
        values = [operand for operand in operands if isinstance(operand, Value)]
        text = (POINTWISE.get(step.operation) or OVER_COLUMNS[step.operation]).format(*map(_name, operands))
        columns = max((value.columns for value in values), default=0)
        if step.operation in _REDUCTIONS:
            columns = 0
        compared = "bool" if step.result == "bool" else step.compute
        return self.cast(self.let(text, compared, self.ordered(values), columns), step.result)

    def constant(self, step: Step) -> Value:
        return self.let(f"const({step.operands[0]!r}, {step.result})", step.result, (), 0)

    def copy(self, step: Step) -> Value:
        return self.cast(self.values[step.operands[0]], step.result)

    def where(self, step: Step) -> Value:
        condition = self.values[step.operands[0]]
        chosen = [self.computed(operand, step) for operand in step.operands[1:]]
        if all(isinstance(operand, str) for operand in chosen):
            chosen[0] = self.let(f"const({step.operands[1]!r}, {step.compute})", step.compute, (), 0)
        values = [condition, *(operand for operand in chosen if isinstance(operand, Value))]
        text = f"select({condition.name}, {_name(chosen[0])}, {_name(chosen[1])})"
        columns = max(value.columns for value in values)
        return self.cast(self.let(text, step.compute, self.ordered(values), columns), step.result)

    def sum_rows(self, step: Step) -> Value:
        value = self.computed(step.operands[0], step)
        if value.rows != tuple(self.rows):
            value = self.over_rows(value)
        summed = self.let(f"sum({value.name}, {', '.join(value.rows)})", step.compute, (), value.columns)
        return self.cast(summed, step.result)

    def over_rows(self, value: Value) -> Value:
        """The value with every row axis."""
        missing = [row for row in self.rows if row not in value.rows]
        if not missing:
            return value
        condition = " && ".join(f"iota(@{row}) >= 0" for row in missing)
        return self.let(f"select({condition}, {value.name}, {value.name})", value.dtype, tuple(self.rows), value.columns)

    def spread(self, value: Value, columns: int) -> Value:
        """The value with that many columns."""
        if value.columns == columns:
            return value
        text = f"select(iota(@{columns}) >= 0, {value.name}, {value.name})"
        return self.let(text, value.dtype, value.rows, columns)

    def read(self, value: Value, columns: int, offset: int) -> str:
        """The value at column c + offset of another axis of `columns`, modulo its own extent."""
        column = f"(@{columns} + {offset % value.columns}) % {value.columns}"
        if offset >= 0 and offset + columns <= value.columns:
            column = f"@{columns} + {offset}" if offset else f"@{columns}"
        return f"index({value.name}, {', '.join([*(f'@{row}' for row in value.rows), column])})"

    def slice(self, step: Step) -> Value:
        start, end = step.parameters
        value = self.values[step.operands[0]]
        if (start, end) == (0, value.columns):
            return value
        return self.let(self.read(value, end - start, start), value.dtype, value.rows, end - start)

    def pad(self, step: Step) -> Value:
        """Zeros around a slice: its gradient."""
        start, columns = step.parameters
        value = self.values[step.operands[0]]
        if value.columns == columns:
            return value
        inside = [f"iota(@{columns}) >= {start}"] if start else []
        inside += [f"iota(@{columns}) < {start + value.columns}"] if start + value.columns < columns else []
        text = f"select({' && '.join(inside)}, {self.read(value, columns, -start)}, 0.0)"
        return self.let(text, value.dtype, value.rows, columns)

    def cat(self, step: Step) -> Value:
        parts = [self.cast(self.values[operand], step.result) for operand in step.operands]
        columns = sum(part.columns for part in parts)
        end = columns
        text = ""
        for part in reversed(parts):
            end -= part.columns
            read = self.read(part, columns, -end)
            text = f"select(iota(@{columns}) < {end + part.columns}, {read}, {text})" if text else read
        return self.let(text, step.result, self.ordered(parts), columns)


def _name(operand: Value | str) -> str:
    return operand if isinstance(operand, str) else operand.name


_REDUCTIONS = ("amax", "amin", "mean", "sum")
_SPECIAL: dict[str, Callable[[_Text, Step], Value]] = {
    "cat": _Text.cat,
    "constant": _Text.constant,
    "copy": _Text.copy,
    "pad": _Text.pad,
    "slice": _Text.slice,
    "sum_rows": _Text.sum_rows,
    "where": _Text.where,
}
OPERATIONS = frozenset({*POINTWISE, *OVER_COLUMNS, *_SPECIAL})
__all__ = ["FLOATS", "OPERATIONS", "OVER_COLUMNS", "POINTWISE", "Region", "Step"]
