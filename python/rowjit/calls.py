"""An operation of the registry as a Computation: its call in the text form."""

import functools
import re
from collections.abc import Sequence

from rowjit._core import Graph
from rowjit.programs import Argument
from rowjit.registry import Operation, Shape

# A run-time scalar's default is no part of a kernel.
_SCALAR = re.compile(r"^(scalar \S+: \S+ =).*$", re.MULTILINE)


def option_text(value: object) -> str:
    """As the C interface reads an option."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_every_operand(operation: Operation) -> dict[str, str]:
    """Options of the canonical graph that give it the optional operands: some scalars come with one, as ignore_index."""
    optional = {name for operand in operation.operands if not operand.required for name in operand.names}
    flags = (option.name for option in operation.graph_options if option.type == "flag")
    return {name: "true" for name in flags if name in optional}


class Choice:
    """An operation with its options given and its alternatives chosen: the canonical graph says results and scalars."""

    def __init__(self, operation: Operation, options: dict[str, object], graph_options: dict[str, object]) -> None:
        self.operation = operation
        self.options = {name: option_text(value) for name, value in options.items() if value is not None}
        chosen = {name: option_text(value) for name, value in graph_options.items()}
        canonical = Graph.of_op(operation.name, 0, "f32", _with_every_operand(operation) | self.options | chosen)
        self.results = tuple(tensor[0] for tensor in canonical.outputs)
        self.scalars = tuple(name for name, _ in canonical.scalars)
        self.scalar_values = tuple(value for _, value in canonical.scalars)
        # Equal for options that differ in scalars only.
        self.structure = (operation.name, _SCALAR.sub(r"\1", canonical.text()), self.flags())

    def flags(self) -> tuple[tuple[str, str], ...]:
        numbers = {option.name for option in self.operation.options if option.type in ("number", "integer")}
        return tuple(sorted((name, value if name not in numbers else "") for name, value in self.options.items()))


class Call:
    """A Choice on operands."""

    def __init__(self, choice: Choice, names: tuple[str, ...], shapes: tuple[Shape, ...], tables: tuple[bool, ...]) -> None:
        self.choice = choice
        self.names = names
        self.shapes = shapes
        self.tables = tables

    def body(self, arguments: Sequence[Argument | None]) -> str:
        operation, choice = self.choice.operation, self.choice
        for operand, name, argument in zip(operation.operands, self.names, arguments, strict=True):
            if operand.required and argument is None:
                raise TypeError(f"{operation.name}: {name} is None; give a tensor")
        given = [name for name, argument in zip(self.names, arguments, strict=True) if argument is not None]
        texts = {option.name: option.type for option in operation.options}
        options = [
            f"{name}={value}" if texts[name] in ("number", "integer") else f'{name}="{value}"'
            for name, value in choice.options.items()
        ]
        results = ", ".join(choice.results)
        lines = [f"{results} = {operation.name}({', '.join(given + options)})"]
        aliases = dict(zip(operation.results, operation.in_place, strict=False))
        for result in choice.results:
            lines.append(f"output {result}" + (f" alias({aliases[result]})" if result in aliases else ""))
        return "\n".join(lines) + "\n"

    def text(self, arguments: Sequence[Argument | None]) -> str:
        """A graph by itself, of operands whose first has every row."""
        lines = [f"rows {axis}" for axis in arguments[0].axes[: arguments[0].rows]]
        for name, argument in zip(self.names, arguments, strict=True):
            if argument is not None:
                lines.append(f"input {name}: {argument.dtype}[{', '.join(argument.axes)}]")
        return "\n".join(lines) + "\n" + self.body(arguments)


@functools.cache
def defaults(operation: Operation) -> dict[str, object]:
    return {option.name: option.default for option in operation.options}
