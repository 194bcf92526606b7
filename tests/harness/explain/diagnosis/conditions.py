"""Conditions: when a candidate fails, found by cases that are made for the question and differ in one respect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TypeAlias

from attention_conformance.spec.cases import Case, MaskKind, Padding
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, Prober
from attention_conformance.tests.harness.explain.diagnosis.pattern import NUMBERS, options, without

Holds: TypeAlias = Callable[[Case], bool]
LENGTHS = (4, 5, 8, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 129, 257)
FEW = (1, 2, 3, 4, 5, 6, 8)
SAMPLES = {
    "key_length": LENGTHS,
    "query_length": LENGTHS,
    "d_k": LENGTHS,
    "d_v": LENGTHS,
    "batch": FEW,
    "num_heads": FEW,
}
"""The extents that are tried, if a first few show that an extent matters."""
WORDS = {
    "key_length": "keys",
    "query_length": "queries",
    "d_k": "components of a query",
    "d_v": "components of a value",
    "batch": "samples",
    "num_heads": "heads",
}
ONE = {
    "key_length": "key",
    "query_length": "query",
    "d_k": "component of a query",
    "d_v": "component of a value",
    "batch": "sample",
    "num_heads": "head",
}
TRIVIAL = 3
"""In so small extents many mistakes do not show, whatever their condition."""
MULTIPLES = (2, 4, 8, 16, 32, 64, 128)
SEEDS = (31, 32)
"""Of more cases with the same options; one that passes has to pass with these numbers, too."""
KEY_HEADS = (2, 3, 4, 5)
EARLIER = (19, 29)
"""By so many tokens, and one more for each option, cases are longer that tell whether earlier calls spoil others."""
AGAIN = 3
"""How often it is tried with either order of the numbers whether a second call fails: some numbers show no mistake."""
PAIRS = ((6, 6), (5, 7), (7, 5), (1, 6))
"""Numbers of queries and keys that are tried."""
EQUAL_LENGTHS = "as many queries as keys"
RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "more queries than keys": lambda lq, lk: lq > lk,
    "fewer queries than keys": lambda lq, lk: lq < lk,
    EQUAL_LENGTHS: lambda lq, lk: lq == lk,
    "different numbers of queries and keys": lambda lq, lk: lq != lk,
    "one query": lambda lq, lk: lq == 1,
    "more than one query": lambda lq, lk: lq > 1,
}


@dataclass(frozen=True)
class Condition:
    """One respect in which every failing case is alike, and without which it does not fail.

    Attributes:
        words: such as "with more than 64 keys".
        holds: whether a case fulfils it.
        extent: what it limits, by its plural; empty for other conditions.
        kept: whether it is about earlier calls, of which something was left behind.
    """

    words: str
    holds: Holds
    extent: str = ""
    kept: bool = False


def conditions(failing: Sequence[Observation], prober: Prober) -> list[Condition]:
    """What all failing cases have in common and need: for each there is a case without it that passes."""
    if not failing:
        return []
    smallest = min(failing, key=lambda each: _size(each.case))
    base, prober.drift = smallest.case, smallest.drift
    if state := _of_calls(base, prober) or _of_earlier(base, prober):
        return [state]
    found = [*_of_options(base, failing, prober), *_of_absent(base, failing, prober)]
    related = [*_of_lengths(base, prober)]
    equal = any(each.words == f"with {EQUAL_LENGTHS}" for each in related)
    for name in SAMPLES:
        if not (related and name in ("key_length", "query_length") and not equal):
            together = ("query_length", "key_length") if equal and name == "key_length" else (name,)
            if not (equal and name == "query_length"):
                related += _of_extent(base, together, failing, prober)
    related += _of_key_heads(base, prober) if all(each.case.sizes.num_kv_heads for each in failing) else []
    held = [each for each in [*found, *related] if all(each.holds(other.case) for other in failing)]
    return held or [*_of_either(failing, prober)][:1]


def _size(case: Case) -> tuple[int, int]:
    s = case.sizes
    return len(options(case)), s.batch * s.num_heads * s.query_length * s.key_length


def _of_calls(base: Case, prober: Prober) -> Condition | None:
    """Whether it fails only when sizes come a second time: the first call with new sizes is right."""
    for number, sequence in enumerate((SEEDS, SEEDS[::-1]) * AGAIN):
        sized = base.sized(key_length=base.sizes.key_length + 11 + number, batch=base.sizes.batch + 1 + number)
        first, second = (prober.fails(replace(sized, seed=seed)) for seed in sequence)
        if first is not False or not second:
            return None
    return Condition("from the second call with the same sizes on", lambda case: True, kept=True)


def _of_earlier(base: Case, prober: Prober) -> Condition | None:
    """Whether it fails only after a call of the same sizes with an option that it lacks: something was left behind."""
    for number, (words, (change, has)) in enumerate(ADDED.items()):
        if not has(base) and all(_spoils(base, change, more + number, prober) for more in EARLIER):
            return Condition(f"after a call of the same sizes with {words}", lambda case: True, kept=True)
    return None


def _spoils(base: Case, change: Mapping[str, object], more: int, prober: Prober) -> bool:
    """Whether a case of sizes that were not called before is right, and no more after one with other options."""
    sized = base.sized(query_length=base.sizes.query_length + more, key_length=base.sizes.key_length + more)
    first, second = (replace(sized, seed=seed) for seed in SEEDS)
    right = prober.fails(first) is False
    return right and prober.observe(replace(sized, **change)) is not None and prober.fails(second) is True  # type: ignore[arg-type]


def _of_options(base: Case, failing: Sequence[Observation], prober: Prober) -> Iterator[Condition]:
    """Options that all failing cases have, and without which the base passes."""
    shared = frozenset.intersection(*(options(each.case) for each in failing))
    changed = {option: without(base, option) for option in sorted(shared) if option not in SIZED}
    needed = [o for o, other in changed.items() if other is not None and _passes(other, prober)]
    kinds = {option.partition("=")[0] for option in needed if "=" in option}
    kinds |= {"mask" for option in needed if option == NUMBERS}
    kinds |= {"window" for option in needed if option.startswith("window_")}
    for option in needed:
        if option.removeprefix("a ") not in kinds:
            yield _only_a_mask(option, base, prober)


def _of_either(failing: Sequence[Observation], prober: Prober) -> Iterator[Condition]:
    """Two options, one of which every failing case has; the smallest case that has it passes without it."""
    cases = sorted((each.case for each in failing), key=_size)
    has = {case: options(case) - {*SIZED} for case in cases}
    for one, two in combinations(sorted(frozenset().union(*has.values())), 2):
        apart = [next((c for c in cases if a in has[c] and b not in has[c]), None) for a, b in ((one, two), (two, one))]
        if None not in apart and all(one in own or two in own for own in has.values()):
            others = [without(c, o) for c, o in zip(apart, (one, two), strict=True) if c is not None]
            if all(other is not None and _passes(other, prober) for other in others):
                yield Condition(f"with {one} or {two}", lambda case, pair={one, two}: bool(pair & options(case)))  # type: ignore[misc]


def _of_absent(base: Case, failing: Sequence[Observation], prober: Prober) -> Iterator[Condition]:
    """Options that no failing case has, and with which the base passes."""
    for words, (change, has) in ADDED.items():
        added = replace(_showing(base, change, prober), **change)  # type: ignore[arg-type]
        if added.causal and added.sizes.query_length < added.sizes.key_length:
            continue  # it hides most keys, and what is wrong with them
        if not any(has(each.case) for each in failing) and _passes(added, prober):
            yield Condition(f"without {words}", lambda case, has=has: not has(case))  # type: ignore[misc]


def _showing(base: Case, change: Mapping[str, object], prober: Prober) -> Case:
    """The base, with as many keys as queries where a causal flag would hide most of them, if it fails as well."""
    square = base.sized(key_length=base.sizes.query_length)
    hiding = base.causal or "causal" in change
    return square if hiding and square.sizes != base.sizes and prober.fails(square) else base


ADDED: dict[str, tuple[dict[str, object], Holds]] = {
    "a mask": ({"mask": MaskKind.BOOL}, lambda case: case.mask is not MaskKind.NONE),
    "padding": ({"padding": Padding.RIGHT}, lambda case: case.padding is not Padding.NONE),
    "the causal flag": ({"causal": True}, lambda case: case.causal),
    "a scale": ({"scale": 0.3}, lambda case: case.scale is not None),
}
"""Options that are tried, and whether a case has one."""
SIZED = (
    "one query",
    "one key",
    "more than 64 keys",
    "more than 64 queries",
    "many samples and heads",
    "wide heads",
    "Lq = Lk",
    "Lq > Lk",
)
"""Options that are found more exactly as lengths and extents."""


def _only_a_mask(option: str, base: Case, prober: Prober) -> Condition:
    """An option as a condition; the kind of a mask is part of it only if another kind passes."""
    if option.startswith("mask="):
        others = [kind for kind in (MaskKind.BOOL, MaskKind.FLOAT) if kind is not base.mask]
        if not any(_passes(replace(base, mask=kind), prober) for kind in others):
            return Condition("with a mask", lambda case: case.mask is not MaskKind.NONE)
    return Condition(f"with {option}", lambda case: option in options(case))


def _passes(case: Case, prober: Prober) -> bool:
    """Whether it passes with several seeds; False where it cannot be run."""
    return all(prober.fails(replace(case, seed=seed)) is False for seed in (case.seed, *SEEDS))


def _of_lengths(base: Case, prober: Prober) -> list[Condition]:
    """The simplest relation of the lengths that distinguishes failing from passing cases."""
    sized = {pair: base.sized(query_length=pair[0], key_length=pair[1]) for pair in PAIRS}
    fails = {pair: _outcome(case, prober) for pair, case in sized.items()}
    fails[base.sizes.query_length, base.sizes.key_length] = True
    known = {pair: outcome for pair, outcome in fails.items() if outcome is not None}
    if all(known.values()):
        return []
    more = {pair: outcome for pair, outcome in known.items() if outcome or 1 not in pair}  # one may not show it
    for outcomes, (words, holds) in product((known, more), RELATIONS.items()):
        if all(holds(*pair) == outcome for pair, outcome in outcomes.items()) and not all(outcomes.values()):
            return [Condition(f"with {words}", lambda c, holds=holds: holds(c.sizes.query_length, c.sizes.key_length))]  # type: ignore[misc]
    return []


def _outcome(case: Case, prober: Prober) -> bool | None:
    """Whether it fails with any of a few seeds."""
    outcomes = []
    for seed in (case.seed, *SEEDS):
        outcomes.append(prober.fails(replace(case, seed=seed)))
        if outcomes[-1] is not False:
            break
    return outcomes[-1]


def _of_extent(base: Case, names: tuple[str, ...], failing: Sequence[Observation], prober: Prober) -> list[Condition]:
    """The simplest rule about one extent, or several that are equal, that distinguishes failing from passing cases."""
    own = getattr(base.sizes, names[0])

    def fails(extent: int) -> bool | None:
        return _outcome(base.sized(**dict.fromkeys(names, extent)), prober)

    few = [
        extent for extent in (4, own - 1, own + 1, 64) if extent in SAMPLES[names[0]] or (extent < 10 and extent > 0)
    ]
    known = {own: True, **{extent: fails(extent) for extent in few}}
    if names[0] in ("batch", "num_heads"):
        known[1] = fails(1)
    if all(outcome in (True, None) for outcome in known.values()):
        return []
    known |= {extent: fails(extent) for extent in SAMPLES[names[0]] if extent not in known}
    known |= {getattr(each.case.sizes, names[0]): True for each in failing}
    outcomes = {extent: outcome for extent, outcome in sorted(known.items()) if outcome is not None}
    if all(outcomes.values()):
        return []
    least_limit = 0 if names[0] in ("batch", "num_heads") else TRIVIAL
    for words, rule in _rules(outcomes, fails, least_limit, names[0] in ("d_k", "d_v")):
        if all(rule(extent) == outcome for extent, outcome in outcomes.items()):
            return [_extent_condition(words, names[0], rule)]
    low, high = _below_and_above(outcomes)
    if low > least_limit and high > 2:  # some cases with more pass, too, as their numbers do not show it
        return [_extent_condition(f"more than {low} {{}}", names[0], lambda n: n > low)]
    return []


def _of_key_heads(base: Case, prober: Prober) -> list[Condition]:
    """From how many key heads on it fails, each with two query heads; one is shared by all whatever the order."""
    tried = {n: _outcome(base.sized(num_heads=2 * n, num_kv_heads=n), prober) for n in KEY_HEADS}
    passing, failing = ([n for n, outcome in tried.items() if outcome is kind] for kind in (False, True))
    if not failing or max(passing, default=0) not in range(2, min(failing)):
        return []
    most = max(passing)
    return [Condition(f"with more than {most} key heads", lambda case: case.sizes.kv_heads > most)]


def _below_and_above(outcomes: dict[int, bool]) -> tuple[int, int]:
    """The largest extent up to which all pass, 0 for less than three such, and how many fail beyond it."""
    failing = [n for n, outcome in outcomes.items() if outcome]
    below = [n for n in outcomes if n < min(failing)]
    return max(below, default=0) if len(below) > 2 else 0, len(failing)


def _extent_condition(words: str, name: str, rule: Callable[[int], bool]) -> Condition:
    noun = ONE[name] if words.startswith("more than 1 ") else WORDS[name]
    text = f"with {words.format(noun)}".replace("fewer than 1 ", "no ").replace("than 1 ", "than one ")
    return Condition(text, lambda case: rule(getattr(case.sizes, name)), WORDS[name])


def _rules(
    outcomes: dict[int, bool], fails: Callable[[int], bool | None], least_limit: int, width: bool
) -> Iterator[tuple[str, Callable[[int], bool]]]:
    """Rules that may fit, the simplest first; their limits lie between cases that were run.

    Of single widths kernels have code of their own; a single length that fails is one at which something was kept.
    """
    passing, failing = ([n for n, outcome in outcomes.items() if outcome is kind] for kind in (False, True))
    if max(passing) < min(failing):
        most = _boundary(max(passing), min(failing), fails)
        if most > least_limit:
            yield f"more than {most} {{}}", lambda n: n > most
        return
    if max(failing) < min(passing):
        least = _boundary(min(passing), max(failing), fails)
        yield f"fewer than {least} {{}}", lambda n: n < least
    for multiple in MULTIPLES:
        yield f"a number of {{}} that is no multiple of {multiple}", lambda n, m=multiple: n % m != 0  # type: ignore[misc]
        yield f"a number of {{}} that is a multiple of {multiple}", lambda n, m=multiple: n % m == 0  # type: ignore[misc]
    if width and len(failing) == 1:
        yield f"exactly {failing[0]} {{}}", lambda n: n == failing[0]
    limit = max((n for n in passing if n < min(failing)), default=0)
    most = _boundary(limit, min(failing), fails) if limit else 0
    for multiple in MULTIPLES[::-1]:
        words = f"more than {most} {{}}, no multiple of {multiple}"
        yield words, lambda n, m=multiple: n > most and n % m != 0  # type: ignore[misc]


def _boundary(passing: int, failing: int, fails: Callable[[int], bool | None]) -> int:
    """The extent next to the failing ones that passes, by halving."""
    while abs(failing - passing) > 1:
        middle = (passing + failing) // 2
        if fails(middle):
            failing = middle
        else:
            passing = middle
    return passing
