"""Templates: what multi-head attention in one of its published variants gives, to read where a module keeps what.

A reading is only taken from here. Whether the module is right is for the suite to judge, with its own reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch

from attention_conformance.implementations.discovery.always_slopes import usual_slopes
from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.implementations.discovery.score_fits import rotated
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.spec.problem import Problem

BASE = 10000.0
"""The usual base of rotations."""


class Slip(Enum):
    """Mistakes of whole modules, next to which the rest can be read."""

    NONE = "none"
    SPLIT = "heads split from the tokens"
    MERGED = "heads merged as if they were tokens"
    BOTH = "heads split from the tokens, and merged with them"
    OVER_QUERIES = "a softmax over queries"
    OVER_HEADS = "a softmax over heads"
    OVER_SAMPLES = "a softmax over heads and samples, as over their common axis"
    ACROSS_SAMPLES = "heads merged from the common axis of heads and samples by a view alone"
    TRANSPOSED = "weights transposed"
    TWICE = "two softmaxes"
    SCALED_LATE = "weights scaled, not scores"
    LATER = "later keys alone, where earlier ones are meant"
    KEYS_SUMMED = "keys summed in place of values"
    QUERIES_COMPARED = "queries in place of keys"
    ACROSS = "queries and keys divided by their lengths across heads"
    OVER_TOKENS = "queries and keys divided by their lengths over tokens"
    KEYS_OVER_TOKENS = "keys divided by their lengths over tokens, as where they are transposed first"
    CHANNELS = "channels first, taken for tokens by a view alone"
    WHOLE_ANGLES = "angles of a part of each head as if all of it were rotated"
    LAST_PART = "the last part of each head rotated, and not the first"
    SLOPES_SCALED = "slopes multiplied by the scale of the scores"
    NEXT = "values with the weights of the keys after theirs, as where a sink's column is dropped at the wrong end"


NORM_AXES = {Slip.ACROSS: (1, 1), Slip.OVER_TOKENS: (-2, -2), Slip.KEYS_OVER_TOKENS: (-1, -2)}
"""Mistakes in the axis over which queries, and keys, are divided by their lengths."""
KNOWN_ELSEWHERE = (Slip.CHANNELS, Slip.SLOPES_SCALED, Slip.OVER_SAMPLES, Slip.ACROSS_SAMPLES)
"""Mistakes next to which no place of a parameter is read."""


@dataclass(frozen=True)
class Variant:
    """One variant of attention.

    Attributes:
        premises: what it always does.
        pairing: which components are rotated together.
        scale: multiplies the scores, as a power of the width of a head.
        of_all: whether it is one of the width of all heads together.
        normalised: whether queries and keys are divided by their root mean square first.
        cosine: whether they are divided by their length instead.
        known: whether the suite can judge it, and it is no mistake in most places.
        slip: a mistake that it makes.
        part: the share of each head, from the first component on, that is rotated, by the usual base. No premise: what
            the suite judges is a number of components.
    """

    premises: Premises = NO_PREMISES
    pairing: RotaryPairing = RotaryPairing.HALVES
    scale: float = -0.5
    known: bool = True
    of_all: bool = False
    normalised: bool = False
    cosine: bool = False
    slip: Slip = Slip.NONE
    part: float = 0.0


COSINES = tuple(
    Variant(Premises(scale=1.0, causal=causal), scale=0.0, normalised=True, cosine=True) for causal in (False, True)
)
"""Those whose scores are cosines."""
SLOPED = tuple(
    Variant(Premises(causal=causal, alibi=True, interleaved=rule)) for causal in (False, True) for rule in (False, True)
)
SLOPES_SCALED = tuple(replace(each, slip=Slip.SLOPES_SCALED, known=False) for each in SLOPED)
"""A mistake but where it is meant, as in Falcon: scores and biases are added first, and then scaled."""
ROTATED_IN_PART = tuple(
    Variant(Premises(causal=causal), pairing=pairing, part=part)
    for part in (0.25, 0.5)
    for causal in (True, False)
    for pairing in RotaryPairing
)
"""Those that rotate a usual share of each head."""
OF_PARTS = (Slip.WHOLE_ANGLES, Slip.LAST_PART)
SLIPPED_IN_PART = tuple(replace(v, slip=slip, known=False) for v in ROTATED_IN_PART for slip in OF_PARTS)
"""The same with a mistake in which part it is, or by which angles."""


def variants() -> Iterator[Variant]:
    """The likelier first; those that are no premises only help to read a module that may have a mistake."""
    plain = (Variant(), Variant(Premises(causal=True)))
    yield from plain
    rotary = [
        replace(each, premises=replace(each.premises, rotary_base=BASE), pairing=pairing)
        for each in plain
        for pairing in RotaryPairing
    ]
    yield from rotary
    yield from (replace(each, normalised=True) for each in plain)
    yield from COSINES
    yield from SLOPED
    yield from (replace(each, of_all=True, known=False) for each in (*plain, *SLOPED))
    yield from (replace(each, scale=scale, known=False) for each in plain for scale in (0.0, -1.0, 0.5))
    yield from (replace(each, scale=0.0, known=False) for each in rotary)


def slipped() -> Iterator[Variant]:
    """Those with a mistake that leaves nothing of a module's answer as it should be."""
    plain = (Variant(known=False), Variant(Premises(causal=True), known=False))
    usual = [slip for slip in Slip if slip not in (Slip.NONE, *NORM_AXES, *OF_PARTS, *KNOWN_ELSEWHERE)]
    yield from (replace(each, slip=slip) for slip in usual for each in plain)
    yield from (replace(each, slip=slip, known=False) for slip in NORM_AXES for each in COSINES)


