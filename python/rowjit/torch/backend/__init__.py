"""`torch.compile(model, backend="rowjit")`: operations on rows of an ATen graph become regions, compiled by rowjit.

AOTAutograd traces the forward and the backward and decides what is kept between them; of each graph the connected
operations on the same rows, of whose last dimension the extent is known, become one call (`partition`), and all else
stays ATen's. The extents of rows are given at launch: a new one may trace again and compiles no kernel.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
from torch.fx import GraphModule, Node

from rowjit.torch.backend.call import Call
from rowjit.torch.backend.partition import Group, ordered, partition
from rowjit.torch.backend.report import GraphReport, explain_backend, forget, reports
from rowjit.torch.backend.run import function_of

__all__ = ["explain_backend", "forget", "rowjit"]


def rowjit(module: GraphModule, examples: list[torch.Tensor]) -> Callable[..., object]:
    """The backend: a function of what Dynamo traced and of example inputs."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config

    compiled = aot_autograd(
        fw_compiler=functools.partial(_compiled, "forward"),
        bw_compiler=functools.partial(_compiled, "backward"),
        inference_compiler=functools.partial(_compiled, "inference"),
        partition_fn=min_cut_rematerialization_partition,
    )
    # What is recomputed is fused with what reads it. Sums of residual branches stay: recomputing one takes all before it.
    with config.patch(
        ban_recompute_long_fusible_chains=False,
        ban_recompute_materialized_backward=False,
    ):
        return compiled(module, examples)


def _compiled(kind: str, module: GraphModule, _: list[torch.Tensor]) -> Callable[[list], object]:
    report = GraphReport(kind)
    reports.append(report)
    return function_of(rewritten(module, report), module)


def rewritten(module: GraphModule, report: GraphReport) -> torch.fx.Graph:
    """The graph with a call in place of each region."""
    found = partition(module.graph)
    for node, reason in found.left.items():
        report.leave(node, reason)
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for unit in ordered(module.graph, found):
        if isinstance(unit, Group):
            call = Call(unit, found, f"region{len(report.regions)}")
            report.regions.append(call)
            results = graph.call_function(call, tuple(copies[node] for node in call.arguments()))
            for i, node in enumerate(call.results):
                copies[node] = graph.call_function(operator.getitem, (results, i))
                copies[node].meta = dict(node.meta)
        elif unit.op != "output" and unit in found.through and not _is_read(unit, found):
            continue
        else:
            copies[unit] = graph.node_copy(unit, copies.__getitem__)
    return graph


def _is_read(node: Node, found: object) -> bool:
    """Whether anything but regions reads what they see through."""
    members = {member for group in found.groups for member in group.members}
    return any(user not in members and (user not in found.through or _is_read(user, found)) for user in node.users)
