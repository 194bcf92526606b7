"""Measured: edits with one number, which is found on one failing case and has to hold in the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis
from attention_conformance.tests.harness.explain.diagnosis.edits import MEASURED, hypothesis, with_entry
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered
from attention_conformance.tests.harness.explain.stages.staged import STAGE

FACTORS = (-10.0, -3.0, -1.2, -0.6, -0.1, 0.0, 0.1, 0.4, 0.8, 0.99, 1.01, 1.3, 2.5, 6.0, 15.0)
LEVELS = (-1000.0, -300.0, -100.0, -30.0, -10.0, -3.0, -1.0, 0.3)
LOWERED = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 20000.0, 1e6)
HIDING = ("attention mask", "padding mask", "valid lengths", "causal triangle", "window", "documents")
STEPS = 60


@dataclass(frozen=True)
class Parameter:
    """A number that a mistake may have.

    Attributes:
        stage, entry: before which stage what is changed.
        words: what is wrong, with a place for the number.
        numbers: those between which it is looked for.
        factor: whether the entry is multiplied by it, or replaced.
    """

    stage: str
    entry: str
    words: str
    numbers: tuple[float, ...] = FACTORS
    factor: bool = True

    def hypothesis(self, number: float, claimed: Conventions) -> Hypothesis:
        """The mistake with this number."""
        stage = STAGE[self.stage]
        change: Callable[[Any], Any] = lambda value: value * number if self.factor else number  # noqa: E731
        return hypothesis(with_entry(stage, self.entry, self.words.format(number), change, MEASURED), claimed)


PARAMETERS = (
    Parameter("scale", "scores", "scores multiplied by {:.6g}"),
    Parameter("attention mask", "attn_mask", "mask multiplied by {:.6g}"),
    Parameter("ALiBi bias", "alibi_slopes", "slopes multiplied by {:.6g}"),
    Parameter("relative bias", "relative_bias", "table of biases multiplied by {:.6g}"),
    Parameter("sink", "sinks", "sinks multiplied by {:.6g}"),
    Parameter("softcap", "softcap", "softcap multiplied by {:.6g}"),
    Parameter("weighted sum", "scores", "weights multiplied by {:.6g}"),
    *(Parameter(stage, "hidden", f"{stage} puts {{:.6g}} in place of scores", LEVELS, False) for stage in HIDING),
    *(Parameter(stage, "dimmed", f"{stage} lowers scores by {{:.6g}}", LOWERED, False) for stage in HIDING),
)


def measured(each: Observation, claimed: Conventions) -> Iterator[Hypothesis]:
    """Edits whose number is measured so that the error, along its own direction, is the candidate's."""
    expected = each.expected["output"].value
    if each.got is None or each.got.output.shape != expected.shape:
        return
    problem, got = each.problem.forward_only(), each.got.output.astype(np.float64)
    with np.errstate(all="ignore"):
        towards = np.nan_to_num(got - expected, posinf=0.0, neginf=0.0)
    for parameter in PARAMETERS:

        def excess(number: float, of: Parameter = parameter) -> float:
            result, _ = answered(lambda: of.hypothesis(number, claimed).answer(problem))
            return np.nan if result is None else float((np.nan_to_num(result.output - got) * towards).sum())

        if parameter.hypothesis(0.0, claimed).affects(problem):
            yield from (parameter.hypothesis(number, claimed) for number in _roots(excess, parameter.numbers))


def _roots(of: Callable[[float], float], numbers: tuple[float, ...]) -> Iterator[float]:
    """Where a function is 0, between numbers at which it has different signs."""
    for (low, below), (high, above) in pairwise([(number, of(number)) for number in numbers]):
        if below * above < 0.0:
            yield _root(of, (low, below), (high, above))


def _root(of: Callable[[float], float], low: tuple[float, float], high: tuple[float, float]) -> float:
    """By the Illinois method: a secant whose end that stays counts half."""
    side = 0
    for _ in range(STEPS):
        x = (low[0] * high[1] - high[0] * low[1]) / (high[1] - low[1])
        y = of(x)
        if y == 0.0 or abs(high[0] - low[0]) <= 1e-15 * abs(x):
            return x
        if y * high[1] > 0.0:
            high = (x, y)
            low = (low[0], low[1] / 2.0) if side == -1 else low
            side = -1
        else:
            low = (x, y)
            high = (high[0], high[1] / 2.0) if side == 1 else high
            side = 1
    return x
