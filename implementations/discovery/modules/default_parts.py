"""Parts by default: modules among the defaults of a constructor, which are as wide as its own default."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.signatures import of_constructor, required


def default_parts(kind: Any, width: int) -> dict[str, nn.Module]:
    """New ones of this width, by parameter: such as a table of positions for the width that is usual there."""
    return {name: part(width) for name, part in _kinds(kind).items()}


@lru_cache
def _kinds(kind: Any) -> dict[str, Callable[[int], nn.Module]]:
    signature = safe_call(lambda: of_constructor(kind)).value
    parameters = signature.parameters.values() if signature is not None else ()
    parts = {p.name: type(p.default) for p in parameters if isinstance(p.default, nn.Module)}
    return {name: part for name, part in parts.items() if _takes_a_width(part)}


def _takes_a_width(part: Any) -> bool:
    """Whether that is all that its constructor needs."""
    needed = [size_of(p.name) for p in of_constructor(part).parameters.values() if required(p)]
    return needed == [Size.WIDTH]
