"""Mistakes of chapter 34: what latents are multiplied by, where the rotary part goes, and which tokens count."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.latent import LatentCall
from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.latent import ALIGNED, DIFFERENTIABLE
from attention_conformance.implementations.builtin.stepwise import latent_steps as correct
from attention_conformance.implementations.builtin.stepwise.latent_steps import LatentSteps
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, PRECISION, Breach, Facts
from attention_conformance.spec.features import Scope

PLAIN = ("scores.dot-product", "softmax.rows-sum-to-one")


def _made(step: str, name: str, mistake: Callable[..., Any]) -> Implementation:
    whole: Any = LatentSteps(**{step: mistake}) if step else mistake
    claims = Claims(Scope.OP, DIFFERENTIABLE, ALIGNED, fit=lengths_of_samples)
    return Implementation(name, claims, torch_op(LatentCall(whole)))


def breaks_latents(*clauses: str, step: str = "", **facts: Unpack[Facts]) -> Breach:
    """A mistake of one step of `LatentSteps`; without one, it is a whole function of latents."""
    return Breach(clauses, partial(_made, step), {"holds": PLAIN, **facts})


OF_KEYS = ("latent.values", "softmax.rows-sum-to-one")
OF_HEADS = (*PLAIN, "latent.values")
OF_ROTARY = (*PLAIN, "latent.scores", "latent.values")
breaks_keys = partial(breaks_latents, "latent.scores", "latent.widths", step="expand_keys", holds=OF_HEADS)
breaks_values = partial(breaks_latents, "latent.values", "latent.widths", step="expand_values")
breaks_rotary = partial(breaks_latents, "latent.rotary", "latent.scale", holds=OF_ROTARY)
breaks_scale = partial(breaks_latents, "latent.scale", step="factor", holds=("latent.values", "scores.scale-explicit"))


@breaks_scale()
def scale_of_the_expanded_part(widths: tuple[int, int, int]) -> float:
    return 1.0 / math.sqrt(widths[0])


@breaks_scale()
def scale_of_the_absorbed_width(widths: tuple[int, int, int]) -> float:
    return 1.0 / math.sqrt(widths[2] + widths[1])


@breaks_rotary()
def rotary_part_not_scaled(*given: Any, **options: Any) -> Tensor:
    query, rotary, *others = given
    width = query.shape[-1] + rotary.shape[-1]
    return LatentSteps()(query, rotary * width**0.5, *others, **options)


@breaks_rotary(step="rotary_query")
def rotary_part_left_out(query: Tensor) -> Tensor:
    return torch.zeros_like(query)


@breaks_rotary(step="rotary_query")
def rotary_part_added_twice(query: Tensor) -> Tensor:
    return 2.0 * query


@breaks_rotary(step="rotary_query")
def rotary_part_of_the_first_head(query: Tensor) -> Tensor:
    return query[:, :1].expand_as(query)


@breaks_rotary(step="rotary_key")
def rotary_part_of_the_token_before(key: Tensor, heads: int) -> Tensor:
    return correct.rotary_key(key.roll(1, 1), heads)


@breaks_rotary(step="join_keys")
def rotary_part_in_front_in_keys(expanded: Tensor, rotary: Tensor) -> Tensor:
    return torch.cat([rotary, expanded], -1)


@breaks_keys()
def matrix_of_keys_of_the_first_head(rows: Tensor, matrices: Tensor) -> Tensor:
    return correct.expand(rows, matrices[:1].expand_as(matrices))


@breaks_keys(holds=OF_KEYS)
def matrix_of_keys_read_as_its_transpose(rows: Tensor, matrices: Tensor) -> Tensor:
    heads, width, rank = matrices.shape
    return correct.expand(rows, matrices.reshape(heads, rank, width).transpose(-1, -2))


@breaks_keys()
def matrix_of_keys_with_components_before_heads(rows: Tensor, matrices: Tensor) -> Tensor:
    heads, width, rank = matrices.shape
    return correct.expand(rows, matrices.reshape(width, heads, rank).transpose(0, 1))


@breaks_values()
def values_of_the_next_head(rows: Tensor, matrices: Tensor) -> Tensor:
    return correct.expand(rows, matrices.roll(-1, 0))


@breaks_values()
def matrix_of_values_with_components_before_heads(rows: Tensor, matrices: Tensor) -> Tensor:
    heads, width, rank = matrices.shape
    return correct.expand(rows, matrices.reshape(width, heads, rank).transpose(0, 1))


@breaks_latents("latent.scores", "latent.scale", severity=PRECISION, holds=OF_KEYS)
def absorbed_queries_in_half_precision(*given: Any, **options: Any) -> Tensor:
    query, rotary, rows, key, up_key, up_value = given
    absorbed = (query @ up_key).bfloat16().to(query.dtype)
    selecting = torch.eye(rows.shape[-1], dtype=query.dtype).expand(len(up_key), -1, -1)
    options["scale"] = options.get("scale") or (query.shape[-1] + rotary.shape[-1]) ** -0.5
    return LatentSteps()(absorbed, rotary, rows, key, selecting, up_value, **options)


@breaks_latents("latent.lengths", step="held", severity=LEAK)
def tokens_of_the_longest_sample(lengths: Tensor, keys: int) -> Tensor:
    return correct.held(lengths.max().expand_as(lengths) if len(lengths) else lengths, keys)


@breaks_latents("latent.decode", "latent.causal", step="first_query", holds=(*PLAIN, "latent.lengths"))
def queries_at_the_first_tokens(lengths: Tensor, queries: int) -> Tensor:
    return torch.zeros_like(lengths)


breaks_gradients = partial(
    breaks_latents, "latent.gradients", severity=GRADIENT, holds=("latent.values", "latent.rotary", "gradients.query")
)


@breaks_gradients(step="expand_values")
def latents_without_the_gradient_of_values(rows: Tensor, matrices: Tensor) -> Tensor:
    return correct.expand(rows.detach(), matrices)


@breaks_gradients(step="expand_keys")
def matrix_of_keys_without_a_gradient(rows: Tensor, matrices: Tensor) -> Tensor:
    return correct.expand(rows, matrices.detach())


@breaks_gradients(step="rotary_key")
def rotary_gradient_of_one_head(key: Tensor, heads: int) -> Tensor:
    every = correct.rotary_key(key, heads)
    return torch.cat([every[:, :1], every[:, 1:].detach()], 1)


@breaks_gradients(step="expand_values")
def matrix_of_values_averaged_over_samples(rows: Tensor, matrices: Tensor) -> Tensor:
    every = correct.expand(rows.detach(), matrices)
    return correct.expand(rows, matrices.detach()) + (every - every.detach()) / len(rows)
