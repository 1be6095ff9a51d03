"""The operations, as the library describes them: what they take, how operands are shaped, which options there are.

Nothing here names an operation. How a shape in words ("{tokens, heads, columns}") is read is in `read_shape`.
"""

import functools
import json
import re
from dataclasses import dataclass, field

from rowjit._core import ops

# Axes that stand for leading dimensions. A table's rows are its own; all others are the tokens'.
_LEADING = {"tokens": 0, "sequences": 0, "batch": 0, "vocabulary": 1}
GROUP_NAMES = ("tokens", "vocabulary")


@dataclass(frozen=True)
class Shape:
    """Dimensions of an operand: static ones, leading ones, static ones; each static one a name or "" for an extent."""

    group: int  # -1: no leading dimensions
    prefix: tuple[str, ...]
    suffix: tuple[str, ...]


@dataclass(frozen=True)
class Operand:
    """What an operation takes. Of several `names` the caller gives one, each with its shape; several `shapes` of one name
    are told apart by the dtype, the second being a float's."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtype: str
    required: bool
    constant: bool  # training has no gradient for it
    table: bool  # holds no dimension of the batch where its own extent there is 1


@dataclass(frozen=True)
class Option:
    name: str
    type: str  # "flag", "integer", "number", "choice"
    default: object  # None where it is absent
    choices: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class Operation:
    """A row of the library's registry."""

    name: str
    summary: str
    formula: str
    columns: str
    operands: tuple[Operand, ...]
    results: tuple[str, ...]
    options: tuple[Option, ...]  # of a call
    graph_options: tuple[Option, ...] = field(default=())  # that only choose canonical operands
    in_place: tuple[str, ...] = field(default=())  # the operands that the results overwrite


def read_braces(text: str) -> Shape:
    """One shape: "tokens, heads, columns" is leading dimensions, then two static ones."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    leading = [i for i, word in enumerate(words) if word in _LEADING]
    names = ["" if re.search(r"\bcolumns\b|\bR\b|^\d", word) else word for word in words]
    if not leading:
        return Shape(-1, (), tuple(names))
    at = leading[0]
    return Shape(_LEADING[words[at]], tuple(names[:at]), tuple(names[at + 1 :]))


def read_shape(text: str, names: tuple[str, ...], known: dict[str, tuple[Shape, ...]]) -> tuple[Shape, ...]:
    """The shapes that a description in words leaves the caller to choose from: one for each of several names."""
    if text.startswith("as "):
        return known[text.removeprefix("as ")]
    parts = [part.strip() for part in text.split(";")]
    if len(names) > 1:
        parts = [next((part for part in parts if part.startswith(name)), parts[0]) for name in names]
    alternatives = []
    for part in parts:
        shapes = [read_braces(braces) for braces in re.findall(r"\{([^}]*)\}", part)]
        if not shapes:  # "over tokens, columns or both"
            shapes = [Shape(0, (), ("",))]
        # Leading dimensions may be missing, so that of several shapes the one with most stands for all.
        alternatives.append(max(shapes, key=lambda shape: (shape.group, len(shape.suffix))))
    return tuple(alternatives)


def _value(kind: str, text: str) -> object:
    if text == "":
        return None
    return {"flag": lambda: text == "true", "integer": lambda: int(text), "number": lambda: float(text)}.get(
        kind, lambda: text
    )()


def _option(row: dict) -> Option:
    return Option(
        row["name"], row["type"], _value(row["type"], row["default"]), tuple(row["choices"].split()), row["meaning"]
    )


def _operation(row: dict) -> Operation:
    shapes: dict[str, tuple[Shape, ...]] = {}
    operands = []
    for given in row["operands"]:
        names = tuple(re.split(r", | or ", given["name"]))
        shapes[given["name"]] = read_shape(given["shape"], names, shapes)
        table = given["constant"] and any("heads" in other["shape"] for other in row["operands"])
        operands.append(
            Operand(names, shapes[given["name"]], given["dtype"], given["required"], given["constant"], table)
        )
    options = [(_option(option), option["of_graph"]) for option in row["options"]]
    return Operation(
        row["name"],
        row["summary"],
        row["formula"],
        row["columns"],
        tuple(operands),
        tuple(row["results"]),
        tuple(option for option, of_graph in options if not of_graph),
        tuple(option for option, of_graph in options if of_graph),
        tuple(row["in_place"]),
    )


@functools.cache
def operations() -> dict[str, Operation]:
    """Every operation by its name."""
    return {row["name"]: _operation(row) for row in json.loads(ops())}
