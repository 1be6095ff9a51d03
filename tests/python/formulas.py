"""Every operation in PyTorch, as the frameworks write it, on tensors of any float dtype: in f64 it is the exact value,
in the operation's own dtype it is eager. A case makes the operands, "t5" a tensor (5 tokens, columns), "w" a weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
COLUMNS = 40
TOKENS = 6
LENGTH = 5  # tokens of a sequence

# What a divergence of two heads is off by is the order that their products are added up in, which is another on each
# processor, and the worst of one draw is chance: one of ten is a unit further from exact than eager's, where in the
# mean of 24 ours are nearer.
DRAWS = 16


@dataclass(frozen=True)
class Case:
    op: str
    operands: str  # a word for each
    formula: Callable[..., Tensor | tuple[Tensor, ...]]
    options: dict[str, object] = field(default_factory=dict)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    units: int = 1  # in the last place, over eager's own error
    draws: int = 1  # in the mean of so many


def make(word: str, dtype: torch.dtype) -> Tensor | None:
    """An operand by its word."""
    kinds: dict[str, Callable[[], Tensor | None]] = {
        "x": lambda: torch.randn(TOKENS, COLUMNS),
        "w": lambda: torch.randn(COLUMNS),
        "w3": lambda: torch.randn(3),
        "one": lambda: torch.randn(()),
        "batched": lambda: torch.randn(2, 3, COLUMNS),
        "of_batch": lambda: torch.randn(2, 1, COLUMNS),
        "image": lambda: torch.randn(2, 3, 4, 5),
        "of_image": lambda: torch.randn(3, 4),
        "heads": lambda: torch.randn(2, 3, 4, 8),
        "kv_heads": lambda: torch.randn(2, 3, 2, 8),
        "table": lambda: torch.randn(1, 3, 8),
        "head_weight": lambda: torch.randn(8),
        "packed": lambda: torch.randn(TOKENS, 2 * COLUMNS),
        "hidden": lambda: torch.randn(TOKENS, 24),
        "head": lambda: torch.randn(COLUMNS, 24) / 4,
        "logp": lambda: -torch.rand(TOKENS, COLUMNS) - 0.1,
        "states": lambda: torch.randn(TOKENS, LENGTH, 24) / 2,
        "pair_states": lambda: torch.randn(2, TOKENS, LENGTH, 24) / 2,
    }
    whole: dict[str, Callable[[], Tensor | None]] = {
        "none": lambda: None,
        "classes": lambda: torch.randint(0, COLUMNS, (TOKENS,)).index_fill_(0, torch.tensor([2]), -100),
        "every_class": lambda: torch.randint(0, COLUMNS, (TOKENS,)),
        "mask": lambda: torch.rand(TOKENS, COLUMNS) < 0.7,
        "flags": lambda: torch.tensor([True, False, True, True, False, False]),
        "ids": lambda: torch.tensor([[1, 4, 1], [0, 5, 5]]),
        "positions": lambda: torch.arange(3).expand(2, 3),
        "frequencies": lambda: 10.0 ** -torch.arange(0, 1, 0.25),
        "probabilities": lambda: torch.softmax(torch.randn(TOKENS, COLUMNS), -1),
        "advantage": lambda: torch.randn(TOKENS),
        "class_weight": lambda: torch.rand(COLUMNS),
        "token_weight": lambda: torch.rand(TOKENS),
        "pairs": lambda: torch.randn(2, 3, 8),
        "tokens": lambda: torch.randint(0, COLUMNS, (TOKENS, LENGTH)).index_fill_(1, torch.tensor([0]), -100),
        "pair_tokens": lambda: torch.randint(0, COLUMNS, (2, TOKENS, LENGTH)).index_fill_(2, torch.tensor([1]), -100),
        "scores": lambda: -torch.rand(TOKENS, LENGTH) - 3,
        "pair_scores": lambda: -torch.rand(2, TOKENS, LENGTH) - 3,
    }
    if word in whole:
        return whole[word]()
    return kinds[word]().to(dtype)


def wide(x: Tensor) -> Tensor:
    return x.double() if x.dtype == torch.float64 else x.float()


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    h = wide(x)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)


def llama(x: Tensor, w: Tensor, offset: float = 0.0) -> Tensor:
    return (w + offset if offset else w) * rms(x).to(x.dtype)


def gemma(x: Tensor, w: Tensor, offset: float = 1.0) -> Tensor:
    return (rms(x) * (offset + wide(w))).to(x.dtype)


def layer(x: Tensor, w: Tensor | None = None, b: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, eps)


def added(norm: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    return lambda x, residual, *more: (x + residual, norm(x + residual, *more))


def half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(-2) + torch.cat((-second, first), -1) * sin.unsqueeze(-2)


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    partner = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos.unsqueeze(-2) + partner * sin.unsqueeze(-2)


def by_positions(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    angles = positions[..., None].to(frequencies.dtype) * frequencies
    angles = torch.cat((angles, angles), -1)
    return half(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def complex_rope(x: Tensor, rotations: Tensor) -> Tensor:
    pairs = torch.view_as_complex(wide(x).unflatten(-1, (-1, 2)).contiguous())
    by = torch.view_as_complex(wide(rotations).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * by.unsqueeze(-2)).flatten(-2).to(x.dtype)


def poly(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = wide(x)
    return (wide(w[0]) * rms(h**3) + wide(w[1]) * rms(h**2) + wide(w[2]) * rms(h) + wide(b)).to(x.dtype)


def clipped(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def log_probabilities(logits: Tensor) -> Tensor:
    return F.log_softmax(wide(logits), -1)


def classes_loss(**options: object) -> Callable[..., Tensor]:
    return lambda logits, target, weight=None: F.cross_entropy(
        wide(logits), target if weight is None else target, None if weight is None else wide(weight), **options
    )


def head_loss(**options: object) -> Callable[..., Tensor]:
    loss = classes_loss(**options)
    return lambda hidden, head, target, bias=None, weight=None: loss(F.linear(hidden, head, bias), target, weight)


def picked(logits: Tensor, target: Tensor) -> Tensor:
    return log_probabilities(logits).gather(-1, target[:, None]).squeeze(-1)


def kl(student: Tensor, teacher: Tensor) -> Tensor:
    return F.kl_div(log_probabilities(student), log_probabilities(teacher), log_target=True, reduction="batchmean")


def tvd(student: Tensor, teacher: Tensor) -> Tensor:
    return (log_probabilities(student).exp() - log_probabilities(teacher).exp()).abs().sum(-1).mean() / 2


def cosine(student: Tensor, teacher: Tensor) -> Tensor:
    return (1 - F.cosine_similarity(wide(student), wide(teacher), dim=-1)).mean()


def first_greatest(x: Tensor) -> tuple[Tensor, Tensor]:
    order = x.argsort(dim=-1, descending=True, stable=True)[..., :4]
    return x.gather(-1, order), order.int()


def mixed(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    q, p = log_probabilities(student), log_probabilities(teacher)
    m = torch.logaddexp(p + torch.tensor(beta).log(), q + torch.tensor(1 - beta).log())
    kl = lambda a: (a.exp() * (a - m)).sum(-1).mean()  # noqa: E731
    return beta * kl(p) + (1 - beta) * kl(q)


def kept(x: Tensor, mask: Tensor) -> Tensor:
    return (wide(x) * mask).sum(-1)


def dpo(chosen: Tensor, rejected: Tensor, chosen_mask: Tensor, rejected_mask: Tensor, rc: Tensor, rr: Tensor) -> Tensor:
    c = kept(chosen, chosen_mask) - kept(rc, chosen_mask)
    r = kept(rejected, rejected_mask) - kept(rr, rejected_mask)
    return -F.logsigmoid(0.1 * (c - r)).mean()


def cpo(chosen: Tensor, rejected: Tensor, chosen_mask: Tensor, rejected_mask: Tensor) -> Tensor:
    return -F.logsigmoid(0.1 * (kept(chosen, chosen_mask) - kept(rejected, rejected_mask))).mean()


def orpo(chosen: Tensor, rejected: Tensor, chosen_mask: Tensor, rejected_mask: Tensor) -> Tensor:
    c, r = kept(chosen, chosen_mask) / chosen_mask.sum(-1), kept(rejected, rejected_mask) / rejected_mask.sum(-1)
    odds = (c - r) - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))
    return -0.1 * F.logsigmoid(odds).mean()


def kto(logp: Tensor, reference: Tensor, mask: Tensor, desirable: Tensor) -> Tensor:
    x = kept(logp, mask) - kept(reference, mask)
    return torch.where(desirable, 1 - torch.sigmoid(0.1 * x), 1 - torch.sigmoid(-0.1 * x)).mean()


def grpo(logp: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, reference: Tensor) -> Tensor:
    ratio, a = (wide(logp) - wide(old)).exp(), wide(advantage)[:, None]
    d = wide(reference) - wide(logp)
    loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) + 0.04 * (d.exp() - d - 1)
    return ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def of_heads(distance: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda hidden, head, _, teacher, teacher_head: distance(F.linear(hidden, head), F.linear(teacher, teacher_head))


def scored(hidden: Tensor, head: Tensor, target: Tensor) -> Tensor:
    return log_probabilities(F.linear(hidden, head)).gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)


def of_pairs(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of a policy's head, and of a reference's if there is one, or of the log-probabilities in its place."""

    def whole(hidden: Tensor, head: Tensor, target: Tensor, *reference: Tensor) -> Tensor:
        logp, mask = scored(hidden, head, target), target != -100
        by_head = len(reference) == 2
        others = (scored(*reference, target),) if by_head else reference
        return loss(*logp.unbind(), *mask.unbind(), *[half for other in others for half in other.unbind()])

    return whole


