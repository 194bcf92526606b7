"""Stacking: what is solved for several dtypes at once is, bit for bit, what is solved for each."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.reference.bounds.attention import NEAR, forward_bounds
from attention_conformance.reference.bounds.precision import gamma, precision, precisions
from attention_conformance.reference.expected import solve
from attention_conformance.reference.stacking import LARGE, solve_each, stackable
from attention_conformance.spec.cases import (
    Case,
    MaskKind,
    MaskShape,
    ModuleForm,
    Padding,
    Scores,
    Sharing,
    Sizes,
    Values,
)
from attention_conformance.spec.conventions import Conventions, SoftmaxPrecision
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES

WHOLE = ModuleForm(Sharing.KEY_VALUE, 12, 10, 10, 12, bias=True, output_projection=True, output_bias=True)
CASES = {
    "plain": Case(),
    "every stage": Case(causal=True).extended(sinks=True, head_gates=True, alibi=True, relative_bias=2, softcap=3.0),
    "grouped and rotated": Case(sizes=Sizes(num_heads=6, num_kv_heads=3)).extended(rotary_base=100.0, zero_attn=True),
    "some bounds near and some far": Case(score_std=5.0, mask=MaskKind.FLOAT),
    "mask of few axes": Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.KEYS_ONLY, mask_offset=-1000.0),
    "empty rows": Case(padding=Padding.EMPTY_SAMPLE, causal=True),
    "equal values, no decoy": Case(values=Values.CONSTANT),
    "range of the dtype": Case(scores=Scores.MOST_NEGATIVE, padding=Padding.LEFT),
    "module": Case(module=ModuleForm(Sharing.SELF, 12, 12, 12, 12), causal=True),
    "module of other widths": Case(module=replace(WHOLE, sharing=Sharing.NONE, value_dim=7), mask=MaskKind.FLOAT),
    "module with extra keys": Case(module=WHOLE, padding=Padding.EMPTY_SAMPLE).extended(bias_kv=True, zero_attn=True),
    "module with grouped heads": Case(module=WHOLE, sizes=Sizes(num_heads=4, num_kv_heads=2)).extended(sinks=True),
    "latents": Case(causal=True).extended(latent=6, decoupled=2),
    "no keys": Case(sizes=Sizes(key_length=0)),
    "no samples": Case(sizes=Sizes(batch=0), mask=MaskKind.FLOAT),
}
NAMED = {
    "plain": Conventions(),
    "uniform rows, base 2": Conventions().claiming({"empty-row": "uniform", "log-sum-exp-base": "2"}),
    "float32 inside": Conventions().claiming({"softmax-precision": "float32"}),
}


@pytest.mark.parametrize("conventions", NAMED.values(), ids=list(NAMED))
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_stack_is_solved_like_each_problem_alone(case: Case, conventions: Conventions) -> None:
    assert stackable(case)
    problems = [build(case, dtype) for dtype in DTYPES]
    for problem, stacked in zip(problems, solve_each(problems, conventions), strict=True):
        alone = solve(problem, conventions).parts
        assert stacked.keys() == alone.keys()
        for name, part in alone.items():
            for one, other in ((part.value, stacked[name].value), (part.bound, stacked[name].bound)):
                assert one.shape == other.shape, name
                assert np.array_equal(one, other, equal_nan=True), (problem.dtype, name)
            decoys = part.decoy, stacked[name].decoy
            assert [d is None for d in decoys] in ([True, True], [False, False]), (problem.dtype, name)
            assert decoys[0] is None or np.array_equal(*decoys, equal_nan=True)  # type: ignore[arg-type]


def test_both_kinds_of_bounds_meet_in_one_stack() -> None:
    case = CASES["some bounds near and some far"]
    scores = {d: solve(build(case, d)) for d in DTYPES}
    near = {d: forward_bounds(build(case, d), s.trace, precision(d)).scores.max() <= NEAR for d, s in scores.items()}
    assert set(near.values()) == {True, False}


def test_what_is_large_is_solved_alone() -> None:
    side = round(LARGE**0.5)
    sizes = Sizes(batch=1, num_heads=1, query_length=side, key_length=side)
    assert stackable(Case(sizes=sizes))
    assert not stackable(Case(sizes=sizes).sized(query_length=side + 1))


def test_half_types_alone_keep_their_aligned_bounds() -> None:
    assert not stackable(Case(), ("bfloat16", "float16"))
    assert stackable(Case(), ("float32", "bfloat16"))


@pytest.mark.parametrize("softmax", SoftmaxPrecision)
def test_precisions_of_a_stack_are_those_of_each(softmax: SoftmaxPrecision) -> None:
    stack = precisions(tuple(DTYPES), softmax)
    for number, dtype in enumerate(DTYPES):
        alone = precision(dtype, softmax)
        for terms in (0, 1, 7, 100_000):
            for one, other in (
                (alone.growth(terms), stack.growth(terms)),
                (alone.weight_error(terms), stack.weight_error(terms)),
                (alone.widest, stack.before(2).widest),
                (gamma(1e3 * alone.storage), gamma(1e3 * stack.storage)),
            ):
                assert np.asarray(other).ravel()[number] == one
        assert alone.before(3) is alone
    assert np.shape(stack.before(2).storage) == (len(DTYPES), 1, 1)
