"""Keys and values that are stored as codes or as latents, as stages of attention that are edited and measured."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def multiplied(entry: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Codes of keys or values times their scales, each of as many tokens as there are blocks for."""

    def stage(state: Mapping[str, Any]) -> dict[str, Any]:
        rows, scale = state[entry], state[f"{entry}_scale"]
        blocks, length = scale.shape[-2], rows.shape[-2]
        return {entry: rows * scale.repeat_interleave(-(-length // max(1, blocks)), -2)[..., :length, :]}

    return stage


def expanded(state: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values of all heads, made of the latents; the rotary part of a key is the same in each."""
    rows, up_key, up_value = (state[name] for name in ("key", "w_uk", "w_uv"))
    latent, rotary = rows[..., : up_key.shape[-1]], rows[..., up_key.shape[-1] :]
    key = torch.cat([latent @ up_key.mT, rotary.expand(-1, len(up_key), -1, -1)], -1)
    return {"key": key, "value": latent @ up_value.mT}
