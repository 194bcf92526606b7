"""The built-in functions of the worker: what a candidate changes of them is in force only while it is called."""

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field

from attention_conformance.implementations.worker.wire import Message

NAMES = vars(builtins)
OWN = dict(NAMES)
"""As they were when the worker started. Below, no built-in function is called where one may be missing."""


@dataclass
class OwnBuiltins:
    """What surrounds the answers of a worker.

    Attributes:
        theirs: the values of the candidate, by name.
    """

    theirs: dict[str, object] = field(default_factory=dict)

    def answered(self, answer: Callable[[Message], Message], request: Message) -> Message:
        """The answer to a request; where it is an error, or there is none because of it, with the names that differ.

        Raises:
            Exception: of the worker, where no name differs.
        """
        NAMES.update(self.theirs)
        try:
            given: Message | None = answer(request)
            error: Exception | None = None
        except Exception as raised:
            given, error = None, raised
        self.theirs = {name: NAMES.get(name) for name in OWN if NAMES.get(name) is not OWN[name]}
        NAMES.update(OWN)
        if error is not None:
            if not self.theirs:
                raise error
            return Message({"error": f"left its process unusable{self._named()}", "exception": ""})
        assert given is not None
        return self._with_names(given)

    def _with_names(self, given: Message) -> Message:
        if not self.theirs or not {"error", "unusable"} & given.fields.keys():
            return given
        texts = {name: f"{given.fields[name]}{self._named()}" for name in ("error", "unusable") if name in given.fields}
        return Message({**given.fields, **texts}, given.arrays)

    def _named(self) -> str:
        return f"; the candidate has changed {', '.join(f'builtins.{name}' for name in sorted(self.theirs))}"
