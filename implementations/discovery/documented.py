"""Documentation: what masks mean by the words of a class or function, of its own text and nothing else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import partial

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.conventions import Polarity

SHOWN = (
    r"keep|kept|attend(?:ed)?|visible|valid|real|used?|allow(?:ed)?|participat\w+|include[ds]?|takes? part|taking part"
)
HIDDEN = r"mask(?:ed|s)?(?: out)?|ignore[ds]?|pad(?:ding|ded|s)?|hid(?:e|den|es)|exclude[ds]?|block(?:ed|s)?"
NEGATED = r"not|n't|never|no|un|non"
VALUE = r"(?:true|false|ones|one(?! \w*mask)|zeros?|(?<!\.)[01](?:s|\.0)?)"
STATED = re.compile(
    rf"(?P<value>\b{VALUE}\b)(?P<between>(?:(?!\b(?:true|false|[01])\b)[^.;,()\n]){{0,40}}?)"
    rf"(?:(?P<negated>\b(?:{NEGATED})[ -]?(?:be |to be )?)|\b)(?P<word>(?:{SHOWN}|{HIDDEN})\b)",
    re.IGNORECASE,
)
"""A value of a mask, and what it does to a key: "1 = keep", "True for positions that are masked"."""
OF_OTHERS = re.compile(
    r"\b(?:scaled_dot_product_attention|sdpa|multiheadattention|flex_attention|flash\w*|xformers|(?:py)?torch|keras)\b",
    re.IGNORECASE,
)
"""Names in comments that speak of what somebody else's function takes."""
FALSE = re.compile(r"false|zeros?|0(?:s|\.0)?", re.IGNORECASE)


def as_written(function: object) -> object:
    """The function that somebody wrote, inside of what calls it in another way."""
    while not inspect.isroutine(function) and hasattr(function, "function"):
        function = function.function
    return function


def documented_polarity(target: object, name: str) -> Polarity | None:
    """What True in a mask means by every sentence that states it; None where none does, or two contradict."""
    stated = polarities_of(target, name)
    return stated.pop() if len(stated) == 1 else None


def polarities_of(target: object, name: str) -> set[Polarity]:
    """What True in a mask means by each sentence that may state it."""
    matches = (match for line in said_of(target, name) for match in STATED.finditer(line))
    return {_polarity(match) for match in matches if not _is_of_another(match, name)}


def _is_of_another(match: re.Match[str], name: str) -> bool:
    """Whether the value is what something else is compared with: "if T == 1 no need to mask"."""
    compared = COMPARED.search(match.string[: match.start("value")])
    return compared is not None and compared[1] != name and "mask" not in compared[1].lower()


COMPARED = re.compile(r"(\w+)\s*(?:[=!<>]=|[<>])\s*$")
"""What stands before a value that it is compared with."""


OF_AXES = r" (?:two |2 )?(?:dim\w*|axis|axes|components?|channels?)\b"
BOTTOM_RIGHT = re.compile(
    rf"(?:bottom|lower)[- ]right|\b(?:aligned|align) (?:to|with|at) the (?:end|last)\b(?!{OF_AXES})"
    rf"|quer(?:y|ies)\b[^.;]{{0,40}}\bthe last\b(?!{OF_AXES})"
    r"|\blast quer(?:y|ies)\b[^.;]{0,40}\b(?:last|every|all)\b|\bat the end of the keys\b",
    re.IGNORECASE,
)
"""Words for a triangle in which the last query stands at the last key, and not for the last axis."""


PUBLISHED_FLAG = "is_causal"
"""The flag of torch and JAX, whose triangle starts top left; other names promise no corner."""
PUBLISHED = {
    *("attn_mask", "dropout_p", PUBLISHED_FLAG, "scale", "enable_gqa", "bias", "mask", "query_seq_lengths"),
    *("key_value_seq_lengths", "local_window_size", "implementation", "return_residual"),
}
"""What these functions take in addition to query, key and value."""


