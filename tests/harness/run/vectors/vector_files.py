"""Vectors: writes the problems of a run into files, each with the expected answer and the bound of every element."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from attention_conformance import __version__
from attention_conformance.implementations.api.amended import WITH_RUNS
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.worker.forms import claims_fields, problem_message
from attention_conformance.implementations.worker.vectors import (
    FORMAT,
    MANIFEST,
    SUFFIX,
    VectorError,
    file_bytes,
    name_of,
    within,
)
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import PLAIN_FEATURES, Feature, Scope
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.report.verdict import Status

CORE = tuple(sorted(PLAIN_FEATURES))
"""The features of a set of vectors, unless others are named."""
UNSEEN = WITH_RUNS | {Feature.DROPOUT, Feature.EVALUATION, Feature.VIEWS, Feature.LINEAR_MEMORY}
"""Features that an answer in a file does not show."""
LARGEST = 4096
"""Elements of the largest array, unless another number is given."""


@dataclass
class Writer:
    """An implementation that answers as the reference does, and writes each problem that it meets into a file.

    Attributes:
        clause: the one that is being checked.
        clauses: for each file, the clauses that have its problem.
        dtypes: for each file, the dtype of its problem.
    """

    folder: Path
    claims: Claims
    clause: str = ""
    clauses: dict[str, set[str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __call__(self, problem: Problem, device: str) -> Result:
        message = problem_message(problem)
        name = name_of(message)
        expected = self._expected(problem)
        if name not in self.clauses:
            self.dtypes[name] = problem.dtype
            (self.folder / f"{name}{SUFFIX}").write_bytes(file_bytes(vector(message, expected)))
        self.clauses.setdefault(name, set()).add(self.clause)
        if expected is None:
            raise ValueError("the problem makes no sense")
        return _result(expected, problem.dtype)

    @property
    def written(self) -> list[str]:
        """The clauses that have a problem here."""
        return sorted(set().union(*self.clauses.values()))

    def leave_out(self, clause: str) -> None:
        """Removes a clause: its answer is not that of its problem alone, such as where only some rows count."""
        for name, own in list(self.clauses.items()):
            own.discard(clause)
            if not own:
                del self.clauses[name]
                (self.folder / f"{name}{SUFFIX}").unlink()

    def _expected(self, problem: Problem) -> dict[str, Expected] | None:
        """The parts that are claimed; None where the problem makes no sense."""
        returned = tuple(part for part, feature in RETURNED_AS.items() if feature in self.claims)
        try:
            parts = solve(problem, self.claims.conventions, returned=returned).parts
        except (ValueError, IndexError):
            return None
        return {name: part for name, part in parts.items() if name not in RETURNED_AS or name in returned}


def make_empty(folder: Path) -> None:
    """Makes a folder for vectors.

    Raises:
        VectorError: it has files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise VectorError(f"{folder} is not empty: give another folder")
    folder.mkdir(parents=True, exist_ok=True)


def vector(problem: Message, expected: Mapping[str, Expected] | None) -> Message:
    """A problem with its answer; None: it makes no sense, and is to be refused."""
    arrays = dict(problem.arrays)
    for name, part in (expected or {}).items():
        arrays[f"expected.{name}"] = part.value
        arrays[f"bound.{name}"] = np.broadcast_to(part.bound, part.value.shape)
    fields = {name: problem.fields[name] for name in sorted(problem.fields)}
    return Message({**fields, "refused": expected is None}, arrays)


def _result(expected: dict[str, Expected], dtype: str) -> Result:
    with np.errstate(over="ignore"):
        arrays = {name: part.value.astype(DTYPES[dtype]) for name, part in expected.items()}
    gradients = {name.removeprefix("gradients."): each for name, each in arrays.items() if "." in name}
    weights, averaged, log_sum_exp = map(arrays.get, RETURNED_AS)
    return Result(arrays["output"], weights, averaged, log_sum_exp, gradients)


@dataclass(frozen=True)
class Written:
    """What was written: how many files, of how many clauses, and their bytes."""

    files: int
    clauses: int
    size: int


def write_vectors(
    folder: Path,
    features: Sequence[str] = CORE,
    clauses: Sequence[str] = (),
    dtypes: Sequence[str] = ("float32",),
    conventions: Conventions = Conventions(),
    largest: int = LARGEST,
) -> Written:
    """Writes the problems of the quick tier for an op with these claims.

    Raises:
        VectorError: the folder has files, a feature cannot be shown by files, or nothing is selected.
    """
    claims = _claims(features, dtypes, conventions, largest)
    make_empty(folder)
    writer = Writer(folder, claims)
    reference = Implementation("reference", claims, writer)
    for each in Selection((reference,), tuple(clauses), tuple(dtypes)).plan():
        writer.clause = each.clause.id
        verdict = judged(each.clause, each.test, Judge(reference, each.dtype, selected=tuple(dtypes)))
        if verdict.status is Status.FAIL:
            writer.leave_out(each.clause.id)
    if not writer.clauses:
        raise VectorError(f"no clause that files can show is selected by {', '.join(clauses)}")
    _write_manifest(writer, largest)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Written(len(writer.clauses), len(writer.written), size)


def _claims(features: Sequence[str], dtypes: Sequence[str], conventions: Conventions, largest: int) -> Claims:
    for name in features:
        if name not in list(Feature) or Feature(name) in UNSEEN:
            known = ", ".join(each for each in Feature if each not in UNSEEN)
            raise VectorError(f"--feature {name}: no answer in a file shows it; choose from: {known}")
    own = frozenset(map(Feature, (*features, Feature.CORE)))
    return Claims(Scope.OP, own, conventions, tuple(dtypes), partial(within, largest=largest))


def _write_manifest(writer: Writer, largest: int) -> None:
    vectors = [
        {"name": name, "dtype": writer.dtypes[name], "clauses": sorted(own)} for name, own in writer.clauses.items()
    ]
    manifest = {
        "format": FORMAT,
        "versions": {"attention-conformance": __version__, "numpy": np.__version__},
        "claims": claims_fields(writer.claims),
        "clauses": list(writer.written),
        "largest": largest,
        "vectors": vectors,
    }
    (writer.folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
