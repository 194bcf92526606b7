"""Posing: one small problem at the op or the module level, and the weights that an answer to it reveals.

The values are unit vectors, so that an output row is the row of weights that made it. At the module level every token
is a unit vector, too, and the projections are tables of the query, key and value of each token: any query, key and
value of the op level can be posed to any module exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.discovery.loading import told
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import MaskShape, Sharing
from attention_conformance.spec.extensions import NOTHING, Extension
from attention_conformance.spec.features import Conventions, Scope
from attention_conformance.spec.problem import DTYPES, Array, Problem

Floats: TypeAlias = NDArray[np.float64]
Run: TypeAlias = Callable[[Problem, str], Result]

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
"""Different for every axis; two sequences fit into the width of a head: every token has a unit vector of its own."""
WIDTHS = (24, 16, 64)
"""Widths of a head. That of the first has no exact root; some kernels take powers of two only."""


@dataclass(frozen=True)
class Form:
    """How problems have to be posed to an implementation.

    Attributes:
        num_heads: `HEADS`, or 1 where it has one head only.
        width: d_k.
        sharing: which inputs of a module are one.
        bias, output_projection, output_bias: which parameters a module has.
    """

    scope: Scope = Scope.OP
    num_heads: int = HEADS
    sharing: Sharing = Sharing.NONE
    bias: bool = False
    output_projection: bool = False
    output_bias: bool = False
    width: int = WIDTHS[0]
    mask_shape: MaskShape = MaskShape.FULL
    """The axes along which an attention mask may differ."""


@dataclass(frozen=True)
class Asked:
    """What a problem asks beside plain attention; the arrays as `Problem` takes them, floats in float64."""

    query_length: int = QUERIES
    key_length: int = KEYS
    batch: int = BATCH
    groups: int = 1
    d_v: int = 0
    """0 is as wide as d_k."""
    units: bool = True
    """The values are unit vectors, and random otherwise."""
    seed: int = 0
    score_std: float = 0.9
    options: tuple[tuple[str, Any], ...] = ()
    extension: Extension = NOTHING

    def given(self, **options: Any) -> Asked:
        """The same with more fields of `Problem`."""
        return replace(self, options=(*self.options, *options.items()))


def pose(form: Form, asked: Asked, dtype: str) -> Problem:
    """The problem that asks this of an implementation of this form."""
    rng = np.random.default_rng(asked.seed)
    heads = form.num_heads * asked.groups
    query = asked.score_std * rng.standard_normal((asked.batch, heads, asked.query_length, form.width))
    key = asked.score_std * rng.standard_normal((asked.batch, form.num_heads, asked.key_length, form.width))
    value = rng.standard_normal((asked.batch, form.num_heads, asked.key_length, asked.d_v or form.width))
    if asked.units:
        value[:] = np.eye(asked.key_length, asked.d_v or form.width)
    problem = Problem(Scope.OP, query, key, value, heads, extension=asked.extension)
    problem = replace(problem, **dict(asked.options))
    return rounded(problem if form.scope is Scope.OP else as_module(problem, form), dtype)


def rounded(problem: Problem, dtype: str) -> Problem:
    """The problem with all floats in the dtype."""
    kept = {n: a for n, a in problem.arrays().items() if a.dtype.kind not in "bi"}
    return problem.with_arrays({name: array.astype(DTYPES[dtype]) for name, array in kept.items()})


def padded(problem: Problem, query: int = 0, key: int = 0, value: int = 0, output: int = 0) -> Problem:
    """The problem of a module with so many columns more, which nothing is read from and nothing written to."""
    more = {"query": query, "key": key, "value": value}
    wide = {n: _wider(getattr(problem, n), -1, by) for n, by in more.items()}
    wide |= {f"w_{name[0]}": _wider(problem.parameters[f"w_{name[0]}"], 0, by) for name, by in more.items()}
    written = [name for name in ("w_o", "b_o") if name in problem.parameters]
    return problem.with_arrays(wide | {name: _wider(problem.parameters[name], -1, output) for name in written})


def _wider(array: Array, axis: int, by: int) -> Array:
    pads = [(0, 0)] * array.ndim
    pads[axis] = (0, by)
    return np.pad(array, pads)


def as_module(problem: Problem, form: Form) -> Problem:
    """The problem of the op level with unit vectors for tokens and tables for projections."""
    query, key, value = (_table(array) for array in (problem.query, problem.key, problem.value))
    tokens = form.width * problem.num_heads
    parameters = {"w_q": _tall(query, tokens), "w_k": _tall(key, tokens), "w_v": _tall(value, tokens)}
    if form.bias:
        parameters |= {f"b_{name}": np.zeros(parameters[f"w_{name}"].shape[1]) for name in "qkv"}
    mixed = problem.num_heads * problem.value.shape[-1]
    if form.output_projection:
        parameters["w_o"] = np.eye(mixed)
    if form.output_bias:
        parameters["b_o"] = np.zeros(mixed)
    asking, asked = _tokens(problem.query, tokens), _tokens(problem.key, tokens)
    posed = replace(problem, scope=Scope.MODULE, parameters=parameters, sharing=form.sharing)
    return posed.with_arrays({"query": asking, "key": asked, "value": asked})


def _table(heads: Array) -> Array:
    """(B, H, L, d) -> (B * L, H * d): a row for each token."""
    batch, num_heads, length, width = heads.shape
    return heads.swapaxes(1, 2).reshape(batch * length, num_heads * width)


def _tall(table: Array, rows: int) -> Array:
    return np.concatenate([table, np.zeros((rows - len(table), table.shape[1]))])


def _tokens(heads: Array, width: int) -> Array:
    batch, length = heads.shape[0], heads.shape[2]
    return np.eye(batch * length, width).reshape(batch, length, width)


@dataclass(frozen=True)
class Reply:
    """What came of one call: a result, or the exception in a line."""

    result: Result | None = None
    error: str = ""

    @property
    def output(self) -> Floats:
        """The output in float64, empty where there is none."""
        return np.empty(0) if self.result is None else self.result.output.astype(np.float64)


@dataclass(frozen=True)
class Seen:
    """The weights (B, H, Lq, Lk) that an answer reveals, or why there are none."""

    weights: Floats
    error: str = ""

    def used(self) -> NDArray[np.bool_]:
        """Which keys count in which row; all False where the answer is NaN."""
        size = np.nan_to_num(np.abs(self.weights))
        return np.asarray(size > HALF * size.max(-1, keepdims=True, initial=0.0))

    def shows(self, pattern: Array) -> bool:
        """Whether it is the answer of finite weights to exactly these keys."""
        whole = not self.error and bool(np.isfinite(self.weights).all())
        return whole and np.array_equal(self.used(), np.broadcast_to(pattern, self.weights.shape))


HALF = float(np.finfo(np.float32).eps) ** 0.5
"""Half of the digits of float32: nearer are answers that differ by rounding, farther those that differ in meaning."""


@dataclass(frozen=True)
class Subject:
    """An implementation without name and claims, and the form in which it can be asked."""

    run: Run
    form: Form = Form()
    dtype: str = "float32"
    device: str = "cpu"

    def problem(self, asked: Asked) -> Problem:
        """The problem that asks this here: self-attention has as many queries as keys."""
        if self.form.sharing is Sharing.SELF and self.form.scope is Scope.MODULE:
            asked = replace(asked, query_length=asked.key_length)
        return pose(self.form, asked, self.dtype)

    def reply(self, problem: Problem) -> Reply:
        """The answer to a copy of the problem."""
        try:
            with warnings.catch_warnings(), kept_global_state(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                result = self.run(problem.fresh(), self.device)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: that is an answer like any other
            return Reply(error=told(error))
        came: object = result
        return Reply(_copied(came)) if isinstance(came, Result) else Reply(error=f"it returned {type(came).__name__}")

    def seen(self, asked: Asked) -> Seen:
        """The weights behind the answer."""
        problem = self.problem(asked)
        return revealed(self.reply(problem), problem)

    def expected(self, problem: Problem, conventions: Conventions = Conventions()) -> Floats:
        """The reference's output."""
        return solve(problem.forward_only(), conventions).parts["output"].value


