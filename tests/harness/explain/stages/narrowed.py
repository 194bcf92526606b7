"""Narrowed: positions, distances and angles that are counted in a half type, which has no odd numbers beyond 256."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.staged import STAGE, STAGES, Stage, State, rotated

NARROW = (torch.bfloat16, torch.float16)


def distances() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """The stage, what is narrow in it, how it is repaired, and the entries that it makes."""
    for dtype in NARROW:
        words = f"distances of the ALiBi bias counted in {_name(dtype)}"
        yield "ALiBi bias", words, "Count positions in integers, or in float32.", partial(_counted, dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _counted(dtype: torch.dtype, state: State) -> State:
    """Their differences are rounded as well."""
    places = {entry: state[entry].to(dtype) for entry in ("query_places", "key_places")}
    return {"scores": STAGE["ALiBi bias"].change(state | places)["scores"]}


def angles() -> Iterator[tuple[str, str, Mapping[Stage, Stage]]]:
    """What is narrow in the rotation of queries and keys, how it is repaired, and the stages that are other ones."""
    for words, made in ANGLES.items():
        for dtype in NARROW:
            slip = {
                stage: rotated(stage.reads[0], partial(made, dtype)) for stage in STAGES if stage.needs == "rotary_base"
            }
            yield f"{words} {_name(dtype)}", "Make the angles of a rotation in float32, whatever the inputs are.", slip


ANGLES: dict[str, Callable[[torch.dtype, Tensor, Tensor], Tensor]] = {
    "rotary frequencies rounded to": lambda dtype, places, frequencies: places * frequencies.to(dtype).double(),
    "rotary angles computed in": lambda dtype, places, frequencies: (places.to(dtype) * frequencies.to(dtype)).double(),
    "positions of the rotation rounded to": lambda dtype, places, frequencies: places.to(dtype).double() * frequencies,
}
