"""The losses of liger_kernel.chunked_loss by rowjit, against what papers and TRL's trainers write in PyTorch, in float64."""

import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_as_good, kernels_made

import rowjit.liger as liger
from rowjit.liger import chunked_loss
from rowjit.liger.chunked_loss import functional

PAIRS, LENGTH, WIDTH, CLASSES = 3, 7, 24, 40
KINDS = [(torch.float64, True), (torch.float64, False), (torch.float32, True), (torch.bfloat16, True)]


def head(bias, width=WIDTH, classes=CLASSES):
    return [torch.randn(classes, width) / 4, torch.randn(classes) if bias else None]


def ragged(sequences=2 * PAIRS):
    """Targets of sequences of which prompts and padding are ignored, of each at different places."""
    target = torch.randint(0, CLASSES, (sequences, LENGTH))
    for i in range(sequences):
        target[i, : i % 3] = -100
        target[i, LENGTH - i % 4 :] = -100
    return target


def check(module, formula, leaves, others, dtype):
    """A loss, its numbers and the gradients of `leaves` against the formula: close in float64, else as good as eager. Both
    are called with a dict of the operands by name; the formula gives the loss and, behind it, the numbers."""
    rounded = {name: x if x is None or not x.is_floating_point() else x.to(dtype) for name, x in (leaves | others).items()}

    def run(function, dtype):
        given = {name: x if x is None or not x.is_floating_point() else x.to(dtype) for name, x in rounded.items()}
        wanted = {name: given[name].requires_grad_() for name in leaves if given[name] is not None}
        results = function(given)
        loss, numbers = results if isinstance(results[1], tuple) else (results[0], tuple(results[1:]))
        if function is module:
            assert not any(number.requires_grad for number in numbers)
        return [loss.detach(), *(number.detach() for number in numbers)], torch.autograd.grad(loss, list(wanted.values()))

    (found, gradients), (exact, exact_gradients) = run(module, dtype), run(formula, torch.float64)
    assert len(found) == len(exact)
    if dtype == torch.float64:
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12, check_dtype=False)
        torch.testing.assert_close(gradients, exact_gradients, rtol=1e-9, atol=1e-12)
        return
    eager, eager_gradients = run(formula, dtype)
    for triple in zip(found, eager, exact, strict=True):
        assert triple[0].dtype == torch.float32
        assert_as_good(triple[0], triple[1].float(), triple[2], 8)  # sums in f32 of all logits
    for triple in zip(gradients, eager_gradients, exact_gradients, strict=True):
        assert_as_good(*triple, 2)


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def logits_of(given, hidden="hidden", weight="weight", bias="bias"):
    """A product, and a sum, each rounded, as Liger's and rowjit's."""
    logits = F.linear(given[hidden], given[weight])
    return wide(logits if given[bias] is None else logits + given[bias])


def scored(logits, target):
    """Log-probabilities of the tokens; whether they count."""
    return logits.log_softmax(-1).gather(-1, target.clamp(min=0)[..., None]).squeeze(-1), target != -100


def of_sequences(logp, counted, average):
    total = (logp * counted).sum(-1)
    return total / counted.sum(-1) if average else total


def preference(loss, average, nll=None, beta=0.3, with_reference=False, more=lambda *_: ()):
    """`loss` is a function of the chosen and the rejected sequences' log-ratios; `nll` the weight of the likelihood."""

    def formula(given):
        logits = logits_of(given)
        logp, counted = scored(logits, given["target"])
        sequences = of_sequences(logp, counted, average)
        ratios = sequences
        if with_reference:
            reference = scored(logits_of(given, "reference_hidden", "reference_weight", "reference_bias"), given["target"])[0]
            ratios = sequences - of_sequences(reference, counted, average).detach()
        of_likelihood, kept = logp[:PAIRS], counted[:PAIRS]
        if given.get("nll_target") is not None:
            of_likelihood, kept = scored(logits[:PAIRS], given["nll_target"][:PAIRS])
        likelihood = -(of_likelihood * kept).sum() / kept.sum() if nll is not None else logits.new_zeros(())
        chosen, rejected = ratios.chunk(2)
        numbers = (*sequences.chunk(2), *(half.mean() for half in logits.chunk(2)), likelihood, beta * chosen, beta * rejected)
        return (nll or 0) * likelihood + loss(chosen, rejected).mean(), (*numbers, *more(chosen, rejected))

    return formula


