"""Mistakes of chapter 30: rotations by given cosines and sines, and the functions that make them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse import scaled_tables as scaling
from attention_conformance.implementations.builtin.inhouse.scaled_tables import Setting
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects.breaking import GRADIENT, PRECISION, breaks, breaks_function
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array

TABLES = frozenset({Feature.ROTARY_TABLES, Feature.QUERY_START, Feature.POSITION_IDS, Feature.PARTIAL_ROTARY})
EVERYWHERE = ("rotary-tables.scores", "rotary-tables.start", "rotary-tables.ids")
PLAIN = ("scores.dot-product", "causal.square")
breaks_tables = partial(breaks, claims=TABLES)
breaks_rotation = partial(breaks_tables, *EVERYWHERE, step="rotate_pairs", holds=PLAIN)


@breaks_rotation("rotary-tables.gradient")
def sines_negated(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return correct.rotate_pairs(rows, cosines, -sines)


@breaks_rotation("rotary-tables.gradient")
def sines_taken_for_cosines(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return correct.rotate_pairs(rows, sines, cosines)


@breaks_rotation("rotary-tables.gradient")
def tables_for_adjacent_components(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    width = 2 * cosines.shape[-1]
    part = torch.cat([rows[..., :width:2], rows[..., 1:width:2]], -1)
    rotated = torch.stack(correct.rotate_pairs(part, cosines, sines).chunk(2, -1), -1).flatten(-2)
    return torch.cat([rotated, rows[..., width:]], -1)


@breaks_rotation("rotary-tables.gradient")
def tables_brought_to_length_one(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    length = (cosines.square() + sines.square()).sqrt()
    return correct.rotate_pairs(rows, cosines / length, sines / length)


@breaks_rotation("rotary-tables.gradient")
def sine_found_from_the_cosine(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return correct.rotate_pairs(rows, cosines, (1.0 - cosines.square()).clamp(min=0.0).sqrt() * sines.sign())


@breaks_tables("rotary-tables.scores", "rotary-tables.gradient", step="rotate_pairs", holds=PLAIN)
def last_components_by_the_tables(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    rest = rows.shape[-1] - 2 * cosines.shape[-1]
    return torch.cat([rows[..., :rest], correct.rotate_pairs(rows[..., rest:], cosines, sines)], -1)


@breaks_tables("rotary-tables.gradient", step="rotate_pairs", holds=(*EVERYWHERE, "gradients.query"), severity=GRADIENT)
def gradient_by_the_inverse(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    square = cosines.square() + sines.square()
    forwards = partial(correct.rotate_pairs, cosines=cosines, sines=sines)
    return distorted(rows, partial(correct.rotate_pairs, cosines=cosines / square, sines=-sines / square), forwards)


@breaks_tables("rotary-tables.start", "rotary-tables.ids", step="row_of", holds=("rotary-tables.gradient", *PLAIN))
def tables_read_by_the_row(table: Tensor, positions: Tensor) -> Tensor:
    return table[: positions.shape[1]].expand(len(positions), -1, -1)


@breaks_tables(*EVERYWHERE, "rotary-tables.gradient", step="row_of", holds=PLAIN)
def tables_read_one_row_too_late(table: Tensor, positions: Tensor) -> Tensor:
    return table[positions + 1]


@breaks_tables("rotary-tables.ids", step="row_of", holds=("rotary-tables.scores", "rotary-tables.start"))
def ids_cut_off_at_a_length(table: Tensor, positions: Tensor) -> Tensor:
    return table[positions.clamp(max=64)]


@breaks_tables("rotary-tables.ids", step="rotated_at", holds=("rotary-tables.scores", "rotary-tables.start"))
def rows_of_the_first_sample_for_all(of_query: Tensor, of_key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor]:
    query, key = correct.rotated_at(of_query, of_key, call)
    return query[:1].expand_as(query), key[:1].expand_as(key)


@breaks_tables("rotary-tables.start", step="rotated_at", holds=("rotary-tables.gradient", "causal.square"))
def keys_by_the_start_of_queries(of_query: Tensor, of_key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor]:
    query, key = correct.rotated_at(of_query, of_key, call)
    start = call.query_start or 0
    room = len(call.rotary_cos) - 1 if call.rotary_cos is not None else start + key.shape[1]
    return query, key if call.query_positions is not None else (key + start).clamp(max=room)


@breaks_tables(*EVERYWHERE, "rotary-tables.gradient", holds=PLAIN)
def queries_alone_by_the_tables(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    calls: list[bool] = []

    def rotate_pairs(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        calls.append(True)
        return correct.rotate_pairs(rows, cosines, sines) if len(calls) == 1 else rows

    return Steps(rotate_pairs=rotate_pairs)(query, key, value, **options)


@breaks("rotary-tables.norm", claims=TABLES | {Feature.QK_NORM}, holds=("rotary-tables.scores", "qk-norm.scores"))
def normalised_after_the_tables(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not {"rotary_cos", "query_norm"} <= options.keys():
        return Steps()(query, key, value, **options)
    tables = {name: options.pop(name) for name in ("rotary_cos", "rotary_sin")}
    call = CallOptions(**options)
    at = correct.rotated_at(*correct.positions(query, key, call)[:2], call)
    query, key = (
        correct.rotate_pairs(
            rows.to(correct.accumulator(rows.dtype)), tables["rotary_cos"][to], tables["rotary_sin"][to]
        )
        for rows, to in ((query, at[0]), (key, at[1]))
    )
    return Steps()(query, key, value, **options).to(value.dtype)


@breaks_rotation("rotary-tables.gradient", severity=PRECISION)
def tables_in_bfloat16(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return correct.rotate_pairs(rows, cosines.bfloat16(), sines.bfloat16())


Made: TypeAlias = tuple[Array, float]


def breaks_method(name: str, *clauses: str, **facts: Any) -> Callable[[scaling.Method], Callable[..., Array]]:
    """A mistake of one method of scaling."""

    def made(method: scaling.Method) -> Callable[..., Array]:
        methods = {**scaling.METHODS, name: method}

        @wraps(method)
        def tables(*given: object) -> Array:
            return scaling.scaled_rotary(*given, methods=methods)  # type: ignore[arg-type]

        others = tuple(f"rotary-tables.{other}" for other in scaling.METHODS if other != name)
        breach = breaks_function(
            "scaled_rotary", f"rotary-tables.{name}", *clauses, holds=(*others, "scores.dot-product")
        )
        breach(tables)
        return tables

    return made


@breaks_method("linear")
def positions_times_the_factor(of: Setting) -> Made:
    return of.plain * of.factor, 1.0


@breaks_method("linear")
def base_times_the_factor(of: Setting) -> Made:
    return replace(of, base=of.base * of.factor).plain, 1.0


@breaks_method("dynamic")
def base_grown_for_short_sequences_too(of: Setting) -> Made:
    return scaling.dynamic(replace(of, length=int(of.factor * of.original)))


@breaks_method("dynamic")
def base_grown_by_the_length_alone(of: Setting) -> Made:
    beyond = max(1.0, of.length / of.original)
    return replace(of, base=of.base * beyond ** (of.width / (of.width - 2))).plain, 1.0


@breaks_method("dynamic")
def base_grown_without_its_exponent(of: Setting) -> Made:
    beyond = max(of.length, of.original) / of.original
    return replace(of, base=of.base * (1.0 + of.factor * (beyond - 1.0))).plain, 1.0


@breaks_method("yarn")
def attention_factor_left_out(of: Setting) -> Made:
    return scaling.yarn(of)[0], 1.0


@breaks_method("yarn")
def attention_factor_twice(of: Setting) -> Made:
    frequencies, stretch = scaling.yarn(of)
    return frequencies, stretch**2


@breaks_method("yarn")
def ramp_the_other_way(of: Setting) -> Made:
    frequencies, stretch = scaling.yarn(of)
    return of.plain + of.plain / of.factor - frequencies, stretch


@breaks_method("yarn")
def ramp_over_components(of: Setting) -> Made:
    first, last = max(np.floor(2.0 * scaling.turning(of, 32.0)), 0.0), np.ceil(2.0 * scaling.turning(of, 1.0))
    kept = 1.0 - np.interp(np.arange(of.width // 2), [first, last], [0.0, 1.0])
    return of.plain * (kept + (1.0 - kept) / of.factor), scaling.yarn(of)[1]


@breaks_method("llama3")
def mixed_by_wavelengths(of: Setting) -> Made:
    wave = 2.0 * np.pi / of.plain
    kept = 1.0 - np.interp(wave, [of.original / 4.0, of.original], [0.0, 1.0])
    return of.plain * (kept + (1.0 - kept) / of.factor), 1.0


@breaks_method("llama3")
def slow_pairs_kept_and_fast_ones_divided(of: Setting) -> Made:
    return of.plain + of.plain / of.factor - scaling.llama3(of)[0], 1.0


@breaks_method("longrope")
def long_factors_for_every_length(of: Setting) -> Made:
    return scaling.longrope(replace(of, short=of.long))


@breaks_method("longrope")
def long_factors_at_the_original_length(of: Setting) -> Made:
    return scaling.longrope(replace(of, short=of.long) if of.length == of.original else of)


@breaks_method("longrope")
def attention_factor_for_long_sequences_only(of: Setting) -> Made:
    frequencies, stretch = scaling.longrope(of)
    return frequencies, stretch if of.length > of.original else 1.0


@breaks_method("longrope")
def frequencies_times_the_factors(of: Setting) -> Made:
    frequencies, stretch = scaling.longrope(of)
    return of.plain**2 / frequencies, stretch


def breaks_axes(*orders: str) -> Callable[[scaling.Owners], Callable[..., Array]]:
    """A mistake in which axis a pair belongs to, in these orders."""

    def made(owners: scaling.Owners) -> Callable[..., Array]:
        @wraps(owners)
        def tables(order: str, positions: Sequence[Sequence[int]], pairs: Sequence[int], base: float) -> Array:
            mistaken = {**scaling.ORDERS, **dict.fromkeys(orders, owners)}
            return scaling.axes_rotary(order, positions, pairs, base, mistaken)

        breaks_function("axes_rotary", "rotary-tables.axes", holds=("scores.dot-product",))(tables)
        return tables

    return made


@breaks_axes(*scaling.ORDERS)
def all_pairs_by_the_first_axis(pairs: Sequence[int]) -> Array:
    return np.zeros(sum(pairs), dtype=np.int64)


@breaks_axes("sections")
def axes_in_turns_for_sections(pairs: Sequence[int]) -> Array:
    return scaling.in_turns(pairs)


@breaks_axes("turns")
def axes_in_turns_to_the_end(pairs: Sequence[int]) -> Array:
    return np.arange(sum(pairs)) % len(pairs)


@breaks_axes("sections")
def sections_counted_in_components(pairs: Sequence[int]) -> Array:
    return np.repeat(scaling.in_sections(pairs), 2)[: sum(pairs)]


@breaks_axes("turns")
def height_and_width_exchanged(pairs: Sequence[int]) -> Array:
    owners = scaling.in_turns(pairs)
    return np.where(owners > 0, len(pairs) - owners, 0)


@breaks_function("axes_rotary", "rotary-tables.axes", holds=("scores.dot-product",))
def frequencies_anew_on_each_axis(
    order: str, positions: Sequence[Sequence[int]], pairs: Sequence[int], base: float
) -> Array:
    tables = scaling.axes_rotary(order, positions, pairs, base)
    owners = scaling.ORDERS[order](pairs)
    for axis, count in enumerate(pairs):
        tables[..., owners == axis] = scaling.axes_rotary(order, [positions[axis]], [count], base)
    return tables
