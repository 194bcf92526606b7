"""What a cache holds before and after a call, by which it is seen whether that is the form in which it is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from attention_conformance.implementations.discovery.modules.own_cache import is_array
from attention_conformance.implementations.discovery.probe import parts_of

PLAIN = (tuple, list, type(None))


class Following(Enum):
    """Whether a cache is the one for the next call."""

    SURE = "by its type, and by what has changed"
    PERHAPS = "nothing speaks against it"
    ANOTHER = "it is another"


@dataclass(frozen=True)
class State:
    """What a cache holds at one time.

    Attributes:
        arrays: copies of its arrays of floats.
    """

    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, cache: Any) -> State:
        """That of a cache."""
        return cls(tuple(map(_copy, arrays_in(cache))))

    def differs(self, cache: Any) -> bool:
        """Whether a cache holds something else."""
        after = State.of(cache).arrays
        return len(after) != len(self.arrays) or not all(map(np.array_equal, self.arrays, after))

    def follows(self, empty: object, given: Any, after: Any) -> Following:
        """Whether a cache is the next one, where this was the state of an empty one before the call.

        `given`: that one after the call; the next one, too, where the call may have changed it. Where it is stated
        whether the empty one has room, that neither grows nor shrinks.
        """
        changed = after is not given or self.differs(after)
        if not is_alike(given, after):
            return Following.ANOTHER
        room = getattr(empty, "has_room", None)
        grown = [each.shape for each in self.arrays] != [each.shape for each in State.of(after).arrays]
        if room is not None and (room is grown or not changed or type(given) is not type(after)):
            return Following.ANOTHER
        return Following.SURE if changed and type(given) is type(after) not in PLAIN else Following.PERHAPS

    def check(self, empty: object, given: Any, after: Any) -> None:
        """Refuses another cache than the next one.

        Raises:
            ValueError: it is another.
        """
        if self.follows(empty, given, after) is Following.ANOTHER:
            raise ValueError(f"a {type(after).__name__} follows an empty {type(given).__name__}, and is no later one")


def is_alike(one: Any, other: Any) -> bool:
    """Whether both may be caches of one form; tuples, lists and arrays stand for each other."""
    return type(one) is type(other) or is_array(other) or (type(one) in PLAIN and type(other) in PLAIN)


def arrays_in(held: Any, depth: int = 3) -> Iterator[Any]:
    """The arrays of floats that a cache holds."""
    if is_array(held):
        yield from [held] if "float" in str(held.dtype) else []
    elif depth and (isinstance(held, tuple | list | Mapping) or hasattr(held, "__dict__")):
        parts = [*vars(held).values()] if hasattr(held, "__dict__") else parts_of(held)
        yield from (each for part in parts for each in arrays_in(part, depth - 1))


def _copy(array: Any) -> Any:
    return np.array(array.detach().double().cpu() if hasattr(array, "detach") else array)