def pair_operands(bias):
    leaves = dict(zip(("hidden", "weight", "bias"), (torch.randn(2 * PAIRS, LENGTH, WIDTH) / 2, *head(bias)), strict=True))
    reference = (torch.randn(2 * PAIRS, LENGTH, 16) / 2, *head(bias, 16))
    return leaves, {
        "target": ragged(),
        **dict(zip(("reference_hidden", "reference_weight", "reference_bias"), reference, strict=True)),
    }


def apply_pairs(module, *more):
    return lambda given: module(given["weight"], given["hidden"], given["target"], given["bias"], *(given[name] for name in more))


REFERENCE = ("reference_hidden", "reference_weight", "reference_bias")
B = 0.3
DPO = {  # TRL's DPOTrainer and the papers it names; label_smoothing 0.1
    "sigmoid": lambda c, r: -F.logsigmoid(B * (c - r)),
    "hinge": lambda c, r: (1 - B * (c - r)).relu(),
    "exo_pair": lambda c, r: sum(
        (s * B * (c - r)).sigmoid() * (F.logsigmoid(s * B * (c - r)) - torch.tensor(p, dtype=c.dtype).log())
        for s, p in ((1, 0.9), (-1, 0.1))
    ),
    "nca_pair": lambda c, r: -F.logsigmoid(B * c) - 0.5 * F.logsigmoid(-B * c) - 0.5 * F.logsigmoid(-B * r),
    "robust": lambda c, r: (0.1 * F.logsigmoid(-B * (c - r)) - 0.9 * F.logsigmoid(B * (c - r))) / 0.8,
    "bco_pair": lambda c, r: -F.logsigmoid(B * c) - F.logsigmoid(-B * r),
    "sppo_hard": lambda c, r: (c - 0.5 / B) ** 2 + (r + 0.5 / B) ** 2,
    "apo_zero": lambda c, r: 1 - (B * c).sigmoid() + (B * r).sigmoid(),
    "apo_down": lambda c, r: (B * c).sigmoid() + 1 - (B * (c - r)).sigmoid(),
    "discopop": lambda c, r: -F.logsigmoid(B * (c - r)) * (1 - (B * (c - r) / 0.2).sigmoid())
    + (-B * (c - r)).exp() * (B * (c - r) / 0.2).sigmoid(),
}


