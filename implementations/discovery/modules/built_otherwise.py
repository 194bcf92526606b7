"""Built otherwise: a module class with each option or setting set that is off by default."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import stated_texts
from attention_conformance.implementations.discovery.modules.constructor_names import (
    Size,
    options_of_settings,
    size_of,
    texts_compared,
)
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.signatures import is_variadic, of_constructor, required
from attention_conformance.implementations.discovery.vocabulary import words_of

MOST = 6
"""Options that are set, each for itself."""
MOST_TEXTS = 3
"""Texts that one of them is given, one after another."""
OF_SLICES = {"slice", "slices", "sliced"}
"""Words in the names of how many heads are computed at once."""
OF_SPANS = {"window", "local", "block", "chunk", "left", "right"}
"""Words in the names of numbers of tokens; three of six leave something out."""
OF_TOKENS = {"position", "positions", "embeddings", "len", "length", "seq", "seqlen", "context", "tokens"}
"""Words in the names of limits of tokens."""
FEW = 16
"""Tokens, as many as those that a module is looked at with."""
OF_CAPS = {"cap", "capping", "softcap", "softcapping", "clip", "logit"}
"""Words in the names of limits of scores."""
OF_SCALING = {"scaling"}
"""Words in the names of what stretches the positions of a rotary embedding."""
STRETCHED = {"type": "linear", "rope_type": "linear", "factor": 2.0}
OF_CAUSALITY = {"causal", "decoder", "autoregressive"}
"""Words in the names of flags that hide later tokens."""
Pair: TypeAlias = tuple[Constructor, tuple[str, str]]
"""What is built with two options, and by which texts it is known with each of them."""
NO_OPTIONS = {
    *("dtype", "device", "return", "output", "need", "init", "eps", "kdim", "vdim", "std", "seed", "checkpoint"),
    *("batch", "layout", "transpose", "transposed", "permute", "permuted", "mix"),
}
"""Words in the names of what changes nothing, or only what is returned, or in which axes the inputs come; and of what
mixes what is kept apart otherwise.
"""


def turned_on(make: Constructor) -> Iterator[tuple[str, Constructor]]:
    """The class as it is built with one option more, and a text that states it; what cannot be built is left out.

    What an option does needs not be known, as nothing is expected but that samples, tokens and heads are kept apart.
    """
    yield from islice(_built(make, [p for p in options_left_out(make) if not words_of(p.name) & NO_OPTIONS]), MOST)


def limited(make: Constructor) -> Iterator[tuple[str, Constructor]]:
    """The class as it is built for few tokens, where it has a limit, and a text that states it."""
    for name in [name for name, size in make.sizes.items() if size is Size.LENGTH and "max" in words_of(name)]:
        sizes = {other: size for other, size in make.sizes.items() if other != name}
        fewer = replace(make, sizes=sizes, options={**make.options, name: FEW})
        if _can_be_built(fewer):
            yield f"built with {name}={FEW}", fewer
    for option in options_left_out(make):
        words, default = words_of(option.name), option.default
        number = isinstance(default, int) and not isinstance(default, bool) and default > FEW
        if (
            number
            and "max" in words
            and words & OF_TOKENS
            and _can_be_built(other := with_options(make, {option.name: FEW}))
        ):
            yield f"built with {option.name}={FEW}", other


def options_left_out(make: Constructor) -> list[inspect.Parameter]:
    """What it can be built with and is not given."""
    if make.settings:
        return safe_call(lambda: options_of_settings(make.kind, make.settings, make.lenient)).value or []
    signature = safe_call(lambda: of_constructor(make.kind)).value or inspect.Signature()
    given = {*make.sizes, *make.options, *make.spelled.values(), *make.rates, *make.parts}
    return [p for p in signature.parameters.values() if not is_variadic(p) and p.name not in given]


def flags_given_off(make: Constructor) -> list[inspect.Parameter]:
    """The flags that its constructor has to be given, and is given as False, as if that was their default."""
    signature = safe_call(lambda: of_constructor(make.kind)).value or inspect.Signature()
    off = {name for name, size in make.sizes.items() if size is Size.FLAG and name not in make.options}
    off |= {name for name, value in make.options.items() if value is False}
    return [p.replace(default=False) for p in signature.parameters.values() if p.name in off and required(p)]


def causal_by_default(make: Constructor) -> list[str]:
    """The options of its constructor that hide later tokens, and are on by default."""
    return [p.name for p in options_left_out(make) if p.default is True and words_of(p.name) & OF_CAUSALITY]


def with_options(make: Constructor, given: Mapping[str, object]) -> Constructor:
    """The class as it is built with more options."""
    if make.settings:
        return replace(make, changed={**make.changed, **given})
    return replace(make, options={**make.options, **given})


def causal_too(usual: Constructor, others: Mapping[str, Constructor]) -> Iterator[tuple[str, Pair]]:
    """The class as it is built with each of these options and the one that hides later tokens, by a text."""
    causal = next((how for how, each in others.items() if words_of_option(usual, each) & OF_CAUSALITY), "")
    for how, other in others.items() if causal else ():
        if how != causal:
            flag = others[causal]
            both = replace(other, options={**other.options, **flag.options}, changed={**other.changed, **flag.changed})
            if _can_be_built(both):
                yield f"{causal} and {how}", (both, (causal, how))


def words_of_option(usual: Constructor, other: Constructor) -> set[str]:
    """Of the names of what it is built with in addition to the usual."""
    return {word for name in {*other.changed, *other.options} - {*usual.options} for word in words_of(name)}


def _built(make: Constructor, options: list[inspect.Parameter]) -> Iterator[tuple[str, Constructor]]:
    for option in sorted(options, key=lambda p: p.default is True):
        for value in _values(make, option):
            if _can_be_built(other := with_options(make, {option.name: value})):
                yield f"built with {option.name}={value!r}", other
                if not isinstance(option.default, str):
                    break


def _can_be_built(make: Constructor) -> bool:
    return safe_call(partial(make, make.width, make.heads)).value is not None


def _values(make: Constructor, option: inspect.Parameter) -> tuple[object, ...]:
    """What an option may be given so that it does something, the likelier first; nothing where that is unknown."""
    default, words, written = option.default, words_of(option.name), str(option.annotation).lower()
    if default is True and words & OF_CAUSALITY:
        return ()  # what it hides is what it is judged to hide always
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, str):
        known = [*texts_compared(make.kind, option.name), *stated_texts(make.kind, option.name)]
        return tuple(islice((text for text in dict.fromkeys(known) if text not in (default, option.name)), MOST_TEXTS))
    off = default is None or (isinstance(default, int | float) and default == 0)
    if not off or (size_of(option.name) is not None and "window" not in words):
        return ()
    if words & OF_SCALING:
        return STRETCHED, 2.0
    if words & OF_SPANS:
        return (3,)
    if words & OF_SLICES:
        return (4,)  # of which the heads of few samples are no multiple
    if words & OF_CAPS:
        return (2.0,)
    by_type = {"bool": True, "int": 2, "float": 0.5}
    found = tuple(value for name, value in by_type.items() if name in written)
    unknown = option.annotation in ("", "Any", Any, inspect.Parameter.empty)
    return found or ((2,) if default is not None else (True,) if unknown else ())  # True is no object of a class
