"""The reference's forward pass against loops, against fifty digits, and numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from attention_conformance.reference.expected import Expected, sample_rows, solve
from attention_conformance.spec.cases import (
    Case,
    Embedding,
    MaskKind,
    MaskShape,
    ModuleForm,
    Padding,
    Pattern,
    Scores,
    Sharing,
    Sizes,
)
from attention_conformance.spec.conventions import Alignment, Conventions, EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.selftest.reference.arithmetic import DOUBLE, FIFTY_DIGITS
from attention_conformance.tests.selftest.reference.oracle import attention

CROSS = ModuleForm(Sharing.NONE, 13, 11, 17, 10, bias=True, output_projection=True, output_bias=True)
KEY_VALUE = ModuleForm(Sharing.KEY_VALUE, 13, 11, 11, 10, output_projection=True)
SELF = ModuleForm(Sharing.SELF, 12, 12, 12, 12, bias=True, output_projection=True, output_bias=True)
BARE = ModuleForm(Sharing.NONE, 13, 11, 17, 9)
SELECTED = ModuleForm(Sharing.NONE, 12, 12, 9, 9, output_projection=True, embedding=Embedding.SELECT)
SQUARE = Sizes(query_length=6, key_length=6)
TALL = Sizes(query_length=8, key_length=5)

MASKED = [
    Case(mask=kind, mask_shape=shape)
    for kind, shape in product((MaskKind.BOOL, MaskKind.FLOAT, MaskKind.INFINITE), MaskShape)
]
PATTERNS = [Case(mask=MaskKind.BOOL, pattern=p) for p in Pattern]
PADDED = [Case(padding=p, causal=c) for p, c in product(Padding, (False, True))]
SPREAD = [Case(scores=s) for s in Scores] + [Case(score_std=30.0), Case(mask=MaskKind.FLOAT, mask_offset=-1e5)]
SCALED = [Case(scale=s) for s in (0.0, -0.7, 1.0, 3.5)]
SHAPED = [
    Case(sizes=SQUARE, causal=True),
    Case(sizes=TALL, causal=True),
    Case(sizes=Sizes(2, 2, 2, 2, 2, 2), mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE),
    Case(sizes=Sizes(1, 1, 1, 1, 1, 1), causal=True),
    Case(sizes=Sizes(2, 3, 1, 17, 5, 3), causal=True, padding=Padding.LEFT),
    Case(sizes=Sizes(0, 3, 2, 4, 5, 3)),
    Case(sizes=Sizes(2, 3, 0, 4, 5, 3)),
    Case(sizes=Sizes(2, 3, 2, 0, 5, 3)),
]
MODULES = [
    Case(module=CROSS),
    Case(module=BARE, mask=MaskKind.BOOL),
    Case(module=KEY_VALUE, padding=Padding.HOLES),
    Case(module=SELECTED, scores=Scores.RISING),
    Case(sizes=SQUARE, module=SELF, causal=True),
    Case(sizes=SQUARE, module=SELF, causal=True, padding=Padding.LEFT, mask=MaskKind.INFINITE),
    Case(module=CROSS, padding=Padding.EMPTY_SAMPLE, scale=0.4),
    Case(module=CROSS, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
]
CASES = [*MASKED, *PATTERNS, *PADDED, *SPREAD, *SCALED, *SHAPED, *MODULES]
BOTTOM_RIGHT = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT)
EMPTY = {answer: Conventions().claiming({"empty-row": answer}) for answer in EmptyRow}


def ratio(found: ArrayLike, expected: Expected) -> float:
    """The largest distance in units of the bound; infinite where NaN or infinities stand elsewhere."""
    array, value = np.asarray(found, np.float64).reshape(expected.value.shape), expected.value
    finite = np.isfinite(value)
    if not np.array_equal(np.where(finite, 0.0, value), np.where(np.isfinite(array), 0.0, array), equal_nan=True):
        return np.inf
    distance = np.abs(array[finite] - value[finite])
    return float(
        np.max(np.divide(distance, expected.bound[finite], where=distance > 0.0, out=0.0 * distance), initial=0.0)
    )


def assert_answers_agree(problem: Problem, conventions: Conventions = Conventions()) -> None:
    parts, loops = solve(problem.forward_only(), conventions).parts, attention(problem, conventions, DOUBLE)
    for name in ("output", "weights", "log_sum_exp"):
        assert ratio(getattr(loops, name), parts[name]) <= 1.0, name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_agrees_with_loops(case: Case) -> None:
    assert_answers_agree(build(case, "float64"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_takes_the_numbers_of_every_dtype(dtype: str) -> None:
    problem = build(Case(sizes=SQUARE, module=SELF, mask=MaskKind.INFINITE, causal=True), dtype)
    # The widened problem is the same numbers, and its bounds are those of float64.
    assert_answers_agree(problem.widened())
    assert np.array_equal(solve(problem).parts["output"].value, solve(problem.widened()).parts["output"].value)


@pytest.mark.parametrize("case", [c for c in CASES if c.causal and c.module is None], ids=str)
def test_bottom_right_alignment_agrees_with_loops(case: Case) -> None:
    assert_answers_agree(build(case, "float64"), BOTTOM_RIGHT)


@pytest.mark.parametrize("answer", EmptyRow)
@pytest.mark.parametrize(
    "case",
    [
        Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
        Case(mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW, mask_shape=MaskShape.SHARED),
        Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.QUERIES),
        Case(padding=Padding.EMPTY_SAMPLE, module=BARE),
        Case(padding=Padding.LEFT, causal=True, module=CROSS),
        Case(sizes=TALL, causal=True),
    ],
    ids=str,
)
def test_empty_rows_agree_with_loops(case: Case, answer: EmptyRow) -> None:
    assert_answers_agree(build(case, "float64"), replace(EMPTY[answer], causal_alignment=Alignment.BOTTOM_RIGHT))


@pytest.mark.parametrize("kind", ["bool", "float", "padding", "causal"])
def test_each_kind_of_empty_row_has_its_own_answer(kind: str) -> None:
    cases = {
        "bool": Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
        "float": Case(mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW),
        "padding": Case(padding=Padding.EMPTY_SAMPLE),
        "causal": Case(sizes=TALL, causal=True),
    }
    conventions = BOTTOM_RIGHT.claiming({f"empty-row-{kind}": "uniform"})
    for name, case in cases.items():
        problem = build(case, "float64")
        assert_answers_agree(problem, conventions)
        uniform = solve(problem, conventions).trace.seen.rows_answered(EmptyRow.UNIFORM)
        assert uniform.any() == (name == kind)


SMALL = Sizes(batch=2, num_heads=2, query_length=3, key_length=4, d_k=3, d_v=2)
NARROW = ModuleForm(Sharing.NONE, 5, 3, 4, 3, bias=True, output_projection=True, output_bias=True)


@pytest.mark.parametrize(
    "case",
    [
        Case(sizes=SMALL),
        Case(sizes=SMALL, score_std=30.0),
        Case(sizes=SMALL, mask=MaskKind.INFINITE, causal=True),
        Case(sizes=SMALL, mask=MaskKind.FLOAT, mask_offset=-1e5),
        Case(sizes=SMALL, scores=Scores.FAR_ROWS, padding=Padding.LENGTHS),
        Case(sizes=SMALL, module=NARROW, padding=Padding.LEFT),
    ],
    ids=str,
)
def test_reference_agrees_with_fifty_digits(case: Case) -> None:
    """The bound allows for an implementation and for the reference; here the latter's roundings are alone."""
    problem = build(case, "float64")
    parts, exact = solve(problem.forward_only()).parts, attention(problem, arithmetic=FIFTY_DIGITS)
    for name in ("output", "weights", "log_sum_exp"):
        assert ratio(_rounded(getattr(exact, name)), parts[name]) <= 0.5, name


