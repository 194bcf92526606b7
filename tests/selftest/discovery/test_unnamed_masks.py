"""Masks and other options of functions under names that say nothing: what they do is seen, or they are not judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.functions.unknown_options import WHY
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature

Make = Callable[[str], Implementation]
ATTENTION = """
def f(q, k, v, extra=None, rng=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if extra is not None:
        {}
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("line", "feature", "polarity"),
    [
        ("s = s.masked_fill(~extra, -torch.inf)", Feature.BOOL_MASK, Polarity.MAY_ATTEND),
        ("s = s.masked_fill(extra, -torch.inf)", Feature.BOOL_MASK, Polarity.MASKED_OUT),
        ("s = s.masked_fill(extra[:, None, None], -torch.inf)", Feature.KEY_PADDING, Polarity.MASKED_OUT),
    ],
)
def test_what_hides_keys_is_a_mask(make: Make, line: str, feature: Feature, polarity: Polarity) -> None:
    made = make(ATTENTION.format(line))
    assert feature in made.claims.features
    assert made.claims.conventions.bool_mask is polarity
    assert made.findings == {}


@pytest.mark.parametrize("line", ["s = s * torch.sigmoid(extra)", "s = s / extra", "v = v[:, :, extra[0]]"])
def test_what_changes_the_answer_otherwise_is_not_judged(make: Make, line: str) -> None:
    assert make(ATTENTION.format(line)).findings == {"extra": WHY}


@pytest.mark.parametrize("line", ["extra.manual_seed(0)", "s = s.clone()"])
def test_what_changes_nothing_is_no_gap(make: Make, line: str) -> None:
    assert make(ATTENTION.format(line)).findings == {}


HEADS_FIRST = '''
import numpy as np

def f(q, k, v, masked=None, bias=None):
    """q: (h, n, b, d)  k: (h, m, b, d)  v: (h, m, b, e)  ->  (h, n, b, e)

    masked: (b, m), True for keys to leave out.  bias: (h, n, m), added to the scores.
    """
    s = np.einsum("hnbd,hmbd->bhnm", q, k) / np.sqrt(q.shape[-1])
    if bias is not None:
        s = s + np.stack([bias] * q.shape[2])
    if masked is not None:
        s = np.where(masked[:, None, None, :], -np.inf, s)
    w = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhnm,hmbd->hnbd", w / w.sum(-1, keepdims=True), v)
'''


def test_heads_before_samples_are_read_from_documentation(make: Make) -> None:
    made = make(HEADS_FIRST)
    assert {Feature.FLOAT_MASK, Feature.KEY_PADDING} <= made.claims.features
    assert made.findings == {}
