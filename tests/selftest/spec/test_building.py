"""Building: the numbers of a case have the properties that its options promise, in every dtype."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.mha import TORCH_MODULES
from attention_conformance.reference.expected import solve
from attention_conformance.reference.pipeline import Trace
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import (
    Case,
    Embedding,
    Layout,
    MaskKind,
    MaskShape,
    Padding,
    Pattern,
    Poison,
    Scores,
    Sharing,
    Sizes,
    Values,
)
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.covering import SIZES, mended
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array, Problem, lay_out
from attention_conformance.spec.stored_keys import Codes, ScaledBy

HALF_LIMIT = 65504.0
SQUARE = Case().sized(query_length=7)
MODULE = Claims(Scope.MODULE, frozenset(Feature))


def same(first: Problem, second: Problem) -> bool:
    """Bit by bit, array by array."""
    left, right = first.arrays(), second.arrays()
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and left[n].shape == right[n].shape and left[n].tobytes() == right[n].tobytes()
        for n in left
    )


def module_case(case: Case) -> Case:
    fitted = fit(case, MODULE)
    assert isinstance(fitted, Case)
    return fitted


def trace_of(case: Case, dtype: str = "float64") -> Trace:
    return solve(build(case, dtype)).trace


EVERYTHING = Case(mask=MaskKind.INFINITE, padding=Padding.HOLES, causal=True)


@pytest.mark.parametrize("case", [EVERYTHING, module_case(EVERYTHING)], ids=["op", "module"])
def test_the_same_seed_gives_the_same_numbers(case: Case) -> None:
    anew = build.__wrapped__
    assert same(anew(case, "float32"), anew(case, "float32"))
    first, second = anew(case, "float32").arrays(), anew(replace(case, seed=1), "float32").arrays()
    alike = [name for name in first if np.array_equal(first[name], second[name])]
    assert alike == ["key_padding_mask"]  # holes are the same holes


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_are_rounded_to_the_dtype(dtype: str) -> None:
    wide, narrow = build(EVERYTHING, "float64").arrays(), build(EVERYTHING, dtype).arrays()
    for name, array in wide.items():
        assert narrow[name].dtype == (array.dtype if array.dtype.kind == "b" else DTYPES[dtype])
        assert np.array_equal(narrow[name], array.astype(narrow[name].dtype))


def test_built_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        build(Case(), "float64").query[:] = 0


def test_every_float_input_needs_a_gradient() -> None:
    assert build(EVERYTHING, "float32").needs == ("query", "key", "value", "attn_mask")
    needs = build(module_case(Case()), "float32").needs
    assert needs == ("query", "key", "value", "w_q", "w_k", "w_v", "b_q", "b_k", "b_v", "w_o", "b_o")


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", ["query", "attn_mask", "w_q", "b_q"])
def test_layouts_hold_the_same_numbers(layout: Layout, name: str) -> None:
    array = build(module_case(replace(EVERYTHING, layout=layout)), "float32").arrays()[name]
    if layout is not Layout.BROADCAST:
        laid = lay_out(array, layout)
        assert np.array_equal(laid, array)
        assert laid.dtype == array.dtype
        assert not np.shares_memory(laid, array)


@pytest.mark.parametrize(
    "stored", [{"latent": 6, "decoupled": 2}, *({"codes": Codes.INT8, "scaled_by": by} for by in ScaledBy)]
)
def test_what_repeats_its_memory_is_stored_alike_in_all_samples(stored: dict[str, Any]) -> None:
    case = Case(layout=Layout.BROADCAST).sized(batch=3, key_length=7).extended(**stored)
    problem = build(case, "float32")
    assert all(np.array_equal(lay_out(rows, case.layout), rows) for rows in (problem.key, problem.value))


@pytest.mark.parametrize("layout", Layout)
def test_layouts_have_their_strides(layout: Layout) -> None:
    array = build(Case(), "float32").query
    plain, laid = np.ascontiguousarray(array), lay_out(array, layout)
    strides = {
        Layout.CONTIGUOUS: plain.strides,
        Layout.OFFSET: plain.strides,
        Layout.TRANSPOSED: (plain.strides[0], 4 * 4, 3 * 4 * 4, 4),
        Layout.SLICED: (2 * plain.strides[0], 2 * plain.strides[1], 2 * plain.strides[2], 4),
        Layout.REVERSED: (*plain.strides[:2], -plain.strides[2], 4),
        Layout.BROADCAST: (0, *plain.strides[1:]),
        Layout.FORTRAN: (4, 2 * 4, 2 * 3 * 4, 2 * 3 * 5 * 4),
        Layout.PACKED: plain.strides,  # alone there is nothing to share a buffer with
    }
    assert laid.strides == strides[layout]
    assert (laid.base is not None and laid.__array_interface__["data"][0] == _start(laid) + 4) == (
        layout is Layout.OFFSET
    )


def test_packed_inputs_are_columns_of_one_buffer() -> None:
    problem = build(Case(layout=Layout.PACKED).sized(query_length=7), "float32").fresh()
    assert [_start(rows) for rows in (problem.query, problem.key)] == [_start(problem.value)] * 2
    assert problem.query.strides == (7 * 33 * 4, 4 * 4, 33 * 4, 4)  # 4 + 4 + 3 components of three heads
    assert problem.value.strides == (7 * 33 * 4, 3 * 4, 33 * 4, 4)


def _start(array: Array) -> int:
    """The address of the buffer that an array looks at."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    start: int = base.__array_interface__["data"][0]
    return start


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("to_case", [lambda case: case, module_case], ids=["op", "module"])
def test_a_fresh_problem_is_equal_and_apart(layout: Layout, to_case: Callable[[Case], Case]) -> None:
    problem = build(to_case(replace(EVERYTHING, layout=layout)), "bfloat16")
    fresh = problem.fresh()
    assert same(fresh, problem)
    for name, array in fresh.arrays().items():
        assert not np.shares_memory(array, problem.arrays()[name])


