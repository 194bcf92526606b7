"""Chapter 21, positions: sinusoids, rotary embeddings, ALiBi and its slopes, relative biases."""

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.reference.positions import positions
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Sizes
from attention_conformance.spec.features import Packing, PositionIds
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, group, row, table
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, taking

SQUARE = Case().sized(query_length=7, key_length=7)
ALIKE = Case().sized(num_heads=5, query_length=5, key_length=5)
"""As many heads as queries and keys: a slope or a table laid along the wrong axis fits."""
STARTS = ((1, 6), (3, 4), (5, 1))
"""Numbers of queries, and the position of the first one; there are 7 keys."""
FAR = (2003, 4099)
"""Positions that no half type holds: bfloat16 ends at 256, float16 at 2048."""
LONG = (
    Case(score_std=4.0)
    .sized(batch=1, num_heads=1, query_length=3, key_length=2099)
    .extended(rotary_base=10.0, query_start=2097)
)
POWERS = (1, 2, 4, 8, 16, 64)
OTHERS = (3, 5, 6, 7, 12, 20, 40, 71, 112)
ROTATED, QUICK = (SQUARE.extended(rotary_base=base) for base in (10000.0, 10.0))
GENTLE_ROTATED = replace(SQUARE, score_std=0.5).extended(rotary_base=20.0)
PARTIAL = SQUARE.sized(d_k=9).extended(rotary_base=10.0, rotary_dim=6)
GENTLE_PARTIAL = replace(PARTIAL, score_std=0.5)
IDS = (PositionIds.ASCENDING, PositionIds.RESTARTING, PositionIds.LEFT_PADDED)
GIVEN = SQUARE.extended(rotary_base=20.0, position_ids=IDS[0])
FAR_IDS = GIVEN.extended(position_ids=PositionIds.FAR)
GENTLE_GIVEN = replace(GIVEN, score_std=0.5)
GROUPED = Sizes(num_heads=6, num_kv_heads=3, query_length=7, key_length=7)
ALIBI = SQUARE.extended(alibi=True)
CAUSAL_ALIBI = replace(ALIBI, causal=True)
BIASED = SQUARE.extended(relative_bias=2)
GENTLE_BIASED = replace(BIASED, score_std=0.5)
FAR_START = "the first query is at position {case.extension.query_start}"


def _starting(case: Case) -> list[Case]:
    """The case with queries that start later, and one that continues a sequence under the causal flag."""
    later = [case.sized(query_length=queries).extended(query_start=start) for queries, start in STARTS]
    return [*later, replace(later[1], causal=True)]


