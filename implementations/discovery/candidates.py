"""Candidates: targets of the command line that need no adapter, made into implementations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.raised_calls import noted
from attention_conformance.implementations.api.safe_call import differing, safe_call
from attention_conformance.implementations.discovery.as_documented import as_documented, has_zero_key
from attention_conformance.implementations.discovery.causal_names import promises_causal
from attention_conformance.implementations.discovery.functions.by_position import with_options_by_position
from attention_conformance.implementations.discovery.functions.functions import function_candidate
from attention_conformance.implementations.discovery.functions.inputs_first import with_inputs_first
from attention_conformance.implementations.discovery.functions.own_gradients import with_own_gradients
from attention_conformance.implementations.discovery.signatures import ADAPTER, check_kind
from attention_conformance.implementations.discovery.targets.loading import (
    Target,
    TargetError,
    load_target,
    loaded_without,
)
from attention_conformance.spec.optional import optional
from attention_conformance.spec.premises import Premise, Premises

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.functions.backward_alone import BackwardAlone

torch = optional("torch")
PROJECTED = "it projects no inputs: judged inside of a layer that does"
IN_LAYER = "it takes heads: judged inside of a layer that projects its inputs and its output"
__all__ = ["TargetError", "candidate", "candidates", "distinct", "named", "wrapped"]


def candidate(
    target: str, settings: Mapping[str, str], device: str = "cpu", premises: Sequence[str] = (), in_part: bool = False
) -> Implementation:
    """Loads a target and wraps it: an Implementation, a module class, or a function of query, key and value.

    Args:
        target: FILE.py:NAME or package.module:NAME.
        settings: conventions by name, as `Conventions.claiming` takes them.
        device: where it runs; a few small calls are made there to see what it offers.
        premises: what it always does, in addition to what these calls show, as `Premises.assuming` takes them.
        in_part: whether a module class of unknown form is judged by relations alone, where there are any.

    Raises:
        TargetError: the target cannot be used; the message is one line that begins with the target.
        ValueError: a setting that does not exist.
    """
    return named(target, load_target(target), settings, device, premises, in_part)


def named(
    target: str,
    loaded: object,
    settings: Mapping[str, str],
    device: str,
    premises: Sequence[str] = (),
    in_part: bool = False,
) -> Implementation:
    """What a target names, wrapped; see `candidate`."""
    name = Target.parse(target).name.rpartition(".")[2]
    try:
        if torch and (error_line := safe_call(lambda: torch.zeros(1, device=device).device).error):
            raise TargetError(f"device {device!r} cannot be used: {error_line}")
        implementation = _read(name, loaded, settings, device, premises)
    except TargetError as error:
        in_relations = _in_relations(name, loaded, error, device) if in_part else None
        if in_relations is None:
            raise TargetError(f"{target}: {error}") from error
        implementation = in_relations
    if not implementation.claims.dtypes:
        seen = "; ".join(implementation.unclaimed) or "its claims have none"
        raise TargetError(f"{target}: there is no dtype in which it can be judged: {seen}")
    lacking, findings = loaded_without(loaded, target)
    without = tuple(f"loaded without {each}" for each in lacking)
    return replace(
        implementation,
        about="; ".join([implementation.about, *without]),
        stated=(*implementation.stated, *without),
        findings={**implementation.findings, **findings},
    )


def _read(
    name: str, loaded: object, settings: Mapping[str, str], device: str, premises: Sequence[str]
) -> Implementation:
    """What a target names, wrapped as its first calls show it; those that raised are made once more."""
    with noted() as first:
        implementation = wrapped(name, loaded, settings, device, premises)
        if isinstance(loaded, Implementation):
            return implementation
        if has_zero_key(implementation, loaded, device):
            implementation = wrapped(name, loaded, settings, device, (*premises, Premise.ZERO_ATTN))
        implementation = as_documented(implementation, loaded, settings, device)
    return replace(implementation, differing=differing(first), exits=tuple(first.exits))


def _in_relations(name: str, loaded: object, refused: TargetError, device: str) -> Implementation | None:
    if not torch:
        return None
    from attention_conformance.implementations.discovery.functions.needed_arrays import with_needed_arrays
    from attention_conformance.implementations.discovery.modules.decoder_attention import decoder_attention
    from attention_conformance.implementations.discovery.modules.relations_alone import relations_alone  # imports torch
    from attention_conformance.implementations.discovery.modules.squares_alone import square_alone

    if not isinstance(loaded, type):
        kinds = (kind for kind, _ in with_needed_arrays(loaded))
        runs = (safe_call(partial(relations_alone, name, kind, refused, device)).value for kind in kinds)
        return next((run for run in runs if run is not None), None)
    square = safe_call(lambda: square_alone(name, loaded)).value
    square = square or safe_call(lambda: decoder_attention(name, loaded, refused, device)).value
    return square or safe_call(lambda: relations_alone(name, with_parameters(loaded), refused, device)).value


def candidates(targets: Sequence[str], load: Callable[[str], Implementation]) -> tuple[Implementation, ...]:
    """Every target once, under different names: equal ones are preceded by parts of their paths."""
    unique = distinct(targets)
    implementations = [load(target) for target in unique.values()]
    counts = Counter(each.name for each in implementations)
    return tuple(
        each if counts[each.name] == 1 else replace(each, name=_distinct(parts, list(unique)))
        for each, parts in zip(implementations, unique, strict=True)
    )


def distinct(targets: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Every target once, by its parts."""
    unique: dict[tuple[str, ...], str] = {}
    for target in targets:
        unique.setdefault(Target.parse(target).parts, target)
    return unique


