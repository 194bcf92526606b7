"""The family's reference against loops, fifty digits and complex steps, and numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp, log, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from reference.precision import precision
from reference.solving import Expected, Solution, solve
from spec.building import build
from spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Pattern, Sharing, Sizes
from spec.covering import combinations
from spec.extensions import NOTHING, Extension, Packing
from spec.features import Alignment, Conventions, EmptyRow, GroupOrder, RotaryPairing, WindowCount
from spec.problems import Array, Problem
from tests.selftest.arithmetic import COMPLEX, DOUBLE, FIFTY_DIGITS, Arithmetic
from tests.selftest.family_oracle import kv_heads
from tests.selftest.oracle import attention, loss
from tests.selftest.test_gradients import STEP
from tests.selftest.test_oracle import assert_output, op, ratio

SMALL = Sizes(batch=2, num_heads=2, query_length=4, key_length=5, d_k=4, d_v=2)
GROUPS = replace(SMALL, num_heads=4, num_kv_heads=2, query_length=3)
SQUARE = replace(SMALL, query_length=5)
TALL = replace(SMALL, query_length=6, key_length=4)
LONG = replace(SMALL, batch=1, num_heads=1, query_length=9, key_length=9)
FORM = ModuleForm(Sharing.NONE, 5, 3, 4, 3, bias=True, output_projection=True, output_bias=True)
SELF = replace(FORM, sharing=Sharing.SELF, query_dim=4, key_dim=4, value_dim=4)
KEY_VALUE = replace(FORM, sharing=Sharing.KEY_VALUE, value_dim=3)
EVERYTHING = Extension(
    left=3,
    right=2,
    softcap=2.0,
    rotary_base=50.0,
    query_start=1,
    alibi=True,
    relative_bias=2,
    sinks=True,
    zero_attn=True,
    head_gates=True,
)
ELSEWHERE = Conventions().claiming(
    {
        "causal-alignment": "bottom-right",
        "group-order": "tiled",
        "window-count": "including",
        "rotary-pairing": "interleaved",
        "returned-weights": "after-dropout",
        "log-sum-exp-base": "2",
    }
)
"""The other answer to every question."""
BOTH = pytest.mark.parametrize("conventions", [Conventions(), ELSEWHERE], ids=["default", "elsewhere"])

PLACED = [
    Case(sizes=SMALL, causal=True).extended(query_start=1),
    Case(sizes=TALL, causal=True),
    Case(sizes=SMALL).extended(left=1),
    Case(sizes=SMALL).extended(left=0, right=0),
    Case(sizes=SMALL).extended(left=2, right=1, query_start=2),
    Case(sizes=TALL).extended(left=1, right=1),
    Case(sizes=SQUARE, causal=True).extended(left=2),
    Case(sizes=SQUARE, padding=Padding.LEFT).extended(left=2),
    Case(sizes=SMALL).extended(packing=Packing.SEGMENTS),
    Case(sizes=LONG, causal=True).extended(packing=Packing.SEGMENTS),
    Case(sizes=LONG, causal=True).extended(packing=Packing.LENGTHS, left=1),
    Case(sizes=LONG, mask=MaskKind.INFINITE).extended(packing=Packing.LENGTHS),
    Case(sizes=TALL, causal=True).extended(packing=Packing.LENGTHS, alibi=True),
    Case(sizes=SMALL).extended(packing=Packing.EMPTY_SEGMENT, rotary_base=10.0, relative_bias=1),
    Case(sizes=SMALL).extended(packing=Packing.EMPTY_DOCUMENT, right=0),
]
SCORED = [
    Case(sizes=SMALL, spread=6.0).extended(softcap=1.5),
    Case(sizes=SMALL, spread=30.0, mask=MaskKind.FLOAT).extended(softcap=20.0),
    Case(sizes=SMALL).extended(rotary_base=10000.0),
    Case(sizes=SMALL).extended(rotary_base=3.0, query_start=7),
    Case(sizes=SMALL).extended(alibi=True),
    Case(sizes=SMALL, causal=True).extended(alibi=True, query_start=3),
    Case(sizes=SMALL, mask=MaskKind.INFINITE, mask_shape=MaskShape.SAMPLE).extended(relative_bias=2),
    Case(sizes=SQUARE).extended(relative_bias=9),
]
EXTENDED = [
    Case(sizes=SMALL).extended(sinks=True),
    Case(sizes=SMALL, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW).extended(sinks=True),
    Case(sizes=SMALL, mask=MaskKind.FLOAT).extended(zero_attn=True),
    Case(sizes=SMALL, padding=Padding.EMPTY_SAMPLE).extended(zero_attn=True, sinks=True, softcap=2.0),
    Case(sizes=SMALL).extended(head_gates=True),
]
GROUPED = [
    Case(sizes=GROUPS),
    Case(sizes=replace(GROUPS, num_kv_heads=1), causal=True).extended(rotary_base=9.0),
    Case(sizes=replace(GROUPS, num_heads=6, num_kv_heads=2)).extended(sinks=True, alibi=True),
]
OPS = [*PLACED, *SCORED, *EXTENDED, *GROUPED, Case(sizes=GROUPS, extension=EVERYTHING)]
MODULES = [
    Case(sizes=SMALL, module=FORM).extended(bias_kv=True),
    Case(sizes=SMALL, module=KEY_VALUE, mask=MaskKind.BOOL).extended(bias_kv=True, zero_attn=True),
    Case(sizes=SQUARE, module=SELF, causal=True).extended(bias_kv=True, sinks=True, rotary_base=20.0),
    Case(sizes=GROUPS, module=FORM).extended(head_gates=True, relative_bias=1),
    Case(sizes=GROUPS, module=KEY_VALUE).extended(bias_kv=True, softcap=2.0),
    Case(sizes=GROUPS, module=FORM, extension=replace(EVERYTHING, bias_kv=True)),
    Case(sizes=LONG, module=SELF, causal=True).extended(packing=Packing.SEGMENTS, alibi=True),
]
DROPPED = [
    Case(sizes=SMALL),
    Case(sizes=GROUPS, mask=MaskKind.BOOL).extended(head_gates=True, sinks=True),
    Case(sizes=SMALL, module=FORM).extended(bias_kv=True, zero_attn=True),
]
SHARP = replace(precision("float64"), angle=2.0**-52)
"""The reference's own precision: its angles are in float64, where implementations may have them in float32."""


