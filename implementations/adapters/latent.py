"""Latents: keys and values of all heads as one row for each token, as models and servers pass them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.spec.optional import optional

torch = optional("torch")

OPTIONS = frozenset({"w_uk", "w_uv"})
"""The matrices that expand the latents."""


@dataclass(frozen=True, eq=False)
class Latents:
    """The arguments of a function of latents, of the kind of the arrays that they were made of.

    Attributes:
        q_nope: (B, H, Lq, d_nope).
        q_pe: (B, H, Lq, d_rope), the rotary part.
        kv_c: (B, Lk, r).
        k_pe: (B, Lk, d_rope), the rotary part of the keys of all heads.
        w_uk: (H, d_nope, r).
        w_uv: (H, d_v, r).
    """

    q_nope: Any
    q_pe: Any
    kv_c: Any
    k_pe: Any
    w_uk: Any
    w_uv: Any


def as_latents(query: Any, key: Any, value: Any, options: dict[str, Any]) -> Latents:
    """Of query (B, H, Lq, d_k) and rows (B, 1, Lk, r + d_rope), which key and value are where there are matrices.

    Where there are none, each head of each sample is a sample with one head. Its latent is the key followed by the
    value, of which the matrices choose one, and there is no rotary part.

    Raises:
        ValueError: query, key and value do not fit together.
    """
    up = options.get("w_uk"), options.get("w_uv")
    if up[0] is not None:
        _, width, rank = up[0].shape
        rows = key[:, 0]
        return Latents(query[..., :width], query[..., width:], rows[..., :rank], rows[..., rank:], *up)
    if not tuple(query.shape[:2]) == tuple(key.shape[:2]) == tuple(value.shape[:2]) or key.shape[2] != value.shape[2]:
        raise ValueError(f"no attention over {query.shape}, {key.shape} and {value.shape}")
    apart, *rows = (x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in (query, key, value))
    latent = (
        torch.cat(rows, -1) if torch and isinstance(query, torch.Tensor) else library_of(query).concatenate(rows, -1)
    )
    every, d_k = np.eye(latent.shape[-1])[None], key.shape[-1]
    matrices = (_like(query, each) for each in (every[:, :d_k], every[:, d_k:]))
    apart = apart[:, None]
    return Latents(apart, apart[..., :0], latent, latent[..., :0], *matrices)


def _like(rows: Any, array: Any) -> Any:
    if torch and isinstance(rows, torch.Tensor):
        return torch.from_numpy(array).to(rows)
    return array.astype(rows.dtype)


@dataclass(frozen=True, eq=False)
class LatentCall:
    """A function of latents as one of query, key and value (B, H, L, d).

    Attributes:
        function: called as function(q_nope, q_pe, kv_c, k_pe, w_uk, w_uv, **options), see `Latents`.
    """

    function: Callable[..., Any]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """(B, H, Lq, d_v)."""
        given = as_latents(query, key, value, options)
        others = {name: o for name, o in options.items() if name not in OPTIONS and name != "enable_gqa"}
        (batch, heads), lengths = query.shape[:2], options.get("valid_lens")
        if lengths is not None and "w_uk" not in options:
            others["valid_lens"] = lengths[[sample for sample in range(batch) for _ in range(heads)]]
        answer = self.function(given.q_nope, given.q_pe, given.kv_c, given.k_pe, given.w_uk, given.w_uv, **others)
        return answer.reshape(batch, heads, *answer.shape[2:])
