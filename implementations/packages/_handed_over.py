"""How functions of other packages are handed heads, masks and flags, and which of them go together."""

from collections.abc import Callable
from typing import Any

from attention_conformance import Case, MaskKind, Unsupported


def length_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v), by a function with L before H.

    It takes boolean masks as `mask` and others as `bias`, both of four axes.
    """

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, enable_gqa: bool = False, **options: Any
    ) -> Any:
        given = options | apart(attn_mask, "mask", "bias")
        return function(*(each.swapaxes(1, 2) for each in (query, key, value)), **given).swapaxes(1, 2)

    return attention


def apart(attn_mask: Any, boolean: str, added: str) -> dict[str, Any]:
    """A mask by one of two names, of four axes; nothing where there is none."""
    if attn_mask is None:
        return {}
    name = boolean if "bool" in str(attn_mask.dtype) else added
    return {name: attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)}


def one_mask(case: Case) -> Case | Unsupported:
    """The fit of a function to which the causal flag is a mask."""
    both = case.causal and case.mask is not MaskKind.NONE
    return Unsupported("takes a mask or the causal flag, not both") if both else case


def positive_scale(case: Case) -> Case | Unsupported:
    """The fit of a function to which the scale 0 means the default."""
    return Unsupported("takes scales above 0") if case.scale is not None and case.scale <= 0.0 else case
