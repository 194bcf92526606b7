"""Held: steps of a backward pass that are forgotten for query, key or both, or that hold what they divide by."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from attention_conformance.tests.harness.explain.stages.backward import straight
from attention_conformance.tests.harness.explain.stages.staged import STAGES, Stage, State, normed

Slip = Mapping[Stage, Stage]
"""Stages, and what takes their place."""
STEPS = {"norm_epsilon": "norm", "late_epsilon": "norm", "rotary_base": "rotation", "rotary_cos": "rotation by tables"}
"""What is done to the query and to the key, by the entry that it needs."""


def held() -> Iterator[tuple[str, str, Slip]]:
    """What is wrong, how it is repaired, and the stages that are other ones."""
    for epsilon in ("norm_epsilon", "late_epsilon"):
        query, key = (stage for stage in STAGES if stage.needs == epsilon)
        for those in ((query,), (key,), (query, key)):
            words = f"size in the norm of the {_inputs(those)} taken for a constant in the gradient"
            slip = {stage: normed(stage.reads[0], epsilon, Tensor.detach) for stage in those}
            yield words, "Differentiate the size by which rows are divided, too.", slip
    for needs, step in STEPS.items():
        pair = [stage for stage in STAGES if stage.needs == needs]
        words = f"{step} of the {_inputs(pair)}"
        yield f"{words} left out in the gradient", f"Differentiate the {words}, too.", {s: _forgotten(s) for s in pair}


def _inputs(stages: Sequence[Stage]) -> str:
    """Such as "query and the key"."""
    return " and the ".join(stage.reads[0] for stage in stages)


def _forgotten(stage: Stage) -> Stage:
    return Stage(stage.name, _with_the_slope_of_its_input(stage), stage.reads, stage.needs)


def _with_the_slope_of_its_input(stage: Stage) -> Callable[[State], State]:
    def change(state: State) -> State:
        ((entry, right),) = stage.change(state).items()
        return {entry: straight(right, state[entry])}

    return change
