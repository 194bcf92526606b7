"""Extra options: what a candidate may take beyond the core, and a problem that shows each of them."""

from collections.abc import Mapping

import numpy as np

from attention_conformance.implementations.discovery.auditor.findings import OFFERED
from attention_conformance.spec.case_options import CASE_OPTIONS, CaseOption
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.extra_inputs import table_of
from attention_conformance.spec.features import Extension, Feature, QkNorm, RotaryTables
from attention_conformance.spec.problem import Array

DROPOUT = Extension(dropout=0.5, dropout_seed=1)
_OTHERWISE = (Feature.DROPOUT, Feature.EVALUATION, Feature.LATENT, Feature.CACHE_ROWS)
EXTRA_OPTIONS = tuple(option for option in CASE_OPTIONS if option.feature not in _OTHERWISE)
"""Those that one more argument of query, key and value shows."""
CAUSAL_ONLY = (Feature.QUERY_START, Feature.QUERY_STARTS)
"""What shows under the causal flag."""
UNSEEN = (Feature.KEY_SPLITS, Feature.PAGED)
"""How keys are stored or divided, which changes no answer: none shows whether the option is taken or ignored."""


def meanings(option: CaseOption) -> Mapping[str, Conventions]:
    """The conventions under which the reference gives the known answers, by the names of these answers."""
    options = (option, *(each for each in EXTRA_OPTIONS if each.used(option.presumed)))
    if not (convention := next((each.convention for each in options if each.convention), "")):
        return {OFFERED: Conventions()}
    values = type(getattr(Conventions(), convention))
    return {str(value): Conventions().claiming({convention.replace("_", "-"): value}) for value in values}


def drawn(heads: int, *shape: int) -> Array:
    """Numbers between 0.3 and 1.4, all different."""
    return np.random.default_rng(8).uniform(0.3, 1.4, (heads, *shape))


def extra_arrays(option: CaseOption, heads: int, keys: int, width: int) -> Mapping[str, Array]:
    """The arrays of a problem that shows the option, in float64; parameters of a module are not among them."""
    if option.example.qk_norm is not QkNorm.NONE:
        return {"query_norm": drawn(width)[::-1].copy(), "key_norm": drawn(width)}
    if option.feature is Feature.ROTARY_TABLES:
        rows = (keys,) if option.example.rotary_tables is RotaryTables.POSITIONS else (2, keys)
        halves = {"rotary_cos": drawn(*rows, width // 2), "rotary_sin": -drawn(*rows, width // 2)[..., ::-1, :]}
        return {name: table_of(half, option.example.rotary_tables) for name, half in halves.items()}
    if option.feature is Feature.OUTPUT_GATES:
        return {"gate_logits": drawn(2, heads, keys, 1)}
    if option.feature is Feature.SEGMENTS:
        ids = np.array([[0] * 3 + [1] * (keys - 3), [0] * 4 + [1] * (keys - 4)])
        return {"query_segments": ids, "key_segments": ids.copy()}
    if option.feature is Feature.CUMULATIVE_LENGTHS:
        return {name: np.array([3, keys - 3]) for name in ("query_lengths", "key_lengths")}
    if option.feature is Feature.QUANTISED:
        return {name: drawn(heads)[:1].reshape(1, 1, 1, 1) for name in ("key_scale", "value_scale")}
    if option.feature is Feature.PAGED:
        pages = -(-keys // option.example.page_size)
        return {"block_table": np.random.default_rng(8).permutation(2 * pages).reshape(2, pages)}
    if option.feature is Feature.QUERY_STARTS:
        return {"query_starts": np.array([2, 1])}
    if option.feature is Feature.QUERY_LENS:
        return {"query_lens": np.array([keys - 2, keys - 1])}
    if option.feature is Feature.ALIBI_SAMPLES:
        return {"alibi_slopes": drawn(2, heads)}
    if option.feature is Feature.POSITION_IDS:
        ids = np.cumsum([[1 + (sample + at) % 2 for at in range(keys)] for sample in range(2)], -1)
        return {"query_positions": ids, "key_positions": ids.copy()}
    return {
        name: drawn(*each.draw(np.random.default_rng(), heads, option.example).shape)
        for each in (option, *(other for other in EXTRA_OPTIONS if other.used(option.presumed)))
        if each.draw is not None
        for name in each.keywords
    }
