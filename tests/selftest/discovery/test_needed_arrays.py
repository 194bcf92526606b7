"""Functions that need arrays of positions: judged as modules that have these as parameters, by their equations."""

import numpy as np
import pytest

from attention_conformance.implementations.discovery.functions.array_axes import FARTHEST, Axes, Sizes
from attention_conformance.implementations.discovery.functions.needed_arrays import with_needed_arrays
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

TRANSFORMER_XL = """
def shifted(x):
    b, h, i, j = x.shape
    return F.pad(x, (1, 0)).view(b, h, j + 1, i)[:, :, 1:].reshape(b, h, i, j)

def f(query, key, value, r, u_bias, v_bias):
    content = (query + u_bias[:, None]) @ key.mT
    position = shifted((query + v_bias[:, None]) @ r.mT)
    scores = (content + position) / query.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ value
"""
TOKENS_FIRST = """
def f(query, key, value, r, u, v):
    content = torch.einsum("ibhd,jbhd->bhij", query + u, key)
    position = torch.einsum("ibhd,jhd->bhij", query + v, r)
    behind = (torch.arange(len(query))[:, None] - torch.arange(len(key))).clamp(min=0)
    position = position.gather(-1, (len(key) - 1 - behind).expand(position.shape))
    later = torch.ones(content.shape[-2:], dtype=torch.bool).triu(1)
    scores = ((content + position) / query.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
    return torch.einsum("bhij,jbhd->ibhd", scores.softmax(-1), value).flatten(2)
"""
SHAW = """
def f(query, key, value, rel_k, rel_v):
    scores = query @ key.mT + torch.einsum("bhid,ijd->bhij", query, rel_k)
    weights = (scores / query.shape[-1] ** 0.5).softmax(-1)
    return weights @ value + torch.einsum("bhij,ijd->bhid", weights, rel_v)
"""
DEBERTA = '''
import numpy as np

def f(query, key, value, pos_query, pos_key, span):
    """Disentangled attention of content and of positions."""
    place = np.arange(query.shape[2])
    rows = np.clip(place[:, None] - place + span, 0, 2 * span - 1)
    rows = np.broadcast_to(rows, (*query.shape[:2], *rows.shape))
    of_query = np.take_along_axis(query @ pos_key.swapaxes(-1, -2), rows, -1)
    of_key = np.take_along_axis(key @ pos_query.swapaxes(-1, -2), rows, -1).swapaxes(-1, -2)
    scores = (query @ key.swapaxes(-1, -2) + of_query + of_key) / (3 * query.shape[-1]) ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value
'''
MISTAKES = {
    "exchanged biases": (TRANSFORMER_XL, "query + u_bias[:, None]", "query + v_bias[:, None]"),
    "no scale of positions": (
        TRANSFORMER_XL,
        "+ position) / query.shape[-1] ** 0.5",
        "/ query.shape[-1] ** 0.5 + position)",
    ),
    "another distance": (TOKENS_FIRST, "len(key) - 1 - behind", "(len(key) - 2 - behind).clamp(min=0)"),
    "other rows far away": (SHAW, "query, rel_k", "query, rel_k.mT.mT if len(rel_k) < 40 else rel_k.transpose(0, 1)"),
    "keys in the places of queries": (DEBERTA, ", -1).swapaxes(-1, -2)\n", ", -1)\n"),
}


@pytest.mark.parametrize("text", [TRANSFORMER_XL, TOKENS_FIRST, SHAW, DEBERTA])
def test_right_ones_conform(make: Make, text: str) -> None:
    made = make(text)
    assert not made.findings
    assert_conforms(made)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_ones_fail(make: Make, mistake: str) -> None:
    text, right, wrong = MISTAKES[mistake]
    assert right in text
    assert failing(make(text.replace(right, wrong, 1)), "modules.as-built")


def test_what_is_unknown_is_judged_in_part(make: Make) -> None:
    made = make(SHAW.replace("query, rel_k)", "query, rel_k).tanh()"))
    assert {*made.findings} == {"rel_k", "rel_v"}
    assert_conforms(made)


def test_nothing_is_made_of_what_needs_no_array() -> None:
    assert not [*with_needed_arrays(lambda query, key, value: value)]
    assert not [*with_needed_arrays(lambda query, key, value, /, rel: value)]


@pytest.mark.parametrize(
    ("letters", "shape"),
    [
        ("HRD", (3, 11, 8)),
        ("QKD", (5, 7, 8)),
        ("KHD", (7, 3, 8)),
        ("BKE", (2, 7, 24)),
        ("RH", (11, 3)),
        ("1HQK", (1, 3, 5, 7)),
        ("HCD", (3, 6, 8)),
        ("HH", (3, 3)),
        ("", ()),
    ],
)
def test_arrays_have_the_axes_of_their_letters(letters: str, shape: tuple[int, ...]) -> None:
    axes = Axes(letters, count=6)
    parameter = np.random.default_rng(0).standard_normal(axes.shape(3, 8))
    assert np.shape(axes.made(parameter, Sizes(2, 3, 5, 7, 8))) == shape


def test_rows_are_those_of_distances() -> None:
    place, rows = np.arange(5), np.arange(2.0 * FARTHEST + 1)[:, None]
    pairs = Axes("QKD").made(rows, Sizes(1, 1, 5, 5, 1))[..., 0]
    assert (pairs == place - place[:, None] + FARTHEST).all()
    assert (Axes("KD").made(rows, Sizes(1, 1, 5, 5, 1))[:, 0] == place[::-1]).all()
    assert (Axes("KD", last=False).made(rows, Sizes(1, 1, 5, 5, 1))[:, 0] == place).all()
