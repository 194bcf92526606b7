"""Chapter 23, cache: a sequence that is fed piece by piece gets the answer of one call."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import Rule, clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import take_keys, take_queries

SEQUENCE = Case(causal=True).sized(query_length=9, key_length=9)
BASE = 50.0
"""Of rotary angles: small, so that a few positions rotate every pair by much."""


def fed(*chunks: int, room: int = 0, seed: int = 0) -> Case:
    """A causal sequence in pieces of so many tokens."""
    length = sum(chunks)
    whole = Case(causal=True, seed=seed).sized(query_length=length, key_length=length)
    return whole.extended(chunks=chunks, cache_length=room)


def reach(keys: int, conventions: Conventions) -> int:
    """The `left` of a window in which a query sees so many keys, its own included."""
    return keys if conventions.own_counted(causal=True) else keys - 1


def filled(chunks: Callable[[int], tuple[int, ...]]) -> list[Case]:
    """Pieces that go beyond a length at which storage that grows by pages, or doubles, is full."""
    return [fed(*chunks(length)).sized(batch=1, num_heads=2) for length in (16, 64, 128, 256)]


def windowed(keys: int, *cases: Case) -> Rule:
    """The cases with a window in which a query sees so many keys, its own included."""
    return lambda claimed: [case.extended(window_left=reach(keys, claimed)) for case in cases]


def described(case: Case) -> str:
    """Where the pieces begin, and how many positions the cache has."""
    chunks, room = case.extension.chunks, case.extension.cache_length
    starts = ", ".join(str(end - length) for length, end in zip(chunks, accumulate(chunks), strict=True))
    filled = " that holds NaN" if case.extension.unwritten else ""
    return f"pieces begin at positions {starts}" + (f", and there is room for {room}{filled}" if room else "")


def started(query_length: int, key_length: int, query_start: int) -> Case:
    whole = Case(causal=True).sized(query_length=query_length, key_length=key_length)
    return whole.extended(query_start=query_start)


ORDINARY = (fed(5, 1, 1), fed(3, 4, seed=2), fed(2, 3, 2, seed=3))
STARTED = [started(*given) for given in ((3, 7, 4), (3, 7, 2), (3, 7, 0), (1, 7, 3), (5, 7, 4), (7, 7, 0), (2, 9, 0))]
STATIC = (fed(5, 1, 1, room=11), fed(3, 4, room=8), fed(2, 3, 2, room=16), fed(7, room=11))
RINGS = (
    ((6, 1, 1, 1), 4),
    ((2, 3, 2, 3), 3),
    ((1, 1, 1, 1, 1, 1), 2),
    ((1, 1, 3), 4),
    ((7, 5), 3),
    ((1, 2, 1), 1),
)
"""Pieces, and the positions of a ring cache, of which a window reaches all."""
WINDOWED_RINGS = [windowed(room, fed(*chunks, room=room)) for chunks, room in RINGS]

EACH = Case(causal=True).sized(batch=3, query_length=3, key_length=11).extended(query_starts=True)
"""Each sample has a start of its own."""
MASKED_TOO = (
    replace(EACH, mask=MaskKind.BOOL),
    replace(EACH, mask=MaskKind.FLOAT, mask_shape=MaskShape.HEAD, seed=1),
    replace(EACH, padding=Padding.LEFT, seed=2),
)
OF_LENGTHS = replace(EACH, padding=Padding.LENGTHS)
POSITIONED = [EACH.extended(rotary_base=BASE), EACH.extended(alibi=True), EACH.extended(relative_bias=3)]

CLAUSES = table(
    row(
        "cache.query-start",
        *(*STARTED, started(2, 33, 17)),
        windowed(3, *STARTED[:2]),
        context="the first query is at position {case.extension.query_start}",
    ),
    row(
        "cache.query-starts",
        *(
            EACH,
            EACH.sized(query_length=1),
            EACH.sized(query_length=7, key_length=7),
            EACH.sized(batch=5, key_length=33),
            *MASKED_TOO,
        ),
        EACH.sized(num_heads=6, num_kv_heads=3),
    ),
    row(
        "cache.query-starts-lengths",
        *(OF_LENGTHS, OF_LENGTHS.sized(query_length=1), OF_LENGTHS.sized(query_length=6)),
        *(OF_LENGTHS.sized(batch=5, key_length=33), replace(OF_LENGTHS, causal=False)),
    ),
    row(
        "cache.query-starts-window",
        windowed(3, EACH, EACH.sized(query_length=1), replace(EACH, causal=False)),
        replace(EACH, causal=False).extended(window_right=2),
    ),
    row(
        "cache.query-starts-positions",
        *(*POSITIONED, *(replace(case, causal=False) for case in POSITIONED)),
        parts=("output", "gradients.query", "gradients.key"),
    ),
    row(
        "cache.decode",
        *(fed(5, 1, 1), fed(1, 1, 1, 1, 1), fed(16, 1), fed(7)),
        *filled(lambda length: (length - 1, 1, 1, 1)),
        context=described,
    ),
    row(
        "cache.chunked-prefill",
        *(fed(3, 4), fed(2, 3, 2), fed(1, 5, 1), fed(16, 17)),
        *filled(lambda length: (length // 2, 5, length)),
        context=described,
    ),
    row(
        "cache.window",
        *(windowed(3, *ORDINARY), windowed(6, ORDINARY[0]), windowed(1, ORDINARY[2])),
        context=described,
    ),
    row("cache.rotary", *(case.extended(rotary_base=BASE) for case in ORDINARY), context=described),
    row("cache.alibi", *(case.extended(alibi=True) for case in ORDINARY), context=described),
    row(
        "cache.grouped",
        *(case.sized(num_heads=6, num_kv_heads=n) for case, n in zip(ORDINARY, (3, 2, 1), strict=True)),
        context="the cache holds {case.sizes.kv_heads} heads for {case.sizes.num_heads} query heads",
    ),
    row(
        "cache.static",
        *(*STATIC, STATIC[1].extended(rotary_base=BASE), STATIC[1].extended(alibi=True)),
        *(windowed(3, STATIC[2]), STATIC[0].sized(num_heads=6, num_kv_heads=3)),
        context=described,
    ),
    row("cache.unwritten", *(case.extended(unwritten=True) for case in STATIC), context=described),
    row("cache.ring", *WINDOWED_RINGS, context=described),
    row(
        "cache.ring-positions",
        *(windowed(room, fed(*chunks, room=room).extended(rotary_base=BASE)) for chunks, room in RINGS[:3]),
        *(windowed(room, fed(*chunks, room=room).extended(alibi=True)) for chunks, room in RINGS[:3]),
        context=described,
    ),
)


@clause("cache.query-start-rows")
def test_query_start_rows(judge: Judge) -> None:
    left = reach(3, judge.conventions)
    others = (SEQUENCE.extended(window_left=left), SEQUENCE.extended(rotary_base=BASE), SEQUENCE.extended(alibi=True))
    for case in judge.cases(SEQUENCE, *others):
        problem, whole = judge.problem(case).forward_only(), judge.expected(case)["output"]
        for piece in (slice(0, 2), slice(2, 5), slice(5, 6), slice(6, 9)):
            rows = whole.only(itemgetter((..., piece, slice(None))))
            context = f"queries {piece.start} to {piece.stop - 1}, as a call of their own with their start"
            part = case.sized(query_length=piece.stop - piece.start, key_length=piece.stop)
            if judge.allows(part.extended(query_start=piece.start)):
                judge.assert_answers(case, _part(problem, piece), rows, context)


def _part(whole: Problem, piece: slice) -> Problem:
    """The queries of a piece, and the keys up to its end."""
    taken = take_queries(take_keys(whole, np.arange(piece.stop)), np.arange(piece.start, piece.stop))
    return replace(taken, extension=replace(whole.extension, query_start=piece.start))


@clause("cache.new-sequence")
def test_new_sequence(judge: Judge) -> None:
    wanted = (fed(3, 1, 1, seed=1), fed(3, 1, 1, seed=2), fed(2, 2, seed=3), fed(4, 3, seed=4))
    cases = list(judge.cases(*(case.sized(d_v=4) for case in wanted)))
    for number in (0, 1, 0, 2, 3, 2) if cases else ():
        judge.assert_conforms(cases[number], context=f"not the first sequence that is fed; {described(cases[number])}")
