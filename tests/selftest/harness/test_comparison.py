"""Comparison: shapes, dtypes, NaN and infinity first, then every element in units of its bound."""

import numpy as np
import pytest

from attention_conformance.reference.expected import Expected
from attention_conformance.spec.problem import DTYPES, Array
from attention_conformance.tests.harness.judge.comparison import Comparison, compare, element, error_ratios
from attention_conformance.tests.report.verdict import FailureKind

VALUE = np.linspace(-2.0, 3.0, 2 * 3 * 5 * 4).reshape(2, 3, 5, 4)
EXPECTED = Expected(VALUE, np.full_like(VALUE, 0.5))


def compared(got: Array | None, expected: Expected = EXPECTED, dtype: str = "float64") -> Comparison:
    return compare("output", got, expected, dtype)


def changed(value: float, index: tuple[int, ...] = (1, 2, 3, 0)) -> Array:
    array = VALUE.copy()
    array[index] = value
    return array


def test_equal_arrays_conform() -> None:
    assert compared(VALUE.copy()) == Comparison(0.0, relative=0.0)


def test_errors_are_measured_in_bounds() -> None:
    assert compared(VALUE + 0.25).worst == pytest.approx(0.5)
    assert compared(VALUE + 0.25).message == ""
    wrong = compared(changed(VALUE[1, 2, 3, 0] + 1.0))
    assert wrong.worst == pytest.approx(2.0)
    assert wrong.message.startswith("output of sample 1 head 2 query 3 component 0 is ")
    assert wrong.message.endswith("(2 x the bound 0.5); 1 of 120 elements differ")


def test_every_element_has_its_own_bound() -> None:
    bound = np.full_like(VALUE, 0.5)
    bound[0, 0, 0, 0] = 1e-9
    result = compared(changed(VALUE[0, 0, 0, 0] + 1e-6, (0, 0, 0, 0)), Expected(VALUE, bound))
    assert result.worst == pytest.approx(1000.0, rel=1e-3)


def test_a_bound_of_zero_allows_nothing() -> None:
    exact = Expected(VALUE, np.zeros_like(VALUE))
    assert compared(VALUE.copy(), exact).worst == 0.0
    result = compared(changed(np.nextafter(VALUE[1, 2, 3, 0], 9.0)), exact)
    assert result.worst == np.inf
    assert "(exact)" in result.message


def test_a_missing_part_is_reported() -> None:
    assert compared(None) == Comparison(np.inf, "output is claimed, but was not returned", kind=FailureKind.MISSING)


