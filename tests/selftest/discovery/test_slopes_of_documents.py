"""Functions of packed documents that take slopes for each of them, or for all."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

PACKED = '''
def f(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=False, alibi_slopes=None):
    """q: (total_q, heads, width), k and v: (total_k, heads, width), one sequence after another.

    alibi_slopes: {words}; -slope * |i + Lk - Lq - j| is added to the scores."""
    ends, rows = [(x[1:] - x[:-1]).tolist() for x in (cu_seqlens_q, cu_seqlens_k)], []
    parts = zip(q.split(ends[0]), k.split(ends[1]), v.split(ends[1]))
    for n, (q, k, v) in enumerate(parts):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        far = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - k.shape[1] + q.shape[1]
        s = q @ k.mT / q.shape[-1] ** 0.5
        if alibi_slopes is not None:
            {check}
            s = s - {slopes}[:, None, None].to(s) * far.abs()
        s = s.masked_fill(far > 0, -torch.inf) if causal else s
        rows.append((s.softmax(-1).nan_to_num() @ v).transpose(0, 1))
    return torch.cat(rows)
'''
EITHER = {"words": "(heads,) or (batch, heads)", "check": "pass"}
FOR_ALL = {"words": "(heads,)", "check": "assert alibi_slopes.ndim == 1"}


@pytest.mark.parametrize(
    ("slopes", "wrong"),
    [
        ("alibi_slopes.expand(len(ends[0]), -1)[n]", False),
        ("alibi_slopes.reshape(-1, q.shape[0])[0]", True),
        ("alibi_slopes.expand(len(ends[0]), -1).flip(0)[n]", True),
    ],
)
def test_each_document_has_its_own(make: Make, slopes: str, wrong: bool) -> None:
    made = make(PACKED.format(slopes=slopes, **EITHER))
    assert Feature.ALIBI_SAMPLES in made.claims
    clauses = ("positions.alibi", "positions.alibi-samples", "packed.*")
    assert failing(made, *clauses, dtype="float64") == ({"positions.alibi-samples"} if wrong else set())


def test_all_may_have_the_same(make: Make) -> None:
    made = make(PACKED.format(slopes="alibi_slopes", **FOR_ALL))
    assert Feature.ALIBI in made.claims
    assert Feature.ALIBI_SAMPLES not in made.claims
    assert failing(made, "positions.*", dtype="float64") == set()
