"""Windows that a constructor may be given and has none of by default: judged by the keys that a number shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import Parameter

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.claim_checks import PLAIN, near_outputs
from attention_conformance.implementations.discovery.functions.number_windows import (
    NUMBERS,
    NumberWindow,
    as_documented,
    meaning_of,
    of_one_length,
)
from attention_conformance.implementations.discovery.modules.built_otherwise import options_left_out
from attention_conformance.implementations.discovery.modules.constructed_options import IDLE, given_option
from attention_conformance.implementations.discovery.modules.constructor_names import settings_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.emptied_twice import fit_rows_not_emptied_twice
from attention_conformance.implementations.discovery.modules.module_runs import module_run
from attention_conformance.implementations.discovery.modules.plans import ModulePlan
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

AROUND = {"size", "sliding", "attention", "attn", "local", "length", "len", "width", "causal", "context", "tokens"}
"""Words next to that of a window in the names of its number."""
LONG = PLAIN.sized(query_length=17, key_length=17)
"""More tokens than such a window has."""


@dataclass(frozen=True)
class WindowOption:
    """What a class is built with for the window of a problem.

    Attributes:
        name: its own name for the number of a window.
        meaning: of such a number.
    """

    name: str
    meaning: NumberWindow

    def __call__(self, problem: Problem) -> dict[str, object]:
        """The option by its own name; nothing where there is no window."""
        left = problem.extension.window_left
        return {} if left is None else {self.name: self.meaning.number((left, 0))}


def with_window_option(plan: ModulePlan) -> tuple[ModulePlan, dict[str, str]]:
    """The plan with windows, as a number for an option of the constructor means them; why others are not judged."""
    claims, why = plan.check.claims, dict[str, str]()
    premises = claims.premises
    if premises.length or plan.make.window or (premises.window_left, premises.window_right) != (None, None):
        return plan, why
    for name in _names(plan.make) if Feature.WINDOW not in claims else ():
        meaning = _meaning(plan, name)
        if isinstance(meaning, NumberWindow):
            return _claimed(plan, name, meaning), why
        if meaning:
            why[name] = meaning
    return plan, why


def _names(make: Constructor) -> Iterator[str]:
    """The options that may take the number of a window, and are off by default."""
    for option in {each.name: each for each in (*options_left_out(make), *_fields(make))}.values():
        words = words_of(option.name)
        if "window" in words and words <= AROUND | {"window"} and _is_off(option, bool(make.settings)):
            yield option.name


def _fields(make: Constructor) -> Iterator[Parameter]:
    """Of a dataclass of settings, which code may read under any name."""
    settings = settings_of(make.kind, make.settings, make.width, make.heads, make.lenient) if make.settings else None
    for each in fields(settings) if is_dataclass(settings) else ():
        if each.init:
            yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=getattr(settings, each.name))


def _is_off(option: Parameter, setting: bool) -> bool:
    """Whether it states no window by default; an unknown setting is False."""
    default = option.default
    return default is None or (type(default) is int and default <= 0) or (setting and default is False)


def _meaning(plan: ModulePlan, name: str) -> NumberWindow | str:
    """What its number means, or why that is not known; empty where a setting changes nothing, as others read it."""
    given = partial(given_option, plan, name)
    flags = (False, True) if Feature.CAUSAL in plan.check.claims else (False,)
    pairs = [(plan.check.run(each), given(NUMBERS[0]).run(each)) for each in (replace(LONG, causal=f) for f in flags)]
    if all(not a.error and not b.error and near_outputs(a, b, plan.check.dtype) for a, b in pairs):
        return "" if plan.make.settings else IDLE
    found = [meaning_of(plan.check, given, flag) for flag in flags]
    return next((each for each in found if isinstance(each, NumberWindow)), found[0])


def _claimed(plan: ModulePlan, name: str, seen: NumberWindow) -> ModulePlan:
    meaning, by = as_documented(seen, plan.make.kind)
    make, claims = replace(plan.make, of_problem=WindowOption(name, meaning)), plan.check.claims
    own = partial(_fit, partial(meaning.fit, claims.fit), claims.conventions)
    claims = replace(claims, features=claims.features | {Feature.WINDOW}, fit=own)
    check = replace(plan.check, claims=claims, adapt=partial(module_run, make, evaluating=plan.evaluating))
    stated = f"built with {name!r} where a problem has a window: {by}it is {meaning.in_words}"
    return replace(plan, make=make, check=check.stating(stated))


def _fit(own: Fit, conventions: Conventions, case: Case) -> Case | Unsupported:
    """The fit of windows: as many keys as queries, and no row that its window and a mask empty together."""
    fitted = of_one_length(own, case)
    if isinstance(fitted, Unsupported) or not fitted.extension.windowed:
        return fitted
    return fit_rows_not_emptied_twice(lambda each: each, conventions, fitted)
