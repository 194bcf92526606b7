"""Pattern: the options of a case in words, and the case without one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from attention_conformance.spec.case_options import lacks_presumed
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import NOTHING

WINDOW = "a window"
NUMBERS = "a mask of numbers"


def options(case: Case) -> frozenset[str]:
    """Such as {"mask=bool", "Lq = Lk", "softcap"}."""
    plain = Case(module=case.module)
    named = (f.name for f in fields(plain) if f.name not in ("sizes", "seed", "module", "extension"))
    own = {f"{n}={getattr(case, n)}" for n in named if getattr(case, n) != getattr(plain, n)}
    extensions = (f.name for f in fields(NOTHING) if getattr(case.extension, f.name) != getattr(NOTHING, f.name))
    return frozenset(own | set(extensions) | set(_extents(case.sizes)) | set(_kinds(case)))


def _extents(s: Sizes) -> Iterator[str]:
    """What is out of the ordinary about sizes, as properties rather than numbers."""
    facts = {
        "no keys": s.key_length == 0,
        "no samples or no queries": 0 in (s.batch, s.query_length),
        "one query": s.query_length == 1,
        "one key": s.key_length == 1,
        "Lq = Lk": s.query_length == s.key_length,
        "Lq > Lk": s.query_length > s.key_length,
        "B = H": s.batch == s.num_heads > 1,
        "more than 64 keys": s.key_length > 64,
        "more than 64 queries": s.query_length > 64,
        "one head": s.num_heads == 1,
        "grouped heads": s.kv_heads != s.num_heads,
        "odd head width": s.d_k % 2 == 1,
        "d_v > d_k": s.d_v > s.d_k,
        "wide heads": max(s.d_k, s.d_v) > 64,
        "many samples and heads": s.batch * s.num_heads > 32,
    }
    return (name for name, holds in facts.items() if holds)


def _kinds(case: Case) -> Iterator[str]:
    form = case.module
    facts = {
        "a mask": case.mask is not MaskKind.NONE,
        NUMBERS: case.mask not in (MaskKind.NONE, MaskKind.BOOL),
        "padding": case.padding is not Padding.NONE,
        WINDOW: (case.extension.window_left, case.extension.window_right) != (None, None),
        "inputs of different widths": form is not None and len({form.query_dim, form.key_dim, form.value_dim}) > 1,
    }
    return (name for name, holds in facts.items() if holds)


def without(case: Case, option: str) -> Case | None:
    """The case without the option, otherwise as similar as possible; None where there is no such case."""
    name, _, value = option.partition("=")
    if value and hasattr(case, name):
        return replace(case, **{name: getattr(Case(), name)})
    if hasattr(NOTHING, option):
        simpler = case.extended(**{option: getattr(NOTHING, option)})
        return None if lacks_presumed(simpler.extension) else simpler
    if option == WINDOW:
        return case.extended(window_left=None, window_right=None)
    if option == NUMBERS:
        return replace(case, mask=MaskKind.BOOL)
    if option in ("a mask", "padding"):
        return replace(case, mask=MaskKind.NONE) if option == "a mask" else replace(case, padding=Padding.NONE)
    s = case.sizes
    changes: dict[str, dict[str, int]] = {
        "one query": {"query_length": 5},
        "one key": {"key_length": 7},
        "Lq = Lk": {"key_length": s.key_length + 2},
        "Lq > Lk": {"query_length": max(1, s.key_length - 1)},
        "B = H": {"batch": s.batch + 1},
        "more than 64 keys": {"key_length": 33},
        "more than 64 queries": {"query_length": 33},
        "many samples and heads": {"batch": 2, "num_heads": 2},
        "one head": {"num_heads": 2},
        "grouped heads": {"num_kv_heads": 0},
        "odd head width": {"d_k": s.d_k + 1},
        "d_v > d_k": {"d_v": s.d_k},
        "wide heads": {"d_k": 8, "d_v": 8},
    }
    return case.sized(**changes[option]) if option in changes else None
