"""Choices of a case: which gates of the output are given, and in which splits keys are answered."""

from enum import StrEnum


class OutputGates(StrEnum):
    """The logits whose sigmoid multiplies the output."""

    NONE = "none"
    """There are none."""
    CHANNEL = "channel"
    """One for each channel of each query's output in each head, (B, H, Lq, d_v)."""
    HEAD = "head"
    """One for each query's output in each head, (B, H, Lq, 1)."""


class KeySplits(StrEnum):
    """The splits of the keys that are answered on their own, and merged."""

    NONE = "none"
    PAIR = "pair"
    """Two, a third of the keys in the first."""
    MANY = "many"
    """Up to five of different lengths, of which the first and the last have one key."""
    EMPTY = "empty"
    """PAIR, and before, between and behind them one without a key."""
