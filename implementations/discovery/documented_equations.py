"""Documentation: which function of queries and keys it states, by its own sentences and by the functions it calls."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable

from attention_conformance.implementations.discovery.code_text import tree_of
from attention_conformance.implementations.discovery.documented import documents_of, sentences_of, split, unconditional

DENIED = re.compile(
    r"\b(?:unlike|not|never|no|nor|without|differs?|different|other than|instead of|rather than|incompatible)\b|n't\b",
    re.IGNORECASE,
)
"""Words before which, or with which, something is not stated."""
BEFORE = 40
"""Characters in which such a word may stand before it."""


def stated(words: re.Pattern[str], sentence: str) -> re.Match[str] | None:
    """These words in a sentence, if it has no denial in them or shortly before them."""
    found = words.search(sentence)
    return None if found is None or DENIED.search(sentence[max(0, found.start() - BEFORE) : found.end()]) else found


SCORES = r"(?:scores?|logits?|dot[- ]products?)"
UNSCALED = re.compile(
    rf"\b{SCORES} (?:is|are) (?:not scaled|unscaled)\b|\b(?:unscaled|no scaling of(?: the)?) {SCORES}\b"
    r"|\b(?:no|without|lacks?)(?: the)?(?: usual)? 1 ?/ ?sqrt",
    re.IGNORECASE,
)
"""How a text states that scores are not scaled."""
OF_T5 = re.compile(r"(?:^|_)(?:u?m)?t5(?:_|$)|(?<![A-Z])(?:U?M)?T5(?![a-z])")
"""Names of T5's attention, which does not scale scores."""


def states_unscaled(target: object) -> bool:
    """Whether its name, T5's, or its documentation states that scores are not scaled; options state nothing."""
    named = OF_T5.search(getattr(target, "__name__", "")) is not None
    return named or any(map(UNSCALED.search, split(unconditional(target))))


SCALED = re.compile(r"\bscaled[- ]dot[- ]products?\b", re.IGNORECASE)


def states_scaled(target: object) -> bool:
    """Whether its documentation states that it is scaled dot-product attention."""
    return any(stated(SCALED, each) for each in split(unconditional(target)))


OF_TORCH = re.compile(
    r"\b(?:state[ _]?dicts?|checkpoints?|parameters|weights|layout of in_proj_weight)\b.{0,60}\bmultiheadattention\b",
    re.IGNORECASE,
)
"""Words for parameters that are those of torch.nn.MultiheadAttention."""


def states_torchs_parameters(target: object) -> bool:
    """Whether its documentation states that its parameters are those of torch.nn.MultiheadAttention."""
    return any(stated(OF_TORCH, each) for each in sentences_of(target))


ONE_OF_EACH = r"q(?:uer(?:y|ies))? ?, ?k(?:eys?)? ?,? ?(?:and )?v(?:alues?)?"
LAST = r"(?:along|on|in|over|of) (?:the )?(?:last|feature|channel) (?:axis|dim(?:ension)?)"
IN_BLOCKS = re.compile(
    rf"\b(?:cat|concat(?:enate)?) ?\( ?[\[(] ?{ONE_OF_EACH} ?[\])] ?, ?(?:(?:dim|axis) ?= ?)?-1 ?\)"
    rf"|\b{ONE_OF_EACH}(?: \w+){{0,3}} (?:concatenated|one after (?:the )?other|side by side) {LAST}\b"
    rf"|\bconcatenation of (?:the )?{ONE_OF_EACH} {LAST}\b",
    re.IGNORECASE,
)
OF_EACH_HEAD = re.compile(
    r"\b(?:per|each|every|within|by|one|a|all)(?: of)?(?: the| its)?[- ]heads?\b|\bheads one after\b"
    r"|\bhead[- ](?:by|major|first)\b|\binterleav|\bgroups?\b|\bweights?\b",
    re.IGNORECASE,
)
"""Words for all queries before all keys before all values in the last axis of one array, and for those of each head."""


def states_blocks(target: object) -> bool:
    """Whether one array has all queries, then all keys, then all values in its last axis, by its documentation."""
    return any(stated(IN_BLOCKS, each) and not OF_EACH_HEAD.search(each) for each in sentences_of(target))


OWN_KEY = r"(?:itself(?! an?\b)|its own (?:key|token))"
NOT_ITSELF = re.compile(
    rf"\b(?:reads?|sees?|attends?)\b.{{0,40}}\b(?:not|never|excluding|except)(?: to)? {OWN_KEY}\b"
    rf"|\b(?:not|never) (?:see|attend to|read) {OWN_KEY}\b",
    re.IGNORECASE,
)
"""Words for queries that do not see the keys at their own places."""


