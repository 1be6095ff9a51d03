"""What first layers keep in host memory: the same gradients, fetched before they are read, released when they are."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from test_transformers import batch, make  # noqa: E402

import rowjit.transformers  # noqa: E402
from rowjit.transformers import offload  # noqa: E402

LAYERS, MOVED = 5, 2


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(offload, "_LEAST_BYTES", 1)


@pytest.fixture
def done(monkeypatch):
    """What happens to memory of a layer, in order: ("moved" | "fetched" | "read", the how-manieth that was moved)."""
    done, places = [], {}

    def noted(name, original):
        def call(moved, *arguments):
            place = places.setdefault(id(moved), len(places))
            if name != "fetched" or moved.fetched is None:
                done.append((name, place))
            return original(moved, *arguments)

        return call

    for name, method in (("moved", "__init__"), ("fetched", "fetch"), ("read", "read")):
        monkeypatch.setattr(offload._Moved, method, noted(name, getattr(offload._Moved, method)))
    return done


def gradients(model):
    model.train()(**batch()).loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
@pytest.mark.parametrize("switches", [{}, {"recompute": False}, {"beside": False, "across_layers": False}])
def test_gradients_are_the_same(architecture, switches):
    here, moved = make(architecture, num_hidden_layers=LAYERS), make(architecture, num_hidden_layers=LAYERS)
    rowjit.transformers.apply(here, **switches)
    rowjit.transformers.apply(moved, offload=MOVED, **switches)
    for expected, found in zip(gradients(here), gradients(moved), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_was_moved_is_fetched_once_and_before_its_layers_backward(done):
    model = make("llama", num_hidden_layers=LAYERS)
    rowjit.transformers.apply(model, offload=MOVED)
    begun = []
    for i, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.weight.register_hook(lambda _, i=i: begun.append((i, [what for what, _ in done].count("fetched"))))
    gradients(model)
    count = [what for what, _ in done].count("moved")
    assert count >= 8 * MOVED  # norms' results, queries, keys, values, gate, up, …; no parameter
    assert [place for what, place in done if what == "fetched"] == sorted(range(count), key=lambda place: (place < count // MOVED, -place))
    assert dict(begun)[3] <= count // MOVED  # all of the second layer at most
    assert dict(begun)[2] == count  # and of the first


def test_what_was_moved_is_released_by_the_backward_that_read_it(monkeypatch):
    kept = []
    monkeypatch.setattr(offload.Offload, "ended", lambda self, *_: kept.extend(self.kept.values()))
    model = make("llama", num_hidden_layers=LAYERS)
    rowjit.transformers.apply(model, offload=MOVED)
    loss = model.train()(**batch()).loss
    assert any(reference() is not None for each in kept for reference in each.moved)
    loss.backward()
    assert all(reference() is None for each in kept for reference in each.moved)


def test_a_tensor_that_is_modified_after_it_was_moved_is_an_error():
    model = make("llama", num_hidden_layers=LAYERS)
    rowjit.transformers.apply(model, offload=MOVED)
    model.model.layers[0].mlp.register_forward_hook(lambda _, given, __: given[0].detach().add_(1))
    with pytest.raises(RuntimeError, match="modified in place"):
        model.train()(**batch())


def test_checkpointed_layers_are_left_to_checkpointing(done):
    model = make("llama", num_hidden_layers=LAYERS)
    rowjit.transformers.apply(model, offload=MOVED)
    model.gradient_checkpointing_enable()
    gradients(model)
    assert not done