@pytest.mark.parametrize("shape", [(3, 2, 5, 4), (2, 3, 5), (2, 3, 5, 4, 1), ()])
def test_a_wrong_shape_never_broadcasts(shape: tuple[int, ...]) -> None:
    result = compared(np.zeros(shape))
    assert result == Comparison(np.inf, f"output has shape {shape}, expected (2, 3, 5, 4)", kind=FailureKind.SHAPE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_is_that_of_the_inputs(dtype: str) -> None:
    for given in DTYPES:
        result = compared(VALUE.astype(DTYPES[given]), dtype=dtype)
        assert (f"output has dtype {given}, expected {dtype}" in result.message) == (given != dtype)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_conforms_by_accident(wrong: float) -> None:
    infinite = Expected(VALUE, np.full_like(VALUE, np.inf))
    for expected in (EXPECTED, infinite):
        result = compared(changed(wrong), expected)
        assert result.worst == np.inf
        assert result.message.startswith(f"output of sample 1 head 2 query 3 component 0 is {wrong:.6g}, expected ")


@pytest.mark.parametrize("expected", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_expected_in_its_place(expected: float) -> None:
    reference = Expected(changed(expected), EXPECTED.bound)
    for given in (0.0, 1e300, np.nan, np.inf, -np.inf):
        same = given == expected or (np.isnan(given) and np.isnan(expected))
        assert (compared(changed(given), reference).message == "") == same
    assert compared(changed(expected, (0, 0, 0, 0)), reference).message != ""


def test_anything_is_right_where_nan_has_an_infinite_bound() -> None:
    open_ended = Expected(changed(np.nan), np.where(np.isnan(changed(np.nan)), np.inf, EXPECTED.bound))
    for given in (0.0, 1e300, np.nan, -np.inf):
        assert compared(changed(given), open_ended).message == ""
        assert error_ratios(changed(given), open_ended).max() == 0.0
    assert compared(changed(np.nan, (0, 0, 0, 0)), open_ended).message != ""


def test_finite_elements_next_to_nan_are_still_compared() -> None:
    expected = Expected(changed(np.nan), EXPECTED.bound)
    got = changed(np.nan)
    got[0, 0, 0, 0] += 5.0
    assert compared(got, expected).worst == pytest.approx(10.0)


def test_a_bound_that_lets_zeros_pass_is_inconclusive() -> None:
    wide = Expected(VALUE, np.abs(VALUE) + 1e-3)
    assert compared(VALUE.copy(), wide).inconclusive
    assert not compared(VALUE * -3, wide).inconclusive  # a failure counts, however wide the bound is
    one_is_sharp = Expected(VALUE, np.where(VALUE.max() == VALUE, 0.1, wide.bound))
    assert not compared(VALUE.copy(), one_is_sharp).inconclusive


def test_zeros_where_zeros_are_expected_are_conclusive() -> None:
    zeros = np.zeros((2, 3))
    assert not compared(zeros, Expected(zeros, zeros)).inconclusive
    empty = np.zeros((0, 3))
    assert compared(empty, Expected(empty, empty)) == Comparison(0.0)


def test_ratios_are_elementwise() -> None:
    expected = Expected(np.array([1.0, 2.0, np.nan, np.inf, 5.0]), np.array([0.5, 0.0, 1.0, 1.0, 0.0]))
    ratios = error_ratios(np.array([1.25, 2.5, np.nan, np.inf, 5.0]), expected)
    assert ratios.tolist() == [0.5, np.inf, 0.0, 0.0, 0.0]


def test_elements_are_named_in_the_words_of_the_specification() -> None:
    assert element("output", (0, 1, 2, 3)) == "output of sample 0 head 1 query 2 component 3"
    assert element("output", (0, 1, 2)) == "output of sample 0 query 1 component 2"
    assert element("weights", (0, 1, 2, 3)) == "weights of sample 0 head 1 query 2 key 3"
    assert element("averaged_weights", (0, 1, 2)) == "averaged_weights of sample 0 query 1 key 2"
    assert element("log_sum_exp", (0, 1, 2)) == "log_sum_exp of sample 0 head 1 query 2"
    assert element("gradients.w_q", (4, 5)) == "gradients.w_q[4, 5]"


def test_errors_relative_to_what_is_expected() -> None:
    size = float(np.sqrt((VALUE**2).mean()))
    off = 0.25 * np.where(VALUE > 0.0, 1.0, -1.0)
    assert compared(VALUE + off).relative == pytest.approx(0.25 / size)
    assert compared(VALUE * 1.25, Expected(VALUE, np.full_like(VALUE, 2.0))).relative == pytest.approx(0.25)
    assert compared(changed(VALUE[1, 2, 3, 0] + 9.0)).relative == pytest.approx(9.0 / size / VALUE.size**0.5)


def test_only_finite_elements_have_a_relative_error() -> None:
    holes = changed(np.nan)
    finite = np.isfinite(holes)
    result = compared(holes + 0.25, Expected(holes, EXPECTED.bound))
    assert result.relative == pytest.approx(0.25 / np.sqrt((VALUE[finite] ** 2).mean()))


def test_nothing_relative_to_zeros_nor_without_a_bound() -> None:
    zeros, none = np.zeros_like(VALUE), np.full_like(VALUE, np.nan)
    for expected in (Expected(zeros, EXPECTED.bound), Expected(VALUE, zeros), Expected(none, EXPECTED.bound)):
        assert compared(expected.value.copy(), expected).relative is None
    assert compare("weights", VALUE, EXPECTED, "float64").relative is None
    assert compared(changed(np.nan)).relative is None


def test_a_part_of_which_anything_is_right_proves_nothing() -> None:
    """A part of it that is specified does, and is compared."""
    value, bound = np.full_like(VALUE, np.nan), np.full_like(VALUE, np.inf)
    assert compared(VALUE, Expected(value, bound)).inconclusive
    value[0], bound[0] = VALUE[0], EXPECTED.bound[0]
    assert not compared(VALUE, Expected(value, bound)).inconclusive
    assert compared(VALUE + 1.0, Expected(value, bound)).kind is FailureKind.VALUE
