"""Attention in NumPy: one answer whatever the tiles are, and float32 where it says so."""

import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.builtin.inhouse import INHOUSE, numpy_attention
from attention_conformance.implementations.builtin.inhouse.call_options import Options
from attention_conformance.implementations.builtin.inhouse.numpy_attention import Array, _blocks, _steady, attention
from attention_conformance.implementations.builtin.inhouse.numpy_masks import within
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import SoftmaxPrecision
from attention_conformance.spec.features import NOTHING, Scope
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.selftest.reference.agreement import op
from attention_conformance.tests.selftest.reference.test_family import CASES_FOR_TILES, assert_agrees

(ENTRY,) = (each for each in INHOUSE if each.name == "inhouse.numpy")


@pytest.mark.parametrize(("size", "dtype"), [(1, "float64"), (128, "float64"), *((3, dtype) for dtype in DTYPES)])
@pytest.mark.parametrize("name", CASES_FOR_TILES)
def test_agrees(name: str, size: int, dtype: str) -> None:
    run = numpy_op(partial(attention, tile=size, need_weights=True), extras=("log_sum_exp", "weights"))
    assert_agrees(replace(ENTRY, run=run), dtype, CASES_FOR_TILES[name], "output", "log_sum_exp", "weights")


def test_its_softmax_is_not_in_float64() -> None:
    """What it claims is not only allowed, but so: the same without the claim is refused."""
    claims = replace(ENTRY.claims, conventions=ENTRY.claims.conventions.claiming({"softmax-precision": "working"}))
    assert ENTRY.claims.conventions.softmax_precision is SoftmaxPrecision.FLOAT32
    judge = Judge(replace(ENTRY, claims=claims), "float64")
    judge.assert_conforms(Case())
    assert judge.tally.failures


def test_nan_of_a_later_key_stays_out() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 4))
    poisoned = np.where(np.arange(5)[:, None] == 3, np.nan, x)
    expected = solve(op(x, x, x, causal=True), ENTRY.claims.conventions).parts["output"]
    early = Expected(expected.value[:, :, :3], expected.bound[:, :, :3])
    for rows in (x, poisoned):
        output = attention(x, rows, rows, is_causal=True)[0][:, :, :3]
        assert not compare("output", output, early, "float64").message


def test_positions_within_documents() -> None:
    ids = np.array([[3, 3, 1, 3, 1], [0, 0, 0, 0, 0]])
    assert within(ids).tolist() == [[0, 1, 0, 2, 1], [0, 1, 2, 3, 4]]


KEYS, ENDS = (2, 2, 7, 3), np.array([0, 7])


@pytest.mark.parametrize(
    ("key", "value", "options", "message"),
    [
        ((2, 2, 7, 2), KEYS, {}, r"one width, .* got \(2, 4, 5, 3\), \(2, 2, 7, 2\) and"),
        (KEYS, (2, 2, 6, 3), {}, r"one length, .* and \(2, 2, 6, 3\)"),
        ((2, 3, 7, 3), (2, 3, 7, 3), {}, "key heads must be as many"),
        (KEYS, KEYS, {"enable_gqa": False}, "key heads must be as many"),
        (KEYS, KEYS, {"attn_mask": np.ones((5, 6), bool)}, r"\(5, 6\) does not broadcast to"),
        (KEYS, KEYS, {"attn_mask": np.ones((5, 7), int)}, "boolean or of floats"),
        (KEYS, KEYS, {"rotary_base": 10.0}, "an even width, not 3"),
        (KEYS, KEYS, {"dropout_p": 0.5}, "no dropout"),
        (KEYS, KEYS, {"cu_seqlens_q": np.array([0, 4]), "cu_seqlens_k": ENDS}, "do not fit"),
        (KEYS, KEYS, {"cu_seqlens_q": np.array([1, 5]), "cu_seqlens_k": ENDS}, "from 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    key: tuple[int, ...], value: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    query, *rows = (np.zeros(shape, np.float32) for shape in ((2, 4, 5, 3), key, value))
    with pytest.raises(ValueError, match=message):
        attention(query, *rows, **{"enable_gqa": True, **options})


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    """An output of 4096 queries over 4096 keys, whose weights alone would take 64 MiB."""
    x: Array = np.random.default_rng(0).standard_normal((1, 1, 4096, 4)).astype(np.float32)
    tracemalloc.start()
    attention(x, x, x, is_causal=True)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * 2**20


class TestSteady:
    """Small scores need no maximum; what is large does."""

    @pytest.fixture
    def rows(self) -> Array:
        return np.random.default_rng(1).standard_normal((2, 3, 40, 8), np.float32)

    @pytest.mark.parametrize(
        ("query", "value", "steady"), [(1.0, 1.0, True), (30.0, 1.0, False), (np.nan, 1.0, False), (1.0, 1e13, False)]
    )
    def test_follows_from_sizes(self, rows: Array, query: float, value: float, steady: bool) -> None:
        assert _steady(Options(), rows * query, rows, rows * value) is steady

    def test_not_for_what_is_added_nor_for_few_queries(self, rows: Array) -> None:
        assert not _steady(Options(attn_mask=np.zeros((40, 40))), rows, rows, rows)
        assert not _steady(Options(sinks=np.zeros(3)), rows, rows, rows)
        assert not _steady(Options(), rows[:, :, :7], rows, rows)

    def test_both_agree(self, rows: Array, monkeypatch: pytest.MonkeyPatch) -> None:
        options: dict[str, Any] = {"is_causal": True, "add_zero_attn": True, "tile": 16}
        problem = Problem(Scope.OP, rows, rows, rows, 3, causal=True, extension=replace(NOTHING, zero_attn=True))
        expected = solve(problem).parts
        assert _steady(Options(is_causal=True, add_zero_attn=True), rows, rows, rows)
        for highest in (numpy_attention.HIGHEST, -1.0):
            monkeypatch.setattr(numpy_attention, "HIGHEST", highest)
            output, log_sum_exp = attention(rows, rows, rows, **options)
            assert not compare("output", output, expected["output"], "float32").message
            assert not compare("log_sum_exp", log_sum_exp, expected["log_sum_exp"], "float32").message


def test_blocks_cover_each_head_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for scores in (1, 8 * 5, 8 * 5 * 7, 8 * 5 * 7 * 6, 10**6):
        monkeypatch.setattr(numpy_attention, "SCORES", scores)
        counts = np.zeros((4, 6), int)
        for samples, heads, keyed in _blocks((4, 6, 5, 2), (4, 3, 7, 2)):
            counts[samples, heads] += 1
            assert (keyed.start * 2, keyed.stop * 2) == (heads.start, heads.stop)
        assert (counts == 1).all()
