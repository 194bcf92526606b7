"""Observing: answers are named by what they are, claimed or not, and where they differ that is told."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, OP_FEATURES, Steps
from attention_conformance.implementations.defects.conventions import masked_nan_by_length
from attention_conformance.spec.features import Scope
from attention_conformance.tests.harness.judge.observed_conventions import (
    ALIGNMENT,
    DISAGREEMENTS,
    EMPTY_ROWS,
    FLAG_AND_MASK,
    FLOATS,
    INTEGERS,
    LEAST_NUMBER,
    NO_SAMPLE,
    PRECISION,
    SPOILT_KEYS,
    SPOILT_VALUES,
    observations,
)


def seen(function: Any, *points: Any) -> list[str]:
    found = observations(
        Implementation("seen", Claims(Scope.OP, OP_FEATURES), torch_op(function)), points, ("float64",)
    )
    return list(found.values())


def test_attention_in_steps() -> None:
    assert seen(Steps(), *EMPTY_ROWS, LEAST_NUMBER, ALIGNMENT, FLAG_AND_MASK) == [
        *["zeros"] * 3,
        "uniform",
        "top-left",
        "both hold",
    ]
    assert seen(Steps(), SPOILT_KEYS, SPOILT_VALUES, INTEGERS, FLOATS) == ["contained", "NaN", "added", "added"]
    assert seen(Steps(), NO_SAMPLE, PRECISION) == ["answered", "working"]


def test_other_answers_are_named() -> None:
    def nan(scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1)

    def corner(scores: Tensor) -> Tensor:
        later = torch.ones_like(scores).triu(1 + scores.shape[-1] - scores.shape[-2]).bool()
        return scores.masked_fill(later, -INFINITY)

    def single(scores: Tensor) -> Tensor:
        return torch.softmax(scores.float(), -1).to(scores.dtype)

    assert seen(Steps(softmax=nan), *EMPTY_ROWS) == ["nan"] * 3
    assert seen(Steps(add_causal=corner), ALIGNMENT) == ["bottom-right"]
    assert seen(Steps(softmax=single), PRECISION) == ["float32"]


def test_masks_that_are_refused_or_read_as_booleans() -> None:
    def booleans_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mask = options.get("attn_mask")
        if mask is not None and mask.dtype.is_floating_point:
            raise TypeError("a boolean mask is needed")
        return Steps()(query, key, value, **options | ({} if mask is None else {"attn_mask": mask.bool()}))

    assert seen(booleans_only, INTEGERS, FLOATS) == ["1 may attend", "refused"]


def test_answers_that_differ_are_told_with_where() -> None:
    (told,) = seen(masked_nan_by_length, SPOILT_VALUES)
    assert (
        told
        == "contained (float64 in a plain call, float64 while gradients are recorded); NaN (float64 in a plain call, "
        "float64 while gradients are recorded)"
    )


def test_questions_have_names_of_their_own() -> None:
    assert len({point.name for point in DISAGREEMENTS}) == len(DISAGREEMENTS)
