"""A gated MLP, down(act(gate(x))·up(x)), as one node of autograd, which keeps x and the products gate and up alone.

Its backward makes the activation again in the kernel that makes both gradients, over the memory of what it reads: beside
the products it takes as much as one of them. Matrix products are ATen's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from rowjit._core import Graph, Program
from rowjit.calls import Call
from rowjit.programs import Argument, Builder
from rowjit.registry import Shape
from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.call import are_transforms_active, first_derivative
from rowjit.torch.framework import TorchFramework

Tensor = torch.Tensor
_USUAL = (Tensor, torch.nn.Parameter)
_ROWS = Shape(0, (), ("",))


class _ActivationAndGradients:
    """y, d_gate and d_up of an operation on gate and up, over d_y, gate and up. See rowjit.programs.Computation."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.names = ("gate", "up", "d_y")
        self.shapes = (_ROWS,) * 3
        self.tables = (False,) * 3

    def body(self, arguments: Sequence[Argument | None]) -> str:
        graph = Graph.parse(self.call.text(arguments[:2]), "rowjit")
        joint = graph.gradient(("gate", "up"), ("y",), ("gate", "up"), True, False).text().splitlines()
        declared = next(i for i, line in enumerate(joint) if line.startswith("input d_y"))
        return "\n".join("output y alias(d_y)" if line == "output y" else line for line in joint[declared + 1 :]) + "\n"


@functools.cache
def _program(operation: str, **options: object) -> Program:
    op = F.OPS.get(operation)
    if op is None or [operand.names[0] for operand in op.operation.operands] != ["gate", "up"]:
        raise ValueError(f"{operation!r} is no operation on gate and up, as swiglu, geglu and reglu are")
    _, values = F.arguments_of(op)(None, None, **options)
    return Builder(_ActivationAndGradients(op.call(op.choice(values), values)), TorchFramework()).program()


class _Kept(torch.autograd.Function):
    """Keeps what the backward reads, and is the backward. Its result stands for the MLP's, and has no memory.

    Two nodes, since checkpointing ends its second forward where all is kept that was: before the activation and the
    product behind it, which this node leaves to the next.
    """

    @staticmethod
    def forward(ctx, program: Program, shared: list, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:  # noqa: ANN001
        products = [torch.nn.functional.linear(x, weight) for weight in (gate, up)]
        ctx.program = program
        ctx.save_for_backward(x, gate, up, down, *products)
        shared += products
        return x.new_empty(()).expand(*x.shape[:-1], down.shape[0])

    @staticmethod
    @first_derivative
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN001
        x, gate, up, down, *products = ctx.saved_tensors
        of_x, of_gate, of_up, of_down = ctx.needs_input_grad[2:]
        d_out = d_out.reshape(-1, d_out.shape[-1])
        x_rows = x.reshape(-1, x.shape[-1])
        # The products are this node's own: nobody else reads them, unless the backward is to run again.
        again = torch._C._autograd._get_current_graph_task_keep_graph()
        gated, raised = (each.clone() if again else each for each in products)
        activated, d_gated, d_raised = _flat(ctx.program.run((), gated, raised, (d_out @ down).view(gated.shape)))
        d_down = d_out.t() @ activated if of_down else None
        del activated
        d_gate = d_gated.t() @ x_rows if of_gate else None
        d_up = d_raised.t() @ x_rows if of_up else None
        d_x = (d_gated @ gate).addmm_(d_raised, up).view(x.shape) if of_x else None
        return None, None, d_x, d_gate, d_up, d_down


def _flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.view(-1, tensor.shape[-1]) for tensor in tensors]


class _Computed(torch.autograd.Function):
    """The MLP's result, whose gradient is that of what stands for it."""

    @staticmethod
    def forward(ctx, _: Tensor, compute: Callable[[], Tensor]) -> Tensor:  # noqa: ANN001
        return compute()

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor, None]:  # noqa: ANN001
        return d_out, None


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, operation: str = "swiglu", **options: object) -> Tensor:
    """down·(act(gate·x)·up·x), of weights as torch.nn.Linear has them.

    Args:
        x: (..., hidden)
        gate, up: (intermediate, hidden)
        down: (out, intermediate)
        operation: swiglu, geglu or reglu; its options follow by keyword

    What is compiled or transformed by torch.func, and fake and meta tensors, are given its operations one by one. A second derivative is refused.
    """
    linear = torch.nn.functional.linear
    composed = torch.compiler.is_compiling() or are_transforms_active()
    if composed or not all(type(each) in _USUAL and not each.is_meta for each in (x, gate, up, down)):
        return linear(getattr(F, operation)(linear(x, gate), linear(x, up), **options), down)
    program = _program(operation, **options)
    shared: list[Tensor] = []

    def compute() -> Tensor:
        return linear(getattr(F, operation)(*shared, **options), down)

    stands = _Kept.apply(program, shared, x, gate, up, down)
    result = _Computed.apply(stands, compute)
    shared.clear()
    return result
