"""The names that constructors give to sizes, and objects of settings that are filled by such names."""

from __future__ import annotations

import inspect
import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import partial
from math import isqrt
from typing import Any, get_type_hints

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.modules.default_settings import (
    OF_SETTINGS,
    class_of_settings,
    usual_settings,
)
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS

LONGEST = 2048
"""Tokens that a module is built for, where it is built for a number of them."""
FEW_HEADS, MANY_HEADS = 8, 32
"""More heads are built for fewer tokens: each may have a square table of its own, and 256 of them take gigabytes."""
MOST_SAMPLES = 16
"""Samples that a module is built for, where it is built for a number of them."""


class Size(StrEnum):
    """What a parameter of a constructor counts."""

    WIDTH = "width of the inputs"
    HEADS = "heads"
    HEAD_WIDTH = "width of a head"
    LENGTH = "tokens"
    SAMPLES = "samples"
    RATE = "rate of dropout"
    BIAS = "whether there are biases"
    FLAG = "whether something more is done"
    BASE = "base of the rotary embedding"
    NOTHING = "what is left out"
    LAYER = "a linear layer"
    ROTATION = "an object that rotates nothing"
    COSINES_SINES = "an object that gives cosines 1 and sines 0"
    TURNS = "a table of complex ones"
    WINDOW = "a window of one row with all tokens"
    WINDOW_SIDE = "side of a square window of all tokens"
    WINDOW_SIDES = "both sides of a square window of all tokens"
    TOKENS = "the number of its tokens, no other"


NAMES: Mapping[Size, tuple[str, ...]] = {
    Size.WIDTH: (
        *("embed_dim", "embedding_dim", "emb_dim", "embed_size", "emb_size", "emb", "n_embd", "d_embed", "d_model"),
        *("model_dim", "model_dimension", "d_hidden", "dim", "hidden_dim", "hidden_size", "n_state", "n_feat", "d_in"),
        *("d_out", "in_features", "in_dim", "input_dim", "output_dim", "out_dim", "width", "num_hiddens", "n_embed"),
        *("embeded_size", "embedding_size", "input_size", "output_size", "dim_in", "dim_out", "d_input", "d_output"),
        *("query_size", "key_size", "value_size", "channels", "in_channels", "units", "num_units", "dims", "embed"),
        *("hidden", "out_features", "inner_dim", "attn_dim", "attention_dim", "qkv_dim", "model_size", "feature_dim"),
        *("query_dim", "key_dim", "value_dim", "features", "n_emb", "n_dim", "num_features", "hid_dim", "d_emb"),
        *("in_size", "out_size", "nx", "n_dims"),
    ),
    Size.HEADS: (
        *HEAD_COUNTS,
        *("num_attention_heads", "number_of_heads", "head_num", "heads_count", "nb_heads"),
        *("heads_num", "nhead", "n_attention_heads", "num_attn_heads", "attention_heads"),
        *("attn_heads", "head_count", "head_number", "n_local_heads", "no_heads"),
    ),
    Size.HEAD_WIDTH: (
        "head_dim",
        "dim_head",
        "d_head",
        "head_width",
        "dim_per_head",
        "d_k",
        "d_v",
        "d_q",
        "d_keys",
        "d_kv",
        "query_pre_attn_scalar",
        *("q", "k", "v"),
    ),
    Size.LENGTH: (
        *("context_length", "context_size", "block_size", "ctx_len", "n_ctx", "seq_len", "seq_length", "window"),
        *("max_len", "max_length", "max_seq_len", "max_seq_length", "max_positions", "max_sequence_length", "seq_size"),
        *("max_position_embeddings", "maximum_sequence_length", "n_timesteps", "num_timesteps", "timesteps"),
        *("context_window", "ctx_window"),
    ),
    Size.SAMPLES: ("max_batch_size", "batch_size", "max_batch", "max_bs"),
    Size.BIAS: ("bias", "qkv_bias", "use_bias", "attention_bias"),
    Size.BASE: ("theta", "rope_theta", "rotary_theta", "rope_base", "rotary_base", "freq_base", "theta_base"),
}
BY_NAME = {name: size for size, names in NAMES.items() for name in names}
LAYERS = {"layer_idx": 0, "layer_id": 0, "layer_index": 0, "layer_number": 1, "layer_num": 1}
"""Names of the number of the layer that a module is, and that of the first."""
OF_INPUT = re.compile(r"(?:query|key|value|attention|attn)_(\w+_\w+)$")
"""The name of a width after that of an input, or of attention: `query_embed_dim`."""
ROTATIONS = (Size.ROTATION, Size.COSINES_SINES, Size.TURNS)
"""What a constructor may be given in place of rotations that are made elsewhere."""
SQUARES = (Size.WINDOW_SIDE, Size.WINDOW_SIDES)
"""What states a square window."""
IMAGE_SIDES = {"width", "height"}
"""Names of two sides of an image, where both are there; one alone may be a width of channels."""
EXACT = (*SQUARES, Size.TOKENS)
WINDOWS = (Size.WINDOW, *EXACT)
"""What states the number of tokens that a module takes; the exact ones are a premise."""
SQUARE = 16
"""Tokens of a square window."""
ROTARY = {"rope", "rotary", "rot", "freqs", "freq", "cis"}
"""Words in the names of such parameters."""
FLAGS = ("log_", "use_", "return_", "store_", "save_", "output_att", "vis", "verbose")
"""How the names of flags begin; a flag is given only where it has to be."""
NESTED = ("transformer", "model", "attention", "attn", "text_config", "attn_config", "attention_config")
"""Settings that are objects of settings themselves."""


