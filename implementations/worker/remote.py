"""An implementation whose every call goes through a door."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import (
    FUNCTIONS,
    MODES,
    Claims,
    Implementation,
    PathError,
    Result,
    Unsupported,
    any_case,
)
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.api.safe_call import CandidateError, answer
from attention_conformance.implementations.discovery.auditor.recorded_call import RecordedCall
from attention_conformance.implementations.discovery.targets.loading import Target, TargetError
from attention_conformance.implementations.worker.door import Door
from attention_conformance.implementations.worker.elsewhere import worker_command
from attention_conformance.implementations.worker.forms import problem_message, result_of
from attention_conformance.implementations.worker.hello import REQUESTS, Hello
from attention_conformance.implementations.worker.limits import CALL
from attention_conformance.implementations.worker.observer import LocalObserver, Observer
from attention_conformance.implementations.worker.output import shortened
from attention_conformance.implementations.worker.process import how_ended
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Array, Problem

MOST_NOTES = 32
"""Notes of a candidate that are kept, each shortened for itself: the last ones state what was found."""
UNFLUSHED = 120
"""The exit status of Python where it cannot write what was printed, as the candidate has closed the stream."""


def isolated_candidate(
    target: str,
    settings: Mapping[str, str],
    device: str = "cpu",
    deadline: float = CALL,
    python: str = "",
    memory: int | None = None,
    premises: Sequence[str] = (),
) -> Implementation:
    """The candidate that a target names, in a process of its own. One that does not survive its start fails the core.

    Args:
        target: FILE.py:NAME or package.module:NAME.
        settings: conventions by name, as `Conventions.claiming` takes them.
        device: where it computes.
        deadline: seconds for a small call.
        python: the interpreter of another environment, which needs NumPy; empty: this one.
        memory: bytes that it may allocate; None: half of what is free.
        premises: what it always does, in addition to what a few calls show, as `Premises.assuming` takes them.

    Raises:
        TargetError: the target cannot be used; the message is one line that begins with the target.
        ValueError: a setting that does not exist.
    """
    Conventions().claiming(settings)
    Premises().assuming(premises)
    name = Target.parse(target).parts[-1]
    hello: dict[str, Any] = {"target": target, "conventions": dict(settings), "device": device, "memory": memory}
    hello["deadline"] = deadline
    if premises:
        hello["premises"] = list(premises)
    door = Door(hello, worker_command(python), deadline)
    try:
        return remote_implementation(door)
    except (CandidateError, PathError):
        return Implementation(name, Claims(Scope.OP, frozenset({Feature.CORE})), Remote(door, {}))


def commanded_candidate(
    command: str,
    settings: Mapping[str, str],
    device: str = "cpu",
    deadline: float = CALL,
    memory: int | None = None,
) -> Implementation:
    """The candidate that a command line starts, which speaks the protocol over its standard input and output.

    Raises:
        TargetError: it cannot be started, or says nothing usable of itself; the message begins with the command.
        ValueError: a setting that does not exist.
    """
    Conventions().claiming(settings)
    try:
        words = shlex.split(command)
        if not words:
            raise TargetError("it is empty: give a program and its arguments")
        given = {"target": "", "conventions": dict(settings), "device": device, "memory": memory}
        loaded = remote_implementation(Door(given, words, deadline))
    except (CandidateError, ValueError) as error:
        raise TargetError(f"--command {shortened(command)!r}: {shortened(error)}") from error
    conventions = loaded.claims.conventions.claiming(settings)
    return replace(loaded, claims=replace(loaded.claims, conventions=conventions))


def remote_implementation(door: Door) -> Implementation:
    """The candidate behind a door that has not been opened.

    Raises:
        TargetError: it, or what it states of itself, cannot be used.
        LostError: its process died, or did not answer in time.
    """
    answer = door.start().fields
    try:
        return implementation_of(door, Hello.of(answer))
    except ValueError as error:
        door.end()
        raise TargetError(f"its hello cannot be used: {shortened(error)}") from error


def implementation_of(door: Door, hello: Hello) -> Implementation:
    """The candidate behind a door, as its worker states it.

    Raises:
        ValueError: its claims do not go together.
    """
    requests, claims = frozenset(hello.requests), hello.claims
    remote = partial(Remote, door, requests=requests)
    return Implementation(
        name=shortened(hello.name),
        claims=Claims(
            claims.scope,
            frozenset(claims.features),
            Conventions().claiming(claims.conventions),
            claims.dtypes,
            fitting(door) if "fit" in requests else any_case,
            Premises().assuming(claims.premises),
            claims.alone,
        ),
        run=remote(way={}),
        about="; ".join(map(shortened, hello.about.split("; ")[:MOST_NOTES])),
        expected_failures=hello.expected_failures,
        construct=partial(_construct, door) if "construct" in requests else None,
        alternatives={name: remote(way={"alternative": name}) for name in hello.alternatives},
        functions={name: partial(_call, door, name) for name, f in FUNCTIONS.items() if f in claims.features},
        modes={mode: remote(way={"mode": mode}) for mode in sorted(MODES.intersection(claims.features))},
        findings={shortened(name): shortened(why) for name, why in [*hello.findings.items()][:MOST_NOTES]},
        as_seen=tuple(map(shortened, hello.as_seen[:MOST_NOTES])),
        stated=tuple(map(shortened, hello.stated[:MOST_NOTES])),
        documented=tuple(map(shortened, hello.documented[:MOST_NOTES])),
        unclaimed=tuple(map(shortened, hello.unclaimed[:MOST_NOTES])),
        differing=tuple(map(shortened, hello.differing[:MOST_NOTES])),
        exits=tuple(map(shortened, hello.exits[:MOST_NOTES])),
    )


def fitting(door: Door) -> Callable[[Case], Case | Unsupported]:
    """The fit of the candidate behind a door; it is called once for each case."""

    @lru_cache(maxsize=4096)
    def fit(case: Case) -> Case | Unsupported:
        answer = door.request(Message({"request": "fit", "case": case.to_json()})).fields
        if "unsupported" in answer:
            return Unsupported(shortened(answer["unsupported"]))
        with _read():
            return Case.from_json(answer["case"])

    return fit


def _construct(door: Door, num_heads: int, width: int) -> None:
    door.request(Message({"request": "construct", "num_heads": num_heads, "width": width}))


def _call(door: Door, name: str, *arguments: object) -> Array:
    answer = door.request(Message({"request": "call", "function": name, "arguments": arguments}))
    with _read():
        return answer.arrays["returned"]


@dataclass(frozen=True)
class Remote:
    """A run behind a door, and an `Observer` of what it does there.

    Attributes:
        way: the alternative or the mode, if it is one.
        requests: those that may be left unanswered, and are not.
    """

    door: Door
    way: Mapping[str, str]
    requests: frozenset[str] = frozenset(REQUESTS)

    def __call__(self, problem: Problem, device: str) -> Result:
        """The answer to a problem; arrays that the call has changed are changed here too."""
        return self._result(problem, self._request("run", problem, device))

    def begin(self, problem: Problem, device: str) -> Callable[[], Result]:
        """The same in two steps: what is done before the result is called for takes no time of the candidate's."""
        answer = self.door.begin(self._message("run", problem, device), work(problem))
        return lambda: self._result(problem, answer())

    def _result(self, problem: Problem, answer: Message) -> Result:
        held = problem.arrays()
        with _read():
            for name, array in answer.arrays.items():
                owner = held.get(name.removeprefix("changed."))
                if name.startswith("changed.") and owner is not None and owner.flags.writeable:
                    np.copyto(owner, array)
            return result_of(answer.fields, answer.arrays)

    def lacks(self, request: str, device: str) -> str:
        """See `Observer`."""
        return "" if request in self.requests else f"its worker does not answer the request {request!r}"

    def changed_state(self, problem: Problem, device: str, seed: int) -> tuple[Result, tuple[str, ...]]:
        """See `Observer`."""
        answer = self._request("changed_state", problem, device, seed=seed)
        with _read():
            return result_of(answer.fields, answer.arrays), tuple(map(shortened, answer.fields["changed"]))

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """See `Observer`; the generators stay where the calls have left them."""
        self.door.request(Message({"request": "seed", "seed": seed}))
        yield

    def overwritten(self, problem: Problem, later: Sequence[Problem], device: str) -> tuple[bool, tuple[str, ...]]:
        """See `Observer`."""
        for each in later:
            self._request("keep", each, device)
        answer = self._request("overwritten", problem, device).fields
        with _read():
            return bool(answer["overwritten"]), tuple(map(shortened, answer["shared"]))

    def in_turn(self, problem: Problem, later: Problem, device: str) -> Result | None:
        """See `Observer`."""
        self._request("keep", later, device)
        answer = self._request("in_turn", problem, device)
        with _read():
            return result_of(answer.fields, answer.arrays) if answer.arrays else None

    def at_once(self, problem: Problem, later: Problem, device: str) -> Result:
        """See `Observer`."""
        self._request("keep", later, device)
        answer = self._request("at_once", problem, device)
        with _read():
            return result_of(answer.fields, answer.arrays)

    def recorded_call(self, problem: Problem, device: str) -> RecordedCall:
        """See `discovery.recorded_call`."""
        answer = self._request("recorded_call", problem, device)
        given, arrays = answer.fields, answer.arrays
        with _read():
            options = {name: given["options"].get(name, arrays.get(f"options.{name}")) for name in given["order"]}
            parts = {int(name.removeprefix("parts.")): a for name, a in arrays.items() if name.startswith("parts.")}
            return RecordedCall(given["tensors"], options, given["several"], parts)

    def program_fails(self, text: str) -> bool:
        """See `discovery.recorded_call`."""
        answer = self.door.request(Message({"request": "program_fails", "program": text})).fields
        with _read():
            return bool(answer["fails"])

    def peak(self, problem: Problem, device: str, results: int) -> int | None:
        """See `Observer`."""
        return _bytes(self._request("peak", problem, device, results=results))

    def left_behind(self, problem: Problem, device: str, times: int, suspicious: int) -> int | None:
        """See `Observer`."""
        return _bytes(self._request("left_behind", problem, device, times=times, suspicious=suspicious))

    def ended(self) -> str:
        """See `Observer`; the next call starts another process."""
        output, code = self.door.output, self.close()
        if not self.is_bad(code):
            return ""
        last = "" if output is None else output.last_lines()
        return f"{how_ended(code)}; its last output: {last}" if last else how_ended(code)

    def is_bad(self, code: int) -> bool:
        """Whether a status is of the candidate's making: our worker ends with 0, what a command starts as it likes."""
        return code < 0 or (bool(self.door.hello["target"]) and code not in (0, UNFLUSHED))

    def close(self) -> int:
        """See `Door.close`; the names of the threads that the candidate has left running are kept."""
        if "threads" in self.requests and self.door.process is not None:
            with suppress(CandidateError, PathError), _read():
                answer = self.door.request(Message({"request": "threads"}))
                self.door.threads += map(shortened, answer.fields["threads"])
        return self.door.close()

    def _request(self, request: str, problem: Problem, device: str, **more: Any) -> Message:
        return self.door.request(self._message(request, problem, device, **more), work(problem))

    def _message(self, request: str, problem: Problem, device: str, **more: Any) -> Message:
        return problem_message(problem, request=request, device=device, **self.way, **more)