def test_shared_inputs_stay_shared() -> None:
    fresh = build(module_case(Case().as_self_attention()), "float64").fresh()
    assert fresh.sharing is Sharing.SELF
    assert fresh.query is fresh.key is fresh.value
    changed = fresh.with_arrays({"query": fresh.query * 2})
    assert changed.query is changed.value


@pytest.mark.parametrize(
    "sizes", [*SIZES, *(Sizes(batch=3, num_heads=3, query_length=3, key_length=n) for n in (2, 3))]
)
@pytest.mark.parametrize("padding", [p for p in Padding if "empty" not in p])
def test_random_masks_leave_no_row_empty(sizes: Sizes, padding: Padding) -> None:
    for shape, kind, causal in product(MaskShape, (MaskKind.BOOL, MaskKind.INFINITE), (False, True)):
        unmended = Case(sizes, seed=3, mask=kind, mask_shape=shape, padding=padding, causal=causal)
        case = mended(unmended, Conventions())
        assert allowed_keys(build(case, "float64"), Conventions()).any(-1).all(), case


@pytest.mark.parametrize("pattern", [Pattern.SINGLE_KEY, Pattern.SEGMENTS, Pattern.FIRST_TILE, Pattern.ALL])
@pytest.mark.parametrize("shape", [s for s in MaskShape if s is not MaskShape.QUERIES])
def test_patterns_leave_no_row_empty(pattern: Pattern, shape: MaskShape) -> None:
    for length in (1, 2, 7, 33):
        case = Case(mask=MaskKind.BOOL, pattern=pattern, mask_shape=shape).sized(key_length=length)
        visible = allowed_keys(build(case, "float64"), Conventions()).sum(-1)
        assert visible.min() >= 1
        assert pattern is not Pattern.SINGLE_KEY or visible.max() == 1


def _mask(case: Case) -> NDArray[np.bool_]:
    mask = build(case, "float64").arrays()["attn_mask"]
    return np.asarray(mask if mask.dtype.kind == "b" else np.isfinite(mask.astype(np.float64)))


