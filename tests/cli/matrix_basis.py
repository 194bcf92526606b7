"""What a report of the matrix rests on: the package, its adapter, the selection, and the suite's own code."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from attention_conformance import __version__
from attention_conformance.spec.clauses import load

SUITE = Path(__file__).parents[2]
DECIDING: Mapping[str, Sequence[str]] = {
    "clauses": ("spec", "reference", "tests/conformance"),
    "judge": ("tests/harness",),
    "door": ("implementations/api", "implementations/adapters", "implementations/worker", "implementations/discovery"),
}
"""The folders of the suite whose code decides verdicts, by what a reader would call them."""
REASONS = {
    "suite": "another version of the suite",
    "clauses": "clauses changed",
    "judge": "the judge changed",
    "door": "adapters or worker changed",
    "file": "its adapter changed",
    "claims": "its claims changed",
}
"""What to say where a part differs; the remaining parts are the selection."""
NAMED = 3
"""So many updates are named, the package itself first."""

Basis: TypeAlias = dict[str, Any]
"""The parts by name, as plain values."""


def basis(given: Namespace, installed: Sequence[str], code: str, claims: Mapping[str, str]) -> Basis:
    """That of a report which is made now.

    Args:
        given: the options of the command.
        installed: all that is in the environment, such as "numpy==2.4.6".
        code: the digest of the adapter.
        claims: the conventions in the metadata.
    """
    selected = {"tier": given.tier, "selected": given.clause, "dtypes": given.dtype}
    package = {"installed": list(installed), "file": code, "claims": dict(claims)}
    return {"suite": __version__, **suite_digests(), **selected, **package}


@cache
def suite_digests() -> Mapping[str, str]:
    """The digests of the code that decides verdicts."""
    digests = {name: _digest(SUITE / folder for folder in folders) for name, folders in DECIDING.items()}
    levels = [f"{each.id} {each.level} {sorted(each.features)}" for each in load().values()]
    return {**digests, "clauses": _hexadecimal([digests["clauses"], *levels])}


def code_of(text: str) -> str:
    """A program without its comments and its docstrings, which decide nothing."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return ast.unparse(tree)


def reasons(before: Basis, now: Basis, about: str) -> list[str]:
    """Why a report is made anew, a few words each. `about`: the package, such as "keras==3.15.1"."""
    differing = [name for name in now if before.get(name) != now[name]]
    known = [REASONS[name] for name in differing if name in REASONS]
    updated = list(_updates(before.get("installed", []), now["installed"], about)) if "installed" in differing else []
    others = {*differing} - {*REASONS, "installed"}
    return [*updated[:NAMED], *known, *(["another selection"] if others else [])]


def _updates(before: Sequence[str], now: Sequence[str], about: str) -> Iterator[str]:
    old, new = (
        {name: version for name, _, version in (each.partition("==") for each in lines)} for lines in (before, now)
    )
    first = about.partition("==")[0].partition("[")[0]
    for name in sorted(old.keys() | new.keys(), key=lambda name: (name != first, name)):
        if old.get(name) != new.get(name):
            what = "package updated" if name == first else "environment changed"
            yield f"{what}: {name} {old.get(name) or 'absent'} -> {new.get(name) or 'absent'}"


def _digest(folders: Iterator[Path]) -> str:
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return _hexadecimal([f"{file.relative_to(SUITE)}\n{code_of(file.read_text(encoding='utf-8'))}" for file in files])


def _hexadecimal(texts: Sequence[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:16]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
