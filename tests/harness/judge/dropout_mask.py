"""Which weights a call has dropped, read from its output, and whether chance alone explains the choice."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions, DefaultScale, DropoutSharing
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.judge import Judge

Booleans: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]

CHANCE = 1e-15
"""A check that leaves something to chance accuses a right implementation with this probability at most."""


@dataclass(frozen=True, eq=False)
class DropoutAnswer:
    """An answer under dropout to a case whose values repeat the identity.

    Attributes:
        weights: (B, H, Lq, Lk), those of the reference, before dropout.
        seen: (B, H, Lq, Lk), True = a right answer shows such a weight, which is no 0 in its dtype.
        copies: (B, H, Lq, copies, Lk) weights after dropout, once for each copy of the identity.
    """

    problem: Problem
    result: Result
    weights: Floats
    seen: Booleans
    copies: Array

    @property
    def first(self) -> Floats:
        """(B, H, Lq, Lk): the weights after dropout as the first copy shows them."""
        return self.copies[..., 0, :].astype(np.float64)

    @property
    def dropout_mask(self) -> Booleans:
        """(B, H, queries, Lk), True = not dropped; of those queries that see every key, whatever is always hidden."""
        whole = self.seen.all((0, 1, 3))
        return np.asarray(self.first != 0.0)[:, :, whole]

    @property
    def factors(self) -> str:
        """The factors of the weights that are not dropped, in words."""
        some = (self.first != 0.0) & (self.weights > 0.0)
        if not some.any():
            return "every weight is dropped"
        ratios = self.first[some] / self.weights[some]
        factors = f"{ratios.min():.3g} to {ratios.max():.3g}, expected {self._factor:.3g}"
        return f"weights that are not dropped are multiplied by {factors}"

    def expected(self, judge: Judge) -> dict[str, Expected]:
        """What the reference answers when it drops the same weights, part by part.

        A weight counts as not dropped if more than half of its expected value shows.
        """
        factors = np.where(self.first > 0.5 * self._factor * self.weights, self._factor, 0.0)
        return dict(solve(self.problem, judge.conventions, factors, returned=judge.returned).parts)

    @property
    def _factor(self) -> float:
        """The factor of a weight that is not dropped."""
        rate = self.problem.extension.dropout
        return 1.0 / (1.0 - rate) if rate < 1.0 else 0.0


def dropout_answers(judge: Judge, *cases: Case, gradients: bool = False) -> Iterator[tuple[Case, DropoutAnswer]]:
    """The cases that the claims allow, with the candidate's answers; it is noted why one cannot be read."""
    for case in shown_cases(judge, *cases):
        if (answer := dropout_answer(judge, case, gradients)) is not None:
            yield case, answer


def shown_cases(judge: Judge, *cases: Case) -> Iterator[Case]:
    """The cases that the claims allow, with scores of the same size whatever scale is claimed.

    Without a scale they would be so far apart that most weights are 0 in half types.
    """
    for case in judge.cases(*cases):
        usual = case.sizes.d_k**-0.5
        default = 1.0 if judge.conventions.default_scale is DefaultScale.ONE else usual
        scale = abs(default if case.scale is None else case.scale)
        yield replace(case, score_std=case.score_std * usual / scale) if scale > usual else case


def dropout_answer(judge: Judge, case: Case, gradients: bool = False) -> DropoutAnswer | None:
    """The candidate's answer to a case; None after noting why the dropped weights cannot be read."""
    problem = judge.problem(case) if gradients else judge.problem(case).forward_only()
    if case.sizes.d_v < case.sizes.key_length:
        judge.unsupported.append("its values are too narrow to show every weight")
        return None
    result, expected = judge.answer(case, problem), judge.expected(case, also=("weights",))
    if result is None or not judge.fits(case, result, expected["output"].value.shape):
        return None
    weights = expected["weights"]
    seen = weights.value > weights.bound
    return DropoutAnswer(problem, result, weights.value, seen, by_key(problem, result.output))


def by_key(problem: Problem, output: Array) -> Array:
    """(B, H, Lq, copies, Lk): the components of an output, or of what is shaped so, as V repeats the identity."""
    keys, width = problem.key.shape[-2], output.shape[-1]
    if problem.scope is Scope.MODULE:
        batch, length, _ = output.shape
        width = problem.parameters["w_v"].shape[1] // problem.num_kv_heads
        merged = output[..., : problem.num_heads * width]
        output = merged.reshape(batch, length, problem.num_heads, width).swapaxes(1, 2)
    copies = width // keys
    return output[..., : copies * keys].reshape(*output.shape[:3], copies, keys)


def counted(judge: Judge, answer: DropoutAnswer) -> Booleans | None:
    """The choices that are independent as claimed; None after noting that there is no query that sees every key."""
    if answer.dropout_mask.shape[2]:
        return own_choices(answer.dropout_mask, judge.conventions)
    judge.unsupported.append("no query sees every key")
    return None


def own_choices(mask: Booleans, claimed: Conventions) -> Booleans:
    """(B or 1, H or 1, Lq, Lk): the choices that are independent as claimed, one for all that share it."""
    samples = 1 if claimed.dropout_sharing in (DropoutSharing.SAMPLES, DropoutSharing.BOTH) else None
    heads = 1 if claimed.dropout_sharing in (DropoutSharing.HEADS, DropoutSharing.BOTH) else None
    return mask[:samples, :heads]


def likely_share(kept: Booleans, keeping: float) -> bool:
    """Whether chance explains how many of n weights are kept, where each is kept with this probability.

    By Chernoff's bound n D(share || keeping) exceeds ln(2 / CHANCE) with the probability CHANCE at most.
    """
    share = float(kept.mean())
    terms = ((share, keeping), (1.0 - share, 1.0 - keeping))
    divergence = sum(p * log(p / q) for p, q in terms if p > 0.0)
    return kept.size * divergence <= log(2.0 / CHANCE)


def repetition(kept: Booleans) -> int:
    """The distance at which choices of probability 1/2, in their order, repeat or avoid themselves; 0 if at none."""
    beyond = _agreement(kept, kept)[1:]
    return int(np.argmax(beyond)) + 1 if beyond.max(initial=0.0) > 1.0 else 0


def relation(first: Booleans, second: Booleans) -> int | None:
    """The distance at which one of two such choices repeats or avoids the other; None if there is none."""
    beyond = np.maximum(_agreement(first, second), _agreement(second, first))
    return int(np.argmax(beyond)) if beyond.max() > 1.0 else None


def _agreement(first: Booleans, second: Booleans) -> Floats:
    """(n,): the agreement of n choices with others at each distance, in units of what chance allows.

    The n - l products of fair coins of +1 and -1 with others at a distance of l are fair coins themselves. By
    Hoeffding's bound their sum exceeds sqrt(2 (n - l) ln(2 n / CHANCE)) with the probability CHANCE / n at most.
    """
    coins = [np.where(each.ravel(), 1.0, -1.0) for each in (first, second)]
    count = coins[0].size
    one, other = (np.fft.rfft(each, 2 * count) for each in coins)
    sums = np.fft.irfft(one.conj() * other, 2 * count)[:count]
    return np.asarray(np.abs(sums) / np.sqrt(2.0 * np.arange(count, 0, -1) * log(2.0 * count / CHANCE)))
