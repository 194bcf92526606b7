"""Reach: under which conditions a defect could show, and whether any check of the quick tier would show it there.

`make reach` judges each defect of the catalogue once. A pair of a defect and a condition is reached where a check
failed all of whose calls fulfil the condition; it is a hole where none did, although cases made to fulfil it show the
defect. No mutant is made for that; a few are, to see whether what follows from the one run is so.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.defects import SCORE, catalogue
from attention_conformance.spec.cases import Case
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge
from attention_conformance.tests.measurements.pages import store
from attention_conformance.tests.measurements.reach.case_conditions import ALONE, CONDITIONS
from attention_conformance.tests.measurements.reach.condition import Call, Condition
from attention_conformance.tests.measurements.reach.conditional import Subject, conditional, shows, subject, watched

DTYPE = "float64"
BASES = 3
"""Failing cases of a defect that are changed to fulfil a condition."""
LARGEST_HOLES = 40
PLACES = {condition.words: 1 << number for number, condition in enumerate(ALONE)}
NEEDED = {condition.words: sum(PLACES[part] for part in condition.parts) for condition in CONDITIONS}
"""For each condition the conditions of `ALONE` that it consists of, as bits."""

KINDS = {"one condition": set(PLACES), "two options": set(NEEDED) - set(PLACES)}
REACH = SCORE.with_name("reach.json")


@dataclass(frozen=True)
class Reach:
    """What one run of the quick tier reaches of a defect.

    Attributes:
        reached: the words of the conditions under which it would be killed.
        holes: those under which it shows, and would survive.
    """

    defect: str
    chapter: str
    reached: tuple[str, ...]
    holes: tuple[str, ...]


class Recorder:
    """Which conditions hold in all calls of each check that fails, as bits of `PLACES`."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.seen: set[object] = set()
        self.judge: Judge | None = None
        self.checked, self.failed, self.common = 0, 0, -1

    def begin(self, judge: Judge | None) -> None:
        """The calls that follow are made for the checks of this judge."""
        self._close()
        self.judge, self.checked, self.failed, self.common = judge, 0, 0, -1

    def note(self, call: Call) -> None:
        """One call, made for the next check."""
        self._close()
        call = replace(call, again=call.key in self.seen)
        self.seen.add(call.key)
        self.common &= sum(place for place, c in zip(PLACES.values(), ALONE, strict=True) if c.fulfilled(call))

    def _close(self) -> None:
        """What was called so far belongs to the checks that were counted since, if there are any."""
        tally = None if self.judge is None else self.judge.counts.tally
        if tally is None or (done := tally.checks + tally.inconclusive) == self.checked:
            return
        if tally.failed > self.failed and self.common > 0:
            self.failing.add(self.common)
        self.checked, self.failed, self.common = done, tally.failed, -1


def reach_of(name: str) -> Reach:
    """The reach of the quick tier for one defect."""
    tried = subject(name)
    recorder, cases = Recorder(), dict[str, str]()
    implementation = watched(tried.wrong, recorder.note)
    for check in Selection((implementation,), dtypes=(DTYPE,)).plan():
        judge = Judge(implementation, check.dtype, selected=(DTYPE,))
        recorder.begin(judge)
        check.test(judge)
        recorder.begin(None)
        cases |= {failure.case: failure.part for failure in judge.tally.failures if failure.part}
    reached = [words for words, bits in NEEDED.items() if any(bits & each == bits for each in recorder.failing)]
    whole = [case for case in map(Case.from_json, cases) if min(case.sizes.batch, case.sizes.key_length) > 0]
    bases = sorted(whole, key=lambda case: len(str(case)))[:BASES]
    parts = tuple(sorted({part for part in cases.values() if not part.startswith("gradients")}))
    parts += ("gradients",) * any(part.startswith("gradients") for part in cases.values())
    missing = set(NEEDED) - set(reached)
    holes = [c.words for c in CONDITIONS if c.words in missing and _could_show(tried, c, bases, parts)]
    return Reach(name, tried.chapter, tuple(reached) if bases else (), tuple(holes))


def _could_show(tried: Subject, condition: Condition, bases: Sequence[Case], parts: tuple[str, ...]) -> bool:
    return any(shows(tried, condition, base, parts, DTYPE) for base in bases)


def survives(name: str, words: str) -> bool | None:
    """Whether the defect survives the quick tier if it is one under this condition alone; None: that cannot be seen."""
    tried, (condition,) = subject(name), [c for c in CONDITIONS if c.words == words]
    if _killed(tried.right):
        return None
    return not _killed(conditional(tried, condition))


