"""Claims: the features and conventions that follow from findings.

A feature that has an effect is claimed, even if it is not the specified effect: the suite then reports what is wrong.
"""

from attention_conformance.implementations.discovery.auditor.findings import ABSENT, ALWAYS, LOST, Facts
from attention_conformance.implementations.discovery.auditor.probe_interface import PARAMETERS
from attention_conformance.spec.conventions import Conventions, values_of
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.spec.problem import DTYPES

NOT_OFFERED = (ABSENT, LOST, ALWAYS, "one")
"""Answers to features that are not offered: a causal flag that is always set, heads where there is one."""


def scope(facts: Facts) -> Scope:
    """The level that was detected."""
    return Scope(facts.answer("level"))


def features(facts: Facts) -> frozenset[Feature]:
    """What is offered, rightly or not."""
    offered = {f for f in Feature if f in facts.findings and facts.findings[f].answer not in NOT_OFFERED}
    if scope(facts) is Scope.MODULE:
        offered |= {f for f in PARAMETERS if f in facts.answer("parameters").split(", ")} | {Feature.PROJECTIONS}
    return frozenset(offered | {Feature.CORE})


def premises(facts: Facts) -> Premises:
    """What it always does."""
    return NO_PREMISES.assuming(["causal"] if facts.answer("causal") == ALWAYS else [])


def convention_topic(key: str) -> str:
    """The topic of the findings on a convention; a few have the name of a feature, too."""
    return {"bool-mask": "mask polarity", "rotary-tables": "rows of the tables"}.get(key, key)


def convention(key: str, facts: Facts) -> str:
    """The value of a convention that was detected, or nothing."""
    answer = facts.answer(convention_topic(key))
    return answer if answer in list(values_of(key)) else ""


def settings(facts: Facts) -> dict[str, str]:
    """The conventions that were detected and are not the specification's defaults, by their keys."""
    defaults = Conventions().items()
    return {key: value for key, default in defaults if (value := convention(key, facts)) not in ("", default)}


def dtypes(facts: Facts) -> tuple[str, ...]:
    """The dtypes in which it takes arrays and answers."""
    return tuple(dtype for dtype in DTYPES if dtype in facts.answer("dtypes").split(", "))
