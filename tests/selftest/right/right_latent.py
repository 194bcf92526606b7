"""Right forms of latent attention: rounded between all products, absorbed in the queries alone, and key by key."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.latent import LatentCall
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.latent import ALIGNED, DIFFERENTIABLE, LATENT
from attention_conformance.spec.features import Feature, Scope


def absorbed_in_the_working_dtype(*given: Tensor, scale: float | None = None) -> Tensor:
    """Every product is stored as it is given; both products of the scores are, before they are added."""
    q_nope, q_pe, rows, rotary, up_key, up_value = given
    by = (q_nope.shape[-1] + q_pe.shape[-1]) ** -0.5 if scale is None else scale
    scores = q_nope @ up_key @ rows[:, None].mT + q_pe @ rotary[:, None].mT
    return (scores * by).softmax(-1) @ rows[:, None] @ up_value.mT


def absorbed_in_the_queries(*given: Tensor, scale: float | None = None) -> Tensor:
    """Values are expanded, keys are not; queries take the scale."""
    q_nope, q_pe, rows, rotary, up_key, up_value = given
    by = (q_nope.shape[-1] + q_pe.shape[-1]) ** -0.5 if scale is None else scale
    query, keys = torch.cat([q_nope @ up_key, q_pe], -1) * by, torch.cat([rows, rotary], -1)
    return (query @ keys[:, None].mT).softmax(-1) @ (rows[:, None] @ up_value.mT)


def token_by_token(*given: Tensor, scale: float | None = None) -> Tensor:
    """A running softmax over the rows that all heads share, whose mixed latents are expanded once."""
    q_nope, q_pe, rows, rotary, up_key, up_value = given
    by = (q_nope.shape[-1] + q_pe.shape[-1]) ** -0.5 if scale is None else scale
    query = q_nope @ up_key
    top = torch.full(query.shape[:3], -torch.inf, dtype=query.dtype)
    whole, mixed = torch.zeros_like(top), torch.zeros_like(query)
    for row, key in zip(rows.unbind(1), rotary.unbind(1), strict=True):
        score = ((query * row[:, None, None]).sum(-1) + (q_pe * key[:, None, None]).sum(-1)) * by
        higher = torch.maximum(top, score)
        kept, share, top = (top - higher).exp(), (score - higher).exp(), higher
        whole, mixed = whole * kept + share, mixed * kept[..., None] + share[..., None] * row[:, None, None]
    return mixed / whole[..., None] @ up_value.mT


def _made(name: str, function: Any) -> Implementation:
    features = DIFFERENTIABLE - {Feature.CAUSAL, Feature.VALID_LENS}
    return Implementation(name, Claims(Scope.OP, features, ALIGNED), torch_op(LatentCall(function)))


RIGHT = (
    *LATENT,
    _made("latent.absorbed-in-the-working-dtype", absorbed_in_the_working_dtype),
    _made("latent.absorbed-in-the-queries", absorbed_in_the_queries),
    _made("latent.token-by-token", token_by_token),
)
