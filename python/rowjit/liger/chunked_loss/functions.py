"""The autograd functions of liger_kernel.chunked_loss: classes with `apply`, arguments in Liger's order.

Preference and policy losses are functions of the tokens' log-probabilities, `fused_linear_log_probability`. No kernel knows
the length of a sequence, which trainers change from batch to batch: the backward makes the logits again, where
`rowjit.torch.functional.fused_linear_dpo` and its like make the gradients with the loss, by kernels of one length.
`chunk_size` and `compiled` are accepted and change nothing. References and teachers have no gradient.

The results are Liger's: the loss, and a tuple of numbers without gradient. Numbers are f32 where Liger rounds logits to the
operands' dtype before it adds them up. A sequence of no token has the log-probability 0, as a mean too, where Liger's is NaN.
"""

import math

import torch

from rowjit.torch import functional as F  # noqa: N812
from rowjit.torch.autocast import of_product
from rowjit.torch.head import linear_cross_entropy

Tensor = torch.Tensor


def _log_probability(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    *,
    ignore_index: int = -100,
    temperature: float = 1.0,
) -> Tensor:
    """Of the tokens' targets."""
    hidden, weight, bias = of_product(hidden, weight, bias)
    options = {"ignore_index": ignore_index, "temperature": None if temperature == 1.0 else temperature}
    return F.fused_linear_log_probability(hidden, weight, target, bias, **options)


def _of_sequences(logp: Tensor, counted: Tensor, average: bool) -> Tensor:
    total = logp.where(counted, 0).sum(-1)
    return total / _count(counted, -1) if average else total


def _count(counted: Tensor, *dimensions: int) -> Tensor:
    """What a mean divides by: a mean over nothing is 0."""
    return counted.sum(*dimensions).clamp(min=1)


@torch.no_grad()
def _sums_of_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of each sequence, over its tokens and the vocabulary: no logit is made for them."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    sums = (hidden.sum(-2, dtype=wide) * weight.sum(0, dtype=wide)).sum(-1)
    return sums if bias is None else sums + hidden.shape[-2] * bias.sum(dtype=wide)


# ---- Pairs -------------------------------------------------------------------------------------------------------------