def size_of(name: str) -> Size | None:
    """What the parameter or setting of this name counts, if that is known."""
    lower = name.lower()
    if "drop" in lower:
        return Size.RATE
    short = re.sub(r"dimensions?(?=_|$)", "dim", lower)
    known = Size.WIDTH if name in ("dim_Q", "dim_K", "dim_V") else BY_NAME.get(lower, BY_NAME.get(short))  # of sets
    of_input = OF_INPUT.match(lower)
    if known is None and of_input and BY_NAME.get(of_input[1]) is Size.WIDTH:
        known = Size.WIDTH
    return Size.FLAG if lower.startswith(FLAGS) else known


def longest(heads: int) -> int:
    """Tokens that a module of so many heads is built for."""
    return LONGEST if heads <= FEW_HEADS else LONGEST // 2 if heads <= MANY_HEADS else LONGEST // 8


def value_of(size: Size, width: int, heads: int, tokens: int = 0) -> object:
    """What it is where all heads together are as wide as the inputs, and a window has so many tokens."""
    if size in ROTATIONS:
        from attention_conformance.implementations.discovery.modules.unrotated import rotating_nothing  # imports torch

        return rotating_nothing(size is Size.TURNS, size is Size.COSINES_SINES, LONGEST, width // max(1, heads))
    if size is Size.LAYER:
        from torch import nn  # only here: names are looked at without torch, too

        return nn.Linear(width, width)
    return {
        Size.WIDTH: width,
        Size.HEADS: heads,
        Size.HEAD_WIDTH: width // max(1, heads),
        Size.LENGTH: longest(heads),
        Size.SAMPLES: MOST_SAMPLES,
        Size.RATE: 0.0,
        Size.BIAS: True,
        Size.FLAG: False,
        Size.BASE: 10000.0,
        Size.NOTHING: None,
        Size.WINDOW: (1, tokens),
        Size.TOKENS: tokens,
        Size.WINDOW_SIDE: isqrt(tokens),
        Size.WINDOW_SIDES: (isqrt(tokens),) * 2,
    }[size]


USUAL: Mapping[str, object] = {
    **dict.fromkeys(("eps", "norm_eps", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), 1e-6),
    "device": "cpu",
    "dtype": None,
    "_attn_implementation": "eager",
    **dict.fromkeys(("rope_scaling", "quantization_config")),
    **dict.fromkeys(("initializer_range", "init_range", "init_std", "initializer_std"), 0.02),
}
"""Settings that are no sizes."""
GROUPS = (
    *("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads", "n_kv_head", "n_query_groups", "query_groups"),
    *("num_query_groups", "num_kv_groups", "n_kv_groups", "kv_groups", "n_kv", "n_local_kv_heads"),
    *("num_groups", "n_groups", "num_query_head_groups", "kv_head_num", "n_heads_kv", "num_heads_kv"),
    *("kv_n_heads", "kv_num_heads", "num_kv_head", "kv_nheads", "nheads_kv", "num_key_value_head", "key_value_heads"),
)


MODEL_PARTS = {"lm", "vit", "llm", "gpt", "bert", "text", "vision", "audio", "image", "encoder", "decoder"}
"""Parts of models whose settings are of one object, each with its part first."""


OF_ROTATIONS = ("rotary_dim", "rotary_ndims", "rot_dim", "rope_dim")
"""Names of the width of a head that is rotated; that is all of it where nothing states how much."""
NOTHING_CHANGED: Mapping[str, object] = {}


class Settings:
    """An object of settings: it has every one whose name is known, as an attribute and by key.

    Of the others it has those of an object of defaults, and where `lenient` all, too: what the code of a class compares
    it with, or False. What is `changed` comes before all.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        lenient: bool = False,
        defaults: object = None,
        kind: object = None,
        kv_heads: int = 0,
        changed: Mapping[str, object] = NOTHING_CHANGED,
    ) -> None:
        self._sizes = (width, heads)
        self._kv_heads = kv_heads or heads
        self._lenient = lenient
        self._defaults = defaults
        self._kind = kind
        self._changed = changed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in USUAL:
            raise AttributeError(name)  # copy and pickle look for methods before there is an attribute
        if name in self._changed:
            return self._changed[name]
        if name in NESTED or _has_settings(self._kind, name):
            return self
        if name in USUAL:
            return USUAL[name]
        if name in GROUPS or of_part(name) in GROUPS:
            return self._kv_heads
        if (size := setting_size(name)) is None:
            if hasattr(self._defaults, name):
                return getattr(self._defaults, name)
            if self._lenient:
                whole = value_of(Size.HEAD_WIDTH, *self._sizes)
                return whole if name in OF_ROTATIONS else compared(self._kind, name)
            raise AttributeError(f"the setting {name!r} is not known")
        return value_of(size, *self._sizes)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return getattr(self, name, default)


def _has_settings(kind: object, name: str) -> bool:
    """Whether the code of a class reads settings of the setting of this name: `cfg.position.max_len`."""
    return re.search(rf"\b(?:{'|'.join(sorted(OF_SETTINGS))})\.{name}\.\w+\b(?!\()", code_of(kind)) is not None


def setting_size(name: str) -> Size | None:
    """As `size_of`; an object of settings may have the letters of equations, and name a part of a model first."""
    own = OF_SETTINGS_ALONE.get(name) or OF_SETTINGS_ALONE.get(name.lower())
    return own or size_of(name) or size_of(of_part(name))


OF_SETTINGS_ALONE = {
    **dict.fromkeys("DdEC", Size.WIDTH),
    "multi_head": Size.HEADS,
    **dict.fromkeys(("hidden_size_head", "hidden_size_per_head", "key_size", "value_size"), Size.HEAD_WIDTH),
}
"""Names that state a size in an object of settings, and elsewhere need not."""


def of_part(name: str) -> str:
    """The name of a setting without that of the part of a model that it is for; the same where it states none."""
    part, _, rest = name.partition("_")
    return rest if part.lower() in MODEL_PARTS else name


def compared(kind: Any, name: str) -> object:
    """What an unknown name may be.

    What the code of a class takes where it is missing, the first text that it compares it with, or else None or False;
    True for a flag that scores are scaled.
    """
    text = code_of(kind)
    if (missing := settings_read(kind, "config").get(name, inspect.Parameter.empty)) is not inspect.Parameter.empty:
        return missing
    words = {*name.lower().split("_")}
    if "scale" in words and words & OF_SCORES and words <= OF_SCORES | {"scale", "use", "do"}:
        return True
    nothing = None if re.search(rf"\b{name}\s+is\s+(?:not\s+)?None\b", text) else False
    return next(iter(texts_compared(kind, name)), nothing)


OF_SCORES = {"attn", "attention", "weights", "scores", "qk", "dot", "product", "logits"}
"""Words in the names of flags that scores are scaled."""


def texts_compared(kind: Any, name: str) -> list[str]:
    """The texts that the code of a class compares a name with, each once."""
    text = code_of(kind)
    found = re.finditer(rf"\b{name}\s*(?:==|!=|(?:not\s+)?in)\s*[\[({{]?\s*([\"'])([\w-]+)\1", text)
    return list(dict.fromkeys(each.group(2) for each in found))


MANGLED = re.compile(r"_\w*?[a-zA-Z]\w*?(?=__[cC]\w*$)")
"""What Python puts before the name of a parameter such as `__C`, which some give settings."""


def settings_parameter(signature: inspect.Signature) -> str:
    """The one parameter that is an object of settings, which may be left out where it alone has the sizes."""
    own = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in own if p.default is p.empty and size_of(p.name) is not Size.FLAG]
    if not needed and not {Size.WIDTH, Size.HEADS} & {size_of(name) for name in signature.parameters}:
        needed = [p.name for p in own if p.default is None or hasattr(p.default, "__dict__")]
    named = [name for name in needed if OF_SETTINGS & set(name.lower().split("_")) or MANGLED.match(name)]
    return named[0] if len(named) == 1 else ""


def settings_of(
    kind: Any,
    name: str,
    width: int,
    heads: int,
    lenient: bool = False,
    kv_heads: int = 0,
    changed: Mapping[str, object] = NOTHING_CHANGED,
) -> object:
    """The object for a class: of the dataclass that its constructor names, or one that has whatever is known.

    It has as many heads of keys and values as of queries where `kv_heads` is 0, and what is `changed`.
    """
    hint = class_of_settings(kind, name)
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return Settings(width, heads, lenient, usual_settings(kind, name, hint), kind, kv_heads, changed)
    named = {each.name: size for each in fields(hint) if (size := setting_size(each.name)) and each.init}
    given = {name: value_of(size, width, heads) for name, size in named.items() if size is not Size.BIAS}
    given |= {each.name: kv_heads or heads for each in fields(hint) if each.name in GROUPS and each.init}
    usual = {each.name for each in fields(hint) if each.default is MISSING or each.name == "device"}
    given |= {name: USUAL[name] for name in sorted(usual) if name in USUAL}
    lacking = [f for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING]
    rest = {n: _usual(hint, f, named, width, heads) for f in lacking if (n := f.name) not in given}
    made = safe_call(partial(hint, **{**given, **rest, **changed}))
    if not made.error:
        return made.value
    counted = {each.name: 1 for each in fields(hint) if each.init and _may_count(each, rest) and each.name not in named}
    return hint(**{**given, **rest, **counted, **changed})  # which it may refuse to be none


OF_LENGTHS = {"tokens", "length", "len", "context", "seq", "positions", "ctx"}
"""Words in the names of numbers of tokens that a dataclass of settings needs."""


def _usual(hint: type, needed: Field[Any], named: Mapping[str, Size], width: int, heads: int) -> object:
    """What a field is that a dataclass of settings needs: a size, or the first of the texts that its code knows."""
    if needed.name in named:
        return value_of(named[needed.name], width, heads)
    if {*needed.name.lower().split("_")} & OF_LENGTHS and "int" in _type_of(needed):
        return longest(heads)
    return next(iter(texts_compared(hint, needed.name)), False)


def _may_count(option: Field[Any], needed: Mapping[str, object]) -> bool:
    """Whether a field of unknown name is a number: one that is needed, or stated to be one, and none by default."""
    return needed.get(option.name, True) is False or (option.default is None and "int" in _type_of(option))


def _type_of(option: Field[Any]) -> str:
    return option.type.__name__ if isinstance(option.type, type) else str(option.type)


def options_of_settings(kind: Any, name: str, lenient: bool) -> list[inspect.Parameter]:
    """The settings that a class reads and that are no sizes, with what they are by default."""
    usual = settings_of(kind, name, 12, 3, lenient)
    kinds = safe_call(lambda: get_type_hints(type(usual))).value or {}
    read = {each: getattr(usual, each, default) for each, default in settings_read(kind, name).items()}
    others = {each: default for each, default in read.items() if default is not inspect.Parameter.empty}
    return [
        inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds.get(each, ""))
        for each, default in others.items()
        if not (each in USUAL or each in GROUPS or each in NESTED or setting_size(each) or callable(default))
    ]


def settings_read(kind: Any, name: str) -> dict[str, object]:
    """The settings that the code of a class reads, and what it takes for one that is missing, where that is written."""
    text = code_of(kind)
    settings = rf"\b(?:{re.escape(MANGLED.sub('', name))}|config|cfg)"
    found = re.findall(rf"{settings}(?:\.|\[[\"'])(\w+)\b(?!\()", text)
    either = rf"(?:getattr\(\s*(?:self\.)?{settings}\s*,|{settings}\.get\()\s*[\"'](\w+)[\"']\s*,\s*([^()]*?)\s*\)"
    missing = {each: safe_call(partial(literal_eval, value)) for each, value in re.findall(either, text)}
    defaults = {each: inspect.Parameter.empty if value.error else value.value for each, value in missing.items()}
    return dict.fromkeys(found, inspect.Parameter.empty) | defaults
