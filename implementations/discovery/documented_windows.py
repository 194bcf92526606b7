"""Documentation: whether the number of a window counts the query's own key, by words, by ranges and by equations."""

from __future__ import annotations

import re

from attention_conformance.implementations.discovery.documented import sentences_of
from attention_conformance.implementations.discovery.documented_equations import DENIED, stated

ITSELF = (
    r"(?:itself|the (?:token|query|position|current \w+) itself|its own(?: (?:key|token|position))?"
    r"|the (?:current|query's own) (?:one|key|token|position))"
)
ONE_LESS = re.compile(
    rf"(?:-|minus) ?(?:1|one)\b.{{0,40}}\b(?:plus|besides|in addition to|and) {ITSELF}\b"
    rf"|\b{ITSELF} and (?:to )?(?:the |its )?(?:\w+ )??[\w.]+ ?(?:-|minus) ?(?:1|one)\b"
    rf"|\bno(?:thing)?(?: \w+){{0,2}} (?:besides|but|except|other than) {ITSELF}\b"
    r"|\bwindow ?(?:=+|of) ?(?:1|one) (?:returns? (?:its own |the )?v(?:alues?)?|is (?:itself|the token) alone)\b",
    re.IGNORECASE,
)
"""Words for a window of the query's own key and one key less before it."""
COUNTED = re.compile(
    rf"\b(?:tokens?|keys|positions) in (?:all|total)\b|\b{ITSELF} (?:is |being )?(?:included|counted|one of th\w+)\b"
    rf"|\b(?:including|incl\.|inclusive of|counting|counts|up to and with) {ITSELF}\b",
    re.IGNORECASE,
)
NOT_COUNTED = re.compile(
    rf"\b(?:besides|in addition to|plus|not (?:including|counting)|without counting|never counts) {ITSELF}\b"
    rf"|\bnext to itself\b|\b{ITSELF} (?:is )?not (?:included|counted)\b",
    re.IGNORECASE,
)
"""Words for a window that counts the query's own key, and for one of the keys before it alone."""
CHOSEN = re.compile(r"\bwhether\b|\b(?:if|when) \w*(?:self|own|inclu|count)\w*", re.IGNORECASE)
"""Words for an option that chooses between the two."""
WINDOW = r"(?:(?:self\.)?\w*window(?:[_ ]size)?|w)\b"
"""The number of a window in an equation."""
ALONE = re.compile(
    rf"\b{WINDOW} ?(?:=+|of) ?(?P<number>0|1|zero|one)\b[^=]{{0,40}}?"
    rf"\b(?:{ITSELF} (?:only|alone)|(?:only|nothing but)(?: to)? {ITSELF})\b",
    re.IGNORECASE,
)
"""The narrowest window, which shows the query its own key alone."""
FIRST = rf"\b(?P<at>[a-z]\w*) ?- ?{WINDOW}(?P<next> ?\+ ?1\b)?"
AT = r"(?P=at)\b(?! ?[-+*/(\[])"
"""The farthest key in an equation, and the query's own place at its end."""
TO = r"(?P<to>\.{2,3}|…|,|\bto\b|\bthrough\b)"
RANGE = re.compile(
    rf"(?P<open>[(\[\]]?) ?(?:max ?\( ?0 ?, ?)?{FIRST} ?\)? ?{TO} ?{AT} ?(?P<end>\]?)",
    re.IGNORECASE,
)
BOUNDS = re.compile(rf"{FIRST} ?(?P<less><=?|≤) ?[a-z]\w* ?(?:<=|≤) ?{AT}", re.IGNORECASE)
DISTANCE = re.compile(rf"\b0 ?(?:<=|≤) ?[a-z]\w* ?- ?[a-z]\w* ?(?P<less><=?|≤) ?{WINDOW}(?! ?[-+*/])", re.IGNORECASE)
"""Equations of the keys that a query sees: from one to its own, j between both, and i - j."""


OF_OTHERS = re.compile(r"\b(?:hid\w*|mask(?:ed|s) out|drop\w*|evict\w*|remov\w*|blocks?)\b", re.IGNORECASE)
"""Words for keys that are not those which a query sees."""
NEXT = re.compile(r"(?<!-)(?<!- )\bwindow(?:[_ ]size)? ?(?:\+|plus) ?(?:1|one)\b", re.IGNORECASE)
"""A number of keys that is not that of the window."""
OTHER_W = re.compile(r"\bw ?=")
"""The letter of a number that may be another one."""


def states_own_counted(target: object) -> bool | None:
    """Whether a window counts the query's own key by its documentation; None where that states neither, or both.

    Only sentences that name a window are read: others count tokens, too.
    """
    every = sentences_of(target)
    redefined = any(map(OTHER_W.search, every))
    sentences = (each for each in every if "window" in each.lower() and not CHOSEN.search(each))
    sentences = (each for each in sentences if not (NEXT.search(each) or (redefined and re.search(r"\bw\b", each))))
    found = {_own_counted(each) for each in sentences} - {None}
    return found.pop() if len(found) == 1 else None


def _own_counted(sentence: str) -> bool | None:
    if ONE_LESS.search(sentence):
        return True
    if NOT_COUNTED.search(sentence):
        return False
    return True if stated(COUNTED, sentence) else _by_equations(sentence)


def _by_equations(sentence: str) -> bool | None:
    """The same by the narrowest window, or by the keys that it shows."""
    if alone := stated(ALONE, sentence):
        return alone["number"].lower() in ("1", "one")
    if DENIED.search(sentence) or OF_OTHERS.search(sentence):
        return None
    equations = ((RANGE, _of_range), (BOUNDS, _of_bounds), (DISTANCE, _of_distance))
    return next((meaning(found) for words, meaning in equations if (found := words.search(sentence))), None)


def _of_range(found: re.Match[str]) -> bool | None:
    """Of a range such as "i - window + 1 .. i", "[i - window, i]" or "(i - window, i]"."""
    brackets = found["open"] + found["end"]
    if found["to"] == "," and brackets not in ("[]", "(]", "]]"):
        return None
    if found["next"]:
        return None if brackets in ("(]", "]]") else True
    if brackets in ("(]", "]]"):
        return True
    return None if found["to"].isalpha() else False


def _of_bounds(found: re.Match[str]) -> bool | None:
    """Of bounds such as "i - window < j <= i"."""
    if found["less"] == "<":
        return None if found["next"] else True
    return found["next"] is not None


def _of_distance(found: re.Match[str]) -> bool:
    """Of a distance such as "0 <= i - j < window"."""
    return found["less"] == "<"
