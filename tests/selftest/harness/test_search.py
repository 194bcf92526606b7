"""The random search of the full tier: it checks what is claimed, and shrinks a failing case."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge
from attention_conformance.tests.harness.judge.search import search

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
EXAMPLES = 12


def _long_keys_lost(problem: Problem, device: str) -> Result:
    """Wrong from the 17th key on."""
    result = MATH.run(problem, device)
    return replace(result, output=result.output * np.float64(1.5)) if problem.key.shape[-2] > 16 else result


def test_a_right_implementation_is_checked_and_conforms() -> None:
    judge = Judge(MATH, "float64")
    search(judge, EXAMPLES)
    assert judge.tally.failed == 0
    assert judge.tally.checks + judge.tally.inconclusive >= EXAMPLES
    assert judge.tally.rms is not None
    assert not judge.unsupported


def test_a_failing_case_is_recorded_once_and_shrunk() -> None:
    judge = Judge(replace(MATH, name="late", run=_long_keys_lost), "float64")
    search(judge, 4 * EXAMPLES)
    assert judge.tally.failed >= 1
    sizes = Case.from_json(judge.tally.failures[0].case).sizes
    assert sizes.key_length == 17
    assert (sizes.batch, sizes.num_heads) == (1, 1)


def test_the_quick_tier_searches_nothing() -> None:
    judge = Judge(MATH, "float64")
    search(judge, 0)
    assert judge.tally.checks == 0


def test_a_failure_limit_ends_the_search_after_it_is_counted() -> None:
    judge = Judge(replace(MATH, name="late", run=_long_keys_lost), "float64", failure_limit=1)
    with pytest.raises(FailureLimitError):
        search(judge, 4 * EXAMPLES)
    assert judge.tally.failed >= 1


def test_a_failure_that_comes_and_goes_is_a_failure() -> None:
    calls = []

    def unsteady(problem: Problem, device: str) -> Result:
        calls.append(problem)
        result = MATH.run(problem, device)
        return replace(result, output=result.output * 2.0) if len(calls) == 5 else result

    judge = Judge(replace(MATH, name="unsteady", run=unsteady), "float64")
    search(judge, EXAMPLES)
    assert judge.tally.failed >= 1
