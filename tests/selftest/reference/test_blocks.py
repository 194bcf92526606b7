"""Blocks: a problem in parts of some samples has the answers and bounds of the whole."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.reference import blocks as blocks_module
from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.blocks import BLOCK, blocks
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Scores
from attention_conformance.spec.inputs import build

SOME = Case(seed=7, score_std=0.5).sized(batch=5, num_heads=2, query_length=7, key_length=9)
CASES = (
    SOME,
    replace(SOME, causal=True).sized(num_heads=4, num_kv_heads=2),
    replace(SOME, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED),
    replace(SOME, mask=MaskKind.FLOAT, mask_shape=MaskShape.FULL),
    replace(SOME, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED).sized(query_length=5, key_length=12),
    replace(SOME, mask=MaskKind.BOOL, mask_shape=MaskShape.HEADS_ONLY).sized(num_heads=5, query_length=3),
    replace(SOME, padding=Padding.RIGHT),
    replace(SOME, padding=Padding.LENGTHS),
    replace(SOME, scores=Scores.EQUAL),
)
TWO_SAMPLES = 2 * 2 * 7 * 9


def solved(case: Case, dtype: str) -> Mapping[str, Expected]:
    return solve(build(case, dtype)).parts


def decoy_of(part: Expected) -> Floats:
    return part.value if part.decoy is None else part.decoy


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_are_those_of_the_whole(case: Case, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = solved(case, dtype)
    monkeypatch.setattr(blocks_module, "BLOCK", TWO_SAMPLES)
    assert len(blocks(build(case, dtype))) > 2
    for name, part in solved(case, dtype).items():
        assert np.array_equal(part.value, whole[name].value, equal_nan=True), name
        assert np.array_equal(part.bound, whole[name].bound), name
        assert (part.decoy is None) == (whole[name].decoy is None), name
        assert np.array_equal(decoy_of(part), decoy_of(whole[name]), equal_nan=True), name
        assert [each.name for each in part.aligned] == [each.name for each in whole[name].aligned]
        for own, other in zip(part.aligned, whole[name].aligned, strict=True):
            assert own.work_out(0.0) < other.bound  # of the first block alone
            assert 0.1 * other.bound <= own.work_out(0.1 * other.bound) <= (1.0 + 1e-12) * other.bound
            np.testing.assert_allclose([own.bound, own.least], [other.bound, other.least], rtol=1e-12)
            assert np.array_equal(own.direction, other.direction)
    assert dtype == "float64" or any(part.aligned for part in whole.values())


def test_the_trace_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build(SOME, "float64")
    whole = solve(problem).trace
    monkeypatch.setattr(blocks_module, "BLOCK", TWO_SAMPLES)
    assert np.array_equal(solve(problem).trace.weights, whole.weights)


def test_problems_whose_samples_share_something_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK", TWO_SAMPLES)
    shared = build(replace(SOME, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED), "float64")
    assert len(blocks(shared)) == 1
    assert len(blocks(shared.forward_only())) > 2
    assert len(blocks(build(SOME.extended(sinks=True), "float64"))) == 1


def test_small_problems_stay_whole() -> None:
    assert len(blocks(build(SOME, "float64"))) == 1
    large = build(SOME.sized(query_length=129, key_length=90), "float64")
    assert len(blocks(large)) == -(-5 * 2 * 129 * 90 // BLOCK)
