"""Joined: masks that are put together wrongly: two of them, those of heads, and those of keys that are added."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, product

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.changes import relaid, reread
from attention_conformance.tests.harness.explain.stages.staged import STAGE, STAGES, Stage, State

HIDING = ("attention mask", "padding mask", "valid lengths", "causal triangle", "window", "documents")


def joined() -> Iterator[tuple[Stage, Stage, Stage]]:
    """Two stages that hide keys, and what takes the place of the second one where the first is left out."""
    for one, two in combinations([stage for stage in STAGES if stage.name in HIDING], 2):
        yield one, two, Stage(two.name, _either(one, two), two.reads)


def _either(one: Stage, two: Stage) -> Callable[[State], State]:
    def change(state: State) -> State:
        first = state | one.change(state)
        both = first | two.change(first)
        by_one, by_two = _shown(one, state), _shown(two, state)
        alone = torch.where(by_one & ~by_two, first["scores"], both["scores"])
        return {"scores": torch.where(by_two & ~by_one, state["scores"], alone)}

    return change


def _shown(stage: Stage, state: State) -> Tensor:
    plain = state | {"scores": torch.zeros_like(state["scores"]), "hidden": -float("inf"), "soft": False}
    shown: Tensor = stage.change(plain)["scores"] > -float("inf")
    return shown


def reordered() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """A mask of each sample for each head, the two axes laid out in one order and read in the other."""
    for (name, (entry, masks)), order in product(PER_SAMPLE.items(), (reread, relaid)):
        words, repair = f"{name} repeated for the heads in another order", f"Give all heads of a sample the {name}."
        yield name, words, repair, partial(_reordered, entry, masks, order)
        if name == "attention mask":
            words = "attention mask with samples and heads laid out in another order, given or repeated"
            yield name, words, f"Give sample b and head h the {name} [b, h].", partial(_reordered, entry, _whole, order)


def widened() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """Masks where a key is added after those that are given: for other keys, or for that one, too."""
    for name in HIDING[:3]:
        yield name, f"{name} of the next key where one is added", "Append to masks what the added key has.", _late(name)
        yield name, f"{name} hides the added key", "Show the added key to every query.", _also_added(name)


def _late(name: str) -> Callable[[State], State]:
    def change(state: State) -> State:
        added = state["scores"].shape[-1] - state["keys"]
        shifted = state | {"scores": state["scores"].roll(-added, -1)}
        return {"scores": STAGE[name].change(shifted)["scores"].roll(added, -1)}

    return change


def _also_added(name: str) -> Callable[[State], State]:
    def change(state: State) -> State:
        scores: Tensor = STAGE[name].change(state)["scores"]
        rest = torch.arange(scores.shape[-1]) >= state["keys"]
        return {"scores": scores.masked_fill(rest, 0.0 if state["soft"] else state["hidden"])}

    return change


PER_SAMPLE: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "attention mask": ("attn_mask", lambda mask: mask),
    "padding mask": ("key_padding_mask", lambda mask: mask[:, None, None, :]),
    "valid lengths": ("valid", lambda mask: mask),
}
"""Masks that may be the same for all heads, and how they are with an axis for heads."""


def _whole(mask: Tensor) -> Tensor:
    return mask


def _reordered(
    entry: str,
    masks: Callable[[Tensor], Tensor],
    order: Callable[[Tensor, int, int], Tensor],
    state: State,
) -> State:
    given, scores = state[entry], state["scores"]
    mask = masks(given)
    if (mask.ndim == 4 and mask.shape[1] == 1) or masks is _whole:
        mask = order(mask.expand(*scores.shape[:2], *mask.shape[-2:]), -4, -3)
    return STAGE["attention mask"].change(state | {"attn_mask": mask})