class _Pairs:
    """Of chosen sequences, and behind them as many that are rejected: their log-probabilities, by halves and with a column
    for themselves as their only token, and the numbers that all losses of pairs give."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        ignore_index: int,
        average: bool,
        with_nll: bool,
        nll_target: Tensor | None = None,
    ) -> None:
        self.operands = (target, ignore_index, average)
        pairs = target.shape[0] // 2
        counted = target != ignore_index
        logp = _log_probability(hidden, weight, target, bias, ignore_index=ignore_index)
        sequences = _of_sequences(logp, counted, average)
        self.chosen, self.rejected = sequences.split(pairs)
        self.halves = tuple(half.unsqueeze(-1) for half in (self.chosen, self.rejected))
        self.masks = tuple(torch.ones_like(half, dtype=torch.bool) for half in self.halves)
        self.nll = sequences.new_zeros(())
        if with_nll and nll_target is None:
            self.nll = -logp[:pairs].where(counted[:pairs], 0).sum() / _count(counted[:pairs])
        elif with_nll:
            targets = nll_target[:pairs]
            operands = of_product(hidden[:pairs], weight, bias)
            total = linear_cross_entropy(*operands[:2], targets, operands[2], reduction="sum", ignore_index=ignore_index)
            self.nll = total / _count(targets != ignore_index)
        self.logits = [half.sum() / (half.numel() * target.shape[1] * weight.shape[0]) for half in _sums_of_logits(hidden, weight, bias).split(pairs)]

    @torch.no_grad()
    def reference(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        target, ignore_index, average = self.operands
        logp = _log_probability(hidden, weight, target, bias, ignore_index=ignore_index)
        sequences = _of_sequences(logp, target != ignore_index, average)
        chosen, rejected = sequences.unsqueeze(-1).split(target.shape[0] // 2)
        return chosen, rejected

    def results(self, preference: Tensor, *numbers: Tensor, alpha: float = 1.0) -> tuple[Tensor, tuple[Tensor, ...]]:
        own = (self.chosen, self.rejected, *self.logits, self.nll)
        return alpha * self.nll + preference, tuple(number.detach() for number in (*own, *numbers))


class LigerFusedLinearDPOFunction:
    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
        loss_type: str = "sigmoid",
        label_smoothing: float = 0.0,
        discopop_tau: float = 0.05,
        alpha: float = 1.0,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        require_dpo_loss(loss_type, label_smoothing)
        pairs = _Pairs(_input, weight, target, bias, ignore_index, average_log_prob, compute_nll_loss)
        reference = pairs.reference(ref_input, ref_weight, ref_bias) if use_ref_model else (None, None)
        options = {"loss": loss_type, "beta": beta, "tau": discopop_tau}
        if loss_type in _SMOOTHED:
            options["label_smoothing"] = label_smoothing
        preference, *rewards = F.dpo(*pairs.halves, *pairs.masks, *reference, rewards=True, **options)
        return pairs.results(preference, *rewards, alpha=alpha)


DPO_LOSSES = (
    "sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop",
)  # fmt: skip
_SMOOTHED = ("exo_pair", "robust")  # the others ignore label_smoothing


def require_dpo_loss(loss_type: str, label_smoothing: float) -> None:
    if loss_type not in DPO_LOSSES:
        raise ValueError(f"Unsupported loss_type: {loss_type}. Supported types are: {', '.join(DPO_LOSSES)}")
    if loss_type == "exo_pair" and label_smoothing <= 0:
        raise ValueError(f"loss_type exo_pair needs a label_smoothing above 0, as 1e-3; it is {label_smoothing}")
    if loss_type == "robust" and not 0 <= label_smoothing < 0.5:
        raise ValueError(f"loss_type robust needs a label_smoothing from 0 to below 0.5; it is {label_smoothing}")


class LigerFusedLinearORPOFunction:
    """Of the sequences' means. `nll_target` is what the likelihood is of, instead of the target; the logits of the chosen
    half are then made once more."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        nll_target: Tensor | None = None,
        compiled: bool = True,
        chunk_size: int = 1,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        pairs = _Pairs(_input, weight, target, bias, ignore_index, True, compute_nll_loss, nll_target)
        preference, *rewards = F.orpo(*pairs.halves, *pairs.masks, beta=beta, rewards=True)
        chosen, rejected = pairs.chosen.detach(), pairs.rejected.detach()
        log_odds = chosen - rejected - ((-chosen.exp()).log1p() - (-rejected.exp()).log1p())
        return pairs.results(preference, *rewards, torch.nn.functional.logsigmoid(log_odds).mean(), log_odds.mean())


class LigerFusedLinearCPOFunction:
    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        pairs = _Pairs(_input, weight, target, bias, ignore_index, average_log_prob, compute_nll_loss)
        options = {"beta": beta, "label_smoothing": label_smoothing}
        preference, *rewards = F.cpo(*pairs.halves, *pairs.masks, rewards=True, **options)
        return pairs.results(preference, *rewards, alpha=alpha)


