"""Two processes on the CPU, each with half of every parameter and of the batch: steps are those of one process."""

import traceback

import pytest
import torch

transformers = pytest.importorskip("transformers")
if not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

import torch.multiprocessing as processes  # noqa: E402

import rowjit.transformers  # noqa: E402
from rowjit.torch.optim import AdamW  # noqa: E402

WORLD = 2
IDS = torch.randint(3, 61, (3, 2 * WORLD, 9), generator=torch.Generator().manual_seed(0))


def make(**switches):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        vocab_size=61, use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    if switches:
        rowjit.transformers.apply(model, **switches)
    return model


def train(model, batches, kind=None):
    # AdamW's eps is large, since it divides gradients that are nearly zero by themselves.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if kind is None else kind(model.parameters(), lr=0.01, eps=1e-3)
    losses = []
    for ids in batches:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


HOW = ("sharded", "kept", "checkpointed", "copies", "optimizer")


def divided(how):
    from torch.distributed.fsdp import fully_shard

    model = make(recompute=True)
    if how == "checkpointed":
        model.gradient_checkpointing_enable()
    if how == "copies":
        return torch.nn.parallel.DistributedDataParallel(model)
    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=how != "kept")
    return fully_shard(model)


def run(rank, folder):
    """A process: it leaves losses and parameters, or what went wrong."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    found = {}
    for how in HOW:
        try:
            model = divided(how)
            losses = train(model, IDS[:, 2 * rank : 2 * rank + 2], AdamW if how == "optimizer" else None)
            found[how] = losses, [getattr(each, "full_tensor", lambda each=each: each)().detach() for each in model.parameters()]
        except Exception:  # noqa: BLE001, PERF203: the parent reports it
            found[how] = traceback.format_exc()
            break
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("processes"))
    processes.spawn(run, (folder,), nprocs=WORLD)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("how", HOW)
def test_steps_of_a_divided_model_are_those_of_a_whole_one(how, found):
    for each in found:
        assert how in each and not isinstance(each[how], str), each
    (losses, parameters), (others, same) = (each[how] for each in found)
    whole = make()
    torch.testing.assert_close((losses + others) / 2, train(whole, IDS, torch.optim.AdamW if how == "optimizer" else None))
    for of_first, of_second, expected in zip(parameters, same, whole.parameters(), strict=True):
        assert torch.equal(of_first, of_second)
        torch.testing.assert_close(of_first, expected.detach(), rtol=1e-3, atol=1e-5)
