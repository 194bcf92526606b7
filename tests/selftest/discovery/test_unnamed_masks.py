"""Masks and other options of functions under names that say nothing: what they do is seen, or they are not judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.values_tried import NOT_JUDGED
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

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
    assert make(ATTENTION.format(line)).findings == {"extra": NOT_JUDGED}


@pytest.mark.parametrize("line", ["extra.manual_seed(0)", "s = s.clone()"])
def test_what_changes_nothing_is_no_gap(make: Make, line: str) -> None:
    assert make(ATTENTION.format(line)).findings == {}


COUNTED = """
def f(q, k, v, extra=None):
    open("calls", "a").write("x")
    if extra is not None:
        {}
    s = q @ k.mT * q.shape[-1] ** -0.5
    later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return s.masked_fill(later, -torch.inf).softmax(-1) @ v
"""


@pytest.mark.parametrize(("line", "most"), [("raise KeyError(extra)", 300), ("v = v + 0", 600)])
def test_of_what_is_causal_in_any_case_few_calls_show_that_it_takes_no_mask(
    make: Make, tmp_path: Path, line: str, most: int
) -> None:
    made = make(COUNTED.format(line))
    assert Feature.BOOL_MASK not in made.claims.features
    assert len((tmp_path / "calls").read_text()) < most


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


TWO = """
def f(q, k, v, key_mask=None, pair_mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    seen = torch.ones_like(s, dtype=torch.bool)
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    if pair_mask is not None:
        seen = {}
    return s.masked_fill(~seen, -torch.inf).softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("seen", "polarity", "wrong"),
    [
        ("seen & pair_mask", Polarity.MAY_ATTEND, False),
        ("seen & ~pair_mask", Polarity.MASKED_OUT, False),
        ("pair_mask if key_mask is None else seen | pair_mask", Polarity.MAY_ATTEND, True),
    ],
)
def test_pairs_are_masked_next_to_keys(make: Make, seen: str, polarity: Polarity, wrong: bool) -> None:
    made = make(TWO.format(seen))
    assert {Feature.BOOL_MASK, Feature.KEY_PADDING} <= made.claims.features
    assert made.claims.conventions.bool_mask is polarity
    verdicts = {each.status for each in run(made, ("masks.bool", "masks.padding", "masks.intersect"), ("float64",))}
    assert (Status.FAIL in verdicts) is wrong


LENGTHS = """
def f(q, k, v, memory_lens):
    lens, order = memory_lens.sort(descending=True, stable=True)
    s = q[order] @ k[order].mT * q.shape[-1] ** -0.5
    s = s.masked_fill(torch.arange(k.shape[2]) >= lens[:, None, None, None], -torch.inf)
    return (s.softmax(-1) @ v[order])[{}]
"""


@pytest.mark.parametrize(("back", "wrong"), [("order.argsort()", False), ("order", True)])
def test_lengths_are_known_by_words(make: Make, back: str, wrong: bool) -> None:
    made = make(LENGTHS.format(back))
    assert Feature.VALID_LENS in made.claims.features
    verdicts = {each.status for each in run(made, ("shapes.meetings", "shapes.combinations"), ("float64",))}
    assert (Status.FAIL in verdicts) is wrong


TRAINED = """
def f(q, k, v, trained=512):
    seen = k.shape[2]
    gain = max(1.0, math.log(seen) / math.log(trained))
    return (q @ k.mT * gain * q.shape[-1] ** -0.5).softmax(-1) @ v
"""


def test_what_is_longer_than_a_number_of_its_own_is_not_judged(make: Make) -> None:
    made = make("import math\n" + TRAINED)
    assert made.findings == {"trained": NOT_JUDGED}
    assert any("more than 512 tokens" in each for each in made.stated)
    assert Status.FAIL not in {
        each.status for each in run(made, ("numerics.accumulation", "shapes.large"), ("float64",))
    }


