"""Vectors: problems with expected answers in files, and the worker whose candidate is a folder of answers to them.

`python -m attention_conformance.implementations.worker.vectors VECTORS ANSWERS` speaks the protocol. docs/vectors.md
describes the files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.worker.hello import PROTOCOL
from attention_conformance.implementations.worker.wire import LENGTH, Message, WireError, decode, encode, read
from attention_conformance.spec.cases import Case

MODULE = "attention_conformance.implementations.worker.vectors"
FORMAT = "attention-conformance/vectors/1"
MANIFEST = "manifest.json"
SUFFIX = ".safetensors"
ROUTINE = ("request", "number", "device")
"""Fields of a request that are no part of its problem."""
DIGITS = 16
"""Of the name of a file: two problems of a set of a million have the same with a probability of 3e-8."""


class VectorError(ValueError):
    """A folder that is no set of vectors; the message is one line that names it."""


def name_of(message: Message) -> str:
    """The name of a problem's file, without suffix: a digest of its fields and arrays."""
    fields = {name: message.fields[name] for name in sorted(message.fields) if name not in ROUTINE}
    return sha256(encode(Message(fields, message.arrays))).hexdigest()[:DIGITS]


def file_bytes(message: Message) -> bytes:
    """A message as a file in the safetensors format."""
    return encode(message)[LENGTH:]


def numbers(case: Case) -> int:
    """At most so many elements has the largest array of a case, scores included."""
    s = case.sizes
    return s.batch * s.num_heads * max(s.query_length, s.key_length) * max(s.d_k, s.d_v, s.key_length)


def within(case: Case, largest: int) -> Case | Unsupported:
    """The case, or that it is too large for a set of vectors whose arrays have at most so many elements."""
    return case if numbers(case) <= largest else Unsupported(f"the vectors have no {numbers(case):,} elements")


@dataclass(frozen=True)
class VectorSet:
    """What the manifest of a set of vectors states.

    Attributes:
        claims: as a hello has them.
        clauses: the ids of those whose problems were written.
        largest: see `within`.
        names: of the files, without suffix.
        versions: of what wrote them, by name.
        source: whose cases they are, with expected answers of their own; empty: problems of this suite.
    """

    claims: Mapping[str, Any]
    clauses: tuple[str, ...]
    largest: int
    names: frozenset[str]
    versions: Mapping[str, str]
    source: str

    @classmethod
    def of(cls, folder: Path) -> VectorSet:
        """The set in a folder.

        Raises:
            VectorError: there is none, or it is of another version.
        """
        file = folder / MANIFEST
        try:
            given = json.loads(file.read_text(encoding="utf-8"))
            if given.get("format") != FORMAT:
                raise VectorError(f"{file} is of format {given.get('format')!r}, not {FORMAT!r}")
            names = frozenset(each["name"] for each in given["vectors"])
            clauses, source = tuple(given["clauses"]), given.get("source", "")
            return cls(given["claims"], clauses, given["largest"], names, given["versions"], source)
        except OSError as error:
            raise VectorError(f"{file} cannot be read ({error.strerror}): write vectors into {folder} first") from None
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise VectorError(f"{file} is no manifest of vectors: {type(error).__name__} {error}") from None


@dataclass(frozen=True)
class AnswerFiles:
    """A worker's candidate that looks up the answer to each problem."""

    vectors: VectorSet
    folder: Path

    def answer(self, request: Message) -> Message:
        """The answer to a request, without its number."""
        match request.fields["request"]:
            case "hello":
                about, name = f"answers in {self.folder.name}", self.folder.resolve().name
                claims = dict(self.vectors.claims)
                return Message(
                    {"protocol": PROTOCOL, "name": name, "about": about, "claims": claims, "requests": ["fit"]}
                )
            case "fit":
                case = within(Case.from_json(request.fields["case"]), self.vectors.largest)
                return Message({"case": case.to_json()} if isinstance(case, Case) else {"unsupported": case.reason})
            case "run":
                return self._looked_up(name_of(request))
            case other:
                return Message({"error": f"there is no request {other}", "exception": ""})

    def _looked_up(self, name: str) -> Message:
        file = self.folder / f"{name}{SUFFIX}"
        if name not in self.vectors.names:
            versions = ", ".join(f"{each} {version}" for each, version in self.vectors.versions.items())
            return _absent(f"its problem is not among the vectors, which {versions} wrote: write them anew, here")
        try:
            given = decode(file.read_bytes())
        except OSError as error:
            return _absent(f"{file.name} cannot be read ({error.strerror}): the answers are not complete")
        except WireError as error:
            return Message({"error": f"{file.name} is no answer: {error}", "exception": ""})
        refused = {name: str(given.fields[name]) for name in ("error", "exception") if name in given.fields}
        return Message({"exception": "", **refused}) if "error" in refused else Message({}, given.arrays)


def _absent(why: str) -> Message:
    """What is neither an answer nor a refusal: its verdict is an error."""
    return Message({"left_path": why, "error": why, "exception": ""})


def main(vectors: Path, answers: Path) -> None:
    """Answers requests from files until the input ends."""
    files = AnswerFiles(VectorSet.of(vectors), answers)
    while (request := read(sys.stdin.buffer)) is not None:
        answer = files.answer(request)
        fields = {**answer.fields, "number": request.fields["number"]}
        sys.stdout.buffer.write(encode(Message(fields, answer.arrays)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
