"""Chapter 24, packed: several documents in one sequence, each independent of the others."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter

import numpy as np

from attention_conformance.reference.positions import positions
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Packing
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import Rule, clause, group, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import Change, changed
from attention_conformance.tests.harness.judge.search import leaving_keys

SEGMENTS, LENGTHS = (Case().extended(packing=packing) for packing in (Packing.SEGMENTS, Packing.LENGTHS))
IDLE = Case().extended(packing=Packing.IDLE_DOCUMENTS)
LONG = {"query_length": 9, "key_length": 9}
"""As many queries as keys in each of three documents."""
NAMES = (np.array([7, 0, 3]), np.array([3, 259, 65539]))
"""Other ids of documents 0, 1 and 2; the last ones are equal in 8 bits, and two of them in 16."""
TOKENS = ("query", "key", "value")
OF_DOCUMENTS = ("query_segments", "key_segments", "query_lengths", "key_lengths")
ORDER = np.array([4, 0, 7, 2, 5, 8, 1, 6, 3])
"""Of nine tokens, so that those of a document lie apart."""


def sized(case: Case) -> tuple[Case, ...]:
    """More keys than queries in each document, as many, fewer in some; two samples are cut differently."""
    lengths = ((5, 7), (9, 9), (7, 5))
    return tuple(case.sized(query_length=q, key_length=k) for q, k in lengths)


def positioned(packed: Case) -> tuple[Case | Rule, ...]:
    """Windows that empty no row, rotations and ALiBi, with the causal flag and without."""
    square, causal = packed.sized(**LONG), replace(packed, causal=True)

    def windowed(claimed: Conventions) -> tuple[Case, ...]:
        flagged = replace(square, causal=True)
        plain, with_flag = (1 + claimed.own_counted(case.causal) for case in (square, flagged))
        return square.extended(window_left=plain, window_right=0), flagged.extended(window_left=with_flag)

    both = ((case.extended(rotary_base=50.0), case.extended(alibi=True)) for case in (packed, causal))
    return windowed, *(case for pair in both for case in pair)


def _empty(packing: Packing) -> tuple[Case, ...]:
    case = Case().extended(packing=packing)
    return case, case.sized(**LONG), replace(case, causal=True)


NO_KEY = "the second document has queries, and no key"

CLAUSES = table(
    row(
        "packed.segments",
        *(*sized(SEGMENTS), SEGMENTS.sized(batch=3, num_heads=3, query_length=3, key_length=3)),
        SEGMENTS.sized(query_length=17, key_length=33),
    ),
    row("packed.causal", *sized(replace(SEGMENTS, causal=True))),
    row("packed.positions", *positioned(SEGMENTS)),
    row("packed.empty-segment", *_empty(Packing.EMPTY_SEGMENT), context=NO_KEY),
    row("packed.lengths-positions", *sized(replace(LENGTHS, causal=True)), *positioned(LENGTHS)),
    row("packed.empty-document", *_empty(Packing.EMPTY_DOCUMENT), context=NO_KEY),
    row("packed.idle-documents", IDLE, replace(IDLE, causal=True), context="documents have no query, or no token"),
)


@clause("packed.ids")
def test_ids(judge: Judge) -> None:
    for case in judge.cases(SEGMENTS, SEGMENTS.sized(**LONG), replace(SEGMENTS, causal=True).sized(**LONG)):
        for names in NAMES:
            named = _renamed(judge.problem(case).forward_only(), names.__getitem__)
            context = f"the documents are called {', '.join(map(str, names))}"
            judge.assert_answers(case, named, judge.expected(case)["output"], context)


@clause("packed.with-masks")
def test_with_masks(judge: Judge) -> None:
    longer = SEGMENTS.sized(query_length=7, key_length=11)
    shapes = {MaskKind.BOOL: MaskShape.FULL, MaskKind.FLOAT: MaskShape.SHARED, MaskKind.INFINITE: MaskShape.HEAD}
    masked = [replace(longer, mask=kind, mask_shape=shape) for kind, shape in shapes.items()]
    claimed = judge.conventions
    if claimed.empty_row_causal is claimed.empty_row_padding:  # a segment may have no key but padding
        masked += [replace(longer, padding=Padding.LEFT), replace(longer, padding=Padding.HOLES, mask=MaskKind.FLOAT)]
    for case in judge.cases(*masked):
        padded = case.padding is not Padding.NONE
        judge.assert_conforms(case if padded else leaving_keys(judge, case), context="segments and a mask")


def _renamed(problem: Problem, change: Change) -> Problem:
    ids = ("query_segments", "key_segments")
    return problem.with_arrays({name: change(problem.extras[name]) for name in ids})


def _scatter(ids: Array) -> Array:
    """The first nine tokens in an order in which those of a document lie apart."""
    length = ids.shape[-1]
    return np.take(ids, [*ORDER[length > ORDER], *range(len(ORDER), length)], -1)


@clause("packed.non-contiguous-ids")
def test_scattered(judge: Judge) -> None:
    for case in judge.cases(SEGMENTS.sized(**LONG), replace(SEGMENTS, causal=True).sized(**LONG)):
        scattered = _renamed(judge.problem(case).forward_only(), _scatter)
        expected = judge.solve(scattered).parts["output"]
        judge.assert_answers(case, scattered, expected, "the tokens of a document lie apart")


@clause("packed.same-as-separate")
def test_alone(judge: Judge) -> None:
    one = SEGMENTS.sized(batch=1)
    rotated = replace(one, causal=True).sized(**LONG).extended(rotary_base=50.0)
    for case in judge.cases(one, replace(SEGMENTS, causal=True), rotated):
        problem = judge.problem(case).forward_only()
        if (whole := judge.own(case, problem)) is None:
            continue
        for sample, document, queries, keys in _documents(problem, judge.conventions):
            rows = (slice(sample, sample + 1), ..., queries, slice(None))
            context = f"document {document} of sample {sample}, without the others"
            lengths = case.sized(batch=1, query_length=len(queries), key_length=len(keys))
            if judge.allows(lengths.extended(packing=Packing.NONE)):
                expected = whole.only(itemgetter(rows))
                judge.assert_answers(case, _alone(problem, sample, queries, keys), expected, context)


def _documents(problem: Problem, conventions: Conventions) -> Iterator[tuple[int, int, Array, Array]]:
    """Sample, document, and its queries and keys."""
    places = positions(problem, conventions)
    for sample, (queries, keys) in enumerate(zip(places.query_document, places.key_document, strict=True)):
        for document in np.unique(queries):
            yield sample, int(document), np.flatnonzero(queries == document), np.flatnonzero(keys == document)


def _alone(problem: Problem, sample: int, queries: Array, keys: Array) -> Problem:
    """A call of one document of one sample."""
    rows = {name: rows[sample : sample + 1] for name, rows in problem.arrays().items() if name in TOKENS}
    own = {name: r[..., queries if name == "query" else keys, :] for name, r in rows.items()}
    return _unpacked(problem).with_arrays(own)


def _unpacked(problem: Problem) -> Problem:
    """The problem without documents."""
    extras = {name: extra for name, extra in problem.extras.items() if name not in OF_DOCUMENTS}
    return replace(problem, extras=extras, extension=replace(problem.extension, packing=Packing.NONE))


def _assert_isolated(judge: Judge, changes: tuple[Change, str]) -> None:
    """A change to the other documents leaves the rows of one as they are."""
    change, context = changes
    for case in judge.cases(SEGMENTS, replace(SEGMENTS, causal=True).sized(**LONG)):
        problem, whole = judge.problem(case).forward_only(), judge.expected(case)["output"]
        for document in np.unique(positions(problem, judge.conventions).query_document):
            own = _tokens(problem, judge.conventions, int(document))
            inputs = {name: rows for name, rows in problem.arrays().items() if name in TOKENS}
            other = changed(problem, **{name: partial(_changed_outside, own[name], change) for name in inputs})
            rows = np.broadcast_to(_along(own["query"], whole.value), whole.value.shape)
            judge.assert_answers(case, other, whole, f"all but document {document} {context}", of=itemgetter(rows))


def _changed_outside(tokens: Array, change: Change, rows: Array) -> Array:
    return np.where(_along(tokens, rows), rows, change(rows).astype(rows.dtype))


ISOLATED = group(
    _assert_isolated,
    {
        "packed.isolated": (lambda rows: rows * -2 + 3, "was changed"),
        "packed.containment": (lambda rows: rows * np.nan, "holds NaN"),
    },
)


def _tokens(problem: Problem, conventions: Conventions, document: int) -> dict[str, Array]:
    """(B, L) of each input: which tokens are of this document."""
    places = positions(problem, conventions)
    query, key = (of == document for of in (places.query_document, places.key_document))
    return {"query": query, "key": key, "value": key}


def _along(tokens: Array, rows: Array) -> Array:
    """(B, L) as it lies along (B, H, L, d) or (B, L, width)."""
    return tokens.reshape(len(tokens), *[1] * (rows.ndim - 3), -1, 1)


@clause("packed.one-document")
def test_one_document(judge: Judge) -> None:
    for case in judge.cases(SEGMENTS, replace(SEGMENTS, causal=True), replace(SEGMENTS, causal=True).sized(**LONG)):
        problem = judge.problem(case).forward_only()
        expected = judge.solve(_unpacked(problem)).parts["output"]
        judge.assert_answers(case, _renamed(problem, lambda ids: ids * 0 + 2), expected, "all ids are 2")


@clause("packed.segment-mask")
def test_segment_mask(judge: Judge) -> None:
    for case in judge.cases(*sized(SEGMENTS)[:2]):
        problem = judge.problem(case).forward_only()
        masked = replace(_unpacked(problem), attn_mask=positions(problem, judge.conventions).together[:, None])
        with_mask = replace(case, mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE).extended(packing=Packing.NONE)
        if judge.allows(with_mask) and (expected := judge.own(case, problem)):
            judge.assert_answers(case, masked, expected, "the mask of equal ids, instead of ids")


@clause("packed.gradients")
def test_gradients(judge: Judge) -> None:
    for case in judge.cases(SEGMENTS, replace(SEGMENTS, causal=True).sized(**LONG)):
        judge.assert_conforms(case, "gradients")
        problem = judge.problem(case)
        assert problem.cotangent is not None
        for document in (0, 1):
            own = _tokens(problem, judge.conventions, document)
            alone = np.where(_along(own["query"], problem.cotangent), problem.cotangent, 0)
            loss = problem.with_arrays({"cotangent": alone.astype(problem.cotangent.dtype)})
            if (result := judge.answer(case, loss)) is not None:
                for name in (name for name in TOKENS if name in loss.needs):
                    none = _vanishes_outside(result.gradients.get(name), loss.arrays()[name], own[name])
                    message = f"a loss on document {document} has a gradient in the {name} of another"
                    judge.assert_that(case, none, message)


def _vanishes_outside(gradient: Array | None, rows: Array, tokens: Array) -> bool:
    """Whether there is a gradient, and it is 0 for all other tokens."""
    outside = np.broadcast_to(~_along(tokens, rows), rows.shape)
    return gradient is not None and gradient.shape == rows.shape and not gradient[outside].any()


@clause("packed.lengths")
def test_lengths(judge: Judge) -> None:
    for case in judge.cases(*sized(LENGTHS), LENGTHS.sized(query_length=17, key_length=33)):
        judge.assert_conforms(case)
    for case in judge.cases(LENGTHS, replace(LENGTHS, causal=True).sized(**LONG)):
        whole = judge.problem(case).forward_only()
        lengths = {name: np.array([whole.extras[name].sum()]) for name in ("query_lengths", "key_lengths")}
        expected = judge.solve(_unpacked(whole)).parts["output"]
        judge.assert_answers(case, whole.with_arrays(lengths), expected, "one document of the whole length")
