"""Chapter 22, sinks: learned logits, and extra keys that every query sees, zeros and learned ones."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Sizes
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import Change, changed

SINK = Case().extended(sinks=True)
ZERO = Case().extended(zero_attn=True)
BIAS_KV = Case().extended(bias_kv=True)
BOTH = BIAS_KV.extended(zero_attn=True)
GENTLE_SINK, GENTLE_ZERO, GENTLE_BIAS_KV = (replace(case, score_std=0.5) for case in (SINK, ZERO, BIAS_KV))
ALIKE = {"num_heads": 5, "query_length": 5, "key_length": 5}
"""As many heads as queries and keys: a logit laid along the wrong axis fits."""
SQUARE = {"query_length": 7, "key_length": 7}
BEYOND = 1000.0
"""Its exponential is beyond the range of float64."""
RANGES = ((BEYOND, 0.0), (-BEYOND, 0.0), (0.0, -BEYOND), (0.0, BEYOND), (BEYOND, BEYOND), (-BEYOND, -BEYOND))
"""What is added to sinks and to scores."""


def _masked(case: Case) -> Iterator[Case]:
    """With attention masks and padding, alone and together, and with rows without other keys."""
    for number, kind in enumerate((MaskKind.BOOL, MaskKind.FLOAT, MaskKind.INFINITE)):
        yield replace(case, mask=kind, seed=number)
        yield replace(case, mask=kind, mask_shape=MaskShape.SHARED, padding=Padding.LEFT, seed=number)
    yield replace(case, padding=Padding.LEFT)
    yield replace(case, padding=Padding.EMPTY_SAMPLE)
    yield replace(case, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
    yield replace(case, mask=MaskKind.BOOL, pattern=Pattern.LAST_KEY)


def _causal(case: Case) -> tuple[Case, ...]:
    causal = replace(case, causal=True)
    square = causal.sized(**SQUARE)
    lengths = (causal.sized(query_length=1), causal.sized(query_length=9))
    return square, causal, *lengths, replace(square, padding=Padding.RIGHT)


CLAUSES = table(
    row(
        "sinks.sum",
        *(SINK, SINK.sized(**ALIKE), SINK.sized(key_length=1), SINK.sized(d_k=8)),
        replace(SINK, sizes=Sizes(num_heads=6, num_kv_heads=3)),
        *(replace(SINK, scale=scale, seed=1) for scale in (0.2, -0.7, 0.0)),
    ),
    row("sinks.softcap", *(replace(SINK, score_std=6.0).extended(softcap=cap) for cap in (0.7, 2.0))),
    row(
        "sinks.masks",
        replace(SINK, mask=MaskKind.BOOL),
        replace(SINK, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED, padding=Padding.LEFT),
        replace(SINK, mask=MaskKind.INFINITE, seed=2),
        replace(SINK, mask=MaskKind.BOOL, pattern=Pattern.LAST_KEY),
        replace(SINK, padding=Padding.RIGHT),
        replace(SINK, causal=True).sized(**SQUARE),
        replace(SINK, causal=True, padding=Padding.RIGHT, seed=3).sized(**SQUARE),
        SINK.extended(window_left=1, window_right=0),
    ),
    row(
        "sinks.empty-row",
        *(replace(SINK, mask=kind, pattern=Pattern.EMPTY_ROW) for kind in (MaskKind.BOOL, MaskKind.INFINITE)),
        replace(SINK, padding=Padding.EMPTY_SAMPLE),
        parts=("output", "log_sum_exp"),
        context="a row without keys has a sink",
    ),
    row(
        "sinks.log-sum-exp",
        *(SINK, SINK.sized(key_length=33), replace(SINK, mask=MaskKind.BOOL)),
        parts=("log_sum_exp",),
    ),
    row("sinks.weights", SINK, replace(SINK, mask=MaskKind.BOOL), parts=("weights",)),
    row(
        "sinks.zero-attn",
        *(ZERO, ZERO.sized(**ALIKE), ZERO.sized(key_length=1)),
        *(ZERO.extended(alibi=True), ZERO.extended(window_left=1, window_right=0), ZERO.extended(relative_bias=2)),
    ),
    row("sinks.zero-attn", GENTLE_ZERO, parts=("gradients",)),
    row("sinks.zero-attn-masks", *_masked(ZERO)),
    row("sinks.zero-attn-causal", *_causal(ZERO)),
    row("sinks.zero-attn-weights", ZERO, replace(ZERO, mask=MaskKind.BOOL), parts=("weights",)),
    row("sinks.bias-kv", BIAS_KV, BIAS_KV.sized(**ALIKE), BIAS_KV.sized(batch=1), BIAS_KV.sized(key_length=1)),
    row("sinks.bias-kv-masks", *_masked(BIAS_KV)),
    row("sinks.bias-kv-causal", *_causal(BIAS_KV)),
    row(
        "sinks.bias-kv-gradient",
        *(GENTLE_BIAS_KV, replace(GENTLE_BIAS_KV, mask=MaskKind.BOOL), GENTLE_BIAS_KV.sized(batch=3)),
        parts=("gradients.bias_k", "gradients.bias_v"),
    ),
    row("sinks.bias-kv-weights", BIAS_KV, replace(BIAS_KV, mask=MaskKind.BOOL), parts=("weights",)),
    row(
        "sinks.zero-attn-and-bias-kv",
        *(BOTH, replace(BOTH, mask=MaskKind.BOOL, padding=Padding.LEFT), BOTH.sized(key_length=1)),
        parts=("output", "weights"),
    ),
)


@clause("sinks.gradient")
def test_gradient(judge: Judge) -> None:
    masked = replace(GENTLE_SINK, mask=MaskKind.BOOL).sized(**SQUARE)
    judge.assert_all_conform(judge.cases(GENTLE_SINK, masked, GENTLE_SINK.sized(key_length=2)), "gradients")
    # Of terms of both signs a half type leaves so little that a mean of samples passes for their sum.
    for case in judge.cases(GENTLE_SINK.sized(key_length=2)):
        problem, context = changed(judge.problem(case), value=np.abs, cotangent=np.abs), "terms of one sign"
        if (result := judge.answer(case, problem, context)) is not None:
            expected = judge.solve(problem).parts
            judge.compare(case, result, expected, judge.expanded(("gradients",), problem), context)


@clause("sinks.range")
def test_range(judge: Judge) -> None:
    for case in judge.cases(replace(SINK, seed=4)):
        for sink, score in RANGES if judge.claims.scope is Scope.OP else RANGES[:2]:
            problem = _moved(judge.problem(case), sink, score)
            _assert_answered(judge, case, problem, f"sinks {sink:+g}, scores {score:+g}")


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
    if problem.needs and (result := judge.answer(case, problem, context)):
        judge.compare(case, result, expected, judge.expanded(("gradients",), problem), context)
