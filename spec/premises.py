"""Premises: what an implementation always does, whether it is given as an option or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, QkNorm


class Premise(StrEnum):
    """One thing that an implementation always does."""

    CAUSAL = "causal"
    """No query sees a later key."""
    WINDOW = "window"
    """LEFT:RIGHT: no query sees farther; an empty side has no limit."""
    SOFTCAP = "softcap"
    """Scores are kept below this bound by a hyperbolic tangent."""
    ROTARY = "rotary"
    """BASE or BASE:DIM: query and key are rotated, with this base, in so many of their components."""
    QK_NORM = "qk-norm"
    """EPSILON, which is added to the mean square, or `default`: queries and keys are normalised."""
    ALIBI = "alibi"
    """Scores fall with the distance of a key, by the slopes of ALiBi: 2 ** (-8 h / H) for heads 1 to H; `interleaved`
    for 3 and 6 heads, too."""
    RELATIVE_BIAS = "relative-bias"
    """A table of biases is added to the scores; the largest distance with an entry of its own."""
    ZERO_ATTN = "zero-attn"
    """A key and value of zeros, which every query sees, join those given: each softmax has one more term, exp(0)."""
    SCALE = "scale"
    """Scores are multiplied by this number, not by 1/sqrt(d_k)."""
    LENGTH = "length"
    """Every sequence has this length."""
    BLOCK = "block"
    """Every length is a multiple of this one."""


@dataclass(frozen=True)
class Premises:
    """What an implementation always does; the default is nothing. Every case is run, and solved, under its premises.

    Attributes:
        causal: no query sees a later key.
        alibi: scores fall with the distance of a key, by the slopes of ALiBi for 1, 2, 4 or 8 heads: these are exact in
            each dtype, and of other numbers there are several rules.
        interleaved: with `alibi`: by the slopes of the rule `alibi-rule=interleaved` for 3 and 6 heads, too, which are
            exact as well.
        window_left, window_right, softcap, rotary_base, rotary_dim, relative_bias: as in `Extension`.
        qk_norm: queries and keys are normalised.
        norm_epsilon: as in `Extension`.
        zero_attn: as in `Extension`.
        scale: multiplies the scores; None is 1/sqrt(d_k).
        length, block: tokens; 0: free.
    """

    causal: bool = False
    alibi: bool = False
    interleaved: bool = False
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    rotary_base: float | None = None
    rotary_dim: int | None = None
    qk_norm: bool = False
    norm_epsilon: float | None = None
    relative_bias: int = 0
    zero_attn: bool = False
    scale: float | None = None
    length: int = 0
    block: int = 0

    @property
    def hides_later(self) -> bool:
        """Whether no query sees a later key: by the flag, or by a window that ends at the query."""
        return self.causal or self.window_right == 0

    @property
    def _settings(self) -> dict[Premise, Any]:
        sides = (self.window_left, self.window_right)
        return {
            Premise.CAUSAL: self.causal or None,
            Premise.WINDOW: None if sides == (None, None) else sides,
            Premise.SOFTCAP: self.softcap,
            Premise.ROTARY: self.rotary_base if self.rotary_dim is None else (self.rotary_base, self.rotary_dim),
            Premise.QK_NORM: (DEFAULT if self.norm_epsilon is None else self.norm_epsilon) if self.qk_norm else None,
            Premise.ALIBI: (INTERLEAVED if self.interleaved else True) if self.alibi else None,
            Premise.RELATIVE_BIAS: self.relative_bias or None,
            Premise.ZERO_ATTN: self.zero_attn or None,
            Premise.SCALE: self.scale,
            Premise.LENGTH: self.length or None,
            Premise.BLOCK: self.block or None,
        }

    @property
    def names(self) -> frozenset[Premise]:
        """The premises that hold."""
        return frozenset(name for name, value in self._settings.items() if value is not None)

    @property
    def features(self) -> frozenset[Feature]:
        """What holds of a feature's every case without an option: a flag that is always set, and norms."""
        held = {Feature.CAUSAL: self.causal, Feature.QK_NORM: self.qk_norm}
        return frozenset(feature for feature, holds in held.items() if holds)

    def settings(self) -> tuple[str, ...]:
        """The premises as the option --premise takes them: `causal`, `softcap=30`, `window=8:`."""
        return tuple(_text(name, value) for name, value in self._settings.items() if value is not None)

    def assuming(self, settings: Iterable[str]) -> Premises:
        """These premises and more.

        Raises:
            ValueError: a premise that does not exist, or a value that it cannot have.
        """
        changes: dict[str, Any] = {}
        for setting in settings:
            changes |= _parsed(setting)
        return replace(self, **changes)

    def under(self, case: Case) -> Case:
        """The case that is run where this one is to be: the same, with what is always done."""
        if self == NO_PREMISES:
            return case
        option = {name: getattr(self, name) for name in _EXTENSION if getattr(self, name)}
        if Premise.WINDOW in self.names:
            option |= {"window_left": self.window_left, "window_right": self.window_right}
        if self.qk_norm:
            option |= {"qk_norm": QkNorm.HEAD, "norm_epsilon": self.norm_epsilon}
        if self.alibi:
            option |= {"alibi": True, "usual_slopes": True}
        changed = replace(case, causal=case.causal or self.causal)
        if self.scale is not None:
            changed = replace(changed, scale=self.scale)
        return self._sized(changed.extended(**option) if option else changed)

    def _sized(self, case: Case) -> Case:
        s = case.sizes
        if self.alibi:
            heads = _sloped(s.num_heads, self.interleaved)
            groups = [n for n in range(1, s.num_kv_heads + 1) if heads % n == 0]
            case = case.sized(num_heads=heads, num_kv_heads=max(groups, default=0))
        if self.length:
            return case.sized(query_length=self.length, key_length=self.length)
        if self.block:
            lengths = {n: -(-getattr(s, n) // self.block) * self.block for n in ("query_length", "key_length")}
            return case.sized(**lengths)
        return case

    def implies(self, feature: Feature) -> bool:
        """Whether a case may have this feature because of a premise, and not as an option of the caller."""
        of_a_part = feature is Feature.PARTIAL_ROTARY and self.rotary_dim is not None
        of_a_norm = feature is Feature.NORM_EPSILON and self.qk_norm
        return of_a_part or of_a_norm or feature in {_OPTION[name] for name in self.names if name in _OPTION}


def _sloped(heads: int, interleaved: bool) -> int:
    """The nearest number of heads with slopes that are powers of two, of several rules only one that is known."""
    if not heads:
        return 0
    numbers = (1, 2, 3, 4, 6, 8) if interleaved else (1, 2, 4, 8)
    return next((n for n in numbers if n >= heads), 6 if interleaved else 8)


NO_PREMISES = Premises()
FLAGS = {Premise.CAUSAL: "causal", Premise.ALIBI: "alibi", Premise.ZERO_ATTN: "zero_attn"}
"""Premises without a value: their fields."""
_EXTENSION = ("softcap", "rotary_base", "rotary_dim", "relative_bias", "zero_attn")
_OPTION = {
    Premise.CAUSAL: Feature.CAUSAL,
    Premise.WINDOW: Feature.WINDOW,
    Premise.SOFTCAP: Feature.SOFTCAP,
    Premise.ROTARY: Feature.ROTARY,
    Premise.QK_NORM: Feature.QK_NORM,
    Premise.RELATIVE_BIAS: Feature.RELATIVE_BIAS,
    Premise.ALIBI: Feature.ALIBI,
    Premise.ZERO_ATTN: Feature.ZERO_ATTN,
    Premise.SCALE: Feature.SCALE,
}
_VALUES = {
    Premise.SOFTCAP: ("softcap", float),
    Premise.ROTARY: ("rotary_base", float),
    Premise.RELATIVE_BIAS: ("relative_bias", int),
    Premise.SCALE: ("scale", float),
    Premise.LENGTH: ("length", int),
    Premise.BLOCK: ("block", int),
}
"""Premises with a number: their fields."""
FREE = {Premise.SCALE}
"""Premises whose number may be zero or negative."""
DEFAULT = "default"
"""The epsilon of norms that is not given."""
INTERLEAVED = "interleaved"
"""The rule of slopes that holds for more numbers of heads than powers of two."""


def _text(name: Premise, value: Any) -> str:
    if value is True:
        return str(name)
    if value in (DEFAULT, INTERLEAVED):
        return f"{name}={value}"
    if name is Premise.WINDOW:
        return f"{name}={':'.join('' if side is None else str(side) for side in value)}"
    if isinstance(value, tuple):
        return f"{_text(name, value[0])}:{value[1]}"
    short = f"{value:g}"
    return f"{name}={short if float(short) == value else repr(value)}"


def _parsed(setting: str) -> dict[str, Any]:
    key, _, value = setting.partition("=")
    if key not in list(Premise):
        near = get_close_matches(key, list(Premise), 1)
        meant = f"did you mean '{near[0]}'? There are" if near else "there are"
        raise ValueError(f"no premise is named {key!r}; {meant}: {', '.join(Premise)}")
    name = Premise(key)
    if name is Premise.ALIBI and value == INTERLEAVED:
        return {"alibi": True, "interleaved": True}
    if name in FLAGS:
        if value:
            raise ValueError(f"premise {name} takes no value, not {value!r}")
        return {FLAGS[name]: True}
    try:
        several = _PARSED.get(name)
        return several(value) if several else _number(name, value)
    except ValueError:
        example = _EXAMPLES.get(name, "a positive number")
        raise ValueError(f"premise {name} cannot be {value!r}: give {example}") from None


def _window(value: str) -> dict[str, Any]:
    left, colon, right = value.partition(":")
    sides = [int(side) if side else None for side in (left, right)]
    if not colon or sides == [None, None] or any(side is not None and side < 0 for side in sides):
        raise ValueError
    return {"window_left": sides[0], "window_right": sides[1]}


def _number(name: Premise, value: str) -> dict[str, Any]:
    field, kind = _VALUES[name]
    number = kind(value)
    if not (number > 0 or name in FREE) or number in (float("inf"), float("-inf")):
        raise ValueError
    return {field: number}


def _rotary(value: str) -> dict[str, Any]:
    base, colon, dim = value.partition(":")
    if colon and (int(dim) <= 0 or int(dim) % 2):
        raise ValueError
    return _number(Premise.ROTARY, base) | ({"rotary_dim": int(dim)} if colon else {})


def _qk_norm(value: str) -> dict[str, Any]:
    epsilon = None if value == DEFAULT else float(value)
    if epsilon is not None and not 0.0 <= epsilon < float("inf"):
        raise ValueError
    return {"qk_norm": True, "norm_epsilon": epsilon}


_PARSED: dict[Premise, Callable[[str], dict[str, Any]]] = {
    Premise.WINDOW: _window,
    Premise.ROTARY: _rotary,
    Premise.QK_NORM: _qk_norm,
}
"""Premises with more than a number."""
_EXAMPLES = {
    Premise.WINDOW: "8:0, or 8: without a limit to the right",
    Premise.QK_NORM: "an epsilon, or default",
    Premise.ROTARY: "a positive number, or 10000:32 where an even number of components is rotated",
}