def chooses_corner(target: object) -> bool:
    """Whether its triangle need not start top left, though its flag has the published name.

    Its documentation says so, the flag is set by default, as none that is published is, it takes more than these, or
    neither its inputs nor a mask have their names.
    """
    signature = safe_call(lambda: inspect.signature(target)).value  # type: ignore[arg-type]
    own = [] if signature is None else list(signature.parameters.values())
    on = any(p.name == PUBLISHED_FLAG and p.default is True for p in own)
    others = {p.name for p in own[:3]} != {*INPUTS} and "attn_mask" not in {p.name for p in own}
    more = bool({p.name for p in own[3:]} - PUBLISHED)
    return on or more or others or bool(BOTTOM_RIGHT.search(inspect.getdoc(target) or ""))


OF_SAMPLES = re.compile(
    r"\((?:1 or )?(?:b|n|bs|bsz|batch\w*) ?, ?(?!n?_?h(?:eads?)?\b|num_heads|1\b)[\w.]+ ?, ?(?!1\b)[\w.]+ ?\)",
    re.IGNORECASE,
)
"""A shape of three axes whose first one are samples: a mask for each of them, that all heads share."""


def states_masks_of_samples(target: object, name: str) -> bool:
    """Whether its documentation states that a mask may be (B, Lq, Lk)."""
    return any(map(OF_SAMPLES.search, said_of_mask(target, name)))


OF_KEYS = re.compile(
    r"^[^(]{0,40}\((?:b|n|bs|bsz|batch\w*) ?, ?(?!n?_?h(?:eads?)?\b|num_heads)[\w.]+ ?\)", re.IGNORECASE
)
"""The first shape that is named, of two axes: samples and their keys."""


def states_masks_of_keys(target: object, name: str) -> bool:
    """Whether its documentation states that a mask is (B, Lk), before any other shape."""
    return any(map(OF_KEYS.search, said_of_mask(target, name)))


BROADCASTS = re.compile(r"\bbroadcast\w*\b(?!.*\b(?:last two|last 2|batch|samples?|heads?|only)\b)", re.IGNORECASE)
"""Words for axes that broadcast, of no axes alone."""


def states_any_axes(target: object, name: str) -> bool:
    """Whether its documentation states that each axis of a mask broadcasts."""
    return any(BROADCASTS.search(each) for each in split(said_of(target, name)))


def says_key(target: object, name: str) -> bool:
    """Whether what its documentation says of a mask names keys, or an axis of keys in another mask, and no output."""
    said = " ".join(said_of_mask(target, name))
    if re.search(r"\boutput", said, re.IGNORECASE):
        return False
    axis = re.search(r"\( ?\w+ ?, ?(?P<keys>\w+) ?\)", said)
    pairs = rf"\( ?(?!b\b|{axis['keys']}\b)\w+ ?, ?{axis['keys']} ?\)" if axis else r"(?!)"
    in_pairs = any(re.search(pairs, text, re.IGNORECASE) for text in documents_of(target))
    return in_pairs or re.search(r"\bkeys?\b", said, re.IGNORECASE) is not None


HEADS_IN_SAMPLES = re.compile(
    r"\b(?:q|query|queries|k|keys?|v|values?|inputs?)\b[^()\[\]\n]{0,30}"
    r"[(\[] ?(?:b|n|bs|bsz|batch\w*) ?[*x] ?(?:num_|n_?)?(?:h|heads?|q_heads|heads_q) ?"
    r",[^()\[\],\n]+,[^()\[\],\n]+[)\]]",
    re.IGNORECASE,
)
"""An input of three axes whose first one holds samples and heads."""


def states_heads_in_samples(target: object) -> bool:
    """Whether its documentation gives an input the shape (B * H, L, d)."""
    return any(map(HEADS_IN_SAMPLES.search, documents_of(target)))


INTEGERS = re.compile(r"\b0 ?(?:/|and|or) ?1\b|\b1 ?(?:/|and|or) ?0\b|\bint(?:s|egers?|32|64)?\b", re.IGNORECASE)
"""Words for a mask of integers."""


