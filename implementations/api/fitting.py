"""Fitting: the case nearest to a given one that an implementation's claims allow."""

from dataclasses import replace
from functools import lru_cache

from attention_conformance.implementations.api.contract import Claims, Unsupported, any_case
from attention_conformance.implementations.api.safe_call import CandidateError, guarded
from attention_conformance.spec.bucket_edges import undecided
from attention_conformance.spec.case_limits import unusable
from attention_conformance.spec.case_options import used_options
from attention_conformance.spec.cases import (
    BY_LENGTH,
    Case,
    Embedding,
    Layout,
    MaskKind,
    ModuleForm,
    Padding,
    Poison,
    Scores,
    Sharing,
    Values,
)
from attention_conformance.spec.conventions import RotaryPairing, TableForm
from attention_conformance.spec.features import Feature, PositionIds, QkNorm, RotaryTables, Scope

MOST_FITTED = 2**30
"""Elements of an array of a case that a `fit` returns: padded ones have some times more than before."""
MOST_GROWN = 2**24
"""Numbers of a case that has grown by being fitted: one of many tiny samples would fill the memory in blocks of 128."""
FREE_WIDTHS = (13, 11, 17)
"""Input widths of query, key and value where they are free: coprime to each other and to the heads' widths."""


def fit(case: Case, claims: Claims) -> Case | Unsupported:
    """The case under the premises, with sizes, widths and module form that the claims allow, or why there is none.

    Raises:
        CandidateError: the `fit` of the claims raised, or returned something unusable.
    """
    fitted = _fitted(case, claims)
    if isinstance(fitted, Case) and (count := _numbers(fitted)) > max(MOST_GROWN, 2 * _numbers(case)):
        return Unsupported(f"at the sizes that it takes, a case of {_numbers(case):,} numbers has {count:,}")
    if isinstance(fitted, Case) and (edge := undecided(fitted)) is not None:
        return Unsupported(f"two buckets of biases meet at distance {edge}, and roundings decide between them")
    return fitted


def _numbers(case: Case) -> int:
    """Of scores, queries, keys and values."""
    s = case.sizes
    rows = (s.query_length + s.key_length) * (s.d_k + s.d_v)
    return s.batch * s.num_heads * (s.query_length * s.key_length + rows)


def _fitted(case: Case, claims: Claims) -> Case | Unsupported:
    case = claims.premises.under(case)
    missing = [f for f in required(case) if f not in claims and not claims.premises.implies(f)]
    if missing:
        return Unsupported(f"does not claim {missing[0]}")
    s = case.sizes
    num_heads = s.num_heads if Feature.HEADS in claims else 1
    d_v = s.d_v if Feature.VALUE_WIDTH in claims else s.d_k
    query_length = s.key_length if _sharing(case, claims).key_is_query else s.query_length
    num_kv_heads = s.num_kv_heads if num_heads > 1 else 0
    fitted = case.sized(num_heads=num_heads, d_v=d_v, query_length=query_length, num_kv_heads=num_kv_heads)
    if (d_k := _rotatable(case)) != s.d_k:
        fitted = fitted.sized(d_k=d_k, d_v=d_v if Feature.VALUE_WIDTH in claims else d_k)
    if case.extension.rotary_tables is not RotaryTables.NONE:
        fitted = _with_tables(fitted, claims)
    if case.extension.qk_norm is not QkNorm.NONE:
        fitted = fitted.extended(qk_norm=QkNorm(claims.conventions.norm_span))
    if case.extension.chunks or case.extension.cache_length:
        if wrong := _unfit_pieces(case, claims):
            return Unsupported(wrong)
        fitted = _in_pieces(fitted)
    if claims.scope is Scope.OP:
        return own_fit(claims, fitted if fitted.module is None else replace(fitted, module=None))
    nearest = own_fit(claims, replace(fitted, module=_form(fitted, claims)))
    if isinstance(nearest, Case) and (nearest.sizes != fitted.sizes or _shares_otherwise(nearest, fitted, claims)):
        nearest = own_fit(claims, replace(nearest, module=_form(nearest, claims)))  # other heads have other widths
    return nearest if isinstance(nearest, Unsupported) else _selectable(nearest)


def _shares_otherwise(nearest: Case, fitted: Case, claims: Claims) -> bool:
    """Whether a `fit` has chosen other inputs that are one array, which may have other widths."""
    return nearest.module is not None and nearest.module.sharing is not _sharing(fitted, claims)


