"""Bounded: loops over tiles of keys that end too early under a causal flag or a window."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.staged import INFINITY, STAGE, State

TILES = (8, 16, 32, 64, 128)
ENDS = {
    "rounded down": lambda last, tile: (last + 1) // tile * tile,
    "one short where the last key begins a tile": lambda last, tile: -(-last // tile) * tile,
}
"""Of the last key that a tile of queries sees, and the size of a tile of keys: the end of the loop; wrong ones."""


def bounded() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """The stage, what is wrong, how it is repaired, and the entries that it makes."""
    repair = "Read the tile of the last key that the last query of a tile sees: last // tile + 1 tiles."
    for name, (words, end), keys, queries in product(("causal triangle", "window"), ENDS.items(), TILES, TILES):
        if queries in (keys, 2 * keys):
            sizes = f"{keys} keys for {queries} queries in the {name}"
            yield name, f"number of tiles of {sizes} {words}", repair, partial(_ended, name, end, keys, queries)


def _ended(name: str, end: Callable[[Tensor, int], Tensor], keys: int, queries: int, state: State) -> State:
    """The stage, and what lies behind the end hidden, too; tiles that end with the sequence are read.

    Raises:
        ValueError: there is no limit to the right.
    """
    right = 0 if name == "causal triangle" else state["window_right"]
    if right is None or state["soft"]:
        raise ValueError("the loop reads all keys")
    places, ahead = state["query_places"], state["key_places"]
    number = torch.arange(places.shape[-1])
    last_query = ((number // queries + 1) * queries - 1).clamp(max=max(0, places.shape[-1] - 1))
    last = places[:, last_query] - ahead[:, :1] + right
    ends = end(last, keys)
    read = torch.arange(ahead.shape[-1]) < ends[..., None]
    made = state | STAGE[name].change(state)
    scores, rest = made["scores"][..., : state["keys"]], made["scores"][..., state["keys"] :]
    return {"scores": torch.cat([scores.masked_fill(~read[:, None], -INFINITY), rest], -1)}