def states_integers(target: object, name: str) -> bool:
    """Whether its documentation states that a mask may be one of integers."""
    return any(INTEGERS.search(line) for line in said_of(target, name))


NUMBERS = re.compile(r"\bfloats?\b|\badd(?:ed|itive)\b", re.IGNORECASE)
BOOLEANS = re.compile(r"\bbool(?:ean)?s?\b|\bbyte\b|\btrue\b", re.IGNORECASE)
"""Words for a mask of numbers that are added, and for one of booleans."""


ADDED = re.compile(r"\bfloats?\b[^.;]{0,40}\badd(?:ed|itive)\b", re.IGNORECASE)
"""Words for numbers that are added."""


def states_added_numbers(target: object, name: str) -> bool:
    """Whether its documentation states that numbers in a mask are added."""
    return any(ADDED.search(line) for line in said_of(target, name))


def states_numbers_alone(target: object, name: str) -> bool:
    """Whether its documentation states that a mask is added, or of floats, and nowhere that it may be boolean."""
    own = said_of_mask(target, name)
    return any(map(NUMBERS.search, own)) and not any(map(BOOLEANS.search, own))


QUOTED = re.compile(r"""(["'`])([\w-]+)\1""")
"""A word in quotes of any kind."""


def stated_texts(target: object, name: str) -> list[str]:
    """The quoted words next to the name of an option in its documentation, each once."""
    return list(dict.fromkeys(each[2] for line in said_of(target, name) for each in QUOTED.finditer(line)))


OF_BOOLEANS = re.compile(r"\bbool(?:ean)?s?\b", re.IGNORECASE)
BOOLEAN_MASKS = re.compile(r"\bbool(?:ean)? (?:\w+ )?masks?\b", re.IGNORECASE)
"""Words for a mask of booleans, and for all masks as such."""


def states_booleans_alone(target: object, name: str) -> bool:
    """Whether its documentation states that a mask, or that masks, are boolean, and nowhere that one may be added.

    It may call the only mask "mask", whatever its parameter is called.
    """
    paragraphs = (each for text in documents_of(target) for each in paragraphs_of(text))
    said = [*(said_of_mask(target, name) or said_of_mask(target, "mask")), *filter(BOOLEAN_MASKS.search, paragraphs)]
    return any(map(OF_BOOLEANS.search, said)) and not any(map(NUMBERS.search, said))


def said_of_mask(target: object, name: str) -> list[str]:
    """What is said of the mask of this name: what is said of another one is none of it."""
    own = [rest for line in said_of(target, name) for rest in re.split(rf"\b{re.escape(name)}\b", line)[1:]]
    return [re.split(r"\w*_mask\b", rest)[0] for rest in own]


def _polarity(match: re.Match[str]) -> Polarity:
    shows = re.fullmatch(SHOWN, match["word"], re.IGNORECASE) is not None
    negated = bool(match["negated"]) or re.search(rf"\b(?:{NEGATED})\b", match["between"], re.IGNORECASE) is not None
    of_false = FALSE.fullmatch(match["value"]) is not None
    return Polarity.MAY_ATTEND if (shows != negated) != of_false else Polarity.MASKED_OUT


def said_of(target: object, name: str) -> list[str]:
    """The paragraphs of its documentation and comments that name the mask: a line with those that go on with it."""
    documents = documents_of(target)
    comments = [line for line in (*_comments(target), *_of_condition(target, name)) if not OF_OTHERS.search(line)]
    paragraphs = [part for text in documents for part in paragraphs_of(text)]
    return [part for part in (*paragraphs, *comments) if re.search(rf"\b{re.escape(name)}\b", part)]


def _of_condition(target: object, name: str) -> list[str]:
    """The comments behind the condition that it is given, which are about it: `if mask is not None:  # (B, L)`."""
    given = re.compile(rf"^\s*(?:el)?if {re.escape(name)} is not None:\s*#(.*)", re.MULTILINE)
    return [f"{name}: {comment.strip()}" for comment in given.findall(code_of(target))]


