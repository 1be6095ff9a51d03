"""Tiny models of several architectures: after `apply` a model computes what it did, forward, backward and over steps of
an optimizer, as near to the exact values as it was."""

import contextlib
import copy
import functools
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers")

from conftest import kernels_made  # noqa: E402

import rowjit.transformers  # noqa: E402
import rowjit.transformers.recompute  # noqa: E402

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
# Per architecture: norms, gated MLPs, rotary embeddings, residual adds that are replaced: in layers, and across them.
ARCHITECTURES = {
    "llama": (5, 2, 2, 2 + 1), "mistral": (5, 2, 2, 2 + 1), "qwen2": (5, 2, 2, 2 + 1), "qwen3": (9, 2, 2, 2 + 1), "gemma": (5, 2, 2, 2 + 1),
    "gemma2": (9, 2, 2, 2 + 1), "gemma3_text": (13, 2, 2, 2 + 1), "phi3": (5, 2, 2, 2 + 1), "olmo2": (9, 2, 2, 0), "granite": (5, 2, 2, 2 + 1),
    "smollm3": (5, 2, 2, 2 + 1), "glm4": (9, 2, 2, 2 + 1), "nemotron": (0, 0, 2, 0),
    # The experts are matrix products of many rows' own weights, and stay torch's; so does a rotary embedding that also reorders.
    "mixtral": (5, 0, 2, 2 + 1), "qwen3_moe": (9, 0, 2, 2 + 1), "gpt_oss": (5, 0, 2, 2 + 1), "deepseek_v3": (9, 2, 0, 2 + 1),
}
# What the sizes of these need beside.
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MORE_SIZES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": EXPERTS | {"num_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": EXPERTS | {
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4,
    },
}


def make(architecture, dtype=torch.float32, **sizes):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(architecture, **SIZES | MORE_SIZES.get(architecture, {}) | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if architecture in MORE_SIZES:
        model.set_experts_implementation("eager")  # torch's grouped products are not of f64
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def batch(rows=2, length=9):
    ids = torch.randint(3, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(rows))
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels}


