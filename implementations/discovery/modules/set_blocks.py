"""Set blocks: layers of the Set Transformer, whose queries may be learnt seeds, judged by the equation of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, product

import torch
from torch import nn
from torch.nn import functional

from attention_conformance.implementations.adapters.as_built import Call, Run
from attention_conformance.implementations.adapters.op_options import inputs_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.discovery.modules.built_otherwise import turned_on
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations, gives
from attention_conformance.implementations.discovery.modules.promises import text_of
from attention_conformance.implementations.discovery.modules.slots import roles_of, slots
from attention_conformance.implementations.discovery.modules.template import (
    Projected,
    Slip,
    Variant,
    merged_with_slip,
    output_of_variant,
)
from attention_conformance.implementations.discovery.modules.whole_equations import WholeEquation
from attention_conformance.implementations.discovery.modules.whole_samples import AnyAxes, laid_in_tokens
from attention_conformance.spec.problem import Problem

SLIPS = (
    *(Slip.OVER_QUERIES, Slip.OVER_HEADS, Slip.OVER_SAMPLES, Slip.TRANSPOSED, Slip.TWICE, Slip.SCALED_LATE),
    *(Slip.KEYS_SUMMED, Slip.QUERIES_COMPARED, Slip.SPLIT, Slip.MERGED, Slip.BOTH, Slip.ACROSS_SAMPLES),
)
"""Mistakes next to which the rest of such a layer is seen."""
COMPETING = re.compile(r"\bslots?\b|slot_?attention|compet", re.IGNORECASE)
"""What the text of a class has whose seeds share each token, with a softmax over them."""
ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
USUAL = "relu"
"""The published one."""


class Residual(Enum):
    """What is added to what the heads give."""

    PROJECTED = "the queries, as they are compared"
    INPUT = "the input of the queries"
    NONE = "nothing"


class Place(Enum):
    """Where a norm stands."""

    QUERY = "before the queries are projected"
    KEY = "before keys and values are projected"
    INPUTS = "before each of them"
    MIDDLE = "after the first residual"
    FEED = "before the layers that follow"
    END = "after the second residual"


PLACES: Mapping[int, Sequence[tuple[Place, ...]]] = {
    0: [()],
    1: [(Place.MIDDLE,), (Place.END,), (Place.INPUTS,)],
    2: [(Place.MIDDLE, Place.END), (Place.QUERY, Place.KEY), (Place.INPUTS, Place.FEED)],
    3: [(Place.QUERY, Place.KEY, Place.FEED)],
}
"""Where so many norms of a block may stand, in the order in which it holds them."""


@dataclass(frozen=True)
class Block:
    """The layers of one block, by their paths.

    Attributes:
        of_heads: those of queries, keys and values.
        rest: the other linear ones, in order.
        norms: in order.
    """

    of_heads: tuple[str, str, str]
    rest: tuple[str, ...]
    norms: tuple[str, ...]


@dataclass(frozen=True)
class Style:
    """How the blocks of a module compute.

    Attributes:
        variant: of attention.
        residual: what is added first.
        projects: whether the first of the other layers multiplies what the heads give, and those that follow are added.
        activation: between the layers that follow.
        last: whether it is taken of the last one, too.
        places: of the norms.
    """

    variant: Variant
    residual: Residual
    projects: bool
    activation: str
    last: bool
    places: tuple[Place, ...]


class Numbers:
    """The parameters of a module, float64."""

    def __init__(self, module: nn.Module) -> None:
        self.of = {path: torch.from_numpy(to_array(each)).double() for path, each in module.named_parameters()}
        self._module = module

    def linear(self, path: str, x: torch.Tensor) -> torch.Tensor:
        """What its layer at this path gives."""
        return functional.linear(x, self.of[f"{path}.weight"], self.of.get(f"{path}.bias"))

    def normed(self, path: str, x: torch.Tensor) -> torch.Tensor:
        """What its norm at this path gives."""
        norm = self._module.get_submodule(path)
        assert isinstance(norm, nn.LayerNorm)
        return functional.layer_norm(
            x, x.shape[-1:], self.of.get(f"{path}.weight"), self.of.get(f"{path}.bias"), norm.eps
        )


@dataclass(frozen=True)
class SetForm:
    """What a module of such blocks computes: one, or two of which the second attends to what the first makes of seeds.

    Attributes:
        blocks: in the order of their use.
        seeds: the path of the queries of the first block; empty: these are tokens.
        style: of each block.
        inputs: that it is called with.
        pooled: whether its answer has other axes than tokens and channels.
    """

    blocks: tuple[Block, ...]
    seeds: str
    style: Style
    inputs: int
    pooled: bool

    def output(self, module: nn.Module, problem: Problem) -> torch.Tensor:
        """(B, L, E), float64."""
        q, k, v = (x.double() for x in inputs_of(tensors(problem, "cpu")))
        key, value = {1: (q, q), 2: (k, k)}.get(self.inputs, (k, v))
        own = Numbers(module)
        query = own.of[self.seeds].reshape(1, -1, q.shape[-1]).expand(len(q), -1, -1) if self.seeds else q
        output = self._block(self.blocks[0], own, (query, key, value), problem.num_heads)
        if len(self.blocks) > 1:
            output = self._block(self.blocks[1], own, (q, output, output), problem.num_heads)
        return laid_in_tokens(output, q) if self.pooled else output

    def _block(
        self, block: Block, own: Numbers, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], heads: int
    ) -> torch.Tensor:
        norms = dict(zip(self.style.places, block.norms, strict=True))

        def normed(x: torch.Tensor, *places: Place) -> torch.Tensor:
            for path in (norms[place] for place in places if place in norms):
                x = own.normed(path, x)
            return x

        given = [normed(x, Place.INPUTS, Place.KEY if n else Place.QUERY) for n, x in enumerate(inputs)]
        flat = [own.linear(path, x) for path, x in zip(block.of_heads, given, strict=True)]
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in flat)
        output = output_of_variant(Projected(q, k, v, None, None), self.style.variant)
        output = own.linear(block.rest[0], output) if self.style.projects else output
        match self.style.residual:
            case Residual.PROJECTED:
                output = output + merged_with_slip(q, self.style.variant.slip)
            case Residual.INPUT:
                output = output + inputs[0]
        whole = normed(output, Place.MIDDLE)
        fed = self._fed(block, own, normed(whole, Place.FEED))
        return normed(whole if fed is None else whole + fed, Place.END)

    def _fed(self, block: Block, own: Numbers, x: torch.Tensor) -> torch.Tensor | None:
        """What the layers that follow make of it; None where none do."""
        feeding = block.rest[int(self.style.projects) :]
        for number, path in enumerate(feeding, 1):
            x = own.linear(path, x)
            x = ACTIVATIONS[self.style.activation](x) if self.style.last or number < len(feeding) else x
        return x if feeding else None


def set_blocks(make: Constructor, call: Call, inputs: int, problem: Problem, device: str) -> Mapping[str, Run]:
    """The runs that judge it, by a text for messages, as it is built usually and with an option more."""
    found: dict[str, Run] = {}
    for how, each in {"": make, **dict(turned_on(make))}.items():
        equations = PartEquations(each, call, Variant(), {}, alone=True)
        if (run := _of_form(equations, inputs, isinstance(call, AnyAxes), problem, device)) is not None:
            found[f"{how}, " * bool(how) + "with the numbers of its set blocks"] = run
        elif not how:
            return {}
    return found


def _of_form(equations: PartEquations, inputs: int, pooled: bool, problem: Problem, device: str) -> Run | None:
    """The run of the right form, where its answer is that of such a form, or of one with a mistake."""
    if (seen := equations.shown(problem, device)) is None:
        return None
    module, shown = seen
    if (parts := _parts(module, problem.query.shape[-1])) is None:
        return None
    several = [SetForm(*parts, style, inputs, pooled) for style in _styles(parts[0][0], bool(parts[1]))]
    likely = [form for form in several if form.style.activation == USUAL and form.style.variant.scale]
    competing = COMPETING.search(text_of(equations.make.kind))
    slips = [slip for slip in SLIPS if not (competing and slip is Slip.OVER_QUERIES)]
    for slip, form in chain(product((Slip.NONE,), several), product(slips, likely)):
        slipped = replace(form, style=replace(form.style, variant=replace(form.style.variant, slip=slip)))
        if gives(slipped.output, module, problem, shown):
            return WholeEquation(equations, form)
    return None


def _styles(block: Block, seeded: bool) -> Iterator[Style]:
    """Those that blocks with such layers may have, the published ones first; none is attention alone."""
    scales = (Variant(of_all=True), Variant(), Variant(scale=0.0))
    for projects in sorted({False, bool(block.rest)}):
        count = len(block.rest) - projects
        activations = [*product(ACTIVATIONS, (True, False))] if count else [(USUAL, False)]
        every = product(scales, Residual, PLACES[len(block.norms)], activations)
        for variant, residual, places, (activation, last) in every:
            if seeded or count or residual is Residual.PROJECTED:
                yield Style(variant, residual, projects, activation, last, places)


def _parts(module: nn.Module, width: int) -> tuple[tuple[Block, ...], str] | None:
    """Its blocks and the path of its seeds, if they have all of its parameters; None where it is another module."""
    roles: dict[str, str] = {}
    for slot in slots(module, width, 2):
        if slot.linear and not slot.is_bias and not slot.per_head and (role := roles_of(slot)) in ("q", "k", "v"):
            roles[slot.owner] = role
    blocks = tuple(_block(module, root, roles) for root in _roots(module, roles))
    known = {path for block in blocks for path in (*block.of_heads, *block.rest, *block.norms)}
    left = {path: each for path, each in module.named_parameters() if path.rpartition(".")[0] not in known}
    of_seeds = all(each.ndim > 1 and each[0].numel() in (width, each.numel()) for each in left.values())
    alike = len({(len(block.rest), len(block.norms)) for block in blocks}) == 1
    if not alike or len(left) > 1 or not of_seeds or len(blocks[0].norms) not in PLACES:
        return None
    return (blocks, next(iter(left), "")) if len(blocks) == 1 or (len(blocks) == 2 and left) else None


def _roots(module: nn.Module, roles: Mapping[str, str]) -> list[str]:
    """The paths of the largest parts with one layer for queries, one for keys and one for values."""
    found: list[str] = []
    for path, _ in module.named_modules():
        inside = sorted(role for owner, role in roles.items() if _is_inside(owner, path))
        if inside == ["k", "q", "v"] and not any(_is_inside(path, root) for root in found):
            found.append(path)
    return found


def _is_inside(path: str, root: str) -> bool:
    return not root or path.startswith(f"{root}.")


def _block(module: nn.Module, root: str, roles: Mapping[str, str]) -> Block:
    inside = {path: each for path, each in module.named_modules() if _is_inside(path, root)}
    by_role = {role: path for path, role in roles.items() if path in inside}
    linear = [path for path, each in inside.items() if isinstance(each, nn.Linear) and path not in roles]
    norms = [path for path, each in inside.items() if isinstance(each, nn.LayerNorm)]
    return Block((by_role["q"], by_role["k"], by_role["v"]), (*linear,), (*norms,))
