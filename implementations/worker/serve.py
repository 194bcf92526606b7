"""The worker: loads one candidate, and answers requests about it until its input ends.

`python -m attention_conformance.implementations.worker.serve` speaks the protocol over its standard input and output.
Both are put out of the candidate's reach first: what it prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, PathError, Result, Unsupported, any_case
from attention_conformance.implementations.api.fitting import own_fit
from attention_conformance.implementations.api.global_state import (
    compute_on_one_thread,
    global_state,
    kept_global_state,
    loading,
    start_generators,
)
from attention_conformance.implementations.api.out_of_memory import is_out_of_memory
from attention_conformance.implementations.api.process_state import IMPORTS, process_state, write_no_bytecode
from attention_conformance.implementations.api.safe_call import (
    LONGEST_NAME,
    CandidateError,
    answer,
    error_line,
    function_answer,
    guarded,
    kind_of,
    place_of,
    plain,
)
from attention_conformance.implementations.api.watched_calls import StoppedError
from attention_conformance.implementations.discovery.candidates import named
from attention_conformance.implementations.discovery.targets.loading import Target, TargetError, load_target
from attention_conformance.implementations.worker import accelerator
from attention_conformance.implementations.worker.first_calls import WHICH, first_calls, teller
from attention_conformance.implementations.worker.forms import (
    claims_fields,
    expected_failure_fields,
    problem_of,
    result_message,
)
from attention_conformance.implementations.worker.hello import PROTOCOL, REQUESTS
from attention_conformance.implementations.worker.native_threads import computing
from attention_conformance.implementations.worker.observer import LocalObserver
from attention_conformance.implementations.worker.own_builtins import OwnBuiltins, located_line
from attention_conformance.implementations.worker.process import DIE_WITH_PARENT
from attention_conformance.implementations.worker.resources import end_first, limit_memory
from attention_conformance.implementations.worker.wire import Message, WireError, encode, read
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import Problem

torch = optional("torch")
ADOPT = 36
"""PR_SET_CHILD_SUBREAPER: a process whose parent has ended is a child of the worker from then on."""


class Worker:
    """The candidate, and an answer for each kind of request."""

    def __init__(self, tell: Callable[[Message], None] = lambda _: None) -> None:
        self.tell = tell
        self.implementation: Implementation | None = None
        self.given: Mapping[str, Any] = {}
        self.before: dict[str, object] = {}
        self.later: list[Problem] = []
        self.own_threads = threading.enumerate()

    def answer(self, request: Message) -> Message:
        """The answer to a request; one that the candidate has no answer for says why."""
        try:
            # What the candidate sets as it is imported is its own, and there before and after each call.
            with nullcontext() if request.fields["request"] == "hello" else kept_global_state():
                return OPERATIONS[request.fields["request"]](self, request)
        except CandidateError as error:
            lacking = {"out_of_memory": True} if is_out_of_memory(error.__cause__) else {}
            lost = {"accelerator_lost": True} if accelerator.fault() else {}
            return Message({"error": str(error), "exception": error.exception, "place": error.place, **lacking, **lost})
        except MemoryError:
            return Message({"error": "left too little memory to answer", "exception": "", "out_of_memory": True})
        except KeyboardInterrupt:
            return Message({"error": "raised KeyboardInterrupt", "exception": "KeyboardInterrupt"})
        except PathError as error:
            return Message({"left_path": str(error)})
        except TargetError as error:
            return Message({"unusable": str(error)})
        except WireError as error:
            return Message({"error": f"returned what cannot be read: {error}", "exception": ""})

    def hello(self, request: Message) -> Message:
        """Loads the candidate, and says what it claims."""
        given = request.fields
        # The candidate may change the current folder as it is imported.
        parsed = Target.parse(given["target"])
        self.given = {**given, "target": parsed.absolute}
        if parsed.is_file:
            sys.path.insert(0, str(Path(parsed.place).resolve().parent))  # it may import helpers as it is called
        memory = limit_memory(given.get("memory"))
        with loading():
            target = load_target(given["target"])
        self.before = global_state()
        calls = first_calls(self.tell, request)
        try:
            with kept_global_state(), calls.watched():
                settings, premises = given["conventions"], given.get("premises", ())
                loaded = named(given["target"], target, settings, given["device"], premises, in_part=True)
        except StoppedError as stopped:
            if calls.lacking is not None:
                raise CandidateError(calls.lack) from calls.lacking
            raise TargetError(f"{given['target']}: {stopped}") from None
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            raise TargetError(f"{given['target']}: it raised {kind_of(error)} when it was first called") from None
        except TargetError as error:
            if calls.lacking is not None:
                raise CandidateError(calls.lack) from calls.lacking
            if accelerator.fault():
                raise CandidateError(str(error)) from None
            raise
        except (CandidateError, PathError, MemoryError, OSError):
            raise
        except Exception as error:
            raise TargetError(f"{given['target']}: {_raised_as_read(error, self.before)}") from None
        if why := accelerator.fault():
            raise CandidateError(f"fails in {WHICH}: {why}")
        self.implementation = loaded
        return Message(
            {
                "protocol": PROTOCOL,
                "memory": memory,
                "name": loaded.name,
                "about": loaded.about,
                "findings": dict(loaded.findings),
                "as_seen": list(loaded.as_seen),
                "stated": list(loaded.stated),
                "documented": list(loaded.documented),
                "unclaimed": list(loaded.unclaimed),
                "differing": list(loaded.differing),
                "exits": list(loaded.exits),
                "language": "Python",
                "versions": {
                    "Python": platform.python_version(),
                    "numpy": np.__version__,
                    **({"torch": str(torch.__version__)} if torch else {}),
                },
                "claims": claims_fields(loaded.claims),
                "requests": list(self._requests(given["device"])),
                "alternatives": list(loaded.alternatives),
                "expected_failures": [expected_failure_fields(each) for each in loaded.expected_failures],
            }
        )

    def _requests(self, device: str) -> Iterator[str]:
        """Those that are answered, of the requests that need not be."""
        observer = LocalObserver(self._own)
        left_out = {
            "fit": self._own.claims.fit is any_case,
            "construct": self._own.construct is None,
            "recorded_call": not torch,
            "program_fails": not torch,
        }
        yield from (each for each in REQUESTS if not left_out.get(each) and not observer.lacks(each, device))

    def fit(self, request: Message) -> Message:
        """The nearest case that it supports."""
        case = Case.from_json(request.fields["case"])
        fitted = own_fit(self._own.claims, case)
        if isinstance(fitted, Unsupported):
            return Message({"unsupported": plain(str(fitted.reason))})
        return Message({"case": fitted.to_json()})

    def run(self, request: Message) -> Message:
        """The answer to a problem; arrays of the problem that the call has changed come back with it."""
        problem = problem_of(request)
        before = {name: array.tobytes() for name, array in problem.arrays().items()}
        result = answer(self._way(request.fields), problem, request.fields["device"])
        message = result_message(result)
        after = problem.arrays()
        changed = {f"changed.{name}": after[name] for name, held in before.items() if after[name].tobytes() != held}
        return Message(message.fields, {**message.arrays, **changed})

    def call(self, request: Message) -> Message:
        """What a plain function returns."""
        name, arguments = request.fields["function"], tuple(request.fields["arguments"])
        return Message({}, {"returned": function_answer(name, self._own.functions[name], arguments)})

    def construct(self, request: Message) -> Message:
        """Whether a module can be built."""
        build = self._own.construct
        assert build is not None
        guarded(lambda: build(request.fields["num_heads"], request.fields["width"]))
        return Message({})

    def changed_state(self, request: Message) -> Message:
        """See `Observer`."""
        result, changed = self._observer(request).changed_state(
            problem_of(request), request.fields["device"], request.fields["seed"]
        )
        return result_message(result, changed=list(changed))

    def overwritten(self, request: Message) -> Message:
        """See `Observer`; the later problems came before, by requests of their own."""
        later, self.later = self.later, []
        written, shared = self._observer(request).overwritten(problem_of(request), later, request.fields["device"])
        return Message({"overwritten": written, "shared": list(shared)})

    def in_turn(self, request: Message) -> Message:
        """See `Observer`; the later problem came before, by a request of its own."""
        (later,), self.later = self.later, []
        result = self._observer(request).in_turn(problem_of(request), later, request.fields["device"])
        return Message({}) if result is None else result_message(result)

    def at_once(self, request: Message) -> Message:
        """See `Observer`; the later problem came before, by a request of its own."""
        (later,), self.later = self.later, []
        return result_message(self._observer(request).at_once(problem_of(request), later, request.fields["device"]))

    def peak(self, request: Message) -> Message:
        """See `Observer`."""
        given = request.fields
        growth = self._observer(request).peak(problem_of(request), given["device"], given["results"])
        return Message({"bytes": growth})

    def left_behind(self, request: Message) -> Message:
        """See `Observer`."""
        given = request.fields
        left = self._observer(request).left_behind(
            problem_of(request), given["device"], given["times"], given["suspicious"]
        )
        return Message({"bytes": left})

    def recorded_call(self, request: Message) -> Message:
        """See `discovery.recorded_call`."""
        from attention_conformance.implementations.discovery.auditor.recorded_call import recorded_call

        target, settings = self.given["target"], self.given["conventions"]
        premises = self.given.get("premises", ())
        call = recorded_call(target, settings, problem_of(request), request.fields["device"], premises)
        texts = {name: given for name, given in call.options.items() if isinstance(given, str)}
        arrays = {f"options.{name}": given for name, given in call.options.items() if not isinstance(given, str)}
        parts = {f"parts.{position}": array for position, array in call.parts.items()}
        fields = {"tensors": call.tensors, "several": call.several, "options": texts, "order": list(call.options)}
        return Message(fields, {**arrays, **parts})

    def program_fails(self, request: Message) -> Message:
        """Whether a program of the judge, which calls the candidate, ends with a failure."""
        from attention_conformance.implementations.discovery.auditor.recorded_call import program_fails

        return Message({"fails": program_fails(request.fields["program"])})

    def threads(self, request: Message) -> Message:
        """The threads that the candidate has started, and that still run."""
        running = [each.name for each in threading.enumerate() if each not in self.own_threads] + computing()
        return Message({"threads": [plain(name, LONGEST_NAME) for name in running]})

    def seed(self, request: Message) -> Message:
        """Starts every generator at a seed."""
        start_generators(request.fields["seed"])
        return Message({})

    def keep(self, request: Message) -> Message:
        """Keeps a problem for `overwritten`."""
        self.later.append(problem_of(request))
        return Message({})

    @property
    def _own(self) -> Implementation:
        assert self.implementation is not None
        return self.implementation

    def _way(self, given: Mapping[str, Any]) -> Callable[[Problem, str], Result]:
        """The run, alternative or mode that a request names."""
        if given.get("alternative"):
            return self._own.alternatives[given["alternative"]]
        if given.get("mode"):
            return self._own.modes[Feature(given["mode"])]
        return self._own.run

    def _observer(self, request: Message) -> LocalObserver:
        return LocalObserver(replace(self._own, run=self._way(request.fields)), self.before)


OPERATIONS: Mapping[str, Callable[[Worker, Message], Message]] = {
    "hello": Worker.hello,
    "fit": Worker.fit,
    "run": Worker.run,
    "call": Worker.call,
    "construct": Worker.construct,
    "changed_state": Worker.changed_state,
    "recorded_call": Worker.recorded_call,
    "program_fails": Worker.program_fails,
    "seed": Worker.seed,
    "keep": Worker.keep,
    "overwritten": Worker.overwritten,
    "in_turn": Worker.in_turn,
    "at_once": Worker.at_once,
    "peak": Worker.peak,
    "left_behind": Worker.left_behind,
    "threads": Worker.threads,
}
"""The requests by name."""


def _raised_as_read(error: Exception, before: Mapping[str, object]) -> str:
    """Whose exception it is: the candidate's, where a line of its own files was running, or its calls broke imports."""
    if place := place_of(error):
        return f"as it was read, it raised {error_line(error)} ({place})"
    if IMPORTS in before and process_state()[IMPORTS] != before[IMPORTS]:
        return f"a call of it has removed {IMPORTS}, which its process needs: {located_line(error)}"
    return (
        f"the suite could not read it: {located_line(error)}: it has changed what its process needs, "
        "or this is a defect of the suite: please report it"
    )


