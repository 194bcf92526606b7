"""Signatures: which options a callable takes, and under which names, read from its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.causal_names import is_causal_flag
from attention_conformance.implementations.discovery.parameter_forms import in_list, list_of_biases, pair_of_window
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import (
    DISPENSABLE,
    FOR_BOTH,
    INPUTS,
    KNOWN_NAMES,
    LENGTH_NAMES,
    OPTIONS,
    PADDING_NAMES,
    PARTNERS,
    ROLES,
    TAKEN_BY,
    WEIGHTS_RETURNED,
    Option,
    by_words,
)
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional
from attention_conformance.spec.premises import Premises

torch = optional("torch")

REMEDY = "write an adapter, which `audit TARGET --write FILE` begins (docs/adapter.md)"
"""What ends a reason for which something cannot be judged."""
ADAPTER = f"or {REMEDY}"
LIBRARIES = ("flax", "equinox", "haiku", "keras", "paddle", "mlx")
"""Packages with modules of their own."""
SIMILARITY = 0.8
"""How similar a name must be to be a misspelling; 1 is equal, and 0.8 allows one or two letters of nine to differ."""

HIDING_WORDS = {"mask", "masks", "lengths", "lens", "seqlens"}
"""Words in the names of what hides keys."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
SDPA = inspect.signature(
    lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False: None
)
"""The parameters of torch's scaled_dot_product_attention."""


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Its signature; torch's SDPA's for a builtin that has none, that of the schema for a scripted function.

    Of a function whose `__signature__` is none, its code has one. An object may raise anything as it is read.
    """
    schema = safe_call(lambda: getattr(function, "schema", None)).value
    if schema is not None and hasattr(schema, "arguments"):
        return inspect.Signature([_scripted(argument) for argument in schema.arguments])
    try:
        return inspect.signature(function)
    except Exception:
        return _of_code(function)


def _of_code(function: Callable[..., object]) -> inspect.Signature:
    """The signature that the code of a function, or of its class's `__call__`, has; else torch's SDPA's."""
    own = isinstance(function, FunctionType)
    code = function if own else type(function).__call__
    if not isinstance(code, FunctionType):
        return SDPA
    bare = FunctionType(code.__code__, code.__globals__, argdefs=code.__defaults__, closure=code.__closure__)
    bare.__kwdefaults__ = code.__kwdefaults__
    found = inspect.signature(bare)
    return found if own else found.replace(parameters=[*found.parameters.values()][1:])


def _scripted(argument: Any) -> inspect.Parameter:
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def of_constructor(kind: Any) -> inspect.Signature:
    """The signature of a class's constructor, with the parameters of its bases where it passes on any."""
    whole = inspect.signature(kind)
    if not takes_any(whole, inspect.Parameter.VAR_KEYWORD) or not isinstance(kind, type):
        return whole
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        init = vars(base).get("__init__")
        if not isinstance(init, FunctionType) or base.__module__.startswith("torch."):
            continue
        own = list(inspect.signature(init).parameters.values())[1:]
        found = {p.name: p for p in own if not is_variadic(p)} | found
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            return whole.replace(parameters=sorted(found.values(), key=lambda p: (p.kind, not required(p))))
    return whole


