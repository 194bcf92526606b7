"""Held: steps of a backward pass that are forgotten for query, key or both, or that hold what they divide by."""

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from attention_conformance.tests.harness.explain.stages.backward import straight
from attention_conformance.tests.harness.explain.stages.staged import STAGES, Stage, State, normed

Slip = Mapping[Stage, Stage]
"""Stages, and what takes their place."""
EPSILONS = ("norm_epsilon", "late_epsilon")


def held() -> Iterator[tuple[str, str, Slip]]:
    """What is wrong, how it is repaired, and the stages that are other ones."""
    for epsilon in EPSILONS:
        norms = [stage for stage in STAGES if stage.needs == epsilon]
        for those in ([norms[0]], [norms[1]], norms):
            words = f"size in the {_together(those)} taken for a constant in the gradient"
            slip = {stage: normed(stage.reads[0], epsilon, Tensor.detach) for stage in those}
            yield words, "Differentiate the size by which rows are divided, too.", slip
    for needs in (*EPSILONS, "rotary_base", "rotary_cos"):
        pair = [stage for stage in STAGES if stage.needs == needs]
        words = _together(pair)
        yield f"{words} left out in the gradient", f"Differentiate the {words}, too.", {s: _forgotten(s) for s in pair}


def _together(stages: list[Stage]) -> str:
    """Such as "norm of the query and the key"."""
    first, *rest = (stage.name.partition(" of the ") for stage in stages)
    nouns = [each.partition(" ")[0] for _, _, each in (first, *rest)]
    return f"{first[0]} of the {' and the '.join(nouns)}{first[2].removeprefix(nouns[0])}"


def _forgotten(stage: Stage) -> Stage:
    return Stage(stage.name, _with_the_slope_of_its_input(stage), stage.reads, stage.needs)


def _with_the_slope_of_its_input(stage: Stage) -> Callable[[State], State]:
    def change(state: State) -> State:
        ((entry, right),) = stage.change(state).items()
        return {entry: straight(right, state[entry])}

    return change
