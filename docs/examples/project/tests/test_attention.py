"""The tests of our attention: those of our own, and every clause that the adapter claims."""

from __future__ import annotations

import torch
from my_attention import attention

from attention_conformance import ClauseCheck, parametrize_with_clauses
from tests.adapter import adapter


def test_the_output_has_the_axes_of_the_query() -> None:
    q, k, v = torch.ones(2, 5, 3, 4), torch.ones(2, 7, 3, 4), torch.ones(2, 7, 3, 6)
    assert attention(q, k, v).shape == (2, 5, 3, 6)


@parametrize_with_clauses(adapter)
def test_clauses(clause: ClauseCheck) -> None:
    clause.check()
