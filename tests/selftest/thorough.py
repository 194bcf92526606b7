"""What `make thorough` adds to `make test`: tests that repeat others, in more dtypes, variants or processes."""

from collections.abc import Sequence
from typing import Any

import pytest

OPTION = "--thorough"
thorough = pytest.mark.thorough
"""Marks a test whose point another test shows at less cost."""


def by_turns(values: Sequence[Any], every: int) -> list[Any]:
    """The values as parameters, of which `make test` takes one in so many."""
    return [pytest.param(value, marks=() if n % every == 0 else thorough) for n, value in enumerate(values)]


def postpone(items: Sequence[pytest.Item], config: pytest.Config) -> None:
    """Skips what is marked, unless the option is given."""
    if not config.getoption(OPTION):
        for item in items:
            if item.get_closest_marker(thorough.name):
                item.add_marker(pytest.mark.skip(reason="repeats others: make thorough runs it"))
