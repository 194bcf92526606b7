"""Values that are tried on an option that the suite does not know: one that changes the answer is not judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOT_JUDGED = "not judged: the suite does not know it, and it changes the answer"
FEW = (1, 2, 3)
"""Numbers that are tried: other blocks of keys than usual change no answer."""
LESS = 0.5
ANYTHING = (True, 2, LESS)
"""What is tried where nothing says what may be given, next to `ARRAYS`."""


def other_values(default: object, numbers: Sequence[int] = FEW) -> list[object]:
    """Other values than a flag or a number that is given by default, of these whole numbers; none for anything else."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [number for number in numbers if number != default]
    return [LESS * default or LESS] if isinstance(default, float) else []


def pairs(samples: int, queries: int, keys: int) -> NDArray[np.bool_]:
    """Booleans (Lq, Lk), a few of each row False."""
    return np.asarray(np.arange(queries)[:, None] % 3 != np.arange(keys) % 3)


def numbers_of_pairs(samples: int, queries: int, keys: int) -> NDArray[np.float64]:
    """Numbers (Lq, Lk)."""
    return np.sin(np.arange(queries * keys, dtype=np.float64)).reshape(queries, keys)


def places(samples: int, queries: int, keys: int) -> NDArray[np.int64]:
    """Integers (B, Lk), in each row down to 0."""
    return np.tile(np.arange(keys)[::-1], (samples, 1))


ARRAYS: tuple[Any, ...] = (pairs, numbers_of_pairs, places)
"""The arrays that are tried: of queries and keys, and of tokens."""
