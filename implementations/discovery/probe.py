"""Probes: one tiny problem at the op or the module level, one guarded call, and the weights that its answer reveals.

The values are unit vectors, so that an output row is the row of weights that made it. At the module level every token
is a unit vector too, and the projections are tables of the query, key and value of each token: any query, key and
value of the op level can be given to any module exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import answer, repeatable, safe_call
from attention_conformance.spec.cases import MaskShape, Sharing
from attention_conformance.spec.conventions import AlibiRule, Conventions, SinusoidOrder
from attention_conformance.spec.features import NOTHING, Extension, Scope
from attention_conformance.spec.problem import DTYPES, Array, Problem

Floats: TypeAlias = NDArray[np.float64]
Run: TypeAlias = Callable[[Problem, str], Result]

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
"""Different for every axis; two sequences fit into the width of a head: every token has a unit vector of its own."""
EVEN_HEADS = 4
"""For code paths that an odd number of heads never reaches."""
WIDTHS = (24, 16, 64)
"""Widths of a head. The square root of the first is not exact; some kernels take powers of two only."""
HALF = float(np.finfo(np.float32).eps) ** 0.5
"""Half of the digits of float32: nearer are answers that differ by rounding, farther those that differ in meaning."""
COARSE = {"bfloat16": 2.0**-4, "float16": 2.0**-5}
"""The same for half types: the root of their spacing."""


class Bounded(Protocol):
    """A right array and its rounding bound."""

    @property
    def value(self) -> Floats: ...
    @property
    def bound(self) -> Floats: ...


class Solved(Protocol):
    """The right answer to a problem: output, log_sum_exp, gradients.NAME and so on."""

    @property
    def parts(self) -> Mapping[str, Bounded]: ...


@dataclass(frozen=True)
class Oracle:
    """The right answers. They are handed in, because a candidate's process must not import the reference."""

    solve: Callable[[Problem, Conventions], Solved]
    sinusoids: Callable[[int, int, SinusoidOrder, str], Bounded]
    alibi_slopes: Callable[[int, AlibiRule, str], Bounded]


@dataclass(frozen=True)
class Interface:
    """The level, the inputs and the parameters with which problems are given to an implementation.

    Attributes:
        num_heads: `HEADS`; `EVEN_HEADS` where it refuses these, or 1 where it has one head only.
        sharing: which inputs of a module are one.
        bias, output_projection, output_bias: which parameters a module has.
        width: d_k.
        mask_shape: the axes along which an attention mask may differ.
    """

    scope: Scope = Scope.OP
    num_heads: int = HEADS
    sharing: Sharing = Sharing.NONE
    bias: bool = False
    output_projection: bool = False
    output_bias: bool = False
    width: int = WIDTHS[0]
    mask_shape: MaskShape = MaskShape.FULL


@dataclass(frozen=True)
class Setup:
    """What a problem contains, independent of the interface.

    Attributes:
        d_v: 0 is as wide as d_k.
        units: the values are unit vectors, and random otherwise.
        options: fields of `Problem`; arrays of floats in float64.
    """

    query_length: int = QUERIES
    key_length: int = KEYS
    batch: int = BATCH
    groups: int = 1
    d_v: int = 0
    units: bool = True
    seed: int = 0
    score_std: float = 0.9
    options: Mapping[str, Any] = field(default_factory=dict)
    extension: Extension = NOTHING

    def given(self, **options: Any) -> Setup:
        """The same with more fields of `Problem`."""
        return replace(self, options={**self.options, **options})


PLAIN_SETUP = Setup()


def tiny_problem(interface: Interface, setup: Setup, dtype: str) -> Problem:
    """The problem of a setup, as the interface takes it."""
    rng = np.random.default_rng(setup.seed)
    heads, d_v = interface.num_heads * setup.groups, setup.d_v or interface.width
    query = setup.score_std * rng.standard_normal((setup.batch, heads, setup.query_length, interface.width))
    key = setup.score_std * rng.standard_normal((setup.batch, interface.num_heads, setup.key_length, interface.width))
    value = rng.standard_normal((setup.batch, interface.num_heads, setup.key_length, d_v))
    if setup.units:
        value[:] = np.eye(setup.key_length, d_v)
    problem = Problem(Scope.OP, query, key, value, heads, extension=setup.extension)
    problem = replace(problem, **setup.options)
    return rounded(problem if interface.scope is Scope.OP else as_module(problem, interface), dtype)


