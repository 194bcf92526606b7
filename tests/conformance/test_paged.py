"""Chapter 31, paged: keys and values in pages give the answer of keys and values in one piece."""

from dataclasses import replace

import numpy as np

from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.masks import real_keys
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

SAMPLES = Case(seed=360).sized(batch=3, key_length=11)
"""The lengths of its samples, where they have lengths of their own, are 9, 6 and 3."""
SIZES = (1, 2, 3, 4, 5, 8, 16)
"""Tokens of a page: some divide some of the lengths, and one page is longer than all."""

PADDINGS = (Padding.NONE, Padding.LENGTHS)


def paged(case: Case, size: int) -> Case:
    return case.extended(page_size=size)


def lengths(case: Case, size: int) -> Case:
    """Each sample has a length of its own."""
    return replace(paged(case, size), padding=Padding.LENGTHS)


def rows(case: Case, padding: Padding, more: int = 2) -> Case:
    """Its keys lie in rows of a cache."""
    return replace(case, padding=padding).extended(cache_rows=more)


def last(case: Case, queries: int, size: int) -> Case:
    """So many causal queries at the end of each sample."""
    return replace(lengths(case.sized(query_length=queries), size), causal=True)


def windows(claimed: Conventions) -> list[Case]:
    """A query sees three keys, its own included: those of one page, and of two."""
    left = 2 + claimed.own_counted(causal=True)
    return [last(SAMPLES, queries, size).extended(window_left=left) for queries in (1, 3) for size in (1, 2, 4, 16)]


CONTEXT = "pages of {case.extension.page_size} tokens"
OTHERS = (
    {"softcap": 2.0},
    {"window_left": 4, "window_right": 2},
    {"alibi": True},
    {"sinks": True},
    {"rotary_base": 50.0},
)
LONGER = replace(SAMPLES, seed=363).sized(batch=2, num_heads=2, query_length=1, key_length=1100)
"""More keys than kernels answer in one part."""
LONG = replace(SAMPLES, seed=361, score_std=0.5).sized(batch=2, num_heads=2, key_length=67)
GROUPED = SAMPLES.sized(num_heads=6, num_kv_heads=2)

CLAUSES = table(
    row(
        "paged.table",
        *(paged(SAMPLES, size) for size in SIZES),
        *(paged(SAMPLES.sized(query_length=1), 4), paged(SAMPLES.sized(batch=1, key_length=1), 2), paged(LONG, 16)),
        *(paged(SAMPLES, 4).extended(**other) for other in OTHERS),
        paged(replace(SAMPLES, scale=0.3), 2),
        context=CONTEXT,
    ),
    row(
        "paged.lengths",
        *(lengths(SAMPLES, size) for size in SIZES),
        *(lengths(SAMPLES.sized(query_length=1), 4), lengths(SAMPLES.sized(key_length=12), 5), lengths(LONG, 16)),
        lengths(LONGER, 16),
        context=CONTEXT + ", and lengths of 1, of whole pages and of others",
    ),
    row(
        "paged.shared-prefix",
        *(paged(SAMPLES, size).extended(shared_prefix=True) for size in (1, 4)),
        *(lengths(SAMPLES, size).extended(shared_prefix=True) for size in (1, 2, 3)),
        context=CONTEXT + ", of which the first are shared",
    ),
    row(
        "paged.cache-rows",
        *(rows(case, padding) for case in (SAMPLES, SAMPLES.sized(query_length=1)) for padding in PADDINGS),
        rows(SAMPLES, Padding.NONE, more=5),
        rows(LONG, Padding.NONE),
        context="rows of a cache, {case.extension.cache_rows} more than samples",
    ),
    row(
        "paged.decode",
        *(last(SAMPLES, 1, size) for size in SIZES),
        last(LONG, 1, 16),
        last(LONGER, 1, 32),
        context=CONTEXT,
    ),
    row("paged.append", *(last(SAMPLES, 3, size) for size in SIZES), last(LONG, 5, 16), context=CONTEXT),
    row("paged.window", windows, context=CONTEXT),
    row(
        "paged.grouped",
        *(paged(GROUPED, size) for size in (1, 2, 4)),
        *(lengths(GROUPED, 2), last(GROUPED, 3, 4), last(GROUPED.sized(num_kv_heads=1), 1, 4)),
        *(paged(GROUPED.sized(d_k=6, d_v=6, batch=2), 6), paged(GROUPED.sized(num_heads=4, batch=2), 2)),
        context=CONTEXT,
    ),
)


@clause("paged.fresh-memory")
def test_fresh_memory(judge: Judge) -> None:
    alone = [lengths(SAMPLES, size) for size in (1, 3, 4, 16)]
    for case in judge.cases(*alone, lengths(SAMPLES.sized(query_length=1), 4), last(SAMPLES, 3, 4)):
        problem, behind = judge.problem(case).forward_only(), ~real_keys(case)[:, None, :, None]

        def fresh(rows: Array, behind: Array = behind) -> Array:
            return np.where(behind, np.array(np.nan, rows.dtype), rows)

        poisoned = changed(problem, key=fresh, value=fresh)
        context = f"NaN behind the last key of each sample, in pages of {case.extension.page_size} tokens"
        judge.assert_answers(case, poisoned, judge.expected(case)["output"], context)


@clause("paged.placement")
def test_placement(judge: Judge) -> None:
    for case in judge.cases(lengths(LONG, 1), last(LONG, 5, 16), last(LONG.sized(key_length=300), 1, 16)):
        problem = judge.problem(case).forward_only()
        contiguous, *others = (
            changed(problem, block_table=place) for place in (in_order, lambda table: table, in_reverse)
        )
        first, *later = (judge.answer(case, each) for each in (contiguous, *others))
        for each in later:
            if first is not None and each is not None:
                same = np.asarray(first.output).tobytes() == np.asarray(each.output).tobytes()
                judge.assert_that(case, same, "the same keys in other pages give other bits than one after another")


def in_order(table: Array) -> Array:
    """Pages one after another, so that the keys of a sample are contiguous."""
    return np.arange(table.size, dtype=table.dtype).reshape(table.shape)


def in_reverse(table: Array) -> Array:
    return np.asarray(table.max(initial=0) - table)
