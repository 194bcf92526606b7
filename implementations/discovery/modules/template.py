"""Templates: what multi-head attention in one of its published variants gives, to read where a module keeps what.

A reading is only taken from here. Whether the module is right is for the suite to judge, with its own reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from attention_conformance.implementations.discovery.always_scores import rotated, usual_slopes
from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.spec.problem import Problem

BASE = 10000.0
"""The usual base of rotations."""


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
    """

    premises: Premises = NO_PREMISES
    pairing: RotaryPairing = RotaryPairing.HALVES
    scale: float = -0.5
    known: bool = True
    of_all: bool = False
    normalised: bool = False
    cosine: bool = False


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
    cosines = Variant(Premises(scale=1.0), scale=0.0, normalised=True, cosine=True)
    yield from (cosines, replace(cosines, premises=Premises(scale=1.0, causal=True)))
    rules = [{"alibi": True, "interleaved": rule} for rule in (False, True)]
    sloped = [replace(v, premises=replace(v.premises, **rule)) for v in plain for rule in rules]
    yield from sloped
    yield from (replace(each, of_all=True, known=False) for each in (*plain, *sloped))
    yield from (replace(each, scale=scale, known=False) for each in plain for scale in (0.0, -1.0, 0.5))
    yield from (replace(each, scale=0.0, known=False) for each in rotary)


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


def scores_of_variant(given: Projected, variant: Variant) -> torch.Tensor:
    """The scores (B, H, Lq, Lk), of which none is hidden."""
    query, key = given.query, given.key
    if variant.normalised:
        width = 1 if variant.cosine else query.shape[-1]
        query, key = (x * (x.square().sum(-1, keepdim=True) / width).rsqrt() for x in (query, key))
    if base := variant.premises.rotary_base:
        query, key = (torch.from_numpy(rotated(x.numpy(), base, variant.pairing)) for x in (query, key))
    width = query.shape[-1] * (query.shape[1] if variant.of_all else 1)
    scores: torch.Tensor = query @ key.mT * width**variant.scale
    if variant.premises.alibi:
        place = torch.arange(scores.shape[-1], dtype=scores.dtype)
        slopes = scores.new_tensor(usual_slopes(scores.shape[1])[int(variant.premises.interleaved)])
        scores = scores - slopes[:, None, None] * (place - place[: scores.shape[-2], None]).abs()
    return scores


def output_of_variant(given: Projected, variant: Variant) -> torch.Tensor:
    """The output (B, Lq, E)."""
    scores = scores_of_variant(given, variant)
    if variant.premises.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return given.merged(scores.softmax(-1) @ given.value)


def output_of_problem(problem: Problem, scale: float, causal: bool) -> Floats:
    """The output (B, Lq, E) of a module's problem with a scale, as of plain attention or of causal."""
    arrays = {name: torch.from_numpy(array) for name, array in problem.arrays().items()}
    query, key, value = (arrays.get(name, arrays["query"]) for name in INPUTS)
    given = projected((query, key, value), arrays, problem.num_heads)
    variant = Variant(Premises(causal=causal), scale=0.0)
    output: Floats = output_of_variant(replace(given, query=given.query * scale), variant).numpy()
    return output
