"""The state of a session: what its hooks share."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.run.selection import Options
from attention_conformance.tests.report.recorder import Recorder

PROPERTY = "verdict"
"""Under which the report of an item carries its verdict."""


@dataclass
class Plugin:
    """What a session knows: the selection, and the recorder that collects its verdicts.

    Attributes:
        handed: what the adapter of a candidate does wrongly, by the name of its implementation.
    """

    options: Options
    selection: Selection
    recorder: Recorder
    asked: bool = False
    handed: dict[str, tuple[str, ...]] = field(default_factory=dict)


KEY = pytest.StashKey[Plugin]()
