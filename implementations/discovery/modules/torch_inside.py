"""Modules around torch.nn.MultiheadAttention, whose answer for a row without keys depends on the kernel that runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.rows_without_keys import EMPTY_SAMPLES
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, MaskKind, Pattern
from attention_conformance.spec.features import Feature

KINDS = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.KEY_PADDING}
WHY = "torch.nn.MultiheadAttention inside gives zeros in one mode and NaN in another"


def without_rows_of_torch(check: ClaimCheck, make: Constructor) -> tuple[ClaimCheck, list[str]]:
    """The check without rows that a mask or padding empties, where torch's own module is a part and answers them."""
    parts = [*built(make).modules()][1:]
    if not KINDS & check.claims.features or not any(type(part) is nn.MultiheadAttention for part in parts):
        return check, []
    claims = replace(check.claims, fit=partial(_without_empty_rows, check.claims.fit))
    return replace(check, claims=claims), [unclaimed("rows without keys", WHY)]


def _without_empty_rows(own: Fit, case: Case) -> Case | Unsupported:
    emptied = case.mask is not MaskKind.NONE and case.pattern in (Pattern.EMPTY_ROW, Pattern.EMPTY_IN_ONE)
    return Unsupported(WHY) if emptied or case.padding in EMPTY_SAMPLES else own(case)