CLAUSES = table(
    row(
        "positions.rotary",
        *(ROTATED, QUICK.sized(d_k=8), QUICK.sized(d_k=2), QUICK.sized(d_k=6, query_length=17, key_length=17)),
        *(replace(ROTATED, causal=True, seed=1), replace(QUICK, mask=MaskKind.FLOAT, seed=2)),
        replace(QUICK, sizes=GROUPED),
    ),
    row("positions.rotary-start", *_starting(SQUARE.extended(rotary_base=20.0))),
    row(
        "positions.rotary-far",
        *(Case().extended(rotary_base=base, query_start=start) for base in (10000.0, 10.0) for start in FAR),
        LONG,
        context=FAR_START,
    ),
    row(
        "positions.rotary-gradient",
        *(GENTLE_ROTATED, GENTLE_ROTATED.sized(d_k=6, key_length=4, query_length=4)),
        replace(GENTLE_ROTATED, sizes=GROUPED),
        parts=("gradients.query", "gradients.key"),
    ),
    row(
        "positions.partial-rotary",
        *(
            PARTIAL,
            PARTIAL.extended(rotary_dim=4),
            PARTIAL.extended(rotary_dim=2),
            replace(PARTIAL, causal=True, seed=1),
        ),
        *(PARTIAL.sized(d_k=6), PARTIAL.sized(d_k=16, query_length=17, key_length=17)),
        PARTIAL.sized(num_heads=6, num_kv_heads=3),
        context="{case.extension.rotary_dim} of {case.sizes.d_k} components are rotated",
    ),
    row("positions.partial-rotary-start", *_starting(PARTIAL)),
    row(
        "positions.partial-rotary-gradient",
        *(GENTLE_PARTIAL, GENTLE_PARTIAL.extended(rotary_dim=2), GENTLE_PARTIAL.sized(num_heads=6, num_kv_heads=3)),
        parts=("gradients.query", "gradients.key"),
    ),
    row(
        "positions.position-ids",
        *(GIVEN.extended(position_ids=kind) for kind in IDS),
        *(GIVEN.sized(query_length=4), GIVEN.sized(query_length=1), GIVEN.sized(num_heads=6, num_kv_heads=3)),
        replace(GIVEN, padding=Padding.LEFT).extended(position_ids=PositionIds.LEFT_PADDED),
        context="ids are {case.extension.position_ids}",
    ),
    row(
        "positions.position-ids-masks",
        *(replace(GIVEN, causal=True).extended(position_ids=kind) for kind in IDS),
        *(GIVEN.extended(window_left=2), GIVEN.extended(alibi=True), GIVEN.extended(relative_bias=2)),
        replace(GIVEN, causal=True).sized(query_length=4).extended(query_start=2),
        GIVEN.extended(packing=Packing.SEGMENTS),
        context="ids are {case.extension.position_ids}",
    ),
    row(
        "positions.position-ids-far",
        *(FAR_IDS, FAR_IDS.sized(query_length=5), FAR_IDS.extended(rotary_base=10000.0)),
    ),
    row(
        "positions.position-ids-gradient",
        *(GENTLE_GIVEN, GENTLE_GIVEN.sized(query_length=5), replace(GENTLE_GIVEN, sizes=GROUPED)),
        parts=("gradients.query", "gradients.key"),
    ),
    row(
        "positions.alibi",
        *(ALIBI, ALIKE.extended(alibi=True), ALIBI.sized(query_length=33, key_length=33)),
        *(replace(ALIBI, mask=MaskKind.FLOAT), replace(ALIBI, mask=MaskKind.BOOL, padding=Padding.LEFT)),
        *(replace(ALIBI, scale=0.2), ALIBI.extended(softcap=1.5)),
    ),
    row(
        "positions.alibi-causal",
        *(CAUSAL_ALIBI, CAUSAL_ALIBI.sized(query_length=17, key_length=17)),
        replace(CAUSAL_ALIBI, padding=Padding.RIGHT),
    ),
    row("positions.alibi-samples", *(ALIBI.sized(batch=n).extended(alibi_samples=True) for n in (2, 3))),
    row("positions.alibi-start", *_starting(ALIBI)),
    row(
        "positions.alibi-far",
        *(Case().extended(alibi=True, query_start=start) for start in FAR),
        dtypes=("float64", "float32"),
        context=FAR_START,
    ),
    row(
        "positions.relative-bias",
        *(BIASED, ALIKE.extended(relative_bias=2), BIASED.extended(relative_bias=1), BIASED.extended(relative_bias=9)),
        *(replace(BIASED, mask=MaskKind.INFINITE), replace(BIASED, causal=True)),
        *(replace(BIASED, scale=0.2), BIASED.extended(softcap=1.5)),
    ),
    row("positions.relative-start", *_starting(SQUARE.extended(relative_bias=3))),
    row(
        "positions.relative-gradient",
        *(GENTLE_BIASED, replace(GENTLE_BIASED, causal=True), GENTLE_BIASED.extended(relative_bias=9)),
        parts=("gradients.relative_bias",),
    ),
)


@clause("positions.sinusoids")
def test_sinusoids(judge: Judge) -> None:
    order = judge.conventions.sinusoid_order
    for arguments in ((1, 2), (7, 6), (50, 4), (13, 16), (2500, 8)):
        if (table := _called(judge, "sinusoids", *arguments)) is not None:
            _compare(judge, "sinusoids", arguments, table, sinusoids(*arguments, order, table.dtype.name))


def _called(judge: Judge, name: str, *arguments: int) -> Array | None:
    """What a plain function returns; None after recording that it raised."""
    try:
        return judge.call(name, *arguments)
    except CandidateError as error:
        judge.record_error(Case(), error, f"{name}({', '.join(map(str, arguments))})")
        return None


