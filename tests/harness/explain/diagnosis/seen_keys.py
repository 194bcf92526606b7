"""Seen keys: which keys an answer depends on that are hidden from it, found by moving one key at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.expected import solve
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.masks import Booleans
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered
from attention_conformance.tests.harness.judge.relations import changed

CASES = 3
"""Failing cases that are looked at; at least two have to show the same."""
CALLS = 40
"""Keys of all samples of a case, at most, that are moved one by one."""
SHARE = 2.0**-7
"""Of the largest number of an answer: by so much, at least, rows change that a moved key reaches."""
OTHER_SAMPLES = "keys of other samples are seen"
HIDDEN = "keys that {} hides are seen"
BY_SAMPLES = "Let a query see the keys of its own sample alone."
BY_MASK = "Put minus infinity in place of the scores of hidden keys, before the softmax."


@dataclass(frozen=True)
class Dependence:
    """What an answer to one problem depends on.

    Attributes:
        seen: (B, Lq, B, Lk), True = the row of the query changes with the key of the second sample.
        allowed: (B, H, Lq, Lk), True = any head may see the key.
    """

    problem: Problem
    seen: Booleans
    allowed: Booleans

    @property
    def others(self) -> Booleans:
        """(B, Lq, B, Lk): pairs of different samples that are seen."""
        return self.seen & ~np.eye(len(self.seen), dtype=bool)[:, None, :, None]

    @property
    def wrong(self) -> Booleans:
        """(B, Lq, Lk): hidden keys of the own sample that are seen."""
        own = np.stack([self.seen[b, :, b] for b in range(len(self.seen))])
        return np.asarray(own & ~self.allowed.any(1))

    @property
    def before(self) -> Booleans:
        """(B, Lq, Lk): keys before one that the query may see; no causal triangle hides them."""
        later: Booleans = np.asarray(np.maximum.accumulate(np.asarray(self.allowed.any(1))[..., ::-1], -1))[..., ::-1]
        return np.concatenate([later[..., 1:], np.zeros_like(later[..., :1])], -1)


def seen_keys(implementation: Implementation, failing: Sequence[Observation], device: str) -> Diagnosis | None:
    """Which hidden keys reach the answers to all of the smallest failing cases; None where nothing hidden does."""
    small = sorted((each for each in failing if _usable(each.problem)), key=lambda each: each.problem.key.size)
    found = [each for each in (_dependence(implementation, own, device) for own in small[:CASES]) if each is not None]
    if len(found) < 2:
        return None
    if all(each.others.any() for each in found):
        row, query, sample, key = (int(n) for n in np.argwhere(found[0].others)[0])
        where = f"such as query {query} of sample {row}, which sees key {key} of sample {sample}"
        return _named(OTHER_SAMPLES, BY_SAMPLES, len(found), where)
    for noun, hides in HIDES.items():
        if all((each.wrong & hides(each)).any() for each in found):
            row, query, key = (int(n) for n in np.argwhere(found[0].wrong & hides(found[0]))[0])
            where = f"such as key {key}, which query {query} of sample {row} sees"
            return _named(HIDDEN.format(noun), BY_MASK, len(found), where)
    return None


def _named(name: str, repair: str, number: int, where: str) -> Diagnosis:
    return Diagnosis(f"{name}, {where}", number, number, repair=repair)


def _usable(problem: Problem) -> bool:
    keys = problem.key.shape[-2] * problem.batch
    return 0 < keys <= CALLS and bool(problem.query.size)


def _dependence(implementation: Implementation, each: Observation, device: str) -> Dependence | None:
    """On which keys the rows of the answer to an observed problem depend; None where a call raises."""
    problem = each.problem.forward_only()
    whole = _rows(implementation, problem, device)
    if whole is None:
        return None
    expected = _expected(problem, implementation.claims.conventions)
    size = float(np.abs(whole).max(initial=0.0))
    if whole.shape != expected.shape or not np.isfinite(whole).all() or size == 0.0:
        return None
    seen = np.zeros((*whole.shape[:2], problem.batch, problem.key.shape[-2]), dtype=bool)
    for sample in range(problem.batch):
        for key in range(problem.key.shape[-2]):
            moved = _rows(implementation, _moved(problem, sample, key), device)
            if moved is None or not np.isfinite(moved).all():
                return None
            seen[:, :, sample, key] = np.abs(moved - whole).max(-1) > SHARE * size
    if problem.sharing is Sharing.SELF:  # its own token is a query, too
        for token in range(seen.shape[1]):
            seen[:, token, :, token] = False
    return Dependence(problem, seen, np.asarray(allowed_keys(problem, implementation.claims.conventions)))


def _rows(implementation: Implementation, problem: Problem, device: str) -> Floats | None:
    """The output as (B, Lq, all numbers of a query)."""
    result, _ = answered(lambda: answer(implementation.run, problem.fresh(), device))
    return None if result is None else _by_query(result.output)


def _expected(problem: Problem, conventions: Conventions) -> Floats:
    return _by_query(solve(problem, conventions).parts["output"].value)


def _by_query(output: Array) -> Floats:
    wide = output.astype(np.float64)
    wide = wide.swapaxes(1, 2) if wide.ndim == 4 else wide
    return np.asarray(wide.reshape(*wide.shape[:2], -1))


def _moved(problem: Problem, sample: int, key: int) -> Problem:
    """The problem with another key and value there."""

    def move(array: Array) -> Array:
        array[sample, ..., key, :] = -2.0 * array[sample, ..., key, ::-1] + 1.0
        return array

    names = ("query",) if problem.sharing is Sharing.SELF else ("key", "value")
    return changed(problem, **dict.fromkeys(names, move))


def _padded(found: Dependence) -> Booleans:
    mask, shape = found.problem.key_padding_mask, found.before.shape
    return np.zeros(shape, bool) if mask is None else np.broadcast_to(~mask[:, None, :], shape)


def _short(found: Dependence) -> Booleans:
    lengths, shape = found.problem.valid_lens, found.before.shape
    if lengths is None:
        return np.zeros(shape, bool)
    lengths = lengths[:, None, None] if lengths.ndim == 1 else lengths[:, :, None]
    return np.broadcast_to(np.arange(shape[-1]) >= lengths, shape)


def _masked(found: Dependence) -> Booleans:
    mask, shape = found.problem.attn_mask, found.before.shape
    if mask is None:
        return np.zeros(shape, bool)
    hidden = ~mask if mask.dtype == bool else np.isneginf(mask.astype(np.float64))
    hidden = hidden.reshape(*[1] * (4 - hidden.ndim), *hidden.shape)
    return np.broadcast_to(hidden.all(1), shape)


def _others_hide(found: Dependence) -> Booleans:
    return ~(_padded(found) | _short(found) | _masked(found))


def _of_triangle(found: Dependence) -> Booleans:
    return ~found.before & found.problem.causal


HIDES: dict[str, Callable[[Dependence], Booleans]] = {
    "the padding mask": _padded,
    "a valid length": _short,
    "the attention mask": _masked,
    "the causal triangle": lambda found: _others_hide(found) & _of_triangle(found),
    "a window, or the end of a document,": lambda found: _others_hide(found) & ~_of_triangle(found),
}
"""What may hide a key, and where it does, (B, Lq, Lk); what the arrays of a problem do not hide, its options do."""
