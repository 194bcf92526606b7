"""The built-in functions of the worker: what a candidate changes of them is in force only while it is called."""

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import is_
from pathlib import Path

from attention_conformance.implementations.api.safe_call import error_line
from attention_conformance.implementations.worker.wire import Message

NAMES = vars(builtins)
OWN = dict(NAMES)
"""As they were when the worker started. Below, no built-in function is called by its name where it may be missing."""
HELD = tuple(OWN.values())
_all, _map, _Exception = all, map, Exception


def located_line(error: Exception) -> str:
    """What was raised, and the line of the worker's code, or of a library's, that did."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" ({Path(place.tb_frame.f_code.co_filename).name}, line {place.tb_lineno})" if place is not None else ""
    return f"{error_line(error)}{where}"


def _changed() -> dict[str, object]:
    return {name: NAMES.get(name) for name in OWN if NAMES.get(name) is not OWN[name]}


@dataclass
class OwnBuiltins:
    """What surrounds the answers of a worker.

    Attributes:
        theirs: the values of the candidate, by name.
    """

    theirs: dict[str, object] = field(default_factory=dict)

    def answered(self, answer: Callable[[Message], Message], request: Message) -> Message:
        """The answer to a request; where it is an error, with the names that differ.

        The worker's own code raises nothing, unless the candidate has changed what that relies on.
        """
        NAMES.update(self.theirs)
        try:
            given: Message | None = answer(request)
            error: Exception | None = None
        except _Exception as raised:
            given, error = None, raised
        self.theirs = {} if _all(_map(is_, NAMES.values(), HELD)) else _changed()
        NAMES.update(OWN)
        if error is not None:
            where = f"{located_line(error)}{self._named()}"
            return Message({"error": f"left its process unusable: {where}", "exception": ""})
        assert given is not None
        return self._with_names(given)

    def _with_names(self, given: Message) -> Message:
        if not self.theirs or not {"error", "unusable"} & given.fields.keys():
            return given
        texts = {name: f"{given.fields[name]}{self._named()}" for name in ("error", "unusable") if name in given.fields}
        return Message({**given.fields, **texts}, given.arrays)

    def _named(self) -> str:
        if not self.theirs:
            return ""
        return f"; the candidate has changed {', '.join(f'builtins.{name}' for name in sorted(self.theirs))}"