@pytest.mark.parametrize("loss", DPO)
def test_every_kind_of_dpo_is_its_formula_with_a_reference(loss):
    module = liger.LigerFusedLinearDPOLoss(beta=B, loss_type=loss, label_smoothing=0.1, discopop_tau=0.2)
    check(apply_pairs(module, *REFERENCE), preference(DPO[loss], False, with_reference=True), *pair_operands(True), torch.float64)


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
@pytest.mark.parametrize("options", [
    {}, {"use_ref_model": False}, {"average_log_prob": True}, {"compute_nll_loss": True, "alpha": 0.7},
])
def test_dpo_with_and_without_reference_likelihood_and_means(options, dtype, bias):
    formula = preference(
        DPO["sigmoid"], options.get("average_log_prob", False), options.get("alpha"),
        with_reference=options.get("use_ref_model", True),
    )  # fmt: skip
    module = liger.LigerFusedLinearDPOLoss(beta=B, **options)
    check(apply_pairs(module, *REFERENCE), formula, *pair_operands(bias), dtype)


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
@pytest.mark.parametrize("average", [False, True])
def test_cpo_smooths_labels_and_adds_the_likelihood_of_the_chosen(average, dtype, bias):
    module = liger.LigerFusedLinearCPOLoss(beta=B, alpha=0.7, label_smoothing=0.2, average_log_prob=average)
    loss = lambda c, r: -0.8 * F.logsigmoid(B * (c - r)) - 0.2 * F.logsigmoid(-B * (c - r))  # noqa: E731
    check(apply_pairs(module), preference(loss, average, 0.7), *pair_operands(bias), dtype)


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
def test_simpo_is_of_means_with_a_margin(dtype, bias):
    module = liger.LigerFusedLinearSimPOLoss(beta=B, gamma=0.4, compute_nll_loss=False)
    check(apply_pairs(module), preference(lambda c, r: -F.logsigmoid(B * (c - r) - 0.4), True), *pair_operands(bias), dtype)


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
@pytest.mark.parametrize("other_target", [False, True])
def test_orpo_is_of_odds_and_gives_their_means(other_target, dtype, bias):
    def log_odds(c, r):
        return c - r - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))

    formula = preference(
        lambda c, r: -B * F.logsigmoid(log_odds(c, r)), True, 1.0,
        more=lambda c, r: (F.logsigmoid(log_odds(c, r)).mean(), log_odds(c, r).mean()),
    )  # fmt: skip
    leaves, others = pair_operands(bias)
    others["nll_target"] = ragged().flip(1) if other_target else None
    check(apply_pairs(liger.LigerFusedLinearORPOLoss(beta=B), "nll_target"), formula, leaves, others, dtype)


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
@pytest.mark.parametrize("options", [{"use_ref_model": True}, {"use_ref_model": False}, {"use_ref_model": True, "average_log_prob": True}])
@pytest.mark.parametrize("kl", [None, torch.tensor([0.4]), torch.tensor([-0.8])])
def test_kto_is_of_single_sequences_and_takes_the_divergence_as_it_is(kl, options, dtype, bias):
    desirable = torch.tensor([True, False, True, True, False, False])

    def formula(given):
        logits = logits_of(given)
        logp, counted = scored(logits, given["target"])
        sequences = of_sequences(logp, counted, options.get("average_log_prob", False))
        ratios = sequences
        if options["use_ref_model"]:
            reference = scored(logits_of(given, *REFERENCE), given["target"])[0]
            ratios = sequences - of_sequences(reference, counted, options.get("average_log_prob", False)).detach()
        z = 0 if kl is None else given["kl"]
        loss = (1 - (B * torch.where(desirable, ratios - z, z - ratios)).sigmoid()).mean()
        sums = (sequences, logits.sum((-2, -1)), B * ratios)
        return loss, tuple(each[labels].sum() for each in sums for labels in (desirable, ~desirable))

    def module(given):
        names = ("hidden", "weight", "target", "bias", "desirable", *REFERENCE, "kl")
        return liger.LigerFusedLinearKTOLoss(beta=B, **options)(*(given[name] for name in names))

    leaves, others = pair_operands(bias)
    if kl is not None:
        kl = kl.bfloat16()
    check(module, formula, leaves, others | {"desirable": desirable, "kl": kl}, dtype)


POLICIES = {
    "grpo": {}, "bnpo": {}, "dr_grpo": {"max_completion_length": 9}, "dapo": {}, "cispo": {"epsilon_high": 1.1}, "sapo": {},
    "luspo": {}, "vespo": {},
}  # fmt: skip


def policy(loss_type, beta=0.04, level="token", temperature=1.0, delta=None, corrected=False, items=None, epsilon_low=0.1, epsilon_high=0.15, **options):
    """TRL's GRPOTrainer."""

    def formula(given):
        logp = scored(logits_of(given) / temperature, given["ids"])[0]
        mask, a = given["mask"].to(logp.dtype), given["advantages"].to(logp.dtype)[:, None]
        old = logp.detach() if given["old"] is None else given["old"].to(logp.dtype)
        log_ratio = logp - old
        if level == "sequence":
            log_weight = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
        else:
            log_weight = log_ratio
        ratio = log_weight.exp()
        low, high = 1 - epsilon_low, 1 + epsilon_high
        sampling = 1 if given["sampling"] is None else given["sampling"].to(logp.dtype)
        clipped = torch.zeros_like(mask)
        if loss_type == "cispo":
            loss = -ratio.clamp(max=epsilon_high).detach() * a * logp * sampling
            clipped = (ratio > epsilon_high) & (a > 0)
        elif loss_type == "sapo":
            gate = lambda t: (t * (ratio - 1)).sigmoid() * 4 / t  # noqa: E731
            loss = -torch.where(a > 0, gate(1.0), gate(1.05)) * a * sampling
        elif loss_type == "vespo":
            w = ((log_ratio.detach().clamp(-20, 20) * mask).sum(-1, keepdim=True) + torch.as_tensor(sampling, dtype=logp.dtype).log().sum(-1, keepdim=True)).exp()
            loss = -torch.where(a >= 0, w**2 * (3 - 3 * w).exp(), w**3 * (2 - 2 * w).exp()) * a * logp
        else:
            clipped = ((ratio < low) & (a < 0)) | ((ratio > high) & (a > 0))
            loss = -torch.min((ratio if delta is None else ratio.clamp(max=delta)) * a, ratio.clamp(low, high) * a) * sampling
        numbers = ((clipped * mask).sum() / mask.sum(),)
        if beta:
            reference = logp.detach() if given["reference"] is None else given["reference"].to(logp.dtype)
            kl = (reference - logp).exp() - (reference - logp) - 1
            kl = kl * ratio if corrected else kl
            loss = loss + beta * kl
            numbers = ((kl * mask).sum() / mask.sum(), *numbers)
        total = (loss * mask).sum()
        return {
            "grpo": lambda: ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean(),
            "sapo": lambda: ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean(),
            "bnpo": lambda: total / mask.sum(),
            "dr_grpo": lambda: total / (len(mask) * options["max_completion_length"]),
            "luspo": lambda: (loss * mask.sum(1, keepdim=True)).mean(),
        }.get(loss_type, lambda: total / (items or mask.sum()))(), numbers

    return formula


