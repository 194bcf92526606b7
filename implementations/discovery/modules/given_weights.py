"""Weights that are given: to constructors and functions as arrays, or in dictionaries whose keys a call shows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from attention_conformance.implementations.discovery.modules.constructor_names import (
    GROUPS,
    NAMES,
    Size,
    size_of,
    value_of,
)
from attention_conformance.implementations.discovery.modules.parameters import LAYERS
from attention_conformance.implementations.discovery.signatures import required, role

ROLE = r"(?:q|k|v|o|p|0|out|output|qkv|kqv|kv|concat|query|key|value|queries|keys|values|qs|ks|vs)"
HOLDER = r"(?:w|b|bias|weights?|kernel|proj|projection|omega|beta)"
WEIGHT = re.compile(rf"^(?:{HOLDER}_?{ROLE}|{ROLE}_?{HOLDER}|{HOLDER}_{ROLE}_?{HOLDER}?|omega_?c)$", re.IGNORECASE)
"""Names of arguments that are weights or biases."""
GREEK = {"omega": "w", "beta": "b"}
"""What these letters of textbooks stand for."""
OF_LAYER = re.compile(r"^(\w+)_(w|b|weight|bias|kernel)$", re.IGNORECASE)
"""Names of the weight or the bias of a layer."""
OF_PROJECTION = re.compile(r"^(?:c_|to_|fc_|lin_)|_?proj(?:ection)?$", re.IGNORECASE)
"""Names of layers that are no names of inputs."""
OF_BLOCK = re.compile(r"^(?:[a-z]*_?\d+_|(?:attn|attention|mha|self_attn)_)", re.IGNORECASE)
"""What a key may state before that: the number of a block, or that it is of attention."""
WHOLE = {"params", "parameters", "weights", "p", "w", "theta", "state_dict"}
"""Names of a dictionary of all weights."""
OF_WHOLE, OF_CHOICES = {"params", "parameters"}, {"hyper", "model", "num", "n"}
"""Words in the names of such a dictionary, and of what is none."""
PAIRS = (("w", "b"), ("weight", "bias"), ("kernel", "bias"), ("W", "b"), ("w",), ("weight",))
"""Keys of the dictionary of one layer."""
OF_OUTPUT = ("o", "0", "c", "p")
"""How roles of the output begin."""
LISTS = (("qkv", "o"), ("q", "k", "v", "o"), ("q", "k", "v"))
"""What the layers in a list hold."""
OF_BIAS = re.compile(r"^(b|bias|beta)(_|[A-Z]|[qkvo]|out|$)|_(b|bias|beta)$")
"""Names of biases."""
COUNTS = (Size.WIDTH, Size.HEADS, Size.HEAD_WIDTH)
"""Sizes that lie among weights, or come with them."""


def is_whole(name: str) -> bool:
    """Whether it is that of a dictionary of all weights, be it of attention alone: `params`, `mha_params`."""
    words = {*name.lower().split("_")}
    return name.lower() in WHOLE or bool(words & OF_WHOLE and not words & OF_CHOICES)


class Axes(StrEnum):
    """The axes of weights that are given."""

    FLAT = "(E, H * d), of the output (H * d, E)"
    HEADS_LAST = "(E, H, d), of the output (H, d, E)"
    HEADS_FIRST = "(H, E, d), of the output (H * d, E)"
    ALL_HEADS_FIRST = "(H, E, d), of the output (H, d, E)"
    ROWS = "(H * d, E), as nn.Linear holds them"
    LISTED = "(E, d) of each head in a list, of the output (H * d, E)"


def layer_of(name: str) -> str:
    """The roles of the layer whose weight or bias, such as c_attn_w, or which itself, such as in_proj, has this name.

    Nothing where there is none.
    """
    found = OF_LAYER.match(name)
    return LAYERS.get((found[1] if found else _as_layer(name)).lower(), "")


def _as_layer(name: str) -> str:
    """A name such as in_proj, which is that of a layer and of no input; empty for any other."""
    return name if OF_PROJECTION.search(name) else ""


def path_of(name: str) -> str:
    """Where the weight of this name lies in a module: that of a layer in one of its name."""
    letter, _, rest = name.partition("_")
    if letter in GREEK and WEIGHT.match(name):
        return f"{GREEK[letter]}_{'o' if rest == 'c' else rest}"
    if WEIGHT.match(name) or not layer_of(name):
        return name
    found = OF_LAYER.match(name)
    return f"{found[1]}.{found[2]}" if found else f"{name}.weight"


def roles_in(name: str) -> str:
    """The roles that the name of a weight states."""
    if not WEIGHT.match(name) and (roles := layer_of(name)):
        return roles
    word = re.sub(rf"^{HOLDER}_?(?={ROLE})|_?{HOLDER}$", "", name, count=1, flags=re.IGNORECASE).lower().strip("_")
    return word if word in ("qkv", "kqv", "kv") else word[:1]


@dataclass(frozen=True)
class Weights:
    """How weights are made whose names state what they hold.

    Attributes:
        width: of the inputs.
        heads: of attention.
        axes: theirs.
        matrices: whether the name of a layer is that of its matrix, and no dictionary.
        into: what makes an array of the kind that is taken.
        kv_heads: of keys and values; 0: as many as of queries.
    """

    width: int
    heads: int = 1
    axes: Axes = Axes.FLAT
    matrices: bool = False
    into: Callable[[Any], Any] = np.asarray
    kv_heads: int = 0

    def _heads(self, roles: str) -> int:
        """Of what has these roles."""
        return self.kv_heads or self.heads if roles and {*roles} <= {*"kv"} else self.heads

    def _columns(self, role: str) -> int:
        """Of the weight of this role: all of its heads together."""
        return self.width // self.heads * self.kv_heads if self.kv_heads and role in "kv" else self.width

    def named(self, name: str, roles: str = "") -> Any:
        """A weight or bias with these axes; FLAT is (E, n * E) and (n * E,) for n roles."""
        roles = roles or roles_in(name)
        columns, is_bias = sum(map(self._columns, roles or "q")), OF_BIAS.search(name) is not None
        heads = self._heads(roles)
        shape: tuple[int, ...] = (columns,) if is_bias else (self.width, columns)
        if self.axes is Axes.LISTED and roles not in OF_OUTPUT:
            each = self.into(np.ones((*shape[:-1], columns // heads), np.float32) / self.width)
            return {str(head): each for head in range(heads)}
        if self.axes is Axes.ROWS:
            shape = shape[::-1]
        elif self.axes is not Axes.FLAT and roles not in OF_OUTPUT:
            each = (columns // heads,) if is_bias else (self.width, columns // heads)
            last = self.axes is Axes.HEADS_LAST
            shape = (*each[:-1], heads, each[-1]) if last else (heads, *each)
        elif self.axes in (Axes.HEADS_LAST, Axes.ALL_HEADS_FIRST) and not is_bias:
            shape = (self.heads, self.width // self.heads, self.width)
        return self.into(np.ones(shape, np.float32) / self.width)


def is_given(parameter: inspect.Parameter, of_layers: bool = False) -> bool:
    """Whether a parameter has to be given and is, by its name, a weight or a bias; `of_layers`: or a layer."""
    name = parameter.name
    known = WEIGHT.match(name) is not None or (bool(layer_of(name)) and (of_layers or not _as_layer(name)))
    return required(parameter) and known


def width_in(given: Mapping[str, Any]) -> int:
    """The width of the inputs among the arguments of a constructor, or in its object of settings; 0: there is none."""
    return number_in(given, NAMES[Size.WIDTH])


def number_in(given: Mapping[str, Any], names: Sequence[str]) -> int:
    """The number of one of these names among the arguments of a constructor, or in its object of settings; 0: none."""
    for name, each in given.items():
        size = size_of(name)
        if (name in names or (size is not None and NAMES.get(size) == names)) and isinstance(each, int):
            return each
        own = (getattr(each, known, None) for known in names)
        if not isinstance(each, int | float | str | None) and (found := [x for x in own if isinstance(x, int)]):
            return found[0]
    return 0


class OnDemand(dict[str, Any]):
    """A dictionary of weights, which makes each that is looked up by a name that states what it holds.

    Names of sizes give those; the name of a layer gives its matrix where the weights are matrices, else a dictionary.
    """

    def __init__(self, weights: Weights, roles: str = "") -> None:
        super().__init__()
        self.weights, self.roles = weights, roles

    def __missing__(self, key: str) -> Any:
        if not isinstance(key, str):
            raise KeyError(key)
        name = OF_BLOCK.sub("", key)
        roles = LAYERS.get(name.lower(), "")
        if (size := size_of(key)) in COUNTS or key in GROUPS:
            counted = self.weights.kv_heads if key in GROUPS else 0
            self[key] = counted or value_of(size or Size.HEADS, self.weights.width, self.weights.heads)
        elif WEIGHT.match(name):
            self[key] = self.weights.named(name)
        elif self.roles or (self.weights.matrices and roles):
            self[key] = self.weights.named(name, self.roles or roles)
        else:
            self[key] = OnDemand(self.weights, roles)
        return self[key]


def layers_of(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters that are dictionaries of one layer each, by names such as c_attn; or of all, such as params."""
    needed = [p for p in parameters if required(p) and role(p.name) is None and not WEIGHT.match(p.name)]
    whole = [p for p in needed if is_whole(p.name)]
    if len(whole) == 1:
        return whole
    layers = [p for p in needed if p.name.lower() in LAYERS]
    return layers if {*"qkv"} <= {role for p in layers for role in LAYERS[p.name.lower()]} else []


