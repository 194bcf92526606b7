"""Caches: what is fed a sequence piece by piece becomes a `run`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch

from attention_conformance.implementations.adapters.native import Native, indirect, natively
from attention_conformance.implementations.adapters.op_options import extra_options, inputs_of
from attention_conformance.implementations.adapters.results import array_forms, differing
from attention_conformance.implementations.adapters.tensors import (
    TORCH_DTYPES,
    forms,
    tensors,
    to_array,
    to_tensor,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.problem import DTYPES, Array, Problem

Run: TypeAlias = Callable[[Problem, str], Result]
Feed: TypeAlias = Callable[[Any, Any, Any], Any]
"""Takes the next query (B, H, n, d_k), key (B, Hk, n, d_k) and value (B, Hk, n, d_v), and gives (B, H, n, d_v)."""


@dataclass(frozen=True, eq=False)
class Stream:
    """What is known of a sequence before its first piece comes.

    Attributes:
        room: the positions that storage has; 0: it grows.
        ring: whether there is less room than the sequence takes, so that the oldest tokens have to go.
        unwritten: whether room that is not used holds NaN, too.
        options: `is_causal`, `scale` and those of `extra_options`, as far as the problem has them.
        convert: makes an array what the implementation works on.
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    d_k: int
    d_v: int
    dtype: str
    room: int
    ring: bool
    unwritten: bool
    options: Mapping[str, Any]
    convert: Callable[[Array], Any]

    def storage(self, width: int) -> Any:
        """(B, Hk, room, width) to keep keys or values in; it holds large numbers, or NaN and huge ones, as fresh memory
        may.
        """
        shape = (self.batch, self.num_kv_heads, self.room, width)
        rows: Array = np.full(shape, self.unused(width), DTYPES[self.dtype])
        if self.unwritten:
            rows[..., 1::2, :] = torch.finfo(TORCH_DTYPES[self.dtype]).max
        return self.convert(rows)

    def unused(self, width: int) -> float:
        """What stands where nothing was written: NaN, or a number whose products do not overflow."""
        most: float = torch.finfo(TORCH_DTYPES[self.dtype]).max
        return float("nan") if self.unwritten else most**0.5 / max(1, width)


@dataclass(frozen=True, eq=False)
class Cached:
    """A `run` for an implementation that keeps keys and values between calls.

    A problem with `chunks` is fed in pieces of these lengths, any other one at once. There are no gradients. For a
    cache that grows:

        def start(stream):
            held = []
            def feed(query, key, value):
                held.append((key, value))
                keys, values = (torch.cat(rows, -2) for rows in zip(*held))
                return attention(query, keys, values, query_start=keys.shape[-2] - key.shape[-2], **stream.options)
            return feed

        run = cached(start)

    Attributes:
        start: called once for each sequence; what it returns is called with each piece of query, key and value.
        arrays: whether it works on NumPy arrays, not on tensors.
    """

    start: Callable[[Stream], Feed]
    _: KW_ONLY
    arrays: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        plain, given, convert = self._given(problem, device)
        form: Callable[[Any], dict[str, object]] = array_forms if self.arrays else forms
        with torch.no_grad(), np.errstate(all="ignore"):
            before = form(given)
            outputs = _fed(self.start, _stream(plain, given, convert), _cut(plain, given))
            disturbed = differing(before, form(given))
        return Result(self._joined(outputs), disturbed=disturbed)

    def native(self, problem: Problem, device: str) -> Native:
        """A new cache, fed with the pieces one after the other."""
        plain, given, convert = self._given(problem, device)
        forward = partial(_fed, self.start, _stream(plain, given, convert), _cut(plain, given))

        @contextmanager
        def around() -> Iterator[None]:
            with torch.no_grad(), np.errstate(all="ignore"):
                yield

        return Native(forward, lambda outputs: Result(self._joined(outputs)), given, around)

    def _given(self, problem: Problem, device: str) -> tuple[Problem, Any, Callable[[Array], Any]]:
        plain = problem.forward_only()
        if self.arrays:
            return plain, plain.arrays(), lambda rows: rows
        return plain, tensors(plain, device), lambda rows: to_tensor(rows, device)

    def _joined(self, outputs: list[Any]) -> Array:
        return np.concatenate(outputs, -2) if self.arrays else to_array(torch.cat(outputs, -2))


cached = Cached
"""The name by which adapters call it."""


def _cut(problem: Problem, given: Any) -> list[tuple[Any, ...]]:
    return [tuple(rows[..., piece, :] for rows in inputs_of(given)) for piece in pieces(problem)]


def _fed(start: Callable[[Stream], Feed], stream: Stream, cut: list[tuple[Any, ...]]) -> list[Any]:
    feed = start(stream)
    return [feed(*piece) for piece in cut]


@dataclass(frozen=True, eq=False)
class Chunked:
    """A `run` that is fed piece by piece, made of one for an op that takes `query_start`.

    Each piece is passed with all keys and values up to its end, as by a caller that stores them itself. There are no
    masks, and only the outputs are returned.
    """

    run: Run

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        if not problem.extension.chunks:
            return self.run(problem, device)
        parts = [_with_earlier_keys(problem.forward_only(), piece) for piece in pieces(problem)]
        return Result(np.concatenate([self.run(part, device).output for part in parts], -2))

    def native(self, problem: Problem, device: str) -> Native:
        """The call of the op for a sequence at once; pieces have none."""
        return indirect(self, problem, device) if problem.extension.chunks else natively(self.run, problem, device)


chunked = Chunked
"""The name by which adapters call it."""


def pieces(problem: Problem) -> list[slice]:
    """The tokens of each piece; all of them where the problem names no chunks.

    Raises:
        ValueError: the lengths do not sum to those of query and key.
    """
    chunks, lengths = problem.extension.chunks, {problem.query.shape[-2], problem.key.shape[-2]}
    if not chunks:
        return [slice(None)]
    if lengths != {sum(chunks)}:
        raise ValueError(f"pieces of {chunks} tokens do not make up {sorted(lengths)}")
    return [slice(end - length, end) for length, end in zip(chunks, accumulate(chunks), strict=True)]


def _stream(problem: Problem, given: Mapping[str, Any], convert: Callable[[Array], Any]) -> Stream:
    room, options = problem.extension.cache_length, {"is_causal": problem.causal or None, "scale": problem.scale}
    return Stream(
        batch=problem.query.shape[0],
        num_heads=problem.num_heads,
        num_kv_heads=problem.num_kv_heads,
        d_k=problem.key.shape[-1],
        d_v=problem.value.shape[-1],
        dtype=problem.dtype,
        room=room,
        ring=0 < room < problem.key.shape[-2],
        unwritten=problem.extension.unwritten,
        options={n: o for n, o in options.items() if o is not None} | extra_options(problem, given),
        convert=convert,
    )


def _with_earlier_keys(problem: Problem, piece: slice) -> Problem:
    tokens = {"query": piece, "key": slice(0, piece.stop), "value": slice(0, piece.stop)}
    rows = {name: problem.arrays()[name][..., these, :] for name, these in tokens.items()}
    extension = replace(problem.extension, chunks=(), cache_length=0, unwritten=False, query_start=piece.start)
    return replace(problem.with_arrays(rows), extension=extension)
