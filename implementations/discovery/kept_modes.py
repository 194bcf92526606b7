"""Modes of a module of torch: being saved, loaded and copied, and what else a published interface promises."""

from collections.abc import Callable
from dataclasses import replace

from attention_conformance.implementations.adapters.modes import Modes, Run
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.spec.cases import Layout
from attention_conformance.spec.features import Feature

STRIDED = tuple(replace(PLAIN, layout=layout) for layout in (Layout.TRANSPOSED, Layout.SLICED, Layout.OFFSET))


def promised_modes(modes: Callable[..., Modes], check: ClaimCheck) -> tuple[Modes, list[str]]:
    """What a module with the interface of torch.nn.MultiheadAttention can be put through, and a note on what raises.

    Args:
        modes: `module_modes` of the module, without those that are wanted.
        check: its claims.
    """
    wanted = modes(Feature.SAVED, Feature.COPIED, Feature.UNBATCHED)
    return _without_raising(wanted, check.error_of)


def own_modes(modes: Callable[..., Modes], check: ClaimCheck) -> tuple[Modes, list[str]]:
    """What each module of torch inherits: it can be saved, loaded and copied; and a note on what raises.

    Nothing promises that its parameters may lie anywhere in memory. It cannot be stored whole where it holds a function
    of its own, and not be copied where it keeps its last answer.
    """
    gradients = Feature.GRADIENTS in check.claims

    def error_of(run: Run) -> str:
        return check.error_of(run) or (check.error_of(run, gradients=True) if gradients else "")

    saved, copied = (modes(mode) for mode in (Feature.SAVED, Feature.COPIED))
    if error_of(copied[Feature.COPIED]):
        copied = modes(Feature.COPIED, whole=False)
    claimed, notes = _without_raising(saved | copied, error_of)
    if Feature.SAVED in claimed and Feature.VIEWS in check.claims:
        errors = (check.error_of(saved[Feature.SAVED], case) for case in STRIDED)
        if error := next(filter(None, errors), ""):
            notes = [*notes, f"saved not claimed: its parameters have to lie in one piece: {error}"]
            claimed = {mode: run for mode, run in claimed.items() if mode is not Feature.SAVED}
    return claimed, notes


def _without_raising(wanted: Modes, error_of: Callable[[Run], str]) -> tuple[Modes, list[str]]:
    errors = {mode: error_of(run) for mode, run in wanted.items()}
    notes = [f"{mode} not claimed: {error}" for mode, error in errors.items() if error]
    return {mode: run for mode, run in wanted.items() if not errors[mode]}, notes