class LigerFusedLinearSimPOFunction:
    """Of the sequences' means."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        gamma: float = 0.5,
        chunk_size: int = 1,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        pairs = _Pairs(_input, weight, target, bias, ignore_index, True, compute_nll_loss)
        options = {"loss": "simpo", "beta": beta, "gamma": gamma, "label_smoothing": label_smoothing}
        preference, *rewards = F.cpo(*pairs.halves, *pairs.masks, rewards=True, **options)
        return pairs.results(preference, *rewards, alpha=alpha)


# ---- Single sequences --------------------------------------------------------------------------------------------------


class LigerFusedLinearKTOFunction:
    """`kl` is one number, or one of each sequence, and is taken as it is: a trainer holds it above 0."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        preference_labels: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if preference_labels is None:
            raise AssertionError("preference_labels are missing; KTO needs to know which sequences are chosen")
        counted = target != ignore_index
        logp = _log_probability(_input, weight, target, bias, ignore_index=ignore_index)
        sequences = _of_sequences(logp, counted, average_log_prob)
        reference = torch.zeros_like(sequences)
        if use_ref_model:
            with torch.no_grad():
                of_tokens = _log_probability(ref_input, ref_weight, target, ref_bias, ignore_index=ignore_index)
                reference = _of_sequences(of_tokens, counted, average_log_prob)
        # Subtracted as the reference is, because kto would hold it above 0 and take its mean.
        shifted = reference if kl is None else reference + kl.detach()
        column = sequences.unsqueeze(-1)
        loss = F.kto(column, shifted.unsqueeze(-1), torch.ones_like(column, dtype=torch.bool), preference_labels, beta=beta)

        logp_of, ratios = sequences.detach(), (sequences - reference).detach()
        sums = (logp_of, _sums_of_logits(_input, weight, bias), beta * ratios)
        by_label = [(each * labels).sum() for each in sums for labels in (preference_labels, ~preference_labels)]
        return loss, tuple(by_label)


