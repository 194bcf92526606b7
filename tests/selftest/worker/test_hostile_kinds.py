"""Hostile and broken candidates, a line each: a reason where they fail; a right one next to them notices nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.safe_call import CandidateError, answer
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker import door
from attention_conformance.implementations.worker.limits import LONGEST
from attention_conformance.implementations.worker.remote import Remote, end_process, isolated_candidate
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import failing_checks
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.post_run import bad_ends
from attention_conformance.tests.harness.run.run_records import weight_map
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.harness.run.smoke import smoke
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict
from attention_conformance.tests.selftest.worker.hostile_texts import DYING, ENDING, HARMLESS, LATE, REFUSED, START
from attention_conformance.tests.selftest.worker.test_elsewhere import BLOCKING
from attention_conformance.tests.selftest.worker.test_hostile import processes

CLAUSE = "shapes.coincident"
PLAIN = scaled_dot_product_attention
PROBLEM = build(Case(), "float32")
ANSWERS: dict[str, Callable[[torch.Tensor], object]] = {
    "complex": lambda right: right.to(torch.complex64),
    "nested": lambda right: torch.nested.nested_tensor(list(right)),
    "sparse": lambda right: right.to_sparse(),
    "compressed": lambda right: right[0, 0].to_sparse_csr(),
    "without numbers": lambda right: right.to("meta"),
    "quantised": lambda right: torch.quantize_per_tensor(right, 0.1, 0, torch.qint8),
    "float8": lambda right: right.to(torch.float8_e4m3fn),
    "a text": lambda right: "x" * 10**7,
}
BACKWARD = """
import os, time, torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from attention_conformance import Claims, Feature, Implementation, Scope, torch_op

class Hostile(torch.autograd.Function):
    @staticmethod
    def forward(context, output):
        return output.clone()

    @staticmethod
    def backward(context, gradient):
        {}

