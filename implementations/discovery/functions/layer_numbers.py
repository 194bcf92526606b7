"""The number of the layer that a class is: where its text states that it changes nothing, others are given, too."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.documented import as_written, sentences_of
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.modules.constructor_names import LAYERS
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.vocabulary import words_of

UNFELT = re.compile(
    r"\b(?:not|never) (?:depend|change|alter|affect)|\bindependent of\b|\b(?:put|multiplied|scaled) back\b|\bcancel"
    r"|\bcompensat|\bundo(?:es|ne)?\b|\brestor|\bun-?scal|\bno effect\b|\bsame (?:result|output|answer)|\bunchanged\b",
    re.IGNORECASE,
)
"""Words for what is undone, in a sentence that names the number of the layer."""
SCALING = ({"query", "key", "layer", "scaling"}, {"qk", "layer", "scaling"})
"""Words of a published option: scores are divided by the number of the layer, and multiplied again in the softmax."""
ANOTHER = 3
"""Layers after the usual one."""


def unfelt_layers(function: Callable[..., object]) -> dict[str, int]:
    """Its parameters for the number of a layer that by its text, or by a published option, change nothing."""
    written = inspect.unwrap(as_written(function))  # type: ignore[arg-type]  # whatever it is
    if not isinstance(written, type):
        return {}
    named = {p.name: p.default for p in signature_of(function).parameters.values() if p.name in LAYERS}
    options = [words_of(name) for name in inspect.signature(written).parameters]
    published = any(words <= option for words in SCALING for option in options)
    lines = [line for line in sentences_of(written) if UNFELT.search(line)]
    return {name: n for name, n in named.items() if published or any(re.search(rf"\b{name}\b", x) for x in lines)}


def in_other_layers(check: ClaimCheck, function: Callable[..., object]) -> dict[str, RenamedCall]:
    """The calls as another layer, by names for messages."""
    assert isinstance(check.function, RenamedCall)
    others = {name: usual + ANOTHER for name, usual in unfelt_layers(function).items()}
    return {f"with {name}={n}": check.function.giving({name: n}) for name, n in others.items()}
