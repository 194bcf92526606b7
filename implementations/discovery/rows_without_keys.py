"""Rows without keys: what a candidate gives them, seen for each kind of what leaves a row none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import rows
from attention_conformance.implementations.discovery.claim_checks import MASKED, PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.documented_rows import states_keys_in_each_sample
from attention_conformance.implementations.discovery.probe import Floats, near
from attention_conformance.spec.cases import NOT_FIRST, Case, MaskKind, Padding, Pattern
from attention_conformance.spec.conventions import Alignment, EmptyRow
from attention_conformance.spec.features import NOTHING, Feature, Packing
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

ADDED, EMPTY = replace(PLAIN, mask=MaskKind.INFINITE), replace(PLAIN, padding=Padding.EMPTY_SAMPLE)
EMPTY_LENGTHS = replace(PLAIN, padding=Padding.EMPTY_LENGTHS)
OF_LENGTH_0 = {
    "a valid length of 0 is refused": EMPTY_LENGTHS,
    "documents without queries are refused": PLAIN.extended(packing=Packing.IDLE_DOCUMENTS),
}
"""What a statement of the function's own may refuse, by the note on that."""
NOT_ADDED = 2.0**-48
"""So near are answers in float64 only if no number was added to scores and rounded them: the length was not read."""
EMPTY_SAMPLES = (Padding.EMPTY_SAMPLE, Padding.EMPTY_LENGTHS)
EMPTIED_BY = {Feature.BOOL_MASK: ("bool_mask", MASKED), Feature.FLOAT_MASK: ("float_mask", ADDED)}
"""The option and the case of each kind of mask."""
NAN_OR_NUMBER = "a row without keys gets nan, and a number where there is one key"
SUM = "a row without keys gets the sum of all values"
"""Each weight is 1 where the lowest number fills scores, and the logarithm of how many there are is lost next to it."""
OF_ONE_DTYPE = f"a row without keys gets {EmptyRow.UNIFORM} in float32, and another answer in float64"
BY_MASKS = ("empty-row-bool", "empty-row-float", "empty-row-padding")
"""Conventions on rows that masks empty."""
ROWS = ("bool", "float", "causal")
OWN_ROWS = {Feature.BOOL_MASK: ("bool", "causal"), Feature.FLOAT_MASK: ("float",)}
"""What empties the rows whose answer a mask shows: alone, and where one of the other kind is claimed, too."""


def empty_rows_as_seen(check: ClaimCheck, masked: Case, kinds: tuple[str, ...] = ROWS) -> ClaimCheck:
    """The check with the claim of what a row without keys gets, of these kinds, if that is no row of zeros."""
    empty = masked if masked.padding in EMPTY_SAMPLES else replace(masked, pattern=Pattern.EMPTY_ROW)
    fitted = fit(empty, check.claims)
    if isinstance(fitted, Unsupported):
        return check
    if refused := _refuses_rows(check):
        return with_keys_in_each_row(check, refused)
    answer = _empty_row(check, fitted)
    if answer is None and _sees_all_again(check, fitted):
        return with_keys_in_each_row(check, "a row without keys gets what it gets without the mask")
    if answer is None and _sums_values(check, fitted, 1):
        return with_keys_in_each_row(check, SUM)
    if answer is None:
        return check
    if answer is EmptyRow.NAN and _gives_one_key(check, empty, 1):
        return with_keys_in_each_row(check, NAN_OR_NUMBER)
    where = ("padding",) if kinds is ROWS and masked.padding is not Padding.NONE else kinds
    check = _answering(check, answer, *(f"empty-row-{each}" for each in where))
    otherwise = answer is EmptyRow.UNIFORM and _is_otherwise_in_float64(check, fitted)
    return (
        with_keys_in_each_row(check, OF_ONE_DTYPE) if otherwise else check.stating(f"a row without keys gets {answer}")
    )


def _answering(check: ClaimCheck, answer: EmptyRow, *keys: str) -> ClaimCheck:
    """The check with the claim of this answer for these conventions."""
    conventions = check.claims.conventions.claiming(dict.fromkeys(keys, str(answer)))
    claims: Claims = replace(check.claims, conventions=conventions)
    return replace(check, claims=claims)


