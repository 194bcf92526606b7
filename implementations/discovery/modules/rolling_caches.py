"""Plain classes of query, key and value in heads whose buffers roll: they keep as many keys as a window shows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from torch import nn

from attention_conformance.implementations.adapters.cached import Cached, Stream
from attention_conformance.implementations.adapters.native import Native
from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.causal_names import promises_causal
from attention_conformance.implementations.discovery.documented import documents_of
from attention_conformance.implementations.discovery.documented_windows import states_own_counted
from attention_conformance.implementations.discovery.functions.stored_axes import permuted, stacked, together
from attention_conformance.implementations.discovery.modules.held_arrays import arrays_in, method_of
from attention_conformance.implementations.discovery.modules.held_caches import ROOM, counted
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.signatures import is_variadic, positional, required, role
from attention_conformance.implementations.discovery.vocabulary import INPUTS, words_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import DTYPES, Problem

WINDOW = 4
"""What a parameter counts that is the number of a window, after those of `held_caches`; and one that is tried."""
OF_WINDOWS = {"window", "win"}
AXES = ("LHD", "HLD", "BLHD", "BHLD")
"""Of inputs: of one sample, or of all."""
SHOWN = (2, 3, 10, 8)
"""Samples, heads, tokens and width with which it is looked at."""
SEVERAL = re.compile(
    r"\b(?:several|one or (?:more|many)|any number of|multiple (?:new )?tokens|chunks?|pieces?|prefill\w*)\b",
    re.IGNORECASE,
)
"""Words for several tokens in one call."""
DENIED = re.compile(r"\b(?:not|no|never|only|cannot|one token)\b|n't", re.IGNORECASE)
FEATURES = frozenset({Feature.CORE, Feature.HEADS, Feature.WINDOW, Feature.CACHE, Feature.RING_CACHE})


@dataclass(frozen=True)
class Rolling:
    """A class, an object of which is fed one sequence.

    Attributes:
        kind, method: the class, and what is called.
        sizes: what each parameter of its constructor counts: 0 samples, 1 tokens, 2 heads, 3 width, 4 keys of a window.
        axes: of its inputs.
        own: 1 where the number of a window counts the query's own key, too.
        most: tokens of a call: 1, `WINDOW` where it takes no more than a window has, or 0: any number.
    """

    kind: type
    method: str
    sizes: Mapping[str, int]
    axes: str
    own: int = 1
    most: int = 1

    def start(self, length: int, stream: Stream) -> Callable[..., Any]:
        """What is called with each piece of a sequence."""
        left = stream.options.get("window_size", (-1, -1))[0]
        window = left + self.own if left >= 0 else (length // ROOM + 1) * ROOM
        return self.feed(window, length)

    def feed(self, window: int, length: int) -> Callable[..., Any]:
        """The same for a window of this number."""
        calls: list[Callable[..., Any]] = []

        def fed(query: Any, key: Any, value: Any) -> Any:
            calls.extend([] if calls else self._made(key, window, length))
            count = key.shape[2]
            step = {0: count, 1: 1}.get(self.most, window)
            cuts = [slice(at, at + step) for at in range(0, count, max(1, step))]
            return together([self._answer(calls, *(x[:, :, cut] for x in (query, key, value))) for cut in cuts], 2)

        return fed

    def _made(self, key: Any, window: int, length: int) -> list[Callable[..., Any]]:
        """The calls of new objects, one for each sample where it takes one alone."""
        counts = (key.shape[0], (length // ROOM + 1) * ROOM, key.shape[1], key.shape[3], window)
        own = {"dtype": key.dtype} if "dtype" in inspect.signature(self.kind).parameters else {}
        objects = 1 if self.axes[0] == "B" else key.shape[0]
        given = {name: counts[at] for name, at in self.sizes.items()} | own
        return [getattr(self.kind(**given), self.method) for _ in range(objects)]

    def _answer(self, calls: Sequence[Callable[..., Any]], *inputs: Any) -> Any:
        if self.axes[0] == "B":
            return permuted(first_part(calls[0](*(permuted(x, "BHLD", self.axes) for x in inputs))), self.axes, "BHLD")
        samples = zip(calls, *inputs, strict=True)
        rows = [first_part(call(*(permuted(x, "HLD", self.axes) for x in each))) for call, *each in samples]
        return stacked([permuted(row, self.axes, "HLD") for row in rows], 0)


@dataclass(frozen=True, eq=False)
class Run:
    """Such a class as a `run`."""

    rolling: Rolling
    arrays: bool

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        return self._cached(problem)(problem, device)

    def native(self, problem: Problem, device: str) -> Native:
        """A new object, fed with the pieces."""
        return self._cached(problem).native(problem, device)

    def _cached(self, problem: Problem) -> Cached:
        return Cached(partial(self.rolling.start, problem.key.shape[-2]), arrays=self.arrays)


def rolling_candidate(
    name: str, kind: object, settings: Mapping[str, str], premises: Premises
) -> Implementation | None:
    """Such a class as an implementation that is fed sequences in pieces; None where it is none."""
    sizes = _sizes(kind) if isinstance(kind, type) and not issubclass(kind, nn.Module) else {}
    if not isinstance(kind, type) or WINDOW not in sizes.values():
        return None
    method = method_of(kind)
    inputs = positional(inspect.signature(getattr(kind, method)))[1:4] if method else []
    if [role(p.name) for p in inputs] != [*INPUTS] or not _holds_zeros(kind, sizes):
        return None
    for axes, arrays in product(AXES, (True, False)):
        found = _counted(Rolling(kind, method, sizes, axes), arrays)
        dtypes = () if found is None else tuple(dtype for dtype in DTYPES if _keeps(found, arrays, dtype))
        if found is not None and dtypes:
            claims = Claims(Scope.OP, FEATURES, dtypes=dtypes, fit=fitted, premises=replace(premises, causal=True))
            claims = replace(claims, conventions=claims.conventions.claiming(settings))
            made = _with_several(found, name, arrays)
            return Implementation(name, claims, Run(made, arrays), about := _about(made), stated=(about,))
    return None


def fitted(case: Case) -> Case | Unsupported:
    """As many queries as keys, and windows of earlier keys."""
    if case.extension.windowed and case.extension.window_left is None:
        return Unsupported("its window has no limit to the right alone")
    if not case.sizes.key_length or not case.sizes.batch:
        return Unsupported("is fed at least one token")
    return case.sized(query_length=case.sizes.key_length).extended(window_right=None)


def _about(made: Rolling) -> str:
    pieces = {0: "pieces as they come", 1: "one token after another"}.get(made.most, "pieces of at most its window")
    own = "its own included" if made.own else "next to its own"
    return f"buffers that roll: fed {pieces}; its window counts keys before a query, {own}"


def _sizes(kind: type) -> dict[str, int]:
    """What each parameter counts that its constructor needs, or that is a window; empty where one is unknown."""
    signature = safe_call(partial(inspect.signature, kind)).value
    every = [] if signature is None else [p for p in signature.parameters.values() if not is_variadic(p)]
    windows = {p.name for p in every if words_of(p.name) & OF_WINDOWS}
    found = {
        p.name: WINDOW if p.name in windows else counted(p.name) for p in every if required(p) or p.name in windows
    }
    known = {name: at for name, at in found.items() if at is not None}
    return known if len(known) == len(found) and len(windows) == 1 else {}


def _holds_zeros(kind: type, sizes: Mapping[str, int]) -> bool:
    """Whether its arrays are buffers without any number yet, at least two."""
    counts = (SHOWN[0], ROOM, SHOWN[1], SHOWN[3], WINDOW)
    made = safe_call(lambda: kind(**{name: counts[at] for name, at in sizes.items()})).value
    arrays = [] if made is None else [each for each in arrays_in(made) if each.ndim > 1]
    return len(arrays) > 1 and not any(bool(each.any()) for each in arrays)


def _inputs(arrays: bool, dtype: str = "float32") -> tuple[Any, ...]:
    """Query, key and value (B, H, L, d)."""
    drawn = np.random.default_rng(0).standard_normal((3, *SHOWN)).astype(DTYPES[dtype])
    return tuple(each if arrays else to_tensor(each) for each in drawn)


def _rows(made: Rolling, inputs: Sequence[Any], window: int, *chunks: int) -> Any:
    """What it answers to pieces of so many tokens; None where it raises."""

    def answered() -> Any:
        feed, ends = made.feed(window, SHOWN[2]), np.cumsum((0, *chunks))
        cuts = [slice(*ends[at : at + 2]) for at in range(len(chunks))]
        rows = together([feed(*(x[:, :, cut] for x in inputs)) for cut in cuts], 2)
        return np.asarray(rows if isinstance(rows, np.ndarray) else rows.float(), np.float64)

    with np.errstate(all="ignore"):
        rows = safe_call(answered).value
    return rows if rows is not None and np.isfinite(rows).all() else None


def _counted(made: Rolling, arrays: bool) -> Rolling | None:
    """With what the number of its window counts, by its documentation or else as single tokens show it."""
    inputs, last = _inputs(arrays), SHOWN[2] - 1
    plain = _rows(made, inputs, WINDOW, *[1] * SHOWN[2])
    if shape_of(plain) != SHOWN:
        return None
    seen = []
    for at in range(SHOWN[2]):
        value = inputs[2] + 0
        value[:, :, at] *= -1
        other = _rows(made, (*inputs[:2], value), WINDOW, *[1] * SHOWN[2])
        seen.append(other is not None and not np.array_equal(other[:, :, last], plain[:, :, last]))
    count, stated = sum(seen), states_own_counted(made.kind)
    if stated is None and (count not in (WINDOW, WINDOW + 1) or not all(seen[-count:])):
        return None
    return replace(made, own=int(count == WINDOW if stated is None else stated))


def _keeps(made: Rolling, arrays: bool, dtype: str) -> bool:
    """Whether it answers in a dtype, which NumPy has as well."""
    if arrays and dtype not in ("float64", "float32"):
        return False
    inputs = _inputs(arrays, dtype)
    answer = safe_call(lambda: made.feed(WINDOW, SHOWN[2])(*inputs)).value
    return answer is not None and answer.dtype == inputs[0].dtype


def _with_several(made: Rolling, name: str, arrays: bool) -> Rolling:
    """Fed several tokens at once, where its documentation states that, and no query sees a later one of them."""
    if not any(SEVERAL.search(each) and not DENIED.search(each) for each in _sentences(made)):
        return made
    inputs, several = _inputs(arrays), replace(made, most=0)
    value = inputs[2] + 0
    value[:, :, 3] *= -1
    rows = [_rows(several, (*inputs[:2], x), SHOWN[2], 2, 2) for x in (inputs[2], value)]
    if any(each is None for each in rows):
        return made
    if not promises_causal(name, made.kind) and not np.array_equal(*(each[:, :, 2] for each in rows)):
        return made
    return several if _rows(several, inputs, 2, SHOWN[2]) is not None else replace(made, most=WINDOW)


def _sentences(made: Rolling) -> Iterator[str]:
    for text in documents_of(made.kind):
        yield from re.split(r"(?<=[.;:])\s|\n\s*\n", text)