def _comments(target: object) -> list[str]:
    code = code_of(target)
    return [line.partition("#")[2] for line in code.splitlines() if "#" in line]


def documents_of(target: object) -> list[str]:
    """Its own documentation, and that of what builds and calls it."""
    return [inspect.getdoc(owner) or "" for owner in _owners(target)]


def sentences_of(target: object) -> list[str]:
    """The sentences of all that, each in one line and without marks of code."""
    return split(documents_of(target))


def split(texts: Iterable[str]) -> list[str]:
    """The sentences of texts."""
    lines = (" ".join(text.replace("`", "").split()) for text in texts)
    return [each for line in lines for each in re.split(r"(?<!\.)[.;](?:\s|$)", line)]


def _owners(target: object) -> list[object]:
    """It, and what builds and calls it."""
    own = (getattr(target, method, None) for method in ("__init__", "forward", "__call__"))
    return [target, *(each for each in own if each is not None)]


HEADING = re.compile(
    r"(?:keyword )?(?:arg(?:ument)?s?|param(?:eter)?s?|inputs?|outputs?|returns?|shapes?) ?:[\w*, ]*", re.IGNORECASE
)
"""A line above the paragraphs of several parameters, which may list their names."""


ENTRY = re.compile(r"\W*\w+`*(?: ?\([^)]*\))? ?:|\w*mask\b")
"""How a line on a parameter begins."""
WRAPPED = 60
"""Characters of a line that is cut where its paragraph is as wide as its lines."""


def _is_cut(line: str, following: str) -> bool:
    """Whether a line goes on in one that is no more indented."""
    cut = len(line) >= WRAPPED and not line.endswith((".", ":", ";"))
    return cut and following[:1].islower() and not ENTRY.match(following)


def paragraphs_of(text: str) -> list[str]:
    """Each line with the more indented ones below it, and with those in which its sentence goes on."""
    parts: list[str] = []
    indent, last = 0, ""
    for line in text.splitlines():
        own, words = len(line) - len(line.lstrip()), line.strip()
        deeper = bool(parts and words) and own > indent and not HEADING.fullmatch(parts[-1])
        if deeper or (own == indent and _is_cut(last, words)):
            parts[-1] += f" {words}"
        else:
            parts.append(words)
            indent = own
        last = words
    return parts


OF_SOFTMAX = re.compile(r"\bsoftmax (?:of|over|on) (?:the |all )?(?:attention )?(?:scores?|logits?)\b", re.IGNORECASE)
"""Words for a softmax, which may be in float32 where its scores are not."""
WIDE_SCORES = re.compile(
    r"\bscores?\b(?:(?!\bnot\b|[.;])[\s\S]){0,60}\bin (?:float32|fp32|single precision)\b|\b(?:float32|fp32) scores?\b",
    re.IGNORECASE,
)
"""Words for scores in float32."""


def states_wide_scores(target: object) -> bool:
    """Whether its documentation states that scores are in float32, and not that an option makes them so."""
    return any(WIDE_SCORES.search(OF_SOFTMAX.sub("softmax", part)) for part in unconditional(target))


def unconditional(target: object) -> list[str]:
    """The paragraphs of its documentation that are about no parameter, and state no condition on one."""
    names = "|".join(map(re.escape, parameters_of(target))) or r"(?!)"
    entry = rf"\W*(?:{names})\b`*(?: ?\([^)]*\))? ?:"
    condition = re.compile(rf"\b(?:if|when|with|where|unless) `*(?:{names})\b", re.IGNORECASE)
    parts = (part for text in documents_of(target) for part in re.split(rf"\n\s*\n|\n(?={entry})", text))
    return [part for part in parts if not re.match(entry, part) and not condition.search(part)]


def parameters_of(target: object) -> list[str]:
    """The names of the parameters of it, and of what builds and calls it, but for masks."""
    signatures = (safe_call(partial(inspect.signature, owner)).value for owner in _owners(target))  # type: ignore[arg-type]
    names = {name for each in signatures if each is not None for name in each.parameters}
    return sorted(name for name in names if "mask" not in name and len(name) > 1)


