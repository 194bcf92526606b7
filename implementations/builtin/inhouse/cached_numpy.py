"""A cache in NumPy: rows of an array that grows, or is fixed, handed to attention in the order of their positions."""

from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.cached import Feed, Stream, cached
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.cached import CACHED
from attention_conformance.implementations.builtin.inhouse.call_options import Options
from attention_conformance.implementations.builtin.inhouse.numpy_attention import attention, rotated
from attention_conformance.spec.conventions import Conventions, SoftmaxPrecision
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array

ROTARY = ("rotary_base", "rotary_dim")


def _started(stream: Stream) -> Feed:
    """A new sequence: token j is kept in slot j % room, where it stays until the slot is needed again."""
    options: dict[str, Any] = dict(stream.options)
    ahead = options.pop("query_start", None) or 0
    rotary = Options[Array](**{name: options.pop(name) for name in ROTARY if name in options})
    kept = [stream.storage(stream.d_k), stream.storage(stream.d_v)] if stream.room else []
    length = 0

    def feed(query: Array, key: Array, value: Array) -> Array:
        nonlocal length, kept
        count, first = key.shape[2], length
        standing = first + ahead + np.arange(query.shape[2])
        places = standing, first + np.arange(count)
        query, key = (rotated(x, at[None], rotary).astype(x.dtype) for x, at in zip((query, key), places, strict=True))
        held = first if not stream.room else min(first, stream.room)
        slots = np.arange(first - held, first) % (stream.room or max(1, first))
        earlier = [rows[:, :, slots] for rows in kept] if held else [x[:, :, :0] for x in (key, value)]
        rows = [np.concatenate(pair, 2) for pair in zip(earlier, (key, value), strict=True)]
        length += count
        if stream.room:
            last = np.arange(max(first, length - stream.room), length)
            for place, new in zip(kept, (key, value), strict=True):
                place[:, :, last % stream.room] = new[:, :, last - first]
        else:
            kept = rows
        return attention(query, *rows, query_start=ahead + held, **options)[0]

    return feed


CACHED_NUMPY = Implementation(
    "inhouse.cached.numpy",
    Claims(Scope.OP, CACHED[0].claims.features, Conventions(softmax_precision=SoftmaxPrecision.FLOAT32)),
    cached(_started, arrays=True),
    "a cache in NumPy: growing, static or in a ring",
)