@dataclass(frozen=True)
class Projected:
    """Query, key and value in heads (B, H, L, d), keys in one or as many, float64,
    the weight (H * d, E) and the bias (E,) of the output.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    w_o: torch.Tensor | None
    b_o: torch.Tensor | None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each; () of what is None."""
        return tuple(() if x is None else (*x.shape,) for x in (self.query, self.key, self.value, self.w_o, self.b_o))

    def merged(self, heads: torch.Tensor) -> torch.Tensor:
        """The output (B, Lq, E) of what each head gives, (B, H, Lq, d)."""
        merged = heads.transpose(1, 2).flatten(2)
        output: torch.Tensor = merged if self.w_o is None else merged @ self.w_o
        return output if self.b_o is None else output + self.b_o


def projected(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
    heads: int,
    kv_heads: int = 0,
) -> Projected:
    """The inputs (B, L, E) with weights (E, H * d) and biases (H * d,) applied, by the names of `Problem`."""

    def in_heads(x: torch.Tensor, role: str) -> torch.Tensor:
        flat = x @ parameters[f"w_{role}"] + parameters.get(f"b_{role}", x.new_zeros(()))
        return flat.view(*flat.shape[:-1], heads if role == "q" else kv_heads or heads, -1).transpose(1, 2)

    q, k, v = (in_heads(x, role) for x, role in zip(inputs, "qkv", strict=True))
    return Projected(q, k, v, parameters.get("w_o"), parameters.get("b_o"))


