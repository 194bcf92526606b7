"""Observed conventions: which answer an implementation gives where the field disagrees, whatever it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import ml_dtypes
import numpy as np

from attention_conformance.implementations.api.contract import Implementation, PathError, Result
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Sharing
from attention_conformance.spec.conventions import Conventions, PaddedTokens, values_of
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS, compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge

Meaning: TypeAlias = tuple[str, Problem, Conventions]
"""The name of an answer, and the problem and conventions under which the reference gives it."""
Meanings: TypeAlias = Callable[[Problem, Conventions], Iterable[Meaning]]

REFUSED, OTHER_PATH = "refused", "another path"
PLAIN, RECORDING = "in a plain call", "while gradients are recorded"


@dataclass(frozen=True)
class Disagreement:
    """One point on which the field disagrees.

    Attributes:
        name: as a table shows it.
        forms: cases that show the answer, in different sizes and shapes; the answer has to be the same in all.
        meanings: the answers that are known.
        changed: the problem of a form as the candidate gets it; None: the form does not apply.
        dtypes: the dtypes in which the answers differ by more than rounding.
        recorded: the forms are run while gradients are recorded, too; an output that depends on nothing has none.
    """

    name: str
    forms: tuple[Case, ...]
    meanings: Meanings
    changed: Callable[[Problem], Problem | None] = lambda problem: problem
    dtypes: tuple[str, ...] = tuple(DTYPES)
    recorded: bool = True


@dataclass(frozen=True)
class Answer:
    """What one way to call an implementation gives.

    Attributes:
        case: the form.
        path: the way, in words.
        name: of the answer.
        with_more: whether weights or a log-sum-exp come with it; None where it is refused. Such a way computes
            otherwise than one without: nothing promises that a row without keys gets the same from both.
    """

    case: Case
    path: str
    name: str
    with_more: bool | None = None


def answers(judge: Judge, disagreement: Disagreement) -> Iterator[Answer]:
    """The answer to each form in each way to call the implementation."""
    for case, path, call, known in list(_begun(judge, disagreement)):
        yield _answer(judge, case, path, call, known)


def _begun(judge: Judge, disagreement: Disagreement) -> Iterator[tuple[Case, str, Callable[[], Result], _KnownAnswers]]:
    for case in judge.cases(*disagreement.forms):
        if _is_unspecified(case, judge):
            continue
        problem = build(case, judge.dtype)
        known = _KnownAnswers(list(disagreement.meanings(problem, judge.conventions)))
        for path, along, recording in _paths(judge):
            if recording and not disagreement.recorded:
                continue
            changed = disagreement.changed(along.problem(case) if recording else problem.forward_only())
            if changed is not None:
                yield case, path, along.begun(changed.fresh()), known


def _is_unspecified(case: Case, judge: Judge) -> bool:
    """Whether the rows of padded tokens are nothing that is compared, while those of another sequence are."""
    unspecified = judge.conventions.padded_tokens is PaddedTokens.UNSPECIFIED and Feature.CROSS in judge.claims
    alone = case.module is not None and case.module.sharing is Sharing.SELF
    return unspecified and alone and case.padding is not Padding.NONE


def _paths(judge: Judge) -> Iterator[tuple[str, Judge, bool]]:
    yield PLAIN, judge, False
    if Feature.GRADIENTS in judge.claims:
        yield RECORDING, judge, True
    yield from ((name, judge.along(name), False) for name in judge.implementation.alternatives)


@dataclass
class _KnownAnswers:
    """The reference's answers to one problem by meaning; each is computed once, when it is first compared."""

    left: list[Meaning]
    known: list[tuple[str, Expected]] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[str, Expected]]:
        yield from self.known
        while self.left:
            name, problem, conventions = self.left.pop(0)
            self.known.append((name, solve(problem.forward_only(), conventions, returned=()).parts["output"]))
            yield self.known[-1]


