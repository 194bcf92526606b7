"""Axes of inputs: whether a module states, or shows as it takes a shape apart, which one holds the samples."""

import inspect
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import documents_of

SAMPLES = re.compile(r"#?(?:b|bs|bsz|bz|\w*batch(?:es|_?size| size)?|n_?samples|num_samples)", re.IGNORECASE)
TOKENS = re.compile(
    r"[lts]|\w*len\w*|\w*seq\w*(?: len\w*)?|\w*time\w*(?: steps?)?|\w*tokens?|\w*steps?|\w*frames?"
    r"|(?:src|source|max)(?:[_ ]len\w*)?",
    re.IGNORECASE,
)
EITHER = re.compile(r"n", re.IGNORECASE)
"""How an axis of samples is called, one of tokens, and one that is of samples next to one of tokens."""
CHOICE = "batch_first"
"""The flag of a constructor by which its caller chooses."""
FAR = 40
"""Characters between a name and its shape."""


def states_samples_first(kind: object) -> bool | None:
    """Whether its inputs are (B, L, E) rather than (L, B, E) by all that states it.

    None where nothing does, or both, or where its constructor has a flag for it.
    """
    constructor = safe_call(partial(inspect.signature, kind)).value  # type: ignore[arg-type]
    if constructor is not None and CHOICE in constructor.parameters:
        return None
    signature = safe_call(lambda: inspect.signature(kind.forward)).value  # type: ignore[attr-defined]
    return samples_first_in(kind, [*signature.parameters][1:4] if signature else [])


def samples_first_in(kind: object, names: Iterable[str]) -> bool | None:
    """The same of the inputs with these names, before forward gives a name to something else."""
    stated = {first for name in names for pair in _first_axes(kind, name) if (first := _is_first(*pair)) is not None}
    return stated.pop() if len(stated) == 1 else None


def _is_first(one: str, other: str) -> bool | None:
    """Whether the first of two axes is that of the samples; the other one's word is empty where it is not stated."""
    first, second = (_kind(axis) for axis in (one, other))
    if first == second:
        return None
    if SAMPLES in (first, second):
        return first is SAMPLES
    if TOKENS in (first, second) and (EITHER in (first, second) or not (one and other)):
        return second is TOKENS
    return None


def _kind(axis: str) -> re.Pattern[str] | None:
    """What an axis is of: (num_windows*B) is of samples, and one of samples by tokens is of neither."""
    factors = [factor.strip() for factor in axis.split("*")]
    kinds = {words for words in (SAMPLES, TOKENS, EITHER) for factor in factors if words.fullmatch(factor)}
    return kinds.pop() if len(kinds) == 1 else None


def _first_axes(kind: Any, name: str) -> Iterator[tuple[str, str]]:
    """The first two axes in each shape of an input of three axes; the other one is empty where one alone is stated."""
    own = re.escape(name)
    code = re.split(rf"^\s*{own}\s*=[^=]", code_of(getattr(kind, "forward", None)), maxsplit=1, flags=re.MULTILINE)[0]
    said = rf"(?<!of )(?<!over )\b{own.replace('_', '[_ ]')}\b[^\n\[(]{{0,{FAR}}}[\[(]([^\])\n]*)[\])]"
    shapes = (each for text in (*re.findall(r"#.*", code), *documents_of(kind)) for each in re.findall(said, text))
    whole = rf"^\s*([\w, ]+,[\w, ]+)=\s*{own}\.(?:shape|size\(\))\s*(?:#.*)?$"
    for shape in (*shapes, *re.findall(whole, code, re.MULTILINE)):
        axes = [axis.strip() for axis in re.split("," if "," in shape else r"\*| x ", shape)]
        if len(axes) > 2:
            yield axes[0], axes[1]
    single = rf"^\s*(\w+)\s*=\s*{own}\.(?:size\(|shape\[)([01])[\])]\s*(?:#.*)?$"
    for axis, place in re.findall(single, code, re.MULTILINE):
        yield ("", axis) if place == "1" else (axis, "")
