"""Tensors of any layout, and those that no kernel takes: right, or a clear error."""

import pytest
import torch
from conftest import kernels_made
from torch._subclasses.fake_tensor import FakeTensorMode

import rowjit
import rowjit.torch as rt


def silu(x):
    return torch.nn.functional.silu(x)


VIEWS = {
    "leading dimensions": lambda: torch.randn(2, 3, 5, 16),
    "one row": lambda: torch.randn(16),
    "no rows": lambda: torch.randn(0, 16),
    "transposed columns": lambda: torch.randn(16, 6).t(),
    "transposed rows": lambda: torch.randn(3, 2, 16).transpose(0, 1),
    "rows apart": lambda: torch.randn(8, 32)[::2, :16],
    "rows reversed by a stride": lambda: torch.randn(4, 16).flip(0),
    "a misaligned start": lambda: torch.randn(6, 17)[:, 1:],
    "a misaligned storage": lambda: torch.randn(6 * 16 + 1)[1:].view(6, 16),
    "expanded rows": lambda: torch.randn(1, 16).expand(6, 16),
    "an expanded column": lambda: torch.randn(6, 1).expand(6, 16),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_is_read_as_it_lies(view):
    x = view().requires_grad_()
    y = rt.silu(x)
    torch.testing.assert_close(y, silu(x))
    assert y.is_contiguous()
    cotangent = torch.randn(y.shape)
    torch.testing.assert_close(torch.autograd.grad(y, x, cotangent), torch.autograd.grad(silu(x), x, cotangent))


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_heads_that_are_views_of_projections_are_turned_where_they_lie(batch):
    projected = torch.randn(batch, 5, 6 * 8, requires_grad=True)
    q = projected[..., :32].view(batch, 5, 4, 8).transpose(1, 2)
    k = projected[..., 32:].view(batch, 5, 2, 8).transpose(1, 2)
    cos, sin = torch.randn(1, 5, 8), torch.randn(1, 5, 8)

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    ours = rt.attention.apply_rotary_pos_emb(q, k, cos, sin)
    torch.testing.assert_close(ours, (turned(q), turned(k)))
    cotangents = [torch.randn(t.shape) for t in ours]
    torch.testing.assert_close(
        torch.autograd.grad(ours, projected, cotangents),
        torch.autograd.grad((turned(q), turned(k)), projected, cotangents),
    )


def test_a_new_batch_size_or_sequence_length_compiles_nothing():
    def step(batch, sequence):
        x = torch.randn(batch, sequence, 24, requires_grad=True)
        w = torch.randn(24, requires_grad=True)
        total, y = rt.add_rms_norm(x, torch.randn(batch, sequence, 24), w)
        heads = y.view(batch, sequence, 3, 8)
        q, k = rt.rope_qk(heads, heads, torch.randn(1, sequence, 8), torch.randn(1, sequence, 8))
        logits = (q + k).flatten(-2) + total
        rt.cross_entropy(rt.swiglu(logits, logits), torch.randint(0, 24, (batch, sequence))).backward()

    step(1, 4)
    made = kernels_made()
    for batch, sequence in ((2, 4), (5, 3), (1, 9), (16, 2)):
        step(batch, sequence)
    assert kernels_made() == made


def test_a_number_that_is_no_part_of_a_kernel_compiles_nothing():
    x = torch.randn(4, 32)
    rt.rms_norm(x, eps=1e-6)
    made = kernels_made()
    for eps in (1e-5, 1e-3, 0.5):
        torch.testing.assert_close(rt.rms_norm(x, eps=eps), torch.nn.functional.rms_norm(x, (32,), eps=eps))
    assert kernels_made() == made


REFUSED = {
    "no tensor": (TypeError, "x is a list", lambda: rt.silu([1.0])),
    "a dtype that kernels have not": (TypeError, "dtype", lambda: rt.silu(torch.ones(3, 4, dtype=torch.int16))),
    "operands of two dtypes": (ValueError, "same dtype", lambda: rt.swiglu(torch.ones(3, 4), torch.ones(3, 4).bfloat16())),
    "columns that differ": (ValueError, "weight", lambda: rt.rms_norm(torch.ones(3, 4), torch.ones(5))),
    "rows that differ": (ValueError, "target has extent 2", lambda: rt.cross_entropy(torch.ones(3, 4), torch.zeros(2).long())),
    "dimensions that are too many": (ValueError, "2 dimensions; 1", lambda: rt.rms_norm(torch.ones(3, 4), torch.ones(1, 4))),
    "an option that is none": (ValueError, "llama gemma none", lambda: rt.rms_norm(torch.ones(3, 4), casting="x")),
    "a number that is none": (ValueError, "eps", lambda: rt.rms_norm(torch.ones(3, 4), eps=-1.0)),
    "a sparse tensor": (TypeError, "no memory", lambda: rt.silu(torch.ones(3, 4).to_sparse())),
    "an operand that is missing": (TypeError, "target", lambda: rt.cross_entropy(torch.ones(3, 4))),
    "a view that would be written": (
        ValueError, "contiguous", lambda: rt.sgd_step(torch.ones(4, 3).t(), torch.ones(3, 4), torch.zeros(3, 4)),
    ),
}


@pytest.mark.parametrize(("kind", "words", "call"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_in_words(kind, words, call):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("names", [("x",), ("weight",)])
def test_operands_on_several_devices_are_refused_in_words(names):
    operands = {"x": torch.ones(3, 4), "weight": torch.ones(4)}
    operands |= {name: operands[name].to("meta") for name in names}
    with pytest.raises(ValueError, match="cpu and meta; move them"):
        rt.rms_norm(**operands)


def test_tangents_are_refused_in_words():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3, 4), torch.ones(3, 4))
        with pytest.raises(RuntimeError, match="reverse mode alone"):
            rt.silu(dual)
        rt.silu(torch.ones(3, 4))


def test_signs_that_are_pending_are_read():
    imaginary = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert imaginary.is_neg()
    torch.testing.assert_close(rt.silu(imaginary), torch.nn.functional.silu(imaginary))


def test_in_inference_mode_results_are_of_it():
    with torch.inference_mode():
        assert rt.silu(torch.ones(3, 4)).is_inference()


def test_meta_tensors_give_meta_results():
    x = torch.randn(3, 4, 16, device="meta")
    target = torch.zeros(3, 4, dtype=torch.int64, device="meta")
    total, y = rt.add_rms_norm(x, x, x[0, 0])
    assert (total.shape, y.device.type) == (x.shape, "meta")
    assert rt.cross_entropy(x, target, reduction="none").shape == (3, 4)


def test_fake_tensors_give_fake_results():
    with FakeTensorMode():
        y = rt.swiglu(torch.randn(3, 16, dtype=torch.bfloat16), torch.randn(3, 16, dtype=torch.bfloat16))
    assert (y.shape, y.dtype) == ((3, 16), torch.bfloat16)


def test_optimizers_write_over_their_operands_as_torchs_do():
    parameter, gradient = torch.randn(5, 8), torch.randn(5, 8)
    reference = torch.nn.Parameter(parameter.clone())
    optimizer = torch.optim.AdamW([reference], lr=0.01, weight_decay=0.1)
    first, second = torch.zeros(5, 8), torch.zeros(5, 8)
    made = 0
    for step in range(1, 4):
        reference.grad = gradient * step
        optimizer.step()
        version = parameter._version
        rt.adamw_step(parameter, gradient * step, first, second, learning_rate=0.01, weight_decay=0.1,
                      correction1=1 - 0.9**step, correction2=1 - 0.999**step)
        assert parameter._version > version
        made = made or kernels_made()
    torch.testing.assert_close(parameter, reference.detach())
    assert kernels_made() == made


def test_dropout_drops_its_share_and_repeats_with_its_seed():
    x = torch.ones(64, 256, requires_grad=True)
    y = rt.dropout(x, p=0.25, seed=7)
    assert abs((y == 0).float().mean().item() - 0.25) < 0.01
    assert torch.equal(y, rt.dropout(x, p=0.25, seed=7))
    assert not torch.equal(y, rt.dropout(x, p=0.25, seed=8))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())


