#!/usr/bin/env python3
"""Times losses of a head's logits with their gradients, ours beside Liger-Kernel's fused linear classes and the products
alone, all in one process and in turn, and keeps what was found as JSON.

    linear_losses.py --library build/release/lib/librowjit_c.so --output FILE.json [--losses dpo,orpo] …

The products alone are torch's, bf16, of all tokens at once: logits of each head, the hidden states' gradient and the
weight's. linear_bench has those with f32 sums, in chunks of several sizes.
"""

import argparse
import dataclasses
import importlib
import pathlib
import re
import sys
import types
import typing

import torch

import kernel
import peers
import rowjit_c

LENGTH = 1024


@dataclasses.dataclass
class Loss:
    op: str
    liger: typing.Callable           # of the function's apply, hidden and weight that ask for gradients, and the inputs
    function: str                    # in liger_kernel.chunked_loss
    options: dict = dataclasses.field(default_factory=dict)
    other: str = ""                  # the inputs of a second head: "reference", "teacher"
    tokens_of_row: int = 1


def of_pairs(apply, hidden, weight, i, *more):
    """Both halves of the pairs one after the other."""
    return apply(hidden.flatten(0, 1), weight, i["target"].flatten(0, 1), None, *more)


LOSSES = {
    "dpo": Loss("fused_linear_dpo", lambda apply, h, w, i: of_pairs(
        apply, h, w, i, i["reference_hidden"].flatten(0, 1), i["reference_weight"]),
        "LigerFusedLinearDPOFunction", other="reference", tokens_of_row=2 * LENGTH),
    "orpo": Loss("fused_linear_orpo", lambda apply, h, w, i: of_pairs(apply, h, w, i, -100, 0.1, False),
                 "LigerFusedLinearORPOFunction", tokens_of_row=2 * LENGTH),
    "simpo": Loss("fused_linear_cpo", of_pairs, "LigerFusedLinearSimPOFunction", {"loss": "simpo"},
                  tokens_of_row=2 * LENGTH),
    "kto": Loss("fused_linear_kto", lambda apply, h, w, i: apply(
        h, w, i["target"], i["desirable"], None, i["reference_hidden"], i["reference_weight"]),
        "LigerFusedLinearKTOFunction", other="reference", tokens_of_row=LENGTH),
    "grpo": Loss("fused_linear_policy_loss", lambda apply, h, w, i: apply(
        h, w, i["target"], torch.ones_like(i["target"]), i["advantage"], None, None, i["old"], i["reference_hidden"],
        i["reference_weight"], None, 0.04, 0.2, 0.2, "grpo"),
        "LigerFusedLinearGRPOFunction", other="reference", tokens_of_row=LENGTH),
    "jsd": Loss("fused_linear_jsd", lambda apply, h, w, i: apply(
        h, w, i["teacher_hidden"], i["teacher_weight"], i["labels"], None, None, 0.0, 1.0),
        "LigerFusedLinearJSDFunction", other="teacher"),
}


class Inputs:
    """One set, which nobody writes into; in the shape of peers.Sets."""

    def __init__(self, graph, rows, vocabulary, device):
        generator = torch.Generator(device=device).manual_seed(1)
        self.inputs = {}
        for info in graph.tensors:
            if info.is_output:
                continue
            name, dtype = info.name.decode(), kernel.DTYPES[info.dtype]
            shape = graph.shape(name, rows)
            if not dtype.is_floating_point:
                drawn = torch.randint(0, 2 if dtype == torch.bool else vocabulary, shape, device=device,
                                      generator=generator)
            else:
                drawn = torch.randn(shape, dtype=torch.float32 if dtype != torch.bfloat16 else dtype, device=device,
                                    generator=generator) * (0.02 if name.endswith("weight") else 0.5)
            self.inputs[name] = drawn.to(dtype)
        tokens = self.inputs["hidden"].shape[:-1].numel()
        self.inputs["labels"] = torch.randint(0, vocabulary, (tokens,), device=device, generator=generator)

    def pristine(self, _):
        return self.inputs, {}


