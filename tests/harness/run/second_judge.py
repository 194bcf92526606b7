"""The second judge: a copy of this process, with a worker of its own, that judges clauses from the end of the plan.

Its verdicts count only where neither worker was lost or has left anything: otherwise all is judged here, as it is where
there is no second judge.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.worker.elsewhere import worker_command
from attention_conformance.implementations.worker.limits import ENDING
from attention_conformance.implementations.worker.process import DIE_WITH_PARENT
from attention_conformance.implementations.worker.remote import Remote, end_process, printed_by
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.sharding import Group, long_groups, seconds
from attention_conformance.tests.harness.run.post_run import leftovers
from attention_conformance.tests.report.log import decode, encode
from attention_conformance.tests.report.verdict import Verdict

LEAST = 4.0
"""Seconds of a plan, as measured for another implementation, from which on a second judge saves what it costs."""
STARTS = 8.0
"""How many times as long as the start of a worker the plan has to take, as a second one has to start."""
LOOK = 5.0
"""Seconds after which it is looked again whether one would pay: each answer of some candidates takes long."""
SHORT = 0.01
"""Seconds below which nothing is concluded from how long checks have taken."""
WAITED = 0.1
"""The share of its time for which this process may have waited for a core; on a busy machine there is none left."""
MOST = 4096
"""What any pipe holds."""
SCHEDULED = Path("/proc/self/schedstat")
"""Nanoseconds for which this process has computed, and for which it has waited for a core."""

Key: TypeAlias = tuple[str, str, str]
"""Clause, implementation and dtype."""
Part: TypeAlias = tuple[str, str, int]
"""Clause, implementation, and 0, or which part of a long clause it is."""
Answers: TypeAlias = dict[Key, tuple[Verdict, str]]
"""Verdicts, and what the candidate has printed meanwhile."""


@dataclass(eq=False)
class SecondJudge:
    """The other half of the work, as this process sees it.

    Attributes:
        planned: all checks of both.
        parts: of the plan; what is in one is judged by one of both.
        tokens: a pipe with a byte for each part: who takes one begins with the next part on its side.
        answers: what the second judge writes when it has done its part.
        number: its process.
        own: the parts that are judged here.
        due: the checks whose turn came before the tokens were gone.
        rest: what was judged ahead here, and by the second judge, once the tokens are gone.
    """

    planned: Sequence[PlannedCheck]
    parts: Mapping[Key, Part]
    settings: RunSettings
    tokens: int
    answers: int
    number: int
    own: set[Part] = field(default_factory=set)
    due: set[Key] = field(default_factory=set)
    rest: Answers | None = None

    def verdict(self, planned: PlannedCheck) -> tuple[Verdict, str] | None:
        """One that is there already, and what was printed; None where the check is to be made now."""
        if planned.test.last:
            return None
        part = self.parts[_key(planned)]
        if self.rest is None and (part in self.own or os.read(self.tokens, 1)):
            self.own.add(part)
            self.due.add(_key(planned))
            return None
        if self.rest is None:
            self.rest = dict(self._ahead())
            if not any(map(_deaths, _implementations(self.planned))):
                self.rest |= self._awaited()
        return self.rest.get(_key(planned))

    def _ahead(self) -> Iterator[tuple[Key, tuple[Verdict, str]]]:
        """The rest of what is judged here, while the second judge goes on."""
        for each in self.planned:
            if self.parts.get(_key(each)) in self.own and _key(each) not in self.due:
                with suppress(Exception):  # it is raised again where the check has its turn
                    yield _key(each), _judged(each, self.settings)

    def _awaited(self) -> Answers:
        """Empty where the second judge has none that count."""
        with os.fdopen(self.answers, "rb", closefd=False) as stream:
            text = stream.read()
        verdicts = [(decode(verdict), printed) for verdict, printed in json.loads(text or "[]")]
        return {(v.clause, v.implementation, v.dtype): (v, said) for v, said in verdicts if isinstance(v, Verdict)}

    def end(self) -> None:
        """Lets its process end that of the candidate and itself, if it has not done so."""
        os.kill(self.number, signal.SIGTERM)
        end = time.monotonic() + ENDING
        while not os.waitpid(self.number, os.WNOHANG)[0]:
            if time.monotonic() > end:
                os.kill(self.number, signal.SIGKILL)
            time.sleep(0.01)
        os.close(self.tokens)
        os.close(self.answers)


@dataclass(eq=False)
class SharedWork:
    """A plan that is shared with a second judge, from its beginning or once it turns out to take long.

    Attributes:
        started: seconds that the starts of the candidates' processes have taken.
        begun: when the first check was.
        looked: when it was last looked at whether a second judge would pay.
        done: the checks that were made before there was one.
    """

    planned: Sequence[PlannedCheck]
    settings: RunSettings
    started: float
    begun: float
    looked: float
    second: SecondJudge | None
    done: set[Key] = field(default_factory=set)

    @classmethod
    def of(cls, planned: Sequence[PlannedCheck], settings: RunSettings) -> SharedWork:
        started, now = _computed(planned), time.monotonic()
        return cls(planned, settings, started, now, now, second_judge(planned, settings, started))

    def verdict(self, planned: PlannedCheck) -> tuple[Verdict, str] | None:
        """See `SecondJudge`."""
        if self.second is None and time.monotonic() - self.looked >= LOOK:
            self.second = self._late()
        if self.second is not None:
            return self.second.verdict(planned)
        self.done.add(_key(planned))
        return None

    def _late(self) -> SecondJudge | None:
        """With as much slower a candidate as it has been so far."""
        self.looked = time.monotonic()
        expected = sum(seconds(clause) for clause, *_ in self.done)
        rest = [each for each in self.planned if _key(each) not in self.done]
        return second_judge(rest, self.settings, self.started, (self.looked - self.begun) / max(expected, SHORT))

    def end(self) -> None:
        if self.second is not None:
            self.second.end()


SHARED = pytest.StashKey[SharedWork]()


def second_judge(
    planned: Sequence[PlannedCheck], settings: RunSettings, started: float, slower: float = 1.0
) -> SecondJudge | None:
    """Starts one, where a core is free for it and it pays.

    Args:
        planned: what is left to be judged.
        settings: of the run.
        started: see `SharedWork`.
        slower: so many times as long as expected do the checks take.
    """
    parts = parts_of(planned)
    order = list(dict.fromkeys(parts.values()))
    plain = not settings.commands and settings.device == "cpu" and settings.budget is None
    if not (
        plain and can_be_copied() and 1 < len(order) <= MOST and _pays(planned, started, slower) and core_is_free()
    ):
        return None
    (tokens, given), (answers, answered) = os.pipe(), os.pipe()
    os.write(given, bytes(len(order)))
    os.close(given)
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a lock of another thread is not used in the copy
        number = os.fork()
    if number:
        os.close(answered)
        return SecondJudge(planned, parts, settings, tokens, answers, number)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first judge decides what follows, and ends this one
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if os.getppid() == parent:
            os.close(answers)
            _judge_from_the_end(planned, parts, settings, tokens, answered)
    finally:
        os._exit(0)


def _judge_from_the_end(
    planned: Sequence[PlannedCheck], parts: Mapping[Key, Part], settings: RunSettings, tokens: int, answered: int
) -> None:
    """In the copy: judges while there are tokens, and writes nothing where anything is out of the ordinary."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    implementations = _implementations(planned)
    for each in implementations:
        if isinstance(each.run, Remote):
            each.run.door.leave_to_parent()
    done: list[tuple[str, str]] = []
    try:
        for part in reversed(list(dict.fromkeys(parts.values()))):
            if not os.read(tokens, 1):
                break
            for check in planned:
                if parts.get(_key(check)) == part:
                    verdict, printed = _judged(check, settings)
                    done.append((encode(verdict), printed))
    except BaseException:
        list(map(end_process, implementations))
        raise
    if not any(map(_deaths, implementations)) and not any(leftovers(implementations)):
        with os.fdopen(answered, "wb") as stream:
            stream.write(json.dumps(done).encode())


