"""A second derivation of attention: loops straight from the equations, sharing no code with `reference`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from attention_conformance.spec.conventions import (
    Conventions,
    DefaultScale,
    EmptyRow,
    LogBase,
    NormOrder,
    ReturnedWeights,
)
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.selftest.reference.arithmetic import DOUBLE, Arithmetic, Number
from attention_conformance.tests.selftest.reference.family_oracle import (
    Task,
    capped,
    displaced,
    extra_rows,
    key_head,
    kv_heads,
    normalised,
    position_biases,
    rotated,
    rotated_at,
)

Vector: TypeAlias = Sequence[Number]
Heads: TypeAlias = list[list[list[list[Number]]]]
"""[sample][head][token][component]."""


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


def attention(
    problem: Problem,
    conventions: Conventions = Conventions(),
    arithmetic: Arithmetic = DOUBLE,
    factors: Array | None = None,
) -> Answer:
    """softmax(cap(scale * Q K^T) + biases + mask) V for every sample, head and query, times the gate of the head.

    At the module level with its projections.
    """
    task = Task(problem, conventions, arithmetic, factors)
    query, key, value = (heads_of(problem, name, arithmetic) for name in ("query", "key", "value"))
    steps = (normalised, _rotated) if conventions.norm_order is NormOrder.FIRST else (_rotated, normalised)
    for step in steps:
        query, key = (step(task, name, heads) for name, heads in (("query", query), ("key", key)))
    key, value = (_extended(task, name, heads) for name, heads in (("bias_k", key), ("bias_v", value)))
    rows = [
        [[_row(task, (b, h, i), row, key[b], value[b]) for i, row in enumerate(head)] for h, head in enumerate(sample)]
        for b, sample in enumerate(query)
    ]
    heads = [
        [[_gated(task, (b, h, i), row.output) for i, row in enumerate(head)] for h, head in enumerate(sample)]
        for b, sample in enumerate(rows)
    ]
    return Answer(
        output=heads if problem.scope is Scope.OP else _joined(problem, arithmetic, heads),
        weights=[[[row.weights for row in head] for head in sample] for sample in rows],
        log_sum_exp=[[[row.log_sum_exp for row in head] for head in sample] for sample in rows],
    )


def loss(
    problem: Problem,
    conventions: Conventions = Conventions(),
    arithmetic: Arithmetic = DOUBLE,
    factors: Array | None = None,
) -> Number:
    """The sum of output times cotangent, whose derivatives the gradients are."""
    assert problem.cotangent is not None
    output = _flat(attention(problem, conventions, arithmetic, factors).output)
    cotangent = _flat(problem.cotangent.tolist())
    return arithmetic.total(o * arithmetic.number(c) for o, c in zip(output, cotangent, strict=True))


def _flat(nested: Any) -> list[Any]:
    return [x for part in nested for x in _flat(part)] if isinstance(nested, list) else [nested]


def heads_of(problem: Problem, name: str, arithmetic: Arithmetic) -> Heads:
    """The op's input `name`: as given, or x @ w + b, whose columns h * d .. (h + 1) * d - 1 are head h's."""
    inputs, number = getattr(problem, name), arithmetic.number
    if "w_uk" in problem.extras and name != "query":
        heads = range(problem.num_heads)
        return [[_expanded(problem, name, b, h, arithmetic) for h in heads] for b in range(len(inputs))]
    if problem.scope is Scope.OP:
        return [[[[number(x) for x in row] for row in head] for head in sample] for sample in inputs]
    weight, bias = problem.parameters[f"w_{name[0]}"], problem.parameters.get(f"b_{name[0]}")
    width = weight.shape[1] // (problem.num_heads if name == "query" else kv_heads(problem))
    return [
        [
            [[_projected(row, weight, bias, c, arithmetic) for c in range(first, first + width)] for row in sample]
            for first in range(0, weight.shape[1], width)
        ]
        for sample in inputs
    ]


def _expanded(problem: Problem, name: str, b: int, h: int, arithmetic: Arithmetic) -> list[list[Any]]:
    """Keys or values of one head, made of the latents; keys have the rotary part behind."""
    matrix, number = problem.extras[f"w_u{name[0]}"][h], arithmetic.number
    rank, made = matrix.shape[1], []
    for row in problem.key[b, 0]:
        given = [number(c) for c in row[:rank]]
        own = [arithmetic.total(number(w) * c for w, c in zip(line, given, strict=True)) for line in matrix]
        made.append([*own, *(number(x) for x in row[rank:] if name == "key")])
    return made


def _projected(
    row: Sequence[Any] | Array, weight: Array, bias: Array | None, column: int, arithmetic: Arithmetic
) -> Number:
    number = arithmetic.number
    terms = [number(x) * number(weight[c, column]) for c, x in enumerate(row)]
    return arithmetic.total(terms if bias is None else [*terms, number(bias[column])])


def _rotated(task: Task, name: str, heads: Heads) -> Heads:
    """Queries or keys after their rotary embedding, if there is one."""
    if not task.problem.extension.rotates:
        return heads
    problem, conventions = task.problem, task.conventions
    return [
        [
            [
                rotated(task, row, b, token, rotated_at(problem, conventions, name, b, token))
                for token, row in enumerate(head)
            ]
            for head in sample
        ]
        for b, sample in enumerate(heads)
    ]


def _extended(task: Task, name: str, heads: Heads) -> Heads:
    """Keys or values followed by those that every query sees."""
    width = _width(task.problem, "key" if name == "bias_k" else "value")
    return [[[*head, *extra_rows(task, name, g, width)] for g, head in enumerate(sample)] for sample in heads]


def _width(problem: Problem, name: str) -> int:
    """d_k or d_v."""
    if "w_uv" in problem.extras:
        return int((problem.query if name == "key" else problem.extras["w_uv"].swapaxes(-1, -2)).shape[-1])
    if problem.scope is Scope.OP:
        return int(getattr(problem, name).shape[-1])
    return int(problem.parameters[f"w_{name[0]}"].shape[1]) // kv_heads(problem)


def _gated(task: Task, place: tuple[int, int, int], output: Vector) -> list[Number]:
    """A head's output times its gate, and times those of each channel, which logits of one or of all open."""
    number, gates, logits = task.arithmetic.number, *(task.problem.extras.get(n) for n in ("head_gates", "gate_logits"))
    gated = list(output) if gates is None else [x * number(gates[place[1]]) for x in output]
    if logits is None:
        return gated
    row = logits[place]
    opened = [1 / (1 + task.arithmetic.exp(-number(row[min(c, len(row) - 1)]))) for c in range(len(gated))]
    return [x * gate for x, gate in zip(gated, opened, strict=True)]


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
    task: Task, place: tuple[int, int, int], query: Vector, key: Sequence[Sequence[Vector]], value: Sequence[Any]
) -> Row:
    problem, number, h = task.problem, task.arithmetic.number, place[1]
    head = key_head(problem, task.conventions, h)
    keys, values, given = key[head], value[head], problem.key.shape[-2]
    seen = [j for j in range(len(keys)) if j >= given or not hiding(problem, task.conventions, *place, j)]
    sink = problem.extras.get("sinks")
    if not seen and sink is None:
        answer = empty_answer(problem, task.conventions, *place)
        return _empty_row(answer, task.arithmetic, values, _width(problem, "value"))
    scores = {j: _score(task, (*place, j), query, keys[j]) for j in seen}
    logits = [*scores.values()] if sink is None else [*scores.values(), number(sink[h])]
    top = max(z.real for z in logits)
    whole = task.arithmetic.total(task.arithmetic.exp(z - top) for z in logits)
    weights = [task.arithmetic.exp(scores[j] - top) / whole if j in scores else number(0) for j in range(len(keys))]
    dropped = [w if task.factors is None else w * number(task.factors[(*place, j)]) for j, w in enumerate(weights)]
    output = [task.arithmetic.total(dropped[j] * values[j][c] for j in seen) for c in range(_width(problem, "value"))]
    after = task.conventions.returned_weights is ReturnedWeights.AFTER_DROPOUT
    return Row(output, dropped if after else weights, _logarithm(task, top + task.arithmetic.log(whole)))


