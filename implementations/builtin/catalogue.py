"""The built-in implementations, in the order of the summary."""

from collections.abc import Mapping
from dataclasses import replace

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.compositions import COMPOSITIONS
from attention_conformance.implementations.builtin.flex import COMPILED, EAGER, missing
from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.implementations.builtin.inhouse.cached import CACHED
from attention_conformance.implementations.builtin.inhouse.cached_numpy import CACHED_NUMPY
from attention_conformance.implementations.builtin.inhouse.latent import LATENT
from attention_conformance.implementations.builtin.inhouse.paged import IN_NUMPY as PAGED_NUMPY
from attention_conformance.implementations.builtin.inhouse.paged import IN_TORCH as PAGED_TORCH
from attention_conformance.implementations.builtin.inhouse.positions import POSITIONS
from attention_conformance.implementations.builtin.inhouse.quantised import IN_NUMPY as QUANTISED_NUMPY
from attention_conformance.implementations.builtin.inhouse.quantised import IN_TORCH as QUANTISED_TORCH
from attention_conformance.implementations.builtin.inhouse.splits import SPLITS
from attention_conformance.implementations.builtin.kernel_entries import (
    PALLAS,
    TRITON,
    no_pallas,
    no_triton,
    of_pallas,
    of_triton,
)
from attention_conformance.implementations.builtin.mha import MHA_INDUCTOR, TORCH_MODULES
from attention_conformance.implementations.builtin.nested import NESTED, no_nested, of_nested
from attention_conformance.implementations.builtin.sdpa import SDPA_INDUCTOR, TORCH_OPS
from attention_conformance.implementations.builtin.sources.adapters import SOURCES

SERVED = tuple(
    replace(each, claims=replace(each.claims, dtypes=("float32", "bfloat16")))
    for each in (PAGED_NUMPY, QUANTISED_NUMPY)
)
"""Judged in two types by default, which keeps the page of a full run small; where they are tested, in all."""
BUILTIN: tuple[Implementation, ...] = (
    *SOURCES,
    *TORCH_OPS,
    EAGER,
    *TORCH_MODULES,
    *INHOUSE,
    *POSITIONS,
    *CACHED,
    *SERVED,
)
ON_REQUEST: tuple[Implementation, ...] = (
    *(() if missing() else (COMPILED, SDPA_INDUCTOR, MHA_INDUCTOR)),
    *(() if no_triton() else (of_triton(),)),
    *(() if no_pallas() else (of_pallas(),)),
    *(() if no_nested() else (of_nested(),)),
)
"""Costly ones, that take part where --implementation names them in full."""
NAMED: tuple[Implementation, ...] = (*COMPOSITIONS, PAGED_TORCH, QUANTISED_TORCH, *LATENT, SPLITS, CACHED_NUMPY)
"""Plain ones to compare with, that take part where --implementation names them in full."""
ABSENT: Mapping[str, str] = {
    name: why
    for why, names in (
        (missing(), (COMPILED.name, SDPA_INDUCTOR.name, MHA_INDUCTOR.name)),
        (no_triton(), (TRITON,)),
        (no_pallas(), (PALLAS,)),
        (no_nested(), (NESTED,)),
    )
    for name in names
    if why
}
"""Those that cannot run here, and why."""
