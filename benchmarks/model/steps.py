#!/usr/bin/env python3
"""Training steps of a model of a real configuration with random weights: eager, torch.compile, Liger-Kernel, rowjit.

    PYTHONPATH=build/release/python benchmarks/model/steps.py --config examples/models/llama-3-8b.json \
        --batch 8 --sequence 2048 --checkpointing full --contenders eager,liger,apply --output steps.json

Every contender starts from the same weights, takes the same batches and runs in a process of its own, so that one that
runs out of memory takes no other with it. A line a contender; the document has the loss of every step too. On a CPU
there is no peak memory.
"""

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import memory
import torch

GIB = 2**30


def plain(model):
    return model


def compiled(model):
    return torch.compile(model)


def liger(model):
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=model)
    return model


def rowjit_apply(model, **switches):
    import rowjit.transformers

    print(rowjit.transformers.apply(model, **switches), file=sys.stderr)
    return model


def rowjit_backend(model):
    import rowjit.torch  # noqa: F401: registers the backend

    return torch.compile(model, backend="rowjit")


def rowjit_both(model):
    return rowjit_backend(rowjit_apply(model))


def layers_compiled(model, backend):
    """Layer by layer: one is traced for all, and attention has the mask that eager gives it."""
    for module in model.modules():
        if type(module).__name__.endswith("DecoderLayer"):
            module.compile(backend=backend)
    return model


def compiled_layers(model):
    return layers_compiled(model, "inductor")


def rowjit_layers(model):
    """The layers by the backend, the head and the loss by `apply`."""
    import rowjit.transformers

    rowjit.transformers.apply(model, rms_norm=False, residual=False, rope=False, gated_mlp=False)
    return layers_compiled(model, "rowjit")


CONTENDERS = {
    "eager": plain,
    "compile": compiled,
    "liger": liger,
    "apply": rowjit_apply,
    "apply-keeping": functools.partial(rowjit_apply, recompute=False),  # of norms and activations what the backward reads
    "apply-low": functools.partial(rowjit_apply, head_memory="low"),  # no f32 accumulator of the head's gradient
    "apply-offload": functools.partial(rowjit_apply, offload=2),  # what the first two layers keep waits in host memory
    "apply-every": functools.partial(rowjit_apply, keep_last=False),  # checkpoints the last layer too
    "backend": rowjit_backend,
    "apply-backend": rowjit_both,
    "compile-layers": compiled_layers,
    "backend-layers": rowjit_layers,
}


def make_model(options, device):
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = json.loads(pathlib.Path(options.config).read_text())
    for ours in ("architectures", "torch_dtype"):
        fields.pop(ours, None)
    if options.layers:
        fields["num_hidden_layers"] = options.layers
        if "layer_types" in fields:
            fields["layer_types"] = fields["layer_types"][: options.layers]
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # attention as the model has it: sdpa, but Gemma 2
    model = model.to(dtype).train()
    if options.checkpointing != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.checkpointing.isdecimal():
        # The first, which are computed again when the others' memory is free.
        layers = [module for module in model.modules() if type(module).__name__.endswith("DecoderLayer")]
        for layer in layers[int(options.checkpointing) :]:
            layer.gradient_checkpointing = False
    return model, config


def batches(options, config, device):
    """Random tokens, in turn the same few batches, so that the loss falls."""
    generator = torch.Generator().manual_seed(1)
    shape = (options.batches, options.batch, options.sequence)
    ids = torch.randint(0, config.vocab_size, shape, generator=generator).to(device)
    return [{"input_ids": batch, "labels": batch} for batch in ids]


def optimizer_of(options, model):
    if options.optimizer == "none":
        return None
    if options.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=options.learning_rate, foreach=True)
    if options.optimizer == "rowjit-adamw":
        from rowjit.torch.optim import AdamW

        return AdamW(model.parameters(), lr=options.learning_rate)
    return torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=True)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rowjit_statistics(device):
    """What rowjit has compiled so far, where the contender is rowjit's."""
    if "rowjit" not in sys.modules:
        return {}
    return sys.modules["rowjit"].statistics("cpu" if device.type == "cpu" else f"cuda:{device.index or 0}")


def device_of(options):
    """The process's own; of several processes each has one of the GPUs."""
    device = torch.device(options.device)
    if options.gpus == 1:
        return device
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cpu":
        return device
    device = torch.device("cuda", torch.distributed.get_rank())
    torch.cuda.set_device(device)
    return device