def rounded(problem: Problem, dtype: str) -> Problem:
    """The problem with all floats in the dtype."""
    floats = {n: a for n, a in problem.arrays().items() if a.dtype.kind not in "bi"}
    return problem.with_arrays({name: array.astype(DTYPES[dtype]) for name, array in floats.items()})


def padded(problem: Problem, query: int = 0, key: int = 0, value: int = 0, output: int = 0) -> Problem:
    """The problem of a module with more columns in its inputs and its output; the weights of all of them are zero."""
    more = {"query": query, "key": key, "value": value}
    wide = {n: _wider(getattr(problem, n), -1, by) for n, by in more.items()}
    wide |= {f"w_{name[0]}": _wider(problem.parameters[f"w_{name[0]}"], 0, by) for name, by in more.items()}
    written = [name for name in ("w_o", "b_o") if name in problem.parameters]
    return problem.with_arrays(wide | {name: _wider(problem.parameters[name], -1, output) for name in written})


def _wider(array: Array, axis: int, by: int) -> Array:
    pads = [(0, 0)] * array.ndim
    pads[axis] = (0, by)
    return np.pad(array, pads)


def as_module(problem: Problem, interface: Interface) -> Problem:
    """The problem of the op level with unit vectors for tokens and tables for projections."""
    width = interface.width * problem.num_heads
    parameters = {f"w_{name[0]}": _table(getattr(problem, name), width) for name in ("query", "key", "value")}
    if interface.bias:
        parameters |= {f"b_{name}": np.zeros(parameters[f"w_{name}"].shape[1]) for name in "qkv"}
    mixed = problem.num_heads * problem.value.shape[-1]
    if interface.output_projection:
        parameters["w_o"] = np.eye(mixed)
    if interface.output_bias:
        parameters["b_o"] = np.zeros(mixed)
    query_tokens, key_tokens = _tokens(problem.query, width), _tokens(problem.key, width)
    module = replace(problem, scope=Scope.MODULE, parameters=parameters, sharing=interface.sharing)
    return module.with_arrays({"query": query_tokens, "key": key_tokens, "value": key_tokens})


def _table(heads: Array, rows: int) -> Array:
    """(B, H, L, d) -> (rows, H * d): a row for each of the B * L tokens, then zeros."""
    batch, num_heads, length, width = heads.shape
    table = heads.swapaxes(1, 2).reshape(batch * length, num_heads * width)
    return _wider(table, 0, rows - len(table))


def _tokens(heads: Array, width: int) -> Array:
    batch, length = heads.shape[0], heads.shape[2]
    return np.eye(batch * length, width).reshape(batch, length, width)


@dataclass(frozen=True)
class Reply:
    """What one call gave: a result, or its exception in one line."""

    result: Result | None = None
    error: str = ""

    @property
    def output(self) -> Floats:
        """The output in float64, empty where there is none."""
        return np.empty(0) if self.result is None else self.result.output.astype(np.float64)


@dataclass(frozen=True)
class ObservedWeights:
    """The weights (B, H, Lq, Lk) that an answer reveals, or why there are none."""

    weights: Floats
    error: str = ""

    def used(self) -> NDArray[np.bool_]:
        """Which keys have weight in which row; all False where the answer is NaN."""
        size = np.nan_to_num(np.abs(self.weights))
        return np.asarray(size > HALF * size.max(-1, keepdims=True, initial=0.0))

    def shows(self, pattern: Array) -> bool:
        """Whether exactly these keys are used, with finite weights."""
        whole = not self.error and bool(np.isfinite(self.weights).all())
        return whole and np.array_equal(self.used(), np.broadcast_to(pattern, self.weights.shape))

    def keys_of(self, row: tuple[int, int, int]) -> str:
        """The keys that one query of one head of one sample uses, as "0..2, 5"."""
        return spans(np.flatnonzero(self.used()[row]))


