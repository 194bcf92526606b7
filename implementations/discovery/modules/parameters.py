"""Parameters: which weights and biases a module holds, read from their names."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import PLACES
from attention_conformance.implementations.adapters.torch_module import Packed, Place
from attention_conformance.implementations.discovery.signatures import ADAPTER
from attention_conformance.implementations.discovery.targets.loading import TargetError

_PATTERNS = (
    *("{}", "{}_proj", "proj_{}", "w_{}", "w{}", "w_{}s", "to_{}", "to{}", "fc_{}", "linear_{}", "{}_linear"),
    *("{}s_linear", "{}_projection", "{}_net", "{}_layer"),
)
_WORDS = {
    "q": ("q", "query", "queries"),
    "k": ("k", "key", "keys"),
    "v": ("v", "val", "value", "values"),
    "kv": ("kv",),
    "qkv": ("qkv",),
    "o": ("o", "out", "output", "concat"),
}
_PECULIAR = {
    "qkv": ("c_attn", "in_proj", "query_key_value"),
    "o": (
        *("proj", "c_proj", "dense", "unifyheads", "fc", "fc_out", "w_concat", "combine", "linear"),
        *("final_linear", "output_linear"),
    ),
}

LAYERS: Mapping[str, str] = {
    spelling: roles
    for roles, words in _WORDS.items()
    for spelling in (*(p.format(w) for w in words for p in _PATTERNS), *_PECULIAR.get(roles, ()))
}
"""The name of a linear layer, in lower case -> the roles of its rows, one after the other."""

WRAPPED = ("linear", "fc", "dense", "proj", "layer", "lin")
"""Names of the only layer of another, which then states what it is for."""
CONTAINERS = {f"_{name}" for name in ("submodules", "modules", "params", "parameters", "children", "layers", "weights")}
"""Private attributes in which a class keeps its parts, or its numbers, by name."""
_LISTS = ("linears", "projections", "linear_layers")
_NUMBERED = {"0": "q", "1": "k", "2": "v", "3": "o"}
"""The roles of the layers in a list of four, in the order in which they are used."""

ACCEPTED = (
    "the names of nn.MultiheadAttention, or nn.Linear layers for q, k, v (or qkv, kv) and out, spelled like "
    "q_proj, W_q, wq, to_q, fc_q, query, c_attn, out_proj, proj or dense"
)
"""The accepted names in short, for messages."""


def place_of(path: str) -> str | Packed | None:
    """The name in `Problem.parameters` of what a parameter holds, read from the end of its path."""
    *owners, part = path.split(".")
    if part in PLACES:
        known: str | Packed = PLACES[part]  # type: ignore[assignment]
        return known
    named = [owner for owner in reversed(owners) if not owner.isdigit() and owner not in CONTAINERS]
    inside = len(named) > 1 and named[0].lower() in WRAPPED and named[1].lower() in LAYERS
    layer = named[inside] if named else ""
    numbered = _NUMBERED.get(owners[-1]) if layer in _LISTS else None
    roles = numbered or LAYERS.get(layer.lower())
    part = {"w": "weight", "kernel": "weight", "b": "bias"}.get(part, part)
    if roles is None or part not in ("weight", "bias"):
        return None
    names = tuple(f"{part[0]}_{role}" for role in roles)
    return Packed(names) if len(names) > 1 else names[0]


def find_places(module: nn.Module) -> dict[str, str | Packed]:
    """What each parameter of the module holds, as far as their names are known."""
    return {path: place for path, _ in module.named_parameters() if (place := place_of(path))}


def named_parameters(module: nn.Module) -> dict[str, str]:
    """The paths of the module's parameters, by their names in `Problem.parameters`."""
    return {name: path for path, place in find_places(module).items() for name in names_of(place)}


def check_parameters(module: nn.Module, widths: tuple[int, int, int]) -> None:
    """Refuses a module whose parameters the suite could not fill.

    Args:
        module: built for these widths; all heads together are as wide as the query.
        widths: of the query, key and value inputs.

    Raises:
        TargetError: a parameter has an unknown name or another shape than in nn.Linear, or a projection is
            missing, exists twice, or has biases in part.
    """
    paths: dict[str, str] = {}
    for path, parameter in module.named_parameters():
        place = place_of(path)
        if place is None or not _is_linear(module, path):
            unknown = f"its parameter {path!r} {tuple(parameter.shape)}"
            raise TargetError(f"the suite does not know {unknown}: use {ACCEPTED}, {ADAPTER}")
        _check_shape(path, tuple(parameter.shape), names_of(place), widths)
        for name in names_of(place):
            if name in paths:
                both = f"{paths[name]!r} and {path!r}"
                raise TargetError(f"its parameters {both} are both named as {name}: rename one, {ADAPTER}")
            paths[name] = path
    _check_complete(paths)


def _is_linear(module: nn.Module, path: str) -> bool:
    """Other layers may hold their weights transposed, which a square shape hides."""
    owner, _, part = path.rpartition(".")
    return part in PLACES or isinstance(module.get_submodule(owner), nn.Linear)


def _check_shape(path: str, shape: tuple[int, ...], names: tuple[str, ...], widths: tuple[int, int, int]) -> None:
    columns = dict(zip(("w_q", "w_k", "w_v"), widths, strict=True))
    rows = widths[0] * len(names)
    expected = (rows, columns.get(names[0], widths[0])) if names[0].startswith("w_") else (rows,)
    if shape != expected:
        held = f"{', '.join(names)} at embed_dim={widths[0]}"
        raise TargetError(
            f"its parameter {path!r} has shape {shape}, expected {expected} for {held}: "
            f"store it as nn.Linear does, {ADAPTER}"
        )


def _check_complete(paths: Mapping[str, str]) -> None:
    for role, name in (("query", "w_q"), ("key", "w_k"), ("value", "w_v")):
        if name not in paths:
            raise TargetError(f"it has no parameter for the {role} projection: use {ACCEPTED}, {ADAPTER}")
    biased = [name for name in ("b_q", "b_k", "b_v") if name in paths]
    if len(biased) not in (0, 3):
        some = " and ".join(biased)
        raise TargetError(f"of b_q, b_k and b_v it has only {some}: give it all or none, {ADAPTER}")


def patterns(path: str) -> Iterator[tuple[str, int | None]]:
    """The path, and the path with a star for each number in it, with that number."""
    yield path, None
    parts = path.split(".")
    for at, part in enumerate(parts):
        if part.isdigit():
            yield ".".join([*parts[:at], "*", *parts[at + 1 :]]), int(part)


OPEN, SHUT = 64.0, -1e30
"""The sigmoid of the one is 1 in each dtype; next to the other as a score any key has all of the weight."""


def filled(parameter: torch.Tensor, fill: str) -> torch.Tensor:
    """What it holds where it has no effect."""
    of_one_place = parameter.ndim >= 2 and parameter.shape[2:].numel() == 1  # as of a convolution of width 1
    if fill == "identity" and of_one_place:
        return torch.eye(*parameter.shape[:2]).view(parameter.shape)
    constant = {"zeros": 0.0, "ones": 1.0, "open": OPEN, "shut": SHUT}.get(fill)
    return parameter.detach() if constant is None else torch.full_like(parameter, constant)


def names_of(place: Place) -> tuple[str, ...]:
    """The names in `Problem.parameters`."""
    return (place,) if isinstance(place, str) else place.names
