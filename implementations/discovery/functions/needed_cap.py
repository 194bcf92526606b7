"""Functions that always cap their scores, by a number that has to be given or is their default: one that caps none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_options import NeededOption
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.needed_window import alike
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES

HUGE = 2.0**60
"""A cap that leaves every score, be it of float64; beyond the range of float16."""
SMALL = 0.25
"""One that changes answers."""
NONE = (None, 0.0)
"""What switches a cap off in most functions."""


def _no_cap(name: str, neutral: float | None, query: Any, _: Any) -> float | None:
    """What caps no score of such a query.

    Raises:
        ValueError: nothing but a number beyond the range of float16 does.
    """
    if neutral == HUGE and str(query.dtype).endswith("float16") and "bfloat16" not in str(query.dtype):
        raise ValueError(f"no {name!r} of float16 leaves every score")
    return neutral


def with_needed_cap(function: Callable[..., Any]) -> NeededOption | None:
    """The function, given a cap that changes nothing unless it is given another; None where it caps nothing itself."""
    signature = safe_call(lambda: signature_of(function)).value
    parameters = [] if signature is None else [*signature.parameters.values()][3:]
    caps = [p for p in parameters if KNOWN_NAMES.get(p.name) == "softcap" and (required(p) or _is_a_cap(p.default))]
    if len(caps) != 1 or any(required(p) for p in parameters if p is not caps[0]):
        return None
    name = caps[0].name
    for x in (each for shape in ((2, 3, 5, 4), (2, 5, 4), (5, 4)) for each in of_each_kind(shape)):
        answers = {cap: safe_call(partial(function, x, x, x, **{name: cap})).value for cap in (HUGE, SMALL, *NONE)}
        if answers[HUGE] is not None and answers[SMALL] is not None and not alike(answers[HUGE], answers[SMALL]):
            off = [cap for cap in NONE if answers[cap] is not None and alike(answers[cap], answers[HUGE])]
            neutral = off[0] if off else HUGE
            about = f"given {name}={neutral} where a problem has no cap"
            return NeededOption(function, name, partial(_no_cap, name, neutral), about)
    return None


def _is_a_cap(default: object) -> bool:
    return isinstance(default, int | float) and not isinstance(default, bool) and default > 0
