"""Functions that have to be given a window, by a number or by its two sides: without a limit one of all keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_options import NeededOption
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.signatures import dispensable, required, signature_of

TOKENS, NARROW = 6, 2
"""Of the inputs with which it is looked at, and of a window that hides some of them."""
ALL_TOKENS = "given a window of all tokens in {!r} where a problem has none"
"""For a note, with the parameter."""
NO_WINDOW = (-1, -1)
"""Both sides of a window without limits."""
SIDES = (("left", "window_left", "left_window"), ("right", "window_right", "right_window"))
"""Names of how many keys a query sees before its own, and after it."""


@dataclass(frozen=True)
class WindowSides:
    """A function that takes the sides of a window apart.

    Attributes:
        function: it.
        left, right: its parameters that take how many keys a query sees before and after its own.
    """

    function: Callable[..., Any]
    left: str
    right: str

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        left = [p for p in own.parameters.values() if p.name not in (self.left, self.right)]
        named = [p if n < 3 else p.replace(kind=p.KEYWORD_ONLY) for n, p in enumerate(left)]
        pair = inspect.Parameter("window_size", inspect.Parameter.KEYWORD_ONLY, default=NO_WINDOW)
        return own.replace(parameters=[*named, pair])

    @property
    def about(self) -> str:
        """For a note."""
        return f"{self.left!r} and {self.right!r} are the sides of its window"

    def __call__(self, query: Any, key: Any, value: Any, *, window_size: Any = NO_WINDOW, **options: Any) -> Any:
        """The function's answer."""
        sides = _limits(query, key, window_size)
        return self.function(query, key, value, **dict(zip((self.left, self.right), sides, strict=True)), **options)


@dataclass(frozen=True)
class PairByDefault:
    """A function that has limits on both sides by default, in one pair.

    Attributes:
        function: it.
        window: its parameter that takes the pair.
    """

    function: Callable[..., Any]
    window: str

    @property
    def __signature__(self) -> inspect.Signature:
        own = dispensable(signature_of(self.function), self.window)
        every = [p.replace(default=NO_WINDOW) if p.name == self.window else p for p in own.parameters.values()]
        return own.replace(parameters=every)

    @property
    def about(self) -> str:
        """For a note."""
        return ALL_TOKENS.format(self.window)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        options[self.window] = tuple(_limits(query, key, options.get(self.window)))
        return self.function(query, key, value, **options)


def _limits(query: Any, key: Any, window: Any) -> list[int]:
    """Both sides of a window; all tokens where there is no limit."""
    tokens = max(1, query.shape[-2], key.shape[-2])
    return [tokens if side is None or side < 0 else side for side in window or NO_WINDOW]


def with_pair_by_default(function: Callable[..., Any]) -> PairByDefault | None:
    """The function, given a pair of all tokens unless it is given another; None where it has none by default."""
    signature = safe_call(lambda: signature_of(function)).value
    parameters = [] if signature is None else [*signature.parameters.values()][3:]
    pairs = [p.name for p in parameters if "window" in p.name.lower().split("_") and _is_a_pair(p.default)]
    if len(pairs) != 1 or any(map(required, parameters)):
        return None
    made = PairByDefault(function, pairs[0])
    for x in of_each_kind((1, 1, TOKENS, 4)):
        narrow, whole = (safe_call(partial(made, x, x, x, **{pairs[0]: w})).value for w in ((1, 1), NO_WINDOW))
        if whole is not None and not alike(narrow, whole):
            return made
    return None


def _is_a_pair(default: object) -> bool:
    """Whether it states a limit on some side."""
    pair = isinstance(default, tuple | list) and len(default) == 2
    return pair and any(isinstance(side, int) and side >= 0 for side in default)  # type: ignore[attr-defined]


def with_window_sides(function: Callable[..., Any]) -> WindowSides | None:
    """The function, given both sides of a window as one pair; None where it has no such parameters, or needs more."""
    signature = safe_call(lambda: signature_of(function)).value
    parameters = [] if signature is None else [*signature.parameters.values()][3:]
    names = {p.name for p in parameters}
    sides = [next((name for name in each if name in names), "") for each in SIDES]
    if not all(sides) or {p.name for p in parameters if required(p)} - {*sides}:
        return None
    made = WindowSides(function, *sides)
    for x in of_each_kind((1, 1, TOKENS, 4)):
        narrow, whole = (safe_call(partial(made, x, x, x, window_size=w)).value for w in ((1, 1), NO_WINDOW))
        if whole is not None and not alike(narrow, whole):
            return made
    return None


def with_needed_window(function: Callable[..., Any]) -> NeededOption | None:
    """The function, given a window of all tokens unless it is given another; None where it has none without that."""
    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [*signature.parameters.values()][3:]
    windows = [p for p in own if "window" in p.name.lower().split("_") and (required(p) or _is_a_window(p.default))]
    if not windows or any(required(p) for p in own if p is not windows[0]):
        return None
    return _shown(function, windows[0].name)


def _is_a_window(default: object) -> bool:
    """Whether it is a number of tokens, and none that states that all are seen."""
    return isinstance(default, int) and not isinstance(default, bool) and default > 0


def _all_tokens(axis: int, halved: bool, query: Any, key: Any) -> int:
    """A window without limits, of tokens in this axis; `halved` where one of all tokens hides some of them."""
    tokens: int = max(1, query.shape[axis], key.shape[axis])
    return 2 * tokens + 1 if halved else tokens


def _shown(function: Callable[..., Any], window: str) -> NeededOption | None:
    """The axis of the tokens is the one along which a window hides something."""
    for axis, shape in ((-2, (1, 1, TOKENS, 4)), (-3, (1, TOKENS, 1, 4)), (-2, (1, TOKENS, 4)), (-2, (TOKENS, 4))):
        for x in of_each_kind(shape):
            narrow, whole, wide = (
                safe_call(partial(function, x, x, x, **{window: number})).value
                for number in (NARROW, TOKENS, 2 * TOKENS + 1)
            )
            if wide is not None and not alike(narrow, wide):
                neutral = partial(_all_tokens, axis, not alike(whole, wide))
                return NeededOption(function, window, neutral, ALL_TOKENS.format(window))
    return None


def alike(one: Any, other: Any) -> bool:
    """Whether two answers have the same output."""
    one, other = (each[0] if isinstance(each, tuple | list) and each else each for each in (one, other))
    return bool(safe_call(lambda: near(np.asarray(one), np.asarray(other), "float32")).value)
