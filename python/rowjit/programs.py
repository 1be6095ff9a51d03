"""From a computation and the signature of its operands to a kernel that `rowjit._core` can launch.

A Computation writes a graph as text for operands of given dtypes and axes; `Builder` turns it into executables — one, or
a forward that saves and a backward that reads — and says how every tensor of theirs lies in a framework's dimensions.
What is said here of layouts is explained in core/kernel.h.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rowjit._core import Graph, Kernel, Program
from rowjit.engines import executable
from rowjit.registry import GROUP_NAMES, Shape

# In the order of the C header's ROWJIT_DTYPE_… numbers; then DLPack's code and bits of each.
DTYPES = ("bool", "i32", "i64", "bf16", "f16", "f32", "f64", "i8", "e4m3", "e5m2")
DLPACK_DTYPES = tuple(
    code | bits << 8
    for code, bits in ((6, 8), (0, 32), (0, 64), (4, 16), (2, 16), (2, 32), (2, 64), (0, 8), (10, 8), (12, 8))
)
FLOATS = ("bf16", "f16", "f32", "f64")
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 10: "hip", 11: "cpu", 13: "cuda"}
_ROWS = ("groups", "length")  # static dimensions that are no columns
_RENAMED = re.compile(r"^output (\w+) = (\w+)$", re.MULTILINE)  # an output, and the value of another name that it is
_MERGED_FROM_NONE = (0, 0)  # no leading dimensions: one row


class Framework(Protocol):
    """What a kernel needs of the library whose tensors it is called with."""

    def allocate(self) -> object:
        """A function of extents, one by one, or () where there are none, and the keywords of `options`: fresh contiguous memory.
        Or a capsule of such a function in C (core/kernel.h)."""

    def options(self, dtype: str, device: tuple[int, int]) -> dict[str, object]:
        """The keywords for memory of that dtype ("bf16"; "u8" for a workspace) on a device, as DLPack numbers it."""


@dataclass(frozen=True)
class Argument:
    """An operand of a graph: its dtype, its axes as the text form writes them, outermost first."""

    dtype: str
    axes: tuple[str, ...]
    rows: int  # how many of them are row axes
    extents: tuple[int, ...] = ()  # of the static ones after the row axes


class Computation(Protocol):
    """Something to compute from operands."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    tables: tuple[bool, ...]

    def body(self, arguments: Sequence[Argument | None]) -> str:
        """The lines of the text form between the inputs and the end: values and outputs."""


@dataclass(frozen=True)
class _Lead:
    """Leading dimensions as one operand has them: of its group of D dimensions the last `lead`, those in `has`."""

    group: int
    dimensions: int
    lead: int
    has: int


class Pair:
    """A forward that saves, and the backward of it: what autograd keeps between the two."""

    __slots__ = ("backward", "kept", "of_operands", "results", "whole")

    def __init__(
        self,
        backward: Kernel,
        kept: tuple[int, ...],
        results: int,
        of_operands: tuple[int, ...],
        whole: tuple[int, ...],
    ) -> None:
        self.backward = backward
        self.kept = kept  # places of what the backward reads, in the forward's operands and outputs one after the other
        self.results = results  # the forward's first outputs; what it saves follows
        # Places of the operands' gradients, in None, for what has none, and the backward's outputs one after the other.
        self.of_operands = of_operands
        self.whole = whole  # places of results that have no gradient


class Builder:
    """Makes the kernels of a program. An instance is the `build` of a rowjit._core.Program."""

    def __init__(
        self,
        computation: Computation,
        framework: Framework,
        scalars: tuple[str, ...] = (),
        wanted: tuple[int, ...] = (),
        in_forward: bool = False,
        low_memory: bool = False,
        differentiated: tuple[str, ...] = (),
        overwritten: tuple[str, ...] = (),
        added: tuple[int, ...] = (),
    ) -> None:
        self.computation = computation
        self.framework = framework
        self.scalars = scalars
        self.wanted = wanted  # places of operands whose gradients the forward saves for
        self.in_forward = in_forward  # or computes: those of its first result, a loss, behind its results
        self.low_memory = low_memory  # docs/linear.md
        self.differentiated = differentiated  # results that have a cotangent; all without it
        self.overwritten = overwritten  # results that the forward saves, and the backward overwrites by their gradient
        self.added = added  # places of operands whose gradient the backward adds to f32 tensors, its last operands

    def program(self) -> Program:
        declared = tuple(
            (shape.group, len(shape.prefix), len(shape.suffix), table)
            for shape, table in zip(self.computation.shapes, self.computation.tables, strict=True)
        )
        return Program(self.computation.names, declared, len(GROUP_NAMES), self)

    def __call__(self, signature: tuple) -> Kernel:
        return _Variant(self, signature).kernel()


