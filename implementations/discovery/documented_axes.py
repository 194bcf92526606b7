"""Axes of masks: what documentation states of how many a mask has."""

from __future__ import annotations

import re

from attention_conformance.implementations.discovery.documented import said_of, said_of_mask, states_masks_of_samples

BOUND = r"(?:(?:[<>]=?|[\u2264\u2265]|at (?:least|most)|up to) ?)?"
"""What stands before an extent that may be another one."""
OF_PAIRS = re.compile(
    rf"[(\[] ?{BOUND}(?!(?:b|n|bs|bsz|batch\w*) ?,)"
    rf"(?:l|t|n|s|q|\w*(?:len|_q|lq|query|queries|tgt|target|ctx)\w*) ?, ?{BOUND}[\w.]+ ?[)\]]",
    re.IGNORECASE,
)
"""A shape of two axes, of queries and of keys."""
SHAPE = re.compile(r"[(\[]([^()\[\]]*,[^()\[\]]*)[)\]]")
ANY = re.compile(r"\bbroadcast\w*", re.IGNORECASE)
"""A shape, and words for any that broadcasts."""


def states_two_axes_alone(target: object, name: str) -> bool:
    """Whether its documentation states that a mask is (Lq, Lk), and nowhere that it may have more axes."""
    return any(map(OF_PAIRS.search, said_of_mask(target, name))) and most_axes(target, name) <= 2


def most_axes(target: object, name: str) -> int:
    """The axes that a mask may have by its documentation, four where it broadcasts; 0 where nothing is stated."""
    said = said_of_mask(target, name)
    if any(map(ANY.search, said)):
        return 4
    return max((shape.count(",") + 1 for each in said for shape in SHAPE.findall(each)), default=0)


def promises_masks_of_samples(target: object, name: str, query: str) -> bool:
    """Whether its documentation states masks (B, Lq, Lk) for queries of four axes, to which these do not broadcast.

    It does not where queries may have three axes, too, or where nothing is stated of theirs.
    """
    if any(map(ANY.search, said_of_mask(target, name))):
        return False
    first = re.compile(rf"\b{re.escape(query)}\b[^(\[]{{0,40}}{SHAPE.pattern}")
    shapes = [found[1] for each in said_of(target, query) if (found := first.search(each))]
    of_four = bool(shapes) and all(shape.count(",") == 3 and "..." not in shape for shape in shapes)
    return of_four and states_masks_of_samples(target, name)