def main() -> None:
    """Answers requests until there are no more."""
    streams = own_streams()
    import_from_here()
    compute_on_one_thread()
    die_with_parent()
    end_first()
    served(streams, Worker(teller(streams[1].fileno())).answer)


def served(streams: tuple[BinaryIO, BinaryIO], answer: Callable[[Message], Message]) -> None:
    """Reads each request from the first stream, and writes the answer to the second."""
    requests, answers = streams
    own, tell, exit_now = OwnBuiltins(), os.write, os._exit
    try:
        while (request := read(requests)) is not None:
            answers.write(encoded(own.answered(answer, request), request.fields["number"]))
            answers.flush()
    except Exception as error:
        line = f"the candidate has changed what its process needs to answer: {error_line(error)}\n"
        try:
            tell(2, line.encode(errors="replace"))
        except OSError:
            exit_now(os.EX_IOERR)
        exit_now(1)


def encoded(answer: Message, number: int) -> bytes:
    """The bytes of an answer; of an error, where no message can hold the answer."""
    try:
        return encode(Message({**answer.fields, "number": number}, answer.arrays))
    except (WireError, MemoryError) as error:
        lines = {"error": f"returned what no message can hold: {error_line(error)}", "exception": ""}
        return encode(Message({**lines, "number": number}))


def own_streams() -> tuple[BinaryIO, BinaryIO]:
    """The streams of the protocol, after which nothing else reaches them by its usual number."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def import_from_here() -> None:
    """What is imported from now on is the candidate's: first from the current folder, as `python -m` does."""
    write_no_bytecode()
    sys.path.insert(0, os.getcwd())


def die_with_parent() -> None:
    """No process outlives the judge: neither this one nor those that it starts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        ctypes.CDLL(None).prctl(ADOPT, 1)


if __name__ == "__main__":
    main()
