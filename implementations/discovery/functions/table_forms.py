"""The form of tables and slopes: a call with tables of cosines and sines answers as one with rotated rows does without
them, and one with equal slopes for each sample as one with these slopes for all.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.conventions import RotaryPairing, TableForm
from attention_conformance.spec.features import NOTHING, Feature, RotaryTables
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

GIVEN = PLAIN.sized(query_length=5, key_length=5, d_k=6).extended(rotary_tables=RotaryTables.POSITIONS)
"""Two pairings of six components differ in every form."""
PART = GIVEN.sized(d_k=9).extended(rotary_dim=4)
SLOPED = PLAIN.extended(alibi=True)


def with_table_form(
    check: ClaimCheck, spelled: Mapping[str, str], settings: Mapping[str, str]
) -> tuple[ClaimCheck, list[str]]:
    """The check with the form and the pairing that are seen, and a note.

    Where none is seen, the suite's own name of the tables still promises the default; another name promises nothing.
    """
    if Feature.ROTARY_TABLES not in check.claims or "rotary-tables" in settings:
        return check, []
    own = check.claims.conventions
    pairings = (own.rotary_pairing,) if "rotary-pairing" in settings else RotaryPairing
    for form, pairing in product(TableForm, pairings):
        conventions = replace(own, rotary_tables=form, rotary_pairing=pairing)
        claiming = replace(check, claims=replace(check.claims, conventions=conventions))
        if _rotates(claiming):
            notes = [] if conventions == own else [f"its tables are of {form}, its pairs {pairing}"]
            return claiming, notes
    name = spelled.get("rotary_cos", "rotary_cos")
    if name == "rotary_cos":
        return check, []
    note = unclaimed("rotary-tables", f"its {name!r} has an effect of no known form")
    return check.without({Feature.ROTARY_TABLES}), [note]


def with_other_forms(check: ClaimCheck) -> ClaimCheck:
    """The check with the claims of narrow tables and of slopes of samples that its answers show."""
    return with_slopes_of_samples(with_narrow_tables(check))


def with_narrow_tables(check: ClaimCheck) -> ClaimCheck:
    """The check with the claim of tables for the first components, where it answers with such and the others count."""
    if Feature.ROTARY_TABLES not in check.claims or Feature.ROTARY in check.claims:
        return check
    claiming = replace(check, claims=replace(check.claims, features=check.claims.features | {Feature.PARTIAL_ROTARY}))
    fitted = fit(PART, claiming.claims)
    if isinstance(fitted, Unsupported) or fitted.extension.rotary_dim is None:
        return check
    problem = build(fitted, check.dtype).forward_only()
    last = np.where(np.arange(problem.query.shape[-1]) == problem.query.shape[-1] - 1, -2.0, 1.0)
    changed = problem.but(query=(problem.query * last).astype(problem.query.dtype))
    first, second = check.answer(problem), check.answer(changed)
    if first.error or second.error or near_outputs(first, second, check.dtype):
        return check
    return claiming


def with_slopes_of_samples(check: ClaimCheck) -> ClaimCheck:
    """The check with the claim of slopes (B, H), where equal rows are answered as one: others may be wrong."""
    claiming = check.claiming({Feature.ALIBI_SAMPLES})
    fitted = fit(SLOPED.extended(alibi_samples=True), claiming.claims)
    if Feature.ALIBI not in check.claims or isinstance(fitted, Unsupported):
        return check
    problem = build(fitted, check.dtype).forward_only()
    row = problem.extras["alibi_slopes"][0]
    rows = np.broadcast_to(row, problem.extras["alibi_slopes"].shape).copy()
    shared = problem.but(extension=SLOPED.extension, extras={**problem.extras, "alibi_slopes": row})
    first, second = check.answer(shared), claiming.answer(problem.but(extras={**problem.extras, "alibi_slopes": rows}))
    if first.error or second.error or not near_outputs(first, second, check.dtype):
        return check
    return claiming


def _rotates(check: ClaimCheck) -> bool:
    """Whether it rotates as it claims."""
    fitted = fit(GIVEN, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype).forward_only()
    pairing = check.claims.conventions.rotary_pairing
    query, key = (_rotated(problem, rows, pairing) for rows in (problem.query, problem.key))
    plain = problem.but(query=query, key=key, extension=NOTHING, extras={})
    first, second = check.answer(problem), check.answer(plain)
    return not first.error and not second.error and near_outputs(first, second, check.dtype)


def _rotated(problem: Problem, rows: Array, pairing: RotaryPairing) -> Array:
    """The rows, each rotated by the row of the tables at its own place."""
    cosines, sines = (np.asarray(problem.extras[name], np.float64) for name in ("rotary_cos", "rotary_sin"))
    kind, width = problem.extension.rotary_tables, rows.shape[-1]
    if kind is RotaryTables.POSITIONS:
        cosines, sines = (table[None, : rows.shape[-2]] for table in (cosines, sines))
    elif kind is not RotaryTables.TOKENS:
        once = slice(width // 2) if kind is RotaryTables.DOUBLED else slice(None, None, 2)
        cosines, sines = cosines[..., once], sines[..., once]
    cosines, sines = cosines[:, None], sines[:, None]
    halves = pairing is RotaryPairing.HALVES
    first, second = np.split(rows, 2, -1) if halves else (rows[..., ::2], rows[..., 1::2])
    pair = first * cosines - second * sines, first * sines + second * cosines
    joined = np.concatenate(pair, -1) if halves else np.stack(pair, -1).reshape(rows.shape)
    return np.asarray(joined.astype(rows.dtype))
