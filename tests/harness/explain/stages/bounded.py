"""Bounded: loops over tiles of keys that end too early under a causal flag or a window."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.staged import INFINITY, STAGE, Stage, State

TILES = (8, 16, 32, 64, 128)
ENDS = {
    "rounded down": lambda last, tile: (last + 1) // tile * tile,
    "one short where the last key begins a tile": lambda last, tile: -(-last // tile) * tile,
}
"""Of the last key that a tile of queries sees, and the size of a tile of keys: the end of the loop; wrong ones."""


def bounded() -> Iterator[tuple[str, str, Mapping[Stage, Stage]]]:
    """What is wrong, how it is repaired, and the stages that are other ones: a causal flag is a window to most code."""
    repair = "Read the tile of the last key that the last query of a tile sees: last // tile + 1 tiles."
    for (words, end), keys, times, whole in product(ENDS.items(), TILES, (1, 2), (False, True)):
        loop = Loop(end, keys, times * keys, whole)
        slip = {stage: _ending(stage, loop) for stage in (STAGE["causal triangle"], STAGE["window"])}
        of = f"{keys} keys for {'whole tiles of ' if whole else ''}{times * keys} queries"
        yield f"number of tiles of {of} {words}", repair, slip


@dataclass(frozen=True)
class Loop:
    """A loop over tiles of keys.

    Attributes:
        end: of `ENDS`.
        keys, queries: the sizes of tiles.
        whole: whether the last tile of queries is taken for a whole one, beyond the end of the sequence.
    """

    end: Callable[[Tensor, int], Tensor]
    keys: int
    queries: int
    whole: bool


def _ending(stage: Stage, loop: Loop) -> Stage:
    return Stage(stage.name, partial(_ended, stage, loop), stage.reads, stage.needs)


def _ended(stage: Stage, loop: Loop, state: State) -> State:
    """The stage, and what lies behind the end hidden, too; tiles that end with the sequence are read."""
    right, made = 0 if stage.needs == "causal" else state["window_right"], stage.change(state)
    if right is None:
        return made
    places, ahead = state["query_places"], state["key_places"]
    number = torch.arange(places.shape[-1])
    first = number // loop.queries * loop.queries
    steps = loop.queries - 1 if loop.whole else (places.shape[-1] - 1 - first).clamp(max=loop.queries - 1)
    last = places[:, first] + steps - ahead[:, :1] + right
    read = torch.arange(ahead.shape[-1]) < loop.end(last, loop.keys)[..., None]
    made = state | made
    scores, rest = made["scores"][..., : state["keys"]], made["scores"][..., state["keys"] :]
    return {"scores": torch.cat([scores.masked_fill(~read[:, None], 0.0 if state["soft"] else -INFINITY), rest], -1)}
