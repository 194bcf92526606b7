"""Weights that are given: to constructors as arrays, and to functions in dictionaries whose keys a first call shows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructor_names import NAMES, Size, size_of
from attention_conformance.implementations.discovery.modules.parameters import LAYERS
from attention_conformance.implementations.discovery.signatures import required, role

ROLE = r"(?:q|k|v|o|0|out|output|qkv|kv|concat|query|key|value|queries|keys|values)"
HOLDER = r"(?:w|b|bias|weights?|kernel|proj|projection)"
WEIGHT = re.compile(rf"^(?:{HOLDER}_?{ROLE}|{ROLE}_?{HOLDER}|{HOLDER}_{ROLE}_?{HOLDER}?)$", re.IGNORECASE)
"""Names of arguments that are weights or biases."""
WHOLE = {"params", "parameters", "weights", "p", "w", "theta", "state_dict"}
"""Names of a dictionary of all weights."""
PAIRS = (("w", "b"), ("weight", "bias"), ("kernel", "bias"), ("W", "b"), ("w",), ("weight",))
"""Keys of the dictionary of one layer."""
OF_BIAS = re.compile(r"^(b|bias)(_|[A-Z]|[qkvo]|out|$)|_(b|bias)$")
"""Names of biases."""


def roles_in(name: str) -> str:
    """The roles that the name of a weight states."""
    word = re.sub(rf"^{HOLDER}_?(?={ROLE})|_?{HOLDER}$", "", name, count=1, flags=re.IGNORECASE).lower().strip("_")
    return word if word in ("qkv", "kv") else word[:1]


def weight_named(name: str, width: int, roles: str = "") -> Any:
    """A weight (E, n * E) or bias (n * E,)."""
    columns = max(1, len(roles or roles_in(name))) * width
    return np.ones((columns,) if OF_BIAS.search(name) else (width, columns), np.float32) / width


def is_given(parameter: inspect.Parameter) -> bool:
    """Whether a parameter has to be given and is, by its name, a weight or a bias."""
    return required(parameter) and WEIGHT.match(parameter.name) is not None


def width_in(given: Mapping[str, Any]) -> int:
    """The width of the inputs among the arguments of a constructor, or in its object of settings; 0: there is none."""
    for name, each in given.items():
        if size_of(name) is Size.WIDTH and isinstance(each, int):
            return each
        own = (getattr(each, known, None) for known in NAMES[Size.WIDTH])
        if not isinstance(each, int | float | str | None) and (found := [x for x in own if isinstance(x, int)]):
            return found[0]
    return 0


class OnDemand(dict[str, Any]):
    """A dictionary of weights, which makes each that is looked up by a name that states what it holds."""

    def __init__(self, width: int, roles: str = "") -> None:
        super().__init__()
        self.width, self.roles = width, roles

    def __missing__(self, key: str) -> Any:
        if not isinstance(key, str):
            raise KeyError(key)
        roles = LAYERS.get(key.lower(), "")
        if WEIGHT.match(key):
            self[key] = weight_named(key, self.width)
        elif self.roles:
            self[key] = weight_named(key, self.width, self.roles)
        else:
            self[key] = OnDemand(self.width, roles)
        return self[key]


def layers_of(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters that are dictionaries of one layer each, by names such as c_attn; or of all, such as params."""
    needed = [p for p in parameters if required(p) and role(p.name) is None and not WEIGHT.match(p.name)]
    whole = [p for p in needed if p.name.lower() in WHOLE]
    if len(whole) == 1:
        return whole
    layers = [p for p in needed if p.name.lower() in LAYERS]
    return layers if {*"qkv"} <= {role for p in layers for role in LAYERS[p.name.lower()]} else []


def dictionaries(parameters: Sequence[inspect.Parameter], width: int) -> Iterator[dict[str, Any]]:
    """What may be given to these parameters, the likelier first."""
    if len(parameters) == 1 and parameters[0].name.lower() in WHOLE:
        yield {parameters[0].name: OnDemand(width)}
        return
    roles = {p.name: LAYERS[p.name.lower()] for p in parameters}
    for number, keys in enumerate(PAIRS):
        yield {name: {key: weight_named(key, width, each) for key in keys} for name, each in roles.items()}
        if number == 0:
            yield {name: OnDemand(width, each) for name, each in roles.items()}


def flattened(given: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The arrays in dictionaries, by path."""
    found: dict[str, Any] = {}
    for name, each in given.items():
        inner = f"{path}.{name}" if path else name
        found |= flattened(each, inner) if isinstance(each, dict) else {inner: each}
    return found


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Dictionaries with the arrays at these paths."""
    made: dict[str, Any] = {}
    for path, array in arrays.items():
        *owners, name = path.split(".")
        inside = made
        for owner in owners:
            inside = inside.setdefault(owner, {})
        inside[name] = array
    return made


def shown_by(call: Callable[[Mapping[str, Any]], Any], tried: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The arrays by path of the first dictionaries with which a call raises nothing; None where there is none."""
    for given in tried:
        if not safe_call(partial(call, given)).error:
            return flattened(given)
    return None
