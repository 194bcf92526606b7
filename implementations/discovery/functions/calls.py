"""Calls: the framework, layout and argument order of a function, detected by what changes in its output.

All axes are given the same extent, so that no layout raises an error. Then one slice of one argument is negated at a
time: an axis that stands for itself (batch, head, query, component of the value) changes one slice of the output, one
that is summed over (key, component of query and key) changes them all.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.jax_op import is_jax, jax_array
from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.safe_call import repeatable, safe_call
from attention_conformance.implementations.discovery.claim_checks import PROBED
from attention_conformance.implementations.discovery.documented import as_written, states_heads_in_samples
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.probe import HALF, Floats, first_part, near, spans, wide
from attention_conformance.implementations.discovery.signatures import (
    positional,
    required,
    role,
    signature_of,
    switched_off,
    takes_any,
)
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS, INPUTS, KNOWN_NAMES, unfelt
from attention_conformance.spec.problem import DTYPES

UNSURE = "unsure"
"""The evidence of a call whose layout no probe could settle."""
LOWEST = float(np.finfo(np.float16).min)
"""A logit that is finite in each dtype."""
EXTENTS = (4, 16)
"""Extents of all axes alike; some kernels take multiples of 16 only."""
KINDS = {"torch": "tensors", "numpy": "NumPy arrays", "jax": "arrays of JAX"}
IS_KIND: Mapping[str, Callable[[object], bool]] = {
    "torch": lambda answer: isinstance(answer, torch.Tensor),
    "numpy": lambda answer: isinstance(answer, np.ndarray),
    "jax": is_jax,
}


@dataclass(frozen=True)
class FunctionCall:
    """How a function is called.

    Attributes:
        framework: "torch", "numpy" or "jax".
        inputs: its parameters for query, key and value, in its own order.
        order: the roles of these parameters.
        keyword: whether they are given by keyword.
        axes, output: of the inputs and of the output, in the letters of (B, H, L, D); N stands for B and H in one, E
            for H and D.
        heads: its parameter for the number of heads, where E or N stands for two axes.
        packed: whether heads lie in E, side by side.
        widths: its parameters for the width of a head.
        extent, dtype: of all axes, and of the numbers, in the calls that showed it.
        always: what it is given in every call, by its own names.
        evidence: what was observed, by topic.
        arrays: its parameters that are given an array for the heads in each call, which changes nothing.
    """

    framework: str
    inputs: tuple[str, ...]
    keyword: bool = False
    heads: str = ""
    extent: int = EXTENTS[0]
    always: Mapping[str, object] = field(default_factory=dict)
    order: tuple[str, ...] = INPUTS
    axes: str = ""
    output: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)
    widths: tuple[str, ...] = ()
    dtype: str = PROBED[0]
    packed: bool = False
    arrays: tuple[str, ...] = ()


def find_call(
    function: Callable[..., Any], device: str, kinds: Iterable[str] = KINDS, completed: bool = False
) -> FunctionCall:
    """How the function is called, with arrays of one of these kinds.

    `completed`: whoever calls it gives it such arrays of known names as it needs, which are left out of `always`.

    Raises:
        TargetError: no way was found; the message is that of the first attempt.
    """
    signature = signature_of(function)
    inputs, keyword = call_inputs(signature)
    heads = next((name for name in HEAD_COUNTS if name in signature.parameters and name not in inputs), "")
    packed = bool(heads) and not states_heads_in_samples(as_written(function))
    needed = [p.name for p in signature.parameters.values() if required(p) and p.name not in (*inputs, heads)]
    widths = tuple(name for name in needed if size_of(name) is Size.HEAD_WIDTH or name == "d_model")
    arrays = tuple(name for name in needed if completed and unfelt(name, 1) is not None)
    why, unsure = "", None
    ranks = (3,) if heads else (4, 3, 2)
    alternatives = list(always_given(signature, inputs, (heads, *widths, *arrays)))
    for dtype, always, rank, extent, framework in product(PROBED, alternatives, ranks, EXTENTS, kinds):
        if unsure is not None and dtype != unsure.dtype:
            break
        call = FunctionCall(framework, inputs, keyword, heads, extent, always, widths=widths, packed=packed)
        call = replace(call, dtype=dtype, arrays=arrays)
        try:
            observed = _observed_call(Attempt(function, call, rank, device))
        except TargetError as error:
            why = why or str(error)
            continue
        if UNSURE not in observed.evidence:
            return observed
        unsure = unsure or observed
    if unsure is not None:
        return unsure
    raise TargetError(f"no way to call it was found: {why}")


def named_call(function: Callable[..., Any], device: str, axes: str, kinds: Iterable[str] = KINDS) -> FunctionCall:
    """How a function is called that is given a number of heads, by its names, with (B, L, E) or (L, B, E) as `axes`.

    With (B * H, L, d) where its documentation has that. It answers a query in its own shape there, or with all heads
    side by side; which numbers it answers is for the clauses to judge.

    Raises:
        TargetError: its inputs have no such names, it takes no number of heads, or its answer has another shape.
    """
    signature = signature_of(function)
    inputs, keyword = call_inputs(signature)
    heads = next((name for name in HEAD_COUNTS if name in signature.parameters and name not in inputs), "")
    roles = tuple(role(name) or "" for name in inputs)
    if not heads or {*roles} != {*INPUTS}:
        raise TargetError("its names do not state how it is called")
    axes = "NLD" if states_heads_in_samples(as_written(function)) else axes
    masks = [p.name for p in signature.parameters.values() if required(p) and KNOWN_NAMES.get(p.name) in MASKS]
    rng = np.random.default_rng(4)
    for more, always, framework in product((2, 0), always_given(signature, inputs, (heads, *masks)), kinds):
        extents = {each: {**OF_TWO_HEADS, "L": OF_TWO_HEADS["L"] + more * (each != "query")} for each in roles}
        arrays = [rng.standard_normal([extents[each][axis] for axis in axes]) for each in roles]
        call = FunctionCall(framework, inputs, keyword, heads, EXTENTS[0], always, roles, axes, packed=axes != "NLD")
        attempt = Attempt(function, call, len(axes), device)
        open_masks = dict.fromkeys(masks, np.ones((OF_TWO_HEADS["B"], extents["key"]["L"])))
        shape = safe_call(partial(attempt.shape, arrays, open_masks)).value
        for output in dict.fromkeys((axes, "BLE")):
            if shape == tuple(extents["query"][axis] for axis in output):
                return replace(call, output=output)
    raise TargetError("its answer is not of the shape of its query")


def call_inputs(signature: inspect.Signature) -> tuple[tuple[str, ...], bool]:
    """The parameters that take query, key and value in some order, and whether they are given by keyword."""
    named = [p.name for p in signature.parameters.values() if role(p.name)][:3]
    first = [p.name for p in positional(signature)][:3]
    if len({role(name) for name in named}) == 3 and set(named) != set(first):
        return tuple(named), True
    if len(first) == 3:
        return tuple(first), False
    if takes_any(signature, inspect.Parameter.VAR_POSITIONAL):
        return INPUTS, False
    raise TargetError(f"it takes ({', '.join(first)}): it needs three inputs, query, key and value")


def always_given(
    signature: inspect.Signature, inputs: tuple[str, ...], sizes: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """What has to be given, without sizes: no dropout, and for everything else that is required None, or else 0."""
    rest = [p for p in signature.parameters.values() if p.name not in (*inputs, *sizes)]
    nothing: dict[str, Any] = {p.name: None for p in rest if required(p)}
    off = switched_off(rest)
    yield nothing | off
    if nothing:
        yield nothing
        yield {**nothing, **off, **{name: 0.0 for name in nothing if name not in off}}


@dataclass(frozen=True)
class Attempt:
    """One way to call it, with arrays of one rank."""

    function: Callable[..., Any]
    call: FunctionCall
    rank: int
    device: str

    def output(self, arrays: list[Floats]) -> Floats:
        """The output for three arrays.

        Raises:
            TargetError: the function raises, or its output is of another kind.
        """
        output = first_part(self.answer(arrays))
        if not IS_KIND[self.call.framework](output):
            raise TargetError(f"it answers {KINDS[self.call.framework]} with {type(output).__name__}")
        return wide(output)

    def shape(self, arrays: list[Floats], masks: Mapping[str, Floats]) -> tuple[int, ...]:
        """The shape of the output for three arrays, and masks that it has to be given.

        Raises:
            TargetError: the function raises, or its output is of another kind.
        """
        given = {**self.call.always, **{name: self._native(mask) for name, mask in masks.items()}}
        return replace(self, call=replace(self.call, always=given)).output(arrays).shape

    def answer(self, arrays: list[Floats], requires_grad: bool = False) -> Any:
        """What it returns.

        Raises:
            TargetError: the function raises.
        """
        given = [self._native(array, requires_grad) for array in arrays]
        options = {**self.call.always, **({self.call.heads: 2} if self.call.heads else {})}
        options |= dict.fromkeys(self.call.widths, self.call.extent // (2 if self.call.packed else 1))
        heads = 2 if self.call.heads else arrays[0].shape[self.call.axes.find("H") if self.call.axes else 0]
        options |= {name: self._native(np.maximum(unfelt(name, heads), LOWEST)) for name in self.call.arrays}
        if self.call.keyword:
            options |= dict(zip(self.call.inputs, given, strict=True))
            given = []
        outcome = repeatable(lambda: self.function(*given, **options))
        if outcome.error:
            shape = f"({', '.join([str(self.call.extent)] * self.rank)})"
            raise TargetError(f"called with {KINDS[self.call.framework]} of shape {shape}: {outcome.error}")
        return outcome.value

    def _native(self, array: Floats, requires_grad: bool = False) -> Any:
        array = array.astype(DTYPES[self.call.dtype])
        if self.call.framework == "torch":
            return to_tensor(array).to(self.device).requires_grad_(requires_grad)
        if self.call.framework == "numpy":
            return array
        try:
            import jax  # noqa: F401
        except ModuleNotFoundError:
            raise TargetError("JAX is not installed") from None
        return jax_array(array)


def _observed_call(attempt: Attempt) -> FunctionCall:
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((attempt.call.extent,) * attempt.rank) for _ in INPUTS]
    plain = attempt.output(arrays)
    if plain.shape != arrays[0].shape:
        raise TargetError(f"its output has shape {plain.shape} where every input has {arrays[0].shape}")
    if not near(attempt.output(arrays), plain):
        raise TargetError("it answers the same inputs with other numbers each time")
    if attempt.call.framework == "torch" and not _differentiable(attempt, arrays) and _takes_arrays(attempt, arrays):
        raise TargetError("it uses tensors as NumPy arrays")
    changed = [[_axis_changed(attempt, arrays, plain, n, axis) for axis in range(attempt.rank)] for n in range(3)]
    return _as_shaped(attempt, _read(attempt, arrays, plain, changed))


UNLIKE = {"B": 2, "H": 3, "L": 5, "D": 4, "N": 6, "E": 12}
"""Extents that all differ."""
OF_TWO_HEADS = {"B": 3, "L": 5, "D": 4, "N": 6, "E": 8}
"""Extents of two heads."""
MASKS = ("bool_mask", "float_mask", "key_padding_mask")


def _as_shaped(attempt: Attempt, call: FunctionCall) -> FunctionCall:
    """The call, its output in the axes of the inputs where it has their shape: numbers alone lie in another order."""
    if call.output == call.axes:
        return call
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal([UNLIKE[axis] for axis in call.axes]) for _ in INPUTS]
    shape = safe_call(lambda: attempt.output(arrays).shape).value
    return replace(call, output=call.axes) if shape == arrays[0].shape else call


def _differentiable(attempt: Attempt, arrays: list[Floats]) -> bool:
    outcome = safe_call(lambda: first_part(attempt.answer(arrays, requires_grad=True)))
    return bool(getattr(outcome.value, "requires_grad", False))


def _takes_arrays(attempt: Attempt, arrays: list[Floats]) -> bool:
    of_arrays = replace(attempt, call=replace(attempt.call, framework="numpy"))
    return not safe_call(lambda: of_arrays.output(arrays)).error


def _axis_changed(attempt: Attempt, arrays: list[Floats], plain: Floats, number: int, axis: int) -> int | None:
    """The axis of the output along which one slice alone changes when that of an argument is negated.

    It is the first slice; the last one where the first has no effect, as the first query of what is always causal.
    """
    for at in (0, -1):
        negated = [array.copy() for array in arrays]
        negated[number][(slice(None),) * axis + (at,)] *= -1.0
        changed = np.abs(attempt.output(negated) - plain) > HALF * (1.0 + np.abs(plain))
        if changed.any():
            axes = range(attempt.rank)
            alone = (each for each in axes if not np.delete(changed, at, each).any())
            return next(alone, None)
    return None


Changes = list[list[int | None]]
"""For each argument and each of its axes: the axis of the output along which one slice alone changes, if any."""


def _read(attempt: Attempt, arrays: list[Floats], plain: Floats, changed: Changes) -> FunctionCall:
    """Roles and layout, from what changes; from names and order where it does not behave as any attention."""
    call, names = attempt.call, attempt.call.inputs
    doubled = [attempt.output([2.0 * a if n == number else a for n, a in enumerate(arrays)]) for number in range(3)]
    linear = [n for n in range(3) if near(doubled[n], 2.0 * plain)]
    readings = [
        (query, key, value, letters)
        for query, key, value in permutations(range(3))
        if linear == [value] and (letters := _letters(changed[query], changed[key], changed[value], call.packed))
    ]
    if len(readings) == 1:
        query, key, value, (axes, output) = readings[0]
        evidence = {
            "arguments": f"twice {names[value]!r} is twice the output; one query of {names[query]!r} changes one "
            f"query, one key of {names[key]!r} changes all",
            "layout": _layout_evidence(axes, output, changed[value], changed[query]),
        }
    else:
        query, key, value = _by_names(names)
        axes = output = _axes_by_value(changed[value], call.packed)
        evidence = {UNSURE: _why_unsure(names, linear, changed, axes)}
    roles = {query: "query", key: "key", value: "value"}
    kind = KINDS[call.framework]
    evidence["framework"] = f"it answers {kind} with {kind}"
    return replace(call, order=tuple(roles[n] for n in range(3)), axes=axes, output=output, evidence=evidence)


def _why_unsure(names: tuple[str, ...], linear: list[int], changed: Changes, axes: str) -> str:
    doubling = ", ".join(names[n] for n in linear) or "none"
    each = "; ".join(f"{name}: {_separate(axes, to)}" for name, to in zip(names, changed, strict=True))
    return (
        f"derived from names and order. It is linear in {doubling} of its arguments, where it should be in the value "
        f"alone; the axes along which one slice changes one slice of the output: {each}"
    )


def _by_names(names: tuple[str, ...]) -> tuple[int, ...]:
    """Where query, key and value are, by the names of the parameters; else by their order."""
    roles = [role(name) for name in names]
    return tuple(roles.index(name) for name in INPUTS) if set(roles) == set(INPUTS) else (0, 1, 2)


def _axis_names(rank: int, packed: bool) -> list[str]:
    """The axes other than length and width."""
    return {4: ["B", "H"], 3: ["B" if packed else "N"], 2: []}[rank]


def _axes_by_value(value: list[int | None], packed: bool) -> str:
    """The usual axes, with L where the value is summed over.

    Raises:
        TargetError: it is summed over no axis, or over several.
    """
    sums = [axis for axis, to in enumerate(value) if to is None]
    if len(sums) != 1 or sums[0] == len(value) - 1:
        raise TargetError(f"its value should be summed over one axis, L, but is over {spans(sums)} of {len(value)}")
    names = [*_axis_names(len(value), packed), "E" if packed else "D"]
    names.insert(sums[0], "L")
    return "".join(names)


def _layout_evidence(axes: str, output: str, value: list[int | None], query: list[int | None]) -> str:
    batch = "; the first of two similar axes is assumed to be B" if {"B", "H"} <= set(axes) else ""
    other = "" if axes == output else f"; the output is {output}"
    value_axes, query_axes = (_separate(axes, each) for each in (value, query))
    return f"slices of the value stay separate along {value_axes}, of the query along {query_axes}{other}{batch}"


def _separate(axes: str, to: list[int | None]) -> str:
    return "".join(axis for axis, each in zip(axes, to, strict=True) if each is not None) or "none"


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
    separate = all(query[axis] == value[axis] == key[axis] is not None for axis in like)
    if not separate or key[length] is not None or query[length] is None or value[width] is None:
        return None
    letters = dict(zip(like, _axis_names(len(value), packed), strict=True)) | {
        length: "L",
        width: "E" if packed else "D",
    }
    output = {value[axis]: letters[axis] for axis in like} | {query[length]: "L", value[width]: letters[width]}
    if set(output) != set(range(len(value))):
        return None
    return "".join(letters[axis] for axis in range(len(value))), "".join(output[axis] for axis in range(len(value)))
