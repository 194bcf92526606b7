"""Dropout by counting: which weights are dropped follows from a seed and their places, whatever the tiles are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.tile_masks import Tile

STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""Shifts and factors of the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
GOLDEN = 0x9E3779B97F4A7C15
"""2 ** 64 divided by the golden ratio: what its counter goes on by."""
DIGITS = 53


@dataclass(frozen=True)
class Dropout:
    """Which of the weights (B, H, queries, keys) are dropped.

    Attributes:
        rate: the probability of each.
        seed: equal seeds drop equally.
        shape: (B, H, queries, keys) of all weights.
    """

    rate: float
    seed: int
    shape: tuple[int, int, int, int]

    def factors(self, tile: Tile, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(B, H, rows, keys): 0 for the dropped weights of a tile, 1 / (1 - rate) for the others."""
        kept: Tensor = self._uniform(self._numbers(tile, device)) >= round(self.rate * 2**DIGITS)
        return kept.to(dtype).mul(1.0 / (1.0 - self.rate) if self.rate < 1.0 else 0.0)

    def _numbers(self, tile: Tile, device: torch.device) -> Tensor:
        """The number of each weight among all."""
        batch, heads, queries, keys = self.shape
        rows = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1) * queries
        rows = rows + torch.arange(tile.rows.start, tile.rows.stop, device=device)[:, None]
        return rows * keys + torch.arange(tile.keys.start, tile.keys.stop, device=device)

    def _uniform(self, numbers: Tensor) -> Tensor:
        """A random integer below 2 ** DIGITS for each number."""
        bits = numbers * _signed(GOLDEN) + _signed(self.seed)
        for shift, factor in STEPS:
            bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
        return _shifted(bits, 64 - DIGITS)


def _signed(number: int) -> int:
    """The same 64 bits as a signed number, as torch holds them."""
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


def _shifted(bits: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return bits.bitwise_right_shift(by).bitwise_and((1 << (64 - by)) - 1)


def drawn_seed() -> int:
    """A seed out of torch's generator."""
    return int(torch.randint(2**63 - 1, ()))
