"""Native calls: what is timed answers as what is judged, without the adapter's own work."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attention_conformance.implementations.adapters.native import indirect, native
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge

CASES = (Case(), Case(causal=True), Case(padding=Padding.RIGHT))
INDIRECT = {"source.b.columns"}


def _parts(implementation: Implementation, case: Case) -> dict[str, float]:
    """The error of each part of a native answer, in units of its bound."""
    judge = Judge(implementation, "float64")
    problem = judge.problem(case).fresh()
    call = native(implementation, problem, "cpu")
    result = call.result(call.call())
    gradients = problem.cotangent is not None
    names = ["output", *(f"gradients.{name}" for name in problem.needs if gradients)]
    expected = judge.expected(case, gradients)
    return {name: compare(name, part_of(result, name), expected[name], "float64").worst for name in names}


@pytest.mark.parametrize("implementation", BUILTIN, ids=lambda i: i.name)
def test_a_native_call_gives_the_answer_that_is_judged(implementation: Implementation) -> None:
    fitted = [fit(case, implementation.claims) for case in CASES]
    allowed = [case for case in fitted if not isinstance(case, Unsupported)]
    assert allowed
    for case in allowed:
        assert max(_parts(implementation, case).values()) <= 1.0


def test_only_what_has_no_native_form_is_timed_through_its_run() -> None:
    judges = [Judge(i, "float32") for i in BUILTIN]
    calls = {j.implementation.name: native(j.implementation, _plain(j), "cpu") for j in judges}
    assert {name for name, call in calls.items() if not call.direct} == INDIRECT


def _plain(judge: Judge) -> Problem:
    case = fit(Case(), judge.claims)
    assert isinstance(case, Case)
    return judge.problem(case).fresh()


def test_parameters_that_stay_are_loaded_once_and_others_get_a_module_of_their_own() -> None:
    mha = next(i for i in BUILTIN if i.name == "torch.mha")
    case = fit(Case(), mha.claims)
    assert isinstance(case, Case)
    problem = build(case, "float32").forward_only()
    first = native(mha, problem.fresh(), "cpu")
    before = first.result(first.call()).output
    moved = problem.with_arrays({"query": problem.query * 2})
    assert isinstance(mha.run, TorchModule)
    (module,) = mha.run.timed.values()
    native(mha, moved.fresh(), "cpu")
    assert [*mha.run.timed.values()] == [module]
    native(mha, problem.with_arrays({"w_q": problem.parameters["w_q"] * 2}).fresh(), "cpu")
    assert module not in mha.run.timed.values()
    assert np.array_equal(first.result(first.call()).output, before)


def test_a_candidate_is_called_without_the_suite_between(tmp_path: Path) -> None:
    file = tmp_path / "written.py"
    file.write_text(
        "def attention(query, key, value, attn_mask=None, causal=False):\n"
        "    import torch\n"
        "    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=causal)\n"
    )
    written = candidate(f"{file}:attention", {})
    case = Case(causal=True).sized(d_v=4)
    assert max(_parts(written, case).values()) <= 1.0
    call = native(written, build(case, "float32").forward_only().fresh(), "cpu")
    assert call.direct
    assert isinstance(call.call(), torch.Tensor)


def test_an_own_run_is_called_as_it_is() -> None:
    sdpa = next(i for i in BUILTIN if i.name == "torch.sdpa")
    problem = build(Case(), "float32").forward_only()
    call = indirect(sdpa.run, problem.fresh(), "cpu")
    assert not call.direct
    assert np.array_equal(call.result(call.call()).output, sdpa.run(problem.fresh(), "cpu").output)
