"""Norms of queries and keys: where one of both changes the answer, the other one of the same name does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.adapters.as_built import AsBuilt, Call
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.spec.problem import Problem

OF_QUERY = re.compile(r"(?<![a-z])(q|query)(?![a-z])")
"""What the name of a norm of queries has, where that of keys has another word."""
OF_KEY = {"q": "k", "query": "key"}
NORMS = ("norm", "ln")
"""In the names of norms."""


@dataclass(frozen=True, eq=False)
class TwinNorms:
    """A module with gains of norms that come in pairs.

    Attributes:
        run: of the module.
        pairs: the paths of both gains, those of queries first.
    """

    run: AsBuilt
    pairs: tuple[tuple[str, str], ...]

    def __call__(self, problem: Problem, device: str) -> Result:
        """For each pair whether one of both changes the answer, (1, pairs, 2); its `others` are what each does."""
        idle = self.run.without_effect(problem, device)
        seen = np.array([[path not in idle for path in pair] for pair in self.pairs])
        either = np.broadcast_to(seen.any(-1, keepdims=True), seen.shape)
        whole, found = (each.astype(np.float64)[None] for each in (either, seen))
        return Result(whole, others={"the other one of its name, too": Result(found)})


def twin_norms(make: Constructor, call: Call, problem: Problem) -> TwinNorms | None:
    """The class with the norms in place that it has in pairs; None where it has none, or cannot be built with them."""
    whole = replace(make, held={}, left_out=(), norms=None)
    run = AsBuilt(partial(built_for, whole, True), call)
    module = safe_call(partial(run.build, problem)).value
    pairs = () if module is None else tuple(_pairs([path for path, _ in module.named_parameters()]))
    return TwinNorms(run, pairs) if pairs else None


def _pairs(paths: list[str]) -> Iterator[tuple[str, str]]:
    """A bias is none: that of keys changes all scores of a query by one number, and so no weight."""
    for path in paths:
        owner, _, last = path.rpartition(".")
        name = owner.rpartition(".")[2]
        other = OF_QUERY.sub(lambda found: OF_KEY[found[1]], name, count=1)
        twin = f"{owner[: len(owner) - len(name)]}{other}.{last}"
        if last != "bias" and other != name and twin in paths and any(word in name for word in NORMS):
            yield path, twin
