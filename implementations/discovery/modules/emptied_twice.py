"""Rows that a place and a mask empty together: hidden by numbers of different sizes, they are none of the known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck, output_of
from attention_conformance.implementations.discovery.probe import Floats, near
from attention_conformance.implementations.discovery.rows_without_keys import EMPTIED_WITH_CAUSALITY, levelled
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, MaskKind, Padding
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.features import NOTHING, Feature
from attention_conformance.spec.inputs import build, generator, masks_of
from attention_conformance.spec.masks import Booleans, visible

BEYOND = 16
"""Tokens of a case beyond the window of a module, so that padding empties some of its rows."""


def without_rows_emptied_twice(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without such rows where they get another answer than those that a mask empties alone, and a note.

    A triangle or window that hides with infinity outweighs a mask that adds a finite number; two such numbers add up.
    """
    answer, place = check.claims.conventions.empty_row_causal, _place(check.claims)
    known = (_is_known(check, case, answer) for case in _cases(check.claims))
    if not place or answer is EmptyRow.ZEROS or all(known):
        return check, []
    kept = partial(fit_rows_not_emptied_twice, check.claims.fit, check.claims.conventions)
    note = unclaimed(f"rows that {place} and padding empty together", f"they are averaged over what {place} leaves")
    return replace(check, claims=replace(check.claims, fit=kept)), [note]


def _place(claims: Claims) -> str:
    """What hides keys by their places; empty for nothing."""
    premises = claims.premises
    if premises.window_left is not None or premises.window_right is not None:
        return "the window"
    return "causality" if premises.causal or Feature.CAUSAL in claims else ""


def _cases(claims: Claims) -> Iterator[Case]:
    premises = claims.premises
    length = BEYOND + 2 * max(premises.window_left or 0, premises.window_right or 0)
    always = premises.causal or premises.window_left is not None or premises.window_right is not None
    for case in (case for feature, case in EMPTIED_WITH_CAUSALITY.items() if feature in claims):
        yield replace(case, causal=not always).sized(query_length=length, key_length=length)


def _is_known(check: ClaimCheck, case: Case, answer: EmptyRow) -> bool:
    """Whether these rows get the answer, or there are none, or no answer."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return True
    problem = build(fitted, check.dtype).forward_only()
    rows = _emptied_twice(fitted, check.claims.conventions)
    alike = problem.with_arrays(levelled(problem)).but(
        attn_mask=None, key_padding_mask=None, causal=False, extension=NOTHING
    )
    masked, level = check.answer(problem), check.answer(alike)
    if masked.error or level.error or not rows.any():
        return True
    got, mean = (_of_tokens(output_of(each), rows) for each in (masked, level))
    return bool(np.isnan(got).all()) if answer is EmptyRow.NAN else near(got, mean, check.dtype)


def _of_tokens(output: Floats, rows: Booleans) -> Floats:
    """Of these rows of an output (B, Lq, E), or (B, H, Lq, d)."""
    return np.asarray(output[rows.all(1)] if output.ndim == rows.ndim else output[rows])


def _emptied_twice(case: Case, conventions: Conventions) -> Booleans:
    """(B, H, Lq): the rows that see no key, and of which a triangle or a window hides some."""
    seen = visible(case, *masks_of(case, generator(case)))
    placed = _placed(case, conventions)
    return np.asarray(~(seen & placed).any(-1) & ~placed.all(-1))


def _placed(case: Case, conventions: Conventions) -> Booleans:
    """(Lq, Lk): what triangle and window leave, from whichever corner both would start."""
    extension, sizes = case.extension, case.sizes
    left, right = extension.window_left, 0 if case.causal else extension.window_right
    own = int(conventions.own_counted(case.causal))
    ahead = np.arange(sizes.key_length) - np.arange(sizes.query_length)[:, None]
    placed = np.ones(ahead.shape, bool)
    for corner in {0, sizes.key_length - sizes.query_length}:
        placed &= (right is None) | (ahead - corner <= (right or 0))
        placed &= (left is None) | (ahead - corner >= own - (left or 0))
    return placed


def fit_rows_not_emptied_twice(before: Fit, conventions: Conventions, case: Case) -> Case | Unsupported:
    """The fit of one whose rows that triangle or window and a mask empty together are not claimed."""
    fitted = before(case)
    if isinstance(fitted, Unsupported) or (fitted.mask is MaskKind.NONE and fitted.padding is Padding.NONE):
        return fitted
    if _emptied_twice(fitted, conventions).any():
        return Unsupported("a row that its place and a mask empty together is not claimed")
    return fitted
