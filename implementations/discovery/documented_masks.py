"""What True in a mask means by documentation that leaves no doubt: of both values, or of one in unmistakable words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attention_conformance.implementations.discovery.documented import (
    OF_OTHERS,
    documents_of,
    paragraphs_of,
    polarities_of,
    said_of,
)
from attention_conformance.spec.conventions import Polarity

NUMBER = r"(?:ones?|zeros?|[01]s|[01](?:\.0?)?)"
VALUE = rf"(?<![\w.\-+])(?P<value>true|false|{NUMBER})(?!\w|\.\d| ?d\b|-?dim)"
EFFECTS = {
    Polarity.MAY_ATTEND: (
        r"keep|kept|attend(?:ed|s)?(?: to)?|attention(?: is allowed)?(?! to\b)|visible|seen|takes? part"
        r"|taking part|participates?|allowed(?! to be\b)|included?"
        r"|used|valid|real|exists?|present|unmasked|non-?pad(?:ded|ding)?"
    ),
    Polarity.MASKED_OUT: (
        r"masked(?: out)?|mask out|ignored?|excluded?|hidden|hides?|pads?|padded|padding|blocked|dropped|removed|absent"
    ),
}
EFFECT = rf"\b(?P<effect>{'|'.join(EFFECTS.values())})\b"
OF_TOKENS = (
    r"(?:tokens?|positions?|keys?|elements?|entry|entries|slots?|pairs?|items?|frames?|pixels?|values?|locations?|ones)"
)
FILLED = (
    rf"(?:{OF_TOKENS}|the|an?|this|that|those|these|which|it|its|they|we|you|i|j|row|column|query|queries|context|source"
    r"|memory|encoder|corresponding|given|each|every|any|all|and|of|in|to|at|on|for|where|with|will|should|can|may|must|is"
    r"|are|be|being|has|have|want|need|from|score|scores)"
)
LINK = (
    r"(?:[=:]|[-=]>|→|[-\u2013\u2014](?= )|will|means?|meaning|indicates?|indicating|denotes?|marks?|says|stands? for"
    r"|for|where|at|on|is|are|to|if)"
)
NEGATION = r"(?P<negated>(?:(?:not|no|never|don't|doesn't|do not|does not|isn't|aren't|cannot|can't) ))?"
ENDED = (
    rf"(?=\s*(?:$|[.,;:()/]|(?:and|in|for|by|from|to|as|while|during|with|out|an?|the|this|that|it|them)\b"
    rf"|{OF_TOKENS}\b(?!\s+(?:is|are|do|does|should|not|absent)\b)))"
)
"""What may follow an effect: no word that reverses it, as in "where padding is absent"."""
FORWARD = re.compile(
    rf"{VALUE} ?(?:values? |entry |entries )?{LINK} ?(?:{FILLED} )*?{NEGATION}(?:{FILLED} )*?{EFFECT}{ENDED}",
    re.IGNORECASE,
)
"""A value and what it does: "True for the tokens that exist"."""
BACKWARD = re.compile(
    rf"{NEGATION}{EFFECT} (?:{OF_TOKENS} )?(?:are |is )?"
    rf"(?:=|==|marked (?:as|by|with)|indicated (?:by|with)|given as|denoted by|set to|are|is) ?(?:an? )?{VALUE}",
    re.IGNORECASE,
)
"""What is done and its value: "padding elements are indicated by 1s"."""
NEGATED_BEFORE = re.compile(r"\b(?:not|no|never|non|without|neither|nor|\w+n't)\b[^.,;]{0,40}$", re.IGNORECASE)
"""A negation that may belong to what stands behind it."""
PLAIN = re.compile(
    r"keep|kept|attend(?:ed|s)?(?: to)?|takes? part|taking part|participates?|masked(?: out)?|mask out|ignored?"
    r"|excluded?|hidden|hides?|pads?|padded|padding|real|visible|unmasked|allowed"
    r"|attention is allowed",
    re.IGNORECASE,
)
"""Effects that one value alone states without doubt."""
VALID_TOKENS = re.compile(rf"valid {OF_TOKENS}\b", re.IGNORECASE)
"""So do these words, and "valid" alone does not."""
OF_ADDED = re.compile(r"\binf(?:inity)?\b|negative|-1e|\badd(?:ed|itive)\b", re.IGNORECASE)
"""Words of a mask whose numbers are added: a 0 shows a key there."""
DOUBTFUL = re.compile(
    r"\b(?:unlike|opposite|contrary|contrast|whereas|instead|internal\w*|inside|invert\w*|negat(?:ed|ion)|flip\w*"
    r"|convert\w*|complement|if (?:not )?(?:none|given)|either|or vice versa|depending"
    r"|older|legacy|previously|was|were)\b",
    re.IGNORECASE,
)
"""Words of sentences that may speak of another mask, or of another one that is made of it."""
OF_AXES = re.compile(
    r"(?:\b(?:axis|axes|dim|dims|dimension|index|layer|step|head|rank|shape|size|length|than|least|most|version|by|from|or"
    r"|dtype|chunk|stage|level|type|tokens?|positions?|keys?|query|queries|rows?|columns?|samples?|channel|\w*id|idx|number"
    r"|first|last|group|block|padding|pad|class|label|at|of)|[=<>*/+x])\s*$",
    re.IGNORECASE,
)
"""What stands before a number that is no value of a mask."""


def states_padding(target: object, name: str) -> bool:
    """Whether its documentation states that a mask is one of padding."""
    return any(re.search(r"\bpad", part, re.IGNORECASE) for part in said_of(target, name))


def unmistakable_polarity(target: object, name: str) -> Polarity | None:
    """What True in a mask means where its documentation states it for both values, or plainly for one.

    None where anything in it may be read otherwise.
    """
    stated = {each for sentence in _sentences(target, name) for each in statements_in(sentence, name)}
    meanings = {meaning for _, meaning, _ in stated}
    if len(meanings) != 1 or not polarities_of(target, name) <= meanings:
        return None
    both = {value for value, _, _ in stated} == {False, True}
    return meanings.pop() if both or any(plain for _, _, plain in stated) else None


def statements_in(sentence: str, name: str) -> Iterator[tuple[bool, Polarity, bool]]:
    """Each value that is spoken of, what True means by that, and whether the words leave no doubt."""
    text = _without_marks(sentence)
    if DOUBTFUL.search(text) or OF_OTHERS.search(text):
        return
    added = OF_ADDED.search(text) is not None
    forward = (m for m in FORWARD.finditer(text) if not _is_of_another(text[: m.start("value")], name, m["value"]))
    backward = (m for m in BACKWARD.finditer(text) if not NEGATED_BEFORE.search(text[: m.start()]))
    for match in (*forward, *backward):
        value, effect = match["value"].lower(), match["effect"]
        if added and value not in TRUTHS:
            continue
        on = value[0] in "t1o"
        shows = re.fullmatch(EFFECTS[Polarity.MAY_ATTEND], effect, re.IGNORECASE) is not None
        shown = (shows != bool(match["negated"])) == on
        plain = PLAIN.fullmatch(effect) or VALID_TOKENS.match(text, match.start("effect"))
        yield on, Polarity.MAY_ATTEND if shown else Polarity.MASKED_OUT, plain is not None


TRUTHS = ("true", "false")


def _is_of_another(before: str, name: str, value: str) -> bool:
    """Whether a value is that of another name, or a number of something else."""
    if re.search(r"\]\s*==?\s*$", before):
        return False
    compared = re.search(r"([\w.]+)\s*(?:[=!<>]=|=|[<>])\s*$", before)
    if compared is not None:
        return compared[1] not in (name, "mask") and not re.fullmatch(OF_VALUES, compared[1], re.IGNORECASE)
    return value.lower() not in TRUTHS and OF_AXES.search(before) is not None


OF_VALUES = rf"{EFFECT.replace('?P<effect>', '?:')}|{OF_TOKENS}"
"""Words that are set equal to a value, as in "keep = 1"."""


BEFORE_ITEMS = re.compile(r"\n[ \t]*(?=\n[ \t]*[-*•] )")
"""A blank line between a parameter and the list of its values."""


def _without_marks(text: str) -> str:
    return " ".join(re.sub(r"[`*\"'“”]+", "", text).replace("**", "").split())


def _sentences(target: object, name: str) -> Iterator[str]:
    """What its documentation says of the mask of this name, sentence by sentence, up to where it names another one."""
    for text in documents_of(target):
        for paragraph in paragraphs_of(BEFORE_ITEMS.sub("", text)):
            named = re.search(rf"(?<![\w.]){re.escape(name)}\b", paragraph)
            if named is not None:
                own = re.split(rf"(?<![\w.])(?!{re.escape(name)}\b)\w+_masks?\b", paragraph[named.end() :])[0]
                yield from re.split(r"(?<=[a-z)])\. |;(?= )|\. ?(?=[A-Z])", own)
