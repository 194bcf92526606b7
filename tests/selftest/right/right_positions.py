"""Right implementations of positions, each by another formula, angles in float32 among them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, rotate_by
from attention_conformance.spec.conventions import Conventions, RotaryPairing
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array
from attention_conformance.tests.selftest.reference.family_styles import single_angles
from attention_conformance.tests.selftest.reference.styles import one_float_mask
from attention_conformance.tests.selftest.right.right import op

ROTARY = {Feature.ROTARY, Feature.PARTIAL_ROTARY, Feature.POSITION_IDS, Feature.QUERY_START, Feature.GROUPED}
BIASES = {Feature.ALIBI, Feature.RELATIVE_BIAS, Feature.QUERY_START, Feature.SOFTCAP}
INTERLEAVED = Conventions(rotary_pairing=RotaryPairing.INTERLEAVED)


def as_complex_numbers(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    """Neighbouring components are the parts of a complex number, rotated by multiplication with one of length 1."""
    angles = single_angles(positions, rows.shape[-1] // 2, base)[:, None]
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(rows.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(rows.dtype)


def by_exchanged_halves(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    """rows * cos + (second half negated, first half) * sin, in the dtype of the rows."""
    angles = single_angles(positions, rows.shape[-1] // 2, base)[:, None].repeat(1, 1, 1, 2)
    first, second = rows.chunk(2, -1)
    cosines, sines = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    return rows * cosines + torch.cat([-second, first], -1) * sines


def by_matrices(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    """A d by d matrix for each position."""
    count = rows.shape[-1] // 2
    angles = single_angles(positions, count, base).double()
    cosines, sines = torch.diag_embed(angles.cos()), torch.diag_embed(angles.sin())
    matrices = torch.cat([torch.cat([cosines, -sines], -1), torch.cat([sines, cosines], -1)], -2)
    return torch.einsum("blij,bhlj->bhli", matrices.to(rows.dtype), rows)


def by_power_of_the_base(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    """Position over base to the power of a fraction, all in float32, rotated in the halves."""
    count = rows.shape[-1] // 2
    powers = torch.tensor(base, dtype=torch.float32) ** (torch.arange(count, dtype=torch.float32) / count)
    return rotate_by(rows, positions[..., None].float() / powers)


def the_rest_by_no_angle(rows: Tensor, dim: int, rotate: Callable[[Tensor], Tensor]) -> Tensor:
    """The rotation of as many components of zeros is zero, too: both parts are rotated, and the rest is added."""
    first, rest = rows.clone(), rows.clone()
    first[..., dim:], rest[..., :dim] = 0.0, 0.0
    return rest + torch.nn.functional.pad(rotate(first[..., :dim]), (0, rows.shape[-1] - dim))


def alibi_from_two_sides(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    """The nearer of two straight lines, one falling to each side."""
    line = slopes[:, None, None] * ahead[:, None].to(scores.dtype)
    return scores + torch.minimum(line, -line)


def one_hot_table(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    """The entries by a product with zeros and ones."""
    most = table.shape[-1] // 2
    one_hot = torch.nn.functional.one_hot(ahead.clamp(-most, most) + most, table.shape[-1])
    return scores + torch.einsum("he,bije->bhij", table, one_hot.to(table.dtype))


def biases_first(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Biases of position put into one float mask, in the working dtype, that is added where a mask is."""
    biases: dict[str, Any] = {name: options.pop(name) for name in ("alibi_slopes", "relative_bias") if name in options}
    if not biases:
        return Steps()(query, key, value, **options)
    start = {"query_start": options["query_start"]} if "query_start" in options else {}
    mask = one_float_mask(query, key, {**biases, **start})
    given = options.pop("attn_mask", None)
    if given is not None:
        mask = mask.masked_fill(~given, -torch.inf) if given.dtype is torch.bool else mask + given
    return Steps()(query, key, value, attn_mask=mask, **options)


def sinusoids_of_tutorials(length: int, width: int) -> Array:
    """In float32, the frequencies by the exponential of a logarithm."""
    table = torch.zeros(length, width)
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return np.asarray(table.numpy())


def slopes_by_multiplication(num_heads: int) -> Array:
    """In float32, each slope the one before times their ratio."""
    below = 2 ** int(math.log2(num_heads))
    ratio = np.float32(2.0) ** np.float32(-8.0 / below)
    slopes = np.cumprod(np.full(below, ratio, np.float32))
    if below == num_heads:
        return np.asarray(slopes)
    return np.concatenate([slopes, slopes_by_multiplication(2 * below)[::2]])[:num_heads].astype(np.float16)


RIGHT_POSITIONS = (
    op("steps", Steps(), ROTARY | BIASES),
    op("complex", Steps(rotate=as_complex_numbers), ROTARY, conventions=INTERLEAVED),
    op("eager.exchanged-halves", Steps(wide=False, rotate=by_exchanged_halves), ROTARY),
    op("matrices", Steps(rotate=by_matrices), ROTARY),
    op("padded-rotation", Steps(rotate_first=the_rest_by_no_angle), ROTARY),
    op("power", Steps(rotate=by_power_of_the_base), ROTARY),
    op("two-sides", Steps(add_alibi=alibi_from_two_sides, add_relative=one_hot_table), BIASES),
    op("eager.one-hot", Steps(wide=False, add_relative=one_hot_table), BIASES),
    op("biases-first", biases_first, BIASES - {Feature.SOFTCAP}),
    op(
        "functions",
        Steps(),
        {Feature.SINUSOIDS, Feature.ALIBI_SLOPES},
        functions={"sinusoids": sinusoids_of_tutorials, "alibi_slopes": slopes_by_multiplication},
    ),
)
