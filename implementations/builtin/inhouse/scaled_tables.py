"""Tables of cosines and sines for longer sequences than those of the training, and for positions on several axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from attention_conformance.spec.problem import Array


@dataclass(frozen=True)
class Setting:
    """How a model was trained, and by how much its sequences grow.

    Attributes:
        length: so many positions are wanted.
        width: components that are rotated.
        base: of the frequencies.
        factor: by which sequences are longer than `original`.
        original: the length of the training.
        short, long: factors of each frequency, for lengths up to the original one, and beyond.
    """

    length: int
    width: int
    base: float
    factor: float
    original: int
    short: Sequence[float] = ()
    long: Sequence[float] = ()

    @property
    def plain(self) -> Array:
        """(width / 2,): the frequencies of the training."""
        return 1.0 / self.base ** (np.arange(0, self.width, 2) / self.width)


Method: TypeAlias = Callable[[Setting], tuple[Array, float]]
"""The frequencies, and what cosines and sines are multiplied by."""


def linear(of: Setting) -> tuple[Array, float]:
    """Positions in finer steps."""
    return of.plain / of.factor, 1.0


def dynamic(of: Setting) -> tuple[Array, float]:
    """A base that grows once the length of the training is exceeded."""
    beyond = max(of.length, of.original) / of.original
    grown = of.base * (1.0 + of.factor * (beyond - 1.0)) ** (of.width / (of.width - 2.0))
    return 1.0 / grown ** (np.arange(0, of.width, 2) / of.width), 1.0


def turning(of: Setting, times: float) -> float:
    """The pair, as a fraction, that turns so many times in the length of the training."""
    return float(0.5 * of.width * np.log(of.original / (2.0 * np.pi * times)) / np.log(of.base))


def yarn(of: Setting) -> tuple[Array, float]:
    """Fast pairs as they were, slow ones in finer steps, those between by a ramp."""
    first, last = max(np.floor(turning(of, 32.0)), 0.0), min(np.ceil(turning(of, 1.0)), of.width - 1.0)
    kept = 1.0 - np.interp(np.arange(of.width // 2), [first, max(last, first + 1e-3)], [0.0, 1.0])
    return of.plain * (kept + (1.0 - kept) / of.factor), 1.0 + 0.1 * float(np.log(of.factor))


def llama3(of: Setting) -> tuple[Array, float]:
    """The same by how often each pair turns: four times, or not once."""
    turns = of.original * of.plain / (2.0 * np.pi)
    kept = np.interp(turns, [1.0, 4.0], [0.0, 1.0])
    return of.plain * (kept + (1.0 - kept) / of.factor), 1.0


def longrope(of: Setting) -> tuple[Array, float]:
    """A factor for each frequency, one set for short sequences and one for long ones."""
    factors = np.asarray(of.long if of.length > of.original else of.short)
    return of.plain / factors, float(np.sqrt(1.0 + np.log(of.factor) / np.log(of.original)))


METHODS: Mapping[str, Method] = {
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}


def scaled_rotary(method: str, *setting: object, methods: Mapping[str, Method] = METHODS) -> Array:
    """(2, length, width / 2) in float32: the cosines, and the sines, of each position.

    Args:
        method: one of `METHODS`.
        setting: the fields of `Setting`.
        methods: in place of those.
    """
    given = Setting(*setting)  # type: ignore[arg-type]  # the caller's own numbers
    frequencies, stretch = methods[method](given)
    angles = np.arange(given.length)[:, None] * frequencies
    return (stretch * np.stack([np.cos(angles), np.sin(angles)])).astype(np.float32)


Owners: TypeAlias = Callable[[Sequence[int]], Array]
"""From the number of pairs of each axis to the axis of each pair."""


def in_sections(pairs: Sequence[int]) -> Array:
    """The pairs of an axis side by side."""
    return np.repeat(np.arange(len(pairs)), pairs)


def in_turns(pairs: Sequence[int]) -> Array:
    """A pair of each axis in turn, as long as it has any; the first axis has the others."""
    owners = np.zeros(sum(pairs), dtype=np.int64)
    for axis in range(1, len(pairs)):
        owners[axis : len(pairs) * pairs[axis] : len(pairs)] = axis
    return owners


ORDERS: Mapping[str, Owners] = {"sections": in_sections, "turns": in_turns}


def axes_rotary(
    order: str,
    positions: Sequence[Sequence[int]],
    pairs: Sequence[int],
    base: float,
    orders: Mapping[str, Owners] = ORDERS,
) -> Array:
    """(2, tokens, pairs) in float32: the cosines, and the sines, of tokens that have a position on each axis.

    Args:
        order: one of `ORDERS`.
        positions: of the tokens, for each axis.
        pairs: how many belong to each axis.
        base: of the frequencies, which are one sequence over all axes.
        orders: in place of those.
    """
    width = 2 * sum(pairs)
    angles = np.asarray(positions).T[:, orders[order](pairs)] / base ** (np.arange(0, width, 2) / width)
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
