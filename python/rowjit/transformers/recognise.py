"""What a module computes, found out by computing it: each is run on small random tensors beside the formulas that rowjit
has, with its own children replaced by simple ones. A module that computes something else, in whatever way, is left.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Norm:
    """The options of rms_norm."""

    eps: float
    offset: float
    casting: str

    def formula(self, x: Tensor, weight: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.casting == "llama":
            scale = weight + self.offset if self.offset else weight
            return (scale * h.to(x.dtype)).to(x.dtype)
        return (h * (self.offset + weight.float())).to(x.dtype)


@dataclass(frozen=True)
class Gated:
    """A gated MLP: which of its children are what, and the operation between them."""

    operation: str
    form: str | None
    gate: str  # of both halves where there is no `up`
    up: str | None
    down: str


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of queries and keys: which elements turn together, and which rows of cosines and sines it makes
    of its tables, of which there may be `partial` ones for the first elements of a head."""

    pairing: str
    tables: str
    partial: bool

    def widened(self, table: Tensor) -> Tensor:
        return _TABLES[self.tables](table)


@dataclass(frozen=True)
class Layer:
    """A decoder layer: the children in the order of their calls, and what its branches are scaled by."""

    norm_before_attention: str
    attention: str
    norm_after_attention: str | None
    norm_before_mlp: str
    mlp: str
    norm_after_mlp: str | None
    scale: float


def _quietly(function: Callable[..., object], *arguments: object, **named: object) -> object:
    """The result, or None where the module cannot be run this way at all."""
    try:
        # What drops elements is not recognised, and takes nothing from the numbers that training will draw.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return function(*arguments, **named)
    except Exception:  # noqa: BLE001: a module of anybody's may raise anything
        return None


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _with_children(module: torch.nn.Module, children: dict[str, torch.nn.Module]) -> torch.nn.Module:
    """The module in training on other children; it itself stays as it is."""
    probe = copy.copy(module)
    probe.__dict__ = dict(module.__dict__)
    probe.__dict__["_modules"] = dict(children)
    probe.__dict__["training"] = True
    return probe


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: object, **named: object) -> object:
        return self.function(*arguments, **named)


def _same(found: object, expected: Tensor) -> bool:
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    return torch.allclose(found, expected)


# ---- Norms ---------------------------------------------------------------------------------------------------------


def recognise_norm(module: torch.nn.Module) -> Norm | None:
    """An RMS norm over the last dimension, of one parameter."""
    parameters = dict(module.named_parameters(recurse=False))
    if set(parameters) != {"weight"} or parameters["weight"].dim() != 1 or module._modules:
        return None
    eps = next((getattr(module, name) for name in ("variance_epsilon", "eps", "epsilon") if hasattr(module, name)), None)
    if not isinstance(eps, float):
        return None
    width = parameters["weight"].shape[0]
    # Modules of one class may differ in what their constructor was given, an offset say.
    given = frozenset((name, value) for name, value in vars(module).items() if isinstance(value, bool | int | float | str))
    key = (type(module), width, given - {("training", module.training)})
    if key not in _norms:
        _norms[key] = _try_norms(module, width, eps)
    return _norms[key]


_norms: dict[tuple[type, int, frozenset], Norm | None] = {}


def _try_norms(module: torch.nn.Module, width: int, eps: float) -> Norm | None:
    for offset, casting in itertools.product((0.0, 1.0), ("llama", "gemma")):
        norm = Norm(eps, offset, casting)
        # In bf16 the castings differ; a small row shows where eps stands.
        cases = [
            (_random(5, width, dtype=torch.bfloat16, seed=1), _random(width, dtype=torch.bfloat16, seed=2)),
            (_random(3, width, seed=3) * eps**0.5, _random(width, seed=4)),
        ]
        if all(_same(_run_norm(module, x, weight), norm.formula(x, weight)) for x, weight in cases):
            return norm
    return None


def _run_norm(module: torch.nn.Module, x: Tensor, weight: Tensor) -> object:
    probe = copy.copy(module)
    probe.__dict__ = dict(module.__dict__)
    probe.__dict__["_parameters"] = {"weight": torch.nn.Parameter(weight, requires_grad=False)}
    return _quietly(type(probe).forward, probe, x)


# ---- Gated MLPs ----------------------------------------------------------------------------------------------------