def policy_operands(bias, old=True, reference=True, sampling=None):
    leaves, _ = pair_operands(bias)
    ids, mask = torch.randint(0, CLASSES, (2 * PAIRS, LENGTH)), torch.ones(2 * PAIRS, LENGTH, dtype=torch.int64)
    for i in range(2 * PAIRS):
        mask[i, 1 + i :] = 0
    rounded = {name: None if x is None else x.bfloat16().double() for name, x in leaves.items()}
    logp = scored(logits_of(rounded), ids)[0].float()
    near = lambda spread: logp + torch.randn_like(logp) * spread  # noqa: E731
    return leaves, {
        "ids": ids, "mask": mask, "advantages": torch.randn(2 * PAIRS).bfloat16(),
        "old": near(0.3).bfloat16() if old else None, "reference": near(0.3).bfloat16() if reference else None,
        "sampling": None if sampling is None else (torch.rand(sampling) + 0.5).bfloat16(),
    }  # fmt: skip


def apply_policy(items=None, **options):
    names = ("hidden", "weight", "ids", "mask", "advantages", "bias", "reference", "old")

    def module(given):
        loss = liger.LigerFusedLinearGRPOLoss(**options)
        return loss(*(given[name] for name in names), vllm_is_ratio=given["sampling"], num_items_in_batch=items)

    return module


@pytest.mark.parametrize(("dtype", "bias"), [(torch.float64, True), (torch.float32, False)])
@pytest.mark.parametrize("loss", POLICIES)
def test_every_kind_of_policy_loss_is_trls(loss, dtype, bias):
    options = {"epsilon_low": 0.1, "epsilon_high": 0.15} | POLICIES[loss]
    check(apply_policy(loss_type=loss, **options), policy(loss, **options), *policy_operands(bias), dtype)


@pytest.mark.parametrize("loss", [loss for loss in POLICIES if loss not in ("cispo", "sapo", "vespo")])
def test_ratios_of_whole_sequences_are_those_of_means(loss):
    options = {"epsilon_low": 0.1, "epsilon_high": 0.15} | POLICIES[loss]
    module = apply_policy(loss_type=loss, importance_sampling_level="sequence", **options)
    check(module, policy(loss, level="sequence", **options), *policy_operands(True), torch.float64)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "vespo"])
def test_policy_losses_correct_for_the_sampler_and_bound_ratios(loss):
    options = {"temperature": 0.7, "delta": 1.1, "beta": 0.1, "epsilon_low": 0.1, "epsilon_high": 0.15}
    operands = policy_operands(True, sampling=(2 * PAIRS, LENGTH))
    module = apply_policy(loss_type=loss, items=31, use_bias_correction_kl=True, **options)
    check(module, policy(loss, items=31, corrected=True, **options), *operands, torch.float64)


def test_a_policy_loss_without_old_log_probabilities_or_a_reference_is_on_policy():
    options = {"beta": 0.0, "epsilon_low": 0.1, "epsilon_high": 0.15}
    module = apply_policy(loss_type="dapo", use_ref_model=False, **options)
    check(module, policy("dapo", **options), *policy_operands(True, old=False, reference=False), torch.float64)


