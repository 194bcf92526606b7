"""Documentation: what a row without keys gets, by sentences on such rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attention_conformance.implementations.discovery.documented import (
    OF_OTHERS,
    documents_of,
    parameters_of,
    said_of,
    sentences_of,
    split,
)
from attention_conformance.spec.conventions import EmptyRow

AT_LEAST_ONE = re.compile(
    r"(?:>=|≥) ?1\b|> ?0\b|\b(?:at least (?:1|one)|positive|non-?zero|never (?:0|zero|empty))\b", re.I
)
"""Words for lengths that are not 0."""
NO_KEY = r"no (?:\w+ )?(?:keys?|elements?|tokens?|positions?|items?|entr(?:y|ies)|neighbou?rs?)"
WITHOUT_KEYS = re.compile(
    r"\b(?:(?:fully|completely|entirely)[- ]masked|empty rows?|without (?:any |a )?(?:visible |valid |allowed )?keys?"
    r"|(?:with|have|has|sees?) no (?:visible |valid |allowed )?keys?"
    r"|(?:quer(?:y|ies)|rows?) (?:that|(?:to |for )?which)"
    rf" (?:{NO_KEY} (?:is|are) (?:visible|shown|allowed|left)(?: to)?"
    rf"|(?:(?:may|can|could) )?(?:reads?|sees?|uses?|attends?(?: to)?) {NO_KEY}))\b",
    re.IGNORECASE,
)
"""Words for rows without keys."""
REJECTED = re.compile(r"\b(?:instead of|rather than|not|no|never|avoid\w*|without) nans?\b", re.IGNORECASE)
UNCLEAR = re.compile(r"\b(?:not|never|no|nor|unless|except|may|undefined)\b|n't\b|\bor\b", re.IGNORECASE)
ANSWERS = {
    EmptyRow.ZEROS: re.compile(r"\bzero(?:e?s)?\b", re.IGNORECASE),
    EmptyRow.NAN: re.compile(r"\bnans?\b", re.IGNORECASE),
    EmptyRow.UNIFORM: re.compile(r"\buniform\w*\b|\bthe (?:mean|average)\b", re.IGNORECASE),
}
"""What its documentation may say of the answer to them."""


def documented_empty_row(target: object) -> EmptyRow | None:
    """What it answers for a row without keys by the one sentence that states it; None where there is none such."""
    stated = {_answer(each) for each in sentences_of(target) if WITHOUT_KEYS.search(each)}
    return stated.pop() if len(stated) == 1 else None


def states_keys_in_each_sample(target: object, lengths: str) -> bool:
    """Whether its documentation states of its lengths of samples that none is 0."""
    return any(map(AT_LEAST_ONE.search, said_of(target, lengths)))


GIVEN = (
    r"(?:get|give|yield|produce|return|receive|contribute|output|become)s?|(?:is|are)(?: (?:given|set to|filled with))?"
)
PLAIN_ZEROS = re.compile(
    rf"\b(?:{GIVEN}) (?:(?:an?|the|all|exact(?:ly)?|only|rows?|vectors?|outputs?|of) )*zeros?\b"
    r"|\bzeros? (?:(?:rows?|vectors?|outputs?) )?(?:is|are) (?:given|returned|produced|output)\b",
    re.IGNORECASE,
)
"""Words for an answer of zeros, which are not those for a mask of zeros."""
OF_OTHER_PARTS = re.compile(
    r"\b(?:lse|log\w*|grad\w*|loss\w*|sums?|counts?|if|when|unless|only|kernels?|backends?|callers?|todo|should|must"
    r"|ha(?:s|ve) to|make sure|in (?:eval|train)\w*)\b",
    re.IGNORECASE,
)
"""Words for something else that may be zero, for conditions, and for what others do."""


def states_zeros_without_keys(target: object) -> bool:
    """Whether a sentence about no parameter states plainly that what has no key gets zeros, and none another answer."""
    names = "|".join(map(re.escape, parameters_of(target))) or r"(?!)"
    of_option = rf"\b(?:(?:with|where|for) (?:{names})\b|(?:{names}) ?=)"
    other = re.compile(rf"{OF_OTHER_PARTS.pattern}|{OF_OTHERS.pattern}|{of_option}", re.IGNORECASE)
    sentences = split(_entries_left_out(target, names))
    about = [
        each
        for each, after in zip(sentences, [*sentences[1:], ""], strict=True)
        if _answer(each) is EmptyRow.ZEROS and WITHOUT_KEYS.search(each) and PLAIN_ZEROS.search(each)
        if not any(words.search(after) for answer, words in ANSWERS.items() if answer is not EmptyRow.ZEROS)
    ]
    return documented_empty_row(target) is EmptyRow.ZEROS and not all(map(other.search, about))


def _entries_left_out(target: object, names: str) -> Iterator[str]:
    """Its documentation without the entries of these parameters, and what is indented below them."""
    entry = re.compile(rf"\W*(?:{names})\b`*(?: ?\([^)]*\))? ?:")
    for text in documents_of(target):
        kept, within = [], -1
        for line in text.splitlines():
            indent = len(line) - len(line.lstrip())
            within = indent if entry.match(line) else within if not line.strip() or 0 <= within < indent else -1
            kept.append(line if within < 0 and line.strip() else ". ")
        yield "\n".join(kept)


def _answer(sentence: str) -> EmptyRow | None:
    """The only answer that a sentence on rows without keys names, where it is no condition and denies nothing."""
    rest = REJECTED.sub("", WITHOUT_KEYS.sub("", sentence))
    named = [answer for answer, words in ANSWERS.items() if words.search(rest)]
    return named[0] if len(named) == 1 and not UNCLEAR.search(rest) else None