def _answer(
    judge: Judge, case: Case, path: str, call: Callable[[], Result], known: Iterable[tuple[str, Expected]]
) -> Answer:
    try:
        result = call()
    except CandidateError:
        return Answer(case, path, REFUSED)
    except PathError:
        return Answer(case, path, OTHER_PATH)
    output = result.output
    named = (name for name, expected in known if not compare("output", output, expected, judge.dtype).message)
    other = "NaN" if np.isnan(output.astype(np.float64)).any() else "another answer"
    return Answer(case, path, next(named, other), returns_more(result))


def returns_more(result: Result) -> bool:
    """Whether weights or a log-sum-exp come with it."""
    return any(part_of(result, part) is not None for part in RETURNED_AS)


def observations(
    implementation: Implementation,
    disagreements: Iterable[Disagreement],
    dtypes: tuple[str, ...] = (),
    device: str = "cpu",
) -> Mapping[str, str]:
    """The answer on each point that applies; several, with the paths and dtypes of each, where they differ."""
    answers_by_name = {each.name: _observed(implementation, each, dtypes, device) for each in disagreements}
    return {name: answer for name, answer in answers_by_name.items() if answer}


def _observed(implementation: Implementation, point: Disagreement, dtypes: tuple[str, ...], device: str) -> str:
    paths_of: dict[str, list[str]] = {}
    selected = dtypes or implementation.claims.dtypes
    for dtype in (d for d in point.dtypes if d in selected and d in implementation.claims.dtypes):
        for answer in answers(Judge(implementation, dtype, device), point):
            paths = paths_of.setdefault(answer.name, [])
            paths.extend({f"{dtype} {answer.path}"} - set(paths))
    if len(paths_of) < 2:
        return "".join(paths_of)
    return "; ".join(f"{answer} ({', '.join(paths[:3])})" for answer, paths in paths_of.items())


def _answers_of(key: str) -> Meanings:
    """The answers under each value of a convention."""

    def meanings(problem: Problem, claimed: Conventions) -> Iterator[Meaning]:
        for value in values_of(key):
            yield str(value), problem, claimed.claiming({key: str(value)})

    return meanings


_of_empty_rows = _answers_of("empty-row")


def _of_flag_and_mask(problem: Problem, claimed: Conventions) -> Iterator[Meaning]:
    yield "both hold", problem, claimed.claiming({"causal-with-mask": "intersect"})
    yield "the flag alone", replace(problem, attn_mask=None), claimed
    yield "the mask alone", replace(problem, causal=False), claimed


def _only(name: str) -> Meanings:
    """The answer that the specification requires, under a name."""
    return lambda problem, claimed: [(name, problem, claimed)]


def _of_numbers(problem: Problem, claimed: Conventions) -> Iterator[Meaning]:
    assert problem.attn_mask is not None
    yield "1 may attend", problem, claimed
    yield "added", _as_floats(problem), claimed
    yield "1 is masked", problem.with_arrays({"attn_mask": ~problem.attn_mask}), claimed


def _of_least_number(problem: Problem, claimed: Conventions) -> Iterator[Meaning]:
    """The problem masks a row with minus infinity; the candidate gets the least finite number instead."""
    mask = problem.attn_mask
    assert mask is not None
    unmasked = np.where(np.isneginf(mask.astype(np.float64)), 0.0, mask.astype(np.float64)).astype(mask.dtype)
    yield from _of_empty_rows(problem, claimed)
    yield "as if unmasked", problem.with_arrays({"attn_mask": unmasked}), claimed


def _least(problem: Problem) -> Problem:
    mask = problem.attn_mask
    assert mask is not None
    least = np.asarray(ml_dtypes.finfo(mask.dtype).min).astype(mask.dtype)  # type: ignore[no-untyped-call]
    return problem.with_arrays({"attn_mask": np.where(np.isneginf(mask.astype(np.float64)), least, mask)})


def _as_integers(problem: Problem) -> Problem:
    assert problem.attn_mask is not None
    return problem.with_arrays({"attn_mask": problem.attn_mask.astype(np.int64)})


def _as_floats(problem: Problem) -> Problem:
    assert problem.attn_mask is not None
    return problem.with_arrays({"attn_mask": problem.attn_mask.astype(problem.query.dtype)})