def test_a_reference_of_hidden_states_is_scored_by_its_head():
    leaves, others = policy_operands(True)
    reference = (torch.randn(2 * PAIRS, LENGTH, 16) / 2, *head(True, 16))
    logp = scored(F.linear(*reference), others["ids"])[0]
    given = [leaves["hidden"], leaves["weight"], others["ids"], others["mask"], others["advantages"], leaves["bias"]]
    module = liger.LigerFusedLinearGRPOLoss()
    by_head, numbers = module(*given, None, others["old"], *reference)
    expected, expected_numbers = module(*given, logp, others["old"])
    torch.testing.assert_close((by_head, *numbers), (expected, *expected_numbers))


def distillation(distance, hard, soft, over_all=False):
    def formula(given):
        student, teacher = logits_of(given), logits_of(given, "teacher_hidden", "teacher_weight", "teacher_bias")
        target = given["target"]
        hard_loss = F.cross_entropy(student, target)
        padded = F.pad(student, (0, teacher.shape[-1] - student.shape[-1]))
        rows = distance(padded, teacher.detach())
        count = (target != -100).sum()
        soft_loss = (rows if over_all else rows * (target != -100)).sum() / count
        return hard * hard_loss + soft * soft_loss, soft_loss, hard_loss

    return formula


def jsd(beta, temperature):
    def rows(student, teacher):
        q, p = (student / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
        m = (beta * p.exp() + (1 - beta) * q.exp()).log()
        kl = lambda a, b: (a.exp() * (a - b)).sum(-1)  # noqa: E731
        return kl(p, q) if beta == 0 else kl(q, p) if beta == 1 else beta * kl(p, m) + (1 - beta) * kl(q, m)

    return rows


def distillation_operands(bias, more_classes):
    tokens = 12
    leaves = dict(zip(("hidden", "weight", "bias"), (torch.randn(tokens, WIDTH), *head(bias)), strict=True))
    teacher = (torch.randn(tokens, 16), *head(bias, 16, CLASSES + more_classes))
    target = torch.randint(0, CLASSES, (tokens,)).index_fill_(0, torch.tensor([0, 5]), -100)
    return leaves, {"target": target, **dict(zip(("teacher_hidden", "teacher_weight", "teacher_bias"), teacher, strict=True))}


def apply_distillation(module):
    names = ("hidden", "weight", "teacher_hidden", "teacher_weight", "target", "bias", "teacher_bias")
    return lambda given: module(*(given[name] for name in names))


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
@pytest.mark.parametrize("more_classes", [0, 5])
@pytest.mark.parametrize(("beta", "temperature"), [(0.5, 1.0), (0.0, 2.0), (1.0, 0.7), (0.2, 1.0)])
def test_jsd_is_of_heads_and_beside_it_stands_the_cross_entropy(beta, temperature, more_classes, dtype, bias):
    options = {"weight_hard_loss": 0.3, "weight_soft_loss": 0.8, "beta": beta, "temperature": temperature}
    module = liger.LigerFusedLinearJSDLoss(return_soft_hard_loss=True, **options)
    formula = distillation(jsd(beta, temperature), 0.3, 0.8)
    check(apply_distillation(module), formula, *distillation_operands(bias, more_classes), dtype)


@pytest.mark.parametrize(("dtype", "bias"), KINDS)
def test_the_cosine_distance_is_over_all_tokens(dtype, bias):
    module = liger.LigerFusedLinearCosineSimilarityLoss(weight_hard_loss=0.3, weight_soft_loss=0.8, beta=0.4, return_soft_hard_loss=True)
    formula = distillation(lambda s, t: 0.4 * (1 - F.cosine_similarity(s, t, dim=-1)), 0.3, 0.8, over_all=True)
    check(apply_distillation(module), formula, *distillation_operands(bias, 0), dtype)


@pytest.mark.parametrize("name", ["JSD", "CosineSimilarity"])
def test_a_distillation_is_one_number_unless_its_parts_are_asked_for(name):
    leaves, others = distillation_operands(True, 0)
    kind = getattr(liger, f"LigerFusedLinear{name}Loss")
    for hard in (0.0, 0.5):
        loss = apply_distillation(kind(weight_hard_loss=hard))(leaves | others)
        parts = apply_distillation(kind(weight_hard_loss=hard, return_soft_hard_loss=True))(leaves | others)
        torch.testing.assert_close(loss, parts[0])
        torch.testing.assert_close(loss, hard * parts[2] + 0.5 * parts[1])


def test_sequences_of_another_length_and_batches_of_another_size_compile_nothing():
    def step(pairs, length):
        hidden, weight = torch.randn(2 * pairs, length, WIDTH, requires_grad=True), torch.randn(CLASSES, WIDTH, requires_grad=True)
        ids = torch.randint(0, CLASSES, (2 * pairs, length))
        loss = liger.LigerFusedLinearDPOLoss()(weight, hidden, ids, None, hidden.detach(), weight.detach())[0]
        policy_loss = liger.LigerFusedLinearGRPOLoss(use_ref_model=False)(hidden, weight, ids, torch.ones_like(ids), torch.randn(2 * pairs))[0]
        (loss + policy_loss).backward()

    step(2, 5)
    step(3, 9)
    made = kernels_made()
    step(4, 8)
    step(5, 12)
    assert kernels_made() == made


def test_the_teacher_and_the_reference_have_no_gradient():
    leaves, others = pair_operands(True)
    given = {name: x.requires_grad_() if x.is_floating_point() else x for name, x in (leaves | others).items()}
    loss, _ = apply_pairs(liger.LigerFusedLinearDPOLoss(), *REFERENCE)(given)
    assert torch.autograd.grad(loss, [given[name] for name in REFERENCE], allow_unused=True) == (None, None, None)
    leaves, others = distillation_operands(True, 0)
    given = {name: x.requires_grad_() if x.is_floating_point() else x for name, x in (leaves | others).items()}
    loss = apply_distillation(liger.LigerFusedLinearJSDLoss())(given)
    assert torch.autograd.grad(loss, given["teacher_weight"], allow_unused=True) == (None,)


def test_a_chunked_loss_takes_autocasts_dtype():
    leaves, others = pair_operands(True)
    module = apply_pairs(liger.LigerFusedLinearDPOLoss(), *REFERENCE)
    narrow = {name: x.bfloat16() if x.is_floating_point() else x for name, x in (leaves | others).items()}
    with torch.autocast("cpu", torch.bfloat16):
        found = module(leaves | others)
    torch.testing.assert_close(found[0], module(narrow)[0], rtol=0, atol=0)
    torch.testing.assert_close(found[1][:2], module(narrow)[1][:2], rtol=0, atol=0)


def test_what_no_loss_has_is_refused():
    leaves, others = policy_operands(True)
    for options, error, message in (
        ({"loss_type": "ppo"}, ValueError, "Unknown loss type: ppo"),
        ({"loss_type": "dr_grpo"}, AssertionError, "max_completion_length"),
        ({"loss_type": "sapo", "importance_sampling_level": "sequence"}, ValueError, "not supported for loss_type='sapo'"),
        ({"importance_sampling_level": "batch"}, ValueError, "Unknown importance sampling level"),
    ):
        with pytest.raises(error, match=message):
            apply_policy(**options)(leaves | others)
    for options, message in (
        ({"loss_type": "ipo"}, "Unsupported loss_type: ipo"),
        ({"loss_type": "exo_pair"}, "label_smoothing above 0"),
        ({"loss_type": "robust", "label_smoothing": 0.5}, "below 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            liger.LigerFusedLinearDPOLoss(**options)


def test_a_liger_kernel_without_triton_has_rowjit_behind_its_chunked_losses(tmp_path, monkeypatch):
    folder = tmp_path / "liger_kernel" / "chunked_loss"
    folder.mkdir(parents=True)
    (tmp_path / "liger_kernel" / "__init__.py").write_text("")
    (tmp_path / "liger_kernel" / "ops.py").write_text("import a_triton_that_is_not_there\n")
    (folder / "dpo_loss.py").write_text("class LigerFusedLinearDPOFunction:\n    apply = None\n")
    (folder / "functional.py").write_text(
        "from liger_kernel.chunked_loss.dpo_loss import LigerFusedLinearDPOFunction\n"
        "liger_fused_linear_dpo = LigerFusedLinearDPOFunction.apply\n"
    )
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("", ".chunked_loss", ".chunked_loss.dpo_loss", ".chunked_loss.functional")
    for name in names:
        monkeypatch.setitem(sys.modules, f"liger_kernel{name}", None)  # to be removed again, with what is imported now
        del sys.modules[f"liger_kernel{name}"]
    assert liger.install()
    assert sys.modules["liger_kernel.chunked_loss.dpo_loss"].LigerFusedLinearDPOFunction is chunked_loss.functions.LigerFusedLinearDPOFunction
    assert sys.modules["liger_kernel.chunked_loss.functional"].liger_fused_linear_dpo is functional.liger_fused_linear_dpo
