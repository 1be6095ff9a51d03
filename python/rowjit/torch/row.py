"""What a function for `rowjit.torch.jit` is written with: values of rows, and the functions of docs/text-form.md on them.

A Value stands for a tensor's rows while the function is traced; arithmetic and comparisons of values and numbers are
those of the text form, without implicit casts: operands have one dtype.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from rowjit.registry import operations
from rowjit.torch.framework import dtype_name

Number = int | float | bool


class Trace(threading.local):
    """The lines written so far; each thread traces by itself."""

    lines: list[str] | None = None

    def value(self, expression: str) -> Value:
        if self.lines is None:
            raise RuntimeError("values of rows exist only while rowjit.torch.jit traces a function")
        name = f"value{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return Value(name)


_trace = Trace()


def _text(operand: object) -> str:
    if isinstance(operand, Value):
        return operand.name
    if isinstance(operand, bool):
        return str(operand).lower()
    if isinstance(operand, int | float):
        return f"({operand!r})" if operand < 0 else repr(operand)
    if isinstance(operand, torch.dtype):
        return dtype_name(operand)
    raise TypeError(f"{operand!r} is neither a value of rows nor a number")


def _operator(symbol: str) -> Callable[[Value, object], Value]:
    return lambda left, right: _trace.value(f"{_text(left)} {symbol} {_text(right)}")


def _reflected(symbol: str) -> Callable[[Value, object], Value]:
    return lambda right, left: _trace.value(f"{_text(left)} {symbol} {_text(right)}")


class Value:
    """A value of every row."""

    __slots__ = ("name",)
    __hash__ = object.__hash__

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        raise TypeError("a value of rows is not known while the function is traced; write select(condition, a, b)")

    def __repr__(self) -> str:
        return f"<value of rows {self.name}>"

    __add__, __radd__ = _operator("+"), _reflected("+")
    __sub__, __rsub__ = _operator("-"), _reflected("-")
    __mul__, __rmul__ = _operator("*"), _reflected("*")
    __truediv__, __rtruediv__ = _operator("/"), _reflected("/")
    __lt__, __le__, __gt__, __ge__ = _operator("<"), _operator("<="), _operator(">"), _operator(">=")
    __eq__, __ne__ = _operator("=="), _operator("!=")  # type: ignore[assignment]
    __and__, __or__ = _operator("&&"), _operator("||")

    def __neg__(self) -> Value:
        return _trace.value(f"-{self.name}")

    def __invert__(self) -> Value:
        return _trace.value(f"!{self.name}")

    def to(self, dtype: torch.dtype) -> Value:
        return cast(self, dtype)

    def float(self) -> Value:
        return cast(self, torch.float32)


def cast(value: Value, dtype: torch.dtype) -> Value:
    """A rounding point."""
    return _trace.value(f"cast({_text(value)}, {dtype_name(dtype)})")


def constant(number: Number, dtype: torch.dtype) -> Value:
    """A number with a dtype; beside a value a bare number takes that value's."""
    return _trace.value(f"const({_text(number)}, {dtype_name(dtype)})")


def _over_columns(name: str) -> Callable[[Value], Value]:
    def reduce(value: Value) -> Value:
        return _trace.value(f"{name}({_text(value)})")

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"The {name} over all columns of a row."
    return reduce


def sum_rows(value: Value, axis: str = "tokens") -> Value:
    """The sum over rows: of all leading dimensions."""
    return _trace.value(f"sum({_text(value)}, {axis})")


def _elementwise(name: str) -> Callable[..., Value]:
    def apply(*operands: Value | Number) -> Value:
        return _trace.value(f"{name}({', '.join(map(_text, operands))})")

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{name} of each element, as docs/text-form.md has it."
    return apply


def _composite(name: str) -> Callable[..., Value | tuple[Value, ...]]:
    operation = operations()[name]

    def apply(*operands: Value, results: int = 1, **options: Number | str) -> Value | tuple[Value, ...]:
        if _trace.lines is None:
            raise RuntimeError("values of rows exist only while rowjit.torch.jit traces a function")
        given = [_text(operand) for operand in operands]
        given += [f'{key}="{value}"' if isinstance(value, str) else f"{key}={value!r}" for key, value in options.items()]
        names = [f"value{len(_trace.lines)}_{i}" for i in range(results)]
        _trace.lines.append(f"{', '.join(names)} = {name}({', '.join(given)})")
        return Value(names[0]) if results == 1 else tuple(map(Value, names))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{operation.summary}: {operation.formula}. Give `results` where it has more than one."
    return apply


_ELEMENTWISE = (
    "abs minimum maximum sqrt rsqrt exp log log1p tanh erf sin cos floor fma select detach"  # dsl/ops.def
).split()
_REDUCTIONS = ("sum", "mean", "max", "min")
__all__ = ["Value", "cast", "constant", "sum_rows", *_ELEMENTWISE, *_REDUCTIONS, *operations()]  # noqa: PLE0604
globals().update({name: _composite(name) for name in operations()})
globals().update({name: _elementwise(name) for name in _ELEMENTWISE})
globals().update({name: _over_columns(name) for name in _REDUCTIONS})


def trace(function: Callable[..., object], operands: dict[str, Value | None]) -> str:
    """The lines of the function's values and outputs, in the text form."""
    _trace.lines = []
    try:
        results = function(**operands)
        named = results if isinstance(results, dict) else _positional(results, operands)
        lines = list(_trace.lines)
    finally:
        _trace.lines = None
    for name, value in named.items():
        if not isinstance(value, Value):
            raise TypeError(f"{function.__name__} returns {value!r}; a value of rows is wanted")
        lines.append(f"output {name} = {value.name}")
    return "\n".join(lines) + "\n"


def _positional(results: object, operands: dict[str, Value | None]) -> dict[str, object]:
    many = isinstance(results, tuple | list)
    name = "out"
    while any(operand.startswith(name) for operand in operands):
        name += "_"
    return {f"{name}{i}": value for i, value in enumerate(results)} if many else {name: results}
