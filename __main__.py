"""Runs the command as `python -m attention_conformance`."""

from __future__ import annotations

import sys

from attention_conformance.tests.cli.main import main

sys.exit(main())
