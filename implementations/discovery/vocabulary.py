"""The vocabulary of callables: the parameter names that the suite knows, and what each of them means."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.features import Feature

INPUTS = ("query", "key", "value")
ROLES = {
    "query": {"q", "qs", "xq", "query", "queries"},
    "key": {"k", "ks", "xk", "key", "keys"},
    "value": {"v", "vs", "xv", "value", "values"},
}
"""Words in the names of inputs; one of them is a word of the parameter's name."""
HEAD_COUNTS = ("num_heads", "n_heads", "nheads", "n_head", "num_head", "heads", "h", "n_h")
"""Parameters that take the number of heads."""


def words_of(name: str) -> set[str]:
    """The words of a name in lower case, without numbers."""
    return set(re.split(r"[_\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


@dataclass(frozen=True)
class Option:
    """Something that a callable may take in addition to its inputs.

    Attributes:
        parameters: the parameters that take it, the preferred one first.
        features: what a callable that takes it claims.
        neutral: what a required parameter is given where a problem does not use it.
        unfelt: the array (heads -> array) that it is given there instead, if it is one.
    """

    parameters: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    neutral: object = None
    unfelt: Callable[[int], Any] = lambda heads: None


MASK_NAMES = (
    *("mask", "attention_mask", "self_attn_mask", "src_mask", "tgt_mask", "padding_mask", "pad_mask", "key_mask"),
    *("key_masks", "kv_mask", "x_mask", "input_mask", "src_key_padding_mask", "masks"),
)
"""Names of masks that state neither their form nor what True means in them."""
PADDING_NAMES = ("src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask")
"""Names of masks of keys in torch's layers of transformers, where there is another mask."""
OTHER_INPUTS = {
    *("context", "ctx", "memory", "mem", "encoder", "enc", "encoded", "source", "src", "cond"),
    *("decoder", "dec", "target", "tgt"),
}
"""Words in the names of another input, and of what belongs to it."""
MASK_WORDS = {
    *("token", "tokens"),
    *("mask", "masks", "attn", "att", "atten", "attention", "self", "cross", "pad", "padding", "padded", "valid"),
    *("k", "kv", "key", "keys"),
    *("x", "input", "inputs", "seq", "sequence", "node", "atom", "residue", "patch"),
    *("causal", "ltor", "sliding", "window", "additive", "extended", "float", "bool", "boolean"),
    *("pair", "pairs", "pairwise", "element", "elements", "item", "items"),
    *OTHER_INPUTS,
}
"""Words that other names of such masks consist of."""
PAIR_WORDS = {"pair", "pairs", "pairwise", "attn", "att", "atten", "attention"}
"""Words in the names of masks of queries and keys, where there are several masks."""
NAMES_OF_PADDING = ("pad", "padding", "padded", "is_pad", "is_padding", "key_padding", "key_pad", "src_padding")
"""Names of masks of padded keys that lack the word."""
LENGTH_NAMES = (
    *("lengths", "lens", "seq_lens", "seq_lengths", "sequence_lengths", "key_lengths", "key_lens", "kv_lengths"),
    *("kv_lens", "key_seq_lengths", "kv_seq_lengths", "key_value_seq_lengths", "input_lengths", "src_lengths"),
    *("context_lengths", "memory_lengths", "x_lengths", "x_lens"),
)
"""Names of lengths that promise nothing: they may count queries, or pad outputs."""
LENGTH_WORDS = {"lens", "lengths", "seqlens"}
KEY_WORDS = {"k", "key", "keys", "kv", "memory", "mem", "context", "ctx", "encoder", "enc"}
"""Words in the names of what is of keys and of nothing else."""
OF_COUNTED = KEY_WORDS | {"src", "source", "valid"}
"""Words of which other names of lengths of keys consist, next to that of lengths."""
OPTIONS: Mapping[str, Option] = {
    "bool_mask": Option(("attn_mask", *MASK_NAMES), (Feature.BOOL_MASK,)),
    "float_mask": Option(("attn_bias", "bias", "attn_mask", *MASK_NAMES), (Feature.FLOAT_MASK, Feature.MASK_GRADIENT)),
    "key_padding_mask": Option(("key_padding_mask",), (Feature.KEY_PADDING,)),
    "valid_lens": Option(("valid_lens", "valid_len", "valid_lengths", *LENGTH_NAMES), (Feature.VALID_LENS,)),
    "is_causal": Option(("is_causal", "causal"), (Feature.CAUSAL,), neutral=False),
    "scale": Option(("scale", "softmax_scale", "sm_scale", "scaling"), (Feature.SCALE,)),
    "need_weights": Option(("need_weights",), neutral=False),
    "average_attn_weights": Option(("average_attn_weights",)),
    "enable_gqa": Option(("enable_gqa",), (Feature.GROUPED,), neutral=False),
    **{
        name: Option((name, *others), () if number else (option.feature,), option.neutral, option.without_effect)
        for option in CASE_OPTIONS
        for number, (name, others) in enumerate(option.keywords.items())
    },
}
"""Options by the suite's own names.

A mask is passed under the same name, be it boolean or float. Where there is a parameter for a bias, float masks go
there; a bias alone takes no boolean mask.
"""
KNOWN_NAMES: Mapping[str, str] = {name: option for option, entry in OPTIONS.items() for name in entry.parameters}
"""Every known parameter name, and an option that it takes."""

BOOLEAN_MASKS = {"bool_mask", "key_padding_mask"}
"""Options that hide keys by a boolean mask."""


def unfelt(name: str, heads: int) -> Any:
    """The array for so many heads that changes nothing in a parameter of a known name; None for any other."""
    return OPTIONS[KNOWN_NAMES[name]].unfelt(heads) if name in KNOWN_NAMES else None


def is_open_mask(name: str) -> bool:
    """Whether a mask of this name hides keys, and states neither its form nor what True means in it."""
    words = {*name.lower().split("_")}
    of_mask = bool(words & {"mask", "masks"}) and words <= MASK_WORDS
    return name in MASK_NAMES or (name not in KNOWN_NAMES and (of_mask or name.lower() in NAMES_OF_PADDING))


OF_SCORES = {
    *("position", "positional", "pos", "relative", "rel", "distance", "pair", "spatial"),
    *("attn", "attention", "score", "scores", "logits"),
}
"""Words in the names of biases of scores."""


def is_bias_of_scores(name: str) -> bool:
    """Whether a name states that numbers are added to the scores."""
    words = words_of(name)
    return ("bias" in words and bool(words & OF_SCORES)) or "rpb" in words


def promises_nothing(mask: str) -> bool:
    """Whether this name of a mask, by its words or by what was seen, states neither its form nor what True means."""
    return mask in MASK_NAMES or (mask != "" and mask not in KNOWN_NAMES)


def mask_by_words(names: Sequence[str]) -> str:
    """The mask among unknown names that is the only one by its words, or the only one of pairs; empty for none."""
    masks = [name for name in names if is_open_mask(name)]
    of_pairs = [name for name in masks if {*name.lower().split("_")} <= PAIR_WORDS | {"mask", "masks"}]
    chosen = masks if len(masks) == 1 else of_pairs
    return chosen[0] if len(chosen) == 1 else ""


def counts_keys(name: str) -> bool:
    """Whether an unknown name is one of lengths of keys by its words."""
    words = {*name.lower().split("_")}
    return name not in KNOWN_NAMES and bool(words & LENGTH_WORDS) and bool(words <= LENGTH_WORDS | OF_COUNTED)


def by_words(names: Sequence[str]) -> dict[str, str]:
    """What unknown ones among the names of parameters take: the one mask, and the one array of lengths."""
    mask = "" if {*names} & {*MASK_NAMES, "attn_mask", "key_padding_mask"} else mask_by_words(names)
    counts = [] if {*names} & {*LENGTH_NAMES} else [name for name in names if counts_keys(name)]
    lengths = {counts[0]: "valid_lens"} if len(counts) == 1 else {}
    return lengths | ({mask: "bool_mask"} if mask else {})


TAKEN_BY = {"bool_mask": ("bool_mask", "float_mask"), "valid_lens": ("valid_lens",)}
"""The options that such a parameter takes."""
PARTNERS = {
    "query_segments": "key_segments",
    "cu_seqlens_q": "cu_seqlens_k",
    "query_positions": "key_positions",
    "query_norm": "key_norm",
    "rotary_cos": "rotary_sin",
}
"""An option about queries, and the one about keys that it needs."""
FOR_BOTH = {"query_segments": "segment_ids", "query_positions": "position_ids"}
"""Options about queries, and names of theirs that mean queries and keys alike."""
DISPENSABLE = ("enable_gqa", "key_segments", "key_positions", "rotary_dim")
"""Options that are left out where a callable has no parameter for them: shapes, or the ids of queries, imply them."""
WEIGHTS_RETURNED: Mapping[str, object] = {"need_weights": True, "average_attn_weights": False}
"""What makes a callable return the weights of each head."""
KWARGS_OF_FORWARD = {"bool_mask": "attn_mask", "float_mask": "attn_mask", "is_causal": "is_causal"}
"""Options that the **kwargs of a forward may take, and their names there; a call shows whether they have an effect."""
NAMED_ALONE = ("w_uk", "cache_batch_idx")
"""Who takes latents, or rows of a cache, names them."""
KWARGS_OF_FUNCTION = KWARGS_OF_FORWARD | {
    option: option
    for option, entry in OPTIONS.items()
    if (entry.features or option in PARTNERS.values())
    and option not in ("bool_mask", "float_mask", "key_padding_mask", "valid_lens", "training", *NAMED_ALONE)
}
"""The same for functions."""


class MaskForm(StrEnum):
    """The shape in which a callable takes attention masks."""

    GIVEN = "any shape that broadcasts to (B, H, Lq, Lk)"
    WHOLE_KEYS = "any shape that broadcasts to (B, H, Lq, Lk), with each key in its last axis"
    FULL = "(B, H, Lq, Lk)"
    ONE_HEAD = "(B, 1, Lq, Lk)"
    FLAT = "(B * H, Lq, Lk)"
    SAMPLE = "(B, Lq, Lk)"
    NO_HEADS = "(B, Lq, Lk) where all heads have the same mask, any other shape elsewhere"
    LENGTHS_FIRST = "(Lq, Lk, B)"
    SHARED = "(Lq, Lk)"
    HEADS = "(H, Lq, Lk)"
    ONE_SAMPLE = "(1, H, Lq, Lk)"
    EITHER = "(Lq, Lk) where it is the same for all samples and heads, (B * H, Lq, Lk) elsewhere"


class KeysForm(StrEnum):
    """The shape in which a callable takes masks of keys."""

    SAMPLES = "(B, Lk)"
    PER_HEAD = "(B, 1, Lk)"
    LENGTHS_FIRST = "(Lk, B)"
