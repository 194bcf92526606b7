"""Right ways to merge the answers over splits: two at a time, from the last, as a ring of devices does, rounded."""

from collections.abc import Sequence
from functools import reduce
from math import log

import torch

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import State, Steps
from attention_conformance.spec.conventions import Conventions, LogBase
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.right.right import BOTH, op

CLAIMED = {Feature.KEY_SPLITS, Feature.SINKS}


def two_at_a_time(states: Sequence[State]) -> State:
    return reduce(lambda first, second: correct.merge([first, second]), states)


def from_the_last(states: Sequence[State]) -> State:
    return two_at_a_time(states[::-1])


def halves_of_halves(states: Sequence[State]) -> State:
    if len(states) < 3:
        return correct.merge(states)
    middle = len(states) // 2
    return correct.merge([halves_of_halves(states[:middle]), halves_of_halves(states[middle:])])


def by_powers_of_two(states: Sequence[State]) -> State:
    """Log-sum-exps to base 2, with the maximum taken off."""
    outputs, logs = torch.stack([x for x, _ in states], -1), torch.stack([x for _, x in states], -1) / log(2.0)
    top = logs.max(-1, keepdim=True).values
    shares = torch.exp2(logs - top.masked_fill(top == -torch.inf, 0.0))
    whole = shares.sum(-1)
    mixed = (outputs * shares[..., None, :]).sum(-1) / whole.masked_fill(whole == 0.0, 1.0)[..., None]
    return mixed, whole.log2() + top[..., 0]


def as_a_ring(states: Sequence[State]) -> State:
    """Each split moves the output towards its own by a logistic function of the difference of log-sum-exps."""

    def step(first: State, second: State) -> State:
        (output, lse), (other, log_of_other) = first, second
        nothing, all_new = log_of_other == -torch.inf, lse == -torch.inf
        share = torch.sigmoid(log_of_other - lse).masked_fill(all_new, 1.0).masked_fill(nothing, 0.0)
        moved = lse - torch.nn.functional.logsigmoid(lse - log_of_other)
        merged = torch.where(nothing, lse, torch.where(all_new, log_of_other, moved))
        return output - share[..., None] * (output - other), merged

    return reduce(step, states)


NO_GRADIENTS = {Feature.GRADIENTS, Feature.MASK_GRADIENT}
RIGHT = (
    op("two-at-a-time", Steps(merge=two_at_a_time).answer, CLAIMED, extras=BOTH),
    op("eager.two-at-a-time", Steps(wide=False, merge=two_at_a_time).answer, CLAIMED, extras=BOTH),
    op("eager.from-the-last", Steps(wide=False, merge=from_the_last).answer, CLAIMED, extras=BOTH),
    op("halves-of-halves", Steps(merge=halves_of_halves).answer, CLAIMED, extras=BOTH),
    op(
        "powers-of-two",
        Steps(merge=by_powers_of_two, log_sum_exp=lambda scores: correct.log_sum_exp(scores) / log(2.0)).answer,
        CLAIMED,
        without=NO_GRADIENTS,
        extras=BOTH,
        conventions=Conventions(log_sum_exp_base=LogBase.TWO),
    ),
    op("ring", Steps(merge=as_a_ring).answer, CLAIMED, without=NO_GRADIENTS, extras=BOTH),
    op("eager.ring", Steps(wide=False, merge=as_a_ring).answer, CLAIMED, without=NO_GRADIENTS, extras=BOTH),
)
