"""Modules that take all samples in one sequence, with where each begins."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

PACKED = """
class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, hidden_states, cu_seqlens, max_seqlen):
        q, k, v = self.qkv(hidden_states).unflatten(-1, (3, self.h, -1)).permute(1, 2, 0, 3)
        at = torch.arange(len(hidden_states))
        document = torch.bucketize(at, cu_seqlens[1:].long(), right={right})
        seen = document[:, None] == document
        assert {asserted}
        return self.proj(attend(q, k, v, seen)[0].transpose(0, 1).flatten(1))
"""
CROSS = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.to_out = heads, nn.Linear(dim, dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def documents(self, ends, total):
        starts = torch.zeros(total + 1, dtype=torch.long)
        {started}
        return starts.cumsum(0)[:total]

    def forward(self, x, context, cu_seqlens_q, cu_seqlens_k):
        made = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (split(each[None], self.h) for each in made)
        seen = self.documents(cu_seqlens_q, len(x))[:, None] == self.documents(cu_seqlens_k, len(context))
        return self.to_out(attend(q, k, v, seen)[0][0].transpose(0, 1).flatten(1))
"""
ALIKE = "cu_seqlens[1:] - cu_seqlens[:-1] == max_seqlen"
LONGEST = "max_seqlen == (cu_seqlens[1:] - cu_seqlens[:-1]).max()"


@pytest.mark.parametrize(
    ("right", "asserted", "wrong"),
    [(True, LONGEST, False), (False, LONGEST, True), (True, f"({ALIKE}).all()", True)],
)
def test_samples_are_documents_of_one_sequence(make: Make, right: bool, asserted: str, wrong: bool) -> None:
    """Their lengths may differ."""
    made = make(PACKED.format(right=right, asserted=asserted))
    assert bool(failing(made, "heads.independent", "relations.*")) is wrong


@pytest.mark.parametrize(
    ("started", "wrong"),
    [
        ("starts.index_add_(0, ends[1:-1].long(), torch.ones(len(ends) - 2, dtype=torch.long))", False),
        ("starts[ends[1:-1].long()] = 1", True),
    ],
)
def test_a_document_may_have_queries_alone(make: Make, started: str, wrong: bool) -> None:
    """A start that two documents share is counted once."""
    assert bool(failing(make(CROSS.format(started=started)), "relations.alternatives")) is wrong
