"""Observed conventions: answers are named by what they are, claimed or not; where they differ, each has its paths."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, OP_FEATURES, Steps
from attention_conformance.implementations.defects.conventions import masked_nan_by_length
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.judge import observed_conventions as observed
from attention_conformance.tests.harness.run.runner import run


def answers(function: Any, *points: Any) -> list[str]:
    implementation = Implementation("observed", Claims(Scope.OP, OP_FEATURES), torch_op(function))
    return list(observed.observations(implementation, points, ("float64",)).values())


def test_attention_in_steps() -> None:
    assert answers(Steps(), *observed.DISAGREEMENTS) == [
        *["zeros"] * 3,
        "uniform",
        "top-left",
        "both hold",
        "contained",
        "NaN",
        *["added"] * 2,
        *["answered"] * 2,
        "zeros",
        "working",
    ]


def test_other_answers_are_named() -> None:
    def nan(scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1)

    def corner(scores: Tensor) -> Tensor:
        later = torch.ones_like(scores).triu(1 + scores.shape[-1] - scores.shape[-2]).bool()
        return scores.masked_fill(later, -INFINITY)

    def single(scores: Tensor) -> Tensor:
        return torch.softmax(scores.float(), -1).to(scores.dtype)

    assert answers(Steps(softmax=nan), *observed.EMPTY_ROWS) == ["nan"] * 3
    assert answers(Steps(add_causal=corner), observed.ALIGNMENT) == ["bottom-right"]
    assert answers(Steps(softmax=single), observed.PRECISION) == ["float32"]


def test_masks_that_are_refused_or_read_as_booleans() -> None:
    def booleans_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mask = options.get("attn_mask")
        if mask is not None and mask.dtype.is_floating_point:
            raise TypeError("a boolean mask is needed")
        return Steps()(query, key, value, **options | ({} if mask is None else {"attn_mask": mask.bool()}))

    assert answers(booleans_only, observed.INTEGERS, observed.FLOATS) == ["1 may attend", "refused"]


def test_answers_that_differ_have_their_paths() -> None:
    paths = "(float64 in a plain call, float64 while gradients are recorded)"
    assert answers(masked_nan_by_length, observed.SPOILT_VALUES) == [f"contained {paths}; NaN {paths}"]


def test_disagreements_have_names_of_their_own() -> None:
    names = [point.name for point in observed.DISAGREEMENTS]
    assert len({*names}) == len(names)


def test_a_refusal_is_no_answer_of_its_own_kind() -> None:
    def refusing(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
        mask = options.get("attn_mask")
        if query.requires_grad and mask is not None and mask.dtype is torch.bool and not mask.any(-1).all():
            raise ValueError("a row without keys")
        return Steps().answer(query, key, value, **options)[:2]

    claims = Claims(Scope.OP, OP_FEATURES | {Feature.WEIGHTS}, dtypes=("float64",))
    made = Implementation("refusing", claims, torch_op(refusing, extras=("weights",)))
    (verdict,) = run(made, ("conventions.empty-row",), ("float64",))
    assert verdict.failure is not None
    assert "refused" in verdict.failure.message
