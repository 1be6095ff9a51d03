"""The operations of rowjit as functions of tensors. They are generated from the library's registry, as `help` shows:
operands, then options by keyword, with the library's defaults.

Tensors may have any number of leading dimensions where the registry says tokens. Results have the operands' leading
dimensions. bf16, f16, f32 and, on the CPU, f64.
"""

from collections.abc import Callable, Sequence

import torch

from rowjit.calls import Call, Choice
from rowjit.registry import Operand, Operation, Option, operations
from rowjit.torch.call import Bound, Computed

# Only of the joint graph of a forward and a backward, which autograd has no use for.
_OMITTED_OPTIONS = {"in_place"}
_MOST_BOUND = 1024  # values of options that are remembered, per operation

# Options that say which of two operands there are: the operands, and the choices for neither, the first, the second, both.
_OF_TWO_OPERANDS = {"weights": ("class_weight", "token_weight", ("none", "classes", "tokens", "both"))}


class Op:
    """An operation of the registry, called with operands and values of its options, both in the registry's order."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.options = tuple(option for option in operation.options if option.name not in _OMITTED_OPTIONS)
        self.are_numbers = tuple(option.type in ("number", "integer") for option in self.options)
        # Where the caller chooses the shape by the dtype: probabilities instead of classes.
        self.by_dtype = next(
            (i for i, operand in enumerate(operation.operands) if len(operand.shapes) > len(operand.names)),
            None,
        )
        self.bound: dict[tuple, Bound] = {}
        self.computed: dict[tuple, Computed] = {}

    def __call__(self, operands: Sequence[torch.Tensor | None], options: tuple) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            from rowjit.torch import registered

            return registered.call(self.operation.name, operands, options)
        key = options
        if self.by_dtype is not None:
            chooses = operands[self.by_dtype]
            key = (*options, isinstance(chooses, torch.Tensor) and chooses.is_floating_point())
        bound = self.bound.get(key)
        if bound is None:
            bound = self.bind(key)
        return self.overwriting(bound, operands) if self.operation.in_place else bound(*operands)

    def overwriting(self, bound: Bound, operands: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
            written = ", ".join(self.operation.in_place)
            raise RuntimeError(f"{self.operation.name} writes over {written} and has no gradient; call it in torch.no_grad()")
        results = bound(*operands)
        torch.autograd.graph.increment_version([operands[0], *operands[2:]])
        return results

    def choice(self, options: tuple, probabilities: bool = False) -> Choice:
        given = dict(zip((option.name for option in self.options), options, strict=True))
        return Choice(self.operation, given, {"target": "probabilities"} if probabilities else {})

    def call(self, choice: Choice, options: tuple, probabilities: bool = False) -> Call:
        names, shapes = [], []
        for i, operand in enumerate(self.operation.operands):
            chosen = self.named_alternative(operand, options) if len(operand.names) > 1 else 0
            names.append(operand.names[chosen])
            shapes.append(operand.shapes[int(probabilities) if i == self.by_dtype else chosen])
        return Call(choice, tuple(names), tuple(shapes), tuple(operand.table for operand in self.operation.operands))

    def named_alternative(self, operand: Operand, options: tuple) -> int:
        for option, value in zip(self.options, options, strict=True):
            if names_operand(option, operand) and value in operand.names:
                return operand.names.index(value)
        return 0

    def bind(self, key: tuple) -> Bound:
        probabilities = self.by_dtype is not None and key[-1]
        options = key if self.by_dtype is None else key[:-1]
        choice = self.choice(options, probabilities)
        structure = (choice.structure, probabilities)
        computed = self.computed.get(structure)
        if computed is None:
            computed = self.computed[structure] = Computed(self.call(choice, options, probabilities), choice.scalars)
        if len(self.bound) >= _MOST_BOUND:
            self.bound.clear()

        def fallback(operands: Sequence[torch.Tensor | None]) -> torch.Tensor | tuple[torch.Tensor, ...]:
            from rowjit.torch import registered

            return registered.call(self.operation.name, operands, options)

        bound = self.bound[key] = Bound(computed, choice.scalar_values, fallback)
        return bound


def names_operand(option: Option, operand: Operand) -> bool:
    """Whether the option chooses which of its names the operand has."""
    return len(operand.names) > 1 and set(operand.names) <= set(option.choices)


def _operand_code(operand: Operand) -> str:
    if len(operand.names) == 1:
        return operand.names[0]
    *others, last = operand.names
    return "".join(f"{name} if {name} is not None else " for name in others) + last


def _option_code(op: Op, option: Option) -> str:
    """The option's value in terms of the function's parameters: itself one, unless the operands given imply it."""
    optional = {operand.names[0] for operand in op.operation.operands if not operand.required}
    if option.type == "flag" and option.name in optional:
        return f"{option.name} is not None"
    for operand in op.operation.operands:
        if names_operand(option, operand):
            return "".join(f"{name!r} if {name} is not None else " for name in operand.names) + "'none'"
    first, second, choices = _OF_TWO_OPERANDS.get(option.name, ("", "", ()))
    if {first, second} <= optional and set(choices) == set(option.choices):
        return f"{choices!r}[({first} is not None) + 2 * ({second} is not None)]"
    return option.name


def _is_parameter(op: Op, option: Option) -> bool:
    return _option_code(op, option) == option.name


def _documentation(op: Op) -> str:
    operation = op.operation
    lines = [f"{operation.summary[0].upper()}{operation.summary[1:]}.", "", f"    {operation.formula}", "", "Args:"]
    for operand in operation.operands:
        optional = "" if operand.required else ", optional"
        shapes = " or ".join(
            "(" + ", ".join([*shape.prefix, *(["..."] if shape.group >= 0 else []), *(s or "columns" for s in shape.suffix)]) + ")"
            for shape in operand.shapes
        )
        lines.append(f"    {', '.join(operand.names)}: {shapes}, {operand.dtype}{optional}")
    for option in op.options:
        if _is_parameter(op, option):
            choices = f" ({', '.join(option.choices)})" if option.choices else ""
            lines.append(f"    {option.name}: {option.meaning}{choices}")
    shared = f", written over {', '.join(operation.in_place)}" if operation.in_place else ""
    lines += ["", "Returns:", f"    {', '.join(operation.results)}{shared}; those that options ask for"]
    lines.append(f"    Columns: {operation.columns}.")
    return "\n".join(lines)


def _source(op: Op) -> str:
    operation = op.operation
    parameters = []
    for operand in operation.operands:
        parameters += [
            f"{name}: torch.Tensor" if operand.required else f"{name}: torch.Tensor | None = None"
            for name in operand.names
        ]
    types = {"flag": "bool", "integer": "int", "number": "float", "choice": "str"}
    keywords = []
    for option in op.options:
        if _is_parameter(op, option):
            kind = types[option.type] + (" | None" if option.default is None else "")
            keywords.append(f"{option.name}: {kind} = {option.default!r}")
    if keywords:
        parameters += ["*", *keywords]
    operands = ", ".join(f"({_operand_code(operand)})" for operand in operation.operands)
    options = ", ".join(f"({_option_code(op, option)})" for option in op.options)
    many = len(operation.results) > 1
    result = "torch.Tensor | tuple[torch.Tensor, ...]" if many else "torch.Tensor"
    return (
        f"def {operation.name}({', '.join(parameters)}) -> {result}:\n"
        f"    return _{operation.name}(({operands},), ({options}{',' if options else ''}))\n"
    )


def arguments_of(op: Op) -> Callable[..., tuple[tuple, tuple]]:
    """A function with the operation's parameters that gives what an Op is called with: operands, values of options."""
    name = op.operation.name
    scope = {"torch": torch, f"_{name}": lambda operands, options: (operands, options)}
    exec(compile(_source(op), f"<rowjit.torch.{name}>", "exec"), scope)  # noqa: S102
    return scope[name]


def _define(op: Op) -> None:
    """The function in this module, whose globals a tracer looks its operation up in."""
    name = op.operation.name
    globals()[f"_{name}"] = op
    exec(compile(_source(op), f"<rowjit.torch.{name}>", "exec"), globals())  # noqa: S102
    globals()[name].__doc__ = _documentation(op)


OPS = {name: Op(operation) for name, operation in operations().items()}
__all__ = sorted(OPS)  # noqa: PLE0605
for _defined in OPS.values():
    _define(_defined)
