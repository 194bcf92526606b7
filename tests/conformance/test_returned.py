"""Chapter 18, returned: weights and log-sum-exps that can be relied on."""

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.logarithm_gradient import with_logarithm
from attention_conformance.reference.stages import repeat_kv
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores, Sizes
from attention_conformance.spec.conventions import Alignment, Conventions, LogOfNothing
from attention_conformance.spec.features import Feature, Packing
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause, group, row, table
from attention_conformance.tests.harness.judge.comparison import part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.merging import assert_merges
from attention_conformance.tests.report.verdict import FailureKind

EMPTY = Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
SHARED = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED)
GROUPED = Case(Sizes(num_heads=6, num_kv_heads=2))
OPTIONS = (
    Case(scale=0.3),
    Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED),
    Case(mask=MaskKind.INFINITE, scale=-0.7),
    Case(padding=Padding.HOLES),
    Case(causal=True, padding=Padding.RIGHT).sized(query_length=7),
    EMPTY,
    GROUPED,
    Case(score_std=3.0).extended(window_left=2, window_right=1),
    Case(score_std=3.0).extended(softcap=1.5),
    Case().extended(alibi=True),
    Case().extended(relative_bias=2),
    Case().extended(rotary_base=50.0, query_start=2),
    Case().extended(packing=Packing.SEGMENTS),
)
"""Every option that moves weights, one by one."""
SINGLE_GROUP = GROUPED.sized(num_kv_heads=1)
OUT_OF_REACH = Case().sized(query_length=9, key_length=4).extended(window_left=1, window_right=1)
"""The last queries are too far from all keys, however a window counts."""
NO_KEY = "the log-sum-exp of a row without keys is minus infinity"
EACH_HEAD = "one for each query head"
MASKED_GROUPS = replace(GROUPED, mask=MaskKind.BOOL, mask_shape=MaskShape.HEAD)


def _emptied_by_flag(claimed: Conventions) -> list[Case]:
    emptied = claimed.causal_alignment is not Alignment.TOP_LEFT
    return [Case(causal=True).sized(query_length=7, key_length=3)] if emptied else []


CLAUSES = table(
    row(
        "returned.base",
        *(Case(scores=Scores.EQUAL).sized(key_length=n) for n in (8, 2, 5)),
        parts=("log_sum_exp",),
        context="the logarithm of {case.sizes.key_length} to the base {claimed.log_sum_exp_base}",
    ),
    row(
        "returned.empty-row",
        *(replace(EMPTY, mask=MaskKind.INFINITE), EMPTY.sized(key_length=1), Case(padding=Padding.EMPTY_SAMPLE)),
        Case(mask=MaskKind.BOOL, padding=Padding.EMPTY_SAMPLE),
        *(Case().extended(packing=packing) for packing in (Packing.EMPTY_SEGMENT, Packing.EMPTY_DOCUMENT)),
        *(_emptied_by_flag, Case(causal=True, padding=Padding.LEFT).sized(query_length=7)),
        *(OUT_OF_REACH, OUT_OF_REACH.sized(key_length=3), replace(OUT_OF_REACH, causal=True)),
        OUT_OF_REACH.sized(query_length=5, key_length=7).extended(query_start=9),
        parts=("log_sum_exp",),
        context=NO_KEY,
    ),
    row(
        "returned.empty-row",
        Case().sized(key_length=0),
        parts=("log_sum_exp",),
        context=NO_KEY,
        feature=Feature.EMPTY_SIZES,
    ),
    row("returned.grouped-weights", GROUPED, SINGLE_GROUP, MASKED_GROUPS, parts=("weights",), context=EACH_HEAD),
    row(
        "returned.grouped-log-sum-exp",
        *(GROUPED, SINGLE_GROUP, MASKED_GROUPS),
        parts=("log_sum_exp",),
        context=EACH_HEAD,
    ),
)