BLOCKS = """
def f(q, k, v, causal=False, q_block=64, k_block=64):
    rows = []
    for at in range(0, q.shape[2], q_block):
        own = q[:, :, at : at + q_block] * q.shape[-1] ** -0.5
        ends = []
        for start in range(0, k.shape[2], k_block):
            if causal and start > at + {reach}:
                break
            ends.append(min(start + k_block, k.shape[2]))
        s = own @ k[:, :, : ends[-1]].mT
        if causal:
            ahead = torch.arange(ends[-1]) > torch.arange(at, at + own.shape[2])[:, None]
            s = s.masked_fill(ahead, -torch.inf)
        rows.append(s.softmax(-1) @ v[:, :, : ends[-1]])
    return torch.cat(rows, 2)
"""


@pytest.mark.parametrize(("reach", "wrong"), [("own.shape[2] - 1", False), ("0", True)])
def test_blocks_of_queries_and_of_keys_may_have_other_sizes(make: Make, reach: str, wrong: bool) -> None:
    made = make(BLOCKS.format(reach=reach))
    assert made.findings == {}
    statuses = {each.status for each in run(made, ("relations.alternatives",), ("float64",))}
    assert statuses == {Status.FAIL if wrong else Status.PASS}


def test_a_block_by_part_of_a_name_is_not_judged_with_others(make: Make) -> None:
    text = BLOCKS.format(reach="own.shape[2] - 1").replace("k_block=64", "k_block=64, block=64")
    made = make(text.replace("s.softmax(-1)", "(s * min(1.0, block / 8)).softmax(-1)"))
    assert made.findings == {"block": NOT_JUDGED}


TABLE = '''
def f(q, k, v, bias_table):
    """bias_table (H, 2 n - 1): the number in column n - 1 + t is added for the distance t = {}."""
    n, most = q.shape[2], (bias_table.shape[1] + 1) // 2
    place = torch.arange(n)
    bias = bias_table[:, place - place[:, None] + most - 1]
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v
'''


@pytest.mark.parametrize(("distance", "wrong"), [("j - i", False), ("key - query", False), ("i - j", True)])
def test_a_table_has_its_rows_in_the_order_that_is_documented(make: Make, distance: str, wrong: bool) -> None:
    made = make(TABLE.format(distance))
    statuses = {each.status for each in run(made, ("modules.as-built",), ("float64",))}
    assert statuses == {Status.FAIL if wrong else Status.PASS}


FOLDED = '''
def f(q, k, v, attn_mask=None, scale=None):
    """q (N, L, D), k and v (N, S, D), heads in the first axis. attn_mask: (L, S) or (N, L, S), added to the scores."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if attn_mask is None:
        return (q @ k.mT * scale).softmax(-1) @ v
    mask = attn_mask[None] if attn_mask.ndim == 2 else attn_mask
    return ({}).softmax(-1) @ v
'''


@pytest.mark.parametrize(
    ("scores", "wrong"),
    [
        ("torch.baddbmm(mask.expand(len(q), -1, -1), q, k.mT, alpha=scale)", False),
        ("torch.baddbmm(mask.expand(len(q), -1, -1), q, k.mT) * scale", True),
    ],
)
def test_numbers_are_added_where_no_boolean_is_taken(make: Make, scores: str, wrong: bool) -> None:
    made = make(FOLDED.format(scores))
    assert Feature.FLOAT_MASK in made.claims.features
    statuses = {each.status for each in run(made, ("masks.float",), ("float64",))}
    assert statuses == {Status.FAIL if wrong else Status.PASS}


STREAM = """
class f:
    def __init__(self, window):
        self.window = window
        self.reset()

    def reset(self):
        self.k = self.v = None

    def __call__(self, q, k, v):
        k, v = (x if y is None else torch.cat([y, x], 2) for x, y in ((k, self.k), (v, self.v)))
        self.k, self.v = k[:, :, -self.window :].detach(), v[:, :, -self.window :].detach()
        s = q @ k.mT * q.shape[-1] ** -0.5
        place = torch.arange(k.shape[2])
        far = place[k.shape[2] - q.shape[2] :, None] - place
        return s.masked_fill((far < 0) | (far >= self.window), -torch.inf).softmax(-1) @ v
"""


def test_an_object_that_holds_a_stream_is_emptied_before_each_call(make: Make) -> None:
    verdicts = {each.status for each in run(make(STREAM), ("scores.*", "effects.repeatable"), ("float64",))}
    assert Status.PASS in verdicts
    assert Status.FAIL not in verdicts
