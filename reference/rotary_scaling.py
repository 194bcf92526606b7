"""Rotations for longer sequences and on several axes, as tables of cosines and sines (chapter rotary-tables)."""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from math import ceil, floor, log, pi, sqrt

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.extensions import angle_bound
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.reference.encodings import SINGLE
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.stages import frequencies

FASTEST, SLOWEST = 32.0, 1.0
"""Turns in the original length between which yarn mixes."""
SHORTEST = 4.0
"""Turns above which llama3 leaves a frequency as it is; below one it is divided."""
MIXING_STEPS = 8.0
"""Roundings of a mixture of two frequencies, and of what is multiplied by the attention factor."""


@dataclass(frozen=True)
class Scaled:
    """What a function that makes tables is given.

    Attributes:
        method: linear, dynamic, yarn, llama3 or longrope.
        length: positions from 0 on.
        width: r, even.
        base: of the frequencies.
        factor: s, by which the sequence is longer.
        original: L_0, the length that the model was trained with.
        short, long: (r / 2,) factors of the frequencies, of longrope.
    """

    method: str
    length: int
    width: int
    base: float
    factor: float
    original: int
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    @property
    def arguments(self) -> tuple[object, ...]:
        """In the order in which they are passed; factors of each frequency where there are any."""
        return astuple(self) if self.short else astuple(self)[:-2]

    def __str__(self) -> str:
        given = ", ".join(repr(each) for each in self.arguments[:6])
        return f"scaled_rotary({given}{', ...' if self.short else ''})"


def scaled_rotary(given: Scaled, dtype: str) -> Expected:
    """(2, length, r / 2): the tables of cosines and of sines, in the dtype, worked out in float32 at least."""
    each, stretch = FREQUENCIES[given.method](given), ATTENTION.get(given.method, _one)(given)
    return _tables(np.arange(float(given.length))[:, None], each, stretch, dtype)


@dataclass(frozen=True)
class OnAxes:
    """What a function that makes tables of positions on several axes is given.

    Attributes:
        order: of the pairs: "sections", those of an axis side by side, or "turns".
        positions: of each token, for each axis.
        pairs: so many belong to each axis.
        base: of the frequencies.
    """

    order: str
    positions: tuple[tuple[int, ...], ...]
    pairs: tuple[int, ...]
    base: float

    @property
    def axes(self) -> list[int]:
        """The axis of each pair. In turns, the first axis has what the others leave."""
        if self.order == "sections":
            return [axis for axis, count in enumerate(self.pairs) for _ in range(count)]
        turns = ((c // len(self.pairs), c % len(self.pairs)) for c in range(sum(self.pairs)))
        return [axis if turn < self.pairs[axis] else 0 for turn, axis in turns]

    def __str__(self) -> str:
        return f"axes_rotary({self.order!r}, positions of {len(self.positions[0])} tokens, {self.pairs}, {self.base!r})"


def axes_rotary(given: OnAxes, dtype: str) -> Expected:
    """(2, tokens, pairs): the tables of cosines and of sines, in the dtype, worked out in float32 at least."""
    places = np.array(given.positions, dtype=np.float64)[given.axes].T
    return _tables(places, frequencies(2 * sum(given.pairs), given.base), 1.0, dtype)


def _tables(places: Floats, each: Floats, stretch: float, dtype: str) -> Expected:
    """Of angles, positions times frequencies, with what rounding may do to them."""
    angles = places * each
    value = stretch * np.stack([np.cos(angles), np.sin(angles)])
    angle = angle_bound(angles, each, SINGLE) + MIXING_STEPS * SINGLE * (np.abs(angles) + 1.0)
    bound = stretch * angle + (unit_roundoff(dtype) + unit_roundoff("float64")) * np.abs(value)
    return Expected(value, np.broadcast_to(bound, value.shape))


def _linear(given: Scaled) -> Floats:
    return frequencies(given.width, given.base) / given.factor


def _dynamic(given: Scaled) -> Floats:
    if given.length <= given.original:
        return frequencies(given.width, given.base)
    growth = given.factor * given.length / given.original - (given.factor - 1.0)
    return frequencies(given.width, given.base * growth ** (given.width / (given.width - 2)))


def _yarn(given: Scaled) -> Floats:
    own = frequencies(given.width, given.base)
    low = max(floor(_pair_that_turns(given, FASTEST)), 0)
    high = min(ceil(_pair_that_turns(given, SLOWEST)), given.width - 1)
    ramp = np.clip((np.arange(given.width // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return np.asarray(ramp * own / given.factor + (1.0 - ramp) * own)


def _pair_that_turns(given: Scaled, turns: float) -> float:
    """Which pair turns so many times in the original length, as a fraction."""
    return given.width * log(given.original / (turns * 2.0 * pi)) / (2.0 * log(given.base))


def _llama3(given: Scaled) -> Floats:
    own = frequencies(given.width, given.base)
    share = np.clip((given.original * own / (2.0 * pi) - 1.0) / (SHORTEST - 1.0), 0.0, 1.0)
    return np.asarray((1.0 - share) * own / given.factor + share * own)


def _longrope(given: Scaled) -> Floats:
    factors = given.long if given.length > given.original else given.short
    return np.asarray(frequencies(given.width, given.base) / np.array(factors))


def _one(given: Scaled) -> float:
    return 1.0


FREQUENCIES: Mapping[str, Callable[[Scaled], Floats]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
ATTENTION: Mapping[str, Callable[[Scaled], float]] = {
    "yarn": lambda given: 0.1 * log(given.factor) + 1.0,
    "longrope": lambda given: sqrt(1.0 + log(given.factor) / log(given.original)),
}
"""By what cosines and sines are multiplied."""
