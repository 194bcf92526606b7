"""The reference against the loops, fifty digits and complex steps, and what holds for every answer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance.reference.expected import Expected, sample_rows, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Pattern, Sharing, Sizes
from attention_conformance.spec.conventions import Alignment, Conventions, EmptyRow, PaddedTokens
from attention_conformance.spec.covering import combinations
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.selftest.reference import oracle_cases as cases
from attention_conformance.tests.selftest.reference.agreement import (
    PARTS,
    assert_answers_agree,
    assert_gradients_agree,
    ratio,
)
from attention_conformance.tests.selftest.reference.arithmetic import FIFTY_DIGITS
from attention_conformance.tests.selftest.thorough import by_turns

BOTTOM_RIGHT = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT)
ELSEWHERE = Conventions().claiming(
    {
        "causal-alignment": "bottom-right",
        "group-order": "tiled",
        "window-count": "including",
        "padded-positions": "skipped",
        "rotary-pairing": "interleaved",
        "returned-weights": "after-dropout",
        "log-sum-exp-base": "2",
        "default-scale": "one",
    }
)
"""The other value of every convention."""
BOTH = pytest.mark.parametrize("conventions", [Conventions(), ELSEWHERE], ids=["default", "elsewhere"])


def with_module(case: Case) -> Case:
    """A module if the case has learned extra keys, which need one."""
    return replace(case, module=cases.NARROW if case.extension.bias_kv else None)


@BOTH
@pytest.mark.parametrize("case", [*cases.CORE, *cases.FAMILY, *cases.LATENTS], ids=str)
def test_answers_agree_with_loops(case: Case, conventions: Conventions) -> None:
    assert_answers_agree(build(case, "float64"), conventions)


@BOTH
@pytest.mark.parametrize("case", by_turns([*cases.CORE_GRADIENTS, *cases.FAMILY], 3), ids=str)
def test_gradients_agree_with_complex_steps(case: Case, conventions: Conventions) -> None:
    assert_gradients_agree(build(case, "float64"), conventions)


@pytest.mark.parametrize("case", cases.DIGITS, ids=str)
def test_answers_agree_with_fifty_digits(case: Case) -> None:
    """The bound allows for an implementation and for the reference; here the latter's roundings are alone."""
    assert_answers_agree(build(case, "float64"), arithmetic=FIFTY_DIGITS, limit=0.5)


@BOTH
@pytest.mark.parametrize("answer", EmptyRow)
@pytest.mark.parametrize("case", cases.EMPTIED, ids=str)
def test_empty_rows_agree(case: Case, answer: EmptyRow, conventions: Conventions) -> None:
    claimed = conventions.claiming({"empty-row": answer})
    rows = assert_answers_agree(build(case, "float64"), claimed).trace.seen.rows_answered(answer)
    # Under top-left alignment queries that outnumber the keys all see one.
    assert rows.any() != (case == cases.OVERHANGING and conventions == Conventions())
    if answer is not EmptyRow.NAN:
        assert_gradients_agree(build(cases.smaller(case), "float64"), claimed)
    else:
        gradient = solve(build(case, "float64"), claimed).parts["gradients.query"]
        assert gradient.unspecified.any() == rows.any()
        assert np.isfinite(gradient.value[~gradient.unspecified]).all()


@pytest.mark.parametrize("padding", [Padding.RIGHT, Padding.LENGTHS, Padding.QUERY_LENGTHS])
def test_nothing_is_expected_of_tokens_that_no_query_sees(padding: Padding) -> None:
    problem = build(Case(Sizes(query_length=9, key_length=9), module=cases.SELF, padding=padding), "float64")
    parts = solve(problem, Conventions(padded_tokens=PaddedTokens.UNSPECIFIED)).parts
    lengths = problem.valid_lens if problem.key_padding_mask is None else problem.key_padding_mask.sum(-1)
    longest = np.asarray(lengths).reshape(len(problem.query), -1).max(-1)
    padded = np.arange(9) >= longest[:, None]
    assert padded.any()
    assert (parts["output"].unspecified == padded[..., None]).all()
    assert (parts["log_sum_exp"].unspecified == padded[:, None]).all()
    assert (parts["weights"].unspecified == padded[:, None, :, None]).all()


