"""Codes of 8 bits: keys and values as implementations store them, with the scales in the shapes of interfaces."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.spec.cases import Case
from attention_conformance.spec.optional import optional
from attention_conformance.spec.stored_keys import Codes, ScaledBy

ml_dtypes, torch = optional("ml_dtypes"), optional("torch")

OPTIONS = frozenset({"key_scale", "value_scale", "codes"})
DTYPES = {Codes.INT8: "int8", Codes.E4M3: "float8_e4m3fn", Codes.E5M2: "float8_e5m2"}
"""The names of the dtypes of codes, in torch and in ml_dtypes."""


@dataclass(frozen=True)
class TakenCodes:
    """The fit of a function that takes some kinds of codes, and some extents of scales; see `Claims.fit`."""

    kinds: tuple[Codes, ...] = tuple(DTYPES)
    scaled_by: tuple[ScaledBy, ...] = tuple(ScaledBy)

    def __call__(self, case: Case) -> Case | Unsupported:
        """The case in codes that are taken, where its scales are."""
        extension = case.extension
        if extension.codes is Codes.NONE:
            return case
        if not self.kinds or extension.scaled_by not in self.scaled_by:
            return Unsupported(f"takes no scale for each {extension.scaled_by}")
        least = {ScaledBy.SAMPLE: "batch", ScaledBy.TOKEN: "key_length", ScaledBy.BLOCK: "key_length"}
        if (extent := least.get(extension.scaled_by)) and getattr(case.sizes, extent) < 2:
            case = case.sized(**{extent: 2})  # of one alone the scales have another shape
        return case if extension.codes in self.kinds else case.extended(codes=self.kinds[0])


@dataclass(frozen=True, eq=False)
class QuantisedCall:
    """A function of codes as one of query, key and value (B, H, L, d).

    Attributes:
        function: called as function(query, key, value, key_scale, value_scale, **options) with key and value
            (B, Hk, Lk, d) of 8 bits, and scales of float32 at least: (1,), (Hk,), (B, Hk), (B, Hk, Lk) or (B, Hk,
            blocks).
            Where a problem has no codes they are numbers of the working dtype, and the scales are 1.
    """

    function: Callable[..., Any]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        kind, others = options.get("codes"), {n: o for n, o in options.items() if n not in OPTIONS}
        others.pop("enable_gqa", None)
        if kind is None:
            one = _wide(key[:1, :1, :1, :1] * 0 + 1) if key.shape[0] and key.shape[2] else _wide(query.reshape(-1)[:0])
            return self.function(query, key, value, _squeezed(one), _squeezed(one), **others)
        scales = (_squeezed(_wide(options[name])) for name in ("key_scale", "value_scale"))
        return self.function(query, as_codes(key, kind), as_codes(value, kind), *scales, **others)


def scales_of_heads(query: Any, key: Any, options: dict[str, Any], by_sample: bool) -> list[Any]:
    """Both scales in float32 at least, (1,) or (Hk,), or (B, Hk); 1 where keys and values are no codes."""
    one = query.reshape(-1)[:1] * 0 + 1
    scales = [_squeezed(_wide(options.get(name, one))) for name in ("key_scale", "value_scale")]
    rows = _wide(key[:, :, 0, 0] * 0 + 1)
    return [rows * scale for scale in scales] if by_sample else scales


def as_codes(rows: Any, kind: Codes) -> Any:
    """The same numbers in 8 bits each."""
    name = DTYPES[kind]
    if torch and isinstance(rows, torch.Tensor):
        return rows.to(getattr(torch, name))
    return rows.astype(np.int8 if kind is Codes.INT8 else getattr(ml_dtypes, name))


def _wide(scale: Any) -> Any:
    """In float32 at least."""
    if torch and isinstance(scale, torch.Tensor):
        return scale if scale.dtype is torch.float64 else scale.float()
    return scale if scale.dtype == np.float64 else scale.astype(np.float32)


def _squeezed(scale: Any) -> Any:
    """(1, 1, 1, 1) as (1,), (1, Hk, 1, 1) as (Hk,), (B, Hk, 1, 1) as (B, Hk), (B, Hk, n, 1) as (B, Hk, n)."""
    if scale.ndim < 4:
        return scale
    if scale.shape[2] > 1:
        return scale[..., 0]
    return scale[..., 0, 0] if scale.shape[0] > 1 else scale.reshape(-1)
