"""A graph as a Python function of one list, which it empties: every tensor is freed where it is read last, as the
activations that a backward is given must be.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch.fx import Graph, Node


class _Source:
    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.scope: dict[str, object] = {}
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []

    def bound(self, value: object) -> str:
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def text(self, argument: object) -> str:
        if isinstance(argument, Node):
            return self.names[argument]
        if isinstance(argument, list | tuple):
            inside = ", ".join(map(self.text, argument))
            return f"[{inside}]" if isinstance(argument, list) else f"({inside}{',' if argument else ''})"
        if isinstance(argument, slice):
            return f"slice({self.text(argument.start)}, {self.text(argument.stop)}, {self.text(argument.step)})"
        if argument is None or isinstance(argument, bool | int):
            return repr(argument)
        return self.bound(argument)

    def call(self, node: Node) -> str:
        given = [*map(self.text, node.args), *(f"{key}={self.text(value)}" for key, value in node.kwargs.items())]
        if node.op == "get_attr":
            return self.bound(operator.attrgetter(node.target)(self.module))
        if node.op == "call_method":
            return f"{given[0]}.{node.target}({', '.join(given[1:])})"
        if node.op == "call_module":
            return f"{self.bound(self.module.get_submodule(node.target))}({', '.join(given)})"
        if node.target is operator.getitem:
            return f"{given[0]}[{given[1]}]"
        return f"{self.bound(node.target)}({', '.join(given)})"


def function_of(graph: Graph, module: torch.nn.Module) -> Callable[[list], object]:
    """`module` has what the graph's get_attr nodes name."""
    source = _Source(module)
    nodes = list(graph.nodes)
    last: dict[Node, Node] = {}
    for node in nodes:
        for read in node.all_input_nodes:
            last[read] = node
    inputs = [node for node in nodes if node.op == "placeholder"]
    for i, node in enumerate(nodes):
        source.names[node] = f"v{i}"
    names = "".join(f"{source.names[node]}, " for node in inputs)
    source.lines.append(f"{names} = arguments" if inputs else "pass")
    source.lines.append("arguments.clear()")
    for node in nodes:
        if node.op == "output":
            source.lines.append(f"return {source.text(node.args[0])}")
        elif node.op != "placeholder":
            source.lines.append(f"{source.names[node]} = {source.call(node)}")
        done = [source.names[read] for read in {*node.all_input_nodes, node} if last.get(read, read) is node]
        if done and node.op != "output":
            source.lines.append(" = ".join(done) + " = None")
    body = "\n    ".join(source.lines)
    exec(compile(f"def run(arguments):\n    {body}\n", "<rowjit backend>", "exec"), source.scope)  # noqa: S102
    run = source.scope["run"]
    run._boxed_call = True
    return run