class _Variant:
    """One signature of a computation's operands."""

    def __init__(self, builder: Builder, signature: tuple) -> None:
        device_type, device_id, stream, groups, operands = signature
        self.builder = builder
        self.stream = stream
        self.device = (device_type, device_id)
        kind = _DEVICES.get(device_type)
        if kind is None:
            raise ValueError(f"operands are on a device of DLPack type {device_type}; rowjit runs on CPUs, CUDA and HIP")
        self.device_name = kind if kind == "cpu" else f"{kind}:{device_id}"
        self.group_dimensions = tuple(dimensions for dimensions, _ in groups)
        self.operands = operands
        # The graph's row axes: the leading dimensions they stand for, by name.
        self.axes: dict[str, tuple[int, tuple[int, int]]] = {}
        for group, (_, merged) in enumerate(groups):
            for i, span in enumerate(merged):
                name = GROUP_NAMES[group] if len(merged) == 1 else f"{GROUP_NAMES[group]}_{i}"
                self.axes[name] = (group, span)
        self.used_axes: list[str] = []
        self.static_axes: dict[str, tuple[str, int]] = {}  # "rows" or "columns", and the extent

    # ---- The graph -------------------------------------------------------------------------------------------------

    def argument(self, place: int) -> Argument | None:
        if self.operands[place] is None:
            return None
        dtype, lead, has, prefix, suffix = self.operands[place]
        name = self.builder.computation.names[place]
        if dtype not in DLPACK_DTYPES:
            known = ", ".join(DTYPES)
            raise TypeError(f"{name} has a dtype that kernels have not; they have {known}: cast it")
        shape = self.builder.computation.shapes[place]
        axes = []
        for axis, extent in zip(shape.prefix, prefix, strict=True):
            axes.append(self.static_axis("rows", axis or "streams", extent))
        rows = len(axes)
        for axis, (group, (first, _)) in self.axes.items():
            if group == shape.group and (self.axes[axis][1] == _MERGED_FROM_NONE or has >> first & 1):
                if axis not in self.used_axes:
                    self.used_axes.append(axis)
                axes.append(axis)
                rows += 1
        for axis, extent in zip(shape.suffix, suffix, strict=True):
            kind = "rows" if axis in _ROWS else "columns"
            rows += kind == "rows"
            axes.append(self.static_axis(kind, axis, extent) if axis else str(extent))
        return Argument(DTYPES[DLPACK_DTYPES.index(dtype)], tuple(axes), rows, tuple(suffix))

    def static_axis(self, kind: str, name: str, extent: int) -> str:
        known = self.static_axes.setdefault(name, (kind, extent))
        if known[1] != extent:
            raise ValueError(f"operands have {known[1]} and {extent} {name}")
        return name

    def graph(self) -> Graph:
        computation = self.builder.computation
        arguments = [self.argument(place) for place in range(len(self.operands))]
        lines = [f"rows {axis}" for axis in self.used_axes]
        lines += [f"{kind} {name} = {extent}" for name, (kind, extent) in self.static_axes.items()]
        for name, argument in zip(computation.names, arguments, strict=True):
            if argument is not None:
                axes = f"[{', '.join(argument.axes)}]" if argument.axes else ""
                lines.append(f"input {name}: {argument.dtype}{axes}")
        return Graph.parse("\n".join(lines) + "\n" + computation.body(arguments), "rowjit")

    # ---- Layouts ---------------------------------------------------------------------------------------------------

    def spans(self, tensor: tuple) -> list[tuple[int, tuple[int, int]]]:
        return [self.axes[axis] for axis, _ in tensor[3] if axis in self.axes]

    def lead_of_operand(self, place: int) -> _Lead:
        _, lead, has, _, _ = self.operands[place]
        group = self.builder.computation.shapes[place].group
        return _Lead(group, self.group_dimensions[group] if group >= 0 else 0, lead, has)

    def lead_of_own(self, tensor: tuple) -> _Lead:
        """Of a tensor that rowjit makes: every dimension of the group, those that it lacks with extent 1, or none."""
        spans = self.spans(tensor)
        if not spans:
            return _Lead(-1, 0, 0, 0)
        group = spans[0][0]
        dimensions = self.group_dimensions[group]
        return _Lead(group, dimensions, dimensions, sum(1 << d for _, span in spans for d in range(*span)))

    def static_extents(self, tensor: tuple) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those before and after the leading dimensions."""
        axes = tensor[3]
        places = [i for i, (axis, _) in enumerate(axes) if axis in self.axes]
        extents = [extent for _, extent in axes]
        if not places:
            return (), tuple(extents)
        return tuple(extents[: places[0]]), tuple(extents[places[-1] + 1 :])

    def input(self, place: int, tensor: tuple, lead: _Lead) -> tuple:
        prefix, suffix = self.static_extents(tensor)
        spans = tuple(span for _, span in self.spans(tensor))
        return (place, lead.group if spans else -1, len(prefix), lead.lead, lead.has, len(suffix), spans)

    def output(self, tensor: tuple, lead: _Lead, alias: int = -1) -> tuple:
        prefix, suffix = self.static_extents(tensor)
        shape = [(-1, extent) for extent in prefix]
        for d in range(lead.dimensions - lead.lead, lead.dimensions):
            shape.append((d, 0) if lead.has >> d & 1 else (-1, 1))
        shape += [(-1, extent) for extent in suffix]
        options = self.builder.framework.options(DTYPES[tensor[1]], self.device)
        spans = tuple(span for _, span in self.spans(tensor))
        return (alias, lead.group, DLPACK_DTYPES[tensor[1]], tuple(shape), prefix, spans, suffix, options)

    # ---- Kernels ---------------------------------------------------------------------------------------------------

    def make(self, graph: Graph, names: Sequence[str], inputs: tuple, outputs: tuple, owner: object, single: bool, witnesses: tuple = ()) -> Kernel:
        compiled = executable(self.device_name, graph, self.stream, self.builder.low_memory)
        of_graph = {name for name, _ in graph.scalars}
        framework = self.builder.framework
        scalars = tuple(name if name in of_graph else "" for name in self.builder.scalars)
        return Kernel(
            (
                compiled,
                owner,
                framework.allocate(),
                framework.options("u8", self.device),
                self.device,
                tuple(names),
                self.group_dimensions,
                inputs,
                outputs,
                scalars,
                single,
                witnesses,
            )
        )

    def inputs_of(self, graph: Graph) -> tuple:
        places = {name: place for place, name in enumerate(self.builder.computation.names)}
        return tuple(
            self.input(places[tensor[0]], tensor, self.lead_of_operand(places[tensor[0]])) for tensor in graph.inputs
        )

    def outputs_of(self, graph: Graph) -> tuple:
        names = self.builder.computation.names
        return tuple(
            self.output(tensor, self.lead_of_own(tensor), names.index(tensor[2]) if tensor[2] else -1)
            for tensor in graph.outputs
        )

    def kernel(self) -> Kernel:
        graph = self.graph()
        names = self.builder.computation.names
        if not self.builder.wanted:
            return self.make(graph, names, self.inputs_of(graph), self.outputs_of(graph), None, len(graph.outputs) == 1)
        wanted = tuple(place for place in self.builder.wanted if self.operands[place] is not None)
        if self.builder.in_forward:
            return self.with_gradients(graph, wanted)
        forward, backward = self.differentiated(graph, wanted)
        same = self.same_gradients(backward, wanted)
        if any(place != same[place] for place in wanted):
            wanted = tuple(place for place in wanted if place == same[place])
            forward, backward = self.differentiated(graph, wanted)
        pair = self.pair(graph, forward, backward, wanted, same)
        return self.make(forward, names, self.inputs_of(forward), self.outputs_of(forward), pair, False)

    def differentiated(self, graph: Graph, wanted: tuple[int, ...]) -> tuple[Graph, Graph]:
        builder, names = self.builder, self.builder.computation.names
        return graph.differentiate(
            tuple(names[place] for place in wanted) + builder.overwritten,
            builder.differentiated,
            builder.overwritten,
            builder.overwritten,
            tuple(names[place] for place in wanted if place in builder.added),
        )

    def same_gradients(self, backward: Graph, wanted: tuple[int, ...]) -> dict[int, int]:
        """By operand the first whose gradient is the same tensor, as those of a sum's terms are: it is written once."""
        values = dict(_RENAMED.findall(backward.text()))
        first: dict[tuple, int] = {}
        same = {}
        for place in wanted:
            gradient = f"d_{self.builder.computation.names[place]}"
            key = values.get(gradient, gradient), self.lead_of_operand(place)
            same[place] = place if place in self.builder.added else first.setdefault(key, place)
        return same

    def with_gradients(self, graph: Graph, wanted: tuple[int, ...]) -> Kernel:
        names = self.builder.computation.names
        joint = graph.gradient(tuple(names[place] for place in wanted), (graph.outputs[0][0],), (), True, True)
        results = joint.outputs[: len(graph.outputs)]
        outputs = [self.output(tensor, self.lead_of_own(tensor)) for tensor in results]
        for tensor, place in zip(joint.outputs[len(results) :], wanted, strict=True):
            outputs.append(self.output(tensor, self.lead_of_operand(place)))
        return self.make(joint, names, self.inputs_of(joint), tuple(outputs), None, False)

    def pair(self, graph: Graph, forward: Graph, backward: Graph, wanted: tuple[int, ...], same: dict[int, int]) -> Pair:
        """The backward's operands: operands of the forward, outputs of it that are kept, cotangents of its results, sums
        that gradients are added to. It makes gradients of those `wanted`, which are also others', as `same` says."""
        names = self.builder.computation.names
        outputs = {tensor[0]: place for place, tensor in enumerate(forward.outputs)}
        read = {tensor[0]: tensor for tensor in backward.inputs}
        of_operands, of_results = backward.outputs[: len(wanted)], backward.outputs[len(wanted) :]
        # An axis of a gradient that nothing read has, as a table's rows: the operand itself says its extent.
        sized = {axis for tensor in backward.inputs for axis, _ in tensor[3]}
        unread = tuple(
            place
            for tensor, place in zip(of_operands, wanted, strict=True)
            if any(axis in self.axes and axis not in sized for axis, _ in tensor[3])
        )
        kept_operands = tuple(place for place, name in enumerate(names) if name in read or place in unread)
        kept_outputs = tuple(place for name, place in outputs.items() if name in read and name not in names)
        results = [tensor[0] for tensor in graph.outputs]
        operand_names = [names[place] for place in kept_operands]
        operand_names += [forward.outputs[place][0] for place in kept_outputs]
        operand_names += [f"d_{name}" for name in self.builder.differentiated or results]
        operand_names += [f"d_{names[place]}" for place in wanted if place in self.builder.added]
        places = {name: place for place, name in enumerate(operand_names)}
        inputs = []
        for tensor in backward.inputs:
            name = tensor[0]
            lead = self.lead_of_operand(names.index(name)) if name in names else self.lead_of_own(tensor)
            inputs.append(self.input(places[name], tensor, lead))
        gradients = []
        for tensor, place in zip(of_operands, wanted, strict=True):
            added = places.get(tensor[0], -1)
            gradients.append(self.output(tensor, self.lead_of_operand(place) if added < 0 else self.lead_of_own(tensor), added))
        gradients += [self.output(tensor, self.lead_of_own(tensor), places[tensor[2]]) for tensor in of_results]
        witnesses = tuple(
            self.input(places[names[place]], tensor, self.lead_of_operand(place))
            for tensor, place in zip(of_operands, wanted, strict=True)
            if place in unread
        )
        kernel = self.make(backward, operand_names, tuple(inputs), tuple(gradients), None, False, witnesses)
        whole = tuple(i for i, tensor in enumerate(graph.outputs) if DTYPES[tensor[1]] not in FLOATS)
        kept = (*kept_operands, *(len(names) + place for place in kept_outputs))
        of_operands = tuple(wanted.index(same[place]) + 1 if place in same else 0 for place in range(len(names)))
        return Pair(kernel, kept, len(results), of_operands, whole)


def output_layouts(builder: Builder, signature: tuple) -> tuple:
    """The outputs' layouts for such operands, with nothing compiled: what a fake implementation needs."""
    variant = _Variant(builder, signature)
    return variant.outputs_of(variant.graph())