IMAGES_FIRST = re.compile(
    r"\b(?:b|n|bs|batch(?:_size)?|(?:num_|n_)?images?) ?\* ?(?:n_?w|(?:num_|n_)?windows)\b"
    r"|\b(?:by|of|as|from) `*window_partition\b|\ball (?:the )?windows of (?:the first|one|each|an) image\b",
    re.IGNORECASE,
)
"""Words for windows of which those of one image come one after another, (B * nW, N, E), as Swin partitions them."""


def states_images_first(target: object) -> bool:
    """Whether its documentation states that the windows of one image come one after another."""
    return any(IMAGES_FIRST.search(text) for text in documents_of(target))


ONE_LENGTH = re.compile(
    r"\b(?:one|same|equal|common|single) (?:sequence )?lengths?\b|\bself[- ]attention\b"
    r"|\bq(?:uery|ueries)?\s*,\s*k(?:eys?)?\s*,?\s*(?:and\s+)?v(?:alues?)?\b[^()\n]{0,20}\([^()]*,[^()]*\)",
    re.IGNORECASE,
)
"""Words for queries and keys of one length, and one shape that is given to query, key and value together."""


OF_HEADS = re.compile(
    r"(?:n|num)?_?(?:q|k|v|kv|key|query)?_?(?:h(?:q|k|v|kv)?|heads?)(?:_?(?:q|k|v|kv))?", re.IGNORECASE
)
"""How an axis of heads is called in a shape."""


def states_one_length(target: object) -> bool:
    """Whether its documentation gives queries and keys one length, by words or by the axes of their shapes."""
    for text in documents_of(target):
        query, key = (_axes(text, names) for names in ("q|query|queries", "k|key|keys"))
        if ONE_LENGTH.search(text) or (len(query) > 1 and query == key):
            return True
    return False


def states_two_lengths(target: object) -> bool:
    """Whether its documentation gives queries and keys other axes, but for those of heads."""
    shapes = ([_axes(text, names) for names in ("q|query|queries", "k|key|keys")] for text in documents_of(target))
    return any(query and key and query != key for query, key in shapes)


def _axes(text: str, names: str) -> set[str]:
    """The axes of the shape that stands behind one of these names, but for those of heads."""
    found = re.search(rf"\b(?i:{names})\b(?:[^()\n]{{0,40}}\bshape)?\W{{0,4}}\(([^()]*,[^()]*)\)", text)
    axes = {axis.strip() for axis in found[1].split(",")} if found else set()
    return {axis for axis in axes if not OF_HEADS.fullmatch(axis)}


NORM, ROTATION = r"\b(?:qk[- ]?)?(?:rms)?norm\w*\b", r"\b(?:rotar\w+|rotat\w+|rope|turned)\b"
NORMS_FIRST = re.compile(rf"{NORM}[^.;]{{0,120}}\b(?:then|before)\b[^.;]{{0,60}}{ROTATION}", re.IGNORECASE)
ROTATIONS_FIRST = re.compile(rf"{ROTATION}[^.;]{{0,120}}\b(?:then|before)\b[^.;]{{0,60}}{NORM}", re.IGNORECASE)
"""Words for norms of queries and keys that come before their rotations, and after them."""
OF_NORMS_FIRST = re.compile(r"^(?:qwen3|gemma3)", re.IGNORECASE)
"""Names of models whose norms come first."""


def states_norms_first(target: object) -> bool | None:
    """Whether norms come before rotations by its name or documentation; None where these state neither, or both."""
    documents = [" ".join(text.split()) for text in documents_of(target)]
    first, last = (any(map(words.search, documents)) for words in (NORMS_FIRST, ROTATIONS_FIRST))
    if first is not last:
        return first
    return True if OF_NORMS_FIRST.match(getattr(target, "__name__", "")) and not first else None
