"""The pipeline: attention as a record of named stages. `Pipeline()` is the specification."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attention_conformance.reference.arrays import Booleans, Floats
from attention_conformance.reference.latent import expanded
from attention_conformance.reference.positions import Positions, positions
from attention_conformance.reference.routes import Routes, routes
from attention_conformance.reference.stages import append, cap, repeat_kv
from attention_conformance.reference.visibility import Visibility, visibility
from attention_conformance.spec.codes import spread
from attention_conformance.spec.conventions import Conventions, DefaultScale, EmptyRow, GroupOrder
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem


def dequantised(problem: Problem, name: str) -> Floats:
    """Key or value: codes times their scales, where it is given as codes (chapter quantised)."""
    rows, scale = _floats(getattr(problem, name)), problem.extras.get(f"{name}_scale")
    return rows if scale is None else rows * spread(_floats(scale), rows.shape[-2])


def project(inputs: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """(B, L, width) -> (B, L, H * d): x @ w + b (chapter projections)."""
    projected = inputs @ weight
    return projected if bias is None else projected + bias


def split_heads(projected: Floats, num_heads: int) -> Floats:
    """(B, L, H * d) -> (B, H, L, d): head h takes columns h * d .. (h + 1) * d - 1."""
    width = projected.shape[-1]
    return projected.reshape(*projected.shape[:-1], num_heads, width // num_heads).swapaxes(-3, -2)


def score(query: Floats, key: Floats, scale: float) -> Floats:
    """(B, H, Lq, d_k), (B, H, Lk, d_k) -> (B, H, Lq, Lk): scale * q . k (Vaswani et al. 2017, eq. 1)."""
    return scale * (query @ key.swapaxes(-1, -2))


def mask(scores: Floats, seen: Visibility) -> Floats:
    """Adds float mask, biases and sinks, then puts minus infinity wherever a key may not be attended to."""
    return np.where(seen.allowed, scores if seen.added is None else scores + seen.added.total, -np.inf)


TINY = float(np.finfo(np.float64).tiny)


def normalise(scores: Floats) -> Floats:
    """Softmax over the keys, the maximum of each row subtracted; a row of minus infinities gives zeros."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    weights: Floats = exponentials / np.maximum(exponentials.sum(-1, keepdims=True), TINY)
    return weights


def fill_empty_rows(weights: Floats, seen: Visibility) -> Floats:
    """The weights with rows that may see no key answered as the conventions say."""
    for answer, filling in ((EmptyRow.NAN, np.nan), (EmptyRow.UNIFORM, 1.0 / max(weights.shape[-1], 1))):
        rows = seen.rows_answered(answer)
        if rows.any():
            weights = np.where(rows[..., None], filling, weights)
    return weights


def mix(weights: Floats, value: Floats) -> Floats:
    """(B, H, Lq, Lk), (B, H, Lk, d_v) -> (B, H, Lq, d_v): the weighted sum of the value rows."""
    return weights @ value


def gated(heads: Floats, gates: Floats | None, opened: Floats | None) -> Floats:
    """(B, H, Lq, d_v) times the gates of the heads (H,), and those of the output (chapter head-gates)."""
    heads = heads if gates is None else heads * gates[..., None, None]
    return heads if opened is None else heads * opened


def merge_heads(heads: Floats) -> Floats:
    """(B, H, L, d) -> (B, L, H * d): the inverse of `split_heads`."""
    *before, num_heads, length, width = heads.shape
    return heads.swapaxes(-3, -2).reshape(*before, length, num_heads * width)


@dataclass(frozen=True, eq=False)
class Inputs:
    """The heads as they come from inputs or projections: (B, H, Lq, d_k), (B, Hk, Lk, d_k) and (B, Hk, Lk, d_v)."""

    query: Floats
    key: Floats
    value: Floats