def test_a_vocabulary_divided_over_ranks_gives_the_whole_cross_entropy():
    logits, target = torch.randn(5, 24), torch.tensor([3, 23, -100, 11, 12])
    parts = [rt.vocabulary_part(half, target, first_class=first) for first, half in ((0, logits[:, :12]), (12, logits[:, 12:]))]
    lse, picked = (torch.stack(each, -1) for each in zip(*parts, strict=True))
    token_loss, _ = rt.combine_vocabulary(lse, picked, target, vocabulary=24, reduction="none")
    torch.testing.assert_close(token_loss, torch.nn.functional.cross_entropy(logits, target, reduction="none"))


def test_eight_bit_codes_are_read_back():
    x = torch.randn(6, 32)
    codes, scale = rt.quantize(x, codes="i8")
    assert codes.dtype == torch.int8
    torch.testing.assert_close(rt.dequantize(codes, scale), x, atol=scale.max().item(), rtol=0)


def test_numbers_of_other_libraries_are_kernels_operands():
    numpy = pytest.importorskip("numpy")
    from rowjit.calls import Call, Choice
    from rowjit.programs import Builder

    class Numpy:
        def allocate(self):
            return lambda *extents, **options: numpy.empty(extents, **options)

        def options(self, dtype, device):
            return {"dtype": {"f32": numpy.float32, "u8": numpy.uint8}[dtype]}

    operation = rowjit.operations()["silu"]
    choice = Choice(operation, {}, {})
    shapes = tuple(operand.shapes[0] for operand in operation.operands)
    program = Builder(Call(choice, ("x", "bias"), shapes, (False, False)), Numpy()).program()
    x = numpy.linspace(-3, 3, 24, dtype=numpy.float32).reshape(2, 12)
    numpy.testing.assert_allclose(program.run(None, x, None), x / (1 + numpy.exp(-x)), rtol=1e-6)