EMPTIED = {
    "empty-row-bool": (replace(MASKED, pattern=Pattern.EMPTY_ROW), 1),
    "empty-row-float": (replace(PLAIN, mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW), 1),
    "empty-row-causal": (PLAIN.sized(key_length=5).extended(window_left=2, window_right=2), -1),
    "empty-row-padding": (EMPTY, 0),
    "padded-queries": (PLAIN.extended(query_lens=True), -1),
}
"""A case with a row without keys for each convention on them, and the number of that row."""
AT_THE_END = {"empty-row-causal": (replace(PLAIN, causal=True).sized(query_length=9, key_length=6), 0)}
"""The same where the last query stands at the last key."""


EMPTIED_WITH_CAUSALITY = {
    Feature.KEY_PADDING: replace(PLAIN, padding=Padding.FIRST_TILE),
    Feature.BOOL_MASK: replace(PLAIN, mask=MaskKind.BOOL, pattern=Pattern.LAST_KEY),
    Feature.FLOAT_MASK: replace(PLAIN, mask=MaskKind.INFINITE, pattern=Pattern.LAST_KEY),
}
"""Masks that leave a row some keys, and none of those that a triangle or a window leaves it."""


def empty_rows_of_each_kind(check: ClaimCheck) -> ClaimCheck:
    """The check with the claims of what rows without keys get, each kind for itself, where it is no row of zeros."""
    if refused := _refuses_rows(check):
        return with_keys_in_each_row(check, refused)
    answers: dict[str, EmptyRow] = {}
    for key, (case, row) in (EMPTIED | _emptied_at_the_end(check)).items():
        fitted = fit(case, check.claims)
        answer = None if isinstance(fitted, Unsupported) else _empty_row(check, fitted, row)
        if answer is EmptyRow.NAN and key in BY_MASKS and _gives_one_key(check, case, row):
            check = with_keys_in_each_row(check, NAN_OR_NUMBER)
        elif answer is None and key in BY_MASKS and isinstance(fitted, Case) and _sums_values(check, fitted, row):
            check = with_keys_in_each_row(check, SUM)
        elif answer is EmptyRow.UNIFORM and key in BY_MASKS and _is_otherwise_in_float64(check, case, row):
            check = with_keys_in_each_row(check, OF_ONE_DTYPE)
        elif answer is not None:
            answers[key] = answer
            check = _answering(check, answer, key)
    if len(set(answers.values())) == 1:
        return check.stating(f"a row without keys gets {next(iter(answers.values()))}")
    listed = ", ".join(f"{key}={answer}" for key, answer in answers.items())
    return check.stating(f"a row without keys gets what it was seen to get: {listed}") if listed else check


def _refuses_rows(check: ClaimCheck) -> str:
    """Why rows that a mask empties are not claimed: a statement of the function's own refuses them; else empty."""
    outcomes = (check.run(EMPTIED[key][0]) for key in BY_MASKS)
    errors = (each.error for each in outcomes if each.refused)
    return next((f"a row without keys is refused: {error}" for error in errors), "")


def _emptied_at_the_end(check: ClaimCheck) -> dict[str, tuple[Case, int]]:
    """The case for what flag or window empties, where the last query stands at the last key."""
    if check.claims.conventions.causal_alignment is Alignment.TOP_LEFT:
        return {}
    window, _ = EMPTIED["empty-row-causal"]
    return AT_THE_END if Feature.CAUSAL in check.claims else {"empty-row-causal": (window, 0)}


def empty_rows_of_both(check: ClaimCheck) -> ClaimCheck:
    """The check of what is always causal, with what a row gets that a mask empties together with that, if not zeros."""
    if not check.claims.premises.causal or check.claims.conventions.empty_row_causal is not EmptyRow.ZEROS:
        return check
    for case in (case for feature, case in EMPTIED_WITH_CAUSALITY.items() if feature in check.claims):
        fitted = fit(case, check.claims)
        if isinstance(fitted, Unsupported):
            continue
        row = _row(check, build(fitted, check.dtype).forward_only(), fitted, 0)
        if row is None or not row.any():
            continue
        if (answer := _empty_row(check, fitted, 0)) is None:
            return with_keys_in_each_row(check, "a row that a mask and causality empty together gets no known answer")
        note = f"a row that a mask and causality empty together gets {answer}"
        return _answering(check, answer, "empty-row-causal").stating(note)
    return check


