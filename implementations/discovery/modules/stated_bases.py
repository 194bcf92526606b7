"""Stated bases: what a class names as the base of its rotations, which then is the one that has to be seen."""

from __future__ import annotations

import re
import sys
from typing import Any

from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of, value_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.signatures import of_constructor

OTHERWISE = re.compile(
    r"yarn|\bntk|scal\w*_?factor|(rope|rotary)_?scal|\bscaling\b|llama3|longrope|\balpha\b", re.IGNORECASE
)
"""What the text of a file has whose rotations may have another base than the one that is given."""


def stated_base(make: Constructor) -> tuple[str, float] | None:
    """The name and the value by which a class is given the base of its rotations; None where nothing states it."""
    if OTHERWISE.search(_text_of_file(make.kind)):
        return None
    named = {**{p.name: p.default for p in of_constructor(make.kind).parameters.values()}, **make.options}
    own = {name: value for name, value in named.items() if size_of(name) is Size.BASE and _is_base(value)}
    given = {name: value_of(size, make.width, make.heads) for name, size in make.sizes.items() if size is Size.BASE}
    return next(iter({**own, **given}.items()), None)


def _is_base(value: object) -> bool:
    return type(value) in (int, float) and value > 1  # type: ignore[operator]


def _text_of_file(kind: Any) -> str:
    module = sys.modules.get(str(getattr(kind, "__module__", "")))
    return code_of(module)
