"""What an implementation claims, compared with what the auditor found."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attention_conformance.implementations.api.contract import FUNCTIONS, MODES, Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.auditor.claims import convention, convention_topic
from attention_conformance.implementations.discovery.auditor.findings import ABSENT, Facts, Finding
from attention_conformance.implementations.discovery.auditor.probe_interface import PARAMETERS
from attention_conformance.implementations.discovery.extra_options import UNSEEN
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import Feature, Scope

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
    "padded-tokens": (set(),),  # never: the auditor has no probe of it
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


def scores(implementation: Implementation, facts: Facts) -> Iterator[Score]:
    """Every claim that the auditor can check, compared with its findings."""
    claims = implementation.claims
    yield compared("level", str(claims.scope), facts.findings.get("level"))
    yield compared("heads", "many" if Feature.HEADS in claims else "one", facts.findings.get("heads"))
    yield compared("dtypes", ", ".join(claims.dtypes), facts.findings.get("dtypes"), several=True)
    for feature in Feature:
        if feature in claims and feature not in UNPROBED:
            yield compared(str(feature), "yes", facts.findings.get(feature))
        elif feature in claims and feature in PARAMETERS and claims.scope is Scope.MODULE:
            has = feature in facts.answer("parameters").split(", ")
            yield Score(str(feature), "yes", DETECTED if has else WRONG)
    for key, claimed in claims.conventions.items():
        if all(needed & claims.features for needed in NEEDS[key]):
            yield _convention(implementation, key, claimed, facts)


def compared(claim: str, claimed: str, finding: Finding | None, several: bool = False) -> Score:
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
