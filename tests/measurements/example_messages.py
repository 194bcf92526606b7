"""Writes the example messages of the protocol, which docs/protocol.md describes: one exchange, byte by byte."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attention_conformance.implementations.worker.forms import problem_message
from attention_conformance.implementations.worker.hello import PROTOCOL
from attention_conformance.implementations.worker.wire import Message, encode
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "workers" / "messages"
CLAIMS = {"scope": "op", "features": ["core", "bool-mask"], "dtypes": ["float32"]}


def problem() -> Problem:
    """Two queries and two keys, of which the first query sees only the first."""
    query, key, value = (np.array([[rows]], np.float32) for rows in ([[1, 0], [0, 0]], [[0, 1], [1, 0]], [[2], [4]]))
    mask = np.array([[True, False], [True, True]])
    return Problem(scope=Scope.OP, query=query, key=key, value=value, num_heads=1, attn_mask=mask)


def output() -> Array:
    """The first value alone, and the mean of both."""
    return np.array([[[[2], [3]]]], np.float32)


def messages() -> Iterator[tuple[str, Message]]:
    """The names of the files, and what they hold."""
    hello = {"request": "hello", "number": 1, "target": "", "conventions": {}, "device": "cpu", "memory": None}
    yield "1-hello", Message(hello)
    yield "1-answer", Message({"number": 1, "protocol": PROTOCOL, "name": "example", "claims": CLAIMS})
    yield "2-run", problem_message(problem(), request="run", device="cpu", number=2)
    yield "2-answer", Message({"number": 2}, {"output": output()})
    yield "3-run", problem_message(problem().but(causal=True), request="run", device="cpu", number=3)
    yield "3-answer", Message({"number": 3, "error": "there is no causal flag", "exception": "ValueError"})


def main() -> None:
    """Writes them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, message in messages():
        (FOLDER / f"{name}.bin").write_bytes(encode(message))


if __name__ == "__main__":
    main()
