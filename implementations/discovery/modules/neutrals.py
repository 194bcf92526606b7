"""Neutrals: what is given to parameters of a forward that have to be given, so that they change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import product
from math import isqrt, prod
from typing import Any, Protocol

import torch

from attention_conformance.implementations.discovery.signatures import role
from attention_conformance.implementations.discovery.vocabulary import words_of


class Given(Protocol):
    """What is given to a parameter that has to be given."""

    def given(self, x: torch.Tensor, key: torch.Tensor, heads: int) -> Any:
        """It for the inputs of query and key, (B, L, width)."""


class Neutral(StrEnum):
    """What is given to a parameter that has to be given, so that it changes nothing."""

    NONE = "None"
    FALSE = "False"
    ZERO = "0"
    TURNS = "complex ones (L, d / 2)"
    PAIRS = "cosines 1 and sines 0 (L, d / 2, 2)"
    COSINES_SINES = "cosines 1 and sines 0 (L, d)"
    SAMPLE_COSINES_SINES = "cosines 1 and sines 0 (B, L, d)"
    HALF_TABLES = "cosines 1 and sines 0 (L, d / 2)"
    HEADS_TABLES = "cosines 1 and sines 0 (1, 1, L, d)"
    HALF_HEADS_TABLES = "cosines 1 and sines 0 (1, 1, L, d / 2)"
    HALF_LENGTH_TABLES = "cosines 1 and sines 0 (1, L, 1, d / 2)"
    MATRICES = "matrices of the identity (1, 1, L, d / 2, 2, 2)"
    LENGTH_MATRICES = "matrices of the identity (L, d / 2, 2, 2)"
    ONES = "ones (L, d)"
    HALF_ONES = "ones (L, d / 2)"
    SAMPLE_ONES = "ones (B, L, d)"
    ANY_ONES = "ones (L, 1)"
    SAMPLE_ANY_ONES = "ones (1, L, 1)"
    ZEROS = "zeros (L, d)"
    HALF_ZEROS = "zeros (L, d / 2)"
    SAMPLE_ZEROS = "zeros (B, L, d)"
    ANY_ZEROS = "zeros (L, 1)"
    SAMPLE_ANY_ZEROS = "zeros (1, L, 1)"
    SEEN = "a mask of True (B, Lq, Lk)"
    NOT_HIDDEN = "a mask of False (B, Lq, Lk)"
    SEEN_SHARED = "a mask of True (Lq, Lk)"
    NOT_HIDDEN_SHARED = "a mask of False (Lq, Lk)"
    KEYS_SEEN = "a mask of True (B, 1, 1, Lk)"
    FULL_SEEN = "a mask of True (B, 1, Lq, Lk)"
    OF_KEYS_SEEN = "a mask of True (B, Lk)"
    OF_TOKENS_KEPT = "ones (B, Lq, 1)"
    KEPT = "ones (B, 1, Lq, Lk)"
    KEYS_KEPT = "ones (B, Lk)"
    OF_KEYS_NOT_HIDDEN = "a mask of False (B, Lk)"
    ADDED = "zeros (B, 1, Lq, Lk)"
    LENGTHS = "the number of keys (B,)"
    PLACES = "0, 1, 2, ... (B, Lq)"
    SHARED_PLACES = "0, 1, 2, ... (Lq,)"
    POSITIONS = "zeros (Lk, E)"
    ONE_POSITIONS = "zeros (1, Lk, E)"
    SAMPLE_POSITIONS = "zeros (B, Lk, E)"
    LENGTH_POSITIONS = "zeros (Lk, 1, E)"
    BOTH_SIDES = "zeros (1, 2 Lk - 1, E)"
    SAMPLE_BOTH_SIDES = "zeros (B, 2 Lk - 1, E)"
    PAIRED_POSITIONS = "zeros (B, Lq, Lk, E)"
    RESIDUAL = "zeros (B, Lq, E)"
    SLOPES_OF_KEYS = "zeros (B * H, 1, Lk)"
    HEAD_BIAS = "zeros (H, d)"
    HEADS_ADDED = "zeros (H, Lq, Lk)"
    SHARED_ADDED = "zeros (Lq, Lk)"
    SIDE = "the side of the square of tokens"

    def given(self, x: torch.Tensor, key: torch.Tensor, heads: int) -> Any:
        """It for the inputs of query and key, (B, L, width)."""
        batch, length, width = x.shape[0], x.shape[1], max(1, x.shape[2] // heads)
        ones, zeros = x.new_ones(length, width), x.new_zeros(length, width)
        keys = key.shape[1]
        masks: dict[str, tuple[int, ...]] = {
            "(B, Lq, Lk)": (batch, length, keys),
            "(Lq, Lk)": (length, keys),
            "(B, 1, 1, Lk)": (batch, 1, 1, keys),
            "(B, 1, Lq, Lk)": (batch, 1, length, keys),
            "(B, Lk)": (batch, keys),
        }
        match self:
            case Neutral.NONE | Neutral.FALSE | Neutral.ZERO:
                return {"None": None, "False": False, "0": 0}[self]
            case Neutral.SIDE:
                return isqrt(length)
            case Neutral.TURNS:
                return torch.ones(length, width // 2, dtype=torch.complex64, device=x.device)
            case Neutral.PAIRS:
                return torch.stack([ones[:, ::2], zeros[:, ::2]], -1)
            case Neutral.COSINES_SINES:
                return ones, zeros
            case Neutral.SAMPLE_COSINES_SINES:
                return ones.expand(batch, -1, -1), zeros.expand(batch, -1, -1)
            case Neutral.HALF_TABLES:
                return ones[:, ::2], zeros[:, ::2]
            case Neutral.HEADS_TABLES:
                return ones[None, None], zeros[None, None]
            case Neutral.HALF_HEADS_TABLES:
                return ones[None, None, :, ::2], zeros[None, None, :, ::2]
            case Neutral.HALF_LENGTH_TABLES:
                return ones[None, :, None, ::2], zeros[None, :, None, ::2]
            case Neutral.MATRICES | Neutral.LENGTH_MATRICES:
                matrices = torch.eye(2, dtype=x.dtype, device=x.device).expand(length, width // 2, 2, 2)
                return matrices[None, None] if self is Neutral.MATRICES else matrices
            case Neutral.ONES | Neutral.HALF_ONES:
                return ones if self is Neutral.ONES else ones[:, ::2]
            case Neutral.ZEROS | Neutral.HALF_ZEROS:
                return zeros if self is Neutral.ZEROS else zeros[:, ::2]
            case Neutral.ANY_ONES | Neutral.ANY_ZEROS:  # for rotations of a part of a head, whose width is unknown
                return (ones if self is Neutral.ANY_ONES else zeros)[:, :1]
            case Neutral.SAMPLE_ANY_ONES | Neutral.SAMPLE_ANY_ZEROS:
                return (ones if self is Neutral.SAMPLE_ANY_ONES else zeros)[None, :, :1]
            case Neutral.SAMPLE_ONES | Neutral.SAMPLE_ZEROS:
                return (ones if self is Neutral.SAMPLE_ONES else zeros).expand(batch, -1, -1)
            case Neutral.OF_TOKENS_KEPT:
                return x.new_ones(batch, length, 1)
            case Neutral.KEPT | Neutral.KEYS_KEPT:
                return x.new_ones(masks[self[self.index("(") :]])
            case Neutral.PLACES:
                return torch.arange(length, device=x.device).expand(batch, -1)
            case Neutral.SHARED_PLACES:
                return torch.arange(length, device=x.device)
            case Neutral.LENGTHS:
                return torch.full((batch,), keys, device=x.device)
            case _ if self in ADDITIVE:
                extents = {"B": batch, "Lq": length, "Lk": keys, "E": x.shape[2], "H": heads, "d": width, "1": 1}
                extents |= {"2 Lk - 1": 2 * keys - 1, "B * H": batch * heads}
                return x.new_zeros([extents[each] for each in self[self.index("(") + 1 : -1].split(", ")])
            case _:
                return torch.full(masks[self[self.index("(") :]], "True" in self, device=x.device)


PLACED = (
    *(Neutral.POSITIONS, Neutral.ONE_POSITIONS, Neutral.SAMPLE_POSITIONS, Neutral.LENGTH_POSITIONS),
    *(Neutral.BOTH_SIDES, Neutral.SAMPLE_BOTH_SIDES, Neutral.PAIRED_POSITIONS),
)
"""Positions, of keys or of all distances, that are projected and added."""
OF_SCORES = (Neutral.HEAD_BIAS, Neutral.ADDED, Neutral.HEADS_ADDED, Neutral.SHARED_ADDED)
"""What is added to queries or scores."""
ADDITIVE = {*PLACED, *OF_SCORES, Neutral.RESIDUAL, Neutral.SLOPES_OF_KEYS}
TABLES = (
    *(Neutral.TURNS, Neutral.PAIRS, Neutral.COSINES_SINES, Neutral.SAMPLE_COSINES_SINES, Neutral.ONES),
    *(Neutral.HALF_TABLES, Neutral.HEADS_TABLES, Neutral.HALF_HEADS_TABLES, Neutral.HALF_LENGTH_TABLES),
    *(Neutral.MATRICES, Neutral.LENGTH_MATRICES),
)
COSINES = (Neutral.ONES, Neutral.HALF_ONES, Neutral.SAMPLE_ONES, Neutral.ANY_ONES, Neutral.SAMPLE_ANY_ONES)
SINES = (Neutral.ZEROS, Neutral.HALF_ZEROS, Neutral.SAMPLE_ZEROS, Neutral.ANY_ZEROS, Neutral.SAMPLE_ANY_ZEROS)
OF_PARTS = {Neutral.ANY_ONES, Neutral.SAMPLE_ANY_ONES}
"""Tables for rotations of a part of a head."""
ROTATIONS = (*TABLES, *COSINES, *SINES)
MASKS = (
    *(Neutral.SEEN, Neutral.NOT_HIDDEN, Neutral.SEEN_SHARED, Neutral.NOT_HIDDEN_SHARED, Neutral.KEYS_SEEN),
    *(Neutral.OF_KEYS_SEEN, Neutral.OF_KEYS_NOT_HIDDEN, Neutral.FULL_SEEN, Neutral.ADDED, Neutral.OF_TOKENS_KEPT),
    *(Neutral.KEPT, Neutral.KEYS_KEPT),
)
SIDES = {"h", "w", "height", "width", "hw"}
"""Names of the sides of an image."""
OTHERS = (Neutral.NONE, Neutral.FALSE, Neutral.ZERO)
ROTARY_WORDS = {"freqs", "freq", "cis", "rope", "rotary", "rot", "cos", "sin"}
TABLE_WORDS = ROTARY_WORDS | {"embeddings", "embedding", "embed", "emb", "pe"}
POSITION_WORDS = {"pos", "position", "positional", "rel", "relative", "r"}
NO_INPUT_WORDS = (TABLE_WORDS - {"embed"} | POSITION_WORDS) | {
    *("mask", "masks", "pos", "position", "positions", "start", "offset", "index", "ids", "cache", "past", "state"),
    *("len", "lens", "length", "lengths", "size", "bias", "dropout", "training", "causal", "layer", "layers", "step"),
    *("residual", "alibi", "height", "width", "is", "use", "return", "output", "need", "scale", "kv"),
}
"""Words in the names of parameters that are no inputs, though they have to be given."""
IDS = {"start", "ids", "id", "index", "offset"}
"""Words in the names of whole numbers."""
OF_KEYS = {"kv", "context", "ctx", "memory", "encoder", "source", "src", "cond"}
"""Words in the names of an input that is that of key and value."""


LETTERS = {"m"}
"""Names of masks of one letter."""
MOST_SORTED = 100_000
"""Combinations that are put in order."""


def neutrals(name: str) -> tuple[Neutral, ...]:
    """What may be given to a parameter of this name, the likelier first."""
    words = words_of(name)
    if "cos" in words and "sin" not in words:
        return COSINES
    if "sin" in words and "cos" not in words:
        return SINES
    if name.lower() in SIDES:
        return Neutral.NONE, Neutral.SIDE
    if words & IDS:
        places = (Neutral.PLACES, Neutral.SHARED_PLACES) if words & POSITION_WORDS else ()
        return (Neutral.ZERO, Neutral.NONE, Neutral.FALSE, *places)
    if "positions" in words or (words & POSITION_WORDS and words & {"input", "cache"}):
        return (Neutral.SHARED_PLACES, Neutral.PLACES, Neutral.NONE)
    if "bias" in words:
        return (*OF_SCORES, Neutral.NONE)
    if "alibi" in words:
        return Neutral.SLOPES_OF_KEYS, *OF_SCORES, Neutral.NONE
    if "residual" in words:
        return Neutral.RESIDUAL, Neutral.NONE
    if {"position", "embeddings"} <= words:
        return Neutral.SAMPLE_COSINES_SINES, Neutral.COSINES_SINES, *PLACED, Neutral.NONE
    if words & POSITION_WORDS and not words & ROTARY_WORDS:
        return (*PLACED, *TABLES, Neutral.NONE)
    if words & TABLE_WORDS:
        return (*TABLES, Neutral.PAIRED_POSITIONS, Neutral.NONE)
    if words & {"lens", "lengths"}:
        return Neutral.LENGTHS, Neutral.NONE
    return (Neutral.NONE, *MASKS) if words & {"mask", "masks"} or name.lower() in LETTERS else OTHERS


def combined(names: Sequence[str]) -> Iterator[dict[str, Neutral]]:
    """What may be given to several parameters at once, the likelier first: few of them other than their likeliest.

    Cosines and sines have the same form.
    """
    cosines = [name for name in names if neutrals(name) == COSINES]
    sines = [name for name in names if neutrals(name) == SINES]
    tied = len(cosines) == len(sines) == 1
    choices: list[list[dict[str, Neutral]]] = []
    for name in names:
        if tied and name in cosines:
            choices.append([{name: one, sines[0]: other} for one, other in zip(COSINES, SINES, strict=True)])
        elif not tied or name not in sines:
            choices.append([{name: each} for each in neutrals(name)])
    places = product(*(range(len(each)) for each in choices))
    for chosen in sorted(places, key=sum) if prod(map(len, choices)) < MOST_SORTED else places:
        yield {name: each for at, part in zip(chosen, choices, strict=True) for name, each in part[at].items()}


def is_empty_place(parameter: inspect.Parameter) -> bool:
    """Whether it is one of positions that is by default a tensor without elements, and so has to be given."""
    default = parameter.default
    placed = bool(words_of(parameter.name) & POSITION_WORDS)
    return placed and isinstance(default, torch.Tensor) and not default.numel()


def is_input(name: str) -> bool:
    """Whether a parameter of this name is an input, and no table, mask or place in a cache."""
    words = words_of(name)
    return bool(role(name) or not words & NO_INPUT_WORDS or words <= OF_KEYS | {"x", "input", "inputs"})
