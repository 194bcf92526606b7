"""Chapter 27, conventions: where nothing is claimed any answer will do, and two answers will not."""

from __future__ import annotations

from attention_conformance.tests.harness.judge.clause_tests import clause
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

WIDE = ("float64", "float32")


@clause("conventions.empty-row")
def test_empty_row(judge: Judge) -> None:
    for point in EMPTY_ROWS:
        _assert_consistent(judge, point)


@clause("conventions.finite-mask-fill", dtypes=WIDE)
def test_least_number(judge: Judge) -> None:
    _assert_consistent(judge, LEAST_NUMBER)


@clause("conventions.causal-with-mask")
def test_causal_with_mask(judge: Judge) -> None:
    _assert_consistent(judge, FLAG_AND_MASK)


@clause("conventions.masked-nan", dtypes=WIDE)
def test_masked_nan(judge: Judge) -> None:
    for point in (SPOILT_KEYS, SPOILT_VALUES):
        _assert_consistent(judge, point)


@clause("conventions.numeric-mask", dtypes=WIDE)
def test_number_mask(judge: Judge) -> None:
    for point in (INTEGERS, FLOATS):
        _assert_consistent(judge, point)


@clause("conventions.empty-sizes")
def test_empty_sizes(judge: Judge) -> None:
    for point in (NO_SAMPLE, NO_QUERY, NO_KEY):
        _assert_consistent(judge, point)


def _assert_consistent(judge: Judge, point: Disagreement) -> None:
    """One answer to a point, whatever the form and the path; the first one is held against all others."""
    found = list(answers(judge, point))
    if len(found) < 2:
        judge.unsupported.append(f"{point.name}: there is one way to ask at most")
        return
    first_case, first_path, first = found[0]
    for case, path, answer in found[1:]:
        where = path if path != first_path else f"{path} of {case.sizes}"
        before = first_path if path != first_path else f"{first_path} of {first_case.sizes}"
        judge.assert_that(case, answer == first, point.name, f"{first} {before}, {answer} {where}")