@pytest.mark.parametrize("kind", [MaskKind.BOOL, MaskKind.INFINITE])
def test_random_masks_are_all_different(kind: MaskKind) -> None:
    mask = _mask(replace(SQUARE, mask=kind))
    assert len({rows.tobytes() for rows in mask.reshape(-1, 7, 7)}) == mask.shape[0] * mask.shape[1]
    for rows in mask.reshape(-1, 7, 7):
        assert not np.array_equal(rows, rows.T)
        assert not np.array_equal(rows, rows[::-1])
        assert len({row.tobytes() for row in rows}) > 3
    assert not mask[..., -1].all()
    assert mask[..., -1].any()
    assert 0.3 < mask.mean() < 0.8


def test_a_boolean_mask_hides_the_first_and_the_last_key_somewhere() -> None:
    for shape in (MaskShape.FULL, MaskShape.SHARED, MaskShape.SAMPLE, MaskShape.HEAD):
        mask = _mask(Case(mask=MaskKind.BOOL, mask_shape=shape))
        assert not mask[..., 0].all()
        assert not mask[..., -1].all()


def test_finite_masks_are_finite_and_nowhere_zero() -> None:
    mask = build(Case(mask=MaskKind.FLOAT), "float64").arrays()["attn_mask"]
    assert np.isfinite(mask).all()
    assert np.all(mask != 0.0)


def test_samples_are_padded_differently() -> None:
    for padding in (Padding.RIGHT, Padding.LEFT, Padding.HOLES):
        mask = build(Case(padding=padding).sized(batch=3), "float64").arrays()["key_padding_mask"]
        assert len({row.tobytes() for row in mask}) == 3
        assert not mask.all(-1).any()
    lengths = build(Case(padding=Padding.QUERY_LENGTHS), "float64").arrays()["valid_lens"]
    assert lengths.shape == (2, 5)
    assert len(set(lengths.ravel())) > 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key_length", [7, 16])
def test_one_hot_rows_have_exactly_one_key(dtype: str, key_length: int) -> None:
    weights = trace_of(Case(scores=Scores.ONE_HOT).sized(key_length=key_length), dtype).weights
    assert set(np.unique(weights)) == {0.0, 1.0}
    assert len(np.unique(weights.argmax(-1))) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_far_rows_have_maxima_far_apart(dtype: str) -> None:
    top = trace_of(Case(scores=Scores.FAR_ROWS), dtype).scores.max(-1)
    assert (top.max(-1) - top.min(-1)).min() > 750.0  # beyond it, float64 underflows