CORE = frozenset({{Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.GRADIENTS}})
attention = Implementation("hostile", Claims(Scope.OP, CORE), torch_op(lambda q, k, v: Hostile.apply(sdpa(q, k, v))))
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two losses are as good as three: one as it is imported, and one in its first clause."""
    monkeypatch.setattr(door, "DEATHS", 2)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without torch, which starts soon."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "sitecustomize.py").write_text(BLOCKING)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="module")
def right(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Implementation]:
    """A candidate that is called between the hostile ones."""
    implementation = made(tmp_path_factory.mktemp("right"), python, "", "")
    yield implementation
    end_process(implementation)


def made(folder: Path, python: str, module: str, call: str, deadline: float = 60.0) -> Implementation:
    file = folder / "hostile.py"
    file.write_text(START.format(module=module, call=call or "pass"))
    return isolated_candidate(f"{file}:attention", {}, deadline=deadline, python=python, memory=2**31)


def verdict(right: Implementation, hostile: Implementation, clause: str = CLAUSE) -> Verdict:
    """That of the hostile candidate; the right one passes afterwards, and nothing is left running."""
    try:
        (own,) = run(hostile, (clause,), ("float32",))
    finally:
        end_process(hostile)
    (other,) = run(right, (CLAUSE,), ("float32",))
    assert other.status is Status.PASS
    assert isinstance(right.run, Remote)
    assert not right.run.door.deaths
    return own


@pytest.mark.parametrize(("module", "call", "words"), DYING.values(), ids=DYING)
def test_who_dies(python: str, right: Implementation, tmp_path: Path, module: str, call: str, words: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call))
    assert found.failure is not None
    assert found.failure.kind is FailureKind.DIED
    assert words in found.failure.message
    assert not processes(str(tmp_path))


@pytest.mark.parametrize(("module", "call"), LATE.values(), ids=LATE)
def test_who_hangs(python: str, right: Implementation, tmp_path: Path, module: str, call: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call, deadline=0.3))
    assert found.failure is not None
    assert found.failure.kind is FailureKind.TIMED_OUT
    assert "gave no answer within 0.3" in found.failure.message
    assert not processes(str(tmp_path))


@pytest.mark.parametrize(("module", "call", "words"), REFUSED.values(), ids=REFUSED)
def test_who_is_refused(python: str, right: Implementation, tmp_path: Path, module: str, call: str, words: str) -> None:
    found = verdict(right, made(tmp_path, python, module, call))
    assert found.failure is not None
    assert found.failure.kind is not FailureKind.DIED
    assert words in found.failure.message
    assert found.failure.message.isprintable()
    assert len(found.failure.message) < 2 * LONGEST


@pytest.mark.parametrize(("module", "call"), HARMLESS.values(), ids=HARMLESS)
def test_who_conforms(python: str, right: Implementation, tmp_path: Path, module: str, call: str) -> None:
    folder, environment = Path.cwd(), dict(os.environ)
    found = verdict(right, made(tmp_path, python, module, call))
    assert (found.status, found.message) == (Status.PASS, "")
    assert (Path.cwd(), dict(os.environ)) == (folder, environment)
    assert not processes("sleep 300")


@pytest.mark.parametrize(("module", "words"), ENDING.values(), ids=ENDING)
def test_who_dies_at_its_end(python: str, right: Implementation, tmp_path: Path, module: str, words: str) -> None:
    found = verdict(right, made(tmp_path, python, f"{module}\nprint('loaded')", ""), "effects.global-state")
    failed = found.failure is not None and found.failure.kind is FailureKind.DIED
    assert failed is bool(words)
    assert words in found.message
    assert (found.status is Status.PASS) is not failed


def test_a_bad_end_fails_whatever_was_selected(python: str, tmp_path: Path) -> None:
    hostile = made(tmp_path, python, "atexit.register(os._exit, 3)", "")
    verdicts = run(hostile, (CLAUSE,), ("float32",))
    (end,) = bad_ends([hostile], verdicts, RunSettings())
    assert end.failure is not None
    assert (end.clause, end.failure.kind) == ("effects.global-state", FailureKind.DIED)
    assert not list(bad_ends([hostile], [*verdicts, end], RunSettings()))


def test_who_refuses_all_but_one_case(python: str, right: Implementation, tmp_path: Path) -> None:
    refusal = "claims = {'fit': lambda case: Unsupported('\\x1b[2J\\ud800' + 'x' * 10**6)}"
    found = verdict(right, made(tmp_path, python, refusal, ""))
    assert found.status is Status.NOT_CLAIMED
    assert found.reason.isprintable()
    assert len(found.reason) < 400


def test_a_signature_that_is_none_is_read_from_the_code() -> None:
    def attention(query: Any, key: Any, value: Any, *, scale: float = 1.0) -> None: ...

    attention.__signature__ = "x"  # type: ignore[attr-defined]
    found = signature_of(attention).parameters
    assert list(found) == ["query", "key", "value", "scale"]
    assert found["scale"].default == 1.0


def test_an_object_that_raises_as_it_is_read_has_the_signature_of_its_call() -> None:
    class Closed:
        def __call__(self, query: Any, key: Any, value: Any) -> None: ...

        def __getattr__(self, name: str) -> None:
            raise RuntimeError(name)

    assert list(signature_of(Closed()).parameters) == ["query", "key", "value"]


def test_what_exits_as_it_is_looked_at_cannot_be_used(python: str, tmp_path: Path) -> None:
    exiting = "class Exits(Odd):\n    __signature__ = property(lambda self: sys.exit(0))\ninstead = Exits()"
    with pytest.raises(TargetError, match="it raised SystemExit when it was first called"):
        made(tmp_path, python, exiting, "")


def test_a_fit_that_fails_is_a_failure_of_its_clause_alone() -> None:
    claims = Claims(Scope.OP, frozenset({Feature.CORE}), fit=lambda case: sys.exit(0))
    implementation = Implementation("hostile", claims, torch_op(PLAIN))
    (found,) = run(implementation, (CLAUSE,), ("float32",))
    assert found.failure is not None
    assert found.failure.message == "raised SystemExit: 0"
    assert smoke(implementation, "cpu") == ()
    diagnose(implementation, failing_checks([found]), "cpu", ["float32"])
    assert weight_map(implementation, "cpu").source == "its fit failed: raised SystemExit: 0"


@pytest.mark.parametrize("made", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_array_of_real_numbers_is_refused(made: Callable[[torch.Tensor], object]) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return made(scaled_dot_product_attention(q, k, v))

    with pytest.raises(CandidateError):
        answer(torch_op(attention), PROBLEM.forward_only(), "cpu")


def test_a_sign_that_is_a_mark_of_the_tensor_is_read() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        right = scaled_dot_product_attention(q, k, v)
        marked = torch.complex(right, -right).conj().imag
        assert marked.is_neg()
        return marked

    marked, plain = (torch_op(each)(PROBLEM.forward_only(), "cpu").output for each in (attention, PLAIN))
    assert np.array_equal(marked, plain)


@pytest.mark.parametrize(
    ("body", "kind"),
    [("os.abort()", FailureKind.DIED), ("time.sleep(1000)", FailureKind.TIMED_OUT)],
    ids=["dies", "hangs"],
)
def test_what_happens_in_backward(right: Implementation, tmp_path: Path, body: str, kind: FailureKind) -> None:
    file = tmp_path / "hostile.py"
    file.write_text(BACKWARD.format(body))
    hostile = isolated_candidate(f"{file}:attention", {}, deadline=1.0)
    found = verdict(right, hostile, "gradients.value")
    assert found.failure is not None
    assert found.failure.kind is kind
