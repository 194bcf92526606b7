"""Modes of a module of torch: being saved, loaded and copied, and what else a published interface promises."""

from collections.abc import Callable
from dataclasses import replace

from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.spec.cases import Layout
from attention_conformance.spec.features import Feature

STRIDED = tuple(replace(PLAIN, layout=layout) for layout in (Layout.TRANSPOSED, Layout.SLICED, Layout.OFFSET))


def promised_modes(modes: Callable[..., Modes], check: ClaimCheck) -> Modes:
    """What a module with the interface of torch.nn.MultiheadAttention can be put through, if it does not raise.

    Args:
        modes: `module_modes` of the module, without those that are wanted.
        check: its claims.
    """
    wanted = modes(Feature.SAVED, Feature.COPIED, Feature.UNBATCHED)
    return {mode: run for mode, run in wanted.items() if check.succeeds(run)}


def own_modes(modes: Callable[..., Modes], check: ClaimCheck) -> Modes:
    """What each module of torch inherits: it can be saved, loaded and copied, if that does not raise.

    Nothing promises that its parameters may lie anywhere in memory. It cannot be stored whole where it holds a function
    of its own, and not be copied where it keeps its last answer.
    """
    claimed: Modes = {}
    saved, copied = (modes(mode) for mode in (Feature.SAVED, Feature.COPIED))
    strided = STRIDED if Feature.VIEWS in check.claims else ()
    if all(check.succeeds(saved[Feature.SAVED], case) for case in strided):
        claimed |= saved
    for each in (copied, modes(Feature.COPIED, whole=False)):
        if check.succeeds(each[Feature.COPIED]):
            return _differentiable(claimed | each, check)
    return _differentiable(claimed, check)


def _differentiable(modes: Modes, check: ClaimCheck) -> Modes:
    gradients = Feature.GRADIENTS in check.claims
    return {mode: run for mode, run in modes.items() if check.succeeds(run, gradients=gradients)}
