#!/usr/bin/env python3
"""A head whose vocabulary several GPUs share: the cross-entropy of its logits and the gradients, in one process a GPU.

    PYTHONPATH=build/release/python benchmarks/model/vocab_parallel.py --gpus 4 --output vocab_parallel.json

Beside `rowjit.torch.distributed.vocab_parallel_linear_cross_entropy` stands what is written without it: this rank's logits,
an all-reduce of the greatest and of the sum of exponentials, autograd's backward, an all-reduce of the hidden states'
gradient. The loss and both gradients are compared with those of the whole vocabulary in f64, of the first `--checked` tokens.
With `--device cpu` the ranks are processes of this machine, and there is no peak memory.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

MIB = 2**20


class _Sum(torch.autograd.Function):
    """The sum over ranks forward; the gradient of each rank's term is the sum's."""

    @staticmethod
    def forward(ctx, part):
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _Shared(torch.autograd.Function):
    """The same on all ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


def eager(hidden, weight, target, first):
    logits = torch.nn.functional.linear(_Shared.apply(hidden), weight).float()
    greatest = logits.detach().amax(-1)
    dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
    log_sum = _Sum.apply((logits - greatest[:, None]).exp().sum(-1)).log() + greatest
    own = (target >= first) & (target < first + weight.shape[0])
    at = logits.gather(-1, (target - first).clamp(0, weight.shape[0] - 1)[:, None])[:, 0]
    return (log_sum - _Sum.apply(torch.where(own, at, 0.0))).mean()


def rowjit(hidden, weight, target, first):
    from rowjit.torch.distributed import vocab_parallel_linear_cross_entropy

    return vocab_parallel_linear_cross_entropy(hidden, weight, target)


CONTENDERS = {"rowjit": rowjit, "eager": eager}


def step_of(contender, tensors, first):
    hidden, weight, target = tensors
    leaves = [each.detach().requires_grad_() for each in (hidden, weight)]
    loss = CONTENDERS[contender](*leaves, target, first)
    loss.backward()
    return loss.detach(), *(leaf.grad for leaf in leaves)


def time_of(contender, tensors, first, runs):
    """Milliseconds of a step, the median, and MiB above what stood before it."""
    on_gpu = tensors[0].is_cuda
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    step_of(contender, tensors, first)
    wait()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(runs):
        dist.barrier()
        wait()
        begin = time.perf_counter()
        step_of(contender, tensors, first)
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
    return statistics.median(times), peak / MIB


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def errors_of(contender, tensors, first):
    """The loss' and the gradients' distance from f64, over the largest of what they are."""
    found = step_of(contender, tensors, first)
    hidden, weight, target = tensors
    leaves = [each.double().requires_grad_() for each in (hidden, gathered(weight))]
    exact = torch.nn.functional.cross_entropy(torch.nn.functional.linear(*leaves), target)
    exact.backward()
    own = leaves[1].grad[first : first + weight.shape[0]]
    return [
        ((mine.double() - reference).abs().max() / reference.abs().max()).item()
        for mine, reference in zip(found, (exact.detach(), leaves[0].grad, own), strict=True)
    ]


def release(device):
    if device == "cuda":
        torch.cuda.empty_cache()


def work(rank, options, meeting, output):
    device = options.device
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=options.gpus)
    results = []
    for shape in options.shapes:
        tokens, width, vocabulary = (int(extent) for extent in shape.split("x"))
        columns = vocabulary // options.gpus
        generator = torch.Generator(device).manual_seed(0)
        hidden = torch.randn(tokens, width, device=device, dtype=torch.bfloat16, generator=generator)
        target = torch.randint(0, columns * options.gpus, (tokens,), device=device, generator=generator)
        generator.manual_seed(1 + rank)
        weight = torch.randn(columns, width, device=device, dtype=torch.bfloat16, generator=generator) / width**0.5
        tensors = (hidden, weight, target)
        few = (hidden[: options.checked], weight, target[: options.checked])
        for contender in options.contenders:
            errors = errors_of(contender, few, rank * columns)
            release(device)
            ms, mib = time_of(contender, tensors, rank * columns, options.runs)
            release(device)
            worst = torch.tensor([ms, mib, *errors], device=device)
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            names = ("ms", "peak_mib", "loss_error", "d_hidden_error", "d_weight_error")
            results.append({"shape": shape, "contender": contender, **dict(zip(names, worst.tolist(), strict=True))})
            if rank == 0:
                print(json.dumps(results[-1]), flush=True)
    if rank == 0:
        output.write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=max(torch.cuda.device_count(), 2), help="ranks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shapes", nargs="+", default=["8192x4096x128256", "16384x2048x151936"], help="TOKENSxHIDDENxVOCABULARY")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--checked", type=int, default=512)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "results.json"
        arguments = (options, os.path.join(folder, "meeting"), output)
        torch.multiprocessing.spawn(work, arguments, nprocs=options.gpus)
        document = {
            "command": f"benchmarks/model/vocab_parallel.py --gpus {options.gpus} --shapes {' '.join(options.shapes)}",
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "versions": {"torch": torch.__version__},
            "results": json.loads(output.read_text()),
        }
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
