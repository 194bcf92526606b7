"""Runs for the tests of the report's page: every outcome, text with markup, and as many verdicts as a full run has."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attention_conformance.spec.clauses import Clause, load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array
from attention_conformance.tests.report.counts import claimed
from attention_conformance.tests.report.model import FailureRecord, Grid, Run, Subject, WeightMap
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.selftest.report import run_builders
from attention_conformance.tests.selftest.report.run_builders import failed, passed, run, unclaimed, unjudged

MARKUP = "<script>alert(1)</script>"
BROKEN = '"><img src=x onerror=alert(2)></script></style>{{ 7 * 7 }}'
REVERSED = "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe\N{ZERO WIDTH SPACE}"
RIGHT, KNOWN, WRONG, BAD = "right.attention", "torch.known", "wrong.attention", f"a b/{MARKUP}{BROKEN}{REVERSED}"
LINK = "https://example.org/issues/1?a=1&b=2"
DTYPES_OF_RUN = ("float64", "float32")
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
    verdicts = [_verdict(name, clause, dtype) for name in names for clause in CLAUSES for dtype in DTYPES_OF_RUN]
    maps = {name: _map(name) for name in names}
    maps |= {name: replace(_map(name), source=BROKEN, got=None) for name in names if name == KNOWN}
    return run(
        *verdicts,
        subjects=[_subject(name) for name in names],
        reason="" if complete else f"it was stopped {MARKUP}",
        diagnoses={name: f"matches `scale-of-the-values`: {_odd(name)}" for name in names if name in (WRONG, BAD)},
        failures=[_failure(v) for v in verdicts if v.status is Status.FAIL],
        environment=ENVIRONMENT,
        observed={BAD: {f"empty row {MARKUP}": BROKEN, "corner of the triangle": REVERSED}},
        weight_maps=maps,
    )


def _odd(name: str) -> str:
    return BROKEN + REVERSED if name == BAD else "Take the width of queries and keys."


def _subject(name: str) -> Subject:
    return Subject(
        name,
        about=f"a function {MARKUP}" if name == BAD else "a function of torch tensors",
        scope="op",
        features=tuple(sorted({Feature.CORE, Feature.BOOL_MASK, Feature.CAUSAL, Feature.SCALE})),
        dtypes=DTYPES_OF_RUN,
        conventions=dict(Conventions().items()) | ({"empty-row-bool": "nan"} if name == KNOWN else {}),
        target=f"/tmp/{BROKEN}.py:{MARKUP}" if name == BAD else "",
    )


def _verdict(name: str, clause: str, dtype: str) -> Verdict:
    level = load()[clause].level
    match name, clause:
        case "torch.known", "causal.square":
            known = run_builders.known(name, clause, dtype, reason="so", link=LINK)
            return replace(known, level=level, checks=7, worst=0.25)
        case "torch.known", "causal.no-future":
            return replace(unjudged(name, clause, dtype, reason="every bound is too wide"), level=level)
        case "torch.known", "masks.bool" if dtype == "float32":
            return replace(unclaimed(name, clause, dtype, reason="in float64 only"), level=level)
        case _, "scores.scale-default" | "masks.rank" | "causal.square" if name.startswith((WRONG, BAD)):
            wrong = failed(name, clause, dtype, f"output is 1, expected 2 {_odd(name)}", level)
            return replace(wrong, checks=7, failed=2, worst=2.5e9)
    return replace(passed(name, clause, dtype), level=level, checks=7, rms=0.9)


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


def _failure(verdict: Verdict, heads: int = 2) -> FailureRecord:
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
    """As many verdicts as a run over these has: of every clause that they claim. Two of them fail half of it."""
    chance = random.Random(1)
    failing = {subject.name for subject in subjects[-2:]}
    verdicts = [
        _drawn(subject.name, clause, dtype, chance, 0.5 if subject.name in failing else 0.0)
        for subject in subjects
        for clause in load().values()
        for dtype in subject.dtypes
        if claimed(clause, subject)
    ]
    return run(
        *verdicts,
        subjects=subjects,
        diagnoses=dict.fromkeys(failing, "matches `no-scale`: " + "words " * 20),
        failures=[_failure(v, heads=1) for v in verdicts if v.status is Status.FAIL],
        environment=ENVIRONMENT,
        observed={subject.name: {f"topic {n}": "answer " * 8 for n in range(13)} for subject in subjects},
        weight_maps={subject.name: _map(subject.name) for subject in subjects},
    )


def _drawn(name: str, clause: Clause, dtype: str, chance: random.Random, failing: float) -> Verdict:
    """About as many are known deviations, or not claimed, as of the built-in implementations."""
    if chance.random() < failing:
        message = "output of sample 0 head 1 query 2 component 0 is 1.5, expected 2.5"
        return replace(failed(name, clause.id, dtype, message, clause.level), checks=5, failed=3, worst=2e9)
    drawn = random.Random(f"{name} {clause.id}").random()  # the same in every dtype
    if drawn < 0.09:
        return unclaimed(name, clause.id, dtype, "its kernel takes no mask here")
    if drawn < 0.11:
        reason = "the fused kernel masks the future before it multiplies by the scale: scale 0 gives NaN"
        return replace(run_builders.known(name, clause.id, dtype, reason, LINK), level=clause.level)
    plain = passed(name, clause.id, dtype, worst=chance.random())
    return replace(plain, level=clause.level, checks=chance.randint(1, 90))
