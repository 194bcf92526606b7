"""Chapter 23, cache: a sequence that is fed piece by piece gets the answer that it gets at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np

from attention_conformance.reference.expected import Expected
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Conventions, WindowCount
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import take_keys, take_queries

SEQUENCE = Case(causal=True).sized(query_length=9, key_length=9)
BASE = 50.0
"""Of rotary angles: small, so that a few positions turn every pair by much."""


def fed(*chunks: int, room: int = 0, seed: int = 0) -> Case:
    """A causal sequence in pieces of so many tokens."""
    length = sum(chunks)
    whole = Case(causal=True, seed=seed).sized(query_length=length, key_length=length)
    return whole.extended(chunks=chunks, cache_length=room)


def reach(keys: int, conventions: Conventions) -> int:
    """The `left` of a window in which a query sees so many keys, its own included."""
    return keys if conventions.window_count is WindowCount.INCLUDING else keys - 1


def filled(chunks: Callable[[int], tuple[int, ...]]) -> list[Case]:
    """Pieces that go beyond a length at which storage that grows by pages, or doubles, is full."""
    return [fed(*chunks(length)).sized(batch=1, num_heads=2) for length in (16, 64, 128, 256)]


ORDINARY = (fed(5, 1, 1), fed(3, 4, seed=2), fed(2, 3, 2, seed=3))


@clause("cache.query-start")
def test_query_start(judge: Judge) -> None:
    placed = [(3, 7, 4), (3, 7, 2), (3, 7, 0), (1, 7, 3), (5, 7, 4), (7, 7, 0), (2, 9, 0), (2, 33, 17)]
    cases = [Case(causal=True).sized(query_length=q, key_length=k).extended(query_start=p) for q, k, p in placed]
    windowed = [case.extended(left=reach(3, judge.conventions)) for case in cases[:2]]
    for case in judge.cases(*cases, *windowed):
        judge.assert_conforms(case, context=f"the first query stands at position {case.extension.query_start}")


@clause("cache.query-start-rows")
def test_query_start_rows(judge: Judge) -> None:
    left = reach(3, judge.conventions)
    others = (SEQUENCE.extended(left=left), SEQUENCE.extended(rotary_base=BASE), SEQUENCE.extended(alibi=True))
    for case in judge.cases(SEQUENCE, *others):
        problem, whole = judge.problem(case).forward_only(), judge.expected(case)["output"]
        bound = np.broadcast_to(whole.bound, whole.value.shape)
        for piece in (slice(0, 2), slice(2, 5), slice(5, 6), slice(6, 9)):
            rows = Expected(whole.value[..., piece, :], bound[..., piece, :])
            context = f"queries {piece.start} to {piece.stop - 1}, as a call of their own with their start"
            judge.assert_answers(case, _part(problem, piece), rows, context)


def _part(whole: Problem, piece: slice) -> Problem:
    """The queries of a piece, and the keys up to its end."""
    taken = take_queries(take_keys(whole, np.arange(piece.stop)), np.arange(piece.start, piece.stop))
    return replace(taken, extension=replace(whole.extension, query_start=piece.start))


@clause("cache.decode")
def test_decode(judge: Judge) -> None:
    cases = (fed(5, 1, 1), fed(1, 1, 1, 1, 1), fed(16, 1), fed(7))
    for case in judge.cases(*cases, *filled(lambda length: (length - 1, 1, 1, 1))):
        judge.assert_conforms(case, context=_said(case))


@clause("cache.chunked-prefill")
def test_chunked_prefill(judge: Judge) -> None:
    cases = (fed(3, 4), fed(2, 3, 2), fed(1, 5, 1), fed(16, 17), *filled(lambda length: (length // 2, 5, length)))
    for case in judge.cases(*cases):
        judge.assert_conforms(case, context=_said(case))


def _said(case: Case) -> str:
    """Where the pieces begin, and the room that there is."""
    chunks, room = case.extension.chunks, case.extension.cache_length
    starts = ", ".join(str(end - length) for length, end in zip(chunks, accumulate(chunks), strict=True))
    return f"pieces begin at positions {starts}" + (f", and there is room for {room}" if room else "")


@clause("cache.window")
def test_window(judge: Judge) -> None:
    wanted = (*((case, 3) for case in ORDINARY), (ORDINARY[0], 6), (ORDINARY[2], 1))
    for case in judge.cases(*(case.extended(left=reach(keys, judge.conventions)) for case, keys in wanted)):
        judge.assert_conforms(case, context=_said(case))


@clause("cache.rotary")
def test_rotary(judge: Judge) -> None:
    for case in judge.cases(*(case.extended(rotary_base=BASE) for case in ORDINARY)):
        judge.assert_conforms(case, context=_said(case))


@clause("cache.alibi")
def test_alibi(judge: Judge) -> None:
    for case in judge.cases(*(case.extended(alibi=True) for case in ORDINARY)):
        judge.assert_conforms(case, context=_said(case))


@clause("cache.grouped")
def test_grouped(judge: Judge) -> None:
    cases = [case.sized(num_heads=6, num_kv_heads=heads) for case, heads in zip(ORDINARY, (3, 2, 1), strict=True)]
    for case in judge.cases(*cases):
        judge.assert_conforms(
            case, context=f"{case.sizes.kv_heads} heads are kept for {case.sizes.num_heads} of queries"
        )


@clause("cache.static")
def test_static(judge: Judge) -> None:
    plain = (fed(5, 1, 1, room=11), fed(3, 4, room=8), fed(2, 3, 2, room=16), fed(7, room=11))
    beside = (
        plain[1].extended(rotary_base=BASE),
        plain[1].extended(alibi=True),
        plain[2].extended(left=reach(3, judge.conventions)),
        plain[0].sized(num_heads=6, num_kv_heads=3),
    )
    for case in judge.cases(*plain, *beside):
        judge.assert_conforms(case, context=_said(case))


RINGS = (
    ((6, 1, 1, 1), 4),
    ((2, 3, 2, 3), 3),
    ((1, 1, 1, 1, 1, 1), 2),
    ((1, 1, 3), 4),
    ((7, 5), 3),
    ((1, 2, 1), 1),
)
"""Pieces, and the room of the ring that they go round in."""


@clause("cache.ring")
def test_ring(judge: Judge) -> None:
    for case in judge.cases(*_rings(judge.conventions)):
        judge.assert_conforms(case, context=_said(case))


@clause("cache.ring-positions")
def test_ring_positions(judge: Judge) -> None:
    rings = _rings(judge.conventions)[:3]
    rotated = [case.extended(rotary_base=BASE) for case in rings]
    for case in judge.cases(*rotated, *(case.extended(alibi=True) for case in rings)):
        judge.assert_conforms(case, context=_said(case))


def _rings(conventions: Conventions) -> list[Case]:
    """Windows as wide as the ring."""
    return [fed(*chunks, room=room).extended(left=reach(room, conventions)) for chunks, room in RINGS]


@clause("cache.new-sequence")
def test_new_sequence(judge: Judge) -> None:
    wanted = (fed(3, 1, 1, seed=1), fed(3, 1, 1, seed=2), fed(2, 2, seed=3), fed(4, 3, seed=4))
    cases = list(judge.cases(*(case.sized(d_v=4) for case in wanted)))
    for number in (0, 1, 0, 2, 3, 2) if cases else ():
        judge.assert_conforms(cases[number], context=f"not the first sequence that is fed; {_said(cases[number])}")
