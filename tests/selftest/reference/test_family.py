"""The reference of the attention family against attention in torch, with gradients of automatic differentiation."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Poison, Sizes
from attention_conformance.spec.features import Packing, PositionIds, RotaryTables
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.tally import Tally
from attention_conformance.tests.selftest.reference.family_styles import implementation

STEPS = implementation("steps", Steps().answer)
SQUARE = Case().sized(query_length=7, key_length=7)
GROUPS = Case(sizes=Sizes(num_heads=6, num_kv_heads=3))
TABLES = RotaryTables.POSITIONS
POSITIONS = GROUPS.extended(window_left=3, rotary_base=50.0, query_start=1, alibi=True, relative_bias=1)
EVERYTHING = POSITIONS.extended(softcap=3.0, sinks=True, head_gates=True)
CASES = {
    "groups": GROUPS,
    "one key head": Case(sizes=Sizes(num_heads=6, num_kv_heads=1), causal=True),
    "window": Case().extended(window_left=2, window_right=1),
    "window and causal": SQUARE.extended(window_left=2),
    "softcap": Case(score_std=6.0, mask=MaskKind.FLOAT).extended(softcap=1.5),
    "rotary": Case().extended(rotary_base=50.0, query_start=2),
    "partial rotary": Case().sized(d_k=7).extended(rotary_base=50.0, rotary_dim=4, query_start=2),
    "position ids": Case(causal=True).extended(rotary_base=50.0, position_ids=PositionIds.RESTARTING),
    "rotary tables": Case(causal=True).sized(d_k=7).extended(rotary_tables=TABLES, rotary_dim=4, query_start=2),
    "alibi": Case().extended(alibi=True, query_start=2),
    "relative bias": Case(mask=MaskKind.INFINITE).extended(relative_bias=2),
    "sinks": Case(padding=Padding.EMPTY_SAMPLE).extended(sinks=True),
    "sinks and softcap": Case().extended(sinks=True, softcap=2.0),
    "zero key": Case(mask=MaskKind.BOOL, padding=Padding.LEFT).extended(zero_attn=True),
    "gates": Case().extended(head_gates=True),
    "segments": Case().extended(packing=Packing.SEGMENTS),
    "causal segments": Case(causal=True).sized(query_length=9, key_length=9).extended(packing=Packing.SEGMENTS),
    "lengths": Case(causal=True).sized(query_length=9, key_length=9).extended(packing=Packing.LENGTHS),
    "empty segment": Case().extended(packing=Packing.EMPTY_SEGMENT, rotary_base=100.0, alibi=True),
    "everything": EVERYTHING,
    "everything, zero key": EVERYTHING.extended(zero_attn=True),
}
WIDE = Case(sizes=Sizes(num_heads=6, num_kv_heads=2, query_length=9, key_length=9), causal=True)
CASES_FOR_TILES = {
    **CASES,
    "window, mask and padding": WIDE.extended(window_left=2, window_right=3, softcap=2.0, query_start=1),
    "mask of one row": Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.KEYS, padding=Padding.HOLES),
    "mask of one column": Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.QUERIES),
    "empty rows": Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW).extended(head_gates=True),
    "lengths with an empty document": Case().extended(packing=Packing.EMPTY_DOCUMENT, relative_bias=1, softcap=2.0),
    "no key": Case(sizes=Sizes(key_length=0)).extended(sinks=True),
    "no query": Case(sizes=Sizes(query_length=0)).extended(window_left=2, relative_bias=1),
    "no sample": Case(sizes=Sizes(batch=0)).extended(packing=Packing.SEGMENTS),
}


def assert_agrees(implementation: Implementation, dtype: str, case: Case, *parts: str) -> Tally:
    """The parts agree with the reference in the nearest case that the claims allow; by default all that are claimed."""
    judge = Judge(implementation, dtype)
    # A masked key that is NaN leaves no gradient to compare.
    parts = parts or tuple(part for part in judge.parts() if case.poison is not Poison.NAN or part != "gradients")
    for fitted in judge.cases(case):
        judge.assert_conforms(fitted, *parts)
    tally = judge.tally
    assert not tally.failures, tally.failures[0].message
    assert not judge.unsupported
    # The gradients are at least those of query, key and value.
    assert tally.checks + tally.inconclusive >= len(parts) + 2 * ("gradients" in parts)
    return tally


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_agrees(name: str, dtype: str) -> None:
    assert assert_agrees(STEPS, dtype, CASES[name], "output", "weights", "log_sum_exp", "gradients").checks > 3