def test_an_option_that_comes_with_an_optional_operand_is_read_at_every_call():
    student, teacher, target = torch.randn(4, 16), torch.randn(4, 16), torch.tensor([0, 1, 2, 3])
    for ignored in (2, 3):
        loss = rt.jsd(student, teacher, target, ignore_index=ignored, reduction="none")
        assert [row for row in range(4) if loss[row] == 0] == [ignored]


def test_no_rows_have_a_gradient_of_zeros():
    x, w = torch.randn(0, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    rt.rms_norm(x, w).sum().backward()  # the cotangent is an expanded number
    assert x.grad.shape == (0, 16)
    assert torch.equal(w.grad, torch.zeros(16))


class Named(torch.Tensor):
    """A class of tensors that the dispatcher does not know."""


def test_a_subclass_without_a_dispatch_of_its_own_is_a_tensor():
    x = torch.randn(4, 16, requires_grad=True)
    y = rt.silu(x.as_subclass(Named))
    torch.testing.assert_close(y, torch.nn.functional.silu(x))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(rt.silu(x).sum(), x)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_computes_what_it_is_given():
    x = torch.randn(4, 16)
    traced = torch.jit.trace(rt.silu, (x,))
    assert torch.equal(traced(x + 1), rt.silu(x + 1))
    with pytest.raises(TypeError, match="torch.jit.trace"):
        torch.jit.trace(rt.jit(lambda x: x + x), (x,))


def test_only_contiguous_memory_is_written_over():
    wide = torch.zeros(4, 32)
    for parameter in (wide[:, :16], torch.zeros(1, 16).expand(4, 16), torch.zeros(16, 4).t()):
        with pytest.raises(ValueError, match="parameter is written in place and has to be contiguous"):
            rt.adamw_step(parameter, torch.ones(4, 16), torch.zeros(4, 16), torch.zeros(4, 16))
    assert not wide.any()


def test_what_is_written_over_has_no_history():
    parameter = torch.zeros(4, 16, requires_grad=True)
    states = torch.ones(4, 16), torch.zeros(4, 16), torch.zeros(4, 16)
    with pytest.raises(RuntimeError, match="no_grad"):
        rt.adamw_step(parameter, *states)
    with torch.no_grad():
        rt.adamw_step(parameter, *states)
    assert parameter.is_leaf
    assert parameter.any()


def test_a_required_operand_that_is_none_is_named():
    x = torch.randn(4, 16)
    with pytest.raises(TypeError, match="rms_norm: x is None"):
        rt.rms_norm(None, x[0])
    with pytest.raises(TypeError, match="cross_entropy: target is None"):
        rt.cross_entropy(x, None)
    with pytest.raises(TypeError, match="y is None"):
        rt.jit(lambda x, y: x + y)(x, None)
