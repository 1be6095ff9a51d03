"""Liger-Kernel's names, against PyTorch."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import rowjit.liger as liger


def test_norms_are_their_formulas():
    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    module = liger.LigerRMSNorm(16, eps=1e-5)
    torch.testing.assert_close(module(x), F.rms_norm(x, (16,), module.weight, 1e-5))
    y, total = liger.LigerFusedAddRMSNorm(16)(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, F.rms_norm(x + residual, (16,), None, 1e-6))
    layer = liger.LigerLayerNorm(16, bias=True)
    torch.testing.assert_close(layer(x), F.layer_norm(x, (16,), layer.weight, layer.bias, 1e-6))
    group = liger.LigerGroupNorm(8, 2, bias=True)
    image = torch.randn(2, 8, 5)
    torch.testing.assert_close(group(image), F.group_norm(image, 2, group.weight, group.bias, 1e-6))


@pytest.mark.parametrize(("kind", "activation"), [
    ("LigerSwiGLUMLP", F.silu), ("LigerGEGLUMLP", lambda x: F.gelu(x, approximate="tanh")),
])
def test_gated_mlps_are_their_formulas(kind, activation):
    module = getattr(liger, kind)(SimpleNamespace(hidden_size=8, intermediate_size=16, hidden_act="silu"))
    x = torch.randn(3, 8)
    expected = module.down_proj(activation(module.gate_proj(x)) * module.up_proj(x))
    torch.testing.assert_close(module(x), expected)


def test_cross_entropy_gives_what_is_asked_for():
    logits, target = torch.randn(4, 16, requires_grad=True), torch.tensor([1, -100, 3, 4])
    found = liger.LigerCrossEntropyLoss(
        lse_square_scale=1e-2, return_z_loss=True, return_token_accuracy=True, return_predicted_tokens=True
    )(logits, target)
    kept = target != -100
    z_loss = 1e-2 * torch.logsumexp(logits, -1)[kept].square().mean()
    torch.testing.assert_close(found.z_loss, z_loss)
    torch.testing.assert_close(found.loss, F.cross_entropy(logits, target) + z_loss)
    assert torch.equal(found.predicted_tokens, logits.argmax(-1).where(kept, -1))
    torch.testing.assert_close(found.token_accuracy, (logits.argmax(-1) == target)[kept].float().mean())


def test_cross_entropy_of_rows_says_which_rows_are_hit():
    logits = torch.eye(4, 16)
    target = torch.tensor([0, -1, 3, 3])
    found = liger.LigerCrossEntropyLoss(ignore_index=-1, reduction="none", return_token_accuracy=True)(logits, target)
    assert found.token_accuracy.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("faulty", [16, -1])
def test_a_target_that_is_no_class_raises_as_ligers_does(faulty):
    logits, target = torch.randn(4, 16), torch.tensor([1, -100, faulty, 4])
    with pytest.raises(AssertionError, match=f"{faulty} is out of bounds"):
        liger.LigerCrossEntropyLoss()(logits, target)


def test_logits_that_are_nan_are_no_faulty_target():
    assert liger.LigerCrossEntropyLoss()(torch.full((2, 16), torch.nan), torch.tensor([1, 2])).isnan()


def test_the_mean_of_no_target_is_zero_and_has_no_gradient():
    logits, target = torch.randn(4, 16, requires_grad=True), torch.full((4,), -100)
    log_p = torch.randn(4, 16).log_softmax(-1)
    losses = (
        liger.LigerCrossEntropyLoss()(logits, target),
        liger.LigerFusedLinearCrossEntropyLoss()(torch.randn(8, 16), logits, target),
        liger.LigerJSD()(logits, log_p, target),
        liger.LigerTVDLoss()(logits, log_p, target),
    )
    assert [loss.item() for loss in losses] == [0] * 4
    assert torch.autograd.grad(sum(losses), logits)[0].count_nonzero() == 0


def test_token_scaling_is_by_the_targets_probability():
    x, weight, target = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8), torch.tensor([1, 2, -100, 4])
    found = liger.LigerFusedLinearCrossEntropyLoss(use_token_scaling=True)(weight, x, target)
    rows = F.cross_entropy(x @ weight.t(), target, reduction="none")
    expected = (rows * rows.detach().neg().exp()).sum() / 3
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (found, expected)))


def test_llama_4s_rotary_embedding_is_a_product_of_complex_numbers():
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 1, 8)
    rotations = torch.polar(torch.ones(1, 3, 4), torch.randn(1, 3, 4))
    for found, x in zip(liger.liger_llama4_text_rotary_pos_emb(q, k, rotations), (q, k), strict=True):
        pairs = torch.view_as_complex(x.unflatten(-1, (4, 2))) * rotations[:, :, None]
        torch.testing.assert_close(found, torch.view_as_real(pairs).flatten(-2))


def test_fused_linear_jsd_is_the_products_and_the_distance_and_gives_the_student_gradients():
    x, weight = torch.randn(4, 8), torch.randn(16, 8, requires_grad=True)
    teacher_x, teacher_weight = torch.randn(4, 6), torch.randn(16, 6, requires_grad=True)
    target = torch.tensor([1, -100, 3, 4])
    loss = liger.liger_fused_linear_jsd(x, weight, teacher_x, teacher_weight, target, 0.3, -100, 2.0)
    q, p = ((a @ b.t() / 2).log_softmax(-1) for a, b in ((x, weight), (teacher_x, teacher_weight.detach())))
    expected = liger.liger_jsd(q, p, target, 0.3, -100)
    torch.testing.assert_close(loss, expected)
    wanted = torch.autograd.grad(expected, weight)[0]
    found, of_teacher = torch.autograd.grad(loss, (weight, teacher_weight), allow_unused=True)
    torch.testing.assert_close(found, wanted)
    assert of_teacher is None


def test_rotary_embedding_of_an_odd_width_leaves_the_last_column():
    q, angles = torch.randn(1, 2, 3, 7), torch.randn(1, 3, 3)
    tables = (torch.cat((table, table, torch.ones(1, 3, 2)), -1) for table in (angles.cos(), angles.sin()))
    turned, _ = liger.liger_rope(q, q, *tables)
    cos, sin = angles.cos(), angles.sin()
    first, second, last = q.split((3, 3, 1), -1)
    expected = torch.cat((first * cos - second * sin, second * cos + first * sin, last), -1)
    torch.testing.assert_close(turned, expected)


def test_fused_linear_cross_entropy_is_the_product_and_the_loss():
    x, weight, target = torch.randn(4, 8), torch.randn(16, 8), torch.tensor([1, 2, -100, 4])
    found = liger.LigerFusedLinearCrossEntropyLoss(label_smoothing=0.1, softcap=5.0)(weight, x, target)
    torch.testing.assert_close(found, F.cross_entropy(5 * torch.tanh(x @ weight.t() / 5), target, label_smoothing=0.1))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_has_all_of_torchs_reductions(reduction, log_target):
    y, p = torch.log_softmax(torch.randn(4, 16), -1), torch.softmax(torch.randn(4, 16), -1)
    named = {"reduction": reduction, "log_target": log_target}
    given = p.log() if log_target else p
    torch.testing.assert_close(liger.LigerKLDIVLoss(**named)(y, given), torch.nn.KLDivLoss(**named)(y, given))


def test_distances_of_distributions():
    q, p = torch.softmax(torch.randn(4, 16), -1), torch.softmax(torch.randn(4, 16), -1)
    torch.testing.assert_close(liger.LigerTVDLoss()(q, p), 0.5 * (q - p).abs().sum(-1).mean())
    m = 0.3 * p + 0.7 * q
    kl = lambda a: (a * (a.log() - m.log())).sum(-1).mean()  # noqa: E731
    torch.testing.assert_close(liger.LigerJSD(beta=0.3)(q.log(), p.log()), 0.3 * kl(p) + 0.7 * kl(q))


def test_a_fused_linear_divergence_takes_autocasts_dtype():
    student, head, teacher, teacher_head = (torch.randn(*shape) for shape in ((6, 8), (16, 8), (6, 12), (16, 12)))
    weight, narrow = head.clone().requires_grad_(), head.bfloat16().requires_grad_()
    jsd = liger.LigerFusedLinearJSDFunction.apply
    with torch.autocast("cpu", torch.bfloat16):
        found = jsd(student.bfloat16(), weight, teacher.bfloat16(), teacher_head)
    expected = jsd(student.bfloat16(), narrow, teacher.bfloat16(), teacher_head.bfloat16())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    found.backward()
    expected.backward()
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(weight.grad, narrow.grad.float(), rtol=0, atol=0)


def test_a_loss_of_no_memory_is_not_looked_at():
    hidden, head, target = torch.empty(4, 16, device="meta"), torch.empty(50, 16, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")
    assert liger.LigerFusedLinearCrossEntropyLoss()(head, hidden, target).shape == ()
    with FakeTensorMode():
        assert liger.LigerCrossEntropyLoss()(torch.empty(4, 50), torch.zeros(4, dtype=torch.int64)).shape == ()


@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 8), (2, 3, 8)])
@pytest.mark.parametrize("shifted", [True, False])
def test_a_modulated_norm_is_the_norm_scaled_and_shifted_by_rows(shape, shifted):
    x, module = torch.randn(2, 3, 8, requires_grad=True), liger.LigerModulatedRMSNorm(8)
    scale, shift = (torch.randn(shape, requires_grad=True) for _ in range(2))
    found = module(x, scale, shift if shifted else None)
    of_rows = [each.unsqueeze(1) if shape == (2, 8) else each for each in (scale, shift)]
    expected = F.rms_norm(x, (8,), module.weight, 1e-6) * (1 + of_rows[0])
    expected = expected + of_rows[1] if shifted else expected
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn(2, 3, 8)
    given = (x, scale, shift) if shifted else (x, scale)
    torch.testing.assert_close(torch.autograd.grad(found, given, cotangent), torch.autograd.grad(expected, given, cotangent))


def test_a_modulation_in_f32_of_a_norm_in_bf16_rounds_once():
    x, scale = torch.randn(5, 8).bfloat16(), torch.randn(5, 8)
    found = liger.liger_modulated_rms_norm(x, None, scale)
    assert torch.equal(found, (liger.liger_rms_norm(x, None, 1e-6).float() * (1 + scale)).bfloat16())


def test_a_modulated_norm_refuses_a_scale_of_a_part_of_the_rows():
    with pytest.raises(AssertionError, match="equal share"):
        liger.LigerModulatedRMSNorm(8)(torch.randn(2, 3, 8), torch.randn(4, 8))


@pytest.mark.parametrize(("kind", "named"), [("Gemma", {}), ("Gemma2", {}), ("Gemma3", {}), ("Qwen3Next", {}), ("Gemma4", {"with_scale": False}), ("Glm4", {})])
def test_norms_of_architectures_begin_as_ones(kind, named):
    x = torch.randn(3, 16)
    torch.testing.assert_close(getattr(liger, f"LigerRMSNormFor{kind}")(16, **named)(x), F.rms_norm(x, (16,), eps=1e-6))


def test_the_mlp_of_falcon_scales_its_gate_and_its_activation():
    config = SimpleNamespace(hidden_size=8, intermediate_size=16, hidden_act="silu", mlp_multipliers=(0.5, 2.0))
    module, x = liger.LigerFalconH1SwiGLUMLP(config), torch.randn(3, 8)
    torch.testing.assert_close(module(x), module.down_proj(F.silu(module.gate_proj(x) * 0.5) * module.up_proj(x)) * 2)


@pytest.mark.parametrize("formula", ["pytorch", "megatron"])
def test_a_vocabulary_on_one_rank_has_the_rows_losses(formula):
    logits, target = torch.randn(3, 2, 16), torch.tensor([[1, -100], [3, 4], [15, 0]])
    found = liger.LigerVocabParallelCrossEntropy(label_smoothing=0.15, label_smoothing_formula=formula)(logits, target)
    smoothing = 0.15 if formula == "pytorch" else 0.15 * 16 / 15
    expected = F.cross_entropy(logits.transpose(1, 2), target, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)


def test_an_embeddings_padding_is_zero():
    module, ids = liger.LigerEmbedding(10, 8, padding_idx=3), torch.tensor([[1, 3], [9, 0]])
    module(ids).sum().backward()
    torch.testing.assert_close(module(ids), F.embedding(ids, module.weight))
    assert module.weight.grad.sum(-1).tolist() == [8, 8, 0, 0, 0, 0, 0, 0, 0, 8]


def test_models_of_a_type_are_made_with_rowjit_in_them_and_loaded_with_their_weights(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.LlamaForCausalLM, "__init__", transformers.LlamaForCausalLM.__init__)
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=32)
    plain = transformers.LlamaForCausalLM(config)
    plain.save_pretrained(tmp_path)
    ids = torch.randint(0, 32, (2, 5))
    for _ in range(2):
        liger.apply_liger_kernel_to_llama(rope=False)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert type(model.model.norm)._rowjit
    assert not hasattr(type(model.model.layers[0].self_attn), "_rowjit")
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, plain(input_ids=ids, labels=ids).loss)
    loaded = liger.AutoLigerKernelForCausalLM.from_pretrained(tmp_path, swiglu=False)
    assert type(loaded.model.norm)._rowjit
    with pytest.raises(AttributeError, match="no causal language model"):
        liger.apply_liger_kernel_to_nothing  # noqa: B018


def test_a_liger_kernel_that_cannot_be_imported_is_said_and_left(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "liger_kernel"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "ops.py").write_text("import a_triton_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)  # to be removed again, with what is imported now
    del sys.modules["liger_kernel"]
    assert not liger.install()
    assert "a_triton_that_is_not_there" in caplog.text
