"""Latent attention: keys and values expanded in torch, and with the matrices absorbed in torch and NumPy."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.adapters.latent import LatentCall
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.latent_steps import LatentSteps
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array

FEATURES = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.VALUE_WIDTH,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.CAUSAL,
        Feature.SCALE,
        Feature.VALID_LENS,
        Feature.LATENT,
    }
)
"""What a function of latents offers."""
DIFFERENTIABLE = FEATURES | {Feature.GRADIENTS}
ALIGNED = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT_REAL)


def latent_attention(
    q_nope: Array,
    q_pe: Array,
    kv_c: Array,
    k_pe: Array,
    w_uk: Array,
    w_uv: Array,
    is_causal: bool = False,
    scale: float | None = None,
    valid_lens: Array | None = None,
) -> Array:
    """The same as `LatentSteps`, absorbed: queries take the matrix of the keys, mixed latents that of values.

    No key and no value of a head is made. All heads read the same rows, latents and rotary parts.

    Args:
        q_nope: (B, H, Lq, d_nope).
        q_pe: (B, H, Lq, d_rope).
        kv_c: (B, Lk, r).
        k_pe: (B, Lk, d_rope).
        w_uk: (H, d_nope, r).
        w_uv: (H, d_v, r).
        is_causal: no query sees a later key; the last query stands at the last key.
        scale: multiplies the scores; None is 1 / sqrt(d_nope + d_rope).
        valid_lens: (B,), how many tokens each sample has; None: all of them.
    """
    number = np.dtype(np.float64 if q_nope.dtype == np.float64 else np.float32).type
    (batch, keys), queries, width = kv_c.shape[:2], q_nope.shape[2], q_nope.shape[-1] + q_pe.shape[-1]
    rows = np.concatenate([kv_c, k_pe], -1).astype(number)[:, None]
    absorbed = np.concatenate([q_nope.astype(number) @ w_uk.astype(number), q_pe.astype(number)], -1)
    scores = absorbed @ rows.swapaxes(-1, -2) * number(width**-0.5 if scale is None else scale)
    lengths = np.full(batch, keys) if valid_lens is None else valid_lens
    last = lengths[:, None] - (np.arange(queries)[::-1] if is_causal else np.zeros(queries, int)) - 1
    scores = np.where(np.arange(keys) > last[:, None, :, None], -number(np.inf), scores)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), number(0), top))
    whole = weights.sum(-1, keepdims=True)
    mixed = weights @ rows[..., : kv_c.shape[-1]] / np.where(whole == 0, number(1), whole)
    return np.asarray((mixed @ w_uv.astype(number).swapaxes(-1, -2)).astype(q_nope.dtype))


def absorbed_attention(
    q_nope: Tensor,
    q_pe: Tensor,
    kv_c: Tensor,
    k_pe: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    valid_lens: Tensor | None = None,
) -> Tensor:
    """The same as `latent_attention` in torch, by its own kernel: one key head of latents and rotary parts.

    Its values are the latents; shapes and options are those of `latent_attention`.
    """
    (batch, keys), queries, width = kv_c.shape[:2], q_nope.shape[2], q_nope.shape[-1] + q_pe.shape[-1]
    number = torch.promote_types(q_nope.dtype, torch.float32)
    latents, *given = (x.to(number) for x in (kv_c, k_pe, q_nope, q_pe, w_uk, w_uv))
    rotary, of_latents, of_rotary, up_keys, up_values = given
    query = torch.cat([of_latents @ up_keys, of_rotary], -1)
    lengths = kv_c.new_full((batch,), keys, dtype=torch.int64) if valid_lens is None else valid_lens
    back = torch.arange(queries).flip(0) if is_causal else torch.zeros(queries, dtype=torch.int64)
    seen = torch.arange(keys) < (lengths[:, None] - back)[:, None, :, None]
    rows = torch.cat([latents, rotary], -1)[:, None], latents[:, None]
    factor = width**-0.5 if scale is None else scale
    mixed = F.scaled_dot_product_attention(query, *rows, seen, scale=factor, enable_gqa=True)
    mixed = mixed.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    return (mixed @ up_values.mT).to(q_nope.dtype)


IN_TORCH = Implementation(
    "inhouse.latent",
    Claims(Scope.OP, DIFFERENTIABLE, ALIGNED, fit=lengths_of_samples),
    torch_op(LatentCall(LatentSteps())),
    "keys and values of all heads expanded from one latent for each token, in torch",
)
IN_NUMPY = Implementation(
    "inhouse.latent.numpy",
    Claims(Scope.OP, FEATURES, ALIGNED, fit=lengths_of_samples),
    numpy_op(LatentCall(latent_attention)),
    "the same with the matrices absorbed into queries and output, in NumPy",
)
ABSORBED = Implementation(
    "inhouse.latent.absorbed",
    Claims(Scope.OP, DIFFERENTIABLE, ALIGNED, fit=lengths_of_samples),
    torch_op(LatentCall(absorbed_attention)),
    "the same absorbed, with torch's kernel for one key head of latents",
)
LATENT = (IN_TORCH, IN_NUMPY, ABSORBED)
"""In-house attention over latents, plain enough for an example."""