@cache
def solved(case: Case, conventions: Conventions, dropout: float = 0.0) -> tuple[Problem, Array | None, Solution]:
    problem = build(case, "float64")
    kept = factors(problem, dropout, case.seed) if dropout else None
    return problem, kept, solve(problem, conventions, kept, SHARP)


def factors(problem: Problem, rate: float, seed: int) -> NDArray[np.float64]:
    """(B, H, Lq, Lk), further keys and the sink included: 0 for dropped weights, 1 / (1 - rate) for the others."""
    columns = problem.key.shape[-2] + problem.extension.extra_keys + ("sinks" in problem.extras)
    shape = (len(problem.query), problem.num_heads, problem.query.shape[-2], columns)
    return np.where(np.random.default_rng(seed).random(shape) < rate, 0.0, 1.0 / (1.0 - rate))


def assert_answers_agree(
    case: Case, conventions: Conventions, dropout: float = 0.0, arithmetic: Arithmetic = DOUBLE, room: float = 1.0
) -> None:
    problem, kept, solution = solved(case, conventions, dropout)
    found = attention(problem, conventions, arithmetic, kept)
    for name in ("output", "weights", "log_sum_exp"):
        assert ratio(_rounded(getattr(found, name)), solution.parts[name]) <= room, name
    averaged = np.array(_rounded(found.weights)).mean(1)
    assert ratio(averaged, solution.parts["averaged_weights"]) <= room


def _rounded(nested: Any) -> Any:
    return [_rounded(part) for part in nested] if isinstance(nested, list) else float(nested)


