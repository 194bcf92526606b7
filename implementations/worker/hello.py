"""The hello of a worker: what it states of its candidate, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attention_conformance.implementations.api.contract import ExpectedFailure
from attention_conformance.spec.cases import from_data
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import DTYPES

PROTOCOL = 1
"""The version of the protocol."""
REQUESTS = (
    "fit",
    "construct",
    "changed_state",
    "seed",
    "overwritten",
    "in_turn",
    "at_once",
    "peak",
    "left_behind",
    "threads",
    "recorded_call",
    "program_fails",
)
"""The requests that a worker may do without. It answers `hello` and `run`, and `call` if it claims a function."""


class HelloError(ValueError):
    """A hello that cannot be used; the message is one line that names the field."""


@dataclass(frozen=True)
class ClaimsForm:
    """Claims as plain values; see `Claims`."""

    scope: Scope
    features: tuple[Feature, ...]
    dtypes: tuple[str, ...]
    conventions: Mapping[str, str] = field(default_factory=dict)
    premises: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Hello:
    """What a worker states of itself and of its candidate; docs/protocol.md has the fields.

    Attributes:
        memory: bytes that the candidate may allocate, if the worker has limited them.
        findings, as_seen, stated, documented, unclaimed, differing, exits: see `Implementation`.
    """

    protocol: int
    name: str
    claims: ClaimsForm
    about: str = ""
    language: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    expected_failures: tuple[ExpectedFailure, ...] = ()
    memory: int | None = None
    findings: Mapping[str, str] = field(default_factory=dict)
    as_seen: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    documented: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Hello:
        """The hello of these fields of an answer.

        Raises:
            HelloError: the version is another one, a field is missing or unknown, or has a value that cannot be.
        """
        given = {name: value for name, value in fields.items() if name != "number"}
        if given.get("protocol", PROTOCOL) != PROTOCOL:
            raise HelloError(f"hello.protocol is {given['protocol']!r}: this suite speaks version {PROTOCOL}")
        try:
            hello: Hello = from_data(cls, given, "hello")
            Conventions().claiming(hello.claims.conventions)
            Premises().assuming(hello.claims.premises)
        except ValueError as error:
            raise HelloError(str(error)) from None
        _require("requests", hello.requests, REQUESTS)
        _require("claims.dtypes", hello.claims.dtypes, tuple(DTYPES))
        if not hello.name.strip():
            raise HelloError("hello.name is empty: give the candidate one")
        if not {Feature.CORE, Feature.AS_BUILT} & {*hello.claims.features}:
            raise HelloError(f"hello.claims.features lacks {str(Feature.CORE)!r}, which every candidate claims")
        if not hello.claims.dtypes:
            raise HelloError(f"hello.claims.dtypes is empty; choose from: {', '.join(DTYPES)}")
        return hello


def _require(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for each in given:
        if each not in known:
            raise HelloError(f"hello.{name} cannot have {each!r}; choose from: {', '.join(known)}")
