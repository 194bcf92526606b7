"""Functions of latents: keys and values of all heads as one row for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

from attention_conformance.implementations.adapters.latent import LatentCall
from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.api.contract import Fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.stored_axes import OP, permuted
from attention_conformance.implementations.discovery.shipped.shipped import Interface, Shipped, first
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

QUERIES = (("q_nope", "q_pe"), ("q_nope", "q_rope"), ("query", "query_rope"))
ROWS = (("kv_c", "k_pe"), ("c_kv", "k_pe"), ("ckv", "kpe"), ("kv_c_normed", "k_pe"), ("c_kv", "key_rope"))
UP = (("w_uk", "w_uv"), ("W_UK", "W_UV"), ("w_kc", "w_vc"))
LACKS = frozenset({Feature.MASK_GRADIENT, Feature.CONTAINMENT, Feature.GROUPED, Feature.LOG_SUM_EXP})
AT_THE_END = {"causal-alignment": "bottom-right-real", "empty-row": "zeros"}
"""The last query stands at the last token of its sample."""
SCORED = {
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "valid_lens": ("valid_lens", "cache_seqlens", "seq_lens", "kv_lens", "kv_len"),
}
SIZES = {"B": 2, "H": 3, "L": 1, "S": 7, "N": 4, "R": 2, "C": 6, "V": 5}
"""Of a first call: samples, heads, queries, tokens, both parts of queries, a latent, and the values of a head."""
ONE_QUERY = "BHD"


@dataclass(frozen=True)
class LatentForm:
    """How such a function has its arrays.

    Attributes:
        query: axes of its queries, in the letters of (B, H, L, D); without L each sample has one.
        keys_transposed, values_transposed: whether the last two axes of its matrix are exchanged.
    """

    query: str = OP
    keys_transposed: bool = False
    values_transposed: bool = False

    @property
    def single(self) -> bool:
        """Whether each sample has one query."""
        return self.query == ONE_QUERY

    def arrays(self, given: tuple[Any, ...]) -> list[Any]:
        """Those of `Latents` in this form."""
        *parts, latents, rotary, keys, values = given
        queries = [x[:, :, 0] if self.single else permuted(x, OP, self.query) for x in parts]
        matrices = zip((keys, values), (self.keys_transposed, self.values_transposed), strict=True)
        return [*queries, latents, rotary, *(x.swapaxes(-1, -2) if other else x for x, other in matrices)]

    def back(self, output: Any) -> Any:
        """Its output as (B, H, Lq, d_v)."""
        return output[:, :, None] if self.single else permuted(output, self.query, OP)


@lru_cache
def form_of(function: Callable[..., Any], names: tuple[str, ...]) -> LatentForm:
    """The form in which the function takes arrays whose sizes all differ; the usual one where it takes none."""
    axes = ("BHLN", "BHLR", "BSC", "BSR", "HNC", "HVC")
    kinds = [*zip(*(of_each_kind(tuple(SIZES[axis] for axis in each)) for each in axes), strict=True)]
    shape = tuple(SIZES[axis] for axis in "BHLV")
    for single, keys, values in product((OP, "BLHD", ONE_QUERY), (False, True), (False, True)):
        form = LatentForm(single, keys, values)
        for given in kinds:
            named = dict(zip(names, form.arrays(given), strict=True))
            output = safe_call(partial(function, **named)).value
            if tuple(getattr(safe_call(partial(_output, form, output)).value, "shape", ())) == shape:
                return form
    return LatentForm()


def _output(form: LatentForm, answer: Any) -> Any:
    return form.back(first(answer)[0])


def with_matrices(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Both parts of queries (B, H, Lq, d), latents and rotary parts (B, Lk, d), and both matrices (H, d, r)."""
    names = _names(shipped)
    form = form_of(shipped.function, names)

    def called(*given: Any, **others: Any) -> Any:
        arrays = dict(zip(names, form.arrays(given), strict=True))
        return _output(form, shipped.function(**arrays, **shipped.keywords(others)))

    return LatentCall(called)(query, key, value, **options)


def _names(shipped: Shipped) -> tuple[str, ...]:
    """Its own names, in the order of `Latents`."""
    pairs = (next(pair for pair in known if {*pair} <= shipped.names) for known in (QUERIES, ROWS))
    return (*(name for pair in pairs for name in pair), shipped.own["w_uk"], shipped.own["w_uv"])


def seen_fit(shipped: Shipped) -> tuple[Fit, str]:
    """The fit of its lengths, and what calls have shown of its form."""
    form = form_of(shipped.function, _names(shipped))
    return (_one_query, "it takes one query a sample") if form.single else (lengths_of_samples, "")


def _one_query(case: Case) -> Case:
    return lengths_of_samples(case).sized(query_length=1)


LATENT = tuple(
    Interface(
        "attention over latents",
        frozenset({*queries, *rows, *up}),
        with_matrices,
        dict(zip(("w_uk", "w_uv"), up, strict=True)),
        AT_THE_END,
        seen_fit=seen_fit,
        lacks=LACKS,
        spellings=SCORED,
    )
    for queries, rows, up in product(QUERIES, ROWS, UP)
)
