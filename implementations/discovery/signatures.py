"""Signatures: which questions a callable can be asked, and under which names, read from its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.spec.features import Feature

ADAPTER = "or let the auditor write an adapter (docs/adapter.md)"

ROLES = {
    "query": {"q", "qs", "xq", "query", "queries"},
    "key": {"k", "ks", "xk", "key", "keys"},
    "value": {"v", "vs", "xv", "value", "values"},
}
"""How inputs are called, as one of the words of a parameter's name."""

OPTIONS = {
    "bool_mask": ("attn_mask", "mask", "attention_mask"),
    "float_mask": ("attn_bias", "bias", "attn_mask", "mask", "attention_mask"),
    "key_padding_mask": ("key_padding_mask",),
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale",),
    "need_weights": ("need_weights",),
    "average_attn_weights": ("average_attn_weights",),
    "enable_gqa": ("enable_gqa",),
    "dropout_p": ("dropout_p",),
    "training": ("training",),
    "window_size": ("window_size",),
    "softcap": ("softcap", "logits_soft_cap", "logit_cap"),
    "rotary_base": ("rotary_base",),
    "query_start": ("query_start", "q_offset"),
    "alibi_slopes": ("alibi_slopes",),
    "relative_bias": ("relative_bias",),
    "sinks": ("sinks", "sink"),
    "add_zero_attn": ("add_zero_attn",),
    "head_gates": ("head_gates",),
    "query_segments": ("query_segments", "q_segment_ids", "segment_ids"),
    "key_segments": ("key_segments", "kv_segment_ids"),
    "cu_seqlens_q": ("cu_seqlens_q",),
    "cu_seqlens_k": ("cu_seqlens_k",),
}
"""What can be asked for, and the parameters that take it, the preferred one first.

A mask is passed under the name found here, be it boolean or float. Where there is a parameter for a bias,
float masks go there; a bias alone takes no boolean mask.
"""

BY_OPTION: Mapping[str, tuple[Feature, ...]] = {
    "bool_mask": (Feature.BOOL_MASK,),
    "float_mask": (Feature.FLOAT_MASK, Feature.MASK_GRADIENT),
    "key_padding_mask": (Feature.KEY_PADDING,),
    "is_causal": (Feature.CAUSAL,),
    "scale": (Feature.SCALE,),
    "enable_gqa": (Feature.GROUPED,),
    "dropout_p": (Feature.DROPOUT,),
    "training": (Feature.EVALUATION,),
    "window_size": (Feature.WINDOW,),
    "softcap": (Feature.SOFTCAP,),
    "rotary_base": (Feature.ROTARY,),
    "query_start": (Feature.QUERY_START,),
    "alibi_slopes": (Feature.ALIBI,),
    "relative_bias": (Feature.RELATIVE_BIAS,),
    "sinks": (Feature.SINKS,),
    "add_zero_attn": (Feature.ZERO_ATTN,),
    "head_gates": (Feature.HEAD_GATES,),
    "query_segments": (Feature.SEGMENTS,),
    "cu_seqlens_q": (Feature.CUMULATIVE_LENGTHS,),
}
"""What each of them claims."""
PARTNERS = {"query_segments": "key_segments", "cu_seqlens_q": "cu_seqlens_k"}
"""An option that is told for queries, and its partner for keys."""
NEEDLESS = ("enable_gqa", "key_segments")
"""What may be left out where a callable has no name for it: shapes, or ids that queries and keys share, say it too."""

NEUTRAL = {
    "is_causal": False,
    "causal": False,
    "enable_gqa": False,
    "need_weights": False,
    "add_zero_attn": False,
    "window_size": (-1, -1),
}
"""What a required parameter is given where nothing is asked of it; others get None."""


def _sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> None:
    """The parameters of torch's scaled_dot_product_attention."""


SDPA = inspect.signature(_sdpa)
SWALLOWED = {"bool_mask": "attn_mask", "float_mask": "attn_mask", "is_causal": "is_causal"}
"""What the **kwargs of a forward is taken to stand for, unless a call shows that nothing heeds it."""
SWALLOWED_BY_FUNCTIONS = SWALLOWED | {
    option: option
    for option in (*BY_OPTION, *PARTNERS.values())
    if option not in ("bool_mask", "float_mask", "key_padding_mask", "training")
}
"""The same of a function."""

LIKE = 0.8
"""How alike names are that are taken for each other, 1 for equal ones: a letter or two of nine differ."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Its signature; torch's for a builtin that tells none, that of the schema for a scripted function."""
    schema = getattr(function, "schema", None)
    if schema is not None and hasattr(schema, "arguments"):
        return inspect.Signature([_scripted(argument) for argument in schema.arguments])
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return SDPA


