"""Mistakes of chapter 21: the functions that attention is used with: sinusoids and the slopes of ALiBi."""

from functools import partial

import numpy as np

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Result
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.defects.breaking import PRECISION, breaks_function, breaks_run
from attention_conformance.spec.conventions import AlibiRule, Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Array, Problem

breaks_sinusoids = partial(
    breaks_function, "sinusoids", "positions.sinusoids", holds=("positions.sinusoids-length", "scores.dot-product")
)
breaks_sinusoids_of_lengths = partial(
    breaks_function,
    "sinusoids",
    "positions.sinusoids",
    "positions.sinusoids-length",
    holds=("scores.dot-product", "softmax.rows-sum-to-one"),
)
breaks_slopes_of_any_heads = partial(
    breaks_function, "alibi_slopes", "positions.alibi-any-heads", holds=("positions.alibi-slopes", "scores.dot-product")
)
breaks_slopes = partial(
    breaks_function,
    "alibi_slopes",
    "positions.alibi-slopes",
    "positions.alibi-any-heads",
    holds=("scores.dot-product", "masks.float"),
)


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


@breaks_sinusoids_of_lengths()
def positions_over_the_length(length: int, width: int) -> Array:
    return interleaved(100.0 * np.arange(length)[:, None] / length * powers(width))


@breaks_sinusoids_of_lengths()
def base_raised_with_the_length(length: int, width: int) -> Array:
    stretch = max(1.0, length / 64)
    return interleaved(np.arange(length)[:, None] * powers(width) * stretch ** (-np.arange(width // 2) / width))


@breaks_sinusoids()
def component_doubled_in_the_exponent(length: int, width: int) -> Array:
    angles = np.arange(length)[:, None] * 10000.0 ** (-2.0 * np.arange(width) / width)
    return np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))


@breaks_sinusoids()
def last_frequency_at_the_end(length: int, width: int) -> Array:
    steps = np.arange(width // 2) / max(1, width // 2 - 1)
    return interleaved(np.arange(length)[:, None] * 10000.0**-steps)


@breaks_sinusoids()
def positions_from_one(length: int, width: int) -> Array:
    return interleaved(np.arange(1, length + 1)[:, None] * powers(width))


@breaks_sinusoids()
def sines_before_cosines(length: int, width: int) -> Array:
    angles = np.arange(length)[:, None] * powers(width)
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)


@breaks_sinusoids(severity=PRECISION)
def table_in_float16(length: int, width: int) -> Array:
    angles = np.arange(length)[:, None].astype(np.float16) * powers(width).astype(np.float16)
    return interleaved(angles)


@breaks_slopes_of_any_heads()
def one_sequence_of_slopes(num_heads: int) -> Array:
    return geometric(num_heads)


@breaks_slopes_of_any_heads(conventions=Conventions(alibi_rule=AlibiRule.GEOMETRIC))
def slopes_of_two_sequences(num_heads: int) -> Array:
    first = below(num_heads)
    return np.concatenate([geometric(first), geometric(2 * first)[::2]])[:num_heads]


@breaks_slopes()
def slopes_from_one(num_heads: int) -> Array:
    ratio = geometric(below(num_heads))[0]
    return np.asarray(ratio ** np.arange(num_heads))


@breaks_slopes_of_any_heads()
def slopes_filled_up_with_themselves(num_heads: int) -> Array:
    first = below(num_heads)
    return np.concatenate([geometric(first), geometric(2 * first)[1::2]])[:num_heads]


@breaks_slopes_of_any_heads()
def slopes_sorted(num_heads: int) -> Array:
    return np.sort(slopes_of_two_sequences(num_heads))[::-1]


@breaks_slopes()
def slopes_halved_from_head_to_head(num_heads: int) -> Array:
    return np.asarray(0.5 ** np.arange(1, num_heads + 1))


@breaks_run(
    "shapes.combinations",
    "shapes.meetings",
    claims=Claims(Scope.OP, OP_FEATURES, premises=Premises(alibi=True, interleaved=True)),
    holds=("scores.dot-product", "values.weighted-sum"),
)
def no_slope_left_out_inside(problem: Problem, device: str) -> Result:
    few = below(problem.num_heads)
    slopes = np.concatenate([geometric(few), geometric(2 * few)])[: problem.num_heads]
    slopes = slopes.astype(problem.extras["alibi_slopes"].dtype)
    return torch_op(Steps())(problem.but(extras={**problem.extras, "alibi_slopes": slopes}), device)
