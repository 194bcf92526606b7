"""Windows that a constructor takes: narrow enough to be seen, where more tokens than that are answered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from attention_conformance.implementations.discovery.always import changes, window_seen
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.modules.constructor_names import Size
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.signatures import REMEDY
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import words_of

NARROW = 20
"""Tokens of such a window: more than those with which a module is looked at."""
MOST_NUMBERS = 4_000_000
"""Of a module whose window is as wide as its sequences: with more a run takes minutes."""
SIDE_BY_SIDE = (
    "windows of {!r} tokens stand side by side, and one as wide as a sequence has a table that is too large: "
    f"{REMEDY}"
)
LONG = PLAIN.sized(query_length=60, key_length=60)
MOST_TOKENS = 256
"""Tokens of a chunk, of which three are looked at."""
APART = f"its queries see the keys of their own {{}}={{}} tokens alone: {REMEDY}"


def with_narrow_window(make: Constructor, checked: Callable[[Constructor], ClaimCheck]) -> Constructor:
    """The constructor with a narrow window, if the module answers more tokens than that, and otherwise than before.

    What only states the most tokens raises, or changes nothing. Windows that stand side by side are not narrow: within
    one of them it is attention, and the suite knows no premise for several.

    Raises:
        TargetError: it would have to be too large for that.
    """
    names = [name for name, size in make.sizes.items() if size is Size.LENGTH and "window" in words_of(name)]
    if not names:
        return make
    narrow = replace(make, options={**make.options, **dict.fromkeys(names, NARROW)})
    wide, seen = checked(make).run(LONG), checked(narrow).run(LONG)
    if seen.error or wide.error or near_outputs(wide, seen, checked(make).dtype):
        return make
    if window_seen(checked(narrow)) != (None, None):
        return narrow
    with torch.random.fork_rng(devices=[]):
        if sum(parameter.numel() for parameter in built(make).parameters()) > MOST_NUMBERS:
            raise TargetError(SIDE_BY_SIDE.format(names[0]))
    return make


def refuse_chunks_apart(make: Constructor, check: ClaimCheck) -> None:
    """Refuses what computes each chunk for itself: that may be meant, or the keys of others are forgotten.

    Raises:
        TargetError: it does.
    """
    for name, length in _chunks(make.kind):
        three = PLAIN.sized(query_length=3 * length + 1, key_length=3 * length + 1)
        seen = [(key, np.flatnonzero(rows)) for key, rows in changes(check, three, at=(0, length, 2 * length))]
        if seen and all(len(rows) and (rows // length == key // length).all() for key, rows in seen):
            raise TargetError(APART.format(name, length))


def _chunks(kind: object) -> Iterator[tuple[str, int]]:
    parameters = inspect.signature(kind).parameters.values() if isinstance(kind, type) else ()
    for each in parameters:
        if "chunk" in words_of(each.name) and isinstance(each.default, int) and 1 < each.default <= MOST_TOKENS:
            yield each.name, each.default
