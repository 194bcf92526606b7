"""The reference of the attention family against attention in torch, with gradients of automatic differentiation."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.extensions import Packing
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.selftest.family_styles import implementation

STEPS = implementation("steps", Steps().answer)
SQUARE = Case().sized(query_length=7, key_length=7)
GROUPS = Case(sizes=Sizes(num_heads=6, num_kv_heads=3))
ASKED = {
    "groups": GROUPS,
    "one key head": Case(sizes=Sizes(num_heads=6, num_kv_heads=1), causal=True),
    "window": Case().extended(window_left=2, window_right=1),
    "window and causal": SQUARE.extended(window_left=2),
    "softcap": Case(score_std=6.0, mask=MaskKind.FLOAT).extended(softcap=1.5),
    "rotary": Case().extended(rotary_base=50.0, query_start=2),
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
    "everything": GROUPS.extended(
        window_left=3,
        softcap=3.0,
        rotary_base=50.0,
        query_start=1,
        alibi=True,
        relative_bias=1,
        sinks=True,
        head_gates=True,
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ASKED)
def test_agrees(name: str, dtype: str) -> None:
    judge = Judge(STEPS, dtype)
    for case in judge.cases(ASKED[name], *([ASKED[name].extended(zero_attn=True)] if name == "everything" else [])):
        judge.assert_conforms(case, "output", "weights", "log_sum_exp", "gradients")
    assert not judge.tally.failures, judge.tally.failures[0].message
    assert judge.tally.checks > 3
