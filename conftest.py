"""Hooks the suite into pytest."""

pytest_plugins = ["tests.harness.plugin"]
