"""Hooks the suite into pytest."""

pytest_plugins = ["attention_conformance.tests.harness.run.plugin"]