def assert_gradients_agree(case: Case, conventions: Conventions, dropout: float = 0.0) -> None:
    problem, kept, solution = solved(case, conventions, dropout)
    for name in problem.needs:
        expected, array = solution.parts[f"gradients.{name}"], problem.arrays()[name].astype(np.complex128)
        for place in np.ndindex(*array.shape):
            moved = array.copy()
            moved[place] += 1j * STEP
            found = loss(problem.with_arrays({name: moved}), conventions, COMPLEX, kept).imag / STEP
            assert abs(found - expected.value[place]) <= expected.bound[place], (name, place)


@BOTH
@pytest.mark.parametrize("case", [*OPS, *MODULES], ids=str)
def test_agrees_with_loops(case: Case, conventions: Conventions) -> None:
    assert_answers_agree(case, conventions)


@BOTH
@pytest.mark.parametrize("case", [*OPS, *MODULES], ids=str)
def test_gradients_agree_with_complex_steps(case: Case, conventions: Conventions) -> None:
    assert_gradients_agree(case, conventions)


@BOTH
@pytest.mark.parametrize("case", DROPPED, ids=str)
def test_dropout_agrees(case: Case, conventions: Conventions) -> None:
    for rate in (0.3, 0.9):
        assert_answers_agree(case, conventions, rate)
    assert_gradients_agree(case, conventions, 0.3)


@pytest.mark.parametrize("case", [*SCORED, *EXTENDED, OPS[-1], *MODULES], ids=str)
def test_agrees_with_fifty_digits(case: Case) -> None:
    assert_answers_agree(case, Conventions(), arithmetic=FIFTY_DIGITS, room=0.5)


@pytest.mark.parametrize("conventions", [Conventions(), ELSEWHERE], ids=["default", "elsewhere"])
@pytest.mark.parametrize("answer", EmptyRow)
@pytest.mark.parametrize(
    "case",
    [
        Case(sizes=SMALL).extended(left=0, right=0, query_start=9),
        Case(sizes=TALL).extended(left=0, right=0),
        Case(sizes=SMALL).extended(packing=Packing.EMPTY_SEGMENT),
        Case(sizes=LONG, causal=True).extended(packing=Packing.EMPTY_DOCUMENT),
    ],
    ids=str,
)
def test_rows_emptied_by_position_agree(case: Case, answer: EmptyRow, conventions: Conventions) -> None:
    claimed = conventions.claiming({"empty-row-causal": answer})
    assert_answers_agree(case, claimed)
    _, _, solution = solved(case, claimed)
    assert solution.trace.seen.rows_answered(answer).any()
    if answer is not EmptyRow.NAN:
        assert_gradients_agree(case, claimed)


def combined_cases() -> list[Case]:
    """The pairs of the quick tier, with even widths for the rotations and fewer of the largest sizes."""
    found = combinations(lambda case: case.sizes.d_k < 16, Conventions())
    return [case.sized(d_k=case.sizes.d_k + case.sizes.d_k % 2) for case in found]


@pytest.mark.parametrize("case", combined_cases(), ids=lambda case: f"pairs-{case.seed}")
def test_pairs_of_options_agree(case: Case) -> None:
    # Sizes, masks and the family's options meet here in all pairs; learned further keys need a module.
    module = FORM if case.extension.bias_kv else None
    assert_answers_agree(replace(case, module=module), ELSEWHERE if case.seed % 2 else Conventions())


