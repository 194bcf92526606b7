"""The names that constructors give to sizes, and objects of settings that are filled by such names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_type_hints

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS

LONGEST = 2048
"""Tokens that a module is built for, where it is built for a number of them."""
FEW_HEADS = 32
"""More heads are built for fewer tokens: each may have a square table of its own, and 256 of them take gigabytes."""


MOST_SAMPLES = 64
"""Samples that a module is built for, where it is built for a number of them."""


class Size(StrEnum):
    """What a parameter of a constructor counts."""

    WIDTH = "width of the inputs"
    HEADS = "heads"
    HEAD_WIDTH = "width of a head"
    LENGTH = "tokens"
    RATE = "rate of dropout"
    BIAS = "whether there are biases"
    FLAG = "whether something more is done"
    NOTHING = "what is left out"


NAMES: Mapping[Size, tuple[str, ...]] = {
    Size.WIDTH: (
        *("embed_dim", "embedding_dim", "emb_dim", "embed_size", "emb_size", "emb", "n_embd", "d_embed", "d_model"),
        *("model_dim", "model_dimension", "d_hidden", "dim", "hidden_dim", "hidden_size", "n_state", "n_feat", "d_in"),
        *("d_out", "in_features", "in_dim", "input_dim", "output_dim", "out_dim", "width", "num_hiddens", "n_embed"),
        *("embeded_size", "embedding_size", "input_size", "output_size", "dim_in", "dim_out", "d_input", "d_output"),
        *("query_size", "key_size", "value_size", "channels", "in_channels", "units", "num_units", "dims", "embed"),
        *("hidden", "out_features", "inner_dim", "attn_dim", "attention_dim", "qkv_dim", "model_size", "feature_dim"),
        *("query_dim", "key_dim", "value_dim", "features"),
    ),
    Size.HEADS: (
        *HEAD_COUNTS,
        *(
            "num_attention_heads",
            "number_of_heads",
            "head_num",
            "heads_count",
            "nb_heads",
            "heads_num",
            "nhead",
            "n_attention_heads",
            "num_attn_heads",
            "attention_heads",
            "attn_heads",
            "head_count",
            "head_number",
            "n_local_heads",
        ),
    ),
    Size.HEAD_WIDTH: ("head_dim", "dim_head", "d_head", "head_width", "dim_per_head", "d_k", "d_v", "d_q", "d_keys"),
    Size.LENGTH: (
        *("context_length", "context_size", "block_size", "ctx_len", "n_ctx", "seq_len", "seq_length", "window"),
        *("max_len", "max_length", "max_seq_len", "max_seq_length", "max_position_embeddings", "max_sequence_length"),
        "maximum_sequence_length",
    ),
    Size.BIAS: ("bias", "qkv_bias", "use_bias", "attention_bias"),
}
BY_NAME = {name: size for size, names in NAMES.items() for name in names}
FLAGS = ("log_", "use_", "return_", "store_", "save_", "output_att", "vis", "verbose")
"""How the names of flags begin; a flag is given only where it has to be."""
NESTED = ("transformer", "model", "attention", "attn", "text_config")
"""Settings that are objects of settings themselves."""


def size_of(name: str) -> Size | None:
    """What the parameter or setting of this name counts, if that is known."""
    lower = name.lower()
    if "drop" in lower:
        return Size.RATE
    return Size.FLAG if lower.startswith(FLAGS) else BY_NAME.get(lower)


def longest(heads: int) -> int:
    """Tokens that a module of so many heads is built for."""
    return LONGEST if heads <= FEW_HEADS else LONGEST // 8


def value_of(size: Size, width: int, heads: int) -> object:
    """What it is where all heads together are as wide as the inputs."""
    return {
        Size.WIDTH: width,
        Size.HEADS: heads,
        Size.HEAD_WIDTH: width // max(1, heads),
        Size.LENGTH: longest(heads),
        Size.RATE: 0.0,
        Size.BIAS: True,
        Size.FLAG: False,
        Size.NOTHING: None,
    }[size]


USUAL: Mapping[str, object] = {
    **dict.fromkeys(("eps", "norm_eps", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), 1e-6),
    **dict.fromkeys(("rope_theta", "rope_base", "rotary_base"), 10000.0),
    **dict.fromkeys(("max_batch_size", "batch_size"), MOST_SAMPLES),
    "device": "cpu",
    "dtype": None,
    "_attn_implementation": "eager",
    "initializer_range": 0.02,
}
"""Settings that are no sizes."""
GROUPS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads", "n_kv_head", "n_query_groups")


class Settings:
    """An object of settings: it has every one whose name is known, as an attribute and by key.

    Of the others it has those of an object of defaults, and where `lenient` all, too: False.
    """

    def __init__(self, width: int, heads: int, lenient: bool = False, defaults: object = None) -> None:
        self._sizes = (width, heads)
        self._lenient = lenient
        self._defaults = defaults

    def __getattr__(self, name: str) -> Any:
        if name in NESTED:
            return self
        if name in USUAL:
            return USUAL[name]
        if name in GROUPS:
            return self._sizes[1]
        if (size := size_of(name)) is None:
            if not name.startswith("_") and hasattr(self._defaults, name):
                return getattr(self._defaults, name)
            if self._lenient and not name.startswith("_"):
                return False
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


def settings_parameter(signature: inspect.Signature) -> str:
    """The one parameter that is an object of settings; nothing where there is none."""
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and size_of(p.name) is not Size.FLAG
    ]
    words = {"config", "cfg", "conf", "args", "configuration", "params", "hparams", "settings", "opt", "options"}
    named = [name for name in needed if words & set(name.lower().split("_"))]
    return named[0] if len(named) == 1 else ""


def settings_of(kind: Any, name: str, width: int, heads: int, lenient: bool = False) -> object:
    """The object for a class: of the dataclass that its constructor names, or one that has whatever is known."""
    hints: Mapping[str, Any] = safe_call(lambda: get_type_hints(kind.__init__)).value or {}
    hint = hints.get(name)
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return Settings(width, heads, lenient, _defaults(kind, hint))
    named = {each.name: size for each in fields(hint) if (size := size_of(each.name)) and each.init}
    given = {name: value_of(size, width, heads) for name, size in named.items() if size is not Size.BIAS}
    given |= {each.name: heads for each in fields(hint) if each.name in GROUPS and each.init}
    given |= {each.name: MOST_SAMPLES for each in fields(hint) if each.name == "max_batch_size" and each.init}
    given |= {each.name: USUAL[each.name] for each in fields(hint) if each.name in USUAL and each.default is MISSING}
    lacking = [f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING]
    rest = {n: value_of(named[n], width, heads) if n in named else False for n in lacking if n not in given}
    return hint(**given, **rest)


def _defaults(kind: Any, hint: object) -> object:
    """The settings by default: of the class that the constructor names, or of that of its module with its first name.

    Such as those of `GPT2Config` for `GPT2Attention`; None where there is no such class, or it needs arguments.
    """
    module = sys.modules.get(str(getattr(kind, "__module__", "")))
    own = vars(module) if module else {}
    names = sorted((n for n in own if n.endswith("Config") and _begins(kind, n)), key=len)
    found = [each for each in (hint, *(own[name] for name in reversed(names))) if isinstance(each, type)]
    return next((made.value for each in found if not (made := safe_call(each)).error), None)


def _begins(kind: Any, name: str) -> bool:
    stem = name.removesuffix("Config")
    return bool(stem) and str(getattr(kind, "__name__", "")).startswith(stem)
