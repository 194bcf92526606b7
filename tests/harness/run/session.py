"""The state of a pytest session of the suite: what its hooks share."""

from dataclasses import dataclass, field

import pytest

from attention_conformance.tests.harness.explain.failure_artifacts import Explained
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck, Selection
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.budget import Budget
from attention_conformance.tests.report.recorder import Recorder

PROPERTY = "verdict"
"""Under which the report of an item carries its verdict."""
USAGE_ERROR = "usage_error"
"""Under which a process of several hands over why it cannot collect."""

LEFTOVERS = "leftovers"
"""Under which a process of several hands over what candidates have left running in it."""

LOSSES = "losses"
"""Under which a process of several is given the folder in which all of them count lost processes of candidates."""


@dataclass
class SuiteSession:
    """The selection, and the recorder that collects its verdicts.

    Attributes:
        has_chapters: whether pytest collects a chapter of the specification.
        crashed: whether the code of the suite raised an exception where a verdict was due.
        leftovers: what candidates have left running, a line each; those of other processes of the suite too.
        shown: the first failure with a smallest case, for the first screen.
        planned: what this process was to check.
        budget: of the run; without an end where none was given.
        adapter_mistakes: what the adapter of a candidate does wrongly, by the name of its implementation.
    """

    settings: RunSettings
    selection: Selection
    recorder: Recorder
    budget: Budget
    has_chapters: bool = False
    crashed: bool = False
    leftovers: list[str] = field(default_factory=list)
    shown: Explained | None = None
    planned: list[PlannedCheck] = field(default_factory=list)
    adapter_mistakes: dict[str, tuple[str, ...]] = field(default_factory=dict)


KEY = pytest.StashKey[SuiteSession]()
