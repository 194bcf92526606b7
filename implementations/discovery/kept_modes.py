"""Modes: what a function or module of torch goes through whoever wrote it, and what a published interface promises."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from attention_conformance.implementations.adapters.modes import Modes, Run
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, Layout, Padding
from attention_conformance.spec.features import Feature

STRIDED = tuple(replace(PLAIN, layout=layout) for layout in (Layout.TRANSPOSED, Layout.SLICED, Layout.OFFSET))

KINDS = {Feature.CORE: Case(), Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}
"""The plain case, and masks."""
OTHERS = {
    Feature.KEY_PADDING: replace(PLAIN, padding=Padding.RIGHT),
    Feature.VALID_LENS: replace(PLAIN, padding=Padding.LENGTHS),
    Feature.CAUSAL: replace(PLAIN, causal=True),
}
"""What else hides keys: by indices, perhaps, which vmap knows nothing of."""
LANES = {feature: case.sized(batch=6) for feature, case in {**KINDS, **OTHERS}.items()}
"""As many samples as `modules.vmap` takes apart, so that several are left in each lane."""


def promised_modes(modes: Callable[..., Modes], check: ClaimCheck) -> tuple[Modes, list[str]]:
    """What a module with the interface of torch.nn.MultiheadAttention can be put through, and a note on what raises.

    Args:
        modes: `module_modes` of the module, without those that are wanted.
        check: its claims.
    """
    promised, notes = _without_raising(modes(Feature.SAVED, Feature.COPIED, Feature.UNBATCHED), check.error_of)
    return promised | _without_raising(modes(Feature.AUTOCAST), partial(_any_error, check))[0], notes


def function_modes(modes: Callable[..., Modes], check: ClaimCheck) -> Modes:
    """Autocast, vmap and the gradient of a log-sum-exp that has one, if nothing raises in them: no name promises these.

    Args:
        modes: `op_modes` of the function, without those that are wanted.
        check: its claims.
    """
    kept = _without_raising(modes(Feature.AUTOCAST), partial(_any_error, check))[0]
    kept |= _without_raising(modes(Feature.VMAP), partial(_any_error, check, kinds=LANES))[0]
    logs = {Feature.LOG_SUM_EXP, Feature.GRADIENTS} <= check.claims.features
    wanted = modes(Feature.LOG_SUM_EXP_GRADIENT) if logs else {}
    return kept | _without_raising(wanted, partial(check.error_of, gradients=True))[0]


def own_modes(modes: Callable[..., Modes], check: ClaimCheck) -> tuple[Modes, list[str]]:
    """What each module of torch inherits: being saved, loaded, copied, called in autocast; a note on what raises.

    Nothing promises that its parameters may lie anywhere in memory. It cannot be stored whole where it holds a function
    of its own, and not be copied where it keeps its last answer.
    """
    error_of = partial(_any_error, check)
    saved = modes(Feature.SAVED)
    claimed, notes = _without_raising(saved, error_of)
    copied, why = _without_raising(modes(Feature.COPIED), error_of)
    if why:
        copied, why = _without_raising(modes(Feature.COPIED, whole=False), error_of)
    claimed, notes = claimed | copied, [*notes, *why]
    if Feature.SAVED in claimed and Feature.VIEWS in check.claims:
        errors = (check.error_of(saved[Feature.SAVED], case) for case in STRIDED)
        if error := next(filter(None, errors), ""):
            notes = [*notes, unclaimed("saved", f"its parameters have to lie in one piece: {error}")]
            claimed = {mode: run for mode, run in claimed.items() if mode is not Feature.SAVED}
    return claimed | _without_raising(modes(Feature.AUTOCAST), error_of)[0], notes


def _any_error(check: ClaimCheck, run: Run, kinds: Mapping[Feature, Case] = KINDS) -> str:
    """What it raises in a plain call, with gradients, of small odd sizes, or with a mask; each where it is claimed."""
    cases = [case for feature, case in kinds.items() if feature in check.claims]
    gradients = Feature.GRADIENTS in check.claims
    errors = (check.error_of(run, case) for case in cases)
    return check.error_of(run, gradients=gradients) or next(filter(None, errors), "")


def _without_raising(wanted: Modes, error_of: Callable[[Run], str]) -> tuple[Modes, list[str]]:
    errors = {mode: error_of(run) for mode, run in wanted.items()}
    notes = [unclaimed(mode, error) for mode, error in errors.items() if error]
    return {mode: run for mode, run in wanted.items() if not errors[mode]}, notes
