"""Functions that merge states, by the signatures of FlashInfer, SGLang and vLLM: right ones conform, others do not."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.conventions import LogBase
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

PROMISED = {Feature.KEY_SPLITS, Feature.LOG_SUM_EXP, Feature.BOOL_MASK, Feature.CAUSAL, Feature.SCALE}
TYPES = ("float32", "bfloat16")


def combined(outputs: Tensor, logs: Tensor, base: float, wrong: str = "") -> tuple[Tensor, Tensor]:
    """(..., splits, H, d) and (..., splits, H) merged over the splits."""
    natural = logs.float() * math.log(base)
    top = torch.zeros_like(natural[..., :1, :]) if wrong == "maximum" else natural.amax(-2, keepdim=True)
    top = top if wrong == "empty" else top.masked_fill(top == -torch.inf, 0.0)
    shares = (natural - top).exp()
    whole = shares.sum(-2)
    divided = shares / (1.0 if wrong == "sum" else whole.masked_fill(whole == 0.0, 1.0)[..., None, :])
    merged = (outputs.float() * divided[..., None]).sum(-3).to(outputs.dtype)
    return merged, (whole.log() + top[..., 0, :]) / math.log(base)


def pairs(base: float, wrong: str = "") -> Callable[..., Any]:
    def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        assert s_a.dtype is torch.float32
        assert v_a.is_contiguous()
        return combined(torch.stack([v_a, v_b], -3), torch.stack([s_a, s_b], -2), base, wrong)

    return merge_state


def many(base: float, wrong: str = "") -> Callable[..., Any]:
    def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        assert v.shape[:-1] == s.shape
        return combined(v, s, base, wrong)

    return merge_states


def into(base: float, wrong: str = "") -> Callable[..., Any]:
    def merge_attn_states(
        output: Tensor,
        prefix_output: Tensor,
        prefix_lse: Tensor,
        suffix_output: Tensor,
        suffix_lse: Tensor,
        output_lse: Tensor | None = None,
    ) -> None:
        assert prefix_lse.shape == prefix_output.shape[1::-1]
        states = torch.stack([prefix_output, suffix_output], -3), torch.stack([prefix_lse.mT, suffix_lse.mT], -2)
        merged, logs = combined(*states, base, wrong)
        output.copy_(merged)
        if output_lse is not None:
            output_lse.copy_(logs.mT)

    return merge_attn_states


def moved(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """The first output moved to the second by a logistic function, as a ring of devices does: its share is rounded."""
    nothing, all_new = s_b == -torch.inf, s_a == -torch.inf
    share = torch.sigmoid((s_b - s_a) * math.log(2.0)).masked_fill(all_new, 1.0).masked_fill(nothing, 0.0)[..., None]
    return (v_a.float() - share * (v_a.float() - v_b.float())).to(v_a.dtype), torch.logaddexp2(s_a, s_b)


def presented(function: Callable[..., Any]) -> Implementation:
    return wrapped(function.__name__, function, {}, "cpu")


def failing(implementation: Implementation, *clauses: str) -> set[str]:
    verdicts = run(implementation, clauses, TYPES)
    assert any(verdict.checks for verdict in verdicts)
    return {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize("made", [pairs, many, into])
@pytest.mark.parametrize("base", [2.0, math.e], ids=["base-2", "base-e"])
def test_a_right_one_conforms_in_the_base_in_which_it_merges(made: Callable[..., Any], base: float) -> None:
    implementation = presented(made(base))
    assert implementation.claims.features >= PROMISED
    assert implementation.claims.conventions.log_sum_exp_base is (LogBase.TWO if base == 2.0 else LogBase.E)
    assert "called as" in implementation.about
    assert not failing(implementation, "merge.*", "softmax.log-sum-exp", "shapes.single-key")


@pytest.mark.parametrize("made", [pairs, many, into])
@pytest.mark.parametrize(
    ("wrong", "clause"), [("sum", "merge.splits"), ("maximum", "merge.far"), ("empty", "merge.empty-row")]
)
def test_a_wrong_one_is_caught(made: Callable[..., Any], wrong: str, clause: str) -> None:
    assert failing(presented(made(2.0, wrong)), clause) == {clause}


def test_a_function_of_arrays() -> None:
    def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
        with np.errstate(all="ignore"):
            merged = np.logaddexp2(s_a, s_b)
            shares = [np.where(s == -np.inf, 0.0, np.exp2(s - merged))[..., None] for s in (s_a, s_b)]
        return (v_a * shares[0] + v_b * shares[1]).astype(v_a.dtype), merged

    made = presented(merge_state)
    assert made.about.startswith("a function of NumPy")
    assert not failing(made, "merge.*")


def test_roundings_of_a_merge_are_allowed_where_there_are_splits_alone() -> None:
    assert not failing(presented(moved), "numerics.exact", "merge.splits", "merge.empty-row")