_ACTIVATIONS: dict[tuple[str, str | None], Callable[[Tensor], Tensor]] = {
    ("swiglu", None): torch.nn.functional.silu,
    ("geglu", "tanh"): functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    ("geglu", "erf"): torch.nn.functional.gelu,
    ("reglu", None): torch.nn.functional.relu,
}


def recognise_mlp(module: torch.nn.Module) -> Gated | None:
    """down(act(gate(x))·up(x)), the gate and up of one matrix or of two."""
    linear = [name for name, child in module.named_children() if isinstance(child, torch.nn.Linear)]
    others = {name: child for name, child in module.named_children() if name not in linear}
    if len(linear) not in (2, 3) or any(next(child.parameters(), None) is not None for child in others.values()):
        return None
    if any(isinstance(child, torch.nn.Dropout) and child.p > 0 for child in others.values()):
        return None
    x = _random(4, 8, seed=5)
    for names in itertools.permutations(linear):
        gate, down = names[0], names[-1]
        up = names[1] if len(names) == 3 else None
        stubs = {gate: _scale(0.7) if up else _Function(lambda x: torch.cat((0.7 * x, 1.3 * x), -1)), down: _scale(1.9)}
        if up:
            stubs[up] = _scale(1.3)
        found = _quietly(type(module).forward, _with_children(module, others | stubs), x)
        for (operation, form), activation in _ACTIVATIONS.items():
            if _same(found, activation(0.7 * x) * (1.3 * x) * 1.9):
                return Gated(operation, form, gate, up, down)
    return None


def _scale(factor: float) -> torch.nn.Module:
    return _Function(lambda x, *_, **__: x * factor)


# ---- Rotary embeddings ---------------------------------------------------------------------------------------------


