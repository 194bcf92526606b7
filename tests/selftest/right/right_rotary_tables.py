"""Right rotations by tables, in the forms that callers give, and tables as published code makes them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import Steps, rotated_at
from attention_conformance.implementations.builtin.stepwise.steps import positions as counted
from attention_conformance.spec.conventions import Conventions, RotaryPairing, TableForm
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array
from attention_conformance.tests.selftest.right.right import op

CLAIMED = {Feature.ROTARY_TABLES, Feature.QUERY_START, Feature.GROUPED}
WITH_IDS = CLAIMED | {Feature.POSITION_IDS, Feature.PARTIAL_ROTARY, Feature.QK_NORM}


def exchanged(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """rows * cos + (second half negated, first half) * sin, in the dtype of the rows, with (B, 1, L, r) tables."""
    width = cosines.shape[-1]
    part, rest = rows[..., :width], rows[..., width:]
    first, second = part.chunk(2, -1)
    rotated = part * cosines.to(rows.dtype) + torch.cat([-second, first], -1) * sines.to(rows.dtype)
    return torch.cat([rotated, rest], -1)


def of_positions(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Tables of positions, gathered and doubled, of whole inputs in their dtype."""
    if "rotary_cos" not in options:
        return Steps()(query, key, value, **options)
    tables = [options.pop(name) for name in ("rotary_cos", "rotary_sin")]
    call = CallOptions(**options)
    at = rotated_at(*counted(query, key, call)[:2], call)
    rows = ([table[there].repeat(1, 1, 2)[:, None] for table in tables] for there in at)
    query, key = (exchanged(x, *own) for x, own in zip((query, key), rows, strict=True))
    return Steps()(query, key, value, **options)


def of_tokens(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Tables (B, L, r / 2), of the dtype of the rows."""
    if "rotary_cos" not in options:
        return Steps()(query, key, value, **options)
    tables = [options.pop(name).repeat(1, 1, 2)[:, None] for name in ("rotary_cos", "rotary_sin")]
    query, key = (exchanged(x, *tables) for x in (query, key))
    return Steps(wide=False)(query, key, value, **options)


def doubled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Tables (B, L, r) of halves."""
    if "rotary_cos" not in options:
        return Steps()(query, key, value, **options)
    tables = [options.pop(name)[:, None] for name in ("rotary_cos", "rotary_sin")]
    query, key = (exchanged(x, *tables) for x in (query, key))
    return Steps()(query, key, value, **options)


def as_complex_numbers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Tables (B, L, r), every number twice in a row, as the parts of a complex number."""
    if "rotary_cos" not in options:
        return Steps()(query, key, value, **options)
    tables = [options.pop(name)[:, None, :, ::2] for name in ("rotary_cos", "rotary_sin")]
    single = torch.float64 if query.dtype is torch.float64 else torch.float32
    turns = torch.complex(*(table.to(single).contiguous() for table in tables))
    pairs = (torch.view_as_complex(x.to(single).unflatten(-1, (-1, 2)).contiguous()) for x in (query, key))
    query, key = (torch.view_as_real(pair * turns).flatten(-2).to(query.dtype) for pair in pairs)
    return Steps()(query, key, value, **options)


def scaled_in_single(
    method: str, length: int, width: int, base: float, factor: float, original: int, *factors: Sequence[float]
) -> Array:
    """In float32 throughout, frequency by frequency."""
    own = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
    stretch = 1.0
    if method == "linear":
        own = own / factor
    elif method == "dynamic":
        longest = max(length, original)
        grown = base * ((factor * longest / original) - (factor - 1)) ** (width / (width - 2))
        own = 1.0 / grown ** (torch.arange(0, width, 2).float() / width)
    elif method == "yarn":
        ends = [width * math.log(original / (n * 2 * math.pi)) / (2 * math.log(base)) for n in (32, 1)]
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), width - 1)
        ramp = ((torch.arange(width // 2).float() - low) / (high - low)).clamp(0, 1)
        own, stretch = own / factor * ramp + own * (1 - ramp), 0.1 * math.log(factor) + 1.0
    elif method == "llama3":
        wave = 2 * math.pi / own
        smooth = (original / wave - 1.0) / 3.0
        mixed = (1 - smooth) * own / factor + smooth * own
        own = torch.where(wave > original, own / factor, torch.where(wave < original / 4, own, mixed))
    else:
        own = own / torch.tensor(factors[length > original])
        stretch = math.sqrt(1 + math.log(factor) / math.log(original))
    angles = torch.outer(torch.arange(length).float(), own)
    return np.asarray(torch.stack([angles.cos() * stretch, angles.sin() * stretch]).numpy())


def axes_overwritten(order: str, positions: Sequence[Sequence[int]], pairs: Sequence[int], base: float) -> Array:
    """In float32: the angles of all axes, of which parts are picked, or laid over those of the first."""
    width = 2 * sum(pairs)
    own = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    angles = torch.tensor(positions).float()[..., None] * own
    if order == "sections":
        mixed = torch.cat([part[axis] for axis, part in enumerate(angles.split(list(pairs), -1))], -1)
    else:
        mixed = angles[0].clone()
        for axis in range(1, len(pairs)):
            there = slice(axis, len(pairs) * pairs[axis], len(pairs))
            mixed[:, there] = angles[axis][:, there]
    return np.asarray(torch.stack([mixed.cos(), mixed.sin()]).numpy())


MADE = {"scaled_rotary": scaled_in_single, "axes_rotary": axes_overwritten}
RIGHT = (
    op("steps", Steps(), WITH_IDS),
    op("of-positions", of_positions, WITH_IDS - {Feature.PARTIAL_ROTARY, Feature.QK_NORM}),
    op("of-tokens", of_tokens, CLAIMED, conventions=Conventions(rotary_tables=TableForm.TOKENS)),
    op("doubled", doubled, CLAIMED, conventions=Conventions(rotary_tables=TableForm.DOUBLED)),
    op(
        "complex",
        as_complex_numbers,
        CLAIMED,
        conventions=Conventions(rotary_pairing=RotaryPairing.INTERLEAVED, rotary_tables=TableForm.DOUBLED),
    ),
    op("functions", Steps(), {Feature.ROTARY_SCALING, Feature.ROTARY_AXES}, functions=MADE),
)
