"""Adapters that the auditor writes: read as they are, and run in the suite unchanged."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.auditor.adapter_text import adapter_text
from attention_conformance.implementations.discovery.auditor.audit import audit
from attention_conformance.implementations.discovery.auditor.findings import Finding
from attention_conformance.implementations.discovery.targets.loading import load_target
from attention_conformance.spec.conventions import Alignment, Conventions, EmptyRow, Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.cli.audit_command import ORACLE
from attention_conformance.tests.selftest.sessions import SUITE

pytest_plugins = ["pytester"]
SOURCE = '''
import numpy as np

from attention_conformance.tests.measurements.audit_targets import blhd_masked_out as masked_out


def arrays(query, key, value, attn_mask=None, is_causal=False):
    """Bottom-right, NaN for rows without keys, and the weights."""
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    if is_causal:
        late = np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool)
        scores = np.where(late, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ value, weights


def wrong(query, key, value, attn_mask=None):
    """Divides by d_k."""
    scores = query @ key.mT / query.shape[-1]
    return (scores if attn_mask is None else scores.masked_fill(~attn_mask, -1e9)).softmax(-1) @ value
'''
CLAUSES = ("scores.dot-product", "scores.scale-default", "masks.bool", "masks.empty-row-bool", "causal.alignment")


def written(target: str, folder: Path, name: str) -> Path:
    adapter, findings = audit(load_target(target), ORACLE)
    file = folder / f"{name}.py"
    file.write_text(adapter_text(target, adapter, findings, folder))
    return file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    return file


def suite(pytester: pytest.Pytester, *files: Path) -> Any:
    options = [f"--candidate={file}:adapter" for file in files] + [f"--clause={clause}" for clause in CLAUSES]
    return pytester.runpytest_inprocess(*SUITE, *options, "--dtype=float64")


def loaded(file: Path) -> Implementation:
    result = load_target(f"{file}:adapter")
    assert isinstance(result, Implementation)
    return result


def test_that_right_ones_conform(pytester: pytest.Pytester, source: Path) -> None:
    files = [
        written("torch.nn.functional:scaled_dot_product_attention", source.parent, "of_sdpa"),
        written("torch.nn:MultiheadAttention", source.parent, "of_mha"),
        written(f"{source}:masked_out", source.parent, "of_masked_out"),
        written(f"{source}:arrays", source.parent, "of_arrays"),
    ]
    counts = suite(pytester, *files).parseoutcomes()
    assert counts.get("failed", 0) == 0
    assert counts["passed"] >= 4 * len(CLAUSES) - 2


def test_that_a_wrong_one_fails(pytester: pytest.Pytester, source: Path) -> None:
    file = written(f"{source}:wrong", source.parent, "of_wrong")
    counts = suite(pytester, file).parseoutcomes()
    assert counts["failed"] >= 2
    assert "Not determined:\n# - plain answer" in file.read_text()


def test_that_claims_are_the_findings(source: Path) -> None:
    conventions = loaded(written(f"{source}:arrays", source.parent, "adapter")).claims.conventions
    nan = EmptyRow.NAN
    assert conventions == Conventions(
        causal_alignment=Alignment.BOTTOM_RIGHT, empty_row_bool=nan, empty_row_float=nan, empty_row_causal=nan
    )
    claims = loaded(written(f"{source}:masked_out", source.parent, "other")).claims
    assert claims.conventions.bool_mask is Polarity.MASKED_OUT
    assert Feature.FLOAT_MASK not in claims


def test_that_an_adapter_reads_like_one_written_by_hand(source: Path) -> None:
    text = written(f"{source}:masked_out", source.parent, "adapter").read_text()
    assert "from mine import masked_out as target" in text
    assert "return x.permute(0, 2, 1, 3)" in text
    assert (
        'options["mask"] = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask  # True means masked out' in text
    )
    assert 'options["causal"] = options.pop("is_causal")' in text
    assert "Feature.CAUSAL,  # Lq 7, Lk 7: query 2 used keys 0..2" in text
    assert max(map(len, text.splitlines())) <= 120
    used = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    unused = {"Any", "torch", "Tensor", "Conventions", "Polarity"} - used
    assert unused <= {"Any"}


def test_that_a_function_called_as_the_suite_calls_one_needs_no_more_than_claims(tmp_path: Path) -> None:
    text = written("torch.nn.functional:scaled_dot_product_attention", tmp_path, "adapter").read_text()
    assert "def " not in text
    assert "torch_op(target)," in text


def test_a_target_in_another_folder(source: Path) -> None:
    folder = source.parent / "adapters"
    folder.mkdir()
    file = written(f"{source}:arrays", folder, "adapter")
    assert 'load_target(str(Path(__file__).parent / "../mine.py") + ":arrays")' in file.read_text()
    assert loaded(file).name == "arrays"


def test_an_implementation_as_target(tmp_path: Path) -> None:
    source = tmp_path / "other.py"
    source.write_text(
        "from attention_conformance.implementations.builtin.compositions import COMPOSITIONS\nfound = COMPOSITIONS[0]\n"
    )
    text = written(f"{source}:found", tmp_path, "adapter").read_text()
    assert "target.run," in text
    assert "empty_row_bool=EmptyRow.NAN" in text


def test_that_the_evidence_of_a_candidate_cannot_end_a_comment(tmp_path: Path) -> None:
    def hostile(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        raise ValueError('a"""b\\\r\nimport os')

    adapter, result = audit(load_target("torch.nn.functional:scaled_dot_product_attention"), ORACLE)
    hostile_findings = [*result, Finding("window", "offered", 'x"""\nraise SystemExit\r\u2028boom')]
    file = tmp_path / "adapter.py"
    file.write_text(
        adapter_text("torch.nn.functional:scaled_dot_product_attention", adapter, hostile_findings, tmp_path)
    )
    spec = importlib.util.spec_from_file_location("adapter_of_hostile_findings", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    with pytest.raises(Exception, match="no way to call it"):
        audit(hostile, ORACLE)