def stacked(several: Sequence[Projected]) -> Projected:
    """Those of the same shapes as one, whose samples are all those of the first, then all those of the second."""
    query, key, value = (torch.cat([getattr(each, name) for each in several]) for name in INPUTS)

    def of_each_sample(parameters: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        whole = [each for each in parameters if each is not None]
        return torch.stack(whole).repeat_interleave(len(query) // len(whole), 0) if whole else None

    bias = of_each_sample([each.b_o for each in several])
    weight = of_each_sample([each.w_o for each in several])
    return Projected(query, key, value, weight, None if bias is None else bias[:, None])


def scores_of_variant(given: Projected, variant: Variant) -> torch.Tensor:
    """The scores (B, H, Lq, Lk), of which none is hidden."""
    query, key, slip = given.query, given.key, variant.slip
    if variant.normalised:
        width = 1 if variant.cosine else query.shape[-1]
        axes = zip((query, key), NORM_AXES.get(slip, (-1, -1)), strict=True)
        query, key = (x * (x.square().sum(axis, keepdim=True) / width).rsqrt() for x, axis in axes)
    if base := variant.premises.rotary_base:
        query, key = (_rotated(x, base, variant.pairing, x.shape[-1]) for x in (query, key))
    if variant.part:
        base, last = BASE ** (variant.part if slip is Slip.WHOLE_ANGLES else 1.0), slip is Slip.LAST_PART
        dim = int(query.shape[-1] * variant.part)
        query, key = (_rotated(x, base, variant.pairing, dim, last) for x in (query, key))
    scale = _scale(query, variant)
    scores: torch.Tensor = query @ key.mT * scale
    if variant.premises.alibi:
        place = torch.arange(scores.shape[-1], dtype=scores.dtype)
        slopes = scores.new_tensor(usual_slopes(scores.shape[1])[int(variant.premises.interleaved)])
        slopes = slopes * scale if slip is Slip.SLOPES_SCALED else slopes
        scores = scores - slopes[:, None, None] * (place - place[: scores.shape[-2], None]).abs()
    return scores


def _scale(query: torch.Tensor, variant: Variant) -> float:
    """What multiplies the scores of queries (B, H, L, d)."""
    width: int = query.shape[-1] * (query.shape[1] if variant.of_all else 1)
    return float(width**variant.scale)


def _rotated(x: torch.Tensor, base: float, pairing: RotaryPairing, dim: int, last: bool = False) -> torch.Tensor:
    """The heads (B, H, L, d) with so many components rotated, the first ones or the last."""
    start = x.shape[-1] - dim if last else 0
    part = torch.from_numpy(rotated(x[..., start : start + dim].numpy(), base, pairing))
    return torch.cat([x[..., :start], part, x[..., start + dim :]], -1)


def output_of_variant(given: Projected, variant: Variant) -> torch.Tensor:
    """The output (B, Lq, E)."""
    slip = variant.slip
    given = _with_slip(given, slip)
    scores = scores_of_variant(given, replace(variant, scale=0.0) if slip is Slip.SCALED_LATE else variant)
    if variant.premises.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later.mT if slip is Slip.LATER else later, -torch.inf)
    weights = _weights(scores, slip)
    weights = weights.softmax(-1) if slip is Slip.TWICE else weights
    weights = weights * _scale(given.query, variant) if slip is Slip.SCALED_LATE else weights
    if slip is Slip.NEXT:
        weights = torch.cat([weights[..., 1:], torch.zeros_like(weights[..., :1])], -1)
    heads = (weights.mT if slip is Slip.TRANSPOSED else weights) @ given.value
    return given.merged(_merging(heads, slip))


def _weights(scores: torch.Tensor, slip: Slip) -> torch.Tensor:
    """Those of scores (B, H, Lq, Lk)."""
    if slip is Slip.OVER_SAMPLES:
        return scores.flatten(0, 1).softmax(0).view(scores.shape)
    return scores.softmax({Slip.OVER_QUERIES: -2, Slip.OVER_HEADS: 1}.get(slip, -1))


def _merging(heads: torch.Tensor, slip: Slip) -> torch.Tensor:
    """Heads (B, H, L, d) that give what a mistake makes of them, once they are merged."""
    batch, count, tokens, width = heads.shape
    if slip is Slip.ACROSS_SAMPLES:
        heads = heads.transpose(0, 1)
    elif slip not in (Slip.MERGED, Slip.BOTH):
        return heads
    return heads.reshape(batch, tokens, count, width).transpose(1, 2)


def merged_with_slip(query: torch.Tensor, slip: Slip) -> torch.Tensor:
    """Queries in heads (B, H, L, d) as (B, L, E), as far as a mistake is one in how heads are split and merged."""
    split = _viewed(query) if slip in (Slip.SPLIT, Slip.BOTH) else query
    return _merging(split, slip).transpose(1, 2).flatten(2)


def _with_slip(given: Projected, slip: Slip) -> Projected:
    """With a mistake before the scores."""
    if slip is Slip.KEYS_SUMMED:
        return replace(given, value=given.key)
    if slip is Slip.QUERIES_COMPARED:
        return replace(given, key=given.query)
    if slip not in (Slip.SPLIT, Slip.BOTH):
        return given
    return replace(given, query=_viewed(given.query), key=_viewed(given.key), value=_viewed(given.value))


def _viewed(heads: torch.Tensor) -> torch.Tensor:
    """Heads (B, H, L, d) of the same numbers, split by a view alone."""
    return heads.transpose(1, 2).reshape(heads.shape)


def output_of_problem(problem: Problem, scale: float, causal: bool) -> Floats:
    """The output (B, Lq, E) of a module's problem with a scale, as of plain attention or of causal."""
    arrays = {name: torch.from_numpy(array) for name, array in problem.fresh().arrays().items()}
    query = arrays["query"]
    key = arrays.get("key", query)
    value = arrays.get("value", key)
    given = projected((query, key, value), arrays, problem.num_heads)
    variant = Variant(Premises(causal=causal), scale=0.0)
    output: Floats = output_of_variant(replace(given, query=given.query * scale), variant).numpy()
    return output
