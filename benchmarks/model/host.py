#!/usr/bin/env python3
"""What a call of rms_norm costs the host, forward and with its backward: eager, torch's own, Liger-Kernel, rowjit.

    PYTHONPATH=build/release/python benchmarks/model/host.py --output host.json

The rows are so few that the device waits for the host; a contender that does not import is left out. Two compute nothing:
"view", in a node of torch's own, and "nothing", in a node of autograd written in Python: what is above them is the operation's.
Of every contender the fewest of many short runs, in turn, and their median: other programs only ever add.
"""

import argparse
import json
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


def view(x, _):
    return x.view_as(x)


def contenders(python_node):
    found = {"eager": eager, "torch": aten, "view": view, "nothing": Nothing.apply}
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        found["liger"] = lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)
    except ImportError as error:
        print(f"liger is left out: {error}")
    import rowjit.torch
    from rowjit.torch import native

    native.enabled = not python_node
    found["rowjit"] = lambda x, weight: rowjit.torch.rms_norm(x, weight, eps=EPS)
    return found


def host_us(calls, options, device):
    """Of each call: the fewest and the median of runs that begin on an idle device."""

    def run(call):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(options.calls):
            call()
        return (time.perf_counter() - start) / options.calls * 1e6

    found = [[] for _ in calls]
    for _ in range(1 + options.runs):
        for runs, call in zip(found, calls, strict=True):
            runs.append(run(call))
    return [(round(min(runs[1:]), 2), round(statistics.median(runs[1:]), 2)) for runs in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=100, help="in a run; few enough that the launch queue never fills")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--python-node", action="store_true", help="rowjit's node of autograd in Python, not in C++")
    parser.add_argument("--output", help="the document, as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    x = torch.randn(options.rows, options.columns, device=device, dtype=torch.bfloat16)
    weight = torch.randn(options.columns, device=device, dtype=torch.bfloat16)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    cotangent = torch.randn_like(x)
    names, calls = [], []
    for name, function in contenders(options.python_node).items():

        def both(function=function):
            torch.autograd.grad(function(*leaves), leaves, cotangent, allow_unused=True)

        def forward(function=function):
            function(x, weight)

        names.append(name)
        calls += [forward, both]
    measured = iter(host_us(calls, options, device))
    rows = []
    for name, of_forward, of_both in zip(names, measured, measured, strict=True):
        row = {"contender": name}
        for what, (fewest, median) in (("forward", of_forward), ("forward_backward", of_both)):
            row |= {f"{what}_us": fewest, f"{what}_median_us": median}
        rows.append(row)
        texts = [f"{text} {row[what + '_us']:7.2f} us (median {row[what + '_median_us']:7.2f})"
                 for text, what in (("forward", "forward"), ("and backward", "forward_backward"))]  # fmt: skip
        print(f"{name:8}", *texts, sep="   ", flush=True)
    if options.output:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        found = {"device": name, "torch": torch.__version__, "settings": vars(options), "results": rows}
        pathlib.Path(options.output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
