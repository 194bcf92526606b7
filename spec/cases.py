"""Cases: attention problems small enough to write down, from which every input can be rebuilt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from attention_conformance.spec.features import NOTHING, Extension, Scope

Record = TypeVar("Record")


@dataclass(frozen=True)
class Sizes:
    """The extents of one attention problem, per head. The defaults are coprime, so that no two axes look alike."""

    batch: int = 2
    num_heads: int = 3
    query_length: int = 5
    key_length: int = 7
    d_k: int = 4
    d_v: int = 3
    num_kv_heads: int = 0
    """Heads of key and value; 0 is as many as `num_heads`."""

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def __str__(self) -> str:
        grouped = f" Hk={self.num_kv_heads}" if self.num_kv_heads else ""
        return (
            f"B={self.batch} H={self.num_heads}{grouped} Lq={self.query_length} Lk={self.key_length} "
            f"d_k={self.d_k} d_v={self.d_v}"
        )


class Scores(StrEnum):
    """How the scores of a case are distributed."""

    NORMAL = "normal"
    """Independent normal scores with the case's spread."""
    ONE_HOT = "one-hot"
    """One key of each row leads by hundreds, exactly representable: its weight is 1."""
    FAR_ROWS = "far-rows"
    """Row maxima that lie hundreds apart, some far below zero."""
    RISING = "rising"
    """Scores that grow along the keys, so that the largest comes last."""
    LAST = "last"
    """The last key leads by hundreds, so that its weight is 1; the scores of all others are 0."""
    VERY_NEGATIVE = "very-negative"
    """Scores of about -28672 for visible keys, of about 0 for masked ones."""
    MOST_NEGATIVE = "most-negative"
    """VERY_NEGATIVE, and in dtypes wider than float16 to -5e11: below the usual stand-ins for minus infinity."""
    EQUAL = "equal"
    """All scores of a row are the same."""
    OVERFLOWING = "overflowing"
    """Products q.k beyond the range of float16 whose scaled scores are within it."""


class Values(StrEnum):
    """What the rows of V hold."""

    NORMAL = "normal"
    CONSTANT = "constant"
    """Every key of a head has the same value row."""
    IDENTITY = "identity"
    """Component c of row j is 1 where c = j, j + Lk, j + 2 Lk, ..., and 0 elsewhere: the output shows the weights."""


class MaskKind(StrEnum):
    """The kind of attention mask that is passed."""

    NONE = "none"
    BOOL = "bool"
    FLOAT = "float"
    """Finite, non-zero additions."""
    INFINITE = "infinite"
    """Finite additions, and minus infinity where a key is masked."""


class MaskShape(StrEnum):
    """Which axes of (B, H, Lq, Lk) the mask spells out; the others have extent 1, or are absent."""

    FULL = "B,H,Lq,Lk"
    SAMPLE = "B,1,Lq,Lk"
    HEAD = "1,H,Lq,Lk"
    SHARED = "Lq,Lk"
    KEYS = "B,1,1,Lk"
    QUERIES = "B,1,Lq,1"
    EACH_KEYS = "B,H,1,Lk"
    HEADS_ONLY = "H,Lq,Lk"
    KEYS_ONLY = "Lk"


class Pattern(StrEnum):
    """Which keys an attention mask leaves."""

    RANDOM = "random"
    """Holes everywhere, every row different, no row empty."""
    ALL = "all"
    """Nothing masked (a float mask: zeros)."""
    SINGLE_KEY = "single-key"
    """One key a row."""
    SEGMENTS = "segments"
    """Block-diagonal: keys of the query's own segment."""
    LAST_KEY = "last-key"
    """The last key, in every row."""
    FIRST_TILE = "first-tile"
    """The first half of the keys is masked in every row."""
    PREFIX = "prefix"
    """The first keys; how many differs from sample to sample and from head to head (a float mask: else zeros)."""
    TRIANGLE = "triangle"
    """The keys up to the number of the query (a float mask: else zeros)."""
    RULES = "rules"
    """What models write out, by seed, sample and head: a prefix, blocks, chunks, a tree (a float mask: else zeros)."""
    MIDDLE = "middle"
    """All but some keys in the middle, in the middle sample, head and query alone (a float mask: else zeros)."""
    NEARLY_TRIANGLE = "nearly-triangle"
    """TRIANGLE, but for one key of that query."""
    EMPTY_ROW = "empty-row"
    """RANDOM, and query 1 of every head and sample may see nothing."""
    EMPTY_IN_ONE = "empty-in-one"
    """RANDOM, and query 1 may see nothing in the last head of the last sample."""