def _rounded(nested: Any) -> Any:
    return [_rounded(part) for part in nested] if isinstance(nested, list) else float(nested)


def op(query: ArrayLike, key: ArrayLike, value: ArrayLike, **options: Any) -> Problem:
    """A problem of (B, H, L, d) lists."""
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    return Problem(Scope.OP, q, k, v, num_heads=q.shape[1], **options)


def module(
    query: NDArray[np.float64], num_heads: int, key: NDArray[np.float64] | None = None, **options: Any
) -> Problem:
    """A problem of (B, L, width) arrays, self-attention unless a key is given."""
    key = query if key is None else key
    return Problem(Scope.MODULE, query, key, options.pop("value", key), num_heads=num_heads, **options)


def assert_output(
    problem: Problem, expected: ArrayLike, part: str = "output", conventions: Conventions = Conventions()
) -> None:
    found = solve(problem, conventions).parts[part]
    wanted = np.asarray(expected, np.float64)
    assert found.value.shape == wanted.shape
    assert ratio(wanted, found) <= 1.0
    assert ratio(getattr(attention(problem, conventions), part), Expected(wanted, found.bound)) <= 1.0


def test_three_tokens_of_width_four_with_two_heads() -> None:
    """Source C's example, with the identity for projections: head 0 sees columns 0 and 1, head 1 the rest."""
    tokens = np.array([[[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]])
    eye = np.eye(4)
    problem = module(tokens, 2, parameters={"w_q": eye, "w_k": eye, "w_v": eye})
    # Scores are q.k / sqrt(2) with q.k of 0, 1 or 2, so every exponential is a power of this:
    e = exp(1 / sqrt(2))
    first: list[list[float]] = [[e, 1, e], [1, e, e], [e, e, e * e]]
    second: list[list[float]] = [[e, 1, 1], [1, e, 1], [1, 1, 1]]
    weights = [[[x / sum(row) for x in row] for row in head] for head in (first, second)]
    assert_output(problem, [weights], "weights")
    expected = [
        [2 * e / (2 * e + 1), (1 + e) / (2 * e + 1), 1 / (e + 2), e / (e + 2)],
        [(1 + e) / (2 * e + 1), 2 * e / (2 * e + 1), e / (e + 2), 1 / (e + 2)],
        [(1 + e) / (2 + e), (1 + e) / (2 + e), 1 / 3, 1 / 3],
    ]
    assert_output(problem, [expected])
    assert_output(problem, [[[log(sum(row)) for row in head] for head in (first, second)]], "log_sum_exp")


def test_biases_shift_three_tokens() -> None:
    """A bias of the keys changes no weight; a bias of the values moves each output by itself."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    eye, plain = np.eye(2), module(np.zeros((1, 1, 2)), 1)
    parameters = {"w_q": eye, "w_k": eye, "w_v": eye, "w_o": 2 * eye}
    biases = {"b_k": np.array([5.0, -3.0]), "b_v": np.array([0.25, -1.0]), "b_o": np.array([0.0, 7.0])}
    e = exp(1 / sqrt(2))
    rows = [(2 * e, 1 + e, 2 * e + 1), (1 + e, 2 * e, 2 * e + 1), (1 + e, 1 + e, 2 + e)]
    expected = [[2 * (a / n + 0.25), 2 * (b / n - 1.0) + 7.0] for a, b, n in rows]
    problem = replace(plain, query=tokens, key=tokens, value=tokens, parameters=parameters | biases)
    assert_output(problem, [expected])


def ones_example(value: NDArray[np.float64], width: float) -> Problem:
    """Source D's example: 2 samples, 4 queries, 6 keys, width 100, 5 heads, valid lengths 3 and 2."""
    query, key, eye = np.ones((2, 4, 100)), np.ones((2, 6, 100)), np.eye(100)
    parameters = {"w_q": eye, "w_k": eye, "w_v": width * eye, "w_o": eye}
    return module(query, 5, key, value=value, parameters=parameters, valid_lens=np.array([3, 2]))


def test_inputs_of_ones_give_a_constant() -> None:
    problem = ones_example(np.ones((2, 6, 100)), 1.5)
    assert_output(problem, np.full((2, 4, 100), 1.5))
    assert_output(replace(problem, valid_lens=None), np.full((2, 4, 100), 1.5))
    third, half = [1 / 3] * 3 + [0.0] * 3, [1 / 2] * 2 + [0.0] * 4
    assert_output(problem, [[[third] * 4] * 5, [[half] * 4] * 5], "weights")


def test_values_that_count_the_keys_tell_the_valid_lengths() -> None:
    counted = np.broadcast_to(np.arange(6.0)[:, None], (2, 6, 100))
    problem = ones_example(counted, 1.0)
    assert_output(problem, [[[(0 + 1 + 2) / 3] * 100] * 4, [[(0 + 1) / 2] * 100] * 4])
    each = replace(problem, valid_lens=np.array([[1, 2, 3, 4], [6, 5, 1, 0]]))
    means = [[0.0, 0.5, 1.0, 1.5], [2.5, 2.0, 0.0, 0.0]]
    assert_output(each, [[[m] * 100 for m in sample] for sample in means])


def test_two_samples_with_padding() -> None:
    """Source E's mask, rows 1 1 1 and 1 0 0. The scores are 0, ln 2 and ln 3, so the weights are sixths."""
    key, value = [[[0.0], [log(2)], [log(3)]]], [[[6.0], [3.0], [2.0]]]
    padding = np.array([[1, 1, 1], [1, 0, 0]], bool)
    problem = op([[[[1.0]] * 3]] * 2, [key] * 2, [value] * 2, key_padding_mask=padding)
    sixths = [1 / 6, 2 / 6, 3 / 6]
    assert_output(problem, [[[sixths] * 3], [[[1.0, 0.0, 0.0]] * 3]], "weights")
    assert_output(problem, [[[[1.0 + 1.0 + 1.0]] * 3], [[[6.0]] * 3]])
    assert_output(problem, [[[log(6)] * 3], [[0.0] * 3]], "log_sum_exp")


LONG = Sizes(query_length=9, key_length=11)
SAMPLED = [
    Case(sizes=LONG),
    Case(sizes=LONG, causal=True),
    Case(sizes=LONG, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED),
    Case(sizes=LONG, mask=MaskKind.INFINITE, mask_shape=MaskShape.KEYS, padding=Padding.RIGHT),
    Case(sizes=LONG, mask=MaskKind.BOOL, mask_shape=MaskShape.QUERIES),
    Case(sizes=LONG, padding=Padding.QUERY_LENGTHS, causal=True),
    Case(sizes=LONG, padding=Padding.LENGTHS, module=CROSS),
    Case(sizes=Sizes(query_length=9, key_length=9), module=SELF, causal=True),
]


@pytest.mark.parametrize("conventions", [Conventions(), BOTTOM_RIGHT], ids=["top-left", "bottom-right"])
@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_sampled_rows_are_those_of_the_full_answer(case: Case, conventions: Conventions) -> None:
    problem, rows = build(case, "float64"), np.array([7, 0, 3])
    full = solve(problem, conventions).parts
    some = solve(sample_rows(problem, rows, conventions), conventions).parts
    for name in ("output", "weights", "log_sum_exp"):
        axis = 2 if name != "output" or case.module is None else 1
        wanted = Expected(*(np.take(x, rows, axis) for x in (full[name].value, full[name].bound)))
        assert ratio(some[name].value, wanted) <= 1.0


def test_sampling_refuses_flag_and_mask_together() -> None:
    with pytest.raises(ValueError, match="causal flag and attn_mask"):
        sample_rows(build(Case(causal=True, mask=MaskKind.BOOL), "float64"), np.array([0]))


drawn_cases = st.builds(
    Case,
    sizes=st.builds(
        Sizes,
        *(st.integers(1, 3) for _ in range(2)),
        *(st.integers(1, 9) for _ in range(2)),
        *(st.integers(1, 5) for _ in range(2)),
    ),
    seed=st.integers(0, 2**32),
    score_std=st.floats(0.01, 50.0),
    scale=st.none() | st.floats(-3.0, 3.0),
    mask=st.sampled_from(MaskKind),
    mask_shape=st.sampled_from(MaskShape),
    padding=st.sampled_from(Padding),
    causal=st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(case=drawn_cases)
def test_drawn_cases_agree_with_loops(case: Case) -> None:
    assert_answers_agree(build(case, "float64"))


@settings(deadline=None, max_examples=60)
@given(case=drawn_cases)
def test_rows_of_weights_are_distributions(case: Case) -> None:
    solution = solve(build(case, "float64").forward_only())
    weights, allowed = solution.parts["weights"], solution.trace.seen.allowed
    assert (weights.value >= 0.0).all()
    assert (weights.value[~allowed] == 0.0).all()
    assert (np.abs(weights.value.sum(-1) - allowed.any(-1)) <= weights.bound.sum(-1)).all()


@settings(deadline=None, max_examples=60)
@given(case=drawn_cases)
def test_output_lies_between_the_visible_values(case: Case) -> None:
    solution = solve(build(case, "float64").forward_only())
    allowed, value, part = solution.trace.seen.allowed, solution.trace.value, solution.parts["output"]
    rows = allowed.any(-1)
    visible = [np.where(allowed[..., None], value[:, :, None], fill) for fill in (np.inf, -np.inf)]
    assert (visible[0].min(3) <= part.value + part.bound)[rows].all()
    assert (part.value - part.bound <= visible[1].max(3))[rows].all()


@settings(deadline=None, max_examples=60)
@given(case=drawn_cases, seed=st.integers(0, 2**32))
def test_order_of_keys_does_not_matter(case: Case, seed: int) -> None:
    problem = build(replace(case, mask=MaskKind.NONE, padding=Padding.NONE, causal=False), "float64").forward_only()
    order = np.random.default_rng(seed).permutation(problem.key.shape[2])
    moved = replace(problem, key=problem.key[:, :, order], value=problem.value[:, :, order])
    assert ratio(solve(moved).parts["output"].value, solve(problem).parts["output"]) <= 1.0
