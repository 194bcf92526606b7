"""Observes the conventions of the built-in implementations: `make conventions` writes docs/conventions.md."""

import sys

import torch

from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.tests.harness.judge.observed_conventions import DISAGREEMENTS, observations
from attention_conformance.tests.measurements.pages import write_page

DIFFERENT = ";"
"""Between the results of a convention that are not the same everywhere."""


def main() -> int:
    torch.set_num_threads(1)
    observed = {each.name: observations(each, DISAGREEMENTS) for each in BUILTIN}
    names = [each.name for each in DISAGREEMENTS]
    answers = ((name, convention, answer) for name, of in observed.items() for convention, answer in of.items())
    write_page(
        "conventions.md",
        names=names,
        numbers=[str(number) for number in range(1, len(names) + 1)],
        rows=[
            [name, *("*differs*" if DIFFERENT in of.get(each, "") else of.get(each, "") for each in names)]
            for name, of in observed.items()
        ],
        different=[each for each in answers if DIFFERENT in each[2]],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
