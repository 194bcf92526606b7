"""Positions that a layer adds to the inputs of queries and keys, and not of values, as those of DETR do.

(Carion et al. 2020, section A.3.) A method `with_pos_embed` states that a layer is one of these, or its documentation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.adapters.tensors import tensors
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations, gives
from attention_conformance.implementations.discovery.modules.template import Variant, output_of_variant
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

METHOD = "with_pos_embed"
STATED = re.compile(
    r"added to (?:the )?(?:quer(?:y|ies)|q) and (?:to )?(?:the )?(?:keys?|k)\b"
    r"(?: only|\W+(?:but |and )?(?:not|never) (?:to )?(?:the )?(?:values?|v)\b)",
    re.IGNORECASE,
)
"""Words for it: "added to queries and keys, but not to values"."""
OF_QUERIES = ("query_pos", "object_queries", "query_pos_embed", "query_position_embeddings", "q_pos")
"""The positions of queries, where keys have others."""
NAMES = (
    *("pos", "pos_embed", "pos_emb", "position_embeddings", "spatial_position_embeddings"),
    *("key_pos", "key_pos_embed", "key_position_embeddings", "k_pos", *OF_QUERIES),
)
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
        names: of the parameters that take them.
        to: the inputs to which they are added.
        both: whether keys have positions of their own.
    """

    whole: PartEquations
    names: tuple[str, ...]
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
    found: dict[str, AddedPositions] = {}
    for names, placed in _ways(make, call) if _states_them(make.kind) else ():
        both = len(names) == 2
        drawn = {name: DrawnPositions(call.length_first, both and name not in OF_QUERIES) for name in names}
        given = Chosen(replace(placed, tables={**call.tables, **drawn}), ())
        run = AddedPositions(PartEquations(make, given, variant, {}), names, both=both)
        found[f"with positions in {' and '.join(map(repr, names))}"] = run
    return found if all(_is_known(run, problem, device) for run in found.values()) else {}


def _ways(make: Constructor, call: ModuleCall) -> Iterator[tuple[tuple[str, ...], ModuleCall]]:
    """The parameters that are given together, with the call: of tokens among themselves, or of those of a memory."""
    names = tuple(name for name in never_given(make.kind, call) if name in NAMES)
    of_queries = tuple(name for name in names if name in OF_QUERIES)
    alone = call.alone_with_itself()
    if alone.inputs == 1 and (len(names) == 1 or (call.optional and len(of_queries) == 1)):
        yield of_queries or names, alone
    if call.inputs > 1 and len(names) == 2 and len(of_queries) == 1:
        yield names, call


def _is_known(run: AddedPositions, problem: Problem, device: str) -> bool:
    """Whether its answer is that of positions which are added somewhere."""
    if (seen := run.whole.shown(problem, device)) is None:
        return False
    module, shown = seen
    ways = (replace(run, to=to) for to in (PUBLISHED, *MISTAKEN))
    return any(gives(each.expected, module, problem, shown) for each in ways)


def _states_them(kind: object) -> bool:
    return inspect.isfunction(getattr(kind, METHOD, None)) or bool(STATED.search(inspect.getdoc(kind) or ""))


def positions_judged(modes: Modes) -> set[str]:
    """The parameters of positions that a module is judged with."""
    run = modes.get(Feature.AS_BUILT)
    otherwise = run.otherwise.values() if isinstance(run, AsBuilt) else ()
    return {name for each in otherwise if isinstance(each, AddedPositions) for name in each.names}
