"""Measures what each clause costs a kernel, and which known mistakes break it: what a budget orders clauses by.

`python -m attention_conformance.tests.measurements.clause_costs` writes tests/harness/run/plan/clause_costs.json.
"""

import json
from contextlib import suppress
from dataclasses import dataclass

from attention_conformance.implementations.api.contract import FUNCTIONS, MODES, Claims, Implementation, Result
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import claimed, clause_tests, dtypes_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.run.plan.budget import COSTS

TILE = 32
"""Queries and keys of a tile."""
BACKWARD = 3
"""So many times as long as the forward pass do both take."""


@dataclass
class Counter:
    """A candidate that counts the tiles of its calls, and gives no answer."""

    tiles: int = 0
    largest: int = 0

    def __call__(self, problem: Problem, device: str) -> Result:
        batch, heads, keys = problem.batch, problem.num_heads, problem.key.shape[-2]
        tiles = -(-problem.query.shape[-2] // TILE) * -(-keys // TILE)
        call = max(1, batch * heads * tiles) * (BACKWARD if problem.cotangent is not None else 1)
        self.tiles, self.largest = self.tiles + call, max(self.largest, call)
        raise CandidateError("it counts")


def tiles_of(clause: str) -> tuple[int, int]:
    """The tiles of all calls that a clause makes in its widest dtype, and of the largest, where all is claimed."""
    scope = load()[clause].scope or Scope.OP
    left_out = {Feature.CACHE, Feature.STATIC_CACHE, Feature.RING_CACHE} - load()[clause].features
    counter = Counter()
    left_out |= {*FUNCTIONS.values(), *MODES, Feature.ALTERNATIVES}
    claims = Claims(scope, frozenset(Feature) - left_out)
    judge = Judge(Implementation("counter", claims, counter), dtypes_of(clause_tests()[clause], claims)[0])
    if not claimed(load()[clause], claims):
        with suppress(Exception):  # what a test needs beyond answers is not counted
            clause_tests()[clause](judge)
            judge.settle()
    return counter.tiles, counter.largest


def main() -> None:
    broken = {clause: [d.id for d in catalogue() if clause in d.clauses] for clause in clause_tests()}
    rows = (f"{json.dumps(clause)}: {json.dumps([*tiles_of(clause), names])}" for clause, names in broken.items())
    COSTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"written: {COSTS.name}")


if __name__ == "__main__":
    main()
