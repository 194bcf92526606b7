"""Making candidates out of text: what the tests of functions and of module classes share."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.functions.functions import ALWAYS
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.reference.expected import RETURNED
from attention_conformance.reference.stacking import expected_answers
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

START = """
import functools
import math
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

def attend(q, k, v, mask=None, causal=False, scale=None):
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else s + mask
    p = s.softmax(-1)
    return p @ v, p, s.logsumexp(-1)

def split(x, heads):
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)
"""
OF_TENSORS = ALWAYS | {Feature.AUTOCAST, Feature.VMAP}
MASKS = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT}
WRAP = "or write an adapter, which `audit TARGET --write FILE` begins (docs/adapter.md)"
CASES = (
    Case(),
    Case(scale=0.7),
    Case(mask=MaskKind.BOOL),
    Case(mask=MaskKind.FLOAT),
    Case(padding=Padding.RIGHT),
    Case(causal=True),
    Case(sizes=Sizes(batch=0)),
)

Make = Callable[..., Implementation]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes a file, and makes a candidate of `f` in it, or of another name."""
    monkeypatch.chdir(tmp_path)

    def wrap(text: str, name: str = "f", **settings: str) -> Implementation:
        (tmp_path / "mine.py").write_text(START + text)
        return candidate(f"mine.py:{name}", {k.replace("_", "-"): v for k, v in settings.items()})

    return wrap


def write(folder: Path, name: str, text: str) -> Path:
    """A file in a folder, which is made where it is not there."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def failing(made: Implementation, *clauses: str, dtype: str = "float32") -> set[str]:
    """Those of these clauses that fail; something of them is checked, and none is an error."""
    found = run(made, clauses, (dtype,))
    assert any(each.checks for each in found)
    assert not [each.reason for each in found if each.status is Status.ERROR]
    return {each.clause for each in found if each.status is Status.FAIL}


def refused(make: Make, text: str, name: str = "f") -> str:
    with pytest.raises(TargetError) as caught:
        make(text, name)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"mine.py:{name}: ")
    return message.removeprefix(f"mine.py:{name}: ")


def assert_conforms(implementation: Implementation, dtype: str = "float32") -> None:
    """Checks every case that the claims allow, gradients and extras included; at least one."""
    claims = implementation.claims
    cases = [case for case in CASES if case.sizes.batch or Feature.EMPTY_SIZES in claims]
    fitted = [each for case in cases if not isinstance(each := fit(case, claims), Unsupported)]
    assert fitted
    for case in fitted:
        problem = build(case, dtype)
        if Feature.GRADIENTS not in claims:
            problem = problem.forward_only()
        if Feature.MASK_GRADIENT not in claims:
            problem = replace(problem, needs=tuple(n for n in problem.needs if n != "attn_mask"))
        expected = expected_answers(case, (dtype,), claims.conventions, Feature.GRADIENTS in claims, RETURNED)[dtype]
        result = implementation.run(problem.fresh(), "cpu")
        extras = [p for p in ("weights", "averaged_weights", "log_sum_exp") if Feature(p.replace("_", "-")) in claims]
        for part in ["output", *extras, *(f"gradients.{n}" for n in problem.needs)]:
            message = compare(part, part_of(result, part), expected[part], dtype).message
            assert not message, f"{case}: {message}"


@contextmanager
def forgotten(*names: str) -> Iterator[None]:
    """Modules of these names, and all below them, count as not imported, and as before afterwards."""
    before = dict(sys.modules)
    for name in [name for name in before if name.partition(".")[0] in names]:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name.partition(".")[0] in names})
