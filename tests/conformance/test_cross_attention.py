"""Chapter 6, cross-attention: queries from one sequence, keys and values from another."""

from collections.abc import Iterator
from dataclasses import replace

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Sharing
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge

ROLES = {
    Sharing.KEY_VALUE: "key and value",
    Sharing.QUERY_KEY: "query and key",
    Sharing.SELF: "query, key and value",
}
"""What one array is given for."""
SHARED = (
    Case(seed=201).sized(query_length=5),
    Case(seed=202).sized(query_length=7),
    Case(seed=203).sized(query_length=7),
    Case(seed=204, mask=MaskKind.BOOL).sized(query_length=7),
    Case(seed=205, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED).sized(query_length=7),
    Case(seed=206, padding=Padding.LEFT).sized(query_length=7),
    Case(seed=207, causal=True).sized(query_length=7),
    Case(seed=208, mask=MaskKind.BOOL).sized(query_length=7, num_heads=2),
    Case(seed=209, padding=Padding.LEFT).sized(query_length=7, num_heads=4),
)
"""Some have the same shapes: anything kept from one call would show in another. Some have an even number of heads."""


CLAUSES = table(
    row("cross-attention.sources", Case(seed=21), Case(seed=22).sized(query_length=6, key_length=6)),
    row(
        "cross-attention.lengths",
        *(Case(seed=23).sized(query_length=q, key_length=k) for q, k in ((3, 8), (8, 3), (2, 31))),
    ),
    row(
        "cross-attention.single-query",
        *(Case(seed=24, score_std=3.0).sized(query_length=1, key_length=k) for k in (1, 7, 65)),
        Case(seed=25, mask=MaskKind.BOOL).sized(query_length=1),
    ),
    row(
        "cross-attention.key-value",
        *(Case(seed=26).sized(d_k=4, d_v=4), Case(seed=27, value_scale=10.0).sized(d_k=4, d_v=4)),
        context="keys make the scores, values are summed",
    ),
    row("cross-attention.widths", Case(seed=28), Case(seed=29).sized(num_heads=2, d_k=7)),
)


@clause("cross-attention.shared-inputs")
def test_shared_inputs(judge: Judge) -> None:
    if Feature.KEY_VALUE not in judge.claims and not judge.claims.alone:
        judge.unsupported.append("it takes one input, or always two")
        return
    for case in _shared(judge):
        judge.assert_conforms(case, *judge.parts(), context=_roles(case))
    for way in judge.implementation.alternatives:
        along = judge.along(way)
        for case in _shared(along):
            along.assert_conforms(case, context=f"{way}, {_roles(case)}")


def _shared(judge: Judge) -> Iterator[Case]:
    """The cases with one array for key and value, for query and key, and for all three."""
    for case in judge.cases(*SHARED):
        assert case.module is not None
        for sharing in ROLES:
            found = fit(replace(case, module=replace(case.module, sharing=sharing)), judge.claims)
            if not isinstance(found, Unsupported):
                yield found


def _roles(case: Case) -> str:
    assert case.module is not None
    return f"one array is {ROLES[case.module.sharing]}"
