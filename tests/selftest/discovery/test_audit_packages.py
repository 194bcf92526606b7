"""What is found of other packages' functions, next to the claims of their adapters; and the published table of that."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.compositions import eager
from attention_conformance.implementations.discovery.auditor.findings import (
    ABSENT,
    OFFERED,
    UNDETERMINED,
    Facts,
    Finding,
)
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.cli.matrix_packages import packages
from attention_conformance.tests.measurements import audit_packages
from attention_conformance.tests.measurements.audit_packages import AS_THEY_ARE, AUDITED, by_check, compared_with

FEATURES = frozenset({Feature.CORE, Feature.HEADS, Feature.CAUSAL, Feature.BOOL_MASK, Feature.SCALE})
SETTINGS = {"causal-alignment": "bottom-right"}
FOUND = {"level": "op", "heads": "many", "dtypes": "float32, float64", "scale": OFFERED, "causal": OFFERED}


def claimed(features: frozenset[Feature] = FEATURES, settings: Mapping[str, str] = SETTINGS) -> Implementation:
    """An adapter that claims so much."""
    claims = Claims(Scope.OP, features, Conventions().claiming(settings), ("float32",))
    return Implementation("adapter", claims, torch_op(eager))


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ({"causal-alignment": "bottom-right", "bool-mask": OFFERED}, ""),
        ({"causal-alignment": "top-left", "bool-mask": OFFERED}, "which causal-alignment"),
        ({"causal-alignment": "bottom-right", "bool-mask": ABSENT}, "bool-mask"),
        ({"causal-alignment": UNDETERMINED, "bool-mask": OFFERED}, "unseen"),
    ],
)
def test_findings_agree_with_a_claim_or_do_not(answers: Mapping[str, str], outcome: str) -> None:
    found = compared_with(claimed(), Facts.of(Finding(topic, answer) for topic, answer in {**FOUND, **answers}.items()))
    differing = [each.partition(":")[0] for each in found.differ]
    assert differing == ([outcome] if outcome not in ("", "unseen") else [])
    assert ("which causal-alignment" in found.unseen) == (outcome == "unseen")


def test_what_is_found_and_not_claimed_is_listed_for_itself() -> None:
    found = compared_with(
        claimed(), Facts.of(Finding(topic, answer) for topic, answer in {**FOUND, "softcap": OFFERED}.items())
    )
    assert found.beyond == ("softcap",)


def test_the_claims_of_check_are_compared_with_those_of_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "own_scale.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n\n\n"
        "def attention(query, key, value, attn_mask=None, is_causal=False):\n"
        "    return scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal)\n"
    )
    found = by_check(
        f"{tmp_path / 'own_scale.py'}:attention", claimed(settings={**SETTINGS, "causal-with-mask": "either"})
    )
    assert found.differ == ("scale: not claimed", "which causal-alignment: bottom-right claimed, top-left")
    assert {"float-mask", "gradients"} <= {*found.beyond}


def test_the_table_is_of_implementations_that_there_are() -> None:
    known = {f"{each.name}.{name}" for each in packages() for name in each.implementations}
    assert known >= {*AS_THEY_ARE}
    listed = {*json.loads(AUDITED.read_text(encoding="utf-8"))}
    assert listed
    assert known >= listed


def test_it_needs_nothing_in_another_environment_but_torch() -> None:
    """Packages bring NumPy, and torch is installed with them; what the suite's own reports need is not."""
    absent = ("pydantic", "jinja2", "pytest", "hypothesis", "covertable", "latex2mathml", "threadpoolctl")
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {audit_packages.__name__}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert not done.returncode, done.stderr
