"""Conditions on a context: whether a module's code takes a mask on one side of them alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from attention_conformance.implementations.discovery.code_text import tree_of

ENDS = (ast.Return, ast.Raise)


def takes_on_one_side(kind: object, mask: str, context: str) -> bool:
    """Whether a condition on the context stands between a mask and its use, in any function that has both names."""
    tree = tree_of(kind) or tree_of(getattr(kind, "forward", None))
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)) if tree else ()
    return any(_divides(each, mask, context) for each in functions if {mask, context} <= _named(each))


def _divides(function: ast.FunctionDef, mask: str, context: str) -> bool:
    made = _made_of(function, context)
    return any(
        _asks(test, made, context) and (mask in _names([test]) or (mask in _names(one)) != (mask in _names(other)))
        for test, one, other in _sides(function)
    )


def _sides(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, list[ast.AST], list[ast.AST]]]:
    """Each condition with what comes of it and what comes of its opposite: all that follows, where its side ends."""
    for block in _blocks(function):
        for at, each in enumerate(block):
            if isinstance(each, ast.If):
                ends = isinstance(each.body[-1], ENDS) and not each.orelse
                yield each.test, [*each.body], [*(block[at + 1 :] if ends else each.orelse)]
    for node in ast.walk(function):
        if isinstance(node, ast.IfExp):
            yield node.test, [node.body], [node.orelse]
        if isinstance(node, ast.BoolOp):
            yield node, [], []


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _made_of(function: ast.FunctionDef, context: str) -> set[str]:
    """Names that are given a value in which the context is named."""
    assigned = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    found = {name for each in assigned if context in _names([each.value]) for name in _targets(each)}
    return found - {context}


def _targets(assigned: ast.Assign) -> Iterator[str]:
    yield from (each.id for each in assigned.targets if isinstance(each, ast.Name))


def _asks(test: ast.expr, made: set[str], context: str) -> bool:
    """Whether a condition is one on whether there is a context: by its name, a flag made of it, or `is`."""
    for part in _parts(test):
        if isinstance(part, ast.Name) and part.id in {context, *made}:
            return True
        compared = isinstance(part, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in part.ops)
        called = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and len(part.args) == 1
        if (compared and _names([part]) & {context, *made}) or (called and _names([part]) & {context}):
            return True
    return False


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """What a condition joins by `and`, `or` and `not`."""
    if isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _parts(each)
    elif isinstance(test, ast.UnaryOp):
        yield from _parts(test.operand)
    else:
        yield test


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def _named(function: ast.FunctionDef) -> set[str]:
    given = function.args
    return _names([function]) | {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
