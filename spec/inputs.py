"""Building: the numbers of a case, drawn from its seed and rounded to a dtype."""

from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.cases import Case, Embedding, Layout, ModuleForm, Poison, Scores, Sharing, Values
from attention_conformance.spec.codes import coded
from attention_conformance.spec.extra_inputs import extra_arrays, extra_parameters, shared_keys
from attention_conformance.spec.features import QkNorm, Scope
from attention_conformance.spec.latent import latent_rows
from attention_conformance.spec.masks import Booleans, attention_mask, padding_mask, valid_lengths, visible
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.spec.stored_keys import Codes

Floats: TypeAlias = NDArray[np.float64]

GIVEN = ("cotangent", "alibi_slopes", "rotary_cos", "rotary_sin", "key_scale", "value_scale")
"""Numbers that nobody learns."""
STORED = 50_000
"""Numbers of a case beyond which they are not stored in float64."""
LEAD = 1024.0
"""The factor of one-hot scores: a power of two whose lead underflows every exponential, and fits into float16."""
VERY_NEGATIVE = (128.0, -448.0)
"""Leading components of query and visible key in very negative cases: -57344 before the scale, within float16."""
MOST_NEGATIVE = (2.0**20, -(2.0**20))
"""The same in the most negative, where the range of the dtype allows it."""
OVERFLOW = (512.0, 160.0, 128.0)
"""Leading components of query, of each head's leading key and of the other keys in overflowing cases.

For d_k = 4 the products 81920 and 65536 are beyond float16, and the scaled scores 40960 and 32768 are not.
"""


@lru_cache(maxsize=2048)
def build(case: Case, dtype: str) -> Problem:
    """The case's problem with all floats rounded to `dtype`, with the gradients of everything.

    Raises:
        KeyError: no such dtype.
    """
    rounded_to = DTYPES[dtype]
    narrow = dtype == "float16" and (case.poison is Poison.LARGE or case.scores is Scores.MOST_NEGATIVE)
    problem = (_drawn if _is_stored(case) else _drawn.__wrapped__)(case, narrow)
    arrays = {n: a if a.dtype.kind in "bi" else a.astype(rounded_to) for n, a in problem.arrays().items()}
    for array in arrays.values():
        array.flags.writeable = False  # cached and shared: candidates get copies
    return problem.with_arrays(arrays)


def _is_stored(case: Case) -> bool:
    """Whether the numbers are stored for the next dtype, or drawn anew, which takes no longer than memory for many."""
    s = case.sizes
    return s.batch * s.num_heads * (s.query_length + s.key_length) * max(s.d_k, s.d_v) <= STORED


def generator(case: Case) -> np.random.Generator:
    """That from which the numbers of the case are drawn."""
    return np.random.default_rng([case.seed, case.sizes.query_length, case.sizes.key_length])


def masks_of(case: Case, rng: np.random.Generator) -> tuple[Array | None, Booleans | None, NDArray[np.int64] | None]:
    """attn_mask, key_padding_mask and valid_lens, which are drawn before all others."""
    return attention_mask(case, rng), padding_mask(case, rng), valid_lengths(case, rng)


@lru_cache(maxsize=1024)
def _drawn(case: Case, narrow: bool) -> Problem:
    """The case's problem in float64; `narrow`: with numbers that stay within the range of float16."""
    rng = generator(case)
    problem = _at_op_level(case, rng, narrow) if case.module is None else _at_module_level(case, rng, narrow)
    names = [n for n, a in problem.arrays().items() if a.dtype.kind not in "bi"]
    of_codes = () if case.extension.codes is Codes.NONE else ("key", "value")
    return replace(problem, needs=tuple(n for n in names if n not in GIVEN + of_codes))


def _at_op_level(case: Case, rng: np.random.Generator, narrow: bool) -> Problem:
    mask, padding, lengths = masks_of(case, rng)
    query, key, value = _heads(case, rng, visible(case, mask, padding, lengths), narrow)
    s, extras = case.sizes, extra_arrays(case)
    if case.extension.codes is not Codes.NONE:
        kind = case.extension.codes
        key, value = coded(key, extras["key_scale"], kind), coded(value, extras["value_scale"], kind)
    if case.extension.latent:
        key = value = latent_rows(case)
    if case.layout is Layout.BROADCAST:
        key[:], value[:] = key[:1], value[:1]
    return Problem(
        scope=Scope.OP,
        query=query,
        key=key,
        value=value,
        num_heads=s.num_heads,
        attn_mask=mask,
        key_padding_mask=padding,
        valid_lens=lengths,
        causal=case.causal,
        scale=case.scale,
        cotangent=rng.standard_normal((s.batch, s.num_heads, s.query_length, s.d_v)),
        sharing=Sharing.KEY_VALUE if case.extension.latent else Sharing.NONE,
        layout=case.layout,
        extension=case.extension,
        extras=extras,
    )


