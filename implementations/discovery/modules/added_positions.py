"""Positions that a layer adds to the inputs of queries and keys, and not of values, as those of DETR do.

(Carion et al. 2020, section A.3.) A method `with_pos_embed` states that a layer is one of these.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.tensors import tensors
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations, gives
from attention_conformance.implementations.discovery.modules.template import Variant, output_of_variant
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.problem import Problem

METHOD = "with_pos_embed"
NAMES = ("pos", "query_pos", "pos_embed")
OF_QUERIES = "query_pos"
"""The positions of queries, where keys have others."""
PUBLISHED = frozenset({"query", "key"})
MISTAKEN = (frozenset(INPUTS), frozenset({"query"}), frozenset({"key"}), frozenset({"value"}), frozenset[str]())
"""To what positions are added, and to what they are by mistake."""


@dataclass(frozen=True)
class DrawnPositions:
    """Positions of each token, the same ones in all samples.

    Attributes:
        length_first: whether they are in the layout (L, B, E).
        of_keys: whether they are those of keys, which are others than those of queries.
    """

    length_first: bool
    of_keys: bool = False

    def given(self, query: torch.Tensor, key: torch.Tensor, heads: int) -> torch.Tensor:
        """Them for queries or keys (B, L, E)."""
        x, seed = (key, 1) if self.of_keys else (query, 0)
        numbers = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        whole = numbers.to(x).expand_as(x)
        return whole.transpose(0, 1) if self.length_first else whole


@dataclass(frozen=True, eq=False)
class AddedPositions:
    """A layer that is given positions, whose answer is known.

    Attributes:
        whole: the layer without them.
        to: the inputs to which they are added.
        both: whether keys have positions of their own.
    """

    whole: PartEquations
    to: frozenset[str] = PUBLISHED
    both: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """What the equation gives; its `others` are the output."""
        return self.whole.compared(self.expected, "added to queries and keys, and not to values", problem, device)

    def expected(self, module: nn.Module, problem: Problem) -> torch.Tensor:
        """The output (B, L, E)."""
        x, y, _ = (each.double() for each in inputs_of(tensors(problem, "cpu")))
        y = y if self.both else x
        of_queries, of_keys = (DrawnPositions(False, each).given(x, y, 0) for each in (False, self.both))
        named = {"query": (x, of_queries), "key": (y, of_keys), "value": (y, of_keys)}
        inputs = [each + positions if name in self.to else each for name, (each, positions) in named.items()]
        given, _ = self.whole.projected(module, problem, tuple(inputs))
        return output_of_variant(given, self.whole.variant)


def added_positions(
    make: Constructor, call: ModuleCall, variant: Variant, problem: Problem, device: str
) -> dict[str, AddedPositions]:
    """The layer that is given its positions, by a text on them; nothing where it has none, or does something else."""
    names = [name for name in never_given(make.kind, call) if name in NAMES]
    alone, both = call.alone_with_itself(), len(names) == 2 and OF_QUERIES in names
    if not (both or len(names) == 1) or (alone.inputs > 1) is not both or not _states_them(make.kind):
        return {}
    drawn = {name: DrawnPositions(call.length_first, both and name != OF_QUERIES) for name in names}
    whole = PartEquations(make, Chosen(replace(alone, tables={**call.tables, **drawn}), ()), variant, {})
    if (seen := whole.shown(problem, device)) is None:
        return {}
    module, shown = seen
    ways = (AddedPositions(whole, to, both) for to in (PUBLISHED, *MISTAKEN))
    known = any(gives(each.expected, module, problem, shown) for each in ways)
    named = " and ".join(map(repr, names))
    return {f"with positions in {named}": AddedPositions(whole, both=both)} if known else {}


def _states_them(kind: object) -> bool:
    return inspect.isfunction(getattr(kind, METHOD, None))
