"""Masks that are cut to the lengths: `mask[:Lq, :Lk]` takes more axes as they are where samples and heads are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, ClaimCheck
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.cases import Case, MaskKind

CROWDED = {"batch": 7, "num_heads": 5, "query_length": 3, "key_length": 3}
"""More samples and heads than queries and keys, where such a cut leaves none of the axes before these as it is."""
MASKS = (MASKED, BIASED)
AXES = {
    MaskForm.SHARED: 2,
    **dict.fromkeys((MaskForm.FLAT, MaskForm.SAMPLE, MaskForm.HEADS, MaskForm.LENGTHS_FIRST, MaskForm.EITHER), 3),
}
"""How many axes masks of a form have, where they have fewer than four."""


def is_cut(check: ClaimCheck, case: Case) -> bool:
    """Whether a mask raises where samples and heads are more than queries and keys, and only there."""
    if check.run(case).error or not check.run(crowded := _crowded(check, case)).error:
        return False
    return not check.run(replace(crowded, mask=MaskKind.NONE)).error


def uncut(
    forms: Sequence[MaskForm], way: Callable[[MaskForm], ClaimCheck], stated: int, kinds: Sequence[Case] = MASKS
) -> Sequence[MaskForm]:
    """The forms in which masks are not cut, where any of these is taken; all of them where the first is not cut.

    `way` gives the check of a call that takes masks of these `kinds` in a form, to which cases are fitted. With as many
    axes as are `stated`, a mask is judged, whatever is cut.
    """

    def taken(form: MaskForm) -> list[Case]:
        return [case for case in kinds if not way(form).run(case).error]

    def cut(form: MaskForm) -> bool:
        cases = taken(form) if AXES.get(form, 4) > stated else []
        return bool(cases) and all(is_cut(way(form), case) for case in cases)

    return [form for form in forms[1:] if taken(form) and not cut(form)] or forms if cut(forms[0]) else forms


def _crowded(check: ClaimCheck, case: Case) -> Case:
    """The case with more samples and heads than tokens, however few of these are taken."""
    fitted = fit(case.sized(**CROWDED), check.claims)
    if isinstance(fitted, Unsupported):
        return case
    most = max(fitted.sizes.query_length, fitted.sizes.key_length)
    extents = {"batch": max(CROWDED["batch"], most + 4), "num_heads": max(CROWDED["num_heads"], most + 2)}
    return case.sized(**{**CROWDED, **extents})
