"""The second derivation beyond the core: positions, rotations, groups, extra keys and biases, one by one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from attention_conformance.spec.conventions import (
    Alignment,
    Conventions,
    GroupOrder,
    NormGain,
    NormKind,
    PaddedPositions,
    RotaryPairing,
    WindowCount,
)
from attention_conformance.spec.features import QkNorm, RotaryTables, Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.selftest.reference.arithmetic import Arithmetic, Number


@dataclass(frozen=True)
class Task:
    """What is solved, with which conventions and numbers; `factors` [b, h, i, j] of the weights under dropout."""

    problem: Problem
    conventions: Conventions
    arithmetic: Arithmetic
    factors: Array | None


@lru_cache(maxsize=1024)
def document(problem: Problem, role: str, b: int, token: int) -> int:
    """The document that a query or key (`role`) of a sample is part of; 0 where there is only one."""
    segments, lengths = (problem.extras.get(f"{role}_{form}") for form in ("segments", "lengths"))
    if segments is not None:
        return int(segments[b, token])
    if lengths is None:
        return 0
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    return next(n for n, end in enumerate(ends) if token < end)


def _members(problem: Problem, role: str, b: int, number: int) -> int:
    length = (problem.query if role == "query" else problem.key).shape[-2]
    return sum(document(problem, role, b, token) == number for token in range(length))


def is_real(problem: Problem, b: int, j: int) -> bool:
    """Whether key j is no padding, or none for some query where each has a length of its own."""
    lengths = problem.valid_lens
    if lengths is not None and j >= (lengths[b] if lengths.ndim == 1 else max(lengths[b])):
        return False
    return problem.key_padding_mask is None or bool(problem.key_padding_mask[b, j])


def _keys(problem: Problem, b: int, number: int) -> list[bool]:
    """Of each key of a document, whether it is real."""
    every = range(problem.key.shape[-2])
    return [is_real(problem, b, j) for j in every if document(problem, "key", b, j) == number]


@lru_cache(maxsize=1024)
def position(problem: Problem, conventions: Conventions, role: str, b: int, token: int) -> int:
    """Where a token stands in its own document, among all of it or among the real keys alone, as claimed."""
    place, keys = _place(problem, conventions, role, b, token), _keys(problem, b, document(problem, role, b, token))
    if conventions.padded_positions is PaddedPositions.COUNTED:
        return place
    if place < 0:
        return place
    return sum(keys[: place + 1]) - 1 + max(0, place + 1 - len(keys))


def _place(problem: Problem, conventions: Conventions, role: str, b: int, token: int) -> int:
    """Where a token is in its own document: keys from 0, queries from `query_start` or the claimed corner."""
    own = document(problem, role, b, token)
    before = sum(document(problem, role, b, earlier) == own for earlier in range(token))
    if role == "key":
        return before
    if problem.extension.query_starts:
        return before + int(problem.extras["query_starts"][b])
    if problem.extension.query_start is not None:
        return before + problem.extension.query_start
    if conventions.causal_alignment is Alignment.TOP_LEFT:
        return before
    keys, queries = _keys(problem, b, own), _members(problem, "query", b, own)
    if conventions.causal_alignment is Alignment.BOTTOM_RIGHT_REAL:
        keys = keys[: max((n + 1 for n, real in enumerate(keys) if real), default=0)]
        queries = int(problem.extras["query_lens"][b]) if "query_lens" in problem.extras else queries
    return before + len(keys) - queries


def rotated_at(problem: Problem, conventions: Conventions, role: str, b: int, token: int) -> int:
    """The id that is given for a token, or where it stands."""
    given = problem.extras.get(f"{role}_positions")
    return position(problem, conventions, role, b, token) if given is None else int(given[b, token])


def displaced(problem: Problem, conventions: Conventions, b: int, i: int, j: int) -> bool:
    """Whether causal flag, window or documents hide key j from query i, or the number of queries does."""
    extension, lengths = problem.extension, problem.extras.get("query_lens")
    if lengths is not None and i >= lengths[b]:
        return True
    if document(problem, "query", b, i) != document(problem, "key", b, j):
        return True
    query, key = position(problem, conventions, "query", b, i), position(problem, conventions, "key", b, j)
    if problem.causal and key > query:
        return True
    if extension.window_right is not None and key > query + extension.window_right:
        return True
    if extension.window_left is None:
        return False
    counts = {WindowCount.INCLUDING: 1, WindowCount.EXCLUDING: 0, WindowCount.INCLUDING_IF_CAUSAL: int(problem.causal)}
    return key < query - extension.window_left + counts[conventions.window_count]


def key_head(problem: Problem, conventions: Conventions, h: int) -> int:
    """Which key head the query head h uses."""
    heads, key_heads = problem.num_heads, kv_heads(problem)
    return h % key_heads if conventions.group_order is GroupOrder.TILED else h // (heads // key_heads)


def kv_heads(problem: Problem) -> int:
    """As many as have matrices of latents, as the axis says, or as widths of a query fit into the key's projection."""
    if "w_uk" in problem.extras:
        return problem.num_heads
    if problem.scope is Scope.OP:
        return int(problem.key.shape[1])
    width = int(problem.parameters["w_q"].shape[1]) // problem.num_heads
    return int(problem.parameters["w_k"].shape[1]) // width


