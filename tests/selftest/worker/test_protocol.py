"""The page of the protocol: its example messages are what the suite writes, and it names every field and request."""

import pytest

from attention_conformance.implementations.worker.forms import problem_of
from attention_conformance.implementations.worker.hello import PROTOCOL, REQUESTS, ClaimsForm, Hello
from attention_conformance.implementations.worker.serve import OPERATIONS
from attention_conformance.implementations.worker.wire import DTYPES, LENGTH, Message, WireError, decode, encode
from attention_conformance.reference.expected import solve
from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.measurements.example_messages import FOLDER, messages
from attention_conformance.tests.selftest.sessions import ROOT

EXAMPLES = dict(messages())
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def read(name: str) -> Message:
    return decode((FOLDER / f"{name}.bin").read_bytes()[LENGTH:])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_the_suite_writes(name: str) -> None:
    assert (FOLDER / f"{name}.bin").read_bytes() == encode(EXAMPLES[name])


def test_there_is_no_other_example_and_the_page_names_each() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)
    assert all(f"`{name}.bin`" in PAGE for name in EXAMPLES)


def test_the_answers_of_the_examples_are_right() -> None:
    assert Hello.of(read("1-answer").fields).name == "example"
    expected = solve(problem_of(read("2-run")), Conventions()).parts["output"]
    assert (abs(read("2-answer").arrays["output"] - expected.value) <= expected.bound).all()


def test_the_page_names_everything() -> None:
    problem = {name for name in read("2-run").fields if name not in ("number", "request")}
    fields = {*Hello.__dataclass_fields__, *ClaimsForm.__dataclass_fields__, *problem, *OPERATIONS, *REQUESTS, *DTYPES}
    assert {name for name in fields if f"`{name}`" not in PAGE} == set()
    assert f"version {PROTOCOL}" in PAGE


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_fields_hold_no_numbers_that_json_lacks(number: float) -> None:
    with pytest.raises(WireError, match=r"^the field scale holds NaN or infinity, which JSON lacks"):
        encode(Message({"scale": number}))
    with pytest.raises(WireError, match=r"which JSON lacks$"):
        decode(_unchecked(number))


def _unchecked(number: float) -> bytes:
    text = f'{{"__metadata__": {{"scale": "{"NaN" if number != number else "Infinity"}"}}}}'.encode()
    return len(text).to_bytes(LENGTH, "little") + text
