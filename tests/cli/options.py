"""The plugin that pytest loads wherever the suite is installed: it makes the suite's options known from the start.

Where pytest does not run on the suite, the plugin adds nothing and does nothing.
"""

from collections.abc import Iterator

import pytest

from attention_conformance.tests.harness.run.options import (
    PATHS,
    declare,
    names_the_suite,
    nearest,
    on_the_suite,
    settings_found,
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares every option, where pytest runs on the suite."""
    if on_the_suite(pluginmanager.get_plugin("pytestconfig")):
        declare(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Iterator[None]:
    """Reports an option that pytest misreads, or one that is mistyped, with what to write instead."""
    declared = hasattr(early_config.known_args_namespace, "conformance_report")
    found = settings_found(early_config) or names_the_suite(early_config)
    separated = next((word for word in args if word in PATHS), "")
    if declared and separated and not found:
        raise pytest.UsageError(
            f"pytest reads the path after {separated!r} as the place of the tests: join them, {separated}=PATH"
        )
    yield
    if declared:
        _, unknown = parser.parse_known_and_unknown_args(args)
        for word in unknown:
            if near := nearest(word):
                raise pytest.UsageError(f"there is no option {word.partition('=')[0]}; did you mean {near}?")
