"""Positions of queries and keys, worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from attention_conformance.reference.positions import Positions, positions, rotated_at
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import NOTHING, Extension, PositionIds, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.reference.family_oracle import document, position

BOTTOM_RIGHT = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT)


def placed(
    query_length: int,
    key_length: int,
    conventions: Conventions = Conventions(),
    extension: Extension = NOTHING,
    batch: int = 1,
    **extras: ArrayLike,
) -> Positions:
    return positions(_problem(query_length, key_length, extension, batch, extras), conventions)


def _problem(queries: int, keys: int, extension: Extension, batch: int, extras: dict[str, Any]) -> Problem:
    query, key = np.zeros((batch, 1, queries, 1)), np.zeros((batch, 1, keys, 1))
    arrays = {name: np.asarray(array) for name, array in extras.items()}
    return Problem(Scope.OP, query, key, key, 1, extension=extension, extras=arrays)


def assert_placed(places: Positions, query: ArrayLike, key: ArrayLike) -> None:
    assert np.array_equal(places.query, query)
    assert np.array_equal(places.key, key)


def test_both_count_from_the_start() -> None:
    assert_placed(placed(3, 5, batch=2), [[0, 1, 2]] * 2, [[0, 1, 2, 3, 4]] * 2)


def test_bottom_right_puts_the_last_query_at_the_last_key() -> None:
    assert_placed(placed(2, 5, BOTTOM_RIGHT), [[3, 4]], [[0, 1, 2, 3, 4]])
    assert_placed(placed(4, 2, BOTTOM_RIGHT), [[-2, -1, 0, 1]], [[0, 1]])


@pytest.mark.parametrize("conventions", [Conventions(), BOTTOM_RIGHT], ids=["top-left", "bottom-right"])
def test_a_given_start_is_not_overruled_by_the_alignment(conventions: Conventions) -> None:
    for start in (0, 7):
        assert_placed(placed(2, 3, conventions, Extension(query_start=start)), [[start, start + 1]], [[0, 1, 2]])


def test_documents_given_by_lengths_count_from_their_own_start() -> None:
    places = placed(5, 6, query_lengths=[2, 0, 3], key_lengths=[1, 2, 3])
    assert_placed(places, [[0, 1, 0, 1, 2]], [[0, 0, 1, 0, 1, 2]])
    assert np.array_equal(places.query_document, [[0, 0, 2, 2, 2]])
    assert np.array_equal(places.together[0, 0], [True, False, False, False, False, False])
    assert np.array_equal(places.together[0, 2], [False, False, False, True, True, True])


def test_bottom_right_holds_in_each_document() -> None:
    places = placed(5, 6, BOTTOM_RIGHT, query_lengths=[2, 1, 2], key_lengths=[1, 4, 1])
    assert np.array_equal(places.query, [[-1, 0, 3, -1, 0]])
    emptied = placed(3, 3, BOTTOM_RIGHT, query_lengths=[2, 1], key_lengths=[0, 3])
    assert np.array_equal(emptied.query, [[-2, -1, 2]])


def test_segments_may_lie_between_one_another_and_differ_by_sample() -> None:
    places = placed(
        4, 4, batch=2, query_segments=[[5, 3, 5, 3], [0, 0, 0, 0]], key_segments=[[3, 5, 5, 3], [0, 0, 1, 1]]
    )
    assert_placed(places, [[0, 0, 1, 1], [0, 1, 2, 3]], [[0, 0, 1, 1], [0, 1, 0, 1]])
    assert np.array_equal(places.together[0, 0], [False, True, True, False])
    assert np.array_equal(places.together[1, 3], [True, True, False, False])


def test_ids_rotate_and_move_nothing_else() -> None:
    extension, shared = Extension(position_ids=PositionIds.ASCENDING, query_start=1), [4, 7]
    problem = _problem(2, 3, extension, 2, {"query_positions": shared, "key_positions": [[9, 8, 0], [3, 3, 3]]})
    places = positions(problem, Conventions())
    assert_placed(places, [[1, 2]] * 2, [[0, 1, 2]] * 2)
    query, key = rotated_at(problem, places)
    assert np.array_equal(query, [shared, shared])
    assert np.array_equal(key, [[9, 8, 0], [3, 3, 3]])


def test_distances_are_of_key_from_query() -> None:
    places = placed(2, 4, extension=Extension(query_start=1))
    assert np.array_equal(places.ahead[0], [[-1, 0, 1, 2], [-2, -1, 0, 1]])
    assert np.array_equal(places.clipped(1)[0], [[0, 1, 2, 2], [0, 0, 1, 2]])
    assert np.array_equal(places.clipped(9)[0], [[8, 9, 10, 11], [7, 8, 9, 10]])
    assert np.array_equal(places.farthest[0], [[1, 1, 2, 3], [2, 2, 2, 3]])
    assert np.array_equal(placed(3, 2, BOTTOM_RIGHT).farthest[0], [[1, 2], [0, 1], [1, 1]])


def test_empty_sequences_have_no_positions() -> None:
    assert placed(0, 3).together.shape == (1, 0, 3)
    assert placed(2, 0, BOTTOM_RIGHT).query.tolist() == [[-2, -1]]
    assert placed(2, 3, batch=0, query_lengths=[2], key_lengths=[3]).query.shape == (0, 2)


ids = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@settings(deadline=None)
@given(query=ids, key=ids, start=st.none() | st.integers(0, 9), alignment=st.sampled_from(Alignment))
def test_segments_agree_with_counting(
    query: list[int], key: list[int], start: int | None, alignment: Alignment
) -> None:
    conventions = Conventions(causal_alignment=alignment)
    extras = {"query_segments": [query], "key_segments": [key]}
    problem = _problem(len(query), len(key), Extension(query_start=start), 1, extras)
    places = positions(problem, conventions)
    for role, numbers, length in (("query", places.query, len(query)), ("key", places.key, len(key))):
        assert numbers[0].tolist() == [position(problem, conventions, role, 0, token) for token in range(length)]
    of_key = [document(problem, "key", 0, j) for j in range(len(key))]
    together = [[document(problem, "query", 0, i) == of for of in of_key] for i in range(len(query))]
    assert places.together[0].tolist() == together