def fused_kto(hidden: Tensor, head: Tensor, target: Tensor, desirable: Tensor, reference: Tensor, weight: Tensor) -> Tensor:
    return kto(scored(hidden, head, target), scored(reference, weight, target), target != -100, desirable)


def fused_grpo(hidden: Tensor, head: Tensor, target: Tensor, advantage: Tensor, old: Tensor, reference: Tensor, weight: Tensor) -> Tensor:
    logp, others = scored(hidden, head, target), scored(reference, weight, target)
    return grpo(logp, old, advantage, target != -100, others)


def sparsemax(x: Tensor) -> Tensor:
    ordered = wide(x).sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = (ordered * torch.arange(1, x.shape[-1] + 1) > sums).sum(-1, keepdim=True)
    return (wide(x) - sums.gather(-1, count - 1) / count).clamp(min=0).to(x.dtype)


def codes(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = wide(x).abs().amax(-1) / 127
    return (wide(x) / scale[:, None]).round().int(), scale


F32 = (torch.float32,)
CASES = (
    Case("rms_norm", "x w", llama),
    Case("rms_norm", "x none", lambda x, _: rms(x).to(x.dtype)),
    Case("rms_norm", "x w", gemma, {"casting": "gemma", "offset": 1.0}),
    Case("add_rms_norm", "x x w", added(llama)),
    Case("layer_norm", "x w w", layer),
    Case("layer_norm", "x none none", lambda x, *_: layer(x)),
    Case("add_layer_norm", "x x w w", added(layer)),
    Case("group_norm", "image of_image of_image",
         lambda x, w, b: F.group_norm(x.flatten(1, 2), 3, w.flatten(), b.flatten()).view(x.shape)),
    Case("modulated_rms_norm", "batched of_batch of_batch",
         lambda x, scale, shift: rms(x).to(x.dtype) * (1 + scale) + shift),
    Case("modulated_layer_norm", "x w w", lambda x, scale, shift: layer(x, eps=1e-6) * (1 + scale) + shift),
    Case("gated_rms_norm", "x x w", lambda x, gate, w: (wide(w * rms(x).to(x.dtype)) * F.silu(wide(gate))).to(x.dtype)),
    Case("l2_norm", "x", lambda x: (wide(x) * torch.rsqrt(wide(x).pow(2).sum(-1, keepdim=True) + 1e-6)).to(x.dtype)),
    Case("l2_norm", "x", lambda x: F.normalize(wide(x), dim=-1, eps=1e-6).to(x.dtype), {"form": "clamp"}),
    Case("poly_norm", "x w3 one", poly),
    Case("dynamic_tanh", "x one w w",
         lambda x, a, w, b: (torch.tanh(wide(a) * wide(x)) * wide(w) + wide(b)).to(x.dtype)),
    Case("silu", "x", F.silu),
    Case("silu", "x w", lambda x, b: F.silu(x + b)),
    Case("gelu", "x", F.gelu),
    Case("gelu", "x", lambda x: F.gelu(x, approximate="tanh"), {"form": "tanh"}),
    Case("relu", "x", F.relu),
    Case("relu2", "x", lambda x: F.relu(x).square()),
    Case("quick_gelu", "x", lambda x: x * torch.sigmoid(1.702 * x)),
    Case("swiglu", "x x", lambda gate, up: F.silu(gate) * up),
    Case("swiglu", "packed", lambda packed: F.silu(packed.chunk(2, -1)[0]) * packed.chunk(2, -1)[1]),
    Case("geglu", "x x", lambda gate, up: F.gelu(gate, approximate="tanh") * up),
    Case("geglu", "x x", lambda gate, up: F.gelu(gate) * up, {"form": "erf"}),
    Case("reglu", "x x", lambda gate, up: F.relu(gate) * up),
    Case("glu", "x x", lambda value, gate: F.glu(torch.cat((value, gate), -1), -1)),
    Case("clipped_swiglu", "x x", clipped),
    Case("rope", "heads table table", half),
    Case("rope", "heads table table", interleaved, {"pairing": "interleaved"}),
    Case("rope_qk", "heads kv_heads table table", lambda q, k, cos, sin: (half(q, cos, sin), half(k, cos, sin))),
    Case("qk_norm_rope", "heads kv_heads head_weight head_weight table table",
         lambda q, k, wq, wk, cos, sin: (half(llama(q, wq), cos, sin), half(llama(k, wk), cos, sin))),
    Case("rope_positions", "heads positions frequencies", by_positions),
    Case("rope_complex", "heads pairs", complex_rope),
    Case("scale_add", "x x", lambda x, residual, scale=0.5: residual + x * scale, {"scale": 0.5}),
    Case("scale_add", "x x w", lambda x, residual, scales: residual + x * scales),
    Case("embedding", "x ids", lambda table, ids: F.embedding(ids, table)),
    Case("softmax", "x", lambda x: F.softmax(x, -1)),
    Case("log_softmax", "x", lambda x: F.log_softmax(x, -1)),
    Case("logsumexp", "x", lambda x: torch.logsumexp(wide(x), -1).to(x.dtype)),
    Case("sparsemax", "x", sparsemax),
    Case("top_k", "x", first_greatest),
    Case("gradient_norm", "x", lambda gradient: wide(gradient).square().sum().sqrt()),
    Case("cross_entropy", "x classes", classes_loss()),
    Case("cross_entropy", "x classes", classes_loss(reduction="sum"), {"reduction": "sum"}),
    Case("cross_entropy", "x classes", classes_loss(reduction="none"), {"reduction": "none"}),
    Case("cross_entropy", "x classes", classes_loss(label_smoothing=0.1), {"label_smoothing": 0.1}),
    Case("cross_entropy", "x classes class_weight", classes_loss()),
    Case("cross_entropy", "x classes none", lambda x, t, _: F.cross_entropy(wide(x) / 2, t), {"temperature": 2.0}),
    Case("cross_entropy", "x classes", lambda x, t: F.cross_entropy(3 * torch.tanh(wide(x) / 3), t), {"softcap": 3.0}),
    Case("cross_entropy", "x every_class",
         lambda x, t: (F.cross_entropy(wide(x), t), torch.logsumexp(wide(x), -1)), {"lse": True}),
    Case("fused_linear_cross_entropy", "hidden head classes", head_loss()),
    Case("fused_linear_cross_entropy", "hidden head classes w", head_loss(label_smoothing=0.1), {"label_smoothing": 0.1}),
    Case("fused_linear_cross_entropy", "hidden head classes none class_weight", head_loss()),
    Case("fused_linear_log_probability", "hidden head every_class", lambda h, w, t: picked(F.linear(h, w), t)),
    Case("selective_log_probability", "x every_class", picked),
    Case("kl_div", "x x", kl),
    Case("reverse_kl", "x x", lambda s, t: kl(t, s)),
    Case("jsd", "x x", mixed),
    Case("tvd", "x x", tvd),
    Case("cosine_distance", "x x", cosine),
    Case("fused_linear_kl_div", "hidden head none hidden head", of_heads(kl), draws=DRAWS),
    Case("fused_linear_kl_div", "hidden head x", lambda h, w, t: kl(F.linear(h, w), t), draws=DRAWS),
    Case("fused_linear_reverse_kl", "hidden head none hidden head", of_heads(lambda s, t: kl(t, s)), draws=DRAWS),
    Case("fused_linear_jsd", "hidden head none hidden head", of_heads(mixed), draws=DRAWS),
    Case("fused_linear_tvd", "hidden head none hidden head", of_heads(tvd), draws=DRAWS),
    Case("fused_linear_cosine_distance", "hidden head none hidden head", of_heads(cosine)),
    Case("fused_linear_dpo", "pair_states head pair_tokens none none pair_states head",
         lambda h, w, t, _, __, r, v: of_pairs(dpo)(h, w, t, r, v)),
    Case("fused_linear_dpo", "pair_states head pair_tokens none pair_scores",
         lambda h, w, t, _, r: of_pairs(dpo)(h, w, t, r)),
    Case("fused_linear_cpo", "pair_states head pair_tokens", of_pairs(cpo)),
    Case("fused_linear_orpo", "pair_states head pair_tokens", of_pairs(orpo)),
    Case("fused_linear_kto", "states head tokens flags none none none states head",
         lambda h, w, t, d, _, __, ___, r, v: fused_kto(h, w, t, d, r, v)),
    Case("fused_linear_policy_loss", "states head tokens advantage scores none none states head",
         lambda h, w, t, a, o, _, __, r, v: fused_grpo(h, w, t, a, o, r, v)),
    Case("sequence_log_probability", "logp mask", kept),
    Case("dpo", "logp logp mask mask logp logp", dpo),
    Case("cpo", "logp logp mask mask", cpo),
    Case("orpo", "logp logp mask mask", orpo),
    Case("kto", "logp logp mask flags", kto),
    Case("policy_loss", "logp logp advantage mask logp", grpo),
    Case("quantize", "x", codes, dtypes=F32),
)
