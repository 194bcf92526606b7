"""Slopes by default: what takes those of ALiBi, and has some without being given any, is given zeros there."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always_slopes import usual_slopes
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.documented import as_written, said_of
from attention_conformance.implementations.discovery.documented_equations import states_alibi
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.features import NOTHING, Feature
from attention_conformance.spec.inputs import build

OPTION = "alibi_slopes"
SLOPED = PLAIN.extended(alibi=True)
BY_DEFAULT = re.compile(r"\b(?:default\w*|none|omitted|not given|absent)\b", re.IGNORECASE)
"""Words for what stands in the place of an option that is not given."""
HEADS = (3, 4, 12)
"""Numbers of heads for which the rules of slopes agree, and for which they do not."""


def without_own_slopes(check: ClaimCheck) -> ClaimCheck:
    """The check with slopes of zero in each call without any, where it has slopes by default: those of ALiBi, or others
    that its documentation states. Where it states ALiBi and has others, its plain answers show that.
    """
    call: Any = check.function
    name = call.options.named.spelled.get(OPTION, "")
    if Feature.ALIBI not in check.claims or name in ("", *call.options.always):
        return check
    given = call.giving({name: None})
    if all(_seen(check, heads) is Slopes.USUAL for heads in HEADS):
        return replace(check, function=given).stating(f"its {name!r} are those of ALiBi by default, and given as zeros")
    written = as_written(call.function)
    own = _seen(check, HEADS[0]) is Slopes.OTHERS and not states_alibi(written, name)
    if not own or not any(map(BY_DEFAULT.search, said_of(written, name))):
        return check
    return replace(check, function=given).stating(unclaimed(f"{name!r} by default", "they are not those of ALiBi"))


class Slopes(Enum):
    """What stands in the place of slopes that are not given."""

    ZEROS = auto()
    USUAL = auto()
    OTHERS = auto()


def _seen(check: ClaimCheck, heads: int) -> Slopes | None:
    """With so many heads; None where it does not answer."""
    fitted = fit(SLOPED.sized(num_heads=heads), check.claims)
    if isinstance(fitted, Unsupported) or fitted.sizes.num_heads != heads:
        return None
    problem = build(fitted, check.dtype).forward_only()
    dtype = problem.extras[OPTION].dtype
    several = (np.zeros(heads), *map(np.asarray, usual_slopes(heads)))
    without = check.answer(problem.but(extension=NOTHING, extras={}))
    outcomes = [check.answer(problem.but(extras={OPTION: each.astype(dtype)})) for each in several]
    if without.error or any(each.error for each in outcomes):
        return None
    zeros, *usual = (near_outputs(without, each, check.dtype) for each in outcomes)
    return Slopes.ZEROS if zeros else Slopes.USUAL if any(usual) else Slopes.OTHERS