@dataclass(frozen=True, eq=False)
class Trace:
    """Every intermediate of one run, in float64: heads (B, H, L, d), scores and weights (B, H, Lq, Lk).

    Query, key and value are as they are multiplied: after their routes, repeated for the heads of a group, and followed
    by extra keys and the sink, a key and value of zeros, which Lk counts.

    Attributes:
        inputs: query, key and value before that.
        routes: norms and rotations of query and key.
        products: scaled; `capped`: after the softcap; `scores`: with all that is added, and masked.
        kept: (B, H, Lq, Lk) factors of the weights, 0 for dropped ones; None: there is no dropout.
        mixed: (B, H, Lq, d_v) before the gates of the heads, `heads` after them.
        softcap, gates, order, places: what the stages were given.
        opened: (B, H, Lq, d_v or 1), sigmoids of the logits of the output's gates, which multiply it, too.
    """

    inputs: Inputs
    routes: Routes
    softcap: float | None
    gates: Floats | None
    opened: Floats | None
    order: GroupOrder
    places: Positions
    query: Floats
    key: Floats
    value: Floats
    scale: float
    products: Floats
    capped: Floats
    scores: Floats
    weights: Floats
    kept: Floats | None
    mixed: Floats
    heads: Floats
    output: Floats
    seen: Visibility

    @property
    def dropped(self) -> Floats:
        """The weights after dropout."""
        return self.weights if self.kept is None else self.weights * self.kept

    @cached_property
    def top(self) -> Floats:
        """(B, H, Lq, 1): the largest score of each row, 0 for one that sees nothing."""
        top = self.scores.max(-1, keepdims=True, initial=-np.inf)
        return np.where(np.isfinite(top), top, 0.0)

    @cached_property
    def log_sum_exp(self) -> Floats:
        """(B, H, Lq), natural, over all columns; minus infinity for a row that sees nothing."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.exp(self.scores - self.top).sum(-1)) + self.top[..., 0])

    @cached_property
    def finite_lse(self) -> Floats:
        """(B, H, Lq, 1): the same, and 0 for a row that sees nothing."""
        lse = self.log_sum_exp[..., None]
        return np.where(np.isfinite(lse), lse, 0.0)


@dataclass(frozen=True)
class Pipeline:
    """The stages by name. Replacing one gives another attention: a defect, or a convention."""

    project: Callable[[Floats, Floats, Floats | None], Floats] = project
    split_heads: Callable[[Floats, int], Floats] = split_heads
    repeat_kv: Callable[[Floats, int, GroupOrder], Floats] = repeat_kv
    score: Callable[[Floats, Floats, float], Floats] = score
    cap: Callable[[Floats, float | None], Floats] = cap
    mask: Callable[[Floats, Visibility], Floats] = mask
    normalise: Callable[[Floats], Floats] = normalise
    fill_empty_rows: Callable[[Floats, Visibility], Floats] = fill_empty_rows
    mix: Callable[[Floats, Floats], Floats] = mix
    merge_heads: Callable[[Floats], Floats] = merge_heads

    def run(self, problem: Problem, conventions: Conventions = Conventions(), kept: Floats | None = None) -> Trace:
        """Solves a problem in float64.

        Args:
            problem: its numbers are taken as they are, in whatever dtype.
            conventions: the answers where the field disagrees.
            kept: (B, H, Lq, Lk) factors of the weights: 0 for a dropped one, 1 / (1 - p) for others; None: no dropout.
        """
        wide = problem.widened()
        inputs = self._inputs(wide)
        default = 1.0 if conventions.default_scale is DefaultScale.ONE else inputs.key.shape[-1] ** -0.5
        scale = default if problem.scale is None else problem.scale
        places = positions(wide, conventions)
        seen = visibility(wide, conventions, places)
        through = routes(problem, conventions, inputs.query, inputs.key, places)
        query = through.query.result
        key, value = self._keys_and_values(wide, conventions, (through.key.result, inputs.value), seen)
        products = self.score(query, key, scale)
        softcap, order = problem.extension.softcap, conventions.group_order
        capped = self.cap(products, softcap)
        scores = self.mask(capped, seen)
        weights = self.fill_empty_rows(self.normalise(scores), seen)
        mixed = self.mix(weights if kept is None else weights * kept, value)
        gates, opened = _optional(wide.extras.get("head_gates")), _opened(wide.extras.get("gate_logits"))
        heads = gated(mixed, gates, opened)
        output = heads if wide.scope is Scope.OP else self.project_out(wide, heads)
        rows = (products, capped, scores, weights, kept, mixed, heads, output)
        return Trace(inputs, through, softcap, gates, opened, order, places, query, key, value, scale, *rows, seen)

    def _inputs(self, problem: Problem) -> Inputs:
        if "w_uk" in problem.extras:
            return Inputs(_floats(problem.query), *expanded(problem))
        inputs = (_floats(problem.query), *(dequantised(problem, name) for name in ("key", "value")))
        if problem.scope is Scope.OP:
            return Inputs(*inputs)
        p, num_heads = problem.parameters, (problem.num_heads, *[problem.num_kv_heads] * 2)
        query, key, value = (
            self.split_heads(self.project(x, _floats(p[f"w_{r}"]), _optional(p.get(f"b_{r}"))), n)
            for r, x, n in zip("qkv", inputs, num_heads, strict=True)
        )
        return Inputs(query, key, value)

    def _keys_and_values(
        self, problem: Problem, conventions: Conventions, given_rows: tuple[Floats, Floats], seen: Visibility
    ) -> tuple[Floats, Floats]:
        """(B, H, Lk, d_k) and (B, H, Lk, d_v): repeated, and with extra keys."""
        given = seen.allowed[..., : problem.key.shape[-2]]
        extended = []
        for rows, name in zip(given_rows, ("bias_k", "bias_v"), strict=True):
            shared = _contained(self.repeat_kv(rows, problem.num_heads, conventions.group_order), given)
            for extra in self._extra_rows(problem, conventions, name, shared):
                shared = append(shared, extra)
            extended.append(shared)
        return extended[0], extended[1]

    def _extra_rows(self, problem: Problem, conventions: Conventions, name: str, rows: Floats) -> Iterator[Floats]:
        """(H, d) for each extra key and the sink."""
        num_heads, width = rows.shape[-3], rows.shape[-1]
        if name in problem.parameters:
            given = _floats(problem.parameters[name])
            learned = given.reshape(*given.shape[:-1], problem.num_kv_heads, 1, width)
            yield self.repeat_kv(learned, num_heads, conventions.group_order)[..., 0, :]
        if problem.extension.zero_attn:
            yield np.zeros((num_heads, width))
        if "sinks" in problem.extras:
            yield np.zeros((num_heads, width))

    def project_out(self, problem: Problem, heads: Floats) -> Floats:
        """(B, H, Lq, d_v) -> (B, Lq, out_dim): the heads merged, and projected where the module has W^O."""
        merged = self.merge_heads(heads)
        if "w_o" not in problem.parameters:
            return merged
        return self.project(merged, _floats(problem.parameters["w_o"]), _optional(problem.parameters.get("b_o")))


def _floats(array: Array) -> Floats:
    return np.asarray(array, dtype=np.float64)


def _optional(array: Array | None) -> Floats | None:
    return None if array is None else _floats(array)


def _opened(logits: Array | None) -> Floats | None:
    """Their sigmoid, which no logit makes NaN."""
    if logits is None:
        return None
    small = np.exp(-np.abs(_floats(logits)))
    return np.where(logits < 0.0, small, 1.0) / (1.0 + small)


def _contained(rows: Floats, allowed: Booleans) -> Floats:
    """Keys or values with NaN and infinity set to 0 where no query may see them: 0 * NaN is not 0."""
    unseen: Booleans = ~np.asarray(allowed.any(axis=-2))
    finite = np.isfinite(rows)
    return rows if finite.all() else np.where(finite | ~unseen[..., None], rows, 0.0)
