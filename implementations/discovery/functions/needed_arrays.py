"""Functions that need arrays whose meaning is unknown: modules that project their inputs, with these as parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from types import ModuleType
from typing import Any, cast

import numpy as np
from torch import nn

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.adapters.jax_programs import called, evaluation
from attention_conformance.implementations.api.safe_call import guarded, safe_call
from attention_conformance.implementations.discovery.functions.array_axes import (
    COUNT,
    KEYS,
    Axes,
    Sizes,
    axes_of,
)
from attention_conformance.implementations.discovery.functions.cache_names import holds_keys_and_values
from attention_conformance.implementations.discovery.functions.fillers import Axes as InputAxes
from attention_conformance.implementations.discovery.functions.fillers import fillers
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.several_needed import SeveralNeeded, as_array
from attention_conformance.implementations.discovery.functions.stored_axes import permuted
from attention_conformance.implementations.discovery.modules.array_modules import built_once
from attention_conformance.implementations.discovery.modules.held_arrays import framework_of
from attention_conformance.implementations.discovery.modules.mirrors import Held, mirror_class
from attention_conformance.implementations.discovery.probe import HALF, near, shape_of
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS, KNOWN_NAMES

LAYOUTS = ("BHLD", "BLHD", "LBHD", "BLD", "LBD")
"""Axes of the inputs."""
SIZES = ("embed_dim", "num_heads")
"""For which a module is built."""
FACTORS = (1.0, 2**-0.5, 3**-0.5)
"""Of the usual scale: those of two or three terms of the scores, which are next to it (He et al. 2021, equation 4)."""
LOOKS = (Sizes(2, 3, 5, 5, 8), Sizes(3, 2, 7, 7, 4))
"""Sizes of calls; axes that are found with the first are those of a function that takes them with the second, too."""
MOST_NUMBERS, MOST_ARRAYS, MOST_FILLED, MOST_TOGETHER, MOST_FORMS = 512, 4, 12, 300, 4
CHOSEN = 8
"""A number that has to be given, such as a largest distance."""
OF_NUMBERS = {"max", "clip", "clamp", "num", "buckets", "limit", "radius", "span"}
"""Words in the names of such numbers."""
LIBRARIES = ("torch", "numpy", "jax")
"""Of the arrays that may be taken, in the order of `of_each_kind`."""
LAYERS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight")
ANSWERED = (1 << 30,)
"""Farther than a call comes that raises."""


@dataclass(frozen=True)
class NeededArrays:
    """A function, and what it is given in each call.

    Attributes:
        function: it.
        axes: of the arrays that it needs, by its names for them.
        numbers: that it needs.
        layout: the axes of its inputs.
        factor: by which its scores are larger than usual, where queries and keys are given as they are.
    """

    function: Callable[..., Any]
    axes: Mapping[str, Axes]
    numbers: Mapping[str, int]
    layout: str
    factor: float = 1.0

    def __call__(self, inputs: Sequence[Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
        """Its output for inputs in its layout, in that too, and whatever else it returns.

        `arrays` are the parameters of which those that it needs are made. With a factor these, queries and keys are
        divided by its root, so that products of two of them have the usual scale.
        """
        shape, keys = (dict(zip(self.layout, each.shape, strict=True)) for each in inputs[:2])
        sizes, less = Sizes(shape["B"], shape.get("H", 1), shape["L"], keys["L"], shape["D"]), self.factor**-0.5
        made = {name: less * axes.made(arrays[name], sizes) for name, axes in self.axes.items()}
        counted = {name: sizes.heads if name in HEAD_COUNTS else n for name, n in self.numbers.items()}
        query, key, value = inputs
        answer = self.function(less * query, less * key, value, **made, **counted, **options)
        first, *others = answer if isinstance(answer, tuple | list) else (answer,)
        return self._apart(first, sizes), *others

    def _apart(self, output: Any, sizes: Sizes) -> Any:
        """The output in the layout of the inputs, where the widths of all heads stand in one axis."""
        merged = self.layout.replace("H", "")
        if "H" not in self.layout or output.ndim != len(merged):
            return output
        apart = output.reshape(*output.shape[:-1], sizes.heads, sizes.width)
        return permuted(apart, f"{merged[:-1]}HD", self.layout)

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """That of its inputs."""
        extents = {"B": sizes.samples, "H": sizes.heads, "L": sizes.queries, "D": sizes.width}
        return tuple(extents[axis] for axis in self.layout)

    def far(self, sizes: Sizes, x: Any) -> tuple[int, ...] | None:
        """How far a call comes, in lines of the function, before it raises; None where it answers as it should."""
        arrays = self._zeros(sizes, x)
        try:
            answer = guarded(lambda: self((x, x, x), arrays, {}))[0]
        except Exception as error:
            return _lines(error.__cause__ or error, self.function)
        return None if shape_of(answer) == self.shape(sizes) else ANSWERED

    def in_both_orders(self) -> list[NeededArrays]:
        """It with rows of tokens that begin with the largest distance, and with those that begin with the smallest."""
        of_tokens = any(axes.rows == KEYS for axes in self.axes.values())
        first = {name: replace(axes, last=False) for name, axes in self.axes.items()}
        return [self, replace(self, axes=first)] if of_tokens else [self]

    def reads_all(self, made: Callable[[tuple[int, ...]], Any]) -> bool:
        """Whether the last row of each array with a number of rows is read in a long sequence; `made`: an input."""
        counts = {name: axes.count for name, axes in self.axes.items() if axes.rows == COUNT}
        if not counts:
            return True
        tokens = max(counts.values()) + 3
        sizes = replace(LOOKS[0], queries=tokens, keys=tokens)
        x, arrays = made(self.shape(sizes)), self._zeros(sizes, made((1, 1)))
        answers = [safe_call(lambda: as_array(self((x, x, x), arrays, {})[0])).value]
        for name in counts:
            at = (slice(None),) * self.axes[name].held.index("r") + (-1,)
            changed = {**arrays, name: with_ones_at(arrays[name], at)}
            answers.append(safe_call(lambda: as_array(self((x, x, x), changed, {})[0])).value)  # noqa: B023  # at once
        usual, *others = answers
        return usual is not None and all(each is not None and not near(each, usual, "float32") for each in others)

    def with_usual_scale(self, x: Any) -> NeededArrays:
        """It with the factor with which its last query has the usual weights; as it is where none gives these."""
        arrays = self._zeros(LOOKS[0], x)
        rows = np.moveaxis(as_array(x), self.layout.index("L"), -2)
        for factor in FACTORS:
            output = safe_call(lambda: as_array(self((x, x, x), arrays, {})[0])).value
            scores = factor * rows.shape[-1] ** -0.5 * rows[..., -1:, :] @ rows.swapaxes(-1, -2)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected = (weights / weights.sum(-1, keepdims=True) @ rows)[..., 0, :]
            if output is not None and near(np.take(output, -1, self.layout.index("L")), expected, "float32"):
                return replace(self, factor=factor)
        return self

    def _zeros(self, sizes: Sizes, x: Any) -> dict[str, Any]:
        """What changes nothing for its arrays, as parameters."""
        like = _zeros_like(x)
        return {name: like(axes.shape(sizes.heads, sizes.width)) for name, axes in self.axes.items()}

    def attends(self, sizes: Sizes, x: Any) -> bool:
        """Whether the last token has a part of the value of the first one, in each head that of the same head alone."""
        arrays = self._zeros(sizes, x)
        head, tokens = self.layout.find("H"), self.layout.index("L")
        at = tuple(0 if axis in ("H", "L") else slice(None) for axis in self.layout)
        values = (x, with_ones_at(x, at))
        first, second = (
            safe_call(lambda: as_array(self((x, x, value), arrays, {})[0])).value  # noqa: B023  # called at once
            for value in values
        )
        if first is None or second is None or not first.shape == second.shape == self.shape(sizes):
            return False
        changed = np.abs(first - second) > HALF
        last = np.take(changed, -1, tokens)
        others = np.delete(changed, 0, head) if head > 0 else np.zeros(1, bool)
        return bool(last.any()) and not others.any()


def _zeros_like(x: Any) -> Callable[[tuple[int, ...]], Any]:
    """What makes zeros of the kind of arrays that `x` is."""
    if hasattr(x, "new_zeros"):
        return cast("Callable[[tuple[int, ...]], Any]", x.new_zeros)
    return lambda shape: np.zeros(shape, np.float32) + x.reshape(-1)[0] * 0


def with_ones_at(x: Any, at: tuple[Any, ...]) -> Any:
    """The array, with ones in these places."""
    if is_jax(x):
        return x.at[at].set(1.0)
    moved = x + 0
    moved[at] = 1.0
    return moved


def _lines(error: BaseException, function: Any) -> tuple[int, ...]:
    """The line of the function that was running, and those of what it had called."""
    place, found = error.__traceback__, list[int]()
    whole = inspect.unwrap(getattr(function, "function", function))
    code = getattr(whole, "__code__", None)
    while place is not None:
        if found or place.tb_frame.f_code is code:
            found.append(place.tb_lineno)
        place = place.tb_next
    return (*found,)


def with_needed_arrays(function: object) -> Iterator[tuple[type[nn.Module], Collection[str]]]:
    """The function as a module, and the names of the arrays that it needs, for each way to make these."""
    signature = safe_call(lambda: signature_of(cast("Callable[..., Any]", function))).value
    if signature is None or isinstance(function, type) or not callable(function):
        return
    inputs = [p.name for p in positional(signature)[:3]]
    needed = [p for p in signature.parameters.values() if required(p) and p.name not in inputs]
    known = {p.name: given for p in needed if p.name in KNOWN_NAMES and (given := fillers(p))}
    left = [p for p in needed if p.name not in known]
    numbers = {p.name: CHOSEN for p in left if _is_number(p)}
    arrays = [p.name for p in left if p.name not in numbers]
    if holds_keys_and_values(function, arrays):
        return
    if len(inputs) < 3 or not 0 < len(arrays) <= MOST_ARRAYS or any(p.kind is p.POSITIONAL_ONLY for p in needed):
        return
    forms = _forms(function, signature, arrays, numbers, known)
    yield from ((_as_module(form, x), arrays) for form, x in islice(forms, MOST_FORMS))


def _is_number(parameter: inspect.Parameter) -> bool:
    words = {*parameter.name.lower().split("_")}
    return parameter.name in HEAD_COUNTS or parameter.annotation in (int, "int") or bool(words & OF_NUMBERS)


def _forms(
    function: Callable[..., Any],
    signature: inspect.Signature,
    arrays: Sequence[str],
    numbers: Mapping[str, int],
    known: Mapping[str, Any],
) -> Iterator[tuple[NeededArrays, Any]]:
    """The function with axes for its arrays, in its layout, and an input that it takes."""
    ranks = {name: _documented_ranks(function, name) for name in arrays}
    counted = {name: any("max" in shape for shape in _documented_shapes(function, name)) for name in arrays}
    for layout, kind in product(LAYOUTS, _kinds(function)):
        input_axes = InputAxes(layout.index("H") if "H" in layout else None, layout.index("L") - len(layout))
        found = False
        for count, filled in product(_counts(signature, numbers), islice(product(*known.values()), MOST_FILLED)):
            given = dict(zip(known, filled, strict=True))
            empty = NeededArrays(SeveralNeeded(function, given, input_axes) if given else function, {}, numbers, layout)
            choices = {name: [*axes_of(name, count, ranks[name], counted[name])] for name in arrays}
            for made in _answered(empty, choices, partial(of_this_kind, kind)):
                found = True
                yield from ((each, of_this_kind(kind, (1, 1))) for each in made.in_both_orders())
        if found:
            return


def _kinds(function: Any) -> list[int]:
    """Which of `of_each_kind` it may take, those of the libraries of its file first."""
    inside = getattr(inspect.unwrap(function), "__globals__", {}).values()
    libraries = {
        str(getattr(each, "__name__", "")).partition(".")[0] for each in inside if isinstance(each, ModuleType)
    }
    several = range(len(of_each_kind((1, 1))))
    named = [n for n in several if LIBRARIES[n] in libraries]
    return [*named, *(n for n in several if n not in named and LIBRARIES[n] != "jax")]


def of_this_kind(kind: int, shape: tuple[int, ...]) -> Any:
    """One of `of_each_kind`."""
    return of_each_kind(shape)[kind]


def unique(several: Iterable[dict[str, Axes]]) -> Iterator[dict[str, Axes]]:
    """Each of them once."""
    seen: list[dict[str, Axes]] = []
    for each in several:
        if each not in seen:
            seen.append(each)
            yield each


def _answered(
    empty: NeededArrays, choices: Mapping[str, Sequence[Axes]], of_kind: Callable[[tuple[int, ...]], Any]
) -> Iterator[NeededArrays]:
    """It with axes with which it attends as it should; `of_kind` makes an input of a shape."""
    x = of_kind(empty.shape(LOOKS[0]))
    reached = safe_call(lambda: [*_reached(empty, choices, x)])  # of hundreds of calls, whose state is kept once
    for axes in unique(reached.value or ()):
        made = replace(empty, axes=axes)
        if all(made.attends(sizes, of_kind(made.shape(sizes))) for sizes in LOOKS) and made.reads_all(of_kind):
            yield made.with_usual_scale(of_kind(made.shape(LOOKS[0])))


def _reached(empty: NeededArrays, choices: Mapping[str, Sequence[Axes]], x: Any) -> Iterator[dict[str, Axes]]:
    """The axes with which it answers: those of each array with which it comes farthest, else some of all."""
    given, found = {name: each[0] for name, each in choices.items()}, False
    best: tuple[int, ...] = (-1,)
    for _, name in product(range(2), choices):
        reached = [(each, replace(empty, axes={**given, name: each}).far(LOOKS[0], x)) for each in choices[name]]
        answered = [each for each, lines in reached if lines is None]
        yield from ({**given, name: each} for each in answered)
        found = found or bool(answered)
        lines, at = max(((lines or ANSWERED, -n) for n, (_, lines) in enumerate(reached)), default=(best, 0))
        if lines > best:
            best, given = lines, {**given, name: reached[-at][0]}
    together = islice(product(*choices.values()), 0 if found else MOST_TOGETHER)
    for each in together:
        axes = dict(zip(choices, each, strict=True))
        if replace(empty, axes=axes).far(LOOKS[0], x) is None:
            yield axes


def _counts(signature: inspect.Signature, numbers: Mapping[str, int]) -> tuple[int, ...]:
    """Lengths that an axis may have: of both sides of a largest distance, or of one."""
    defaults = [p.default for p in signature.parameters.values() if type(p.default) is int]
    bounds = [n for n in (*defaults, *numbers.values()) if 1 < n <= MOST_NUMBERS] or [3]
    return tuple(dict.fromkeys(n for bound in bounds for n in (2 * bound + 1, 2 * bound, 2 * bound - 1, bound)))


def _documented_ranks(function: object, name: str) -> frozenset[int]:
    """How many axes an array has, as a shape in brackets after its name states."""
    found = [shape for shape in _documented_shapes(function, name) if "," in shape]
    return frozenset(len([each for each in shape.split(",") if each.strip()]) for shape in found)


def _documented_shapes(function: object, name: str) -> list[str]:
    """What stands in brackets after its name."""
    text = inspect.getdoc(function) or ""
    return re.findall(rf"\b{re.escape(name)}\b[^()\[\]\n]{{0,60}}[(\[]([^()\[\]]*)[)\]]", text)


def _as_module(form: NeededArrays, x: Any) -> type[nn.Module]:
    """A module that projects its inputs, and has what is made into the arrays as parameters."""
    names = SIZES if "H" in form.layout else SIZES[:1]
    signature = signature_of(form.function)
    dropped = {*form.axes, *form.numbers}
    shown = signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in dropped])
    framework = framework_of(x)

    def made(embed_dim: int, num_heads: int = 1) -> Held:
        draw, width = np.random.default_rng(0), embed_dim // num_heads
        arrays = {path: draw.standard_normal((embed_dim, embed_dim)) / embed_dim**0.5 for path in LAYERS}
        arrays |= {name: draw.standard_normal(axes.shape(num_heads, width)) for name, axes in form.axes.items()}

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            layers = [arrays[path] for path in LAYERS]
            projected = [each @ layer.T for each, layer in zip(inputs, layers[:3], strict=True)]
            first, *others = form([in_layout(each, form.layout, num_heads) for each in projected], arrays, options)
            merged = out_of_layout(first, form.layout) @ layers[3].T
            return (merged, *others) if others else merged

        return Held(arrays, answer, framework, evaluation(form.function) if framework == "jax" else called)

    built = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    named = _named(form.function)
    return cast("type[nn.Module]", mirror_class(named, built_once(made), built, shown, in_parts=True))


def _named(function: Any) -> Any:
    return inspect.unwrap(getattr(function, "function", function))


def in_layout(x: Any, layout: str, heads: int) -> Any:
    """(B, L, E) in the layout of a function, one of `LAYOUTS`."""
    apart = x.reshape(*x.shape[:2], heads, x.shape[2] // heads) if "H" in layout else x
    return permuted(apart, _usual(layout), layout)


def out_of_layout(output: Any, layout: str) -> Any:
    """An output in this layout as (B, L, E)."""
    apart = permuted(output, layout, _usual(layout))
    return apart.reshape(*apart.shape[:2], apart.shape[2] * apart.shape[3]) if "H" in layout else apart


def _usual(layout: str) -> str:
    return "BLHD" if "H" in layout else "BLD"
