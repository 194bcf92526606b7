"""The event log: one JSON object a line, each written at once, the last of which states whether the run is complete."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from attention_conformance.tests.report import model
from attention_conformance.tests.report.model import SCHEMA, Event, Run
from attention_conformance.tests.report.verdict import Verdict

FILE = "events.jsonl"
KINDS: Mapping[str, type[Event]] = {
    "opening": model.Opening,
    "verdict": Verdict,
    "verdicts-end": model.VerdictsEnd,
    "diagnosis": model.DiagnosisRecord,
    "observation": model.ObservationRecord,
    "failure": model.FailureRecord,
    "weights": model.WeightMap,
    "closing": model.Closing,
}
NAMES = {kind: name for name, kind in KINDS.items()}
LOST = "\N{REPLACEMENT CHARACTER}"
CUT = "the run was cut short"
UNEXPLAINED = "all verdicts are recorded, but the run was cut short while it explained the failures"


class LogError(ValueError):
    """A log that cannot be read; the message is one line with the number of the line."""


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[name])


def encode(event: Event) -> str:
    """An event as one line of JSON, from which `decode` makes an equal one.

    Half a character of UTF-16, which text of a candidate may hold and no file can, is replaced by a mark.
    """
    name = NAMES[type(event)]
    plain = {"event": name, **_adapter(name).dump_python(event, mode="json")}
    try:
        return pydantic_core.to_json(plain, inf_nan_mode="constants").decode()
    except pydantic_core.PydanticSerializationError:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def as_written(event: Event, line: str) -> Event:
    """The event as its line has it, so that a view of the run and a view of its log are equal."""
    return decode(line) if LOST in line else event


def decode(line: str) -> Event:
    """The event that a line holds.

    Raises:
        ValueError: it holds none; the message names the field.
    """
    data = pydantic_core.from_json(line)
    name = str(data.pop("event", None)) if isinstance(data, dict) else ""
    if name not in KINDS:
        raise ValueError(f"event is {name!r}; known are: {', '.join(KINDS)}")
    try:
        event: Event = _adapter(name).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the record"
        raise ValueError(f"{name}: {field}: {first['msg']}") from None
    return event


def replay(folder: Path) -> Run:
    """The run of a report's log. A log without an end is a run that is not complete.

    Raises:
        LogError: there is no log, or it is not one of this version.
    """
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LogError(f"{path} cannot be read ({reason}): give the folder of --report") from None
    return assembled(list(_events(path, lines)), path)


def _events(path: Path, lines: list[str]) -> Iterator[Event]:
    for number, line in enumerate(lines, start=1):
        try:
            yield decode(line)
        except ValueError as error:
            if number == len(lines) > 1 and not line.endswith("}"):
                return  # the process ended while it wrote
            raise LogError(f"{path}:{number}: {error}") from None


def assembled(events: list[Event], path: Path) -> Run:
    """The run of these events.

    Raises:
        LogError: the first one is not the opening of a log of this version.
    """
    first, last = (events[0], events[-1]) if events else (None, None)
    if not isinstance(first, model.Opening) or first.schema != SCHEMA:
        raise LogError(f"{path}:1: this is not the opening of a log of {SCHEMA}: run the suite again with --report")
    verdicts = [e for e in events if isinstance(e, Verdict)]
    judged = any(isinstance(e, model.VerdictsEnd) and not e.reason for e in events)
    unclosed = model.Closing(False, UNEXPLAINED if judged else CUT, len(verdicts), 0.0)
    return Run(
        opening=first,
        verdicts=verdicts,
        closing=last if isinstance(last, model.Closing) else unclosed,
        diagnoses={e.implementation: e.text for e in events if isinstance(e, model.DiagnosisRecord)},
        observed={e.implementation: e.answers for e in events if isinstance(e, model.ObservationRecord)},
        failures=[e for e in events if isinstance(e, model.FailureRecord)],
        weight_maps={e.implementation: e for e in events if isinstance(e, model.WeightMap)},
    )


def write_log(run: Run, folder: Path) -> None:
    """Writes the log of a run that is known as a whole.

    Raises:
        OSError: it cannot be written.
    """
    (folder / FILE).write_text("".join(f"{encode(event)}\n" for event in _records(run)), encoding="utf-8")


def _records(run: Run) -> Iterator[Event]:
    yield run.opening
    yield from run.verdicts
    yield model.VerdictsEnd(len(run.verdicts), run.closing.reason)
    yield from (model.DiagnosisRecord(*each) for each in run.diagnoses.items())
    yield from (model.ObservationRecord(*each) for each in run.observed.items())
    yield from run.failures
    yield from run.weight_maps.values()
    yield run.closing