def _distinct(parts: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str:
    """The shortest end of the parts, of two or more, that no other target has."""
    for length in range(2, len(parts)):
        if sum(other[-length:] == parts[-length:] for other in others) == 1:
            return ".".join(parts[-length:])
    return ".".join(parts)


def wrapped(
    name: str, target: object, settings: Mapping[str, str], device: str, premises: Sequence[str] = ()
) -> Implementation:
    """An object as an implementation: one that is an Implementation, a module class, or a function.

    Raises:
        TargetError: it is none of these, or it cannot be called; the message does not name it.
        ValueError: a setting that does not exist.
    """
    if isinstance(target, Implementation):
        conventions = target.claims.conventions.claiming(settings)
        always = target.claims.premises.assuming(premises)
        return replace(target, claims=replace(target.claims, conventions=conventions, premises=always))
    always = Premises().assuming(premises)
    if promises_causal(name, target):
        always = replace(always, causal=True)
    if torch and isinstance(target, type):
        from attention_conformance.implementations.discovery.modules.rolling_caches import rolling_candidate

        if (rolling := rolling_candidate(name, target, settings, always)) is not None:
            return rolling
    function = _class_as_function(target)
    target = target if function is not None else with_parameters(target)
    if function is None:
        check_kind(target, f", {ADAPTER}")
    if function is None and isinstance(target, type):
        from attention_conformance.implementations.discovery.modules.inner_attention import in_layer, projected_first
        from attention_conformance.implementations.discovery.modules.modules import module_candidate

        try:
            return module_candidate(name, target, settings, device, always)
        except TargetError:
            layers = (
                (stated, around(target)) for stated, around in ((IN_LAYER, in_layer), (PROJECTED, projected_first))
            )
            stated, layer = next((each for each in layers if each[1] is not None), ("", None))
            if layer is None:
                raise
            made = module_candidate(name, layer, settings, device, always)
            return replace(made, about=f"{made.about}; {stated}", stated=(*made.stated, stated))
    called = function or target
    assert callable(called)
    if (alone := _backward_alone(called)) is not None:
        made = function_candidate(name, alone, settings, device, always)
        return replace(made, about=f"{made.about}; {alone.about}", stated=(*made.stated, alone.about))
    try:
        made = function_candidate(name, with_inputs_first(with_options_by_position(called)), settings, device, always)
        return with_own_gradients(_with_caches(made, called, device))
    except TargetError:
        needing = _with_needed_arrays(name, called, settings, device, always)
        if needing is None:
            raise
        return needing


def _with_caches(made: Implementation, function: Callable[..., Any], device: str) -> Implementation:
    """The candidate that is given its tokens in pieces, too, where its function takes or holds a cache."""
    if not torch:
        return made
    from attention_conformance.implementations.discovery.functions.cache_arguments import with_caches
    from attention_conformance.implementations.discovery.modules.held_caches import with_pieces

    return with_pieces(with_caches(made, device), function)


def _with_needed_arrays(
    name: str, function: Callable[..., Any], settings: Mapping[str, str], device: str, premises: Premises
) -> Implementation | None:
    """A function that needs arrays of unknown meaning, judged as a module that has them; None where it needs none.

    Of the ways to make these, the first in which all their equations are known, or else the first.
    """
    if not torch:
        return None
    from attention_conformance.implementations.discovery.functions.needed_arrays import with_needed_arrays
    from attention_conformance.implementations.discovery.modules.modules import module_candidate

    first = None
    for kind, arrays in with_needed_arrays(function):
        try:
            made = module_candidate(name, kind, settings, device, premises)
        except TargetError:
            continue
        if not made.findings.keys() & {*arrays}:
            return made
        first = first or made
    return first


def _backward_alone(function: Callable[..., Any]) -> BackwardAlone | None:
    """The function as attention, where it is a backward pass alone."""
    if not torch:
        return None
    from attention_conformance.implementations.discovery.functions.backward_alone import backward_alone  # imports torch

    return backward_alone(function)


def with_parameters(target: object) -> object:
    """A torch module class for what holds or takes its weights as arrays; everything else as it is."""
    if not torch:
        return target
    from attention_conformance.implementations.discovery.modules.array_modules import array_module  # imports torch
    from attention_conformance.implementations.discovery.modules.held_arrays import plain_class
    from attention_conformance.implementations.discovery.modules.passed_weights import passed_weights
    from attention_conformance.implementations.discovery.modules.weighted import weighted_function

    if not isinstance(target, type):
        return weighted_function(target) or target
    mirrored = array_module(target)  # before all others: those of keras may be modules of torch, too
    if mirrored is not None or issubclass(target, torch.nn.Module):
        return mirrored or target
    return passed_weights(target) or plain_class(target) or target


def _class_as_function(target: object) -> Callable[..., Any] | None:
    """What a class without parameters of its own computes, if the target is one."""
    if not torch or not isinstance(target, type):
        return None
    from attention_conformance.implementations.discovery.modules.array_modules import weighs_late  # imports torch
    from attention_conformance.implementations.discovery.modules.held_caches import with_held_cache
    from attention_conformance.implementations.discovery.modules.op_modules import as_function
    from attention_conformance.implementations.discovery.modules.passed_weights import passed_weights
    from attention_conformance.implementations.discovery.shipped.shipped_planned import as_planned

    late = weighs_late(target) or passed_weights(target) is not None
    return as_planned(target) or (None if late else as_function(target) or with_held_cache(target))
