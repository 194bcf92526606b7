"""Vectors: written to the bit, read in other languages, and judged as the implementation that answered them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from attention_conformance.implementations.api.safe_call import CandidateError, answer
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.forms import problem_of, result_message
from attention_conformance.implementations.worker.remote import commanded_candidate, end_process
from attention_conformance.implementations.worker.vectors import MODULE, SUFFIX, VectorError, VectorSet, file_bytes
from attention_conformance.implementations.worker.wire import Message, decode
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.cli import main
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.vectors.vector_files import UNSEEN, write_vectors
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.selftest.sessions import ROOT

EXAMPLES = ROOT / "docs" / "examples" / "vectors"
MATH = next(each for each in TORCH_OPS if each.name == "torch.sdpa.math")
WRITTEN = ("scores.dot-product", "causal.square", "masks.bool", "errors.width", "gradients.query")
"""Clauses of which one compares, one has the flag, one a mask, one refusals, and one gradients."""
FEATURES = ("core", "heads", "value-width", "cross", "key-value", "scale", "bool-mask", "causal", "gradients")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "vectors"
    write_vectors(folder, FEATURES, WRITTEN)
    return folder


def problem(file: Path) -> Problem:
    message = decode(file.read_bytes())
    own = {name: each for name, each in message.arrays.items() if not name.startswith(("expected.", "bound."))}
    return problem_of(Message(message.fields, own))


def answered(vectors: Path, folder: Path, scale: float = 1.0) -> Path:
    """What torch answers to each, with its scale off by a factor."""
    folder.mkdir()
    for file in vectors.glob(f"*{SUFFIX}"):
        given = problem(file)
        wrong = given.but(scale=scale * (given.scale or given.query.shape[-1] ** -0.5)) if scale != 1.0 else given
        try:
            message = result_message(answer(MATH.run, wrong, "cpu"))
        except CandidateError as error:
            message = Message({"error": str(error), "exception": error.exception})
        (folder / file.name).write_bytes(file_bytes(message))
    return folder


def verdicts(vectors: Path, answers: Path, *clauses: str) -> dict[str, Verdict]:
    command = " ".join([*module_command(MODULE), str(vectors), str(answers)])
    candidate = commanded_candidate(command, {})
    try:
        checks = ((name, Judge(candidate, "float32")) for name in clauses)
        return {name: judged(load()[name], clause_tests()[name], judge) for name, judge in checks}
    finally:
        end_process(candidate)


def test_right_answers_conform_and_wrong_ones_do_not(vectors: Path, tmp_path: Path) -> None:
    right = verdicts(vectors, answered(vectors, tmp_path / "right"), *WRITTEN)
    assert {each.status for each in right.values()} == {Status.PASS}
    wrong = verdicts(vectors, answered(vectors, tmp_path / "wrong", 1.01), *WRITTEN)
    assert {name for name, each in wrong.items() if each.status is Status.PASS} == {"errors.width"}


def test_what_was_not_answered_is_an_error_and_no_failure(vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    absent = verdicts(vectors, tmp_path / "none", "errors.width", "values.width")
    assert {each.status for each in absent.values()} == {Status.ERROR}
    assert "the answers are not complete" in absent["errors.width"].reason
    assert "its problem is not among the vectors" in absent["values.width"].reason


def test_a_file_that_is_no_answer_fails(vectors: Path, tmp_path: Path) -> None:
    for file in vectors.glob(f"*{SUFFIX}"):
        (tmp_path / file.name).write_bytes(b"x" * 20)
    broken = verdicts(vectors, tmp_path, "scores.dot-product")["scores.dot-product"]
    assert broken.failure is not None
    assert "is no answer: 20 bytes are no message" in broken.failure.message


def test_vectors_are_the_same_to_the_bit(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        write_vectors(folder, clauses=("scores.scale-default",))
    assert {file.name: file.read_bytes() for file in first.iterdir()} == {
        file.name: file.read_bytes() for file in second.iterdir()
    }


def test_a_clause_whose_answer_is_not_that_of_its_problem_is_left_out(tmp_path: Path) -> None:
    every = [str(each) for each in Feature if each not in UNSEEN]
    write_vectors(tmp_path / "vectors", every, ("packed.con*", "gradients.shared-input", "gradients.query"))
    assert VectorSet.of(tmp_path / "vectors").clauses == ("gradients.query",)


@pytest.mark.parametrize(
    ("features", "clauses", "words"),
    [
        (["core", "dropout"], [], "--feature dropout: no answer in a file shows it; choose from: core"),
        (["core"], ["nothing.*"], "no clause that files can show is selected by nothing.*"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused(features: list[str], clauses: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(VectorError) as caught:
        write_vectors(tmp_path / "vectors", features, clauses)
    assert words in str(caught.value)


def test_a_folder_with_files_is_not_written_into(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["vectors", "write", str(vectors)]) == ExitStatus.UNUSABLE
    assert capsys.readouterr().err == f"vectors: {vectors} is not empty: give another folder\n"


@pytest.mark.parametrize("answers", ["", "absent"])
def test_answers_that_are_not_there_are_refused(
    answers: str, vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["vectors", "judge", str(vectors), *answers.split()]) == ExitStatus.UNUSABLE
    assert "give the folder of the answers" in capsys.readouterr().err


def test_a_folder_that_is_no_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(VectorError, match="is of format 'other', not 'attention-conformance/vectors/1'"):
        VectorSet.of(tmp_path)


READERS = {
    "vectors.mjs": ("node", ["node", "vectors.mjs"], "(row % Lq) + 1"),
    "attention.cpp": ("c++", ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", "reader"], "row % lq + 1"),
    "vectors.rs": ("rustc", ["rustc", "--edition", "2021", "-D", "warnings", "-o", "reader"], "row % lq + 1"),
}
"""For each example what it needs, the command that builds or runs it, and the text that makes its causal flag right."""


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("example", READERS)
def test_an_example_reads_what_was_written(example: str, wrong: bool, vectors: Path, tmp_path: Path) -> None:
    program, command, flag = READERS[example]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / example).read_text()
    assert flag in text
    (tmp_path / example).write_text(text.replace(flag, flag.replace("1", "2")) if wrong else text)
    if program != "node":
        subprocess.run([*command, example], cwd=tmp_path, check=True)
        command = ["./reader"]
    done = subprocess.run([*command, str(vectors)], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    hold, _, fail, *_ = done.stdout.split()
    assert int(hold) > 0, done.stderr
    assert (int(fail) > 0, done.returncode) == (wrong, int(wrong))
