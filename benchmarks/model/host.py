#!/usr/bin/env python3
"""What a call of rms_norm costs the host, forward and with its backward: eager, torch's own, Liger-Kernel, rowjit.

    PYTHONPATH=build/release/python benchmarks/model/host.py --output host.json

The rows are so few that the device waits for the host; a contender that does not import is left out. "nothing" computes
nothing, in a node of autograd written in Python: what is above it is the operation's.
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


def contenders():
    found = {"eager": eager, "torch": aten, "nothing": Nothing.apply}
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        found["liger"] = lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)
    except ImportError as error:
        print(f"liger is left out: {error}")
    import rowjit.torch

    found["rowjit"] = lambda x, weight: rowjit.torch.rms_norm(x, weight, eps=EPS)
    return found


def host_us(call, calls, device):
    """Of one call: the median of five runs, each begun on an idle device."""

    def run(count):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count * 1e6

    run(20)
    return round(statistics.median(run(calls) for _ in range(5)), 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=300, help="in a run; few enough that the launch queue never fills")
    parser.add_argument("--output", help="the document, as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    x = torch.randn(options.rows, options.columns, device=device, dtype=torch.bfloat16)
    weight = torch.randn(options.columns, device=device, dtype=torch.bfloat16)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    cotangent = torch.randn_like(x)
    rows = []
    for name, function in contenders().items():

        def both(function=function):
            torch.autograd.grad(function(*leaves), leaves, cotangent)

        def forward(function=function):
            function(x, weight)

        row = {"contender": name, "forward_us": host_us(forward, options.calls, device)}
        row["forward_backward_us"] = host_us(both, options.calls, device)
        rows.append(row)
        print(f"{name:8}  forward {row['forward_us']:8.2f} us   forward and backward {row['forward_backward_us']:8.2f} us", flush=True)
    if options.output:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        found = {"device": name, "torch": torch.__version__, "settings": vars(options), "results": rows}
        pathlib.Path(options.output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