def _at_module_level(case: Case, rng: np.random.Generator, narrow: bool) -> Problem:
    form, s = case.module, case.sizes
    assert form is not None
    op = _at_op_level(case, rng, narrow)
    if form.embedding is Embedding.SELECT:
        inputs, parameters = _selecting(form, op), _selectors(form, case)
    elif form.embedding is Embedding.TOKENS:
        inputs, parameters = _one_hot(form, case), _of_tokens(form, case, op)
    else:
        inputs, parameters = _random_inputs(form, case, rng), _random_parameters(form, case, rng)
    out_dim = form.out_dim if form.output_projection else s.num_heads * s.d_v
    problem = replace(
        op,
        scope=Scope.MODULE,
        query=inputs[0],
        key=inputs[1],
        value=inputs[2],
        parameters=parameters,
        cotangent=rng.standard_normal((s.batch, s.query_length, out_dim)),
        sharing=form.sharing,
    )
    return problem.with_arrays({})


def _heads(
    case: Case, rng: np.random.Generator, allowed: NDArray[np.bool_], narrow: bool
) -> tuple[Floats, Floats, Floats]:
    s = case.sizes
    query = rng.standard_normal((s.batch, s.num_heads, s.query_length, s.d_k)) * case.score_std**0.5
    key = rng.standard_normal((s.batch, s.kv_heads, s.key_length, s.d_k)) * case.score_std**0.5
    value = rng.standard_normal((s.batch, s.kv_heads, s.key_length, s.d_v)) * case.value_scale
    if case.values is Values.CONSTANT:
        value[:] = value[:, :, :1]
    if case.values is Values.IDENTITY:
        value[:] = np.arange(s.d_v) % max(s.key_length, 1) == np.arange(s.key_length)[:, None]
    unseen: NDArray[np.bool_] = ~np.asarray(allowed.any(axis=2))
    if s.kv_heads != s.num_heads:
        unseen = np.repeat(unseen.all(1, keepdims=True), s.kv_heads, axis=1)
    query, key = _scored(case, rng, query, key, unseen, narrow)
    if case.poison is not Poison.NONE:
        key[unseen], value[unseen] = _poison(case, narrow)
    shared = shared_keys(case)
    key[:, :, :shared], value[:, :, :shared] = key[:1, :, :shared], value[:1, :, :shared]
    return query, key, value


def _poison(case: Case, narrow: bool) -> tuple[float, float]:
    if case.poison is Poison.NAN:
        return np.nan, np.nan
    of_key, of_value = (512.0, 2048.0) if narrow else (1e30, 1e30)
    squared = case.extension.qk_norm is not QkNorm.NONE  # by a norm of its row, which has no value where that overflows
    return min(of_key, 16.0 if narrow else 1e15) if squared else of_key, of_value


