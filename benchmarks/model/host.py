#!/usr/bin/env python3
"""What a call of rms_norm costs the host, forward and with its backward: eager, torch's own, Liger-Kernel, rowjit.

    PYTHONPATH=build/release/python benchmarks/model/host.py --output host.json

The rows are so few that the device waits for the host; a contender that does not import is left out. Two compute nothing:
"alias", whose node of autograd is torch's own in C++ and gives on the gradient that it is given, and "nothing", whose node is
written in Python. What is above "alias" is the operation's: below it is autograd's, most of which is to wake the thread that
it has for the device and to wait for it. `torch.autograd.set_multithreading_enabled(False)` does without that thread, and
has a column of its own; so has `Tensor.backward`, which gives leaves their gradients.

Of every contender the fewest of many short runs, in turn, and their median: other programs only ever add. `--core` holds the
process and all its threads on one core. What rowjit's own calls are made of is at the end.
"""

import argparse
import json
import os
import pathlib
import statistics
import time

import torch

EPS = 1e-6


def eager(x, weight):
    """As transformers' modules write it."""
    h = x.float()
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def aten(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, d_y):
        _, weight = ctx.saved_tensors
        return d_y, weight


def alias(x, _):
    return torch.ops.aten.alias.default(x)


def rowjit_norm(x, weight):
    return rowjit_norm.function(x, weight, eps=EPS)


def contenders():
    """By name: the function, and what is to be done before it is measured."""
    found = {"eager": (eager, None), "torch": (aten, None), "alias": (alias, None), "nothing": (Nothing.apply, None)}
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        found["liger"] = (lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)), None
    except ImportError as error:
        print(f"liger is left out: {error}")
    import rowjit.torch
    from rowjit.torch import call, native

    rowjit_norm.function = rowjit.torch.rms_norm
    in_python = call._Differentiable.apply
    if (node := native.load(wait=True)) is not None:
        node.install(call._once)
        found["rowjit"] = rowjit_norm, lambda: setattr(call, "_apply", node.apply)
    found["rowjit, node in Python"] = rowjit_norm, lambda: setattr(call, "_apply", in_python)
    return found


def parts(x, weight, cotangent):
    """What rowjit's call consists of: the function alone, its kernels' calls, fresh memory."""
    from rowjit.torch import functional

    op = functional.OPS["rms_norm"]
    rowjit_norm(*[each.detach().requires_grad_() for each in (x, weight)])
    options = next(key for key in op.bound if EPS in key)
    bound = op.bound[options]
    program = bound.computed.training(0b11)
    pair, outputs = program.run_for_owner(bound.scalars, x, weight)
    kept = [(x, weight, *outputs)[place] for place in pair.kept]
    shape = {"dtype": x.dtype, "device": x.device}
    return {
        "the operation bound": lambda: bound(x, weight),
        "the forward's kernels": lambda: bound.forward(bound.scalars, x, weight),
        "those of a forward that saves": lambda: program.run_for_owner(bound.scalars, x, weight),
        "those of the backward": lambda: pair.backward.run(bound.scalars, *kept, cotangent),
        "torch.empty": lambda: torch.empty(*x.shape, **shape),
    }


def host_us(calls, options, device):
    """Of each (call, what is done before): the fewest and the median of runs that begin on an idle device."""

    def run(call, before):
        if before is not None:
            before()
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(options.calls):
            call()
        return (time.perf_counter() - start) / options.calls * 1e6

    found = [[] for _ in calls]
    for _ in range(1 + options.runs):
        for runs, (call, before) in zip(found, calls, strict=True):
            runs.append(run(call, before))
    return [(round(min(runs[1:]), 2), round(statistics.median(runs[1:]), 2)) for runs in found]


def ways(function, x, weight, cotangent):
    """By name: a forward, and the ways to ask for its gradients."""
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()

    def forward():
        function(x, weight)

    def graph():
        function(*leaves)

    def grad():
        torch.autograd.grad(function(*leaves), leaves, cotangent, allow_unused=True)

    def backward():
        leaves[0].grad = leaves[1].grad = None
        function(*leaves).backward(cotangent)

    return {"forward": forward, "graph": graph, "forward_backward": grad, "one_thread": grad, "tensor_backward": backward}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=100, help="in a run; few enough that the launch queue never fills")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--core", type=int, default=-1, help="the core that every thread is held on")
    parser.add_argument("--output", help="the document, as JSON")
    options = parser.parse_args()
    if options.core >= 0:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {options.core})  # threads made later have it from those that make them
    device = torch.device(options.device)
    x = torch.randn(options.rows, options.columns, device=device, dtype=torch.bfloat16)
    weight = torch.randn(options.columns, device=device, dtype=torch.bfloat16)
    cotangent = torch.randn_like(x)

    def threads(before, several):
        def prepare():
            if before is not None:
                before()
            torch.autograd.set_multithreading_enabled(several)

        return prepare

    calls = {}
    for name, (function, before) in contenders().items():
        for what, call in ways(function, x, weight, cotangent).items():
            calls[name, what] = call, threads(before, what != "one_thread")
    for name, call in parts(x, weight, cotangent).items():
        calls["parts", name] = call, None
    measured = dict(zip(calls, host_us(list(calls.values()), options, device), strict=True))
    rows = {}
    for (name, what), (fewest, median) in measured.items():
        rows.setdefault(name, {"contender": name}).update({f"{what}_us": fewest, f"{what}_median_us": median})
    own = {name: us for (kind, name), us in measured.items() if kind == "parts"}
    rows.pop("parts")
    columns = ("forward", "graph", "forward_backward", "one_thread", "tensor_backward")
    print("fewest (median) us", *columns, sep="   ")
    for name, row in rows.items():
        print(f"{name:24}", *(f"{row[what + '_us']:7.2f} ({row[what + '_median_us']:7.2f})" for what in columns), sep="  ", flush=True)
    for name, (fewest, median) in own.items():
        print(f"    {name:32} {fewest:7.2f} ({median:7.2f})")
    if options.output:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        found = {"device": name, "torch": torch.__version__, "settings": vars(options), "results": list(rows.values())}
        found["parts_us"] = {name: {"fewest": fewest, "median": median} for name, (fewest, median) in own.items()}
        pathlib.Path(options.output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
