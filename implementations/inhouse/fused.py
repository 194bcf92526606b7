"""Multi-head attention with one fused projection over torch's scaled_dot_product_attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedAttention(nn.Module):
    """Multi-head attention with the specification's answers: True = may attend, empty rows are zeros.

    The parameters have the names of torch.nn.MultiheadAttention: `in_proj_weight` holds the three projections
    where the inputs are equally wide; otherwise each has a weight of its own.

    Args:
        embed_dim: the width of the query input and of the output; num_heads divides it.
        num_heads: each head is embed_dim / num_heads wide.
        kdim: the width of the key input; None is embed_dim.
        vdim: the width of the value input; None is embed_dim.
        bias: whether the four projections have biases.

    Raises:
        ValueError: a size below 1, or heads that do not divide the width.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        widths = (embed_dim, embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim)
        if min(num_heads, *widths) < 1 or embed_dim % num_heads:
            raise ValueError(
                f"sizes must be at least 1 and num_heads must divide embed_dim: got embed_dim={embed_dim}, "
                f"num_heads={num_heads}, kdim={kdim}, vdim={vdim}"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.packed = widths == (embed_dim,) * 3
        if self.packed:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        else:
            for role, width in zip("qkv", widths, strict=True):
                self.register_parameter(f"{role}_proj_weight", nn.Parameter(torch.empty(embed_dim, width)))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform weights, and biases of 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from the query to the key sequence.

        Args:
            query: (B, Lq, embed_dim).
            key: (B, Lk, kdim); None is the query: self-attention.
            value: (B, Lk, vdim); None is the key.
            attn_mask: broadcasts to (B, H, Lq, Lk); True = may attend, or numbers added to the scores.
            key_padding_mask: (B, Lk), True = may attend.
            is_causal: no query sees a later key; query and key 0 stand side by side.
            scale: multiplies the scores; None is 1 / sqrt(embed_dim / num_heads).
            need_weights: whether to return the weights too.

        Returns:
            The output (B, Lq, embed_dim), and the weights (B, H, Lq, Lk) or None.

        Raises:
            ValueError: inputs or masks whose shapes do not fit.
        """
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._projected(query, key, value)
        seen = _visible((*q.shape[:-1], k.shape[-2]), attn_mask, key_padding_mask, is_causal, q.device)
        k, v = seen.contain(k), seen.contain(v)
        attend = _explicit if need_weights else _fused
        heads, weights = attend(q, k, v, seen, scale)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Three times (B, H, L, embed_dim / num_heads)."""
        if key.shape[:2] != value.shape[:2] or len(query) != len(key):
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            raise ValueError(f"all inputs must agree in B, key and value in length: got {shapes}")
        if self.packed and query is key is value:
            q, k, v = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            q, k, v = map(F.linear, (query, key, value), self._weights(), biases)
        return self._split(q), self._split(k), self._split(v)

    def _weights(self) -> tuple[Tensor, ...]:
        if self.packed:
            return self.in_proj_weight.chunk(3)
        return tuple(self.get_parameter(f"{role}_proj_weight") for role in "qkv")

    def _split(self, projected: Tensor) -> Tensor:
        """(B, L, embed_dim) -> (B, H, L, embed_dim / num_heads)."""
        batch, length, width = projected.shape
        return projected.view(batch, length, self.num_heads, width // self.num_heads).transpose(1, 2)


@dataclass(frozen=True)
class _Visible:
    """All masks in one.

    Attributes:
        allowed: (B, H, Lq, Lk), True = may attend; None is all of them.
        added: a float mask as it was given, or None.
    """

    allowed: Tensor | None
    added: Tensor | None

    def contain(self, rows: Tensor) -> Tensor:
        """Keys or values (B, H, Lk, d) with zeros where no query may look: a weight of 0 times NaN is NaN."""
        return rows if self.allowed is None else rows.masked_fill(~self.allowed.any(-2)[..., None], 0.0)

    def mask(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores, and the rows (B, H, Lq, 1) that see nothing.

        In an empty row nothing is masked: its answer is put to zero afterwards, which cuts its gradients off,
        while a softmax over no key at all would send NaN back.
        """
        if self.allowed is None:
            return None if self.added is None else self.added.to(dtype), None
        empty = ~self.allowed.any(-1, keepdim=True)
        added = torch.zeros((), device=empty.device) if self.added is None else self.added
        return torch.where(self.allowed, added.to(dtype), float("-inf")).masked_fill(empty, 0.0), empty


def _visible(
    shape: tuple[int, ...],
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    device: torch.device,
) -> _Visible:
    kept: list[Tensor] = []
    added = None
    if attn_mask is not None:
        mask = _fitting("attn_mask", attn_mask, shape)
        added = None if mask.dtype is torch.bool else mask
        kept.append(mask if added is None else mask > float("-inf"))
    if key_padding_mask is not None:
        padding = _fitting("key_padding_mask", key_padding_mask, (shape[0], shape[-1]))
        kept.append(padding[:, None, None, :])
    if is_causal:
        kept.append(torch.ones(shape[-2:], dtype=torch.bool, device=device).tril())
    if not kept:
        return _Visible(None, None)
    allowed = torch.ones(shape, dtype=torch.bool, device=device)
    for each in kept:
        allowed = allowed & each
    return _Visible(allowed, added)


def _fitting(name: str, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name} {tuple(mask.shape)} does not broadcast to {shape}") from None


def _fused(q: Tensor, k: Tensor, v: Tensor, seen: _Visible, scale: float | None) -> tuple[Tensor, None]:
    """The kernel of torch, (B, H, Lq, d)."""
    added, empty = seen.mask(q.dtype)
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
    return (heads if empty is None else heads.masked_fill(empty, 0.0)), None


def _explicit(q: Tensor, k: Tensor, v: Tensor, seen: _Visible, scale: float | None) -> tuple[Tensor, Tensor]:
    """The equation, with the weights (B, H, Lq, Lk) at hand; half types are worked on in float32."""
    dtype = q.dtype
    q, k, v = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    added, empty = seen.mask(q.dtype)
    weights = (scores if added is None else scores + added).softmax(-1)
    weights = weights if empty is None else weights.masked_fill(empty, 0.0)
    return (weights @ v).to(dtype), weights.to(dtype)
