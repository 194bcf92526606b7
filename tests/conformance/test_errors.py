"""Chapter 14, errors: what makes no sense is refused, not answered."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, Sharing
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed


def _shorter(rows: Array) -> Array:
    """One row less, in memory that goes on behind it: a reader beyond the end stays in bounds."""
    return rows[..., :-1, :]


@clause("errors.key-value-length")
def test_key_value_length(judge: Judge) -> None:
    for case in judge.cases(Case(), Case()):
        problem = judge.problem(case).forward_only()
        if problem.sharing is not Sharing.NONE:
            judge.unsupported.append("key and value are one input")
            continue
        for name in ("key", "value"):
            handed = problem.fresh()
            wrong = handed.with_arrays({name: _shorter(handed.arrays()[name])})
            judge.assert_refuses(case, wrong, f"a {name} sequence one shorter than the other", as_is=True)


@clause("errors.width")
def test_width(judge: Judge) -> None:
    for case in judge.cases(*(Case().sized(d_k=width, d_v=width) for width in (5, 8))):
        problem = changed(judge.problem(case).forward_only(), query=lambda query: query[..., :-1])
        judge.assert_refuses(case, problem, "a query one narrower than the key")


@clause("errors.mask-shape")
def test_mask_shape(judge: Judge) -> None:
    for case in judge.cases(Case(mask=MaskKind.BOOL)):
        problem = judge.problem(case).forward_only()
        for axis in (-1, -2):
            wrong = changed(problem, attn_mask=partial(np.repeat, repeats=2, axis=axis))
            judge.assert_refuses(case, wrong, "a mask that broadcasts to no (B, H, Lq, Lk)")


@clause("errors.heads")
def test_heads(judge: Judge) -> None:
    construct = judge.implementation.construct
    if construct is None:
        judge.unsupported.append("its constructor takes the width of one head")
        return
    for num_heads, width in ((3, 8), (5, 12), (0, 8)):
        judge.assert_raises(partial(construct, num_heads, width), f"{num_heads} heads for a width of {width}")


@clause("errors.negative-heads")
def test_negative_heads(judge: Judge) -> None:
    construct = judge.implementation.construct
    if construct is None:
        judge.unsupported.append("its constructor takes the width of one head")
        return
    for num_heads, width in ((-1, 8), (-2, 8)):
        judge.assert_raises(partial(construct, num_heads, width), f"{num_heads} heads for a width of {width}")