def normalised(task: Task, name: str, heads: list[list[list[list[Number]]]]) -> list[list[list[list[Number]]]]:
    """Queries or keys [sample][head][token][component] divided by their sizes, times their gains."""
    extension = task.problem.extension
    if extension.qk_norm is QkNorm.NONE:
        return heads
    together = extension.qk_norm is QkNorm.WIDTH
    result = [[list(head) for head in sample] for sample in heads]
    for b, sample in enumerate(heads):
        for token in range(len(sample[0])):
            parts = [[x for head in sample for x in head[token]]] if together else [head[token] for head in sample]
            normed = [x for part in parts for x in _normalised_row(task, name, part)]
            width = len(sample[0][token])
            for h in range(len(sample)):
                result[b][h][token] = normed[h * width : (h + 1) * width]
    return result


def _normalised_row(task: Task, name: str, row: Sequence[Number]) -> list[Number]:
    number, total, kind = task.arithmetic.number, task.arithmetic.total, task.conventions.norm_kind
    given = task.problem.extension.norm_epsilon
    epsilon = number(1e-6 if given is None else given)
    mean = total(row) / len(row) if kind is NormKind.LAYER else number(0)
    centred = [x - mean for x in row]
    square = total(x * x for x in centred)
    if kind is NormKind.L2:
        size = max(square**0.5, epsilon, key=lambda z: z.real)
    else:
        size = (square / len(row) + epsilon) ** 0.5
    gains = task.problem.extras.get(f"{name}_norm")
    one = number(1 if task.conventions.norm_gain is NormGain.PLUS_ONE else 0)
    factors = [number(1)] * len(row) if gains is None else [one + number(g) for g in gains]
    return [g * x / size for g, x in zip(factors, centred, strict=True)]


def _given_pairs(task: Task, b: int, token: int, at: int) -> list[tuple[Number, Number]]:
    """The cosine and the sine of each pair of a token, where tables are given: of its position, or its own."""
    kind, number = task.problem.extension.rotary_tables, task.arithmetic.number
    if kind is RotaryTables.NONE:
        return []
    cosines, sines = (task.problem.extras[name] for name in ("rotary_cos", "rotary_sin"))
    first, second = (x[at] if kind is RotaryTables.POSITIONS else x[b][token] for x in (cosines, sines))
    once = {RotaryTables.DOUBLED: slice(len(first) // 2), RotaryTables.REPEATED: slice(None, None, 2)}
    part = once.get(kind, slice(None))
    return [(number(c), number(s)) for c, s in zip(first[part], second[part], strict=True)]


def rotated(task: Task, row: Sequence[Number], b: int, token: int, at: int) -> list[Number]:
    """A query's or key's row after its rotary embedding: z_c -> z_c e^(i m theta_c) for each pair z_c = x + i y."""
    arithmetic, base = task.arithmetic, task.problem.extension.rotary_base
    width = task.problem.extension.rotary_dim or len(row)
    components = list(row)
    tables = _given_pairs(task, b, token, at)
    if base is None and not tables:
        return components
    width = 2 * len(tables) if tables else width
    for c in range(width // 2):
        halves = task.conventions.rotary_pairing is RotaryPairing.HALVES
        first, second = (c, c + width // 2) if halves else (2 * c, 2 * c + 1)
        if tables:
            cosine, sine = tables[c]
        else:
            angle = at * arithmetic.number(base) ** (arithmetic.number(-2 * c) / width)
            cosine, sine = arithmetic.cos(angle), arithmetic.sin(angle)
        components[first] = arithmetic.total([row[first] * cosine, -row[second] * sine])
        components[second] = arithmetic.total([row[first] * sine, row[second] * cosine])
    return components


def extra_rows(task: Task, name: str, head: int, width: int) -> list[list[Number]]:
    """The rows that follow a key head's own: the learned one (`bias_k` or `bias_v`), then one of zeros."""
    number, rows = task.arithmetic.number, []
    learned: Array | None = task.problem.parameters.get(name)
    if learned is not None:
        rows.append([number(x) for x in learned[head * width : (head + 1) * width]])
    if task.problem.extension.zero_attn:
        rows.append([number(0)] * width)
    return rows


def capped(task: Task, score: Number) -> Number:
    """softcap * tanh(score / softcap)."""
    limit = task.problem.extension.softcap
    return score if limit is None else limit * task.arithmetic.tanh(score / limit)


def bucket(problem: Problem, ahead: int) -> int:
    """The bucket of a key so far ahead: the last one that begins at its distance or before."""
    e = problem.extension
    count = e.bucketed_bias // (2 if e.bidirectional else 1)
    distance = abs(ahead) if e.bidirectional else max(-ahead, 0)
    exact = count // 2
    begin = [*range(exact), *(exact * (e.max_distance / exact) ** (n / (count - exact)) for n in range(count - exact))]
    own: int = sum(distance >= each for each in begin) - 1
    return own + count * int(e.bidirectional and ahead > 0)


def position_biases(task: Task, place: tuple[int, int, int, int]) -> list[Number]:
    """What ALiBi and relative biases add to one score."""
    (b, h, i, j), problem, number = place, task.problem, task.arithmetic.number
    query, key = (position(problem, task.conventions, *at) for at in (("query", b, i), ("key", b, j)))
    ahead, most, biases = key - query, problem.extension.relative_bias, []
    if "alibi_slopes" in problem.extras:
        slopes = problem.extras["alibi_slopes"]
        biases.append(-number(slopes[h] if slopes.ndim == 1 else slopes[b, h]) * abs(ahead))
    if "relative_bias" in problem.extras:
        entry = most + int(math.copysign(min(abs(ahead), most), ahead))
        biases.append(number(problem.extras["relative_bias"][h, entry]))
    if "bucketed_bias" in problem.extras:
        biases.append(number(problem.extras["bucketed_bias"][bucket(problem, ahead), h]))
    return biases
