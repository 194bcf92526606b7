"""Promises: what a class states by the names of a well-known interface, in its documentation, or in its own code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

from torch import nn

from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import documented_polarity, states_added_numbers
from attention_conformance.implementations.discovery.documented_equations import OF_T5
from attention_conformance.implementations.discovery.modules.template import Variant
from attention_conformance.spec.conventions import Polarity

SIZES = {"embed_dim", "num_heads"}
INPUTS = {"query", "key", "value"}
OF_FORWARD = {"key_padding_mask", "need_weights", "attn_mask", "average_attn_weights"}
"""Published names of torch.nn.MultiheadAttention: of its constructor, its inputs, and its options."""
PADDING = "key_padding_mask"
OF_ONE = r"(?!_?(?:channels|dim|size|width))"
"""What follows a head where its width is meant, and not the number of heads."""
FEWER = r"\W*(?:self\.)?\w*(?:kv|key|group)"
"""What follows where heads are divided among fewer key heads, and not the width among heads."""
STATED = re.compile(
    rf"divisib(?!\w* by \w*head_(?:channels|dim|size|width))(?!\w* by{FEWER})|must divide(?!{FEWER})"
    rf"|\bheads?\b.{{0,20}}\bdivides?\b(?!{FEWER})|%(?!{FEWER}) *(self\.)?\w*(heads|head{OF_ONE}|\bh\b)",
    re.IGNORECASE,
)
"""What documentation or code has where widths that the heads do not divide are refused: words, or a remainder."""


def has_published_interface(kind: type[nn.Module]) -> bool:
    """Whether constructor and forward have the names of torch.nn.MultiheadAttention, or are inherited from it."""
    if issubclass(kind, nn.MultiheadAttention):
        return True
    built, called = _names(kind, "__init__"), _names(kind, "forward")
    return built >= SIZES and called >= INPUTS and bool(called & OF_FORWARD)


def takes_float_padding(kind: type[nn.Module], spelled: Mapping[str, str]) -> bool:
    """Whether its padding mask may be one of numbers by its documentation, or names whose code makes no booleans of it.

    The published class takes numbers there since it has `is_causal`; copies of older ones take booleans alone.
    """
    if "key_padding_mask" not in spelled or spelled.get("float_mask") != "attn_mask":
        return False
    if states_added_numbers(kind, spelled["key_padding_mask"]):
        return True
    if not (issubclass(kind, nn.MultiheadAttention) or "is_causal" in _names(kind, "forward")):
        return False
    own = re.escape(spelled["key_padding_mask"])
    made_boolean = rf"\b{own}\b[^\n]*\.(?:bool\(\)|(?:to|type)\((?:dtype=)?torch\.bool)"
    return re.search(made_boolean, text_of(kind)) is None


def padding_polarity(kind: type[nn.Module]) -> Polarity:
    """What True in its masks means before anything is seen: a padding mask alone may be documented the other way."""
    masks = {name for name in _names(kind, "forward") if "mask" in name}
    if masks != {PADDING} or has_published_interface(kind):
        return Polarity.MASKED_OUT
    return documented_polarity(kind, PADDING) or Polarity.MASKED_OUT


UNSCALED = re.compile(r"\b(?:(?:no|not|without)[- ]scal(?:ing|ed)|unscaled)\b", re.IGNORECASE)
"""How a text states that scores are not scaled."""


def is_unscaled(kind: Callable[..., nn.Module], variant: Variant) -> bool:
    """Whether its scores are not scaled as it is seen, and its name, T5's, or its text states that they are not."""
    if variant.scale != 0.0 or variant.cosine or not isinstance(kind, type):
        return False
    named = OF_T5.search(kind.__name__) is not None
    return named or any(UNSCALED.search(text_of(each)) for each in (kind, *_inside(kind)))


SLOPES_SCALED = re.compile(
    r"falcon|(?:bias|alibi|slope)\w*[- ](?:is|are|being)?[- ]?(?:(?:also|too|then)[- ])?scaled"
    r"|scal(?:es?|ed|ing) (?:the |both )?(?:\w+ and )?(?:the )?(?:bias|alibi|slope)"
    r"|\+ *\w*(?:bias|alibi|slope)[^)\n]*\) *[/*]",
    re.IGNORECASE,
)
"""How a text states that a bias is scaled with the scores: as Falcon, in words, or by an equation."""


def scales_slopes(kind: type[nn.Module]) -> bool:
    """Whether its name or text states that the slopes of its scores are scaled with these.

    Its code is no statement, but for its comments: a mistake may stand there.
    """
    documentation = (kind.__name__, kind.__doc__, kind.__init__.__doc__, kind.forward.__doc__)
    comments = re.findall(r"#.*", code_of(kind))
    return any(each and SLOPES_SCALED.search(each) for each in (*documentation, *comments))


def _inside(kind: type[nn.Module]) -> list[type[nn.Module]]:
    """The module classes that its constructor names."""
    init = vars(kind).get("__init__")
    space: dict[str, object] = getattr(init, "__globals__", {})
    named = [space.get(name) for name in getattr(getattr(init, "__code__", None), "co_names", ())]
    return [each for each in named if isinstance(each, type) and issubclass(each, nn.Module)]


def _names(kind: type[nn.Module], method: str) -> set[str]:
    """The parameters of a method, and of those that it overrides where it takes any."""
    names: set[str] = set()
    for owner in kind.__mro__:
        if method in vars(owner) and owner is not nn.Module:
            parameters = inspect.signature(vars(owner)[method]).parameters.values()
            names |= {p.name for p in parameters}
            if not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
                break
    return names


def refuses_widths(kind: type[nn.Module]) -> bool:
    """Whether it promises to refuse a width that its heads do not divide: see the clause errors.heads."""
    return has_published_interface(kind) or bool(STATED.search(text_of(kind)))


def text_of(kind: Callable[..., nn.Module]) -> str:
    """Its code where that can be read, and its documentation."""
    return "\n".join([code_of(getattr(kind, "original", kind)), kind.__doc__ or "", kind.__init__.__doc__ or ""])
