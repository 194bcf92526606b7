"""Transformer-XL: parts that have the names of its relative positions, judged by its equation.

The score of query i and key j is ((q_i + u) k_j + (q_i + v) W r_{i-j}) / sqrt(d), with u and v for each head, and the
positions r of all distances given, or sinusoids that the module makes itself (Dai et al. 2019, section 3.3; with both
sides as in the Conformer).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.tensors import tensors
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.neutrals import Given, Neutral
from attention_conformance.implementations.discovery.modules.parameters import place_of
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations, gives
from attention_conformance.implementations.discovery.modules.promises import text_of
from attention_conformance.implementations.discovery.modules.template import BASE, Projected, Variant, scores_of_variant
from attention_conformance.spec.problem import Problem

OF_CONTENT = ("pos_bias_u", "r_w_bias", "u_bias")
OF_POSITIONS = ("pos_bias_v", "r_r_bias", "v_bias")
PROJECTION = ("linear_pos", "pos_proj", "r_net")
"""The published names of u, v and W."""
OF_BOTH_SIDES = re.compile(r"full[- ]context|bidirectional|non[- ]?causal|both (?:sides|directions)", re.IGNORECASE)
"""What the text of a class has whose queries see the keys ahead of them, whatever its mask may hide."""
BOTH_SIDES = (Neutral.BOTH_SIDES, Neutral.SAMPLE_BOTH_SIDES)
"""Positions of all distances of queries and keys."""


class Order(StrEnum):
    """How the positions are sorted."""

    PAST_FIRST = "the key that is farthest behind first"
    FUTURE_FIRST = "the key that is farthest ahead first"


class Mistake(StrEnum):
    """What is known to go wrong with them."""

    UNSCALED = "the term of positions is not scaled"
    SWAPPED = "u and v are exchanged"
    ONE_BIAS = "u is added in the term of positions, too"
    OTHER_BIAS = "v is added in the term of content, too"
    NO_BIAS = "nothing is added in the term of positions"
    NO_CONTENT_BIAS = "nothing is added in the term of content"
    NO_BIASES = "nothing is added"
    SHIFTED = "each row is shifted by one distance too many"
    FARTHER = "each key counts as one farther behind"
    NOT_SHIFTED = "the first distances are read in each row"
    NEXT_HEAD = "each head has the positions of the one after it"
    PAST_ALONE = "keys ahead have what the shift leaves there of the distances behind"


@dataclass(frozen=True)
class Drawn:
    """Positions that differ, where zeros would change nothing.

    Attributes:
        zeros: whose shape they have.
    """

    zeros: Given

    def given(self, x: torch.Tensor, key: torch.Tensor, heads: int) -> Any:
        """Them for the inputs of query and key, (B, L, E): the same ones for every sample."""
        zeros = self.zeros.given(x, key, heads)
        numbers = torch.randn(zeros.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return numbers.to(zeros).expand_as(zeros)


@dataclass(frozen=True)
class Sinusoids:
    """Positions that a module makes itself.

    Attributes:
        side_by_side: whether all sines come before all cosines; else they alternate.
        farther: by how much each distance is too large.
    """

    side_by_side: bool
    farther: int = 0

    def given(self, x: torch.Tensor, _: torch.Tensor, heads: int) -> torch.Tensor:
        """(1, 2 L - 1, E), of the distances L - 1 to 1 - L, for inputs (B, L, E)."""
        length, width = x.shape[-2:]
        distances = torch.arange(length - 1, -length, -1.0, dtype=x.dtype) + self.farther
        angles = distances[:, None] * BASE ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
        pair = angles.sin(), angles.cos()
        return (torch.cat(pair, -1) if self.side_by_side else torch.stack(pair, -1).flatten(1))[None]


@dataclass(frozen=True)
class Named:
    """The paths of u, v and W, and the parameter of the forward that takes the positions; empty for none."""

    content: str
    position: str
    projection: str
    given: str

    @property
    def parts(self) -> tuple[str, str, str]:
        """Their paths; that of W is its layer's."""
        return self.content, self.position, self.projection


