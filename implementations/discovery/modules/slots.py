"""Slots: the parameters of a module, or the same one of each head, and what their names state."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from attention_conformance.implementations.discovery.modules.parameters import WRAPPED, patterns, place_of

WORDS = {
    "q": {"q", "bq", "query", "queries", "wq", "toq", "toqueries", "toquery", "qs", "wqs"},
    "k": {"k", "bk", "key", "keys", "wk", "tok", "tokeys", "tokey", "ks", "wks"},
    "v": {"v", "bv", "val", "vals", "value", "values", "wv", "tov", "tovalues", "tovalue", "vs", "wvs"},
    "o": {
        "o",
        "wo",
        "bo",
        "wp",
        "out",
        "output",
        "proj",
        "final",
        "unify",
        "unifyheads",
        "merge",
        "combine",
        "concat",
        "last",
        "fc",
        "dense",
        "linear",
    },
}
"""Words in paths of parameters, and what they state; those of the output count only where no other does."""
PACKED = re.compile(r"(?:^|_|to|w)(qkv|kqv|qvk|vkq|vqk|kvq|kv|vk|qk)(?:$|_|s$)")
"""Words for several projections in one, in their order."""
W_0 = re.compile(r"(?:^|\.)w_?0(?:\.|$)", re.IGNORECASE)
"""The output projection, with a number for the letter."""
MATRIX = r"w(?:_?(?:q|k|v|o|p|qkv|kv|query|key|value|queries|keys|values|out|output))?"
"""Names of matrices without a layer, which inputs are multiplied with from the left."""
OF_POSITIONS = {"pos", "position", "positions", "positional", "rel", "relative", "r", "p"}
"""Words in paths of what is no projection of tokens, but of positions."""
GATES = {"g", "gate", "gates", "gating"}
"""Words in paths of what makes gates."""
U_OR_V = re.compile(r"(?<=\bbias_)[uv]\b|(?<=_bias_)[uv]\b|\b[uv](?=_bias\b)|(?<=_)[uv](?=_bias\b)")
"""The letter of a bias of relative positions, which is added to queries: `u_bias`, `v_bias`, `pos_bias_u` and so on."""
BIASES = ("bq", "bk", "bv", "bo")
"""Names of biases that are written in one word."""


@dataclass(frozen=True)
class Slot:
    """A parameter, or the same one of each head.

    Attributes:
        pattern: its path, with a star for the number of a head.
        shape: of one of them.
        owner: the pattern without the last part where that is weight or bias.
        linear: whether it belongs to an nn.Linear.
        is_bias: whether it is added.
        of_pair: whether it is one of the two biases u and v of relative positions, and v is none of values.
    """

    pattern: str
    shape: tuple[int, ...]
    owner: str
    linear: bool
    is_bias: bool
    of_pair: bool = False

    @property
    def per_head(self) -> bool:
        """Whether there is one for each head."""
        return "*" in self.pattern

    @property
    def inputs_first(self) -> bool:
        """Whether its first axis is that of inputs: by names of layers of Flax, Haiku and Keras, or of x @ W_q."""
        name = self.pattern.rpartition(".")[2]
        return name == "kernel" or re.fullmatch(MATRIX, name, re.IGNORECASE) is not None

    @property
    def words(self) -> list[list[str]]:
        """The words of each part of its path, from the last part on."""
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.pattern).lower()
        parts = [re.split(r"[_*\d]+", part) for part in reversed(spaced.split("."))]
        return [[word for word in part if word and word not in ("weight", "bias")] for part in parts]


def slots(module: nn.Module, width: int, heads: int, outer: bool = False) -> list[Slot]:
    """The parameters of a module with so many heads; two or more.

    Args:
        module: the module.
        width: of its inputs.
        heads: as many as it has.
        outer: where either of two numbers in a path may be that of a head, as in lists of lists, the first one is.
    """
    shapes = {path: tuple(parameter.shape) for path, parameter in module.named_parameters()}
    by_pattern: dict[str, list[str]] = {}
    for path in shapes:
        for pattern, head in patterns(path):
            if head is not None:
                by_pattern.setdefault(pattern, []).append(path)
    starred = {
        path: pattern
        for pattern, paths in sorted(by_pattern.items(), key=lambda each: each[0].index("*"), reverse=outer)
        if len(paths) == heads > 1
        and len({shapes[path] for path in paths}) == 1
        and _one_a_head(pattern, paths, shapes[paths[0]], width)
        for path in paths
    }
    named = {starred.get(path, path): (shape, path) for path, shape in shapes.items()}
    found = [_slot(module, pattern, shape, path) for pattern, (shape, path) in named.items()]
    found = [replace(slot, of_pair=_is_of_pair(slot.pattern, named)) for slot in found]
    return [replace(slot, is_bias=False) if _is_matrix(slot, width) else slot for slot in found]


def _is_of_pair(pattern: str, others: Collection[str]) -> bool:
    """Whether it is named as u or v, and the other one of the two is there as well."""
    return U_OR_V.sub("u", pattern) != U_OR_V.sub("v", pattern) and {U_OR_V.sub(x, pattern) for x in "uv"} <= {*others}


def _is_matrix(slot: Slot, width: int) -> bool:
    """Whether it has only the letter of a bias as its name, and more numbers than those of three projections."""
    return slot.pattern == "b" and prod(slot.shape) > 3 * width


def _one_a_head(pattern: str, paths: Sequence[str], shape: tuple[int, ...], width: int) -> bool:
    """Whether these are numbered from 0 on, and each is as narrow as one head."""
    numbers = [head for path in paths for each, head in patterns(path) if each == pattern and head is not None]
    return sorted(numbers) == list(range(len(paths))) and prod(shape) * len(paths) in (width * width, width)


def _slot(module: nn.Module, pattern: str, shape: tuple[int, ...], path: str) -> Slot:
    owner, _, part = path.rpartition(".")
    plain = part in ("weight", "bias", "kernel", "w", "b")
    is_bias = part in ("bias", "b") or part.endswith("_bias") or part.startswith("b_") or part.lower() in BIASES
    linear = plain and isinstance(module.get_submodule(owner), nn.Linear)
    shape = tuple(extent for extent in shape if extent != 1)  # a convolution of width 1 is a linear layer
    return Slot(pattern, shape, pattern.rpartition(".")[0] if plain else pattern, linear, is_bias)


def is_added(slot: Slot) -> bool:
    """Whether it is a bias, or projects positions: zeros there change nothing, whatever else is wrong."""
    return (
        slot.is_bias
        or slot.of_pair
        or bool(OF_POSITIONS & {*next((words for words in slot.words if {*words} - {*WRAPPED}), ())})
    )


def roles_of(slot: Slot) -> str:
    """The roles of what it holds, by its words, in their order: q, kv, qkv, o, ...; nothing where they state none."""
    first = {*next((words for words in slot.words if {*words} - {*WRAPPED}), ())}
    if slot.of_pair or first & (OF_POSITIONS | GATES):
        return ""
    path = slot.pattern.replace("*", "0")
    if (place := place_of(path)) is not None:
        names = (place,) if isinstance(place, str) else place.names
        return "".join(name[2:] if name[1] == "_" and len(name) == 3 else "" for name in names)
    for words in slot.words:
        if packed := PACKED.search("_".join(words)):
            return packed.group(1)
        if roles := dict.fromkeys(role for word in words for role in "qkv" if word in WORDS[role]):
            return "".join(roles)
    output = W_0.search(slot.pattern) or any(word in WORDS["o"] for words in slot.words for word in words)
    return "o" if output else ""