def train(model, steps=3):
    """Losses, logits before the first step, and the first step's gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, gradients = [], None
    with torch.no_grad():
        logits = model(**batch(2)).logits
    for step in range(steps):
        optimizer.zero_grad()
        out = model(**batch(2 + step))
        out.loss.backward()
        losses.append(out.loss.detach().double())
        if step == 0:
            gradients = torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()])
        optimizer.step()
    return torch.stack(losses), logits, gradients


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_trains_as_it_did(architecture, dtype):
    eager = make(architecture, dtype)
    exact, ours = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    summary = rowjit.transformers.apply(ours)
    operations = dict.fromkeys(("rms_norm", "mlp", "rope_qk", "add_rms_norm"), 0)
    for what, count in summary.replaced.items():
        operation = what.split("→ ")[1]
        operations["mlp" if operation in ("swiglu", "geglu") else operation] = count + operations.get(operation, 0)
    assert tuple(operations[name] for name in ("rms_norm", "mlp", "rope_qk", "add_rms_norm")) == ARCHITECTURES[architecture]
    found, by_eager, by_exact = train(ours), train(eager), train(exact)
    # Kernels differ from torch's in the order of sums: the noise of a model is many roundings, whose sizes vary.
    unit = torch.finfo(dtype).eps
    for of_ours, of_eager, of_exact in zip(found, by_eager, by_exact, strict=True):
        scale = of_exact.double().abs().max()
        noise = (of_eager.double() - of_exact.double()).abs().max()
        assert (of_ours.double() - of_exact.double()).abs().max() <= 2 * noise + 4 * unit * scale


def test_nothing_of_a_model_but_its_classes_changes():
    model = make("llama")
    names, kinds = [name for name, _ in model.named_parameters()], [type(module).__name__ for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    layer = type(model.model.layers[0])
    rowjit.transformers.apply(model)
    assert [name for name, _ in model.named_parameters()] == names
    assert [type(module).__name__ for module in model.modules()] == kinds
    assert isinstance(model.model.layers[0], layer)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_training_model_has_a_loss_and_no_logits():
    model = make("llama")
    expected = model(**batch()).loss
    summary = rowjit.transformers.apply(model)
    assert summary.replaced["the head and the loss → fused_linear_cross_entropy"] == 1
    out = model(**batch())
    torch.testing.assert_close(out.loss, expected)
    assert out.logits is None
    assert "logits" not in out
    assert model.eval()(**batch()).logits is not None
    with torch.no_grad():
        assert model.train()(**batch()).logits is not None


@pytest.mark.parametrize(("architecture", "options"), [
    ("llama", {}), ("gemma2", {"softcap": 30.0}), ("granite", {"temperature": 2.5}), ("cohere", {"temperature": 16.0}),
])
def test_what_stands_between_head_and_loss_is_part_of_the_loss(architecture, options):
    from rowjit.transformers.recognise import recognise_head

    config = transformers.AutoConfig.for_model(architecture, **SIZES)
    if architecture == "granite":
        config.logits_scaling = 2.5
    found = recognise_head(transformers.AutoModelForCausalLM.from_config(config))
    assert found.keys() == options.keys()
    assert all(abs(found[name] / options[name] - 1) < 1e-6 for name in options)


def test_a_head_of_another_kind_is_left():
    def make_another():
        model = make("llama")
        model.lm_head = torch.nn.Sequential(model.lm_head)
        return model

    summary = rowjit.transformers.apply(make_another())
    assert summary.replaced["the loss → cross_entropy"] == 1
    assert any(what.startswith("the head") for what in summary.left)
    with pytest.raises(ValueError, match="no head"):
        rowjit.transformers.apply(make_another(), fused_linear_cross_entropy=True)


@pytest.mark.parametrize("switches", [{}, {"fused_linear_cross_entropy": False}, {"head_memory": "low"}])
def test_a_trainers_number_of_items_divides_the_loss(switches):
    eager, model = make("llama"), make("llama")
    given = batch() | {"num_items_in_batch": torch.tensor(17)}
    rowjit.transformers.apply(model, **switches)
    expected, found = eager(**given).loss, model(**given).loss
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    for ours, by_eager in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, by_eager.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recompute", [True, False])
def test_norms_and_activations_are_made_again_once_in_the_backward(recompute, monkeypatch):
    made = Counter()

    def counted(name, operation):
        def call(*operands, **options):
            made[name] += 1
            return operation(*operands, **options)

        return call

    model = make("llama")
    rowjit.transformers.apply(model, recompute=recompute)
    for name in ("rms_norm", "add_rms_norm", "swiglu"):
        monkeypatch.setattr(rowjit.torch.functional, name, counted(name, getattr(rowjit.torch.functional, name)))
    loss = model(**batch(), use_cache=False).loss
    forward = Counter({"rms_norm": 1, "add_rms_norm": 4, "swiglu": 2})
    assert made == forward
    loss.backward()
    again = {"rms_norm": 4} if recompute else {}  # activations in the kernels of their gradients
    assert made - forward == again


def test_a_tensor_changed_before_it_is_read_again_is_an_error():
    x, w = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    y = rowjit.torch.rms_norm(x, w)
    with rowjit.transformers.recompute.kept(True, y, rowjit.torch.rms_norm, x, w):
        z = torch.nn.functional.linear(y, torch.randn(4, 8, requires_grad=True))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified in place"):
        z.sum().backward()


def test_applying_twice_does_nothing_more():
    model = make("llama")
    rowjit.transformers.apply(model)
    assert not rowjit.transformers.apply(model).replaced


@pytest.mark.parametrize("switch", ["rms_norm", "rope", "gated_mlp", "residual", "cross_entropy", "across_layers", "beside"])
def test_a_switch_leaves_what_it_names(switch):
    operation = {"rms_norm": "rms_norm", "rope": "rope_qk", "gated_mlp": "swiglu", "residual": "add_rms_norm",
                 "cross_entropy": "cross_entropy", "across_layers": "across layers → add_rms_norm", "beside": "Linear beside those of the same input"}[switch]
    replaced = rowjit.transformers.apply(make("llama"), **{switch: False}).replaced
    assert replaced
    assert not any(what.endswith(operation if "→" in operation else f"→ {operation}") for what in replaced)


def test_a_switch_that_is_none_is_refused():
    with pytest.raises(TypeError, match="rmsnorm"):
        rowjit.transformers.apply(make("llama"), rmsnorm=False)


def test_a_compiled_model_trains_as_it_did():
    eager, model = make("llama", num_hidden_layers=1), make("llama", num_hidden_layers=1)
    rowjit.transformers.apply(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found, expected = compiled(**batch(), use_cache=False).loss, eager(**batch(), use_cache=False).loss
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    for ours, by_eager in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, by_eager.grad, rtol=1e-4, atol=1e-6)


def test_a_model_generates_as_it_did():
    model = make("llama").eval()
    ids = batch()["input_ids"][:, :4]
    named = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = model.generate(ids, **named)
    rowjit.transformers.apply(model)
    assert torch.equal(model.generate(ids, **named), expected)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_the_sum_across_layers_is_one_with_the_norm_behind_it(architecture, monkeypatch):
    model = make(architecture)
    summary = rowjit.transformers.apply(model)
    calls = Counter()
    for name in ("rms_norm", "add_rms_norm"):
        operation = getattr(rowjit.torch.functional, name)
        monkeypatch.setattr(rowjit.torch.functional, name, lambda *x, n=name, o=operation, **y: (calls.update([n]), o(*x, **y))[1])
    assert any("across layers → add_rms_norm" in what for what in summary.replaced)
    model(**batch(), use_cache=False)
    assert calls["add_rms_norm"] == 4
    assert calls["rms_norm"] == {"llama": 1, "gemma2": 5}[architecture]
    calls.clear()
    model.gradient_checkpointing_enable()
    model.model.layers[1].gradient_checkpointing = False
    model(**batch(), use_cache=False).loss.backward()
    assert calls["add_rms_norm"] == 3 + 1  # the first layer's by itself, and again
    calls.clear()
    model.model.layers[1].gradient_checkpointing = True
    model(**batch(), use_cache=False).loss.backward()
    assert calls["add_rms_norm"] == 2 * 2  # forward and again: in layers alone


@pytest.mark.parametrize(("change", "reason"), [
    (lambda model: model.model.layers[1].register_forward_pre_hook(lambda *_: None), "hooks"),
    (lambda model: setattr(model.model.layers[0], "input_layernorm", torch.nn.Identity()), "not every layer"),
])
def test_sums_across_layers_are_left_where_a_layer_is_by_itself(change, reason):
    model = make("llama").train()
    change(model)
    summary = rowjit.transformers.apply(model)
    assert any("across layers" in what and reason in what for what in summary.left)


@pytest.mark.parametrize("change", [
    lambda model: model.model.layers[0].register_forward_hook(lambda _, __, out: out * 1.5),
    lambda model: model.model.layers[0].register_forward_hook(lambda _, __, out: out.detach().mul_(1.5)),
    lambda model: model.model.layers[1].input_layernorm.register_forward_hook(lambda _, __, out: out * 1.5),
    lambda model: model.model.layers.insert(1, copy.deepcopy(model.model.layers[0])),
    lambda model: model.model.layers.pop(0),
    lambda model: model.model.layers[1].input_layernorm.weight.data.mul_(2),
])
def test_what_changes_between_layers_is_heeded(change):
    eager, model = make("llama").eval(), make("llama").eval()
    rowjit.transformers.apply(model)
    for each in (eager, model):
        change(each)
        each.config.num_hidden_layers = len(each.model.layers)
    torch.testing.assert_close(model(**batch(), use_cache=False).logits, eager(**batch(), use_cache=False).logits)


class Adapted(torch.nn.Module):
    """A product with an adapter beside it, as LoRA's."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        torch.manual_seed(1)
        self.narrow = torch.nn.Linear(base.in_features, 2, bias=False)
        self.wide = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.wide(self.narrow(x))


