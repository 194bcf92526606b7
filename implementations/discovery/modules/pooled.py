"""Pooled tokens: classes of unknown form that answer the same numbers of a sample, however many tokens it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, AsBuilt, Run, moved_at
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import documented_polarity, said_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.masked_samples import names_of_masks
from attention_conformance.implementations.discovery.modules.own_cache import parameters_of
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.problem import Array, Problem

POOLED = re.compile(
    r"\w*pool\w*|\w*latent\w*|nn\.Conv[12]d|self\.conv\w*|\bcls\w*|\[:, ?(?:-?1?:?|0|:1)(?=[\],])", re.IGNORECASE
)
"""What the text of such a class has for what it is: learned queries, and the first or last token."""
OF_LENGTHS = {"len", "lens", "length", "lengths"}
COUNTED = re.compile(r"\bnumbers? of\b|\b(?:valid|real) (?:frames|tokens|steps|time)\b", re.IGNORECASE)
"""Words for lengths that are counts, and no shares of the longest one."""
RECURRENT = ("lstm", "gru", "rnn", "mixer", "shift")
IN_ORDER, HIDDEN = "with its tokens in another order", "where its {} hides tokens"


@dataclass(frozen=True, eq=False)
class Pooled:
    """A module that pools; the axes of its answer are those of samples, and any others.

    Attributes:
        run: makes the module.
        call: answers (B, ...).
    """

    run: AsBuilt
    call: ModuleCall

    def rows(self, module: nn.Module, problem: Problem, x: Array, mask: Array | None = None, name: str = "") -> Array:
        """Its answer, (B, 1, n), for these inputs, with a mask by this name."""
        given = problem.with_arrays({each: np.ascontiguousarray(x) for each in INPUTS})
        masks = {} if mask is None else {name: torch.from_numpy(mask.copy())}
        call = replace(self.call, always={**self.call.always, **masks})
        with torch.no_grad():
            return to_array(output_of(call(module, tensors(given, "cpu"), given))).reshape(len(x), 1, -1)

    def pools(self, problem: Problem) -> bool:
        """Whether it answers as many numbers where there is a token less; True where it takes no other number."""
        module = self.run.module(problem, "cpu")
        whole = self.rows(module, problem, problem.query)
        fewer = safe_call(partial(self.rows, module, problem, problem.query[:, 1:])).value
        return whole[0].size != problem.query[0].size and (fewer is None or fewer.shape == whole.shape)


@dataclass(frozen=True, eq=False)
class Unordered:
    """One in which the order of tokens cannot matter, but for what is the first and the last."""

    pooled: Pooled

    def __call__(self, problem: Problem, device: str) -> Result:
        """The answer; its `others` are that of the tokens between the first and the last in another order."""
        module, x = self.pooled.run.module(problem, device), problem.query
        order = [0, *np.roll(np.arange(1, x.shape[1] - 1)[::-1], 1), x.shape[1] - 1]
        whole, moved = (self.pooled.rows(module, problem, each) for each in (x, x[:, order]))
        return Result(whole, others={"moved": Result(moved)})


@dataclass(frozen=True, eq=False)
class Hidden:
    """One whose mask or lengths hide tokens, never the first; a mask never the last.

    Attributes:
        pooled: the module.
        name: of the mask, (B, L), or of the lengths, (B,).
        seen: what stands in a mask for tokens that are seen; None: these are lengths.
        unordered: whether it does not matter where the others are.
    """

    pooled: Pooled
    name: str
    seen: bool | None
    unordered: bool

    def __call__(self, problem: Problem, device: str) -> Result:
        """The answer; its `others` are those with other tokens where they are hidden, or without these."""
        module, x = self.pooled.run.module(problem, device), problem.query
        hidden, other = self._hidden(x), x
        for token in range(x.shape[1]):
            other = np.where((hidden & (np.arange(x.shape[1]) == token))[..., None], moved_at(x, token), other)
        mask = (~hidden).sum(1) if self.seen is None else ~hidden if self.seen else hidden
        whole, moved = (self.pooled.rows(module, problem, each, mask, self.name) for each in (x, other))
        others = {"with other tokens there": Result(moved)}
        if self.unordered:
            alone = [self.pooled.rows(module, problem, x[n : n + 1, ~hidden[n]]) for n in range(len(x))]
            others["as where they are left out"] = Result(np.concatenate(alone))
        return Result(whole, others=others)

    def _hidden(self, x: Array) -> Array:
        tokens = np.arange(x.shape[1])
        if self.seen is None:
            behind: Array = np.less_equal(x.shape[1] - np.arange(len(x))[:, None] % x.shape[1], tokens)
            return behind
        hidden = np.equal((tokens + np.arange(len(x))[:, None]) % 3, 1)
        first_or_last = np.isin(tokens, (0, x.shape[1] - 1))
        return np.where(first_or_last, False, hidden)


def pooled_tokens(
    make: Constructor, run: AsBuilt, call: ModuleCall, text: str, ordered: re.Pattern[str], problem: Problem
) -> Mapping[str, Run]:
    """What can be looked at of a module that pools, by a text for messages."""
    pooled = Pooled(run, call)
    if not safe_call(partial(pooled.pools, problem)).value:
        return {}
    module = run.module(problem, "cpu")
    tokens = problem.query.shape[1]
    fixed = any({tokens, tokens + 1} & {*each.shape} for each in module.parameters())
    unordered = not (fixed or _of_neighbours(module) or ordered.search(POOLED.sub("", text)))
    found: dict[str, Run] = {IN_ORDER: Unordered(pooled)} if unordered else {}
    for name in () if call.spatial else names_of_masks(make):
        runs = _hiding(make, pooled, name, unordered, problem)
        found |= {HIDDEN.format(repr(name)): each for each in runs[:1]}
    for name in () if call.spatial else _lengths(make.kind):
        counts = Hidden(pooled, name, None, unordered)
        found |= {HIDDEN.format(repr(name)): each for each in _answered(iter([counts]), problem, stated=True)}
    return found


def _lengths(kind: object) -> Iterator[str]:
    """The parameters of its forward that are lengths of samples, as their names and its text state."""
    for name in (parameter.name for parameter in parameters_of(kind)):
        if words_of(name) & OF_LENGTHS and any(map(COUNTED.search, said_of(kind, name))):
            yield name


def _hiding(make: Constructor, pooled: Pooled, name: str, unordered: bool, problem: Problem) -> Sequence[Hidden]:
    """The meaning of a mask that is documented, or else those of which one is seen to hold."""
    stated = documented_polarity(make.kind, name)
    every = (True, False) if stated is None else (stated is Polarity.MAY_ATTEND,)
    return [*_answered((Hidden(pooled, name, each, unordered) for each in every), problem, stated is not None)]


def _answered(runs: Iterator[Hidden], problem: Problem, stated: bool) -> Iterator[Hidden]:
    for run in runs:
        result = safe_call(partial(run, problem.fresh(), "cpu")).value
        if result is not None and np.isfinite(result.output).all() and (stated or _holds(result)):
            yield run


def _holds(result: Result) -> bool:
    near = ROUNDINGS * np.abs(result.output).max()
    return all(bool(np.abs(each.output - result.output).max() <= near) for each in result.others.values())


def _of_neighbours(module: nn.Module) -> bool:
    """Whether a part of it may know which tokens stand next to each other."""
    parts = [*module.modules()]
    wide = any(extent > 1 for part in parts for extent in np.ravel(getattr(part, "kernel_size", 1)))
    return wide or any(word in type(part).__name__.lower() for part in parts for word in RECURRENT)
