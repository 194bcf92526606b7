"""Replay: a failure as a file that holds all that is needed to run the same case again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from shlex import join

from attention_conformance.implementations.api.amended import Amendments
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.remote import end_process
from attention_conformance.spec.case_limits import unusable
from attention_conformance.spec.cases import Case, from_data
from attention_conformance.spec.clauses import load
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.explain.reduction import Counterexample, Recipe, lines, outcome
from attention_conformance.tests.harness.explain.replay_limits import MOST_DECIMALS, foreign, text_of
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.judge.tiers import tier_of
from attention_conformance.tests.report.wording import one_line

FORMAT = "attention-conformance/failure/2"


class ReplayError(ValueError):
    """A failure file that cannot be replayed; the message is one line."""


@dataclass(frozen=True)
class FailureFile:
    """What a failure file holds.

    Attributes:
        target: of the candidate, as `--candidate` takes it; empty for a built-in implementation, and for a command.
        command, python: as `--command` and `--python` take them. A replay starts neither of its own accord.
        conventions, premises: as `--convention` and `--premise` take them.
        decimals, cotangent: see `Recipe`.
        part: what differed from the reference; empty where the check was another one.
        kind: how a reduced case fails, see `FailureKind`; empty if nothing was reduced, and the whole clause is run.
    """

    implementation: str
    clause: str
    dtype: str
    case: Case
    message: str
    target: str = ""
    command: str = ""
    python: str = ""
    conventions: Mapping[str, str] = field(default_factory=dict)
    premises: tuple[str, ...] = ()
    device: str = "cpu"
    tier: str = "quick"
    decimals: int | None = None
    cotangent: tuple[int, ...] | None = None
    part: str = ""
    kind: str = ""

    @property
    def name(self) -> str:
        """The name of the file, without suffix."""
        named = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.implementation)
        return f"{self.clause}--{named}--{self.dtype}"

    def to_json(self) -> str:
        """A JSON object from which `from_json` rebuilds an equal record."""
        data = {"format": FORMAT, **asdict(self), "case": json.loads(self.case.to_json())}
        return json.dumps(data, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> FailureFile:
        """The record that `to_json` wrote.

        Raises:
            ReplayError: the text is no such object; the message names the field.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ReplayError(f"it is no JSON ({error})") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            given = data.get("format") if isinstance(data, dict) else None
            raise ReplayError(f"format is {given!r}, expected {FORMAT!r}: this is no failure file of this version")
        try:
            failure: FailureFile = from_data(cls, {name: data[name] for name in data if name != "format"}, "failure")
        except ValueError as error:
            raise ReplayError(str(error)) from None
        for name in (f.name for f in fields(cls) if f.name not in data):
            raise ReplayError(f"failure lacks the field {name!r}")
        try:
            tier_of(failure.tier)
        except ValueError as error:
            raise ReplayError(f"failure.tier cannot be {error}") from None
        for name, known in {"clause": load(), "dtype": DTYPES}.items():
            if getattr(failure, name) not in known:
                choices = f"; choose from: {', '.join(known)}" if len(known) < 9 else ""
                raise ReplayError(f"failure.{name} cannot be {getattr(failure, name)!r}{choices}")
        for name, numbers in {"decimals": (failure.decimals or 0,), "cotangent": failure.cotangent or ()}.items():
            if any(number < 0 for number in numbers):
                raise ReplayError(f"failure.{name} cannot be negative")
        if (failure.decimals or 0) > MOST_DECIMALS:
            raise ReplayError(f"failure.decimals is {failure.decimals}, more than {MOST_DECIMALS}")
        if why := unusable(failure.case):
            raise ReplayError(why)
        return failure