def test_rising_scores_end_with_the_largest() -> None:
    for length in (7, 65, 257):
        scores = trace_of(Case(scores=Scores.RISING).sized(key_length=length)).scores
        late = scores.argmax(-1) >= length - 1 - length // 8
        assert late.mean() > 0.9
        assert (scores[..., -length // 4 :].max(-1) > scores[..., : length // 4].max(-1) + 5.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_last_key_leads_the_others_which_are_equal(dtype: str) -> None:
    square = Case(scores=Scores.LAST, causal=True).sized(query_length=7, key_length=7)
    weights = trace_of(square, dtype).weights
    assert (weights[..., -1, -1] == 1.0).all()
    assert weights[..., -1, :-1].max() < np.exp(-500.0)
    assert (weights[..., 5, :6] == weights[..., 5, :1]).all()


def test_equal_scores_are_equal() -> None:
    assert not np.ptp(trace_of(Case(scores=Scores.EQUAL)).scores, axis=-1).any()


@pytest.mark.parametrize(("scores", "depth"), [(Scores.VERY_NEGATIVE, -2e4), (Scores.MOST_NEGATIVE, -1e11)])
def test_visible_keys_have_lower_scores_than_masked_ones(scores: Scores, depth: float) -> None:
    case = Case(scores=scores, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, pattern=Pattern.SINGLE_KEY)
    trace = trace_of(case)
    assert trace.products[trace.seen.allowed].max() < depth
    assert np.abs(trace.products[~trace.seen.allowed]).max() < 10.0
    half = build(case, "float16").widened()
    assert np.abs(half.query @ half.key.swapaxes(-1, -2)).max() < HALF_LIMIT


def test_products_overflow_float16_and_scores_do_not() -> None:
    trace = trace_of(Case(scores=Scores.OVERFLOWING), "float16")
    products = trace.query @ trace.key.swapaxes(-1, -2)
    assert products.min() > HALF_LIMIT
    assert np.abs(trace.scores).max() < HALF_LIMIT
    assert trace.weights.max() == 1.0


@pytest.mark.parametrize("sizes", [s for s in SIZES if 4 < s.key_length < 32], ids=str)
def test_typical_rows_attend_to_several_keys(sizes: Sizes) -> None:
    """Where there are many keys, the scores that spread wider do."""
    top = np.concatenate([trace_of(Case(sizes, seed=seed)).weights.max(-1).ravel() for seed in range(4)])
    assert 0.2 < np.median(top) < 0.9
    assert np.mean((top > 0.1) & (top < 0.97)) > 0.8


@pytest.mark.parametrize("score_std", [0.5, 1.5, 30.0])
def test_scores_have_the_standard_deviation_of_the_case(score_std: float) -> None:
    """Within six standard errors of the variance, which each head of each sample estimates by itself."""
    case = Case(score_std=score_std, sizes=Sizes(batch=4, num_heads=4, query_length=32, key_length=32, d_k=16))
    assert_variance(trace_of(case).scores, score_std**2)
    fitted = module_case(case)
    assert fitted.module is not None
    assert_variance(trace_of(replace(fitted, module=replace(fitted.module, bias=False))).scores, score_std**2)


def assert_variance(scores: NDArray[np.float64], expected: float) -> None:
    variances = scores.var((2, 3))
    assert abs(variances.mean() - expected) < 6.0 * variances.std() / variances.size**0.5


def test_constant_values_are_the_same_for_all_keys() -> None:
    for case in (Case(values=Values.CONSTANT), module_case(Case(values=Values.CONSTANT))):
        value = trace_of(case).value
        assert np.array_equal(value, np.broadcast_to(value[:, :, :1], value.shape))
        assert len(np.unique(value[:, :, 0])) > 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_stands_in_masked_keys_only(dtype: str) -> None:
    for poison in (Poison.LARGE, Poison.NAN):
        case = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, poison=poison)
        problem = build(case, dtype)
        masked = np.broadcast_to(~_mask(case)[:, :, 0], problem.key.shape[:3])
        for array in (problem.key.astype(float), problem.value.astype(float)):
            assert np.all(np.isnan(array[masked]) if poison is Poison.NAN else array[masked] > 400.0)
            assert np.all(np.abs(array[~masked]) < 20.0)


@pytest.mark.parametrize("scores", Scores)
def test_a_module_that_selects_sees_the_op_problem(scores: Scores) -> None:
    case = Case(scores=scores, values=Values.CONSTANT, mask=MaskKind.BOOL)
    fitted = fit(case, replace(TORCH_MODULES[0].claims, features=frozenset(Feature)))
    assert isinstance(fitted, Case)
    inside, plain = trace_of(fitted), trace_of(replace(fitted, module=None))
    for name in ("query", "key", "value", "scores", "weights", "heads"):
        assert np.array_equal(getattr(inside, name), getattr(plain, name))


@pytest.mark.parametrize("scores", Scores)
def test_tokens_that_pick_rows_see_the_op_problem_of_the_first_sample(scores: Scores) -> None:
    tied = frozenset(Feature) - {Feature.INPUT_WIDTHS, Feature.MODEL_WIDTH, Feature.VALUE_WIDTH, Feature.CROSS}
    case = Case(scores=scores, values=Values.CONSTANT).sized(query_length=4, key_length=4, d_v=Case().sizes.d_k)
    fitted = fit(case, replace(TORCH_MODULES[0].claims, features=tied))
    assert isinstance(fitted, Case)
    assert fitted.module is not None
    assert fitted.module.embedding is Embedding.TOKENS
    inside, plain = trace_of(fitted), trace_of(replace(fitted, module=None))
    for name in ("query", "key", "value", "scores", "weights", "heads"):
        for sample in getattr(inside, name):
            assert np.array_equal(sample, getattr(plain, name)[0])
