"""Extras: what a callable returns in addition to its output, recognized by its shape."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from attention_conformance.implementations.adapters.native import bound
from attention_conformance.implementations.discovery.code_text import tree_of
from attention_conformance.spec.features import Feature

AXES: Mapping[str, str] = {"weights": "BHQK", "log_sum_exp": "BHQ", "averaged_weights": "BQK"}
"""The names of extras in `Result`, and their axes there."""
EXTRA_FEATURES: Mapping[str, Feature] = {name: Feature(name.replace("_", "-")) for name in AXES}

OF_SCORES = re.compile(r"(^|_)(qk|scores?|logits?|sim|similarity|dots|energy)(_|$)")
"""How scores before the softmax are called."""


@dataclass(frozen=True)
class Extra:
    """A part of the answer after the output.

    Attributes:
        position: in the answer.
        name: in `Result`.
        axes: its axes as it is returned; N is B and H in one.
    """

    position: int
    name: str
    axes: str


def find_extras(
    parts: Sequence[Any], extents: Mapping[str, int], rearranged: bool = False, scores: bool = False
) -> tuple[Extra, ...]:
    """The first part of each shape among those after the output.

    Args:
        parts: the answer.
        extents: of the axes B, H, Q and K in the problem that was answered.
        rearranged: whether extras with their axes in another order count.
        scores: whether the callable says that it returns scores; a part with negative numbers is no weights then.
    """
    extents = {**extents, "N": extents["B"] * extents["H"]}
    extras: dict[str, Extra] = {}
    for position, part in enumerate(parts[1:], start=1):
        shape = tuple(getattr(part, "shape", ()))
        for name, arrangement in _arrangements(rearranged):
            if shape == tuple(extents[axis] for axis in arrangement):
                if scores and "K" in arrangement and bool((part < 0).any()):
                    break
                extras.setdefault(name, Extra(position, name, arrangement))
                break
    return tuple(sorted(extras.values(), key=lambda extra: extra.position))


def _arrangements(rearranged: bool) -> Iterator[tuple[str, str]]:
    for name, axes in AXES.items():
        yield name, axes
    for name, axes in AXES.items() if rearranged else ():
        yield from ((name, "".join(order)) for order in permutations(axes))
        if "BH" in axes:
            yield name, axes.replace("BH", "N")


def returns_scores(target: object) -> bool:
    """Whether a name in what a function, or a method of a class, returns is one of scores."""
    own: Any = getattr(target, "original", target)  # of what stands for a class of another library
    tree = tree_of(own)
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)] if tree else []
    names = (node.id for value in returned if value for node in ast.walk(value) if isinstance(node, ast.Name))
    return any(OF_SCORES.search(name) for name in names)


def ignored_parts(parts: Sequence[Any], extras: Iterable[Extra]) -> list[str]:
    """A note on each part after the output that is not used."""
    used = {extra.position for extra in extras}
    return [
        f"part {position} of its answer is ignored: {type(part).__name__} {tuple(getattr(part, 'shape', ()))}"
        for position, part in enumerate(parts)
        if position and position not in used and part is not None
    ]


@dataclass(frozen=True)
class Chosen:
    """A function with only the output and the extras at some positions in its answer."""

    function: Callable[..., object]
    positions: tuple[int, ...] = ()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The chosen parts of the function's answer."""
        return self._chosen(self.function(*inputs, **options))

    def bound_call(self, *inputs: Any, **options: Any) -> Callable[[], Any]:
        """The same call, prepared."""
        call = bound(self.function, *inputs, **options)
        return lambda: self._chosen(call())

    def _chosen(self, answer: Any) -> Any:
        if not isinstance(answer, tuple):
            return answer
        return (answer[0], *(answer[position] for position in self.positions)) if self.positions else answer[0]
