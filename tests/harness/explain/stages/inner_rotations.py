"""Inner rotations: slips of a rotary embedding that a module has inside, so that no problem states it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.tests.harness.explain.stages.staged import STAGES, Stage, State

BASE = 10000.0
QUERY, KEY = (next(s for s in STAGES if s.name == f"rotation of the {entry}") for entry in ("query", "key"))
Slip = dict[Stage, tuple[Stage, ...]]
"""What takes the place of the stages that rotate."""


def inner_rotations() -> Iterator[tuple[str, Stage, Slip]]:
    """What is wrong, the stage that adds the embedding, and what takes the place of its rotations."""
    for pairing in RotaryPairing:
        added = Stage(f"rotary embedding in {pairing}", partial(_added, pairing), ())
        for words, slip in _slips(pairing):
            yield f"rotary embedding of {pairing} inside, {words}", added, slip


def _added(pairing: RotaryPairing, state: State) -> State:
    return {"rotary_base": BASE, "conventions": replace(state["conventions"], rotary_pairing=pairing)}


def _slips(pairing: RotaryPairing) -> Iterator[tuple[str, Slip]]:
    yield "the values rotated, too", {KEY: (KEY, Stage("rotation of the value", _of_values, ("value",)))}
    for stage, noun in ((QUERY, "queries"), (KEY, "keys")):
        yield f"the {noun} not rotated", {stage: ()}
        for words, of in PLACES.items():
            yield f"the {noun} {words}", {stage: (_placed(stage, of),)}
    other = "repeated in pairs" if pairing is RotaryPairing.HALVES else "doubled in halves"
    yield f"cosines and sines {other}", {s: (_mismatched(s, pairing),) for s in (QUERY, KEY)}


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "rotated the other way": lambda places: -places,
    "rotated by the next position": lambda places: places + 1,
    "rotated by the position before": lambda places: places - 1,
    "rotated by twice their position": lambda places: 2 * places,
}


def _placed(stage: Stage, of: Callable[[Tensor], Tensor]) -> Stage:
    places = stage.reads[1]
    return Stage(stage.name, lambda state: stage.change(state | {places: of(state[places])}), stage.reads)


def _of_values(state: State) -> State:
    return {"value": KEY.change(state | {"key": state["value"]})["key"]}


def _mismatched(stage: Stage, pairing: RotaryPairing) -> Stage:
    """Components of one pairing, rotated by the angles of the other one."""
    entry, places = stage.reads[:2]

    def rotated(state: State) -> State:
        rows = state[entry]
        half = BASE ** (-torch.arange(0, rows.shape[-1], 2).double() / rows.shape[-1])
        halves = pairing is RotaryPairing.HALVES
        angles = state[places][:, None, :, None] * (half.repeat_interleave(2) if halves else half.repeat(2))
        pairs = rows.unflatten(-1, (2, -1) if halves else (-1, 2))
        first, second = pairs.unbind(-2 if halves else -1)
        partner = torch.cat([-second, first], -1) if halves else torch.stack([-second, first], -1).flatten(-2)
        return {entry: rows * angles.cos() + partner * angles.sin()}

    return Stage(stage.name, rotated, stage.reads)
