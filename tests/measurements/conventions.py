"""Observes the conventions of the built-in implementations: `make conventions` writes docs/conventions.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import torch

from attention_conformance.implementations.builtin import BUILTIN
from attention_conformance.tests.harness.judge.observed_conventions import DISAGREEMENTS, observations
from attention_conformance.tests.measurements.pages import table, write_page

DIFFERS = "differs"


def main() -> int:
    torch.set_num_threads(1)
    write_page("conventions.md", _page({each.name: observations(each, DISAGREEMENTS) for each in BUILTIN}))
    return 0


def _page(observed: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "# Conventions as observed"
    yield ""
    yield "Written by `make conventions`. The rows of the table in [chapter 27](../spec/chapters/conventions.md) are"
    yield "observed for each built-in implementation, whatever it claims: in all its dtypes, in short and long"
    yield "sequences, with and without gradients, and in each alternative way to call it. An empty cell means that the"
    yield "implementation does not support the call; *differs* that the results are not the same everywhere: see below"
    yield "the table."
    yield ""
    yield from (f"{number}. {point.name}" for number, point in enumerate(DISAGREEMENTS, start=1))
    yield ""
    yield from table(
        ("implementation", *(str(number) for number in range(1, len(DISAGREEMENTS) + 1))),
        ([name, *(_cell(of.get(point.name, "")) for point in DISAGREEMENTS)] for name, of in observed.items()),
    )
    yield ""
    for name, of in observed.items():
        yield from (f"- {name}, {point}: {answer}." for point, answer in of.items() if ";" in answer)


def _cell(answer: str) -> str:
    return f"*{DIFFERS}*" if ";" in answer else answer


if __name__ == "__main__":
    sys.exit(main())