def _copied(result: Result) -> Result:
    """The result in memory of its own: an implementation may write its next answer where this one lies."""
    return replace(
        result,
        output=np.array(result.output),
        weights=_own(result.weights),
        averaged_weights=_own(result.averaged_weights),
        log_sum_exp=_own(result.log_sum_exp),
    )


def _own(array: Array | None) -> Array | None:
    return None if array is None else np.array(array)


def revealed(reply: Reply, problem: Problem) -> Seen:
    """The weights in an output that was made of unit vectors."""
    if reply.error:
        return Seen(np.empty(0), reply.error)
    output, heads = reply.output, problem.num_heads
    batch, length, keys = problem.query.shape[0], problem.query.shape[-2], problem.key.shape[-2]
    shape = (batch, heads, length, -1)
    if problem.scope is Scope.MODULE and output.ndim == 3:
        mixed = problem.parameters["w_v"].shape[1] * heads // problem.num_kv_heads
        output = output[..., :mixed]
        output = output.reshape(*output.shape[:2], heads, -1).swapaxes(1, 2) if output.shape[-1] == mixed else output
    if output.shape[:3] != shape[:3] or output.shape[-1] < keys:
        return Seen(np.empty(0), f"its output has shape {reply.output.shape}")
    return Seen(output[..., :keys])


def near(got: Floats, expected: Floats, dtype: str = "float32") -> bool:
    """Whether two arrays are the same to half of their digits, NaN and infinity included."""
    if got.shape != expected.shape:
        return False
    digits = COARSE.get(dtype, HALF)
    with np.errstate(invalid="ignore"):
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        return bool((same | (np.abs(got - expected) <= digits * (1.0 + np.abs(expected)))).all())


COARSE = {"bfloat16": 2.0**-4, "float16": 2.0**-5}
"""The same for half types: the root of their spacing."""
