"""The measurement of reach: its conditions can be fulfilled, and it concludes only what a mutant would show."""

from dataclasses import replace

import pytest

from attention_conformance.spec.cases import Case, Sharing
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.measurements.reach.case_conditions import ALONE, CALLS, CONDITIONS
from attention_conformance.tests.measurements.reach.condition import Call, Condition
from attention_conformance.tests.measurements.reach.conditional import conditional, shows, subject
from attention_conformance.tests.measurements.reach.score import PLACES, Recorder

PLAIN = Case(seed=3)
NO_CASE = {condition.words for condition in CALLS} | {"a learned key", "a probability of dropout", "a dropout of 0"}
"""Conditions that no change of a case of the operator fulfils."""
(CAUSAL, ONE_HEAD, REPEATED) = (
    next(condition for condition in ALONE if condition.words == words)
    for words in ("a causal flag", "one head", "an earlier call of the same sizes and options")
)


def called(condition: Condition, case: Case = PLAIN) -> Call:
    problem = build(condition.made(case), "float64").fresh()
    return Call(condition.laid(problem) if condition.laid else problem)


@pytest.mark.parametrize("condition", [c for c in ALONE if c.words not in NO_CASE], ids=lambda c: c.words)
def test_the_changes_of_a_case_fulfil_the_condition(condition: Condition) -> None:
    assert condition.fulfilled(called(condition))


def test_conditions_of_calls() -> None:
    problem = build(PLAIN, "float64")
    for words, call in {
        "an earlier call of the same sizes and options": Call(problem, again=True),
        "no earlier call of the same sizes and options": Call(problem),
        "one array as query, key and value": Call(problem.but(sharing=Sharing.SELF)),
        "one array as key and value": Call(problem.but(sharing=Sharing.KEY_VALUE)),
        "no recording of gradients": Call(problem, "no-grad"),
        "autocast": Call(problem, "autocast"),
        "vmap": Call(problem, "vmap"),
    }.items():
        assert [c.words for c in CALLS if c.holds(call) and c.words == words] == [words]


def test_words_are_unique() -> None:
    assert len({condition.words for condition in CONDITIONS}) == len(CONDITIONS)


def test_a_failed_check_reaches_what_holds_in_all_its_calls() -> None:
    recorder, judge = Recorder(), Judge(subject("no-scale").right, "float64")
    recorder.begin(judge)
    plain, causal = (Call(build(replace(PLAIN, causal=flag), "float64").forward_only()) for flag in (False, True))
    recorder.note(causal)
    judge.assert_that(PLAIN, True, "one that holds")
    recorder.note(causal)
    judge.assert_that(PLAIN, False, "one call")
    recorder.note(causal)
    recorder.note(plain)
    judge.assert_that(PLAIN, False, "two calls")
    recorder.begin(None)
    reached = [bool(bits & PLACES[CAUSAL.words]) for bits in recorder.failing]
    assert sorted(reached) == [False, True]
    again = PLACES[REPEATED.words]
    assert [bool(bits & again) for bits in recorder.failing if bits & PLACES[CAUSAL.words]] == [True]


def test_a_mutant_is_wrong_where_the_condition_holds() -> None:
    tried = subject("no-scale")
    mutant = conditional(tried, CAUSAL)
    for case, failed in ((replace(PLAIN, causal=True), 1), (PLAIN, 0)):
        judge = Judge(mutant, "float64")
        judge.assert_conforms(case)
        assert judge.tally.failed == failed


@pytest.mark.parametrize(("defect", "shown"), [("no-scale", True), ("softmax-over-heads-too", False)])
def test_a_case_shows_what_a_condition_hides(defect: str, shown: bool) -> None:
    tried = subject(defect)
    assert shows(tried, ONE_HEAD, PLAIN, ("output",), "float64") is shown
