"""Names are found for mistakes combined with others: rows that they empty, places, conditions, conventions, types."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.fitting import required
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects import catalogue
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Pattern, Poison
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.causes import INTENDED, Hypothesis, repairs
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.diagnosis.edits import edited
from attention_conformance.tests.harness.explain.diagnosis.observation import observed
from attention_conformance.tests.harness.explain.diagnosis.scoring import can_answer
from attention_conformance.tests.harness.explain.stages.staged import STAGES, opened, run
from attention_conformance.tests.harness.explain.stages.staged_results import result_of
from attention_conformance.tests.harness.judge.comparison import compare

CORE = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH})
PLAIN = (Case(), Case(seed=3).sized(num_heads=4))
CAUSAL = (Case(causal=True, seed=1).sized(query_length=7), Case(causal=True, seed=2).sized(query_length=9))
BOOL = (Case(mask=MaskKind.BOOL), Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW))
FLOAT = Case(mask=MaskKind.FLOAT)
LARGE = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, poison=Poison.LARGE)
ALIBI = (Case(causal=True).extended(alibi=True), Case(seed=4).extended(alibi=True), Case(causal=True))


def own_key_hidden(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(0).bool(), -1e9)


def last_head_without_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def scored(query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = query @ key.mT
        return torch.cat([scores[:, :-1] * scale, scores[:, -1:]], 1)

    return Steps(score=scored)(query, key, value, **options)


def rounded_product(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return (query.bfloat16().double() @ key.bfloat16().double().mT).bfloat16().double() * scale


def shown(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask < 0.0, -torch.inf)


def nan_and_scaled_late(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    scores = query @ key.mT
    if attn_mask is not None:
        scores = correct.add_mask(scores, attn_mask)
    output: Tensor = torch.softmax(scores, -1) * query.shape[-1] ** -0.5 @ value
    return output


def other_corner_and_sign(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    slopes, causal = options.pop("alibi_slopes", None), options.pop("is_causal", False)
    ahead = torch.arange(key.shape[-2]) - torch.arange(query.shape[-2])[:, None] - key.shape[-2] + query.shape[-2]
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if slopes is None else scores + slopes[:, None, None] * ahead.abs()
    scores = scores.masked_fill(ahead > 0, -torch.inf) if causal else scores
    output: Tensor = torch.nan_to_num(torch.softmax(scores, -1)) @ value
    return output


def causal_after_the_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1)
    return weights.tril() @ value


def filled_up(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    more = max(0, query.shape[-2] - key.shape[-2])
    key, value = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (key, value))
    return Steps()(query, key, value, **options)


@pytest.mark.parametrize(
    ("function", "cases", "names", "when"),
    [
        (Steps(add_causal=own_key_hidden), CAUSAL, ("the causal triangle hides each query's own key",), ()),
        (last_head_without_scale, PLAIN, ("scores not scaled",), ("in the last head",)),
        (nan_and_scaled_late, BOOL, ("scale-after-softmax", "empty-row=nan"), ()),
        (causal_after_the_softmax, PLAIN, ("always causal, and causal triangle after the softmax",), ()),
        (other_corner_and_sign, ALIBI, ("slopes negated", "causal-alignment=bottom-right"), ()),
    ],
)
def test_a_mistake_is_named_with_what_hides_it(
    function: Callable[..., Tensor], cases: tuple[Case, ...], names: tuple[str, ...], when: tuple[str, ...]
) -> None:
    features = CORE.union(*(required(case) for case in cases))
    checks = [FailingCheck("shapes.large", case, "float64", "output") for case in cases]
    candidate = Implementation("candidate", Claims(Scope.OP, features), torch_op(function))
    diagnosis = diagnose(candidate, checks, dtypes=("float64",))
    assert diagnosis is not None
    assert (diagnosis.name, *diagnosis.second) == names, str(diagnosis)
    assert diagnosis.when == when
    assert not when or "--convention" not in diagnosis.repair  # followed in a place alone, it is none


@pytest.mark.parametrize(
    ("words", "function", "case"),
    [
        ("product computed in bfloat16", Steps(score=rounded_product), Case()),
        ("keys filled up to the number of queries and not hidden", filled_up, Case().sized(query_length=9)),
        ("mask of numbers read as a boolean one that hides what is below 0", Steps(add_mask=shown), FLOAT),
        ("boolean mask added as ones and zeros", Steps(add_mask=lambda scores, mask: scores + mask.double()), BOOL[0]),
    ],
)
def test_an_edit_answers_as_the_mistake_does(words: str, function: Callable[..., Tensor], case: Case) -> None:
    problem = build(case, "float64").forward_only()
    (edit,) = [each for each in edited(Conventions()) if each.name == words]
    result = torch_op(function)(problem.fresh(), "cpu")
    right = solve(problem, Conventions()).parts["output"]
    assert not compare("output", edit.answer(problem).output, replace(right, value=result.output), "float64").message


def test_the_stages_take_slopes_of_each_sample() -> None:
    problem = build(Case().extended(alibi=True, alibi_samples=True), "float64").forward_only()
    *_, last = run(STAGES, opened(problem, Conventions()))
    expected = solve(problem, Conventions()).parts["output"]
    assert not compare("output", result_of(problem, last).output, expected, "float64").message


def test_conventions_to_add_are_one_sentence() -> None:
    given = ["Do this.", f"{INTENDED}a=b.", f"{INTENDED}scale=0.125."]
    assert repairs(given) == f"Do this. {INTENDED}a=b --convention scale=0.125."
    assert repairs([repairs(given), "Do that."]) == f"Do this. Do that. {INTENDED}a=b --convention scale=0.125."


def test_a_name_is_put_to_the_test_with_other_sizes() -> None:
    def eight_components(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return query[..., :8] @ key[..., :8].mT * scale

    checks = [FailingCheck("shapes.large", Case(seed=seed).sized(d_k=9), "float64", "output") for seed in (5, 6)]
    candidate = Implementation("candidate", Claims(Scope.OP, CORE), torch_op(Steps(score=eight_components)))
    diagnosis = diagnose(candidate, checks, dtypes=("float64",))
    assert diagnosis is not None
    assert not diagnosis.name, str(diagnosis)  # with nine, the last component of an odd width is lost, too
    assert diagnosis.when == ("with more than 8 components of a query",)


def test_a_defect_with_a_convention_of_its_own_explains_only_what_it_claims() -> None:
    defect = next(each for each in catalogue() if each.id == "nan-before-the-triangle")
    hypothesis = Hypothesis(defect.id, "", lambda problem: defect.implementation.run(problem, "cpu"), defect)
    claims = Claims(Scope.OP, CORE | {Feature.CAUSAL, Feature.ALIBI})
    right = Implementation("right", claims, torch_op(Steps()))
    for case, expected in ((Case(causal=True), True), (Case(causal=True).extended(alibi=True), False)):
        assert can_answer(hypothesis, observed(right, case, "float64", ("output",), "cpu")) is expected


@pytest.mark.parametrize(
    ("change", "name"),
    [(lambda n: n + 1, "limit to the left one too large"), (lambda n: 2 * n, "limit to the left doubled")],
)
def test_a_number_that_is_changed_is_put_to_the_test_with_other_numbers(
    change: Callable[[int], int], name: str
) -> None:
    def wide(scores: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
        left, right = window
        return correct.add_window(scores, ahead, (change(left) if left >= 0 else -1, right))

    sizes = {"query_length": 4, "key_length": 4}  # where a wider window hides nothing, whatever its number
    cases = [Case(causal=True, seed=seed).sized(**sizes).extended(window_left=1) for seed in (1, 2)]
    claims = Claims(Scope.OP, CORE | {Feature.CAUSAL, Feature.WINDOW})
    candidate = Implementation("candidate", claims, torch_op(Steps(add_window=wide)))
    checks = [FailingCheck("window.empty-rows", case, "float64", "output") for case in cases]
    diagnosis = diagnose(candidate, checks, dtypes=("float64",))
    assert diagnosis is not None
    assert (diagnosis.name, diagnosis.explains) == (name, diagnosis.of), str(diagnosis)
    assert not diagnosis.when


def test_answers_that_are_very_far_off_are_the_same_as_far_as_their_dtype_has_digits() -> None:
    """A number of 1e30 where 1 is right has no digits that would be as small as the bound."""

    def lowered(scores: Tensor, mask: Tensor) -> Tensor:
        return scores - 1e9 * (~mask).double()

    candidate = Implementation(
        "candidate", Claims(Scope.OP, CORE | {Feature.BOOL_MASK}), torch_op(Steps(add_mask=lowered))
    )
    seen = observed(candidate, LARGE, "float64", ("output",), "cpu")
    assert seen.failing
    assert seen.got is not None
    assert seen.distance(replace(seen.got, output=seen.got.output * (1.0 + 1e-15))) <= 1.0
    assert seen.distance(replace(seen.got, output=seen.got.output * (1.0 + 1e-6))) > 1.0
    one = [h for h in edited(Conventions()) if h.name == "boolean mask adds -1e+09 to scores"]
    assert [seen.distance(h.answer(seen.problem)) <= 1.0 for h in one] == [True]
