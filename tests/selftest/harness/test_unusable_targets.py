"""A target that cannot be used is an error of its own where others are judged, and ends the run where it is alone."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.tests.harness.run.plan.unusable import loaded_or_error, require_usable
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.counts import Conformance, conformance

HERE = f"{__file__}:attention"
WHY = "it returned an object of type generator"


def refused(target: str) -> Implementation:
    raise TargetError(f"{target}: {WHY}")


def test_one_of_several_is_an_error() -> None:
    implementation = loaded_or_error(refused, [HERE, "os:fork"])(HERE)
    verdicts = run(implementation, ("scores.*",), ("float32",))
    assert implementation.name == "attention"
    assert {each.reason for each in verdicts} == {f"{HERE}: {WHY}"}
    assert conformance(verdicts, complete=True) is Conformance.ERROR


@pytest.mark.parametrize(
    ("target", "targets"), [(HERE, [HERE]), ("nowhere.py:f", ["nowhere.py:f", HERE])], ids=["alone", "mistyped"]
)
def test_what_ends_the_run_at_once(target: str, targets: list[str]) -> None:
    with pytest.raises(TargetError, match=WHY):
        loaded_or_error(refused, targets)(target)


def test_a_run_in_which_none_can_be_used_does_not_start() -> None:
    load = loaded_or_error(refused, ["os:fork", HERE])
    with pytest.raises(TargetError, match=f"^os:fork: {WHY}"):
        require_usable([load("os:fork"), load(HERE)])
    require_usable([])
