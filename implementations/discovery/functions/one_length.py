"""Functions that take queries and keys of one length alone, as they document it, and raise nothing for others."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always import changes
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.code_text import tree_of
from attention_conformance.implementations.discovery.documented import states_one_length, states_two_lengths
from attention_conformance.implementations.discovery.signatures import required
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

SQUARE, MORE_KEYS = PLAIN.sized(query_length=9, key_length=9), PLAIN.sized(query_length=5, key_length=9)


def without_other_lengths(check: ClaimCheck, written: object) -> tuple[ClaimCheck, list[str]]:
    """The check without keys of another length than the queries where not all of those are read, and a note.

    Without documentation it is a mistake, unless a window must be given, or the code reads no length of keys.
    """
    if Feature.CROSS not in check.claims or check.claims.premises.hides_later:
        return check, []
    why = "it documents one length for both" if states_one_length(written) else _why_one_length(written)
    if not why or not _sees_all(check, SQUARE) or _sees_all(check, MORE_KEYS):
        return check, []
    return check.without({Feature.CROSS}), [unclaimed("other lengths of keys", why)]


def _why_one_length(written: object) -> str:
    """What states that there is one length, where documentation does not; empty for nothing."""
    if counted := _counts_past(written):
        return f"its {counted!r} counts those of earlier tokens, and is 0"
    if window := _needs_window(written):
        return f"its {window!r} must be given, and a window is around the query's own position"
    return "its code reads the length of queries alone" if _reads_no_keys(written) else ""


def _reads_no_keys(written: object) -> bool:
    """Whether its code reads the shape of its first input, and of nothing else, and goes through no other input."""
    code = tree_of(written)
    names = [p.name for p in _parameters(written)][:3]
    if code is None or len(names) < 3 or states_two_lengths(written):
        return False
    read = {ast.unparse(each) for each in _measured(code)}
    gone_through = {each.id for loop in _loops(code) for each in ast.walk(loop) if isinstance(each, ast.Name)}
    return read == {names[0]} and not gone_through & {*names[1:]}


def _measured(code: ast.AST) -> Iterator[ast.expr]:
    """Whatever's shape, size or length is read."""
    for each in ast.walk(code):
        if isinstance(each, ast.Attribute) and each.attr in ("shape", "size"):
            yield each.value
        if isinstance(each, ast.Call) and ast.unparse(each.func) in ("len", "np.shape", "np.size") and each.args:
            yield each.args[0]


def _loops(code: ast.AST) -> Iterator[ast.expr]:
    """What loops go through."""
    yield from (each.iter for each in ast.walk(code) if isinstance(each, ast.For | ast.comprehension))


def _parameters(written: object) -> list[inspect.Parameter]:
    signature = safe_call(lambda: inspect.signature(written)).value  # type: ignore[arg-type]
    return [] if signature is None else [*signature.parameters.values()]


def _needs_window(written: object) -> str:
    """Its parameter of a window, if that has to be given; empty for none."""
    needed = (p.name for p in _parameters(written) if required(p))
    return next((name for name in needed if "window" in name.lower().split("_")), "")


def _counts_past(written: object) -> str:
    """Its own parameter that counts tokens of a cache, 0 by default; empty for none."""
    own = (p for p in _parameters(written) if type(p.default) is int)
    named = (p.name for p in own if p.default == 0 and p.name not in KNOWN_NAMES)
    return next((name for name in named if "past" in name.lower().split("_")), "")


def _sees_all(check: ClaimCheck, case: Case) -> bool:
    """Whether each query sees all keys, and it answers."""
    queries, keys = case.sizes.query_length, case.sizes.key_length
    columns = dict(changes(check, case, at=tuple(range(queries - keys, queries))))
    return columns.keys() == {*range(keys)} and all(seen.all() for seen in columns.values())
