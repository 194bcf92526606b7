"""Rows without keys of a function: what an option of each kind leaves them, where nothing states it."""

from __future__ import annotations

from collections.abc import Mapping

from attention_conformance.implementations.discovery.claim_checks import MASKED, ClaimCheck
from attention_conformance.implementations.discovery.rows_without_keys import (
    ADDED,
    EMPTY,
    empty_lengths_as_seen,
    empty_rows_as_seen,
    empty_rows_of_each_kind,
    nan_of_length_0_as_seen,
    without_refused_lengths,
)
from attention_conformance.implementations.discovery.shipped.shipped import Interface
from attention_conformance.implementations.discovery.signatures import Options
from attention_conformance.implementations.discovery.vocabulary import promises_nothing
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Feature


def empty_rows_of_function(
    check: ClaimCheck, options: Options, settings: Mapping[str, str], interface: Interface | None
) -> ClaimCheck:
    """The check with what rows without keys are seen to get, unless it is chosen, or a published interface states it.

    One parameter for both kinds of masks, whose name promises nothing, gives the rows of both the same; a name that
    promises its form promises no answer for such a row: the formula itself gives NaN.
    """
    chosen = any("row" in key for key in settings)
    if chosen or (interface and any("row" in key for key in interface.settings)):
        check = without_refused_lengths(check)
        return nan_of_length_0_as_seen(check) if interface and not chosen else check
    one = options.spelled.get("float_mask") in (None, options.spelled.get("bool_mask"))
    if not interface and one and promises_nothing(options.spelled.get("bool_mask", "")):
        kinds = ((Feature.BOOL_MASK, MASKED), (Feature.FLOAT_MASK, ADDED), (Feature.KEY_PADDING, EMPTY))
        check = empty_rows_as_seen(check, next((case for feature, case in kinds if feature in check.claims), ADDED))
    else:
        check = empty_rows_of_each_kind(check)
    if check.claims.conventions.empty_row_padding is EmptyRow.ZEROS:  # nothing else was seen of them
        check = empty_rows_as_seen(check, EMPTY)
    check = empty_lengths_as_seen(check)
    return nan_of_length_0_as_seen(check) if interface else check
