"""Names that promise: what is called causal, and takes neither a flag nor a mask that makes it so, always has to be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator

from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.vocabulary import OPTIONS

WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
NEGATED = {"non", "no", "not", "un", "bi", "prefix"}
CHOSEN = re.compile(r"mask|causal|attn_bias|attention_bias")
"""What is part of the names of parameters by which the caller chooses."""
SETTING = re.compile(r"\b(config|cfg|conf|args|opts?|hparams|params)\.\w*(causal|mask)")
"""What a choice in an object of settings looks like."""

OTHERWISE = re.compile(
    r"non[-_ ]?causal|bi-?directional|prefix|conv|is_causal|(?:self|use)[._]causal|causal ?= ?False"
    r"|\b(?:not|no|unlike|without|than|versus|instead of|optional(?:ly)?|if|when)\b[\w ]{0,20}causal",
    re.IGNORECASE,
)
"""What else the text of a class may say of causality than that it always hides later keys."""


CAUSAL = {"causal", "causality"}
OF_DECODERS = {"decoder", "autoregressive"}
"""Words for what sees no later token, and does other things as well."""
FLAG_WORDS = {*CAUSAL, "is", "use", "apply", "with", "mask", "masked", "masking", "attn", "attention"}
"""Words that the name of a flag of causality consists of."""


def is_causal_flag(parameter: inspect.Parameter) -> bool:
    """Whether it is a flag of a triangle: by a known name, or a boolean one of causality in other words."""
    words = {*parameter.name.lower().split("_")}
    own = isinstance(parameter.default, bool) and bool(words & CAUSAL) and words <= FLAG_WORDS
    return own or parameter.name in OPTIONS["is_causal"].parameters


def is_decoder_flag(parameter: inspect.Parameter) -> bool:
    """Whether it is a flag, off by default, of a decoder or of what predicts the next token."""
    words = {*parameter.name.lower().split("_")}
    return parameter.default is False and bool(words & OF_DECODERS) and words <= FLAG_WORDS | OF_DECODERS


def promises_causal(name: str, target: object) -> bool:
    """Whether its name alone says that no query sees a later key."""
    return _named(name) and not _chosen(target, flags_of_name(target))


def flags_of_name(kind: object) -> tuple[str, ...]:
    """The flags of its constructor that make a class as causal as it is called: those that it has to be given.

    And those of a decoder that are off by default; one of causality that is off is the caller's choice.
    """
    if not isinstance(kind, type) or not _named(kind.__name__):
        return ()
    own = _parameters(getattr(kind, "__init__", None))
    return tuple(p.name for p in own if _is_needed_flag(p) or is_decoder_flag(p))


def _is_needed_flag(parameter: inspect.Parameter) -> bool:
    """Whether it has to be given, and is a flag of causality by its annotation, or by its words alone."""
    words = {*parameter.name.lower().split("_")}
    stated = parameter.annotation in (bool, "bool")
    own = words & {*CAUSAL, *OF_DECODERS} if stated or "is" in words else words & CAUSAL
    masks = stated and words & FLAG_WORDS & {"mask", "masked", "masking"}
    known = bool(own or masks) and words <= FLAG_WORDS | OF_DECODERS
    return known and parameter.default is inspect.Parameter.empty


def _named(name: str) -> bool:
    words = [word.lower() for word in WORDS.findall(name)]
    return "causal" in words and not NEGATED & set(words[: words.index("causal")])


def says_causal(target: object) -> bool:
    """Whether its text speaks of causality, and of nothing by which that could be otherwise or be of something else."""
    text = code_of(target)
    return "causal" in text.lower() and not OTHERWISE.search(text) and not _chosen(target)


def _chosen(target: object, given: Collection[str] = ()) -> bool:
    """Whether the caller, or an object of settings, may choose what is hidden, by other parameters than are given."""
    calls = [getattr(target, method, None) for method in ("__init__", "forward", "__call__")]
    called = [each for each in calls if each is not None] if isinstance(target, type) else [target]
    parameters = [parameter for each in called for parameter in _parameters(each) if parameter.name not in given]
    chosen = any(CHOSEN.search(p.name.lower()) or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return chosen or SETTING.search(code_of(target)) is not None


def _parameters(function: object) -> Iterator[inspect.Parameter]:
    """Those of a function that is its own: object and torch have some that take anything."""
    if inspect.isfunction(function) and not (function.__module__ or "").startswith("torch"):
        yield from inspect.signature(function).parameters.values()
