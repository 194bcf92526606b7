"""Uses of parts: what their numbers may do in attention, by their names and shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS
from attention_conformance.implementations.discovery.modules.distance_tables import Table, tables_of_shape

PUBLISHED, PUBLISHED_BIASES = ("distance_embedding",), ("relative_attention_bias",)
"""Names of parts whose equations are published with them: the relative positions of BERT, and the biases of T5, whose
rows ascend from keys before the query to those after it."""
OF_SINKS = {"sink", "sinks"}
"""Words in the names of a logit of each head, as in gpt-oss."""
LOG_SCALES = (
    *("logit_scale", "logit_scales", "log_scale", "log_scales", "log_tau", "log_temperature", "log_temp"),
    *("logit_temperature", "temperature_log", "log_beta"),
)
"""Ends of names of a logarithm of what multiplies scores, as in CLIP, or Swin V2, which keeps it at log(100)."""
LARGEST, SMALLEST = 4.4, 1.0
"""Logarithms of such factors that no bound changes, from the first head to the last."""
ADDED_TO = {f"{letter}_bias": name for letter, name in zip("qkv", INPUTS, strict=True)}
"""Names of biases that stand next to the weight of several projections."""


class Role(StrEnum):
    """What a part does."""

    SCORES = "multiplies the scores of a head"
    BEFORE = "mixes the scores of the heads"
    SINK = "is a logit of each head next to its scores"
    AFTER = "mixes the weights of the heads"
    HEADS = "multiplies what each head gives"
    GATE = "gives the gates of heads, or of their components, for a token"
    OUTPUT = "multiplies the output"
    QUERY = "is added to queries"
    KEY = "is added to keys"
    VALUE = "is added to values"
    CONTENT = "is added to queries in their products with keys alone"
    POSITION = "is added to queries in their products with the rows of tables alone"
    BOTH = "is added to queries in both"
    UNUSED = "is not used"
    SLOPE = "is how much the scores of a head fall with the distance of a key"
    TABLE = "has a row for each distance"


class Through(StrEnum):
    """What is taken of its numbers first."""

    NOTHING = "nothing"
    TRANSPOSED = "the transposed matrix"
    EXPONENTIAL = "the exponential"
    CAPPED = "the exponential, kept at log(100) at most, as its logarithm should be"
    TENTHS = "the exponential, its logarithm kept at log10(100) at most, as that of base e should be"
    SIGMOID = "the sigmoid"
    TANH = "the hyperbolic tangent"
    SCALED = "the scaled number, as scores are"
    SHIFTED = "the number above the largest score, as where scores alone are shifted by that"


@dataclass(frozen=True)
class Use:
    """How the weight of a part is used; its bias, if it has one, is added to what it mixes or projects.

    Attributes:
        role: what it does.
        through: what is taken of it first.
        table: how it is read, if it is a table of distances.
    """

    role: Role
    through: Through = Through.NOTHING
    table: Table | None = None


OF_TRANSFORMER_XL = {
    Role.CONTENT: ("u", "u_bias", "bias_u", "pos_bias_u", "r_w_bias", "rw_bias", "content_bias"),
    Role.POSITION: ("v", "v_bias", "bias_v", "pos_bias_v", "r_r_bias", "rr_bias", "position_bias", "pos_bias"),
}
"""Names of the two biases of Transformer-XL."""
WRONG_BIASES = (
    *((Role.POSITION, Role.CONTENT), (Role.BOTH, Role.UNUSED), (Role.UNUSED, Role.BOTH)),
    *((Role.CONTENT, Role.UNUSED), (Role.UNUSED, Role.POSITION), (Role.UNUSED, Role.UNUSED)),
)
"""What becomes of these two where they are mistaken."""


def role_in_transformer_xl(path: str) -> Role | None:
    """Which of the two biases has this name; None where it is none of them."""
    name = path.rpartition(".")[2].lower()
    return next((role for role, names in OF_TRANSFORMER_XL.items() if name in names), None)


def in_named_roles(uses: Mapping[str, Use]) -> dict[str, Use]:
    """The uses, with the two biases of Transformer-XL in the roles that their names state."""
    of_biases = (Role.CONTENT, Role.POSITION)
    named = {path: role_in_transformer_xl(path) for path, use in uses.items() if use.role in of_biases}
    if {*named.values()} != {*of_biases}:
        return dict(uses)
    return {path: Use(role) if (role := named.get(path)) is not None else use for path, use in uses.items()}


RIGHT = {Use(Role.SCORES, wrong): Use(Role.SCORES, Through.EXPONENTIAL) for wrong in (Through.CAPPED, Through.TENTHS)}
"""Known mistakes in the use of a logarithm of a factor, with what is right."""
BOUND = re.compile(r"\b(?:100|0?\.01|1e-2)\b")
"""The largest factor, or the smallest temperature, as the text of a class names it: others are bounds of its own."""


def possible(path: str, shape: tuple[int, ...], heads: int, width: int) -> Iterator[Use]:
    """The uses of a weight of this name and shape, of a module with so many heads and of this width."""
    if (added := ADDED_TO.get(path.rpartition(".")[2])) and shape == (width,):
        yield Use(Role[added.upper()])
    if shape == (heads, heads):
        for role in (Role.BEFORE, Role.AFTER):
            yield from (Use(role), Use(role, Through.TRANSPOSED))
    of_heads = (heads, width // heads)
    tables = tables_of_shape(shape, heads, width) if shape != of_heads else ()
    yield from (Use(Role.TABLE, table=each) for each in tables)
    if shape == of_heads:
        named = role_in_transformer_xl(path) is not None
        yield from map(Use, (Role.CONTENT, Role.POSITION, *(() if named else (Role.QUERY, Role.VALUE))))
    if shape in ((heads, width), (width, width)):
        yield Use(Role.GATE, Through.SIGMOID)
    if shape == (heads,):
        yield from (
            Use(Role.SLOPE),
            Use(Role.SINK),
            *(Use(Role.HEADS, t) for t in (Through.NOTHING, Through.SIGMOID, Through.TANH)),
        )
    if shape in ((heads,), ()):
        yield from (Use(Role.SCORES, t) for t in (Through.NOTHING, Through.EXPONENTIAL))
        yield from RIGHT if path.endswith(LOG_SCALES) else ()
    if shape in ((width,), ()):
        yield from (Use(Role.OUTPUT, t) for t in (Through.NOTHING, Through.TANH, Through.SIGMOID))
    if shape == (width,):
        yield from (Use(Role.HEADS, t) for t in (Through.NOTHING, Through.SIGMOID))


@dataclass(frozen=True)
class Held:
    """The weight and the bias of a part, float64; without axes of one number."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def taken(self, through: Through) -> torch.Tensor:
        """The numbers of the weight as they are used."""
        match through:
            case Through.TRANSPOSED:
                return self.weight.mT
            case Through.EXPONENTIAL:
                return self.weight.exp()
            case Through.CAPPED:
                return self.weight.exp().clamp(max=math.log(100.0))
            case Through.TENTHS:
                return self.weight.clamp(max=math.log10(100.0)).exp()
            case Through.TANH:
                return self.weight.tanh()
            case Through.SIGMOID:
                return self.weight.sigmoid()
        return self.weight

    def mixed(self, heads: torch.Tensor, through: Through) -> torch.Tensor:
        """What it makes of (B, H, Lq, Lk)."""
        output: torch.Tensor = torch.einsum("gh,bhij->bgij", self.taken(through), heads)
        return output if self.bias is None else output + self.bias[:, None, None]

    def gates(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """(B, H, L, 1) or (B, H, L, d) of tokens (B, L, E)."""
        logits = nn.functional.linear(x, self.weight, self.bias)
        opened: torch.Tensor = logits.sigmoid().unflatten(-1, (heads, -1)).transpose(1, 2)
        return opened

    def sinks(self, through: Through, scores: torch.Tensor, width: int) -> torch.Tensor:
        """(B, H, Lq, 1), as they stand next to scores of heads of this width."""
        scale = width**-0.5 if through is Through.SCALED else 1.0
        most = scores.amax(-1, keepdim=True)
        return scale * self.weight[:, None, None] + (most if through is Through.SHIFTED else torch.zeros_like(most))

    def of_heads(self, through: Through, heads: int) -> torch.Tensor:
        """(H, 1, 1) or (H, 1, d)."""
        return self.taken(through).reshape(heads, 1, -1) if self.weight.ndim else self.taken(through)
