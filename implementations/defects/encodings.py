"""Mistakes of chapter 21: the functions that attention is used with: sinusoids and the slopes of ALiBi."""

from __future__ import annotations

import numpy as np

from attention_conformance.implementations.defects.breaking import PRECISION, breaks_function, github
from attention_conformance.spec.features import AlibiRule, Conventions
from attention_conformance.spec.problem import Array


def interleaved(angles: Array) -> Array:
    """(L, d / 2) -> (L, d): each sine before the cosine of its angle."""
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(angles), -1)


def powers(width: int) -> Array:
    """(d / 2,): the frequencies, 10000 ** (-2 c / d)."""
    return np.asarray(10000.0 ** (-np.arange(0, width, 2) / width))


def geometric(num_heads: int) -> Array:
    return np.asarray(2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads))


def below(num_heads: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (num_heads.bit_length() - 1)


@breaks_function(
    "sinusoids",
    "positions.sinusoids",
    "positions.sinusoids-length",
    holds=("scores.dot-product", "softmax.rows-sum-to-one"),
).entry(
    does="Divides positions by the length of the sequence.",
    repair="Let the angle depend on the position only.",
    hides="Sequences of one length, in training and in use.",
)
def positions_over_the_length(length: int, width: int) -> Array:
    return interleaved(100.0 * np.arange(length)[:, None] / length * powers(width))


@breaks_function(
    "sinusoids",
    "positions.sinusoids",
    "positions.sinusoids-length",
    holds=("scores.dot-product", "softmax.rows-sum-to-one"),
).entry(
    does="Raises the base with the length, once it goes beyond what was trained.",
    repair="Keep the base, or make another one a part of the model.",
    hides="Sequences within the length of training.",
    matters="The same prefix has another encoding in a longer text, and what was cached of it is stale.",
)
def base_raised_with_the_length(length: int, width: int) -> Array:
    stretch = max(1.0, length / 64)
    return interleaved(np.arange(length)[:, None] * powers(width) * stretch ** (-np.arange(width // 2) / width))


@breaks_function("sinusoids", "positions.sinusoids", holds=("positions.sinusoids-length", "scores.dot-product")).entry(
    does="Doubles the number of the component instead of that of the pair.",
    repair="Give sine and cosine of a pair one frequency: 2 c counts components already.",
    hides="Width 2; training from scratch.",
    matters="Half of the frequencies are too slow to distinguish positions.",
)
def component_doubled_in_the_exponent(length: int, width: int) -> Array:
    angles = np.arange(length)[:, None] * 10000.0 ** (-2.0 * np.arange(width) / width)
    return np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))


@breaks_function("sinusoids", "positions.sinusoids", holds=("positions.sinusoids-length", "scores.dot-product")).entry(
    does="Lets the last pair have a frequency of exactly 1/10000.",
    repair="Divide the number of the pair by the number of pairs, and not by one less.",
    hides="Training from scratch, which does as well with either.",
    matters="Two libraries spread the frequencies differently, and their checkpoints do not fit each other.",
)
def last_frequency_at_the_end(length: int, width: int) -> Array:
    steps = np.arange(width // 2) / max(1, width // 2 - 1)
    return interleaved(np.arange(length)[:, None] * 10000.0**-steps)


@breaks_function("sinusoids", "positions.sinusoids", holds=("positions.sinusoids-length", "scores.dot-product")).entry(
    does="Counts positions from 1.",
    repair="Count from 0, so that the first token gets sines of 0 and cosines of 1.",
    hides="Training from scratch; rotations, which only know distances.",
)
def positions_from_one(length: int, width: int) -> Array:
    return interleaved(np.arange(1, length + 1)[:, None] * powers(width))


@breaks_function("sinusoids", "positions.sinusoids", holds=("positions.sinusoids-length", "scores.dot-product")).entry(
    does="Puts all sines before all cosines, while it claims to alternate them.",
    repair="State which order it is, and keep to that of the weights.",
    hides="Training from scratch, which learns either.",
)
def sines_before_cosines(length: int, width: int) -> Array:
    angles = np.arange(length)[:, None] * powers(width)
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)


@breaks_function(
    "sinusoids", "positions.sinusoids", holds=("positions.sinusoids-length", "scores.dot-product"), severity=PRECISION
).entry(
    does="Makes the table in the half type of the model.",
    repair="Make it in float32 at least, and round the finished table.",
    hides="The first few dozen positions.",
    matters="Far positions are noise: an angle of 2500 is off by a radian in float16.",
)
def table_in_float16(length: int, width: int) -> Array:
    angles = np.arange(length)[:, None].astype(np.float16) * powers(width).astype(np.float16)
    return interleaved(angles)


@breaks_function(
    "alibi_slopes", "positions.alibi-any-heads", holds=("positions.alibi-slopes", "scores.dot-product")
).entry(
    does="Makes one geometric sequence for any number of heads, while it claims the interleaved rule.",
    repair="Take the slopes of the power of two below, then every second one of the power of two above.",
    hides="Powers of two.",
    matters="A checkpoint with 12 or 40 heads gets other slopes than it was trained with, and long texts decay.",
    links=github("ml-explore/mlx/pull/3071", "NVIDIA/TensorRT-LLM/pull/1611", "huggingface/transformers/pull/28380"),
)
def one_sequence_of_slopes(num_heads: int) -> Array:
    return geometric(num_heads)


@breaks_function(
    "alibi_slopes",
    "positions.alibi-any-heads",
    conventions=Conventions(alibi_rule=AlibiRule.GEOMETRIC),
    holds=("positions.alibi-slopes", "scores.dot-product"),
).entry(
    does="Interleaves the slopes of two powers of two, while it claims one geometric sequence.",
    repair="State which rule it is, and keep to that of the weights.",
    hides="Powers of two.",
    links=github("baichuan-inc/Baichuan2/issues/225"),
)
def slopes_of_two_sequences(num_heads: int) -> Array:
    first = below(num_heads)
    return np.concatenate([geometric(first), geometric(2 * first)[::2]])[:num_heads]


@breaks_function(
    "alibi_slopes", "positions.alibi-slopes", "positions.alibi-any-heads", holds=("scores.dot-product", "masks.float")
).entry(
    does="Counts the powers from 0, so that the first slope is 1.",
    repair="Count them from 1: the first slope is the ratio.",
    hides="A look at the last heads, which differ little.",
    links=github("paiml/aprender/pull/2143"),
)
def slopes_from_one(num_heads: int) -> Array:
    ratio = geometric(below(num_heads))[0]
    return np.asarray(ratio ** np.arange(num_heads))


@breaks_function(
    "alibi_slopes", "positions.alibi-any-heads", holds=("positions.alibi-slopes", "scores.dot-product")
).entry(
    does="Fills up with the second, fourth, ... slope of the power of two above, which are there already.",
    repair="Fill up with the first, third, ... one.",
    hides="Powers of two.",
)
def slopes_filled_up_with_themselves(num_heads: int) -> Array:
    first = below(num_heads)
    return np.concatenate([geometric(first), geometric(2 * first)[1::2]])[:num_heads]


@breaks_function(
    "alibi_slopes", "positions.alibi-any-heads", holds=("positions.alibi-slopes", "scores.dot-product")
).entry(
    does="Sorts the slopes of the two sequences.",
    repair="Leave the second sequence behind the first: the heads were trained in that order.",
    hides="Powers of two; any check of the slopes as a set.",
)
def slopes_sorted(num_heads: int) -> Array:
    return np.sort(slopes_of_two_sequences(num_heads))[::-1]


@breaks_function(
    "alibi_slopes", "positions.alibi-slopes", "positions.alibi-any-heads", holds=("scores.dot-product", "masks.float")
).entry(
    does="Halves the slope from head to head, however many heads there are.",
    repair="Take the ratio from the number of heads: 2 ** (-8 / H).",
    hides="Eight heads, the example of the paper.",
    matters="With 16 heads the last ones have no penalty to speak of.",
)
def slopes_halved_from_head_to_head(num_heads: int) -> Array:
    return np.asarray(0.5 ** np.arange(1, num_heads + 1))