def empty_rows_with_sinks(check: ClaimCheck) -> ClaimCheck:
    """The check without rows that have a sink and no key, where they get NaN.

    What multiplies an answer without the sink by the part that the keys have of the sum gives that; rows of zeros are
    demanded of all others.
    """
    several = (*EMPTIED.values(), *AT_THE_END.values()) if Feature.SINKS in check.claims else ()
    fitted = ((fit(case.extended(sinks=True), check.claims), row) for case, row in several)
    if not any(isinstance(each, Case) and _empty_row(check, each, row) is EmptyRow.NAN for each, row in fitted):
        return check
    claims = replace(check.claims, fit=partial(fit_keys_with_sinks, check.claims.fit))
    return replace(check, claims=claims).stating("a row with a sink and no key gets nan, and is not judged")


def fit_keys_with_sinks(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one that gives rows without keys NaN, a sink or not."""
    if not case.extension.sinks:
        return fit(case)
    longer = case.sizes.query_length > case.sizes.key_length
    return Unsupported("a row with a sink and no key gets NaN") if longer else fit_rows_with_keys(fit, case)


def gets_nan_in_float64(check: ClaimCheck) -> bool:
    """Whether a row without keys, which gets a mean of all values, gets NaN in float64, which no convention states.

    The lowest number of float64, which fills scores, is minus infinity to a softmax in float32.
    """
    wide, conventions = replace(check, dtype="float64"), check.claims.conventions
    uniform = (EMPTIED[key] for key in BY_MASKS if getattr(conventions, key.replace("-", "_")) is EmptyRow.UNIFORM)
    fitted = ((fit(case, check.claims), row) for case, row in uniform)
    return any(isinstance(each, Case) and _empty_row(wide, each, row) is EmptyRow.NAN for each, row in fitted)


def empty_rows_of_window(check: ClaimCheck) -> ClaimCheck:
    """The check with the claim of what a query gets that its window, or triangle, leaves no key, if no row of zeros."""
    beyond, number = _beyond(check.claims)
    if beyond is None:
        return check
    fitted = fit(PLAIN.sized(query_length=beyond + 16, key_length=4), check.claims)
    if isinstance(fitted, Unsupported) or fitted.sizes.query_length <= beyond + fitted.sizes.key_length:
        return check
    answer = _empty_row(check, fitted, number)
    if answer is None:
        return check
    return _answering(check, answer, "empty-row-causal").stating(f"a query without keys in its window gets {answer}")


def _beyond(claims: Claims) -> tuple[int | None, int]:
    """By how many tokens queries have to outnumber keys so that one is left none, and the number of that one.

    It is the first one where the last query stands at the last key, else the last one; None: there is none.
    """
    premises = claims.premises
    if claims.conventions.causal_alignment is Alignment.BOTTOM_RIGHT:
        return (0 if premises.causal else premises.window_right), 0
    return premises.window_left, -1


def empty_lengths_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check with what a sample of length 0 gets; or without it: it is refused, or another than padding's."""
    check = without_refused_lengths(check)
    claims, fitted = check.claims, fit(EMPTY_LENGTHS, check.claims)
    if isinstance(fitted, Unsupported):
        return check
    outcome = check.answer(build(fitted, check.dtype).forward_only())
    if Feature.KEY_PADDING not in claims:
        return empty_rows_as_seen(check, EMPTY_LENGTHS, ("padding",))
    zeros = not outcome.error and not output_of(outcome)[-1, ..., 0, :].any()
    answer = EmptyRow.ZEROS if zeros else _empty_row(check, fitted, 0)
    if answer in (None, claims.conventions.empty_row_padding):  # None: no answer that is known, which is to be judged
        return check
    why = "a sample of length 0 gets another answer than one without keys by padding"
    return _without(check, EMPTY_LENGTHS, why)


def nan_of_length_0_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check of a published interface, which documents rows that the causal flag empties, and no length of 0."""
    fitted = fit(EMPTY_LENGTHS, check.claims)
    if isinstance(fitted, Unsupported) or _empty_row(check, fitted, 0) is not EmptyRow.NAN:
        return check
    return _answering(check, EmptyRow.NAN, "empty-row-padding").stating(f"a sample of length 0 gets {EmptyRow.NAN}")


def without_refused_lengths(check: ClaimCheck) -> ClaimCheck:
    """The check without samples and documents of length 0 where a statement of the function's own refuses them, its
    documentation excludes them, or a kernel that reads a cache raises: its own key stands in that.
    """
    for why, case in OF_LENGTH_0.items():
        if check.run(case).refused:
            check = _without(check, case, why)
    why = _has_a_key(check) if Feature.VALID_LENS in check.claims else ""
    return _without(check, EMPTY_LENGTHS, why) if why else check


def _has_a_key(check: ClaimCheck) -> str:
    """Why each sample has a key, by documentation or as the own key of a query stands in a cache; else empty."""
    call: Any = check.function
    kernel = getattr(getattr(call, "function", None), "kernel", None)  # of `Served`
    options = getattr(call, "options", None)
    names = call.function.lengths if kernel else [options.spelled.get("valid_lens", "")] if options else []
    if any(name and states_keys_in_each_sample(kernel or as_written(call), name) for name in names):
        return "by its documentation no valid length is 0"
    error = check.run(EMPTY_LENGTHS).error if kernel and call.function.cached else ""
    return f"with a valid length of 0 it raises {error}" if error else ""


def _without(check: ClaimCheck, left_out: Case, why: str) -> ClaimCheck:
    kept = partial(fit_others, check.claims.fit, (left_out.padding, left_out.extension.packing), why)
    return replace(check, claims=replace(check.claims, fit=kept)).stating(why)


def fit_others(fit: Fit, left_out: tuple[Padding, Packing], why: str, case: Case) -> Case | Unsupported:
    """The fit of one that does not claim cases with this padding or packing, whichever is not none."""
    padding, packing = left_out
    same = case.padding is padding is not Padding.NONE or case.extension.packing is packing is not Packing.NONE
    return Unsupported(why) if same else fit(case)


def fit_rows_with_keys(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one of which nobody meant what a row without keys gets: as without the mask, or NaN here and there."""
    by_flag = case.causal and (case.pattern is Pattern.LAST_KEY or case.padding in NOT_FIRST)
    empty = case.mask is not MaskKind.NONE and case.pattern in (Pattern.EMPTY_ROW, Pattern.EMPTY_IN_ONE)
    emptied = by_flag or empty or case.padding in EMPTY_SAMPLES
    return Unsupported("what a row without keys gets is no rule that the suite knows") if emptied else fit(case)


def with_keys_in_each_row(check: ClaimCheck, why: str) -> ClaimCheck:
    """The check without rows without keys."""
    claims = replace(check.claims, fit=partial(fit_rows_with_keys, check.claims.fit))
    return replace(check, claims=claims).stating(why)


def _gives_one_key(check: ClaimCheck, empty: Case, number: int) -> bool:
    """Whether a row without keys, of which others get NaN, has a number of one key: nobody meant either."""
    fitted = fit(empty.sized(key_length=1), check.claims)
    if isinstance(fitted, Unsupported) or fitted.sizes.key_length != 1 or number >= fitted.sizes.query_length:
        return False
    got = _row(check, build(fitted, check.dtype).forward_only(), fitted, number)
    return got is not None and bool(np.isfinite(got).all())


def _row(check: ClaimCheck, problem: Problem, fitted: Case, number: int) -> Floats | None:
    """What the query of this number gets, in each sample or the last one; None where there is no such answer."""
    outcome = check.answer(problem)
    if outcome.error or (got := output_of(outcome)).shape[-2:-1] != (fitted.sizes.query_length,):
        return None
    of_last: Floats = got[-1, ..., 0, :] if fitted.padding in EMPTY_SAMPLES else got[..., number, :]
    return of_last


def _sees_all_again(check: ClaimCheck, fitted: Case) -> bool:
    """Whether a row without keys gets what it gets without a mask; in float64, where the added number is lost."""
    by_sample = fitted.padding in EMPTY_SAMPLES
    real = Padding.LENGTHS if fitted.padding is Padding.EMPTY_LENGTHS else Padding.RIGHT
    some = replace(fitted, padding=real) if by_sample else replace(fitted, pattern=Pattern.RANDOM)
    problem, part = (build(each, "float64").forward_only() for each in (fitted, some))
    without = problem.but(attn_mask=None, key_padding_mask=None, valid_lens=None)
    exact = replace(check, dtype="float64")
    got, hidden, whole = (rows(exact, each) for each in (problem, part, without))
    if got is None or hidden is None or whole is None or near(hidden, whole, "float64"):  # a mask that is ignored
        return False
    at = np.s_[-1, ..., 0, :] if by_sample else np.s_[..., 1, :]
    if fitted.padding is Padding.EMPTY_LENGTHS and np.allclose(got[at], whole[at], rtol=NOT_ADDED, atol=0.0):
        return False
    return near(got[at], whole[at], "float64")


def _is_otherwise_in_float64(check: ClaimCheck, case: Case, number: int = 1) -> bool:
    """Whether a row that all values share in float32 has another answer in float64.

    A large number that is added leaves something of scores there, and its lowest number is infinite in float32.
    """
    exact, fitted = replace(check, dtype="float64"), fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    answers = _row(exact, build(fitted, "float64").forward_only(), fitted, number) is not None
    return answers and _empty_row(exact, fitted, number) is not EmptyRow.UNIFORM


def _empty_row(check: ClaimCheck, fitted: Case, number: int = 1) -> EmptyRow | None:
    problem = build(fitted, check.dtype).forward_only()
    row = _row(check, problem, fitted, number)
    if row is None or not row.any():
        return None
    if np.isnan(row).all():
        return EmptyRow.NAN
    if _is_of_no_values(check, problem, row):
        return None
    scoring = [name for name in ("w_q", "b_q") if name in problem.parameters] or ["query"]
    alike = _unmasked(problem)
    equal = rows(check, alike.with_arrays({name: np.zeros_like(problem.arrays()[name]) for name in scoring}))
    by_sample = fitted.padding in EMPTY_SAMPLES
    sample, at = (-1, 0) if by_sample else (slice(None), number)
    seen = [] if equal is None else [equal[sample, ..., each, :] for each in (at, -1)]  # the last one sees every key
    level = rows(check, alike.with_arrays(levelled(alike)))
    seen += [] if level is None else [level[sample, ..., -1, :]]
    return EmptyRow.UNIFORM if any(near(row, each, check.dtype) for each in seen) else None


def _unmasked(problem: Problem) -> Problem:
    """The problem in which nothing is hidden, and there is no option."""
    return problem.but(attn_mask=None, key_padding_mask=None, valid_lens=None, causal=False, extension=NOTHING)


def _sums_values(check: ClaimCheck, fitted: Case, number: int) -> bool:
    """Whether a row without keys gets the sum of all values, and no mean of them."""
    problem = build(fitted, check.dtype).forward_only()
    row, alike = _row(check, problem, fitted, number), _unmasked(problem)
    level = rows(check, alike.with_arrays(levelled(alike)))
    if row is None or level is None or fitted.sizes.key_length < 2:
        return False
    mean = level[-1, ..., -1, :] if fitted.padding in EMPTY_SAMPLES else level[..., -1, :]
    return near(row, fitted.sizes.key_length * mean, check.dtype)


def _is_of_no_values(check: ClaimCheck, problem: Problem, row: Floats) -> bool:
    """Whether it is what a module answers whose values are zeros: the bias of its output."""
    zeros = {name: np.zeros_like(problem.parameters[name]) for name in ("w_v", "b_v") if name in problem.parameters}
    outcome = check.answer(_unmasked(problem).with_arrays(zeros)) if zeros else None
    if outcome is None or outcome.error:
        return False
    return near(row, np.broadcast_to(output_of(outcome)[-1, ..., -1, :], row.shape), check.dtype)


def levelled(problem: Problem) -> dict[str, Array]:
    """The values, each in place of which is their mean: whatever weighs them, as positions may, gives that."""
    arrays = problem.arrays()
    name = next(each for each in ("value", "key", "query") if each in arrays)
    whole = arrays[name]
    mean = whole.astype(np.float64).mean(-2, keepdims=True) if whole.shape[-2] else whole
    return {name: np.broadcast_to(mean, whole.shape).astype(whole.dtype, order="C")}
