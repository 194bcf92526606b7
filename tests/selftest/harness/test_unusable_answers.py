"""Whatever a candidate returns, it fails with a reason, and no report is lost: in every step of a run."""

import json
from pathlib import Path

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.selftest.sessions import CANDIDATES, Sessions

LATE = """
import torch

class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("no operation is supported")

CHANGES = {
    "complex_numbers": lambda x: x + 1j,
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "sparse": lambda x: x.to_sparse(),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 10, torch.quint8),
    "meta": lambda x: x.to("meta"),
    "subclass": lambda x: x.as_subclass(Odd),
    "nothing": lambda x: None,
}

def make(change):
    calls = []

    def attention(query, key, value):
        calls.append(1)
        output = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        return change(output) if len(calls) > FIRST else output

    return attention

FIRST = 60  # the first calls, which detect what the function takes, are right
globals().update({name: make(change) for name, change in CHANGES.items()})
"""
RESULTS = (
    CANDIDATES
    + """
class Broken(Exception):
    def __str__(self):
        raise ValueError("it has no text")

CHANGES = {
    "complex_numbers": lambda x: x + 1j,
    "objects": lambda x: x.astype(object),
    "masked": lambda x: np.ma.masked_array(x, mask=x > 0),
    "dates": lambda x: x.astype("datetime64[s]"),
    "listed": lambda x: x.tolist(),
    "absent": lambda x: None,
    "scalar": lambda x: np.float64(1.0),
    "integers": lambda x: x.astype(np.int64),
}
globals().update({name: candidate(name, output(change)) for name, change in CHANGES.items()})
broken = candidate("broken", raising(Broken()))

def in_gradients(problem, device):
    result = MATH.run(problem, device)
    return replace(result, gradients={name: g + 1j for name, g in result.gradients.items()})

gradients = candidate("gradients", in_gradients)
"""
)
IN_RESULTS = {
    "complex_numbers": "returned output in complex128, not in real numbers",
    "objects": "returned output in object, not in real numbers",
    "masked": "returned output as MaskedArray, not as a NumPy array",
    "dates": "returned output in datetime64[s], not in real numbers",
    "listed": "returned output as list, not as a NumPy array",
    "absent": "returned output as NoneType, not as a NumPy array",
    "scalar": "returned output as float64, not as a NumPy array",
    "integers": "output has dtype int64, expected float64, the dtype of the inputs",
    "broken": "raised Broken: no message",
}
IN_FUNCTIONS = {
    "complex_numbers": "returned output in complex128, not in real numbers",
    "nested": "raised RuntimeError: ",
    "sparse": "raised TypeError: ",
    "quantised": "raised TypeError: ",
    "meta": "returned its output on device 'meta', while the inputs are on 'cpu'",
    "subclass": "raised RuntimeError: no operation is supported",
    "nothing": "raised TypeError: a tensor was expected, got NoneType",
}
GRADIENTS = ("--clause", "causal.square", "--clause", "gradients.key")
SHAPES = ("--clause", "scores.*", "--clause", "shapes.*")


@pytest.mark.parametrize(
    ("source", "name", "reason", "clauses"),
    [
        *((RESULTS, name, f"{name} in float64: {reason}", GRADIENTS) for name, reason in IN_RESULTS.items()),
        (RESULTS, "gradients", "returned the gradient of query in complex128, not in real numbers", GRADIENTS),
        *((LATE, name, f"{name} in float64: {reason}", SHAPES) for name, reason in IN_FUNCTIONS.items()),
    ],
)
def test_an_unusable_answer_fails_with_its_reason(
    sessions: Sessions, tmp_path: Path, source: str, name: str, reason: str, clauses: tuple[str, ...]
) -> None:
    sessions.file.write_text(source)
    result = sessions.judge(name, *clauses, "--report", str(tmp_path / "report"))
    assert result.ret == ExitStatus.FAILS
    assert reason in result.stdout.str()
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["completion"]["complete"] is True
