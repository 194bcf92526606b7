"""What the code of a function reads of a parameter: attributes, items of a dictionary, and the parts of a tuple."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of, tree_of
from attention_conformance.implementations.discovery.documented import as_written

DEPTH = 2
"""Calls that are followed into functions of the same file."""


@dataclass(frozen=True)
class Reads:
    """What is read of a parameter.

    Attributes:
        attributes, items: by their names.
        parts: the names to which it is unpacked; empty where it is not.
    """

    attributes: frozenset[str] = frozenset()
    items: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()

    def with_those_of(self, other: Reads) -> Reads:
        """What either reads."""
        return Reads(self.attributes | other.attributes, self.items | other.items, self.parts or other.parts)


def written_of(function: object) -> Any:
    """The function that somebody wrote, inside of what compiles or vectorises it."""
    written: Any = as_written(function)
    while isinstance(written, partial):
        written = written.func
    return inspect.unwrap(written)


def reads_of(function: object, name: str, depth: int = DEPTH) -> Reads:
    """What a function, and those of its file to which it hands it on, read of its parameter of this name."""
    written = written_of(function)
    tree = tree_of(written)
    nodes = [] if tree is None else [*ast.walk(tree)]
    names = {name, *_others(nodes, name)}
    of_it = [each for each in nodes if isinstance(each, ast.Attribute) and _is(each.value, names)]
    methods = [each for each in nodes if isinstance(each, ast.Call) and each.func in of_it]
    gets = [call.args[0] for call in methods if call.args and call.func.attr in ("get", "pop", "setdefault")]  # type: ignore[attr-defined]
    items = [each.slice for each in nodes if isinstance(each, ast.Subscript) and _is(each.value, names)]
    texts = {e.value for e in [*gets, *items] if isinstance(e, ast.Constant) and isinstance(e.value, str)}
    found = Reads(frozenset(each.attr for each in of_it), frozenset(texts), _unpacked(nodes, names))
    for inner, parameter in _handed_on(written, nodes, names) if depth else ():
        found = found.with_those_of(reads_of(inner, parameter, depth - 1))
    return found


def says(function: object, word: str) -> bool:
    """Whether its text, comments included, has this word."""
    return word in code_of(written_of(function)).lower()


def stores(method: Callable[..., Any], names: frozenset[str]) -> bool:
    """Whether a method assigns to attributes of these names."""
    tree = tree_of(method)
    every = [] if tree is None else [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
    return any(each.attr in names and isinstance(each.ctx, ast.Store) for each in every)


def _is(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _others(nodes: list[ast.AST], name: str) -> Iterator[str]:
    """Other names that it is given."""
    for each in nodes:
        if isinstance(each, ast.Assign) and _is(each.value, {name}):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))


def _unpacked(nodes: list[ast.AST], names: set[str]) -> tuple[str, ...]:
    for each in nodes:
        target = each.targets[0] if isinstance(each, ast.Assign) and _is(each.value, names) else None
        if isinstance(target, ast.Tuple) and all(isinstance(part, ast.Name) for part in target.elts):
            return tuple(part.id for part in target.elts if isinstance(part, ast.Name))
    return ()


def _handed_on(written: Any, nodes: list[ast.AST], names: set[str]) -> Iterator[tuple[FunctionType, str]]:
    """The functions of its file that are given it, with their parameter."""
    space = getattr(written, "__globals__", {})
    for call in nodes:
        called = space.get(call.func.id) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
        inner = safe_call(partial(written_of, called)).value
        if not isinstance(call, ast.Call) or not isinstance(inner, FunctionType) or inner is written:
            continue
        own = [*inspect.signature(inner).parameters]
        yield from ((inner, own[at]) for at, each in enumerate(call.args[: len(own)]) if _is(each, names))
        yield from ((inner, each.arg) for each in call.keywords if each.arg in own and _is(each.value, names))
