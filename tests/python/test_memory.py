"""What a model keeps between its forward and its backward, in bytes of memory that is alive: the least from which the
backward needs no matrix product of the forward again."""

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers")

import rowjit.transformers  # noqa: E402

HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS, WIDTH, LAYERS = 128, 448, 8, 2, 16, 4
TOKENS = torch.randint(0, 64, (2, 32), generator=torch.Generator().manual_seed(0))


class Made(TorchDispatchMode):
    """The memory that is allocated while it is entered."""

    def __init__(self, model):
        super().__init__()
        self.others = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        self.made = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        results = function(*arguments, **(named or {}))
        for tensor in torch.utils._pytree.tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.others:
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes())
        return results

    def alive_bytes(self):
        return sum(size for storage, size in self.made.values() if not storage.expired())


def make(layers=LAYERS, **switches):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, head_dim=WIDTH, vocab_size=64, use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if switches:
        rowjit.transformers.apply(model, **switches)
    return model.train()


def kept_bytes(layers, switches):
    """After a forward, by all its layers and its head."""
    model = make(layers, **switches)
    with Made(model) as made:
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
    bytes_kept = made.alive_bytes()
    del loss
    return bytes_kept


def of_a_layer(switches):
    """Elements of bf16 per token and layer."""
    return (kept_bytes(3, switches) - kept_bytes(2, switches)) / 2 / TOKENS.numel()


QUERIES, KEYS, LOGSUMEXP = HEADS * WIDTH, KEY_HEADS * WIDTH, 2 * HEADS
ROW_STATISTICS = 2 * 2  # of two norms, one f32 each
LEAST = 2 * HIDDEN + QUERIES + 2 * KEYS + QUERIES + LOGSUMEXP + 2 * INTERMEDIATE


def test_a_layer_keeps_its_sums_queries_keys_values_attention_gate_and_up():
    assert of_a_layer({"recompute": True}) == LEAST + ROW_STATISTICS
    assert of_a_layer({"recompute": False}) == LEAST + ROW_STATISTICS + 2 * HIDDEN + INTERMEDIATE
    assert of_a_layer({}) > 2 * LEAST


@pytest.mark.parametrize("recompute", [True, False])
def test_a_backward_releases_all_that_it_read(recompute):
    model = make(recompute=recompute)
    gc.collect()
    gc.disable()
    try:
        with Made(model) as made:
            loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        del loss
        model.zero_grad()
        left = made.alive_bytes()
    finally:
        gc.enable()
    assert left < TOKENS.numel() * HIDDEN  # tables of the rotary embedding, and the like


MANY = TOKENS.repeat(1, 16)  # so that activations are larger than the gradients of weights


def peak_of_a_step(switches, layers=1):
    """With every layer checkpointed."""
    model = make(layers, **switches)
    model.gradient_checkpointing_enable()
    with Made(model) as made:
        model(input_ids=MANY, labels=MANY).loss.backward()
    return made.peak_bytes


def test_gradients_of_gate_and_up_take_no_memory_of_their_own():
    # As operations by themselves: gate, up and the gradients of both and of what they make. As a node: three of those.
    product = 2 * MANY.numel() * INTERMEDIATE
    assert peak_of_a_step({"recompute": False}) - peak_of_a_step({"recompute": True}) >= 1.8 * product


@pytest.mark.parametrize("memory", ["usual", "low"])
def test_the_last_layer_of_a_checkpointed_stack_is_kept_within_the_same_peak(memory):
    peaks = [peak_of_a_step({"keep_last": keep_last, "head_memory": memory}, LAYERS) for keep_last in (False, True)]
    assert peaks[0] == peaks[1]
