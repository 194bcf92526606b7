"""Tried calls: what is given to parameters of a forward whose meaning is unknown, until the module answers.

Everything that is given is made from one sample alone, so that a sample has the same answer in any batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import product
from typing import Any

import torch

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall, inputs_in
from attention_conformance.implementations.discovery.modules.neutrals import (
    MASKS,
    POSITION_WORDS,
    SIDES,
    TABLE_WORDS,
    TABLES,
    Given,
    Neutral,
    neutrals,
)
from attention_conformance.implementations.discovery.signatures import is_variadic, required
from attention_conformance.implementations.discovery.vocabulary import words_of


class Tried(StrEnum):
    """What is given to a parameter of a forward whose meaning is unknown."""

    INPUT = "the input (B, L, E)"
    MEANS = "means of the tokens (B, E)"
    MEAN_TOKENS = "means of the tokens (B, 1, E)"
    PAIRS = "sums of two tokens (B, L, L, E)"
    HEAD_PAIRS = "numbers of two tokens (B, L, L, H)"
    PAIRS_OF_HEADS = "numbers of two tokens (B, H, L, L)"
    TOKENS_ONE = "ones (B, L)"
    ADDED_TO_KEYS = "zeros (B, 1, 1, L)"
    ROW = "0, 1, 2, ... (L,)"
    GRID = "rows and columns (L, 2)"
    SAMPLE_GRID = "rows and columns (B, L, 2)"
    ROW_GRID = "rows and columns (B, L, 1, 2)"
    EXTENTS = "1, 1 and L of each sample (B, 3)"
    TWO_EXTENTS = "L and 1"
    LENGTH = "L"
    ONE = "1"
    LONG_TURNS = "complex ones (1024, d / 2)"

    def given(self, x: torch.Tensor, key: torch.Tensor, heads: int) -> Any:
        """It for the inputs of query and key, (B, L, width)."""
        batch, length, width = x.shape
        places = torch.arange(length, device=x.device)
        grid = torch.stack([places, torch.zeros_like(places)], -1).to(x.dtype) / max(1, length)
        pairs = x[:, :, None] + 0.5 * x[:, None]
        match self:
            case Tried.INPUT:
                return x
            case Tried.MEANS | Tried.MEAN_TOKENS:
                return x.mean(1, keepdim=self is Tried.MEAN_TOKENS)
            case Tried.PAIRS:
                return pairs
            case Tried.HEAD_PAIRS | Tried.PAIRS_OF_HEADS:
                numbers = pairs[..., :heads]
                return numbers if self is Tried.HEAD_PAIRS else numbers.permute(0, 3, 1, 2)
            case Tried.TOKENS_ONE:
                return x.new_ones(batch, length)
            case Tried.ADDED_TO_KEYS:
                return x.new_zeros(batch, 1, 1, key.shape[1])
            case Tried.ROW:
                return places
            case Tried.GRID:
                return grid
            case Tried.SAMPLE_GRID | Tried.ROW_GRID:
                each = grid.expand(batch, -1, -1)
                return each if self is Tried.SAMPLE_GRID else each[:, :, None]
            case Tried.EXTENTS:
                return torch.tensor([[1, 1, length]] * batch, device=x.device)
            case Tried.TWO_EXTENTS:
                return length, 1
            case Tried.LONG_TURNS:
                return torch.ones(1024, max(1, width // heads) // 2, dtype=torch.complex64, device=x.device)
            case _:
                return length if self is Tried.LENGTH else 1


PAIRED = {"z", "pair", "pairs", "pairwise", "bias", "edge", "edges"}
"""Words in the names of what belongs to two tokens."""
WHOLE = {"cond", "emb", "temb", "t", "time", "c", "vec", "style", "mod", "global", "y", "label", "embed", "embedding"}
"""Words in the names of what belongs to a sample."""
EXTENT = {"grid", "grids", "size", "sizes", "shape", "shapes", "hw", "thw"}
PLACE = POSITION_WORDS | {"positions", "coords", "coord", "index", "indices", "ids", "offset", "start"}
OF_PAIRS = (Tried.PAIRS, Tried.HEAD_PAIRS, Tried.PAIRS_OF_HEADS)
OF_SAMPLES = (Tried.MEANS, Tried.INPUT, Tried.MEAN_TOKENS)
OF_PLACES = (Tried.ROW, Neutral.PLACES, Tried.SAMPLE_GRID, Tried.GRID, Tried.ROW_GRID)
OF_EXTENTS = (Tried.TWO_EXTENTS, Tried.EXTENTS)
WHOLE_NUMBERS = (Neutral.ZERO, Tried.LENGTH, Tried.ONE)
MOST_NEEDED, MOST_GIVEN, ROUNDS = 6, 14, 2
"""Parameters that are given something, what each is given, and how often each is looked at anew."""
ANSWERED = 1 << 30
"""Farther than a call comes that raises."""


def tried(parameter: inspect.Parameter) -> tuple[Given, ...]:
    """What may be given to a parameter, the likelier first."""
    words, written = words_of(parameter.name), str(parameter.annotation)
    found: list[Given] = []
    if words & {"mask", "masks"}:
        found += [*neutrals(parameter.name), Tried.TOKENS_ONE, Tried.ADDED_TO_KEYS]
    if parameter.name.lower() in SIDES or written in ("int", "<class 'int'>"):
        found += [Tried.LENGTH, Tried.ONE, Neutral.ZERO]
    if words & EXTENT:
        found += OF_EXTENTS
    if words & PLACE:
        found += [*OF_PLACES, *(WHOLE_NUMBERS if words & {"start", "offset", "index"} else ())]
    if words & PAIRED:
        found += OF_PAIRS
    if words & WHOLE:
        found += OF_SAMPLES
    if words & TABLE_WORDS:
        found += [*TABLES, Tried.LONG_TURNS]
    if not found:
        found += [Neutral.NONE, *OF_SAMPLES, Neutral.HEAD_BIAS, *OF_PAIRS, *WHOLE_NUMBERS]
    known = () if words & {"mask", "masks"} else neutrals(parameter.name)
    return tuple(dict.fromkeys([*found, *known, *(MASKS if len(parameter.name) == 1 else ())]))


def tried_calls(kind: Any, answered: Callable[[ModuleCall], int | None]) -> Iterator[ModuleCall]:
    """The ways in which a forward may be called that needs more than its inputs.

    What each parameter is given is that with which the forward comes farthest before it raises.

    Args:
        kind: the class.
        answered: how far a call comes, in operations; None where it raises nothing.
    """
    signature = safe_call(lambda: inspect.signature(kind.forward)).value
    if signature is None:
        return
    parameters = [*signature.parameters.values()][1:]
    own = safe_call(lambda: inputs_in(signature.replace(parameters=parameters))).value or []
    needed = [p for p in parameters if required(p) and not is_variadic(p)]
    tables = [p for p in parameters if p.default is None and words_of(p.name) & (TABLE_WORDS | PLACE | {"mask"})]
    for inputs in [own, own[:1]] if len(own) > 1 else [own]:
        names = tuple(p.name for p in inputs)
        others = [p for p in needed if p.name not in names]
        for more in (others, [*others, *tables]) if tables else (others,):
            if names and 0 < len(more) <= MOST_NEEDED:
                yield from _farthest(names, more, answered)


def _farthest(
    names: tuple[str, ...], others: Sequence[inspect.Parameter], answered: Callable[[ModuleCall], int | None]
) -> Iterator[ModuleCall]:
    """The calls with these inputs and all else that raise nothing; each differs from the one before in one thing."""
    choices = {p.name: tried(p)[:MOST_GIVEN] for p in others}
    given = {name: each[0] for name, each in choices.items()}
    done: set[tuple[Given, ...]] = set()
    best = -1
    for _, name in product(range(ROUNDS), choices):
        for other in choices[name]:
            changed = {**given, name: other}
            if tuple(changed.values()) in done:
                continue
            done.add(tuple(changed.values()))
            call = ModuleCall(len(names), keywords=names, tables=changed)
            far = answered(call)
            if far is None:
                yield call
            if best < ANSWERED and (far is None or far > best):
                best, given = ANSWERED if far is None else far, changed
