"""Conditions of arrays: how each lies in memory, and how large its numbers are."""

from collections.abc import Callable, Iterator

import numpy as np

from attention_conformance.spec.cases import Layout, Scores
from attention_conformance.spec.problem import Array, Problem, lay_out
from attention_conformance.tests.measurements.reach.condition import Call, Condition, Laid, when


def _arrays(problem: Problem) -> list[Array]:
    return [a for a in (problem.query, problem.key, problem.value) if a.size]


def any_view(problem: Problem) -> bool:
    return any(not a.flags.c_contiguous for a in _arrays(problem))


def _one_array(name: str) -> Iterator[Condition]:
    """Layouts of one input while the others are contiguous."""
    others = [other for other in ("query", "key", "value") if other != name]

    def only(holds: Callable[[Array], bool]) -> Callable[[Call], bool]:
        def fulfilled(call: Call) -> bool:
            p = call.problem
            own, rest = getattr(p, name), [getattr(p, other) for other in others]
            return bool(own.size) and holds(own) and all(a.flags.c_contiguous for a in rest)

        return fulfilled

    def laid(layout: Layout) -> Laid:
        return lambda p: p.with_arrays({name: lay_out(getattr(p, name), layout)})

    yield Condition(
        f"a {name} of permuted axes alone", only(_permuted), {"layout": Layout.CONTIGUOUS}, laid(Layout.TRANSPOSED), 5
    )
    yield Condition(
        f"a {name} with gaps alone", only(_with_gaps), {"layout": Layout.CONTIGUOUS}, laid(Layout.SLICED), 5
    )
    yield Condition(
        f"a {name} whose last axis is not the innermost",
        only(_not_innermost),
        {"layout": Layout.CONTIGUOUS},
        laid(Layout.FORTRAN),
        5,
    )
    yield Condition(
        f"a {name} that starts within a buffer", only(_within), {"layout": Layout.CONTIGUOUS}, laid(Layout.OFFSET), 5
    )


def _permuted(array: Array) -> bool:
    strides = [s for s, extent in zip(array.strides, array.shape, strict=True) if extent > 1]
    return strides != sorted(strides, reverse=True) and min(strides, default=1) > 0


def _with_gaps(array: Array) -> bool:
    return not array.flags.c_contiguous and not _permuted(array) and 0 not in array.strides


def _not_innermost(array: Array) -> bool:
    return array.shape[-1] > 1 and array.strides[-1] > array.itemsize


def _within(array: Array) -> bool:
    base = array.base
    return isinstance(base, np.ndarray) and array.__array_interface__["data"][0] > base.__array_interface__["data"][0]


LAYOUTS = (
    *_one_array("query"),
    *_one_array("key"),
    *_one_array("value"),
    when("keys and values that repeat their memory", 3, lambda c: 0 in c.problem.key.strides, layout=Layout.BROADCAST),
    when("all rows with gaps", 3, lambda c: all(map(_with_gaps, _arrays(c.problem))), layout=Layout.SLICED),
    when("all within buffers", 3, lambda c: all(map(_within, _arrays(c.problem))), layout=Layout.OFFSET),
    when(
        "one buffer", 3, lambda c: c.problem.layout is Layout.PACKED, layout=Layout.PACKED, query_length=7, key_length=7
    ),
)


def _largest(array: Array) -> float:
    finite = array[np.isfinite(array)] if array.size else array
    return float(np.abs(finite).max(initial=0.0)) if finite.size else 0.0


MAGNITUDES = (
    when(
        "scores beyond hundreds",
        8,
        lambda c: _largest(c.problem.query) * _largest(c.problem.key) > 500.0,
        scores=Scores.ONE_HOT,
    ),
    when("tiny scores", 3, lambda c: _largest(c.problem.query) * _largest(c.problem.key) < 0.1, score_std=0.001),
    when("huge values", 3, lambda c: _largest(c.problem.value) > 1000.0, value_scale=1e4),
    when("tiny values", 3, lambda c: _largest(c.problem.value) < 1e-3, value_scale=1e-5),
    when("equal scores", 3, lambda c: not c.problem.query.any(), scores=Scores.EQUAL),
    when("very negative scores", 8, lambda c: _largest(c.problem.key) > 400.0, scores=Scores.VERY_NEGATIVE),
    when("the largest score last", 3, lambda c: _rising(c.problem.key), scores=Scores.RISING),
)


def _rising(key: Array) -> bool:
    return key.shape[-2] > 2 and bool((np.diff(key[..., 0].astype(np.float64), axis=-1) > 0).all())
