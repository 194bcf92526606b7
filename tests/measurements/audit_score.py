"""Measures the auditor on implementations whose claims are known, but hidden from it: `make audit-score`."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from attention_conformance.implementations.api.contract import FUNCTIONS, MODES, Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED
from attention_conformance.implementations.discovery.auditor.audit import all_findings, audit
from attention_conformance.implementations.discovery.auditor.claims import convention, convention_topic, features
from attention_conformance.implementations.discovery.auditor.findings import ABSENT, Facts, Finding
from attention_conformance.implementations.discovery.auditor.probe_interface import PARAMETERS, find_subject
from attention_conformance.implementations.discovery.auditor.probe_results import functions
from attention_conformance.implementations.discovery.extra_options import UNSEEN
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.cli.audit_command import ORACLE
from attention_conformance.tests.measurements.audit_targets import TARGETS
from attention_conformance.tests.measurements.pages import table, write_page

DETECTED, UNDETERMINED, WRONG, KNOWN = "detected", "undetermined", "wrong", "known deviation"
FLAG_AND_MASK = Case(causal=True, mask=MaskKind.BOOL)
OUTCOMES = (DETECTED, UNDETERMINED, KNOWN, WRONG)
BASIC = {Feature.CORE, Feature.HEADS, Feature.PROJECTIONS, Feature.ALTERNATIVES, Feature.LINEAR_MEMORY}
CACHES = {Feature.CACHE, Feature.STATIC_CACHE, Feature.RING_CACHE}
UNPROBED = frozenset(
    {*MODES, *FUNCTIONS.values(), *PARAMETERS, *BASIC, *CACHES, *UNSEEN, Feature.LATENT, Feature.CACHE_ROWS}
    | {Feature.ALIBI_SAMPLES}
)
"""Features that have no probe of their own."""
NEEDS: Mapping[str, tuple[set[Feature], ...]] = {
    "bool-mask": ({Feature.BOOL_MASK},),
    "causal-alignment": ({Feature.CAUSAL},),
    "causal-with-mask": ({Feature.CAUSAL}, {Feature.BOOL_MASK, Feature.FLOAT_MASK}),
    "empty-row-bool": ({Feature.BOOL_MASK},),
    "empty-row-float": ({Feature.FLOAT_MASK},),
    "empty-row-padding": ({Feature.KEY_PADDING},),
    "empty-row-causal": ({Feature.CAUSAL},),
    "padded-queries": ({Feature.QUERY_LENS},),
    "softmax-precision": (),
    "group-order": ({Feature.GROUPED},),
    "window-count": ({Feature.WINDOW},),
    "padded-positions": ({Feature.KEY_PADDING}, {Feature.WINDOW, Feature.ROTARY, Feature.ALIBI, Feature.RELATIVE_BIAS}),
    "dropout-sharing": ({Feature.DROPOUT},),
    "full-dropout": ({Feature.DROPOUT},),
    "rotary-pairing": ({Feature.ROTARY},),
    **dict.fromkeys(("norm-kind", "norm-span", "norm-order", "norm-gain", "norm-default"), ({Feature.QK_NORM},)),
    "rotary-tables": ({Feature.ROTARY_TABLES},),
    "sinusoid-order": ({Feature.SINUSOIDS},),
    "alibi-rule": ({Feature.ALIBI_SLOPES},),
    "returned-weights": ({Feature.DROPOUT}, {Feature.WEIGHTS, Feature.AVERAGED_WEIGHTS}),
    "log-sum-exp-base": ({Feature.LOG_SUM_EXP},),
    "log-of-nothing": ({Feature.LOG_SUM_EXP},),
    "default-scale": ({Feature.SCALE},),
    "product-precision": (),
}
"""The features with which a convention matters: at least one of each set."""


@dataclass(frozen=True)
class Score:
    """One claim compared with one finding."""

    claim: str
    claimed: str
    outcome: str
    answer: str = ""


def anonymous(implementation: Implementation) -> Facts:
    """The findings of the auditor for an implementation without its name and claims."""
    subject, findings = find_subject(implementation.run, "cpu", ORACLE)
    if subject is not None:
        findings = all_findings(subject, findings)
    return Facts.of([*findings, *functions(implementation.functions, ORACLE)])


def scores(implementation: Implementation, facts: Facts) -> Iterator[Score]:
    """Every claim that the auditor can check, compared with its findings."""
    claims = implementation.claims
    yield _plain("level", str(claims.scope), facts.findings.get("level"))
    yield _plain("heads", "many" if Feature.HEADS in claims else "one", facts.findings.get("heads"))
    yield _plain("dtypes", ", ".join(claims.dtypes), facts.findings.get("dtypes"), several=True)
    for feature in Feature:
        if feature in claims and feature not in UNPROBED:
            yield _plain(str(feature), "yes", facts.findings.get(feature))
        elif feature in claims and feature in PARAMETERS and claims.scope is Scope.MODULE:
            has = feature in facts.answer("parameters").split(", ")
            yield Score(str(feature), "yes", DETECTED if has else WRONG)
    for key, claimed in claims.conventions.items():
        if all(needed & claims.features for needed in NEEDS[key]):
            yield _convention(implementation, key, claimed, facts)


def _plain(claim: str, claimed: str, finding: Finding | None, several: bool = False) -> Score:
    """A claimed "yes" is detected by any answer but `ABSENT`, several claims by an answer that has all of them."""
    if finding is None or not finding.determined:
        return Score(claim, claimed, UNDETERMINED, "not probed" if finding is None else finding.evidence)
    right = finding.answer != ABSENT if claimed == "yes" else finding.answer == claimed
    if right or (several and set(claimed.split(", ")) <= set(finding.answer.split(", "))):
        return Score(claim, claimed, DETECTED, finding.answer)
    return Score(claim, claimed, WRONG, f"{finding.answer}: {finding.evidence}")


def _convention(implementation: Implementation, key: str, claimed: str, facts: Facts) -> Score:
    claim, answer = f"which {key}", convention(key, facts)
    if key == "bool-mask" or not answer:
        why = "the adapter converts masks, so that True may attend" if key == "bool-mask" else ""
        return Score(claim, claimed, UNDETERMINED, why or facts.evidence(convention_topic(key)) or "cannot be probed")
    if key == "causal-with-mask" and isinstance(fit(FLAG_AND_MASK, implementation.claims), Unsupported):
        return Score(claim, claimed, UNDETERMINED, "its claims exclude a mask together with the flag")
    within = key == "causal-with-mask" and claimed == "either"
    if answer == claimed or within:
        return Score(claim, claimed, DETECTED, answer)
    known = f"masks.{key}" in {failure.clause for failure in implementation.expected_failures}
    return Score(claim, claimed, KNOWN if known else WRONG, answer)


def known_scores(target: object, known: Mapping[str, str]) -> Iterator[Score]:
    """The known facts of a callable, compared with the findings of the auditor."""
    facts = Facts.of(audit(target, ORACLE)[1])
    for topic, answer in known.items():
        yield _plain(topic, answer, facts.findings.get(topic))


def main() -> int:
    torch.set_num_threads(1)
    built_in = {each.name: each for each in (*BUILTIN, *NAMED)}
    facts = {name: anonymous(each) for name, each in built_in.items()}
    rows = {name: list(scores(built_in[name], each)) for name, each in facts.items()}
    beyond = {name: sorted(features(each) - built_in[name].claims.features) for name, each in facts.items()}
    callables = {name: list(known_scores(target, known)) for name, (target, known) in TARGETS.items()}
    by_claim: dict[str, list[Score]] = {}
    for score in (score for listed in rows.values() for score in listed):
        by_claim.setdefault(score.claim, []).append(score)
    write_page(
        "audit.md",
        count_of_built_in=_counted(rows),
        built_in=_table("implementation", rows),
        offered=beyond,
        count_of_callables=_counted(callables),
        callables=_table("callable", callables),
        by_claim=_table("claim", by_claim, with_claims=False),
    )
    wrong = [(n, score) for n, listed in {**rows, **callables}.items() for score in listed if score.outcome == WRONG]
    for name, score in wrong:
        print(f"wrong: {name}, {score.claim}: claimed {score.claimed}, detected {score.answer}")
    return 1 if wrong else 0


def _counted(rows: Mapping[str, list[Score]]) -> str:
    counts = Counter(score.outcome for listed in rows.values() for score in listed)
    parts = [f"{counts[outcome]} {outcome}" for outcome in (DETECTED, UNDETERMINED, KNOWN) if counts[outcome]]
    return f"of {sum(counts.values())} {', '.join(parts)}, {counts[WRONG]} wrong"


def _table(first: str, rows: Mapping[str, list[Score]], with_claims: bool = True) -> str:
    """The number of claims with each outcome by row; in the last column the undetermined claims, on request."""
    cells = []
    for name, listed in rows.items():
        by = Counter(score.outcome for score in listed)
        undetermined = ", ".join(score.claim for score in listed if score.outcome == UNDETERMINED)
        cells.append([name, *(str(by[outcome]) for outcome in OUTCOMES), *([undetermined] if with_claims else [])])
    return table([first, *OUTCOMES, *(["undetermined claims"] if with_claims else [])], cells)


if __name__ == "__main__":
    sys.exit(main())
