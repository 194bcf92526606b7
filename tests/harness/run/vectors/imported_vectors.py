"""Imported vectors: cases of others with expected answers of their own as files, and answers compared with them."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from attention_conformance import __version__
from attention_conformance.implementations.worker.forms import problem_message
from attention_conformance.implementations.worker.vectors import (
    FORMAT,
    MANIFEST,
    SUFFIX,
    VectorError,
    VectorSet,
    file_bytes,
)
from attention_conformance.implementations.worker.wire import WireError, decode
from attention_conformance.reference.expected import Expected
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.vectors.onnx_cases import (
    ATTENTION,
    NotExpressibleError,
    imported,
    onnx_cases,
)
from attention_conformance.tests.harness.run.vectors.vector_files import make_empty, vector

HOLDS, FAILS, REFUSED, ABSENT = "hold", "fail", "are refused", "have no answer"


def write_onnx(folder: Path, dtypes: Sequence[str] = ("float32",)) -> int:
    """Writes the node cases of ONNX Attention in these dtypes, and returns how many.

    Raises:
        VectorError: the folder has files, onnx is not installed, or it has no such cases.
    """
    try:
        source = f"node cases of ONNX Attention, onnx {version('onnx')}"
    except PackageNotFoundError:
        raise VectorError("onnx is not installed: pip install onnx") from None
    make_empty(folder)
    written = []
    for case in onnx_cases(ATTENTION):
        try:
            problem, expected = imported(case)
        except NotExpressibleError:
            continue
        if problem.dtype in dtypes:
            message = vector(problem_message(problem), {"output": expected})
            (folder / f"{case.name}{SUFFIX}").write_bytes(file_bytes(message))
            written.append({"name": case.name, "dtype": problem.dtype, "clauses": []})
    if not written:
        raise VectorError(f"{source} has no cases in {', '.join(dtypes)}")
    versions = {"attention-conformance": __version__, "numpy": np.__version__, "onnx": version("onnx")}
    manifest = {"format": FORMAT, "source": source, "versions": versions, "claims": {}, "clauses": [], "largest": 0}
    text = json.dumps({**manifest, "vectors": written}, indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    return len(written)


@dataclass(frozen=True)
class Judged:
    """What the answer to one case is worth; `why` where it fails."""

    name: str
    outcome: str
    why: str = ""


def judge_imported(vectors: VectorSet, folder: Path, answers: Path) -> tuple[ExitStatus, list[str]]:
    """The exit status and the lines of a comparison of answers with the cases of a folder."""
    judged = [_judged(folder, answers, name) for name in sorted(vectors.names)]
    counts = Counter(each.outcome for each in judged)
    parts = [f"{counts[outcome]} {outcome}" for outcome in (HOLDS, FAILS, REFUSED, ABSENT) if counts[outcome]]
    lines = [f"{vectors.source}: of {len(judged)} {', '.join(parts)}", *_failing(judged)]
    if counts[FAILS]:
        return ExitStatus.FAILS, lines
    if counts[ABSENT]:
        return ExitStatus.INTERRUPTED, lines
    return (ExitStatus.CONFORMS if counts[HOLDS] else ExitStatus.NOTHING_CHECKED), lines


def _failing(judged: Sequence[Judged]) -> Iterator[str]:
    for each in judged:
        if each.outcome == FAILS:
            yield f"FAIL  {each.name}: {each.why}"


def _judged(folder: Path, answers: Path, name: str) -> Judged:
    file = answers / f"{name}{SUFFIX}"
    if not file.is_file():
        return Judged(name, ABSENT)
    given = decode((folder / file.name).read_bytes()).arrays
    try:
        answer = decode(file.read_bytes())
    except WireError as error:
        return Judged(name, FAILS, f"it is no answer: {error}")
    if "error" in answer.fields:
        return Judged(name, REFUSED)
    expected = Expected(given["expected.output"], given["bound.output"])
    found = compare("output", answer.arrays.get("output"), expected, given["query"].dtype.name)
    return Judged(name, FAILS if found.kind is not None else HOLDS, found.message)