@clause("returned.empty-parts")
def test_empty_parts(judge: Judge) -> None:
    if judge.conventions.log_of_nothing is LogOfNothing.NAN:
        judge.unsupported.append("a part without keys has no log-sum-exp to merge it by")
        return
    for case in judge.cases(*(replace(SHARED, pattern=p) for p in (Pattern.FIRST_TILE, Pattern.LAST_KEY)), EMPTY):
        assert_merges(judge, case, split=case.sizes.key_length // 2)
    for case in judge.cases(Case(mask=MaskKind.BOOL), Case(mask=MaskKind.BOOL, score_std=5.0).sized(key_length=17)):
        assert_merges(judge, case, split=1)


@clause("returned.mixture")
def test_mixture(judge: Judge) -> None:
    for case in judge.cases(*OPTIONS):
        judge.assert_conforms(case, "weights")
        problem, expected = judge.problem(case).forward_only(), judge.expected(case)
        if (result := judge.answer(case, problem)) is None:
            continue
        weights, output = expected["weights"], expected["output"]
        if result.weights is None or result.weights.shape != weights.value.shape:
            judge.assert_that(case, False, "weights are not returned for every head, query and key")
            continue
        value = repeat_kv(problem.value.astype(np.float64), problem.num_heads, judge.conventions.group_order)
        mixed = result.weights.astype(np.float64) @ value
        mixture = Expected(mixed, weights.bound @ np.abs(value) + output.bound)
        judge.compare(case, result, {"output": mixture}, ("output",), "against the weights times the values")


def _assert_with_gradients(judge: Judge, part: str) -> None:
    for case in judge.cases(Case(seed=131), Case(seed=132, mask=MaskKind.BOOL)):
        expected = judge.expected(case, gradients=True)[part]
        context = "gradients were recorded, and have been computed"
        judge.assert_answers(case, judge.problem(case), expected, context, part)


@clause("returned.log-sum-exp-gradient", dtypes=("float64", "float32"), anywhere=True)
def test_gradient_of_the_logarithm(judge: Judge) -> None:
    run = judge.implementation.modes[Feature.LOG_SUM_EXP_GRADIENT]
    other = replace(judge, implementation=replace(judge.implementation, run=run))
    square = Case(seed=138, causal=True, score_std=2.0).sized(query_length=5, key_length=5)
    for case in judge.cases(Case(seed=136), Case(seed=137, mask=MaskKind.BOOL, scale=0.3), square):
        problem = judge.problem(case)
        problem = problem.but(needs=tuple(name for name in problem.needs if name in ("query", "key", "value")))
        try:
            result = other.run(problem)
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        expected = with_logarithm(problem, judge.conventions)
        for part in expected:
            judge.record(
                case, judge.compared(part, part_of(result, part), expected[part]), "the log-sum-exp has a gradient"
            )


def _assert_stays(judge: Judge, part: str) -> None:
    for case in judge.cases(Case(seed=133), Case(seed=134).sized(query_length=1)):
        try:
            first = _returned(judge, case, part)
            bits = None if first is None else first.tobytes()
            for later in (1000, 2000):
                _returned(judge, replace(case, seed=case.seed + later), part)
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        if first is None:
            judge.assert_that(case, False, f"{part} is claimed, but was not returned", kind=FailureKind.MISSING)
        else:
            message = f"a later call wrote into the {part} of an earlier one"
            judge.assert_that(case, first.tobytes() == bits, message, kind=FailureKind.STATE)


def _returned(judge: Judge, case: Case, part: str) -> Array | None:
    return part_of(judge.run(judge.problem(case).forward_only()), part)


WITH_GRADIENTS = group(
    _assert_with_gradients,
    {"returned.weights-with-gradients": "weights", "returned.log-sum-exp-with-gradients": "log_sum_exp"},
)
STAYING = group(_assert_stays, {"returned.weights-stay": "weights", "returned.log-sum-exp-stays": "log_sum_exp"})