def dictionaries(parameters: Sequence[inspect.Parameter], weights: Weights) -> Iterator[dict[str, Any]]:
    """What may be given to these parameters, the likelier first."""
    named = weights.named
    if len(parameters) == 1 and is_whole(name := parameters[0].name):
        for matrices in (False, True):
            yield {name: OnDemand(replace(weights, matrices=matrices))}
        yield from ({name: each} for each in _lists(weights))
        for axes in (*Axes,)[1:]:
            yield {name: OnDemand(replace(weights, axes=axes))}
            yield from ({name: each} for each in _lists(replace(weights, axes=axes)))
        return
    roles_of = {p.name: LAYERS[p.name.lower()] for p in parameters}
    for number, keys in enumerate(PAIRS):
        yield {name: {key: named(key, each) for key in keys} for name, each in roles_of.items()}
        if number == 0:
            yield {name: OnDemand(weights, each) for name, each in roles_of.items()}


def _lists(weights: Weights) -> Iterator[dict[str, Any]]:
    """Lists of layers, each a matrix or a pair with its bias; the last may be a matrix alone."""
    named = weights.named
    for roles in LISTS:
        matrices = {f"{at}_{each}": named("w", each) for at, each in enumerate(roles)}
        pairs = {
            f"{at}_{each}": {"0_weight": named("w", each), "1_bias": named("b", each)} for at, each in enumerate(roles)
        }
        last = f"{len(roles) - 1}_{roles[-1]}"
        yield from (matrices, pairs, {**pairs, last: matrices[last]})


def flattened(given: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The arrays and sizes in dictionaries, by path."""
    found: dict[str, Any] = {}
    for name, each in given.items():
        inner = f"{path}.{name}" if path else name
        found |= flattened(each, inner) if isinstance(each, dict) else {inner: each}
    return found


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Dictionaries with the arrays at these paths; a tuple where all keys begin with numbers."""
    made: dict[str, Any] = {}
    for path, array in arrays.items():
        *owners, name = path.split(".")
        inside = made
        for owner in owners:
            inside = inside.setdefault(owner, {})
        inside[name] = array
    return {name: _listed(each) for name, each in made.items()}


def _listed(given: Any) -> Any:
    if not isinstance(given, dict) or isinstance(given, OnDemand):
        return given
    inside = {name: _listed(each) for name, each in given.items()}
    return tuple(inside.values()) if inside and all(name[0].isdigit() for name in inside) else inside
