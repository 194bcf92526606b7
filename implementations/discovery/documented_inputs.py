"""Axes of inputs: whether a module states, or shows as it takes a shape apart, which one holds the samples."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of, tree_of
from attention_conformance.implementations.discovery.documented import documents_of, paragraphs_of

SHAPE = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
SURELY = re.compile(r"#?(?:b|bs|bsz|bz|\w*batch(?:es|_?size| size)?|n_?samples|num_samples)", re.IGNORECASE)
PERHAPS = re.compile(r"n", re.IGNORECASE)
"""How an axis of samples is called, and how it may be."""
CHOICE = "batch_first"
OF_TOKENS = re.compile(
    r"[lts]|\w*len\w*|\w*seq\w*(?: len\w*)?|\w*time\w*(?: steps?)?|\w*tokens?|\w*steps?|\w*frames?", re.IGNORECASE
)
"""How an axis of tokens is called."""


def states_samples_first(kind: object) -> bool | None:
    """Whether its input is (B, L, E) rather than (L, B, E) by all that states it.

    None where nothing does, or both, or where its constructor is told.
    """
    constructor = safe_call(partial(inspect.signature, kind)).value  # type: ignore[arg-type]
    if constructor is not None and CHOICE in constructor.parameters:
        return None
    stated = {first for axes in _shapes(kind) if (first := _samples_first(axes)) is not None}
    return stated.pop() if len(stated) == 1 else None


def _samples_first(axes: list[str]) -> bool | None:
    if len(axes) != 3:
        return None
    for words in (SURELY, PERHAPS):
        first, second = (words.fullmatch(axis) is not None for axis in axes[:2])
        other = axes[1] if first else axes[0]
        if first is not second and (words is SURELY or OF_TOKENS.fullmatch(other)):
            return first
    return None


def _shapes(kind: object) -> Iterator[list[str]]:
    """The axes of each shape that is stated of an input before it is changed."""
    forward: Any = getattr(kind, "forward", None)
    signature = safe_call(partial(inspect.signature, forward)).value
    names = [] if signature is None else [*signature.parameters][1:4]
    documents = [part for text in documents_of(kind) for part in paragraphs_of(text)]
    for name in names:
        said = re.compile(rf"\b{re.escape(name)}\b[^()\[\]]*")
        for text in (*documents, *_first_comments(forward)):
            if (found := said.search(text)) and (shape := SHAPE.match(text, found.end())):
                yield _axes(shape[1])
        yield from _taken_apart(forward, name)


def _axes(shape: str) -> list[str]:
    return [axis.strip() for axis in shape.split(",")]


def _body(function: Any) -> list[ast.stmt]:
    tree = tree_of(function)
    written = tree.body[0] if tree is not None and tree.body else None
    body = written.body if isinstance(written, ast.FunctionDef) else []
    documented = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1:] if documented else body


def _first_comments(function: Any) -> list[str]:
    """The comments above its first statement."""
    body = _body(function)
    lines = code_of(function).splitlines()[: body[0].lineno - 1] if body else []
    return [line.partition("#")[2] for line in lines if "#" in line]


def _taken_apart(function: Any, name: str) -> Iterator[list[str]]:
    """The names that the extents of an input get, as in `B, T, C = x.shape`, before it is something else."""
    for statement in _body(function):
        if not isinstance(statement, ast.Assign):
            return
        (target, *_), value = statement.targets, ast.unparse(statement.value)
        if isinstance(target, ast.Tuple) and value in (f"{name}.shape", f"{name}.size()"):
            yield [ast.unparse(each) for each in target.elts]
        if name in {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}:
            return