def begun(implementation: Implementation, problem: Problem, device: str) -> Callable[[], Result]:
    """Sends a problem to a candidate in another process, and returns what gives its answer; see `safe_call.answer`.

    In this process nothing is called before the answer is.
    """
    run = implementation.run
    if isinstance(run, Remote):
        finish = run.begin(problem, device)
        return lambda: answer(lambda *_: finish(), problem, device)
    return lambda: _answered_here(implementation, problem, device)


def runs_ahead(implementation: Implementation) -> bool:
    """Whether a call that has begun is answered while this process goes on."""
    return isinstance(implementation.run, Remote)


def _answered_here(implementation: Implementation, problem: Problem, device: str) -> Result:
    with kept_global_state():
        return answer(implementation.run, problem, device)


def observer_of(implementation: Implementation) -> Observer:
    """What observes the process in which an implementation is called."""
    run = implementation.run
    return run if isinstance(run, Remote) else LocalObserver(implementation)


def printed_by(implementation: Implementation) -> str:
    """What a candidate has printed since the last time, if it runs in a process of its own."""
    output = implementation.run.door.output if isinstance(implementation.run, Remote) else None
    return "" if output is None else output.taken()


def started_by(implementation: Implementation) -> str:
    """The command line that starts an implementation; empty where it is none of `commanded_candidate`."""
    run = implementation.run
    return shlex.join(run.door.command) if isinstance(run, Remote) and not run.door.hello["target"] else ""