def _scripted(argument: Any) -> inspect.Parameter:
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def positional(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that can be given by position."""
    return [p for p in signature.parameters.values() if p.kind in _POSITIONAL]


def takes_any(signature: inspect.Signature, kind: Any) -> bool:
    """Whether there is an *args (VAR_POSITIONAL) or **kwargs (VAR_KEYWORD)."""
    return any(p.kind is kind for p in signature.parameters.values())


def required(parameter: inspect.Parameter) -> bool:
    """Whether a call must give it."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic


def role(name: str) -> str | None:
    """`query`, `key` or `value` if the name says which input it is."""
    words = set(name.lower().split("_"))
    found = [each for each, spellings in ROLES.items() if words & spellings]
    return found[0] if len(found) == 1 else None


def check_order(parameters: Sequence[inspect.Parameter]) -> None:
    """Refuses inputs whose names say that they come in another order than query, key, value.

    Raises:
        TargetError: they do.
    """
    found = [role(p.name) for p in parameters]
    if any(each not in (None, wanted) for each, wanted in zip(found, ROLES, strict=False)):
        names = ", ".join(p.name for p in parameters)
        raise TargetError(f"its inputs come as ({names}): order them query, key, value, {ADAPTER}")


def without_dropout(parameters: Iterable[inspect.Parameter]) -> dict[str, object]:
    """A rate of 0 for every dropout that is required, or has another rate by default."""
    dropping = (p for p in parameters if "drop" in p.name)
    return {p.name: 0.0 for p in dropping if required(p) or (isinstance(p.default, int | float) and p.default)}


@dataclass(frozen=True)
class Options:
    """What can be asked of a callable beside its inputs.

    Attributes:
        spelled: its own name for each of `OPTIONS` that it takes.
        always: what it is given whatever is asked, by its own names.
        defaults: what it may leave out, by its own names, with the values that stand for leaving it out.
        swallowed: the options that only a **kwargs takes.
        mistyped: what was perhaps meant by parameters that the suite does not know, by their names.
    """

    spelled: Mapping[str, str]
    always: Mapping[str, object]
    defaults: Mapping[str, object] = field(default_factory=dict)
    swallowed: frozenset[str] = frozenset()
    mistyped: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, option: str) -> bool:
        return option in self.spelled

    def spelled_out(self) -> Options:
        """These options with every default given in each call."""
        return replace(self, always={**self.defaults, **self.always})

    @property
    def features(self) -> frozenset[Feature]:
        """What the options claim; ids and lengths of documents for queries and keys, or one for both."""
        whole = [o for o in self.spelled if PARTNERS.get(o, o) in self.spelled or self.for_both(o)]
        return frozenset(feature for option in whole for feature in BY_OPTION.get(option, ()))

    @property
    def named(self) -> frozenset[Feature]:
        """What the options claim that have a parameter of their own."""
        own = {option: name for option, name in self.spelled.items() if option not in self.swallowed}
        return replace(self, spelled=own).features

    @property
    def notes(self) -> list[str]:
        """What to say of parameters that look like an option, and are none."""
        return [
            f"{meant} not claimed: its parameter {name!r} is nothing that the suite knows; is {meant!r} meant?"
            for name, meant in self.mistyped.items()
        ]

    def for_both(self, option: str) -> bool:
        """Whether its own name for an option means queries and keys alike."""
        return option == "query_segments" and self.spelled.get(option) == "segment_ids"

    def renamed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """attn_mask, key_padding_mask, is_causal, scale and what lies beyond under its own names."""
        given = dict(self.always)
        for name, argument in asked.items():
            option = name
            if name == "attn_mask":
                option = "bool_mask" if "bool" in str(argument.dtype) else "float_mask"
            if option in self.spelled or option not in NEEDLESS:
                given[self.spelled.get(option, name)] = argument
        return given


def read_options(
    signature: inspect.Signature, inputs: Iterable[inspect.Parameter], swallowed: Mapping[str, str]
) -> Options:
    """The options among the parameters that are no inputs; a **kwargs takes the `swallowed` ones too.

    Raises:
        TargetError: a required parameter is none of them.
    """
    names = {p.name for p in inputs}
    rest = [p for p in signature.parameters.values() if p.name not in names]
    able = {p.name for p in rest if p.kind in _NAMED}
    spelled = {option: name for option in OPTIONS if (name := _spelling(option, able))}
    hidden = set(swallowed) - set(spelled) if takes_any(signature, inspect.Parameter.VAR_KEYWORD) else set()
    spelled |= {option: swallowed[option] for option in hidden}
    return Options(spelled, _always(rest, able), _defaults(rest, spelled), frozenset(hidden), _mistyped(able, spelled))


def _mistyped(able: set[str], spelled: Mapping[str, str]) -> dict[str, str]:
    """What was perhaps meant by unknown parameters: an option that the callable does not take otherwise."""
    known = {name: option for option, names in OPTIONS.items() for name in names}
    missing = [name for name, option in known.items() if option not in spelled]
    near = {name: get_close_matches(name, missing, 1, LIKE) for name in sorted(able - set(known))}
    return {name: found[0] for name, found in near.items() if found}


def _defaults(rest: Iterable[inspect.Parameter], spelled: Mapping[str, str]) -> dict[str, object]:
    known = {*spelled.values(), "dropout_p", "enable_gqa"}
    found: dict[str, object] = {p.name: p.default for p in rest if p.name in known and not required(p)}
    return found | {name: False for name in ("is_causal", "causal") if name in found}


def _spelling(option: str, names: set[str]) -> str | None:
    return next((name for name in OPTIONS[option] if name in names), None)


def _always(rest: Iterable[inspect.Parameter], able: set[str]) -> dict[str, object]:
    known = {name for names in OPTIONS.values() for name in names} | set(NEUTRAL)
    given = without_dropout(p for p in rest if p.name in able)
    given |= {p.name: False for p in rest if p.name in ("is_causal", "causal") and p.default is True}
    given |= {p.name: True for p in rest if p.name == "training" and p.name in able}
    for parameter in rest:
        if required(parameter) and parameter.name not in given:
            if parameter.name not in known & able:
                told = f"it needs {parameter.name!r}, which the suite does not know"
                raise TargetError(f"{told}: give that a default, {ADAPTER}")
            given[parameter.name] = NEUTRAL.get(parameter.name)
    return given