def states_own_unseen(target: object) -> bool:
    """Whether a query does not see its own key by its documentation; options and windows state nothing."""
    sentences = (each for each in split(unconditional(target)) if "window" not in each.lower())
    return any(NOT_ITSELF.search(each) and not re.search(r"\b(?:if|when|unless)\b", each) for each in sentences)


OF_INFERENCE = re.compile(
    r"\b(?:decoding|ring[- ]buffer|(?:inference|decoding)[- ]only|only (?:for|at|in) inference|inference alone)\b",
    re.IGNORECASE,
)
"""Words for what nobody differentiates."""
OF_TRAINING = re.compile(r"\b(?:train\w*|gradients?|backward|differentia\w+)\b", re.IGNORECASE)
"""Words that state that somebody does."""


def is_for_inference(target: object) -> bool:
    """Whether it is for inference by its own documentation, or by the first sentence of its file."""
    file = sentences_of(sys.modules.get(getattr(target, "__module__", "")))[:1]
    sentences = [*sentences_of(target), *file]
    return any(map(OF_INFERENCE.search, sentences)) and not any(map(OF_TRAINING.search, sentences))


OF_ZERO_KEY = re.compile(
    r"\bsoftmax[-_ ]?(?:1|one|plus[-_ ]?one|off[-_ ]?by[-_ ]?one)\b|\bquiet[-_ ]?(?:softmax|attention)\b"
    r"|\battention is off by one\b|\b1(?:\.0)? ?\+ ?(?:the )?(?:\\?sum|Σ)|\bzero[-_ ]attn\b",
    re.IGNORECASE,
)
"""Words for a softmax with one more term in its sum, exp(0), which is a key of zeros."""


def states_zero_key(target: object) -> bool:
    """Whether its documentation, or the name of a function that it calls, is of such a softmax; options are not."""
    own = any(stated(OF_ZERO_KEY, each) for each in split(unconditional(target)))
    return own or any(map(OF_ZERO_KEY.search, _called(target)))


def _called(target: object) -> list[str]:
    """The names of the functions that its code calls."""
    code = tree_of(target)
    calls = (each.func for each in ast.walk(code) if isinstance(each, ast.Call)) if code is not None else ()
    return [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls]


OF_ALIBI = re.compile(r"alibi(?![a-z])|alibi_?slopes", re.IGNORECASE)
OF_OTHER_SLOPES = re.compile(
    r"\b(?:unlike|differ\w*|other than|instead|rather than|incompatible|own(?! slope\b)|custom|variant|variation"
    r"|modifi\w+|approximat\w+|simpl\w+|truncat\w+|cut|drop\w*|learn\w*|train\w*|sort\w*|reorder\w*|permut\w+"
    r"|interpolat\w+|alternative|(?:next|higher|larger|above|up)\b.{0,20}\bpower|rounded|non-?standard"
    r"|similar|related|like|cf|see|compared|generali[sz]\w*|first h\b|\w*ceil|next|nearest"
    r"|not (?:as|those|the|like|exactly|quite|compatible)|inspired|alibi[- ](?:like|style))\b",
    re.IGNORECASE,
)
"""Words for ALiBi, and for slopes that are not quite those."""
OF_SLOPES = re.compile(r"slopes?(?![a-z])|alibi", re.IGNORECASE)


def states_alibi(target: object, option: str = "") -> bool:
    """Whether it has the slopes of ALiBi by its name or documentation, or by those of what makes its slopes.

    A sentence on other slopes anywhere leaves that open, and the name of an option alone states nothing.
    """
    makers = [each for each in _callees(target) if OF_SLOPES.search(f"{each.__name__} {inspect.getdoc(each) or ''}")]
    sentences = [each for owner in (target, *makers) for each in split(documents_of(owner))]
    named = any(OF_ALIBI.search(getattr(owner, "__name__", "")) for owner in (target, *makers))
    apart = (each.replace(option, "") if option else each for each in sentences)
    of_alibi = named or any(stated(OF_ALIBI, each) for each in apart)
    return of_alibi and not any(OF_SLOPES.search(each) and OF_OTHER_SLOPES.search(each) for each in sentences)


def _callees(target: object) -> list[Callable[..., object]]:
    """The functions of its file that its code calls."""
    file = sys.modules.get(getattr(target, "__module__", ""))
    found = (getattr(file, name, None) for name in dict.fromkeys(_called(target)))
    return [each for each in found if inspect.isfunction(each)]
