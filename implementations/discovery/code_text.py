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
    """Empty where it cannot be read, which is kept, too: a file is searched for a class that is not in it for long."""
    return safe_call(partial(inspect.getsource, target)).value or ""


@lru_cache(MOST)
def _parsed(target: Any) -> ast.Module | None:
    text = _read(target)
    return safe_call(lambda: ast.parse(dedent(text))).value if text else None