def read(path: Path) -> FailureFile:
    """The failure that a file holds.

    Raises:
        ReplayError: there is no such file, or it holds none.
    """
    try:
        return FailureFile.from_json(text_of(path))
    except OSError as error:
        raise ReplayError(f"it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ReplayError("it is no text") from None
    except ReplayError:
        raise
    except ValueError as error:
        raise ReplayError(str(error)) from None


def subject(failure: FailureFile, given: RunSettings) -> Implementation:
    """The implementation that the failure is of. A program is started only if the caller has given it, too.

    Raises:
        ReplayError: it cannot be loaded.
    """
    for option, program, given_too in (
        ("--command", failure.command, bool(given.commands)),
        ("--python", failure.python, bool(given.python)),
    ):
        if program and not given_too:
            raise ReplayError(f"it needs a program, which is started only if you give it: {join([option, program])}")
    if given.commands and (not failure.command or len(given.commands) > 1):
        raise ReplayError("--command: give it once, and only for a failure of a command")
    try:
        Premises().assuming(failure.premises)
    except ValueError as error:
        raise ReplayError(f"premises: {error}") from None
    stated = Amendments(premises=failure.premises)
    settings = replace(given, conventions=failure.conventions, device=failure.device, amendments=stated)
    if not failure.target and not failure.command:
        # Here, as they import torch, for which the judge of a candidate does not wait.
        from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED, ON_REQUEST

        for implementation in (*BUILTIN, *ON_REQUEST, *NAMED):
            if implementation.name == failure.implementation:
                return implementation
        raise ReplayError(f"implementation {failure.implementation!r} is not built in")
    try:
        loaded = settings.loader()(failure.target) if failure.target else settings.commanded(given.commands[0])
        return settings.amendments.of(loaded)
    except TargetError as error:
        if failure.command:
            raise ReplayError(str(error)) from None
        reason = str(error).removeprefix(f"{failure.target}: ")
        raise ReplayError(f"target {failure.target!r} cannot be used: {reason}") from None
    except ValueError as error:
        raise ReplayError(f"conventions: {error}") from None


def replay(failure: FailureFile, given: RunSettings) -> tuple[bool, list[str]]:
    """Whether the check holds now, and the lines to print. `given` states how the candidate is started.

    Raises:
        ReplayError: the implementation cannot be loaded, or the case cannot be run.
    """
    implementation = subject(failure, given)
    try:
        if why := foreign(failure.case, load()[failure.clause], implementation.claims):
            raise ReplayError(why)
        return _replayed(failure, Judge(implementation, failure.dtype, failure.device, tier_of(failure.tier)))
    finally:
        end_process(implementation)


def _replayed(failure: FailureFile, judge: Judge) -> tuple[bool, list[str]]:
    who = one_line(f"{failure.clause} of {failure.implementation} in {failure.dtype}")
    if failure.kind:
        counterexample = again(failure, judge)
        if counterexample.outcome.fails:
            return False, list(lines(counterexample, f"{who} still fails"))
        if counterexample.outcome.comparison.inconclusive:
            raise ReplayError("the numbers of the case compare nothing: every answer to it would be within its bounds")
    message = _in_its_clause(failure, judge)
    if not message:
        return True, [f"{who} holds now: {failure.case}"]
    alone = "on its own the case holds; among the checks of the clause: " if failure.kind else ""
    return False, [f"{who} still fails: {failure.case}", f"  {alone}{message}"]


def again(failure: FailureFile, judge: Judge) -> Counterexample:
    """The outcome of the reduced case."""
    recipe = Recipe(failure.case, failure.decimals, failure.cotangent)
    try:
        return Counterexample(recipe, outcome(judge, recipe.problem(judge, failure.part), failure.part), 1)
    except (AttributeError, KeyError, IndexError, ValueError) as error:
        raise ReplayError(f"case and part do not go together ({type(error).__name__}: {error})") from None


def _in_its_clause(failure: FailureFile, judge: Judge) -> str:
    """The message of the clause's own test for the case, if it fails it.

    Raises:
        ReplayError: the test has no such case. Only the quick tier draws none at random.
    """
    claims, seen = judge.claims, set[str]()

    def recorded(case: Case) -> Case | Unsupported:
        fitted = claims.fit(case)
        seen.update(each.to_json() for each in (case, fitted) if isinstance(each, Case))
        return fitted

    watched = replace(judge, implementation=replace(judge.implementation, claims=replace(claims, fit=recorded)))
    judged(load()[failure.clause], clause_tests()[failure.clause], watched)
    text = failure.case.to_json()
    message = next((each.message for each in watched.tally.failures if each.case == text), "")
    if not message and not failure.kind and not judge.tier.examples and text not in seen:
        raise ReplayError(f"{failure.clause} has no such case: {failure.case}")
    return message