@dataclass(frozen=True)
class Subject:
    """An implementation without name and claims, and the interface at which it answers."""

    run: Run
    interface: Interface = Interface()
    dtype: str = "float32"
    device: str = "cpu"
    oracle: Oracle | None = None

    @property
    def self_attention(self) -> bool:
        """Whether it has one input for queries and keys."""
        return self.interface.scope is Scope.MODULE and self.interface.sharing is Sharing.SELF

    def with_masks(self, shape: MaskShape) -> Subject:
        """The same, with attention masks that may differ along other axes."""
        return replace(self, interface=replace(self.interface, mask_shape=shape))

    def problem(self, setup: Setup = PLAIN_SETUP) -> Problem:
        """The problem of a setup: self-attention has as many queries as keys."""
        if self.self_attention:
            setup = replace(setup, query_length=setup.key_length)
        return tiny_problem(self.interface, setup, self.dtype)

    def reply(self, problem: Problem) -> Reply:
        """The answer to a copy of the problem."""
        outcome = repeatable(lambda: answer(self.run, problem.fresh(), self.device))
        return Reply(error=outcome.error) if outcome.value is None else Reply(_copied(outcome.value))

    def weights(self, setup: Setup = PLAIN_SETUP) -> ObservedWeights:
        """The weights that the answer to a setup reveals."""
        problem = self.problem(setup)
        return revealed(self.reply(problem), problem)

    def solution(self, problem: Problem, conventions: Conventions = Conventions()) -> Mapping[str, Bounded]:
        """The right answer, part by part."""
        assert self.oracle is not None
        return self.oracle.solve(problem, conventions).parts

    def expected(self, problem: Problem, conventions: Conventions = Conventions()) -> Floats:
        """The right output."""
        return self.solution(problem.forward_only(), conventions)["output"].value

    def near(self, got: Floats, expected: Floats) -> bool:
        """Whether two arrays are the same to half of the digits of its dtype."""
        return near(got, expected, self.dtype)


def _copied(result: Result) -> Result:
    """The result in memory of its own: an implementation may write its next answer into the same arrays."""
    extras = {name: getattr(result, name) for name in ("weights", "averaged_weights", "log_sum_exp")}
    own: dict[str, Any] = {name: np.array(array) for name, array in extras.items() if array is not None}
    return replace(result, output=np.array(result.output), **own)


def revealed(reply: Reply, problem: Problem) -> ObservedWeights:
    """The weights in an output that was made of unit vectors."""
    if reply.error:
        return ObservedWeights(np.empty(0), reply.error)
    output, heads = reply.output, problem.num_heads
    batch, length, keys = problem.query.shape[0], problem.query.shape[-2], problem.key.shape[-2]
    if problem.scope is Scope.MODULE and output.ndim == 3:
        mixed = problem.parameters["w_v"].shape[1] * heads // problem.num_kv_heads
        output = output[..., :mixed]
        output = output.reshape(*output.shape[:2], heads, -1).swapaxes(1, 2) if output.shape[-1] == mixed else output
    if output.shape[:3] != (batch, heads, length) or output.shape[-1] < keys:
        return ObservedWeights(np.empty(0), f"its output has shape {reply.output.shape}")
    return ObservedWeights(output[..., :keys])


def near(got: Floats, expected: Floats, dtype: str = "float32") -> bool:
    """Whether two arrays are the same to half of their digits, NaN and infinity included."""
    if got.shape != expected.shape:
        return False
    digits = COARSE.get(dtype, HALF)
    with np.errstate(invalid="ignore"):
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        return bool((same | (np.abs(got - expected) <= digits * (1.0 + np.abs(expected)))).all())


def wide(part: Any) -> Floats:
    """An array of any kind, in float64."""
    return np.asarray(part.detach().double().cpu() if hasattr(part, "detach") else part, np.float64)


def spans(numbers: Any) -> str:
    """Ascending numbers as "0..2, 5"; "none" for none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs) or "none"


def parts_of(answered: Any) -> tuple[Any, ...]:
    """The parts of an answer: of a tuple, a list, a dictionary or an object of fields; or it alone."""
    if isinstance(answered, tuple | list):
        return tuple(answered)
    if isinstance(answered, Mapping):
        return tuple(answered.values())
    if is_dataclass(answered) and not isinstance(answered, type):
        return tuple(getattr(answered, each.name) for each in fields(answered))
    return (answered,)


def shape_of(array: object) -> tuple[int, ...]:
    """Its shape; empty for what has none, or cannot give it."""
    return safe_call(lambda: tuple(getattr(array, "shape", ()))).value or ()


def first_part(answered: Any) -> Any:
    """The output in an answer that may have more parts."""
    parts = parts_of(answered)
    return parts[0] if parts else answered


NO_ANSWER = object()


@dataclass
class Recorder:
    """Stands in for a function: records the whole answer of the last call, and returns the output alone."""

    function: Callable[..., Any]
    answer: Any = NO_ANSWER

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The output of the function."""
        self.answer = NO_ANSWER
        self.answer = self.function(*inputs, **options)
        return first_part(self.answer)
