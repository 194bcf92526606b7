"""Chapter 16, grouped: fewer heads of keys and values than of queries."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Sizes
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge

GROUPS = Case(Sizes(num_heads=6, num_kv_heads=3))
TRIPLES = Case(Sizes(num_heads=6, num_kv_heads=2))
SHARED = Case(Sizes(num_heads=3, num_kv_heads=1))
ALIKE = Sizes(batch=4, num_heads=4, query_length=4, key_length=4, d_k=4, d_v=4, num_kv_heads=2)
"""Groups of two, two groups, and all other extents the same."""
SEPARATE = (MaskShape.FULL, MaskShape.HEAD, MaskShape.SAMPLE)
GENTLE = replace(GROUPS, score_std=0.5).sized(key_length=4)
CAUSAL = replace(GROUPS, causal=True)
SOME = (GROUPS, replace(TRIPLES, mask=MaskKind.BOOL), SHARED)

CLAUSES = table(
    row(
        "grouped.order",
        *(GROUPS, TRIPLES, GROUPS.sized(query_length=1), Case(ALIKE)),
        TRIPLES.sized(batch=1, query_length=17, key_length=33),
        TRIPLES.sized(batch=1, num_heads=14),
        context="{case.sizes.num_heads} query heads share {case.sizes.kv_heads} key heads",
    ),
    row("grouped.order", Case(Sizes(num_heads=5, num_kv_heads=5)), context="as many key heads as query heads"),
    row(
        "grouped.single-key-head",
        *(SHARED, SHARED.sized(num_heads=6, query_length=1), SHARED.sized(batch=3)),
        SHARED.sized(batch=3, query_length=3, key_length=3),
        context="all query heads share one key head",
    ),
    row(
        "grouped.masks",
        *(replace(GROUPS, mask=MaskKind.BOOL, mask_shape=shape) for shape in SEPARATE),
        *(replace(TRIPLES, mask=k, mask_shape=MaskShape.HEAD) for k in (MaskKind.FLOAT, MaskKind.INFINITE)),
        *(replace(TRIPLES, mask=MaskKind.BOOL, padding=Padding.RIGHT), replace(SHARED, mask=MaskKind.BOOL)),
        context="each query head has a mask of its own",
    ),
    row(
        "grouped.causal",
        *(CAUSAL.sized(query_length=7), replace(SHARED, causal=True).sized(query_length=7)),
        *(CAUSAL, CAUSAL.sized(query_length=1)),
    ),
    row(
        "grouped.layouts",
        *(replace(GENTLE, layout=layout) for layout in Layout if layout not in (Layout.CONTIGUOUS, Layout.FORTRAN)),
        context="{case.layout} arrays",
    ),
    row("grouped.weights", *SOME, parts=("weights",)),
    row("grouped.log-sum-exp", *SOME, parts=("log_sum_exp",)),
)


@clause("grouped.whole-groups")
def test_whole_groups(judge: Judge) -> None:
    for case in judge.cases(GROUPS, SHARED):
        heads = case.sizes.num_heads
        more = [2 * heads] if judge.claims.scope is Scope.OP else []  # a class is built so by nobody
        for key_heads in (next(n for n in range(2, heads + 2) if heads % n), *more):
            problem = judge.problem(case.sized(num_kv_heads=key_heads)).forward_only()
            judge.assert_refuses(case, problem, f"{heads} query heads with {key_heads} key heads")


@clause("grouped.gradients")
def test_gradients(judge: Judge) -> None:
    """The gradients that are sums over a group; at the module level those of the projections have an axis of heads."""
    names = ("w_k", "w_v") if Feature.PROJECTIONS in judge.claims else ("key", "value")
    masked = replace(TRIPLES, mask=MaskKind.BOOL)
    for case in judge.cases(GROUPS, SHARED, masked, CAUSAL.sized(query_length=7), GENTLE):
        judge.assert_conforms(case, *(f"gradients.{name}" for name in names))
