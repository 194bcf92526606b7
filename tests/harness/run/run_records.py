"""The first record of a run: which suite runs, and which implementations it is about to judge."""

from __future__ import annotations

import json

from attention_conformance import __version__
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.defects import SCORE
from attention_conformance.tests.report.model import Subject, Suite
from attention_conformance.tests.report.recorder import SPEC_VERSION


def subject_of(implementation: Implementation, target: str = "") -> Subject:
    """An implementation's claims as plain values. `target`: as `--candidate` takes it; empty for a built-in one."""
    claims = implementation.claims
    return Subject(
        name=implementation.name,
        about=implementation.about,
        scope=str(claims.scope),
        features=tuple(sorted(claims.features)),
        dtypes=claims.dtypes,
        conventions=dict(claims.conventions.items()),
        target=target,
    )


def suite_of(tier: str, device: str, clauses: tuple[str, ...] = (), dtypes: tuple[str, ...] = ()) -> Suite:
    """This suite, with its last mutation score, and the selection of a run."""
    score = json.loads(SCORE.read_text(encoding="utf-8"))
    return Suite(__version__, SPEC_VERSION, tier, device, clauses, score["killed"], score["defects"], dtypes)
