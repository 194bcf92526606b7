"""Documentation: whether the number of a window counts the query's own key, by words, by ranges and by equations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import documents_of, paragraphs_of, split
from attention_conformance.implementations.discovery.documented_equations import DENIED, stated

OWN = (
    r"(?:itself|the (?:token|query|position|current \w+) itself|self(?![-.\w]| attention)"
    r"|its own(?: (?:key|token|position))?|the query (?:token|position)"
    r"|(?:the )?(?:current|query's own) (?:one|key|token|position|query|element|step|frame))"
)
ITSELF = rf"(?<!before )(?<!before the ){OWN}"
"""Words for the query's own key, and none before which others stand."""
TOKENS = r"(?:tokens|keys|positions|entries|elements|steps|frames)"
EARLIER = r"(?:previous|preceding|earlier|past)"
WINDOW = r"(?:(?:self\.)?\w*window(?:[_ ]size)?|w)\b"
"""The number of a window, in an equation or a sentence."""
ONE_LESS = re.compile(
    rf"(?:-|minus) ?(?:1|one)\b.{{0,40}}\b(?:plus|besides|in addition to|and) {ITSELF}\b"
    rf"|\b{ITSELF} and (?:to )?(?:the |its )?(?:\w+ )??[\w.]+ ?(?:-|minus) ?(?:1|one)\b"
    rf"|\bno(?:thing)?(?: \w+){{0,2}} (?:besides|but|except|other than) {ITSELF}\b"
    r"|\bwindow ?(?:=+|of) ?(?:1|one) (?:returns? (?:its own |the )?v(?:alues?)?|is (?:itself|the token) alone)\b",
    re.IGNORECASE,
)
"""Words for a window of the query's own key and one key less before it."""
COUNTED = re.compile(
    rf"\b(?:tokens?|keys|positions) in (?:all|total)\b"
    rf"|\b{ITSELF} (?:is |being |(?:is )?also )?(?:included|counted|one of th\w+)\b"
    rf"|\b{ITSELF} (?:also )?counts\b(?! (?:not|for nothing|separately|apart|extra|in addition|on top))"
    rf"|\b(?:including|includes|inclusive of|counting|counts|up to and with) {ITSELF}\b",
    re.IGNORECASE,
)
NOT_COUNTED = re.compile(
    r"\b(?:besides|in addition to|on top of|plus|not (?:including|counting)|without counting|never counts"
    rf"|excluding|exclusive of) {ITSELF}\b"
    rf"|\bnext to itself\b|\b{ITSELF} (?:(?:is )?not (?:included|counted)|does(?: not|n't) count)\b"
    rf"|\b(?:{WINDOW} {EARLIER} {TOKENS}|{EARLIER} {WINDOW} {TOKENS}"
    rf"|{WINDOW} {TOKENS} (?:before|preceding) (?:it|{OWN})),?"
    rf" (?:and|as well as|together with) (?:also )?(?:to )?{ITSELF}(?! (?:is |being )?(?:included|counted|counts))\b",
    re.IGNORECASE,
)
"""Words for a window that counts the query's own key, and for one of the keys before it alone."""
AT_MOST = re.compile(
    r"\b(?:sees?|attends?(?: only)? to|attending to|reads?) (?:at most|no more than)"
    rf" (?:the last )?{WINDOW} {TOKENS}\b",
    re.IGNORECASE,
)
OF_SIDES = re.compile(
    r"\b(?:before|back\w*|behind|ago|away|past|previous\w*|preceding|prior|earlier|older|history|other\w*|further"
    r"|left|right|sides?|directions?)\b",
    re.IGNORECASE,
)
"""Words for all keys that a query sees, which count its own; and for some of these, which may not."""
CHOSEN = re.compile(r"\bwhether\b|\b(?:if|when) \w*(?:self|own|inclu|count)\w*", re.IGNORECASE)
"""Words for an option that chooses between the two."""
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

    Only sentences that name a window are read, and those on its parameter: others count tokens, too.
    """
    every = [MARKS.sub("", each) for each in _sentences_of(target)]
    redefined = any(map(OTHER_W.search, every))
    sentences = (each for each in every if "window" in each.lower() and not CHOSEN.search(each))
    sentences = (each for each in sentences if not (NEXT.search(each) or (redefined and re.search(r"\bw\b", each))))
    found = {_own_counted(each) for each in sentences} - {None}
    return found.pop() if len(found) == 1 else None


MARKS = re.compile(r"(?<!\w)['\"\u2018\u201c*]+|['\"\u2019\u201d*]+(?!\w)")
"""Quotes around a name."""
ENTRY = re.compile(r"\W*(?:param \w* ?)?(?P<name>(?:self\.)?\w*window\w*)\W", re.IGNORECASE)
"""How a paragraph on the number of a window begins."""
COMMENT = re.compile(
    r"^(?:[^#\n]*[(,])?\s*(?:self\.)?(?P<name>\w*window\w*)\s*(?::[^=#\n]+)?(?:=\s*[\w.]+\s*)?,?\s*#(?P<words>.*)$",
    re.MULTILINE,
)
"""A comment behind such a parameter, or where it is kept."""


def _sentences_of(target: object) -> Iterator[str]:
    """Its sentences, those on the number of a window with its name before them."""
    texts = [re.sub(r"\bincl\.", "including", text) for text in documents_of(target)]
    yield from split(texts)
    for part in (part for text in texts for part in paragraphs_of(text)):
        if (entry := ENTRY.match(part)) is not None and not NEXT.search(part):
            yield from (f"{entry['name']}: {each}" for each in split([part[entry.end() :]]))
    for comment in COMMENT.finditer(code_of(target)):
        yield from (f"{comment['name']}: {each}" for each in split([comment["words"]]))


def _own_counted(sentence: str) -> bool | None:
    if ONE_LESS.search(sentence):
        return True
    if NOT_COUNTED.search(sentence):
        return False
    whole = stated(AT_MOST, sentence) and not OF_SIDES.search(sentence)
    return True if whole or stated(COUNTED, sentence) else _by_equations(sentence)


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
