"""The built-in implementations, in the order of the summary."""

from __future__ import annotations

from collections.abc import Mapping

from implementations.contract import Implementation
from implementations.inhouse import INHOUSE
from implementations.inhouse.cached import CACHED
from implementations.inhouse.positions import POSITIONS
from implementations.sources.adapters import SOURCES
from implementations.torch_flex import COMPILED, EAGER, missing
from implementations.torch_modules import TORCH_MODULES
from implementations.torch_ops import TORCH_OPS

BUILTIN: tuple[Implementation, ...] = (*SOURCES, *TORCH_OPS, EAGER, *TORCH_MODULES, *INHOUSE, *POSITIONS, *CACHED)
ON_REQUEST: tuple[Implementation, ...] = () if missing() else (COMPILED,)
"""Costly ones, that take part where --implementation names them in full."""
ABSENT: Mapping[str, str] = {COMPILED.name: missing()} if missing() else {}
"""Those that cannot run here, and why."""
