"""What `make thorough` adds to `make test`: tests that repeat others, in more dtypes, variants or processes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

OPTION = "--thorough"
MAKES = "make"
"""The fixture of tests that make a candidate of each of many texts, which takes a second or more."""
EVERY = 9
"""Of so many variants, `make test` takes one."""
thorough = pytest.mark.thorough
"""Marks a test whose point another test shows at less cost."""


def by_turns(values: Sequence[Any], every: int) -> list[Any]:
    """The values as parameters, of which `make test` takes one in so many."""
    return [pytest.param(value, marks=() if n % every == 0 else thorough) for n, value in enumerate(values)]


def postpone(items: Sequence[pytest.Item], config: pytest.Config) -> None:
    """Skips what is marked, and most variants of what candidates are made of, unless the option is given."""
    if config.getoption(OPTION):
        return
    for item in (*_marked(items), *_other_variants(items)):
        item.add_marker(pytest.mark.skip(reason="repeats others: make thorough runs it"))


def _marked(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.get_closest_marker(thorough.name)]


def _other_variants(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Of the right variants of each test, and of the wrong ones, all but the first and every ninth after it.

    Of parameters that are combined with others, each value is left in a right variant and in a wrong one, if both are.
    """
    counts, left = Counter[tuple[str, str]](), set[object]()
    for item in items:
        if isinstance(item, pytest.Function) and MAKES in item.fixturenames and hasattr(item, "callspec"):
            params = item.callspec.params
            variant = item.nodeid.partition("[")[0], str(params.get("wrong"))
            combined = len([*item.iter_markers("parametrize")]) > 1
            held = {(variant, name, repr(value)) for name, value in params.items()} if combined else set()
            if counts[variant] % EVERY and held <= left and ("wrong" in params or counts[variant] > 1):
                yield item
            else:
                left |= held
            counts[variant] += 1