def _with_tables(case: Case, claims: Claims) -> Case:
    """With tables in the claimed form; those of tokens count neither positions nor ids, and are as many as keys."""
    form, s, pairing = claims.conventions.rotary_tables, case.sizes, claims.conventions.rotary_pairing
    tables = RotaryTables(form)
    if form is TableForm.DOUBLED and pairing is RotaryPairing.INTERLEAVED:
        tables = RotaryTables.REPEATED
    if form is TableForm.POSITIONS:
        return case.sized(query_length=min(s.query_length, s.key_length)).extended(rotary_tables=tables)
    return case.sized(query_length=s.key_length).extended(rotary_tables=tables, position_ids=PositionIds.NONE)


def _rotatable(case: Case) -> int:
    """d_k with as many components as are rotated in pairs."""
    extension, d_k = case.extension, case.sizes.d_k
    if not extension.rotates:
        return d_k
    return d_k + d_k % 2 if extension.rotary_dim is None else max(d_k, extension.rotary_dim)


def fit_to_explain(case: Case, claims: Claims) -> Case | Unsupported:
    """The same, where no clause is judged: what a `fit` that fails would support is nothing."""
    try:
        return fit(case, claims)
    except CandidateError as error:
        return Unsupported(f"its fit failed: {error}")


def own_fit(claims: Claims, case: Case) -> Case | Unsupported:
    """What the `fit` of the claims returns.

    Raises:
        CandidateError: it raised, or returned something else.
    """
    if claims.fit is any_case:
        return case
    fitted: object = guarded(lambda: claims.fit(case))
    if not isinstance(fitted, Case | Unsupported):
        raise CandidateError(f"fit returned {type(fitted).__name__}, not a Case or Unsupported")
    if isinstance(fitted, Case) and (fitted.extension.rotary_dim or 0) > fitted.sizes.d_k > 1:
        fitted = fitted.extended(rotary_dim=fitted.sizes.d_k // 2 * 2)
    if isinstance(fitted, Case) and fitted != case and (why := unusable(fitted, MOST_FITTED)):
        raise CandidateError(f"fit returned a case that cannot be run: {why}")
    return fitted


@lru_cache(maxsize=4096)
def required(case: Case) -> tuple[Feature, ...]:
    """What a case needs to be claimed, beyond the core."""
    needed = {
        Feature.SCALE: case.scale is not None,
        Feature.BOOL_MASK: case.mask is MaskKind.BOOL,
        Feature.FLOAT_MASK: case.mask in (MaskKind.FLOAT, MaskKind.INFINITE),
        Feature.VALID_LENS: case.padding in BY_LENGTH,
        Feature.KEY_PADDING: case.padding is not Padding.NONE and case.padding not in BY_LENGTH,
        Feature.CAUSAL: case.causal,
        Feature.VIEWS: case.layout is not Layout.CONTIGUOUS,
        Feature.CONTAINMENT: case.poison is Poison.NAN,
        Feature.GROUPED: case.sizes.num_kv_heads not in (0, case.sizes.num_heads),
        Feature.CACHE: bool(case.extension.chunks),
        Feature.STATIC_CACHE: case.extension.cache_length > case.sizes.key_length,
        Feature.RING_CACHE: 0 < case.extension.cache_length < case.sizes.key_length,
        **{option.feature: True for option in used_options(case.extension)},
    }
    return tuple(feature for feature, is_needed in needed.items() if is_needed)


def _unfit_pieces(case: Case, claims: Claims) -> str:
    """Why the answer to a sequence in pieces would not be that at once; empty if it is."""
    extension, room = case.extension, case.extension.cache_length
    if not extension.chunks:
        return "a cache length needs a sequence that comes in pieces"
    if not case.causal or case.mask is not MaskKind.NONE or case.padding is not Padding.NONE:
        return "a sequence that comes in pieces is causal and has no other mask"
    own = 0 if claims.conventions.own_counted(case.causal) else 1
    if 0 < room < case.sizes.key_length and (extension.window_left is None or extension.window_left + own > room):
        return "a ring buffer has to hold every key that the window reaches"
    return ""


def _in_pieces(case: Case) -> Case:
    """The case with pieces that make up its keys: the first ones are cut to a token each, then left out."""
    length, pieces = case.sizes.key_length, list(case.extension.chunks)
    for number in range(len(pieces)):
        pieces[number] -= max(0, min(pieces[number] - 1, sum(pieces) - length))
    pieces = pieces[max(0, sum(pieces) - length) :]
    if pieces:
        pieces[-1] += length - sum(pieces)
    return case.sized(query_length=length).extended(chunks=tuple(pieces))


def _form(case: Case, claims: Claims) -> ModuleForm:
    sharing = _sharing(case, claims)
    select = case.scores is not Scores.NORMAL or case.values is not Values.NORMAL or case.poison is not Poison.NONE
    query_dim, key_dim, value_dim = _selected_widths(case, sharing) if select else _random_widths(case, claims)
    s = case.sizes
    if Feature.MODEL_WIDTH not in claims:
        query_dim = s.num_heads * s.d_k
    if sharing is Sharing.SELF or Feature.INPUT_WIDTHS not in claims:
        widest = query_dim if Feature.MODEL_WIDTH not in claims else max(query_dim, key_dim, value_dim)
        query_dim = key_dim = value_dim = widest
    elif not select and sharing is Sharing.NONE:
        key_dim, value_dim = _some_alike(case.seed, query_dim, key_dim, value_dim)
    if sharing is Sharing.KEY_VALUE:
        value_dim = key_dim
    if sharing is Sharing.QUERY_KEY:
        key_dim, value_dim = query_dim, query_dim if case.seed % 2 and not select else value_dim
    return ModuleForm(
        sharing=sharing,
        query_dim=query_dim,
        key_dim=key_dim,
        value_dim=value_dim,
        out_dim=query_dim if Feature.OUTPUT_PROJECTION in claims else s.num_heads * s.d_v,
        bias=Feature.BIAS in claims,
        output_projection=Feature.OUTPUT_PROJECTION in claims,
        output_bias=Feature.OUTPUT_BIAS in claims,
        embedding=_embedding(case, sharing, (query_dim, key_dim, value_dim)) if select else Embedding.RANDOM,
    )


def _embedding(case: Case, sharing: Sharing, widths: tuple[int, int, int]) -> Embedding:
    """By one-hot tokens where widths are too narrow to hold all that is wanted, and there are few tokens.

    Poison lies in keys that a mask hides, others in each sample, and tokens are the same in all.
    """
    wanted, (query, key) = _selected_widths(case, sharing), (case.sizes.query_length, case.sizes.key_length)
    narrow = any(width < needed for width, needed in zip(widths, wanted, strict=True))
    few = all(width >= count for width, count in zip(widths, (query, key, key), strict=True))
    return Embedding.TOKENS if narrow and few and case.poison is Poison.NONE else Embedding.SELECT


def _some_alike(seed: int, query_dim: int, key_dim: int, value_dim: int) -> tuple[int, int]:
    """Free widths of key and value; in two of four cases one of them is that of the query."""
    return {2: (query_dim, value_dim), 3: (key_dim, query_dim)}.get(seed % 4, (key_dim, value_dim))


def _sharing(case: Case, claims: Claims) -> Sharing:
    """What the case has, or as much more as the claims need."""
    wanted = Sharing.NONE if case.module is None else case.module.sharing
    if Feature.CROSS not in claims or (claims.alone and Feature.KEY_VALUE not in claims and wanted is Sharing.SELF):
        return Sharing.SELF
    return wanted if Feature.KEY_VALUE in claims else Sharing.KEY_VALUE


def _random_widths(case: Case, claims: Claims) -> tuple[int, int, int]:
    if Feature.INPUT_WIDTHS in claims or Feature.MODEL_WIDTH in claims:
        return FREE_WIDTHS
    width = case.sizes.num_heads * case.sizes.d_k
    return width, width, width


def _selected_widths(case: Case, sharing: Sharing) -> tuple[int, int, int]:
    s = case.sizes
    keyed, valued = s.num_heads * s.d_k, s.num_heads * s.d_v
    if sharing is Sharing.SELF:
        width = 2 * keyed + valued
        return width, width, width
    if sharing is Sharing.QUERY_KEY:
        return 2 * keyed, 2 * keyed, valued
    if sharing is Sharing.KEY_VALUE:
        return max(keyed, valued), keyed + valued, keyed + valued
    return max(keyed, valued), keyed, valued


def _selectable(case: Case) -> Case | Unsupported:
    form = case.module
    assert form is not None
    if form.embedding is Embedding.RANDOM:
        return case
    if form.embedding is Embedding.TOKENS:
        return _with_output(case, form)
    wanted = _selected_widths(case, form.sharing)
    widths = (form.query_dim, form.key_dim, form.value_dim)
    if any(width < needed for width, needed in zip(widths, wanted, strict=True)):
        return Unsupported("its widths are tied, so that no inputs give the scores of the case")
    return _with_output(case, form)


def _with_output(case: Case, form: ModuleForm) -> Case | Unsupported:
    narrow = form.output_projection and form.out_dim < case.sizes.num_heads * case.sizes.d_v
    return Unsupported("its output is narrower than its heads") if narrow else case
