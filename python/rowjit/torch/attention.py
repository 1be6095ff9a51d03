"""Rotary embeddings in the layout of attention: heads before the sequence."""

import torch

from rowjit.torch import functional as F  # noqa: N812

Tensor = torch.Tensor


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: str = "half") -> tuple[Tensor, Tensor]:
    """Queries and keys (batch, heads, sequence, width) turned by tables (batch or 1, sequence, R), R ≤ width.

    transformers' function of that name, for both of its pairings, in one kernel. Heads that are transposed views of
    projections, as attention makes them, are read where they are.
    """
    rotary = 0 if cos.shape[-1] == q.shape[-1] else cos.shape[-1]
    turned = F.rope_qk(q.transpose(1, 2), k.transpose(1, 2), cos, sin, pairing=pairing, rotary=rotary)
    return turned[0].transpose(1, 2), turned[1].transpose(1, 2)


def apply_multimodal_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int]
) -> tuple[Tensor, Tensor]:
    """Qwen2-VL's: tables (3, batch, sequence, width), and the pairs of each stream."""
    _, height, width = mrope_section
    turned = (F.mrope(x.transpose(1, 2), cos, sin, height=height, width=width) for x in (q, k))
    first, second = (x.transpose(1, 2) for x in turned)
    return first, second
