"""The contract of an adapter: claims, one call, one result. Only NumPy arrays and plain values cross it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.spec.problem import DTYPES, Array, Problem

MODES = frozenset(
    {
        Feature.SAVED,
        Feature.COPIED,
        Feature.UNBATCHED,
        Feature.AUTOCAST,
        Feature.VMAP,
        Feature.COMPILED,
        Feature.EXPORTED,
        Feature.NO_GRAD,
        Feature.DOUBLE_BACKWARD,
        Feature.LOG_SUM_EXP_GRADIENT,
        Feature.AS_BUILT,
    }
)
"""Features that are runs of their own: a state of the module, or a transform of the call."""


@dataclass(frozen=True)
class Unsupported:
    """Why an implementation cannot be run on a case."""

    reason: str


Fit: TypeAlias = Callable[[Case], Case | Unsupported]
"""See `Claims.fit`."""


class PathError(Exception):
    """An implementation that stands for one code path was answered by another; its verdict is an error."""


def any_case(case: Case) -> Case | Unsupported:
    """The fit of an implementation that can be run on every case that its features allow."""
    return case


@dataclass(frozen=True)
class Claims:
    """What an implementation is meant to support; each claim is checked, and nothing else.

    Attributes:
        scope: whether it is an op (query, key and value in heads) or a module (with projections inside).
        features: what it supports.
        conventions: its answers where the field disagrees.
        dtypes: names of `spec.problem.DTYPES`.
        fit: the nearest case that it supports, or why there is none (head widths that are multiples of 8 only, an
            output width tied to another, ...). It is called after the features have been applied.
        premises: what it always does. Problems state it (`causal`, `scale`, the extension), whatever it does with that.
        alone: whether a module that takes one input for keys and values may be called without it, in self-attention.
    """

    scope: Scope
    features: frozenset[Feature]
    conventions: Conventions = Conventions()
    dtypes: tuple[str, ...] = tuple(DTYPES)
    fit: Fit = any_case
    premises: Premises = NO_PREMISES
    alone: bool = False

    def __contains__(self, feature: Feature) -> bool:
        return feature in self.features or feature in self.premises.features


RANDOM_STATE = "the random state of torch, in the backward pass"
"""What a backward pass disturbs that leaves it otherwise than it was; see `Result.disturbed`."""


@dataclass(frozen=True, eq=False)
class Result:
    """What one call returned, as NumPy arrays in the dtype that the implementation chose.

    Attributes:
        output: (B, H, Lq, d_v) at the op level, (B, Lq, out_dim) at the module level.
        weights: (B, H, Lq, Lk), where claimed; after the softmax.
        averaged_weights: (B, Lq, Lk), where claimed.
        log_sum_exp: (B, H, Lq), to the claimed base, where claimed.
        gradients: by the names in `Problem.needs`; a shared input's under its first name.
        disturbed: what the call has changed of its arguments, apart from their numbers: "the strides of key".
        others: results of the same problem by other calls, where a mode makes several; each has to be right.
    """

    output: Array
    weights: Array | None = None
    averaged_weights: Array | None = None
    log_sum_exp: Array | None = None
    gradients: Mapping[str, Array] = field(default_factory=dict)
    disturbed: tuple[str, ...] = ()
    others: Mapping[str, Result] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpectedFailure:
    """A known deviation: a clause that fails in these dtypes and on this device (empty: all of them).

    Raises:
        ValueError: there is no reason, or the link is no public https link.
    """

    clause: str
    reason: str
    link: str
    dtypes: tuple[str, ...] = ()
    device: str = ""

    def shows(self, clause: str, dtype: str, device: str) -> bool:
        """Whether the deviation is expected for this clause, dtype and device."""
        here = not self.device or device.partition(":")[0] == self.device
        return self.clause == clause and here and (not self.dtypes or dtype in self.dtypes)

    def __post_init__(self) -> None:
        if not self.link.startswith("https://"):
            raise ValueError(f"the expected failure of {self.clause} needs a public https link, not {self.link!r}")
        if not self.reason:
            raise ValueError(f"the expected failure of {self.clause} needs a reason")


FUNCTIONS: Mapping[str, Feature] = {
    "sinusoids": Feature.SINUSOIDS,
    "alibi_slopes": Feature.ALIBI_SLOPES,
    "scaled_rotary": Feature.ROTARY_SCALING,
    "axes_rotary": Feature.ROTARY_AXES,
}
"""The features that are plain functions: sinusoids(length, width) -> (length, width), position by component;
alibi_slopes(num_heads) -> (num_heads,); scaled_rotary(method, length, width, base, factor, original length, and of
longrope the short and the long factors) -> (2, length, width / 2), cosines and sines; axes_rotary(order, positions of
the tokens on each axis, pairs of each axis, base) -> (2, tokens, pairs), the same."""


@dataclass(frozen=True)
class Implementation:
    """An attention implementation behind one call.

    Attributes:
        name: dotted, unique, stable; it appears in test ids.
        run: computes a problem on a device such as "cpu" or "cuda:0". It keeps no reference to the problem's arrays.
        about: one line for listings.
        expected_failures: deviations that are known and public.
        construct: builds the module for a head count and width, may call it, and throws it away; for clauses on errors.
        alternatives: other ways to call it that have to give the same result, such as "in evaluation mode", each as
            a `run` of its own. They go together with `Feature.ALTERNATIVES`.
        functions: plain functions next to the attention, by the names in `FUNCTIONS`, that take numbers and return
            an array of floats. Each goes together with its feature.
        modes: runs of the same problem in another state or under a transform, by the feature that names it, which is
            claimed. Chapter modules states what each run does; that of `Feature.DOUBLE_BACKWARD` returns as gradients
            their derivatives along `Problem.direction`.
        findings: what its interface names and what is not judged, by its own name, with the reason: where there is
            any, the rest conforms in part.
        as_seen: what no name and no documentation states, in words, and is judged as its behaviour shows it.
        stated: what was seen or left out before it was judged, and has to be known to read its verdict; the first
            screen states each.
        documented: its own names of masks, of which its documentation states what True means: to read one the other way
            round is a mistake of the candidate, and no slip of an adapter.
        unclaimed: notes on what it offers and is not claimed, with the reason; the first screen lists them.
        differing: exceptions of calls by which its interface was read, and that raised nothing when made once more.
        exits: exceptions that end a process, by which such calls left.

    Raises:
        ValueError: claims and runs do not go together.
    """

    name: str
    claims: Claims
    run: Callable[[Problem, str], Result]
    about: str = ""
    expected_failures: tuple[ExpectedFailure, ...] = ()
    construct: Callable[[int, int], object] | None = None
    alternatives: Mapping[str, Callable[[Problem, str], Result]] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Array]] = field(default_factory=dict)
    modes: Mapping[Feature, Callable[[Problem, str], Result]] = field(default_factory=dict)
    findings: Mapping[str, str] = field(default_factory=dict)
    as_seen: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    documented: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_functions()
        if odd := sorted(set(self.modes) ^ (MODES & self.claims.features)):
            raise ValueError(f"{self.name}: modes with a run and no claim, or a claim and no run: {odd}")
        if bool(self.alternatives) is not (Feature.ALTERNATIVES in self.claims):
            raise ValueError(
                f"{self.name} has {len(self.alternatives)} alternatives: claim Feature.ALTERNATIVES if it has any"
            )

    def _check_functions(self) -> None:
        for name in self.functions.keys() - FUNCTIONS.keys():
            raise ValueError(f"{self.name} has a function {name!r}; the suite knows: {', '.join(FUNCTIONS)}")
        for name, feature in FUNCTIONS.items():
            if (name in self.functions) is not (feature in self.claims):
                raise ValueError(f"{self.name}: the function {name!r} goes together with Feature.{feature.name}")
