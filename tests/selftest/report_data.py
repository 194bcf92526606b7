"""Invented runs for the tests of the report's page: every outcome, text with markup, and as many as a full run has."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Clause, load
from attention_conformance.spec.features import Conventions, Feature
from attention_conformance.spec.problem import DTYPES, Array
from attention_conformance.tests.report.model import (
    SCHEMA,
    Closing,
    FailureRecord,
    Grid,
    Opening,
    Run,
    Subject,
    Suite,
    WeightMap,
)
from attention_conformance.tests.report.verdict import Failure, Status, Verdict

MARKUP = "<script>alert(1)</script>"
BROKEN = '"><img src=x onerror=alert(2)></script></style>{{ 7 * 7 }}'
TURNED = "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe\N{ZERO WIDTH SPACE}"
RIGHT, KNOWN, WRONG, BAD = "right.attention", "torch.known", "wrong.attention", f"a b/{MARKUP}{BROKEN}{TURNED}"
LINK = "https://example.org/issues/1?a=1&b=2"
CASE = Case(causal=True)
ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "machine": BROKEN}
CLAUSES = (
    "scores.dot-product",
    "scores.scale-default",
    "masks.bool",
    "masks.rank",
    "causal.square",
    "causal.no-future",
)


def invented(complete: bool = True, names: Sequence[str] = (RIGHT, KNOWN, WRONG, BAD)) -> Run:
    """A run of a few implementations with every outcome that a clause can have."""
    verdicts = [v for name in names for v in _verdicts(name)]
    closing = Closing(complete, "" if complete else f"it was stopped {MARKUP}", len(verdicts), 12.0)
    failing = [v for v in verdicts if v.status is Status.FAIL]
    return Run(
        opening=Opening(SCHEMA, "2026-01-02T03:04:05+00:00", _suite(), ENVIRONMENT, tuple(map(_subject, names))),
        verdicts=verdicts,
        closing=closing,
        diagnoses={name: f"matches `scale-of-the-values`: {_odd(name)}" for name in names if name in (WRONG, BAD)},
        observed={BAD: {f"empty row {MARKUP}": BROKEN, "corner of the triangle": TURNED}},
        failures=[_shown(v) for v in failing],
        weight_maps={name: _map(name) for name in names if name != KNOWN}
        | {name: replace(_map(name), source=BROKEN, got=None) for name in names if name == KNOWN},
    )


def _odd(name: str) -> str:
    return BROKEN + TURNED if name == BAD else "Take the width of queries and keys."


def _suite() -> Suite:
    return Suite("0.1.0", "0.1", "quick", "cpu", (), 553, 553)


def _subject(name: str) -> Subject:
    claims = dict(Conventions().items()) | ({"empty-row-bool": "nan"} if name == KNOWN else {})
    features = tuple(sorted({Feature.CORE, Feature.BOOL_MASK, Feature.CAUSAL, Feature.SCALE}))
    about = f"a function {MARKUP}" if name == BAD else "a function of torch tensors"
    target = f"/tmp/{BROKEN}.py:{MARKUP}" if name == BAD else ""
    return Subject(name, about, "op", features, ("float64", "float32"), claims, target)


def _verdicts(name: str) -> Iterator[Verdict]:
    for clause in CLAUSES:
        for dtype in ("float64", "float32"):
            plain = Verdict(clause, load()[clause].level, name, dtype, Status.PASS, 7, worst=0.25, rms=0.9, seconds=0.1)
            yield replace(plain, **_changed(name, clause, dtype))


def _changed(name: str, clause: str, dtype: str) -> dict[str, Any]:
    if name == KNOWN and clause == "causal.square":
        failure = Failure(f"NaN {MARKUP}", CASE.to_json(), dtype)
        return {"status": Status.EXPECTED_FAILURE, "failed": 1, "failure": failure, "reason": "so", "link": LINK}
    if name == KNOWN and clause == "causal.no-future":
        return {"status": Status.ERROR, "checks": 0, "worst": None, "reason": "every bound is too wide"}
    if name == KNOWN and clause == "masks.bool" and dtype == "float32":
        return {"status": Status.NOT_CLAIMED, "checks": 0, "worst": None, "reason": "in float64 only"}
    if name.startswith((WRONG, BAD)) and clause in ("scores.scale-default", "masks.rank", "causal.square"):
        failure = Failure(f"output is 1, expected 2 {_odd(name)}", CASE.to_json(), dtype, "output")
        return {"status": Status.FAIL, "failed": 2, "worst": 2.5e9, "failure": failure}
    return {}


def softmaxed(seed: int, heads: int = 2, length: int = 5, later: int = 0) -> Array:
    """(H, L, L): causal weights that see so many later keys."""
    scores = np.random.default_rng(seed).normal(size=(heads, length, length))
    scores[:, ~np.tri(length, k=later, dtype=bool)] = -np.inf
    powers = np.exp(scores)
    weights: Array = powers / powers.sum(-1, keepdims=True)
    return weights


def _map(name: str) -> WeightMap:
    later = 1 if name in (WRONG, BAD) else 0
    expected, got = Grid.of(softmaxed(3, 4, 10)), Grid.of(softmaxed(3, 4, 10, later))
    return WeightMap(name, "float64", "B=1 H=4 Lq=10 Lk=10 causal=True", "returned", expected, got)


def _shown(verdict: Verdict, heads: int = 2) -> FailureRecord:
    """A failure of one sample, three queries and keys, in the last head; one of its values is infinite."""
    draw = np.random.default_rng(5)
    expected, value = draw.normal(size=(1, heads, 3, 2)), draw.normal(size=(1, heads, 3, 2))
    got = expected.copy()
    got[0, -1, 0, 1] += 1e-9
    ratio = np.zeros_like(expected)
    ratio[0, -1, 0, 1], value[0, 0, 0, 0] = 2.5e9, -np.inf
    odd = _odd(verdict.implementation)
    return FailureRecord(
        clause=verdict.clause,
        implementation=verdict.implementation,
        dtype=verdict.dtype,
        case=f"B=1 H=2 Lq=3 Lk=3 {odd}",
        message=f"output of sample 0 head 1 is off {odd}",
        part="output",
        arrays={"value": Grid.of(value), "attn_mask": Grid.of(np.tri(3, dtype=bool)), "key": Grid((64, 64), None)},
        expected=Grid.of(expected),
        got=Grid.of(got),
        error_in_bounds=Grid.of(ratio),
        expected_weights=Grid.of(softmaxed(7, heads, 3)),
        got_weights=Grid.of(softmaxed(7, heads, 3, 1)),
        script=f"# {odd}\nprint('</script>')\n",
        replay_file=f"failures/{verdict.clause}--{verdict.dtype}.json",
        command=f"python -m pytest --candidate x.py:f --clause {verdict.clause} --dtype {verdict.dtype}",
    )


def full(subjects: Sequence[Subject]) -> Run:
    """As many verdicts as a run over these has: of every clause that they claim. Two of them fail half of it.

    About as much is a known deviation, or cannot be asked, as of the built-in implementations.
    """
    chance = random.Random(1)
    verdicts = [v for subject in subjects for v in _of_all(subject, chance)]
    failing = {subject.name for subject in subjects[-2:]}
    verdicts = [_failed(v) if v.implementation in failing and chance.random() < 0.5 else v for v in verdicts]
    return Run(
        opening=Opening(SCHEMA, "2026-01-02T03:04:05+00:00", _suite(), ENVIRONMENT, tuple(subjects)),
        verdicts=verdicts,
        closing=Closing(True, "", len(verdicts), 900.0),
        diagnoses=dict.fromkeys(failing, "matches `no-scale`: " + "words " * 20),
        observed={subject.name: {f"question {n}": "answer " * 8 for n in range(13)} for subject in subjects},
        failures=[_shown(v, heads=1) for v in verdicts if v.status is Status.FAIL],
        weight_maps={subject.name: _map(subject.name) for subject in subjects},
    )


def _failed(verdict: Verdict) -> Verdict:
    failure = Failure("output of sample 0 head 1 query 2 component 0 is 1.5, expected 2.5", CASE.to_json(), "float64")
    return replace(verdict, status=Status.FAIL, checks=5, failed=3, worst=2e9, failure=failure, reason="", link="")


def _of_all(subject: Subject, chance: random.Random) -> Iterator[Verdict]:
    for clause in load().values():
        if _claimed(clause, subject):
            fate = chance.random()
            for dtype in DTYPES:
                if dtype in subject.dtypes:
                    yield _fated(clause, subject.name, dtype, fate, chance)


def _claimed(clause: Clause, subject: Subject) -> bool:
    return clause.features <= set(subject.features) and clause.scope in (None, subject.scope) and not clause.measured


def _fated(clause: Clause, name: str, dtype: str, fate: float, chance: random.Random) -> Verdict:
    plain = Verdict(clause.id, clause.level, name, dtype, Status.PASS, chance.randint(1, 90), worst=chance.random())
    if fate < 0.09:
        return replace(plain, status=Status.NOT_CLAIMED, checks=0, worst=None, reason="its kernel takes no mask here")
    if fate < 0.11:
        why = "the fused kernel masks the future before it multiplies by the scale: scale 0 gives NaN"
        return replace(_failed(plain), status=Status.EXPECTED_FAILURE, reason=why, link=LINK)
    return plain
