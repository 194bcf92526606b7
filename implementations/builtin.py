"""The built-in implementations, in the order of the summary."""

from __future__ import annotations

from implementations.contract import Implementation
from implementations.inhouse import INHOUSE
from implementations.inhouse.cached import CACHED
from implementations.inhouse.positions import POSITIONS
from implementations.sources.adapters import SOURCES
from implementations.torch_modules import TORCH_MODULES
from implementations.torch_ops import TORCH_OPS

BUILTIN: tuple[Implementation, ...] = (*SOURCES, *TORCH_OPS, *TORCH_MODULES, *INHOUSE, *POSITIONS, *CACHED)
