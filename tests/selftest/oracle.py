"""A second derivation of attention: loops straight from the equations, sharing no code with `reference`."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import mpmath

from spec.features import Alignment, Conventions, EmptyRow, Scope
from spec.problems import Array, Problem

Number: TypeAlias = Any
"""A float, a complex or an mpmath number: the loops ask no more of it than arithmetic and its real part."""
Vector: TypeAlias = Sequence[Number]
Heads: TypeAlias = list[list[list[list[Number]]]]
"""[sample][head][token][component]."""


@dataclass(frozen=True)
class Arithmetic:
    """The numbers in which the equations are evaluated."""

    number: Callable[[Any], Number]
    total: Callable[[Iterable[Number]], Number]
    exp: Callable[[Number], Number]
    log: Callable[[Number], Number]


def _complex_total(terms: Iterable[complex]) -> complex:
    held = list(terms)
    return complex(math.fsum(z.real for z in held), math.fsum(z.imag for z in held))


DOUBLE = Arithmetic(float, math.fsum, math.exp, math.log)
"""float64, every sum rounded once."""
COMPLEX = Arithmetic(complex, _complex_total, cmath.exp, cmath.log)
"""For complex-step differentiation."""
DIGITS = mpmath.mp.clone()
DIGITS.dps = 50
FIFTY_DIGITS = Arithmetic(lambda x: DIGITS.mpf(float(x)), DIGITS.fsum, DIGITS.exp, DIGITS.log)
"""Exact for every purpose here."""


@dataclass(frozen=True)
class Answer:
    """Nested lists: output as the problem's scope has it, weights [b][h][i][j], log-sum-exp [b][h][i]."""

    output: list[Any]
    weights: Heads
    log_sum_exp: list[list[list[Number]]]


@dataclass(frozen=True)
class Row:
    """What one query of one head gets."""

    output: list[Number]
    weights: list[Number]
    log_sum_exp: Number


def attention(problem: Problem, conventions: Conventions = Conventions(), arithmetic: Arithmetic = DOUBLE) -> Answer:
    """softmax(scale * Q K^T + mask) V for every sample, head and query; projections at the module level."""
    query, key, value = (heads_of(problem, name, arithmetic) for name in ("query", "key", "value"))
    rows = [
        [
            [
                _row(problem, conventions, arithmetic, (b, h, i), row, key[b][h], value[b][h])
                for i, row in enumerate(head)
            ]
            for h, head in enumerate(sample)
        ]
        for b, sample in enumerate(query)
    ]
    heads = [[[row.output for row in head] for head in sample] for sample in rows]
    return Answer(
        output=heads if problem.scope is Scope.OP else _joined(problem, arithmetic, heads),
        weights=[[[row.weights for row in head] for head in sample] for sample in rows],
        log_sum_exp=[[[row.log_sum_exp for row in head] for head in sample] for sample in rows],
    )


def loss(problem: Problem, conventions: Conventions = Conventions(), arithmetic: Arithmetic = DOUBLE) -> Number:
    """The sum of output times cotangent, whose derivatives the gradients are."""
    assert problem.cotangent is not None
    output = _flat(attention(problem, conventions, arithmetic).output)
    cotangent = _flat(problem.cotangent.tolist())
    return arithmetic.total(o * arithmetic.number(c) for o, c in zip(output, cotangent, strict=True))


def _flat(nested: Any) -> list[Any]:
    return [x for part in nested for x in _flat(part)] if isinstance(nested, list) else [nested]


def heads_of(problem: Problem, name: str, arithmetic: Arithmetic) -> Heads:
    """The op's input `name`: as given, or x @ w + b, whose columns h * d .. (h + 1) * d - 1 are head h's."""
    inputs, number = getattr(problem, name), arithmetic.number
    if problem.scope is Scope.OP:
        return [[[[number(x) for x in row] for row in head] for head in sample] for sample in inputs]
    weight, bias = problem.parameters[f"w_{name[0]}"], problem.parameters.get(f"b_{name[0]}")
    width = weight.shape[1] // problem.num_heads
    return [
        [
            [[_projected(row, weight, bias, c, arithmetic) for c in range(first, first + width)] for row in sample]
            for first in range(0, weight.shape[1], width)
        ]
        for sample in inputs
    ]


def _projected(
    row: Sequence[Any] | Array, weight: Array, bias: Array | None, column: int, arithmetic: Arithmetic
) -> Number:
    number = arithmetic.number
    terms = [number(x) * number(weight[c, column]) for c, x in enumerate(row)]
    return arithmetic.total(terms if bias is None else [*terms, number(bias[column])])


