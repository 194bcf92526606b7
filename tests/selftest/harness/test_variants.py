"""Stages that do something else answer as the mistakes do; what speaks against a hypothesis is seen."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES
from attention_conformance.implementations.defects import catalogue
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.at_once import wrong
from attention_conformance.tests.harness.explain.diagnosis.edits import Edit, _all, hypothesis
from attention_conformance.tests.harness.explain.diagnosis.hypotheses import hypotheses
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, observed
from attention_conformance.tests.harness.explain.diagnosis.pattern import WINDOW, options, without
from attention_conformance.tests.harness.explain.diagnosis.scoring import scored
from attention_conformance.tests.harness.explain.stages.staged import STAGES, Stage, opened, run
from attention_conformance.tests.harness.explain.stages.staged_results import result_of

TILE = 2
CLAIMED = Conventions()


def edit(words: str) -> Edit:
    return next(each for each in _all() if each.words == words)


def tiled(query: Tensor, key: Tensor, value: Tensor, causal: bool, fault: str) -> tuple[Tensor, Tensor]:
    """Attention over tiles of two keys, with one fault."""
    filled = (fault == "keys" and -key.shape[-2] % TILE) or 0
    key, value = (torch.nn.functional.pad(x, (0, 0, 0, filled)) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    places = torch.arange(key.shape[-2])
    if fault == "counted":
        places = places % TILE
    if causal:
        scores = scores.masked_fill(places > torch.arange(query.shape[-2])[:, None], -torch.inf)
    top, total = torch.full(scores.shape[:-1], -1e30).double(), torch.zeros(scores.shape[:-1]).double()
    mixed = torch.zeros_like(query[..., :1] * value[..., :1, :])
    for tile, rows in zip(scores.split(TILE, -1), value.split(TILE, -2), strict=True):
        new = torch.maximum(top, tile.amax(-1))
        powers, old = (tile - new[..., None]).exp(), torch.exp2(top - new) if fault == "base" else (top - new).exp()
        total = total * (1.0 if fault == "sum" else old) + powers.sum(-1)
        mixed = mixed * (1.0 if fault == "output" else old[..., None]) + powers @ rows
        top = new
    return mixed / total[..., None], top + total.log()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("sum", "sum of the exponentials of tiles of 2 keys not rescaled to a new maximum"),
        ("output", "output of tiles of 2 keys not rescaled to a new maximum"),
        ("base", "tiles of 2 keys rescaled by powers of 2 instead of e"),
        ("keys", "keys filled up to a multiple of 2 and not hidden"),
        ("counted", "keys counted from 0 in each tile of 2 in the causal triangle"),
    ],
)
def test_tiles_answer_as_a_loop_over_them_does(fault: str, words: str) -> None:
    for case in (Case(causal=True).sized(query_length=9), Case().sized(query_length=3)):
        problem = build(case, "float64").forward_only()
        query, key, value = (torch.from_numpy(x.copy()) for x in (problem.query, problem.key, problem.value))
        output, log = tiled(query, key, value, case.causal, fault)
        made = edit(words).answer(problem, CLAIMED)
        np.testing.assert_allclose(made.output, output.numpy(), rtol=1e-12, atol=1e-13)
        assert made.log_sum_exp is not None
        np.testing.assert_allclose(made.log_sum_exp, log.numpy(), rtol=1e-12, atol=1e-13)


def test_a_row_that_a_mistake_empties_gets_the_claimed_answer() -> None:
    claimed = Conventions().claiming({"empty-row": "nan"})
    problem = build(Case(mask=MaskKind.BOOL), "float64").forward_only()
    problem = problem.but(attn_mask=np.ones_like(problem.attn_mask))
    assert np.isnan(edit("mask negated").answer(problem, claimed).output).all()
    assert not edit("mask negated").answer(problem, CLAIMED).output.any()


def test_a_backward_pass_that_cannot_be_made_has_no_gradients() -> None:
    def hooked(state: dict[str, Any]) -> dict[str, Any]:
        same = state["query"].view_as(state["query"])
        same.register_hook(lambda slope: slope[..., 9:10, 0][99])
        return {"query": same}

    problem = build(Case(seed=1), "float64")
    *_, last = run((Stage("hook", hooked, ()), *STAGES), opened(problem, CLAIMED))
    result = result_of(problem, last)
    np.testing.assert_allclose(result.output, solve(problem, CLAIMED).parts["output"].value, rtol=1e-12)
    assert result.gradients.get("query") is None


def aligned_last_where_queries_are_more(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if is_causal:
        lengths = scores.shape[-2:]
        seen = torch.ones(lengths, dtype=torch.bool).tril(min(lengths[1] - lengths[0], 0))
        scores = scores.masked_fill(~seen, -torch.inf)
    output: Tensor = scores.softmax(-1) @ value
    return output


def seen_in(case: Case) -> Observation:
    claims = Claims(Scope.OP, OP_FEATURES, conventions=Conventions().claiming({"empty-row": "nan"}))
    run_ = torch_op(aligned_last_where_queries_are_more)
    return observed(Implementation("candidate", claims, run_), case, "float64", ("output",), "cpu")


def test_a_convention_that_explains_failures_may_not_be_contradicted_elsewhere() -> None:
    claimed = Conventions().claiming({"empty-row": "nan"})
    known = {each.name: each for each in hypotheses(Scope.OP, claimed)}
    failing, passing = seen_in(Case(causal=True).sized(query_length=9)), seen_in(Case(causal=True, seed=2))
    assert failing.failing
    assert not passing.failing
    score = scored(known["nan-before-the-triangle"], [failing], [passing], claimed)
    assert score.explained == (failing,)
    assert score.contradicting == (passing,)


def test_a_second_mistake_is_wrong_by_itself() -> None:
    each = seen_in(Case(causal=True).sized(query_length=9))
    known = {defect.id for defect in catalogue()}
    assert {"root-for-a-claimed-one", "no-scale"} <= known
    by_name = {h.name: h for h in hypotheses(Scope.OP, CLAIMED)}
    assert not wrong(by_name["root-for-a-claimed-one"], seen_in(Case(seed=3)))
    assert wrong(by_name["no-scale"], each)


def test_caps_are_the_slips_that_they_are_named_after() -> None:
    problem = build(Case(score_std=6.0).extended(softcap=1.5), "float64").forward_only()
    scores = torch.from_numpy(problem.query @ np.swapaxes(problem.key, -1, -2)) * problem.query.shape[-1] ** -0.5
    for words, capped in (
        ("scores not divided by the softcap", 1.5 * scores.tanh()),
        ("tanh not multiplied by the softcap", (scores / 1.5).tanh()),
        ("scores clamped at the softcap", scores.clamp(-1.5, 1.5)),
    ):
        expected = capped.softmax(-1) @ torch.from_numpy(problem.value.copy())
        answer = hypothesis(edit(words), CLAIMED).answer(problem).output
        np.testing.assert_allclose(answer, expected.numpy(), rtol=1e-12)


def test_a_window_is_one_option_whichever_limit_it_has() -> None:
    for case in (Case().extended(window_left=1), Case().extended(window_right=1)):
        assert WINDOW in options(case)
        assert without(case, WINDOW) == Case()


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ("pairs", "rotary embedding of halves inside, cosines and sines repeated in pairs"),
        ("back", "rotary embedding of halves inside, the keys rotated the other way"),
        ("values", "rotary embedding of halves inside, the values rotated, too"),
    ],
)
def test_a_rotation_inside_with_a_slip_has_a_name(slip: str, words: str) -> None:
    problem = build(Case(causal=True).sized(query_length=7, d_v=4), "float64").forward_only()
    query, key, value = (torch.from_numpy(x.copy()) for x in (problem.query, problem.key, problem.value))
    angles = torch.outer(torch.arange(7), 10000.0 ** (-torch.arange(0, 4, 2).double() / 4))
    angles = angles.repeat_interleave(2, -1) if slip == "pairs" else angles.repeat(1, 2)

    def rotated(x: Tensor, sign: float = 1.0) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * angles.cos() + sign * torch.cat([-second, first], -1) * angles.sin()

    scores = rotated(query) @ rotated(key, -1.0 if slip == "back" else 1.0).mT / 2.0
    scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    expected = scores.softmax(-1) @ (rotated(value) if slip == "values" else value)
    np.testing.assert_allclose(edit(words).answer(problem, CLAIMED).output, expected.numpy(), rtol=1e-11, atol=1e-13)
