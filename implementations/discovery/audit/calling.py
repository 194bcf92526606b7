"""Calling: which argument of a function is query, key and value, in which framework and layout, told by what moves.

All axes are given the same extent, so that no layout raises an error. Then one slice of one argument is negated at a
time: an axis that stands for itself (batch, head, query, component of the value) moves one slice of the output, one
that is summed over (key, component of query and key) moves them all.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.discovery.audit.findings import spans
from attention_conformance.implementations.discovery.audit.posing import HALF, Floats, near
from attention_conformance.implementations.discovery.loading import TargetError, told
from attention_conformance.implementations.discovery.signatures import (
    positional,
    required,
    role,
    signature_of,
    without_dropout,
)

INPUTS = ("query", "key", "value")
HEAD_COUNTS = ("num_heads", "n_heads", "nheads", "n_head", "num_head", "heads", "h")
"""How a function is told the number of heads where it takes them side by side."""
UNSURE = "calling"
"""The evidence of a calling that no probe could settle."""
EXTENTS = (4, 16)
"""Extents of all axes alike; some kernels take multiples of 16 only."""


@dataclass(frozen=True)
class Calling:
    """How a function is called.

    Attributes:
        framework: "torch", "numpy" or "jax".
        inputs: its parameters for query, key and value; those that are positional are given in the order of `order`.
        order: the roles of its first three arguments, in their order.
        axes: of query, key, value and output, in the letters of (B, H, L, D); N stands for B and H in one, E for H
            and D.
        heads: its parameter for the number of heads, where E stands for both.
        extent: of all axes in the calls that told it.
        always: what it is given in every call, by its own names.
        evidence: what was seen, by question.
    """

    framework: str
    order: tuple[str, str, str]
    inputs: tuple[str, str, str]
    keyword: bool
    axes: str
    output: str
    heads: str = ""
    extent: int = EXTENTS[0]
    always: Mapping[str, object] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)


def find_calling(function: Callable[..., Any], device: str) -> Calling:
    """How the function is called.

    Raises:
        TargetError: no way was found; the message tells the last that was tried.
    """
    signature = signature_of(function)
    inputs, keyword = _inputs(signature)
    heads = next((name for name in HEAD_COUNTS if name in signature.parameters and name not in inputs), "")
    always = _always(signature, inputs, heads)
    why = ""
    for rank in (3,) if heads else (4, 3, 2):
        for extent in EXTENTS:
            for framework in ("torch", "numpy", "jax"):
                trial = Trial(function, inputs, keyword, framework, rank, extent, heads, always, device)
                try:
                    return _found(trial)
                except TargetError as error:
                    why = why or str(error)
    raise TargetError(f"no way to call it was found: {why}")


def _inputs(signature: inspect.Signature) -> tuple[tuple[str, ...], bool]:
    """The parameters that take query, key and value in some order, and whether they are given by keyword."""
    named = [p.name for p in signature.parameters.values() if role(p.name)]
    first = [p.name for p in positional(signature)][:3]
    roles = {role(name) for name in named[:3]}
    if len(roles) == 3 and set(named[:3]) != set(first):
        return tuple(named[:3]), True
    if len(first) == 3:
        return tuple(first), False
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values()):
        return INPUTS, False
    raise TargetError(f"it takes ({', '.join(first)}): three inputs were looked for, query, key and value")


def _always(signature: inspect.Signature, inputs: tuple[str, ...], heads: str) -> dict[str, object]:
    """What has to be given: no dropout, None for whatever else is required; the number of heads is given apart."""
    rest = [p for p in signature.parameters.values() if p.name not in (*inputs, heads)]
    given = without_dropout(rest)
    given |= {p.name: False for p in rest if p.name in ("is_causal", "causal") and (required(p) or p.default is True)}
    return given | {p.name: None for p in rest if required(p) and p.name not in given}


@dataclass(frozen=True)
class Trial:
    """One way to call it."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    keyword: bool
    framework: str
    rank: int
    extent: int
    heads: str
    always: Mapping[str, object]
    device: str

    def __call__(self, arrays: list[Floats]) -> Floats:
        """The output for three arrays."""
        output = self.answer(arrays)
        output = output[0] if isinstance(output, tuple | list) and len(output) else output
        if not self._in_kind(output):
            raise TargetError(f"it answers {_KINDS[self.framework]} with {type(output).__name__}")
        held = output.detach().cpu().numpy() if isinstance(output, torch.Tensor) else np.asarray(output)
        return np.asarray(held, np.float64)

    def answer(self, arrays: list[Floats], recording: bool = False) -> Any:
        """What it gives back, as it is."""
        given = [self._native(array, recording) for array in arrays]
        options = dict(self.always) | ({self.heads: 2} if self.heads else {})
        try:
            with warnings.catch_warnings(), kept_global_state(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if self.keyword:
                    return self.function(**dict(zip(self.inputs, given, strict=True)), **options)
                return self.function(*given, **options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            shape = f"({', '.join([str(self.extent)] * self.rank)})"
            raise TargetError(f"called with {_KINDS[self.framework]} of shape {shape}: {told(error)}") from error

    def _native(self, array: Floats, recording: bool) -> Any:
        if self.framework == "torch":
            return torch.from_numpy(array.astype(np.float32)).to(self.device).requires_grad_(recording)
        if self.framework == "numpy":
            return array.astype(np.float32)
        try:
            import jax
        except ModuleNotFoundError:
            raise TargetError("JAX is not installed") from None
        return jax.numpy.asarray(array.astype(np.float32))

    def _in_kind(self, output: object) -> bool:
        if self.framework == "torch":
            return isinstance(output, torch.Tensor)
        return isinstance(output, np.ndarray) if self.framework == "numpy" else is_jax(output)


_KINDS = {"torch": "tensors", "numpy": "NumPy arrays", "jax": "arrays of JAX"}


def _found(trial: Trial) -> Calling:
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((trial.extent,) * trial.rank) for _ in INPUTS]
    plain = trial(arrays)
    if plain.shape != arrays[0].shape:
        raise TargetError(f"its output has shape {plain.shape} where every input has {arrays[0].shape}")
    if not near(trial(arrays), plain):
        raise TargetError("it answers the same question with other numbers each time")
    if trial.framework == "torch" and not _differentiable(trial, arrays) and _answers_arrays(trial, arrays):
        raise TargetError("it takes tensors for arrays")
    moved = [[_moved(trial, arrays, plain, number, axis) for axis in range(trial.rank)] for number in range(3)]
    return _read(trial, arrays, plain, moved)


def _differentiable(trial: Trial, arrays: list[Floats]) -> bool:
    try:
        answer = trial.answer(arrays, recording=True)
    except TargetError:
        return False
    first = answer[0] if isinstance(answer, tuple | list) else answer
    return bool(getattr(first, "requires_grad", False))


def _answers_arrays(trial: Trial, arrays: list[Floats]) -> bool:
    try:
        replace(trial, framework="numpy")(arrays)
    except TargetError:
        return False
    return True


def _moved(trial: Trial, arrays: list[Floats], plain: Floats, number: int, axis: int) -> int | None:
    """The axis of the output along which one slice alone moved as one slice of an argument was changed."""
    changed = [array.copy() for array in arrays]
    first = (slice(None),) * axis + (0,)
    changed[number][first] *= -1.0
    moved = np.abs(trial(changed) - plain) > HALF * (1.0 + np.abs(plain))
    for each in range(trial.rank):
        others = tuple(a for a in range(trial.rank) if a != each)
        if moved.any() and not moved.any(others)[1:].any():
            return each
    return None


def _read(trial: Trial, arrays: list[Floats], plain: Floats, moved: list[list[int | None]]) -> Calling:
    """Roles and layout out of what moved; out of names and places where that is like no attention."""
    linear = [n for n in range(3) if near(trial(_doubled(arrays, n)), 2.0 * plain)]
    read = [
        (query, key, value, letters)
        for query, key, value in permutations(range(3))
        if linear == [value] and (letters := _letters(moved[query], moved[key], moved[value], bool(trial.heads)))
    ]
    names = trial.inputs
    if len(read) == 1:
        query, key, value, (axes, output) = read[0]
        seen = {
            "arguments": f"twice {names[value]!r} is twice the output; one query of {names[query]!r} moves one query, "
            f"one key of {names[key]!r} moves all",
            "layout": _layout_told(axes, output, moved[value], moved[query]),
        }
    else:
        query, key, value = _by_names(names)
        axes = output = _by_value(moved[value], bool(trial.heads))
        twice = ", ".join(names[n] for n in linear) or "none"
        each = "; ".join(f"{name}: {_axes(axes, to)}" for name, to in zip(names, moved, strict=True))
        seen = {
            UNSURE: f"taken by names and places. It is linear in {twice} of its arguments, where it should be in the "
            f"value alone; the axes along which one slice moves one slice of the output: {each}"
        }
    roles = {query: "query", key: "key", value: "value"}
    kind = _KINDS[trial.framework]
    return Calling(
        trial.framework,
        (roles[0], roles[1], roles[2]),
        (names[0], names[1], names[2]),
        trial.keyword,
        axes,
        output,
        trial.heads,
        trial.extent,
        trial.always,
        {"framework": f"it answers {kind} with {kind}", **seen},
    )


def _doubled(arrays: list[Floats], number: int) -> list[Floats]:
    return [2.0 * array if n == number else array for n, array in enumerate(arrays)]


def _by_names(names: tuple[str, ...]) -> tuple[int, int, int]:
    """Where query, key and value are, by the names of the parameters; else by their places."""
    told_roles = [role(name) for name in names]
    if set(told_roles) != set(INPUTS):
        return 0, 1, 2
    return told_roles.index("query"), told_roles.index("key"), told_roles.index("value")


def _by_value(value: list[int | None], packed: bool) -> str:
    """The usual axes, with L where the value is summed over.

    Raises:
        TargetError: it is summed over no axis, or over several.
    """
    sums = [axis for axis, to in enumerate(value) if to is None]
    if len(sums) != 1 or sums[0] == len(value) - 1:
        raise TargetError(f"its value should be summed over one axis, L, but is over {spans(sums)} of {len(value)}")
    names = [*{4: "BH", 3: "B" if packed else "N", 2: ""}[len(value)], "E" if packed else "D"]
    names.insert(sums[0], "L")
    return "".join(names)


def _axes(axes: str, moved: list[int | None]) -> str:
    return "".join(letter for letter, to in zip(axes, moved, strict=True) if to is not None) or "none"


def _layout_told(axes: str, output: str, value: list[int | None], query: list[int | None]) -> str:
    apart = ", ".join(_axes(axes, query))
    batch = "; the first of two like axes is taken for B" if {"B", "H"} <= set(axes) else ""
    other = "" if axes == output else f"; the output is {output}"
    return f"the value stays apart along {', '.join(_axes(axes, value))}, the query along {apart}{other}{batch}"


def _letters(
    query: list[int | None], key: list[int | None], value: list[int | None], packed: bool
) -> tuple[str, str] | None:
    """The axes of the inputs and of the output; None where these are not the query, key and value of any layout."""
    sums = [axis for axis, to in enumerate(value) if to is None]
    wide = [axis for axis, to in enumerate(query) if to is None]
    if len(sums) != 1 or len(wide) != 1 or sums == wide:
        return None
    length, width = sums[0], wide[0]
    like = [axis for axis in range(len(value)) if axis not in (length, width)]
    apart = all(query[axis] == value[axis] == key[axis] is not None for axis in like)
    if not apart or key[length] is not None or query[length] is None or value[width] is None:
        return None
    names = {4: ["B", "H"], 3: ["B" if packed else "N"], 2: []}[len(value)]
    letters = dict(zip(like, names, strict=True)) | {length: "L", width: "E" if packed else "D"}
    placed = {value[axis]: letters[axis] for axis in like} | {query[length]: "L", value[width]: letters[width]}
    if set(placed) != set(range(len(value))):
        return None
    return "".join(letters[axis] for axis in range(len(value))), "".join(placed[axis] for axis in range(len(value)))