def _compare(judge: Judge, name: str, arguments: tuple[int, ...], got: Array, expected: Expected) -> None:
    """One check, in the dtype that the function chose."""
    call = f"{name}({', '.join(map(str, arguments))})"
    judge.record(Case(), compare(call, got, expected, got.dtype.name))


@clause("positions.sinusoids-length")
def test_sinusoids_length(judge: Judge) -> None:
    order, width = judge.conventions.sinusoid_order, 6
    if (whole := _called(judge, "sinusoids", 203, width)) is None:
        return
    for length in (1, 5, 41):
        bound = 2.0 * sinusoids(length, width, order, whole.dtype.name).bound
        if (table := _called(judge, "sinusoids", length, width)) is not None:
            expected = Expected(whole[:length].astype(np.float64), bound)
            _compare(judge, "sinusoids", (length, width), table, expected)


@clause("positions.rotary-norm")
def test_rotary_norm(judge: Judge) -> None:
    for case in judge.cases(SQUARE.extended(rotary_base=50.0), SQUARE.sized(d_k=6).extended(rotary_base=10000.0)):
        last = min(case.sizes.query_length, case.sizes.key_length) - 1
        for query in sorted({min(1, last), last}):
            _assert_as_if_not_rotated(judge, case, query)


def _assert_as_if_not_rotated(judge: Judge, case: Case, query: int) -> None:
    """All keys are 0, and rotation leaves them 0, except the one at the query's own position."""
    whole = judge.problem(case).forward_only()
    position = int(positions(whole, judge.conventions).query[0, query])

    def alone(rows: Array) -> Array:
        return np.where(np.arange(rows.shape[-2])[:, None] == position, rows, 0)

    problem = changed(whole, key=alone)
    not_rotated = replace(problem, extension=replace(problem.extension, rotary_base=None))
    value, bound = Pipeline().run(not_rotated, judge.conventions).output, judge.solve(problem).parts["output"].bound
    context = f"only key {position} is not 0, and query {query} stands at its position"
    judge.assert_answers(case, problem, Expected(value, bound), context, of=taking(np.array([query]), -2))


@clause("positions.rotary-shift")
def test_rotary_shift(judge: Judge) -> None:
    rotated = Case().extended(rotary_base=20.0, query_start=2)
    for case in judge.cases(rotated, rotated.sized(query_length=1, d_k=6)):
        for steps in (1, 40):
            _assert_only_distance_counts(judge, case, steps)


def _assert_only_distance_counts(judge: Judge, case: Case, steps: int) -> None:
    """The candidate's own answer, before and after all have moved."""
    before = judge.problem(case).forward_only()
    later = _moved(before, steps)
    bound = judge.expected(case)["output"].bound + judge.solve(later).parts["output"].bound
    moved = replace(case, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS).sized(key_length=later.key.shape[-2])
    allowed = judge.allows(moved.extended(query_start=later.extension.query_start))
    if allowed and (own := judge.own(case, before, bound)):
        judge.assert_answers(case, later, own, f"all stand {steps} positions later, after masked keys")


def _moved(problem: Problem, steps: int) -> Problem:
    """With `steps` masked keys before the others, and the queries at later positions."""

    def after_others(rows: Array) -> Array:
        others = np.resize(rows[..., ::-1, :], (*rows.shape[:-2], steps, rows.shape[-1]))
        return np.concatenate([others, rows], axis=-2)

    mask = np.arange(steps + problem.key.shape[-2]) >= steps
    extension = replace(problem.extension, query_start=(problem.extension.query_start or 0) + steps)
    later = changed(problem, key=after_others, value=after_others)
    return replace(later, attn_mask=mask.reshape(1, 1, 1, -1), extension=extension)


def _assert_slopes(judge: Judge, numbers_of_heads: tuple[int, ...]) -> None:
    for num_heads in numbers_of_heads:
        if (slopes := _called(judge, "alibi_slopes", num_heads)) is not None:
            expected = alibi_slopes(num_heads, judge.conventions.alibi_rule, slopes.dtype.name)
            _compare(judge, "alibi_slopes", (num_heads,), slopes, expected)


SLOPES = group(_assert_slopes, {"positions.alibi-slopes": POWERS, "positions.alibi-any-heads": OTHERS})