def adapt(model, *names):
    for layer in model.model.layers:
        for name in names:
            setattr(layer.mlp, name, Adapted(getattr(layer.mlp, name)))


@pytest.mark.parametrize("change", [
    lambda model: adapt(model, "gate_proj", "down_proj"),
    lambda model: adapt(model, "up_proj"),
    lambda model: [layer.mlp.requires_grad_(False) for layer in model.model.layers],
    lambda model: [layer.mlp.down_proj.register_forward_hook(lambda _, __, out: out * 1.5) for layer in model.model.layers],
    lambda model: [layer.mlp.gate_proj.register_forward_hook(lambda _, __, out: out * 1.5) for layer in model.model.layers],
    lambda model: [layer.mlp.up_proj.register_full_backward_hook(lambda _, given, __: (given[0] * 2,)) for layer in model.model.layers],
])
@pytest.mark.parametrize("offloaded", [False, True])
def test_what_is_hooked_or_wrapped_in_an_mlp_is_called(change, offloaded):
    eager, model = make("llama"), make("llama")
    rowjit.transformers.apply(model)
    with torch.autograd.graph.save_on_cpu() if offloaded else contextlib.nullcontext():
        for each in (eager, model):
            change(each)
            each(**batch()).loss.backward()
    for ours, by_eager in zip(model.parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (by_eager.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, by_eager.grad, rtol=1e-4, atol=1e-6)


def test_autocast_decides_the_dtypes_of_products():
    eager, model = make("llama"), make("llama")
    rowjit.transformers.apply(model)
    for each in (eager, model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(**batch()).loss
        loss.backward()
    for ours, by_eager in zip(model.parameters(), eager.parameters(), strict=True):
        scale = by_eager.grad.abs().max().item()
        torch.testing.assert_close(ours.grad, by_eager.grad, rtol=0, atol=4e-2 * scale)


def test_a_copy_of_a_model_has_its_own_parameters():
    model = make("llama")
    rowjit.transformers.apply(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    expected = make("llama")
    expected.load_state_dict(other.state_dict())
    torch.testing.assert_close(other(**batch()).loss, expected(**batch()).loss)


def test_a_pickled_model_is_one_without_rowjit(tmp_path):
    model = make("llama")
    expected = model(**batch()).loss
    rowjit.transformers.apply(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert type(loaded) is transformers.LlamaForCausalLM
    assert type(loaded.model.layers[0].mlp.down_proj) is torch.nn.Linear
    torch.testing.assert_close(loaded(**batch()).loss, expected)
    assert rowjit.transformers.apply(loaded).replaced


def test_signatures_are_those_of_the_modules_classes():
    import inspect

    model = make("llama")
    signatures = {name: inspect.signature(module.forward) for name, module in model.named_modules()}
    rowjit.transformers.apply(model)
    for name, module in model.named_modules():
        assert inspect.signature(module.forward) == signatures[name]


def test_gradient_checkpointing_computes_a_layer_again():
    plain, model = make("llama"), make("llama")
    rowjit.transformers.apply(model)
    model.gradient_checkpointing_enable()
    model.train()
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1) if torch.is_grad_enabled() else None)
    torch.testing.assert_close(train(model, 1)[2], train(plain.train(), 1)[2], rtol=1e-4, atol=1e-6)
    assert len(calls) == 2


@pytest.mark.parametrize("keep_last", [False, True])
def test_a_checkpointed_model_keeps_its_last_layer_whose_backward_is_next(keep_last):
    model = make("llama", num_hidden_layers=3).train()
    model.gradient_checkpointing_enable()
    rowjit.transformers.apply(model, keep_last=keep_last)
    calls = Counter()
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.register_forward_pre_hook(lambda *_, i=i: calls.update([i]))
    model(**batch()).loss.backward()
    assert calls == {0: 2, 1: 2, 2: 1 if keep_last else 2}
    assert all(layer.gradient_checkpointing for layer in model.model.layers)


class Additions(TorchDispatchMode):
    """Counts sums of whole hidden states by ATen."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        given = [each for each in arguments if isinstance(each, torch.Tensor)]
        of_hidden = all(each.dim() == 3 and each.shape[-1] == SIZES["hidden_size"] for each in given)
        self.count += function in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor) and len(given) == 2 and of_hidden
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2", "granite"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_no_gradient_of_hidden_states_is_added_by_itself(architecture, checkpointed):
    model = make(architecture).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    rowjit.transformers.apply(model)
    loss = model(**batch()).loss
    with Additions() as additions:
        loss.backward()
    assert additions.count == 0


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_new_shapes_of_batches_compile_nothing(architecture, checkpointed):
    model = make(architecture)
    rowjit.transformers.apply(model)
    if checkpointed:
        model.gradient_checkpointing_enable()
    model(**batch()).loss.backward()
    made = kernels_made()
    for rows, length in ((1, 9), (3, 5), (4, 12)):
        model(**batch(rows, length)).loss.backward()
    assert kernels_made() == made


def test_what_a_module_of_another_kind_computes_is_left():
    class OddNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(32)), 1e-6

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + self.eps)

    model = torch.nn.Sequential(OddNorm())
    summary = rowjit.transformers.apply(model)
    assert not summary.replaced
    assert "OddNorm: computes no RMS norm" in str(summary)


def test_norms_of_one_class_are_each_what_they_were_made_to_be():
    class OffsetNorm(torch.nn.Module):
        def __init__(self, offset):
            super().__init__()
            self.weight, self.eps, self.offset = torch.nn.Parameter(torch.randn(32)), 1e-6, offset

        def forward(self, x):
            return torch.nn.functional.rms_norm(x, (32,), None, self.eps) * (self.weight + self.offset)

    model, x = torch.nn.Sequential(OffsetNorm(0.0), OffsetNorm(1.0)), torch.randn(3, 32)
    expected = model(x)
    assert rowjit.transformers.apply(model).replaced["OffsetNorm → rms_norm"] == 2
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_attention_that_is_decorated_has_its_rotary_embedding_if_the_decorator_can_be_copied(is_kept, monkeypatch):
    from transformers.models.llama import modeling_llama

    original = modeling_llama.LlamaAttention.forward
    calls = [original]
    kept, elsewhere = lambda *x, **y: original(*x, **y), lambda *x, **y: calls[0](*x, **y)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", functools.wraps(original)(kept if is_kept else elsewhere))
    eager, model = make("llama"), make("llama")
    summary = rowjit.transformers.apply(model)
    what = "LlamaAttention.apply_rotary_pos_emb"
    assert summary.replaced[f"{what} → rope_qk"] == (2 if is_kept else 0)
    assert summary.left[f"{what}: its forward is decorated by what cannot be copied"] == (0 if is_kept else 2)
    torch.testing.assert_close(model(**batch()).loss, eager(**batch()).loss)


def test_a_model_is_loaded_with_rowjit_in_it():
    config = transformers.AutoConfig.for_model("llama", **SIZES)
    model = rowjit.transformers.AutoModelForCausalLM.from_config(config, rowjit={"rope": False})
    assert getattr(type(model.model.norm), "_rowjit", False)


def test_a_trainer_runs_a_few_steps(tmp_path):
    pytest.importorskip("accelerate")
    model = make("llama")
    rowjit.transformers.apply(model)
    rows = [{name: value[0] for name, value in batch(1).items()} for _ in range(6)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True,
    )
    result = transformers.Trainer(model, arguments, train_dataset=rows).train()
    assert result.global_step == 3
    assert 0 < result.training_loss < 20


def test_shapes_without_memory_go_through_a_training_model():
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))
    rowjit.transformers.apply(model)
    ids = torch.zeros(2, 7, dtype=torch.int64, device="meta")
    assert model.to("meta").train()(input_ids=ids, labels=ids).loss.shape == ()


def test_a_model_whose_mlp_widens_is_left_in_words():
    model = transformers.AutoModelForCausalLM.from_config(transformers.GPTNeoXConfig(**SIZES))
    ids = torch.randint(0, SIZES["vocab_size"], (2, 7))
    expected = model(input_ids=ids, labels=ids).loss
    assert "GPTNeoXMLP: computes no gated activation" in str(rowjit.transformers.apply(model))
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, expected)


@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_what_an_mlp_drops_in_training_alone_stays_dropped(dropped):
    model = make("seed_oss", residual_dropout=dropped, attention_dropout=0.0).train()
    theirs = copy.deepcopy(model)
    drawn = torch.get_rng_state()
    summary = rowjit.transformers.apply(model)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert ("2 × SeedOssMLP: computes no gated activation" in str(summary)) == bool(dropped)
    losses = []
    for each in (model, theirs):
        torch.manual_seed(1)
        losses.append(each(**batch()).loss)
    torch.testing.assert_close(*losses)


def test_modules_that_are_called_with_more_than_one_tensor_compute_that():
    model = make("llama")
    layer = model.model.layers[0]

    class Gated(type(layer.input_layernorm)):
        def forward(self, hidden_states, gate=None):
            return super().forward(hidden_states if gate is None else hidden_states * gate)

    layer.gated = Gated(32)
    theirs = copy.deepcopy(layer)
    rowjit.transformers.apply(model)
    assert type(layer.gated)._rowjit
    x, gate = torch.randn(2, 5, 32), torch.randn(2, 5, 32)
    torch.testing.assert_close(layer.gated(x), theirs.gated(x))
    torch.testing.assert_close(layer.gated(x, gate), theirs.gated(x, gate))
    torch.testing.assert_close(layer.input_layernorm(hidden_states=x), theirs.input_layernorm(x))
    torch.testing.assert_close(layer.mlp(x=x), theirs.mlp(x))
    torch.testing.assert_close(layer.self_attn.q_proj(input=x), theirs.self_attn.q_proj(x))


def test_inference_mode_computes_what_eager_does():
    model = make("llama")
    expected = copy.deepcopy(model)(**batch())
    rowjit.transformers.apply(model)
    with torch.inference_mode():
        for training in (True, False):
            found = model.train(training)(**batch())
            torch.testing.assert_close(found.loss, expected.loss.detach())
            torch.testing.assert_close(found.logits, expected.logits.detach())
