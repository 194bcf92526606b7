"""Measures what the built-in implementations answer where the field disagrees: `make conventions` writes the page."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from attention_conformance.implementations.builtin import BUILTIN
from attention_conformance.tests.harness.judge.observed_conventions import DISAGREEMENTS, observations

PAGE = Path(__file__).parents[2] / "docs" / "conventions.md"
DIFFERS = "differs"


def main() -> int:
    torch.set_num_threads(1)
    found = {each.name: observations(each, DISAGREEMENTS) for each in BUILTIN}
    PAGE.write_text("\n".join(_page(found)) + "\n")
    print(f"written: {PAGE.name}")
    return 0


def _page(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "# Conventions as observed"
    yield ""
    yield "Written by `make conventions`. Each built-in implementation was asked what the table in"
    yield "[chapter 27](../spec/chapters/conventions.md) lists, whatever it claims: in all its dtypes, in short and"
    yield "long sequences, with and without gradients, and in each other way in which it can be called. An empty cell"
    yield "means that it cannot be asked; *differs* that the answers are not the same everywhere, as told below."
    yield ""
    yield from (f"{number}. {point.name}" for number, point in enumerate(DISAGREEMENTS, start=1))
    yield ""
    yield "| implementation | " + " | ".join(str(number) for number in range(1, len(DISAGREEMENTS) + 1)) + " |"
    yield "| --- |" + " --- |" * len(DISAGREEMENTS)
    for name, told in found.items():
        yield f"| {name} | " + " | ".join(_cell(told.get(point.name, "")) for point in DISAGREEMENTS) + " |"
    yield ""
    for name, told in found.items():
        yield from (f"- {name}, {point}: {answer}." for point, answer in told.items() if ";" in answer)


def _cell(answer: str) -> str:
    return f"*{DIFFERS}*" if ";" in answer else answer


if __name__ == "__main__":
    sys.exit(main())
