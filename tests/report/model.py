"""Records: what a run found, as values that an event log holds and every view is made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from attention_conformance.spec.problem import Array
from attention_conformance.tests.report.verdict import Status, Verdict

SCHEMA = "attention-conformance/events/1"
MOST_ELEMENTS = 1024
"""Of an array that is written down whole; of a larger one only the shape is."""

Number: TypeAlias = Annotated[
    float,
    BeforeValidator(lambda value: float(value)),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]
"""A float whose NaN and infinities are written as strings, which JSON has no numbers for."""


@dataclass(frozen=True)
class Grid:
    """An array as plain numbers.

    Attributes:
        values: in C order, booleans as 0 and 1; None where there are more than `MOST_ELEMENTS`.
    """

    shape: tuple[int, ...]
    values: tuple[Number, ...] | None

    @classmethod
    def of(cls, array: Array) -> Grid:
        """The numbers of an array of any dtype."""
        numbers = tuple(float(x) for x in array.astype(np.float64).ravel()) if array.size <= MOST_ELEMENTS else None
        return cls(tuple(array.shape), numbers)


@dataclass(frozen=True)
class Suite:
    """What judged, and how it was asked.

    Attributes:
        clauses, dtypes: as --clause and --dtype select them; none selects all.
        killed, defects: how many wrong implementations of the catalogue the suite finds, when last measured.
    """

    version: str
    spec: str
    tier: str
    device: str
    clauses: tuple[str, ...]
    killed: int
    defects: int
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """An implementation, and what it says of itself.

    Attributes:
        target: as `--candidate` takes it; empty for a built-in one.
        conventions: by key, in the spelling of the command line.
    """

    name: str
    about: str
    scope: str
    features: tuple[str, ...]
    dtypes: tuple[str, ...]
    conventions: Mapping[str, str]
    target: str = ""


@dataclass(frozen=True)
class Begin:
    """The first record: what is going to be judged, when, and where."""

    schema: str
    started: str
    suite: Suite
    environment: Mapping[str, str]
    subjects: tuple[Subject, ...]


@dataclass(frozen=True)
class Judged:
    """The record after the last verdict. `reason`: why some are missing; empty if none is."""

    verdicts: int
    reason: str


@dataclass(frozen=True)
class Diagnosed:
    """The mistake that explains the failures of an implementation, in words."""

    implementation: str
    text: str


@dataclass(frozen=True)
class Observed:
    """What an implementation was seen to do where the field disagrees, by question."""

    implementation: str
    answers: Mapping[str, str]


@dataclass(frozen=True)
class Shown:
    """The smallest case on which a check fails, and what was made of it.

    Attributes:
        case: in words.
        part: what differed, such as `output`; empty where the check was no comparison with the reference.
        arrays: what was handed over, by name.
        expected, got, ratio: of the part; `ratio` is the error in units of its bound. None where nothing was answered.
        expected_weights: (H, Lq, Lk) of the first sample, those of the reference.
        seen_weights: those of the implementation, returned or seen from outside; None where neither can be had.
        without: why the case is not reduced; empty if it is.
        script: a program that shows it without this suite; empty if there is none.
        replay: the failure file, relative to the report.
        again: the command that asks the clause again.
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
    ratio: Grid | None = None
    expected_weights: Grid | None = None
    seen_weights: Grid | None = None
    without: str = ""
    script: str = ""
    replay: str = ""
    again: str = ""


@dataclass(frozen=True)
class WeightMap:
    """The attention weights of every head on one small case.

    Attributes:
        how: "returned", or "seen by changing one value at a time"; where there are none, why.
        expected, got: (H, Lq, Lk).
    """

    implementation: str
    dtype: str
    case: str
    how: str
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


@dataclass(frozen=True)
class Run:
    """A whole run, as far as it was written down; mappings go by the names of the implementations."""

    begin: Begin
    verdicts: Sequence[Verdict]
    closing: Closing
    diagnoses: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shown: Sequence[Shown] = ()
    maps: Mapping[str, WeightMap] = field(default_factory=dict)

    def of(self, name: str) -> list[Verdict]:
        """The verdicts on one implementation, in the order they came in."""
        return [v for v in self.verdicts if v.implementation == name]


def overall(verdicts: Sequence[Verdict]) -> str:
    """`fails` if a MUST fails, `error` if the suite could not judge (or judged nothing), else `conforms`."""
    if any(v.status is Status.FAIL and v.level == "MUST" for v in verdicts):
        return "fails"
    if any(v.status is Status.ERROR for v in verdicts) or not any(v.checks for v in verdicts):
        return "error"
    return "conforms"