@dataclass(frozen=True, eq=False)
class RelativePositions:
    """A module whose answer is known by the equation of Transformer-XL.

    Attributes:
        whole: the module with these parts in place.
        named: these parts.
        positions: what is given, or made inside.
        order: how they are sorted.
        mistake: with which its equation is taken, for looking at it.
    """

    whole: PartEquations
    named: Named
    positions: Drawn | Sinusoids
    order: Order = Order.PAST_FIRST
    mistake: Mistake | None = None

    @property
    def uses(self) -> dict[str, str]:
        """What each part is in the equation, by its path."""
        return dict(zip(self.named.parts, "uvW", strict=True))

    def __call__(self, problem: Problem, device: str) -> Result:
        """What the equation gives; its `others` are the output."""
        return self.whole.compared(self.expected, "by the equation of Transformer-XL", problem, device)

    def expected(self, module: nn.Module, problem: Problem) -> torch.Tensor:
        """The output (B, L, E)."""
        given, hidden = self.whole.projected(module, problem)
        scores = self._scores(module, given, problem).masked_fill(hidden, -torch.inf)
        return given.merged(scores.softmax(-1) @ given.value)

    def _scores(self, module: nn.Module, given: Projected, problem: Problem) -> torch.Tensor:
        own = {path: parameter.detach().cpu().double() for path, parameter in module.named_parameters()}
        heads, width = given.query.shape[1], given.query.shape[-1]
        u, v = (own[path].reshape(heads, 1, width) for path in (self.named.content, self.named.position))
        u, v = _biases(u, v, self.mistake)
        x = tensors(problem, "cpu")["query"].double()
        layer = self.named.projection
        placed = nn.functional.linear(self._positions().given(x, x, heads)[:1], own[f"{layer}.weight"])
        rows = (placed + own.get(f"{layer}.bias", 0.0)).unflatten(-1, (heads, width)).transpose(1, 2)
        rows = rows.roll(-1, 1) if self.mistake is Mistake.NEXT_HEAD else rows
        content = scores_of_variant(replace(given, query=given.query + u), self.whole.variant)
        far = replace(given, query=given.query + v, key=rows.expand(len(given.query), -1, -1, -1))
        position = scores_of_variant(far, self.whole.variant)
        if self.mistake is Mistake.UNSCALED:
            position = position * width**0.5
        if self.mistake is Mistake.PAST_ALONE:
            return content + _shifted(position[..., : position.shape[-2]])
        return content + position.gather(-1, self._places(content))

    def _positions(self) -> Drawn | Sinusoids:
        """What is given, or made inside, with its mistake."""
        if self.mistake is Mistake.FARTHER and isinstance(self.positions, Sinusoids):
            return replace(self.positions, farther=1)
        return self.positions

    def _places(self, scores: torch.Tensor) -> torch.Tensor:
        """(B, H, L, L): the row of positions of each query and key."""
        length = scores.shape[-1]
        token = torch.arange(length)
        ahead = token - token[:, None]
        places = length - 1 + (ahead if self.order is Order.PAST_FIRST else -ahead)
        if self.mistake is Mistake.NOT_SHIFTED:
            places = token.expand_as(places)
        if self.mistake is Mistake.SHIFTED:
            places = (places + 1) % (2 * length - 1)
        if self.mistake is Mistake.FARTHER and isinstance(self.positions, Drawn):
            places = (places - 1) % (2 * length - 1)
        return places.expand(scores.shape)


def _shifted(position: torch.Tensor) -> torch.Tensor:
    """The terms (B, H, L, L) of the distances L - 1 to 0, each row shifted as those of causal queries are."""
    *axes, length, _ = position.shape
    wider = torch.cat([torch.zeros_like(position[..., :1]), position], -1)
    return wider.reshape(*axes, length + 1, length)[..., 1:, :].reshape(position.shape)


def _biases(u: torch.Tensor, v: torch.Tensor, mistake: Mistake | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What is added to queries in the term of content, and in that of positions."""
    none = torch.zeros_like(u)
    found = {
        Mistake.SWAPPED: (v, u),
        Mistake.ONE_BIAS: (u, u),
        Mistake.OTHER_BIAS: (v, v),
        Mistake.NO_BIAS: (u, none),
        Mistake.NO_CONTENT_BIAS: (none, v),
        Mistake.NO_BIASES: (none, none),
    }
    return found.get(mistake, (u, v)) if mistake else (u, v)


def relative_positions(
    make: Constructor, call: ModuleCall, variant: Variant, problem: Problem, device: str
) -> RelativePositions | None:
    """The module with its parts in place, if its answer is that of the equation, or of a mistake.

    Args:
        make: the class as its answer is known, with these parts held.
        call: how it is called, with zeros for positions if it is given any.
        variant: of attention.
        problem: which shows what the parts do.
        device: where it runs.
    """
    named, biases = _named(make, call), {path: fill for path, fill in make.held.items() if place_of(path) is not None}
    if named is None:
        return None
    drawn = {named.given: Drawn(call.tables[named.given])} if named.given else {}
    direct = Chosen(replace(call, tables={**call.tables, **drawn}).alone_with_itself(), ())
    whole = PartEquations(replace(make, held=biases), direct, variant, {})
    if (seen := whole.shown(problem, device)) is None:
        return None
    module, shown = seen
    several: tuple[Drawn | Sinusoids, ...] = (*drawn.values(),) or (Sinusoids(True), Sinusoids(False))
    hides = {"bool_mask", "float_mask", "is_causal"} & {*call.options.spelled}  # keys ahead, in its usual calls
    both_sides = not hides or OF_BOTH_SIDES.search(text_of(make.kind)) is not None
    mistakes = [each for each in Mistake if each is not Mistake.PAST_ALONE or both_sides]
    for mistake, order, positions in product((None, *mistakes), Order, several):
        run = RelativePositions(whole, named, positions, order, mistake)
        if gives(run.expected, module, problem, shown):
            return replace(run, mistake=None)
    return None


def _named(make: Constructor, call: ModuleCall) -> Named | None:
    """The parts under their published names, where these and their biases are all that is held."""
    held = [path for path in make.held if place_of(path) is None]
    positions = [name for name, neutral in call.tables.items() if neutral in BOTH_SIDES]
    content, position = _of(held, OF_CONTENT), _of(held, OF_POSITIONS)
    layers = [path.removesuffix(".weight") for path in held if path.endswith(".weight")]
    projection = _of(layers, PROJECTION)
    known = {content, position, f"{projection}.weight", f"{projection}.bias"}
    if not (content and position and projection and len(positions) < 2) or {*held} - known:
        return None
    return Named(content, position, projection, next(iter(positions), ""))


def _of(paths: list[str], names: tuple[str, ...]) -> str:
    return next((path for path in paths if path.endswith(names)), "")