def _killed(implementation: Implementation) -> bool:
    for check in Selection((implementation,), dtypes=(DTYPE,)).plan():
        judge = Judge(implementation, check.dtype, failure_limit=1, selected=(DTYPE,))
        with suppress(FailureLimitError):
            check.test(judge)
        if judge.tally.failures:
            return True
    return False


def spot_checks(measured: Sequence[Reach], count: int) -> list[tuple[str, str, bool]]:
    """Pairs drawn by a fixed seed, half of them reached and half of them holes, as far as there are any."""
    rng = random.Random(0)
    pairs = [
        [(each.defect, words, hole) for each in measured for words in (each.holes if hole else each.reached)]
        for hole in (False, True)
    ]
    return [pair for kind in pairs for pair in rng.sample(kind, min(count // 2, len(kind)))]


def agreement(pool: ProcessPoolExecutor, pairs: Sequence[tuple[str, str, bool]]) -> list[tuple[str, str, bool, bool]]:
    """The pairs whose mutants could be judged: defect, condition, whether it is a hole, whether the mutant survives."""
    alive = pool.map(survives, [name for name, _, _ in pairs], [words for _, words, _ in pairs])
    return [(*pair, lives) for pair, lives in zip(pairs, alive, strict=True) if lives is not None]


def by_chapter(measured: Sequence[Reach]) -> dict[str, dict[str, Any]]:
    """For each chapter its defects, and of either kind of condition the pairs that are reached, and the holes."""
    chapters = dict.fromkeys(each.chapter for each in measured)
    return {chapter: _counts([each for each in measured if each.chapter == chapter]) for chapter in chapters}


def _counts(measured: Sequence[Reach]) -> dict[str, Any]:
    reached = [words for each in measured for words in each.reached]
    holes = [words for each in measured for words in each.holes]
    kinds = {
        kind: [sum(pair in words for pair in pairs) for pairs in (reached, holes)] for kind, words in KINDS.items()
    }
    return {"defects": len(measured), **kinds}


def largest_holes(measured: Sequence[Reach]) -> list[tuple[str, ...]]:
    """The conditions under which most defects would survive, weighted by the public reports that are about them."""
    missed = Counter(words for each in measured for words in each.holes)
    met = Counter(words for each in measured for words in each.reached)
    reports = {condition.words: condition.reports for condition in CONDITIONS}
    ranked = sorted(missed, key=lambda words: -missed[words] * reports[words])
    return [
        (words, str(missed[words]), str(met[words]), str(reports[words]), _example(measured, words))
        for words in ranked[:LARGEST_HOLES]
    ]


def _example(measured: Sequence[Reach], words: str) -> str:
    fewest = min((each for each in measured if words in each.holes), key=lambda each: len(each.holes))
    return f"`{fewest.defect}`"


def _score(measured: Sequence[Reach], seen: Sequence[tuple[str, str, bool, bool]]) -> dict[str, Any]:
    """What is stored; of mutants, how many are killed and how many survive, of reached pairs and of holes."""
    agreeing = Counter((hole, lives) for _, _, hole, lives in seen)
    return {
        "conditions": {kind: len(words) for kind, words in KINDS.items()},
        "chapters": by_chapter(measured),
        "mutants": [[agreeing[hole, lives] for lives in (False, True)] for hole in (False, True)],
        "holes": largest_holes(measured),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=16, help="take each so many-th defect of the catalogue (16)")
    parser.add_argument("--first", type=int, default=0, help="where to begin")
    parser.add_argument("--only", default="", help="defects whose id contains this")
    parser.add_argument("--mutants", type=int, default=24, help="pairs that are checked by a mutant (24)")
    parser.add_argument("--write", action="store_true", help=f"write {REACH.name}")
    options = parser.parse_args()
    start = time.perf_counter()
    names = [each.id for each in catalogue() if options.only in each.id][options.first :: options.every]
    measured = []
    with ProcessPoolExecutor(options.processes, initializer=compute_on_one_thread) as pool:
        for each in pool.map(reach_of, names):
            print(f"{each.defect}: {len(each.reached)} reached, {len(each.holes)} holes", file=sys.stderr)
            measured += [each] if each.reached else []
        seen = agreement(pool, spot_checks(measured, options.mutants))
    odd = [(name, words, hole) for name, words, hole, lives in seen if hole is not lives]
    minutes = round((time.perf_counter() - start) / 60.0)
    score = {"tried": len(names), "minutes": minutes, **_score(measured, seen)}
    print(*(f"{name}: {value}" for name, value in score.items()), *odd, sep="\n")
    if options.write:
        store(REACH, score)
    return 0


if __name__ == "__main__":
    sys.exit(main())