def _nan_in(name: str) -> Callable[[Problem], Problem | None]:
    """NaN in the keys or values that no query of any head may see, where they are inputs of their own."""

    def spoilt(problem: Problem) -> Problem | None:
        if name not in problem.arrays():
            return None
        unseen = ~np.asarray(allowed_keys(problem, Conventions()).any((1, 2)))
        array = problem.arrays()[name].copy()
        array[np.broadcast_to(unseen if array.ndim == 3 else unseen[:, None], array.shape[:-1])] = np.nan
        return problem.with_arrays({name: array})

    return spoilt


_WIDE = ("float64", "float32")
_EMPTY = Pattern.EMPTY_ROW
_HIDDEN = (
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, seed=1).sized(key_length=33),
)
_FLAG = Case(causal=True).sized(query_length=7, key_length=7)


def _on_both_paths(case: Case) -> tuple[Case, ...]:
    """With few keys and with many; and with an even number of heads in self-attention, where torch has a fast path."""
    return case, case.sized(key_length=65), case.as_self_attention().sized(num_heads=4)


EMPTY_ROWS = tuple(
    Disagreement(name, _on_both_paths(case), _of_empty_rows)
    for name, case in (
        ("row emptied by a boolean mask", Case(mask=MaskKind.BOOL, pattern=_EMPTY)),
        ("row emptied by minus infinity", Case(mask=MaskKind.INFINITE, pattern=_EMPTY)),
        ("sample emptied by padding", Case(padding=Padding.EMPTY_SAMPLE)),
    )
)
LEAST_NUMBER = Disagreement(
    "row of the least finite number",
    tuple(Case(mask=MaskKind.INFINITE, pattern=_EMPTY).sized(key_length=n) for n in (7, 33)),
    _of_least_number,
    _least,
    dtypes=_WIDE,
)
ALIGNMENT = Disagreement(
    "corner of the causal triangle",
    tuple(Case(causal=True).sized(query_length=q, key_length=k) for q, k in ((3, 7), (5, 33))),
    _answers_of("causal-alignment"),
)
FLAG_AND_MASK = Disagreement(
    "causal flag with a mask",
    (
        replace(_FLAG, mask=MaskKind.BOOL),
        replace(_FLAG, mask=MaskKind.FLOAT),
        replace(_FLAG, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS),
    ),
    _of_flag_and_mask,
)
SPOILT_KEYS = Disagreement("NaN in masked keys", _HIDDEN, _only("contained"), _nan_in("key"), dtypes=_WIDE)
SPOILT_VALUES = Disagreement("NaN in masked values", _HIDDEN, _only("contained"), _nan_in("value"), dtypes=_WIDE)
INTEGERS = Disagreement("boolean mask given as integers", _HIDDEN, _of_numbers, _as_integers, dtypes=_WIDE)
FLOATS = Disagreement("boolean mask given as floats", _HIDDEN, _of_numbers, _as_floats, dtypes=_WIDE)
_SIZES = (Case().sized(key_length=7), Case().sized(key_length=33))
NO_SAMPLE = Disagreement("no samples", tuple(case.sized(batch=0) for case in _SIZES), _only("answered"))
NO_QUERY = Disagreement("no queries", tuple(case.sized(query_length=0) for case in _SIZES), _only("answered"))
NO_KEY = Disagreement(
    "no keys", tuple(Case().sized(query_length=n, key_length=0) for n in (5, 17)), _of_empty_rows, recorded=False
)
PRECISION = Disagreement(
    "softmax of float64",
    (Case(score_std=3.0), Case(score_std=3.0).sized(key_length=33)),
    _answers_of("softmax-precision"),
    dtypes=("float64",),
)

DISAGREEMENTS = (
    *EMPTY_ROWS,
    LEAST_NUMBER,
    ALIGNMENT,
    FLAG_AND_MASK,
    SPOILT_KEYS,
    SPOILT_VALUES,
    INTEGERS,
    FLOATS,
    NO_SAMPLE,
    NO_QUERY,
    NO_KEY,
    PRECISION,
)
"""All that is observed, in the order of the table."""
