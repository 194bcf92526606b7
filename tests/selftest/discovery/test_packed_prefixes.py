"""Sequences one after another whose first keys are given apart: right ones conform, and wrong merges do not."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing, make

__all__ = ["make"]

CLAUSES = ("scores.dot-product", "causal.square", "grouped.order")
CASCADE = """
def part(q, k, v, late):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    s = s.masked_fill(late, -torch.inf)
    return torch.einsum("hij,jhd->ihd", s.softmax(-1), v), s.logsumexp(-1).mT[..., None]

def f({inputs}, {ends}):
    assert {checked}
    rows = []
    bounds = {ends}.tolist()
    for a, b in zip(bounds[:-1], bounds[1:]):
        first, log_first = part({query}[a:b], shared_k, shared_v, torch.tensor(False))
        late = torch.ones(b - a, b - {start}).triu(1 + a - {start}) > 0
        then, log_then = part({query}[a:b], k[{start}:b], v[{start}:b], late)
        share = {share}
        rows.append(share * first + (1 - share) * then)
    return torch.cat(rows)
"""
USUAL = {
    "inputs": "q, shared_k, shared_v, k, v",
    "ends": "cu_seqlens",
    "query": "q",
    "checked": "q.ndim == 3",
    "start": "a",
    "share": "(log_first - log_then).sigmoid()",
}


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"inputs": "q, k, v, shared_k, shared_v", "ends": "offsets"},
        {"checked": "len(shared_k) > 0 and len(cu_seqlens) > 1"},
    ],
)
def test_right_ones_conform(make: Make, form: dict[str, str]) -> None:
    made = make(CASCADE.format(**{**USUAL, **form}))
    assert made.claims.premises.causal
    assert not failing(made, *CLAUSES)


@pytest.mark.parametrize(
    "form", [{"share": "torch.sigmoid((log_first - log_then) * 0.6931)"}, {"share": "0.5"}, {"start": "0"}]
)
def test_wrong_merges_and_other_sequences_show(make: Make, form: dict[str, str]) -> None:
    assert "scores.dot-product" in failing(make(CASCADE.format(**{**USUAL, **form})), *CLAUSES)
