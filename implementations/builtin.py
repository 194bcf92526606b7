"""The built-in implementations, in the order of the summary."""

from __future__ import annotations

from collections.abc import Mapping

from implementations.compositions import COMPOSITIONS
from implementations.contract import Implementation
from implementations.inhouse import INHOUSE
from implementations.inhouse.cached import CACHED
from implementations.inhouse.positions import POSITIONS
from implementations.inhouse.ring_entries import RING_2, RING_4
from implementations.sources.adapters import SOURCES
from implementations.torch_flex import COMPILED, EAGER, missing
from implementations.torch_modules import MHA_INDUCTOR, TORCH_MODULES
from implementations.torch_ops import SDPA_INDUCTOR, TORCH_OPS

BUILTIN: tuple[Implementation, ...] = (
    *SOURCES,
    *TORCH_OPS,
    EAGER,
    *TORCH_MODULES,
    *INHOUSE,
    *POSITIONS,
    *CACHED,
    RING_2,
)
ON_REQUEST: tuple[Implementation, ...] = (RING_4,) if missing() else (COMPILED, SDPA_INDUCTOR, MHA_INDUCTOR, RING_4)
"""Costly ones, that take part where --implementation names them in full."""
NAMED = COMPOSITIONS
"""Plain ones to compare with, that take part where --implementation names them in full."""
ABSENT: Mapping[str, str] = {i.name: missing() for i in (COMPILED, SDPA_INDUCTOR, MHA_INDUCTOR)} if missing() else {}
"""Those that cannot run here, and why."""
