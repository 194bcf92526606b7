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
PUBLISHED = frozenset({"query", "key"})
MISTAKEN = (frozenset(INPUTS), frozenset({"query"}), frozenset({"key"}), frozenset({"value"}), frozenset[str]())
"""To what positions are added, and to what they are by mistake."""


@dataclass(frozen=True)
class DrawnPositions:
    """Positions of each token, the same ones in all samples; `length_first` in the layout (L, B, E)."""

    length_first: bool

    def given(self, x: torch.Tensor, _: torch.Tensor, heads: int) -> torch.Tensor:
        """Them for queries (B, L, E)."""
        numbers = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        whole = numbers.to(x).expand_as(x)
        return whole.transpose(0, 1) if self.length_first else whole


@dataclass(frozen=True, eq=False)
class AddedPositions:
    """A layer that is given positions, whose answer is known.

    Attributes:
        whole: the layer without them.
        to: the inputs to which they are added.
    """

    whole: PartEquations
    to: frozenset[str] = PUBLISHED

    def __call__(self, problem: Problem, device: str) -> Result:
        """What the equation gives; its `others` are the output."""
        return self.whole.compared(self.expected, "added to queries and keys, and not to values", problem, device)

    def expected(self, module: nn.Module, problem: Problem) -> torch.Tensor:
        """The output (B, L, E)."""
        x = inputs_of(tensors(problem, "cpu"))[0].double()
        moved = x + DrawnPositions(False).given(x, x, problem.num_heads)
        inputs = {name: moved if name in self.to else x for name in INPUTS}
        given, _ = self.whole.projected(module, problem, (inputs["query"], inputs["key"], inputs["value"]))
        return output_of_variant(given, self.whole.variant)


def added_positions(
    make: Constructor, call: ModuleCall, variant: Variant, problem: Problem, device: str
) -> dict[str, AddedPositions]:
    """The layer that is given its positions, by a text on them; nothing where it has none, or does something else."""
    names = [name for name in never_given(make.kind, call) if name in NAMES]
    if len(names) != 1 or not inspect.isfunction(getattr(make.kind, METHOD, None)):
        return {}
    given = replace(call.alone_with_itself(), tables={**call.tables, names[0]: DrawnPositions(call.length_first)})
    whole = PartEquations(make, Chosen(given, ()), variant, {})
    if (seen := whole.shown(problem, device)) is None:
        return {}
    module, shown = seen
    known = any(gives(AddedPositions(whole, to).expected, module, problem, shown) for to in (PUBLISHED, *MISTAKEN))
    return {f"with positions in {names[0]!r}": AddedPositions(whole)} if known else {}
