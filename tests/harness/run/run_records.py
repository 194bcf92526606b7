"""The records of a run in addition to its verdicts: suite, implementations, failures and weights as numbers."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance import __version__
from attention_conformance.implementations.api.contract import Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.defects import SCORE
from attention_conformance.implementations.worker.remote import Remote
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.failure_artifacts import FOLDER, Explained
from attention_conformance.tests.harness.explain.reduction import Outcome
from attention_conformance.tests.harness.judge.comparison import error_ratios
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.unusable import Unusable
from attention_conformance.tests.report.model import FailureRecord, Grid, Subject, Suite, WeightMap
from attention_conformance.tests.report.recorder import SPEC_VERSION

MOST_KEYS = 64
"""More are not measured from outside: each takes a call."""
RETURNED, MEASURED = "returned", "measured by changing one value at a time"
SAMPLE = Case(seed=101, score_std=2.0, causal=True).sized(batch=1, num_heads=4, query_length=10, key_length=10, d_k=8)
"""The case of every weight map."""


def failure_record(
    explained: Explained, implementation: Implementation, settings: RunSettings, command: str
) -> FailureRecord:
    """A failure, with the numbers of its smallest case if it was reduced."""
    file, reduced = explained.file, explained.counterexample
    record = FailureRecord(
        clause=explained.verdict.clause,
        implementation=explained.verdict.implementation,
        dtype=file.dtype,
        case=str(file.case),
        message=file.message if reduced is None else reduced.outcome.comparison.message,
        part=file.part,
        unreduced_reason=explained.without if reduced is None else "",
        script=explained.script,
        replay_file="" if settings.report is None else f"{FOLDER}/{file.name}.json",
        command=command,
    )
    if reduced is None:
        return record
    return _with_numbers(record, reduced.outcome, settings.judge(implementation, file.dtype))


def _with_numbers(record: FailureRecord, outcome: Outcome, judge: Judge) -> FailureRecord:
    problem, expected, got = outcome.problem, outcome.expected, outcome.got
    ratio = None
    if expected is not None and got is not None and np.isrealobj(got) and got.shape == expected.value.shape:
        ratio = error_ratios(got.astype(np.float64), expected)
    expected_weights, got_weights, _ = _weights(judge, problem)
    return replace(
        record,
        arrays={name: Grid.of(array) for name, array in problem.arrays().items()},
        expected=None if expected is None else Grid.of(expected.value),
        got=None if got is None else Grid.of(got),
        error_in_bounds=None if ratio is None else Grid.of(ratio),
        expected_weights=expected_weights,
        got_weights=got_weights,
    )


def weight_map(implementation: Implementation, device: str) -> WeightMap:
    """The weights of every head on one small case, causal if that is claimed."""
    claims = implementation.claims
    dtype = claims.dtypes[0] if claims.dtypes else "float32"
    case = fit_to_explain(replace(SAMPLE, causal=Feature.CAUSAL in claims), claims)
    if isinstance(case, Unsupported):
        return WeightMap(implementation.name, dtype, str(SAMPLE), case.reason)
    judge = Judge(implementation, dtype, device)
    expected, got, source = _weights(judge, judge.problem(case).forward_only())
    return WeightMap(implementation.name, dtype, str(case), source, expected, got)


def _weights(judge: Judge, problem: Problem) -> tuple[Grid | None, Grid | None, str]:
    """Of the first sample: those of the reference, those of the candidate, and their source, or why there are none."""
    forward = problem.forward_only()
    expected = solve(forward, judge.conventions).parts["weights"].value
    outcome = safe_call(lambda: _candidate_weights(judge, forward))
    got, source = outcome.value or (None, f"the candidate gives no answer: {outcome.error}")
    if got is not None and got.shape != expected.shape:
        source, got = f"they have shape {got.shape}, expected {expected.shape}", None
    return _first(expected), None if got is None else _first(got), source


def _first(samples: Array) -> Grid | None:
    return Grid.of(samples[0]) if len(samples) else None


def _candidate_weights(judge: Judge, problem: Problem) -> tuple[Array | None, str]:
    if Feature.WEIGHTS in judge.claims:
        return judge.run(problem).weights, RETURNED
    if problem.scope is not Scope.OP:
        return None, "none are returned, and projections hide them"
    if not 0 < problem.key.shape[-2] <= MOST_KEYS:
        return None, "too many keys to measure them from outside"
    return _from_outside(problem, judge.run), MEASURED


def _from_outside(problem: Problem, run: Callable[[Problem], Result]) -> Array:
    """(B, H, Lq, Lk): the output is linear in the values, so that a single value of 1 shows its weight."""
    columns = []
    for key in range(problem.key.shape[-2]):
        value = np.zeros_like(problem.value)
        value[..., key, :] = 1
        columns.append(run(problem.with_arrays({"value": value})).output.astype(np.float64)[..., 0])
    return np.stack(columns, axis=-1)


def subject_of(implementation: Implementation, target: str = "", candidate: bool = False) -> Subject:
    """An implementation's claims as plain values.

    Args:
        implementation: what is run.
        target: as `--candidate` takes it; empty for a built-in one, and for a candidate that is none of a command line.
        candidate: whether it is one, and not a part of the suite.
    """
    claims = implementation.claims
    return Subject(
        name=implementation.name,
        about=implementation.about,
        scope=str(claims.scope),
        features=tuple(sorted(claims.features)),
        dtypes=claims.dtypes,
        conventions=dict(claims.conventions.items()),
        premises=claims.premises.settings(),
        findings=dict(implementation.findings),
        as_seen=implementation.as_seen,
        stated=implementation.stated,
        unclaimed=implementation.unclaimed,
        target=target,
        isolated=isinstance(implementation.run, Remote | Unusable) if candidate or target else None,
    )


def suite_of(settings: RunSettings) -> Suite:
    """This suite, with its last mutation score, and the selection of a run."""
    score = json.loads(SCORE.read_text(encoding="utf-8"))
    return Suite(
        version=__version__,
        spec=SPEC_VERSION,
        tier=settings.tier,
        device=settings.device,
        clauses=settings.clauses,
        detected=score["killed"],
        defects=score["defects"],
        dtypes=settings.dtypes,
        shard=settings.shard,
    )
