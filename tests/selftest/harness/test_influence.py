"""Influence: the message of a failure names the keys that a row may see, and those that it saw."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.mha import TORCH_MODULES
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, OP_FEATURES, Steps
from attention_conformance.spec.cases import Case, MaskKind, Poison
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.influence import LONGEST, keys_in, wrong_keys
from attention_conformance.tests.harness.run.runner import run

CAUSAL = Case(causal=True).sized(query_length=7)


def message_of(case: Case, steps: Steps, poison: Poison = Poison.NONE, dtype: str = "float32") -> str:
    def answer(problem: Problem) -> Result:
        return torch_op(steps)(problem.fresh(), "cpu")

    return wrong_keys(build(case, dtype), Conventions(), answer, poison)


def seeing(shift: int) -> Steps:
    """A causal flag whose triangle is shifted."""

    def add_causal(scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones_like(scores).triu(1 + shift).bool(), -INFINITY)

    return Steps(add_causal=add_causal)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_key_too_many_is_named(dtype: str) -> None:
    message = message_of(CAUSAL, seeing(1), dtype=dtype)
    assert message == "query 0 of head 0 (sample 0) may see key 0, yours also saw key 1"


def test_a_key_too_few_is_named() -> None:
    assert message_of(CAUSAL, seeing(-1)) == "query 0 of head 0 (sample 0) may see key 0, yours saw none"


def test_several_keys_are_named_by_their_spans() -> None:
    names = {(0, 1, 2, 5): "keys 0..2, 5", (4,): "key 4", (1, 3): "keys 1, 3", (): "no key"}
    assert {keys: keys_in(np.isin(np.arange(6), keys)) for keys in names} == names
    blind = Steps(add_mask=lambda scores, mask: scores)
    assert "yours also saw key" in message_of(Case(mask=MaskKind.BOOL), blind)


@pytest.mark.parametrize("case", [Case(), CAUSAL, Case(mask=MaskKind.BOOL), Case(mask=MaskKind.INFINITE)])
def test_no_key_is_named_where_all_are_right(case: Case) -> None:
    assert message_of(case, Steps()) == ""
    assert message_of(case, Steps(factor=lambda query, scale: 1.0)) == ""


def test_no_key_is_named_where_it_would_cost_too_much_or_mean_nothing() -> None:
    assert message_of(CAUSAL.sized(key_length=LONGEST + 1), seeing(1)) == ""
    assert message_of(CAUSAL, seeing(1), Poison.LARGE) == ""
    assert message_of(Case().sized(key_length=0), Steps()) == ""


def test_a_candidate_that_breaks_is_left_alone() -> None:
    def broken(problem: Problem) -> Result:
        raise SystemError("again")

    assert wrong_keys(build(Case(), "float32"), Conventions(), broken, Poison.NONE) == ""


def test_keys_of_modules_are_named_too() -> None:
    mha = next(i for i in TORCH_MODULES if i.name == "torch.mha")
    case = fit(Case(causal=True), mha.claims)
    assert isinstance(case, Case)

    def answer(problem: Problem, **changes: Any) -> Result:
        return mha.run(replace(problem.fresh(), **changes), "cpu")

    problem = build(case, "float32")
    assert wrong_keys(problem, Conventions(), answer, Poison.NONE) == ""
    message = wrong_keys(problem, Conventions(), partial(answer, causal=False), Poison.NONE)
    assert message == "query 0 (sample 0) may see key 0, yours also saw keys 1..6"


def test_a_verdict_names_the_key() -> None:
    wrong = Implementation("next-position", Claims(Scope.OP, OP_FEATURES), torch_op(seeing(1)))
    (verdict,) = run(wrong, ("causal.square",), ("float64",))
    assert verdict.failure is not None
    assert "may see key 0, yours also saw key 1: output of sample " in verdict.failure.message
