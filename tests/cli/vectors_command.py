"""The command `vectors`: problems with expected answers as files, for projects in any language."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace

from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.vectors import MODULE, VectorError, VectorSet
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.run.exit_status import ExitStatus


def write(given: Namespace) -> int:
    """Writes vectors, and returns the exit status."""
    from attention_conformance.tests.harness.run.vectors.vector_files import CORE, LARGEST, write_vectors

    try:
        written = write_vectors(
            given.folder,
            given.feature or CORE,
            given.clause,
            _dtypes(given.dtype),
            Conventions().claiming(_settings(given.convention)),
            LARGEST if given.largest is None else given.largest,
        )
    except (ValueError, OSError) as error:
        return _refused(str(error))
    print(f"written: {written.files} problems of {written.clauses} clauses, {written.size:,} bytes, in {given.folder}")
    return ExitStatus.CONFORMS


def import_cases(given: Namespace) -> int:
    """Writes the cases of others, and returns the exit status."""
    from attention_conformance.tests.harness.run.vectors.imported_vectors import write_onnx

    try:
        count = write_onnx(given.folder, _dtypes(given.dtype))
    except (VectorError, OSError) as error:
        return _refused(str(error))
    print(f"written: {count} node cases of ONNX Attention, with the answers that ONNX expects, in {given.folder}")
    return ExitStatus.CONFORMS


def answers_command(given: Namespace) -> list[str] | int:
    """The options with which the answers are judged; the exit status where they are judged already, or cannot be."""
    try:
        if given.answers is None or not given.answers.is_dir():
            raise VectorError(f"ANSWERS is {given.answers}: give the folder of the answers, a file for each problem")
        vectors = VectorSet.of(given.folder)
    except VectorError as error:
        return _refused(str(error))
    if vectors.source:
        from attention_conformance.tests.harness.run.vectors.imported_vectors import judge_imported

        status, lines = judge_imported(vectors, given.folder, given.answers)
        print("\n".join(lines))
        return status
    folders = (str(folder.resolve()) for folder in (given.folder, given.answers))
    command = shlex.join([*module_command(MODULE), *folders])
    return [f"--command={command}", *(f"--clause={clause}" for clause in vectors.clauses), "--first-screen"]


def _dtypes(names: list[str]) -> list[str]:
    for name in names:
        if name not in DTYPES:
            raise VectorError(f"--dtype {name}: choose from: {', '.join(DTYPES)}")
    return names or ["float32"]


def _settings(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise VectorError(f"--convention {text}: give KEY=VALUE")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def _refused(message: str) -> int:
    print(f"vectors: {message}", file=sys.stderr)
    return ExitStatus.UNUSABLE
