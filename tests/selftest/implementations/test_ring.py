"""The ring: equal to one process within the bounds, however the sequence is cut."""

import shlex

import pytest
import torch

from attention_conformance.implementations.builtin.inhouse import ring_entries
from attention_conformance.implementations.builtin.inhouse.ring import merged
from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.ranks import MODULE
from attention_conformance.implementations.worker.remote import commanded_candidate, end_process
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.reference.test_family import assert_agrees
from attention_conformance.tests.selftest.thorough import by_turns

CASES = {
    "a length that is no multiple": Case(),
    "causal": Case(causal=True).sized(query_length=9, key_length=9),
    "causal, more keys than queries": Case(causal=True, scale=0.3).sized(query_length=3, key_length=10),
    "causal, over tiles": Case(causal=True).sized(batch=1, query_length=131, key_length=150),
    "groups": Case(sizes=Sizes(num_heads=6, num_kv_heads=2), causal=True),
    "a window across slices": Case().sized(query_length=9, key_length=9).extended(window_left=3, window_right=2),
    "a window and a later start": Case(causal=True).extended(window_left=2, query_start=2, alibi=True, softcap=2.0),
    "fewer tokens than processes": Case().sized(query_length=1, key_length=2),
    "no key": Case().sized(key_length=0),
    "no query": Case().sized(query_length=0),
}


@pytest.mark.parametrize("processes", by_turns([2, 4, 1], 3))
def test_agrees_however_the_sequence_is_cut(processes: int) -> None:
    command = [*module_command(MODULE), "--processes", str(processes), f"{ring_entries.__name__}:RING"]
    ring = commanded_candidate(shlex.join(command), {})
    try:
        for case in CASES.values():
            for dtype in ("float64", "bfloat16"):
                assert_agrees(ring, dtype, case)
        verdicts = run(ring, ("relations.alternatives", "errors.heads", "gradients.shared-input"), ("float64",))
        assert {each.clause: each.status for each in verdicts if each.status is not Status.PASS} == {}
    finally:
        end_process(ring)


def test_parts_that_saw_no_key_are_merged() -> None:
    none, lse = torch.zeros(1, 1, 2, 3), torch.full((1, 1, 2), -torch.inf)
    some, other = torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2)
    for parts in ((none, lse, some, other), (some, other, none, lse)):
        output, whole = merged(*parts)
        assert torch.equal(output, some)
        assert torch.equal(whole, other)
    output, whole = merged(none, lse, none, lse)
    assert not output.any()
    assert torch.equal(whole, lse)
