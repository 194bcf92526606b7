"""Chapter 16, grouped: fewer heads of keys and values than of queries."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Sizes
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge

GROUPS = Case(Sizes(num_heads=6, num_kv_heads=3))
TRIPLES = Case(Sizes(num_heads=6, num_kv_heads=2))
SHARED = Case(Sizes(num_heads=3, num_kv_heads=1))
ALIKE = Sizes(batch=4, num_heads=4, query_length=4, key_length=4, d_k=4, d_v=4, num_kv_heads=2)
"""Groups of two, two groups, and all other extents the same."""
SEPARATE = (MaskShape.FULL, MaskShape.HEAD, MaskShape.SAMPLE)


@clause("grouped.order")
def test_order(judge: Judge) -> None:
    single = GROUPS.sized(query_length=1)
    for case in judge.cases(
        GROUPS, TRIPLES, single, Case(ALIKE), TRIPLES.sized(batch=1, query_length=17, key_length=33)
    ):
        s = case.sizes
        judge.assert_conforms(case, context=f"{s.num_heads} query heads share {s.kv_heads} key heads")
    for case in judge.cases(Case(Sizes(num_heads=5, num_kv_heads=5))):
        judge.assert_conforms(case, context="as many key heads as query heads")


@clause("grouped.single-key-head")
def test_single_key_head(judge: Judge) -> None:
    square = SHARED.sized(batch=3, query_length=3, key_length=3)
    for case in judge.cases(SHARED, SHARED.sized(num_heads=6, query_length=1), SHARED.sized(batch=3), square):
        judge.assert_conforms(case, context="all query heads share one key head")


@clause("grouped.whole-groups")
def test_whole_groups(judge: Judge) -> None:
    for case in judge.cases(GROUPS, SHARED):
        heads = case.sizes.num_heads
        for key_heads in (next(n for n in range(2, heads + 2) if heads % n), 2 * heads):
            problem = judge.problem(case.sized(num_kv_heads=key_heads)).forward_only()
            judge.assert_refuses(case, problem, f"{heads} query heads with {key_heads} key heads")


@clause("grouped.masks")
def test_masks(judge: Judge) -> None:
    boolean = (replace(GROUPS, mask=MaskKind.BOOL, mask_shape=shape) for shape in SEPARATE)
    added = (replace(TRIPLES, mask=kind, mask_shape=MaskShape.HEAD) for kind in (MaskKind.FLOAT, MaskKind.INFINITE))
    padded = replace(TRIPLES, mask=MaskKind.BOOL, padding=Padding.RIGHT)
    one = replace(SHARED, mask=MaskKind.BOOL)
    for case in judge.cases(*boolean, *added, padded, one):
        judge.assert_conforms(case, context="each query head has a mask of its own")


@clause("grouped.causal")
def test_causal(judge: Judge) -> None:
    flag = replace(GROUPS, causal=True)
    square = flag.sized(query_length=7)
    one = replace(SHARED, causal=True).sized(query_length=7)
    for case in judge.cases(square, one, flag, flag.sized(query_length=1)):
        judge.assert_conforms(case)


@clause("grouped.layouts")
def test_layouts(judge: Judge) -> None:
    gentle = replace(GROUPS, score_std=0.5).sized(key_length=4)
    for case in judge.cases(*(replace(gentle, layout=layout) for layout in Layout if layout is not Layout.CONTIGUOUS)):
        judge.assert_conforms(case, context=f"{case.layout} arrays")


@clause("grouped.weights")
def test_weights(judge: Judge) -> None:
    for case in judge.cases(GROUPS, replace(TRIPLES, mask=MaskKind.BOOL), SHARED):
        judge.assert_conforms(case, "weights")


@clause("grouped.log-sum-exp")
def test_log_sum_exp(judge: Judge) -> None:
    for case in judge.cases(GROUPS, replace(TRIPLES, mask=MaskKind.BOOL), SHARED):
        judge.assert_conforms(case, "log_sum_exp")


@clause("grouped.gradients")
def test_gradients(judge: Judge) -> None:
    masked = replace(TRIPLES, mask=MaskKind.BOOL)
    flag = replace(GROUPS, causal=True).sized(query_length=7)
    for case in judge.cases(GROUPS, SHARED, masked, flag, replace(GROUPS, score_std=0.5).sized(key_length=4)):
        judge.assert_conforms(case, *_shared(judge))


def _shared(judge: Judge) -> tuple[str, ...]:
    """The gradients that are sums over a group; at the module level those of the projections tell their heads apart."""
    if Feature.PROJECTIONS in judge.claims:
        return "gradients.w_k", "gradients.w_v"
    return "gradients.key", "gradients.value"
