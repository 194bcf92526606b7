"""Constructors: how a module class is built, read from its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from attention_conformance.implementations.discovery.loading import TargetError, told
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    positional,
    required,
    takes_any,
    without_dropout,
)
from attention_conformance.spec.features import Feature

WIDTH, HEADS = 12, 3
"""Sizes of the instances that are built to look at their parameters."""


SPELLED = {
    "num_kv_heads": ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads"),
    "dropout": ("attn_dropout", "attention_dropout", "attn_drop", "dropout", "dropout_p", "dropout_rate"),
    "add_bias_kv": ("add_bias_kv",),
    "add_zero_attn": ("add_zero_attn",),
}
"""What a constructor can be told besides sizes and widths, and the parameters that take it, the preferred one first."""
CLAIMED: Mapping[str, tuple[Feature, ...]] = {
    "num_kv_heads": (Feature.GROUPED,),
    "dropout": (Feature.DROPOUT, Feature.EVALUATION),
    "add_bias_kv": (Feature.BIAS_KV,),
    "add_zero_attn": (Feature.ZERO_ATTN,),
}
"""What each of them claims."""


@dataclass(frozen=True)
class Constructor:
    """A class, and how it is built: without dropout, with biases, batch first, as far as it can be told so.

    Attributes:
        named: whether embed_dim and num_heads are given by name.
        options: what it is given besides.
        widths: whether it takes kdim and vdim.
        rates: its parameters that are rates of dropout.
        spelled: its own name for each of `SPELLED` that it takes.
    """

    kind: type[nn.Module]
    named: bool
    options: Mapping[str, object]
    widths: bool
    rates: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, embed_dim: int, num_heads: int, **asked: Any) -> nn.Module:
        """A module with these sizes; kdim, vdim and what `SPELLED` names may be asked for."""
        given = {self.spelled.get(name, name): value for name, value in asked.items()}
        if "num_kv_heads" in self.spelled:
            given.setdefault(self.spelled["num_kv_heads"], num_heads)
        given = {**self.options, **given}
        if self.named:
            return self.kind(embed_dim=embed_dim, num_heads=num_heads, **given)
        return self.kind(embed_dim, num_heads, **given)

    @property
    def features(self) -> frozenset[Feature]:
        """What its parameters claim."""
        return frozenset(feature for option in self.spelled for feature in CLAIMED[option])


def constructor(kind: type[nn.Module]) -> Constructor:
    """How the class is built.

    Raises:
        TargetError: its constructor takes something else than embed_dim and num_heads.
    """
    signature = inspect.signature(kind)
    parameters = dict(signature.parameters)
    if takes_any(signature, inspect.Parameter.VAR_KEYWORD) and issubclass(kind, nn.MultiheadAttention):
        parameters = {**inspect.signature(nn.MultiheadAttention).parameters, **parameters}
    named = {"embed_dim", "num_heads"} <= set(parameters)
    sizes = [] if named else positional(signature)[:2]
    if not named:
        _check_sizes(kind, signature, sizes)
    given: dict[str, object] = {name: True for name in ("bias", "batch_first") if name in parameters}
    given |= without_dropout(signature.parameters.values())
    others = set(parameters) - {p.name for p in sizes}
    spelled = {option: name for option, names in SPELLED.items() if (name := _first(names, others))}
    known = {"embed_dim", "num_heads", "kdim", "vdim", *given, *spelled.values(), *(p.name for p in sizes)}
    for parameter in signature.parameters.values():
        if required(parameter) and parameter.name not in known:
            raise TargetError(f"its constructor needs {parameter.name!r} too: give it a default, {ADAPTER}")
    rates = tuple(p.name for p in parameters.values() if "drop" in p.name and isinstance(p.default, float))
    return Constructor(kind, named, given, {"kdim", "vdim"} <= set(parameters), rates, spelled)


def _first(names: Iterable[str], among: Set[str]) -> str | None:
    return next((name for name in names if name in among), None)


def _check_sizes(kind: type[nn.Module], signature: inspect.Signature, sizes: list[inspect.Parameter]) -> None:
    told_as = f"{kind.__name__}{signature}"
    if len(sizes) < 2 and not takes_any(signature, inspect.Parameter.VAR_POSITIONAL):
        raise TargetError(f"its constructor is {told_as}: it has to take embed_dim, num_heads, {ADAPTER}")
    if len(sizes) == 2 and _counts_heads(sizes[0].name) and not _counts_heads(sizes[1].name):
        raise TargetError(f"its constructor is {told_as}: take embed_dim first, then num_heads, {ADAPTER}")


def _counts_heads(name: str) -> bool:
    return "head" in name.lower() or name in ("h", "n_h")


def built(make: Constructor, **widths: int) -> nn.Module:
    """An instance of small sizes.

    Raises:
        TargetError: there is none.
    """
    try:
        return make(WIDTH, HEADS, **widths)
    except (Exception, SystemExit) as error:
        sizes = ", ".join(f"{n}={x}" for n, x in {"embed_dim": WIDTH, "num_heads": HEADS, **widths}.items())
        raise TargetError(f"it cannot be built with {sizes}: {told(error)}") from error
