"""How keys and values are stored where they are codes: as which numbers, and with which scales."""

from enum import StrEnum


class Codes(StrEnum):
    """The numbers that keys and values are stored as; each is exact in every working dtype."""

    NONE = "none"
    """Those of the working dtype."""
    INT8 = "int8"
    """Whole numbers from -127 to 127."""
    E4M3 = "float8-e4m3"
    """Of 8 bits with 4 for the exponent and 3 for the fraction, the largest 448."""
    E5M2 = "float8-e5m2"
    """Of 8 bits with 5 for the exponent and 2 for the fraction."""


class ScaledBy(StrEnum):
    """What has a scale of its own, by which codes are multiplied."""

    TENSOR = "tensor"
    HEAD = "head"
    """Each key head."""
    SAMPLE = "sample"
    """Each key head of each sample."""
    TOKEN = "token"
    """Each token of each sample, in each key head."""
    BLOCK = "block"
    """Each block of tokens, in each sample and key head: n blocks of Lk / n tokens each, rounded up."""
