"""The state of a pytest session of the suite: what its hooks share."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.failure_artifacts import Explained
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck, Selection
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.budget import Budget
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.verdict import Verdict

PROPERTY = "verdict"
"""Under which the report of an item carries its verdict."""
USAGE_ERROR = "usage_error"
"""Under which a process of several hands over why it cannot collect."""

LEFTOVERS = "leftovers"
"""Under which a process of several hands over what candidates have left running in it."""

ENDS = "ends"
"""Under which a process of several hands over verdicts on bad ends of candidates' processes."""

LOSSES = "losses"
"""Under which a process of several is given the folder in which all of them count lost processes of candidates."""


@dataclass(frozen=True)
class FirstDiagnosis:
    """The diagnosis of the first failure, with the checks that it explains, and the dtypes that were looked at."""

    checks: list[FailingCheck]
    dtypes: list[str]
    diagnosis: Diagnosis


@dataclass
class SuiteSession:
    """The selection, and the recorder that collects its verdicts.

    Attributes:
        has_chapters: whether pytest collects a chapter of the specification.
        crashed: whether the code of the suite raised an exception where a verdict was due.
        leftovers: what candidates have left running, a line each; those of other processes of the suite too.
        ends: verdicts on bad ends of candidates' processes that other processes of the suite have seen.
        diagnosed: what explains the first failure, once it is known.
        shown: the first failure with a smallest case, for the first screen.
        planned: what this process was to check.
        budget: of the run; without an end where none was given.
        adapter_mistakes: what the adapter of a candidate does wrongly, by the name of its implementation.
        intended: options of the command under which what fails would hold, by the name of the implementation.
    """

    settings: RunSettings
    selection: Selection
    recorder: Recorder
    budget: Budget
    has_chapters: bool = False
    crashed: bool = False
    leftovers: list[str] = field(default_factory=list)
    ends: list[Verdict] = field(default_factory=list)
    diagnosed: FirstDiagnosis | None = None
    intended: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shown: Explained | None = None
    planned: list[PlannedCheck] = field(default_factory=list)
    adapter_mistakes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def record_ends(self, ends: Iterable[Verdict]) -> bool:
        """Records verdicts on bad ends, one for each candidate that has none yet; whether there were any."""
        before = len(self.recorder.verdicts)
        for end in (*ends, *self.ends):
            known = {(v.implementation, v.clause) for v in self.recorder.verdicts}
            if (end.implementation, end.clause) not in known:
                self.recorder.add(end)
                self.recorder.planned = (self.recorder.planned or 0) + 1
        return len(self.recorder.verdicts) > before


KEY = pytest.StashKey[SuiteSession]()
