"""The reference of the plain functions against mpmath and hand-computed values, and how functions are claimed."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.builtin.inhouse.positions import POSITIONS
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.spec.conventions import AlibiRule, SinusoidOrder
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.judge.judge import Judge

INTERLEAVED, HALVES = SinusoidOrder.INTERLEAVED, SinusoidOrder.HALVES
EXACT = 2.0**-50


@pytest.mark.parametrize("width", [2, 6, 16])
def test_sinusoids_to_fifty_digits(width: int) -> None:
    values = sinusoids(40, width, INTERLEAVED, "float64").value
    with mpmath.workdps(50):
        for position in (0, 1, 7, 39):
            for pair in range(width // 2):
                angle = position / mpmath.mpf(10000) ** (mpmath.mpf(2 * pair) / width)
                assert abs(values[position, 2 * pair] - mpmath.sin(angle)) < 40 * EXACT
                assert abs(values[position, 2 * pair + 1] - mpmath.cos(angle)) < 40 * EXACT


def test_orders_of_sinusoids_have_the_same_columns() -> None:
    interleaved, halves = (sinusoids(9, 6, order, "float32") for order in (INTERLEAVED, HALVES))
    for one, other in ((interleaved.value, halves.value), (interleaved.bound, halves.bound)):
        assert np.array_equal(np.concatenate([one[:, ::2], one[:, 1::2]], axis=1), other)


def test_bound_of_sinusoids_separates_positions_of_half_types() -> None:
    """A position that is off by one half is far beyond the bound, at the end of a long table too."""
    expected = sinusoids(2500, 8, INTERLEAVED, "float16")
    assert (expected.bound < 0.01).all()


def test_slopes_of_eight_heads() -> None:
    for rule in AlibiRule:
        assert alibi_slopes(8, rule, "float64").value.tolist() == [2.0**-h for h in range(1, 9)]


def test_slopes_of_six_heads() -> None:
    """Four heads have 1/4 to 1/256, eight have 1/2, 1/4, 1/8: of these the first and the third are taken."""
    fractions = [Fraction(1, 4), Fraction(1, 16), Fraction(1, 64), Fraction(1, 256), Fraction(1, 2), Fraction(1, 8)]
    assert alibi_slopes(6, AlibiRule.INTERLEAVED, "float64").value.tolist() == [float(f) for f in fractions]


def test_slopes_of_twelve_heads_in_one_sequence() -> None:
    values = alibi_slopes(12, AlibiRule.GEOMETRIC, "float64").value
    with mpmath.workdps(50):
        for head, slope in enumerate(values, start=1):
            exact = mpmath.mpf(2) ** (mpmath.mpf(-8 * head) / 12)
            assert abs(slope - exact) <= 4 * EXACT * exact


def implementation(features: set[Feature], **functions: object) -> Implementation:
    claims = Claims(Scope.OP, frozenset(features | {Feature.CORE}))
    return Implementation("functions", claims, torch_op(Steps()), functions=functions)  # type: ignore[arg-type]  # on purpose


def test_functions_and_features_go_together() -> None:
    implementation({Feature.SINUSOIDS}, sinusoids=np.zeros)
    with pytest.raises(ValueError, match=r"the function 'sinusoids' goes together with Feature\.SINUSOIDS"):
        implementation({Feature.SINUSOIDS})
    with pytest.raises(ValueError, match=r"the function 'alibi_slopes' goes together with Feature\.ALIBI_SLOPES"):
        implementation(set(), alibi_slopes=np.zeros)
    with pytest.raises(ValueError, match="has a function 'slopes'; the suite knows: sinusoids, alibi_slopes"):
        implementation(set(), slopes=np.zeros)


@pytest.mark.parametrize(
    ("answer", "context"),
    [
        (lambda length, width: [[0.0] * width] * length, "sinusoids returned list, not an array"),
        (lambda length, width: np.zeros((length, width), int), "sinusoids returned an array of int64, not an array"),
        (lambda length, width: [][0], "raised IndexError"),
    ],
)
def test_other_answers_than_arrays_of_floats_are_reported(answer: object, context: str) -> None:
    judge = Judge(implementation({Feature.SINUSOIDS}, sinusoids=answer), "float64")
    with pytest.raises(CandidateError, match=context):
        judge.call("sinusoids", 3, 4)


def test_functions_of_the_house_answer_single_precision() -> None:
    for each in POSITIONS:
        assert each.functions["sinusoids"](5, 4).dtype == np.float32
        assert each.functions["alibi_slopes"](12).shape == (12,)