class Ours:
    writes = False

    def __init__(self, compiled):
        self.kernel = compiled

    def both(self, inputs, _):
        return self.kernel(inputs)


class Liger:
    writes = False

    def __init__(self, loss):
        self.call = loss.liger
        self.apply = getattr(importlib.import_module("liger_kernel.chunked_loss.functional"), loss.function).apply

    def both(self, inputs, _):
        hidden, weight = (inputs[name].detach().requires_grad_() for name in ("hidden", "weight"))
        result = self.call(self.apply, hidden, weight, inputs)
        (result[0] if isinstance(result, tuple) else result).backward()
        return hidden.grad, weight.grad


class Products:
    writes = False

    def __init__(self, other):
        self.other = other

    def both(self, inputs, _):
        hidden = inputs["hidden"].flatten(0, -2)
        if self.other:
            inputs[f"{self.other}_hidden"].flatten(0, -2) @ inputs[f"{self.other}_weight"].T
        logits = hidden @ inputs["weight"].T
        return logits @ inputs["weight"], logits.T @ hidden


WAYS = {"ours": {}, "ours, rounded each chunk": {"round_each_chunk": 1}, "ours, low memory": {"low_memory": 1}}


def measure(run, name, shape, options):
    loss, (tokens, hidden, vocabulary) = LOSSES[name], shape
    if tokens % loss.tokens_of_row:
        raise ValueError(f"{name} has rows of {loss.tokens_of_row} tokens")
    rows = tokens // loss.tokens_of_row
    given = dict(loss.options, hidden=hidden)
    if loss.other:
        given[f"{loss.other}_width"] = hidden
    if loss.tokens_of_row > 1:
        given["length"] = LENGTH
    graph = run.library.op(loss.op, vocabulary, "bf16", given).one_pass(["hidden", "weight"], [])
    inputs = Inputs(graph, rows, vocabulary, options.device)
    contenders = {way: Ours(kernel.Kernel(run.engine, graph, rows, options.device, **chunks))
                  for way, chunks in WAYS.items()}
    contenders["products"] = Products(loss.other)
    row = {"name": f"{name} {tokens}x{hidden}x{vocabulary}", "products": 4 if loss.other else 3, "failures": {}}
    try:
        contenders["liger"] = Liger(loss)
    except Exception as error:  # of the peer, of any kind: said
        row["failures"]["liger"] = peers.first_line(error)
    row["workspace_mib"] = {way: one.kernel.workspace_bytes / 2**20 for way, one in contenders.items()
                            if isinstance(one, Ours)}
    race = peers.Race(run.clock, "both", inputs, row["failures"])
    row["found"] = race.run(contenders, options.rounds, options.seconds)
    return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="librowjit_c.so")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON, written after every row")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--losses", default=",".join(LOSSES), help="with commas")
    parser.add_argument("--shape", default="16384x4096x128256", help="TOKENSxHIDDENxVOCABULARY")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="after which a loss takes no further round")
    parser.add_argument("--cache", default="", help="rowjit's cache directory")
    options = parser.parse_args()
    if not re.fullmatch(r"\d+x\d+x\d+", options.shape):
        parser.error(f"'{options.shape}' is no shape")
    if unknown := set(options.losses.split(",")) - set(LOSSES):
        parser.error(f"unknown losses: {', '.join(unknown)}; known are {', '.join(LOSSES)}")
    return options


def main():
    options = parse()
    run = peers.Run(types.SimpleNamespace(library=options.library, device=options.device, cache=options.cache,
                                          untuned=True))
    document = run.document()
    for name in options.losses.split(","):
        row = measure(run, name, tuple(map(int, options.shape.split("x"))), options)
        document["rows"].append(row)
        peers.keep(document, options.output)
        words = [f"{way} {found['ms']:.1f} ms {found.get('peak_mib', 0):.0f} MiB" for way, found in row["found"].items()]
        words += [f"{way} failed: {why}" for way, why in row["failures"].items()]
        print(f"{row['name']}: {'; '.join(words)}", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
