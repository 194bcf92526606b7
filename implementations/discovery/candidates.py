"""Candidates: targets of the command line that need no adapter, made into implementations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions import function_candidate
from attention_conformance.implementations.discovery.loading import Target, TargetError, load_target
from attention_conformance.implementations.discovery.module_candidates import module_candidate
from attention_conformance.implementations.discovery.signatures import ADAPTER

__all__ = ["TargetError", "candidate", "candidates", "distinct"]

_USABLE = f"give a function of query, key and value or a module class, {ADAPTER}"


def candidate(target: str, settings: Mapping[str, str], device: str = "cpu") -> Implementation:
    """Loads a target and wraps it: an Implementation, a module class, or a function of query, key and value.

    Args:
        target: FILE.py:NAME or package.module:NAME.
        settings: conventions by name, as `Conventions.claiming` takes them.
        device: where it runs; a few small calls are made there to see what it offers.

    Raises:
        TargetError: the target cannot be used; the message is one line that begins with the target.
        ValueError: a setting that does not exist.
    """
    loaded = load_target(target)
    name = Target.parse(target).parts[-1]
    try:
        _check_device(device)
        return _wrapped(name, loaded, settings, device)
    except TargetError as error:
        raise TargetError(f"{target}: {error}") from error


def candidates(targets: Sequence[str], settings: Mapping[str, str], device: str = "cpu") -> tuple[Implementation, ...]:
    """Every target once, under different names: equal ones are preceded by parts of their paths.

    Raises:
        TargetError: as `candidate` does.
        ValueError: as `candidate` does.
    """
    unique = distinct(targets)
    implementations = [candidate(target, settings, device) for target in unique.values()]
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


def _check_device(device: str) -> None:
    if error := safe_call(lambda: torch.zeros(1, device=device)).error:
        raise TargetError(f"device {device!r} cannot be used: {error}")


def _wrapped(name: str, loaded: object, settings: Mapping[str, str], device: str) -> Implementation:
    if isinstance(loaded, Implementation):
        conventions = loaded.claims.conventions.claiming(settings)
        return replace(loaded, claims=replace(loaded.claims, conventions=conventions))
    if isinstance(loaded, nn.Module):
        raise TargetError(f"it is an instance of {type(loaded).__name__}: give the class, {ADAPTER}")
    if isinstance(loaded, type):
        if not issubclass(loaded, nn.Module):
            raise TargetError(f"it is a class, but no torch.nn.Module: {_USABLE}")
        return module_candidate(name, loaded, settings, device)
    if not callable(loaded):
        raise TargetError(f"it is an object of type {type(loaded).__name__}: {_USABLE}")
    return function_candidate(name, loaded, settings, device)
