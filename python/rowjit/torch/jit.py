"""An expression of one's own: a Python function of rows, compiled to kernels, its backward derived.

    from rowjit.torch import jit, row

    @jit
    def gated_norm(x, gate, weight: "columns", eps=1e-6):
        h = x.float()
        normed = (h * row.rsqrt(row.mean(h * h) + eps)).to(torch.bfloat16)
        return normed * weight * row.silu(gate)
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence

import torch

from rowjit import InvalidGraph
from rowjit._core import Graph
from rowjit.programs import Argument
from rowjit.registry import Shape, read_braces
from rowjit.torch import row
from rowjit.torch.call import Bound, Computed


# Of Dynamo's message where it is asked for one graph; torch 2.7 knows no reasons.
_DISABLE = inspect.signature(torch.compiler.disable).parameters
_REASON = {"reason": "a function of rowjit.torch.jit is compiled already, and stands between graphs"} if "reason" in _DISABLE else {}


class _Traced:
    """See rowjit.programs.Computation."""

    def __init__(
        self,
        function: Callable[..., object],
        names: tuple[str, ...],
        shapes: tuple[Shape, ...],
        scalars: dict[str, float],
        optional: frozenset[str],
    ) -> None:
        self.function = function
        self.optional = optional
        self.names = names
        self.shapes = shapes
        self.tables = (False,) * len(names)
        self.scalars = scalars

    def body(self, arguments: Sequence[Argument | None]) -> str:
        for name, argument in zip(self.names, arguments, strict=True):
            if argument is None and name not in self.optional:
                raise TypeError(f"{self.function.__name__}: {name} is None, which is no default of it; give a torch.Tensor")
        operands: dict[str, row.Value | None] = {
            name: None if argument is None else row.Value(name)
            for name, argument in zip(self.names, arguments, strict=True)
        }
        wide = "f64" if any(argument is not None and argument.dtype == "f64" for argument in arguments) else "f32"
        scalars = "".join(f"scalar {name}: {wide} = {value!r}\n" for name, value in self.scalars.items())
        values = row.trace(self.function, operands | {name: row.Value(name) for name in self.scalars})
        self.refuse_unnamed_products(arguments, scalars, values)
        return scalars + values

    def refuse_unnamed_products(self, arguments: Sequence[Argument | None], scalars: str, values: str) -> None:
        """The text form broadcasts along axes that an operand lacks, and columns of another number are another axis: a
        value of (…, 16) and (…, 8) has 16 times 8 elements a row. Without a name that is a mistake, or torch's
        broadcasting of one column, and the check of every value is that some operand has all of its unnamed columns."""
        computed = [line.partition(" = ") for line in values.splitlines() if not line.startswith("output ")]
        names = [name for left, _, _ in computed for name in left.split(", ")]
        asked = "".join(f"{left} = {right}\n" for left, _, right in computed) + "".join(f"output {name}\n" for name in names)
        graph = Graph.parse(_declared(self.names, arguments) + scalars + asked, "rowjit")
        known = [_unnamed(tensor) for tensor in graph.inputs]
        for tensor in graph.outputs:
            columns = _unnamed(tensor)
            if any(not columns - of_operand for of_operand in known):
                continue
            given = ", ".join(
                f"{tensor[0]} (…, {', '.join(map(str, sorted(_unnamed(tensor))))})" for tensor in graph.inputs if _unnamed(tensor)
            )
            line = next(line for line in values.splitlines() if tensor[0] in line.partition(" = ")[0].split(", "))
            raise InvalidGraph(
                f"{self.function.__name__}: {line} would have an element for each pair of columns of operands that have"
                f" different numbers of them: {given}; give them the same number, annotate one number a row as"
                ' "tokens", or name the axes of columns, as "tokens, heads"'
            )


def _unnamed(tensor: tuple) -> set[int]:
    """Extents of the columns that have no name, of a tensor as Graph describes it."""
    return {extent for axis, extent in tensor[3] if not axis}


def _declared(names: Sequence[str], arguments: Sequence[Argument | None]) -> str:
    """The lines of axes and inputs. Rows' extents are left out: they do not matter for columns."""
    lines: dict[str, None] = {}
    for name, argument in zip(names, arguments, strict=True):
        if argument is None:
            continue
        lines |= dict.fromkeys(f"rows {axis}" for axis in argument.axes[: argument.rows])
        columns = list(zip(reversed(argument.axes[argument.rows :]), reversed(argument.extents), strict=False))
        lines |= dict.fromkeys(f"columns {axis} = {extent}" for axis, extent in columns if not axis.isdecimal())
        axes = f"[{', '.join(argument.axes)}]" if argument.axes else ""
        lines[f"input {name}: {argument.dtype}{axes}"] = None
    return "".join(f"{line}\n" for line in lines)


def jit(function: Callable[..., object]) -> Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]:
    """The function compiled, for tensors with any leading dimensions.

    A parameter without an annotation is a tensor (..., columns). An annotation says otherwise in words: "columns" for a
    weight, "tokens" for one number a row, "tokens, heads, columns" for more columns, "" for one element. A parameter
    whose default is a number is a number given at launch, whose value is no part of the kernel. One whose default is
    None may be left out; the function sees None then.

    The function is run once for every combination of dtypes and columns, with values of rows in place of tensors
    (`rowjit.torch.row`). It returns a value, a tuple of values, or a dict that names them. Shapes that do not fit raise
    rowjit.InvalidGraph: columns of operands that are not named are one axis, of one number of columns.
    """
    parameters = inspect.signature(function).parameters
    scalars = {
        name: float(parameter.default)
        for name, parameter in parameters.items()
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
    }
    names = tuple(name for name in parameters if name not in scalars)
    shapes = tuple(_shape(function, parameters[name].annotation) for name in names)
    optional = frozenset(name for name in names if parameters[name].default is None)
    computed = Computed(_Traced(function, names, shapes, scalars, optional), tuple(scalars))
    bound: dict[tuple[float, ...], Bound] = {}
    signature = inspect.Signature(
        [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters.values()]
    )

    @functools.wraps(function)
    def compiled(*operands: torch.Tensor | float | None, **named: torch.Tensor | float | None):  # noqa: ANN202
        if torch._C._is_tracing():
            raise TypeError("torch.jit.trace records no function of rowjit.torch.jit; it records the library's operations")
        if named or len(operands) != len(parameters) or scalars:
            arguments = signature.bind(*operands, **named)
            arguments.apply_defaults()
            values = arguments.arguments
            operands = tuple(values[name] for name in names)
            numbers = tuple(float(values[name]) for name in scalars)
        else:
            numbers = ()
        call = bound.get(numbers)
        if call is None:
            if len(bound) >= 1024:
                bound.clear()
            call = bound[numbers] = Bound(computed, numbers)
        return call(*operands)

    return torch.compiler.disable(compiled, **_REASON)


def _shape(function: Callable[..., object], annotation: object) -> Shape:
    if annotation is inspect.Parameter.empty:
        return Shape(0, (), ("",))
    if not isinstance(annotation, str):
        raise TypeError(f"{function.__name__}: the annotation {annotation!r} is no shape in words, as \"tokens, columns\"")
    shape = read_braces(annotation.strip("'\""))
    if shape.group > 0:
        raise TypeError(f"{function.__name__}: a tensor has its own rows only in the library's operations")
    return shape
