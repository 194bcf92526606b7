"""The diagnosis names mistakes and conventions of which it does not know the code, and accuses nobody else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Scope
from attention_conformance.tests.harness.explain.diagnosis import (
    Diagnosis,
    FailingCheck,
    diagnose,
    failing_alone,
    failing_checks,
)
from attention_conformance.tests.harness.run.runner import run


def diagnosis_of(function: Callable[..., Tensor]) -> Diagnosis | None:
    implementation = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(function))
    verdicts = run(implementation, dtypes=("float64",))
    return diagnose(implementation, failing_checks(verdicts), dtypes=("float64",))


def diagnosed(function: Callable[..., Tensor]) -> Diagnosis:
    diagnosis = diagnosis_of(function)
    assert diagnosis is not None
    return diagnosis


def scaled_late(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    scale = options.pop("scale", None)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT
    for name in ("attn_mask", "key_padding_mask"):
        if name in options:
            mask = options[name] if name == "attn_mask" else options[name][:, None, None, :]
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if "is_causal" in options:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    output: Tensor = torch.nan_to_num(torch.softmax(scores, -1)) * factor @ value
    return output


def inverted_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.pop("attn_mask", None)
    if mask is not None and mask.dtype is torch.bool:
        mask = mask.logical_not()
    return Steps()(query, key, value, attn_mask=mask, **options)


def sees_the_next_token(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    def late(scores: Tensor) -> Tensor:
        rows, columns = (torch.arange(extent) for extent in scores.shape[-2:])
        return torch.where(columns > rows[:, None] + 1, -torch.inf, scores)

    return Steps(add_causal=late)(query, key, value, is_causal=is_causal, **options)


def from_the_other_corner(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    def bottom_right(scores: Tensor) -> Tensor:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        return scores.masked_fill(~visible, -torch.inf)

    return Steps(add_causal=bottom_right)(query, key, value, is_causal=is_causal, **options)


@pytest.mark.parametrize(
    ("function", "chapter"),
    [(scaled_late, "scores"), (sees_the_next_token, "causal")],
)
def test_a_mistake_is_named(function: Callable[..., Tensor], chapter: str) -> None:
    diagnosis = diagnosed(function)
    (defect,) = (d for d in catalogue() if d.id == diagnosis.name)
    assert defect.chapter == chapter
    assert diagnosis.explains == diagnosis.of > 0
    assert diagnosis.repair in str(diagnosis)


def test_the_other_polarity_is_named() -> None:
    diagnosis = diagnosed(inverted_masks)
    assert "inver" in diagnosis.name or diagnosis.name.startswith("bool-mask=")


def test_a_convention_that_was_not_claimed_is_named() -> None:
    diagnosis = diagnosed(from_the_other_corner)
    assert diagnosis.name == "causal-alignment=bottom-right"
    assert "--convention causal-alignment=bottom-right" in str(diagnosis)


def test_a_right_one_is_never_diagnosed() -> None:
    assert diagnosis_of(Steps()) is None


def test_where_nothing_known_matches_the_pattern_is_named() -> None:
    def peculiar(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = Steps()(query, key, value, **options)
        offset = 0.125 * (torch.arange(output.shape[1], dtype=output.dtype) > 0)[:, None, None]
        return output + offset if "attn_mask" in options else output

    diagnosis = diagnosed(peculiar)
    assert not diagnosis.name
    assert "it fails only with a mask, and only in heads after the first" in str(diagnosis)


def test_a_dtype_that_was_not_checked_proves_nothing() -> None:
    checks = [FailingCheck("scores.dot-product", Case(), "float64", "output")]
    assert failing_alone(("float64",), checks) == ()
    assert failing_alone(("float64", "float32"), checks) == ("float64",)


def test_a_wrong_gradient_of_the_mask_is_compared_with_cases_that_have_no_mask() -> None:
    def peculiar(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mask = options.get("attn_mask")
        if mask is not None and mask.requires_grad:
            options["attn_mask"] = mask * 1.0
            options["attn_mask"].register_hook(lambda gradient: gradient * 1.375)
        return Steps()(query, key, value, **options)

    diagnosis = diagnosed(peculiar)
    assert not diagnosis.name
    assert diagnosis.pattern == "no pattern was found in the failures"