def some(*levels: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(levels)


EXTENSIONS = st.builds(
    Extension,
    left=st.none() | st.integers(0, 9),
    right=st.none() | st.integers(0, 9),
    softcap=st.none() | st.floats(0.1, 100.0),
    rotary_base=st.none() | st.floats(1.0, 1e6),
    query_start=st.none() | st.integers(0, 50),
    alibi=st.booleans(),
    relative_bias=st.integers(0, 4),
    sinks=st.booleans(),
    zero_attn=st.booleans(),
    head_gates=st.booleans(),
    bias_kv=st.booleans(),
    packing=st.sampled_from(Packing),
)
CONVENTIONS = st.builds(
    Conventions,
    causal_alignment=st.sampled_from(Alignment),
    group_order=st.sampled_from(GroupOrder),
    window_count=st.sampled_from(WindowCount),
    rotary_pairing=st.sampled_from(RotaryPairing),
)
SIZES = st.builds(
    lambda groups, shared, pairs, **rest: Sizes(num_heads=groups * shared, num_kv_heads=shared, d_k=2 * pairs, **rest),
    groups=st.integers(1, 3),
    shared=st.integers(1, 2),
    pairs=st.integers(1, 3),
    batch=st.integers(1, 2),
    query_length=st.integers(1, 7),
    key_length=st.integers(1, 7),
    d_v=st.integers(1, 3),
)
CASES = st.builds(
    Case,
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    spread=st.floats(0.1, 20.0),
    mask=st.sampled_from(MaskKind),
    padding=some(Padding.NONE, Padding.NONE, Padding.LEFT, Padding.HOLES),
    causal=st.booleans(),
    extension=EXTENSIONS,
)


@settings(deadline=None, max_examples=80)
@given(case=CASES, conventions=CONVENTIONS, dropout=some(0.0, 0.0, 0.5))
def test_drawn_combinations_agree(case: Case, conventions: Conventions, dropout: float) -> None:
    module = FORM if case.extension.bias_kv else None
    assert_answers_agree(replace(case, module=module), conventions, dropout)


@settings(deadline=None, max_examples=12)
@given(case=CASES, conventions=CONVENTIONS)
def test_gradients_of_drawn_combinations_agree(case: Case, conventions: Conventions) -> None:
    small = case.sized(batch=1, query_length=min(3, case.sizes.query_length), d_k=2)
    assert_gradients_agree(replace(small, module=FORM if case.extension.bias_kv else None), conventions)


# Worked out by hand, each against the reference and the loops. All scales are 1, so that scores are products.


def asking(query: ArrayLike, key: ArrayLike, value: ArrayLike, extras: dict[str, Any], **asked: Any) -> Problem:
    arrays = {name: np.asarray(array) for name, array in extras.items()}
    return op(query, key, value, scale=1.0, extras=arrays, extension=replace(NOTHING, **asked))


def test_two_tokens_turned_by_a_quarter() -> None:
    """With d_k = 2 there is one pair and its frequency is 1, whatever the base: token m is turned by m radians.

    So a query at position 1 meets the key at position 0 with cos 1, and that at position 1 with cos 0.
    """
    problem = asking([[[[1.0, 0.0]]]], [[[[1.0, 0.0], [1.0, 0.0]]]], [[[[1.0], [0.0]]]], {}, rotary_base=7.0)
    late = replace(problem, extension=replace(problem.extension, query_start=1))
    assert_output(late, [[[log(exp(np.cos(1.0)) + exp(1.0))]]], "log_sum_exp")
    assert_output(problem, [[[log(exp(1.0) + exp(np.cos(1.0)))]]], "log_sum_exp")


def test_the_second_pair_turns_as_the_base_says() -> None:
    """d_k = 4 and base 16 / pi^2: the second pair's frequency is base^(-1/2) = pi / 4, so position 2 is a quarter turn.

    A query (.., 1, 0) at position 2 becomes (.., 0, 1) in that pair: orthogonal to a key of the same components at
    position 0, and in line with one of (.., 0, 1).
    """
    base = 16.0 / pi**2
    keys = {"halves": [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], "interleaved": [[0, 0, 1.0, 0], [0, 0, 0, 1.0]]}
    for pairing, (along, across) in keys.items():
        conventions = Conventions().claiming({"rotary-pairing": pairing})
        scores = []
        for key in (along, across):
            problem = asking([[[along]]], [[[key]]], [[[[1.0]]]], {}, rotary_base=base, query_start=2)
            scores.append(solve(problem, conventions).trace.scores.item())
            assert attention(problem, conventions).log_sum_exp[0][0][0] == pytest.approx(scores[-1], abs=1e-15)
        assert scores == pytest.approx([0.0, 1.0], abs=1e-15)


def test_a_sink_as_high_as_the_sum_halves_the_output() -> None:
    """Two keys of score 0 have e^lse = 2: a sink of log 2 takes as much as both, a sink of 0 a third."""
    rows = ([[[[0.0]], [[0.0]]]], [[[[5.0], [3.0]], [[5.0], [3.0]]]], [[[[8.0], [4.0]], [[8.0], [4.0]]]])
    problem = asking(*rows, {"sinks": [log(2.0), 0.0]}, sinks=True)
    assert_output(problem, [[[[3.0]], [[4.0]]]])
    assert_output(problem, [[[[0.25, 0.25]], [[1 / 3, 1 / 3]]]], "weights")
    assert_output(problem, [[[log(4.0)], [log(3.0)]]], "log_sum_exp")


def test_a_sink_alone_leaves_nothing() -> None:
    """Where no key may be seen the sink has all the weight: the output is 0 whatever is claimed for empty rows."""
    for answer in EmptyRow:
        problem = asking([[[[1.0]]]], [[[[2.0]]]], [[[[3.0]]]], {"sinks": [0.5]}, sinks=True)
        hidden = replace(problem, attn_mask=np.zeros((1, 1), bool))
        parts = solve(hidden, Conventions().claiming({"empty-row": answer})).parts
        found = [parts[name].value.item() for name in ("output", "weights", "log_sum_exp")]
        assert found == [0.0, 0.0, 0.5]


def test_softcap_at_a_known_value() -> None:
    """Scores 0 and log 3 under a cap of 1: tanh(log 3) = (9 - 1) / (9 + 1) = 0.8. A bias comes after the cap."""
    rows = ([[[[1.0]]]], [[[[0.0], [log(3.0)]]]], [[[[1.0], [0.0]]]])
    problem = asking(*rows, {}, softcap=1.0)
    assert_output(problem, [[[[1 / (1 + exp(0.8)), exp(0.8) / (1 + exp(0.8))]]]], "weights")
    assert_output(replace(problem, attn_mask=np.array([[0.8, 0.0]])), [[[[0.5]]]])
    wide = asking(*rows, {}, softcap=50.0)
    assert_output(wide, [[[log(1 + exp(50.0 * tanh(log(3.0) / 50.0)))]]], "log_sum_exp")


def test_alibi_takes_the_distance_off() -> None:
    """Equal scores and a slope of log 2: the weights halve with each step from the query, to both sides."""
    zeros = [[[[0.0]] * 3]]
    problem = asking([[[[0.0]]] * 1], zeros, zeros, {"alibi_slopes": [log(2.0)]}, alibi=True, query_start=1)
    assert_output(problem, [[[[0.25, 0.5, 0.25]]]], "weights")
    late = replace(problem, extension=replace(problem.extension, query_start=2))
    assert_output(late, [[[[1 / 7, 2 / 7, 4 / 7]]]], "weights")
    assert_output(late, [[[log(7 / 4)]]], "log_sum_exp")


def test_relative_biases_lie_from_before_to_after() -> None:
    """A table log 1, log 2, log 5 of distances -1, 0 and 1; farther keys share the outermost entries."""
    zeros, table = [[[[0.0]] * 4]], [[log(1.0), log(2.0), log(5.0)]]
    problem = asking([[[[0.0]]] * 1], zeros, zeros, {"relative_bias": table}, relative_bias=1, query_start=1)
    assert_output(problem, [[[[1 / 13, 2 / 13, 5 / 13, 5 / 13]]]], "weights")


def test_a_window_counts_besides_the_query() -> None:
    """Four equal keys, queries 0 to 3, one to the left and none to the right.

    Counted with the query's own, a window of 1 is that key alone.
    """
    zeros = [[[[0.0]] * 4]]
    problem = asking(zeros, zeros, zeros, {}, left=1, right=0)
    half = [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
    assert_output(problem, [[half]], "weights")
    counted = solve(problem, Conventions().claiming({"window-count": "including"})).parts["weights"]
    assert np.array_equal(counted.value, np.eye(4)[None, None])


def test_documents_see_their_own_tokens() -> None:
    """Lengths 1 and 2 of queries, 2 and 1 of keys: document 0 has keys 0 and 1, document 1 has key 2."""
    query, key, value = [[[[0.0]] * 3]], [[[[0.0]] * 3]], [[[[1.0], [3.0], [7.0]]]]
    lengths = {"query_lengths": [1, 2], "key_lengths": [2, 1]}
    assert_output(asking(query, key, value, lengths), [[[[2.0], [7.0], [7.0]]]])
    ids = {"query_segments": [[4, 9, 4]], "key_segments": [[9, 4, 4]]}
    assert_output(asking(query, key, value, ids), [[[[5.0], [1.0], [5.0]]]])
    # Key 0 of document 4 stands after query 0 nowhere: both are its first tokens.
    causal = replace(asking(query, key, value, ids), causal=True)
    assert_output(causal, [[[[3.0], [1.0], [5.0]]]])


def test_groups_in_both_orders() -> None:
    """One key each, so that the output is the value of the key head that a query head uses."""
    zeros, values = [[[[0.0]]] * 2], [[[[1.0]], [[2.0]]]]
    problem = op([[[[0.0]]] * 4], zeros, values)
    assert_output(problem, [[[[1.0]], [[1.0]], [[2.0]], [[2.0]]]])
    tiled = solve(problem, Conventions().claiming({"group-order": "tiled"})).parts["output"]
    assert tiled.value.ravel().tolist() == [1.0, 2.0, 1.0, 2.0]


def test_zero_key_and_gates() -> None:
    """One key of score log 3 beside a key of zeros: weights 3/4 and 1/4, and a gate of -2 on what is left."""
    problem = asking([[[[1.0]]]], [[[[log(3.0)]]]], [[[[8.0]]]], {"head_gates": [-2.0]}, zero_attn=True)
    assert_output(problem, [[[[-12.0]]]])
    assert_output(problem, [[[[0.75, 0.25]]]], "weights")
    assert_output(replace(problem, attn_mask=np.zeros((1, 1), bool)), [[[[0.0]]]])


def test_dropped_weights_are_not_made_up_for() -> None:
    """Two equal keys at a rate of a half: the kept one counts twice its half, the returned weights stay as claimed."""
    problem = op([[[[0.0]]]], [[[[0.0], [0.0]]]], [[[[3.0], [5.0]]]])
    kept = np.array([[[[0.0, 2.0]]]])
    parts = solve(problem, Conventions(), kept).parts
    assert (parts["output"].value.item(), parts["weights"].value.ravel().tolist()) == (5.0, [0.5, 0.5])
    after = solve(problem, Conventions().claiming({"returned-weights": "after-dropout"}), kept).parts
    assert after["weights"].value.ravel().tolist() == [0.0, 1.0]
    assert solve(problem, Conventions(), np.zeros((1, 1, 1, 2))).parts["output"].value.item() == 0.0


def test_the_base_of_the_log_sum_exp() -> None:
    """Four keys of score 0: log 4 is 2 in base 2."""
    problem = op([[[[0.0]]]], [[[[0.0]] * 4]], [[[[0.0]] * 4]])
    found = solve(problem, Conventions().claiming({"log-sum-exp-base": "2"})).parts["log_sum_exp"]
    assert ratio([[[2.0]]], found) <= 1.0


def test_key_heads_of_a_module_are_told_by_the_widths() -> None:
    problem = build(Case(sizes=GROUPS, module=FORM), "float64")
    assert problem.num_kv_heads == kv_heads(problem) == 2


def test_a_gradient_of_a_sink_is_what_it_takes() -> None:
    """One key of score 0 and value v beside a sink of 0: the output is v / 2, its derivative by the sink -v / 4."""
    problem = asking([[[[0.0]]]], [[[[0.0]]]], [[[[3.0]]]], {"sinks": [0.0]}, sinks=True)
    asked = replace(problem, cotangent=np.ones((1, 1, 1, 1)), needs=("sinks", "value"))
    parts = solve(asked).parts
    wanted = {"sinks": [-0.75], "value": [[[[0.5]]]]}
    for name, numbers in wanted.items():
        part = parts[f"gradients.{name}"]
        assert ratio(np.asarray(numbers), Expected(part.value, part.bound)) <= 1.0
    assert sqrt(parts["gradients.value"].value.item()) == pytest.approx(sqrt(0.5))
