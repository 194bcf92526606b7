"""Rotations in torch: by a base, or by tables of cosines and sines that the caller gives."""

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.online import wide
from attention_conformance.implementations.builtin.inhouse.tile_masks import Masks
from attention_conformance.spec.conventions import RotaryPairing, TableForm


def rotated_pair(
    query: Tensor,
    key: Tensor,
    masks: Masks,
    base: float | None,
    dim: int | None = None,
    pairing: RotaryPairing = RotaryPairing.HALVES,
    form: TableForm = TableForm.POSITIONS,
) -> tuple[Tensor, Tensor]:
    """Query and key, (B, H, L, d), rotated by the tables of the call, or else by a base; None: not at all."""
    cosines, sines = masks.options.rotary_cos, masks.options.rotary_sin
    rows = ((query, "query"), (key, "key"))
    if cosines is not None and sines is not None:
        given = cosines, sines
        first, second = (
            rotated_by(x, *_rows(given, masks.rotated_at(role), pairing, form), pairing) for x, role in rows
        )
    elif base is not None:
        first, second = (rotated(x, masks.rotated_at(role), base, dim, pairing) for x, role in rows)
    else:
        return query, key
    return first, second


def _rows(
    tables: tuple[Tensor, Tensor], places: Tensor, pairing: RotaryPairing, form: TableForm
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B or 1, L, r / 2) of tokens at positions (B or 1, L)."""
    if form is TableForm.POSITIONS:
        return tables[0][places], tables[1][places]
    if form is TableForm.TOKENS:
        return tables
    half = tables[0].shape[-1] // 2
    once = slice(half) if pairing is RotaryPairing.HALVES else slice(None, None, 2)
    return tables[0][..., once], tables[1][..., once]


def rotated(
    rows: Tensor, places: Tensor, base: float, dim: int | None = None, pairing: RotaryPairing = RotaryPairing.HALVES
) -> Tensor:
    """(B, H, L, d) with the first `dim` components, or all, rotated pair by pair: by positions (B or 1, L).

    Angles are in float64.
    """
    half = (rows.shape[-1] if dim is None else dim) // 2
    angles = places[..., None] * base ** (-torch.arange(half, dtype=torch.float64, device=rows.device) / half)
    return rotated_by(rows, angles.cos(), angles.sin(), pairing)


def rotated_by(rows: Tensor, cosines: Tensor, sines: Tensor, pairing: RotaryPairing) -> Tensor:
    """(B, H, L, d) with as many pairs rotated as there are cosines and sines, (B or 1, L, r / 2)."""
    half, dtype = cosines.shape[-1], wide(rows.dtype)
    if 2 * half < rows.shape[-1]:
        return torch.cat([rotated_by(rows[..., : 2 * half], cosines, sines, pairing), rows[..., 2 * half :]], -1)
    shape, axis = ((2, half), -2) if pairing is RotaryPairing.HALVES else ((half, 2), -1)
    cosines, sines = (table.to(dtype)[:, None] for table in (cosines, sines))
    first, second = rows.to(dtype).unflatten(-1, shape).unbind(axis)
    pairs = torch.stack([first * cosines - second * sines, first * sines + second * cosines], axis)
    return pairs.flatten(-2).to(rows.dtype)
