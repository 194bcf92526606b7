"""Messages: what is written is read back, the published format can be read by its own library, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors import deserialize

from attention_conformance.implementations.worker.forms import problem_message, problem_of
from attention_conformance.implementations.worker.wire import (
    DTYPES,
    LENGTH,
    LONGEST,
    Message,
    WireError,
    decode,
    encode,
    length_of,
)
from attention_conformance.spec.cases import Case, Layout, MaskKind, Padding
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES as WORKING

ARRAYS = {name: np.arange(6).reshape(2, 1, 3).astype(dtype) for name, dtype in DTYPES.items()}
FIELDS = {"request": "run", "number": 3, "nested": {"scale": 0.1, "none": None, "list": [1, 2]}}


def header(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(LENGTH, "little") + text.encode() + data


def test_fields_and_arrays_of_every_dtype_are_read_back() -> None:
    written = encode(Message(FIELDS, {**ARRAYS, "empty": np.zeros((2, 0), np.float32), "single": np.array(1.0)}))
    assert length_of(written[:LENGTH]) == len(written) - LENGTH
    message = decode(written[LENGTH:])
    assert message.fields == FIELDS
    for name, array in ARRAYS.items():
        assert message.arrays[name].dtype == array.dtype
        assert message.arrays[name].tobytes() == array.tobytes()
        assert message.arrays[name].shape == array.shape
    assert message.arrays["empty"].shape == (2, 0)
    assert message.arrays["single"].shape == ()


def test_the_library_of_the_format_reads_a_message() -> None:
    blob = encode(Message(FIELDS, ARRAYS))[LENGTH:]
    tensors = dict(deserialize(blob))  # type: ignore[no-untyped-call]  # the library has no types
    assert set(tensors) == set(ARRAYS)
    for name, entry in tensors.items():
        assert (entry["dtype"], list(entry["shape"]), bytes(entry["data"])) == (name, [2, 1, 3], ARRAYS[name].tobytes())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"12345678",
        header("no JSON"),
        header("[]"),
        header('{"x": 1}'),
        header('{"__metadata__": {"a": "no JSON"}}'),
        header('{"x": {"dtype": "F12", "shape": [1], "data_offsets": [0, 4]}}', bytes(4)),
        header('{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(3)),
        header('{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', bytes(4)),
        header('{"x": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}', bytes(4)),
        header('{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', bytes(4)),
        header('{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}}', bytes(4)),
        header("[" * 100_000),
        b"\xff" * 64,
    ],
)
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(WireError, match=f"^{len(body)} bytes are no message: "):
        decode(body)


def test_a_length_beyond_every_message_is_refused() -> None:
    with pytest.raises(WireError, match=rf"^a message of {LONGEST + 1} bytes is announced"):
        length_of((LONGEST + 1).to_bytes(LENGTH, "little"))


def test_a_dtype_that_the_format_lacks_is_refused() -> None:
    with pytest.raises(WireError, match=r"^output is of dtype complex128, which no message can hold"):
        encode(Message({}, {"output": np.zeros(1, np.complex128)}))


CASES = (
    *(Case(layout=layout, mask=MaskKind.FLOAT, padding=Padding.RIGHT) for layout in Layout),
    Case(mask=MaskKind.BOOL, causal=True, scale=0.5).extended(sinks=True, alibi=True, window_left=2, chunks=(2, 3)),
    Case().as_self_attention(),
    Case().sized(batch=0),
)


@pytest.mark.parametrize("dtype", WORKING)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_problem_arrives_as_it_is_and_lies_in_memory_as_it_did(case: Case, dtype: str) -> None:
    problem = build(case, dtype).fresh()
    arrived = problem_of(decode(encode(problem_message(problem))[LENGTH:]))
    for name in ("scope", "num_heads", "causal", "scale", "needs", "sharing", "layout", "extension"):
        assert getattr(arrived, name) == getattr(problem, name), name
    before, after = problem.arrays(), arrived.arrays()
    assert list(before) == list(after)
    for name, array in before.items():
        assert (after[name].dtype, after[name].strides) == (array.dtype, array.strides), name
        assert after[name].tobytes() == array.tobytes()
        assert (after[name].base is None) == (array.base is None) or case.layout is not Layout.OFFSET, name
