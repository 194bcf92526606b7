"""Records of a run: plain values that the event log holds and every view is made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from attention_conformance.spec.problem import Array
from attention_conformance.tests.report.verdict import Verdict

SCHEMA = "attention-conformance/events/2"
MOST_ELEMENTS = 1024
"""Larger arrays are recorded by their shape alone."""
Key: TypeAlias = tuple[str, str, str]
"""Implementation, clause, dtype."""

Number: TypeAlias = Annotated[
    float,
    BeforeValidator(lambda value: float(value)),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]
"""A float whose NaN and infinities are written as strings, because JSON has no numbers for them."""


@dataclass(frozen=True)
class Grid:
    """An array as plain numbers.

    Attributes:
        values: in C order, booleans as 0 and 1; None if they are more than `MOST_ELEMENTS` or not real numbers.
    """

    shape: tuple[int, ...]
    values: tuple[Number, ...] | None

    @classmethod
    def of(cls, array: Array) -> Grid:
        """The numbers of an array of any dtype."""
        return cls(tuple(array.shape), _numbers(array) if array.size <= MOST_ELEMENTS else None)

    @property
    def obstacle(self) -> str:
        """Why there are no numbers to draw; empty if there are some."""
        if 0 in self.shape:
            return "empty"
        if self.values is None:
            return "too large to be shown" if math.prod(self.shape) > MOST_ELEMENTS else "not real numbers"
        return "" if len(self.values) == math.prod(self.shape) else "damaged"


def _numbers(array: Array) -> tuple[float, ...] | None:
    if np.iscomplexobj(array):
        return None
    try:
        return tuple(array.astype(np.float64).ravel().tolist())
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Suite:
    """The suite that judged, and the selection of the run.

    Attributes:
        tier: its name, and after a colon the seed of the numbers where they were drawn anew.
        clauses, dtypes: as --clause and --dtype select them; none selects all.
        shard: which part of a run this is, such as "2/4"; empty: the whole.
        detected, defects: how many wrong implementations of the catalogue the suite detects, when last measured.
    """

    version: str
    spec: str
    tier: str
    device: str
    clauses: tuple[str, ...]
    detected: int
    defects: int
    dtypes: tuple[str, ...] = ()
    shard: str = ""

    @property
    def drawn(self) -> str:
        """How the numbers of the run can be drawn again; empty where they are those that are stored."""
        seed = self.tier.partition(":")[2]
        return f"numbers: drawn anew; --seed {seed} draws them again" if seed else ""


@dataclass(frozen=True)
class Subject:
    """An implementation and its claims.

    Attributes:
        target: as `--candidate` takes it; empty for a built-in one.
        isolated: whether it runs in a process of its own; None for a built-in one, which is part of the suite.
        conventions: by key, in the spelling of the command line.
        premises: what it always does, in that spelling.
        findings: what its interface names and what is not judged, by its own name, with the reason.
        as_seen: what nothing states, in words, and is judged as its behaviour shows it.
        stated: what was seen or left out before it was judged, and stands on the first screen.
        unclaimed: notes on what it offers and is not claimed.
    """

    name: str
    about: str
    scope: str
    features: tuple[str, ...]
    dtypes: tuple[str, ...]
    conventions: Mapping[str, str]
    target: str = ""
    isolated: bool | None = None
    premises: tuple[str, ...] = ()
    findings: Mapping[str, str] = field(default_factory=dict)
    as_seen: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opening:
    """The first record: suite, implementations, time and environment."""

    schema: str
    started: str
    suite: Suite
    environment: Mapping[str, str]
    subjects: tuple[Subject, ...]


@dataclass(frozen=True)
class VerdictsEnd:
    """The record after the last verdict. `reason`: why some are missing; empty if none is."""

    verdicts: int
    reason: str


@dataclass(frozen=True)
class DiagnosisRecord:
    """The mistake that explains the failures of an implementation, in words."""

    implementation: str
    text: str


@dataclass(frozen=True)
class ObservationRecord:
    """The behaviour of an implementation where the field disagrees, by topic."""

    implementation: str
    answers: Mapping[str, str]


@dataclass(frozen=True)
class FailureRecord:
    """The smallest case on which a check fails, with its numbers.

    Attributes:
        case: in words.
        part: what differs from the reference, such as `output`; empty if the check was another.
        arrays: the inputs, by name.
        expected, got: of the part; None without an answer.
        error_in_bounds: the error of each element in units of its rounding bound.
        expected_weights: (H, Lq, Lk) of the first sample, those of the reference.
        got_weights: those of the implementation, returned or measured from outside; None if neither is possible.
        unreduced_reason: why the case is not reduced; empty if it is.
        script: a program that shows the failure without this suite; empty if there is none.
        replay_file: the failure file, relative to the report.
        command: runs the clause again.
    """

    clause: str
    implementation: str
    dtype: str
    case: str
    message: str
    part: str = ""
    arrays: Mapping[str, Grid] = field(default_factory=dict)
    expected: Grid | None = None
    got: Grid | None = None
    error_in_bounds: Grid | None = None
    expected_weights: Grid | None = None
    got_weights: Grid | None = None
    unreduced_reason: str = ""
    script: str = ""
    replay_file: str = ""
    command: str = ""


@dataclass(frozen=True)
class WeightMap:
    """The attention weights of every head on one small case.

    Attributes:
        source: "returned", or "measured by changing one value at a time"; if there are no weights, the reason.
        expected, got: (H, Lq, Lk).
    """

    implementation: str
    dtype: str
    case: str
    source: str
    expected: Grid | None = None
    got: Grid | None = None


@dataclass(frozen=True)
class Closing:
    """The last record. `reason`: why the run is not complete; empty if it is."""

    complete: bool
    reason: str
    verdicts: int
    seconds: float

    def __post_init__(self) -> None:
        if self.complete is bool(self.reason):
            raise ValueError("a run that is not complete needs a reason, and no other has one")


Event: TypeAlias = (
    Opening | Verdict | VerdictsEnd | DiagnosisRecord | ObservationRecord | FailureRecord | WeightMap | Closing
)


@dataclass(frozen=True)
class Run:
    """A whole run, as far as it was recorded; the keys of mappings are names of implementations."""

    opening: Opening
    verdicts: Sequence[Verdict]
    closing: Closing
    diagnoses: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    failures: Sequence[FailureRecord] = ()
    weight_maps: Mapping[str, WeightMap] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Verdict, ...]]:
        """The verdicts on each implementation, in the order they came in; each subject is there."""
        verdicts: dict[str, list[Verdict]] = {subject.name: [] for subject in self.opening.subjects}
        for verdict in self.verdicts:
            verdicts.setdefault(verdict.implementation, []).append(verdict)
        return {name: tuple(several) for name, several in verdicts.items()}

    @cached_property
    def explained(self) -> Mapping[Key, FailureRecord]:
        """The failures with a smallest case; of several records with one key, the first."""
        return {(f.implementation, f.clause, f.dtype): f for f in reversed(self.failures)}


def key_of(verdict: Verdict) -> Key:
    """The key of a verdict and of its failure."""
    return verdict.implementation, verdict.clause, verdict.dtype