def end_process(implementation: Implementation) -> None:
    """Ends the process of an implementation, if it has one of its own; the next call starts another."""
    if isinstance(implementation.run, Remote):
        implementation.run.door.end()


def loss_of(implementation: Implementation) -> str:
    """Why an implementation is not called any more; empty if it is."""
    run = implementation.run
    return run.door.given_up if isinstance(run, Remote) else ""


def share_losses(implementations: Sequence[Implementation], folder: Path) -> None:
    """Counts the losses of each candidate together with those in other processes that are given the same folder."""
    for number, implementation in enumerate(implementations):
        if isinstance(implementation.run, Remote):
            file = folder / f"{number}.losses"
            file.touch()
            implementation.run.door.shared = file


def work(problem: Problem) -> float:
    """About how many multiply-adds a call takes, forward and backward."""
    arrays = problem.arrays().values()
    longest: int = max(extent for array in arrays for extent in (*array.shape[-2:], 1))
    return 4.0 * longest * sum(array.size for array in arrays)


@contextmanager
def _read() -> Iterator[None]:
    """What is read of an answer within it may be anything: a worker can be another program."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CandidateError(f"its answer cannot be used: {type(error).__name__} {shortened(error)}") from error


def _bytes(answer: Message) -> int | None:
    with _read():
        counted = answer.fields["bytes"]
        return None if counted is None else int(counted)
