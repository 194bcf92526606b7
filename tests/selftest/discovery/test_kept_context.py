"""Keys and values of another sequence that a module keeps for later calls."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.discovery.modules.kept_context import KEPT
from attention_conformance.tests.selftest.discovery.making import Make, failing

NEEDED = """
class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))
    def forward(self, x, context=None, mask=None, past=None):
        q = split(self.q_proj(x), self.h)
        if past is not None:
            k, v = {kept}
        else:
            k, v = (split(each(context), self.h) for each in (self.k_proj, self.v_proj))
        mask = None if mask is None else mask[:, None, None]
        o = attend(q, k, v, {mask})[0]
        return {{"output": self.out_proj(o.transpose(1, 2).flatten(2)), "past": (k, v)}}
"""
OPTIONAL = '''
class f(nn.Module):
    """Self-attention, or attention to a context{doc}."""
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))
    def forward(self, x, context=None, past=None):
        q, other = split(self.q_proj(x), self.h), x if context is None else context
        k, v = (split(each(other), self.h) for each in (self.k_proj, self.v_proj))
        if past is not None:
            k, v = {kept} if {reuses} else (torch.cat([a, b], 2) for a, b in zip(past, (k, v)))
        o = attend(q, k, v)[0]
        return self.out_proj(o.transpose(1, 2).flatten(2)), (k, v)
'''
KEPT_PAST, ALTERNATIVES = KEPT.format("past"), "relations.alternatives"


@pytest.mark.parametrize(
    ("kept", "mask", "wrong"),
    [
        ("past", "mask", False),
        ("past[::-1]", "mask", True),
        ("past[0] * q.shape[-1] ** 0.5, past[1]", "mask", True),
        ("past", "mask if past is None else None", True),
    ],
)
def test_keys_of_a_needed_context_are_kept(make: Make, kept: str, mask: str, wrong: bool) -> None:
    made = make(NEEDED.format(kept=kept, mask=mask))
    assert KEPT_PAST in made.alternatives
    assert "past" not in made.findings
    assert bool(failing(made, ALTERNATIVES)) is wrong


@pytest.mark.parametrize(
    ("doc", "kept", "reuses", "judged", "wrong"),
    [
        ("", "past", "context is not None", True, False),
        ("", "past", "False", False, False),  # it may be meant to see both
        ("", "past[::-1]", "context is not None", False, False),
        (", of which keys and values of the context are kept", "past[::-1]", "context is not None", True, True),
    ],
)
def test_keys_of_a_context_that_may_be_left_out_are_kept_where_it_is_seen_or_stated(
    make: Make, doc: str, kept: str, reuses: str, judged: bool, wrong: bool
) -> None:
    made = make(OPTIONAL.format(doc=doc, kept=kept, reuses=reuses))
    assert (KEPT_PAST in made.alternatives) is judged
    assert bool(failing(made, ALTERNATIVES)) is wrong