def _joined(problem: Problem, arithmetic: Arithmetic, heads: Heads) -> list[list[list[Number]]]:
    """The heads of each token side by side, through the output projection if there is one."""
    joined = [[[x for head in sample for x in head[i]] for i in range(problem.query.shape[1])] for sample in heads]
    weight, bias = problem.parameters.get("w_o"), problem.parameters.get("b_o")
    if weight is None:
        return joined
    return [
        [[_projected(row, weight, bias, c, arithmetic) for c in range(weight.shape[1])] for row in sample]
        for sample in joined
    ]


def _row(
    problem: Problem,
    conventions: Conventions,
    arithmetic: Arithmetic,
    place: tuple[int, int, int],
    query: Vector,
    keys: Sequence[Vector],
    values: Sequence[Vector],
) -> Row:
    width = _value_width(problem)
    seen = [j for j in range(len(keys)) if not hiding(problem, conventions, *place, j)]
    if not seen:
        return _empty_row(empty_answer(problem, conventions, *place), arithmetic, values, width)
    number = arithmetic.number
    scale = number(len(query)) ** -0.5 if problem.scale is None else number(problem.scale)
    scores = {j: _score(problem, arithmetic, (*place, j), scale, query, keys[j]) for j in seen}
    top = max(z.real for z in scores.values())
    shares = {j: arithmetic.exp(z - top) for j, z in scores.items()}
    whole = arithmetic.total(shares.values())
    weights = [shares[j] / whole if j in shares else number(0) for j in range(len(keys))]
    output = [arithmetic.total(weights[j] * values[j][c] for j in seen) for c in range(width)]
    return Row(output, weights, top + arithmetic.log(whole))


def _value_width(problem: Problem) -> int:
    if problem.scope is Scope.OP:
        return int(problem.value.shape[-1])
    return int(problem.parameters["w_v"].shape[1]) // problem.num_heads


def _score(
    problem: Problem,
    arithmetic: Arithmetic,
    place: tuple[int, int, int, int],
    scale: Number,
    query: Vector,
    key: Vector,
) -> Number:
    product = scale * arithmetic.total(q * k for q, k in zip(query, key, strict=True))
    if problem.attn_mask is None or problem.attn_mask.dtype.kind == "b":
        return product
    return product + arithmetic.number(broadcast_at(problem.attn_mask, *place))


def broadcast_at(mask: Array, *place: int) -> Any:
    """What broadcasting puts at (b, h, i, j): axes aligned from the last one, those of length 1 repeated."""
    found: Any = mask
    for extent, index in zip(mask.shape, place[4 - mask.ndim :], strict=True):
        found = found[0 if extent == 1 else index]
    return found


def hiding(problem: Problem, conventions: Conventions, b: int, h: int, i: int, j: int) -> list[str]:
    """Which of attn_mask, padding and the causal flag hide key j from query i."""
    found, mask, lengths = [], problem.attn_mask, problem.valid_lens
    if mask is not None:
        element = broadcast_at(mask, b, h, i, j)
        if element.real == -math.inf if mask.dtype.kind != "b" else not element:
            found.append("bool" if mask.dtype.kind == "b" else "float")
    padded = problem.key_padding_mask is not None and not problem.key_padding_mask[b, j]
    if padded or (lengths is not None and j >= (lengths[b] if lengths.ndim == 1 else lengths[b, i])):
        found.append("padding")
    shift = 0
    if conventions.causal_alignment is Alignment.BOTTOM_RIGHT:
        shift = problem.key.shape[-2] - problem.query.shape[-2]
    if problem.causal and j > i + shift:
        found.append("causal")
    return found


def empty_answer(problem: Problem, conventions: Conventions, b: int, h: int, i: int) -> EmptyRow:
    """The answer claimed for a kind of mask that hides the whole row; if several do, any one is right."""
    hidden = [set(hiding(problem, conventions, b, h, i, j)) for j in range(problem.key.shape[-2])]
    alone = set.intersection(*hidden) if hidden else set()
    together = set.union(*hidden) if hidden else {"bool"}
    kind = min(alone or together)
    answer: EmptyRow = getattr(conventions, f"empty_row_{kind}")
    return answer


def _empty_row(answer: EmptyRow, arithmetic: Arithmetic, values: Sequence[Vector], width: int) -> Row:
    zero, keys = arithmetic.number(0), len(values)
    if answer is EmptyRow.UNIFORM and keys:
        mean = [arithmetic.total(v[c] for v in values) / keys for c in range(width)]
        return Row(mean, [zero + arithmetic.number(1) / keys] * keys, -math.inf)
    fill = arithmetic.number(math.nan) if answer is EmptyRow.NAN else zero
    return Row([fill] * width, [fill] * keys, -math.inf)
