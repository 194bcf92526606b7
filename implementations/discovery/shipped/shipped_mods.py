"""Functions whose masks and biases are functions of the position of a score, as torch's flex_attention takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import SQUARE, Interface, Shipped
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional

torch = optional("torch")

HIDING = ("attn_mask", "key_padding_mask", "is_causal", "window_size", "query_segments", "key_segments")
"""Options of which a score is kept or not."""
SCORING = ("softcap", "alibi_slopes", "relative_bias", "query_start")
"""Options that change a score."""
SCORED = {**dict.fromkeys((*HIDING, "cu_seqlens_q", "cu_seqlens_k"), "block_mask"), "scale": "scale"}
SCORED |= dict.fromkeys(SCORING, "score_mod")
TOP_LEFT = {"causal-alignment": "top-left"}
IN_BLOCKS = "with several blocks of keys, of which some are full"
POSITIONS = 4
"""What a mask_mod is called with: numbers of sample, head, query and key. A score_mod has the score before them."""


def flex(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any], small: bool = False) -> Any:
    """Masks and biases as functions of the position of a score, and masks by blocks: one, or several `small` ones."""
    from attention_conformance.implementations.builtin.flex import (
        FlexCall,
        arguments,
        one_block,
        small_blocks,
        uncompiled,
    )
    from attention_conformance.implementations.builtin.inhouse.call_options import Options

    flag = {name: given for name, given in options.items() if name == "return_lse"}
    suite = {name: given for name, given in options.items() if name not in flag}
    grouped = query.shape[1] != key.shape[1]
    call = FlexCall(query, key, value, Options(**suite, enable_gqa=grouped))
    with uncompiled():
        return shipped.function(query, key, value, **arguments(call, small_blocks if small else one_block), **flag)


def with_mods(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """The same with a mask_mod as it is, in place of a mask by blocks, where the function takes one."""
    from attention_conformance.implementations.builtin.flex import (
        FlexCall,
        mask_mods,
        one_after_another,
        score_mods,
        seen_by_all,
    )
    from attention_conformance.implementations.builtin.inhouse.call_options import Options

    added = {"attn_mask": options["attn_bias"]} if "attn_bias" in options else {}
    scored = {name: given for name, given in options.items() if name in (*HIDING, *SCORING)}
    call = FlexCall(query, key, value, Options(**scored, **added))
    masks, mods = tuple(mask_mods(call)), tuple(score_mods(call))
    given: dict[str, Any] = {name: options[name] for name in ("scale", "return_lse") if name in options}
    if masks:
        given["mask_mod"] = partial(_at_tensors, seen_by_all(masks))
    if mods:
        given["score_mod"] = partial(_at_tensors, one_after_another(mods))
    if "enable_gqa" in shipped.names:
        given["enable_gqa"] = query.shape[1] != key.shape[1]
    return shipped.function(query, key, value, **given)


def _at_tensors(mod: Callable[..., Any], *place: Any) -> Any:
    """What it gives where a function calls it with numbers, too."""
    return mod(*map(torch.as_tensor, place))


@dataclass(eq=False)
class NeutralMods:
    """A mask_mod and a score_mod that change nothing.

    Attributes:
        counts: with how many numbers of a position they were called.
    """

    counts: set[int] = field(default_factory=set)

    def mask_mod(self, *place: Any) -> Any:
        """Every key may be seen."""
        self.counts.add(len(place))
        whole = sum(torch.as_tensor(each) for each in place[:POSITIONS])
        return whole >= 0

    def score_mod(self, score: Any, *place: Any) -> Any:
        """The score as it is."""
        self.counts.add(len(place))
        return score


def of_tensors(function: Callable[..., Any]) -> bool:
    """Whether it is none of JAX arrays, which raises with tensors and answers these."""
    query = torch.ones(SQUARE)
    if not safe_call(partial(function, query, query, query)).error or not (jax := optional("jax")):
        return True
    array = jax.numpy.ones(SQUARE)
    return bool(safe_call(partial(function, array, array, array)).error)


def by_position(function: Callable[..., Any]) -> bool:
    """Whether its mods are called with the four numbers of a position."""
    names = safe_call(lambda: {*signature(function).parameters}).value or set()
    query = torch.ones(SQUARE)
    for name in {"mask_mod", "score_mod"} & names:
        neutral = NeutralMods()
        outcome = safe_call(partial(function, query, query, query, **{name: getattr(neutral, name)}))
        if outcome.error or neutral.counts != {POSITIONS}:
            return False
    return True


MASKED = {**dict.fromkeys(HIDING, "mask_mod"), "scale": "scale"}
ADDED = {**dict.fromkeys((*SCORING, "attn_bias"), "score_mod"), "scale": "scale"}
NO_NUMBERS = frozenset({Feature.FLOAT_MASK, Feature.MASK_GRADIENT})
POSITIONAL = (
    Interface(
        "torch's flex_attention",
        frozenset({"query", "key", "value", "score_mod", "block_mask"}),
        flex,
        SCORED,
        TOP_LEFT,
        suits=of_tensors,
        ways={IN_BLOCKS: (frozenset(), partial(flex, small=True))},
    ),
    Interface(
        "flex_attention with score_mod and mask_mod",
        frozenset({"score_mod", "mask_mod"}),
        with_mods,
        MASKED | ADDED,
        TOP_LEFT,
        suits=by_position,
    ),
    Interface(
        "flex_attention with mask_mod",
        frozenset({"mask_mod"}),
        with_mods,
        MASKED,
        TOP_LEFT,
        lacks=NO_NUMBERS,
        suits=by_position,
    ),
    Interface("flex_attention with score_mod", frozenset({"score_mod"}), with_mods, ADDED, suits=by_position),
)
