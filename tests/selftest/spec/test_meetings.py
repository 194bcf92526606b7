"""Meetings: what mistakes are often about meets everything, and little is hidden."""

from itertools import combinations

from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.meeting_levels import LEVELS, OFTEN, Call, covers_up
from attention_conformance.spec.meetings import GoesTogether, meetings


def everything(case: Case, call: Call) -> bool:
    return True


GOES = GoesTogether(everything, Conventions())
FOUND = tuple(meetings(everything, Conventions()))


def fields(case: Case, call: Call) -> dict[str, object]:
    return {**vars(case), **vars(case.sizes), **vars(case.extension), **vars(call)}


def levels_of(case: Case, call: Call) -> set[int]:
    held = fields(case, call)
    return {n for n, level in enumerate(LEVELS) if all(held[name] == value for name, value in level.items())}


IN_CASES = [levels_of(case, call) for case, call in FOUND]


def test_what_mistakes_are_often_about_meets_everything() -> None:
    for first, second in ((a, b) for a in range(len(OFTEN)) for b in range(len(LEVELS)) if a != b):
        if not GOES([LEVELS[first], LEVELS[second]]) or LEVELS[first].keys() & LEVELS[second].keys():
            continue
        assert any({first, second} <= each for each in IN_CASES), (LEVELS[first], LEVELS[second])


def test_every_level_is_in_some_case_of_a_kernel_that_takes_everything() -> None:
    missing = [level for n, level in enumerate(LEVELS) if not any(n in each for each in IN_CASES)]
    assert missing == []


def test_any_three_of_what_mistakes_are_often_about_meet() -> None:
    for three in combinations(range(len(OFTEN)), 3):
        keys = [key for n in three for key in LEVELS[n]]
        if len(keys) == len(set(keys)) and GOES([LEVELS[n] for n in three]):
            assert any({*three} <= each for each in IN_CASES), [LEVELS[n] for n in three]


def test_a_given_scale_covers_up_what_a_width_does_to_the_one_that_is_not() -> None:
    wide, causal = {"d_k": 264, "d_v": 257, "batch": 1}, {"causal": True}
    assert covers_up({"scale": 0.3}, wide)
    numbers = {LEVELS.index(wide), LEVELS.index(causal)}
    assert any(case.scale is None for (case, _), each in zip(FOUND, IN_CASES, strict=True) if numbers <= each)


def test_each_case_has_numbers_of_its_own() -> None:
    seeds = [case.seed for case, _ in FOUND]
    assert len(seeds) == len(set(seeds))
