"""Neighbours: other functions of query, key and value that are named attention, and recognised, but not judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.spec.cases import MaskKind, Padding
from attention_conformance.spec.features import NOTHING, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation
from attention_conformance.tests.harness.explain.diagnosis.projected_rows import digits, projected_factors

CASES = 2
"""So many cases, at least, have to be a neighbour's."""
Map: TypeAlias = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Neighbour:
    """What an implementation is instead: its name, of so many failing cases that show it."""

    name: str
    cases: int
    repair: str = "This is another function than softmax attention: the suite names it, and does not judge it."


def neighbour(failing: Sequence[Observation], passing: Sequence[Observation]) -> Neighbour | None:
    """The neighbour whose outputs all plain cases have, each row of a head up to a factor; None where there is none.

    Plain cases that pass have to be its outputs, too: what is right softmax attention in them is no neighbour.

    What rows are divided by, an epsilon in it and a factor of the output are then left aside. In a module the rows lie
    behind its projections, and a sum of them is seen.
    """
    plain = [each for each in failing if _plain(each)]
    if len(plain) < CASES:
        return None
    all_ = [*filter(_plain, passing), *plain]
    named = (name for name, rows in _known() if all(_is(rows, each) for each in all_))
    name = next(named, "")
    if not name and all(_differential(each) for each in all_):
        name = "differential attention"
    return Neighbour(name, len(plain)) if name else None


def _plain(each: Observation) -> bool:
    """A case without any option, with rows that have a direction."""
    case, sizes = each.case, each.case.sizes
    bare = case.mask is MaskKind.NONE and case.padding is Padding.NONE and case.extension == NOTHING
    sized = sizes.query_length > 1 and sizes.key_length > 1 and min(sizes.d_v, sizes.d_k) > 1
    grouped = sizes.kv_heads != sizes.num_heads
    answered = each.got is not None and each.got.output.shape == each.expected["output"].value.shape
    alone = not case.causal and case.scale is None and not grouped
    return bare and sized and answered and alone and _tells(each.problem, sizes.num_heads * sizes.d_v)


def _tells(problem: Problem, width: int) -> bool:
    """Whether an output, of so many numbers in all heads, shows more than factors for two rows of each head."""
    if problem.scope is Scope.OP:
        return True
    projection = problem.parameters.get("w_o")
    return 4 * problem.num_heads <= (width if projection is None else projection.shape[-1])


def _heads(problem: Problem) -> tuple[Floats, Floats, Floats]:
    if problem.scope is Scope.MODULE:
        made = Pipeline().run(problem).inputs
        return made.query, made.key, made.value
    query, key, value = (np.asarray(x, dtype=np.float64) for x in (problem.query, problem.key, problem.value))
    return query, key, value


def _elu(x: Floats) -> Floats:
    return np.where(x > 0.0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def _softmax(x: Floats, axis: int = -1) -> Floats:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


FEATURES: dict[str, tuple[Map, Map]] = {
    "elu(x) + 1": (_elu, _elu),
    "relu(x)": (lambda x: np.maximum(x, 0.0), lambda x: np.maximum(x, 0.0)),
    "relu(x)^2": (lambda x: np.maximum(x, 0.0) ** 2, lambda x: np.maximum(x, 0.0) ** 2),
    "exp(x)": (np.exp, np.exp),
    "softmax(x)": (_softmax, _softmax),
    "softmax over components of queries, and over tokens of keys": (_softmax, lambda x: _softmax(x, -2)),
    "x": (lambda x: x, lambda x: x),
}
"""The maps of queries and keys whose products are the weights of linear attention."""


def _known() -> Iterator[tuple[str, Callable[[Problem], Floats]]]:
    """Names, and rows (B, H, Lq, d_v) up to a factor for each."""
    for words, (of_query, of_key) in FEATURES.items():
        for power in (0.0, -0.5, -0.25):

            def linear(problem: Problem, q: Map = of_query, k: Map = of_key, power: float = power) -> Floats:
                query, key, value = _heads(problem)
                by = query.shape[-1] ** power
                return np.asarray(q(query * by) @ (k(key * (by if power == -0.25 else 1.0)).swapaxes(-1, -2) @ value))

            yield f"linear attention, of the features {words}", linear
    for words, lowered in (("", False), (" less the logarithm of the number of keys", True)):

        def sigmoid(problem: Problem, lowered: bool = lowered) -> Floats:
            query, key, value = _heads(problem)
            scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
            scores = scores - np.log(key.shape[-2]) if lowered else scores
            return np.asarray((1.0 / (1.0 + np.exp(-scores))) @ value)

        yield f"sigmoid attention, of the scores{words}", sigmoid


def _is(rows: Callable[[Problem], Floats], each: Observation) -> bool:
    """Whether the rows of the answer are those rows times a factor each."""
    found, wanted = _output(each), rows(each.problem)
    if each.problem.scope is Scope.MODULE:
        return projected_factors(each.problem, [wanted], found) is not None
    return _small(_across(wanted, found), wanted, each.problem.dtype)


def _differential(each: Observation) -> bool:
    """Whether its rows are those of one softmax less a share of another, of two halves of queries and keys."""
    query, key, value = _heads(each.problem)
    if query.shape[-1] % 2:
        return False
    return any(_less_a_share(each, *pair, value) for pair in _halves(query, key))


def _halves(query: Floats, key: Floats) -> Iterator[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
    """Both halves of both, one after the other, or in turn."""
    half = query.shape[-1] // 2
    for first, second in ((np.s_[..., :half], np.s_[..., half:]), (np.s_[..., ::2], np.s_[..., 1::2])):
        yield (query[first], key[first]), (query[second], key[second])


def _less_a_share(each: Observation, one: tuple[Floats, Floats], other: tuple[Floats, Floats], value: Floats) -> bool:
    """With the share that is nearest for all rows together."""
    found = _output(each)
    rows = [_softmax(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5) @ value for q, k in (one, other)]
    if each.problem.scope is Scope.MODULE:
        factors = projected_factors(each.problem, rows, found)
        return factors is not None and _one_share(factors[1] / factors[0], each.problem.dtype)
    first, second = (_across(each_rows, found) for each_rows in rows)
    size = float((second * second).sum())
    share = float((first * second).sum()) / size if size else 0.0
    return share != 0.0 and _small(first - share * second, rows[0], each.problem.dtype)


def _one_share(shares: Floats, dtype: str) -> bool:
    """Whether all rows (B, Lq, H) of a head have one share."""
    usual = np.median(shares, axis=(0, 1))
    return bool((np.abs(shares - usual) <= digits(dtype) * np.abs(usual)).all())


def _output(each: Observation) -> Floats:
    assert each.got is not None
    return each.got.output.astype(np.float64)


def _across(rows: Floats, along: Floats) -> Floats:
    """What of the rows does not point along others."""
    size = (along * along).sum(-1, keepdims=True)
    share = (rows * along).sum(-1, keepdims=True) / np.where(size == 0.0, 1.0, size)
    return np.asarray(rows - share * along)


def _small(left: Floats, rows: Floats, dtype: str) -> bool:
    """Whether half of the digits agree."""
    most = digits(dtype) * np.sqrt((rows * rows).sum(-1))
    across = np.sqrt((left * left).sum(-1))
    return bool(np.isfinite(across).all() and rows.any() and (across <= most).all())