def rotated(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """x {…, d} turned by tables of extent R ≤ d, in x's dtype: the first R elements."""
    width = cos.shape[-1]
    turning, rest = x[..., :width], x[..., width:]
    if pairing == "half":
        first, second = turning.chunk(2, -1)
        partner = torch.cat((-second, first), -1)
    else:
        partner = torch.stack((-turning[..., 1::2], turning[..., 0::2]), -1).flatten(-2)
    return torch.cat((turning * cos + partner * sin, rest), -1)


# Tables as wide as what turns; those of which the first half is read, each column for two neighbours (GLM's); and those of a
# column for each pair (gpt-oss's).
_TABLES: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda table: table,
    "first half": lambda table: table[..., : table.shape[-1] // 2].repeat_interleave(2, -1),
    "of pairs": lambda table: torch.cat((table, table), -1),
}


@functools.cache
def recognise_rotary(function: Callable[..., object]) -> Rotary | None:
    """Of a function of (q, k, cos, sin), q and k {batch, heads, sequence, d}."""
    for pairing, tables in itertools.product(("half", "interleaved"), _TABLES):
        rotary = Rotary(pairing, tables, partial=False)
        if _rotates(function, rotary, 8):
            return replace(rotary, partial=_rotates(function, rotary, 4))
    return None


def _rotates(function: Callable[..., object], rotary: Rotary, turning: int) -> bool:
    q, k = _random(2, 3, 5, 8, seed=6), _random(2, 2, 5, 8, seed=7)
    width = turning // 2 if rotary.tables == "of pairs" else turning
    cos, sin = _random(2, 5, width, seed=8), _random(2, 5, width, seed=9)
    found = _quietly(function, q, k, cos, sin)
    if not isinstance(found, tuple) or len(found) != 2:
        return False
    wide = [rotary.widened(table).unsqueeze(1) for table in (cos, sin)]
    return all(_same(y, rotated(x, *wide, rotary.pairing)) for y, x in zip(found, (q, k), strict=True))


# ---- Decoder layers ------------------------------------------------------------------------------------------------


def recognise_layer(module: torch.nn.Module, norms: set[str]) -> Layer | None:
    """A layer of two residual branches, attention and MLP, whose children named `norms` are RMS norms."""
    factors = dict(zip(module._modules, (1.1, 1.3, 1.7, 1.9, 2.3, 2.9, 3.1, 3.7, 4.1, 4.3), strict=False))
    if len(factors) != len(module._modules):
        return None
    if any(isinstance(child, torch.nn.Dropout) and child.p > 0 for child in module.children()):
        return None
    # An MLP of experts may give their scores too.
    for pairs in (set(), factors.keys() - norms):
        called: list[str] = []
        children: dict[str, torch.nn.Module] = {}
        for name, child in module.named_children():
            is_dropout = isinstance(child, torch.nn.Dropout)
            children[name] = torch.nn.Identity() if is_dropout else _Function(_branch(name, factors[name], called, name in pairs))
        x = _random(1, 2, 4, seed=10)
        found = _quietly(type(module).forward, _with_children(module, children), x, attention_mask=None, position_ids=None)
        if isinstance(found, Tensor):
            break
    else:
        return None
    scale = getattr(module, "residual_multiplier", 1.0)
    layer = _layer_of_calls(called, norms, scale if isinstance(scale, float) else 1.0)
    if layer is None:
        return None
    f = factors.__getitem__
    attended = x * f(layer.norm_before_attention) * f(layer.attention)
    attended = attended * (f(layer.norm_after_attention) if layer.norm_after_attention else 1.0)
    summed = x + attended * layer.scale
    out = summed * f(layer.norm_before_mlp) * f(layer.mlp) * (f(layer.norm_after_mlp) if layer.norm_after_mlp else 1.0)
    return layer if _same(found, summed + out * layer.scale) else None


def _branch(name: str, factor: float, called: list[str], is_pair: bool) -> Callable[..., object]:
    def run(*arguments: Tensor, **named: object) -> object:
        called.append(name)
        # Attention is called by keywords and gives its weights too.
        x = named["hidden_states"] if "hidden_states" in named else arguments[0]
        return (x * factor, None) if is_pair or "hidden_states" in named else x * factor

    return run


def _layer_of_calls(called: list[str], norms: set[str], scale: float) -> Layer | None:
    is_norm = [name in norms for name in called]
    if is_norm == [True, False, True, False]:
        return Layer(called[0], called[1], None, called[2], called[3], None, scale)
    if is_norm == [True, False, True, True, False, True]:
        return Layer(*called, scale)
    return None


# ---- Heads ---------------------------------------------------------------------------------------------------------


def recognise_head(model: torch.nn.Module) -> dict[str, float] | str:
    """What stands between the logits of a causal language model's head and its loss, as options of
    linear_cross_entropy; or why it is not recognised."""
    embeddings = getattr(model, "get_output_embeddings", lambda: None)()
    head = next((name for name, child in model.named_children() if child is embeddings), None)
    if head is None or type(embeddings) is not torch.nn.Linear:
        return "has no head that is a torch.nn.Linear of the model's own"
    base = [name for name in model._modules if name != head]
    if len(base) != 1:
        return f"has {', '.join(base) or 'nothing'} beside its head"
    hidden, labels = 3 * _random(1, 3, 5, seed=11), torch.zeros(1, 3, dtype=torch.int64)
    taken: list[Tensor] = []
    given: list[Tensor] = []

    def loss(logits: Tensor, *_: object, **__: object) -> Tensor:
        given.append(logits)
        return logits.sum()

    def project(x: Tensor) -> Tensor:
        taken.append(x)
        return x * 1.7

    children = {head: _Function(project), base[0]: _Function(lambda *_, **__: _Outputs(hidden))}
    probe = _with_children(model, children)
    probe.__dict__["_loss_function"] = loss
    out = _quietly(type(model).forward, probe, input_ids=labels, labels=labels)
    if out is None or len(given) != 1 or len(taken) != 1 or not _same(taken[0], hidden):
        return "does more between its last hidden state and its loss than a head does"
    logits = hidden * 1.7
    if _same(given[0], logits):
        return {}
    cap = getattr(model.config, "final_logit_softcapping", None)
    if isinstance(cap, int | float) and _same(given[0], cap * torch.tanh(logits / cap)):
        return {"softcap": float(cap)}
    factor = (given[0].double() * logits.double()).sum() / logits.double().square().sum()
    if factor > 0 and _same(given[0], logits * factor.float()):
        return {"temperature": 1 / factor.item()}
    return "changes its logits in a way that rowjit does not know"


class _Outputs(SimpleNamespace):
    """What a model without its head gives; fields that nobody set are None."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__(last_hidden_state=hidden)

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: int) -> Tensor:
        return self.last_hidden_state


def positional_names(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of a method's parameters after self."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
