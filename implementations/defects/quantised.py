"""Mistakes of chapter 32: codes that are read as other numbers, and scales that are left out, repeated or misplaced."""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.quantising import QuantisedCall
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.quantised import ALIGNED, FEATURES
from attention_conformance.implementations.builtin.stepwise import quantised_steps as correct
from attention_conformance.implementations.builtin.stepwise.quantised_steps import QuantisedSteps
from attention_conformance.implementations.defects.breaking import PRECISION, Breach, Facts
from attention_conformance.spec.features import Scope

PLAIN = ("scores.dot-product", "causal.square")


def _made(step: str, name: str, mistake: Callable[..., Any]) -> Implementation:
    whole: Any = QuantisedSteps(**{step: mistake}) if step else mistake
    return Implementation(name, Claims(Scope.OP, FEATURES, ALIGNED), torch_op(QuantisedCall(whole)))


def breaks_codes(*clauses: str, step: str = "", **facts: Unpack[Facts]) -> Breach:
    """A mistake of one step of `QuantisedSteps`; without one, it is a whole function of codes."""
    return Breach(clauses, partial(_made, step), {"holds": PLAIN, **facts})


breaks_spread = partial(breaks_codes, step="spread", holds=("quantised.int8", "scores.dot-product"))
ALL = ("quantised.int8", "quantised.float8", "quantised.head-scales")


@breaks_codes(*ALL, "quantised.causal", step="scale_keys")
def scales_of_keys_ignored(rows: Tensor, scale: Tensor) -> Tensor:
    return rows


@breaks_codes(*ALL, step="scale_values")
def scales_of_values_ignored(rows: Tensor, scale: Tensor) -> Tensor:
    return rows


@breaks_codes(*ALL, step="scale_keys")
def scales_of_keys_applied_twice(rows: Tensor, scale: Tensor) -> Tensor:
    return rows * scale * scale


@breaks_codes(*ALL, step="scale_values")
def divided_by_the_scale(rows: Tensor, scale: Tensor) -> Tensor:
    return rows / scale


@breaks_codes(*ALL)
def scales_of_keys_and_values_exchanged(*given: Any, **options: Any) -> Tensor:
    query, key, value, of_key, of_value = given
    return QuantisedSteps()(query, key, value, of_value, of_key, **options)


@breaks_codes("quantised.float8", step="numbers", holds=("quantised.int8", "scores.dot-product"))
def one_format_read_as_the_other(codes: Tensor, dtype: torch.dtype) -> Tensor:
    other = torch.float8_e4m3fn if codes.dtype is torch.float8_e5m2 else codes.dtype
    return codes.view(other).to(dtype)


@breaks_codes("quantised.int8", step="numbers", holds=("quantised.float8", "scores.dot-product"))
def codes_without_a_sign(codes: Tensor, dtype: torch.dtype) -> Tensor:
    return (codes.view(torch.uint8) if codes.dtype is torch.int8 else codes).to(dtype)


@breaks_codes("quantised.int8", "quantised.token-scales", step="spread", severity=PRECISION)
def scales_in_half_precision(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale.bfloat16(), rows)


@breaks_spread("quantised.head-scales", "quantised.sample-scales")
def scale_of_the_first_head(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale[..., :1] if scale.ndim < 3 else scale, rows)


@breaks_spread("quantised.sample-scales", holds=("quantised.head-scales", "quantised.token-scales"))
def head_scales_of_the_first_sample(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale[:1] if scale.ndim == 2 else scale, rows)


@breaks_spread("quantised.sample-scales", holds=("quantised.head-scales", "quantised.token-scales"))
def head_scales_with_samples_inside(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale.reshape(scale.shape[::-1]).T if scale.ndim == 2 else scale, rows)


@breaks_spread("quantised.sample-scales", holds=("quantised.head-scales", "quantised.token-scales"))
def one_scale_for_a_sample(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale[:, :1] if scale.ndim == 2 else scale, rows)


@breaks_spread("quantised.token-scales", "quantised.block-scales")
def scales_of_the_first_sample(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale[:1] if scale.ndim == 3 else scale, rows)


@breaks_spread("quantised.token-scales", "quantised.block-scales")
def scales_of_the_first_head_for_all_tokens(scale: Tensor, rows: Tensor) -> Tensor:
    return correct.spread(scale[:, :1] if scale.ndim == 3 else scale, rows)


@breaks_spread("quantised.block-scales")
def scales_of_blocks_by_turns(scale: Tensor, rows: Tensor) -> Tensor:
    if scale.ndim < 3:
        return correct.spread(scale, rows)
    return scale[..., torch.arange(rows.shape[2]) % scale.shape[-1]][..., None]


@breaks_spread("quantised.block-scales")
def blocks_rounded_down(scale: Tensor, rows: Tensor) -> Tensor:
    if scale.ndim < 3:
        return correct.spread(scale, rows)
    size = max(1, rows.shape[2] // scale.shape[-1])
    return scale[..., (torch.arange(rows.shape[2]) // size).clamp(max=scale.shape[-1] - 1)][..., None]


@breaks_codes("quantised.grouped", holds=("quantised.head-scales", "grouped.order"))
def scales_by_query_heads(*given: Any, **options: Any) -> Tensor:
    query, key, value, *scales = given
    if query.shape[1] != key.shape[1]:
        heads = torch.arange(key.shape[1]).repeat(query.shape[1] // key.shape[1])
        key, value = (x.to(query.dtype).repeat_interleave(len(heads) // x.shape[1], 1) for x in (key, value))
        scales = [s[heads] if s.ndim == 1 and len(s) > 1 else s[:, heads] if s.ndim == 3 else s for s in scales]
    return QuantisedSteps()(query, key, value, *scales, **options)
