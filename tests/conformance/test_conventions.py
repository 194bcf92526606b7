"""Chapter 27, conventions: where nothing is claimed any answer will do, and two answers will not."""

from collections.abc import Sequence

from attention_conformance.tests.harness.judge.clause_tests import clause, group
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.observed_conventions import (
    EMPTY_ROWS,
    FLAG_AND_MASK,
    FLOATS,
    INTEGERS,
    LEAST_NUMBER,
    NO_KEY,
    NO_QUERY,
    NO_SAMPLE,
    SPOILT_KEYS,
    SPOILT_VALUES,
    Disagreement,
    answers,
)


def _assert_consistent(judge: Judge, points: Sequence[Disagreement]) -> None:
    """One answer to each point, whatever the form and the path; the first one is compared with all others."""
    for point in points:
        _assert_one_answer(judge, point)


def _assert_one_answer(judge: Judge, point: Disagreement) -> None:
    results = list(answers(judge, point))
    if len(results) < 2:
        judge.unsupported.append(f"{point.name}: there is at most one way to call it")
    for alike in ([each for each in results if each.with_more in (more, None)] for more in (False, True)):
        for each in alike[1:]:
            first = alike[0]
            where = each.path if each.path != first.path else f"{each.path} of {each.case.sizes}"
            before = first.path if each.path != first.path else f"{first.path} of {first.case.sizes}"
            details = f"{first.name} {before}, {each.name} {where}"
            judge.assert_that(each.case, each.name == first.name, point.name, details)


CLAUSES = group(
    _assert_consistent,
    {
        "conventions.empty-row": EMPTY_ROWS,
        "conventions.causal-with-mask": (FLAG_AND_MASK,),
        "conventions.empty-sizes": (NO_SAMPLE, NO_QUERY, NO_KEY),
    },
)
WIDE_ONLY = group(_assert_consistent, {"conventions.finite-mask-fill": (LEAST_NUMBER,)}, ("float64", "float32"))
"""In a half type the mean of such a row has few digits, where it is merged from parts."""
WIDEST = group(
    _assert_consistent, {"conventions.numeric-mask": (INTEGERS, FLOATS)}, ("float64", "float32"), anywhere=True
)


@clause("conventions.masked-nan", ("float64", "float32"), anywhere=True)
def test_masked_nan(judge: Judge) -> None:
    _assert_consistent(judge, (SPOILT_KEYS, SPOILT_VALUES))