def _scored(
    case: Case, rng: np.random.Generator, query: Floats, key: Floats, unseen: NDArray[np.bool_], narrow: bool
) -> tuple[Floats, Floats]:
    s = case.sizes
    match case.scores:
        case Scores.EQUAL:
            query[:] = 0.0
        case Scores.ONE_HOT | Scores.FAR_ROWS:
            lead = np.full(s.query_length, LEAD)
            if case.scores is Scores.FAR_ROWS:
                lead[::2] = 1.0
            codes = _codes(s.key_length, s.d_k)
            key[:] = codes
            chosen = rng.integers(0, min(s.key_length, 2**s.d_k), (s.batch, s.num_heads, s.query_length))
            query = codes[chosen] * lead[:, None]
        case Scores.RISING:
            query[..., 0], key[..., 0] = 4.0 * s.d_k**0.5, np.linspace(-4.0, 4.0, s.key_length)
        case Scores.LAST:
            query[:], key[..., 0] = 0.0, 0.0
            query[..., 0], key[..., -1:, 0] = LEAD, 1.0
        case Scores.VERY_NEGATIVE | Scores.MOST_NEGATIVE:
            deep = case.scores is Scores.MOST_NEGATIVE and not narrow
            query[..., 0], key[..., 0] = MOST_NEGATIVE if deep else VERY_NEGATIVE
            key[unseen] = 0.0
        case Scores.OVERFLOWING:
            query[..., 0], key[..., 0] = OVERFLOW[0], OVERFLOW[2]
            key[:, :, s.key_length // 2, 0] = OVERFLOW[1]
        case Scores.NORMAL:
            pass
    return query, key


def _codes(count: int, width: int) -> Floats:
    """(count, width) rows of +1 and -1: the binary digits of the row number, different for count <= 2**width.

    Digits that all rows share are replaced by the others in turn: in wide heads, rows that differ by few of many
    components have scores that differ by less than a half type resolves.
    """
    used = min(width, max(count - 1, 1).bit_length())
    digits = (np.arange(count)[:, None] >> (np.arange(width) % max(used, 1))) & 1
    return np.asarray(1.0 - 2.0 * digits)


def _random_inputs(form: ModuleForm, case: Case, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    s = case.sizes
    query = rng.standard_normal((s.batch, s.query_length, form.query_dim))
    key = rng.standard_normal((s.batch, s.key_length, form.key_dim))
    value = rng.standard_normal((s.batch, s.key_length, form.value_dim))
    if case.layout is Layout.BROADCAST:
        key[:], value[:] = key[:1], value[:1]
    return query, key, value


def _random_parameters(form: ModuleForm, case: Case, rng: np.random.Generator) -> dict[str, Floats]:
    s = case.sizes
    queried, keyed, valued = s.num_heads * s.d_k, s.kv_heads * s.d_k, s.kv_heads * s.d_v
    score_std, mixed = case.score_std**0.5, s.num_heads * s.d_v
    parameters = {
        "w_q": rng.standard_normal((form.query_dim, queried)) * (score_std / form.query_dim**0.5),
        "w_k": rng.standard_normal((form.key_dim, keyed)) * (score_std / form.key_dim**0.5),
        "w_v": rng.standard_normal((form.value_dim, valued)) * (case.value_scale / form.value_dim**0.5),
    }
    if form.bias:
        widths = {"b_q": queried, "b_k": keyed, "b_v": valued}
        parameters |= {name: 0.5 * rng.standard_normal(width) for name, width in widths.items()}
    if form.output_projection:
        parameters["w_o"] = rng.standard_normal((mixed, form.out_dim)) / mixed**0.5
    if form.output_bias:
        parameters["b_o"] = 0.5 * rng.standard_normal(form.out_dim)
    return parameters | extra_parameters(case)


def _selecting(form: ModuleForm, op: Problem) -> tuple[Array, Array, Array]:
    parts = [_merge(op.query), _merge(op.key), _merge(op.value)]
    widths = (form.query_dim, form.key_dim, form.value_dim)
    if form.sharing is Sharing.SELF:
        parts = [np.concatenate(parts, axis=-1)] * 3
    elif form.sharing is Sharing.QUERY_KEY:
        shared = np.concatenate(parts[:2], axis=-1)
        parts = [shared, shared, parts[2]]
    elif form.sharing is Sharing.KEY_VALUE:
        shared = np.concatenate(parts[1:], axis=-1)
        parts = [parts[0], shared, shared]
    query, key, value = (_pad(part, width) for part, width in zip(parts, widths, strict=True))
    return query, key, value


def _one_hot(form: ModuleForm, case: Case) -> tuple[Array, Array, Array]:
    """Tokens of which each has a one in a place of its own."""
    s = case.sizes
    extents = ((s.query_length, form.query_dim), (s.key_length, form.key_dim), (s.key_length, form.value_dim))
    query, key, value = (np.tile(np.eye(*extent), (s.batch, 1, 1)) for extent in extents)
    return query, key, value


def _of_tokens(form: ModuleForm, case: Case, op: Problem) -> dict[str, Array]:
    """In the row of each token what the first sample has there; all other matrices are those of `_selectors`."""
    rows = {"w_q": (op.query, form.query_dim), "w_k": (op.key, form.key_dim), "w_v": (op.value, form.value_dim)}
    whole = _selectors(form, case)
    for name, (heads, width) in rows.items():
        whole[name] = np.zeros((width, whole[name].shape[-1]))
        for tokens in _merge(heads[:1]):
            whole[name][: len(tokens)] = tokens
    return whole


def _selectors(form: ModuleForm, case: Case) -> dict[str, Array]:
    s = case.sizes
    queried, keyed, valued = s.num_heads * s.d_k, s.kv_heads * s.d_k, s.kv_heads * s.d_v
    start = {
        Sharing.SELF: (0, queried, queried + keyed),
        Sharing.KEY_VALUE: (0, 0, keyed),
        Sharing.QUERY_KEY: (0, queried, 0),
        Sharing.NONE: (0, 0, 0),
    }
    at = start[form.sharing]
    parameters: dict[str, Array] = {
        "w_q": np.eye(form.query_dim, queried, -at[0]),
        "w_k": np.eye(form.key_dim, keyed, -at[1]),
        "w_v": np.eye(form.value_dim, valued, -at[2]),
    }
    if form.bias:
        parameters |= {"b_q": np.zeros(queried), "b_k": np.zeros(keyed), "b_v": np.zeros(valued)}
    if form.output_projection:
        parameters["w_o"] = np.eye(s.num_heads * s.d_v, form.out_dim)
    if form.output_bias:
        parameters["b_o"] = np.zeros(form.out_dim)
    return parameters | extra_parameters(case)


def _merge(heads: Array) -> Array:
    batch, num_heads, length, width = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, num_heads * width)


def _pad(array: Array, width: int) -> Array:
    return np.pad(array, [(0, 0), (0, 0), (0, width - array.shape[-1])])
