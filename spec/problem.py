"""Problems: the arrays of a case, in the numbers of one dtype, and their copies in any memory layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.cases import Layout, Sharing
from attention_conformance.spec.features import NOTHING, Extension, Scope
from attention_conformance.spec.optional import optional

ml_dtypes = optional("ml_dtypes")

Array: TypeAlias = NDArray[Any]
"""An array of any dtype: which one is data here, bfloat16 included."""

DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    **({"bfloat16": np.dtype(ml_dtypes.bfloat16)} if ml_dtypes else {}),
    "float16": np.dtype(np.float16),
}
"""The dtypes in which implementations are checked, by name, widest first; without ml_dtypes there is no bfloat16."""


HALF = ("bfloat16", "float16")
"""The half types; there may be no bfloat16."""
AUTOCAST = "bfloat16"
"""That of products in mixed precision, as it is checked."""
AFTER_AUTOCAST = "and without it in the next call"
"""How an answer is called that was given after one in mixed precision."""
HELD = ("query", "key", "value", "attn_mask", "key_padding_mask", "valid_lens", "cotangent")
"""The arrays that a problem holds by a field of their own."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of one call of an implementation.

    At the op level query is (B, H, Lq, d_k), key (B, Hk, Lk, d_k), value (B, Hk, Lk, d_v), where Hk = H unless heads
    are grouped; at the module level they are (B, Lq, query_dim), (B, Lk, key_dim), (B, Lk, value_dim), and
    `parameters` holds `w_q` (query_dim, H * d_k), `w_k` (key_dim, Hk * d_k), `w_v`, `w_o` (H * d_v, out_dim), biases
    `b_q`, `b_k`, `b_v`, `b_o`, and the extra key `bias_k` (Hk * d_k,) and value `bias_v`, as far as there are any:
    a projection is x @ w + b.

    Attributes:
        attn_mask: broadcasts to (B, H, Lq, Lk); boolean with True = may attend, or float and added to the scores.
        key_padding_mask: (B, Lk), True = may attend.
        valid_lens: (B,) or (B, Lq) integers: so many leading keys are real.
        causal: no query sees a later key.
        scale: multiplies the scores; None is 1/sqrt(d_k).
        extension: what the problem has beyond the core.
        extras: the arrays of that, by name: `sinks`, `head_gates` (H,), `alibi_slopes` (H,) or (B, H), `query_norm`
            and `key_norm` (d_k,), or (H * d_k,) and (Hk * d_k,), `relative_bias` (H, 2 R + 1) with the entry of
            distance 0, key before query first, in the middle, `query_segments` (B, Lq) and `key_segments` (B, Lk)
            integers, `query_lengths` and `key_lengths` (documents,) integers, `query_positions` (B, Lq) and
            `key_positions` (B, Lk) integers, or one row for all samples, `rotary_cos` and `rotary_sin` (positions, r /
            2), (B, L, r / 2) or (B, L, r), `bucketed_bias` (buckets, H), `gate_logits` (B, H, Lq, d_v) or (B, H, Lq,
            1), `query_starts` and `query_lens` (B,) integers, `split_lengths` (splits,) integers that sum to Lk,
            `block_table` (B, pages of a sample) integers, the numbers of the pages in which its keys and values lie,
            in their order, `cache_batch_idx` (B,) integers, the rows of a cache, `key_scale` and `value_scale` (B or
            1, Hk or 1, Lk, blocks or 1, 1) of key and value, which hold codes then, `w_uk` (H, d_k - d_rope, r) and
            `w_uv` (H, d_v, r), by which keys and values of heads are made of (B, 1, Lk, r + d_rope), which key and
            value both are then.
        cotangent: d loss / d output, shaped like the output; None for no gradients.
        needs: the names of the inputs and parameters whose gradients are wanted.
    """

    scope: Scope
    query: Array
    key: Array
    value: Array
    num_heads: int
    parameters: Mapping[str, Array] = field(default_factory=dict)
    attn_mask: Array | None = None
    key_padding_mask: Array | None = None
    valid_lens: Array | None = None
    causal: bool = False
    scale: float | None = None
    cotangent: Array | None = None
    needs: tuple[str, ...] = ()
    sharing: Sharing = Sharing.NONE
    layout: Layout = Layout.CONTIGUOUS
    extension: Extension = NOTHING
    extras: Mapping[str, Array] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """B: the samples."""
        return int(self.query.shape[-4 if self.scope is Scope.OP else -3])

    @property
    def num_kv_heads(self) -> int:
        """Hk: the heads of key and value."""
        if self.scope is Scope.OP:
            return int(self.key.shape[-3])
        return int(self.parameters["w_k"].shape[-1] * self.num_heads // max(1, self.parameters["w_q"].shape[-1]))

    @property
    def dtype(self) -> str:
        """The name of the working dtype."""
        return dtype_name(self.query)

    def arrays(self) -> dict[str, Array]:
        """Every array of the problem by name; a shared input appears once, under its first name."""
        named: dict[str, Array | None] = {"query": self.query}
        if not self.sharing.key_is_query:
            named["key"] = self.key
        if not self.sharing.value_is_key:
            named["value"] = self.value
        named.update(self.parameters)
        named.update(self.extras)
        named.update(attn_mask=self.attn_mask, key_padding_mask=self.key_padding_mask)
        named.update(valid_lens=self.valid_lens, cotangent=self.cotangent)
        return {name: array for name, array in named.items() if array is not None}

    def with_arrays(self, arrays: Mapping[str, Array]) -> Problem:
        """This problem with the named arrays replaced; shared inputs stay shared."""
        changes: dict[str, Any] = {name: arrays[name] for name in HELD if name in arrays}
        if self.sharing.key_is_query:
            changes["key"] = arrays.get("query", self.query)
        if self.sharing.value_is_key:
            changes["value"] = changes.get("key", self.key)
        for name in ("parameters", "extras"):
            changes[name] = {n: arrays.get(n, array) for n, array in getattr(self, name).items()}
        return self.but(**changes)

    def but(self, **changes: Any) -> Problem:
        """What `dataclasses.replace` gives, in a tenth of its time: a run makes some ten thousand of them."""
        made = object.__new__(Problem)
        vars(made).update(vars(self), **changes)
        return made

    def fresh(self) -> Problem:
        """A copy in memory of its own, laid out as the problem states: what a candidate is given."""
        arrays = {n: lay_out(a, self._layout_of(n)) for n, a in self.arrays().items()}
        return self.with_arrays(arrays if self.layout is not Layout.PACKED else arrays | packed(arrays))

    def widened(self) -> Problem:
        """The same numbers in float64: what the reference works on."""
        return self.with_arrays({name: _widen(array) for name, array in self.arrays().items()})

    def forward_only(self) -> Problem:
        """This problem without gradients."""
        return self.but(cotangent=None, needs=())

    def direction(self) -> dict[str, Array]:
        """Of every needed array its own numbers, each moved by one in C order, the last becoming the first.

        It is the direction of second derivatives: as good as random, and no extra input.
        """
        held = self.arrays()
        return {name: np.roll(held[name], 1) for name in self.needs}

    def _layout_of(self, name: str) -> Layout:
        if self.layout is Layout.BROADCAST and name not in ("key", "value"):
            return Layout.CONTIGUOUS
        return self.layout


def dtype_name(array: Array) -> str:
    """The name under which the dtype is known in a NumPy, torch or ml_dtypes context."""
    return array.dtype.name


def lay_out(array: Array, layout: Layout) -> Array:
    """A copy of the array, equal in every element, with the strides of the layout."""
    match layout:
        case Layout.TRANSPOSED if array.ndim >= 2:
            axis = -3 if array.ndim >= 3 else -1
            return array.swapaxes(-2, axis).copy().swapaxes(-2, axis)
        case Layout.SLICED if array.ndim >= 2:
            wide = np.repeat(array, 2, axis=-2)
            return wide[..., ::2, :]
        case Layout.OFFSET:
            buffer = np.empty(array.size + 1, array.dtype)
            buffer[1:] = array.ravel()
            return buffer[1:].reshape(array.shape)
        case Layout.REVERSED if array.ndim >= 2:
            return array[..., ::-1, :].copy()[..., ::-1, :]
        case Layout.FORTRAN:
            return np.array(array, order="F")
        case Layout.BROADCAST if array.ndim >= 2 and array.shape[0] > 1:
            return np.broadcast_to(array[:1].copy(), array.shape)
        case _:
            return np.array(array, order="C")


def packed(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Query, key and value, as far as they are given, with those of as many tokens in one buffer (B, L, columns)."""
    inputs = {name: arrays[name] for name in HELD[:3] if name in arrays}
    laid: dict[str, Array] = {}
    for length in {rows.shape[-2] for rows in inputs.values()}:
        own = {name: rows for name, rows in inputs.items() if rows.shape[-2] == length}
        tokens = {name: rows.swapaxes(1, 2) if rows.ndim == 4 else rows for name, rows in own.items()}
        flat = {name: rows.reshape(*rows.shape[:2], -1) for name, rows in tokens.items()}
        buffer, start = np.concatenate(list(flat.values()), -1), 0
        for name, rows in tokens.items():
            stop = start + flat[name].shape[-1]
            columns = buffer[..., start:stop].reshape(rows.shape)
            laid[name], start = columns.swapaxes(1, 2) if rows.ndim == 4 else columns, stop
    return laid


def _widen(array: Array) -> Array:
    return array if array.dtype.kind in "bi" else np.asarray(array, dtype=np.float64)
