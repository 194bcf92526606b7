"""Skeleton adapters: what discovery cannot find out is open, and all else is filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.auditor.skeleton import Refusal, SkeletonError, skeleton
from attention_conformance.implementations.discovery.targets.loading import load_target
from attention_conformance.spec.features import Feature
from attention_conformance.tests.cli import audit_command
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.selftest.discovery.making import START, assert_conforms

MODULE = """
class f(nn.Module):
    def __init__(self, dim, zoom, heads):
        super().__init__()
        self.h, self.zoom = heads, zoom
        self.qkv, self.final = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim, bias=False)
    def forward(self, x, near):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * q.shape[-1] ** -0.5 + near.of(self.zoom.gain)
        return self.final((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
FUNCTION = """
def f(key, query, value, gain, *, bias=None):
    return attend(query, key, value, scale=gain[0])[0]
"""
SETTINGS = (
    MODULE.replace("dim, zoom, heads", "cfg").replace("heads, zoom", "cfg.heads, cfg.zoom").replace("dim", "cfg.dim")
)
COMPLETED = {
    "a module": (MODULE, {"zoom=...": "zoom=SimpleNamespace(gain=2.0)", "near=...": "near=Near()"}),
    "a module of settings": (SETTINGS, {"zoom=...": "zoom=SimpleNamespace(gain=2.0)", "near=...": "near=Near()"}),
    "a function": (FUNCTION, {"gain=...": "gain=[query.shape[-1] ** -0.5]"}),
}
NEAR = (
    "from types import SimpleNamespace\n\n\nclass Near:\n    def of(self, gain):\n        return 0.0 * gain\n\n\ndef "
)


@pytest.mark.parametrize(("text", "answers"), COMPLETED.values(), ids=COMPLETED)
def test_a_skeleton_that_is_completed_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, answers: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(START + text)
    written = skeleton("mine.py:f", load_target("mine.py:f"), "it is open", tmp_path)
    assert "TODO: it is open." in written
    assert written.count("=...") == len(answers)
    for question, answer in answers.items():
        written = written.replace(question, answer)
    (tmp_path / "found.py").write_text(written.replace("def ", NEAR, 1))
    adapter = load_target("found.py:adapter")
    assert isinstance(adapter, Implementation)
    assert (Feature.CROSS in adapter.claims) is ("def f(" in text)
    assert_conforms(adapter)


def test_the_command_writes_it_where_the_target_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object) -> None:
        raise SkeletonError(Refusal("its constructor needs 'zoom' too", "text"))

    monkeypatch.setattr(audit_command, "audit_apart", refuses)
    file = tmp_path / "found.py"
    assert audit_command.audit("mine.py:f", file) is ExitStatus.UNUSABLE
    assert file.read_text() == "text"
    message = capsys.readouterr().err
    assert "needs 'zoom'" in message
    assert "a skeleton: complete its TODO" in message
