"""What a condition is: something that may be so about a call, and how a case is changed so that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.spec.features import NOTHING, Extension, Scope
from attention_conformance.spec.problem import Problem

Laid: TypeAlias = Callable[[Problem], Problem]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a candidate.

    Attributes:
        problem: as it was laid out in memory.
        mode: the feature or the alternative by which it was called; empty for the plain call.
        again: an earlier call had the same sizes and options.
    """

    problem: Problem
    mode: str = ""
    again: bool = False

    @property
    def key(self) -> object:
        """What is the same for calls of the same sizes and options."""
        return self.sizes, self.mask, self.problem.causal, self.extension, self.gradients, self.mode

    @property
    def extension(self) -> Extension:
        return self.problem.extension

    @cached_property
    def sizes(self) -> Sizes:
        p, heads, shared = self.problem, self.problem.num_heads, self.problem.num_kv_heads
        d_k, d_v = p.key.shape[-1], p.value.shape[-1]
        if p.scope is Scope.MODULE:
            d_k, d_v = (int(p.parameters[name].shape[1]) // max(shared, 1) for name in ("w_k", "w_v"))
        return Sizes(p.batch, heads, p.query.shape[-2], p.key.shape[-2], d_k, d_v, shared)

    @cached_property
    def mask(self) -> MaskKind:
        """As `Case.mask` has it."""
        mask = self.problem.attn_mask
        if mask is None:
            return MaskKind.NONE
        if mask.dtype.kind == "b":
            return MaskKind.BOOL
        return MaskKind.INFINITE if np.isneginf(mask).any() else MaskKind.FLOAT

    @cached_property
    def gradients(self) -> bool:
        return self.problem.cotangent is not None and bool(self.problem.needs)


@dataclass(frozen=True)
class Condition:
    """One of the closed list, or two of them together.

    Attributes:
        holds: whether a call fulfils it.
        changes: fields of a case, its sizes and its extension with which it does.
        laid: what is done to the problem of that case, to fulfil a condition that no case states.
        reports: of the 146 kinds of mistakes collected from public reports, how many are about it.
        of: the words of the two that it consists of; empty for one of the list.
    """

    words: str
    holds: Callable[[Call], bool]
    changes: Mapping[str, Any] = field(default_factory=dict)
    laid: Laid | None = None
    reports: int = 1
    of: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The words of the conditions of the list that it consists of."""
        return self.of or (self.words,)

    def fulfilled(self, call: Call) -> bool:
        """Whether a call fulfils it; False where its arrays do not go together, as the clauses on errors want it."""
        try:
            return self.holds(call)
        except (IndexError, ValueError):
            return False

    def made(self, case: Case) -> Case:
        """The case, changed so that its call should fulfil the condition."""
        return changed(case, self.changes)


def changed(case: Case, changes: Mapping[str, Any]) -> Case:
    """The case with fields of its own, of its sizes or of its extension replaced."""
    own = {name: value for name, value in changes.items() if hasattr(case, name)}
    sized = {name: value for name, value in changes.items() if hasattr(case.sizes, name)}
    extended = {name: value for name, value in changes.items() if hasattr(NOTHING, name)}
    return replace(case, **own).sized(**sized).extended(**extended)


def when(words: str, reports: int, holds: Callable[[Call], bool], **changes: Any) -> Condition:
    """A condition that the changes of a case fulfil."""
    return Condition(words, holds, changes, reports=reports)


def both(first: Condition, second: Condition) -> Condition:
    """Two conditions at once."""
    return Condition(
        f"{first.words}, and {second.words}",
        lambda call: first.fulfilled(call) and second.fulfilled(call),
        {**first.changes, **second.changes},
        reports=min(first.reports, second.reports),
        of=(first.words, second.words),
    )


def compatible(first: Condition, second: Condition) -> bool:
    """Whether no field has to be changed to two different values."""
    return all(second.changes.get(name, value) == value for name, value in first.changes.items())