class Padding(StrEnum):
    """Which keys of a sample are real."""

    NONE = "none"
    RIGHT = "right"
    LEFT = "left"
    FIRST_TILE = "first-tile"
    """LEFT, and at least half of the keys are padding."""
    HOLES = "holes"
    MIDDLE = "middle"
    """HOLES, in the middle sample alone: all keys of the others are real, and its first and its last one."""
    EMPTY_SAMPLE = "empty-sample"
    """The last sample has no real key."""
    LENGTHS = "lengths"
    """RIGHT, given as valid lengths (B,)."""
    MIDDLE_LENGTHS = "middle-lengths"
    """LENGTHS, and all but the middle sample have all keys."""
    EMPTY_LENGTHS = "empty-lengths"
    """LENGTHS, and that of the last sample is 0."""
    QUERY_LENGTHS = "query-lengths"
    """Valid lengths (B, Lq), a count for each query."""


NOT_FIRST = (Padding.LEFT, Padding.FIRST_TILE, Padding.HOLES)
"""Paddings that may hide the first key and leave later ones."""
BY_LENGTH = (Padding.LENGTHS, Padding.MIDDLE_LENGTHS, Padding.EMPTY_LENGTHS, Padding.QUERY_LENGTHS)
"""Paddings that are given as valid lengths."""


class Poison(StrEnum):
    """What stands in masked keys and values."""

    NONE = "none"
    LARGE = "large"
    """As large as the dtype bears without overflow of the scores."""
    NAN = "nan"


class Layout(StrEnum):
    """How the arrays lie in memory; the numbers are the same."""

    CONTIGUOUS = "contiguous"
    TRANSPOSED = "transposed"
    """Heads or tokens innermost but one: the usual result of a transpose."""
    SLICED = "sliced"
    """Every second row of a larger array."""
    OFFSET = "offset"
    """Starts one element after the beginning of its buffer."""
    REVERSED = "reversed"
    """Negative strides."""
    BROADCAST = "broadcast"
    """Key and value of stride 0 along the batch."""
    FORTRAN = "fortran"
    """The first axis is the innermost, and the last one has the longest stride."""
    PACKED = "packed"
    """Query, key and value of as many tokens are columns of one buffer, as one product for all of them gives."""


class Sharing(StrEnum):
    """Which inputs of a module are one and the same array."""

    SELF = "self"
    """Query, key and value."""
    KEY_VALUE = "key-value"
    """Key and value."""
    QUERY_KEY = "query-key"
    """Query and key, as where positions are added to these alone."""
    NONE = "none"

    @property
    def key_is_query(self) -> bool:
        """Whether the key is the array of the query."""
        return self in (Sharing.SELF, Sharing.QUERY_KEY)

    @property
    def value_is_key(self) -> bool:
        """Whether the value is the array of the key."""
        return self in (Sharing.SELF, Sharing.KEY_VALUE)


class Embedding(StrEnum):
    """How a module's projections are chosen."""

    RANDOM = "random"
    SELECT = "select"
    """Zeros and ones that pick the wanted query, key and value out of the input."""
    TOKENS = "tokens"
    """The wanted query, key and value of each token, in a row that it picks by a one: the same in all samples."""


@dataclass(frozen=True)
class ModuleForm:
    """The widths and parts of a module around the op."""

    sharing: Sharing
    query_dim: int
    key_dim: int
    value_dim: int
    out_dim: int
    bias: bool = False
    output_projection: bool = False
    output_bias: bool = False
    embedding: Embedding = Embedding.RANDOM