def parts_of(planned: Sequence[PlannedCheck]) -> dict[Key, Part]:
    """By check: all dtypes of a clause together, but for one that comes first for itself where the others take long."""
    groups = [_group(each) for each in planned]
    long, begun, before = long_groups(groups), Counter[Group](), None
    parts: dict[Key, Part] = {}
    for each, group in zip(planned, groups, strict=True):
        begun[group] += group in long and group != before
        before = group
        if not each.test.last:
            parts[_key(each)] = (*group, begun[group])
    return parts


def can_be_copied() -> bool:
    """Whether this process has no library with threads that a copy would lack: a user's own tests may have them."""
    return not {"torch", "jax"} & sys.modules.keys()


def core_is_free() -> bool:
    """Whether there are two cores, and this process has hardly had to wait for one."""
    if len(os.sched_getaffinity(0)) < 2 or not SCHEDULED.exists():
        return False
    computed, waited, _ = map(int, SCHEDULED.read_text().split())
    return waited <= WAITED * computed


def _pays(planned: Sequence[PlannedCheck], started: float, slower: float) -> bool:
    """Whether the plan takes long, and a second worker is started soon."""
    for each in _implementations(planned):
        if not isinstance(each.run, Remote) or each.run.door.command != worker_command():
            return False
        if each.run.door.process is None or each.run.door.deaths:
            return False
    return slower * sum(seconds(each.clause.id) for each in planned) >= max(LEAST, STARTS * started)


def _computed(planned: Sequence[PlannedCheck]) -> float:
    """Seconds that the candidates' processes have computed."""
    runs = [each.run for each in _implementations(planned) if isinstance(each.run, Remote)]
    return sum(run.door.process.computed() for run in runs if run.door.process is not None)


def _judged(planned: PlannedCheck, settings: RunSettings) -> tuple[Verdict, str]:
    verdict = judged(planned.clause, planned.test, settings.judge(planned.implementation, planned.dtype))
    return verdict, printed_by(planned.implementation)


def _implementations(planned: Sequence[PlannedCheck]) -> list[Implementation]:
    return list({each.implementation.name: each.implementation for each in planned}.values())


def _deaths(implementation: Implementation) -> bool:
    return isinstance(implementation.run, Remote) and bool(implementation.run.door.deaths)


def _group(planned: PlannedCheck) -> Group:
    return planned.clause.id, planned.implementation.name


def _key(planned: PlannedCheck) -> Key:
    return *_group(planned), planned.dtype