def _importance_weight(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """Its logarithm: of each token, or a column of the sequences' means."""
    if level == "token":
        return log_ratio
    if level == "sequence":
        return (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    raise ValueError(f"Unknown importance sampling level: {level}. Possible values are 'token' and 'sequence'.")


def _gamma_weight(
    log_ratio: Tensor, mask: Tensor, advantages: Tensor, sampling: Tensor | None, shapes: tuple[float, float, float, float]
) -> Tensor:
    """VESPO's φ(w) = wᵏ·exp(λ·(1 − w)), w the sequence's importance weight; k and λ by the advantage's sign."""
    k_pos, lambda_pos, k_neg, lambda_neg = shapes
    least = math.log(1e-8)
    log_w = (log_ratio.clamp(-20, 20) * mask).sum(-1, keepdim=True)
    if sampling is not None:
        log_w = log_w + sampling.log().clamp(least, 20).sum(-1, keepdim=True)
    log_w = log_w.clamp(least, 20)
    positive = advantages >= 0
    k = torch.full_like(advantages, k_neg).masked_fill(positive, k_pos)
    scale = torch.full_like(advantages, lambda_neg).masked_fill(positive, lambda_pos).clamp(min=1e-4)
    return (k * log_w + scale * (1 - log_w.exp())).exp().nan_to_num(0, 0, 0)


def _batch_tokens(mask: Tensor, num_items_in_batch: Tensor | float | None) -> Tensor:
    """Of the mask on all ranks, or given; a rank's part of them, because a trainer takes the mean over ranks."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = torch.distributed.get_world_size() if distributed else 1
    if isinstance(num_items_in_batch, Tensor):
        tokens = num_items_in_batch.to(mask.device, torch.float32)
    elif num_items_in_batch is not None:
        tokens = torch.full((), num_items_in_batch, dtype=torch.float32, device=mask.device)
    else:
        tokens = mask.sum(dtype=torch.float32)
        if distributed:
            torch.distributed.all_reduce(tokens)
    return (tokens / ranks).clamp(min=1)


class LigerFusedLinearGRPOFunction:
    """The numbers are the mean divergence from the reference, where beta is not 0, and the part of tokens that are clipped."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        beta: float = 0.04,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        vllm_is_ratio: Tensor | None = None,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
        num_items_in_batch: Tensor | float | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        _require_policy(loss_type, importance_sampling_level, max_completion_length, attention_mask, vllm_is_ratio)
        if use_ref_model and ref_per_token_logps is None and ref_input is None:
            raise AssertionError("use_ref_model needs ref_per_token_logps or ref_input")
        logp = _log_probability(_input, weight, selected_token_ids, bias, temperature=temperature)
        fixed = logp.detach()
        mask, a = attention_mask.to(logp.dtype), advantages.to(logp.dtype).unsqueeze(-1)
        old = fixed if old_per_token_logps is None else old_per_token_logps.detach().to(logp.dtype)
        sampling = vllm_is_ratio if vllm_is_ratio is None or vllm_is_ratio.dim() == 2 else vllm_is_ratio.unsqueeze(-1)

        log_ratio = logp - old
        log_weight = _importance_weight(log_ratio, mask, importance_sampling_level)
        ratio = log_weight.exp()
        low, high = 1 - epsilon_low, 1 + epsilon_high
        is_clipped = torch.zeros_like(ratio, dtype=torch.bool)
        if loss_type == "cispo":
            is_clipped = (ratio > epsilon_high) & (a > 0)
            loss = -ratio.detach().clamp(max=epsilon_high) * a * logp
        elif loss_type == "sapo":
            softness = torch.full_like(a, sapo_temperature_neg).masked_fill(a > 0, sapo_temperature_pos)
            loss = -(softness * (ratio - 1)).sigmoid() * 4 / softness * a
        elif loss_type == "vespo":
            shapes = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
            loss = -_gamma_weight(log_ratio.detach(), mask, a, sampling, shapes) * a * logp
            sampling = None
        else:
            is_clipped = (ratio < low) & (a < 0) | (ratio > high) & (a > 0)
            held = ratio if delta is None else ratio.clamp(max=delta)
            loss = -torch.minimum(held * a, ratio.clamp(low, high) * a)
        if sampling is not None:
            loss = loss * sampling

        tokens = _count(mask)
        numbers = [(is_clipped * mask).sum() / tokens]
        if beta != 0:
            reference = fixed
            if use_ref_model and ref_per_token_logps is not None:
                reference = ref_per_token_logps.detach().to(logp.dtype)
            elif use_ref_model:
                with torch.no_grad():
                    reference = _log_probability(ref_input, ref_weight, selected_token_ids, ref_bias, temperature=temperature)
            kl = (reference - logp).exp() - (reference - logp) - 1
            if use_bias_correction_kl:
                kl = kl * ratio
            loss = loss + beta * kl
            numbers.insert(0, (kl.detach() * mask).sum() / tokens)

        sequences = mask.shape[0]
        if loss_type in ("grpo", "sapo"):
            loss = ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).sum() / sequences
        elif loss_type == "bnpo":
            loss = (loss * mask).sum() / tokens
        elif loss_type == "dr_grpo":
            loss = (loss * mask).sum() / (sequences * max_completion_length)
        elif loss_type == "luspo":  # of every token, as TRL's and Liger's: those that the mask leaves out too
            loss = (loss * mask.sum(-1, keepdim=True)).mean()
        else:
            loss = (loss * mask).sum() / _batch_tokens(attention_mask, num_items_in_batch)
        return loss, tuple(numbers)


_POLICY_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


def _require_policy(loss: str, level: str, max_length: int | None, mask: Tensor, sampling: Tensor | None) -> None:
    if loss not in _POLICY_LOSSES:
        raise ValueError(f"Unknown loss type: {loss}")
    if level == "sequence" and loss in ("cispo", "sapo", "vespo"):
        raise ValueError(f"Sequence-level importance sampling is not supported for loss_type='{loss}'; it has token-level.")
    if loss == "dr_grpo" and max_length is None:
        raise AssertionError("max_completion_length must be provided for loss_type 'dr_grpo'")
    batch, length = mask.shape
    if sampling is not None and tuple(sampling.shape) not in ((batch,), (batch, 1), (batch, length)):
        raise AssertionError(f"vllm_is_ratio is {tuple(sampling.shape)}; ({batch},), ({batch}, 1) or ({batch}, {length}) is expected")


# ---- Distillation ------------------------------------------------------------------------------------------------------


class _Distillation:
    """The student's head and the teacher's, and the mean over the tokens that count. A student of fewer classes than the
    teacher has logits of 0 for those that it lacks."""

    def __init__(
        self,
        student: tuple[Tensor, Tensor, Tensor | None],
        teacher: tuple[Tensor, Tensor, Tensor | None],
        target: Tensor,
        ignore_index: int,
    ) -> None:
        self.student = of_product(*student)
        self.teacher = of_product(*(None if each is None else each.detach() for each in teacher))
        self.target, self.ignore_index = target, ignore_index
        self.count = _count(target != ignore_index)

    def heads(self) -> dict[str, Tensor | None]:
        hidden, weight, bias = self.student
        teacher_hidden, teacher_weight, teacher_bias = self.teacher
        missing = teacher_weight.shape[0] - weight.shape[0]
        if bias is not None or teacher_bias is not None:
            bias, teacher_bias = (head.new_zeros(head.shape[0]) if b is None else b for b, head in ((bias, weight), (teacher_bias, teacher_weight)))
        if missing > 0:
            weight = torch.nn.functional.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else torch.nn.functional.pad(bias, (0, missing))
        names = ("hidden", "weight", "bias", "teacher_hidden", "teacher_weight", "teacher_bias")
        return dict(zip(names, (hidden, weight, bias, teacher_hidden, teacher_weight, teacher_bias), strict=True))

    def hard_loss(self) -> Tensor:
        hidden, weight, bias = self.student
        options = {"reduction": "sum", "ignore_index": self.ignore_index}
        return linear_cross_entropy(hidden, weight, self.target, bias, **options) / self.count

    def results(
        self, soft_loss: Tensor, weight_hard: float, weight_soft: float, apart: bool
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        soft_loss = soft_loss / self.count
        if weight_hard == 0 and not apart:  # as the GKD trainer asks for
            return weight_soft * soft_loss
        with torch.set_grad_enabled(torch.is_grad_enabled() and weight_hard != 0):
            hard_loss = self.hard_loss()
        loss = weight_hard * hard_loss + weight_soft * soft_loss
        return (loss, soft_loss.detach(), hard_loss.detach()) if apart else loss


class _DistillationFunction:
    @staticmethod
    def soft_loss(heads: dict[str, Tensor | None], labels: Tensor, beta: float, ignore_index: int, temperature: float) -> Tensor:
        """Summed over the tokens."""
        raise NotImplementedError

    @classmethod
    def apply(
        cls,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        student, teacher = (student_input, student_weight, student_bias), (teacher_input, teacher_weight, teacher_bias)
        both = _Distillation(student, teacher, true_labels, ignore_index)
        soft = cls.soft_loss(both.heads(), true_labels, beta, ignore_index, temperature)
        return both.results(soft, weight_hard_loss, weight_soft_loss, return_soft_hard_loss)


class LigerFusedLinearJSDFunction(_DistillationFunction):
    """Logits are divided by the temperature in the divergence alone."""

    @staticmethod
    def soft_loss(heads: dict[str, Tensor | None], labels: Tensor, beta: float, ignore_index: int, temperature: float) -> Tensor:
        options = {"beta": beta, "ignore_index": ignore_index, "temperature": None if temperature == 1.0 else temperature}
        return F.fused_linear_jsd(**heads, target=labels, reduction="sum", **options)


class LigerFusedLinearCosineSimilarityFunction(_DistillationFunction):
    """`beta` scales the distance. It is added up over every token, those of ignored labels too, as Liger's; the temperature
    changes no angle."""

    @staticmethod
    def soft_loss(heads: dict[str, Tensor | None], labels: Tensor, beta: float, ignore_index: int, temperature: float) -> Tensor:
        return beta * F.fused_linear_cosine_distance(**heads, reduction="sum")


__all__ = [name for name in globals() if name.startswith("Liger")]  # noqa: PLE0605
