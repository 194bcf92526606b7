"""No verdict depends on how the logarithm of a distance is rounded where two buckets meet."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.bucket_edges import reach, undecided
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.covering import combinations
from attention_conformance.spec.features import Extension, Feature, Scope
from attention_conformance.tests.conformance.test_bucketed_bias import CLAUSES, PUBLISHED

Integers: TypeAlias = NDArray[np.int64]
FORMS: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda x, e, d: np.log(x / e) / np.log(d / e),
    lambda x, e, d: (np.log(x) - np.log(e)) / (np.log(d) - np.log(e)),
    lambda x, e, d: np.log2(x / e) * (1 / np.log2(d / e)),
)
"""The places of distances among the buckets beyond the exact ones."""


def cases() -> Iterator[Case]:
    for clause in CLAUSES:
        assert isinstance(clause.run, partial)
        yield from (case for each in clause.run.args[0] for case in each.cases)
    yield from (case for case in combinations(lambda case: True, Conventions()) if case.extension.bucketed_bias)


def exact_ones(extension: Extension) -> tuple[int, int]:
    """The buckets of one side, and how many of them hold one distance each."""
    count = extension.bucketed_bias // (2 if extension.bidirectional else 1)
    return count, count // 2


def grown(extension: Extension, distances: Integers, form: Callable[..., Any], dtype: type[np.floating]) -> Integers:
    count, exact = exact_ones(extension)
    places = form(distances.astype(dtype), dtype(exact), dtype(extension.max_distance)) * dtype(count - exact)
    return np.asarray(np.minimum(exact + np.floor(places), count - 1), np.int64)


def test_every_form_has_the_same_buckets_in_every_case() -> None:
    seen = 0
    for case in cases():
        assert undecided(case) is None, case
        distances = np.arange(exact_ones(case.extension)[1], reach(case) + 1)
        of_single = [grown(case.extension, distances, form, np.float32) for form in FORMS]
        expected = grown(case.extension, distances, FORMS[0], np.float64)
        assert all((each == expected).all() for each in of_single), case
        seen += 1
    assert seen > 20


@pytest.mark.parametrize(("length", "distance"), [(16, None), (17, 16), (33, 16)])
def test_a_case_that_grows_to_an_edge_is_refused(length: int, distance: int | None) -> None:
    def fit_(case: Case) -> Case:
        return case.sized(query_length=length, key_length=length)

    assert undecided(fit_(PUBLISHED)) == distance
    fitted = fit(PUBLISHED, Claims(Scope.OP, frozenset(Feature), fit=fit_))
    assert isinstance(fitted, Unsupported) is (distance is not None)
