"""The code of a target, as far as its file can be read; kept, as many questions are put to the same text."""

import ast
import inspect
from functools import lru_cache, partial
from textwrap import dedent
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call

MOST = 16
"""Targets whose code is kept: a class, its parts, and the functions that it calls."""


def code_of(target: object) -> str:
    """The text of a function, class or module; empty where it cannot be read."""
    return safe_call(partial(_read, target)).value or ""


def tree_of(target: object) -> ast.Module | None:
    """The same text, parsed, which nobody changes; None where it cannot be."""
    return safe_call(partial(_parsed, target)).value


@lru_cache(MOST)
def _read(target: Any) -> str:
    return inspect.getsource(target)


@lru_cache(MOST)
def _parsed(target: Any) -> ast.Module:
    return ast.parse(dedent(_read(target)))
