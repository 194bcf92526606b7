"""Candidates in another environment, where nothing but NumPy is installed: no torch, no pytest, not this suite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.elsewhere import unusable
from attention_conformance.implementations.worker.remote import Remote, end_process, isolated_candidate
from attention_conformance.spec.features import Feature
from attention_conformance.tests.conformance.test_causal import SQUARE
from attention_conformance.tests.harness.explain.replay import FailureFile, ReplayError, replay
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.selection import UsageError, selection_of
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

ABSENT = ("attention_conformance", "torch", "pytest", "ml_dtypes", "safetensors", "hypothesis", "jax")
BLOCKING = f"""
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""
TARGET = """
import numpy as np
from attention_conformance import Claims, Feature, Implementation, Scope, numpy_op


def attention(query, key, value, is_causal=False):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], OFFSET, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


class Tensors:
    pass


def of_tensors(query, key, value):
    import torch


CORE = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.CAUSAL})
ours = Implementation("ours", Claims(Scope.OP, CORE), numpy_op(attention))
"""
CLAUSES = ("scores.dot-product", "causal.square", "effects.global-state", "effects.fresh-output")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that finds none of the packages in `ABSENT`."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKING)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def target(folder: Path, offset: str = "0") -> str:
    (folder / "theirs.py").write_text(TARGET.replace("OFFSET", offset))
    return f"{folder / 'theirs.py'}"


@pytest.mark.parametrize(("offset", "causal"), [("0", Status.PASS), ("1", Status.FAIL)])
def test_a_candidate_is_judged_there(python: str, tmp_path: Path, offset: str, causal: Status) -> None:
    loaded = isolated_candidate(f"{target(tmp_path, offset)}:ours", {}, python=python)
    assert isinstance(loaded.run, Remote)
    try:
        assert loaded.claims.dtypes == ("float64", "float32", "float16")
        assert "recorded_call" not in loaded.run.requests
        found = {v.clause: v.status for v in run(loaded, CLAUSES, ("float64",))}
    finally:
        loaded.run.door.end()
    assert found == {**dict.fromkeys(CLAUSES, Status.PASS), "causal.square": causal}


def test_a_failure_is_replayed_there(python: str, tmp_path: Path) -> None:
    case = SQUARE.sized(d_v=4)
    failure = FailureFile("ours", "causal.square", "float64", case, "", f"{target(tmp_path)}:ours", python=python)
    assert replay(failure, RunSettings(python=python)) == (
        True,
        [f"causal.square of ours in float64 holds now: {case}"],
    )
    with pytest.raises(ReplayError, match=f"is started only if you give it: --python {python}$"):
        replay(failure, RunSettings())


@pytest.mark.parametrize(("offset", "causal"), [("0", Status.PASS), ("1", Status.FAIL)])
def test_a_function_of_arrays_is_detected_there(python: str, tmp_path: Path, offset: str, causal: Status) -> None:
    loaded = isolated_candidate(f"{target(tmp_path, offset)}:attention", {}, python=python)
    try:
        assert loaded.about.startswith("a function of NumPy arrays")
        assert Feature.CAUSAL in loaded.claims
        assert Feature.GRADIENTS not in loaded.claims
        (verdict,) = run(loaded, ("causal.square",), ("float64",))
    finally:
        end_process(loaded)
    assert verdict.status is causal


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Tensors", "it is a class, and modules need torch, which is not installed here: give a function of query"),
        ("of_tensors", "it cannot be called with query, key and value of shape (B, H, L, d): ModuleNotFoundError"),
    ],
)
def test_what_needs_torch_is_refused_there(python: str, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        isolated_candidate(f"{target(tmp_path)}:{name}", {}, python=python)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "it ended with exit status 3"),
        ("echo first >&2; echo no module named numpy >&2; exit 1", "no module named numpy"),
        (None, "it cannot be started (No such file or directory)"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_reported(script: str | None, words: str, tmp_path: Path) -> None:
    program = tmp_path / "other"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    assert unusable(str(program)) == words
    settings = RunSettings(candidates=("a.py:b",), python=str(program))
    with pytest.raises(UsageError, match=r"^--python '.*/other': .*; it needs Python 3.11 and NumPy"):
        selection_of(settings)


def test_this_interpreter_can_be_used() -> None:
    assert unusable(sys.executable) == ""


@pytest.mark.parametrize("more", [{}, {"candidates": ("a.py:b",), "isolated": False}])
def test_an_environment_is_one_of_targets(more: dict[str, object]) -> None:
    settings = RunSettings(python=sys.executable, **more)  # type: ignore[arg-type]  # fields of several types
    with pytest.raises(UsageError, match=r"^--python is where targets are loaded: give --candidate TARGET too"):
        selection_of(settings)
