"""torch.compile(…, backend="rowjit"): the same numbers, in few calls, for every number of rows with the same kernels."""

import copy

import pytest
import torch
from conftest import assert_as_good, kernels_made

import rowjit.torch
from rowjit.torch import backend
from rowjit.torch.backend.run import function_of

F = torch.nn.functional


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    backend.forget()


def norm(x, weight):
    h = x.float()
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def half(x, cos, sin):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-second, first), -1) * sin


FUNCTIONS = {
    "norm": lambda x, y, w: norm(x + y, w),
    "gated": lambda x, y, w: F.silu(x) * y,
    "geglu": lambda x, y, w: F.gelu(x, approximate="tanh") * y,
    "geglu, erf": lambda x, y, w: F.gelu(x) * y + 1,
    "sigmoid": lambda x, y, w: torch.sigmoid(x) * y - 0.5,
    "relu": lambda x, y, w: F.relu(x) * F.relu(x) * w,
    "tanh": lambda x, y, w: 30.0 * torch.tanh(x / 30.0) + y,
    "softmax": lambda x, y, w: F.softmax(x.float() * 0.3 + y.float(), -1).to(x.dtype) * y,
    "log-softmax": lambda x, y, w: F.log_softmax(x.float() + y.float(), -1) * w.float(),
    "masked": lambda x, y, w: torch.where(y > 0, x * w, 0.0) + torch.where(x > y, x, y),
    "rotary": lambda x, y, w: half(x, y[:1], y[1:2]),
    "rotary of heads": lambda x, y, w: half(x.unflatten(-1, (5, 8)).transpose(1, 2), y[:1, None, :, :8], y[:1, None, :, 8:16]),
    "packed halves": lambda x, y, w: F.silu(x[..., :20]) * x[..., 20:],
    "mean and variance": lambda x, y, w: (x - x.mean(-1, keepdim=True)) / (x.square().sum(-1, keepdim=True) + 1).sqrt() * w,
    "largest": lambda x, y, w: (x - x.amax(-1, keepdim=True)).exp() * y.amin(-1, keepdim=True).abs(),
    "functions": lambda x, y, w: torch.exp(-x.abs()) + torch.cos(y) * torch.sin(x) + torch.log1p(y.abs()) + torch.erf(x),
    "numbers of rows": lambda x, y, w: x * torch.reciprocal(x.square().sum(-1) + 1.5).unsqueeze(-1) + y * w,
    "powers": lambda x, y, w: x.pow(3) * 0.1 + y.pow(2) + (w.abs() + 1).pow(-0.5),
    "two results": lambda x, y, w: torch.cat(((x + y) * w, norm(x + y, w)), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_function_is_as_good_as_eager(name):
    function, dtype = FUNCTIONS[name], torch.bfloat16
    compiled = torch.compile(function, backend="rowjit", dynamic=False)
    given = [torch.randn(3, 4, 40), torch.randn(3, 4, 40), torch.randn(40)]
    found = {}
    for key, to, run in (("ours", dtype, compiled), ("eager", dtype, function), ("exact", torch.float64, function)):
        leaves = [tensor.to(dtype).to(to).requires_grad_() for tensor in given]
        result = run(*leaves)
        torch.manual_seed(1)
        cotangent = torch.randn(result.shape, dtype=torch.float64).to(dtype).to(result.dtype)
        found[key] = result.detach(), *torch.autograd.grad(result, leaves, cotangent, allow_unused=True)
    for ours, eager, exact in zip(found["ours"], found["eager"], found["exact"], strict=True):
        assert (ours is None) == (eager is None)
        if ours is not None:
            assert ours.stride() == eager.stride()
            # Its gradients' terms are rounded and added in another order than eager's: an error of a few roundings more.
            assert_as_good(ours, eager, exact, 2)
    assert sum(len(report.regions) for report in backend.reports) >= 2
    assert not any(region.refused for report in backend.reports for region in report.regions)


def test_operations_on_the_same_rows_are_one_call():
    compiled = torch.compile(FUNCTIONS["norm"], backend="rowjit")
    made = kernels_made()
    compiled(torch.randn(3, 4, 24), torch.randn(3, 4, 24), torch.randn(24))
    (report,) = backend.reports
    assert [[node.target for node in region.group.members][:2] for region in report.regions] == [
        [torch.ops.aten.add.Tensor, torch.ops.aten.pow.Tensor_Scalar]
    ]
    assert kernels_made() == made + 1


def test_what_stands_between_two_regions_divides_them():
    def function(x, weight):
        h = torch.exp(x) * 2
        return F.linear(h, weight) * h + h

    compiled = torch.compile(function, backend="rowjit")
    x, weight = torch.randn(3, 5, 16), torch.randn(16, 16)
    torch.testing.assert_close(compiled(x, weight), function(x, weight))
    (report,) = backend.reports
    assert [len(region.group.members) for region in report.regions] == [2, 2]


def test_what_reads_the_same_tensor_is_one_call():
    def function(x, y):
        return F.silu(x) * y, x * torch.exp(-x)

    compiled = torch.compile(function, backend="rowjit")
    x, y = torch.randn(3, 5, 16), torch.randn(3, 5, 16)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    (report,) = backend.reports
    assert [len(region.results) for region in report.regions] == [2]


def test_every_node_that_is_left_has_its_reason():
    def function(x):
        return torch.cumsum(torch.exp(x) + 1, -1) @ x.t()

    compiled = torch.compile(function, backend="rowjit", dynamic=True)
    x = torch.randn(6, 6)
    torch.testing.assert_close(compiled(x), function(x))
    explained = rowjit.torch.explain_backend()
    assert "aten.cumsum.default is not an operation on rows" in explained
    assert "last dimension whose extent is not known" in explained


def test_what_the_compiler_refuses_is_computed_by_aten(monkeypatch):
    def refuse(*_):
        raise rowjit.Unsupported("not today")

    compiled = torch.compile(FUNCTIONS["norm"], backend="rowjit")
    given = torch.randn(3, 4, 56), torch.randn(3, 4, 56), torch.randn(56)
    monkeypatch.setattr("rowjit.programs.executable", refuse)
    torch.testing.assert_close(compiled(*given), FUNCTIONS["norm"](*given))
    assert "not today" in rowjit.torch.explain_backend()


def test_a_graph_is_run_on_a_list_that_it_empties():
    graph = torch.fx.symbolic_trace(lambda x, y: (x + y) * y).graph
    arguments = [torch.ones(3), torch.ones(3)]
    assert torch.equal(function_of(graph, torch.nn.Module())(arguments), torch.full((3,), 2.0))
    assert arguments == []


transformers = pytest.importorskip("transformers")


def test_a_model_trains_as_it_did_with_the_same_kernels_for_every_batch():
    from test_transformers import batch, make

    dtype = torch.bfloat16
    eager = make("llama", dtype, num_hidden_layers=1)
    exact, ours = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    compiled = torch.compile(ours, backend="rowjit")
    made = 0
    for rows, length in ((2, 9), (4, 5)):
        found = []
        for model, run in ((ours, compiled), (eager, eager), (exact, exact)):
            model.zero_grad()
            given = batch(rows, length)
            for tensor in given.values():
                torch._dynamo.mark_dynamic(tensor, (0, 1))
            loss = run(**given, use_cache=False).loss
            loss.backward()
            found.append((loss.detach(), torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()])))
        for of_ours, of_eager, of_exact in zip(*found, strict=True):
            noise = (of_eager.double() - of_exact.double()).abs().max()
            scale = of_exact.double().abs().max()
            assert (of_ours.double() - of_exact.double()).abs().max() <= 2 * noise + 4 * torch.finfo(dtype).eps * scale
        made = made or kernels_made()
    assert kernels_made() == made
    forward, backward = backend.reports
    # The tables, the first norm, queries, keys, two norms with the sums before them, the gated activation.
    assert len(forward.regions) == 7
    assert len(backward.regions) == 8
    assert not any(region.refused for region in (*forward.regions, *backward.regions))


def test_one_traced_layer_serves_all_layers_of_a_model():
    from test_transformers import batch, make

    eager = make("gemma2", torch.bfloat16)
    exact, ours = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    for layer in ours.model.layers:
        layer.compile(backend="rowjit")
    found = []
    for model in (ours, eager, exact):
        loss = model(**batch(), use_cache=False).loss
        loss.backward()
        found.append(torch.cat([loss.detach()[None].double(), *(p.grad.flatten().double() for p in model.parameters())]))
    of_ours, of_eager, of_exact = found
    noise, scale = (of_eager - of_exact).abs().max(), of_exact.abs().max()
    assert (of_ours - of_exact).abs().max() <= 2 * noise + 4 * torch.finfo(torch.bfloat16).eps * scale
    assert [report.kind for report in backend.reports] == ["forward", "backward"]
    assert not any(region.refused for report in backend.reports for region in report.regions)
