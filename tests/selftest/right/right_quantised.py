"""Right places for scales: in the queries and the output, in the working dtype, behind the products."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.quantising import QuantisedCall, TakenCodes
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.quantised import ALIGNED, FEATURES, QUANTISED
from attention_conformance.implementations.builtin.stepwise import quantised_steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.stored_keys import ScaledBy


def in_query_and_output(query: Tensor, key: Tensor, value: Tensor, *scales: Tensor, **options: Any) -> Tensor:
    """One scale for all keys of a head: queries take it before the product, the output after it."""
    groups = query.shape[1] // max(1, key.shape[1])
    of_key, of_value = (x.repeat_interleave(groups if len(x) > 1 else 1).reshape(-1, 1, 1) for x in scales)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    rows = query.to(wide) * of_key
    return (Steps()(rows, key.to(wide), value.to(wide), **options) * of_value).to(query.dtype)


def in_the_working_dtype(query: Tensor, key: Tensor, value: Tensor, *scales: Tensor, **options: Any) -> Tensor:
    """Keys and values become numbers of the working dtype, and everything is rounded to it."""
    rows = [
        (codes.to(scale.dtype) * correct.spread(scale, codes)).to(query.dtype)
        for codes, scale in zip((key, value), scales, strict=True)
    ]
    return Steps(wide=False)(query, *rows, **options)


def _made(name: str, function: Any, **fit: Any) -> Implementation:
    features = FEATURES - {Feature.CAUSAL}
    return Implementation(name, Claims(Scope.OP, features, ALIGNED, **fit), torch_op(QuantisedCall(function)))


OF_HEADS = TakenCodes(scaled_by=(ScaledBy.TENSOR, ScaledBy.HEAD))
RIGHT = (
    *QUANTISED,
    _made("quantised.in-query-and-output", in_query_and_output, fit=OF_HEADS),
    _made("quantised.in-the-working-dtype", in_the_working_dtype),
)
UNTAKEN = tuple(f"quantised.{each}" for each in ("sample-scales", "token-scales", "block-scales", "grouped"))
WITHOUT = {"quantised.in-query-and-output": UNTAKEN}
"""Clauses on scales that a style does not take."""
