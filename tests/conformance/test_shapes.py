"""Chapter 9, shapes: every extent, every memory layout, and all options together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.worker.memory import output_shape
from attention_conformance.reference.expected import Expected, can_sample_rows, sample_rows
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern, Scores, Sizes
from attention_conformance.spec.features import Feature, Packing, Scope
from attention_conformance.spec.problem import HALF, Array, Problem, lay_out
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.meeting import assert_meeting, claimed_meetings
from attention_conformance.tests.harness.judge.relations import changed, take_samples
from attention_conformance.tests.harness.judge.search import claimed_combinations, search

COINCIDENT = (
    Sizes(batch=3, num_heads=3, query_length=5, key_length=7, d_k=4, d_v=3),
    Sizes(batch=4, num_heads=3, query_length=4, key_length=4, d_k=5, d_v=2),
    Sizes(batch=2, num_heads=5, query_length=5, key_length=5, d_k=5, d_v=5),
    Sizes(batch=2, num_heads=2, query_length=2, key_length=2, d_k=2, d_v=2),
    Sizes(batch=1, num_heads=1, query_length=1, key_length=1, d_k=1, d_v=1),
    Sizes(batch=1, num_heads=4, query_length=3, key_length=6, d_k=6, d_v=3),
    Sizes(batch=3, num_heads=1, query_length=6, key_length=5, d_k=3, d_v=4),
    Sizes(batch=2, num_heads=3, query_length=1, key_length=9, d_k=9, d_v=9),
)
ONE_OF_EACH_MASK = (
    Case(seed=1),
    Case(seed=2, mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE),
    Case(seed=3, mask=MaskKind.FLOAT, mask_shape=MaskShape.HEAD),
    Case(seed=4, padding=Padding.RIGHT),
)
EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 513)
SQUARES = (15, 16, 17, 33, 64, 65, 128, 129, 257)
RECTANGLES = ((33, 58), (64, 90), (70, 301), (150, 131))
"""Queries and keys of which the last tile that a causal row sees is cut, wherever the mask starts."""
LONG = (1061, 1097)
"""Sequences of which some rows are checked."""
VERY_LONG = (4097, 8193)
"""The same in the exhaustive tier."""
VERY_MANY_KEYS = Case(score_std=4.0, seed=17).sized(batch=1, num_heads=1, query_length=131, key_length=2**17)
"""Of its queries 64 are checked, in the exhaustive tier; the scores of all take 64 MiB in float32."""
LARGE = (
    Sizes(batch=33, num_heads=2, query_length=2, key_length=3, d_k=2, d_v=2),
    Sizes(batch=1, num_heads=1, query_length=521, key_length=6, d_k=4, d_v=3),
    Sizes(batch=1, num_heads=2, query_length=3, key_length=1031, d_k=4, d_v=4),
    Sizes(batch=1, num_heads=2, query_length=3, key_length=5, d_k=136, d_v=131),
    Sizes(batch=1, num_heads=2, query_length=5, key_length=4, d_k=67, d_v=193),
    Sizes(batch=1, num_heads=1, query_length=70, key_length=301, d_k=4, d_v=4),
    Sizes(batch=1, num_heads=1, query_length=263, key_length=263, d_k=3, d_v=3),
)
"""Beyond a tile, a launch or a vector in one extent or two."""
FEW = len(LARGE) - 2
"""So many of them have few scores, and are checked with every kind of mask; the others with every second one."""
MASKS = (
    Case(),
    Case(mask=MaskKind.BOOL),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS),
    Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SAMPLE),
    Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.SHARED),
    Case(padding=Padding.RIGHT),
    Case(causal=True),
    Case(scale=0.3),
)
OF_POSITIONS: tuple[dict[str, Any], ...] = ({"alibi": True}, {"rotary_base": 100.0})
"""Options that compute with positions, of which those beyond 256 or 2,048 are no numbers of a half type."""
FAR: tuple[dict[str, Any], ...] = (
    {"relative_bias": 50},
    {"window_left": 70},
    {"window_left": 20, "window_right": 40},
    {"query_start": 100},
    {"query_start": 2**16 + 7},
    {"packing": Packing.LENGTHS},
    {"sinks": True},
    *OF_POSITIONS,
)
"""Options that reach beyond a tile, each checked with many keys, and with many queries and keys."""
EXTENSIONS: tuple[dict[str, Any], ...] = (
    *FAR,
    {"zero_attn": True},
    {"head_gates": True},
    {"softcap": 2.0},
    {"packing": Packing.SEGMENTS},
)
"""The same of all options, in the full tier: in the quick one they meet many keys in shapes.meetings."""
MANY_KEYS = Case(seed=11).sized(batch=1, num_heads=2, query_length=3, key_length=1031)
BEYOND_HALF = Case(seed=20).sized(batch=1, num_heads=1, query_length=301, key_length=301, d_k=16, d_v=16)
"""Positions that are no numbers of bfloat16."""
BEYOND_IN_TURN = (
    replace(BEYOND_HALF, scores=Scores.RISING, causal=True),
    replace(BEYOND_HALF, scores=Scores.RISING).extended(window_left=20, window_right=0),
)
"""The same where a query that sees one key too many sees little else."""
ROTATED_LAST = replace(BEYOND_HALF, score_std=8.0).sized(batch=4, d_k=4, d_v=4)
REAL = 16
"""Tokens of it that are not 0, the last ones: among few keys that count, a position that is off by one is seen."""
FEW_SEEN = replace(MANY_KEYS, mask=MaskKind.BOOL, pattern=Pattern.SINGLE_KEY).extended(sinks=True)
"""What many keys that nobody sees add to one that is seen."""
MANY_OF_BOTH = Case(seed=12).sized(batch=2, num_heads=2, query_length=131, key_length=131)
DECODING = Case(seed=13).sized(batch=1, num_heads=4, query_length=1, key_length=2053, d_k=16, d_v=16)
"""One query over many keys: the step of a decoder."""
VIEWS = tuple(layout for layout in Layout if layout is not Layout.FORTRAN)
"""Those that are not refused: a kernel may need its last axis to be the innermost."""
KINDS = (MaskKind.BOOL, MaskKind.FLOAT)
MOST = 80_000
"""Scores in a large case: more cost more than they show."""
MODEL_WIDTHS = (64, 80, 96, 128, 192, 256)
"""Head widths of published models, for which kernels have code of their own; here with more keys than a tile has."""
MODEL_HEADS = {8: 256, 12: 64, 16: 96, 32: 80, 40: 128}
"""Numbers of heads of published models, and their widths, which would make the matrices of a module large."""
FAR_KEYS = tuple(
    replace(DECODING, seed=seed, scores=scores).sized(num_heads=1, key_length=2**16 + beyond, d_k=1, d_v=1)
    for seed, beyond, scores in ((13, 3, Scores.RISING), (18, 1, Scores.LAST))
)
"""The number of the key that weighs most takes more than 16 bits."""
HALF_COUNTED = tuple(
    replace(FAR_KEYS[1], seed=seed).sized(key_length=keys) for seed, keys in ((21, 2**8 + 4), (22, 2**11 + 4))
)
"""The same of a half type: bfloat16 counts to 256, and float16 to 2,048."""
MANY_LAUNCHES = tuple(
    Case(seed=seed).sized(batch=batch, num_heads=256, query_length=1, key_length=2, d_k=1, d_v=1)
    for seed, batch in ((15, 257), (19, 256))
)
"""More heads of samples than the 65,535 blocks that a launch has along two of its axes."""
WIDTHS = (1, 2, 3, 5, 7, 8, 15, 24, 33, 64, 65, 80, 96, 128, 129, 257)

AMPLE = Case(seed=7, score_std=1.0).sized(batch=1, num_heads=2, query_length=64, key_length=64, d_k=65, d_v=8)
"""So many elements that in a half type a scale of a few percent more or less shows in all of them together."""
CLAUSES = table(
    row("shapes.coincident", *(replace(case, sizes=sizes) for sizes in COINCIDENT for case in ONE_OF_EACH_MASK)),
    row(
        "shapes.head-width",
        *(Case(seed=d).sized(batch=1, num_heads=2, d_k=d, d_v=d) for d in WIDTHS),
        *(Case(seed=d).sized(batch=1, num_heads=1, query_length=3, key_length=67, d_k=d, d_v=d) for d in MODEL_WIDTHS),
        Case(seed=9, causal=True).sized(batch=1, num_heads=1, query_length=66, key_length=66, d_k=128, d_v=128),
        AMPLE,
    ),
    row(
        "shapes.head-width",
        *(Case(seed=d).sized(batch=1, num_heads=1, query_length=3, key_length=67, d_k=d, d_v=d) for d in MODEL_WIDTHS),
        Case(seed=8, causal=True).sized(batch=1, num_heads=2, query_length=5, key_length=5, d_k=128, d_v=128),
        parts=("gradients",),
        context="the backward pass of {case.sizes.d_k} components",
        feature=Feature.GRADIENTS,
    ),
    row(
        "shapes.empty", *(Case().sized(batch=0), Case().sized(query_length=0), Case(mask=MaskKind.BOOL).sized(batch=0))
    ),
    row("shapes.empty-keys", Case().sized(key_length=0), context="without keys the output is zeros"),
)


@clause("shapes.output")
def test_output(judge: Judge) -> None:
    for case in judge.cases(Case(), Case().sized(query_length=1), Case().sized(num_heads=1, d_v=6)):
        value = judge.expected(case)["output"].value
        anything = Expected(value, np.full_like(value, np.finfo(float).max))
        judge.assert_answers(case, judge.problem(case).forward_only(), replace(anything, value=0 * value), "form")


@clause("shapes.tile-edges")
def test_tile_edges(judge: Judge) -> None:
    long_keys = (Case(score_std=4.0, seed=n).sized(batch=1, num_heads=2, query_length=3, key_length=n) for n in EDGES)
    square = Case(score_std=4.0, causal=True)
    long_both = (square.sized(batch=1, num_heads=2, query_length=n, key_length=n) for n in SQUARES)
    masked = Case(score_std=4.0, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED).sized(batch=1)
    tail = (masked.sized(query_length=n, key_length=n) for n in (17, 33, 65, 129))
    # With scores that rise, the keys that a row sees last have most of the weight, which shows in a half type, too.
    rising = Case(seed=3, scores=Scores.RISING, causal=True).sized(batch=1, num_heads=2)
    cut = (rising.sized(query_length=queries, key_length=keys) for queries, keys in RECTANGLES)
    for case in judge.cases(*long_keys, *long_both, *tail, *cut):
        judge.assert_conforms(case)
    widest = judge.dtype == judge.dtypes[0]
    lengths = (*LONG, *VERY_LONG) if judge.tier.long else LONG if widest else ()
    # Where many keys are seen, a single one more shows in a half type if it leads.
    kinds = (square, replace(square, scores=Scores.LAST))
    long = (kind.sized(batch=1, num_heads=1, query_length=n, key_length=n) for n, kind in zip(lengths, cycle(kinds)))
    for case in judge.cases(*long):
        _assert_sampled_rows(judge, case)
    for case in judge.cases(*([VERY_MANY_KEYS] if judge.tier.long and Feature.CROSS in judge.claims else [])):
        _assert_sampled_rows(judge, case)


def _assert_sampled_rows(judge: Judge, case: Case) -> None:
    """Rows do not depend on one another: 64 of them, the first and the last among them, speak for a long sequence.

    None do where a premise, such as a window, depends on their positions.
    """
    problem = judge.problem(case).forward_only()
    if not can_sample_rows(problem):
        return
    rows = np.linspace(0, case.sizes.query_length - 1, 64).astype(np.int64)
    expected = judge.solve(sample_rows(problem, rows, judge.conventions)).parts
    if (result := judge.answer(case, problem)) and judge.fits(case, result, output_shape(problem)):
        chosen = replace(result, output=result.output[..., rows, :])
        judge.compare(case, chosen, expected, ("output",), f"{case.sizes.query_length} tokens")


@clause("shapes.large")
def test_large(judge: Judge) -> None:
    widest = judge.dtype == judge.dtypes[0]
    masked = ((n, sizes, mask) for n, sizes in enumerate(LARGE) for mask in _masks(n, judge.tier.searches))
    large = [replace(mask, sizes=sizes, seed=n) for n, sizes, mask in masked]
    # In narrower types every third case: gradients and masks are read by the same code, and only tiles may differ.
    for case in judge.cases(*(large if widest else large[::3])):
        s = case.sizes
        if s.batch * s.num_heads * s.query_length * s.key_length <= MOST:
            judge.assert_conforms(case, *(judge.parts() if widest else ()))
    judge.assert_all_conform(judge.cases(*_many_heads(judge.claims.scope)))
    for case in judge.cases(*(MANY_LAUNCHES if widest else [])):
        _assert_sampled_batch(judge, case)
    decoding = [DECODING, *(FAR_KEYS if widest else [])] if Feature.CROSS in judge.claims else []
    judge.assert_all_conform(judge.cases(*decoding[1:]))
    for case in judge.cases(*decoding[:1]):
        judge.assert_conforms(case, *(judge.parts() if widest else ()))
    judge.assert_all_conform(judge.cases(*([FEW_SEEN] if widest else [])))
    options = (EXTENSIONS if judge.tier.searches else FAR) if widest else OF_POSITIONS if judge.dtype in HALF else ()
    judge.assert_all_conform(judge.cases(*_extended(options)), *judge.parts())
    places = judge.claims.premises.rotary_base is not None or judge.claims.premises.alibi
    judge.assert_all_conform(judge.cases(*([BEYOND_HALF] if places and judge.dtype in HALF else [])))
    beyond = (*BEYOND_IN_TURN, *HALF_COUNTED)
    judge.assert_all_conform(judge.cases(*(beyond if judge.dtype in HALF else ())))
    if judge.claims.premises.rotary_base is not None and judge.dtype in HALF:
        _assert_last_tokens(judge)


def _assert_last_tokens(judge: Judge) -> None:
    for case in judge.cases(ROTATED_LAST):
        problem = changed(judge.problem(case).forward_only(), query=_last_alone, key=_last_alone, value=_last_alone)
        context = f"tokens {case.sizes.query_length - REAL} and later alone are not 0"
        judge.assert_answers(case, problem, judge.solve(problem).parts["output"], context)


def _last_alone(rows: Array) -> Array:
    rows[..., :-REAL, :] = 0
    return rows


def _many_heads(scope: Scope) -> Iterator[Case]:
    for heads, width in MODEL_HEADS.items():
        width = width if scope is Scope.OP else 8
        yield Case(seed=heads).sized(batch=1, num_heads=heads, query_length=2, key_length=3, d_k=width, d_v=width)


def _assert_sampled_batch(judge: Judge, case: Case) -> None:
    """Samples do not depend on one another: the first and the last speak for many."""
    problem, ends = judge.problem(case).forward_only(), np.array([0, case.sizes.batch - 1])
    expected = judge.solve(take_samples(problem, ends)).parts
    if (result := judge.answer(case, problem)) and judge.fits(case, result, output_shape(problem)):
        chosen = replace(result, output=result.output[ends])
        judge.compare(
            case, chosen, expected, ("output",), f"{case.sizes.batch * case.sizes.num_heads} heads of samples"
        )


def _masks(number: int, all_of_them: bool) -> tuple[Case, ...]:
    """What a large case is masked with: all, or none and one other, as masks meet large sizes in shapes.meetings."""
    if all_of_them:
        return MASKS if number < FEW else MASKS[::2]
    return MASKS[0], MASKS[1 + number] if number < FEW else Case(causal=True)


def _extended(of_options: Sequence[dict[str, Any]]) -> Iterator[Case]:
    for options, sized in product(of_options, (MANY_KEYS, MANY_OF_BOTH)):
        causal = "query_start" in options or options.get("packing") is Packing.LENGTHS
        yield replace(sized, causal=causal).extended(**options)
    for sized in (MANY_KEYS, MANY_OF_BOTH) if of_options else ():
        yield sized.sized(num_kv_heads=1)


@clause("shapes.combinations")
def test_combinations(judge: Judge) -> None:
    # In the quick tier gradients are left to shapes.meetings, where any two options meet as well.
    parts = judge.parts() if judge.tier.searches else ("output", *judge.returned)
    judge.assert_all_conform(judge.cases(*claimed_combinations(judge, judge.tier.strength)), *parts)
    search(judge, judge.tier.examples)


@clause("shapes.meetings")
def test_meetings(judge: Judge) -> None:
    for case, call in claimed_meetings(judge):
        assert_meeting(judge, case, call)


@clause("shapes.views")
def test_views(judge: Judge) -> None:
    masked = (Case(layout=layout, mask=MaskKind.FLOAT) for layout in VIEWS)
    judge.assert_all_conform(judge.cases(*masked), *judge.parts())
    for kind in (MaskKind.NONE, MaskKind.BOOL, MaskKind.FLOAT):
        judge.assert_all_conform(judge.cases(*(Case(layout=layout, mask=kind, seed=5) for layout in VIEWS)))
    equal = Sizes(batch=2, num_heads=3, query_length=7, key_length=7, d_k=4, d_v=4)
    judge.assert_all_conform(judge.cases(Case(equal, seed=6, layout=Layout.PACKED)), *judge.parts())
    for case in judge.cases(Case(equal, seed=6), Case(equal, seed=7, mask=MaskKind.BOOL)):
        for name in judge.problem(case).arrays():
            if name in ("query", "key", "value", "attn_mask"):
                _assert_one_view(judge, case, name)
    for case in judge.cases(*(Case(seed=8, mask=kind, mask_shape=MaskShape.KEYS) for kind in KINDS)):
        _assert_expanded_mask(judge, case)


def _assert_one_view(judge: Judge, case: Case, name: str) -> None:
    """One array has another memory layout than those of the same shape."""
    expected = judge.expected(case)["output"]
    for layout in (Layout.TRANSPOSED, Layout.SLICED, Layout.FORTRAN, Layout.OFFSET):
        if judge.allows(replace(case, layout=layout)):
            fresh = judge.problem(case).forward_only().fresh()
            relaid = fresh.with_arrays({name: lay_out(fresh.arrays()[name], layout)})
            _assert_view(
                judge, case, relaid, expected, f"{name} alone is {layout}", may_refuse=layout is Layout.FORTRAN
            )


def _assert_view(
    judge: Judge, case: Case, problem: Problem, expected: Expected, context: str, may_refuse: bool
) -> None:
    try:
        result = judge.run_with(problem)
    except CandidateError as error:
        (judge.record_refusal if may_refuse else judge.record_error)(case, error)
    else:
        judge.compare(case, result, {"output": expected}, ("output",), context)


def _assert_expanded_mask(judge: Judge, case: Case) -> None:
    """A mask that has all axes, but repeats its memory along two."""
    if not judge.allows(replace(case, mask_shape=MaskShape.FULL)):
        return
    fresh, s = judge.problem(case).forward_only().fresh(), case.sizes
    whole = np.broadcast_to(np.asarray(fresh.attn_mask), (s.batch, s.num_heads, s.query_length, s.key_length))
    expanded = fresh.with_arrays({"attn_mask": whole})
    judge.assert_answers(case, expanded, judge.expected(case)["output"], "an expanded mask", as_is=True)
