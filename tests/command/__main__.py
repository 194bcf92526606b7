"""Runs the command as `python -m attention_conformance`."""

from __future__ import annotations

import sys

from .main import main

sys.exit(main())