@dataclass(frozen=True)
class Case:
    """One attention problem. The default is an ordinary one: random scores, no mask, contiguous arrays.

    `score_std` is the standard deviation of the scores, `scale` None stands for the default 1/sqrt(d_k),
    `value_scale` multiplies V. `module` None is the op level.
    """

    sizes: Sizes = Sizes()
    seed: int = 0
    scores: Scores = Scores.NORMAL
    score_std: float = 1.5
    values: Values = Values.NORMAL
    value_scale: float = 1.0
    scale: float | None = None
    mask: MaskKind = MaskKind.NONE
    mask_shape: MaskShape = MaskShape.FULL
    pattern: Pattern = Pattern.RANDOM
    mask_offset: float = 0.0
    padding: Padding = Padding.NONE
    causal: bool = False
    poison: Poison = Poison.NONE
    layout: Layout = Layout.CONTIGUOUS
    module: ModuleForm | None = None
    extension: Extension = NOTHING

    @property
    def scope(self) -> Scope:
        return Scope.OP if self.module is None else Scope.MODULE

    def as_self_attention(self) -> Case:
        """The case of a module whose query, key and value are one input; its widths are those that the claims allow."""
        return replace(self, module=ModuleForm(Sharing.SELF, 1, 1, 1, 1))

    def sized(self, **extents: int) -> Case:
        """This case with some extents of its sizes changed."""
        if all(getattr(self.sizes, name) == extent for name, extent in extents.items()):
            return self
        return _replaced(self, sizes=_replaced(self.sizes, **extents))

    def extended(self, **changes: Any) -> Case:
        """This case with some fields of its extension changed; see `Extension`."""
        if all(getattr(self.extension, name) == value for name, value in changes.items()):
            return self
        return _replaced(self, extension=_replaced(self.extension, **changes))

    def to_json(self) -> str:
        """A JSON object from which `from_json` rebuilds an equal case."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The case that `to_json` wrote.

        Raises:
            ValueError: the text is no such object; the message names the field.
        """
        built = from_data(cls, json.loads(text), "case")
        assert isinstance(built, cls)
        return built

    def __str__(self) -> str:
        default = Case()
        named = [f.name for f in fields(self) if f.name not in ("sizes", "module", "extension")]
        changed = [f"{n}={getattr(self, n)}" for n in named if getattr(self, n) != getattr(default, n)]
        changed += _changed(self.extension)
        form = [] if self.module is None else [_describe(self.module)]
        return " ".join([str(self.sizes), *form, *changed])


def _replaced(record: Record, **changes: Any) -> Record:
    """What `dataclasses.replace` gives of a record that checks nothing as it is made, in a tenth of its time.

    Raises:
        TypeError: a field that it lacks.
    """
    if unknown := sorted(changes.keys() - vars(record).keys()):
        raise TypeError(f"{type(record).__name__} has no field {unknown[0]!r}")
    made = object.__new__(type(record))
    vars(made).update(vars(record), **changes)
    return made


def _changed(extension: Extension) -> list[str]:
    named = [f.name for f in fields(extension)]
    return [f"{n}={getattr(extension, n)}" for n in named if getattr(extension, n) != getattr(NOTHING, n)]


def _describe(form: ModuleForm) -> str:
    widths = f"{form.query_dim},{form.key_dim},{form.value_dim}->{form.out_dim}"
    return f"widths={widths} sharing={form.sharing} weights={form.embedding}"


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def from_data(kind: type[Any], data: object, where: str) -> Any:
    """A dataclass from the plain values of its fields, each of which is checked.

    Raises:
        ValueError: there is an unknown field, one is missing, or has a value of another type; the message names it.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object, not {data!r}")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{where} has no field {unknown[0]!r}; it has: {', '.join(hints)}")
    required = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    missing = [name for name in required if name not in data]
    if missing:
        raise ValueError(f"{where} lacks the field {missing[0]!r}")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _value(hint: Any, value: object, where: str) -> Any:
    if NoneType in get_args(hint):
        if value is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if is_dataclass(hint):
        return from_data(cast(type[Any], hint), value, where)
    if hint == tuple[int, ...]:
        return _lengths(value, where)
    if get_origin(hint) is tuple:
        return _several(get_args(hint)[0], value, where)
    if hint == Mapping[str, str]:
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise ValueError(f"{where} cannot be {value!r}")
        return value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if value not in list(hint):
            raise ValueError(f"{where} cannot be {value!r}; choose from: {', '.join(hint)}")
        return hint(str(value))
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where} cannot be {value!r}")
    return value


def _several(hint: Any, value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} cannot be {value!r}")
    return tuple(_value(hint, each, f"{where}[{number}]") for number, each in enumerate(value))


def _lengths(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(x) is int for x in value):
        raise ValueError(f"{where} cannot be {value!r}")
    return tuple(value)