def _logarithm(task: Task, natural: Number) -> Number:
    """In the base that is claimed."""
    if task.conventions.log_sum_exp_base is LogBase.E:
        return natural
    return natural / task.arithmetic.log(task.arithmetic.number(2))


def _score(task: Task, place: tuple[int, int, int, int], query: Vector, key: Vector) -> Number:
    """Scaled, capped, and what is added for keys that are given."""
    problem, number = task.problem, task.arithmetic.number
    default = number(len(query)) ** -0.5 if task.conventions.default_scale is DefaultScale.INVERSE_ROOT else number(1)
    scale = default if problem.scale is None else number(problem.scale)
    product = scale * task.arithmetic.total(q * k for q, k in zip(query, key, strict=True))
    score, mask = capped(task, product), problem.attn_mask
    if place[-1] >= problem.key.shape[-2]:
        return score
    added = position_biases(task, place)
    if mask is not None and mask.dtype.kind != "b":
        added.append(number(broadcast_at(mask, *place)))
    return task.arithmetic.total([score, *added])


def broadcast_at(mask: Array, *place: int) -> Any:
    """What broadcasting puts at (b, h, i, j): axes aligned from the last one, those of length 1 repeated."""
    element: Any = mask
    for extent, index in zip(mask.shape, place[4 - mask.ndim :], strict=True):
        element = element[0 if extent == 1 else index]
    return element


def hiding(problem: Problem, conventions: Conventions, b: int, h: int, i: int, j: int) -> list[str]:
    """Which of attn_mask, padding and what follows from positions ("causal") hide key j from query i."""
    kinds, mask, lengths = [], problem.attn_mask, problem.valid_lens
    if mask is not None:
        element = broadcast_at(mask, b, h, i, j)
        if element.real == -math.inf if mask.dtype.kind != "b" else not element:
            kinds.append("bool" if mask.dtype.kind == "b" else "float")
    padded = problem.key_padding_mask is not None and not problem.key_padding_mask[b, j]
    if padded or (lengths is not None and j >= (lengths[b] if lengths.ndim == 1 else lengths[b, i])):
        kinds.append("padding")
    if displaced(problem, conventions, b, i, j):
        kinds.append("causal")
    return kinds


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
