"""Measures the auditor on implementations whose claims are known, and not shown to it: `make audit-score`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from implementations.audit.claiming import CHOICES, FEATURES, PARAMETERS, Choice
from implementations.audit.findings import ABSENT, Facts, Finding
from implementations.audit.forms import find_subject
from implementations.audit.questions import all_asked
from implementations.audit.sides import functions
from implementations.builtin import BUILTIN, NAMED
from implementations.contract import Implementation
from spec.features import Feature, Scope

PAGE = Path(__file__).parents[1] / "docs" / "audit.md"
FOUND, UNDETERMINED, WRONG, KNOWN = "found", "undetermined", "wrong", "known deviation"
DEVIATIONS: Mapping[str, tuple[str, ...]] = {
    "empty-row-bool": ("masks.empty-row-bool",),
    "empty-row-float": ("masks.empty-row-float",),
    "empty-row-padding": ("masks.empty-row-padding",),
}
"""The clauses whose expected failure says that a claimed convention does not hold."""


@dataclass(frozen=True)
class Score:
    """One claim against one finding."""

    claim: str
    claimed: str
    outcome: str
    told: str = ""


def anonymous(implementation: Implementation) -> Facts:
    """What the auditor finds of an implementation stripped of its name and claims."""
    subject, found = find_subject(implementation.run, "cpu")
    if subject is not None:
        found = all_asked(subject, found)
    return Facts.of([*found, *functions(implementation.functions)])


def scores(implementation: Implementation, facts: Facts) -> Iterator[Score]:
    """Every claim that the auditor can know of, held against what it found."""
    claims = implementation.claims
    yield _plain("level", str(claims.scope), facts.found.get("level"))
    yield _plain("heads", "many" if Feature.HEADS in claims else "one", facts.found.get("heads"))
    yield _plain("dtypes", "", facts.found.get("dtypes"), wanted=claims.dtypes)
    for question, feature in FEATURES.items():
        if feature in claims:
            yield _feature(feature, facts.found.get(question))
    for name, feature in PARAMETERS.items():
        if feature in claims and claims.scope is Scope.MODULE:
            has = name in facts.answer("parameters").split(", ")
            yield Score(str(feature), "yes", FOUND if has else WRONG)
    keyed = dict(claims.conventions.items())
    for choice in CHOICES:
        if choice.matters(claims.features):
            yield _choice(implementation, choice, keyed[choice.key], facts)


def _plain(claim: str, claimed: str, finding: Finding | None, wanted: tuple[str, ...] = ()) -> Score:
    if finding is None or not finding.determined:
        return Score(claim, claimed, UNDETERMINED, "" if finding is None else finding.evidence)
    right = set(wanted) <= set(finding.answer.split(", ")) if wanted else finding.answer == claimed
    return Score(claim, claimed or ", ".join(wanted), FOUND if right else WRONG, finding.answer)


def _feature(feature: Feature, finding: Finding | None) -> Score:
    if finding is None or not finding.determined:
        return Score(str(feature), "yes", UNDETERMINED, "not asked" if finding is None else finding.evidence)
    absent = finding.answer == ABSENT
    return Score(
        str(feature), "yes", WRONG if absent else FOUND, f"{finding.answer}: {finding.evidence}" if absent else ""
    )


def _choice(implementation: Implementation, choice: Choice, claimed: str, facts: Facts) -> Score:
    answer = choice.spelled.get(facts.answer(choice.question), "")
    if choice.key == "bool-mask" or not answer:
        why = "the adapter turns masks, so that True may attend" if choice.key == "bool-mask" else ""
        return Score(
            f"which {choice.key}", claimed, UNDETERMINED, why or facts.evidence(choice.question) or "cannot be asked"
        )
    within = choice.key == "causal-with-mask" and claimed == "either"
    if answer == claimed or within:
        return Score(f"which {choice.key}", claimed, FOUND, answer)
    excused = {failure.clause for failure in implementation.expected_failures}
    known = excused.intersection(DEVIATIONS.get(choice.key, ()))
    return Score(f"which {choice.key}", claimed, KNOWN if known else WRONG, answer)


def main() -> int:
    torch.set_num_threads(1)
    rows = {each.name: list(scores(each, anonymous(each))) for each in (*BUILTIN, *NAMED)}
    PAGE.write_text("\n".join(_page(rows)) + "\n")
    wrong = [(name, score) for name, found in rows.items() for score in found if score.outcome == WRONG]
    for name, score in wrong:
        print(f"wrong: {name}, {score.claim}: claimed {score.claimed}, found {score.told}")
    print(f"written: {PAGE.name}")
    return 1 if wrong else 0


def _page(rows: Mapping[str, list[Score]]) -> Iterator[str]:
    counts = Counter(score.outcome for found in rows.values() for score in found)
    total = sum(counts.values())
    yield "# What the auditor finds"
    yield ""
    yield "Written by `make audit-score`. Each built-in implementation was shown to the auditor, which is"
    yield "`python -m implementations.audit`, without name and claims; each claim was then held against what had"
    yield f"been found. Of {total} claims {counts[FOUND]} were found, {counts[UNDETERMINED]} reported as undetermined,"
    yield f"and {counts[WRONG]} found to be otherwise; {counts[KNOWN]} were found not to hold, as the implementation's"
    yield "list of known deviations says, too."
    yield ""
    yield f"| implementation | {FOUND} | {UNDETERMINED} | {KNOWN} | {WRONG} | undetermined |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, found in rows.items():
        by = Counter(score.outcome for score in found)
        open_ones = ", ".join(score.claim for score in found if score.outcome == UNDETERMINED)
        yield f"| {name} | {by[FOUND]} | {by[UNDETERMINED]} | {by[KNOWN]} | {by[WRONG]} | {open_ones} |"
    yield ""
    yield "## By claim"
    yield ""
    yield f"| claim | {FOUND} | {UNDETERMINED} | {KNOWN} | {WRONG} |"
    yield "| --- | --- | --- | --- | --- |"
    by_claim: dict[str, Counter[str]] = {}
    for found in rows.values():
        for score in found:
            by_claim.setdefault(score.claim, Counter())[score.outcome] += 1
    for claim, by in by_claim.items():
        yield f"| {claim} | {by[FOUND]} | {by[UNDETERMINED]} | {by[KNOWN]} | {by[WRONG]} |"


if __name__ == "__main__":
    sys.exit(main())
