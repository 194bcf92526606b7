"""Rotations as the stages make them: pairs of components by cosines and sines, of angles or from tables."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.features import RotaryTables


def pairs_turned(rows: Tensor, cos: Tensor, sin: Tensor, pairing: RotaryPairing) -> Tensor:
    """(B, H, L, d), of which as many pairs are rotated as there are cosines and sines (B, 1, L, r / 2)."""
    width, halves = 2 * cos.shape[-1], pairing is RotaryPairing.HALVES
    first, second = rows[..., :width].chunk(2, -1) if halves else (rows[..., 0:width:2], rows[..., 1:width:2])
    pair = first * cos - second * sin, first * sin + second * cos
    rotated = torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)
    return torch.cat([rotated, rows[..., width:]], -1)


def from_tables(state: Mapping[str, Any], entry: str) -> Tensor:
    """Queries or keys, rotated by the tables that are given."""
    kind, ids = state["rotary_tables"], state.get(f"{entry}_ids")
    at = (state[f"{entry}_places"] if ids is None else ids).clamp(0, max(len(state["rotary_cos"]) - 1, 0))
    cos, sin = (x[at] if kind is RotaryTables.POSITIONS else x for x in (state["rotary_cos"], state["rotary_sin"]))
    if kind in (RotaryTables.DOUBLED, RotaryTables.REPEATED):
        once = slice(cos.shape[-1] // 2) if kind is RotaryTables.DOUBLED else slice(None, None, 2)
        cos, sin = cos[..., once], sin[..., once]
    return pairs_turned(state[entry], cos[:, None], sin[:, None], state["conventions"].rotary_pairing)
