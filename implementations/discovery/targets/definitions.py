"""Definitions: what a file defines after the line at which running it failed, such as one that reads a data set."""

import __future__

import ast
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType


def failed_line(error: BaseException, path: Path) -> int:
    """The line of a file at which running it failed; 0 where that is none of its own statements."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if frame.filename == str(path) and frame.name == "<module>"]
    return (own[-1] or 0) if own else 0


def define_the_rest(module: ModuleType, path: Path, line: int) -> None:
    """Runs what a file defines after a line: imports, functions, classes and plain values, and nothing that acts.

    What cannot be defined is left out.
    """
    body = ast.parse(path.read_bytes()).body
    flags = _annotations(body)
    for statement in body:
        if statement.lineno > line and _defines(statement):
            code = compile(ast.Module([statement], []), str(path), "exec", flags, dont_inherit=True)
            with suppress(Exception):
                exec(code, module.__dict__)


def is_needed(path: Path, line: int, name: str) -> bool:
    """Whether who imports `name` from a file needs the statement at a line: it comes before, or defines or refuses.

    Calls after the definition, and what is made of them, only show or run it.
    """
    body = ast.parse(path.read_bytes()).body
    failed = next((each for each in body if each.lineno <= line <= (each.end_lineno or line)), None)
    if failed is None or all(each.lineno >= failed.lineno for each in body if name in _bound(each)):
        return True
    if isinstance(failed, ast.Raise):
        return not (isinstance(failed.exc, ast.Call | ast.Name) and "SystemExit" in ast.dump(failed.exc))
    defines = isinstance(failed, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
    plain = isinstance(failed, ast.Assign | ast.AnnAssign)
    return defines or (plain and not any(isinstance(part, ast.Call) for part in ast.walk(failed)))


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, also those within its branches."""
    parts = [*ast.walk(statement)] if not isinstance(statement, ast.FunctionDef | ast.ClassDef) else [statement]
    names = {each.name for each in parts if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    stored = {each.id for each in parts if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    aliases = {each.asname or each.name for each in parts if isinstance(each, ast.alias)}
    return names | stored | aliases


def _annotations(body: list[ast.stmt]) -> int:
    """The flag of the compiler where the file postpones its annotations."""
    futures = [each for each in body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    postponed = any(name.name == "annotations" for each in futures for name in each.names)
    return __future__.annotations.compiler_flag if postponed else 0


def _defines(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return statement.value is not None and _is_plain(statement.value)
    return isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)


def _is_plain(value: ast.expr) -> bool:
    """Whether it is written out: a number, a text, or a collection of them."""
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True
