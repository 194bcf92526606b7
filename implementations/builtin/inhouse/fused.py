"""Multi-head attention with one fused projection, over torch's scaled_dot_product_attention."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.builtin.inhouse import head_attention
from attention_conformance.implementations.builtin.inhouse.call_options import Options
from attention_conformance.implementations.builtin.inhouse.kernels import Kernel
from attention_conformance.implementations.builtin.inhouse.online import wide
from attention_conformance.implementations.builtin.inhouse.rotary import rotated_pair
from attention_conformance.implementations.builtin.inhouse.tile_masks import INFINITY, Masks
from attention_conformance.implementations.builtin.inhouse.tiled import in_tiles, normalised


class FusedAttention(nn.Module):
    """A drop-in for torch.nn.MultiheadAttention: its arguments, its calls and its state dict, and more options.

    The answers differ in two cases. A query that may see no key gets zeros, and not NaN. Returned weights are those
    before dropout.

    Args:
        embed_dim: the width of the query input and of the output; num_heads divides it.
        num_heads: each head is embed_dim / num_heads wide.
        dropout: the probability with which a weight is dropped in training.
        bias: whether the four projections have biases.
        add_bias_kv: whether a learned key and value follow the others, seen by every query.
        add_zero_attn: whether a key and value of zeros follow them.
        kdim: the width of the key input; None is embed_dim.
        vdim: the width of the value input; None is embed_dim.
        batch_first: inputs and output are (B, L, width), and not (L, B, width).
        device: of the parameters.
        dtype: of the parameters.
        num_kv_heads: heads of key and value, which divides num_heads; None is as many.
        window_size: as softcap and rotary_base, see `Options`.
        softcap: bounds the scores.
        rotary_base: query and key are rotated by their positions.
        rotary_dim: so many components of each head are rotated; None is all of them.
        relative_bias: the largest distance with a learned bias of its own; 0: there are none.
        sinks: whether each head has a learned logit without a value.
        head_gates: whether each head has a learned factor.
        qk_norm: "head" or "width": queries and keys are divided by the root of their mean square, over each head or
            over all, and multiplied by a learned gain, before they are rotated.
        norm_epsilon: what is added to that mean.
        kernel: how it is computed where weights are not returned; None chooses by shape, see `Kernel`.

    Raises:
        ValueError: a size below 1, or heads that do not divide the width.
    """

    in_proj_weight: Tensor
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    relative_bias: Tensor | None
    sinks: Tensor | None
    head_gates: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        num_kv_heads: int | None = None,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float | None = None,
        rotary_base: float | None = None,
        rotary_dim: int | None = None,
        relative_bias: int = 0,
        sinks: bool = False,
        head_gates: bool = False,
        qk_norm: str | None = None,
        norm_epsilon: float | None = None,
        kernel: Kernel | str | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_heads if num_kv_heads is None else num_kv_heads
        self.embed_dim, self.batch_first = embed_dim, batch_first
        self.kdim, self.vdim = (embed_dim if width is None else width for width in (kdim, vdim))
        self._check_sizes()
        self.dropout, self.add_zero_attn = dropout, add_zero_attn
        self.window_size, self.softcap = window_size, softcap
        self.rotary_base, self.rotary_dim = rotary_base, rotary_dim
        self.kernel = None if kernel is None else Kernel(kernel)
        keyed = self.num_kv_heads * (embed_dim // num_heads)
        form: dict[str, Any] = {"device": device, "dtype": dtype}
        one_head = embed_dim // num_heads
        gains = {"query": embed_dim, "key": keyed} if qk_norm == "width" else dict.fromkeys(("query", "key"), one_head)
        self.norm_epsilon = norm_epsilon
        self.projected = (embed_dim, keyed, keyed)
        self.packed = self.kdim == self.vdim == embed_dim
        shapes: dict[str, tuple[int, ...] | None] = {
            "in_proj_weight": (sum(self.projected), embed_dim) if self.packed else None,
            "q_proj_weight": None if self.packed else (embed_dim, embed_dim),
            "k_proj_weight": None if self.packed else (keyed, self.kdim),
            "v_proj_weight": None if self.packed else (keyed, self.vdim),
            "in_proj_bias": (sum(self.projected),) if bias else None,
            "bias_k": (1, 1, keyed) if add_bias_kv else None,
            "bias_v": (1, 1, keyed) if add_bias_kv else None,
            "relative_bias": (num_heads, 2 * relative_bias + 1) if relative_bias else None,
            "sinks": (num_heads,) if sinks else None,
            "head_gates": (num_heads,) if head_gates else None,
            "query_norm": (gains["query"],) if qk_norm else None,
            "key_norm": (gains["key"],) if qk_norm else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape, **form)))
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **form)
        self.reset_parameters()

    def _check_sizes(self) -> None:
        sizes = {n: getattr(self, n) for n in ("embed_dim", "num_heads", "kdim", "vdim", "num_kv_heads")}
        if min(sizes.values()) < 1 or self.embed_dim % self.num_heads or self.num_heads % self.num_kv_heads:
            named = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ValueError(
                "sizes must be at least 1, num_heads must divide embed_dim and num_kv_heads num_heads: got " + named
            )

    def reset_parameters(self) -> None:
        """Glorot's uniform weights, extra key and value (bias_kv) from a normal distribution, gates of 1, and zeros."""
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            elif name in ("bias_k", "bias_v"):
                nn.init.xavier_normal_(parameter)
            else:
                nn.init.constant_(parameter, 1.0 if name in ("head_gates", "query_norm", "key_norm") else 0.0)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from the query to the key sequence.

        Args:
            query: (B, Lq, embed_dim) if batch_first, else (Lq, B, embed_dim); without batch (Lq, embed_dim).
            key: the same with Lk and kdim; None is the query: self-attention.
            value: the same with Lk and vdim; None is the key.
            key_padding_mask: (B, Lk), True = masked out, or numbers that are added to the scores.
            need_weights: whether to return the weights too.
            attn_mask: (B * H, Lq, Lk), or what broadcasts to (B, H, Lq, Lk); True = masked out, or added numbers.
            average_attn_weights: whether to return their mean over the heads.
            is_causal: no query sees a later key, with and without a mask.
            options: scale, query_start, tables of rotations, slopes, and documents of a packed sequence; see `Options`.

        Returns:
            The output, shaped like the query, and the weights (B, H, Lq, Lk), their mean (B, Lq, Lk), or None. Lk
            counts the extra keys.

        Raises:
            ValueError: inputs or masks whose shapes do not fit.
        """
        key = query if key is None else key
        q, k, v = self._heads(query, key, key if value is None else value)
        padding = key_padding_mask if query.ndim == 3 or key_padding_mask is None else key_padding_mask[None]
        mask, padding = masks_of(attn_mask, padding, len(q), self.num_heads)
        call = Options(
            mask,
            padding,
            is_causal,
            window_size=self.window_size,
            softcap=self.softcap,
            relative_bias=self.relative_bias,
            sinks=self.sinks,
            enable_gqa=True,
            dropout_p=self.dropout if self.training else 0.0,
            **options,
        )
        heads, weights = self._attended(q, k, v, call, need_weights)
        del q, k, v  # their memory, still in the cache, is the output's
        if self.head_gates is not None:
            heads = heads * self.head_gates[:, None, None]
        output = self.out_proj(heads.transpose(1, 2).flatten(2))
        weights = weights.mean(1) if weights is not None and average_attn_weights else weights
        if query.ndim == 2:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """(B, H, Lq, d), (B, Hk, Lk, d) and (B, Hk, Lk, d)."""
        projected, width = self._projected(query, key, value), self.embed_dim // self.num_heads
        if query.ndim == 2:
            projected = tuple(x[None] for x in projected)
        elif not self.batch_first:
            projected = tuple(x.transpose(0, 1) for x in projected)
        (batch, _, _), *(keyed, valued) = (x.shape for x in projected)
        if not batch == keyed[0] == valued[0] or keyed[1] != valued[1]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            raise ValueError(f"all inputs must agree in B, key and value in length: got {shapes}")
        return tuple(x.view(batch, x.shape[1], x.shape[2] // width, width).transpose(1, 2) for x in projected)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """What the three inputs become, by one product for the roles that share an input."""
        bias = self.in_proj_bias
        if self.packed and query is key is value:
            together: tuple[Tensor, ...] = F.linear(query, self.in_proj_weight, bias).split(self.projected, -1)
            return together
        if self.packed and key is value:
            first, *others = self.projected
            weights = self.in_proj_weight.split((first, sum(others)))
            biases = (None, None) if bias is None else bias.split((first, sum(others)))
            return F.linear(query, weights[0], biases[0]), *F.linear(key, weights[1], biases[1]).split(others, -1)
        each = (None,) * 3 if bias is None else bias.split(self.projected)
        return tuple(map(F.linear, (query, key, value), self._weights(), each))

    def _weights(self) -> tuple[Tensor, ...]:
        if self.packed:
            return tuple(self.in_proj_weight.split(self.projected))
        return tuple(self.get_parameter(f"{role}_proj_weight") for role in "qkv")

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, call: Options[Tensor], need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The heads (B, H, Lq, d), and the weights if they are needed."""
        extra_kv = bool(self.add_zero_attn) + (self.bias_k is not None)
        masks = Masks.of(call, q, k)
        if self.query_norm is not None and self.key_norm is not None:
            gains = self.query_norm, self.key_norm
            q, k = (normalised(x, gain, self.norm_epsilon) for x, gain in zip((q, k), gains, strict=True))
        q, k = rotated_pair(q, k, masks, self.rotary_base, self.rotary_dim)
        if extra_kv:
            k, v = (torch.cat(rows, 2) for rows in self._further(k, v))
            masks = replace(masks, extra_kv=extra_kv)
        if need_weights:
            return head_attention.explicit(q, k, v, masks)
        if head_attention.expressible(masks):
            return head_attention.fused(q, k, v, masks, self.kernel), None
        precise = wide(q.dtype)
        return in_tiles(q.to(precise), k.to(precise), v.to(precise), masks)[0].to(q.dtype), None

    def _further(self, key: Tensor, value: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values, and those that follow, each (B, Hk, 1, d)."""
        rows = [key], [value]
        shape = (len(key), self.num_kv_heads, 1, key.shape[-1])
        if self.bias_k is not None and self.bias_v is not None:
            for learned, joined in zip((self.bias_k, self.bias_v), rows, strict=True):
                joined.append(learned.view(1, *shape[1:]).expand(shape))
        if self.add_zero_attn:
            for joined in rows:
                joined.append(joined[0].new_zeros(shape))
        return rows


def masks_of(
    mask: Tensor | None, padding: Tensor | None, batch: int, num_heads: int
) -> tuple[Tensor | None, Tensor | None]:
    """The masks of torch.nn.MultiheadAttention, True = masked out, as `Options` has them, True = may attend."""
    if mask is not None and mask.ndim == 3 and len(mask) == batch * num_heads:
        mask = mask.unflatten(0, (batch, num_heads))
    mask = ~mask if mask is not None and mask.dtype is torch.bool else mask
    if padding is None or padding.dtype is torch.bool:
        return mask, None if padding is None else ~padding
    added = padding[:, None, None, :]
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=added.dtype).masked_fill(~mask, -INFINITY)
    return added if mask is None else mask + added, None