@pytest.mark.parametrize("kind", ["bool", "float", "padding", "causal"])
def test_each_kind_of_empty_row_has_its_own_answer(kind: str) -> None:
    by_kind = {
        "bool": Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
        "float": Case(mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW),
        "padding": Case(padding=Padding.EMPTY_SAMPLE),
        "causal": cases.OVERHANGING,
    }
    conventions = BOTTOM_RIGHT.claiming({f"empty-row-{kind}": "uniform"})
    for name, case in by_kind.items():
        seen = assert_answers_agree(build(case, "float64"), conventions).trace.seen
        assert seen.rows_answered(EmptyRow.UNIFORM).any() == (name == kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_takes_the_numbers_of_every_dtype(dtype: str) -> None:
    problem = build(Case(sizes=cases.SQUARE, module=cases.SELF, mask=MaskKind.INFINITE, causal=True), dtype)
    # The widened problem is the same numbers, and its bounds are those of float64.
    widened = assert_answers_agree(problem.widened())
    assert np.array_equal(solve(problem).parts["output"].value, widened.parts["output"].value)


def combined_cases() -> list[Case]:
    """The pairs of the quick tier, with even widths for the rotations and fewer of the largest sizes."""
    pairs = combinations(lambda case: case.sizes.d_k < 16, Conventions())
    return [_smaller(case) for case in pairs]


def _smaller(case: Case) -> Case:
    """The case in even widths, and few enough samples, heads and keys for a reference that computes one by one."""
    s = case.sizes
    few = {"batch": min(s.batch, 3), "num_heads": min(s.num_heads, 6), "key_length": min(s.key_length, 11)}
    return case.sized(d_k=s.d_k + s.d_k % 2, **few)


@pytest.mark.parametrize("case", combined_cases(), ids=lambda case: f"pairs-{case.seed}")
def test_pairs_of_options_agree(case: Case) -> None:
    assert_answers_agree(build(with_module(case), "float64"), ELSEWHERE if case.seed % 2 else Conventions())


@settings(deadline=None, max_examples=140)
@given(cases.DRAWN_CORE | cases.DRAWN_FAMILY, cases.DRAWN_CONVENTIONS)
def test_drawn_answers_agree(case: Case, conventions: Conventions) -> None:
    assert_answers_agree(build(with_module(case), "float64"), conventions)


@settings(deadline=None, max_examples=12)
@given(cases.DRAWN_FAMILY, cases.DRAWN_CONVENTIONS)
def test_drawn_gradients_agree(case: Case, conventions: Conventions) -> None:
    few = case.sized(batch=1, query_length=min(3, case.sizes.query_length), d_k=2)
    assert_gradients_agree(build(with_module(few), "float64"), conventions)


@pytest.mark.parametrize("form", [cases.SELF, cases.NARROW_KEY_VALUE, cases.CROSS], ids=lambda form: str(form.sharing))
def test_shared_inputs_get_one_gradient(form: ModuleForm) -> None:
    problem = build(Case(sizes=cases.SQUARE, module=form), "float64")
    inputs = {Sharing.SELF: {"query"}, Sharing.KEY_VALUE: {"query", "key"}, Sharing.NONE: {"query", "key", "value"}}
    parameters = {"w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"}
    assert set(problem.needs) == inputs[form.sharing] | parameters


def test_a_bias_of_the_keys_has_no_gradient() -> None:
    """It adds the same number to all scores of a row, which the softmax does not see."""
    gradient = solve(build(Case(sizes=cases.SMALL, module=cases.NARROW), "float64")).parts["gradients.b_k"]
    assert (np.abs(gradient.value) <= gradient.bound).all()


def test_a_gradient_is_the_same_whichever_others_are_needed() -> None:
    problem = build(cases.smaller(Case(sizes=cases.SQUARE, module=cases.SELF)), "float64")
    parts = solve(problem).parts
    for name in problem.needs:
        alone = solve(replace(problem, needs=(name,))).parts[f"gradients.{name}"]
        assert np.array_equal(alone.value, parts[f"gradients.{name}"].value)


LONG = Sizes(query_length=9, key_length=11)
SAMPLED = [
    Case(sizes=LONG),
    Case(sizes=LONG, causal=True),
    Case(sizes=LONG, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED),
    Case(sizes=LONG, mask=MaskKind.INFINITE, mask_shape=MaskShape.KEYS, padding=Padding.RIGHT),
    Case(sizes=LONG, mask=MaskKind.BOOL, mask_shape=MaskShape.QUERIES),
    Case(sizes=LONG, padding=Padding.QUERY_LENGTHS, causal=True),
    Case(sizes=LONG, padding=Padding.LENGTHS, module=cases.CROSS),
    Case(sizes=Sizes(query_length=9, key_length=9), module=cases.SELF, causal=True),
]


@pytest.mark.parametrize("conventions", [Conventions(), BOTTOM_RIGHT], ids=["top-left", "bottom-right"])
@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_sampled_rows_are_those_of_the_full_answer(case: Case, conventions: Conventions) -> None:
    problem, rows = build(case, "float64"), np.array([7, 0, 3])
    full = solve(problem, conventions).parts
    sampled = solve(sample_rows(problem, rows, conventions), conventions).parts
    for name in PARTS:
        axis = 2 if name != "output" or case.module is None else 1
        value, bound = (np.take(array, rows, axis) for array in (full[name].value, full[name].bound))
        expected = Expected(value, bound)
        assert ratio(sampled[name].value, expected) <= 1.0


def test_sampling_refuses_flag_and_mask_together() -> None:
    with pytest.raises(ValueError, match="causal flag and attn_mask"):
        sample_rows(build(Case(causal=True, mask=MaskKind.BOOL), "float64"), np.array([0]))


@settings(deadline=None, max_examples=60)
@given(case=cases.DRAWN_CORE)
def test_rows_of_weights_are_distributions(case: Case) -> None:
    solution = solve(build(case, "float64").forward_only())
    weights, allowed = solution.parts["weights"], solution.trace.seen.allowed
    assert (weights.value >= 0.0).all()
    assert (weights.value[~allowed] == 0.0).all()
    assert (np.abs(weights.value.sum(-1) - allowed.any(-1)) <= weights.bound.sum(-1)).all()


@settings(deadline=None, max_examples=60)
@given(case=cases.DRAWN_CORE)
def test_output_lies_between_the_visible_values(case: Case) -> None:
    solution = solve(build(case, "float64").forward_only())
    allowed, value, part = solution.trace.seen.allowed, solution.trace.value, solution.parts["output"]
    rows = allowed.any(-1)
    visible = [np.where(allowed[..., None], value[:, :, None], fill) for fill in (np.inf, -np.inf)]
    assert (visible[0].min(3) <= part.value + part.bound)[rows].all()
    assert (part.value - part.bound <= visible[1].max(3))[rows].all()


@settings(deadline=None, max_examples=60)
@given(case=cases.DRAWN_CORE, seed=st.integers(0, 2**32))
def test_order_of_keys_does_not_matter(case: Case, seed: int) -> None:
    problem = build(replace(case, mask=MaskKind.NONE, padding=Padding.NONE, causal=False), "float64").forward_only()
    order = np.random.default_rng(seed).permutation(problem.key.shape[2])
    moved = replace(problem, key=problem.key[:, :, order], value=problem.value[:, :, order])
    assert ratio(solve(moved).parts["output"].value, solve(problem).parts["output"]) <= 1.0
