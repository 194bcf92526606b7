"""Chapter 22, sinks: learned logits, and further keys that every query sees, of zeros and learned ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Sizes
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge, part_of
from attention_conformance.tests.harness.judge.relations import Change, changed

SINK = Case().extended(sinks=True)
ZERO = Case().extended(zero_attn=True)
LEARNED = Case().extended(bias_kv=True)
ALIKE = {"num_heads": 5, "query_length": 5, "key_length": 5}
"""As many heads as queries and keys: a logit laid along the wrong axis fits."""
SQUARE = {"query_length": 7, "key_length": 7}
BEYOND = 1000.0
"""Its exponential is beyond the range of float64."""
RANGES = ((BEYOND, 0.0), (-BEYOND, 0.0), (0.0, -BEYOND), (0.0, BEYOND), (BEYOND, BEYOND), (-BEYOND, -BEYOND))
"""What is added to sinks and to scores."""


@clause("sinks.sum")
def test_sum(judge: Judge) -> None:
    grouped = replace(SINK, sizes=Sizes(num_heads=6, num_kv_heads=3))
    scaled = (replace(SINK, scale=scale, seed=1) for scale in (0.2, -0.7, 0.0))
    for case in judge.cases(SINK, SINK.sized(**ALIKE), SINK.sized(key_length=1), SINK.sized(d_k=8), grouped, *scaled):
        judge.assert_conforms(case)


@clause("sinks.softcap")
def test_softcap(judge: Judge) -> None:
    for case in judge.cases(*(replace(SINK, score_std=6.0).extended(softcap=cap) for cap in (0.7, 2.0))):
        judge.assert_conforms(case)


@clause("sinks.masks")
def test_masks(judge: Judge) -> None:
    causal = replace(SINK, causal=True).sized(**SQUARE)
    cases = (
        replace(SINK, mask=MaskKind.BOOL),
        replace(SINK, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED, padding=Padding.LEFT),
        replace(SINK, mask=MaskKind.INFINITE, seed=2),
        replace(SINK, mask=MaskKind.BOOL, pattern=Pattern.LAST_KEY),
        replace(SINK, padding=Padding.RIGHT),
        causal,
        replace(causal, padding=Padding.RIGHT, seed=3),
        SINK.extended(left=1, right=0),
    )
    for case in judge.cases(*cases):
        judge.assert_conforms(case)


@clause("sinks.empty-row")
def test_empty_row(judge: Judge) -> None:
    parts = ["output"] + ["log_sum_exp"] * (Feature.LOG_SUM_EXP in judge.claims)
    emptied = [replace(SINK, mask=kind, pattern=Pattern.EMPTY_ROW) for kind in (MaskKind.BOOL, MaskKind.INFINITE)]
    for case in judge.cases(*emptied, replace(SINK, padding=Padding.EMPTY_SAMPLE)):
        judge.assert_conforms(case, *parts, context="a row without keys has a sink")


@clause("sinks.range")
def test_range(judge: Judge) -> None:
    for case in judge.cases(replace(SINK, seed=4)):
        for sink, score in RANGES if judge.claims.scope is Scope.OP else RANGES[:2]:
            _assert_answered(
                judge, case, _moved(judge.problem(case), sink, score), f"sinks {sink:+g}, scores {score:+g}"
            )


def _moved(problem: Problem, sink: float, score: float) -> Problem:
    """With so much added to the sinks, and, by the first component of queries and keys, to the scaled scores."""
    sinks = {"sinks": _adding(sink)}
    if not score:
        return changed(problem, **sinks)
    first = score / 16.0 * problem.query.shape[-1] ** 0.5
    return changed(problem, **sinks, query=_led_by(16.0), key=_led_by(first))


def _adding(number: float) -> Change:
    return lambda array: np.add(array, array.dtype.type(number))


def _led_by(first: float) -> Change:
    return lambda rows: np.concatenate([np.full_like(rows[..., :1], first), rows[..., 1:]], axis=-1)


def _assert_answered(judge: Judge, case: Case, problem: Problem, context: str) -> None:
    """Output and gradients are those of the reference."""
    expected = judge.solve(problem).parts
    judge.assert_answers(case, problem.forward_only(), expected["output"], context)
    if not problem.needs:
        return
    try:
        result = judge.run(problem)
    except CandidateError as error:
        judge.record_error(case, error, context)
        return
    for part in (f"gradients.{name}" for name in problem.needs):
        judge.record(case, compare(part, part_of(result, part), expected[part], judge.dtype), context)


@clause("sinks.log-sum-exp")
def test_log_sum_exp(judge: Judge) -> None:
    for case in judge.cases(SINK, SINK.sized(key_length=33), replace(SINK, mask=MaskKind.BOOL)):
        judge.assert_conforms(case, "log_sum_exp")


@clause("sinks.weights")
def test_weights(judge: Judge) -> None:
    for case in judge.cases(SINK, replace(SINK, mask=MaskKind.BOOL)):
        judge.assert_conforms(case, "weights")


@clause("sinks.gradient")
def test_gradient(judge: Judge) -> None:
    gentle = replace(SINK, score_std=0.5)
    for case in judge.cases(gentle, replace(gentle, mask=MaskKind.BOOL).sized(**SQUARE), gentle.sized(key_length=2)):
        judge.assert_conforms(case, "gradients")


@clause("sinks.zero-attn")
def test_zero_key(judge: Judge) -> None:
    placed = (ZERO.extended(alibi=True), ZERO.extended(left=1, right=0), ZERO.extended(relative_bias=2))
    for case in judge.cases(ZERO, ZERO.sized(**ALIKE), ZERO.sized(key_length=1), *placed):
        judge.assert_conforms(case)
    for case in judge.cases(replace(ZERO, score_std=0.5)):
        judge.assert_conforms(case, "gradients")


@clause("sinks.zero-attn-masks")
def test_zero_key_masks(judge: Judge) -> None:
    for case in judge.cases(*_masked(ZERO)):
        judge.assert_conforms(case)


def _masked(case: Case) -> Iterator[Case]:
    """With attention masks and padding, alone and together, and with rows that they leave no key."""
    for number, kind in enumerate((MaskKind.BOOL, MaskKind.FLOAT, MaskKind.INFINITE)):
        yield replace(case, mask=kind, seed=number)
        yield replace(case, mask=kind, mask_shape=MaskShape.SHARED, padding=Padding.LEFT, seed=number)
    yield replace(case, padding=Padding.LEFT)
    yield replace(case, padding=Padding.EMPTY_SAMPLE)
    yield replace(case, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
    yield replace(case, mask=MaskKind.BOOL, pattern=Pattern.LAST_KEY)


@clause("sinks.zero-attn-causal")
def test_zero_key_causal(judge: Judge) -> None:
    for case in judge.cases(*_causal(ZERO)):
        judge.assert_conforms(case)


def _causal(case: Case) -> tuple[Case, ...]:
    causal = replace(case, causal=True)
    square = causal.sized(**SQUARE)
    return (
        square,
        causal,
        causal.sized(query_length=1),
        causal.sized(query_length=9),
        replace(square, padding=Padding.RIGHT),
    )


@clause("sinks.zero-attn-weights")
def test_zero_key_weights(judge: Judge) -> None:
    for case in judge.cases(ZERO, replace(ZERO, mask=MaskKind.BOOL)):
        judge.assert_conforms(case, "weights")


@clause("sinks.bias-kv")
def test_learned_key(judge: Judge) -> None:
    for case in judge.cases(LEARNED, LEARNED.sized(**ALIKE), LEARNED.sized(batch=1), LEARNED.sized(key_length=1)):
        judge.assert_conforms(case)


@clause("sinks.bias-kv-masks")
def test_learned_key_masks(judge: Judge) -> None:
    for case in judge.cases(*_masked(LEARNED)):
        judge.assert_conforms(case)


@clause("sinks.bias-kv-causal")
def test_learned_key_causal(judge: Judge) -> None:
    for case in judge.cases(*_causal(LEARNED)):
        judge.assert_conforms(case)


@clause("sinks.bias-kv-gradient")
def test_learned_key_gradient(judge: Judge) -> None:
    gentle = replace(LEARNED, score_std=0.5)
    for case in judge.cases(gentle, replace(gentle, mask=MaskKind.BOOL), gentle.sized(batch=3)):
        judge.assert_conforms(case, "gradients.bias_k", "gradients.bias_v")


@clause("sinks.bias-kv-weights")
def test_learned_key_weights(judge: Judge) -> None:
    for case in judge.cases(LEARNED, replace(LEARNED, mask=MaskKind.BOOL)):
        judge.assert_conforms(case, "weights")


@clause("sinks.zero-attn-and-bias-kv")
def test_both_keys(judge: Judge) -> None:
    both = LEARNED.extended(zero_attn=True)
    parts = ["output"] + ["weights"] * (Feature.WEIGHTS in judge.claims)
    for case in judge.cases(both, replace(both, mask=MaskKind.BOOL, padding=Padding.LEFT), both.sized(key_length=1)):
        judge.assert_conforms(case, *parts)
