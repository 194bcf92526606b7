"""The implementation of a function that is called in one way, with the other ways in which it may be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attention_conformance.implementations.adapters.jax_programs import Compiled
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.documented import (
    as_written,
    states_integers,
    states_masks_of_samples,
)
from attention_conformance.implementations.discovery.extras import EXTRA_FEATURES, Chosen, Extra
from attention_conformance.implementations.discovery.functions.block_sizes import in_splits
from attention_conformance.implementations.discovery.functions.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.functions.function_masks import with_masks_of_samples
from attention_conformance.implementations.discovery.functions.kept_weights import in_halves
from attention_conformance.implementations.discovery.functions.layer_numbers import in_other_layers
from attention_conformance.implementations.discovery.functions.prefix_numbers import with_prefixes
from attention_conformance.implementations.discovery.functions.served import Served
from attention_conformance.implementations.discovery.functions.sink_tokens import with_all_sinks
from attention_conformance.implementations.discovery.functions.three_axes import with_three_axes
from attention_conformance.implementations.discovery.shipped.shipped import ShippedCall, as_shipped
from attention_conformance.implementations.discovery.shipped.shipped_others import ONE_NUMBER, interfaces, why_missing
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.adapters.modes import Modes

EVEN_WINDOW = PLAIN.extended(window_left=2, window_right=2)


def implementation_of(
    name: str,
    check: ClaimCheck,
    kind: ArrayKind,
    claims: Claims,
    extras: tuple[Extra, ...],
    other_ways: Mapping[str, Callable[..., object]],
) -> Implementation:
    """The implementation that is called so, with every other way in which it may be called as well.

    `other_ways`: those in smaller blocks than usual, and with numbers in other parameters, by names for messages.
    """
    assert isinstance(check.function, RenamedCall)
    positions, names = tuple(e.position for e in extras), tuple(e.name for e in extras)
    written = as_written(whole := check.function.function)
    how: dict[str, Any] = {"extras": names, "polarity": claims.conventions.bool_mask}
    make = partial(kind.maker, **how)
    chosen = Chosen(check.function, positions)
    alternatives = {alternative: make(chosen, **keywords) for alternative, keywords in kind.alternatives.items()}
    alternatives["with its defaults spelled out"] = make(Chosen(check.function.with_defaults(), positions))
    own = check.function.options.spelled.get("bool_mask") or check.function.options.spelled.get("key_padding_mask", "")
    if own and not check.function.true_as and states_integers(written, own):
        alternatives["with its masks as integers"] = make(Chosen(replace(check.function, integers=True), positions))
    if own and states_masks_of_samples(written, own):
        alternatives |= {way: make(Chosen(other, positions)) for way, other in with_masks_of_samples(check).items()}
    if not as_shipped(whole, interfaces()):
        own_ways = {**other_ways} | in_splits(check, whole) | with_three_axes(check, written)
        own_ways |= in_halves(check, whole) | with_all_sinks(check, whole) | in_other_layers(check, whole)
        alternatives |= {way: make(Chosen(other, positions)) for way, other in own_ways.items()}
        prefixes = with_prefixes(check, whole)
        alternatives |= {way: make(Chosen(other), extras=()) for way, other in prefixes.items()}
    shipped, wrapped = (whole.function, Compiled) if isinstance(whole, Compiled) else (whole, lambda each: each)
    if isinstance(shipped, ShippedCall) and shipped.flag and extras:
        alone = replace(check.function, function=wrapped(shipped.without_log_sum_exp()))
        alternatives["without its log-sum-exp"] = make(Chosen(alone), extras=())
    if isinstance(shipped, ShippedCall | Served):
        others = {way: replace(check.function, function=wrapped(o)) for way, o in shipped.other_ways().items()}
        missing = {way: why for way, o in others.items() if (why := why_missing(way, replace(check, function=o)))}
        check = check.stating(*(unclaimed(way, why) for way, why in missing.items()))
        others = {way: other for way, other in others.items() if way not in missing}
        if ONE_NUMBER in others and replace(check, function=others[ONE_NUMBER]).run(EVEN_WINDOW).error:
            del others[ONE_NUMBER]
        alternatives |= {way: make(Chosen(other, positions)) for way, other in others.items()}
    claims = replace(claims, features=claims.features.union(EXTRA_FEATURES[extra] for extra in names))
    made = Implementation(name, claims, make(chosen), alternatives=alternatives, stated=check.stated)
    return _with_modes(made, check, partial(kind.modes, chosen, **how)) if kind.modes else made


def _with_modes(made: Implementation, check: ClaimCheck, modes: Callable[..., Modes]) -> Implementation:
    from attention_conformance.implementations.discovery.kept_modes import function_modes  # imports torch

    shipped = isinstance(getattr(check.function, "function", None), ShippedCall)  # whose log-sum-exp is for inference
    judged = replace(made.claims, features=made.claims.features - ({Feature.LOG_SUM_EXP} if shipped else set()))
    runs = function_modes(modes, replace(check, claims=judged))
    return replace(made, claims=replace(made.claims, features=made.claims.features | set(runs)), modes=runs)
