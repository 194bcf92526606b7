"""Functions that have to be given one option, which changes nothing where a problem has none, settings or sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from attention_conformance.implementations.discovery.functions.block_sizes import InBlocks, with_block_sizes
from attention_conformance.implementations.discovery.functions.dividing_scale import (
    DividingScale,
    Divisor,
    with_dividing_scale,
    with_divisor,
)
from attention_conformance.implementations.discovery.functions.given_output import GivenOutput, with_given_output
from attention_conformance.implementations.discovery.functions.given_sizes import GivenSizes, with_given_sizes
from attention_conformance.implementations.discovery.functions.named_options import NamedOptions, with_named_options
from attention_conformance.implementations.discovery.functions.needed_cap import with_needed_cap
from attention_conformance.implementations.discovery.functions.needed_options import (
    NeededOption,
    with_needed_bias,
    with_needed_slopes,
)
from attention_conformance.implementations.discovery.functions.needed_tables import NeededTables, with_needed_tables
from attention_conformance.implementations.discovery.functions.needed_window import (
    PairByDefault,
    WindowSides,
    with_needed_window,
    with_pair_by_default,
    with_window_sides,
)
from attention_conformance.implementations.discovery.functions.neutral_numbers import (
    NeutralNumber,
    with_neutral_number,
)
from attention_conformance.implementations.discovery.functions.own_settings import OwnSettings, with_own_settings
from attention_conformance.implementations.discovery.functions.prefix_numbers import with_needed_prefix

SingleNeed: TypeAlias = (
    OwnSettings
    | GivenOutput
    | NeededOption
    | NamedOptions
    | NeutralNumber
    | PairByDefault
    | WindowSides
    | NeededTables
    | GivenSizes
    | DividingScale
    | Divisor
    | InBlocks
)


def with_single_need(function: Callable[..., Any]) -> SingleNeed | None:
    """The function, given what it needs, settings, slopes, bias, cap, window, tables, gradients or sizes, or smaller
    blocks or the inverse of a scale.

    None where it needs nothing of this.
    """
    needed: SingleNeed | None = (
        with_own_settings(function)
        or with_given_output(function)
        or with_needed_slopes(function)
        or with_needed_bias(function)
        or with_divisor(function)
    )
    needed = needed or with_needed_cap(function) or with_named_options(function)
    needed = needed or with_needed_window(function) or with_window_sides(function) or with_pair_by_default(function)
    needed = needed or with_needed_tables(function) or with_neutral_number(function)
    needed = needed or with_needed_prefix(function)
    return needed or with_given_sizes(function) or with_dividing_scale(function) or with_block_sizes(function)
