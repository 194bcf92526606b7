"""Messages between judge and worker: each is a safetensors blob, with plain fields as JSON in its metadata.

A message is preceded by its length, 8 bytes, the least significant first. docs/protocol.md describes all messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, BinaryIO

import numpy as np

from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import Array

ml_dtypes = optional("ml_dtypes")
OF_ML_DTYPES = {"BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn"}
"""The dtypes that NumPy lacks; without ml_dtypes no message has them."""
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    **({name: np.dtype(getattr(ml_dtypes, each)) for name, each in OF_ML_DTYPES.items()} if ml_dtypes else {}),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The dtypes of the format by name, in little-endian order."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = 8
"""Bytes of a length, before a message and before the header within it."""
SCALARS = (str, bool, int, type(None))
"""Values whose text is kept; not float, of which 0.0 and -0.0 are equal and have different texts."""
EMPTY: Mapping[type, str] = {tuple: "[]", list: "[]", dict: "{}"}
"""The texts of values that most messages have."""
LONGEST_KEPT = 256
"""Characters of the longest text whose value is kept."""
LONGEST = 2**32
"""Bytes of the longest message that is read."""


class WireError(ValueError):
    """Bytes that are no message, or a value that no message can hold."""


@dataclass(frozen=True, eq=False)
class Message:
    """Plain fields, and arrays by name."""

    fields: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """The bytes of a message, its length first.

    Raises:
        WireError: an array's dtype is none of the format's, the arrays are larger than any message that is read,
            or a field holds NaN or infinity, which JSON lacks.
    """
    if (size := sum(array.nbytes for array in message.arrays.values())) > LONGEST:
        raise WireError(f"arrays of {size} bytes; the longest message that is read has {LONGEST}")
    header: dict[str, Any] = {"__metadata__": {name: _text(name, value) for name, value in message.fields.items()}}
    blocks, start = [], 0
    for name, array in message.arrays.items():
        if array.dtype not in NAMES:
            raise WireError(f"{name} is of dtype {array.dtype}, which no message can hold")
        blocks.append(array.tobytes())
        end = start + len(blocks[-1])
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
        start = end
    text = ENCODER.encode(header).encode()
    text += b" " * (-len(text) % LENGTH)
    body = b"".join((_length(len(text)), text, *blocks))
    return _length(len(body)) + body


def _text(name: str, value: object) -> str:
    if type(value) in EMPTY and not value:
        return EMPTY[type(value)]
    try:
        return _text_of_scalar(value) if isinstance(value, SCALARS) else ENCODER.encode(value)
    except ValueError:
        raise WireError(f"the field {name} holds NaN or infinity, which JSON lacks: {value!r}"[:200]) from None


@lru_cache(maxsize=1024, typed=True)
def _text_of_scalar(value: object) -> str:
    """Kept, as most fields are the same in each message."""
    return ENCODER.encode(value)


def write(stream: BinaryIO, message: Message) -> None:
    """Writes a message at once."""
    stream.write(encode(message))
    stream.flush()


def read(stream: BinaryIO) -> Message | None:
    """The next message; None at the end of the stream.

    Raises:
        WireError: the bytes are no message.
    """
    prefix = stream.read(LENGTH)
    return decode(stream.read(length_of(prefix))) if prefix else None


def _length(count: int) -> bytes:
    return count.to_bytes(LENGTH, "little")


def length_of(prefix: bytes) -> int:
    """The bytes of the message that follows its prefix.

    Raises:
        WireError: it would be longer than any message.
    """
    count = int.from_bytes(prefix, "little")
    if count > LONGEST:
        raise WireError(f"a message of {count} bytes is announced; the longest that is read has {LONGEST}")
    return count


def decode(body: bytes) -> Message:
    """The message of these bytes, without its length; the arrays can be written to.

    Raises:
        WireError: the bytes are no message.
    """
    try:
        return _decoded(body)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WireError(f"{len(body)} bytes are no message: {type(error).__name__} {error}"[:200]) from None


def _decoded(body: bytes) -> Message:
    size = int.from_bytes(body[:LENGTH], "little")
    header = DECODER.decode(str(body[LENGTH : LENGTH + size], "utf-8"))
    data = memoryview(body)[LENGTH + size :]
    fields = {name: _value(text) for name, text in header.pop("__metadata__", {}).items()}
    return Message(fields, {name: _array(data, **entry) for name, entry in header.items()})


def _value(text: str) -> Any:
    return _value_of_short(text) if len(text) <= LONGEST_KEPT else DECODER.decode(text)


@lru_cache(maxsize=1024)
def _value_of_short(text: str) -> Any:
    """Kept, as most fields are the same in each message; nobody changes the value of a field."""
    return DECODER.decode(text)


def _refused(constant: str) -> None:
    raise ValueError(f"a field holds {constant}, which JSON lacks")


ENCODER, DECODER = json.JSONEncoder(allow_nan=False), json.JSONDecoder(parse_constant=_refused)
"""Made once: it takes longer than a small message."""


def _array(data: memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    start, end = data_offsets
    kind = DTYPES[dtype]
    if not 0 <= start <= end <= len(data) or end - start != prod(shape) * kind.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} in {dtype} cannot lie at bytes {start} to {end}")
    return np.frombuffer(data[start:end], kind).reshape(shape).copy()