def sharded(model):
    """By FSDP2, layer by layer."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if type(module).__name__.endswith("DecoderLayer"):
            fully_shard(module)
    return fully_shard(model)


def measure(name, options):
    """The contender's row of the document."""
    device = device_of(options)
    row = {"contender": name}
    model, config = make_model(options, device)
    data = batches(options, config, device)
    model = CONTENDERS[name](model)
    if options.gpus > 1:
        model = sharded(model)
    optimizer = optimizer_of(options, model)
    losses, seconds = [], []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for step in range(options.warmup + options.steps):
        if step == options.warmup and device.type == "cuda":
            row["warmup_peak_gib"] = round(torch.cuda.max_memory_allocated(device) / GIB, 2)
            torch.cuda.reset_peak_memory_stats(device)
        synchronize(device)
        start = time.perf_counter()
        loss = model(**data[step % len(data)]).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        losses.append(loss.detach())
        del loss
        if step == 0:
            compiled_first = rowjit_statistics(device).get("compiled", 0)
    timed = seconds[options.warmup :]
    tokens = options.batch * options.sequence * options.gpus
    row |= {
        "step_s": round(statistics.median(timed), 5),
        "steps_s": [round(each, 5) for each in timed],
        "first_step_s": round(seconds[0], 3),
        "tokens_per_s": round(tokens / statistics.median(timed), 1),
        "losses": [round(loss.item(), 5) for loss in losses],
    }
    if device.type == "cuda":
        row["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / GIB, 2)
        row["reserved_gib"] = round(torch.cuda.max_memory_reserved(device) / GIB, 2)
    if made := rowjit_statistics(device):
        row["rowjit"] = {key: made[key] for key in ("compiled", "disk_hits", "compile_ms") if key in made}
        row["rowjit"]["compiled_after_first_step"] = made["compiled"] - compiled_first
    if options.memory:
        row["memory"] = memory.of_a_step(model, data[0])
    return row


def measure_apart(name, options):
    """The same in a process of its own, or one for every GPU; what the first says last where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "row.json"
        command = [sys.executable, "-B", __file__, *sys.argv[1:], "--one", name, "--output", str(output)]
        common = os.environ | {"WORLD_SIZE": str(options.gpus), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        processes = [
            subprocess.Popen(
                command, env=common | {"RANK": str(rank)}, text=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(options.gpus)
        ]  # fmt: skip
        try:
            _, errors = processes[0].communicate(timeout=options.timeout)
            if output.exists():
                return json.loads(output.read_text())
            said = errors.strip().splitlines() or ["nothing was said"]
            return {"contender": name, "failed": said[-1][:500], "returncode": processes[0].returncode, "said": said[-12:]}
        except subprocess.TimeoutExpired:
            return {"contender": name, "failed": f"took more than {options.timeout} seconds"}
        finally:
            for process in processes:
                process.kill()
                process.wait()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def document(options, rows):
    cuda = torch.device(options.device).type == "cuda"
    return {
        "date": datetime.date.today().isoformat(),
        "command": sys.argv,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {package: version(package) for package in ("torch", "transformers", "liger_kernel", "triton")},
        "settings": {key: value for key, value in vars(options).items() if key not in ("one", "output")},
        "results": rows,
    }


def described(row, eager):
    if "failed" in row:
        return f"{row['contender']:14} failed: {row['failed']}"
    ratio = f"  {eager / row['step_s']:.3f} x eager" if eager else ""
    memory = f"  {row['peak_gib']:.1f} GiB" if "peak_gib" in row else ""
    times = f"{row['step_s'] * 1e3:9.1f} ms  {row['tokens_per_s']:9.0f} tokens/s"
    return f"{row['contender']:14}{times}{memory}{ratio}  first {row['first_step_s']:.1f} s  loss {row['losses'][-1]:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a Hugging Face config.json")
    parser.add_argument("--contenders", default="eager,compile,liger,apply,backend", help=", ".join(CONTENDERS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--gpus", type=int, default=1, help="processes, each with its batch and its part of every parameter (FSDP2)")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the configuration's")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--checkpointing", default="none", help="none, full, or how many of the first layers")
    parser.add_argument("--optimizer", choices=("none", "sgd", "adamw", "rowjit-adamw"), default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--batches", type=int, default=2, help="different ones, used in turn")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--memory", action="store_true", help="where memory is, by operation, in a further step")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for a contender")
    parser.add_argument("--same-process", action="store_true", help="no process for each: for a quick look")
    parser.add_argument("--output", help="the document, as JSON")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.checkpointing not in ("none", "full") and not options.checkpointing.isdecimal():
        parser.error(f"--checkpointing is none, full or a number, not {options.checkpointing}")
    if options.same_process and options.gpus > 1:
        parser.error("several GPUs have a process each: leave --same-process out")
    if options.one:
        row = json.dumps(measure(options.one, options))
        if options.gpus == 1 or torch.distributed.get_rank() == 0:
            pathlib.Path(options.output).write_text(row)
        return
    rows, eager = [], 0.0
    for name in options.contenders.split(","):
        if name not in CONTENDERS:
            parser.error(f"there is no contender {name}; there are {', '.join(CONTENDERS)}")
        row = measure(name, options) if options.same_process else measure_apart(name, options)
        rows.append(row)
        eager = row.get("step_s", 0.0) if name == "eager" else eager
        print(described(row, eager), flush=True)
        if options.output:
            pathlib.Path(options.output).write_text(json.dumps(document(options, rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