def positional(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that can be given by position."""
    return [p for p in signature.parameters.values() if p.kind in _POSITIONAL]


def takes_any(signature: inspect.Signature, kind: Any) -> bool:
    """Whether there is an *args (VAR_POSITIONAL) or **kwargs (VAR_KEYWORD)."""
    return any(p.kind is kind for p in signature.parameters.values())


def is_variadic(parameter: inspect.Parameter) -> bool:
    """Whether it is *args or **kwargs."""
    return parameter.kind in _VARIADIC


def by_keyword(signature: inspect.Signature, inputs: Sequence[inspect.Parameter]) -> tuple[str, ...]:
    """The names of inputs that are given by keyword: some can be given so alone, or stand behind something else."""
    names = tuple(p.name for p in inputs)
    first = tuple(p.name for p in positional(signature)[: len(names)])
    apart = all(p.kind is not p.POSITIONAL_ONLY for p in inputs) and {*first} != {*names}
    return names if apart or any(p.kind is p.KEYWORD_ONLY for p in inputs) else ()


def required(parameter: inspect.Parameter) -> bool:
    """Whether a call must give it."""
    return parameter.default is inspect.Parameter.empty and not is_variadic(parameter)


def role(name: str) -> str | None:
    """`query`, `key` or `value` if the name states which input it is."""
    words = set(name.lower().split("_"))
    roles = [each for each, spellings in ROLES.items() if words & spellings]
    return roles[0] if len(roles) == 1 else None


def check_kind(target: object, remedy: str = "") -> None:
    """Refuses, with a TargetError, what is neither a function nor a module class."""
    usable = f"give a function of query, key and value or a module class{remedy}"
    if torch and isinstance(target, torch.nn.Module):
        raise TargetError(f"it is an instance of {type(target).__name__}: give the class{remedy}")
    if isinstance(target, type) and not torch:
        raise TargetError(f"it is a class, and modules need torch, which is not installed here: {usable}")
    if isinstance(target, type) and (library := _library(target)):
        parameters = "give a function of query, key and value that calls it"
        raise TargetError(f"it is a class of {library}, whose parameters the suite cannot set: {parameters}{remedy}")
    if isinstance(target, type) and not issubclass(target, torch.nn.Module):
        raise TargetError(f"it is a class, but no torch.nn.Module: {usable}")
    if not callable(target):
        raise TargetError(f"it is an object of type {type(target).__name__}: {usable}")


def _library(kind: type) -> str:
    """The library of modules, other than torch, that a class is derived from; empty for none."""
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((package for package in packages if package in LIBRARIES), "")


def dispensable(signature: inspect.Signature, name: str) -> inspect.Signature:
    """The signature with all but the first three by keyword, of which one need not be given."""
    inputs = [p.name for p in positional(signature)[:3]]
    named = [p if p.name in inputs else p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
    return signature.replace(parameters=[p.replace(default=None) if p.name == name else p for p in named])


def check_order(parameters: Sequence[inspect.Parameter]) -> None:
    """Refuses inputs whose names state that they come in another order than query, key, value.

    Raises:
        TargetError: they do.
    """
    if any(role(p.name) not in (None, expected) for p, expected in zip(parameters, INPUTS, strict=False)):
        names = ", ".join(p.name for p in parameters)
        raise TargetError(f"its inputs come as ({names}): order them query, key, value, {ADAPTER}")


def switched_off(parameters: Sequence[inspect.Parameter]) -> dict[str, object]:
    """What switches dropout and causality off where a call must decide on them, or their defaults switch them on."""
    given: dict[str, object] = {p.name: True for p in parameters if p.name == "deterministic" and required(p)}
    for p in parameters:
        drops = "drop" in p.name and not p.name.endswith("mask")
        if drops and (required(p) or (isinstance(p.default, int | float) and p.default)):
            given[p.name] = 0.0
        elif is_causal_flag(p) and (required(p) or p.default is True):
            given[p.name] = False
    return given


def window_names(signature: inspect.Signature) -> list[str]:
    """The parameters that may take the number of a window."""
    named = [p for p in signature.parameters.values() if "window" in p.name.lower().split("_")]
    return [p.name for p in named if p.default is None or (isinstance(p.default, int) and p.default is not True)]


class WindowNumber(Protocol):
    """What a number means that states a window."""

    def number(self, window: tuple[int, int]) -> int:
        """What states this window (l, r)."""


@dataclass(frozen=True)
class Options:
    """The parameters of a callable that are no inputs.

    Attributes:
        spelled: its own name for each of `OPTIONS` that it takes.
        always: what it is given in every call, by its own names.
        defaults: the values of options that are not given, by its own names.
        spelled_out: those of the defaults that it is given in every call.
        swallowed: the options that only a **kwargs takes.
        misspelled: its parameters that the suite does not know, and the known names that they resemble.
        implied: the options that it is not given, because it always does what they state.
        other_masks: its parameters that are masks or lengths by their names, and that the suite does not know.
        window: what a number means that it takes in the place of a window's two sides.
        lists_biases: whether added masks come in a list of several.
    """

    spelled: Mapping[str, str]
    always: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    spelled_out: Mapping[str, object] = field(default_factory=dict)
    swallowed: frozenset[str] = frozenset()
    misspelled: Mapping[str, str] = field(default_factory=dict)
    implied: frozenset[str] = frozenset()
    other_masks: tuple[str, ...] = ()
    window: WindowNumber | None = None
    lists_biases: bool = False

    def __contains__(self, option: str) -> bool:
        return option in self.spelled

    def with_defaults(self) -> Options:
        """These options with every default given in each call."""
        return replace(self, spelled_out=self.defaults)

    @property
    def named(self) -> Options:
        """Those of the options that have a parameter of their own."""
        return replace(self, spelled={o: name for o, name in self.spelled.items() if o not in self.swallowed})

    @property
    def features(self) -> frozenset[Feature]:
        """What the options claim; ids and lengths of documents for queries and keys, or one for both."""
        complete = [o for o in self.spelled if PARTNERS.get(o, o) in self.spelled or self.for_both(o)]
        return frozenset(feature for option in complete for feature in OPTIONS[option].features)

    @property
    def weights_returned(self) -> dict[str, object]:
        """What makes the callable return the weights of each head, by its own names."""
        return {self.spelled[option]: value for option, value in WEIGHTS_RETURNED.items() if option in self}

    @property
    def notes(self) -> list[str]:
        """A note on each parameter that looks like a misspelled option."""
        return [
            unclaimed(known, f"the suite does not know its parameter {name!r}; did you mean {known!r}?")
            for name, known in self.misspelled.items()
        ]

    def knowing(self, names: Set[str]) -> Options:
        """The same where these parameters are known by what they do."""
        return replace(self, misspelled={own: like for own, like in self.misspelled.items() if own not in names})

    def implying(self, premises: Premises) -> Options:
        """The same without the options that premises make needless; gains are given wherever they are taken."""
        implied = {n for n, each in OPTIONS.items() if any(map(premises.implies, each.features))}
        implied -= {*self.named.spelled} & {"query_norm"}
        return replace(self, implied=frozenset(implied | {PARTNERS[name] for name in implied & PARTNERS.keys()}))

    def with_masks_as(self, option: str) -> Options:
        """The same, in which the parameter of boolean masks is that of another option alone."""
        own = self.spelled["bool_mask"]
        return replace(
            self, spelled={**{known: name for known, name in self.spelled.items() if name != own}, option: own}
        )

    @property
    def has_bias_apart(self) -> bool:
        """Whether what is added to the scores has another name than boolean masks."""
        return self.spelled.get("float_mask") not in (None, self.spelled.get("bool_mask"))

    def for_both(self, option: str) -> bool:
        """Whether its own name for an option means queries and keys alike."""
        return option in FOR_BOTH and self.spelled.get(option) == FOR_BOTH[option]

    def renamed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The suite's options under the callable's own names, and what it is always given."""
        given = {**self.spelled_out, **self.always}
        for name, argument in options.items():
            option = name
            if name == "attn_mask":
                option = "bool_mask" if "bool" in str(argument.dtype) else "float_mask"
            if option == "float_mask" and self.lists_biases and argument is not None:
                argument = in_list(argument)
            if option == "window_size" and self.window is not None:
                argument = self.window.number(argument)
            if option not in self.implied and (option in self.spelled or option not in DISPENSABLE):
                given[self.spelled.get(option, name)] = argument
        return given

    def completed(self, given: Mapping[str, Any], query: Any) -> dict[str, Any]:
        """What is given, with what every call needs: the usual scale, and arrays that change nothing."""
        heads, width = query.shape[1], query.shape[-1]
        needed = [name for name in self.always if given.get(name) is None and name in KNOWN_NAMES]
        arrays = {name: OPTIONS[KNOWN_NAMES[name]].unfelt(heads) for name in needed}
        found = {name: unfelt_like(query, array) for name, array in arrays.items() if array is not None}
        if (scale := self.spelled.get("scale", "")) in needed and width > 0:
            found[scale] = width**-0.5
        return {**given, **found}


def unfelt_like(query: Any, array: Any) -> Any:
    """An array of the kind and the type of numbers of the query; a finite number in the place of minus infinity.

    Next to no key at all such a logit has all of the weight, where minus infinity makes NaN of it.
    """
    half = str(query.dtype).endswith("float16") and "bfloat16" not in str(query.dtype)
    finite = np.maximum(array, float(np.finfo(np.float16 if half else np.float32).min) / 2.0)
    return query.new_tensor(finite) if hasattr(query, "new_tensor") else finite.astype(query.dtype)


def own_names(options: Mapping[str, Option], names: Set[str]) -> dict[str, str]:
    """The options that take one of these names, and the preferred one of its names for each."""
    first = {option: next((n for n in entry.parameters if n in names), "") for option, entry in options.items()}
    return {option: name for option, name in first.items() if name}


def read_options(
    signature: inspect.Signature, inputs: Iterable[inspect.Parameter], swallowed: Mapping[str, str]
) -> Options:
    """The options among the parameters that are no inputs; a **kwargs takes the `swallowed` ones too.

    Raises:
        TargetError: a required parameter is none of them.
    """
    names = {p.name for p in inputs}
    rest = [p for p in signature.parameters.values() if p.name not in names]
    keywords = {p.name for p in rest if p.kind in _NAMED}
    known = known_names(signature)
    masks = {option: name for name in known.keys() - KNOWN_NAMES.keys() for option in TAKEN_BY[known[name]]}
    listed = list_of_biases(rest)
    spelled = masks | pair_of_window(rest) | own_names(OPTIONS, keywords) | listed
    flags = [p.name for p in rest if p.kind in _NAMED and is_causal_flag(p)]
    spelled = _of_padding(keywords, spelled) | ({"is_causal": flags[0]} if flags else {}) | spelled
    hidden = set(swallowed) - set(spelled) if takes_any(signature, inspect.Parameter.VAR_KEYWORD) else set()
    spelled |= {option: swallowed[option] for option in sorted(hidden)}
    others = tuple(n for n in sorted(keywords - {*spelled.values()}) if HIDING_WORDS & {*n.lower().split("_")})
    always, defaults = _always(rest, keywords, known), _defaults(rest, spelled)
    similar = _misspelled(keywords - known.keys() - {*listed.values()}, spelled)
    how: dict[str, Any] = {"misspelled": similar, "other_masks": others, "lists_biases": bool(listed)}
    return Options(spelled, always, defaults, swallowed=frozenset(hidden), **how)


def _of_padding(keywords: set[str], spelled: Mapping[str, str]) -> dict[str, str]:
    """The mask of keys of torch.nn.TransformerEncoderLayer, next to another mask."""
    others = {name for name in PADDING_NAMES if name in keywords} - {*spelled.values()}
    return {"key_padding_mask": others.pop()} if len(others) == 1 and "bool_mask" in spelled else {}


def known_names(signature: inspect.Signature) -> Mapping[str, str]:
    """Every known name and an option that it takes; and what unknown ones take by their words."""
    named = [p for p in signature.parameters.values() if p.kind in _NAMED]
    return {**KNOWN_NAMES, **by_words([p.name for p in named if not isinstance(p.default, int | float | str)])}


def _misspelled(unknown: set[str], spelled: Mapping[str, str]) -> dict[str, str]:
    """The known names that unknown parameters resemble, of options that the callable does not take otherwise."""
    missing = [name for name, option in KNOWN_NAMES.items() if option not in spelled and name not in LENGTH_NAMES]
    similar = {name: get_close_matches(name, missing, 1, SIMILARITY) for name in sorted(unknown)}
    return {name: matches[0] for name, matches in similar.items() if matches}


def _defaults(rest: Iterable[inspect.Parameter], spelled: Mapping[str, str]) -> dict[str, object]:
    known = {*spelled.values(), "dropout_p", "enable_gqa"}
    defaults: dict[str, object] = {p.name: p.default for p in rest if p.name in known and not required(p)}
    flags = [p.name for p in rest if p.name in defaults and is_causal_flag(p) and p.default is not None]
    return defaults | dict.fromkeys(flags, False)


def _always(rest: Iterable[inspect.Parameter], keywords: set[str], known: Mapping[str, str]) -> dict[str, object]:
    given = switched_off([p for p in rest if p.name in keywords])
    given |= {p.name: True for p in rest if p.name == "training" and p.name in keywords}
    given |= {p.name: None for p in rest if known.get(p.name) == "scale" and isinstance(p.default, int | float)}
    for parameter in rest:
        if required(parameter) and parameter.name not in given:
            if parameter.name not in keywords or parameter.name not in known:
                problem = f"it needs {parameter.name!r}, which the suite does not know"
                raise TargetError(f"{problem}: give that a default, {ADAPTER}")
            given[parameter.name] = OPTIONS[known[parameter.name]].neutral
    return given
